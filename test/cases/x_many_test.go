package cases_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/test/wire"
)

// X-7 under load: 50 equal calls lose their agents, and 50 equal calls come at
// once: each takes one over, and none runs anew.
func TestX7FiftyAtOnce(t *testing.T) {
	t.Parallel()
	bothEras(t, func(t *testing.T, version string) {
		let := make(chan struct{})
		up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) {
			c.SSE()
			c.Event(r.Progress("1", "", "one"))
			select {
			case <-let:
				c.Event(r.Text("worked"))
				c.End()
			case <-c.Gone():
			}
		}}})
		g := before(t, up, "on_disconnect: detach")
		dn := g.client(version, "up")
		const n = 50
		start := func() (all []*wire.Exchange) {
			for range n {
				all = append(all, dn.Start(wire.Call{Token: "1", Args: `{"same":true}`}))
			}
			return all
		}
		first := start()
		for _, x := range first {
			x.WaitMessages(progressMethod, 1, 0)
		}
		if got := up.Count("tools/call"); got != n { // all wanted at once: all run
			t.Fatalf("%d of %d wanted calls run", got, n)
		}
		for _, x := range first {
			x.Reset()
		}
		soon(t, "all readers are gone", func() bool { return g.deliveries(call.AbortedDownstream) == n })
		second := start()
		for _, x := range second {
			x.WaitItems(1, 0)
		}
		// Half are lost again, so that their calls end without a reader.
		for _, x := range second[:n/2] {
			x.Reset()
		}
		soon(t, "half of the readers are gone", func() bool { return g.deliveries(call.AbortedDownstream) == n+n/2 })
		close(let)
		for _, x := range second[n/2:] {
			answered(t, x, "worked")
		}
		g.allEnded(n)
		var third []*wire.Exchange
		for range n / 2 {
			third = append(third, dn.Start(wire.Call{Args: `{"same":true}`}))
		}
		for _, x := range third {
			if m := answered(t, x, "worked"); !strings.Contains(m.JSON, `"dev.longcall/replayed":true`) {
				t.Errorf("not marked: %s", m.JSON)
			}
		}
		if got, c := up.Count("tools/call"), up.Count(cancelledMethod); got != n || c != 0 {
			t.Errorf("%d runs, not %d; %d cancels", got, n, c)
		}
		answered(t, dn.Start(wire.Call{Args: `{"same":true}`}), "worked")
		if got := up.Count("tools/call"); got != n+1 {
			t.Errorf("%d runs: a delivered result came again", got)
		}
	})
}

// deliveries counts those of all calls that ended so.
func (g *gateway) deliveries(how call.How) (n int) {
	g.t.Helper()
	for _, r := range g.records() {
		d, err := g.journal().Deliveries(g.t.Context(), r.ID)
		if err != nil {
			g.t.Fatal(err)
		}
		for _, d := range d {
			if d.How == how {
				n++
			}
		}
	}
	return n
}

// A reload while calls are detached changes nothing of them: they run on, and
// take the requests that come again; what is new holds for new calls.
func TestReloadWhileDetached(t *testing.T) {
	t.Parallel()
	s := newStaged()
	up := stagedUp(t, s)
	line := "shutdown: {drain: 1s}\nmcpServers: {up: {url: %q, on_disconnect: %s, disconnect_grace: 1s, attach: %s}}\n"
	g := start(t, fmt.Sprintf(line, up.URL, "detach", "undelivered"))
	reload := func(config string) {
		t.Helper()
		if err := g.rewrite(config); err != nil {
			t.Fatal(err)
		}
	}
	dn := g.client(wire.Modern, "up")
	x := dn.Start(wire.Call{Token: "1"})
	s.let(0, 1)
	x.WaitMessages(progressMethod, 1, 0)
	x.Reset()
	g.audited("aborted", func(_ *call.Record, d []call.Delivery) bool { return len(d) == 1 })
	reload(fmt.Sprintf(line, up.URL, "cancel", "undelivered"))
	pause(2 * time.Second) // longer than the grace: it is no rule of this call
	if n := up.Count("tools/call"); n != 1 || s.end.Load() != 0 {
		t.Fatalf("sent %d times", n)
	}
	y := dn.Start(wire.Call{Token: "2"})
	y.WaitItems(1, 0)
	s.let(1, 3)
	y.WaitMessages(progressMethod, 1, 0)
	reload(fmt.Sprintf(line, up.URL, "cancel", "never"))
	s.let(3, 7)
	answered(t, y, "worked")
	if n := up.Count("tools/call"); n != 1 {
		t.Errorf("sent %d times", n)
	}
	if r, _ := g.ended(call.Completed); r.End.Outcome != call.Completed {
		t.Errorf("%+v", r.End)
	}
	if m := dn.Start(wire.Call{}).Response(0); m.ToolText() != "worked" || up.Count("tools/call") != 2 {
		t.Errorf("after attach: never: %s", m.JSON)
	}
}

// on_disconnect is the tool's, else its server's, else what the annotations say.
func TestOnDisconnectByToolAndServer(t *testing.T) {
	t.Parallel()
	const tools = `[{"name":"work","inputSchema":{"type":"object"}},{"name":"other","inputSchema":{"type":"object"},"annotations":{"destructiveHint":true}}]`
	for _, tt := range []struct {
		config  string
		cancels []string // tools whose work is stopped
	}{
		{"on_disconnect: detach, tools: {work: {on_disconnect: cancel}}", []string{"work"}},
		{"on_disconnect: cancel, tools: {work: {on_disconnect: detach}}", []string{"other"}},
		{"on_disconnect: cancel", []string{"work", "other"}},
		{"on_disconnect: detach", nil},
		{"on_disconnect: auto", []string{"work"}}, // half a change is worse than a whole one
	} {
		t.Run(tt.config, func(t *testing.T) {
			t.Parallel()
			let := make(chan struct{})
			up := wire.NewUpstream(t, wire.Options{Tools: tools, On: map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) {
				c.SSE()
				c.Event(r.Progress("1", "", "one"))
				select {
				case <-let:
					c.Event(r.Text("worked"))
					c.End()
				case <-c.Gone():
				}
			}}})
			g := before(t, up, tt.config, "disconnect_grace: 300ms")
			for _, version := range []string{wire.Legacy, wire.Modern} {
				for _, tool := range []string{"work", "other"} {
					x := g.client(version, "up").Start(wire.Call{Tool: tool, Token: "1", Args: `{"era":"` + version + `"}`})
					x.WaitMessages(progressMethod, 1, 0)
					x.Reset()
				}
			}
			ended := func() (list []string) {
				for _, r := range g.records() {
					if r.End.Outcome == call.Cancelled && r.End.By == "disconnect" {
						list = append(list, r.Era+" "+r.Tool)
					}
				}
				slices.Sort(list)
				return list
			}
			var want []string
			for _, tool := range tt.cancels {
				want = append(want, wire.Modern+" "+tool) // in the era of sessions a lost stream is no cancel (O20)
			}
			slices.Sort(want)
			soon(t, "the cancels", func() bool { return slices.Equal(ended(), want) })
			pause(time.Second)
			if got := ended(); !slices.Equal(got, want) {
				t.Errorf("stopped %q, want %q", got, want)
			}
			close(let)
			g.allEnded(4)
		})
	}
}
