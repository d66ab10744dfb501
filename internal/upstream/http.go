package upstream

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/longcall/longcall/internal/mcp"
)

const (
	defaultConnect = 10 * time.Second
	defaultMessage = 16 << 20
	defaultPing    = 30 * time.Second
	// requestTime bounds requests that are no calls.
	requestTime = 60 * time.Second
	// linger is how long a cancelled call waits for a late answer, for the
	// record only (O22).
	linger = time.Second
	// tellTime bounds what is told to a server in the background.
	tellTime = 5 * time.Second
)

// httpConn is a tool server at a Streamable HTTP endpoint, in either era. In
// the legacy era it holds one session, renewed when the server forgot it.
type httpConn struct {
	s        Server
	hooks    Hooks
	digest   string            // of the configured url
	client   *http.Client      // short requests
	direct   http.RoundTripper // calls: the same transport, without redirects
	listener *http.Client      // streams that tell of changes, on a transport of their own
	prefix   string            // of our ids: unique per connection
	serial   atomic.Uint64

	ctx    context.Context // of background work
	apart  context.Context // of reading, which ends in its own ways
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.Mutex
	sess     *session      // nil until connected
	dialing  chan struct{} // closed when the connect under way ends
	err      error         // of the last connect
	verdict  string        // "modern" or "legacy", once known
	verdictT time.Time     // of a legacy verdict: servers get upgraded
	said     intro         // of a stateless server, as it said last
	closed   bool
	old      *stdioConn              // not nil: the server speaks nothing but the transport of 2024-11-05
	oldT     time.Time               // since when that is known
	adopted  map[adoptedKey]*adopted // sessions of an earlier process that its calls still live in

	pending sync.Map // our id to *exchange, while a call runs: where Path B progress goes
	tasks   taskBoard
	notes   atomic.Int32 // notifications that are on their way
}

// session is one era decision and, in the legacy era, one session.
type session struct {
	isModern bool
	id       string // Mcp-Session-Id; empty if the server has none
	version  string
	suspect  atomic.Bool  // the server may have forgotten it: prove it before the next call (P20)
	proven   atomic.Int64 // unix nanoseconds of the last sign of life on it
	gone     atomic.Bool  // the server does not know it any more
	left     atomic.Bool  // a call was left in it for the next process
	probe    *probe       // under way; under httpConn.mu
	proof    *proof       // under way; under httpConn.mu
	stream   *standalone  // nil if not legacy
	tasks    int          // legacy: what the server says of calls as tasks; see taskCapability
	said     intro        // how the server introduced itself
}

func (s *session) alive() { s.proven.Store(time.Now().UnixNano()) }

func (s *session) quietFor() time.Duration { return time.Since(time.Unix(0, s.proven.Load())) }

// withCredentials moves a name and password in the URL to where they belong.
func withCredentials(s Server) Server {
	u, err := url.Parse(s.URL)
	if err != nil || u.User == nil || s.Headers.Get("Authorization") != "" {
		return s
	}
	req := http.Request{Header: http.Header{}}
	pass, _ := u.User.Password()
	req.SetBasicAuth(u.User.Username(), pass)
	if s.Headers = s.Headers.Clone(); s.Headers == nil {
		s.Headers = http.Header{}
	}
	s.Headers.Set("Authorization", req.Header.Get("Authorization"))
	u.User = nil
	s.URL = u.String()
	return s
}

// stamp sets the headers that the operator gave for the server.
func (s *Server) stamp(req *http.Request) {
	maps.Copy(req.Header, s.Headers)
	if h := s.Headers.Get("Host"); h != "" {
		req.Host = h
	}
}

