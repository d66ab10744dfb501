package cases_test

import (
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/test/wire"
)

func init() {
	// die: says that it works, then ends without an answer.
	for name, version := range map[string]string{"die": wire.Legacy, "die modern": wire.Modern} {
		scripts[name] = func(c *wire.Child) {
			c.Serve(wire.Options{Version: version}, func(c *wire.Child, r *wire.Request) {
				c.Send(r.Progress("1", "", "one"))
				c.Note("dead", "")
				os.Exit(7)
			})
		}
	}
	// mute: ends before it says anything.
	scripts["mute"] = func(c *wire.Child) {
		c.Serve(wire.Options{}, func(*wire.Child, *wire.Request) { os.Exit(0) })
	}
}

// once is a handler that counts what reaches the tool, and says when it has let go.
type once struct {
	ran  atomic.Int64
	gone chan time.Time
}

func newOnce() *once { return &once{gone: make(chan time.Time, 100)} }

// do makes a handler of what it does for the first call; later calls are answered.
func (o *once) do(first func(c *wire.Conn, r *wire.Request)) wire.Handler {
	return func(c *wire.Conn, r *wire.Request) {
		if o.ran.Add(1) > 1 {
			c.Answer(r.Text("again"))
			return
		}
		first(c, r)
		o.gone <- time.Now()
	}
}

// O17: a stream that ends without an answer is an answer: nobody knows.
func TestO17StreamEndsWithoutAnswer(t *testing.T) {
	t.Parallel()
	one := func(c *wire.Conn, r *wire.Request) {
		c.SSE()
		c.Event(r.Progress("1", "", "one"))
	}
	ways := map[string]struct {
		do  func(c *wire.Conn, r *wire.Request)
		saw bool // the agent gets the progress
	}{
		"ends":          {func(c *wire.Conn, r *wire.Request) { one(c, r); c.End() }, true},
		"closes":        {func(c *wire.Conn, r *wire.Request) { one(c, r); c.Close() }, true},
		"resets":        {func(c *wire.Conn, r *wire.Request) { one(c, r); c.Pause(50 * time.Millisecond); c.Reset() }, true},
		"in an event":   {func(c *wire.Conn, r *wire.Request) { one(c, r); c.Body("data: {\"jsonrpc\""); c.Close() }, true},
		"unended event": {func(c *wire.Conn, r *wire.Request) { one(c, r); c.Body("data: " + r.Text("done") + "\n"); c.End() }, true},
		"another's answer": {func(c *wire.Conn, r *wire.Request) {
			one(c, r)
			c.Event(`{"jsonrpc":"2.0","id":77,"result":{}}`)
			c.End()
		}, true},
		"empty stream":  {func(c *wire.Conn, _ *wire.Request) { c.SSE(); c.End() }, false},
		"comments only": {func(c *wire.Conn, _ *wire.Request) { c.SSE(); c.Body(": one\n\n: two\n\n"); c.End() }, false},
		"half JSON": {func(c *wire.Conn, r *wire.Request) {
			c.Head(200, "Content-Type: application/json", "Content-Length: 1000")
			c.Write(r.Text("done"))
			c.Close()
		}, false},
		"empty JSON": {func(c *wire.Conn, _ *wire.Request) { c.JSON(200, "") }, false},
		"no JSON": {func(c *wire.Conn, _ *wire.Request) {
			c.Head(200, "Content-Type: text/html")
			c.Body("<p>Welcome</p>")
			c.End()
		}, false},
		"accepted":     {func(c *wire.Conn, _ *wire.Request) { c.Status(202) }, false},
		"no content":   {func(c *wire.Conn, _ *wire.Request) { c.Status(204) }, false},
		"server error": {func(c *wire.Conn, _ *wire.Request) { c.Status(500) }, false},
		"bad gateway": {func(c *wire.Conn, _ *wire.Request) {
			c.Head(502, "Content-Type: text/html")
			c.Body("<p>proxy</p>")
			c.End()
		}, false},
		"resume refused": {func(c *wire.Conn, r *wire.Request) {
			c.SSE("X-Retry: 0")
			c.Body("retry: 50\n\n")
			c.EventID("unknown", r.Progress("1", "", "one"))
			c.End()
		}, true},
	}
	for name, w := range ways {
		for _, server := range []string{wire.Legacy, wire.Modern} {
			t.Run(name+", "+server, func(t *testing.T) {
				t.Parallel()
				o := newOnce()
				up := wire.NewUpstream(t, wire.Options{Version: server, On: map[string]wire.Handler{"tools/call": o.do(w.do)}})
				s := &scene{t: t, g: before(t, up)}
				agent := wire.Legacy
				if name == "ends" || name == "half JSON" {
					agent = server // both eras of agents
				}
				dn := s.g.client(agent, "up")
				x := dn.Start(wire.Call{Token: "1"})
				s.unknown(x)
				if d := time.Since(<-o.gone); d > time.Second {
					t.Errorf("answered %v after the close", d)
				}
				if w.saw {
					tells(t, x, "1 1 one")
				}
				if n := o.ran.Load(); n != 1 {
					t.Errorf("the tool ran %d times", n)
				}
				answered(t, dn.Start(wire.Call{}), "again") // the session goes on
			})
		}
	}
	for _, name := range []string{"die", "die modern", "mute"} {
		for _, agent := range []string{wire.Legacy, wire.Modern} {
			t.Run(name+" for "+agent, func(t *testing.T) {
				t.Parallel()
				cmd := wire.NewCommand(t, name)
				s := &scene{t: t, g: start(t, "mcpServers: {up: "+cmd.Config()+"}\n")}
				x := s.g.client(agent, "up").Start(wire.Call{Token: "1"})
				m := s.unknown(x)
				if name != "mute" {
					tells(t, x, "1 1 one")
					came := time.Now().Add(m.Came - x.Since())
					within(t, "the answer to a process's end", came.Sub(cmd.Notes("dead")[0].Time), time.Second)
				}
				if n := count(cmd.Notes("line"), `"tools/call"`); n != 1 {
					t.Errorf("the tool was called %d times", n)
				}
			})
		}
	}
}

