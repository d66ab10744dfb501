package cases_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/test/wire"
)

// A call of six steps that waits for the test between them.
type staged struct {
	go1 [7]chan struct{} // closed to let a step come; the last one is the result
	ran atomic.Int32
	end atomic.Int32 // answers that were written
}

func newStaged() *staged {
	s := &staged{}
	for i := range s.go1 {
		s.go1[i] = make(chan struct{})
	}
	return s
}

func (s *staged) let(from, to int) {
	for i := from; i < to; i++ {
		close(s.go1[i])
	}
}

// serve is the server's side: progress messages without event ids.
func (s *staged) serve(c *wire.Conn, r *wire.Request) {
	s.ran.Add(1)
	c.SSE()
	for i, text := range steps("s", 6) {
		select {
		case <-s.go1[i]:
		case <-c.Gone():
			return
		}
		c.Event(r.Progress(fmt.Sprint(i+1), "6", text))
	}
	select {
	case <-s.go1[6]:
	case <-c.Gone():
		return
	}
	c.Event(r.Text("worked"))
	c.End()
	s.end.Add(1)
}

func stagedUp(t *testing.T, s *staged) *wire.Upstream {
	return wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"tools/call": s.serve}})
}

// lastID is the id of the last event that an agent got.
func lastID(x *wire.Exchange) (id string) {
	for _, i := range x.Items() {
		if i.HasID {
			id = i.ID
		}
	}
	return id
}

// texts are the messages of progress.
func texts(x *wire.Exchange) (out []string) {
	for _, m := range x.Progress() {
		if text := m.Str("params.message"); !strings.HasPrefix(text, "still running") {
			out = append(out, text)
		}
	}
	return out
}

// an agent of a session loses its stream, at any event, and gets the rest
// of it, each event once, the answer too; also when the call has ended meanwhile.
func TestX2Resume(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"2025-03-26", "2025-06-18", wire.Legacy} {
		for seen := 0; seen <= 6; seen++ {
			for _, ended := range []bool{false, true} {
				if seen == 0 && version != wire.Legacy {
					continue // there is no event to resume from
				}
				t.Run(fmt.Sprintf("%s/%d/%v", version, seen, ended), func(t *testing.T) {
					t.Parallel()
					s := newStaged()
					up := stagedUp(t, s)
					g := before(t, up)
					dn := g.client(version, "up")
					x := dn.Start(wire.Call{Token: `"tok"`})
					s.let(0, seen)
					x.WaitMessages("notifications/progress", seen, 0)
					if seen == 0 {
						x.WaitItems(2, 0) // the comment and the event without data
					}
					from := lastID(x)
					x.Reset()
					if ended {
						s.let(seen, 7)
						g.ended(call.Completed)
					}
					y := dn.Listen(from)
					if !ended {
						y.WaitItems(1, 0)
						s.let(seen, 7)
					}
					m := y.TimedResponse(0)
					if m.ToolText() != "worked" || string(m.ID) != x.ID {
						t.Errorf("the answer is %s", m.JSON)
					}
					if err := y.End(0); err != nil {
						t.Errorf("the stream was cut: %v", err)
					}
					if got, want := strings.Join(append(texts(x), texts(y)...), ","), strings.Join(steps("s", 6), ","); got != want {
						t.Errorf("got %s, want %s", got, want)
					}
					for _, p := range y.Progress() {
						if string(p.At("params.progressToken")) != `"tok"` {
							t.Errorf("another token: %s", p.JSON)
						}
					}
					r, d := g.audited("delivered", func(r *call.Record, d []call.Delivery) bool { return len(d) == 2 })
					if r.End.Outcome != call.Completed || d[0].How != call.AbortedDownstream || d[1].How != call.Delivered || d[1].Kind != "resume" {
						t.Errorf("record %+v, deliveries %+v", r.End, d)
					}
					if n := up.Count("notifications/cancelled"); n != 0 || s.ran.Load() != 1 {
						t.Errorf("%d cancels, %d runs", n, s.ran.Load())
					}
					// A2: what is over brings nothing more, and ends at once.
					z := dn.Listen(lastID(y))
					if err := z.End(2 * time.Second); err != nil || z.Status() != 200 || len(z.Messages()) != 0 {
						t.Errorf("after the end: HTTP %d, %v, %q", z.Status(), err, z.Body())
					}
				})
			}
		}
	}
}

