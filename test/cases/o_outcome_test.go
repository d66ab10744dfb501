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
		"server error in words": {func(c *wire.Conn, _ *wire.Request) {
			c.JSON(500, `{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"Internal server error"}}`)
		}, false},
		"error for nobody": {func(c *wire.Conn, _ *wire.Request) {
			c.JSON(200, `{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"Internal error"}}`)
		}, false},
		"error of its own for nobody": {func(c *wire.Conn, _ *wire.Request) {
			c.JSON(200, `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"backend went away"}}`)
		}, false},
		"gateway timeout in words": {func(c *wire.Conn, _ *wire.Request) {
			c.JSON(504, `{"jsonrpc":"2.0","error":{"code":-32000,"message":"upstream timed out"}}`)
		}, false},
		"resume refused": {func(c *wire.Conn, r *wire.Request) {
			c.SSE("X-Retry: 0")
			c.Body("retry: 50\n\n")
			c.EventID("unknown", r.Progress("1", "", "one"))
			c.End()
		}, true},
	}
	h := timedHouse(t)
	for name, w := range ways {
		for _, server := range []string{wire.Legacy, wire.Modern} {
			o := newOnce()
			up := wire.NewUpstream(t, wire.Options{Version: server, On: map[string]wire.Handler{"tools/call": o.do(w.do)}})
			agent := wire.Legacy
			if name == "ends" || name == "half JSON" {
				agent = server // both eras of agents
			}
			h.http(name+", "+server, agent, up, func(t *testing.T, s *scene) {
				x := s.dn.Start(wire.Call{Token: "1"})
				m := x.TimedResponse(0)
				within(t, "the answer to the close", time.Now().Add(m.Came-x.Since()).Sub(<-o.gone), time.Second)
				s.unknown(x)
				if w.saw {
					tells(t, x, "1 1 one")
				}
				if n := o.ran.Load(); n != 1 {
					t.Errorf("the tool ran %d times", n)
				}
				answered(t, s.dn.Start(wire.Call{}), "again") // the session goes on
			})
		}
	}
	for _, name := range []string{"die", "die modern", "mute"} {
		for _, agent := range []string{wire.Legacy, wire.Modern} {
			cmd := wire.NewCommand(t, name)
			h.add(name+" for "+agent, agent, tool{cmd: cmd}, func(t *testing.T, s *scene) {
				x := s.dn.Start(wire.Call{Token: "1"})
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
	h.run("")
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
	h := timedHouse(t)
	for name, refuse := range refusals {
		for _, agent := range []string{wire.Legacy, wire.Modern} {
			if agent == wire.Modern && name != "404 with an error" {
				continue
			}
			o := newOnce()
			var up *wire.Upstream
			up = wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"tools/call": o.do(func(c *wire.Conn, r *wire.Request) {
				up.Forget()
				refuse(c, r)
			})}})
			h.http(name+" for "+agent, agent, up, func(t *testing.T, s *scene) {
				up.WaitRequest("GET", 1, 0)
				s.unknown(s.dn.Start(wire.Call{}))
				up.WaitRequest("initialize", 2, 0)
				up.Quiet("tools/call", 1, 10*time.Second)
				if n, ran := up.Count("initialize"), o.ran.Load(); n != 2 || ran != 1 {
					t.Errorf("%d initializes, and the tool ran %d times", n, ran)
				}
				next := s.dn.Start(wire.Call{}) // the same session of the agent's
				answered(t, next, "again")
				old, now := up.Requests("tools/call")[0], up.Requests("tools/call")[1]
				if a, b := old.Header.Get("Mcp-Session-Id"), now.Header.Get("Mcp-Session-Id"); a == b || a == "" || b == "" {
					t.Errorf("the second call came in session %q, the first in %q", b, a)
				}
				if n := up.Count("initialize"); n != 2 {
					t.Errorf("%d initializes", n)
				}
				s.ended(call.Completed)
			})
		}
	}
	// Some servers say 400 instead. They have looked before they ran anything,
	// so that call just fails; the next one finds a session all the same.
	for name, refuse := range map[string]func(c *wire.Conn, r *wire.Request){
		"400 without a body": func(c *wire.Conn, _ *wire.Request) { c.Status(400) },
		"400 with words": func(c *wire.Conn, _ *wire.Request) {
			c.Head(400, "Content-Type: text/plain")
			c.Body("No valid session ID")
			c.End()
		},
		"400 with an error": func(c *wire.Conn, _ *wire.Request) {
			c.JSON(400, `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: No valid session ID provided"}}`)
		},
		"400 with the call's id": func(c *wire.Conn, r *wire.Request) {
			c.JSON(400, r.Fail("-32000", "Bad Request: No valid session ID provided"))
		},
	} {
		o := newOnce()
		var up *wire.Upstream
		up = wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"tools/call": o.do(func(c *wire.Conn, r *wire.Request) {
			up.Forget()
			refuse(c, r)
		})}})
		h.http(name, wire.Legacy, up, func(t *testing.T, s *scene) {
			up.WaitRequest("GET", 1, 0)
			x := s.dn.Start(wire.Call{})
			if m := x.Response(0); string(m.ID) != x.ID || m.Error == nil && string(m.At("result.isError")) != "true" {
				t.Errorf("the answer is %s", m.JSON)
			}
			s.ended(call.Failed)
			answered(t, s.dn.Start(wire.Call{}), "again")
			if n := up.Count("initialize"); n != 2 || up.Count("tools/call") != 2 {
				t.Errorf("%d initializes, %d calls", n, up.Count("tools/call"))
			}
		})
	}
	h.run("")
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
	h := timedHouse(t)
	for name, bye := range ways {
		for _, server := range []string{wire.Legacy, wire.Modern} {
			o := newOnce()
			up := wire.NewUpstream(t, wire.Options{Version: server, On: map[string]wire.Handler{"tools/call": o.do(func(c *wire.Conn, _ *wire.Request) { bye(c) })}})
			h.http(name+", "+server, server, up, func(t *testing.T, s *scene) {
				up.WaitRequest("tools/list", 1, 0) // there is a connection to use again
				s.unknown(s.dn.Start(wire.Call{}))
				up.Quiet("tools/call", 1, 10*time.Second)
				if n := o.ran.Load(); n != 1 {
					t.Errorf("the tool ran %d times", n)
				}
				answered(t, s.dn.Start(wire.Call{}), "again")
			})
		}
	}
	o := newOnce()
	up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"tools/call": o.do(func(c *wire.Conn, _ *wire.Request) { c.Reset() })}})
	h.http("on a new connection", wire.Legacy, up, func(t *testing.T, s *scene) {
		up.WaitRequest("GET", 1, 0)
		up.Cut(false) // the connections that longcall keeps
		s.unknown(s.dn.Start(wire.Call{}))
		up.Quiet("tools/call", 1, 10*time.Second)
	})
	h.run("")
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
		came := s.up.waitSeen(t, "tools/call", 1).Time
		wait(time.Second - x.Since())
		left := time.Now()
		bye(x)
		wait(time.Until(came.Add(4 * time.Second))) // one second after the answer
		r, d := s.audited("there", func(*call.Record, []call.Delivery) bool { return true })
		if len(d) != 1 || d[0].How != call.AbortedDownstream {
			t.Errorf("deliveries %+v", d)
		}
		if r.End.Outcome != call.Completed || r.End.ToolError {
			t.Errorf("the record says %+v", r.End)
		}
		if after := r.Ended.Sub(came); after < 2900*time.Millisecond {
			t.Errorf("the call ended after %v, before its answer", after)
		}
		if len(d) == 1 {
			within(t, "the record's end of the delivery", d[0].Ended.Sub(left), time.Second)
		}
		if end := s.events(r.ID, call.KindEnd); len(end) != 1 || !strings.Contains(string(end[0].Body), "the answer") {
			t.Errorf("the record has not the tool server's result: %+v", end)
		}
		if got := s.up.seen("notifications/cancelled"); len(got) != 0 {
			t.Errorf("the tool server was told %s", got[0].JSON)
		}
	}
	const grace = "disconnect_grace: 300ms" // which is for agents of the other era
	h := timedHouse(t)
	for _, p := range []place{overSSE, overJSON, overOld, overSSEModern, overStdio} {
		for name, bye := range ways {
			h.add(p.name+" "+name, wire.Legacy, p.open(t), func(t *testing.T, s *scene) { check(t, s, wire.Call{Token: "1"}, bye) }, grace)
		}
	}
	h.add("JSON agent", wire.Legacy, overSSE.open(t), func(t *testing.T, s *scene) {
		s.dn.Accept = wire.AcceptJSON
		check(t, s, wire.Call{}, (*wire.Exchange).Close)
	}, grace)
	h.add("modern agent, detached by policy", wire.Modern, overSSE.open(t), func(t *testing.T, s *scene) {
		check(t, s, wire.Call{}, (*wire.Exchange).Close)
	}, "on_disconnect: detach", grace)
	h.add("and its session is closed", wire.Legacy, overSSE.open(t), func(t *testing.T, s *scene) {
		check(t, s, wire.Call{}, func(x *wire.Exchange) {
			x.Close()
			if status := s.dn.Delete(); status/100 != 2 {
				t.Errorf("DELETE gets HTTP %d", status)
			}
		})
	}, grace)
	// In the stateless era a closed stream is a cancel, after the grace; the
	// record says what was seen, not what it may have meant.
	h.add("modern agent", wire.Modern, overSSE.open(t), func(t *testing.T, s *scene) {
		x := s.dn.Start(wire.Call{Args: script(step{Pause: 3000, Text: "the answer"})})
		s.up.waitSeen(t, "tools/call", 1)
		x.Close()
		r := s.ended(call.Cancelled)
		if d := s.delivered(); r.End.By != "disconnect" || d.How != call.AbortedDownstream {
			t.Errorf("the record says %+v, %+v", r.End, d)
		}
		got := s.up.waitSeen(t, "notifications/cancelled", 1)
		if id := s.up.seen("tools/call")[0].ID; !slices.Equal(got.At("params.requestId"), id) {
			t.Errorf("the tool server was told %s about the call %s", got.JSON, id)
		}
	}, grace)
	h.run("")
}
