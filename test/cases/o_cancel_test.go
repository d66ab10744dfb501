package cases_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/test/wire"
)

// pair is one agent before two tool servers.
type pair struct {
	*scene
	up1, up2 tool
}

func stagePair(t *testing.T, one, two place) *pair {
	t.Helper()
	p := &pair{up1: one.open(t), up2: two.open(t)}
	g := start(t, "shutdown: {drain: 1s}\nmcpServers: {up1: "+p.up1.config()+", up2: "+p.up2.config()+"}\n")
	p.scene = &scene{t: t, g: g, dn: g.client(wire.Legacy, ""), up: p.up2}
	return p
}

// cancelled cancels a call that the nth tools/call at up2 is, and checks that
// up2 hears of it at once, by its own id.
func (p *pair) cancelled(id string, nth int) {
	p.t.Helper()
	sent := p.up2.waitSeen(p.t, "tools/call", nth)
	had := len(p.up2.seen("notifications/cancelled"))
	asked := time.Now()
	if status := p.dn.Cancel(id); status != 202 {
		p.t.Errorf("the cancel gets HTTP %d", status)
	}
	got := p.up2.waitSeen(p.t, "notifications/cancelled", had+1)
	within(p.t, "the cancel", got.Time.Sub(asked), 500*time.Millisecond)
	if r := string(got.At("params.requestId")); r != string(sent.ID) || r == id || r == "" {
		p.t.Errorf("cancelled %s, not the call's id %s there", r, sent.ID)
	}
}

// O21: a cancel goes to the one tool server that it concerns, at once, with
// the id that the call has there.
func TestO21CancelReachesItsServer(t *testing.T) {
	t.Parallel()
	for _, two := range []place{overSSE, overJSON, overStdio, overStdioModern} {
		for _, one := range []place{overSSE, overStdio} {
			t.Run(two.name+" beside "+one.name, func(t *testing.T) {
				t.Parallel()
				p := stagePair(t, one, two)
				other := p.dn.Start(wire.Call{Tool: "up1__work", ID: `"101"`, Args: script(step{Pause: 2500, Text: "other"})})
				sibling := p.dn.Start(wire.Call{Tool: "up2__work", ID: `1010`, Args: script(step{Pause: 2500, Text: "sibling"})})
				p.up2.waitSeen(t, "tools/call", 1)
				x := p.dn.Start(wire.Call{Tool: "up2__work", ID: `101`, Token: `101`, Args: script(step{Progress: "1", Message: "one"}, step{Pause: 6000, Text: "never"})})
				p.cancelled(`101`, 2)
				x.End(3 * time.Second)
				if m, ok := x.WaitResponse(time.Millisecond); ok {
					t.Errorf("the cancelled call was answered: %s", m.JSON)
				}
				answered(t, other, "other")
				answered(t, sibling, "sibling")
				if got := p.up1.seen("notifications/cancelled"); len(got) != 0 {
					t.Errorf("the other server was told %s", got[0].JSON)
				}
				if got := p.up2.seen("notifications/cancelled"); len(got) != 1 {
					t.Errorf("the server was told %d times", len(got))
				}
				p.one(call.Cancelled, "agent")
			})
		}
	}
	// A modern tool server over HTTP is told by the end of the request's stream.
	t.Run("modern SSE", func(t *testing.T) {
		t.Parallel()
		gone := make(chan time.Time, 1)
		up := wire.NewUpstream(t, wire.Options{Version: wire.Modern, On: map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) {
			c.SSE()
			c.Event(r.Progress("1", "", "one"))
			<-c.Gone()
			gone <- time.Now()
		}}})
		p := &pair{scene: &scene{t: t, g: before(t, up)}}
		dn := p.g.client(wire.Legacy, "up")
		x := dn.Start(wire.Call{ID: `101`, Token: `1`})
		x.WaitMessages("notifications/progress", 1, 0)
		asked := time.Now()
		dn.Cancel(`101`)
		within(t, "the end of the stream", (<-gone).Sub(asked), 500*time.Millisecond)
		x.End(3 * time.Second)
		if m, ok := x.WaitResponse(time.Millisecond); ok {
			t.Errorf("the cancelled call was answered: %s", m.JSON)
		}
		if n := up.Count("notifications/cancelled"); n != 0 {
			t.Errorf("%d cancels by message", n)
		}
		p.g.ended(call.Cancelled)
	})
	// The ids 101 and "101" are two, and a cancel of another session's id is nothing.
	t.Run("types and sessions of ids", func(t *testing.T) {
		t.Parallel()
		p := stagePair(t, overSSE, overSSE)
		number := p.dn.Start(wire.Call{Tool: "up2__work", ID: `101`, Args: script(step{Pause: 2000, Text: "number"})})
		p.up2.waitSeen(t, "tools/call", 1)
		word := p.dn.Start(wire.Call{Tool: "up2__work", ID: `"101"`, Args: script(step{Pause: 2000, Text: "word"})})
		p.up2.waitSeen(t, "tools/call", 2)
		stranger := p.g.client(wire.Legacy, "")
		for _, id := range []string{`101`, `"101"`, `null`, `[101]`, `{}`, `101.0`, `102`} {
			if status := stranger.Cancel(id); status != 202 {
				t.Errorf("a cancel of %s gets HTTP %d", id, status)
			}
		}
		if status := p.dn.Notify("notifications/cancelled", ""); status != 202 {
			t.Errorf("a cancel of nothing gets HTTP %d", status)
		}
		p.cancelled(`"101"`, 2)
		answered(t, number, "number")
		word.End(0)
		if m, ok := word.WaitResponse(time.Millisecond); ok {
			t.Errorf("the cancelled call was answered: %s", m.JSON)
		}
		if got := p.up2.seen("notifications/cancelled"); len(got) != 1 {
			t.Errorf("the server was told %d times", len(got))
		}
	})
	// A cancel in the same instant as the call is not lost.
	t.Run("at once", func(t *testing.T) {
		t.Parallel()
		p := stagePair(t, overSSE, overStdio)
		var xs []*wire.Exchange
		for i := range 20 {
			id := fmt.Sprintf(`"at once %d"`, i)
			x := p.dn.Start(wire.Call{Tool: "up2__work", ID: id, Args: script(step{Pause: 6000, Text: "never"})})
			x.Head(0)
			p.dn.Cancel(id)
			xs = append(xs, x)
		}
		for _, x := range xs {
			x.End(5 * time.Second)
			if m, ok := x.WaitResponse(time.Millisecond); ok {
				t.Errorf("the cancelled call was answered: %s", m.JSON)
			}
		}
	})
}

