package cases_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/test/wire"
)

// increasing checks that the progress values of a stream strictly increase.
func increasing(t *testing.T, x *wire.Exchange) {
	t.Helper()
	last, first := 0.0, true
	for _, m := range x.Progress() {
		v, err := strconv.ParseFloat(string(m.At("params.progress")), 64)
		if err != nil || !first && v <= last {
			t.Errorf("progress does not increase at %s:\n%s", m.JSON, x.Body())
		}
		last, first = v, false
	}
}

// O4: a token comes back as it was, also one that is false in some languages.
func TestO4TokenZero(t *testing.T) {
	t.Parallel()
	everywhere(t, speaking, func(t *testing.T, s *scene) {
		steps := script(step{Progress: "1", Message: "a"}, step{Progress: "2", Message: "b"}, step{Progress: "3", Total: "3", Message: "c"}, step{Text: "done"})
		own := map[string]bool{}
		for i, token := range []string{`0`, `"0"`, `""`, `-7`, `1.5`, `9007199254740993`, `"a\"b\\ é"`, `"\u0030"`} {
			x := s.dn.Start(wire.Call{Token: token, Args: steps})
			answered(t, x, "done")
			tells(t, x, token+" 1 a", token+" 2 b", token+" 3 c")
			sent := string(s.up.waitSeen(t, "tools/call", i+1).At("params._meta.progressToken"))
			if sent == "" || sent == token || own[sent] {
				t.Errorf("the tool server saw the token %q", sent)
			}
			own[sent] = true
		}
	})
}

// O5: 0 and "0" are two tokens, also in one session and interleaved.
func TestO5TokenTypes(t *testing.T) {
	t.Parallel()
	everywhere(t, speaking, func(t *testing.T, s *scene) {
		a := s.dn.Start(wire.Call{Token: `"0"`, ID: `"1"`, Args: script(
			step{Turn: 1, Progress: "1", Message: "a1"}, step{Turn: 3, Progress: "2", Message: "a2"}, step{Turn: 5, Progress: "3", Message: "a3"}, step{Turn: 8, Text: "a"})})
		b := s.dn.Start(wire.Call{Token: `0`, ID: `1`, Args: script(
			step{Turn: 2, Progress: "1", Message: "b1"}, step{Turn: 4, Progress: "2", Message: "b2"}, step{Turn: 6, Progress: "3", Message: "b3"}, step{Turn: 7, Text: "b"})})
		answered(t, a, "a")
		answered(t, b, "b")
		tells(t, a, `"0" 1 a1`, `"0" 2 a2`, `"0" 3 a3`)
		tells(t, b, `0 1 b1`, `0 2 b2`, `0 3 b3`)
	})
}

// O6: who gave no token gets no progress, whatever the tool server sends.
func TestO6NoToken(t *testing.T) {
	t.Parallel()
	everywhere(t, speaking, func(t *testing.T, s *scene) {
		var listen *wire.Exchange
		if s.agent == wire.Legacy {
			listen = s.dn.Listen("")
			listen.WaitItems(1, 0)
		}
		for _, c := range []wire.Call{{}, {Meta: `"x.example/y":1`}} {
			c.Args = script(step{Progress: "1", Message: "own"}, step{Progress: "2", Token: `"invented"`}, step{Progress: "3", Token: "0"},
				step{Progress: "4", Token: "null"}, step{Raw: `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":5}}`}, step{Text: "done"})
			x := s.dn.Start(c)
			answered(t, x, "done")
			tells(t, x)
			if strings.Contains(x.Body(), "notifications/progress") {
				t.Errorf("progress without a token:\n%s", x.Body())
			}
			r := s.ended(call.Completed)
			for _, e := range s.events(r.ID, call.KindProgress) {
				if !strings.Contains(string(e.Body), `"own"`) {
					t.Errorf("the record has progress for nobody: %s", e.Body)
				}
			}
		}
		if listen != nil {
			if got := listen.Messages(); len(got) != 0 {
				t.Errorf("the session's stream brought %s", got[0].JSON)
			}
		}
	})
}

