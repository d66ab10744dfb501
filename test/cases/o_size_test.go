package cases_test

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/test/wire"
)

func init() {
	// noisy writes to stderr without a line end before it replies: as much as
	// the call's argument says, and 256 KiB before it answers anything at all.
	for name, version := range map[string]string{"noisy": wire.Legacy, "noisy modern": wire.Modern} {
		scripts[name] = func(c *wire.Child) {
			noise := func(n int) {
				for ; n > 0; n -= 64 << 10 {
					os.Stderr.WriteString(strings.Repeat("noise ", 64<<10/6+1)[:min(n, 64<<10)])
				}
			}
			noise(256 << 10)
			c.Serve(wire.Options{Version: version}, func(c *wire.Child, r *wire.Request) {
				var a struct{ Bytes int }
				if json.Unmarshal(r.Args, &a) == nil {
					noise(a.Bytes)
				}
				c.Send(r.Text("done"))
			})
		}
	}
}

// tooMuch checks that the answer to a call names the limit that it broke, and
// that the record does.
func (s *scene) tooMuch(x *wire.Exchange, limit int) {
	s.t.Helper()
	x.End(0)
	m := x.TimedResponse(0)
	if text := m.ToolText(); string(m.ID) != x.ID || string(m.At("result.isError")) != "true" || !strings.Contains(text, fmt.Sprint(limit)) || !strings.Contains(text, "limits.message") {
		s.t.Errorf("the answer does not name the limit of %d: %.500s", limit, m.JSON)
	}
	if o := string(m.Outcome()); string(wire.At(o, "limit")) != `"message_bytes"` || string(wire.At(o, "outcome")) != `"failed"` {
		s.t.Errorf("the answer's _meta says %s", o)
	}
	whole(s.t, x)
	r := s.ended(call.Failed)
	if r.End.Limit != "message_bytes" {
		s.t.Errorf("the record says %+v", r.End)
	}
}

// O25: a large message passes unchanged; one over the limit costs its call,
// and nothing else.
func TestO25LargeMessages(t *testing.T) {
	t.Parallel()
	check := func(t *testing.T, s *scene, limit int) {
		t.Helper()
		size := func(tool string, n int) *wire.Exchange {
			return s.dn.Start(wire.Call{Tool: tool, Token: "1", Args: script(step{Size: n})})
		}
		passes := func(tool string, n int) {
			t.Helper()
			x := size(tool, n)
			x.End(0)
			text := x.Response(0).ToolText()
			if len(text) < n-300 || len(text) > n || strings.Trim(text, "x") != "" {
				t.Errorf("a message of %d bytes came as a text of %d: %.200s", n, len(text), text)
			}
			whole(t, x)
		}
		passes("work", limit)
		s.tooMuch(size("work", limit+1), limit)
		answered(t, s.dn.Start(wire.Call{}), "worked")
		s.tooMuch(size("work", 3*limit), limit)
		passes("work", limit)
		// A tool may have a limit of its own, either way.
		passes("small", 32<<10)
		s.tooMuch(size("small", 32<<10+1), 32<<10)
		passes("big", 2*limit)
		s.tooMuch(size("big", 2*limit+1), 2*limit)
		answered(t, s.dn.Start(wire.Call{}), "worked")
		if s.up.cmd != nil {
			if n := len(s.up.cmd.Notes("start")); n != 1 {
				t.Errorf("%d processes", n)
			}
		} else if n := s.up.http.Count(map[bool]string{false: "initialize", true: "GET"}[s.place.old]); n > 1 {
			t.Errorf("%d sessions", n)
		}
	}
	const tools = "tools: {small: {limits: {message: 32KiB}}, big: {limits: {message: "
	everywhere(t, []place{overSSE, overJSON, overOld, overSSEModern, overJSONModern, overStdio, overStdioModern}, func(t *testing.T, s *scene) {
		check(t, s, 64<<10)
	}, "limits: {message: 64KiB}", tools+"128KiB}}}")
	everywhere(t, []place{overJSON, overStdioModern}, func(t *testing.T, s *scene) {
		check(t, s, 1<<20)
	}, "limits: {message: 1MiB}", tools+"2MiB}}}")
	// What is over the limit and no answer is left out; the call goes on.
	everywhere(t, []place{overSSE, overGET, overOld, overSSEModern, overStdio, overStdioModern}, func(t *testing.T, s *scene) {
		x := s.dn.Start(wire.Call{Token: "1", Args: script(step{Progress: "1", Message: "one"}, step{Progress: "2", Message: strings.Repeat("y", 70<<10)}, step{Progress: "3", Message: "three"}, step{Text: "done"})})
		answered(t, x, "done")
		tells(t, x, "1 1 one", "1 3 three")
		s.ended(call.Completed)
	}, "limits: {message: 64KiB}")
	// And it is said when no answer follows it.
	h := newHouse(t)
	for _, server := range []string{wire.Legacy, wire.Modern} {
		h.http("unanswered "+server, wire.Legacy, wire.NewUpstream(t, wire.Options{Version: server, On: map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) {
			c.SSE()
			c.Event(r.Text(strings.Repeat("x", 100<<10)))
			c.Hold() // the stream stays open after the answer
		}}}), func(t *testing.T, s *scene) {
			x := s.dn.Start(wire.Call{})
			s.tooMuch(x, 64<<10)
			within(t, "the answer", x.EndAt(), 5*time.Second)
		}, "limits: {message: 64KiB}")
	}
	h.run("")
}

// O26: what a tool server writes to stderr stops nothing, is not kept whole,
// and reaches neither the agent nor the log. It is not parallel: it looks at
// the process's memory.
func TestO26Stderr(t *testing.T) {
	for _, name := range []string{"noisy", "noisy modern"} {
		t.Run(name, func(t *testing.T) {
			cmd := wire.NewCommand(t, name)
			g := start(t, "mcpServers: {up: "+cmd.Config()+"}\n")
			dn := g.client(wire.Legacy, "up")
			answered(t, dn.Start(wire.Call{}), "done") // it has started, in spite of its noise
			x := dn.Start(wire.Call{Args: fmt.Sprintf(`{"bytes":%d}`, 256<<10)})
			m := answered(t, x, "done")
			within(t, "the answer", m.Came, 2*time.Second)
			had := heap()
			answered(t, dn.Start(wire.Call{Args: fmt.Sprintf(`{"bytes":%d}`, 64<<20)}), "done")
			if grown := heap() - had; grown > 4<<20 {
				t.Errorf("64 MiB of stderr cost %d bytes of memory", grown)
			}
			if strings.Contains(g.log.String(), "noise") || strings.Contains(x.Body(), "noise") {
				t.Error("stderr was shown")
			}
		})
	}
}

// heap is how many bytes of memory are in use.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
