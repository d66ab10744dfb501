package upstream_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
	"github.com/longcall/longcall/internal/upstream"
	"github.com/longcall/longcall/test/wire"
)

// noLog keeps nothing: these tests read a call's events from memory.
type noLog struct{ call.Log }

func (noLog) Create(context.Context, *call.Record, ...call.Event) error { return nil }
func (noLog) Append(call.ID, uint64, call.Event) error                  { return nil }
func (noLog) Finish(context.Context, *call.Record, call.Event) error    { return nil }
func (noLog) Flush(context.Context) error                               { return nil }
func (noLog) Deliver(call.Delivery)                                     {}
func (noLog) Get(context.Context, call.ID) (*call.Record, error)        { return nil, call.ErrUnknown }
func (noLog) Running(context.Context, uint64) ([]call.Record, error)    { return nil, nil }
func (noLog) Read(context.Context, call.ID, uint64, int) ([]call.Event, error) {
	return nil, call.ErrGap
}

// gateway is the engine with a pool before one scripted server.
type gateway struct {
	t      *testing.T
	pool   *upstream.Pool
	engine *call.Engine
	mu     sync.Mutex
	told   []string // results given to UpstreamReconnected
}

func (g *gateway) UpstreamReconnected(_, result string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.told = append(g.told, result)
}
func (g *gateway) UpstreamRestarted(string) {}

func newGateway(t *testing.T, url string, edit ...func(*upstream.Server)) *gateway {
	s := upstream.Server{Name: "up", URL: url, Era: "auto", Share: "principal"}
	for _, f := range edit {
		f(&s)
	}
	g := &gateway{t: t}
	g.pool = upstream.NewPool(upstream.Options{Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Observer: g})
	g.pool.SetServers(map[string]upstream.Server{"up": s})
	g.engine = call.NewEngine(noLog{}, g.pool, call.Options{Epoch: 1})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		g.engine.Stop(ctx)
		g.pool.Stop(ctx)
	})
	return g
}

