package cases_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/test/wire"
)

// O1: the first byte does not wait for the tool server.
func TestO1FirstByteAtOnce(t *testing.T) {
	t.Parallel()
	check := func(t *testing.T, x *wire.Exchange, silence time.Duration) {
		t.Helper()
		h := x.Head(time.Second)
		x.WaitItems(1, time.Second)
		within(t, "the first byte of the body", x.FirstAt(), time.Second)
		if x.Status() != 200 || h.Get("Content-Type") != "text/event-stream" || h.Get("X-Accel-Buffering") != "no" ||
			!strings.Contains(h.Get("Cache-Control"), "no-cache") || h.Get("Content-Encoding") != "" {
			t.Errorf("HTTP %d, %v", x.Status(), h)
		}
		m := answered(t, x, "done")
		about(t, "the result", m.Came, silence)
		whole(t, x)
		within(t, "the end of the stream", x.EndAt()-m.Came, time.Second)
	}
	h := timedHouse(t)
	for _, p := range []place{overJSONModern, overSSE, overOld, overStdio} {
		h.add(p.name, wire.Legacy, p.open(t), func(t *testing.T, s *scene) {
			check(t, s.dn.Start(wire.Call{Args: script(step{Pause: 8000, Text: "done"})}), 8*time.Second)
			s.ended(call.Completed)
		})
	}
	for _, agent := range []string{wire.Legacy, wire.Modern} {
		up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"tools/call": wire.Silent(8*time.Second, "done")}})
		h.http("JSON for "+agent, agent, up, func(t *testing.T, s *scene) { check(t, s.dn.Start(wire.Call{}), 8*time.Second) })
	}
	h.http("headers at once, then silence", wire.Legacy, wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) {
		c.SSE()
		c.Pause(5 * time.Second)
		c.Event(r.Text("done"))
		c.End()
	}}}), func(t *testing.T, s *scene) { check(t, s.dn.Start(wire.Call{}), 5*time.Second) })
	h.run("")
	t.Run("the server is still starting", func(t *testing.T) {
		t.Parallel()
		up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"server/discover": func(c *wire.Conn, r *wire.Request) {
			c.Pause(3 * time.Second)
			c.JSON(400, r.Fail("-32601", "method not found"))
		}, "tools/call": wire.Silent(0, "done")}})
		x := before(t, up).client(wire.Legacy, "up").Start(wire.Call{})
		x.WaitItems(1, time.Second)
		within(t, "the first byte of the body", x.FirstAt(), time.Second)
		answered(t, x, "done")
		whole(t, x)
	})
}

// O2: a silent call shows life with comments, and with nothing else.
func TestO2Keepalive(t *testing.T) {
	t.Parallel()
	h := timedHouse(t)
	for _, agent := range []string{wire.Legacy, "2025-06-18", wire.Modern} {
		for _, p := range []place{overJSON, overStdio} {
			h.add(p.name+" for "+agent, agent, p.open(t), func(t *testing.T, s *scene) {
				x := s.dn.Start(wire.Call{Args: script(step{Pause: 12000, Text: "done"})})
				m := answered(t, x, "done")
				about(t, "the result", m.Came, 12*time.Second)
				if all := whole(t, x); len(all) != 1 {
					t.Errorf("%d messages", len(all))
				}
				comments := gaps(t, x, 6*time.Second)
				if comments < 2 {
					t.Errorf("%d comments in 12 s", comments)
				}
				head, _, _ := strings.Cut(x.Body(), m.JSON)
				head, event := strings.CutSuffix(head, "event: message\ndata: ")
				if !event {
					t.Errorf("the result is not an event: %q", head)
				}
				for l := range strings.SplitSeq(head, "\n") {
					// With sessions, events have ids, and since 2025-11-25 a stream
					// begins with an event without data: that is no message.
					primes := strings.HasPrefix(l, "id: ") && agent != wire.Modern || (l == "retry: 1000" || l == "data: ") && agent == wire.Legacy
					if l != "" && !primes && !strings.HasPrefix(l, ":") {
						t.Errorf("the line %q before the result", l)
					}
				}
			})
		}
	}
	// With a token, some of the beats are progress messages of ours.
	h.add("with a token", wire.Legacy, overJSON.open(t), func(t *testing.T, s *scene) {
		x := s.dn.Start(wire.Call{Token: `"t"`, Args: script(step{Progress: "1", Message: "one"}, step{Pause: 12000, Progress: "2", Message: "two"}, step{Text: "done"})})
		answered(t, x, "done")
		got := told(whole(t, x))
		if comments := gaps(t, x, 6*time.Second); comments < 2 {
			t.Errorf("%d comments in 12 s", comments)
		}
		if len(got) != 3 || got[0] != `"t" 1 one` || got[2] != `"t" 2 two` {
			t.Errorf("progress was %q, not the server's with one beat between", got)
		}
		increasing(t, x)
	})
	h.run("")
	t.Run("after a beat setting of one second", func(t *testing.T) {
		t.Parallel()
		h := timedHouse(t)
		h.add("", wire.Legacy, overSSE.open(t), func(t *testing.T, s *scene) {
			x := s.dn.Start(wire.Call{Args: script(step{Pause: 4000, Text: "done"})})
			answered(t, x, "done")
			whole(t, x)
			if comments := gaps(t, x, 1500*time.Millisecond); comments < 3 {
				t.Errorf("%d comments in 4 s", comments)
			}
		})
		h.run("beats: {comment: 1s}")
	})
}

