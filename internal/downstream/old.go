package downstream

import (
	"context"
	"crypto/rand"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/longcall/longcall/internal/mcp"
)

// This file is the transport of 2024-11-05 (SPEC §1.5): a GET of /sse, or of
// /sse/{server}, opens a stream that is the session, announces where to POST, and
// brings everything that answers. Calls are shown by the same attachments as
// elsewhere; what they write goes to the stream, one whole write at a time.

// pathMessages is where messages of that transport are posted to.
const pathMessages = "/messages"

// maxOldPosts is how many messages of one stream are served at a time.
const maxOldPosts = 1000

// oldStreams are the streams that are open, by the id in the address that each
// announced. As with sessions, an id opens nothing by itself.
type oldStreams struct {
	mu sync.Mutex
	m  map[string]*oldStream
}

// oldStream is one stream, which is one session.
type oldStream struct {
	id        string
	principal string
	server    string // of the endpoint; "" for all
	ctx       context.Context
	cancel    context.CancelFunc
	opened    chan struct{}  // closed when there is a session
	wg        sync.WaitGroup // of what answers; under oldStreams.mu while it may be 0
	posts     int            // under oldStreams.mu

	mu      sync.Mutex
	session *session // nil before initialize

	write sync.Mutex
	out   sink // of the GET; under write
}

// open registers the stream of a GET; nil if there are too many.
func (all *oldStreams) open(x *exchange) *oldStream {
	var b [16]byte
	rand.Read(b[:])
	st := &oldStream{
		id: sessionIDs.EncodeToString(b[:]), principal: x.q.Principal, server: x.server,
		opened: make(chan struct{}), out: x.out,
	}
	st.ctx, st.cancel = context.WithCancel(x.r.Context())
	all.mu.Lock()
	defer all.mu.Unlock()
	if len(all.m) >= maxSessions {
		st.cancel()
		return nil
	}
	if all.m == nil {
		all.m = map[string]*oldStream{}
	}
	all.m[st.id] = st
	return st
}

// use finds the stream of a POST and counts the message until done; busy is true
// if it serves too many. The id of another principal looks unknown.
func (all *oldStreams) use(id, principal string) (st *oldStream, busy bool) {
	all.mu.Lock()
	defer all.mu.Unlock()
	st = all.m[id]
	switch {
	case st == nil || st.principal != principal:
		return nil, false
	case st.posts >= maxOldPosts:
		return nil, true
	}
	st.posts++
	st.wg.Add(1)
	return st, false
}

func (all *oldStreams) done(st *oldStream) {
	all.mu.Lock()
	st.posts--
	all.mu.Unlock()
	st.wg.Done()
}

// close takes no further message.
func (all *oldStreams) close(st *oldStream) {
	all.mu.Lock()
	defer all.mu.Unlock()
	delete(all.m, st.id)
}

// voice is the part of the ResponseWriter's role that an answer has on a shared
// stream: what it writes is held until it is flushed, and then goes out whole.
type voice struct {
	st   *oldStream
	head http.Header
	held []byte
}

// Header implements http.ResponseWriter; nobody gets to see it.
func (v *voice) Header() http.Header { return v.head }

// WriteHeader implements http.ResponseWriter. A status has no place on a stream.
func (v *voice) WriteHeader(int) {}

// Write implements http.ResponseWriter.
func (v *voice) Write(p []byte) (int, error) {
	v.held = append(v.held, p...)
	return len(p), nil
}

// SetWriteDeadline leaves the deadline to the stream's own sink.
func (v *voice) SetWriteDeadline(time.Time) error { return nil }

// FlushError sends what is held. A reader that takes nothing loses the stream,
// and with it everything that waits to be written.
func (v *voice) FlushError() error {
	st := v.st
	st.write.Lock()
	defer st.write.Unlock()
	if st.ctx.Err() != nil {
		return st.ctx.Err()
	}
	if len(v.held) > 0 {
		st.out.write(v.held)
		if cap(v.held) > keepBuffer {
			v.held = nil
		}
		v.held = v.held[:0]
		st.out.flush()
	}
	if st.out.err == nil {
		return nil
	}
	st.cancel()
	if st.out.slow {
		return os.ErrDeadlineExceeded
	}
	return st.out.err
}

// speak makes the exchange answer on the stream.
func (x *exchange) speak(st *oldStream) {
	x.old, x.sse, x.json = true, true, false
	x.server, x.q.Server = st.server, st.server
	x.r = x.r.WithContext(st.ctx)
	x.out.init(&voice{st: st, head: http.Header{}}, x.r, x.set.WriteTimeout)
}

// openOld serves the stream of the 2024-11-05 transport to its end. Calls that run
// then go on, and are found again by who makes the same call (SPEC §3.7).
func (x *exchange) openOld() {
	if x.r.Method != http.MethodGet { // a client that tries Streamable HTTP first falls back on this
		x.out.w.Header().Set("Allow", "GET, OPTIONS")
		x.refuse(http.StatusMethodNotAllowed, mcp.CodeInvalidRequest, "GET this address: it opens the stream of HTTP with SSE of 2024-11-05. Streamable HTTP is served at /mcp.")
		return
	}
	streamHead(x.out.w.Header())
	st := x.h.old.open(x)
	if st == nil {
		x.out.w.Header().Set("Retry-After", "60")
		x.refuse(http.StatusTooManyRequests, mcp.CodeInternal, "Too many streams are open. Try again later.")
		return
	}
	defer st.cancel()
	x.observe()
	st.write.Lock()
	st.out.head(http.StatusOK)
	st.out.write([]byte("event: endpoint\ndata: " + pathMessages + "?session=" + st.id + "\n\n"))
	ok := st.out.flush()
	st.write.Unlock()
	x.speak(st)
	if ok {
		x.serveStream(st)
	}
	x.h.old.close(st)
	x.finishOld(st)
	x.out.bytes, x.out.status, x.out.first = st.out.bytes, st.out.status, st.out.first
}

