package upstream_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/call/calltest"
	"github.com/longcall/longcall/internal/upstream"
	"github.com/longcall/longcall/test/wire"
)

// Progress of a call may come on the session's standalone stream, which a new
// process opens, too.
func TestApartProgressAfterRestart(t *testing.T) {
	w := newWorld(t, wire.Options{})
	w.prime = true
	l, f, s := w.run(call.Limits{})
	l.addressed(f.id)
	first := w.up.Stream()
	first.Event(s.Progress("1", "", ""))
	f.readStep(l, 1)
	first.Event(s.Progress("2", "", ""))
	f.readStep(l, 2)
	w.log.Sync()
	l.kill()
	l = w.next(1, 0)
	w.stream(first).Event(s.Progress("3", "", ""))
	f.readStep(l, 3)
	l.finish(f, s, 3)
}

// stream waits for a standalone stream other than that of an earlier process.
func (w *world) stream(old *wire.Conn) (c *wire.Conn) {
	w.t.Helper()
	w.until("the standalone stream is open again", func() bool { c = w.up.Stream(); return c != old })
	return c
}

// What came on the standalone stream and was lost does not come again, so that
// what is new must not be taken for it.
func TestApartProgressIsNotTakenForSeen(t *testing.T) {
	w := newWorld(t, wire.Options{})
	w.prime = true
	l, f, s := w.run(call.Limits{})
	l.addressed(f.id)
	first := w.up.Stream()
	first.Event(s.Progress("1", "", ""))
	f.readStep(l, 1)
	c := l.get(f.id)
	w.until("the address says so", func() bool { return strings.Contains(string(c.Record().Address), "apart") })
	w.log.Sync()
	first.Event(s.Progress("2", "", ""))
	first.Event(s.Progress("3", "", ""))
	f.readStep(l, 3)
	l.kill()
	l = w.next(1, 0)
	w.stream(first).Event(s.Progress("4", "", ""))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	got := l.get(f.id)
	for ev, err := range got.Follow(ctx, got.Position(1, f.seq()), 0) {
		if err != nil {
			t.Fatal(err)
		}
		if v := step(t, ev); v != "4" {
			t.Errorf("step %s", v)
		}
		break
	}
	s.end()
}

// Whatever else the server says on the way, and wherever the process is killed,
// the seqs are those that readers know.
func TestRemarksComeAgain(t *testing.T) {
	big := strings.Repeat("x", 3000)
	said := []struct{ message, kind string }{
		{"no JSON", "note"},
		{wire.ServerRequest(`"q1"`, "ping", "{}"), ""},
		{wire.ServerRequest(`"q2"`, "elicitation/create", "{}"), "note"},
		{`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"m"}}`, "message"},
		{`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"` + big + `"}}`, "note"},
		{`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"nobody's","progress":1}}`, ""},
		{`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"n"}}`, "message"},
	}
	for stored := range len(said) {
		t.Run(fmt.Sprint("stored=", stored), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, wire.Options{})
			w.edit = func(s *upstream.Server) { s.Limits.Message = 2000 }
			l, f, s := w.stepped(call.Limits{})
			want := []string{"accepted", "dispatched", "progress", "address"}
			f.read(l, func(ev call.Event) bool { return ev.Kind == call.KindAddress })
			for i, m := range said {
				if i == stored {
					w.log.Sync()
				}
				s.Append(m.message)
				if m.kind != "" {
					want = append(want, m.kind)
					f.read(l, func(ev call.Event) bool { return ev.Kind.String() == m.kind })
				}
			}
			// A message that names no call must not shift what follows it.
			w.up.Stream().Event(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"loose"}}`)
			s.step(2)
			f.readStep(l, 2)
			if want = append(want, "progress"); !slices.Equal(f.kinds(), want) {
				t.Errorf("shown %v, not %v", f.kinds(), want)
			}
			l.kill()
			l = w.next(1, 0)
			s.step(3)
			l.finish(f, s, 3)
		})
	}
}

// A session that was forgotten between two requests of ours is noticed when a
// stream is resumed: the next call does not meet it.
func TestSessionIsGoneAtResumeInOneLife(t *testing.T) {
	var up *wire.Upstream
	first := true
	up = wire.NewUpstream(t, wire.Options{NoStream: true, On: map[string]wire.Handler{
		"tools/call": func(c *wire.Conn, r *wire.Request) {
			c.SSE()
			if !first {
				c.Event(r.Text("worked"))
				c.End()
				return
			}
			first = false
			c.EventID("a_1", r.Progress("1", "", ""))
			up.Forget()
			c.End() // the connection stays, and tells nothing
		},
	}})
	g := newGateway(t, up.URL)
	g.follow(g.start(call.Limits{})).want(t, call.Interrupted, "refused to resume")
	g.follow(g.start(call.Limits{})).want(t, call.Completed, "worked")
	if up.Count("tools/call") != 2 || up.Count("initialize") != 2 {
		t.Errorf("%d calls, %d initialize", up.Count("tools/call"), up.Count("initialize"))
	}
}

// A call that was sent as a task may be told of its task only after a restart.
func TestTaskIsMadeAfterRestart(t *testing.T) {
	w := &world{t: t, log: calltest.NewMemory(), calls: map[string]*told{}}
	w.up = taskScript{version: wire.Legacy, get: steps(everyBit, ended(wire.Legacy)), on: map[string]wire.Handler{
		"tools/call": func(c *wire.Conn, r *wire.Request) {
			log := w.up.NewLog("a")
			log.Append("")
			w.mu.Lock()
			w.calls["a"] = &told{log, r}
			w.mu.Unlock()
			c.SSE()
			log.Serve(c, 0, 0)
			c.End()
		},
	}}.start(t)
	l, f, s := w.run(call.Limits{})
	l.addressed(f.id)
	w.log.Sync()
	l.kill()
	s.Append(s.Result(`{"task":{` + taskMembers + `,` + everyBit + `}}`))
	s.Finish()
	l = w.next(1, 0)
	if e := f.readEnd(l); e.Outcome != call.Completed || !strings.Contains(string(f.events[len(f.events)-1].Body), "worked") {
		t.Errorf("%+v", e)
	}
	w.undisturbed(1)
	var last string
	for _, ev := range f.events {
		if ev.Kind == call.KindAddress {
			last = string(ev.Body)
		}
	}
	if !strings.Contains(last, `"kind":"task"`) {
		t.Errorf("the last address is %s", last)
	}
}

// A message that may be of either of two calls is in the record in the end.
func TestLooseMessagesWaitForTheEnd(t *testing.T) {
	w := newWorld(t, wire.Options{})
	l, f, s := w.run(call.Limits{})
	s.step(1)
	l.addressed(f.id)
	beside := &follower{t: t, id: l.start("b", call.Limits{}).ID(), epoch: l.epoch}
	other := w.told("b")
	w.up.Stream().Event(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"loose"}}`)
	s.end()
	f.readEnd(l)
	other.end()
	beside.readEnd(l)
	if ev := f.events[len(f.events)-2]; ev.Kind != call.KindNote || !strings.Contains(string(ev.Body), "loose") {
		t.Errorf("%v: %s", f.kinds(), ev.Body)
	}
}

