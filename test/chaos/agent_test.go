package chaos_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/longcall/longcall/test/wire"
)

// script is what an agent is going to do.
type script struct {
	kind    string // "session", "stateless" or "tasks"
	name    string // of the client
	token   string // of the principal
	server  string
	tasks   bool // declares the extension
	args    args
	key     string // idempotency key; empty for none
	keyMeta bool   // in _meta instead of the header
	wait    time.Duration
	cancel  time.Duration // when it cancels, after its request; 0 if never
	// wantTask says that a session's agent asks for a task of the older generation.
	wantTask bool
}

// agent makes one call, and does what its kind can until it knows how that ended.
type agent struct {
	script
	r   *round
	rng *rand.Rand

	// Of one session:
	sessionID string
	asked     time.Time // when initialize was sent
	born      time.Time // when its answer came

	ids       int
	streams   map[string]*stream // by request id
	lastID    string
	handle    string // to ask by
	isTask    bool
	cancelled time.Time // when it began to cancel
	cancelOK  time.Time // when longcall had taken the cancel

	mu       sync.Mutex
	attempts []*attempt
	faults   []string
	final    *answer
}

// stream is what an agent has seen of one request's messages, over all
// connections that brought them.
type stream struct {
	progress float64
	step     int
	gaps     bool
	seen     bool
	answered bool
}

func (a *agent) note(t *attempt) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.attempts = append(a.attempts, t)
}

// wrong notes what must not be.
func (a *agent) wrong(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.faults) < 5 {
		a.faults = append(a.faults, fmt.Sprintf(format, args...))
	}
}

func (a *agent) modern() bool { return a.kind != "session" }

var errCancelled = errors.New("the agent cancels")

// run makes the call, and returns when it knows the end, has cancelled, or ctx
// is done.
func (a *agent) run(ctx context.Context) {
	if !sleep(ctx, a.wait) {
		return
	}
	// A stateless agent cancels by hanging up: its request has a context of its own.
	call, hangUp := context.WithCancelCause(ctx)
	defer hangUp(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	ended := make(chan struct{})
	defer close(ended)
	if a.cancel > 0 {
		wg.Go(func() {
			t := time.NewTimer(a.cancel)
			defer t.Stop()
			select {
			case <-t.C:
				hangUp(errCancelled)
			case <-ended:
			}
		})
	}
	for try := 0; call.Err() == nil && a.result() == nil; try++ {
		if try > 0 && !sleep(call, time.Duration(20+a.rng.IntN(200))*time.Millisecond) {
			break
		}
		switch {
		case a.handle != "":
			a.poll(call)
		case a.kind == "session" && a.lastID != "":
			a.resume(call)
		case a.kind == "session" && a.sessionID == "":
			a.initialize(call)
		default:
			a.request(call)
		}
	}
	if context.Cause(call) == errCancelled && a.result() == nil && ctx.Err() == nil {
		a.doCancel(ctx)
	}
}

func (a *agent) result() *answer {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.final
}

// requested says whether a tools/call may have reached longcall.
func (a *agent) requested() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, t := range a.attempts {
		if t.what == "call" && t.port != "" {
			return true
		}
	}
	return false
}

func (a *agent) nextID() string {
	a.ids++
	if a.rng.IntN(2) == 0 {
		return strconv.Itoa(a.ids)
	}
	return strconv.Quote("q" + strconv.Itoa(a.ids))
}

// session takes the id that initialize gave.
func (a *agent) session(resp *http.Response) {
	if id := resp.Header.Get("Mcp-Session-Id"); id != "" && a.kind == "session" && resp.StatusCode == http.StatusOK {
		a.sessionID, a.born = id, time.Now()
	}
}

func (a *agent) initialize(ctx context.Context) {
	id := a.nextID()
	a.asked = time.Now()
	whole := false
	a.send(ctx, request{
		what: "initialize", verb: "POST", path: "/mcp/" + a.server, id: id,
		body: body(id, "initialize", `"protocolVersion":"`+wire.Legacy+`","capabilities":{},"clientInfo":{"name":`+wire.Quote(a.name)+`,"version":"1"}`, ""),
		message: func(m wire.Msg) bool {
			whole = m.Result != nil
			return true
		},
	})
	if !whole {
		a.sessionID = "" // an agent that saw half an answer starts again
	}
}