func count(notes []wire.Note, part string) (n int) {
	for _, x := range notes {
		if strings.Contains(x.Text, part) {
			n++
		}
	}
	return n
}

// O18: a session that is lost in the middle of a call costs that call its
// answer, and nothing else.
func TestO18SessionLostInCall(t *testing.T) {
	t.Parallel()
	refusals := map[string]func(c *wire.Conn, r *wire.Request){
		"404 without a body": func(c *wire.Conn, _ *wire.Request) { c.Status(404) },
		"404 with an error": func(c *wire.Conn, _ *wire.Request) {
			c.JSON(404, `{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}`)
		},
		"404 with the call's id": func(c *wire.Conn, r *wire.Request) { c.JSON(404, r.Fail("-32001", "Session not found")) },
		"404 with words": func(c *wire.Conn, _ *wire.Request) {
			c.Head(404, "Content-Type: text/plain")
			c.Body("no such session")
			c.End()
		},
		"404 as an event stream": func(c *wire.Conn, r *wire.Request) {
			c.Head(404, "Content-Type: text/event-stream")
			c.Event(r.Fail("-32001", "x"))
			c.End()
		},
		"404 and the conversation": func(c *wire.Conn, r *wire.Request) { c.JSON(404, r.Fail("-32001", "Session not found")); c.Close() },
	}
	for name, refuse := range refusals {
		for _, agent := range []string{wire.Legacy, wire.Modern} {
			if agent == wire.Modern && name != "404 with an error" {
				continue
			}
			t.Run(name+" for "+agent, func(t *testing.T) {
				t.Parallel()
				o := newOnce()
				var up *wire.Upstream
				up = wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"tools/call": o.do(func(c *wire.Conn, r *wire.Request) {
					up.Forget()
					refuse(c, r)
				})}})
				s := &scene{t: t, g: before(t, up)}
				dn := s.g.client(agent, "up")
				up.WaitRequest("GET", 1, 0)
				s.unknown(dn.Start(wire.Call{}))
				up.WaitRequest("initialize", 2, 0)
				up.Quiet("tools/call", 1, 10*time.Second)
				if n, ran := up.Count("initialize"), o.ran.Load(); n != 2 || ran != 1 {
					t.Errorf("%d initializes, and the tool ran %d times", n, ran)
				}
				next := dn.Start(wire.Call{}) // the same session of the agent's
				answered(t, next, "again")
				old, now := up.Requests("tools/call")[0], up.Requests("tools/call")[1]
				if a, b := old.Header.Get("Mcp-Session-Id"), now.Header.Get("Mcp-Session-Id"); a == b || a == "" || b == "" {
					t.Errorf("the second call came in session %q, the first in %q", b, a)
				}
				if n := up.Count("initialize"); n != 2 {
					t.Errorf("%d initializes", n)
				}
				s.g.ended(call.Completed)
			})
		}
	}
}

// O19: a connection that dies after the call was read leaves its outcome open;
// the call is never sent again.
func TestO19ResetAfterRead(t *testing.T) {
	t.Parallel()
	ways := map[string]func(c *wire.Conn){
		"reset":              (*wire.Conn).Reset,
		"close":              (*wire.Conn).Close,
		"half a status line": func(c *wire.Conn) { c.Write("HTTP/1.1 2"); c.Reset() },
		"half the headers":   func(c *wire.Conn) { c.Write("HTTP/1.1 200 OK\r\nContent-Type: text/ev"); c.Close() },
		"no HTTP":            func(c *wire.Conn) { c.Write("220 smtp.example ESMTP\r\n"); c.Close() },
		"late":               func(c *wire.Conn) { c.Pause(700 * time.Millisecond); c.Reset() },
	}
	for name, bye := range ways {
		for _, server := range []string{wire.Legacy, wire.Modern} {
			t.Run(name+", "+server, func(t *testing.T) {
				t.Parallel()
				o := newOnce()
				up := wire.NewUpstream(t, wire.Options{Version: server, On: map[string]wire.Handler{"tools/call": o.do(func(c *wire.Conn, _ *wire.Request) { bye(c) })}})
				s := &scene{t: t, g: before(t, up)}
				dn := s.g.client(server, "up")
				up.WaitRequest("tools/list", 1, 0) // there is a connection to use again
				s.unknown(dn.Start(wire.Call{}))
				up.Quiet("tools/call", 1, 10*time.Second)
				if n := o.ran.Load(); n != 1 {
					t.Errorf("the tool ran %d times", n)
				}
				answered(t, dn.Start(wire.Call{}), "again")
			})
		}
	}
	t.Run("on a new connection", func(t *testing.T) {
		t.Parallel()
		o := newOnce()
		up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"tools/call": o.do(func(c *wire.Conn, _ *wire.Request) { c.Reset() })}})
		s := &scene{t: t, g: before(t, up)}
		dn := s.g.client(wire.Legacy, "up")
		up.WaitRequest("GET", 1, 0)
		up.Cut(false) // the connections that longcall keeps
		s.unknown(dn.Start(wire.Call{}))
		up.Quiet("tools/call", 1, 10*time.Second)
	})
}

