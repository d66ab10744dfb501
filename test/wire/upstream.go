package wire

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"net"
	"sync"
	"testing"
	"time"
)

// Handler answers one request of a scripted server. It runs in the goroutine
// of its TCP connection; the connection's next request waits until it returns.
// A handler that wrote nothing leaves the agent without an answer until the
// connection ends.
type Handler func(c *Conn, r *Request)

// Options of a scripted server. The zero value is a legacy server with
// sessions and one tool, "work", which answers at once.
type Options struct {
	Version   string // what it speaks: Legacy (if empty), an older revision, or Modern
	Both      bool   // it speaks the other era too
	NoSession bool   // legacy: initialize gives no session id
	NoStream  bool   // legacy: a GET is answered with 405
	JSON      bool   // tools/call is answered as JSON instead of SSE
	Old       bool   // it speaks HTTP with SSE of 2024-11-05: see old.go
	Tools     string // raw JSON array of a tools/list; empty means the tool "work"
	// Capabilities is a raw JSON object; empty means tools only. Instructions
	// are none if empty.
	Capabilities, Instructions string

	// On has handlers for what the case is about, by JSON-RPC method, or by
	// HTTP method ("GET", "DELETE"). All else gets the usual answer.
	On map[string]Handler

	// Notified, if not nil, is told of each notification that comes to a child.
	// It must not block: the next line waits for it.
	Notified func(r *Request)
}

// Upstream is a scripted tool server. It writes raw bytes over TCP on
// loopback, each Write as a segment of its own, and notes every request.
type Upstream struct {
	URL string // of the MCP endpoint

	t    testing.TB
	opt  Options
	ln   net.Listener
	wg   sync.WaitGroup
	done chan struct{}

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced when anything below changes
	requests []*Request
	conns    map[*tcp]struct{}
	nconn    int
	sessions map[string]bool
	nsession int
	streams  []*Conn // standalone streams that are open
	logs     map[string]*EventLog
	frozen   bool
	closed   bool
}

