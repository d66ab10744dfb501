package upstream_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
	"github.com/longcall/longcall/test/wire"
)

const (
	asksAll  = `{"elicitation":{"form":{},"url":{}},"roots":{"listChanged":true},"sampling":{"tools":{}}}`
	deadline = 10 * time.Second
)

// askable starts a call whose agent can be asked caps.
func (g *gateway) askable(caps string, edit ...func(*call.Spec)) *call.Call {
	g.t.Helper()
	s := call.Spec{
		Principal: "p", Server: "up", Tool: "work", Capabilities: caps, Era: mcp.V20251125, Limits: call.Limits{Answer: time.Minute},
		Request: []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"up__work","arguments":{"n":9007199254740993}}}`),
	}
	for _, f := range edit {
		f(&s)
	}
	c, err := g.engine.Start(g.t.Context(), s)
	if err != nil {
		g.t.Fatal(err)
	}
	return c
}

// asked waits until the call asks something that holds all parts, and gives it.
func asked(t *testing.T, c *call.Call, parts ...string) map[string]json.RawMessage {
	t.Helper()
	over := time.After(deadline)
	for {
		now := string(c.Asked())
		if now != "" && !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(now, p) }) {
			var m map[string]json.RawMessage
			if err := json.Unmarshal([]byte(now), &m); err != nil {
				t.Fatal(err)
			}
			return m
		}
		select {
		case <-over:
			t.Fatalf("asked %q, not %q", now, parts)
		case <-time.After(time.Millisecond):
		}
	}
}

func answer(t *testing.T, c *call.Call, key, value string) {
	t.Helper()
	if err := c.Answer(fmt.Appendf(nil, `{%q:%s}`, key, value), fmt.Appendf(nil, `[%q]`, key)); err != nil {
		t.Fatal(err)
	}
}

// replies gives the responses that the server has got, by their ids.
func replies(up *wire.Upstream) map[string]string {
	out := map[string]string{}
	for _, r := range up.Requests("") {
		out[string(r.ID)] = r.Body
	}
	return out
}

func waitReply(t *testing.T, up *wire.Upstream, id string, parts ...string) {
	t.Helper()
	over := time.After(deadline)
	for {
		got := replies(up)[id]
		if got != "" {
			for _, p := range parts {
				if !strings.Contains(got, p) {
					t.Errorf("the answer to %s is %s, without %s", id, got, p)
				}
			}
			return
		}
		select {
		case <-over:
			t.Fatalf("no answer to %s: %v", id, replies(up))
		case <-time.After(time.Millisecond):
		}
	}
}

// TestAsks: what a server with sessions asks within a call is shown under keys of
// ours, and each answer goes back under its own id; what was not
// declared is refused at once (P6), and the capabilities are declared exactly.
func TestAsks(t *testing.T) {
	release := make(chan struct{})
	up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) {
		c.SSE()
		c.Event(
			`{"jsonrpc":"2.0","id":7,"method":"elicitation/create","params":{"message":"Name?","requestedSchema":{"big":9007199254740993},"_meta":{"progressToken":"tok","x":1}}}`,
			`{"jsonrpc":"2.0","id":"s1","method":"sampling/createMessage","params":{"messages":[],"maxTokens":5}}`,
			`{"jsonrpc":"2.0","id":8,"method":"roots/list"}`,
			`{"jsonrpc":"2.0","id":9,"method":"elicitation/create","params":{"mode":"voice"}}`,
			`{"jsonrpc":"2.0","id":10,"method":"ping"}`,
			`{"jsonrpc":"2.0","id":11,"method":"elicitation/create","params":{"message":"Taken back"}}`,
		)
		<-release
		c.Event(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":11}}`)
		<-release
		c.Event(r.Text("worked"))
		c.End()
	}}})
	g := newGateway(t, up.URL)
	c := g.askable(asksAll)
	waitReply(t, up, "9", "-32601")
	waitReply(t, up, "10", `"result":{}`)
	now := asked(t, c, "elicitation-7", "sampling-s1", "roots-8", "elicitation-11")
	if got := string(now["elicitation-7"]); got != `{"method":"elicitation/create","params":{"message":"Name?","requestedSchema":{"big":9007199254740993},"_meta":{"progressToken":true,"x":1}}}` {
		t.Errorf("asked %s", got)
	}
	if init := up.Requests("initialize")[0].Body; !strings.Contains(init, `"capabilities":`+asksAll+`,`) {
		t.Errorf("declared %s", init)
	}
	c.Pulse(call.Pulse{Key: "elicitation-7", Progress: []byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"ours","progress":3}}`)})
	if r := up.WaitRequest("notifications/progress", 1, deadline); !strings.Contains(r.Body, `"progressToken":"tok","progress":3`) {
		t.Errorf("progress of the agent became %s", r.Body)
	}
	answer(t, c, "elicitation-7", `{"resultType":"complete","action":"accept","content":{"n":9007199254740993}}`)
	waitReply(t, up, "7", `"result":{"action":"accept","content":{"n":9007199254740993}}`)
	answer(t, c, "sampling-s1", `{"dev.longcall/refused":{"code":-1,"message":"User rejected"}}`)
	waitReply(t, up, `"s1"`, `"error":{"code":-1,"message":"User rejected"}`)
	answer(t, c, "roots-8", `{"roots":[]}`)
	waitReply(t, up, "8", `"roots":[]`)
	release <- struct{}{}
	over := time.After(deadline)
	for c.Asked() != nil {
		select {
		case <-over:
			t.Fatalf("still asked: %s", c.Asked())
		case <-time.After(time.Millisecond):
		}
	}
	release <- struct{}{}
	s := g.follow(c)
	s.want(t, call.Completed, "worked")
	if notes := strings.Join(s.notes, "\n"); !strings.Contains(notes, "cannot serve it") || !strings.Contains(notes, "took its elicitation/create back") {
		t.Errorf("notes %q", s.notes)
	}
	if _, ok := replies(up)["11"]; ok {
		t.Error("what was taken back was answered")
	}
}

// TestAsksNobody: without capabilities all is refused at once, as ever (P6).
func TestAsksNobody(t *testing.T) {
	up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) {
		c.SSE()
		c.Event(`{"jsonrpc":"2.0","id":7,"method":"elicitation/create","params":{"message":"Name?"}}`, r.Text("worked"))
		c.End()
	}}})
	g := newGateway(t, up.URL)
	c := g.askable("")
	g.follow(c).want(t, call.Completed, "worked")
	waitReply(t, up, "7", "-32601")
	if init := up.Requests("initialize")[0].Body; !strings.Contains(init, `"capabilities":{},`) {
		t.Errorf("declared %s", init)
	}
}

// TestAsksExpire: a question that nobody answers is told so after limits.answer, in
// the way that lets a server go on, and the server hears before that somebody
// is waited for. The silence of that time is not the server's.
func TestAsksExpire(t *testing.T) {
	ended := make(chan struct{})
	up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) {
		c.SSE()
		c.Event(`{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{"message":"?"}}`, `{"jsonrpc":"2.0","id":2,"method":"roots/list"}`)
		<-ended
		c.Event(r.Text("worked"))
		c.End()
	}}})
	g := newGateway(t, up.URL)
	c := g.askable(asksAll, func(s *call.Spec) {
		s.Limits = call.Limits{Answer: 1500 * time.Millisecond, Idle: 700 * time.Millisecond}
	})
	waitReply(t, up, "1", `"result":{"action":"cancel"}`)
	waitReply(t, up, "2", `"error"`, "Nobody answered")
	close(ended)
	s := g.follow(c)
	s.want(t, call.Completed, "worked")
	if notes := strings.Join(s.notes, "\n"); !strings.Contains(notes, "limits.answer") {
		t.Errorf("notes %q", s.notes)
	}
}

// TestAsksEnd: what is still asked when its call ends is answered, so that no server
// waits for ever.
func TestAsksEnd(t *testing.T) {
	up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) {
		c.SSE()
		c.Event(`{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{"message":"?"}}`, `{"jsonrpc":"2.0","id":2,"method":"sampling/createMessage","params":{}}`)
		c.Hold()
	}}})
	g := newGateway(t, up.URL)
	c := g.askable(asksAll)
	asked(t, c, "elicitation-1", "sampling-2")
	if err := c.Cancel(call.End{By: "agent"}); err != nil {
		t.Fatal(err)
	}
	g.follow(c).want(t, call.Cancelled, "")
	waitReply(t, up, "1", `{"action":"cancel"}`)
	waitReply(t, up, "2", `"error"`)
}

// TestAsksApart: a request on the session's standalone stream is of the call under
// way, if there is exactly one; else it is refused, but for what needs no agent (SPEC
// §4.2).
func TestAsksApart(t *testing.T) {
	release := make(chan struct{})
	up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) {
		c.SSE()
		<-release
		c.Event(r.Text("worked"))
		c.End()
	}}})
	g := newGateway(t, up.URL)
	first := g.askable(asksAll)
	up.WaitRequest("tools/call", 1, deadline)
	stream := up.Stream()
	stream.Event(`{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{"message":"one"}}`)
	asked(t, first, "elicitation-1")
	second := g.askable(asksAll, func(s *call.Spec) { s.Request = append(s.Request, ' ') })
	up.WaitRequest("tools/call", 2, deadline)
	stream.Event(
		`{"jsonrpc":"2.0","id":2,"method":"elicitation/create","params":{"message":"whose?"}}`,
		`{"jsonrpc":"2.0","id":3,"method":"roots/list"}`,
		`{"jsonrpc":"2.0","id":4,"method":"ping"}`,
	)
	waitReply(t, up, "2", "-32602")
	waitReply(t, up, "3", `"roots":[]`)
	waitReply(t, up, "4", `"result":{}`)
	answer(t, first, "elicitation-1", `{"action":"decline"}`)
	waitReply(t, up, "1", `"action":"decline"`)
	close(release)
	g.follow(first).want(t, call.Completed, "worked")
	g.follow(second).want(t, call.Completed, "worked")
}

// TestAsksOnStreamOfNewSession: the first call of an agent that can be asked opens a
// session, and a server that asks on the standalone stream has it when the call
// comes; calls of agents that cannot be asked do not wait for it (P9).
func TestAsksOnStreamOfNewSession(t *testing.T) {
	for caps, want := range map[string]int{asksAll: 1, "": 0} {
		t.Run(caps, func(t *testing.T) {
			called := make(chan struct{})
			var before atomic.Int32
			up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{
				"GET": func(c *wire.Conn, _ *wire.Request) {
					select {
					case <-called:
					case <-time.After(100 * time.Millisecond):
						before.Add(1)
					}
					c.SSE()
				},
				"tools/call": func(c *wire.Conn, r *wire.Request) {
					close(called)
					c.JSON(200, r.Text("worked"))
				},
			}})
			g := newGateway(t, up.URL)
			g.follow(g.askable(caps)).want(t, call.Completed, "worked")
			up.WaitRequest("GET", 1, deadline)
			if n := int(before.Load()); n != want {
				t.Errorf("the stream was open before the call %d times, not %d", n, want)
			}
		})
	}
	t.Run("never opened", func(t *testing.T) {
		up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"GET": wire.Hold}})
		g := newGateway(t, up.URL)
		g.follow(g.askable(asksAll)).want(t, call.Completed, "worked")
	})
}

// TestAskSets: a server with sessions has a connection for each set of capabilities
// of a principal; one that is stateless has one, and hears the set with each request.
func TestAskSets(t *testing.T) {
	for _, version := range []string{wire.Legacy, wire.Modern} {
		t.Run(version, func(t *testing.T) {
			up := wire.NewUpstream(t, wire.Options{Version: version})
			g := newGateway(t, up.URL)
			const form = `{"elicitation":{}}`
			for _, caps := range []string{"", form, asksAll, form, ""} {
				g.follow(g.askable(caps)).want(t, call.Completed, "worked")
			}
			if version == wire.Legacy {
				var declared []string
				for _, r := range up.Requests("initialize") {
					_, rest, _ := strings.Cut(r.Body, `"capabilities":`)
					got, _, _ := strings.Cut(rest, `,"clientInfo"`)
					declared = append(declared, got)
				}
				if want := []string{"{}", form, asksAll}; !slices.Equal(declared, want) {
					t.Errorf("declared %q", declared)
				}
				return
			}
			if n := up.Count("server/discover"); n != 1 {
				t.Errorf("%d times asked what it speaks", n)
			}
			for i, want := range []string{"", `"elicitation":{}`, `"sampling":{"tools":{}}`, `"elicitation":{}`, ""} {
				body := up.Requests("tools/call")[i].Body
				if !strings.Contains(body, want) || want == "" && strings.Contains(body, "elicitation") {
					t.Errorf("call %d declares %s", i, body)
				}
			}
		})
	}
}