// O7: agents that use the same token never see each other's progress, and the
// end of one is nothing to the other.
func TestO7SameTokenTwoAgents(t *testing.T) {
	t.Parallel()
	check := func(t *testing.T, up tool, one, two *wire.Client) {
		t.Helper()
		a := one.Start(wire.Call{Token: `1`, ID: `1`, Args: script(step{Turn: 1, Progress: "1", Message: "a1"}, step{Turn: 3, Progress: "2", Message: "a2"}, step{Turn: 4, Text: "a"})})
		b := two.Start(wire.Call{Token: `1`, ID: `1`, Args: script(step{Turn: 2, Progress: "1", Message: "b1"},
			step{Turn: 5, Pause: 200, Progress: "2", Message: "b2"}, step{Turn: 6, Progress: "3", Message: "b3"}, step{Turn: 7, Progress: "4", Message: "b4"}, step{Turn: 8, Text: "b"})})
		answered(t, a, "a")
		tells(t, a, `1 1 a1`, `1 2 a2`)
		answered(t, b, "b")
		tells(t, b, `1 1 b1`, `1 2 b2`, `1 3 b3`, `1 4 b4`)
		calls := up.seen("tools/call")
		if len(calls) != 2 {
			t.Fatalf("the tool server saw %d calls", len(calls))
		}
		for _, path := range []string{"params._meta.progressToken", "id"} {
			v, w := string(calls[0].At(path)), string(calls[1].At(path))
			if v == w || v == "1" || w == "1" || v == "" || w == "" {
				t.Errorf("the tool server saw %s %q and %q", path, v, w)
			}
		}
	}
	everywhere(t, speaking, func(t *testing.T, s *scene) {
		check(t, s.up, s.dn, s.client(s.agent))
	})
	for _, p := range []place{overSSE, overSSEModern} {
		for _, agent := range []string{wire.Legacy, wire.Modern} {
			t.Run("two principals, "+p.name+" for "+agent, func(t *testing.T) {
				t.Parallel()
				up := p.open(t)
				g := start(t, "shutdown: {drain: 1s}\nauth: {tokens: {ann: ann-0123456789abcdef0123456789, bob: bob-0123456789abcdef0123456789}}\nmcpServers: {up: "+up.config()+"}\n")
				var agents []*wire.Client
				for _, who := range []string{"ann", "bob"} {
					dn := wire.NewClient(t, g.app.URL()+"/mcp/up", agent)
					dn.Header = map[string]string{"Authorization": "Bearer " + who + "-0123456789abcdef0123456789"}
					dn.Initialize()
					agents = append(agents, dn)
				}
				check(t, up, agents[0], agents[1])
			})
		}
	}
}

// O8: progress that comes after the result goes nowhere, and harms nothing.
func TestO8LateProgress(t *testing.T) {
	t.Parallel()
	everywhere(t, speaking, func(t *testing.T, s *scene) {
		var listen *wire.Exchange
		if s.agent == wire.Legacy {
			listen = s.dn.Listen("")
			listen.WaitItems(1, 0)
		}
		x := s.dn.Start(wire.Call{Token: `1`, Args: script(step{Progress: "1", Message: "early"}, step{Text: "done"},
			step{Turn: 1, Pause: 200, Progress: "2", Message: "late"}, step{Turn: 2, Progress: "3", Message: "later"})})
		answered(t, x, "done")
		tells(t, x, "1 1 early")
		r := s.ended(call.Completed)
		next := s.dn.Start(wire.Call{Token: `1`, Args: script(step{Turn: 3, Progress: "7", Message: "next"}, step{Pause: 100, Text: "again"})})
		answered(t, next, "again")
		tells(t, next, "1 7 next")
		if events := s.events(r.ID, 0); events[len(events)-1].Kind != call.KindEnd {
			t.Errorf("the record goes on after the end: %v", events[len(events)-1])
		}
		if listen != nil {
			if got := listen.Messages(); len(got) != 0 {
				t.Errorf("the session's stream brought %s", got[0].JSON)
			}
		}
	})
}

// O9: progress on the tool server's standalone stream reaches the call's own
// stream, as it comes.
func TestO9PathB(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	for _, p := range []place{overJSON, overGET} {
		for _, agent := range []string{wire.Legacy, wire.Modern} {
			h.add(p.name+" for "+agent, agent, p.open(t), func(t *testing.T, s *scene) {
				var listen *wire.Exchange
				if agent == wire.Legacy {
					listen = s.dn.Listen("")
					listen.WaitItems(1, 0)
				}
				x := s.dn.Start(wire.Call{Token: `"b"`, Args: script(step{Progress: "1", Message: "one"}, step{Pause: 600, Progress: "2", Message: "two"}, step{Pause: 600, Text: "done"})})
				m := answered(t, x, "done")
				tells(t, x, `"b" 1 one`, `"b" 2 two`)
				for i, c := range x.Progress() {
					if early := m.Came - c.Came; early < time.Duration(2-i)*400*time.Millisecond {
						t.Errorf("%s came only %v before the result", c.JSON, early)
					}
				}
				if listen != nil {
					if got := listen.Messages(); len(got) != 0 {
						t.Errorf("the session's stream brought %s", got[0].JSON)
					}
				}
			})
		}
	}
	h.run("")
}

// O10: values that do not increase are raised, and their messages kept.
func TestO10Monotonic(t *testing.T) {
	t.Parallel()
	everywhere(t, speaking, func(t *testing.T, s *scene) {
		for _, values := range []string{"1 1 3 2 4", "0 0 0 1", "-3 -5 2", "5 4 3 2 1 6", "1e2 100 100.5", "0.1 0.1 0.3", "100/100 100/100 100/100 101/100", "1 2 3"} {
			var steps []step
			var want []string
			for i, v := range strings.Fields(values) {
				v, total, _ := strings.Cut(v, "/")
				steps = append(steps, step{Progress: v, Total: total, Message: fmt.Sprintf("m%d", i)})
				want = append(want, fmt.Sprintf("m%d", i))
			}
			last := steps[len(steps)-1].Progress
			x := s.dn.Start(wire.Call{Token: `1`, Args: script(append(steps, step{Text: "done"})...)})
			answered(t, x, "done")
			whole(t, x)
			increasing(t, x)
			var got []string
			for _, m := range x.Progress() {
				got = append(got, m.Str("params.message"))
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: messages %q", values, got)
			}
			if p := x.Progress(); string(p[len(p)-1].At("params.progress")) != last {
				t.Errorf("%s: the last is %s", values, p[len(p)-1].JSON)
			}
		}
	})
}