// request sends the tools/call, once more with a new id if it was sent before.
func (a *agent) request(ctx context.Context) {
	id := a.nextID()
	raw, err := json.Marshal(a.args)
	if err != nil {
		panic(err) // it is plain data
	}
	meta := `"progressToken":` + id
	header := a.legacyHeader()
	if a.modern() {
		meta += "," + a.modernMeta()
		header = modernHeader("tools/call", "work")
	}
	switch {
	case a.key != "" && a.keyMeta:
		meta += `,"dev.longcall/idempotencyKey":` + wire.Quote(a.key)
	case a.key != "":
		header["Idempotency-Key"] = a.key
	}
	params := `"name":"work","arguments":` + string(raw)
	if a.wantTask {
		params += `,"task":{"ttl":60000}`
	}
	a.follow(ctx, id, request{
		what: "call", verb: "POST", path: "/mcp/" + a.server, id: id, header: header,
		body: body(id, "tools/call", params, meta),
	})
}

// resume goes on after the last event.
func (a *agent) resume(ctx context.Context) {
	h := a.legacyHeader()
	h["Last-Event-Id"] = a.lastID
	a.mu.Lock()
	id := ""
	for _, t := range a.attempts {
		if t.what == "call" {
			id = t.id
		}
	}
	a.mu.Unlock()
	a.follow(ctx, id, request{what: "resume", verb: "GET", path: "/mcp/" + a.server, id: id, header: h})
}

// follow reads the messages that answer a request.
func (a *agent) follow(ctx context.Context, id string, r request) {
	if a.streams == nil {
		a.streams = map[string]*stream{}
	}
	s := a.streams[id]
	if s == nil {
		s = &stream{}
		a.streams[id] = s
	}
	r.eventID = func(v string) {
		if a.kind == "session" {
			a.lastID = v
			return
		}
		a.wrong("an event id for a stateless agent: %q", v)
	}
	var got *answer
	r.message = func(m wire.Msg) bool {
		if s.answered {
			a.wrong("a message after the response to %s: %s", id, clip(m.JSON, 200))
		}
		if m.Response() {
			switch {
			case m.ID == nil && m.Error != nil:
				got = &answer{kind: "refused", json: m.JSON}
				return true
			case string(m.ID) != id:
				a.wrong("a response to %s where %s was asked: %s", m.ID, id, clip(m.JSON, 200))
				return true
			}
			s.answered = true
			v, err := readAnswer(m, a.args.text())
			if err != nil {
				a.wrong("%v", err)
			}
			got = v
			return true
		}
		a.progress(s, id, m)
		return false
	}
	t := a.send(ctx, r)
	if got != nil {
		t.answer, t.answered = got, time.Now()
	}
	switch {
	case t.status == http.StatusNotFound && a.kind == "session":
		a.lost()
	case t.status >= 400 && r.what == "resume":
		a.wrong("the place %q cannot be resumed: HTTP %d %s", clip(a.lastID, 200), t.status, got)
		a.lastID = ""
		a.end(&answer{kind: "error", json: got.String()})
	case got == nil && r.what == "resume" && t.status == 200 && t.err == nil:
		a.wrong("a resumed stream ended without the response")
	case got == nil:
	case got.kind == "refused" || got.kind == "error":
		if t.status >= 500 {
			return
		}
		a.end(got)
	case got.kind == "task" || got.kind == "handle":
		a.handle, a.isTask, a.lastID = got.ref, got.kind == "task", ""
	default:
		a.end(got)
	}
}

func (a *agent) end(v *answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.final = v
}

// progress checks a notification on the request's stream.
func (a *agent) progress(s *stream, id string, m wire.Msg) {
	if m.Method != "notifications/progress" {
		a.wrong("an unexpected message: %s", clip(m.JSON, 200))
		return
	}
	if string(m.At("params.progressToken")) != id {
		a.wrong("progress for token %s where %s was given: %s", m.At("params.progressToken"), id, clip(m.JSON, 200))
	}
	v, err := strconv.ParseFloat(string(m.At("params.progress")), 64)
	if err != nil || s.seen && v <= s.progress {
		a.wrong("progress %s of %s after %v: it must increase", m.At("params.progress"), id, s.progress)
	}
	s.progress, s.seen = v, true
	text := m.Str("params.message")
	rest, ours := strings.CutPrefix(text, "step ")
	if !ours {
		return // a beat of longcall's
	}
	nonce, number, _ := strings.Cut(rest, " ")
	k, _ := strconv.Atoi(number)
	if nonce != a.args.Nonce {
		a.wrong("progress of another call: %q", text)
	}
	if k <= s.step && (a.server == "ids" || k < s.step) { // a task's status may be told twice
		a.wrong("step %d after step %d on the stream of %s", k, s.step, id)
	}
	if k != s.step+1 && len(a.streams) == 1 {
		s.gaps = true
	}
	s.step = k
}