// serveStream serves what concerns no call, from the session's beginning on.
func (x *exchange) serveStream(st *oldStream) {
	if !x.idle(st.opened, x.h.stopping) {
		return
	}
	st.mu.Lock()
	id := st.session.id
	st.mu.Unlock()
	if s := x.h.sessions.use(id, x.q.Principal, x.server); s != nil {
		x.version, x.q.Era, x.q.Session, x.asks = s.version, s.version, s.id, s.asks
		x.listen(s)
		s.done()
	}
}

// finishOld ends the stream when what runs on it has ended, if longcall hands
// over, or at once, if its client has left.
func (x *exchange) finishOld(st *oldStream) {
	over := make(chan struct{})
	go func() {
		st.wg.Wait()
		close(over)
	}()
	x.idle(over, nil)
	st.cancel()
	<-over
	st.mu.Lock()
	s := st.session
	st.mu.Unlock()
	if s != nil && !x.h.isStopping() {
		x.h.sessions.drop(s)
	}
}

// idle shows life until ready is closed; false if the stream ended or stop was
// closed before.
func (x *exchange) idle(ready, stop <-chan struct{}) bool {
	tick := time.NewTicker(x.streamBeat())
	defer tick.Stop()
	for {
		select {
		case <-ready:
			return true
		case <-stop:
			return false
		case <-x.r.Context().Done():
			return false
		case <-tick.C:
			x.out.write(commentBeat)
			x.q.Beats++
			if !x.out.flush() {
				return false
			}
		}
	}
}

// streamBeat is the silence on a session's stream before a comment. A stream
// that carries calls has that of calls.
func (x *exchange) streamBeat() time.Duration {
	if d := x.set.Comment; x.old && d > 0 {
		return d
	}
	return streamComment
}

// postOld takes a message of the 2024-11-05 transport: it is accepted when what it
// asks for has begun, so that a cancel that follows finds it.
func (x *exchange) postOld() {
	handed := false
	defer func() {
		if !handed {
			x.done()
		}
	}()
	if x.r.Method != http.MethodPost {
		x.out.w.Header().Set("Allow", "POST, OPTIONS")
		x.refuse(http.StatusMethodNotAllowed, mcp.CodeInvalidRequest, "POST messages here. GET /sse opens the stream that answers them.")
		return
	}
	x.q.ID = newRequestID()
	st, busy := x.h.old.use(x.r.URL.Query().Get("session"), x.q.Principal)
	switch {
	case busy:
		x.out.w.Header().Set("Retry-After", "1")
		x.refuse(http.StatusTooManyRequests, mcp.CodeInternal, "Too many messages of this stream are being served. Try again in a moment.")
		return
	case st == nil:
		x.refuse(http.StatusNotFound, mcp.CodeInvalidRequest, "This session is not known any more: its stream has ended. GET /sse opens a new one.")
		return
	}
	defer func() {
		if !handed {
			x.h.old.done(st)
		}
	}()
	m, ok := x.oldMessage()
	if !ok {
		return
	}
	direct := x.out
	set := *x.set // the stream has beats of its own, and no event ids
	set.Comment, set.Together, set.StreamAge = 0, 0, 0
	x.set = &set
	x.speak(st)
	a := x.serveOld(st, m)
	direct.w.Header().Set("Content-Length", "0")
	direct.head(http.StatusAccepted)
	direct.flush()
	if a == nil {
		return
	}
	handed = true
	st.wg.Go(func() {
		a.serve()
		x.done()
	})
	x.h.old.done(st)
}

// oldMessage reads the message of a POST; ok is false if it was refused.
func (x *exchange) oldMessage() (m *mcp.Message, ok bool) {
	if !isJSON(x.r.Header.Get("Content-Type")) {
		x.refuse(http.StatusUnsupportedMediaType, mcp.CodeInvalidRequest, "Content-Type must be application/json.")
		return nil, false
	}
	body, ok := x.body()
	if !ok {
		return nil, false
	}
	x.q.BytesIn = int64(len(body))
	if mcp.IsBatch(body) {
		x.refuse(http.StatusBadRequest, mcp.CodeInvalidRequest, "Batches are not served here: send one message per request.")
		return nil, false
	}
	msg, err := mcp.Parse(body)
	if err != nil {
		x.parseError(err)
		return nil, false
	}
	if msg.Method != "" {
		x.q.Method = oneLine(msg.Method, 64)
	}
	return &msg, true
}

// serveOld serves a message in the stream's session. It returns the answer to a
// call, still to be run.
func (x *exchange) serveOld(st *oldStream, m *mcp.Message) *attachment {
	id := m.ID.Of(m.Raw)
	st.mu.Lock()
	s := st.session
	if m.Method == mcp.MethodInitialize {
		defer st.mu.Unlock()
		if s != nil {
			x.fail(http.StatusBadRequest, id, mcp.CodeInvalidRequest, "This session has begun already. GET /sse opens another one.", nil)
		} else if st.session = x.initialize(m); st.session != nil {
			close(st.opened)
		}
		return nil
	}
	st.mu.Unlock()
	if s != nil {
		s = x.h.sessions.use(s.id, st.principal, st.server)
	}
	switch {
	case s != nil:
		x.enter(s)
		return x.serveSession(s, m)
	case m.Kind != mcp.Request:
	case m.Method == mcp.MethodPing:
		x.result(id, []byte("{}"))
	default:
		x.fail(http.StatusBadRequest, id, mcp.CodeInvalidRequest, "There is no session yet: send initialize first.", nil)
	}
	return nil
}