func (g *gateway) start(limits call.Limits) *call.Call {
	g.t.Helper()
	c, err := g.engine.Start(g.t.Context(), call.Spec{
		Principal: "p", Server: "up", Tool: "work", Limits: limits,
		Request: []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"up__work","arguments":{"n":9007199254740993},"_meta":{"progressToken":7,"x":"kept"}}}`),
	})
	if err != nil {
		g.t.Fatal(err)
	}
	return c
}

// seen is what an agent's attachment would get to see.
type seen struct {
	progress []string
	notes    []string
	end      call.Event
}

func (g *gateway) follow(c *call.Call) seen {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), 20*time.Second)
	defer cancel()
	var s seen
	for ev, err := range c.Follow(ctx, 0, 0) {
		if err != nil {
			g.t.Fatalf("follow: %v", err)
		}
		switch ev.Kind {
		case call.KindProgress:
			m, err := mcp.Parse(ev.Body)
			if err != nil {
				g.t.Fatal(err)
			}
			s.progress = append(s.progress, string(m.Progress.Of(m.Raw)))
		case call.KindNote:
			s.notes = append(s.notes, string(ev.Body))
		case call.KindEnd:
			s.end = ev
		}
	}
	return s
}

func (s seen) want(t *testing.T, outcome call.Outcome, part string) {
	t.Helper()
	if s.end.End == nil || s.end.End.Outcome != outcome {
		t.Fatalf("ended as %+v, not %s", s.end.End, outcome)
	}
	if !strings.Contains(s.end.End.Text+string(s.end.Body), part) {
		t.Errorf("the end says %q %s, without %q", s.end.End.Text, s.end.Body, part)
	}
}

func TestCallInEveryEraAndShape(t *testing.T) {
	for _, version := range []string{wire.Legacy, wire.Modern} {
		for _, json := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s json=%v", version, json), func(t *testing.T) {
				t.Parallel()
				up := wire.NewUpstream(t, wire.Options{Version: version, JSON: json})
				g := newGateway(t, up.URL)
				for range 3 {
					g.follow(g.start(call.Limits{})).want(t, call.Completed, "worked")
				}
				calls := up.Requests("tools/call")
				ids := map[string]bool{}
				for _, r := range calls {
					ids[string(r.ID)] = true
					if string(r.Args) != `{"n":9007199254740993}` || r.Tool != "work" || !strings.Contains(r.Body, `"x":"kept"`) {
						t.Errorf("the server got %s", r.Body) // P10
					}
					if string(r.Token) == "7" || len(r.Token) < 5 {
						t.Errorf("token %s", r.Token) // I12
					}
					if r.Version != version {
						t.Errorf("era %s", r.Version)
					}
				}
				if len(calls) != 3 || len(ids) != 3 || up.Count("initialize") > 1 || up.Count("ping") > 0 { // P11, P12
					t.Errorf("%d calls with %d ids, %d initialize, %d pings", len(calls), len(ids), up.Count("initialize"), up.Count("ping"))
				}
			})
		}
	}
}

func TestProbe(t *testing.T) {
	html := func(c *wire.Conn, _ *wire.Request) {
		c.Head(404, "Content-Type: text/html")
		c.Body("<h1>Not here</h1>")
		c.End()
	}
	for name, discover := range map[string]wire.Handler{
		"404 html":   html,
		"400 empty":  wire.Refuse(400),
		"405":        wire.Refuse(405),
		"502":        wire.Refuse(502),
		"rpc -32601": func(c *wire.Conn, r *wire.Request) { c.JSON(200, r.Fail("-32601", "no")) },
		"rpc -32000": func(c *wire.Conn, r *wire.Request) {
			c.JSON(400, `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Server not initialized"}}`)
		},
		"empty result": func(c *wire.Conn, r *wire.Request) { // the suite's own servers, to whatever they do not know
			c.JSON(200, `{"jsonrpc":"2.0","id":`+string(r.ID)+`,"result":{}}`)
		},
		"lists legacy only": func(c *wire.Conn, r *wire.Request) {
			c.JSON(200, `{"jsonrpc":"2.0","id":`+string(r.ID)+`,"result":{"resultType":"complete","supportedVersions":["2025-11-25"],"capabilities":{}}}`)
		},
		"old version": func(c *wire.Conn, r *wire.Request) {
			c.JSON(400, `{"jsonrpc":"2.0","id":`+string(r.ID)+`,"error":{"code":-32022,"message":"no","data":{"supported":["2025-11-25"],"requested":"2026-07-28"}}}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"server/discover": discover}})
			g := newGateway(t, up.URL)
			g.follow(g.start(call.Limits{})).want(t, call.Completed, "worked")
			g.follow(g.start(call.Limits{})).want(t, call.Completed, "worked")
			if up.Count("server/discover") != 1 || up.Count("initialize") != 1 {
				t.Errorf("%d probes, %d initialize", up.Count("server/discover"), up.Count("initialize"))
			}
		})
	}
	t.Run("401 is no verdict", func(t *testing.T) {
		t.Parallel()
		up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"server/discover": wire.Refuse(401)}})
		g := newGateway(t, up.URL)
		g.follow(g.start(call.Limits{})).want(t, call.Failed, "credentials")
		if up.Count("initialize") != 0 || up.Count("tools/call") != 0 {
			t.Error("it went on without credentials")
		}
	})
	t.Run("nobody there", func(t *testing.T) {
		t.Parallel()
		g := newGateway(t, "http://127.0.0.1:1/mcp")
		g.follow(g.start(call.Limits{})).want(t, call.Failed, "Nothing was sent")
	})
}

func TestP15ProgressOnTheStandaloneStreamIsNotOvertaken(t *testing.T) {
	var up *wire.Upstream
	up = wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{
		"tools/call": func(c *wire.Conn, r *wire.Request) {
			s := up.Stream()
			s.Event(r.Progress("1", "2", ""))
			s.Event(r.Progress("2", "2", ""))
			c.Answer(r.Text("worked"))
		},
	}})
	g := newGateway(t, up.URL)
	for i := range 100 {
		s := g.follow(g.start(call.Limits{}))
		s.want(t, call.Completed, "worked")
		if len(s.progress) != 2 {
			t.Fatalf("round %d: progress %v", i, s.progress)
		}
	}
}

func TestP2P3ResumeAfterACut(t *testing.T) {
	for _, cut := range []string{"clean", "reset", "half event"} {
		t.Run(cut, func(t *testing.T) {
			t.Parallel()
			var up *wire.Upstream
			up = wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{
				"tools/call": func(c *wire.Conn, r *wire.Request) {
					l := up.NewLog("s")
					for i := range 6 {
						l.Append(r.Progress(fmt.Sprint(i+1), "6", ""))
					}
					l.Append(r.Text("worked"))
					l.Finish()
					c.SSE()
					l.Serve(c, 0, 3)
					switch cut {
					case "clean":
						c.End()
					case "reset":
						c.Reset()
					default:
						c.Body("id: s_4\ndata: {\"jsonrpc\"")
						c.Close()
					}
				},
			}})
			g := newGateway(t, up.URL)
			began := time.Now()
			s := g.follow(g.start(call.Limits{}))
			s.want(t, call.Completed, "worked")
			if got := strings.Join(s.progress, " "); got != "1 2 3 4 5 6" {
				t.Errorf("progress %s", got)
			}
			if d := time.Since(began); d > 1500*time.Millisecond {
				t.Errorf("took %s", d)
			}
			if up.Count("tools/call") != 1 {
				t.Error("the call was sent again")
			}
		})
	}
}

func TestLostWithoutIDsIsUnknown(t *testing.T) { // O17, O19, I1
	for name, h := range map[string]wire.Handler{
		"clean end": func(c *wire.Conn, r *wire.Request) { c.SSE(); c.Event(r.Progress("1", "", "")); c.End() },
		"reset":     func(c *wire.Conn, r *wire.Request) { c.Reset() },
		"close":     func(c *wire.Conn, r *wire.Request) { c.Close() },
		"half a body": func(c *wire.Conn, r *wire.Request) {
			c.Write("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
			c.Close()
		},
		"202":          wire.Refuse(202),
		"502":          wire.Refuse(502),
		"session 404":  wire.Refuse(404), // O18
		"another's id": func(c *wire.Conn, r *wire.Request) { c.JSON(200, `{"jsonrpc":"2.0","id":"x","result":{}}`) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"tools/call": h}})
			g := newGateway(t, up.URL)
			s := g.follow(g.start(call.Limits{}))
			s.want(t, call.Interrupted, "Outcome unknown")
			if up.Count("tools/call") != 1 {
				t.Errorf("sent %d times", up.Count("tools/call"))
			}
		})
	}
}

func TestP20RestartedServerIsNoticedBeforeTheCall(t *testing.T) {
	for _, noStream := range []bool{false, true} {
		t.Run(fmt.Sprintf("no stream=%v", noStream), func(t *testing.T) {
			t.Parallel()
			up := wire.NewUpstream(t, wire.Options{NoStream: noStream})
			g := newGateway(t, up.URL)
			g.follow(g.start(call.Limits{})).want(t, call.Completed, "worked")
			up.Forget()
			up.Cut(false)
			<-time.After(50 * time.Millisecond) // no server restarts within the moment that a closed socket takes to show
			g.follow(g.start(call.Limits{})).want(t, call.Completed, "worked")
			if up.Count("initialize") != 2 {
				t.Errorf("%d initialize", up.Count("initialize"))
			}
		})
	}
}

func TestLimitsHaveNames(t *testing.T) {
	silent := func(c *wire.Conn, r *wire.Request) { c.Hold() }
	begun := func(c *wire.Conn, r *wire.Request) { c.SSE(); c.Event(r.Progress("1", "", "")); c.Hold() }
	large := func(c *wire.Conn, r *wire.Request) { c.Answer(r.Text(strings.Repeat("x", 5000))) }
	for name, tc := range map[string]struct {
		h       wire.Handler
		limits  call.Limits
		outcome call.Outcome
	}{
		"first_byte":    {silent, call.Limits{FirstByte: 200 * time.Millisecond}, call.TimedOut},
		"idle":          {begun, call.Limits{Idle: 200 * time.Millisecond}, call.TimedOut},
		"total":         {begun, call.Limits{Total: 300 * time.Millisecond}, call.TimedOut},
		"call_bytes":    {large, call.Limits{Call: 1000}, call.Failed},
		"message_bytes": {large, call.Limits{}, call.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"tools/call": tc.h}})
			g := newGateway(t, up.URL, func(s *upstream.Server) {
				if name == "message_bytes" {
					s.Limits.Message = 1000
				}
			})
			s := g.follow(g.start(tc.limits))
			s.want(t, tc.outcome, "limits.")
			if s.end.End.Limit != name {
				t.Errorf("limit %q", s.end.End.Limit)
			}
			if tc.outcome == call.TimedOut {
				up.WaitRequest("notifications/cancelled", 1, time.Second)
			}
		})
	}
}

func TestP7CancelReachesTheServer(t *testing.T) {
	t.Run("legacy", func(t *testing.T) {
		t.Parallel()
		gone := make(chan struct{})
		up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{
			"tools/call": func(c *wire.Conn, r *wire.Request) { c.SSE(); c.Hold(); close(gone) },
		}})
		g := newGateway(t, up.URL)
		c := g.start(call.Limits{})
		r := up.WaitRequest("tools/call", 1, 5*time.Second)
		c.Cancel(call.End{By: "agent"})
		n := up.WaitRequest("notifications/cancelled", 1, time.Second)
		if !strings.Contains(n.Body, string(r.ID)) {
			t.Errorf("cancelled %s, not %s", n.Body, r.ID)
		}
		g.follow(c).want(t, call.Cancelled, "")
		<-gone
	})
	t.Run("modern", func(t *testing.T) {
		t.Parallel()
		gone := make(chan struct{})
		up := wire.NewUpstream(t, wire.Options{Version: wire.Modern, On: map[string]wire.Handler{
			"tools/call": func(c *wire.Conn, r *wire.Request) { c.SSE(); c.Hold(); close(gone) },
		}})
		g := newGateway(t, up.URL)
		c := g.start(call.Limits{})
		up.WaitRequest("tools/call", 1, 5*time.Second)
		c.Cancel(call.End{By: "agent"})
		<-gone
		g.follow(c).want(t, call.Cancelled, "")
		if up.Count("notifications/cancelled") != 0 {
			t.Error("a stateless server was sent a cancel message")
		}
	})
}

func TestO22LateAnswerIsKeptButNotShown(t *testing.T) {
	var once sync.Once
	cancelled := make(chan struct{})
	up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{
		"tools/call": func(c *wire.Conn, r *wire.Request) {
			c.SSE()
			<-cancelled
			c.Event(r.Text("late"))
			c.End()
		},
		"notifications/cancelled": func(c *wire.Conn, r *wire.Request) {
			c.Status(http.StatusAccepted)
			once.Do(func() { close(cancelled) })
		},
	}})
	g := newGateway(t, up.URL)
	c := g.start(call.Limits{})
	up.WaitRequest("tools/call", 1, 5*time.Second)
	c.Cancel(call.End{By: "agent"})
	s := g.follow(c)
	s.want(t, call.Cancelled, "")
	if s.end.Body != nil {
		t.Error("the late answer is the end's body")
	}
	late := false
	for ev := range c.Follow(t.Context(), 0, 0) {
		late = late || ev.Kind == call.KindLateResult
	}
	if !late {
		t.Error("the late answer is not in the record")
	}
}

func TestP6RequestsOfTheServerAreAnsweredAtOnce(t *testing.T) {
	up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{
		"tools/call": func(c *wire.Conn, r *wire.Request) {
			c.SSE()
			c.Event(wire.ServerRequest(`"q1"`, "ping", "{}"), wire.ServerRequest(`2`, "elicitation/create", "{}"))
			c.Pause(300 * time.Millisecond)
			c.Event(r.Text("worked"))
			c.End()
		},
	}})
	g := newGateway(t, up.URL)
	g.follow(g.start(call.Limits{})).want(t, call.Completed, "worked")
	var got []string
	for _, r := range up.Requests("POST") {
		got = append(got, r.Body)
	}
	all := strings.Join(got, "\n")
	if !strings.Contains(all, `"id":"q1","result":{}`) || !strings.Contains(all, "-32601") {
		t.Errorf("the server was answered with %s", all)
	}
}

func TestP21UnansweredPingsEndTheCall(t *testing.T) {
	up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{
		"tools/call": func(c *wire.Conn, r *wire.Request) { c.SSE(); c.Event(r.Progress("1", "", "")); c.Hold() },
		"ping":       func(c *wire.Conn, r *wire.Request) { c.Reset() },
	}})
	g := newGateway(t, up.URL, func(s *upstream.Server) { s.PingEvery = 100 * time.Millisecond })
	g.follow(g.start(call.Limits{Idle: time.Minute})).want(t, call.Interrupted, "ping")
}

func TestP16SilentResumedStreamIsNoticed(t *testing.T) {
	up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{
		"tools/call": func(c *wire.Conn, r *wire.Request) {
			c.SSE()
			c.EventID("a_1", r.Progress("1", "", ""))
			c.End()
		},
		"GET": func(c *wire.Conn, r *wire.Request) { c.SSE(); c.Hold() },
	}})
	g := newGateway(t, up.URL, func(s *upstream.Server) { s.PingEvery = 100 * time.Millisecond })
	g.follow(g.start(call.Limits{Idle: 600 * time.Millisecond})).want(t, call.Interrupted, "stayed silent")
	if up.Count("tools/call") != 1 {
		t.Error("sent again")
	}
}

// a call goes to the address in the config and nowhere else, and never
// twice; what the server says instead is told in words that say whether it ran.
func TestCallRefused_R79_R82(t *testing.T) {
	t.Parallel()
	thief := wire.NewUpstream(t, wire.Options{})
	for name, c := range map[string]struct {
		answer  wire.Handler
		outcome call.Outcome
		text    string
	}{
		"307 elsewhere": {func(c *wire.Conn, _ *wire.Request) { c.Status(307, "Location: "+thief.URL) }, call.Failed, "sends its callers to another address (HTTP 307 Temporary Redirect). The call did not run."},
		"308 here":      {func(c *wire.Conn, _ *wire.Request) { c.Status(308, "Location: /mcp/") }, call.Failed, "sends its callers to another address"},
		"302":           {func(c *wire.Conn, _ *wire.Request) { c.Status(302, "Location: /login") }, call.Failed, "sends its callers to another address"},
		"429":           {wire.Refuse(429), call.Failed, "It did not run. Call again later."},
		"429, 120 s":    {func(c *wire.Conn, _ *wire.Request) { c.Status(429, "Retry-After: 120") }, call.Failed, "Call again in 120 s or later."},
		"429, a date":   {func(c *wire.Conn, _ *wire.Request) { c.Status(429, "Retry-After: Fri, 31 Dec 1999 23:59:59 GMT") }, call.Failed, "Call again later."},
		"503, at once":  {func(c *wire.Conn, _ *wire.Request) { c.Status(503, "Retry-After: 0") }, call.Interrupted, "HTTP 503"},
		"413":           {wire.Refuse(413), call.Failed, "It did not run."},
		"refused in JSON": {func(c *wire.Conn, _ *wire.Request) {
			c.JSON(400, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no"}}`)
		}, call.Failed, "It did not run."},
	} {
		for _, version := range []string{wire.Legacy, wire.Modern} {
			t.Run(name+" "+version, func(t *testing.T) {
				t.Parallel()
				up := wire.NewUpstream(t, wire.Options{Version: version, On: map[string]wire.Handler{"tools/call": c.answer}})
				g := newGateway(t, up.URL)
				g.follow(g.start(call.Limits{})).want(t, c.outcome, c.text)
				if n := up.Count("tools/call"); n != 1 {
					t.Errorf("sent %d times", n)
				}
			})
		}
	}
	t.Cleanup(func() { // after all of them
		if n := thief.Conns(); n != 0 {
			t.Errorf("%d connections to the other origin", n)
		}
	})
}