// gaps checks that nothing of a stream is further than limit from what came
// before it, and counts the comments.
func gaps(t *testing.T, x *wire.Exchange, limit time.Duration) (comments int) {
	t.Helper()
	last := time.Duration(0)
	for _, i := range x.Items() {
		if i.At-last > limit {
			t.Errorf("silence from %v to %v, longer than %v", last, i.At, limit)
		}
		if last = i.At; i.Comment {
			comments++
		}
	}
	return comments
}

// O3: an agent that takes JSON only gets one JSON body.
func TestO3JSONOnlyAgent(t *testing.T) {
	t.Parallel()
	check := func(t *testing.T, s *scene, c wire.Call) {
		t.Helper()
		c.Args = script(step{Progress: "1", Message: "one"}, step{Progress: "2", Message: "two"}, step{Text: "done"})
		x := s.dn.Start(c)
		answered(t, x, "done")
		whole(t, x)
		if h, b := x.Head(0), x.Body(); x.Status() != 200 || !strings.HasPrefix(h.Get("Content-Type"), "application/json") || !json.Valid([]byte(b)) ||
			strings.Contains(b, "data:") || strings.Contains(b, "progress") {
			t.Errorf("HTTP %d %s: %q", x.Status(), h.Get("Content-Type"), b)
		}
		r := s.ended(call.Completed)
		if n := len(s.events(r.ID, call.KindProgress)); n != 2 {
			t.Errorf("%d progress messages in the record", n)
		}
		if d := s.delivered(); d.How != call.Delivered || d.Kind != "json" {
			t.Errorf("delivery %+v", d)
		}
	}
	everywhere(t, speaking, func(t *testing.T, s *scene) {
		s.dn.Accept = wire.AcceptJSON
		check(t, s, wire.Call{ID: `"x-7"`})
		check(t, s, wire.Call{ID: `9007199254740993`, Token: `1`}) // a token changes nothing here
	})
	h := newHouse(t)
	h.add("kill switch", wire.Legacy, overSSE.open(t), func(t *testing.T, s *scene) { check(t, s, wire.Call{ID: `0`, Token: `1`}) }, "relay: buffered")
	h.http("bytes unchanged", wire.Legacy, wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) {
		c.Answer(r.Progress("1", "", ""), `{"jsonrpc":"2.0", "x":{"z":1,"a":1.50}, "result":{"content":[],"n":12345678901234567890,"id":3}, "id":`+string(r.ID)+`}`)
	}}}), func(t *testing.T, s *scene) {
		s.dn.Accept = wire.AcceptJSON
		x := s.dn.Start(wire.Call{ID: `"é"`})
		x.End(0)
		if want := `{"jsonrpc":"2.0", "x":{"z":1,"a":1.50}, "result":{"content":[],"n":12345678901234567890,"id":3}, "id":"é"}`; x.Body() != want {
			t.Errorf("body %s", x.Body())
		}
	})
	h.run("")
}

// O16: parameters and case of a media type say nothing.
func TestO16ContentTypes(t *testing.T) {
	t.Parallel()
	for _, agent := range []string{wire.Legacy, wire.Modern} {
		t.Run(agent, func(t *testing.T) {
			t.Parallel()
			ups := map[string]wire.Handler{}
			for name, types := range map[string]string{"sse": "Text/Event-Stream; charset=utf-8", "SSE": `TEXT/EVENT-STREAM;charset="UTF-8"`, "json": "Application/JSON; charset=utf-8", "JSON": "application/json;charset=UTF-8"} {
				ups[name] = func(c *wire.Conn, r *wire.Request) {
					if strings.EqualFold(name, "json") {
						c.Head(200, "Content-Type: "+types)
						c.Body(r.Text("done"))
					} else {
						c.Head(200, "Content-Type: "+types)
						c.Event(r.Progress("1", "", "one"), r.Text("done"))
					}
					c.End()
				}
			}
			up := wire.NewUpstream(t, wire.Options{Version: agent, On: map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) { ups[r.Tool](c, r) }}})
			dn := before(t, up).client(agent, "up")
			for name := range ups {
				for _, sent := range []string{"application/json; charset=utf-8", "Application/JSON", "application/json;charset=\"UTF-8\""} {
					x := dn.Start(wire.Call{Tool: name, Token: "1", Header: map[string]string{"Content-Type": sent}})
					answered(t, x, "done")
					if strings.EqualFold(name, "sse") {
						tells(t, x, "1 1 one")
					}
				}
			}
			for _, accept := range []string{"application/json;q=0.9, Text/Event-Stream; charset=utf-8", "text/event-stream, application/json", "*/*", "TEXT/EVENT-STREAM"} {
				x := dn.Start(wire.Call{Tool: "sse", Token: "1", Header: map[string]string{"Accept": accept}})
				answered(t, x, "done")
				tells(t, x, "1 1 one")
			}
			x := dn.Start(wire.Call{Tool: "sse", Header: map[string]string{"Content-Type": "text/plain"}})
			if x.Head(0); x.Status() != 415 {
				t.Errorf("text/plain gets HTTP %d", x.Status())
			}
		})
	}
}