// one checks that the record has one call of an outcome, and who ended it.
func (s *scene) one(want call.Outcome, by string) call.Record {
	s.t.Helper()
	records, err := s.g.journal().List(s.t.Context(), all)
	if err != nil {
		s.t.Fatal(err)
	}
	var found []call.Record
	for _, r := range records {
		if r.End.Outcome == want {
			found = append(found, r)
		}
	}
	if len(found) != 1 || found[0].End.By != by {
		s.t.Fatalf("%d records say %s: %+v", len(found), want, records)
	}
	return found[0]
}

// O22: an answer that comes after the cancel is for the record only.
func TestO22LateAnswer(t *testing.T) {
	t.Parallel()
	for _, two := range []place{overSSE, overJSON, overStdio, overStdioModern} {
		for name, accept := range map[string]string{"stream": wire.AcceptBoth, "JSON": wire.AcceptJSON} {
			t.Run(two.name+" to "+name, func(t *testing.T) {
				t.Parallel()
				p := stagePair(t, overSSE, two)
				p.dn.Accept = accept
				x := p.dn.Start(wire.Call{Tool: "up2__work", ID: `101`, Token: `1`, Args: script(step{Pause: 1000, Progress: "1", Message: "late"}, step{Text: "too late"})})
				p.up2.waitSeen(t, "tools/call", 1)
				wait(500*time.Millisecond - x.Since())
				p.cancelled(`101`, 1)
				x.End(3 * time.Second)
				if m, ok := x.WaitResponse(time.Millisecond); ok || len(x.Messages()) != 0 || strings.Contains(x.Body(), "late") {
					t.Errorf("the agent got %s\n%s", m.JSON, x.Body())
				}
				r, _ := p.g.ended(call.Cancelled)
				if r.End.By != "agent" {
					t.Errorf("the record says %+v", r.End)
				}
				late := p.g.kinds(r.ID, call.KindLateResult)
				if len(late) != 1 || !strings.Contains(string(late[0].Body), "too late") {
					t.Errorf("the record has late results %+v", late)
				}
				if end := p.g.kinds(r.ID, call.KindEnd); len(end) != 1 || len(end[0].Body) != 0 {
					t.Errorf("the record has ends %+v", end)
				}
				answered(t, p.dn.Start(wire.Call{Tool: "up2__work", ID: `101`}), "worked") // the id may be used again
			})
		}
	}
	// A cancel that comes after the answer changes nothing.
	t.Run("too late a cancel", func(t *testing.T) {
		t.Parallel()
		p := stagePair(t, overSSE, overSSE)
		x := p.dn.Start(wire.Call{Tool: "up2__work", ID: `101`})
		answered(t, x, "worked")
		if status := p.dn.Cancel(`101`); status != 202 {
			t.Errorf("HTTP %d", status)
		}
		p.up2.http.Quiet("notifications/cancelled", 0, 300*time.Millisecond)
		p.g.ended(call.Completed)
		_, d := p.g.audited("delivered", func(_ *call.Record, d []call.Delivery) bool { return len(d) == 1 })
		if d[0].How != call.Delivered {
			t.Errorf("delivery %+v", d)
		}
	})
}
