package upstream

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

const (
	// maxOpen and maxOpenBytes bound what one call asks at once; what is more is
	// refused.
	maxOpen      = 32
	maxOpenBytes = 4 << 20
	// thinkEvery is how often a server that gave a token hears that somebody is
	// at work on its question: it may have a timer of its own.
	thinkEvery = 10 * time.Second
	// lookAround is how long it may take to notice that an agent has come or gone,
	// which changes how long a question waits.
	lookAround = time.Minute
)

// asks are the requests that a tool server of the era with sessions has made
// within one call and that wait for their answers. They are shown
// by Exec.Ask under keys of ours; each answer goes back under the server's own id.
//
// While there are any, one goroutine waits for what becomes of them. It ends with
// close, before the call's run does.
type asks struct {
	x    *call.Exec
	caps []byte // what the agent can be asked; empty for nothing
	// say sends a message to the server and waits until it has it; note tells the
	// call's record. Neither is called with mu held.
	say  func(ctx context.Context, message []byte) error
	note func(format string, args ...any)
	// settled is told when a question is over, its answer sent; nil if nobody keeps
	// what is open. It is not called with mu held.
	settled func()
	pages   *pageBoard // may be nil

	mu     sync.Mutex
	open   []*ask
	leaves []*ask // those whose answers are on their way
	bytes  int
	last   map[string]int // number of the last key by what it begins with
	closed bool
	quit   context.CancelFunc // of the goroutine; nil if there is none yet
	ended  chan struct{}
	more   chan struct{} // tells it of one more
	paged  chan string   // tells it of a page that is done
}

// ask is one request.
type ask struct {
	key     string
	id      []byte // the server's, raw
	request []byte // as a member of MCP's inputRequests
	method  string
	url     bool   // a page is to be visited
	page    string // whose end stands for the answer; empty if none does
	token   []byte
	since   time.Time
	told    time.Time // when the server last heard that somebody is at work
	line    float64   // of progress for its token
}

// request takes a request of the server. A ping is answered, and what nobody can
// be asked refused, at once (P6); it returns the refusal, to be sent.
func (a *asks) request(m *mcp.Message) (refused []byte, why string) {
	id, params := m.ID.Of(m.Raw), m.Params.Of(m.Raw)
	switch {
	case m.Method == mcp.MethodPing:
		return refusal(id, m.Method), ""
	case !mcp.Askable(a.caps, m.Method, params):
		return refusal(id, m.Method), "it was refused, because the agent cannot serve it"
	}
	q := &ask{id: bytes.Clone(id), method: m.Method, since: time.Now(), token: bytes.Clone(m.MetaToken.Of(m.Raw))}
	q.told = q.since
	q.url = m.Method == mcp.MethodElicit && mcp.ElicitMode(params) == "url"
	var err error
	if q.request, err = inputRequest(m); err != nil {
		return mcp.ErrorResponse(id, mcp.CodeInvalidParams, "The request's params cannot be read.", nil), "it was refused, because it cannot be read"
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.closed:
		return noParent(id), ""
	case a.x.Count(int64(len(m.Raw))) != nil:
		return mcp.ErrorResponse(id, mcp.CodeInternal, "The call has sent more than it may.", nil), "it was refused, because the call is over its limit"
	case a.find(q.id) >= 0:
		return nil, "it was asked before under the same id, and is not asked again"
	case len(a.open) >= maxOpen || a.bytes+len(q.request) > maxOpenBytes:
		return mcp.ErrorResponse(id, mcp.CodeInternal, "Too much is asked at once: wait for answers first.", nil), "it was refused, because too much is asked at once"
	}
	q.key = a.name(m)
	if mcp.Modern(a.x.Spec.Era) {
		q.page = pageOf(m.Method, params)
	}
	a.open = append(a.open, q)
	a.bytes += len(q.request)
	a.show()
	a.pages.wait(q.page, a.paged)
	return nil, ""
}

// show asks what is open, and has somebody wait for it. a.mu is held.
func (a *asks) show() {
	a.x.Ask(a.shown(), nil)
	if a.quit == nil {
		ctx, cancel := context.WithCancel(context.Background())
		a.quit, a.ended, a.more = cancel, make(chan struct{}), make(chan struct{}, 1)
		a.paged = make(chan string, maxOpen)
		go a.run(ctx, a.x.Answers(), a.x.Pulses(), a.paged)
	}
	select {
	case a.more <- struct{}{}:
	default:
	}
}

