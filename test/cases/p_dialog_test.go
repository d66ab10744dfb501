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

// questions are what a server may ask of an agent, by our id of it, and the
// members of the answer that it must get.
var questions = []struct{ id, method, params, want string }{
	{`"q1"`, "ping", "{}", `{}`},
	{`2`, "elicitation/create", `{"message":"Sure?","requestedSchema":{"type":"object","properties":{}}}`, "-32601"},
	{`2.5`, "sampling/createMessage", `{"messages":[],"maxTokens":1}`, "-32601"},
	{`9007199254740993`, "roots/list", "{}", "-32601"},
}

func init() {
	// asks: puts all questions, works for a while, and answers.
	addTool("asks", func(w *worker, r *wire.Request) {
		for _, q := range questions {
			w.send(wire.ServerRequest(q.id, q.method, q.params))
		}
		w.send(r.Progress("1", "", "asked"))
		w.pause(4 * time.Second)
		w.send(r.Text("worked"))
	})
	// holds: shows a step and never answers, but the tool "other" does at once.
	addTool("holds", func(w *worker, r *wire.Request) {
		if r.Tool == "other" {
			w.send(r.Text("other"))
			return
		}
		w.send(r.Progress("1", "", "begun"))
		w.pause(time.Hour)
	})
}

// responses lists the responses that reached the server.
func (s *server) responses() (out []wire.Msg) {
	var texts []string
	if s.up != nil {
		for _, r := range s.up.Requests("POST") {
			texts = append(texts, r.Body)
		}
	} else {
		for _, n := range s.cmd.Notes("line") {
			texts = append(texts, n.Text)
		}
	}
	for _, b := range texts {
		if m, ok := wire.ParseMsg(b); ok && m.Response() {
			out = append(out, m)
		}
	}
	return out
}

// TestP6 asks an agent that has declared nothing.
func TestP6(t *testing.T) {
	t.Parallel()
	bothEras(t, func(t *testing.T, version string) {
		each(t, "asks", func(t *testing.T, s *server) {
			g := s.start(t)
			x := g.client(version, "up").Start(wire.Call{Token: "5"})
			x.WaitMessages(progressMethod, 1, 0)
			if s.up != nil && s.version == wire.Modern {
				// The stateless era knows no such requests: nothing is answered.
				shows(t, x, "5", "worked", "asked")
				if got := s.responses(); len(got) > 0 {
					t.Errorf("the server got %s", got[0].JSON)
				}
				return
			}
			soon(t, "all answers", func() bool { return len(s.responses()) >= len(questions) })
			if d := x.Since(); d > 3*time.Second {
				t.Errorf("answered after %v", d)
			}
			shows(t, x, "5", "worked", "asked")
			got := s.responses()
			for _, q := range questions {
				i := slices.IndexFunc(got, func(m wire.Msg) bool { return string(m.ID) == q.id })
				if i < 0 {
					t.Errorf("%s was not answered under its id %s", q.method, q.id)
					continue
				}
				if m := got[i]; string(m.Result) != q.want && string(m.At("error.code")) != q.want {
					t.Errorf("%s was answered with %s, want %s", q.method, m.JSON, q.want)
				}
			}
			if len(got) != len(questions) {
				t.Errorf("%d answers", len(got))
			}
			g.ended(call.Completed)
		})
	})
}

// TestP7 cancels a call as an agent does.
func TestP7(t *testing.T) {
	t.Parallel()
	each(t, "holds", func(t *testing.T, s *server) {
		gone := make(chan time.Time, 1)
		if s.up != nil {
			inner := onPost
			if s.name == "http GET" {
				inner = onGet
			}
			s.up = wire.NewUpstream(t, wire.Options{Version: s.version, On: map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) {
				inner(works["holds"])(c, r)
				if r.Tool == "work" {
					gone <- time.Now()
				}
			}}})
		}
		g := s.start(t)
		dn := g.client(wire.Legacy, "up")
		x := dn.Start(wire.Call{ID: `"mine"`, Token: "5"})
		x.WaitMessages(progressMethod, 1, 0)
		began := time.Now()
		if status := dn.Cancel(`"mine"`); status != 202 {
			t.Errorf("HTTP %d", status)
		}
		theirs := string(s.got("tools/call")[0].ID)
		if s.up == nil || s.version == wire.Legacy {
			m := s.wait(t, cancelledMethod, 1)[0]
			if id := string(m.At("params.requestId")); id != theirs || id == `"mine"` {
				t.Errorf("cancelled %s, the call has the id %s", id, theirs)
			}
			if d := time.Since(began); d > time.Second {
				t.Errorf("the server was told after %v", d)
			}
		}
		if s.up != nil { // then the stream closes
			select {
			case at := <-gone:
				if told := s.up.Requests(cancelledMethod); len(told) == 1 && told[0].Time.After(at) {
					t.Error("the stream was closed before the server was told")
				}
			case <-time.After(10 * time.Second):
				t.Error("the stream of the call was not closed")
			}
		}
		if x.End(0); len(x.Messages()) != 1 {
			t.Errorf("the agent was answered: %s", x.Body())
		}
		r, _ := g.ended(call.Cancelled)
		if r.End.By != "agent" {
			t.Errorf("cancelled by %q", r.End.By)
		}
		if m := dn.Start(wire.Call{Tool: "other"}).Response(0); m.ToolText() != "other" {
			t.Errorf("the next call: %s", m.JSON)
		}
		want := 1
		if s.up != nil && s.version == wire.Modern {
			want = 0 // there a closed stream is the cancel
		}
		if n := len(s.got(cancelledMethod)); n != want {
			t.Errorf("the server was told %d times", n)
		}
	})
}