func newHTTP(s Server, hooks Hooks) *httpConn {
	digest := urlDigest(s.URL) // of what the operator wrote
	s = withCredentials(s)
	if s.Limits.Connect == 0 {
		s.Limits.Connect = defaultConnect
	}
	if s.Limits.Message == 0 {
		s.Limits.Message = defaultMessage
	}
	if s.PingEvery == 0 {
		s.PingEvery = defaultPing
	}
	c := &httpConn{
		s: s, hooks: hooks, prefix: "lc" + strings.ToLower(rand.Text()[:8]) + "-",
		digest: digest, adopted: map[adoptedKey]*adopted{},
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.apart = context.WithoutCancel(c.ctx)
	c.direct = newTransport(s, watchedDialer(s, c.peerClosed, c.unwatched))
	c.client = &http.Client{Transport: c.direct, CheckRedirect: sameOrigin}
	c.listener = &http.Client{Transport: newTransport(s, quietDialer(s)), CheckRedirect: sameOrigin}
	return c
}

// sameOrigin follows no redirect to another origin: our credentials for this
// server are for it alone.
func sameOrigin(req *http.Request, via []*http.Request) error {
	if a, b := req.URL, via[0].URL; a.Scheme != b.Scheme || a.Host != b.Host {
		return fmt.Errorf("the tool server redirects to another origin (%s://%s), which longcall does not follow", a.Scheme, a.Host)
	}
	if len(via) >= 5 {
		return errors.New("the tool server redirects in a circle")
	}
	return nil
}

func (c *httpConn) mirrors() bool { return c.modern() }

func (c *httpConn) modern() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.verdict == "modern"
}

func (c *httpConn) nextID() string { return c.prefix + strconv.FormatUint(c.serial.Add(1), 36) }

// peerClosed is called when the server closes a connection: it may be
// restarting, and a session may be gone with it.
func (c *httpConn) peerClosed() {
	c.mu.Lock()
	s := c.sess
	c.mu.Unlock()
	if s != nil {
		s.suspect.Store(true)
	}
}

// unwatched is called when no connection is left. If there is no standalone
// stream either, the server may restart without our notice: the session has to
// be proven before the next call (P20).
func (c *httpConn) unwatched() {
	c.mu.Lock()
	s := c.sess
	c.mu.Unlock()
	if s != nil && s.stream != nil && !s.stream.open() {
		s.suspect.Store(true)
	}
}

// post sends one message on a session. sess is nil before there is one.
func (c *httpConn) post(ctx context.Context, sess *session, method, name string, body []byte) (*http.Response, error) {
	req, err := c.newPost(ctx, sess, method, name, body)
	if err != nil {
		return nil, err
	}
	return c.client.Do(req)
}

func (c *httpConn) newPost(ctx context.Context, sess *session, method, name string, body []byte) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.s.URL, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	c.header(req, sess)
	req.Header["Content-Type"] = jsonType
	if sess != nil && sess.isModern || sess == nil && method == mcp.MethodDiscover {
		req.Header[mcp.HeaderVersion] = modernVersion
		req.Header[mcp.HeaderMethod] = []string{method}
		if name != "" {
			req.Header[mcp.HeaderName] = []string{mcp.EncodeHeader(name)}
		}
	}
	return req, nil
}

var (
	jsonType      = []string{"application/json"}
	bothTypes     = []string{"application/json, text/event-stream"}
	modernVersion = []string{mcp.LatestModern}
)

func (c *httpConn) header(req *http.Request, sess *session) {
	c.s.stamp(req)
	req.Header["Accept"] = bothTypes
	if sess != nil && !sess.isModern {
		if sess.id != "" {
			req.Header[mcp.HeaderSession] = []string{sess.id}
		}
		if sess.version >= mcp.V20250618 {
			req.Header[mcp.HeaderVersion] = []string{sess.version}
		}
	}
}

func mediaType(r *http.Response) string {
	t, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return t // lower case (O16)
}

// meet connects, if need be.
func (c *httpConn) meet(ctx context.Context) (intro, error) {
	s, err := c.session(ctx)
	var old *oldError
	switch {
	case errors.As(err, &old):
		return old.conn.meet(ctx)
	case err != nil:
		return intro{}, err
	}
	return s.said, nil
}