// A cursor that is not this session's, or of no stream, is refused in words: an
// empty stream would let the agent wait for ever (X-11, SPEC §8.1 A13).
func TestX2UnknownCursor(t *testing.T) {
	t.Parallel()
	s := newStaged()
	up := stagedUp(t, s)
	g := start(t, fmt.Sprintf("%s\nshutdown: {drain: 1s}\nmcpServers: {up: {url: %q}}\n", tokens, up.URL))
	ann := g.agent(wire.Legacy, "up", "ann")
	x := ann.Start(wire.Call{Token: "1"})
	s.let(0, 2)
	x.WaitMessages("notifications/progress", 2, 0)
	id := lastID(x)
	place, _, _ := strings.Cut(id, ".")
	other := g.agent(wire.Legacy, "up", "ann")
	bob := g.agent(wire.Legacy, "up", "bob")
	bodies := map[string]bool{}
	for name, try := range map[string]func() *wire.Exchange{
		"another session of the same principal": func() *wire.Exchange { return other.Listen(id) },
		"another principal":                     func() *wire.Exchange { return bob.Listen(id) },
		"an invented one":                       func() *wire.Exchange { return ann.Listen("c_aaaaaaaaaaaaaaaaaaaaaaaaaa.1") },
		"a changed one":                         func() *wire.Exchange { return ann.Listen("A" + place[1:] + "B.1") },
		"no number":                             func() *wire.Exchange { return ann.Listen(place + ".x") },
	} {
		y := try()
		if err := y.End(2 * time.Second); err != nil || y.Status() != 400 || !strings.Contains(y.Body(), "Last-Event-ID") {
			t.Errorf("%s: HTTP %d, %v: %q", name, y.Status(), err, y.Body())
		}
		bodies[y.Body()] = true
	}
	if len(bodies) != 1 {
		t.Errorf("a foreign cursor can be told from an unknown one: %v", bodies)
	}
	if y := ann.Listen(place + ".99999"); y.End(2*time.Second) != nil || y.Status() != 400 {
		t.Errorf("a seq that was never sent: HTTP %d %q", y.Status(), y.Body())
	}
	s.let(2, 7)
	answered(t, x, "worked")
}

// An agent reads its stream twice at once, on the POST and on a GET, and both
// are whole; the second of two calls is never shown on the stream of the first.
func TestX2StreamsStayApart(t *testing.T) {
	t.Parallel()
	one, two := newStaged(), newStaged()
	up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) {
		if arg(r.Msg, "tag") == "two" {
			two.serve(c, r)
			return
		}
		one.serve(c, r)
	}}})
	g := before(t, up)
	dn := g.client(wire.Legacy, "up")
	x := dn.Start(wire.Call{Token: "1", Args: `{"tag":"one"}`})
	z := dn.Start(wire.Call{Token: "2", Args: `{"tag":"two"}`})
	one.let(0, 1)
	x.WaitMessages("notifications/progress", 1, 0)
	y := dn.Listen(lastID(x))
	two.let(0, 7)
	answered(t, z, "worked")
	one.let(1, 7)
	answered(t, x, "worked")
	if m := y.TimedResponse(0); string(m.ID) != x.ID || len(y.Progress()) != 5 {
		t.Errorf("the second reader got %d events and %s", len(y.Progress()), m.JSON)
	}
	for _, p := range y.Progress() {
		if string(p.At("params.progressToken")) != "1" {
			t.Errorf("an event of another call: %s", p.JSON)
		}
	}
}

// Streams of 2025-11-25 are closed as planned, with a hint when to come back;
// older ones are left alone.
func TestX2PlannedDisconnect(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"2025-06-18", wire.Legacy} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			s := newStaged()
			up := stagedUp(t, s)
			g := start(t, fmt.Sprintf("stream_age: 10s\nbeats: {comment: 0s}\nshutdown: {drain: 1s}\nmcpServers: {up: {url: %q}}\n", up.URL))
			dn := g.client(version, "up")
			x := dn.Start(wire.Call{Token: "1"})
			s.let(0, 2)
			if version != wire.Legacy {
				x.WaitMessages("notifications/progress", 2, 0)
				soon(t, "later than the planned end", func() bool { return x.Over() || x.Since() > 11*time.Second })
				if x.Over() {
					t.Errorf("an older stream was closed: %q", x.Body())
				}
				s.let(2, 7)
				answered(t, x, "worked")
				return
			}
			if err := x.End(15 * time.Second); err != nil {
				t.Fatalf("the stream was not closed: %v", err)
			}
			about(t, "the planned end", x.EndAt(), 10*time.Second)
			items := x.Items()
			if last := items[len(items)-1]; last.Retry == "" {
				t.Errorf("no retry before the close: %q", x.Body())
			}
			s.let(2, 7)
			y := dn.Listen(lastID(x))
			answeredAs(t, y, x.ID, "worked")
			if got, want := strings.Join(append(texts(x), texts(y)...), ","), strings.Join(steps("s", 6), ","); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}
}

