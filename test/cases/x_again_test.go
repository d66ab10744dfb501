package cases_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/test/wire"
)

// twice is a gateway that is started anew, before a server whose calls can be
// resumed.
type twice struct {
	*gateway
	up          *wire.Upstream
	dir, config string
}

func newTwice(t *testing.T, let chan struct{}) *twice {
	up := replayer(t, 2, let)
	w := &twice{up: up, dir: t.TempDir(), config: fmt.Sprintf("%s\nshutdown: {drain: 100ms}\nmcpServers: {up: {url: %q}}\n", tokens, up.URL)}
	w.gateway = startIn(t, w.dir, w.config)
	return w
}

// restart stops longcall, starts it anew, and gives the agent's client for it.
func (w *twice) restart(agents ...*wire.Client) []*wire.Client {
	w.t.Helper()
	w.stop()
	w.gateway = startIn(w.t, w.dir, w.config)
	var moved []*wire.Client
	for _, a := range agents {
		c := wire.NewClient(w.t, w.app.URL()+"/mcp/up", a.Version)
		c.Session, c.Header, c.Accept = a.Session, a.Header, a.Accept
		moved = append(moved, c)
	}
	return moved
}

// O20 with a restart in the middle: an agent of a session goes away, longcall is
// started anew, and the record has both, the departure and the server's answer.
func TestO20OverRestart(t *testing.T) {
	t.Parallel()
	for _, accept := range []string{wire.AcceptBoth, wire.AcceptJSON} {
		t.Run(accept, func(t *testing.T) {
			t.Parallel()
			let := make(chan struct{})
			w := newTwice(t, let)
			dn := w.agent(wire.Legacy, "up", "ann")
			dn.Accept = accept
			x := dn.Start(wire.Call{Token: "1"})
			w.up.WaitRequest("tools/call", 1, 0)
			id, _ := w.audited("steps", func(r *call.Record, _ []call.Delivery) bool { return r.Seq >= 5 })
			x.Reset()
			w.audited("aborted", func(_ *call.Record, d []call.Delivery) bool {
				return len(d) == 1 && d[0].How == call.AbortedDownstream
			})
			w.restart()
			if r, d := w.audited("there", func(*call.Record, []call.Delivery) bool { return true }); r.End.Outcome != call.Running || len(d) != 1 {
				t.Fatalf("after the restart: %+v, %+v", r.End, d)
			}
			close(let)
			r, d := w.ended(call.Completed)
			if r.ID != id.ID || len(d) != 1 || d[0].How != call.AbortedDownstream {
				t.Errorf("deliveries %+v", d)
			}
			events := w.events(r.ID)
			if end := events[len(events)-1]; !strings.Contains(string(end.Body), "worked") {
				t.Errorf("the record ends with %s", end.Body)
			}
			if n, c := w.up.Count("tools/call"), w.up.Count(cancelledMethod); n != 1 || c != 0 {
				t.Errorf("sent %d times, cancelled %d times", n, c)
			}
		})
	}
}

