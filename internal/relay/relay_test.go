package relay

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// A legacy session: its id and version with every message, its stream read, and
// ended with the host.
func TestLegacySession(t *testing.T) {
	t.Parallel()
	s := newServe(t, func(s *serve, w http.ResponseWriter, q seen) {
		switch {
		case q.Method == http.MethodGet:
			sse(w, "data: "+`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
			s.hold(q)
		case legacy(s, w, q, "s_1"):
		default:
			answer(w, 200, `{"jsonrpc":"2.0","id":1,"result":{"tools":[]}}`)
		}
	})
	h := newHost(t, at(s))
	// All at once: nothing may overtake initialize.
	h.send(initialize, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	lines := h.next() + h.next() + h.next()
	for _, part := range []string{`"serverInfo"`, `"tools":[]`, "list_changed"} {
		if !strings.Contains(lines, part) {
			t.Errorf("no %s in %s", part, lines)
		}
	}
	for _, part := range []string{"tools/list", "notifications/initialized"} {
		q := s.await(t, 1, has("POST", part))
		if q.Header.Get("Mcp-Session-Id") != "s_1" || q.Header.Get("Mcp-Protocol-Version") != "2025-11-25" || q.Header.Get("Authorization") != "Bearer secret" || q.Header.Get("Longcall-Relay") != "stdio" {
			t.Errorf("%s: %v", part, q.Header)
		}
	}
	if err := h.close(); err != nil {
		t.Error(err)
	}
	s.await(t, 1, func(q seen) bool { return q.Method == http.MethodDelete && q.Header.Get("Mcp-Session-Id") == "s_1" })
	h.quiet()
}

// The headers of 2026-07-28 come from the message (SPEC §1.3).
func TestModernHeaders(t *testing.T) {
	t.Parallel()
	s := newServe(t, func(_ *serve, w http.ResponseWriter, q seen) {
		id := q.body[strings.Index(q.body, `"id":`)+5:]
		answer(w, 200, result(id[:strings.IndexByte(id, ',')]))
	})
	h := newHost(t, at(s))
	meta := `"_meta":{` + modernMeta + `}`
	for _, tt := range []struct{ method, params, name string }{
		{"tools/call", `"name":"work"`, "work"},
		{"tools/call", `"name":"wörk"`, "=?base64?d8O2cms=?="},
		{"tasks/get", `"taskId":"c_1"`, "c_1"},
		{"tasks/cancel", `"taskId":"c_2"`, "c_2"},
		{"resources/read", `"uri":"file:///x"`, "file:///x"},
		{"tools/list", `"name":"no"`, ""},
		{"server/discover", `"x":1`, ""},
	} {
		n := s.count(has("POST", ""))
		h.send(`{"jsonrpc":"2.0","id":"a","method":"` + tt.method + `","params":{` + tt.params + `,` + meta + `}}`)
		h.next(`"id":"a"`)
		q := s.await(t, n+1, has("POST", ""))
		if q.Header.Get("Mcp-Method") != tt.method || q.Header.Get("Mcp-Name") != tt.name || q.Header.Get("Mcp-Protocol-Version") != "2026-07-28" || q.Header.Get("Mcp-Session-Id") != "" {
			t.Errorf("%s %s: %v", tt.method, tt.params, q.Header)
		}
	}
	h.send(`{"jsonrpc":"2.0","id":"b","method":"a\nb","params":{` + meta + `}}`)
	h.next(`"id":"b"`, "-32601")
}

// Each message of a stream is one line, as soon as it comes, also if it has line
// ends between its tokens (SPEC §5.9).
func TestStreamBecomesLines(t *testing.T) {
	t.Parallel()
	step := make(chan struct{})
	s := newServe(t, func(s *serve, w http.ResponseWriter, q seen) {
		sse(w, ":", "id: x", "event: message\ndata: "+progress(1))
		<-step
		sse(w, "data: {\"jsonrpc\":\"2.0\",\ndata: \"id\":\"a\",\"result\":{}}", "data: "+progress(9))
	})
	h := newHost(t, at(s))
	h.send(callLine(`"a"`, modernMeta))
	h.next(`"progress":1}`)
	h.quiet()
	close(step)
	h.next(`"id":"a","result":{}}`)
	if err := h.close(); err != nil {
		t.Error(err)
	}
	h.quiet() // nothing after the result
}

// What is no message is answered, and the next line is served.
func TestBadLines(t *testing.T) {
	t.Parallel()
	s := newServe(t, func(_ *serve, w http.ResponseWriter, _ seen) { answer(w, 200, result("1")) })
	h := newHost(t, at(s))
	h.send("noise")
	h.next("-32700")
	h.send(`{"jsonrpc":"2.0","id":5}`)
	h.next(`"id":5`, "-32600")
	h.send("", callLine("1", modernMeta))
	h.next("done")
}

// A refusal of the serve without an id reaches the request that it is about.
func TestErrorsGetTheirID(t *testing.T) {
	t.Parallel()
	s := newServe(t, func(_ *serve, w http.ResponseWriter, q seen) {
		if strings.Contains(q.body, `"text"`) {
			http.Error(w, "teapot", http.StatusTeapot)
			return
		}
		answer(w, 413, `{"jsonrpc":"2.0","error":{"code":-32600,"message":"too large","data":{"x":1}}}`)
	})
	h := newHost(t, at(s))
	h.send(callLine("1", modernMeta))
	h.next(`"id":1`, `"too large"`, `{"x":1}`)
	h.send(callLine("2", modernMeta+`,"text":1`))
	h.next(`"id":2`, "418", `"isError":true`, `"resultType":"complete"`, `"outcome":"interrupted"`)
	h.send(`{"jsonrpc":"2.0","id":3,"method":"tools/list","params":{"_meta":{` + modernMeta + `,"text":1}}}`)
	h.next(`"id":3`, "418", `"error"`)
}

// If there is no serve, people and the host hear why; the next request tries again.
func TestNoServe(t *testing.T) {
	t.Parallel()
	s := newServe(t, func(_ *serve, w http.ResponseWriter, _ seen) { answer(w, 200, result("3")) })
	h := newHost(t, func(n int64) (Target, error) {
		if n <= 2 {
			return Target{}, errors.New("it burns; see /x/serve.log")
		}
		return at(s)(n)
	})
	h.send(initialize)
	h.next(`"id":0`, "it burns; see /x/serve.log", `"error"`)
	if got := h.said.Load(); got == nil || *got != "it burns; see /x/serve.log" {
		t.Errorf("people hear %v", got)
	}
	h.send(callLine("2", ""))
	h.next(`"id":2`, "Not started: it burns", `"outcome":"denied"`, `"isError":true`)
	h.send(callLine("3", modernMeta))
	h.next(`"id":3`, "done")
}

// Requests that come at once look for the serve together.
func TestOneSearch(t *testing.T) {
	t.Parallel()
	s := newServe(t, func(_ *serve, w http.ResponseWriter, q seen) {
		id := q.body[strings.Index(q.body, `"id":`)+5:]
		answer(w, 200, result(id[:strings.IndexByte(id, ',')]))
	})
	release := make(chan struct{})
	h := newHost(t, func(n int64) (Target, error) {
		<-release
		return at(s)(n)
	})
	const n = 50
	for i := range n {
		h.send(callLine(fmt.Sprint(i), modernMeta))
	}
	close(release)
	for range n {
		h.next("done")
	}
	if got := h.finds.Load(); got != 1 {
		t.Errorf("%d searches", got)
	}
}

// More requests than the bound are refused, and none that is under way suffers.
func TestTooManyRequests(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	h := newHost(t, func(int64) (Target, error) {
		<-release
		return Target{}, errors.New("none")
	})
	for i := range maxRequests + 1 {
		h.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"ping"}`, i))
	}
	h.next("4096 requests of this host are under way")
	close(release)
	for range maxRequests {
		h.next(`"error"`)
	}
}

