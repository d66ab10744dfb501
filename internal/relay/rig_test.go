package relay

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const limit = 10 * time.Second

// seen is a request that the serve got.
type seen struct {
	*http.Request
	body string
}

// serve is a scripted longcall.
type serve struct {
	*httptest.Server
	mu   sync.Mutex
	got  []seen
	came chan struct{}
	stop chan struct{}
}

// newServe answers each request with the handler.
func newServe(t *testing.T, h func(s *serve, w http.ResponseWriter, r seen)) *serve {
	s := &serve{came: make(chan struct{}, 1024), stop: make(chan struct{})}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		q := seen{r, string(b)}
		s.mu.Lock()
		s.got = append(s.got, q)
		s.mu.Unlock()
		s.came <- struct{}{}
		h(s, w, q)
	}))
	t.Cleanup(func() {
		close(s.stop)
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// await returns the nth request, from 1, that is as match says.
func (s *serve) await(t *testing.T, n int, match func(seen) bool) seen {
	t.Helper()
	deadline := time.After(limit)
	for {
		k := 0
		s.mu.Lock()
		for _, q := range s.got {
			if match(q) {
				if k++; k == n {
					s.mu.Unlock()
					return q
				}
			}
		}
		s.mu.Unlock()
		select {
		case <-s.came:
		case <-deadline:
			t.Fatalf("no such request came")
		}
	}
}

func (s *serve) count(match func(seen) bool) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.got {
		if match(q) {
			n++
		}
	}
	return n
}

func has(verb, part string) func(seen) bool {
	return func(q seen) bool { return q.Method == verb && strings.Contains(q.URL.Path+" "+q.body, part) }
}

// hold waits until the client has left or the test is over.
func (s *serve) hold(q seen) {
	select {
	case <-q.Context().Done():
	case <-s.stop:
	}
}

func sse(w http.ResponseWriter, events ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, e := range events {
		fmt.Fprint(w, e+"\n\n")
	}
	w.(http.Flusher).Flush()
}

func answer(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	io.WriteString(w, body)
}

const initialized = `{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"x","version":"1"}}}`

// legacy answers what a session begins with; false if it is none of that.
func legacy(s *serve, w http.ResponseWriter, q seen, session string) bool {
	switch {
	case strings.Contains(q.body, `"initialize"`):
		w.Header().Set("Mcp-Session-Id", session)
		answer(w, 200, initialized)
	case q.Method == http.MethodDelete:
		w.WriteHeader(204)
	case q.Method == http.MethodPost && !strings.Contains(q.body, `"id"`):
		w.WriteHeader(202)
	case q.Method == http.MethodGet && q.Header.Get("Last-Event-Id") == "":
		sse(w, ":")
		s.hold(q)
	default:
		return false
	}
	return true
}

// host is the one at the other end of the pipe.
type host struct {
	t     *testing.T
	in    *io.PipeWriter
	lines chan string
	ended chan error
	said  atomic.Pointer[string]
	finds atomic.Int64
	stop  context.CancelFunc

	reading sync.Mutex // held while the host does not read
}

// hold has the host not read any more, until release.
func (h *host) hold()    { h.reading.Lock() }
func (h *host) release() { h.reading.Unlock() }

// newHost runs a relay; find gives the serve to use.
func newHost(t *testing.T, find func(n int64) (Target, error)) *host {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	h := &host{t: t, in: inW, lines: make(chan string, 4096), ended: make(chan error, 1), stop: cancel}
	read := make(chan struct{})
	go func() {
		defer close(read)
		sc := bufio.NewScanner(outR)
		sc.Buffer(nil, 16<<20)
		for sc.Scan() {
			h.reading.Lock()
			h.reading.Unlock() //nolint:staticcheck // it only waits
			h.lines <- sc.Text()
		}
	}()
	go func() {
		h.ended <- Run(ctx, Options{
			In: inR, Out: outW,
			Find: func(context.Context) (Target, error) { return find(h.finds.Add(1)) },
			Say:  func(format string, args ...any) { s := fmt.Sprintf(format, args...); h.said.Store(&s) },
		})
		inR.Close()
		outW.Close()
	}()
	t.Cleanup(func() { cancel(); inW.Close(); outR.CloseWithError(errors.New("over")); <-read })
	return h
}

func at(s *serve) func(int64) (Target, error) {
	return func(int64) (Target, error) { return Target{Base: s.URL, Path: "/mcp", Token: "secret"}, nil }
}

func (h *host) send(lines ...string) {
	h.t.Helper()
	for _, l := range lines {
		if _, err := io.WriteString(h.in, l+"\n"); err != nil {
			h.t.Fatal(err)
		}
	}
}

// next is the next line; it must contain all parts.
func (h *host) next(parts ...string) string {
	h.t.Helper()
	select {
	case l := <-h.lines:
		for _, p := range parts {
			if !strings.Contains(l, p) {
				h.t.Fatalf("no %q in %s", p, l)
			}
		}
		return l
	case <-time.After(limit):
		h.t.Fatalf("nothing comes; %q was expected", parts)
		return ""
	}
}

func (h *host) quiet() {
	h.t.Helper()
	select {
	case l := <-h.lines:
		h.t.Errorf("unexpected: %s", l)
	default:
	}
}

func (h *host) close() error {
	h.t.Helper()
	h.in.Close()
	select {
	case err := <-h.ended:
		return err
	case <-time.After(limit):
		h.t.Fatal("the relay does not end")
		return nil
	}
}

const initialize = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"h","version":"1"}}}`

func callLine(id, meta string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"work","arguments":{},"_meta":{` + meta + `}}}`
}

const modernMeta = `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"progressToken":7`

func progress(v int) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":7,"progress":%d}}`, v)
}

func result(id string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"result":{"content":[{"type":"text","text":"done"}]}}`
}
