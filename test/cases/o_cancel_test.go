package cases_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/journal/sqlite"
	"github.com/longcall/longcall/test/wire"
)

// pair is one agent before two tool servers, up of the scene and other.
type pair struct {
	*scene
	other     tool
	otherName string
}

// pair adds a part with two tool servers, whose agent is at the endpoint of all.
func (h *house) pair(name string, one, two place, f func(t *testing.T, p *pair)) {
	p := &pair{other: one.open(h.t)}
	p.otherName = h.server(p.other)
	p.scene = h.add(name, wire.Legacy, two.open(h.t), func(t *testing.T, s *scene) {
		p.other.isFor(t)
		s.dn = s.stranger()
		f(t, p)
	})
}

// stranger is another agent at the endpoint of all servers.
func (s *scene) stranger() *wire.Client {
	s.t.Helper()
	c := wire.NewClient(s.t, s.g.app.URL()+"/mcp", s.agent)
	c.Initialize()
	return c
}

// atOnce is what O21 allows a cancel to take.
const atOnce = 500 * time.Millisecond

// cancelled cancels a call that the nth tools/call at up2 is, and checks that
// up2 hears of it within limit, by its own id.
func (p *pair) cancelled(id string, nth int, limit time.Duration) {
	p.t.Helper()
	sent := p.up.waitSeen(p.t, "tools/call", nth)
	had := len(p.up.seen("notifications/cancelled"))
	asked := time.Now()
	if status := p.dn.Cancel(id); status != 202 {
		p.t.Errorf("the cancel gets HTTP %d", status)
	}
	got := p.up.waitSeen(p.t, "notifications/cancelled", had+1)
	within(p.t, "the cancel", got.Time.Sub(asked), limit)
	if r := string(got.At("params.requestId")); r != string(sent.ID) || r == id || r == "" {
		p.t.Errorf("cancelled %s, not the call's id %s there", r, sent.ID)
	}
}

