package relay

import (
	"net/http"
	"strings"
	"testing"
)

// A cancel of a modern request on the pipe is a message, and has to be honoured:
// the call is cancelled by its id, and nothing more is said about it.
func TestCancelModern(t *testing.T) {
	t.Parallel()
	cancelled := make(chan struct{})
	s := newServe(t, func(s *serve, w http.ResponseWriter, q seen) {
		switch {
		case strings.HasPrefix(q.URL.Path, "/api/calls/"):
			close(cancelled)
			w.WriteHeader(204)
		case strings.Contains(q.body, "tools/list"):
			answer(w, 200, `{"jsonrpc":"2.0","id":"l","result":{}}`)
		default:
			w.Header().Set("Longcall-Call", "c_1")
			sse(w, "data: "+progress(1))
			<-cancelled
			sse(w, "data: "+progress(2), "data: "+result("1"))
		}
	})
	h := newHost(t, at(s))
	h.send(callLine("1", modernMeta))
	h.next(`"progress":1`)
	h.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"reason":"enough"}}`)
	q := s.await(t, 1, has("POST", "/api/calls/c_1/cancel"))
	if q.body != `{"by":"agent","reason":"enough"}` {
		t.Errorf("%s", q.body)
	}
	h.send(`{"jsonrpc":"2.0","id":"l","method":"tools/list","params":{"_meta":{` + modernMeta + `}}}`)
	h.next(`"id":"l"`)
	if err := h.close(); err != nil {
		t.Error(err)
	}
	h.quiet()
}

// In a session the host's own message is passed on, after the request that it is
// about, and no id is mixed up with another type of it.
func TestCancelLegacy(t *testing.T) {
	t.Parallel()
	cancelled := make(chan struct{})
	s := newServe(t, func(s *serve, w http.ResponseWriter, q seen) {
		switch {
		case strings.Contains(q.body, "notifications/cancelled"):
			close(cancelled)
			w.WriteHeader(202)
		case legacy(s, w, q, "s_1"):
		case strings.Contains(q.body, `"id":"1"`):
			sse(w, "id: a.1\ndata: "+progress(1))
			<-cancelled
			sse(w, "data: "+result(`"1"`))
		default:
			sse(w, "id: b.1\ndata: "+progress(1))
			<-cancelled // and ends without a word, as it must
		}
	})
	h := newHost(t, at(s))
	h.send(initialize, callLine("1", `"progressToken":7`))
	h.next("serverInfo")
	h.next(`"progress":1`)
	h.send(callLine(`"1"`, `"progressToken":7`))
	h.next(`"progress":1`)
	cancel := `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"extra":true}}`
	h.send(cancel)
	h.next(`"id":"1","result"`)
	if q := s.await(t, 1, has("POST", "notifications/cancelled")); q.body != cancel {
		t.Errorf("%s", q.body)
	}
	if err := h.close(); err != nil {
		t.Error(err)
	}
	h.quiet()
	if n := s.count(func(q seen) bool { return q.Header.Get("Last-Event-Id") != "" }); n != 0 {
		t.Errorf("a cancelled stream was resumed %d times", n)
	}
}

// A cancel right behind its request finds it; one that names nothing is ignored.
func TestCancelAtOnce(t *testing.T) {
	t.Parallel()
	s := newServe(t, func(s *serve, w http.ResponseWriter, q seen) {
		if strings.HasPrefix(q.URL.Path, "/api/") {
			w.WriteHeader(204)
			return
		}
		w.Header().Set("Longcall-Call", "c_9")
		sse(w, ":")
		s.hold(q)
	})
	h := newHost(t, at(s))
	h.send(
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`,
		callLine("1", modernMeta),
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{}}`)
	s.await(t, 1, has("POST", "/api/calls/c_9/cancel"))
	if err := h.close(); err != nil {
		t.Error(err)
	}
	h.quiet()
}
