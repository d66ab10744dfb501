package cases_test

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/test/wire"
)

// lineEnds are the ways to end a line of an event stream.
var lineEnds = map[string]func(string) string{
	"LF":   func(s string) string { return s },
	"CRLF": func(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") },
	"CR":   func(s string) string { return strings.ReplaceAll(s, "\n", "\r") },
	"mixed": func(s string) string {
		for i, n := 0, 0; i < len(s); i++ {
			if s[i] == '\n' {
				with := []string{"\n", "\r\n", "\r"}[n%3]
				if with == "\r" && strings.HasPrefix(s[i+1:], "\n") {
					with = "\r\n" // CR before LF would be one line end
				}
				s = s[:i] + with + s[i+1:]
				i += len(with) - 1
				n++
			}
		}
		return s
	},
}

// O11: line ends say nothing.
func TestO11LineEnds(t *testing.T) {
	t.Parallel()
	stream := func(r *wire.Request) string {
		return ": hello\n\nevent: message\nid: 7\ndata: " + r.Progress("1", "3", "one") + "\n\n" +
			"data: " + wire.Log("info", "a log line") + "\n\nretry: 3000\n\n:\n\nevent: message\ndata:" + r.Progress("2", "3", "two") + "\nid: 8\n\n" +
			"event: message\ndata: " + r.Text("done") + "\n\n"
	}
	h := newHouse(t)
	for _, agent := range []string{wire.Legacy, wire.Modern} {
		for _, server := range []string{wire.Legacy, wire.Modern} {
			h.http(server+" for "+agent, agent, wire.NewUpstream(t, wire.Options{Version: server, On: map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) {
				style, bom := strings.CutPrefix(r.Tool, "BOM ")
				text := lineEnds[style](stream(r))
				if bom {
					text = "\uFEFF" + text
				}
				c.SSE()
				c.Body(text)
				c.End()
			}}}), func(t *testing.T, s *scene) {
				for style := range lineEnds {
					for _, tool := range []string{style, "BOM " + style} {
						x := s.dn.Start(wire.Call{Tool: tool, Token: `"t"`, Meta: `"io.modelcontextprotocol/logLevel":"debug"`})
						answered(t, x, "done")
						tells(t, x, `"t" 1 one`, `"t" 2 two`)
						all := x.Messages()
						if len(all) != 4 || all[1].Method != "notifications/message" || all[1].Str("params.data") != "a log line" {
							t.Errorf("%s: %s", tool, x.Body())
						}
						r := s.ended(call.Completed)
						if notes := s.events(r.ID, call.KindNote); len(notes) != 0 {
							t.Errorf("%s: the record notes %q", tool, notes[0].Body)
						}
					}
				}
			})
		}
	}
	// Everything else that a tool server says as an event stream: the answers
	// to initialize and tools/list, and the standalone stream.
	for style, ends := range lineEnds {
		sse := func(result string, header ...string) wire.Handler {
			return func(c *wire.Conn, r *wire.Request) {
				c.SSE(header...)
				c.Body(ends(": hi\n\n" + wire.Event("", r.Result(result))))
				c.End()
			}
		}
		up := wire.NewUpstream(t, wire.Options{NoSession: true, On: map[string]wire.Handler{
			"initialize": sse(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"up","version":"1"}}`),
			"tools/list": sse(`{"tools":[` + wire.WorkTool + `]}`),
			"tools/call": func(c *wire.Conn, r *wire.Request) {
				s := c.Stream()
				if s == nil {
					return
				}
				s.Body(ends(": hi\n\n" + wire.Event("1", r.Progress("1", "", "one")) + wire.Event("", r.Progress("2", "", "two"))))
				c.SSE()
				c.Body(ends(wire.Event("", r.Text("done"))))
				c.End()
			},
		}})
		h.http("all streams with "+style, wire.Legacy, up, func(t *testing.T, s *scene) {
			if list := s.dn.Request("tools/list", ""); list.Str("result.tools.0.name") != "work" {
				t.Errorf("tools/list: %s", list.JSON)
			}
			x := s.dn.Start(wire.Call{Token: "5"})
			answered(t, x, "done")
			tells(t, x, "5 1 one", "5 2 two")
		})
	}
	h.run("")
}

// O12: a CRLF that is cut in two is one line end, wherever it stands.
func TestO12SplitCRLF(t *testing.T) {
	t.Parallel()
	pieces := func(text string) []string {
		text = strings.ReplaceAll(text, "\n", "\r\n")
		return strings.SplitAfter(text, "\r")
	}
	slowly := func(c *wire.Conn, text string) {
		for i, p := range pieces(text) {
			if i > 0 && !c.Pause(50*time.Millisecond) {
				return
			}
			c.Body(p)
		}
	}
	ways := map[string]wire.Handler{
		"chunks": func(c *wire.Conn, r *wire.Request) {
			c.SSE()
			slowly(c, wire.Event("a_1", r.Progress("1", "", "one"))+wire.Event("", r.Text("done")))
			c.End()
		},
		"no length": func(c *wire.Conn, r *wire.Request) {
			c.Write("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
			for _, p := range pieces(wire.Event("", r.Progress("1", "", "one")) + wire.Event("", r.Text("done"))) {
				c.Write(p)
				if !c.Pause(50 * time.Millisecond) {
					return
				}
			}
			c.Close()
		},
		"standalone": func(c *wire.Conn, r *wire.Request) {
			s := c.Stream()
			if s == nil {
				return
			}
			slowly(s, wire.Event("", r.Progress("1", "", "one")))
			c.JSON(200, r.Text("done"))
		},
		"data over two lines": func(c *wire.Conn, r *wire.Request) {
			c.SSE()
			slowly(c, "data: "+strings.Replace(r.Progress("1", "", "one"), ",", ",\ndata: ", 1)+"\n\n"+wire.Event("", r.Text("done")))
			c.End()
		},
	}
	h := newHouse(t)
	for name, way := range ways {
		for _, server := range []string{wire.Legacy, wire.Modern} {
			if server == wire.Modern && name == "standalone" {
				continue // there is no such stream
			}
			up := wire.NewUpstream(t, wire.Options{Version: server, On: map[string]wire.Handler{"tools/call": way}})
			h.http(name+" "+server, wire.Legacy, up, func(t *testing.T, s *scene) {
				x := s.dn.Start(wire.Call{Token: "1"})
				answered(t, x, "done")
				tells(t, x, "1 1 one")
				for n, i := range x.Items() {
					primes := n == 1 // the event without data that a stream of 2025-11-25 begins with
					if !i.Comment && i.Data == "" && !primes {
						t.Errorf("an empty event:\n%q", x.Body())
					}
				}
				r := s.ended(call.Completed)
				if p, n := s.events(r.ID, call.KindProgress), s.events(r.ID, call.KindNote); len(p) != 1 || len(n) != 0 {
					t.Errorf("the record has %d progress messages and %d notes", len(p), len(n))
				}
			})
		}
	}
	h.run("")
}

// O13: a message may be spread over data lines, and the blank after the colon
// may be missing.
func TestO13DataLines(t *testing.T) {
	t.Parallel()
	pretty := func(message string) string { // as data lines, broken between members
		n := strings.Index(message, ",")
		m := n + 1 + strings.Index(message[n+1:], ",")
		return "data: " + message[:n+1] + "\ndata:   " + message[n+1:m+1] + "\ndata: " + message[m+1:] + "\n\n"
	}
	ways := map[string]func(string) string{
		"three lines": pretty,
		"no blank":    func(m string) string { return "data:" + m + "\n\n" },
		"three lines, no blank": func(m string) string {
			return strings.ReplaceAll(strings.ReplaceAll(pretty(m), "data:   ", "data:"), "data: ", "data:")
		},
		"event in between": func(m string) string {
			return strings.Replace(pretty(m), "\ndata:   ", "\nevent: message\ndata:   ", 1)
		},
		"empty lines": func(m string) string { return "data\ndata:\n" + strings.TrimSuffix(pretty(m), "\n") + "data: \n\n" },
	}
	h := newHouse(t)
	for _, agent := range []string{wire.Legacy, wire.Modern} {
		for _, server := range []string{wire.Legacy, wire.Modern} {
			h.http(server+" for "+agent, agent, wire.NewUpstream(t, wire.Options{Version: server, On: map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) {
				c.SSE()
				c.Body(ways[r.Tool](r.Progress("1", "", "one")) + ways[r.Tool](r.Text("done")))
				c.End()
			}}}), func(t *testing.T, s *scene) {
				for name := range ways {
					x := s.dn.Start(wire.Call{Tool: name, Token: `"t"`})
					answered(t, x, "done")
					tells(t, x, `"t" 1 one`)
					s.dn.Accept = wire.AcceptJSON
					answered(t, s.dn.Start(wire.Call{Tool: name}), "done")
					s.dn.Accept = ""
					r := s.ended(call.Completed)
					if p, n := s.events(r.ID, call.KindProgress), s.events(r.ID, call.KindNote); len(p) != 1 || len(n) != 0 {
						t.Errorf("%s: the record has %d progress messages and %d notes", name, len(p), len(n))
					}
				}
			})
		}
	}
	h.run("")
}

// O14: an event without data that only gives an id is no error and no message,
// and a stream that ends after it is taken up again when the server said. It
// runs beside no other case: its times are short.
func TestO14PrimingIsNoError(t *testing.T) {
	const priming = "id: a_0\nretry: 50\ndata:\n\n"
	type way struct {
		prime string
		bye   func(*wire.Conn)
		times int // how often the stream is closed before the result
		min   time.Duration
	}
	ways := map[string]way{
		"ends":         {priming, (*wire.Conn).End, 1, 50 * time.Millisecond},
		"closes":       {priming, (*wire.Conn).Close, 1, 50 * time.Millisecond},
		"resets":       {priming, (*wire.Conn).Reset, 1, 50 * time.Millisecond},
		"CRLF":         {strings.ReplaceAll(priming, "\n", "\r\n"), (*wire.Conn).Close, 1, 50 * time.Millisecond},
		"no data line": {"id: a_0\nretry: 50\n\n", (*wire.Conn).Close, 1, 50 * time.Millisecond},
		"data blank":   {"retry: 50\nid: a_0\ndata: \n\n", (*wire.Conn).Close, 1, 50 * time.Millisecond},
		"no retry":     {"id: a_0\ndata:\n\n", (*wire.Conn).Close, 1, 0},
		"three times":  {priming, (*wire.Conn).End, 3, 50 * time.Millisecond},
	}
	h := timedHouse(t)
	for name, w := range ways {
		closed := make(chan time.Time, 10)
		var message atomic.Value // the result, made by the call's handler before the resume can come
		var resumes atomic.Int64
		up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{
			"tools/call": func(c *wire.Conn, r *wire.Request) {
				message.Store(r.Text("done"))
				c.SSE()
				c.Body(w.prime)
				w.bye(c)
				closed <- time.Now()
			},
			"GET": func(c *wire.Conn, r *wire.Request) {
				if r.Header.Get("Last-Event-ID") == "" {
					c.Status(405, "Allow: POST")
					return
				}
				c.SSE()
				if int(resumes.Add(1)) < w.times {
					c.Body(w.prime)
					w.bye(c)
					closed <- time.Now()
					return
				}
				c.EventID("a_1", message.Load().(string))
				c.End()
			},
		}})
		h.http(name, wire.Legacy, up, func(t *testing.T, s *scene) {
			up.WaitRequest("GET", 1, 0) // the standalone stream, which is not offered
			x := s.dn.Start(wire.Call{Token: "1"})
			answered(t, x, "done")
			if all := whole(t, x); len(all) != 1 {
				t.Errorf("the agent got\n%s", x.Body())
			}
			for _, i := range x.Items() {
				if !i.Comment && !i.HasData {
					t.Errorf("the priming event was passed on: %+v", i)
				}
			}
			gets := up.Requests("GET")[1:]
			if len(gets) != w.times {
				t.Fatalf("%d resumes", len(gets))
			}
			for _, r := range gets {
				if id := r.Header.Get("Last-Event-ID"); id != "a_0" || r.Header.Get("Mcp-Session-Id") == "" || !strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
					t.Errorf("resumed with %v", r.Header)
				}
				if d := r.Time.Sub(<-closed); d < w.min || d > 500*time.Millisecond {
					t.Errorf("resumed after %v", d)
				}
			}
			if up.Count("tools/call") != 1 {
				t.Errorf("%d calls", up.Count("tools/call"))
			}
			r := s.ended(call.Completed)
			if r.End.ToolError {
				t.Errorf("the record says %+v", r.End)
			}
		})
	}
	// Priming at the head of a stream that then goes on, in both eras.
	for _, server := range []string{wire.Legacy, wire.Modern} {
		h.http("and goes on, "+server, wire.Legacy, wire.NewUpstream(t, wire.Options{Version: server, On: map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) {
			c.SSE()
			c.Body(priming, wire.Event("a_1", r.Progress("1", "", "one")), "data:\n\n", wire.Event("a_2", r.Text("done")))
			c.End()
		}}}), func(t *testing.T, s *scene) {
			x := s.dn.Start(wire.Call{Token: "1"})
			answered(t, x, "done")
			tells(t, x, "1 1 one")
			r := s.ended(call.Completed)
			if notes := s.events(r.ID, call.KindNote); len(notes) != 0 {
				t.Errorf("the record notes %q", notes[0].Body)
			}
		})
	}
	// There is nothing to take up in the stateless era, and the call must not be sent again.
	up := wire.NewUpstream(t, wire.Options{Version: wire.Modern, On: map[string]wire.Handler{"tools/call": func(c *wire.Conn, _ *wire.Request) {
		c.SSE()
		c.Body(priming)
		c.Close()
	}}})
	h.http("closes, modern", wire.Legacy, up, func(t *testing.T, s *scene) {
		s.unknown(s.dn.Start(wire.Call{}))
		up.Quiet("tools/call", 1, 300*time.Millisecond)
	})
	h.run("")
}

// O15: characters survive being cut into bytes.
func TestO15CutCharacters(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("é€🙂", 100)
	everywhere(t, append(slices.Clone(speaking), overJSONModern), func(t *testing.T, s *scene) {
		steps := []step{{Progress: "1", Message: text, Slow: true}, {Text: text, Slow: true}}
		if s.place == overJSONModern {
			steps = steps[1:]
		}
		args := fmt.Sprintf(`{"note":%q,%s`, text, script(steps...)[1:])
		body := s.dn.Message("1", "tools/call", `"name":"work","arguments":`+args, `"progressToken":1`)
		x := s.dn.Start(wire.Call{ID: "1", Pieces: wire.Bytewise(body)}) // cut on the way in, too
		answered(t, x, text)
		if s.place == overJSONModern {
			tells(t, x)
		} else {
			tells(t, x, "1 1 "+text)
		}
		if strings.Contains(x.Body(), "\uFFFD") {
			t.Error("a character was lost")
		}
		if got := s.up.waitSeen(t, "tools/call", 1).Str("params.arguments.note"); got != text {
			t.Errorf("the tool server saw %.40q", got)
		}
		r := s.ended(call.Completed)
		events := s.events(r.ID, 0)
		if end := string(events[len(events)-1].Body); !strings.Contains(end, text) {
			t.Errorf("the record has %.80q", end)
		}
	})
}
