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

// old is an agent of the 2024-11-05 transport at the scene's server.
func (s *scene) old() *wire.OldClient {
	s.t.Helper()
	return wire.NewOldClient(s.t, s.g.app.URL()+"/sse/"+s.name, "{}")
}

// oldAnswer checks what the one stream of such an agent has brought of a call: its
// answer, once, and its own progress before it, and after it nothing.
func oldAnswer(t *testing.T, c *wire.OldClient, id, token, text string, progress ...string) {
	t.Helper()
	if m := c.Answer(id); m.ToolText() != text || string(m.At("result.isError")) == "true" {
		t.Errorf("the call %s got %s, want %q", id, m.JSON, text)
	}
	var got []string
	answers := 0
	for _, m := range c.Stream.Messages() {
		switch {
		case m.Response() && string(m.ID) == id:
			answers++
		case m.Method == progressMethod && string(m.At("params.progressToken")) == token:
			if answers > 0 {
				t.Errorf("after the answer to %s came %s", id, m.JSON)
			}
			got = append(got, fmt.Sprintf("%s %s", m.At("params.progress"), m.Str("params.message")))
		}
	}
	if answers != 1 || !slices.Equal(got, progress) {
		t.Errorf("the call %s had %d answers, and the progress %q, not %q", id, answers, got, progress)
	}
}

// O4, O5, O6, O7, O8, O10, P10 for agents whose calls share one stream: each token
// with its JSON type, each answer once, nothing without a token or too late, and
// nothing of another agent.
func TestOldAgentsTokens(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	for _, p := range speaking {
		h.add(p.name, wire.Legacy, p.open(t), func(t *testing.T, s *scene) {
			one, two := s.old(), s.old()
			one.Call(wire.Call{ID: `1`, Token: `"0"`, Args: script(step{Turn: 1, Progress: "1", Message: "a1"}, step{Turn: 4, Progress: "1", Message: "a2"}, step{Turn: 6, Text: "a"},
				step{Turn: 7, Pause: 200, Progress: "9", Message: "late"})})
			one.Call(wire.Call{ID: `"1"`, Token: `0`, Args: script(step{Turn: 2, Progress: "5", Message: "b1"}, step{Turn: 5, Progress: "6", Message: "b2"}, step{Turn: 8, Text: "b"})})
			one.Call(wire.Call{ID: `9007199254740993`, Args: script(step{Progress: "1", Message: "nobody's"}, step{Progress: "2", Token: "0", Message: "invented"}, step{Turn: 9, Text: "c"})})
			two.Call(wire.Call{ID: `1`, Token: `"0"`, Args: script(step{Turn: 3, Progress: "1", Message: "d1"}, step{Turn: 10, Text: "d"})})
			oldAnswer(t, two, `1`, `"0"`, "d", "1 d1")
			oldAnswer(t, one, `"1"`, `0`, "b", "5 b1", "6 b2")
			oldAnswer(t, one, `9007199254740993`, ``, "c")
			if m := one.Answer(`1`); m.ToolText() != "a" {
				t.Errorf("%s", m.JSON)
			}
			var values []string
			for _, m := range one.Stream.Progress() {
				if string(m.At("params.progressToken")) == `"0"` {
					values = append(values, m.Str("params.message"))
				}
			}
			if !slices.Equal(values, []string{"a1", "a2"}) {
				t.Errorf("progress %q", values)
			}
			for _, word := range []string{"late", "nobody's", "invented", "d1"} {
				if strings.Contains(one.Stream.Body(), word) {
					t.Errorf("the stream has %q:\n%s", word, one.Stream.Body())
				}
			}
			if n := len(two.Stream.Messages()); n != 3 { // initialize, progress, result
				t.Errorf("the other agent got %d messages:\n%s", n, two.Stream.Body())
			}
		})
	}
	h.run("")
}

