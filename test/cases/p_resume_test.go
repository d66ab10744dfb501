package cases_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/test/wire"
)

// A call of a resumable server: steps with event ids, and the result.
const (
	resumeTag   = "é🙂"
	resumeSteps = 6
)

// resumable fills a log named "a" with a call's messages.
func resumable(up *wire.Upstream, r *wire.Request) *wire.EventLog {
	log := up.NewLog("a")
	for i, text := range steps(resumeTag, resumeSteps) {
		log.Append(r.Progress(strconv.Itoa(i+1), strconv.Itoa(resumeSteps), text))
	}
	log.Append(r.Text("worked"))
	log.Finish()
	return log
}

// resumes lists the requests that resume a stream.
func resumes(up *wire.Upstream) (out []*wire.Request) {
	for _, r := range up.Requests("GET") {
		if r.Header.Get("Last-Event-ID") != "" {
			out = append(out, r)
		}
	}
	return out
}

// onResume makes a GET handler for resumed streams; there is no standalone one.
func onResume(h wire.Handler) wire.Handler {
	return func(c *wire.Conn, r *wire.Request) {
		if r.Header.Get("Last-Event-ID") == "" {
			c.Status(405, "Allow: POST")
			return
		}
		h(c, r)
	}
}

// breaking starts a server whose calls' streams break after the third event, with a
// handler for what resumes them.
func breaking(t *testing.T, resumed wire.Handler) (up *wire.Upstream) {
	up = wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{
		"tools/call": func(c *wire.Conn, r *wire.Request) {
			c.SSE()
			resumable(up, r).Serve(c, 0, 3)
			c.Pause(50 * time.Millisecond) // a reset throws away what was not read yet
			c.Reset()
		},
		"GET": onResume(resumed),
	}})
	return up
}

// after is the number in a Last-Event-ID.
func after(r *wire.Request) int {
	_, n, _ := strings.Cut(r.Header.Get("Last-Event-ID"), "_")
	i, _ := strconv.Atoi(n)
	return i
}

// whole checks a call that was resumed: nothing missed, nothing twice, sent once.
func (g *gateway) whole(up *wire.Upstream, x *wire.Exchange) {
	g.t.Helper()
	shows(g.t, x, "5", "worked", steps(resumeTag, resumeSteps)...)
	if n := up.Count("tools/call"); n != 1 {
		g.t.Errorf("the call was sent %d times", n)
	}
	r, _ := g.ended(call.Completed)
	if text := g.notes(r.ID); !strings.Contains(text, "resumed") {
		g.t.Errorf("the record does not say that the stream was resumed: %q", text)
	}
}

// TestP2 breaks a stream after its third event.
func TestP2(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]func(*wire.Conn){
		"reset": (*wire.Conn).Reset,
		"close": (*wire.Conn).Close,
		"end":   (*wire.Conn).End,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bothEras(t, func(t *testing.T, version string) {
				var up *wire.Upstream
				broke := make(chan time.Time, 1)
				up = wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{
					"tools/call": func(c *wire.Conn, r *wire.Request) {
						log := resumable(up, r)
						c.SSE()
						log.Serve(c, 0, 3)
						c.Pause(50 * time.Millisecond) // a reset throws away what was not read yet
						broke <- time.Now()
						cut(c)
					},
				}})
				g := before(t, up)
				x := g.client(version, "up").Start(wire.Call{Token: "5"})
				g.whole(up, x)
				got := resumes(up)
				if len(got) != 1 || got[0].Header.Get("Last-Event-ID") != "a_3" {
					t.Fatalf("%d resumes, the first after %q", len(got), got[0].Header.Get("Last-Event-ID"))
				}
				limit := 1500 * time.Millisecond
				if raceEnabled {
					limit *= 2 // the detector is slow, and the machine busy
				}
				if d := got[0].Time.Sub(<-broke); d > limit {
					t.Errorf("resumed after %v", d)
				}
			})
		})
	}
}

// TestP2EveryEvent breaks the stream after each of its events.
func TestP2EveryEvent(t *testing.T) {
	t.Parallel()
	for _, accept := range []string{wire.AcceptBoth, wire.AcceptJSON} {
		t.Run(accept, func(t *testing.T) {
			t.Parallel()
			var up *wire.Upstream
			var log *wire.EventLog
			up = wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{
				"tools/call": func(c *wire.Conn, r *wire.Request) {
					log = resumable(up, r)
					c.SSE()
					c.Body("id: a_0\nretry: 20\ndata:\n\n")
					c.Close()
				},
				"GET": onResume(func(c *wire.Conn, r *wire.Request) {
					c.SSE()
					log.Serve(c, after(r), after(r)+1)
					c.Pause(20 * time.Millisecond)
					c.Reset()
				}),
			}})
			g := before(t, up)
			dn := g.client(wire.Legacy, "up")
			dn.Accept = accept
			x := dn.Start(wire.Call{Token: "5"})
			if accept == wire.AcceptJSON {
				if m := x.Response(0); m.ToolText() != "worked" {
					t.Error(m.JSON)
				}
				g.ended(call.Completed)
			} else {
				g.whole(up, x)
			}
			for i, r := range resumes(up) {
				if after(r) != i {
					t.Errorf("resume %d is after event %d", i+1, after(r))
				}
			}
		})
	}
}