// nor do other requests follow a redirect to another origin, with our
// credentials; one at the same origin is the server's own affair.
func TestRedirects_R79(t *testing.T) {
	t.Parallel()
	for _, version := range []string{wire.Legacy, wire.Modern} {
		thief := wire.NewUpstream(t, wire.Options{Version: version})
		away := func(c *wire.Conn, _ *wire.Request) { c.Status(307, "Location: "+thief.URL) }
		up := wire.NewUpstream(t, wire.Options{Version: version, On: map[string]wire.Handler{
			"server/discover": away, "initialize": away, "GET": away, "tools/list": away,
		}})
		g := newGateway(t, up.URL, func(s *upstream.Server) { s.Headers = http.Header{"Authorization": {"Bearer ours"}} })
		g.follow(g.start(call.Limits{})).want(t, call.Failed, "Nothing was sent")
		if n := thief.Conns(); n != 0 || up.Count("tools/call") != 0 {
			t.Errorf("%s: %d connections to the other origin", version, n)
		}
		var home *wire.Upstream
		home = wire.NewUpstream(t, wire.Options{Version: version, On: map[string]wire.Handler{
			"server/discover": func(c *wire.Conn, r *wire.Request) {
				if r.Path == "/mcp" {
					c.Status(307, "Location: /mcp/")
					return
				}
				home.Usual(c, r)
			},
		}})
		g = newGateway(t, home.URL)
		g.follow(g.start(call.Limits{})).want(t, call.Completed, "worked")
	}
}
