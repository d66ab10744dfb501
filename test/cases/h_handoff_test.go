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

// impatient is the config of agents that wait for one second.
const impatient = `clients: {impatient: {match: {client: "*"}, budget: 1s, budget_token: 1s, await: 1s, await_token: 1s}}` + "\n"

// handedOff checks an answer that hands a call off, and gives the call's id.
func handedOff(t *testing.T, x *wire.Exchange) string {
	t.Helper()
	m := x.TimedResponse(0)
	if m.Came < 900*time.Millisecond || m.Came > 2*time.Second {
		t.Errorf("handed off after %v, not 1 s", m.Came)
	}
	text := m.ToolText()
	id := m.Str("result._meta.dev/longcall/handoff.call")
	for _, want := range []string{"Still running", "do not call it again", "Go on with other work", "await_call", "cancel_call", id} {
		if id == "" || !strings.Contains(text, want) {
			t.Fatalf("the hand-off does not say %q: %s", want, m.JSON)
		}
	}
	return id
}

// awaited calls await_call until the call has ended, and gives the last answer.
func awaited(t *testing.T, dn *wire.Client, id string) wire.TimedMsg {
	t.Helper()
	for range 30 {
		x := dn.Start(wire.Call{Tool: "await_call", Args: `{"ids":["` + id + `"]}`, Token: `"w"`})
		m := x.TimedResponse(0)
		if string(m.At("result.structuredContent.waited_out")) != "true" {
			return m
		}
		if m.Came > 2*time.Second || !strings.Contains(m.ToolText(), "Call await_call again") || string(m.At("result.isError")) == "true" {
			t.Errorf("waited out after %v: %s", m.Came, m.JSON)
		}
	}
	t.Fatal("the call never ended")
	return wire.TimedMsg{}
}

// A call that outlasts its agent's patience is handed off, runs once, and its
// result is read by await_call; while it runs an equal call is the same one, and
// once it was read a new one.
func TestHandOff(t *testing.T) {
	t.Parallel()
	bothEras(t, func(t *testing.T, version string) {
		s := newStaged()
		up := stagedUp(t, s)
		g := start(t, impatient+fmt.Sprintf("mcpServers: {up: {url: %q}}\n", up.URL))
		for _, server := range []string{"up", ""} {
			list := g.client(version, server).Request("tools/list", "")
			for _, name := range []string{"await_call", "cancel_call", "list_calls"} {
				if !strings.Contains(list.JSON, `"name":"`+name+`"`) {
					t.Errorf("%s is not listed at /mcp/%s", name, server)
				}
			}
		}
		dn := g.client(version, "up")
		s.let(0, 1)
		id := handedOff(t, dn.Start(wire.Call{Token: "1"}))
		if again := handedOff(t, dn.Start(wire.Call{})); again != id {
			t.Errorf("the same call again is %s, not %s", again, id)
		}
		if n := up.Count("tools/call"); n != 1 {
			t.Fatalf("sent %d times", n)
		}
		list := dn.Start(wire.Call{Tool: "list_calls"}).Response(0)
		if got := list.Str("result.structuredContent.calls.0.call_id"); got != id || list.Str("result.structuredContent.calls.0.state") != "running" || list.Str("result.structuredContent.calls.0.progress") != "s 1" {
			t.Errorf("listed as %s", list.JSON)
		}
		time.AfterFunc(1500*time.Millisecond, func() { s.let(1, 7) })
		m := awaited(t, dn, id)
		if m.Str("result.content.1.text") != "worked" || m.Str("result.structuredContent.calls.0.state") != "completed" || string(m.At("result.isError")) != "" {
			t.Errorf("awaited: %s", m.JSON)
		}
		if n := up.Count("tools/call"); n != 1 || s.ran.Load() != 1 {
			t.Errorf("sent %d times, ran %d times", n, s.ran.Load())
		}
		_, d := g.audited("delivered", func(_ *call.Record, d []call.Delivery) bool {
			return slices.ContainsFunc(d, func(d call.Delivery) bool { return d.How == call.Delivered })
		})
		if d[0].How != call.HandedOff || d[0].Kind != "sse" {
			t.Errorf("first %+v", d[0])
		}
		if last := d[len(d)-1]; last.How != call.Delivered || last.Kind != "await" {
			t.Errorf("last %+v", last)
		}
		if m := awaited(t, dn, id); m.Str("result.content.1.text") != "worked" {
			t.Errorf("read again: %s", m.JSON)
		}
		answered(t, dn.Start(wire.Call{}), "worked")
		if n := up.Count("tools/call"); n != 2 {
			t.Errorf("sent %d times after the result was read", n)
		}
	})
}

