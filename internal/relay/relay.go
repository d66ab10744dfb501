// Package relay carries MCP messages between the standard input and output of a host's process and a longcall that serves HTTP.
//
// A host that only starts commands talks to a relay: one message per line in
// both directions (SPEC §5.9). The relay holds no call. It posts each line to a
// serve, writes what comes back as it comes, and when the serve is lost (killed,
// restarted, upgraded) finds or starts one again and takes up every stream where
// it was. So calls outlive the host, and the host does not notice the serve.
//
// Bounds: a request of the host costs one goroutine, its line and one message of
// its answer. At most maxRequests are under way; more are refused at once. A
// host that does not read its input holds up nothing but itself: all streams
// wait at one lock with a message each, the serve's write deadline cuts them,
// and they are taken up again when the host reads on.
package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/longcall/longcall/internal/mcp"
)

// Target is a serve that answers, and the endpoint to use there.
type Target struct {
	Base  string // such as http://127.0.0.1:8722
	Path  string // of the endpoint: /mcp or /mcp/NAME
	Token string // bearer token; empty if none is asked for
	// Presence is a path with query that is read as long as the relay is there:
	// so the serve knows that it is in use, and the relay at once when it is
	// gone. Empty for none.
	Presence string
}

// Options of Run. All but Say are needed.
type Options struct {
	In  io.Reader // the host's messages, one per line
	Out io.Writer // ours to the host; nothing else is written there
	// Say tells people what happens, on stderr. May be nil.
	Say func(format string, args ...any)
	// Find finds the serve, or starts one, and returns when it answers. It is
	// called at the first message and whenever a serve was lost, by one
	// goroutine at a time. Its error is shown to the host.
	Find func(ctx context.Context) (Target, error)
}

const (
	maxRequests  = 4096     // of the host, under way at once
	maxLine      = 64 << 20 // bytes of one message of the host; the serve has its own, lower limit
	maxAnswer    = 1 << 30  // bytes of one message of the serve; the serve has its own, lower limit
	maxQueue     = 256      // notifications and responses of the host that wait to be posted: more hold up reading
	lingerTime   = time.Second
	goodbyeTime  = 2 * time.Second
	stuckTime    = time.Second     // how long Run waits for a write that the host does not take
	comeBack     = 2 * time.Second // for somebody else to start a lost serve, if no request waits
	dialTime     = 5 * time.Second
	maxFailures  = 8 // connections in a row that broke before a request is given up
	firstPause   = 50 * time.Millisecond
	longestPause = 2 * time.Second
)

// relay is one Run.
type relay struct {
	opt    Options
	client *http.Client
	ctx    context.Context // ends with the host
	end    context.CancelCauseFunc
	out    output
	wg     sync.WaitGroup
	queue  chan queued

	mu       sync.Mutex
	closing  bool // nothing starts any more
	current  *served
	search   *search
	session  *session // of the last initialize; nil if there was none
	requests map[string]*request
}

// served is a serve that was found. Two findings of the same one are two.
type served struct{ Target }

// search is a Find under way.
type search struct {
	done   chan struct{}
	target *served
	err    error
}

// errHostGone ends everything when stdin is at its end or stdout broken.
var errHostGone = errors.New("the host is gone")

// Run relays until the host closes In, or ctx is done. Then it closes its
// streams and the host's session and returns: the calls go on in the serve. A
// read of In or a write to Out that is stuck in the system when ctx ends is left
// behind; it holds nothing but its own message, and the end of the process ends it.
func Run(ctx context.Context, opt Options) error {
	if opt.Say == nil {
		opt.Say = func(string, ...any) {}
	}
	transport := &http.Transport{
		// No proxy: the serve is on this machine, and the token is for it alone.
		DialContext:         (&net.Dialer{Timeout: dialTime}).DialContext,
		MaxIdleConnsPerHost: 16,
		IdleConnTimeout:     time.Minute,
		DisableCompression:  true,
	}
	r := &relay{
		opt: opt, queue: make(chan queued, maxQueue), requests: map[string]*request{},
		client: &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}
	r.out.w = opt.Out
	r.ctx, r.end = context.WithCancelCause(ctx)
	r.out.broken = func(err error) { r.end(fmt.Errorf("write to the host: %w", err)) }
	r.wg.Go(r.post)
	read := make(chan error, 1)
	go func() { read <- r.read() }()
	var err error
	select {
	case err = <-read:
		r.linger()
	case <-r.ctx.Done():
		if err = context.Cause(r.ctx); ctx.Err() != nil {
			err = nil // we were told to stop
		}
	}
	r.end(errHostGone)
	r.mu.Lock()
	r.closing = true
	r.mu.Unlock()
	r.wait()
	r.goodbye(context.WithoutCancel(ctx))
	transport.CloseIdleConnections()
	return err
}

