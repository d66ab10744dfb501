package cases_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/test/wire"
)

// Whatever may take long is kept alive like a tools/call: these are the cases whose
// kind concerns prompts/get, resources/read and completion/complete as well. They
// have no record, and nothing of them is a tool's result.

// everyRead runs a case with each such request at each kind of tool server.
func everyRead(t *testing.T, at []place, f func(t *testing.T, s *scene, method string), more ...string) {
	t.Helper()
	everywhere(t, at, func(t *testing.T, s *scene) {
		for _, method := range wire.Reads {
			f(t, s, method)
		}
	}, more...)
}

// O3, O4, O5, O6, O8, O10, O15, P10 for reads: own progress with its own token,
// increasing, none without one or too late; one JSON body for who takes that only.
func TestReadsProgress(t *testing.T) {
	t.Parallel()
	everyRead(t, speaking, func(t *testing.T, s *scene, method string) {
		slow := !s.place.old // where all share one stream, single bytes would get mixed
		a := s.dn.Read(method, wire.Call{ID: `1.5`, Token: `"0"`, Args: script(step{Progress: "1", Message: "a1"}, step{Pause: 50, Progress: "1", Message: "a2"}, step{Progress: "4", Message: "a3"},
			step{Text: "a"}, step{Pause: 200, Progress: "5", Message: "late"})})
		b := s.dn.Read(method, wire.Call{ID: `9007199254740993`, Token: `0`, Args: script(step{Progress: "7", Message: "é🙂", Slow: slow}, step{Text: "é🙂", Slow: slow})})
		c := s.dn.Read(method, wire.Call{Args: script(step{Progress: "1", Message: "nobody's"}, step{Progress: "2", Token: "0"}, step{Text: "c"})})
		answered(t, a, "a")
		answered(t, b, "é🙂")
		answered(t, c, "c")
		whole(t, a)
		increasing(t, a)
		var got []string
		for _, m := range a.Progress() {
			got = append(got, string(m.At("params.progressToken"))+" "+m.Str("params.message"))
		}
		if fmt.Sprint(got) != `["0" a1 "0" a2 "0" a3]` {
			t.Errorf("%s: progress %q", method, got)
		}
		tells(t, b, `0 7 é🙂`)
		tells(t, c)
		s.dn.Accept = wire.AcceptJSON
		x := s.dn.Read(method, wire.Call{ID: `"x"`, Token: `1`, Args: script(step{Progress: "1"}, step{Text: "one body"})})
		s.dn.Accept = ""
		answered(t, x, "one body")
		if h := x.Head(0); !strings.HasPrefix(h.Get("Content-Type"), "application/json") || strings.Contains(x.Body(), "progress") {
			t.Errorf("%s: %s", h.Get("Content-Type"), x.Body())
		}
	})
}

// O1, O2 for reads: the first byte at once, and signs of life while the tool server
// is silent, with a token too.
func TestReadsSilence(t *testing.T) {
	t.Parallel()
	h := timedHouse(t)
	for _, agent := range []string{wire.Legacy, wire.Modern} {
		for i, p := range []place{overJSON, overOld, overJSONModern, overStdio} {
			method := wire.Reads[i%len(wire.Reads)]
			h.add(p.name+" for "+agent, agent, p.open(t), func(t *testing.T, s *scene) {
				x := s.dn.Read(method, wire.Call{Args: script(step{Pause: 6500, Text: "done"})})
				answered(t, x, "done")
				whole(t, x)
				within(t, "the first byte of the body", x.FirstAt(), time.Second)
				if comments := gaps(t, x, 6*time.Second); comments < 1 || x.Head(0).Get("X-Accel-Buffering") != "no" {
					t.Errorf("%d comments, %v", comments, x.Head(0))
				}
			})
		}
	}
	h.run("")
}