// A signal ends the relay while a call runs.
func TestStop(t *testing.T) {
	t.Parallel()
	s := newServe(t, func(s *serve, w http.ResponseWriter, q seen) {
		sse(w, "data: "+progress(1))
		s.hold(q)
	})
	h := newHost(t, at(s))
	h.send(callLine("1", modernMeta))
	h.next("progress")
	h.stop()
	if err := h.close(); err != nil {
		t.Errorf("told to stop: %v", err)
	}
}

// A host that does not read holds up nothing but its own answers: its cancels
// are still heard, and when it reads on it gets whole lines, all of them.
func TestSlowHost(t *testing.T) {
	t.Parallel()
	const calls, each = 20, 50
	var sent sync.WaitGroup
	sent.Add(calls)
	s := newServe(t, func(_ *serve, w http.ResponseWriter, q seen) {
		if strings.HasPrefix(q.URL.Path, "/api/") {
			w.WriteHeader(204)
			return
		}
		id := q.body[strings.Index(q.body, `"id":`)+5:]
		id = id[:strings.IndexByte(id, ',')]
		w.Header().Set("Longcall-Call", "c_"+id)
		sse(w, ":")
		for range each {
			sse(w, `data: {"jsonrpc":"2.0","method":"notifications/message","params":{"data":"`+strings.Repeat("x", 100)+`"}}`)
		}
		sse(w, "data: "+result(id))
		sent.Done()
	})
	h := newHost(t, at(s))
	h.hold()
	for i := range calls {
		h.send(callLine(fmt.Sprint(i), modernMeta))
	}
	sent.Wait() // all is on its way, and nobody reads it
	h.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`)
	s.await(t, 1, has("POST", "/api/calls/c_7/cancel"))
	h.release()
	results, messages := 0, 0
	for results < calls-1 {
		switch l := h.next(`{"jsonrpc":"2.0",`); {
		case strings.Contains(l, `"result"`):
			results++
			if strings.Contains(l, `"id":7,`) {
				t.Error("the cancelled call is answered")
			}
		default:
			messages++
		}
	}
	if messages < (calls-1)*each {
		t.Errorf("%d messages, want %d", messages, (calls-1)*each)
	}
}