func answeredAs(t *testing.T, x *wire.Exchange, id, text string) {
	t.Helper()
	if m := x.TimedResponse(0); string(m.ID) != id || m.ToolText() != text {
		t.Errorf("the response is not %q for id %s: %s", text, id, m.JSON)
	}
}

// X-2 over a restart: the session, the stream and its cursor are the same for
// the agent, and the call goes on where its server can be taken up again. The
// server sees one tools/call.
func TestX2Restart(t *testing.T) {
	t.Parallel()
	for _, ended := range []bool{false, true} {
		t.Run(fmt.Sprint("ended ", ended), func(t *testing.T) {
			t.Parallel()
			var up *wire.Upstream
			let := make(chan struct{})
			up = wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{
				"tools/call": func(c *wire.Conn, r *wire.Request) {
					log := up.NewLog("a")
					all := steps("s", 6)
					for i, text := range all[:3] {
						log.Append(r.Progress(fmt.Sprint(i+1), "6", text))
					}
					go func() {
						<-let
						for i, text := range all[3:] {
							log.Append(r.Progress(fmt.Sprint(i+4), "6", text))
						}
						log.Append(r.Text("worked"))
						log.Finish()
					}()
					c.SSE()
					log.Serve(c, 0, 0)
				},
			}})
			dir := t.TempDir()
			config := fmt.Sprintf("shutdown: {drain: 100ms}\nmcpServers: {up: {url: %q}}\n", up.URL)
			g := startIn(t, dir, config)
			dn := g.client(wire.Legacy, "up")
			x := dn.Start(wire.Call{Token: "7"})
			x.WaitMessages("notifications/progress", 3, 0)
			if ended {
				close(let)
				answered(t, x, "worked")
			}
			from := lastID(x)
			if ended { // as if the agent had lost the last two messages
				from = x.Items()[3].ID
			}
			g.stop()
			if !ended {
				if err := x.End(0); err != nil {
					t.Errorf("the stream was cut: %v", err)
				}
				items := x.Items()
				if items[len(items)-1].Retry == "" {
					t.Errorf("no retry before the close (R-64): %q", x.Body())
				}
			}
			g = startIn(t, dir, config)
			again := wire.NewClient(t, g.app.URL()+"/mcp/up", wire.Legacy)
			again.Session = dn.Session
			y := again.Listen(from)
			if !ended {
				y.WaitItems(1, 0)
				close(let)
			}
			answeredAs(t, y, x.ID, "worked")
			if !ended {
				if got, want := strings.Join(append(texts(x), texts(y)...), ","), strings.Join(steps("s", 6), ","); got != want {
					t.Errorf("got %s, want %s", got, want)
				}
			}
			g.ended(call.Completed)
			if n, c := up.Count("tools/call"), up.Count("notifications/cancelled"); n != 1 || c != 0 {
				t.Errorf("sent %d times, cancelled %d times", n, c)
			}
			// The session is the same one: it takes a cancel, a list, a call.
			if m := again.Request("tools/list", ""); m.Result == nil {
				t.Errorf("the session is lost: %s", m.JSON)
			}
		})
	}
}

// a modern agent drops its stream: the work is told to stop after the
// grace, and not before; nothing is written for the old request.
func TestX1ModernDrop(t *testing.T) {
	t.Parallel()
	for _, server := range []string{wire.Legacy, wire.Modern} {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			gone := make(chan struct{})
			up := wire.NewUpstream(t, wire.Options{Version: server, On: map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) {
				c.SSE()
				c.Event(r.Progress("1", "", "one"))
				<-c.Gone()
				close(gone)
			}}})
			g := before(t, up, "on_disconnect: cancel", "disconnect_grace: 2s")
			x := g.client(wire.Modern, "up").Start(wire.Call{Token: "1"})
			x.WaitMessages("notifications/progress", 1, 0)
			x.Reset()
			left := time.Now()
			<-gone
			told := time.Now()
			if c := up.Requests("notifications/cancelled"); len(c) > 0 {
				told = c[0].Time // after it, a late answer is waited for
			}
			if d := told.Sub(left); d < 1900*time.Millisecond || d > 4*time.Second {
				t.Errorf("the cancel came after %v, not after the grace of 2 s", d)
			}
			if n := up.Count("notifications/cancelled"); (n == 1) != (server == wire.Legacy) {
				t.Errorf("%d cancel messages", n)
			}
			r, d := g.audited("cancelled", func(r *call.Record, d []call.Delivery) bool { return r.End.Outcome != call.Running && len(d) == 1 })
			if r.End.Outcome != call.Cancelled || r.End.By != "disconnect" || d[0].How != call.AbortedDownstream {
				t.Errorf("record %+v, deliveries %+v", r.End, d)
			}
		})
	}
}