// O21, O22 and P7 with a restart in the middle: the agent cancels by the id that
// its request had; the server hears it by its own id; the late answer is for the
// record, and the stream that is resumed brings none.
func TestO21OverRestart(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"101", `"101"`} {
		for _, reads := range []bool{false, true} {
			t.Run(fmt.Sprint(id, reads), func(t *testing.T) {
				t.Parallel()
				let := make(chan struct{})
				w := newTwice(t, let)
				dn := w.agent(wire.Legacy, "up", "ann")
				x := dn.Start(wire.Call{ID: id, Token: "1"})
				x.WaitMessages(progressMethod, 2, 0)
				theirs := string(w.up.WaitRequest("tools/call", 1, 0).Msg.ID)
				dn = w.restart(dn)[0]
				x.End(0)
				var y *wire.Exchange
				if reads {
					y = dn.Listen(lastID(x))
					y.WaitItems(1, 0)
				}
				other := map[string]string{"101": `"101"`, `"101"`: "101"}[id]
				bob := w.agent(wire.Legacy, "up", "bob")
				stranger := w.agent(wire.Legacy, "up", "ann") // another session of the same principal
				for _, try := range []struct {
					c  *wire.Client
					id string
				}{{dn, other}, {bob, id}, {stranger, id}} {
					if status := try.c.Cancel(try.id); status != 202 {
						t.Errorf("HTTP %d", status)
					}
				}
				w.up.Quiet(cancelledMethod, 0, 300*time.Millisecond)
				began := time.Now()
				dn.Cancel(id)
				told := w.up.WaitRequest(cancelledMethod, 1, 0)
				within(t, "the cancel", told.Time.Sub(began), 2*time.Second)
				if got := string(told.Msg.At("params.requestId")); got != theirs {
					t.Errorf("cancelled %s, the call has the id %s there", got, theirs)
				}
				close(let) // it answers all the same
				r, _ := w.ended(call.Cancelled)
				if r.End.By != "agent" {
					t.Errorf("ended by %q", r.End.By)
				}
				if reads {
					if err := y.End(5 * time.Second); err != nil {
						t.Errorf("the stream was cut: %v", err)
					}
					if m, ok := y.WaitResponse(time.Millisecond); ok {
						t.Errorf("a cancelled request was answered: %s", m.JSON)
					}
				}
				z := dn.Listen(lastID(x))
				if err := z.End(5 * time.Second); err != nil || z.Status() != 200 {
					t.Errorf("the rest of a cancelled stream: HTTP %d, %v", z.Status(), err)
				}
				if m, ok := z.WaitResponse(time.Millisecond); ok {
					t.Errorf("a cancelled request was answered: %s", m.JSON)
				}
				if n := w.up.Count(cancelledMethod); n != 1 {
					t.Errorf("told %d times", n)
				}
				if n := w.up.Count("tools/call"); n != 1 {
					t.Errorf("sent %d times", n)
				}
			})
		}
	}
}

// P14 with a restart in the middle: one agent goes away, another has its stream
// cut by the restart; each call is its own.
func TestP14OverRestart(t *testing.T) {
	t.Parallel()
	let := make(chan struct{})
	w := newTwice(t, let)
	ann, bob := w.agent(wire.Legacy, "up", "ann"), w.agent(wire.Legacy, "up", "bob")
	x := ann.Start(wire.Call{ID: "1", Token: "1"})
	y := bob.Start(wire.Call{ID: "1", Token: "1"}) // equal in all that agents say
	x.WaitMessages(progressMethod, 2, 0)
	y.WaitMessages(progressMethod, 2, 0)
	x.Reset()
	soon(t, "the departure", func() bool { return w.deliveries(call.AbortedDownstream) == 1 })
	moved := w.restart(ann, bob)
	ann, bob = moved[0], moved[1]
	if err := y.End(0); err != nil {
		t.Errorf("the other stream was cut: %v", err)
	}
	rest := bob.Listen(lastID(y))
	rest.WaitItems(1, 0)
	foreign := ann.Listen(lastID(y))
	if foreign.End(5 * time.Second); foreign.Status() != 400 {
		t.Errorf("another's stream: HTTP %d %q", foreign.Status(), foreign.Body())
	}
	close(let)
	answeredAs(t, rest, y.ID, "worked")
	if got, want := strings.Join(append(texts(y), texts(rest)...), ","), strings.Join(steps("s", 4), ","); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	w.allEnded(2)
	// The first one's result waits for its agent, on its stream.
	own := ann.Listen(lastID(x))
	answeredAs(t, own, x.ID, "worked")
	if got, want := strings.Join(append(texts(x), texts(own)...), ","), strings.Join(steps("s", 4), ","); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if n, c := w.up.Count("tools/call"), w.up.Count(cancelledMethod); n != 2 || c != 0 {
		t.Errorf("sent %d times, cancelled %d times", n, c)
	}
}
