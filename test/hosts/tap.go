//go:build unix

package hosts

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/longcall/longcall/test/wire"
)

// Entry is one request that passed the tap, and what came back so far.
type Entry struct {
	At     time.Duration // since the tap began
	Verb   string
	Header http.Header
	Msg    wire.Msg // the request's body
	Status int      // 0 while there is no answer
	HeadAt time.Duration
	EndAt  time.Duration // 0 while the answer has not ended
	Body   string        // of the answer
}

// Tap is a reverse proxy on loopback that notes what passes.
type Tap struct {
	URL string

	start   time.Time
	mu      sync.Mutex
	entries []*Entry
}

// NewTap puts a tap in front of an endpoint, until the test's cleanup.
func NewTap(t testing.TB, endpoint string) *Tap {
	t.Helper()
	target, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	tap := &Tap{URL: "http://" + ln.Addr().String() + target.Path, start: time.Now()}
	proxy := &httputil.ReverseProxy{
		FlushInterval: -1,
		Rewrite:       func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = "http", target.Host },
		ErrorHandler:  func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		e := &Entry{At: time.Since(tap.start), Verb: r.Method, Header: r.Header.Clone()}
		e.Msg, _ = wire.ParseMsg(string(body)) // a GET has none
		tap.change(func() { tap.entries = append(tap.entries, e) })
		defer tap.change(func() { e.EndAt = time.Since(tap.start) })
		proxy.ServeHTTP(&tapWriter{ResponseWriter: w, tap: tap, entry: e}, r)
	})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(ln) // ends with Close
	}()
	t.Cleanup(func() { srv.Close(); <-done })
	return tap
}

func (t *Tap) change(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f()
}

// Entries lists what passed under a JSON-RPC method, or an HTTP method for
// requests without a body; an empty name lists all.
func (t *Tap) Entries(name string) (out []Entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.entries {
		key := e.Msg.Method
		if key == "" {
			key = e.Verb
		}
		if name == "" || key == name {
			out = append(out, *e)
		}
	}
	return out
}

// String is the tap's log, for a test that failed.
func (t *Tap) String() string {
	var b strings.Builder
	for _, e := range t.Entries("") {
		b.WriteString(strings.Join([]string{
			e.At.Round(time.Millisecond).String(), e.Verb, e.Msg.JSON, "->", http.StatusText(e.Status), e.EndAt.Round(time.Millisecond).String(), e.Body,
		}, " ") + "\n")
	}
	return b.String()
}

// tapWriter notes an answer as it passes.
type tapWriter struct {
	http.ResponseWriter
	tap   *Tap
	entry *Entry
}

func (w *tapWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *tapWriter) WriteHeader(status int) {
	w.tap.change(func() { w.entry.Status, w.entry.HeadAt = status, time.Since(w.tap.start) })
	w.ResponseWriter.WriteHeader(status)
}

func (w *tapWriter) Write(b []byte) (int, error) {
	w.tap.change(func() {
		if w.entry.Status == 0 {
			w.entry.Status = http.StatusOK
		}
		w.entry.Body += string(slices.Clone(b))
	})
	return w.ResponseWriter.Write(b)
}