// noParent refuses a request that belongs to no single call of ours: then nobody
// can say which agent to ask (SPEC §4.2).
func noParent(id []byte) []byte {
	return mcp.ErrorResponse(id, mcp.CodeInvalidParams, "This belongs to no request of longcall's, or it cannot be told to which: send it while exactly one call is under way, or on that call's own stream.", nil)
}

// orphan answers a request of a server that belongs to no single call: what can be
// said without knowing whose it is. reply does not block.
func (h *Hooks) orphan(m *mcp.Message, reply func(message []byte)) {
	id := m.ID.Of(m.Raw)
	switch {
	case m.Method == mcp.MethodPing || !mcp.Askable([]byte(h.Capabilities), m.Method, m.Params.Of(m.Raw)):
		reply(refusal(id, m.Method))
	case m.Method != mcp.MethodRoots:
		reply(noParent(id))
	case h.Roots == nil:
		reply(mcp.ResultResponse(id, noRoots))
	default: // many servers ask right after initialize
		id = bytes.Clone(id)
		h.Roots(func(result []byte) { reply(mcp.ResultResponse(id, result)) })
	}
}

// inputRequest is a server's request as a member of inputRequests: without what
// belongs to its hop.
func inputRequest(m *mcp.Message) ([]byte, error) {
	b := append([]byte(`{"method":`), mcp.Quote(m.Method)...)
	if !m.Params.Ok() {
		return append(b, '}'), nil
	}
	params := m.Params.Of(m.Raw)
	if m.Meta.Ok() {
		var mark []mcp.Member
		if m.MetaToken.Ok() {
			mark = append(mark, mcp.Member{Name: mcp.MetaKeyProgressToken, Value: []byte("true")}) // it has one, which is nobody else's
		}
		meta, err := mcp.EditObject(m.Meta.Of(m.Raw), func(name string) bool {
			return hopLocal(name) && name != mcp.MetaKeyProgressToken || name == metaRelated
		}, mark...)
		if err != nil {
			return nil, err
		}
		drop, set := func(name string) bool { return name == "_meta" || name == "task" }, []mcp.Member(nil)
		if string(meta) != "{}" {
			drop, set = func(name string) bool { return name == "task" }, []mcp.Member{{Name: "_meta", Value: meta}}
		}
		if params, err = mcp.EditObject(params, drop, set...); err != nil {
			return nil, err
		}
	}
	b = append(append(b, `,"params":`...), params...)
	return mcp.OneLine(append(b, '}')), nil
}

// name is a key of ours for a request: the same again for the same request, should
// the server's stream bring it again to a process after ours. a.mu is held.
func (a *asks) name(m *mcp.Message) string {
	key, n := a.count(m.Method, m.ID.Of(m.Raw))
	if n > 1 { // an id that was used before
		key += "-" + strconv.Itoa(n)
	}
	return key
}

// count counts the requests of a method under one id; a.mu is held.
func (a *asks) count(method string, id []byte) (key string, n int) {
	kind := map[string]string{mcp.MethodElicit: "elicitation", mcp.MethodSample: "sampling", mcp.MethodRoots: "roots"}[method]
	key = kind + "-" + keyOf(id)
	if a.last == nil {
		a.last = map[string]int{}
	}
	a.last[key]++
	return key, a.last[key]
}

// keyOf makes a part of a key of a raw id: itself, if it is short and plain, else
// a digest.
func keyOf(id []byte) string {
	if s := strings.Trim(string(id), `"`); len(s) <= 40 && strings.IndexFunc(s, func(r rune) bool {
		return r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	}) < 0 {
		return s
	}
	sum := sha256.Sum256(id)
	return hex.EncodeToString(sum[:8])
}

// shown is all that is open, as Exec.Ask takes it; a.mu is held.
func (a *asks) shown() []byte {
	b := []byte{'{'}
	for i, q := range a.open {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, mcp.Quote(q.key)...), ':'), q.request...)
	}
	return append(b, '}')
}

// find is the place of the open request with the server's id; -1 if there is none.
// a.mu is held.
func (a *asks) find(id []byte) int {
	for i, q := range a.open {
		if bytes.Equal(q.id, id) {
			return i
		}
	}
	return -1
}

