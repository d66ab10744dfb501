package upstream_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
	"github.com/longcall/longcall/internal/upstream"
	"github.com/longcall/longcall/test/wire"
)

// oldServer is a scripted server of the 2024-11-05 transport.
func oldServer(t *testing.T, on map[string]wire.Handler) *wire.Upstream {
	return wire.NewUpstream(t, wire.Options{Old: true, Version: "2024-11-05", On: on})
}

func eraSSE(s *upstream.Server) { s.Era = "sse" }

// A server of the 2024-11-05 transport is found as the last resort of the probe,
// or named in the config; its calls look like all others (R-70, SPEC §1.5).
func TestOldTransport(t *testing.T) {
	for _, era := range []string{"auto", "sse"} {
		t.Run(era, func(t *testing.T) {
			t.Parallel()
			up := oldServer(t, map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) {
				s := c.Took()
				s.Event(r.Progress("1", "2", "half"), r.Progress("2", "2", ""), r.Text("worked"))
				s.Event(r.Progress("3", "4", "late")) // O8
			}})
			g := newGateway(t, up.URL, func(s *upstream.Server) { s.Era = era })
			for range 3 {
				s := g.follow(g.start(call.Limits{}))
				s.want(t, call.Completed, "worked")
				if fmt.Sprint(s.progress) != "[1 2]" {
					t.Errorf("progress %v", s.progress)
				}
			}
			list, err := g.pool.List(t.Context(), call.Caller{Principal: "p"}, "up", mcp.ListTools)
			if len(list.Entries) != 1 || err != nil {
				t.Errorf("tools %+v, %v", list, err)
			}
			for _, r := range up.Requests("tools/call") {
				if r.Tool != "work" || string(r.Token) == "7" || string(r.ID) == "1" || !strings.Contains(r.Body, `"x":"kept"`) || r.Header.Get("Mcp-Protocol-Version") != "" {
					t.Errorf("the server got %s, %v", r.Body, r.Header) // I12, R-71
				}
			}
			if n := up.Count("GET"); n != 1 {
				t.Errorf("%d streams for one session", n)
			}
			if n := up.Count("initialize"); n != map[string]int{"auto": 2, "sse": 1}[era] { // auto asked by POST first
				t.Errorf("initialize was sent %d times", n)
			}
		})
	}
}

// A stream that ends is a session that ends: what runs is interrupted and never
// sent again, and the next call has a new session (R-75, O18).
func TestOldStreamLost(t *testing.T) {
	for name, cut := range map[string]func(up *wire.Upstream, c *wire.Conn){
		"closed":    func(_ *wire.Upstream, c *wire.Conn) { c.Close() },
		"reset":     func(_ *wire.Upstream, c *wire.Conn) { c.Reset() },
		"mid event": func(_ *wire.Upstream, c *wire.Conn) { c.Body("event: message\ndata: {"); c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var up *wire.Upstream
			up = oldServer(t, map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) {
				s := c.Took()
				if up.Count("tools/call") == 1 {
					s.Event(r.Progress("1", "", ""))
					cut(up, s)
					return
				}
				s.Event(r.Text("worked"))
			}})
			g := newGateway(t, up.URL, eraSSE)
			g.follow(g.start(call.Limits{})).want(t, call.Interrupted, "ended while the call ran")
			g.follow(g.start(call.Limits{})).want(t, call.Completed, "worked")
			if n := up.Count("tools/call"); n != 2 {
				t.Errorf("%d calls were sent for two", n)
			}
			g.mu.Lock()
			defer g.mu.Unlock()
			if strings.Join(g.told, " ") != "lost session" {
				t.Errorf("told of %v", g.told)
			}
		})
	}
}