// O23: an array is no message, whatever stands before it.
func TestO23NoBatch(t *testing.T) {
	t.Parallel()
	for _, agent := range []string{wire.Legacy, "2025-06-18", wire.Modern} {
		t.Run(agent, func(t *testing.T) {
			t.Parallel()
			up := wire.NewUpstream(t, wire.Options{Version: agent})
			g := before(t, up)
			dn := g.client(agent, "up")
			up.WaitRequest("tools/list", 1, 0) // longcall's own
			had := up.Count("")
			one := dn.Message("1", "tools/call", `"name":"work","arguments":{}`, "")
			two := dn.Message("2", "tools/list", "", "")
			header := map[string]string{}
			if agent == wire.Modern {
				header = map[string]string{"Mcp-Protocol-Version": agent, "Mcp-Method": "tools/call", "Mcp-Name": "work"}
			}
			for _, body := range []string{
				"  \n[" + one + "," + two + "]", "[" + one + "," + two + "]", "[" + one + "]", "[]", "[ ]", "\t\r\n [" + two + "]", "[1]", "[[" + one + "]]",
			} {
				x := dn.Do(wire.HTTP{Body: body, Header: header})
				x.End(0)
				m, ok := wire.ParseMsg(x.Body())
				if x.Status() != 400 || !ok || string(m.At("error.code")) != "-32600" || m.ID != nil && string(m.ID) != "null" {
					t.Errorf("%.20q gets HTTP %d: %s", body, x.Status(), x.Body())
				}
			}
			if n := up.Count("tools/call"); n != 0 {
				t.Errorf("the tool server saw %d calls", n)
			}
			answered(t, dn.Start(wire.Call{}), "worked")
			for _, r := range up.Requests("")[had:] {
				if k := r.Key(); k != "tools/call" && k != "GET" {
					t.Errorf("the tool server saw %s", k)
				}
			}
		})
	}
}

// O24: GET is answered at once, with a stream or 405. It runs beside no other
// case: its times are short.
func TestO24Get(t *testing.T) {
	refused := func(t *testing.T, x *wire.Exchange) {
		t.Helper()
		x.End(time.Second)
		within(t, "the answer", x.EndAt(), 200*time.Millisecond)
		if allow := x.Head(0).Get("Allow"); x.Status() != 405 || !strings.Contains(allow, "POST") || strings.Contains(allow, "GET") {
			t.Errorf("HTTP %d, Allow: %s", x.Status(), allow)
		}
	}
	up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"GET": wire.Hold}}) // whatever the tool server does
	g := before(t, up)
	get := func(c *wire.Client, accept string, header ...string) *wire.Exchange {
		h := map[string]string{"Accept": accept}
		for i := 0; i < len(header); i += 2 {
			h[header[i]] = header[i+1]
		}
		return c.Do(wire.HTTP{Verb: http.MethodGet, Header: h})
	}
	for _, path := range []string{"/mcp", "/mcp/up", "/mcp/"} {
		stranger := wire.NewClient(t, g.app.URL()+path, wire.Legacy)
		modern := wire.NewClient(t, g.app.URL()+path, wire.Modern)
		for _, accept := range []string{"text/event-stream", "*/*", "", "application/json"} {
			refused(t, get(stranger, accept))
			refused(t, get(modern, accept, "Mcp-Protocol-Version", wire.Modern))
		}
		agent := wire.NewClient(t, g.app.URL()+path, wire.Legacy)
		agent.Initialize()
		for _, accept := range []string{"text/event-stream", "*/*", ""} {
			x := get(agent, accept)
			x.WaitItems(1, time.Second)
			within(t, "the first byte of the stream", x.FirstAt(), time.Second)
			if ct := x.Head(0).Get("Content-Type"); x.Status() != 200 || ct != "text/event-stream" {
				t.Errorf("HTTP %d %s", x.Status(), ct)
			}
		}
	}
}
