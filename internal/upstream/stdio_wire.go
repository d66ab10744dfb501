package upstream

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"math"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// wire is the conversation with one process, or over one event stream of the
// 2024-11-05 transport: many calls at once, whose messages all come in one way
// and leave in one way. One goroutine reads and hands every message straight to
// its call's record, which never waits (so no call can hold up another, and
// there is no queue to fill).
type wire struct {
	name   string
	limit  int64 // bytes of one message
	single bool  // all calls are of one principal
	hooks  Hooks
	prefix string // of our ids: no other process has them
	in     inlet
	out    outlet
	epoch  time.Time
	modern bool // set by the handshake, before the first call
	tasks  taskBoard

	// legacy: calls can be sent as tasks; set by the handshake
	canTask bool
	said    intro // how the server introduced itself; set by the handshake

	mu      sync.Mutex
	serial  uint64
	waiting map[string]*waiter              // by our id
	tokens  map[string]*waiter              // running calls, by our progress token
	listens map[string]func(m *mcp.Message) // subscriptions/listen by our id; must not block
	pinged  string                          // id of the ping that is not answered yet

	ponged atomic.Int64 // time of the last answered ping since epoch; 0 if none
	junk   atomic.Int64 // lines that are no message
	loose  atomic.Int64 // messages that belong to no call, or to none that can be told

	wg      sync.WaitGroup
	broken  chan struct{} // closed when nothing can come or go any more
	breakUp sync.Once
	read    chan struct{} // closed when all that was written has been read
	ended   chan struct{} // closed by end
	cause   string        // how it ended; valid after ended
	tail    string        // a process's last words, for the caller only; valid after ended
}

// inlet is where messages come from: Next is one whole message, valid until the
// next call, a *mcp.LongLine for one over the limit, or the end.
type inlet interface {
	Next() (message []byte, err error)
}

// outlet is where messages go; see outbox and posts.
type outlet interface {
	// put takes a message and returns at once. before runs when it is sure that
	// the message is taken, and before a byte of it can leave; its error keeps it
	// back. id is that of a request that may be taken back, or empty.
	put(id string, message []byte, before func() error) error
	// takeBack keeps a request back of which no byte has left, and says whether
	// it could.
	takeBack(id string) bool
	finish()    // takes no more
	over() bool // nothing more is taken
	run() error // carries messages until finish, or until nothing can leave any more
}

// maxMessage is how many bytes a message of a server may have.
func (s *Server) maxMessage() int64 {
	if s.Limits.Message == 0 {
		return defaultMessage
	}
	return s.Limits.Message
}

// newPipes makes the conversation with a process.
func newPipes(s Server, hooks Hooks, r io.Reader, w io.WriteCloser) *wire {
	return newWire(s, hooks, mcp.NewLineReader(r, int(min(s.maxMessage(), math.MaxInt32))), newOutbox(w))
}

func newWire(s Server, hooks Hooks, in inlet, out outlet) *wire {
	return &wire{
		name: s.Name, limit: s.maxMessage(), single: s.Share != "server", hooks: hooks,
		prefix: "lc" + strings.ToLower(rand.Text()[:10]) + "-",
		in:     in, out: out, epoch: time.Now().Add(-1),
		waiting: map[string]*waiter{}, tokens: map[string]*waiter{}, listens: map[string]func(*mcp.Message){},
		broken: make(chan struct{}), read: make(chan struct{}), ended: make(chan struct{}),
	}
}

// start begins to read and write. The owner waits for wg, then calls end.
func (w *wire) start() {
	w.wg.Go(func() {
		defer close(w.read)
		w.readAll()
		w.breakUp.Do(func() { close(w.broken) })
	})
	w.wg.Go(func() {
		if w.out.run() != nil {
			w.breakUp.Do(func() { close(w.broken) })
		}
	})
}

// end tells all that still wait that nothing will come, and why.
func (w *wire) end(cause, tail string) {
	w.cause, w.tail = cause, tail
	close(w.ended)
}

// waiter is one request that waits for its response.
type waiter struct {
	id, token string        // ours; no token if it is no call
	of        *call.Spec    // of the call; nil if it is none
	wake      chan struct{} // answer or stop was set; holds one
	question  *question     // the answer is one; of the call's goroutine
	asTask    string        // the tool's task support, if the call was sent as a legacy task
	last      atomic.Int64  // when something came for it, since epoch; 0 if never
	reached   atomic.Uint64 // bits of the highest progress value
	forgotten bool          // nobody waits any more; under wire.mu

	mu     sync.Mutex
	x      *call.Exec // nil if it is no call, or the call has returned
	asks   *asks      // what the server asks of the call's agent; nil if nothing yet
	answer *response
	goesOn bool  // the answer made a task of the call: more may come for it
	stop   error // the record takes no more: why
}