// What a server of this transport says to a POST decides whether the call ran (SPEC §1.4).
func TestOldPostRefused(t *testing.T) {
	for name, c := range map[string]struct {
		answer  wire.Handler
		outcome call.Outcome
		text    string
	}{
		"401":   {wire.Refuse(401), call.Failed, "refused longcall's credentials"},
		"400":   {wire.Refuse(400), call.Failed, "It did not run"},
		"307":   {func(c *wire.Conn, _ *wire.Request) { c.Status(307, "Location: /elsewhere") }, call.Failed, "sends its callers to another address"},
		"503":   {wire.Refuse(503), call.Interrupted, "HTTP 503"},
		"429":   {func(c *wire.Conn, _ *wire.Request) { c.Status(429, "Retry-After: 7") }, call.Failed, "It did not run. Call again in 7 s or later."},
		"404":   {wire.Refuse(404), call.Interrupted, "forgotten our session"},
		"reset": {func(c *wire.Conn, _ *wire.Request) { c.Reset() }, call.Interrupted, "broke while the call was sent"},
		// Only the POST is lost, and only after the server showed that it has it.
		"reset at work": {func(c *wire.Conn, r *wire.Request) {
			s := c.Stream()
			s.Event(r.Progress("1", "", ""))
			c.Pause(50 * time.Millisecond)
			c.Reset()
			c.Pause(50 * time.Millisecond)
			s.Event(r.Text("worked"))
		}, call.Completed, "worked"},
		"held until the end": {func(c *wire.Conn, r *wire.Request) {
			c.Stream().Event(r.Text("worked"))
			c.Hold()
		}, call.Completed, "worked"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := oldServer(t, map[string]wire.Handler{"tools/call": c.answer})
			g := newGateway(t, up.URL, eraSSE)
			g.follow(g.start(call.Limits{})).want(t, c.outcome, c.text)
			if n := up.Count("tools/call"); n != 1 {
				t.Errorf("sent %d times", n)
			}
		})
	}
}

// A cancel is told with our id, after the call that it is about; what answers it
// is not shown (R-74, P7, O22).
func TestOldCancel(t *testing.T) {
	t.Parallel()
	began := make(chan struct{})
	up := oldServer(t, map[string]wire.Handler{"tools/call": func(c *wire.Conn, _ *wire.Request) {
		c.Took()
		close(began)
	}})
	g := newGateway(t, up.URL, eraSSE)
	c := g.start(call.Limits{})
	<-began
	if err := c.Cancel(call.End{Outcome: call.Cancelled, By: "agent", Text: "enough"}); err != nil {
		t.Fatal(err)
	}
	r := up.WaitRequest("notifications/cancelled", 1, 0)
	if id := up.Requests("tools/call")[0].ID; string(wire.At(r.Body, "params.requestId")) != string(id) {
		t.Errorf("cancelled with %s, not %s", r.Body, id)
	}
	g.follow(c).want(t, call.Cancelled, "enough")
}

// Requests of the server are answered at once (P6), a silent server is pinged and
// given up at the limit (P21), and its messages have a limit (O25).
func TestOldDialog(t *testing.T) {
	t.Parallel()
	var up *wire.Upstream
	up = oldServer(t, map[string]wire.Handler{
		"tools/call": func(c *wire.Conn, r *wire.Request) {
			s := c.Took()
			switch up.Count("tools/call") {
			case 1:
				s.Event(wire.ServerRequest("1", "ping", "{}"), wire.ServerRequest(`"r"`, "roots/list", "{}"))
				up.WaitRequest("", 2, 0)
				s.Event(r.Text("worked"))
			case 2:
				s.Event(strings.Replace(r.Text(strings.Repeat("x", 5000)), `{"jsonrpc":"2.0","id":`+string(r.ID)+`,`, `{"jsonrpc":"2.0",`, 1)[:5000] + `"}]},"id":` + string(r.ID) + `}`)
			case 3:
				s.Event(r.Text("small"))
			}
		},
		"ping": func(c *wire.Conn, _ *wire.Request) { c.Took() }, // and never an answer
	})
	g := newGateway(t, up.URL, eraSSE, func(s *upstream.Server) { s.Limits.Message = 4096; s.PingEvery = 100 * time.Millisecond })
	g.follow(g.start(call.Limits{})).want(t, call.Completed, "worked")
	g.follow(g.start(call.Limits{})).want(t, call.Failed, "larger than 4096 bytes")
	g.follow(g.start(call.Limits{})).want(t, call.Completed, "small")
	g.follow(g.start(call.Limits{FirstByte: 500 * time.Millisecond})).want(t, call.TimedOut, "limits.first_byte")
	up.WaitRequest("ping", 1, 0)
}