// poll asks for a task or a handle until it has ended.
func (a *agent) poll(ctx context.Context) {
	switch {
	case !a.isTask:
		a.await(ctx)
		return
	case a.kind == "session":
		a.taskResult(ctx)
		return
	}
	id := a.nextID()
	var got wire.Msg
	r := request{
		what: "tasks/get", verb: "POST", path: "/mcp/" + a.server, id: id, header: modernHeader("tasks/get", a.handle),
		body:    body(id, "tasks/get", `"taskId":`+wire.Quote(a.handle), a.modernMeta()),
		message: func(m wire.Msg) bool { got = m; return m.Response() },
	}
	t := a.send(ctx, r)
	if got.JSON == "" || t.status >= 500 {
		return
	}
	if got.Error != nil {
		a.wrong("task %s, which was promised, cannot be asked for: HTTP %d %s", a.handle, t.status, clip(got.JSON, 300))
		a.end(&answer{kind: "error", json: got.JSON})
		return
	}
	if s := got.Str("result.statusMessage"); strings.HasPrefix(s, "step ") && !strings.HasPrefix(s, "step "+a.args.Nonce+" ") {
		a.wrong("the status of another call: %q", s)
	}
	switch status := got.Str("result.status"); status {
	case "working":
	case "completed":
		inner := wire.Msg{JSON: `{"result":` + string(got.At("result.result")) + `}`, Result: got.At("result.result")}
		v, err := readAnswer(inner, a.args.text())
		if err != nil {
			a.wrong("the task's result: %v", err)
		}
		t.answer, t.answered = v, time.Now()
		a.end(v)
	case "failed", "cancelled":
		v := &answer{kind: "outcome", outcome: status, json: got.JSON}
		t.answer, t.answered = v, time.Now()
		a.end(v)
	default:
		a.wrong("a task's status is %q", status)
		a.end(&answer{kind: "error", json: got.JSON})
	}
}

// taskResult waits for the result of a task of the older generation.
func (a *agent) taskResult(ctx context.Context) {
	if a.sessionID == "" {
		a.initialize(ctx)
		return
	}
	id := a.nextID()
	var got wire.Msg
	t := a.send(ctx, request{
		what: "tasks/result", verb: "POST", path: "/mcp/" + a.server, id: id, header: a.legacyHeader(),
		body:    body(id, "tasks/result", `"taskId":`+wire.Quote(a.handle), ""),
		message: func(m wire.Msg) bool { got = m; return m.Response() },
	})
	switch {
	case t.status == http.StatusNotFound:
		a.lost()
	case got.JSON == "" || !got.Response() || t.status >= 500:
	case string(got.ID) != id:
		a.wrong("a response to %s where %s was asked: %s", got.ID, id, clip(got.JSON, 200))
	case got.Error != nil && got.Str("error.message") != "" && strings.Contains(got.JSON, "-32602"):
		a.wrong("task %s, which was promised, cannot be asked for: HTTP %d %s", a.handle, t.status, clip(got.JSON, 300))
		a.end(&answer{kind: "error", json: got.JSON})
	default:
		v, err := readAnswer(got, a.args.text())
		if err != nil {
			a.wrong("the task's result: %v", err)
		}
		t.answer, t.answered = v, time.Now()
		a.end(v)
	}
}

// lost notes that longcall does not know the session: it must survive, unless it
// was made just before the end of the process.
func (a *agent) lost() {
	if !a.r.gw.killedIn(a.asked, a.born.Add(300*time.Millisecond)) {
		a.wrong("the session, made %d ms after the start, is lost", a.born.Sub(a.r.begun).Milliseconds())
	}
	a.sessionID, a.lastID = "", ""
}