// O21: a cancel goes to the one tool server that it concerns, at once, with
// the id that the call has there. It runs beside no other case: its times are
// short.
func TestO21CancelReachesItsServer(t *testing.T) {
	h := timedHouse(t)
	for _, two := range []place{overSSE, overJSON, overOld, overStdio, overStdioModern} {
		for _, one := range []place{overSSE, overStdio} {
			h.pair(two.name+" beside "+one.name, one, two, func(t *testing.T, p *pair) {
				other := p.dn.Start(wire.Call{Tool: p.otherName + "__work", ID: `"101"`, Args: script(step{Pause: 2500, Text: "other"})})
				sibling := p.dn.Start(wire.Call{Tool: p.name + "__work", ID: `1010`, Args: script(step{Pause: 2500, Text: "sibling"})})
				p.up.waitSeen(t, "tools/call", 1)
				x := p.dn.Start(wire.Call{Tool: p.name + "__work", ID: `101`, Token: `101`, Args: script(step{Progress: "1", Message: "one"}, step{Pause: 6000, Text: "never"})})
				p.cancelled(`101`, 2, atOnce)
				x.End(3 * time.Second)
				if m, ok := x.WaitResponse(time.Millisecond); ok {
					t.Errorf("the cancelled call was answered: %s", m.JSON)
				}
				answered(t, other, "other")
				answered(t, sibling, "sibling")
				if got := p.other.seen("notifications/cancelled"); len(got) != 0 {
					t.Errorf("the other server was told %s", got[0].JSON)
				}
				if got := p.up.seen("notifications/cancelled"); len(got) != 1 {
					t.Errorf("the server was told %d times", len(got))
				}
				p.one(call.Cancelled, "agent")
			})
		}
	}
	// A modern tool server over HTTP is told by the end of the request's stream.
	gone := make(chan time.Time, 1)
	up := wire.NewUpstream(t, wire.Options{Version: wire.Modern, On: map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) {
		c.SSE()
		c.Event(r.Progress("1", "", "one"))
		<-c.Gone()
		gone <- time.Now()
	}}})
	h.http("modern SSE", wire.Legacy, up, func(t *testing.T, s *scene) {
		x := s.dn.Start(wire.Call{ID: `101`, Token: `1`})
		x.WaitMessages("notifications/progress", 1, 0)
		asked := time.Now()
		s.dn.Cancel(`101`)
		within(t, "the end of the stream", (<-gone).Sub(asked), 500*time.Millisecond)
		x.End(3 * time.Second)
		if m, ok := x.WaitResponse(time.Millisecond); ok {
			t.Errorf("the cancelled call was answered: %s", m.JSON)
		}
		if n := up.Count("notifications/cancelled"); n != 0 {
			t.Errorf("%d cancels by message", n)
		}
		s.ended(call.Cancelled)
	})
	// The ids 101 and "101" are two, and a cancel of another session's id is nothing.
	h.pair("types and sessions of ids", overSSE, overSSE, func(t *testing.T, p *pair) {
		number := p.dn.Start(wire.Call{Tool: p.name + "__work", ID: `101`, Args: script(step{Pause: 2000, Text: "number"})})
		p.up.waitSeen(t, "tools/call", 1)
		word := p.dn.Start(wire.Call{Tool: p.name + "__work", ID: `"101"`, Args: script(step{Pause: 2000, Text: "word"})})
		p.up.waitSeen(t, "tools/call", 2)
		stranger := p.stranger()
		for _, id := range []string{`101`, `"101"`, `null`, `[101]`, `{}`, `101.0`, `102`} {
			if status := stranger.Cancel(id); status != 202 {
				t.Errorf("a cancel of %s gets HTTP %d", id, status)
			}
		}
		if status := p.dn.Notify("notifications/cancelled", ""); status != 202 {
			t.Errorf("a cancel of nothing gets HTTP %d", status)
		}
		p.cancelled(`"101"`, 2, atOnce)
		answered(t, number, "number")
		word.End(0)
		if m, ok := word.WaitResponse(time.Millisecond); ok {
			t.Errorf("the cancelled call was answered: %s", m.JSON)
		}
		if got := p.up.seen("notifications/cancelled"); len(got) != 1 {
			t.Errorf("the server was told %d times", len(got))
		}
	})
	// A cancel in the same instant as the call is not lost.
	h.pair("at once", overSSE, overStdio, func(t *testing.T, p *pair) {
		var xs []*wire.Exchange
		for i := range 20 {
			id := fmt.Sprintf(`"at once %d"`, i)
			x := p.dn.Start(wire.Call{Tool: p.name + "__work", ID: id, Args: script(step{Pause: 6000, Text: "never"})})
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
	h.run("")
}

// one checks that the record has one call of an outcome, and who ended it.
func (s *scene) one(want call.Outcome, by string) call.Record {
	s.t.Helper()
	records, err := s.g.journal().List(s.t.Context(), sqlite.Filter{Server: s.name})
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
	h := timedHouse(t)
	for _, two := range []place{overSSE, overJSON, overOld, overStdio, overStdioModern} {
		for name, accept := range map[string]string{"stream": wire.AcceptBoth, "JSON": wire.AcceptJSON} {
			h.pair(two.name+" to "+name, overSSE, two, func(t *testing.T, p *pair) {
				p.dn.Accept = accept
				x := p.dn.Start(wire.Call{Tool: p.name + "__work", ID: `101`, Token: `1`, Args: script(step{Told: true, Pause: 100, Progress: "1", Message: "late"}, step{Text: "too late"})})
				p.up.waitSeen(t, "tools/call", 1)
				p.cancelled(`101`, 1, 2*time.Second) // how fast is O21's to say, which runs alone
				x.End(3 * time.Second)
				if m, ok := x.WaitResponse(time.Millisecond); ok || len(x.Messages()) != 0 || strings.Contains(x.Body(), "late") {
					t.Errorf("the agent got %s\n%s", m.JSON, x.Body())
				}
				r := p.ended(call.Cancelled)
				if r.End.By != "agent" {
					t.Errorf("the record says %+v", r.End)
				}
				late := p.events(r.ID, call.KindLateResult)
				if len(late) != 1 || !strings.Contains(string(late[0].Body), "too late") {
					t.Errorf("the record has late results %+v", late)
				}
				if end := p.events(r.ID, call.KindEnd); len(end) != 1 || len(end[0].Body) != 0 {
					t.Errorf("the record has ends %+v", end)
				}
				answered(t, p.dn.Start(wire.Call{Tool: p.name + "__work", ID: `101`}), "worked") // the id may be used again
			})
		}
	}
	// A cancel that comes after the answer changes nothing.
	h.pair("too late a cancel", overSSE, overSSE, func(t *testing.T, p *pair) {
		x := p.dn.Start(wire.Call{Tool: p.name + "__work", ID: `101`})
		answered(t, x, "worked")
		if status := p.dn.Cancel(`101`); status != 202 {
			t.Errorf("HTTP %d", status)
		}
		p.up.http.Quiet("notifications/cancelled", 0, 300*time.Millisecond)
		p.ended(call.Completed)
		if d := p.delivered(); d.How != call.Delivered {
			t.Errorf("delivery %+v", d)
		}
	})
	h.run("")
}