// NewUpstream starts a scripted server, which the test's cleanup ends.
func NewUpstream(t testing.TB, opt Options) *Upstream {
	t.Helper()
	if opt.Version == "" {
		opt.Version = Legacy
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	fatalIf(t, err != nil, "scripted server: %v", err)
	u := &Upstream{
		URL: "http://" + ln.Addr().String() + "/mcp",
		t:   t, opt: opt, ln: ln, done: make(chan struct{}), changed: make(chan struct{}),
		conns: map[*tcp]struct{}{}, sessions: map[string]bool{}, logs: map[string]*EventLog{},
	}
	u.wg.Go(u.accept)
	t.Cleanup(u.Close)
	return u
}

// For says whose test fails from now on when something is waited for in vain:
// the server may be shared by the parts of a test, one after the other.
func (u *Upstream) For(t testing.TB) { u.t = t }

// Close ends the server and all its connections, and waits for its handlers.
func (u *Upstream) Close() {
	u.mu.Lock()
	if u.closed {
		u.mu.Unlock()
		return
	}
	u.closed = true
	close(u.done)
	conns := maps.Clone(u.conns)
	u.mu.Unlock()
	u.ln.Close()
	for c := range conns {
		c.Close()
	}
	u.wg.Wait()
}

// Upgrade makes the server another one, at the same address: it closes all
// connections, and answers as opt says from now on.
func (u *Upstream) Upgrade(opt Options) {
	u.change(func() { u.opt = opt })
	u.Cut(false)
}

func (u *Upstream) options() Options {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.opt
}

// change runs f under the lock and wakes those who wait for something.
func (u *Upstream) change(f func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	f()
	close(u.changed)
	u.changed = make(chan struct{})
}

func (u *Upstream) wake() <-chan struct{} {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.changed
}

// tcp is one accepted connection.
type tcp struct {
	*net.TCPConn
	n  int
	br *bufio.Reader
}

func (u *Upstream) accept() {
	for {
		nc, err := u.ln.Accept()
		if err != nil {
			return // closed
		}
		t := &tcp{TCPConn: nc.(*net.TCPConn), br: bufio.NewReader(nc)}
		frozen := false
		u.mu.Lock()
		if u.closed {
			u.mu.Unlock()
			nc.Close()
			return
		}
		u.nconn++
		t.n = u.nconn
		u.conns[t] = struct{}{}
		frozen = u.frozen
		u.mu.Unlock()
		if !frozen {
			u.wg.Go(func() { u.serve(t) })
		}
	}
}

// serve answers the requests of one connection until it ends.
func (u *Upstream) serve(t *tcp) {
	defer func() {
		t.Close()
		u.mu.Lock()
		delete(u.conns, t)
		u.mu.Unlock()
	}()
	for {
		r, err := readRequest(t.br)
		if err != nil || u.isFrozen() {
			if u.isFrozen() {
				<-u.done // half-open: it never closes
			}
			return
		}
		r.Conn = t.n
		u.change(func() { u.requests = append(u.requests, r) })
		c := &Conn{u: u, tcp: t, req: r, gone: make(chan struct{})}
		peeked := make(chan struct{})
		u.wg.Go(func() { // notices that the agent has left while the handler runs
			defer close(peeked)
			if _, err := t.br.Peek(1); err != nil {
				close(c.gone)
			}
		})
		u.handler(r)(c, r)
		<-peeked
		if c.closed() {
			return
		}
	}
}

func (u *Upstream) handler(r *Request) Handler {
	if u.options().Old {
		return u.oldHandler(r)
	}
	if r.Method != "initialize" && r.Verb != "" && !r.Modern() && !u.knows(r) {
		return func(c *Conn, r *Request) { c.JSON(404, r.Fail("-32001", "no such session")) }
	}
	if h := u.options().On[r.Key()]; h != nil {
		return h
	}
	return u.usual
}

// knows says whether a legacy request names a session that there is.
func (u *Upstream) knows(r *Request) bool {
	if u.options().NoSession || r.Method == "server/discover" || modern(u.options().Version) && !u.options().Both {
		return true
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.sessions[r.Header.Get("Mcp-Session-Id")]
}

func (u *Upstream) isFrozen() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.frozen
}

// newSession makes a session id.
func (u *Upstream) newSession() string {
	id := ""
	u.change(func() {
		u.nsession++
		id = fmt.Sprintf("session-%d", u.nsession)
		u.sessions[id] = true
	})
	return id
}

// Forget makes all sessions unknown, as after a restart: whoever names one
// gets a 404 until it initializes again.
func (u *Upstream) Forget() { u.change(func() { clear(u.sessions) }) }

// Freeze makes the server half-open: from now on nothing is answered or
// written, on old and new connections, and none is closed.
func (u *Upstream) Freeze() { u.change(func() { u.frozen = true }) }

// Cut resets all connections, or closes them if not hard.
func (u *Upstream) Cut(hard bool) {
	u.mu.Lock()
	conns := make([]*tcp, 0, len(u.conns))
	for c := range u.conns {
		conns = append(conns, c)
	}
	u.mu.Unlock()
	for _, c := range conns {
		if hard {
			_ = c.SetLinger(0) // a connection that is gone needs no reset
		}
		c.Close()
	}
}

// Requests lists what came under a key (see Request.Key), oldest first; an
// empty key lists all.
func (u *Upstream) Requests(key string) []*Request {
	u.mu.Lock()
	defer u.mu.Unlock()
	var out []*Request
	for _, r := range u.requests {
		if key == "" || r.Key() == key {
			out = append(out, r)
		}
	}
	return out
}

// Count says how many requests came under a key.
func (u *Upstream) Count(key string) int { return len(u.Requests(key)) }

// Conns says how many connections were made.
func (u *Upstream) Conns() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.nconn
}

// WaitRequest waits for the nth request under a key, counting from 1. It fails
// the test if none comes in time; a limit of 0 means Timeout.
func (u *Upstream) WaitRequest(key string, n int, limit time.Duration) *Request {
	u.t.Helper()
	if limit == 0 {
		limit = Timeout
	}
	ok := waitFor(limit, u.wake, func() bool { return u.Count(key) >= n })
	fatalIf(u.t, !ok, "the scripted server got %d of %d requests %q within %v", u.Count(key), n, key, limit)
	return u.Requests(key)[n-1]
}

// Quiet waits for the whole time, and fails the test if in it more than n
// requests have come under a key.
func (u *Upstream) Quiet(key string, n int, during time.Duration) {
	u.t.Helper()
	more := waitFor(during, u.wake, func() bool { return u.Count(key) > n })
	fatalIf(u.t, more, "the scripted server got %d requests %q, at most %d expected", u.Count(key), key, n)
}

// Stream waits for a standalone stream of an agent to be open, and returns the
// newest. What is written to it goes to the agent's GET.
func (u *Upstream) Stream() *Conn {
	u.t.Helper()
	c, err := u.stream(Timeout)
	fatalIf(u.t, err != nil, "%v", err)
	return c
}

func (u *Upstream) stream(limit time.Duration) (c *Conn, err error) {
	if !waitFor(limit, u.wake, func() bool {
		u.mu.Lock()
		defer u.mu.Unlock()
		if n := len(u.streams); n > 0 {
			c = u.streams[n-1]
		}
		return c != nil
	}) {
		return nil, errors.New("nobody opened the standalone stream of the scripted server")
	}
	return c, nil
}