// O20: an agent of a session that goes away takes nothing with it: the call
// goes on, and the record has both, what became of it and of the agent.
func TestO20AgentGoesAway(t *testing.T) {
	t.Parallel()
	ways := map[string]func(x *wire.Exchange){"closes": (*wire.Exchange).Close, "resets": (*wire.Exchange).Reset}
	check := func(t *testing.T, s *scene, c wire.Call, bye func(*wire.Exchange)) {
		t.Helper()
		c.Args = script(step{Pause: 3000, Text: "the answer"})
		x := s.dn.Start(c)
		wait(time.Second - x.Since())
		bye(x)
		wait(4*time.Second - x.Since())
		j := s.g.journal()
		records, err := j.List(t.Context(), newest)
		if err != nil || len(records) != 1 {
			t.Fatalf("%d records, %v", len(records), err)
		}
		r := records[0]
		d, err := j.Deliveries(t.Context(), r.ID)
		if err != nil || len(d) != 1 || d[0].How != call.AbortedDownstream {
			t.Errorf("deliveries %+v, %v", d, err)
		}
		if r.End.Outcome != call.Completed || r.End.ToolError {
			t.Errorf("the record says %+v", r.End)
		}
		about(t, "the call ended", r.Ended.Sub(r.Started), 3*time.Second)
		if len(d) == 1 {
			about(t, "the agent left", d[0].Ended.Sub(r.Started), time.Second)
		}
		if end := s.g.kinds(r.ID, call.KindEnd); len(end) != 1 || !strings.Contains(string(end[0].Body), "the answer") {
			t.Errorf("the record has not the tool server's result: %+v", end)
		}
		if got := s.up.seen("notifications/cancelled"); len(got) != 0 {
			t.Errorf("the tool server was told %s", got[0].JSON)
		}
	}
	for _, p := range []place{overSSE, overJSON, overSSEModern, overStdio} {
		for name, bye := range ways {
			t.Run(p.name+" "+name, func(t *testing.T) {
				t.Parallel()
				check(t, stage(t, wire.Legacy, p), wire.Call{Token: "1"}, bye)
			})
		}
	}
	t.Run("JSON agent", func(t *testing.T) {
		t.Parallel()
		s := stage(t, wire.Legacy, overSSE)
		s.dn.Accept = wire.AcceptJSON
		check(t, s, wire.Call{}, (*wire.Exchange).Close)
	})
	t.Run("modern agent, detached by policy", func(t *testing.T) {
		t.Parallel()
		check(t, stage(t, wire.Modern, overSSE, "on_disconnect: detach"), wire.Call{}, (*wire.Exchange).Close)
	})
	t.Run("and its session is closed", func(t *testing.T) {
		t.Parallel()
		s := stage(t, wire.Legacy, overSSE)
		check(t, s, wire.Call{}, func(x *wire.Exchange) {
			x.Close()
			if status := s.dn.Delete(); status/100 != 2 {
				t.Errorf("DELETE gets HTTP %d", status)
			}
		})
	})
	// In the stateless era a closed stream is a cancel, after the grace; the
	// record says what was seen, not what it may have meant.
	t.Run("modern agent", func(t *testing.T) {
		t.Parallel()
		s := stage(t, wire.Modern, overSSE, "disconnect_grace: 300ms")
		x := s.dn.Start(wire.Call{Args: script(step{Pause: 3000, Text: "the answer"})})
		s.up.waitSeen(t, "tools/call", 1)
		x.Close()
		r, _ := s.g.ended(call.Cancelled)
		_, d := s.g.audited("delivered", func(_ *call.Record, d []call.Delivery) bool { return len(d) == 1 })
		if r.End.By != "disconnect" || d[0].How != call.AbortedDownstream {
			t.Errorf("the record says %+v, %+v", r.End, d[0])
		}
		got := s.up.waitSeen(t, "notifications/cancelled", 1)
		if id := s.up.seen("tools/call")[0].ID; !slices.Equal(got.At("params.requestId"), id) {
			t.Errorf("the tool server was told %s about the call %s", got.JSON, id)
		}
	})
}