// response is the answer to a request of ours.
type response struct {
	body      []byte // the message with a hole at the id; nil if it was over the limit
	hole      int
	failed    bool // a JSON-RPC error
	code      int
	text      string
	toolError bool
	size      int64  // of the message
	trouble   string // why there is no usable message
	kind      string // resultType, empty with the eras that have none
	tooLarge  bool
	made      *madeTask // of the call; nil if none
	unsent    *unsent   // the request was not taken: there is no message
}

// unsent is what became of a request that the server's address did not take.
type unsent struct {
	answer call.Answer // of a call
	err    error       // of another request
}

// expect registers a request; x is nil if it is no call.
func (w *wire) expect(x *call.Exec) *waiter {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := &waiter{id: w.nameLocked(), wake: make(chan struct{}, 1), x: x}
	w.waiting[p.id] = p
	if x != nil {
		p.token, p.of = w.nameLocked(), x.Spec
		w.tokens[p.token] = p
	}
	return p
}

// nameLocked makes a new id or token. w.mu is held.
func (w *wire) nameLocked() string {
	w.serial++
	return w.prefix + strconv.FormatUint(w.serial, 36)
}

func (w *wire) dropLocked(p *waiter) {
	delete(w.waiting, p.id)
	if p.token != "" {
		delete(w.tokens, p.token)
	}
}

// forget ends the waiting. After it nobody uses the call's record.
func (w *wire) forget(p *waiter) {
	w.mu.Lock()
	w.dropLocked(p)
	p.forgotten = true
	w.mu.Unlock()
	p.mu.Lock()
	p.x = nil
	asks := p.asks
	p.mu.Unlock()
	asks.close(false, w.send)
}

// since is now; never 0, which means never.
func (w *wire) since() int64 { return int64(time.Since(w.epoch)) }

func (p *waiter) got() (*response, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.answer, p.stop
}

// settle gives the answer. The first one counts.
func (w *wire) settle(p *waiter, r *response) {
	p.last.Store(w.since())
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.answer != nil {
		return
	}
	p.answer = r
	if p.x != nil {
		p.x.FirstByte()
	}
	p.wakeUp()
}

// wakeUp is called with p.mu held.
func (p *waiter) wakeUp() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// emit gives the call's record one event of the tool server.
func (w *wire) emit(p *waiter, kind call.Kind, body []byte, hole int) {
	p.last.Store(w.since())
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.x == nil || p.answer != nil && !p.goesOn || p.stop != nil {
		return
	}
	p.x.FirstByte()
	if l := p.x.Limits.Message; l > 0 && int64(len(body)) > l {
		p.x.Note("%s", skipped(l)) // the pipe has the largest limit of the server's tools
		return
	}
	if err := p.x.Emit(call.Event{Kind: kind, Body: body, Hole: hole}); err != nil {
		p.stop = err
		p.wakeUp()
	}
}

func (p *waiter) note(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.x != nil && (p.answer == nil || p.goesOn) {
		p.x.Note(format, args...)
	}
}

func (p *waiter) spec() *call.Spec { return p.of }

// bystanders are the calls that run now.
func (w *wire) bystanders() []bystander {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make([]bystander, 0, len(w.tokens))
	for _, p := range w.tokens {
		all = append(all, p)
	}
	return all
}

// only is the running call, if there is exactly one.
func (w *wire) only() *waiter {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.tokens) == 1 {
		for _, p := range w.tokens {
			return p
		}
	}
	return nil
}

// readAll reads to the end of what comes.
func (w *wire) readAll() {
	for {
		line, err := w.in.Next()
		var long *mcp.LongLine
		switch {
		case err == nil:
			w.message(line)
		case errors.As(err, &long):
			w.tooLong(long)
		default:
			return
		}
	}
}

func (w *wire) message(line []byte) {
	m, err := mcp.Parse(line)
	if err != nil {
		w.unreadable(err)
		return
	}
	switch m.Kind {
	case mcp.Response:
		w.response(&m)
	case mcp.Notification:
		w.notification(&m)
	case mcp.Request:
		w.asked(&m)
	}
}

// unreadable is a line that is no acceptable message. If it is an answer all
// the same, its call must not wait for another.
func (w *wire) unreadable(err error) {
	var bad *mcp.ParseError
	if errors.As(err, &bad) && bad.ID != nil {
		id, _ := mcp.String(bad.ID)
		if p := w.claim(id); p != nil {
			w.settle(p, &response{trouble: "it answered with a message that no two parsers read alike: " + bad.Text})
			return
		}
	}
	if w.junk.Add(1) == 1 {
		w.hooks.Log.Warn("tool server writes lines that are no messages to stdout; they are skipped")
	}
}

// claim finds who waits for the id, and lets nobody else have it.
func (w *wire) claim(id string) *waiter {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.waiting[id]
	if p != nil {
		w.dropLocked(p)
	} else if id != "" && id == w.pinged {
		w.pinged = ""
		w.ponged.Store(w.since())
	}
	return p
}