// P22, P15: twenty calls at once on one stream, ten progress messages each: nothing
// misplaced, nothing missed, each answer once and last.
func TestOldAgentsMany(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	for _, p := range []place{overSSE, overGET, overOld, overSSEModern, overStdio} {
		h.add(p.name, wire.Legacy, p.open(t), func(t *testing.T, s *scene) {
			c := s.old()
			progress := make([][]string, 20)
			for i := range progress {
				var all []step
				for k := range 10 {
					all = append(all, step{Pause: 10, Progress: fmt.Sprint(k), Message: fmt.Sprintf("%d of %d", k, i)})
					progress[i] = append(progress[i], fmt.Sprintf("%d %d of %d", k, k, i))
				}
				c.Call(wire.Call{ID: fmt.Sprint(i), Token: fmt.Sprintf(`"t%d"`, i), Args: script(append(all, step{Pause: 10, Text: fmt.Sprint("done ", i)})...)})
			}
			for i := range progress {
				oldAnswer(t, c, fmt.Sprint(i), fmt.Sprintf(`"t%d"`, i), fmt.Sprint("done ", i), progress[i]...)
			}
		})
	}
	h.run("")
}

// O1, O2, O14: a silent call is accepted at once, its stream shows life, and brings
// nothing but the answer.
func TestOldAgentsSilence(t *testing.T) {
	t.Parallel()
	h := timedHouse(t)
	for _, p := range []place{overJSON, overOld, overStdio} {
		h.add(p.name, wire.Legacy, p.open(t), func(t *testing.T, s *scene) {
			c := s.old()
			had := len(c.Stream.Messages())
			x := c.Call(wire.Call{ID: `7`, Args: script(step{Pause: 8000, Text: "done"})})
			within(t, "the acceptance of the call", x.HeadAt(), time.Second)
			oldAnswer(t, c, `7`, ``, "done")
			if comments := gaps(t, c.Stream, 6*time.Second); comments < 1 {
				t.Errorf("%d comments in 8 s", comments)
			}
			if n := len(c.Stream.Messages()) - had; n != 1 {
				t.Errorf("%d messages:\n%s", n, c.Stream.Body())
			}
			for _, i := range c.Stream.Items() {
				if i.HasID || i.Retry != "" || !i.Comment && i.Data == "" {
					t.Errorf("an event that could be resumed, or has no data: %+v", i)
				}
			}
		})
	}
	h.run("")
}

// O21, O22, A1: a cancel reaches the one server, by its own id; the call gets no
// answer, the record keeps a late one, and a cancel of what is over changes nothing.
func TestOldAgentsCancel(t *testing.T) {
	t.Parallel()
	h := timedHouse(t)
	for _, p := range []place{overSSE, overOld, overStdio, overStdioModern} {
		h.add(p.name, wire.Legacy, p.open(t), func(t *testing.T, s *scene) {
			c := s.old()
			c.Call(wire.Call{ID: `1010`, Args: script(step{Pause: 1500, Text: "sibling"})})
			s.up.waitSeen(t, "tools/call", 1)
			c.Call(wire.Call{ID: `101`, Token: `101`, Args: script(step{Told: true, Pause: 50, Progress: "1", Message: "late"}, step{Text: "too late"})})
			sent := s.up.waitSeen(t, "tools/call", 2)
			asked := time.Now()
			c.Post(c.Message("", cancelledMethod, `"requestId":101`, ""))
			told := s.up.waitSeen(t, cancelledMethod, 1)
			within(t, "the cancel", told.Time.Sub(asked), 2*time.Second) // how fast is O21's to say, which runs alone
			if id := string(told.At("params.requestId")); id != string(sent.ID) || id == `101` {
				t.Errorf("cancelled %s, not %s", id, sent.ID)
			}
			oldAnswer(t, c, `1010`, ``, "sibling")
			r := s.one(call.Cancelled, "agent")
			if late := s.events(r.ID, call.KindLateResult); len(late) != 1 || !strings.Contains(string(late[0].Body), "too late") {
				t.Errorf("the record has late results %+v", late)
			}
			c.Call(wire.Call{ID: `102`, Token: `101`, Args: script(step{Text: "next"})})
			oldAnswer(t, c, `102`, `101`, "next")
			c.Post(c.Message("", cancelledMethod, `"requestId":102`, ""))
			c.Post(c.Message(`"p"`, "ping", "", ""))
			c.Answer(`"p"`)
			if strings.Contains(c.Stream.Body(), "late") || len(s.up.seen(cancelledMethod)) != 1 {
				t.Errorf("%d cancels; the stream:\n%s", len(s.up.seen(cancelledMethod)), c.Stream.Body())
			}
		})
	}
	h.run("")
}