// wait returns when all goroutines have ended but those that are stuck in a
// write to the host.
func (r *relay) wait() {
	done := make(chan struct{})
	go func() { r.wg.Wait(); close(done) }()
	t := time.NewTimer(stuckTime)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	}
}

// linger gives what is under way a moment after the end of input: a command line
// that pipes requests in wants to see their answers.
func (r *relay) linger() {
	t := time.NewTimer(lingerTime)
	defer t.Stop()
	for {
		r.mu.Lock()
		var one <-chan struct{}
		for _, q := range r.requests {
			until := q.done
			if q.cancelled.Load() {
				until = q.told // nobody waits for its end
			}
			select {
			case <-until:
			default:
				one = until
			}
		}
		r.mu.Unlock()
		if one == nil {
			return
		}
		select {
		case <-one:
		case <-t.C:
			return
		case <-r.ctx.Done():
			return
		}
	}
}

// goodbye ends the host's session at the serve, without waiting long.
func (r *relay) goodbye(ctx context.Context) {
	r.mu.Lock()
	t, s := r.current, r.session
	r.mu.Unlock()
	if t == nil || s == nil {
		return
	}
	id, version := s.known()
	if id == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, goodbyeTime)
	defer cancel()
	q, err := r.newRequest(ctx, t, http.MethodDelete, t.Path, nil)
	if err != nil {
		return
	}
	q.Header.Set(mcp.HeaderSession, id)
	q.Header.Set(mcp.HeaderVersion, version)
	if resp, err := r.client.Do(q); err == nil {
		resp.Body.Close()
	}
}

// read takes the host's lines until the input ends.
func (r *relay) read() error {
	in := mcp.NewLineReader(r.opt.In, maxLine)
	for {
		line, err := in.Next()
		switch {
		case errors.Is(err, mcp.ErrTooLarge):
			r.out.line(nil, mcp.ErrorResponse(nil, mcp.CodeInvalidRequest, fmt.Sprintf("A message of more than %d bytes was passed over.", maxLine), nil))
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read from the host: %w", err)
		default:
			r.message(bytes.Clone(line))
		}
		if r.ctx.Err() != nil {
			return nil
		}
	}
}

// message takes one line of the host.
func (r *relay) message(line []byte) {
	if mcp.IsBatch(line) {
		r.start(&request{line: line, batch: true})
		return
	}
	m, err := mcp.Parse(line)
	if err != nil {
		var pe *mcp.ParseError
		if !errors.As(err, &pe) {
			pe = &mcp.ParseError{Code: mcp.CodeParse, Text: "the line is not JSON"}
		}
		r.out.line(nil, mcp.ErrorResponse(pe.ID, pe.Code, "This line is no message: "+pe.Text+". Nothing was done.", nil))
		return
	}
	if m.Kind != mcp.Request {
		if m.Method == mcp.MethodCancelled {
			r.cancel(&m)
			return
		}
		r.enqueue(&m)
		return
	}
	q := &request{id: m.ID.Of(line), method: m.Method, line: line}
	if q.modern = modern(&m); q.modern {
		if q.header, err = headers(&m); err != nil {
			r.out.line(nil, mcp.ErrorResponse(q.id, mcp.CodeMethodNotFound, err.Error(), nil))
			return
		}
	}
	if m.Method == mcp.MethodInitialize && !q.modern {
		q.opens = &session{init: line, ready: make(chan struct{}), renewing: make(chan struct{}, 1)}
		r.mu.Lock()
		r.session = q.opens
		r.mu.Unlock()
	}
	r.start(q)
}