// TestP2Modern: the stateless era has no resumption; the outcome is unknown,
// said at once, and nothing is sent again.
func TestP2Modern(t *testing.T) {
	t.Parallel()
	up := wire.NewUpstream(t, wire.Options{Version: wire.Modern, On: map[string]wire.Handler{
		"tools/call": func(c *wire.Conn, r *wire.Request) {
			c.SSE()
			c.EventID("a_1", r.Progress("1", "", "a 1"))
			c.Pause(50 * time.Millisecond)
			c.Reset()
		},
	}})
	g := before(t, up)
	x := g.client(wire.Modern, "up").Start(wire.Call{Token: "5"})
	m := x.TimedResponse(0)
	saysUnknown(t, m.Msg)
	if m.Came > 5*time.Second {
		t.Errorf("said after %v", m.Came)
	}
	g.ended(call.Interrupted)
	up.Quiet("tools/call", 1, 500*time.Millisecond)
	if n := up.Count("GET"); n != 0 {
		t.Errorf("%d GETs", n)
	}
}

// TestP3 breaks a stream in the middle of its third event.
func TestP3(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"\n", "\r\n"} {
		for name, part := range map[string]func(event, data string) string{
			"id line":          func(string, string) string { return "id: a_3" + end },
			"half an id":       func(string, string) string { return "id: a_" },
			"half the data":    func(e, d string) string { return e[:strings.Index(e, d)+len(d)/2] },
			"half a character": func(e, d string) string { return e[:strings.Index(e, "🙂")+2] },
			"no line end":      func(e, d string) string { return e[:strings.Index(e, d)+len(d)] },
			"no blank line":    func(e, d string) string { return e[:strings.Index(e, d)+len(d)] + end },
		} {
			for how, cut := range map[string]func(*wire.Conn){"close": (*wire.Conn).Close, "end": (*wire.Conn).End} {
				t.Run(fmt.Sprintf("%q/%s/%s", end, name, how), func(t *testing.T) {
					t.Parallel()
					var up *wire.Upstream
					up = wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{
						"tools/call": func(c *wire.Conn, r *wire.Request) {
							log := resumable(up, r)
							c.SSE()
							log.Serve(c, 0, 2)
							data := r.Progress("3", strconv.Itoa(resumeSteps), resumeTag+" 3")
							c.Body(part("id: a_3"+end+"event: message"+end+"data: "+data+end+end, data))
							cut(c)
						},
					}})
					g := before(t, up)
					x := g.client(wire.Legacy, "up").Start(wire.Call{Token: "5"})
					g.whole(up, x)
					if got := resumes(up); len(got) != 1 || got[0].Header.Get("Last-Event-ID") != "a_2" {
						t.Errorf("%d resumes, the first after %q", len(got), got[0].Header.Get("Last-Event-ID"))
					}
				})
			}
		}
	}
}

// TestP4 refuses to resume for a while.
func TestP4(t *testing.T) {
	t.Parallel()
	for name, refuse := range map[string]wire.Handler{
		"503":   wire.Refuse(503),
		"502":   wire.Refuse(502),
		"429":   wire.Refuse(429),
		"reset": func(c *wire.Conn, _ *wire.Request) { c.Reset() },
		"close": func(c *wire.Conn, _ *wire.Request) { c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var up *wire.Upstream
			up = breaking(t, func(c *wire.Conn, r *wire.Request) {
				if len(resumes(up)) <= 2 {
					refuse(c, r)
					return
				}
				c.SSE()
				resumable(up, up.Requests("tools/call")[0]).Serve(c, after(r), 0)
				c.End()
			})
			g := before(t, up)
			x := g.client(wire.Legacy, "up").Start(wire.Call{Token: "5"})
			g.whole(up, x)
			got := resumes(up)
			if len(got) != 3 {
				t.Fatalf("%d resumes", len(got))
			}
			least := []time.Duration{150 * time.Millisecond, 300 * time.Millisecond}
			if name == "reset" || name == "close" {
				// HTTP itself sends a GET again if the connection that it had open was closed.
				least = []time.Duration{0, 150 * time.Millisecond}
			}
			for i, l := range least {
				if d := got[i+1].Time.Sub(got[i].Time); d < l {
					t.Errorf("try %d came %v after the one before: that is no back-off", i+2, d)
				}
			}
			if d := got[len(got)-1].Time.Sub(got[0].Time); d > 5*time.Second {
				t.Errorf("%d tries took %v", len(got), d)
			}
		})
	}
}