// the same call again, after the stream was lost, runs once: within the
// grace, while detached, and after its end; then it is shown once.
func TestX7Reissue(t *testing.T) {
	t.Parallel()
	for _, version := range []string{wire.Legacy, wire.Modern} {
		for _, policy := range []string{"on_disconnect: cancel", "on_disconnect: detach"} {
			t.Run(version+"/"+policy, func(t *testing.T) {
				t.Parallel()
				s := newStaged()
				up := stagedUp(t, s)
				g := before(t, up, policy, "disconnect_grace: 5s")
				dn := g.client(version, "up")
				x := dn.Start(wire.Call{Token: "1", Args: `{"a":1,"b":[true,null]}`})
				s.let(0, 2)
				x.WaitMessages("notifications/progress", 2, 0)
				x.Reset()
				g.audited("aborted", func(_ *call.Record, d []call.Delivery) bool { return len(d) == 1 })
				y := dn.Start(wire.Call{Token: `"again"`, Args: `{ "b" : [ true, null ], "a" : 1 }`}) // equal, not the same bytes
				y.WaitItems(1, 0)
				s.let(2, 4)
				y.WaitMessages("notifications/progress", 1, 0)
				y.Reset()
				g.audited("aborted twice", func(_ *call.Record, d []call.Delivery) bool { return len(d) == 2 })
				s.let(4, 7)
				g.ended(call.Completed)
				z := dn.Start(wire.Call{Args: `{"a":1,"b":[true,null]}`})
				m := answered(t, z, "worked")
				if string(m.At("result._meta.dev/longcall/replayed")) != "true" {
					t.Errorf("the kept result is not marked: %s", m.JSON)
				}
				if n := up.Count("tools/call"); n != 1 || up.Count("notifications/cancelled") != 0 {
					t.Errorf("sent %d times", n)
				}
				g.audited("replayed", func(_ *call.Record, d []call.Delivery) bool { return len(d) == 3 && d[2].How == call.Replayed })
				w := dn.Start(wire.Call{Args: `{"a":1,"b":[true,null]}`})
				m = answered(t, w, "worked")
				if strings.Contains(m.JSON, "replayed") || up.Count("tools/call") != 2 {
					t.Errorf("a delivered result came again: %s", m.JSON)
				}
			})
		}
	}
}

// Idempotency keys, in _meta and as a header: one run, whatever else happens.
func TestX7IdempotencyKey(t *testing.T) {
	t.Parallel()
	for _, version := range []string{wire.Legacy, wire.Modern} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			s := newStaged()
			up := stagedUp(t, s)
			g := before(t, up)
			dn := g.client(version, "up")
			meta := wire.Call{Token: "1", Meta: `"dev.longcall/idempotencyKey":"k-1"`}
			x := dn.Start(meta)
			s.let(0, 1)
			x.WaitMessages("notifications/progress", 1, 0)
			y := dn.Start(wire.Call{Header: map[string]string{"Idempotency-Key": "k-1"}}) // both connected
			y.WaitItems(1, 0)
			s.let(1, 7)
			answered(t, x, "worked")
			answered(t, y, "worked")
			z := dn.Start(meta)
			if m := answered(t, z, "worked"); !strings.Contains(m.JSON, "replayed") {
				t.Errorf("not marked: %s", m.JSON)
			}
			wrong := dn.Start(wire.Call{Meta: `"dev.longcall/idempotencyKey":"k-1"`, Args: `{"other":1}`})
			if m := wrong.TimedResponse(0); !strings.Contains(m.ToolText(), "idempotency key") || string(m.At("result.isError")) != "true" {
				t.Errorf("a key with other arguments: %s", m.JSON)
			}
			if n := up.Count("tools/call"); n != 1 {
				t.Errorf("sent %d times", n)
			}
			bad := dn.Start(wire.Call{Meta: `"dev.longcall/idempotencyKey":7`})
			if m := bad.TimedResponse(0); string(m.At("error.code")) != "-32602" {
				t.Errorf("a key that is no string: %s", m.JSON)
			}
		})
	}
}