// TestP8 has JSON after 8 s, and progress on the standalone stream meanwhile.
func TestP8(t *testing.T) {
	t.Parallel()
	bothEras(t, func(t *testing.T, version string) {
		const n = 8
		var sent [n]time.Time
		up := wire.NewUpstream(t, wire.Options{JSON: true, On: map[string]wire.Handler{
			"tools/call": func(c *wire.Conn, r *wire.Request) {
				s := c.Stream()
				for i, text := range steps("p", n) {
					sent[i] = time.Now()
					s.Event(r.Progress(fmt.Sprint(i+1), fmt.Sprint(n), text))
					c.Pause(time.Second)
				}
				c.JSON(200, r.Text("worked"))
			},
		}})
		// No limit is as long as the silence on the POST.
		g := before(t, up, "limits: {first_byte: 4s, idle: 4s}")
		dn := g.client(version, "up")
		up.Stream()
		x := dn.Start(wire.Call{Token: "5"})
		start := time.Now().Add(-x.Since())
		shows(t, x, "5", "worked", steps("p", n)...)
		var late []time.Duration
		for i, p := range x.Progress() {
			late = append(late, start.Add(p.Came).Sub(sent[i]))
		}
		if median(late) > time.Second || slices.Max(late) > 3*time.Second { // a busy machine is late now and then
			t.Errorf("the progress came late: %v", late)
		}
		if d := x.TimedResponse(0).Came; d < 7500*time.Millisecond {
			t.Errorf("the result came after %v", d)
		}
		g.ended(call.Completed)
	})
}

// median of some durations.
func median(d []time.Duration) time.Duration {
	d = slices.Clone(d)
	slices.Sort(d)
	return d[len(d)/2]
}

// TestP9 holds the headers of the standalone stream for ever. It runs alone,
// because it looks at the clock.
func TestP9(t *testing.T) {
	instant := map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) { c.JSON(200, r.Text("worked")) }}
	free := wire.NewUpstream(t, wire.Options{NoStream: true, On: instant})
	held := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"GET": wire.Hold, "tools/call": instant["tools/call"]}})
	g := start(t, fmt.Sprintf("shutdown: {drain: 1s}\nmcpServers: {free: {url: %q}, held: {url: %q}}\n", free.URL, held.URL))
	a, b := g.client(wire.Legacy, "free"), g.client(wire.Legacy, "held")
	first := b.Start(wire.Call{}).TimedResponse(0)
	if first.ToolText() != "worked" || first.Came > 2*time.Second {
		t.Fatalf("the first call took %v: %s", first.Came, first.JSON)
	}
	held.WaitRequest("GET", 1, 0)
	// Noise on a busy machine is more than a millisecond, so there are some
	// rounds; a delay would be in every one of them.
	var diff time.Duration
	for range 10 {
		var x, y []time.Duration
		for range 40 {
			x = append(x, a.Start(wire.Call{}).TimedResponse(0).Came)
			y = append(y, b.Start(wire.Call{}).TimedResponse(0).Came)
		}
		if diff = median(y) - median(x); diff < time.Millisecond {
			return
		}
	}
	t.Errorf("calls take %v longer while the server holds the stream's headers", diff)
}

// TestP9Concurrent: and while it does so, many calls run at once.
func TestP9Concurrent(t *testing.T) {
	t.Parallel()
	up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"GET": wire.Hold}})
	g := before(t, up)
	dn := g.client(wire.Modern, "up")
	var xs []*wire.Exchange
	for range 50 {
		xs = append(xs, dn.Start(wire.Call{}))
	}
	for _, x := range xs {
		if m := x.TimedResponse(0); m.ToolText() != "worked" || strings.Contains(m.JSON, "error") {
			t.Error(m.JSON)
		}
	}
	if n := up.Count("initialize"); n != 1 {
		t.Errorf("%d sessions", n)
	}
}
