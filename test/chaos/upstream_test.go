package chaos_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/longcall/longcall/test/wire"
)

// args are the arguments of our tool. Equal arguments are an equal call: the
// nonce makes them different.
type args struct {
	Nonce string `json:"nonce"`
	For   int    `json:"for"`   // how long it takes, in ms
	Every int    `json:"every"` // between two steps, in ms; 0 for none
	Size  int    `json:"size"`  // of the result's text, about
	Bad   bool   `json:"bad"`   // the tool's own error
	Task  bool   `json:"task"`  // as a task of the tool server, where it has them
}

// text is the result of a call: it says whose it is, and shows any damage.
func (a args) text() string {
	return mark + a.Nonce + ":" + strings.Repeat(a.Nonce+".", a.Size/(len(a.Nonce)+1)) + ":end"
}

// run is one execution of the tool.
type run struct {
	args
	n       int // of the run, over all nonces
	server  string
	session string
	rpc     string // raw id of the request
	task    bool
	cancel  context.CancelFunc

	mu       sync.Mutex
	log      []string // messages, numbered from 1
	news     chan struct{}
	started  time.Time
	ended    time.Time // with its result in the log
	stopped  time.Time // told to cancel, or its stream was closed (stateless)
	how      string    // of stopped
	status   string    // of a task
	result   string    // raw result of a task
	lastStep int
}

func (r *run) append(msg string, last bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = append(r.log, msg)
	if last {
		r.ended = time.Now()
	}
	close(r.news)
	r.news = make(chan struct{})
}

func (r *run) stop(how string) {
	r.mu.Lock()
	if r.stopped.IsZero() && r.ended.IsZero() {
		r.stopped, r.how = time.Now(), how
		r.status = "cancelled"
	}
	r.mu.Unlock()
	r.cancel()
}

// after gives the messages after number n.
func (r *run) after(n int) (msgs []string, over bool, news <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n < len(r.log) {
		msgs = r.log[n:]
	}
	return msgs, !r.ended.IsZero() || !r.stopped.IsZero(), r.news
}

// upstream is the tool server of a round: three kinds of it, one per path. What
// it executes lives on whatever becomes of connections, as long as its era says so.
//
//	/ids    2025-11-25, events with ids, resumed from any of them
//	/plain  2025-11-25, events without ids: a broken stream is lost
//	/modern 2026-07-28, with tasks for calls that ask for it; else a closed
//	        stream cancels the call
type upstream struct {
	addr string
	srv  *http.Server
	ctx  context.Context
	end  context.CancelFunc
	wg   sync.WaitGroup

	mu       sync.Mutex
	runs     []*run
	sessions int
}

func newUpstream() (*upstream, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	u := &upstream{addr: ln.Addr().String()}
	u.ctx, u.end = context.WithCancel(context.Background())
	mux := http.NewServeMux()
	for _, path := range []string{"/ids", "/plain"} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { u.legacy(path[1:], w, r) })
	}
	mux.HandleFunc("/modern", u.modern)
	u.srv = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	u.wg.Go(func() { u.srv.Serve(ln) })
	return u, nil
}

func (u *upstream) close() {
	u.end()
	u.srv.Close()
	u.wg.Wait()
}

// of lists the executions of a nonce.
func (u *upstream) of(nonce string) (out []*run) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, r := range u.runs {
		if r.Nonce == nonce {
			out = append(out, r)
		}
	}
	return out
}

// message is what comes in a POST.
type message struct {
	wire.Msg
	tool  string
	args  args
	token string // raw
	task  bool   // the caller takes tasks
	ref   string // params.taskId
}

func readMessage(r *http.Request) (message, bool) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return message{}, false // cut off: nothing of it was done
	}
	m, ok := wire.ParseMsg(string(b))
	if !ok {
		return message{}, false
	}
	out := message{Msg: m, tool: m.Str("params.name"), token: string(m.At("params._meta.progressToken")), ref: m.Str("params.taskId")}
	out.task = m.At("params._meta.io/modelcontextprotocol/clientCapabilities.extensions.io/modelcontextprotocol/tasks") != nil
	if raw := m.At("params.arguments"); raw != nil {
		_ = json.Unmarshal(raw, &out.args) // our own agents write them
	}
	return out, true
}

