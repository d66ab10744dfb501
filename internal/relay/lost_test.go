package relay

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
)

// A stream with event ids that breaks is taken up after the last of them, also
// if that event was empty.
func TestResume(t *testing.T) {
	t.Parallel()
	var gets atomic.Int64
	s := newServe(t, func(s *serve, w http.ResponseWriter, q seen) {
		switch {
		case legacy(s, w, q, "s_1"):
		case q.Method == http.MethodGet && gets.Add(1) == 1:
			sse(w, "id: e.2\nretry: 1\ndata: ")
		case q.Method == http.MethodGet:
			sse(w, "id: e.3\ndata: "+progress(2), "data: "+result("1"))
		default:
			sse(w, "id: e.1\ndata: "+progress(1))
		}
	})
	h := newHost(t, at(s))
	h.send(initialize)
	h.next("serverInfo")
	h.send(callLine("1", `"progressToken":7`))
	h.next(`"progress":1`)
	h.next(`"progress":2`)
	h.next("done")
	for n, want := range []string{"e.1", "e.2"} {
		q := s.await(t, n+1, func(q seen) bool { return q.Header.Get("Last-Event-Id") != "" })
		if q.Header.Get("Last-Event-Id") != want || q.Header.Get("Mcp-Session-Id") != "s_1" {
			t.Errorf("resume %d: %v", n+1, q.Header)
		}
	}
	if n := s.count(has("POST", "tools/call")); n != 1 {
		t.Errorf("the call was sent %d times", n)
	}
}

// A stream without event ids is asked for again, with the call that it was of;
// progress that the host has seen is not shown twice (I11).
func TestAskAgain(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	s := newServe(t, func(_ *serve, w http.ResponseWriter, _ seen) {
		w.Header().Set("Longcall-Call", "c_1")
		switch n.Add(1) {
		case 1:
			sse(w, "data: "+progress(1), "data: "+progress(2))
			panic(http.ErrAbortHandler)
		case 2:
			sse(w, "data: "+progress(2), "data: "+progress(3), "data: "+result("1"))
		}
	})
	h := newHost(t, at(s))
	h.send(callLine("1", modernMeta))
	h.next(`"progress":1`)
	h.next(`"progress":2`)
	h.next(`"progress":3`)
	h.next("done")
	first, second := s.await(t, 1, has("POST", "")), s.await(t, 2, has("POST", ""))
	if first.Header.Get("Longcall-Call") != "" || second.Header.Get("Longcall-Call") != "c_1" || first.body != second.body {
		t.Errorf("first %v, second %v", first.Header, second.Header)
	}
}

// A serve that is gone is looked for again, by all that need one together.
func TestSecondServe(t *testing.T) {
	t.Parallel()
	first := newServe(t, func(s *serve, w http.ResponseWriter, q seen) {
		if !legacy(s, w, q, "s_1") {
			sse(w, "id: e.1\ndata: "+progress(1))
			s.hold(q)
		}
	})
	second := newServe(t, func(s *serve, w http.ResponseWriter, q seen) {
		switch {
		case q.Header.Get("Mcp-Session-Id") == "s_1":
			answer(w, 404, `{"jsonrpc":"2.0","error":{"code":-32600,"message":"This session is not known any more."}}`)
		case legacy(s, w, q, "s_2"):
		case q.Method == http.MethodGet:
			answer(w, 400, `{"jsonrpc":"2.0","error":{"code":-32600,"message":"This event is not of this session."}}`)
		default:
			id := q.body[strings.Index(q.body, `"id":`)+5:]
			sse(w, "id: f.1\ndata: "+result(id[:strings.IndexByte(id, ',')]))
		}
	})
	h := newHost(t, func(n int64) (Target, error) {
		if n == 1 {
			return at(first)(n)
		}
		return at(second)(n)
	})
	h.send(initialize)
	h.next("serverInfo")
	const calls = 10
	for i := range calls {
		h.send(callLine(fmt.Sprint(i+1), `"progressToken":7`))
		h.next(`"progress":1`)
	}
	first.Listener.Close() // before the streams break, or they are taken up there
	first.CloseClientConnections()
	lines := ""
	for range calls + 1 {
		lines += h.next()
	}
	for i := range calls {
		if strings.Count(lines, fmt.Sprintf(`"id":%d,"result"`, i+1)) != 1 {
			t.Errorf("call %d: %s", i+1, lines)
		}
	}
	// The host has not noticed, but for the one thing that it has to know.
	if strings.Count(lines, "list_changed") != 1 || strings.Contains(lines, "serverInfo") || strings.Contains(lines, "error") {
		t.Errorf("the host sees %s", lines)
	}
	if n := second.count(has("POST", `"initialize"`)); n != 1 {
		t.Errorf("%d initialize", n)
	}
	q := second.await(t, 1, has("POST", "notifications/initialized"))
	if q.Header.Get("Mcp-Session-Id") != "s_2" {
		t.Errorf("%v", q.Header)
	}
	if got := h.finds.Load(); got != 2 {
		t.Errorf("%d searches", got)
	}
	if err := h.close(); err != nil {
		t.Error(err)
	}
	second.await(t, 1, func(q seen) bool { return q.Method == http.MethodDelete && q.Header.Get("Mcp-Session-Id") == "s_2" })
}