// remove takes an open request out; a.mu is held.
func (a *asks) remove(i int) *ask {
	q := a.open[i]
	a.bytes -= len(q.request)
	a.pages.leave(q.page, a.paged)
	a.open = append(a.open[:i:i], a.open[i+1:]...)
	return q
}

// withdraw takes a request back that the server has cancelled; ok is false
// if there is none with this id.
func (a *asks) withdraw(id []byte) (ok bool) {
	if a == nil {
		return false
	}
	a.mu.Lock()
	i := a.find(id)
	if i < 0 || a.closed {
		a.mu.Unlock()
		return false
	}
	q := a.remove(i)
	a.x.Ask(a.shown(), nil)
	a.mu.Unlock()
	if a.settled != nil {
		a.settled()
	}
	a.note("The tool server took its %s back before it was answered.", q.method)
	return true
}

// waiting says whether something is asked now.
func (a *asks) waiting() bool {
	if a == nil {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.open) > 0
}

// close ends all: what is still open gets told so, unless the call stays at its
// server for the next process, which asks again.
func (a *asks) close(left bool, tell func(message []byte)) {
	if a == nil {
		return
	}
	a.mu.Lock()
	a.closed = true
	open := a.open
	a.open = nil
	quit, ended := a.quit, a.ended
	for _, q := range open {
		a.pages.leave(q.page, a.paged)
	}
	a.mu.Unlock()
	if quit != nil {
		quit()
		<-ended
	}
	if !left {
		for _, q := range open {
			tell(q.unanswered("The call that this belongs to has ended."))
		}
	}
}

// unanswered is the response to a request that nobody has answered: a server can
// go on after an elicitation that was cancelled.
func (q *ask) unanswered(why string) []byte {
	if q.method == mcp.MethodElicit {
		return mcp.ResultResponse(q.id, []byte(`{"action":"cancel"}`))
	}
	return mcp.ErrorResponse(q.id, mcp.CodeInternal, why, nil)
}

// run takes answers and time, until it is told to quit.
func (a *asks) run(ctx context.Context, answers <-chan []byte, pulses <-chan call.Pulse, paged <-chan string) {
	defer close(a.ended)
	timer := time.NewTimer(a.next())
	defer timer.Stop()
	for {
		select {
		case <-a.more:
		case b := <-answers:
			a.answer(ctx, b)
		case p := <-pulses:
			a.pulse(ctx, &p)
		case page := <-paged:
			a.visited(ctx, page)
		case <-timer.C:
			a.tick(ctx)
		case <-ctx.Done():
			return
		}
		timer.Reset(a.next())
	}
}

// visited answers a question whose page is done.
func (a *asks) visited(ctx context.Context, page string) {
	a.mu.Lock()
	var q *ask
	for i := range a.open {
		if a.open[i].page == page {
			q = a.remove(i)
			a.leaves = append(a.leaves, q)
			break
		}
	}
	if q != nil {
		a.x.Ask(a.shown(), nil)
	}
	a.mu.Unlock()
	if q != nil {
		a.note("The tool server says that the page is done, which it sent the person to: it was answered so.")
		a.send(ctx, q, q.response(visited))
	}
}

// answer sends what agents answered.
func (a *asks) answer(ctx context.Context, responses []byte) {
	members, err := mcp.Members(responses)
	if err != nil {
		return
	}
	for _, m := range members {
		a.mu.Lock()
		var q *ask
		for i := range a.open {
			if a.open[i].key == m.Name {
				q = a.remove(i)
				a.leaves = append(a.leaves, q)
				break
			}
		}
		a.mu.Unlock()
		if q == nil {
			continue // withdrawn, or answered by somebody else
		}
		a.send(ctx, q, q.response(m.Value))
	}
}

// response is the answer as the server expects it.
func (q *ask) response(answer []byte) []byte {
	if refused := mcp.Value(answer, mcp.KeyRefused); refused != nil {
		b := append([]byte(`{"jsonrpc":"2.0","id":`), q.id...)
		return append(append(append(b, `,"error":`...), refused...), '}')
	}
	if mcp.Value(answer, "resultType") != nil { // of the other era
		if edited, err := mcp.EditObject(answer, func(name string) bool { return name == "resultType" }); err == nil {
			answer = edited
		}
	}
	return mcp.ResultResponse(q.id, answer)
}