func (w *wire) response(m *mcp.Message) {
	id, _ := mcp.String(m.ID.Of(m.Raw))
	p := w.claim(id)
	if p == nil {
		return // a ping's, or one that nobody waits for any more (O8, O22)
	}
	r := &response{
		failed: m.Error.Ok() && !m.Result.Ok(), code: m.Code, text: m.ErrText,
		toolError: bytes.Equal(m.IsError.Of(m.Raw), []byte("true")), size: int64(len(m.Raw)),
	}
	r.kind, _ = mcp.String(m.ResultType.Of(m.Raw))
	r.made = w.made(p, m)
	r.body, r.hole = m.WithHole(m.ID)
	w.settle(p, r)
}

func (w *wire) notification(m *mcp.Message) {
	switch m.Method {
	case mcp.MethodProgress:
		token, _ := mcp.String(m.ProgressToken.Of(m.Raw))
		w.mu.Lock()
		p := w.tokens[token]
		w.mu.Unlock()
		if p == nil {
			w.loose.Add(1) // late (O8), or for nobody
			return
		}
		body, hole := m.WithHole(m.ProgressToken)
		p.reached.Store(math.Float64bits(reached(math.Float64frombits(p.reached.Load()), m)))
		w.emit(p, call.KindProgress, body, hole)
	case mcp.MethodMessage:
		// It names no call: it is this call's only if there is no other, and
		// nobody else's call can have left it behind (P5).
		p := w.only()
		if p == nil || !w.single {
			w.loose.Add(1)
			keepUnattributed(m, w.bystanders())
			return
		}
		w.emit(p, call.KindMessage, mcp.OneLine(bytes.Clone(m.Raw)), -1)
	case methodTaskStatus:
		w.tasks.word(m)
	case mcp.MethodCancelled:
		if !w.heard(m) {
			w.withdrawn(m)
		}
	default:
		if !w.heard(m) && !w.hooks.told(m) {
			own := *m // else every message of the process would be on the heap
			w.hooks.apart(&own)
		}
	}
}

// tooLong finds out whose message was over the limit. The conversation goes on (O25).
func (w *wire) tooLong(l *mcp.LongLine) {
	p, answer := w.whose(l)
	switch {
	case p == nil:
		w.loose.Add(1)
		w.hooks.Log.Warn("tool server sent a message over the limit that belongs to no call; it was skipped", "bytes", l.Size, "limit", w.limit)
	case answer:
		w.settle(p, &response{tooLarge: true})
	default:
		p.last.Store(w.since())
		p.note("%s", skipped(w.limit))
	}
}

// whose tells by our ids, which are unguessable: in a long message one of them
// stands where the message names its call. If nothing tells, a message that is
// no notification is the answer of the only request that waits.
func (w *wire) whose(l *mcp.LongLine) (p *waiter, answer bool) {
	names := w.namesIn(l.Head)
	for _, id := range append(names, w.namesIn(l.Tail)...) {
		if p := w.claim(id); p != nil {
			return p, true
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if bytes.Contains(l.Head[:min(len(l.Head), 256)], []byte(`"method"`)) {
		for _, token := range names {
			if p := w.tokens[token]; p != nil {
				return p, false
			}
		}
		return nil, false
	}
	if len(w.waiting) == 1 {
		for _, p := range w.waiting {
			w.dropLocked(p)
			return p, true
		}
	}
	return nil, false
}

// namesIn are the strings of part that begin like an id or token of ours.
func (w *wire) namesIn(part []byte) (ids []string) {
	mark := []byte(`"` + w.prefix)
	for {
		i := bytes.Index(part, mark)
		if i < 0 {
			return ids
		}
		part = part[i+1:]
		end := bytes.IndexByte(part, '"')
		if end < 0 || end > 64 {
			continue
		}
		ids = append(ids, string(part[:end]))
		part = part[end+1:]
	}
}

// ask sends a request that is no call and waits for its response.
func (w *wire) ask(ctx context.Context, method string, params []byte, modern bool) (*response, error) {
	p := w.expect(nil)
	defer w.forget(p)
	if err := w.out.put(p.id, outgoingRequest(p.id, method, params, modern), nil); err != nil {
		return nil, err
	}
	select {
	case <-p.wake:
	case <-w.ended:
	case <-ctx.Done():
	}
	r, _ := p.got()
	switch {
	case r == nil && ctx.Err() != nil:
		if !w.out.takeBack(p.id) && method != mcp.MethodInitialize {
			w.send(outgoingCancel(p.id, "no answer in time"))
		}
		return nil, context.Cause(ctx)
	case r == nil:
		return nil, errOver
	case r.unsent != nil:
		return nil, r.unsent.err
	case r.tooLarge:
		return nil, mcp.ErrTooLarge
	case r.trouble != "":
		return nil, errors.New(r.trouble)
	}
	return r, nil
}

// send queues a message that nobody waits for: if the queue is full, the server
// reads nothing, and would not read this one either.
func (w *wire) send(message []byte) { _ = w.out.put("", message, nil) }

// running is how many calls are under way.
func (w *wire) running() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.tokens)
}