// O20, P14, O17: an agent that leaves takes nothing with it, and who makes the same
// call again gets its result; a call whose server is lost is said to be open.
func TestOldAgentsLeave(t *testing.T) {
	t.Parallel()
	ways := map[string]func(x *wire.Exchange){"closes": (*wire.Exchange).Close, "resets": (*wire.Exchange).Reset}
	h := timedHouse(t)
	for _, p := range []place{overSSE, overOld, overSSEModern, overStdio} {
		for name, bye := range ways {
			h.add(p.name+" "+name, wire.Legacy, p.open(t), func(t *testing.T, s *scene) {
				c, stays := s.old(), s.old()
				args := script(step{Pause: 1500, Text: "the answer"})
				c.Call(wire.Call{ID: `1`, Args: args})
				s.up.waitSeen(t, "tools/call", 1)
				bye(c.Stream)
				_, d := s.audited("aborted", func(_ *call.Record, d []call.Delivery) bool { return len(d) > 0 })
				if d[0].How != call.AbortedDownstream {
					t.Errorf("delivery %+v", d)
				}
				stays.Call(wire.Call{ID: `1`, Args: args}) // the same call, while it runs
				oldAnswer(t, stays, `1`, ``, "the answer")
				s.ended(call.Completed)
				if n, told := len(s.up.seen("tools/call")), s.up.seen(cancelledMethod); n != 1 || len(told) != 0 {
					t.Errorf("the server was called %d times, and told %v", n, told)
				}
			})
		}
	}
	h.http("the server is lost", wire.Legacy, wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) {
		c.SSE()
		c.Event(r.Progress("1", "", "one"))
		c.Close()
	}}}), func(t *testing.T, s *scene) {
		c := s.old()
		c.Call(wire.Call{ID: `1`, Token: `1`})
		saysUnknown(t, c.Answer(`1`).Msg)
		s.ended(call.Interrupted)
	})
	h.run("")
}

// P6 and its other half, R-16, R-40: what a tool server of either era asks comes on
// the one stream of an agent that has declared it, whose answer goes back, and whose
// call then ends; another stream is not asked, and cannot answer.
func TestOldAgentsAsked(t *testing.T) {
	t.Parallel()
	const asks = `{"messages":[],"maxTokens":5}`
	h := newHouse(t)
	var legacy *wire.Upstream
	legacy = wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) {
		c.SSE()
		c.Event(wire.ServerRequest(`"q"`, "sampling/createMessage", asks))
		for c.Pause(5 * time.Millisecond) {
			for _, a := range legacy.Requests("POST") { // answers have no method
				if string(a.ID) == `"q"` {
					c.Event(r.Text("you said " + a.Str("result.content.text")))
					c.End()
					return
				}
			}
		}
	}}})
	modern := wire.NewUpstream(t, wire.Options{Version: wire.Modern, On: map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) {
		if said := r.Str("params.inputResponses.q.content.text"); said != "" {
			c.Answer(r.Text("you said " + said))
			return
		}
		c.Answer(r.Result(`{"resultType":"input_required","inputRequests":{"q":{"method":"sampling/createMessage","params":` + asks + `}}}`))
	}}})
	for name, up := range map[string]*wire.Upstream{wire.Legacy: legacy, wire.Modern: modern} {
		h.http(name, wire.Legacy, up, func(t *testing.T, s *scene) {
			c := wire.NewOldClient(t, s.g.app.URL()+"/sse/"+s.name, `{"sampling":{}}`)
			other := wire.NewOldClient(t, s.g.app.URL()+"/sse/"+s.name, `{"sampling":{}}`)
			c.Call(wire.Call{ID: `1`})
			q := c.Stream.WaitMessages("sampling/createMessage", 1, 0)[0]
			reply := func(c *wire.OldClient, text string) {
				c.Post(`{"jsonrpc":"2.0","id":` + string(q.ID) + `,"result":{"role":"assistant","model":"m","content":{"type":"text","text":"` + text + `"}}}`)
			}
			reply(other, "stolen")
			reply(c, "hello")
			oldAnswer(t, c, `1`, ``, "you said hello")
			if n := len(other.Stream.Method("sampling/createMessage")); n != 0 {
				t.Errorf("another agent was asked %d times", n)
			}
		})
	}
	h.run("")
}