// request sends a short request and waits for its answer.
func (c *httpConn) request(ctx context.Context, method string, params []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	for try := 0; ; try++ {
		sess, err := c.session(ctx)
		var old *oldError
		if errors.As(err, &old) {
			return old.conn.request(ctx, method, params)
		}
		if err != nil {
			return nil, err
		}
		result, err := c.ask(ctx, sess, method, params)
		var status *statusError
		if errors.As(err, &status) && status.lost(sess) && try == 0 {
			c.forget(sess) // a list may be asked for again: it has no effects
			continue
		}
		var rpc *mcp.RPCError
		if errors.As(err, &rpc) && rpc.Code == mcp.CodeUnsupportedVersion && try == 0 {
			c.forget(sess) // it is asked again what it speaks
			continue
		}
		return result, err
	}
}

// statusError is an HTTP status that brought no JSON-RPC answer.
type statusError struct {
	Status int
	Body   string // the first bytes, printable
}

func (e *statusError) Error() string {
	s := fmt.Sprintf("the tool server answered HTTP %d %s", e.Status, http.StatusText(e.Status))
	if e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden {
		s += ": check the credentials in its headers"
	}
	return s
}

// lost says whether the status means that the server does not know the session
// any more, or, if it was stateless, that it no longer is.
func (e *statusError) lost(s *session) bool {
	switch e.Status {
	case http.StatusNotFound, http.StatusBadRequest:
		return s.isModern || s.id != ""
	case http.StatusMethodNotAllowed:
		return s.isModern
	}
	return false
}

// ask sends one request and reads to its response, on a given session.
func (c *httpConn) ask(ctx context.Context, sess *session, method string, params []byte) ([]byte, error) {
	id := c.nextID()
	resp, err := c.post(ctx, sess, method, "", outgoingRequest(id, method, params, sess.isModern))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if !sess.isModern && sess.id != "" && (resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusBadRequest) {
		// Whatever the body says: this is how servers tell that a session is gone.
		return nil, &statusError{Status: resp.StatusCode}
	}
	return c.answer(resp, sess, id)
}

// answer reads a response to its JSON-RPC answer.
func (c *httpConn) answer(resp *http.Response, sess *session, id string) ([]byte, error) {
	m, err := c.readAnswer(resp, id, c.s.Limits.Message)
	if err != nil {
		return nil, err
	}
	if sess != nil {
		sess.alive()
	}
	if m.Error.Ok() {
		return nil, m.RPC()
	}
	return bytes.Clone(m.Result.Of(m.Raw)), nil
}

// readAnswer finds the response to our id in a JSON body or an event stream.
// The message is valid until the body is closed.
func (c *httpConn) readAnswer(resp *http.Response, id string, limit int64) (mcp.Message, error) {
	if mediaType(resp) == "text/event-stream" {
		return readBeside(resp.Body, id, limit, func(m *mcp.Message) {
			if m.Kind == mcp.Notification {
				c.hooks.told(m) // any stream may bring what is of none of our requests
			}
		})
	}
	body, err := readLimited(resp.Body, limit)
	if err != nil {
		return mcp.Message{}, err
	}
	m, err := mcp.Parse(body)
	if err != nil || m.Kind != mcp.Response {
		if resp.StatusCode/100 == 2 && err != nil {
			return m, fmt.Errorf("the tool server's answer is no JSON-RPC message: %w", err)
		}
		return m, &statusError{Status: resp.StatusCode, Body: printable(body)}
	}
	if resp.StatusCode/100 != 2 && !m.Error.Ok() || resp.StatusCode == http.StatusNotFound && !sameID(&m, id) {
		return m, &statusError{Status: resp.StatusCode}
	}
	return m, nil
}

// sameID says whether a response is for our id. An error without an id can
// only be for the one request of its HTTP exchange.
func sameID(m *mcp.Message, id string) bool {
	s, ok := mcp.String(m.ID.Of(m.Raw))
	return ok && s == id
}

// readLimited reads all, up to a limit; one that is not positive is none.
func readLimited(r io.Reader, limit int64) ([]byte, error) {
	if limit <= 0 {
		return io.ReadAll(r)
	}
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(b)) > limit {
		return nil, mcp.ErrTooLarge
	}
	return b, err
}

// printable is the beginning of a body as one line, for an operator.
func printable(b []byte) string {
	b = b[:min(len(b), 200)]
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0xfffd {
			return ' '
		}
		return r
	}, string(b)))
}