// Results of a tool with an output schema have to conform to it, so that its
// hand-off is an error without structured content (SPEC §8.1 A8).
func TestHandOffWithOutputSchema(t *testing.T) {
	t.Parallel()
	bothEras(t, func(t *testing.T, version string) {
		s := newStaged()
		up := wire.NewUpstream(t, wire.Options{
			Tools: `[{"name":"work","inputSchema":{"type":"object"},"outputSchema":{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}}]`,
			On:    map[string]wire.Handler{"tools/call": s.serve},
		})
		g := start(t, impatient+fmt.Sprintf("mcpServers: {up: {url: %q}}\n", up.URL))
		dn := g.client(version, "")
		dn.Request("tools/list", "")
		x := dn.Start(wire.Call{Tool: "up__work"})
		id := handedOff(t, x)
		if m := x.Response(0); string(m.At("result.isError")) != "true" || m.At("result.structuredContent") != nil {
			t.Errorf("handed off with %s", m.JSON)
		}
		// Its request is answered; a cancel_call ends the work, and says so.
		m := dn.Start(wire.Call{Tool: "cancel_call", Args: `{"id":"` + id + `","reason":"enough"}`}).Response(0)
		if string(m.At("result.structuredContent.cancelled")) != "true" || m.Str("result.structuredContent.state") != "cancelled" {
			t.Errorf("cancel_call: %s", m.JSON)
		}
		r, _ := g.ended(call.Cancelled)
		if !strings.Contains(r.End.Text, "cancel_call: enough") || strings.Contains(g.log.String(), "enough") {
			t.Errorf("recorded as %+v", r.End)
		}
		s.let(0, 7)
	})
}

// The request that still waits for a call hears of its cancel_call.
func TestCancelCallAnswersTheRequest(t *testing.T) {
	t.Parallel()
	bothEras(t, func(t *testing.T, version string) {
		s := newStaged()
		up := stagedUp(t, s)
		g := before(t, up)
		dn := g.client(version, "up")
		x := dn.Start(wire.Call{Token: "1"})
		s.let(0, 1)
		x.WaitMessages(progressMethod, 1, 0)
		id := dn.Start(wire.Call{Tool: "list_calls", Args: `{"state":"running"}`}).Response(0).Str("result.structuredContent.calls.0.call_id")
		m := dn.Start(wire.Call{Tool: "cancel_call", Args: `{"id":"` + id + `"}`}).Response(0)
		if string(m.At("result.structuredContent.cancelled")) != "true" {
			t.Errorf("cancel_call: %s", m.JSON)
		}
		if m := x.Response(0); outcome(m) != "cancelled" || string(m.At("result.isError")) != "true" || !strings.Contains(m.ToolText(), "cancel_call") {
			t.Errorf("the request got %s", m.JSON)
		}
		s.let(1, 7)
	})
}

// hand_off: off means a plain wait, for the server or the tool, and no tools of
// ours if it is off for all.
func TestHandOffOff(t *testing.T) {
	t.Parallel()
	for name, lines := range map[string]string{
		"all": "hand_off: off\nmcpServers: {up: {url: %q}}\n", "server": "mcpServers: {up: {url: %q, hand_off: off}}\n",
		"tool": "mcpServers: {up: {url: %q, tools: {work: {hand_off: off}}}}\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStaged()
			up := stagedUp(t, s)
			g := start(t, impatient+fmt.Sprintf(lines, up.URL))
			dn := g.client(wire.Modern, "up")
			if listed := strings.Contains(dn.Request("tools/list", "").JSON, "await_call"); listed == (name == "all") {
				t.Errorf("await_call is listed: %v", listed)
			}
			x := dn.Start(wire.Call{})
			time.AfterFunc(1800*time.Millisecond, func() { s.let(0, 7) })
			if m := answered(t, x, "worked"); m.Came < 1500*time.Millisecond {
				t.Errorf("answered after %v", m.Came)
			}
		})
	}
}

// A call that ends before its budget is a plain result, always.
func TestPlainAnswersStayPlain(t *testing.T) {
	t.Parallel()
	up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) {
		c.SSE()
		c.Pause(2 * time.Second)
		c.Event(r.Text("worked"))
		c.End()
	}}})
	g := start(t, `clients: {slow: {match: {client: "*"}, budget: 6s, budget_token: 6s}}`+"\n"+fmt.Sprintf("mcpServers: {up: {url: %q}}\n", up.URL))
	dn := g.client(wire.Legacy, "up")
	var all []*wire.Exchange
	for i := range 100 {
		all = append(all, dn.Start(wire.Call{Args: fmt.Sprintf(`{"n":%d}`, i)}))
	}
	for _, x := range all {
		answered(t, x, "worked")
	}
	if n := up.Count("tools/call"); n != 100 {
		t.Errorf("sent %d times", n)
	}
}