func (m message) result(object string) string {
	return `{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":` + object + `}`
}

func (m message) fail(code int, text string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":%q}}`, m.ID, code, text)
}

func reply(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	io.WriteString(w, body)
}

const toolList = `"tools":[{"name":"work","description":"works","inputSchema":{"type":"object"}}]`

func (u *upstream) legacy(server string, w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		u.resume(server, w, r)
		return
	}
	if r.Method == http.MethodDelete {
		w.WriteHeader(http.StatusOK)
		return
	}
	m, ok := readMessage(r)
	if !ok {
		reply(w, http.StatusBadRequest, `{}`)
		return
	}
	session := r.Header.Get("Mcp-Session-Id")
	if m.Method != "initialize" && !strings.HasPrefix(session, "up-") {
		reply(w, http.StatusNotFound, m.fail(-32001, "no such session"))
		return
	}
	switch m.Method {
	case "initialize":
		u.mu.Lock()
		u.sessions++
		n := u.sessions
		u.mu.Unlock()
		w.Header().Set("Mcp-Session-Id", "up-"+strconv.Itoa(n))
		reply(w, http.StatusOK, m.result(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"chaos","version":"1"}}`))
	case "ping":
		reply(w, http.StatusOK, m.result(`{}`))
	case "tools/list":
		reply(w, http.StatusOK, m.result(`{`+toolList+`}`))
	case "tools/call":
		x := u.start(server, session, m, false)
		u.stream(w, r, x, 0, false)
	case "notifications/cancelled":
		id := string(m.At("params.requestId"))
		u.mu.Lock()
		runs := u.runs
		u.mu.Unlock()
		for _, x := range runs {
			if x.server == server && x.session == session && x.rpc == id {
				x.stop("notifications/cancelled")
			}
		}
		fallthrough
	default:
		if m.ID != nil {
			reply(w, http.StatusOK, m.fail(-32601, "no such method"))
			return
		}
		w.WriteHeader(http.StatusAccepted)
	}
}

// resume serves a GET: the log of a call after an event id.
func (u *upstream) resume(server string, w http.ResponseWriter, r *http.Request) {
	name, at, ok := strings.Cut(r.Header.Get("Last-Event-Id"), "_")
	if !ok || server != "ids" {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	number, _ := strconv.Atoi(name)
	n, _ := strconv.Atoi(at)
	u.mu.Lock()
	var x *run
	for _, o := range u.runs {
		if o.n == number && o.session == r.Header.Get("Mcp-Session-Id") {
			x = o
		}
	}
	u.mu.Unlock()
	if x == nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	u.stream(w, r, x, n, false)
}

// start executes the tool for a call.
func (u *upstream) start(server, session string, m message, task bool) *run {
	ctx, cancel := context.WithCancel(u.ctx)
	x := &run{
		args: m.args, server: server, session: session, rpc: string(m.ID), task: task, cancel: cancel,
		news: make(chan struct{}), started: time.Now(), status: "working",
	}
	u.mu.Lock()
	x.n = len(u.runs) + 1
	u.runs = append(u.runs, x)
	u.mu.Unlock()
	u.wg.Go(func() {
		defer cancel()
		u.work(ctx, x, m)
	})
	return x
}

func (u *upstream) work(ctx context.Context, x *run, m message) {
	done := time.NewTimer(time.Duration(x.For) * time.Millisecond)
	defer done.Stop()
	var steps <-chan time.Time
	if x.Every > 0 {
		t := time.NewTicker(time.Duration(x.Every) * time.Millisecond)
		defer t.Stop()
		steps = t.C
	}
	for k := 1; ; k++ {
		select {
		case <-steps:
			x.mu.Lock()
			x.lastStep = k
			x.mu.Unlock()
			if m.token != "" && !x.task {
				x.append(wire.Progress(m.token, strconv.Itoa(k), "", stepText(x.Nonce, k)), false)
			}
			continue
		case <-ctx.Done():
			x.mu.Lock()
			close(x.news)
			x.news = make(chan struct{})
			x.mu.Unlock()
			return
		case <-done.C:
		}
		break
	}
	result := `{"content":[{"type":"text","text":` + wire.Quote(x.text()) + `}]`
	if x.Bad {
		result += `,"isError":true`
	}
	if x.server == "modern" {
		result += `,"resultType":"complete"`
	}
	result += `}`
	x.mu.Lock()
	x.result = result
	if x.status == "working" {
		x.status = "completed"
	}
	x.mu.Unlock()
	x.append(m.result(result), true)
}

// stepText is the message of the kth step.
func stepText(nonce string, k int) string { return "step " + nonce + " " + strconv.Itoa(k) }

// stream sends a call's log from a number on, until its end.
func (u *upstream) stream(w http.ResponseWriter, r *http.Request, x *run, from int, stateless bool) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	rc := http.NewResponseController(w)
	if x.server == "ids" && from == 0 {
		fmt.Fprintf(w, "id: %d_0\nretry: 30\ndata:\n\n", x.n)
	}
	rc.Flush()
	for {
		msgs, over, news := x.after(from)
		for _, m := range msgs {
			from++
			if x.server == "ids" {
				fmt.Fprintf(w, "id: %d_%d\n", x.n, from)
			}
			fmt.Fprintf(w, "event: message\ndata: %s\n\n", m)
		}
		if rc.Flush() != nil && stateless {
			x.stop("stream closed")
		}
		if over {
			return
		}
		select {
		case <-news:
		case <-r.Context().Done():
			if stateless && u.ctx.Err() == nil {
				x.stop("stream closed")
			}
			return
		case <-u.ctx.Done():
			return
		}
	}
}

func (u *upstream) modern(w http.ResponseWriter, r *http.Request) {
	m, ok := readMessage(r)
	if !ok || r.Method != http.MethodPost {
		reply(w, http.StatusBadRequest, `{}`)
		return
	}
	switch m.Method {
	case "server/discover":
		reply(w, http.StatusOK, m.result(`{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{},"extensions":{"io.modelcontextprotocol/tasks":{}}},"ttlMs":60000,"cacheScope":"private","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"chaos","version":"1"}}}`))
	case "tools/list":
		reply(w, http.StatusOK, m.result(`{"resultType":"complete",`+toolList+`,"ttlMs":60000,"cacheScope":"private"}`))
	case "tools/call":
		if m.args.Task && m.task {
			x := u.start("modern", "", m, true)
			reply(w, http.StatusOK, m.result(x.asTask("task")))
			return
		}
		u.stream(w, r, u.start("modern", "", m, false), 0, true)
	case "tasks/get", "tasks/cancel":
		var x *run
		u.mu.Lock()
		for _, o := range u.runs {
			if o.task && o.id() == m.ref {
				x = o
			}
		}
		u.mu.Unlock()
		switch {
		case x == nil:
			reply(w, http.StatusOK, m.fail(-32602, "no such task"))
		case m.Method == "tasks/cancel":
			x.stop("tasks/cancel")
			reply(w, http.StatusOK, m.result(`{"resultType":"complete"}`))
		default:
			reply(w, http.StatusOK, m.result(x.asTask("complete")))
		}
	default:
		reply(w, http.StatusNotFound, m.fail(-32601, "no such method"))
	}
}

func (r *run) id() string { return "uptask-" + strconv.Itoa(r.n) }

// asTask is a run as a task.
func (r *run) asTask(resultType string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := r.started.UTC().Format(time.RFC3339Nano)
	s := fmt.Sprintf(`{"resultType":%q,"taskId":%q,"status":%q,"createdAt":%q,"lastUpdatedAt":%q,"ttlMs":60000,"pollIntervalMs":25`,
		resultType, r.id(), r.status, at, at)
	if r.status == "working" && r.lastStep > 0 {
		s += `,"statusMessage":` + wire.Quote(stepText(r.Nonce, r.lastStep))
	}
	if r.status == "completed" && resultType == "complete" {
		s += `,"result":` + r.result
	}
	return s + `}`
}