// start carries a request in a goroutine of its own.
func (r *relay) start(q *request) {
	q.ctx, q.stop = context.WithCancel(r.ctx)
	q.done, q.heard, q.told = make(chan struct{}), make(chan struct{}), make(chan struct{})
	q.key = idKey(q.id)
	r.mu.Lock()
	full := len(r.requests) >= maxRequests
	if !full {
		r.requests[q.slot()] = q
		q.session = r.session
	}
	r.mu.Unlock()
	if full {
		q.stop()
		if q.opens != nil {
			q.opens.settle() // what comes in its session is not to wait for it
		}
		r.refuse(q, fmt.Sprintf("%d requests of this host are under way already, which is the limit. Wait until one has ended.", maxRequests))
		return
	}
	started := r.spawn(func() {
		defer close(q.done)
		defer q.stop()
		r.carry(q)
		r.mu.Lock()
		if r.requests[q.slot()] == q { // and not a later one, of a host that uses an id twice
			delete(r.requests, q.slot())
		}
		r.mu.Unlock()
	})
	if !started {
		q.stop()
		close(q.done)
	}
}

// spawn runs f in a goroutine that Run waits for; not any more once it ends.
func (r *relay) spawn(f func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.spawnLocked(f)
}

func (r *relay) spawnLocked(f func()) bool {
	if r.closing {
		return false
	}
	r.wg.Go(f)
	return true
}

// target is the serve to use: the current one, or one that is found or started.
func (r *relay) target(ctx context.Context) (*served, error) {
	r.mu.Lock()
	if t := r.current; t != nil {
		r.mu.Unlock()
		return t, nil
	}
	f := r.search
	if f == nil {
		f = &search{done: make(chan struct{})}
		if !r.spawnLocked(func() { r.find(f) }) {
			r.mu.Unlock()
			return nil, errHostGone
		}
		r.search = f
	}
	r.mu.Unlock()
	select {
	case <-f.done:
		return f.target, f.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (r *relay) find(f *search) {
	defer close(f.done)
	t, err := r.opt.Find(r.ctx)
	if err != nil {
		f.err = &findError{err}
		if r.ctx.Err() == nil {
			r.opt.Say("%v", err)
		}
	} else {
		f.target = &served{t}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.search = nil
	if r.current = f.target; f.target != nil && t.Presence != "" {
		r.spawnLocked(func() { r.attend(f.target) })
	}
}

// findError says that there is no serve to talk to, and why.
type findError struct{ err error }

func (e *findError) Error() string { return e.err.Error() }
func (e *findError) Unwrap() error { return e.err }

// lost says that a serve does not answer any more.
func (r *relay) lost(t *served) {
	if r.ctx.Err() != nil {
		return // it was we who ended the request
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current == t {
		r.current = nil
	}
}

// attend holds the presence at a serve until it ends, and then looks for a serve
// again at once: so a wrapped server is there again before its next call.
func (r *relay) attend(t *served) {
	q, err := r.newRequest(r.ctx, t, http.MethodGet, t.Presence, nil)
	if err != nil {
		return
	}
	resp, err := r.client.Do(q)
	if err == nil {
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return // a serve that does not ask for it
		}
		_, _ = io.Copy(io.Discard, resp.Body)
	}
	if r.ctx.Err() != nil {
		return
	}
	r.lost(t)
	if wait(r.ctx, comeBack) {
		// Whoever needs the serve next hears what is wrong.
		_, _ = r.target(r.ctx)
	}
}

// newRequest is a request to the serve with what all of them have.
func (r *relay) newRequest(ctx context.Context, t *served, method, path string, body []byte) (*http.Request, error) {
	var b io.Reader
	if body != nil {
		b = bytes.NewReader(body)
	}
	q, err := http.NewRequestWithContext(ctx, method, t.Base+path, b)
	if err != nil {
		return nil, fmt.Errorf("make a request: %w", err)
	}
	if t.Token != "" {
		q.Header.Set("Authorization", "Bearer "+t.Token)
	}
	q.Header.Set(headerRelay, "stdio")
	q.Header.Set("Accept", "application/json, text/event-stream")
	if body != nil {
		q.Header.Set("Content-Type", "application/json")
	}
	return q, nil
}

// pause waits before the next try; it is false if ctx ended.
func pause(ctx context.Context, failures int) bool {
	d := min(firstPause<<min(failures, 10), longestPause)
	return wait(ctx, d)
}

func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