// TestP4InsideTheLimits: a server that never takes the resume does not hold the
// call beyond its limits, and one that refuses for good ends it at once.
func TestP4InsideTheLimits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, limits string
		h            wire.Handler
		outcome      call.Outcome
		limit        string
		at           time.Duration
	}{
		{"total", "limits: {total: 2s}", wire.Refuse(503), call.TimedOut, "total", 2 * time.Second},
		{"idle", "limits: {idle: 2s}", wire.Refuse(503), call.Interrupted, "", 2 * time.Second},
		{"held", "limits: {idle: 2s}", wire.Hold, call.Interrupted, "", 2 * time.Second},
		{"400", "era: legacy", wire.Refuse(400), call.Interrupted, "", 0},
		{"404", "era: legacy", wire.Refuse(404), call.Interrupted, "", 0},
		{"405", "era: legacy", wire.Refuse(405), call.Interrupted, "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			up := breaking(t, c.h)
			g := before(t, up, c.limits)
			x := g.client(wire.Legacy, "up").Start(wire.Call{Token: "5"})
			m := x.TimedResponse(0)
			if outcome(m.Msg) != string(c.outcome) || string(m.At("result.isError")) != "true" {
				t.Errorf("the answer: %s", m.JSON)
			}
			if m.Came < c.at || m.Came > c.at+8*time.Second {
				t.Errorf("it came after %v", m.Came)
			}
			if r, _ := g.ended(c.outcome); r.End.Limit != c.limit {
				t.Errorf("the limit is %q", r.End.Limit)
			}
			n := len(resumes(up))
			up.Quiet("GET", up.Count("GET"), time.Second)
			if n == 0 || up.Count("tools/call") != 1 {
				t.Errorf("%d resumes, %d calls", n, up.Count("tools/call"))
			}
		})
	}
}

// TestP16 resumes to a stream that stays silent, because the server has finished.
func TestP16(t *testing.T) {
	t.Parallel()
	for name, resumed := range map[string]func(c *wire.Conn, r *wire.Request){
		"silent":   func(c *wire.Conn, _ *wire.Request) { c.SSE(); c.Hold() },
		"comments": func(c *wire.Conn, _ *wire.Request) { c.SSE(); beatUntilGone(c) },
		"ends":     func(c *wire.Conn, _ *wire.Request) { c.SSE(); c.End() },
		"priming":  func(c *wire.Conn, _ *wire.Request) { c.SSE(); c.Body("id: b_0\nretry: 50\ndata:\n\n"); c.Hold() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := breaking(t, resumed)
			g := before(t, up, "limits: {idle: 3s, total: 10m}", pingFast)
			x := g.client(wire.Legacy, "up").Start(wire.Call{Token: "5"})
			m := x.TimedResponse(0)
			saysUnknown(t, m.Msg)
			if m.Came < 2*time.Second || m.Came > 20*time.Second {
				t.Errorf("noticed after %v", m.Came)
			}
			if !strings.Contains(m.ToolText(), "silent") || !strings.Contains(m.ToolText(), "resumed") {
				t.Errorf("the answer does not say why: %s", m.ToolText())
			}
			g.ended(call.Interrupted)
			if up.Count("ping") == 0 && name != "ends" && name != "comments" {
				t.Error("the server was never asked whether it lives")
			}
			if n := up.Count("tools/call"); n != 1 {
				t.Errorf("the call was sent %d times", n)
			}
		})
	}
}

// TestP16StillAtWork: a server that is silent on a resumed stream because it
// works gets the time that it needs.
func TestP16StillAtWork(t *testing.T) {
	t.Parallel()
	var up *wire.Upstream
	var log *wire.EventLog
	up = wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{
		"tools/call": func(c *wire.Conn, r *wire.Request) {
			log = up.NewLog("a")
			for i, text := range steps(resumeTag, resumeSteps) {
				log.Append(r.Progress(strconv.Itoa(i+1), "", text))
			}
			c.SSE()
			log.Serve(c, 0, resumeSteps)
			c.Pause(50 * time.Millisecond)
			c.Reset()
		},
	}})
	g := before(t, up, "limits: {idle: 10s}", pingFast)
	x := g.client(wire.Legacy, "up").Start(wire.Call{Token: "5"})
	soon(t, "a resume", func() bool { return len(resumes(up)) > 0 })
	<-time.After(2500 * time.Millisecond)
	log.Append(up.Requests("tools/call")[0].Text("worked"))
	log.Finish()
	g.whole(up, x)
}

// beatUntilGone sends comments, which show that a connection lives, and nothing
// about the work.
func beatUntilGone(c *wire.Conn) {
	for c.Pause(100 * time.Millisecond) {
		c.Body(": ka\n\n")
	}
}