// A process that came up and called before it took the old calls up has two
// sessions; the old one is ended with its last call.
func TestTwoSessions(t *testing.T) {
	w := newWorld(t, wire.Options{})
	l, f, s := w.stepped(call.Limits{})
	w.log.Sync()
	l.kill()
	l = w.begin()
	l.another()
	if a, i, err := l.engine.Recover(t.Context()); a != 1 || i != 0 || err != nil {
		t.Fatal(a, i, err)
	}
	s.step(2)
	f.readStep(l, 2)
	if w.up.Count("DELETE") != 0 {
		t.Error("the session was ended under its call")
	}
	s.end()
	f.readEnd(l)
	f.whole(w, 2)
	if r := w.up.WaitRequest("DELETE", 1, 0); r.Header.Get("Mcp-Session-Id") != "session-1" {
		t.Errorf("ended %s", r.Header.Get("Mcp-Session-Id"))
	}
	l.another()
	if n := w.up.Count("initialize"); n != 2 {
		t.Errorf("%d initialize", n)
	}
}

// A process that was believed dead writes nothing more into its calls (I3).
func TestZombie(t *testing.T) {
	w := newWorld(t, wire.Options{})
	_, f, s := w.stepped(call.Limits{})
	w.log.Sync()
	l := w.next(1, 0)
	s.step(2)
	s.step(3)
	l.finish(f, s, 3)
}

// Any number of crashes at any time: every event once, in order, one dispatch.
func TestCrashesAtRandom(t *testing.T) {
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 1))
	defer func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	}()
	const calls, steps = 4, 12
	w := newWorld(t, wire.Options{})
	w.prime = rnd.IntN(2) == 0
	l := w.begin()
	fs := map[string]*follower{}
	for i := range calls {
		tag := fmt.Sprint("c", i)
		fs[tag] = &follower{t: t, id: l.start(tag, call.Limits{}).ID(), epoch: 1}
		w.told(tag).step(1)
		fs[tag].readStep(l, 1)
		l.addressed(fs[tag].id)
	}
	w.log.Sync()
	for n := 2; n <= steps; n++ {
		for _, tag := range slices.Sorted(maps.Keys(fs)) {
			w.told(tag).step(n)
			if rnd.IntN(3) > 0 {
				fs[tag].readStep(l, n)
			}
			if rnd.IntN(3) == 0 {
				w.log.Sync()
			}
		}
		switch rnd.IntN(4) {
		case 0:
			l.kill()
			l = w.next(calls, 0)
		case 1:
			l.end()
			l = w.next(calls, 0)
		case 2:
			w.up.Cut(rnd.IntN(2) == 0)
		}
	}
	for tag := range fs {
		w.told(tag).end()
	}
	for _, f := range fs {
		f.readEnd(l)
		f.whole(w, steps)
	}
	w.undisturbed(calls)
}