// An endpoint that a serve does not know any more is brought to it again.
func TestEndpointIsFoundAgain(t *testing.T) {
	t.Parallel()
	s := newServe(t, func(_ *serve, w http.ResponseWriter, q seen) {
		if q.URL.Path == "/mcp/old" {
			answer(w, 404, `{"jsonrpc":"2.0","error":{"code":-32600,"message":"There is no such endpoint."}}`)
			return
		}
		answer(w, 200, result("1"))
	})
	h := newHost(t, func(n int64) (Target, error) {
		return Target{Base: s.URL, Path: map[bool]string{true: "/mcp/old", false: "/mcp/new"}[n == 1]}, nil
	})
	h.send(callLine("1", modernMeta))
	h.next("done")
	h.send(`{"jsonrpc":"2.0","id":2,"method":"no/such","params":{"_meta":{` + modernMeta + `}}}`)
	h.next() // whatever the serve says: its own 404 is an answer
}

// A serve that breaks every connection is given up, with the truth.
func TestGivesUp(t *testing.T) {
	t.Parallel()
	s := newServe(t, func(*serve, http.ResponseWriter, seen) { panic(http.ErrAbortHandler) })
	h := newHost(t, at(s))
	h.send(callLine("1", modernMeta))
	h.next(`"id":1`, "Outcome unknown", `"outcome":"interrupted"`)
}

// A listen request that is lost is made again, and the host reads again what it
// may have missed.
func TestListenAgain(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	s := newServe(t, func(s *serve, w http.ResponseWriter, q seen) {
		sse(w, "data: "+`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"notifications":{"toolsListChanged":true}}}`)
		if n.Add(1) > 1 {
			s.hold(q)
		}
	})
	h := newHost(t, at(s))
	h.send(`{"jsonrpc":"2.0","id":"l","method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},"_meta":{` + modernMeta + `}}}`)
	h.next("acknowledged")
	h.next("list_changed", `"io.modelcontextprotocol/subscriptionId":"l"`)
	h.quiet()
}

// The presence tells at once that the serve is gone.
func TestPresence(t *testing.T) {
	t.Parallel()
	s := newServe(t, func(s *serve, w http.ResponseWriter, q seen) {
		if q.Method == http.MethodGet {
			sse(w, ":")
			return
		}
		io.Copy(io.Discard, q.Body)
		answer(w, 200, result("1"))
	})
	h := newHost(t, func(n int64) (Target, error) {
		tg, _ := at(s)(n)
		if n == 1 {
			tg.Presence = "/api/presence?lease=w_1"
		}
		return tg, nil
	})
	h.send(callLine("1", modernMeta))
	h.next("done")
	q := s.await(t, 1, has("GET", "/api/presence"))
	if q.URL.Query().Get("lease") != "w_1" || q.Header.Get("Authorization") != "Bearer secret" {
		t.Errorf("%v %v", q.URL, q.Header)
	}
}