func (a *asks) send(ctx context.Context, q *ask, message []byte) {
	err := a.say(ctx, message)
	if ctx.Err() != nil {
		return
	}
	a.mu.Lock()
	a.leaves = slices.DeleteFunc(a.leaves, func(l *ask) bool { return l == q })
	a.mu.Unlock()
	if a.settled != nil {
		a.settled()
	}
	if err != nil {
		a.note("The answer to the tool server's %s could not be delivered: %v.", q.method, rootCause(err))
	}
}

// pulse passes on that the agent is at work, under the server's token.
func (a *asks) pulse(ctx context.Context, p *call.Pulse) {
	m, err := mcp.Parse(p.Progress)
	if err != nil {
		return
	}
	a.mu.Lock()
	var message []byte
	for _, q := range a.open {
		if q.key == p.Key && q.token != nil {
			v, err := strconv.ParseFloat(string(m.Progress.Of(m.Raw)), 64)
			if err != nil || v <= q.line {
				break // it must increase, also with ours between (I11)
			}
			q.line, q.told = v, time.Now()
			message = mcp.AppendEdited(nil, m.Raw, mcp.Edit{At: m.ProgressToken, With: q.token})
		}
	}
	a.mu.Unlock()
	if message != nil {
		_ = a.say(ctx, message) // the next one says the same
	}
}

// limit is how long a question may wait: as limits.answer says while nobody is
// there, twice as long while an agent is, and three times where a page has to be
// visited. Less than 0 is for ever.
func (q *ask) limit(l *call.Limits, attended bool) time.Duration {
	d := l.Answer
	switch {
	case d <= 0:
		return -1
	case q.url:
		return 3 * d
	case attended:
		return 2 * d
	}
	return d
}

// next is how long nothing has to be done.
func (a *asks) next() time.Duration {
	attended := a.x.Attended()
	a.mu.Lock()
	defer a.mu.Unlock()
	d := time.Hour
	for _, q := range a.open {
		if l := q.limit(&a.x.Limits, attended); l >= 0 {
			d = min(d, time.Until(q.since.Add(l)), lookAround)
		}
		if q.token != nil {
			d = min(d, time.Until(q.told.Add(thinkEvery)))
		}
	}
	return max(d, time.Millisecond)
}

// tick tells the server that somebody thinks, or that nobody has answered.
func (a *asks) tick(ctx context.Context) {
	attended := a.x.Attended()
	var messages [][]byte
	var expired []*ask
	var waits time.Duration
	a.mu.Lock()
	now := time.Now()
	for i := 0; i < len(a.open); i++ {
		q := a.open[i]
		l := q.limit(&a.x.Limits, attended)
		switch {
		case l >= 0 && now.Sub(q.since) >= l:
			waits = l
			expired = append(expired, a.remove(i))
			a.leaves = append(a.leaves, expired[len(expired)-1])
			i--
		case q.token != nil && now.Sub(q.told) >= thinkEvery:
			q.told = now
			q.line = max(q.line+1e-6, now.Sub(q.since).Seconds())
			messages = append(messages, thinking(q))
		}
	}
	if expired != nil {
		a.x.Ask(a.shown(), nil)
	}
	a.mu.Unlock()
	for _, m := range messages {
		_ = a.say(ctx, m) // the next one says the same
	}
	for _, q := range expired {
		a.note("Nobody answered the tool server's %s within %s (limits.answer); it was told so, and the call goes on.", q.method, waits)
		a.send(ctx, q, q.unanswered("Nobody answered within "+waits.String()+"."))
	}
}

// thinking is progress of ours for a question's token.
func thinking(q *ask) []byte {
	b := append([]byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":`), q.token...)
	b = strconv.AppendFloat(append(b, `,"progress":`...), q.line, 'f', -1, 64)
	return append(b, `,"message":"Waiting for the answer."}}`...)
}

// cancelledRequest is the request that a notifications/cancelled of a server names; nil
// if m is none.
func cancelledRequest(m *mcp.Message) []byte {
	if m.Method != mcp.MethodCancelled {
		return nil
	}
	return m.RequestID.Of(m.Raw)
}

// asksNote is what the record says of a request that was not passed on.
func asksNote(method, why string) string {
	return fmt.Sprintf("The tool server asked the agent for %s; %s.", printable([]byte(method)), why)
}