// O21, O22, P7 for reads: the server is told by its own id, the agent gets no answer.
// In both eras a read that nobody waits for any more is cancelled, too.
func TestReadsCancel(t *testing.T) {
	t.Parallel()
	everyRead(t, []place{overSSE, overJSON, overOld, overStdio, overStdioModern}, func(t *testing.T, s *scene, method string) {
		had := len(s.up.seen(method))
		for i, cancel := range []func(x *wire.Exchange, id string){
			func(x *wire.Exchange, id string) {
				if s.agent == wire.Modern {
					x.Close()
				} else if status := s.dn.Cancel(id); status != 202 {
					t.Errorf("HTTP %d", status)
				}
			},
			func(x *wire.Exchange, _ string) { x.Reset() },
		} {
			id := fmt.Sprintf(`"%s %d"`, method, i)
			told := len(s.up.seen(cancelledMethod))
			x := s.dn.Read(method, wire.Call{ID: id, Args: script(step{Told: true, Pause: 100, Text: "too late"})})
			sent := s.up.waitSeen(t, method, had+i+1)
			cancel(x, id)
			got := s.up.waitSeen(t, cancelledMethod, told+1)
			if r := string(got.At("params.requestId")); r != string(sent.ID) || r == id {
				t.Errorf("%s: cancelled %s, not %s", method, r, sent.ID)
			}
			x.End(5 * time.Second)
			if m, ok := x.WaitResponse(time.Millisecond); ok {
				t.Errorf("%s was answered: %s", method, m.JSON)
			}
		}
		answered(t, s.dn.Read(method, wire.Call{Args: script(step{Text: "next"})}), "next")
	})
}

// O17, O19, O25 for reads: what only reads is sent once more after a loss, and what
// longcall has to say then is a JSON-RPC error, since there is no tool's result.
func TestReadsLost(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	for _, version := range []string{wire.Legacy, wire.Modern} {
		for _, agent := range []string{wire.Legacy, wire.Modern} {
			on := map[string]wire.Handler{}
			var up *wire.Upstream
			for _, method := range wire.Reads {
				on[method] = func(c *wire.Conn, r *wire.Request) {
					if r.At("params.arguments.for_good") == nil && up.Count(method)%2 == 0 {
						c.Answer(r.Text("the second time"))
						return
					}
					c.SSE()
					c.Event(r.Progress("1", "", "one"))
					c.Close()
				}
			}
			up = wire.NewUpstream(t, wire.Options{Version: version, Capabilities: hasAll, On: on})
			h.http(version+" for "+agent, agent, up, func(t *testing.T, s *scene) {
				for _, method := range wire.Reads {
					x := s.dn.Read(method, wire.Call{Token: `1`})
					answered(t, x, "the second time")
					whole(t, x)
					increasing(t, x)
					x = s.dn.Read(method, wire.Call{Args: `{"for_good":true}`})
					m := x.Response(0)
					if string(m.At("error.code")) != "-32603" || m.Str("error.data.dev/longcall/outcome.outcome") != "interrupted" || strings.Contains(m.Str("error.message"), "effect") {
						t.Errorf("%s: %s", method, m.JSON)
					}
					if n := up.Count(method); n != 4 {
						t.Errorf("%s was sent %d times", method, n)
					}
				}
			})
		}
	}
	h.run("")
	everyRead(t, []place{overSSE, overJSONModern, overOld, overStdio}, func(t *testing.T, s *scene, method string) {
		m := s.dn.Read(method, wire.Call{Args: script(step{Size: 64<<10 + 1})}).Response(0)
		if string(m.At("error.code")) != "-32603" || m.Str("error.data.dev/longcall/outcome.limit") != "message_bytes" || !strings.Contains(m.Str("error.message"), "limits.message") {
			t.Errorf("%s: %s", method, m.JSON)
		}
		answered(t, s.dn.Read(method, wire.Call{Args: script(step{Text: "next"})}), "next")
	}, "limits: {message: 64KiB}")
}