// await asks longcall's own tool for a call that was handed off.
func (a *agent) await(ctx context.Context) {
	id := a.nextID()
	params := `"name":"await_call","arguments":{"ids":[` + wire.Quote(a.handle) + `]}`
	meta, header := "", a.legacyHeader()
	if a.modern() {
		meta, header = a.modernMeta(), modernHeader("tools/call", "await_call")
	}
	var got wire.Msg
	t := a.send(ctx, request{
		what: "await_call", verb: "POST", path: "/mcp/" + a.server, id: id, header: header,
		body:    body(id, "tools/call", params, meta),
		message: func(m wire.Msg) bool { got = m; return m.Response() },
	})
	switch {
	case got.JSON == "" || t.status >= 500:
	case t.status == http.StatusNotFound && a.kind == "session":
		a.lost()
		a.initialize(ctx)
	case got.Error != nil:
		a.wrong("call %s, which was promised, cannot be awaited: HTTP %d %s", a.handle, t.status, clip(got.JSON, 300))
		a.end(&answer{kind: "error", json: got.JSON})
	case strings.Contains(got.JSON, a.args.text()):
		v := &answer{kind: "result", text: a.args.text(), json: got.JSON}
		t.answer, t.answered = v, time.Now()
		a.end(v)
	case strings.Contains(got.JSON, mark):
		a.wrong("await_call shows another call's result, or a damaged one: %s", clip(got.JSON, 400))
		a.end(&answer{kind: "error", json: got.JSON})
	case strings.Contains(got.JSON, `"running"`):
	default:
		v := &answer{kind: "outcome", outcome: "handed off", json: got.JSON}
		t.answer, t.answered = v, time.Now()
		a.end(v)
	}
}

// doCancel cancels in the way of the agent's era, until longcall has taken it.
func (a *agent) doCancel(ctx context.Context) {
	a.cancelled = time.Now()
	for try := 0; ctx.Err() == nil && try < 20; try++ {
		if try > 0 {
			sleep(ctx, time.Duration(20+a.rng.IntN(100))*time.Millisecond)
		}
		var t *attempt
		switch {
		case a.handle != "" && a.isTask && a.modern():
			id := a.nextID()
			t = a.send(ctx, request{
				what: "tasks/cancel", verb: "POST", path: "/mcp/" + a.server, id: id, header: modernHeader("tasks/cancel", a.handle),
				body:    body(id, "tasks/cancel", `"taskId":`+wire.Quote(a.handle), a.modernMeta()),
				message: func(m wire.Msg) bool { return m.Response() },
			})
		case a.modern(), a.sessionID == "" || !a.requested():
			return // hanging up was the cancel
		default:
			a.mu.Lock()
			id := ""
			for _, t := range a.attempts {
				if t.what == "call" {
					id = t.id
				}
			}
			a.mu.Unlock()
			t = a.send(ctx, request{
				what: "cancel", verb: "POST", path: "/mcp/" + a.server, id: id, header: a.legacyHeader(),
				body:    body("", "notifications/cancelled", `"requestId":`+id+`,"reason":"chaos"`, ""),
				message: func(wire.Msg) bool { return true },
			})
		}
		switch {
		case t.status == http.StatusOK || t.status == http.StatusAccepted:
			a.cancelOK = time.Now()
			return
		case t.status == http.StatusNotFound:
			return // the session is gone
		}
	}
}

// sleep waits for d, and says whether ctx is not done.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (a *agent) history() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "  %s agent to %s, %+v, key %q, begins at %v", a.kind, a.server, a.args, a.key, a.wait)
	if a.cancel > 0 {
		fmt.Fprintf(&b, ", cancels after %v", a.cancel)
	}
	if !a.cancelled.IsZero() {
		fmt.Fprintf(&b, "; cancelled at %dms", a.cancelled.Sub(a.r.begun).Milliseconds())
	}
	if !a.cancelOK.IsZero() {
		fmt.Fprintf(&b, ", taken at %dms", a.cancelOK.Sub(a.r.begun).Milliseconds())
	}
	fmt.Fprintf(&b, "\n")
	for _, t := range a.attempts {
		fmt.Fprintf(&b, "    %v", t)
		if f := a.r.front.fate(t.port); f != "" {
			fmt.Fprintf(&b, " [proxy: %s]", f)
		}
		fmt.Fprintln(&b)
	}
	fmt.Fprintf(&b, "    in the end: %v\n", a.final)
	return b.String()
}