// The address that is announced must be at the stream's origin: our credentials
// are for that server alone (SPEC §1.5, §6.5, R-79).
func TestOldEndpointOrigin(t *testing.T) {
	t.Parallel()
	thief := wire.NewUpstream(t, wire.Options{})
	for _, c := range []struct{ event, want string }{
		{"event: endpoint\ndata: " + thief.URL + "\n\n", "another origin"},
		{"event: endpoint\ndata: //evil.example/post\n\n", "another origin"},
		{"event: endpoint\ndata: https://127.0.0.1/post\n\n", "another origin"},
		{"event: message\ndata: {}\n\n", "no endpoint event"},
		{"event: endpoint\ndata: :\x7f\n\n", "no address"},
		{"", "before it said where to post"},
	} {
		up := oldServer(t, map[string]wire.Handler{"GET": func(s *wire.Conn, _ *wire.Request) {
			s.SSE()
			if c.event != "" {
				s.Body(": hello\n\n" + c.event)
			}
			s.End()
		}})
		g := newGateway(t, up.URL, eraSSE, func(s *upstream.Server) { s.Headers = http.Header{"Authorization": {"Bearer ours"}} })
		g.follow(g.start(call.Limits{})).want(t, call.Failed, c.want)
	}
	if n := thief.Conns(); n != 0 {
		t.Errorf("%d connections to the other origin", n)
	}
}

// An absolute address of the same origin is as good as a relative one, and the
// operator's headers are on the stream and on each POST.
func TestOldEndpointAbsolute(t *testing.T) {
	t.Parallel()
	on := map[string]wire.Handler{}
	up := oldServer(t, on)
	on["GET"] = up.OldStreamAbsolute
	g := newGateway(t, strings.Replace(up.URL, "http://", "http://me:secret@", 1), eraSSE)
	g.follow(g.start(call.Limits{})).want(t, call.Completed, "worked")
	for _, key := range []string{"GET", "initialize", "tools/call"} {
		for _, r := range up.Requests(key) {
			if r.Header.Get("Authorization") != "Basic bWU6c2VjcmV0" {
				t.Errorf("%s has %v", key, r.Header)
			}
		}
	}
}

// Many calls share the stream, and none sees what is another's (P1, P22).
func TestOldManyCalls(t *testing.T) {
	t.Parallel()
	const calls = 20
	all := make(chan struct{})
	var came atomic.Int32
	up := oldServer(t, map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) {
		s := c.Took()
		if came.Add(1) == calls {
			close(all)
		}
		<-all
		for i := range 10 {
			s.Event(r.Progress(fmt.Sprint(i), "10", ""))
		}
		s.Event(r.Text("worked for " + strings.Trim(string(r.ID), `"`)))
	}})
	g := newGateway(t, up.URL, eraSSE)
	var running []*call.Call
	for range calls {
		running = append(running, g.start(call.Limits{}))
	}
	texts := map[string]bool{}
	for _, c := range running {
		s := g.follow(c)
		s.want(t, call.Completed, "worked for")
		if len(s.progress) != 10 {
			t.Errorf("progress %v", s.progress)
		}
		texts[string(s.end.Body)] = true
	}
	if len(texts) != calls {
		t.Errorf("%d answers for %d calls", len(texts), calls)
	}
}

// What the server says to the probe decides, and only verdicts are kept.
func TestOldServerUpgraded(t *testing.T) {
	t.Parallel()
	up := oldServer(t, nil)
	g := newGateway(t, up.URL)
	g.follow(g.start(call.Limits{})).want(t, call.Completed, "worked")
	up.Upgrade(wire.Options{Version: wire.Modern})
	// The stream is gone; the next use finds out what the server is now.
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for ctx.Err() == nil && up.Count("server/discover") < 2 {
		g.follow(g.start(call.Limits{}))
	}
	g.follow(g.start(call.Limits{})).want(t, call.Completed, "worked")
	calls := up.Requests("tools/call")
	if last := calls[len(calls)-1]; !last.Modern() {
		t.Errorf("the call after the upgrade was %s", last.Body)
	}
}