// tell posts a notification or a response of ours, in the background, bounded.
func (c *httpConn) tell(sess *session, body []byte) {
	c.spawn(func() {
		ctx, cancel := context.WithTimeout(c.ctx, tellTime)
		defer cancel()
		c.send(ctx, sess, body)
	})
}

// maxNotes is how many notifications are on their way at a time; what is more is
// dropped.
const maxNotes = 64

// notify tells the session that there is, or a stateless server.
func (c *httpConn) notify(n *note) {
	c.mu.Lock()
	s, old := c.sess, c.old
	c.mu.Unlock()
	switch {
	case old != nil:
		old.notify(n)
		return
	case s == nil || s.isModern && !n.any:
		return
	}
	if c.notes.Add(1) > maxNotes {
		c.notes.Add(-1)
		c.hooks.Log.Warn("a notification of an agent was dropped: the tool server does not take so many", "method", n.method)
		return
	}
	body := n.message(s.isModern)
	if !c.spawn(func() {
		defer c.notes.Add(-1)
		ctx, cancel := context.WithTimeout(c.ctx, tellTime)
		defer cancel()
		c.sendNamed(ctx, s, n.method, body)
	}) {
		c.notes.Add(-1)
	}
}

func (c *httpConn) send(ctx context.Context, sess *session, body []byte) {
	c.sendNamed(ctx, sess, "", body)
}

// sendNamed is send with the method that a stateless server reads in a header.
func (c *httpConn) sendNamed(ctx context.Context, sess *session, method string, body []byte) {
	resp, err := c.post(ctx, sess, method, "", body)
	if err != nil {
		return // the server finds out by itself
	}
	io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	resp.Body.Close()
}

func (c *httpConn) spawn(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.wg.Go(f)
	return true
}

// close ends the session and waits for all that runs here.
func (c *httpConn) close(ctx context.Context) {
	c.mu.Lock()
	c.closed = true
	sess, old := c.sess, c.old
	c.sess, c.old = nil, nil
	c.mu.Unlock()
	if old != nil {
		old.close(ctx)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endSession)
	c.delete(ctx, sess)
	cancel()
	c.cancel()
	c.wg.Wait()
	c.client.CloseIdleConnections()
	c.listener.CloseIdleConnections()
}

// sendCall posts the call. It notes the dispatch at the last moment before the
// request's first byte, when a connection for it is there: a dial that fails
// never dispatched anything. A call that was cancelled by then never leaves,
// because its body refuses to be read.
func (c *httpConn) sendCall(x *exchange, body []byte) (*http.Response, error) {
	var refused error
	ctx := httptrace.WithClientTrace(x.read, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) {
			// The transport comes here again only if it had written nothing on
			// a connection that the server had just closed.
			if !x.left && refused == nil {
				refused = x.dispatched()
			}
		},
	})
	method, name := named(x.exec.Spec, body)
	req, err := c.newPost(ctx, x.sess, method, name, body)
	if err != nil {
		return nil, err
	}
	x.mirror(req.Header, body)
	req.GetBody = func() (io.ReadCloser, error) {
		return &gatedBody{Reader: bytes.NewReader(body), refused: &refused}, nil
	}
	req.Body, _ = req.GetBody()
	resp, err := c.direct.RoundTrip(req)
	body = nil // the transport holds on to the request as long as its answer is read
	return resp, err
}

// gatedBody is a request body that can be held back until its first byte.
type gatedBody struct {
	*bytes.Reader
	refused *error
}

func (b *gatedBody) Read(p []byte) (int, error) {
	if *b.refused != nil {
		return 0, *b.refused
	}
	n, err := b.Reader.Read(p)
	b.letGo()
	return n, err
}

// letGo forgets what has been read.
func (b *gatedBody) letGo() {
	if b.Len() == 0 {
		b.Reset(nil)
	}
}

// WriteTo hides bytes.Reader's, which would not ask.
func (b *gatedBody) WriteTo(w io.Writer) (int64, error) {
	if *b.refused != nil {
		return 0, *b.refused
	}
	n, err := b.Reader.WriteTo(w)
	b.letGo()
	return n, err
}

func (b *gatedBody) Close() error { return nil }
