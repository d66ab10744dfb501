package upstream_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
	"github.com/longcall/longcall/test/wire"
)

// rounder is a stateless server that asks in each of rounds, and then answers.
func rounder(t *testing.T, rounds ...string) *wire.Upstream {
	var n atomic.Int32
	return wire.NewUpstream(t, wire.Options{Version: wire.Modern, On: map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) {
		if i := int(n.Add(1)) - 1; i < len(rounds) {
			c.Answer(r.Result(`{"resultType":"input_required",` + rounds[i] + `}`))
			return
		}
		c.Answer(r.Text("worked"))
	}}})
}

// TestRounds: a stateless server's question is asked within the call, and the same
// request made again with the answers and the exact requestState, under a new id,
// until it is done (LM and MM of SPEC §4.2). Keys that come again get others.
func TestRounds(t *testing.T) {
	up := rounder(t,
		`"inputRequests":{"a":{"method":"elicitation/create","params":{"message":"1"}},"b":{"method":"roots/list"}},"requestState":"s\u00e9"`,
		`"requestState":"only again"`,
		`"inputRequests":{"a":{"method":"elicitation/create","params":{"message":"2"}}}`,
	)
	g := newGateway(t, up.URL)
	c := g.askable(asksAll)
	asked(t, c, `"a":{`, `"b":{`)
	answer(t, c, "b", `{"roots":[{"uri":"file:///x"}]}`)
	answer(t, c, "a", `{"action":"accept","content":{"n":9007199254740993}}`)
	asked(t, c, `"a~2":{`)
	answer(t, c, "a~2", `{"dev.longcall/refused":{"code":-1,"message":"User rejected"}}`)
	g.follow(c).want(t, call.Completed, "worked")
	calls := up.Requests("tools/call")
	if len(calls) != 4 {
		t.Fatalf("%d requests", len(calls))
	}
	ids := map[string]bool{}
	for i, want := range []string{
		``,
		`"inputResponses":{"b":{"roots":[{"uri":"file:///x"}]},"a":{"action":"accept","content":{"n":9007199254740993}}},"requestState":"s\u00e9"`,
		`"requestState":"only again"`,
		`"inputResponses":{"a":{"action":"decline"}}`,
	} {
		body := calls[i].Body
		ids[string(calls[i].ID)] = true
		if !strings.Contains(body, want) || !strings.Contains(body, `"arguments":{"n":9007199254740993}`) {
			t.Errorf("request %d is %s, without %s", i, body, want)
		}
		if i == 3 && strings.Contains(body, "requestState") {
			t.Errorf("a state that was not given: %s", body)
		}
	}
	if len(ids) != 4 {
		t.Errorf("ids %v", ids)
	}
}

// TestRoundsEnd: a server that asks without an end, or what was not declared, is given
// up in plain words; a refusal that it has no word for ends the call.
func TestRoundsEnd(t *testing.T) {
	const form, mind = `"inputRequests":{"a":{"method":"elicitation/create","params":{}}}`, `"inputRequests":{"m":{"method":"sampling/createMessage","params":{}}}`
	t.Run("no end", func(t *testing.T) {
		up := rounder(t, form, form, form, form, form, form, form, form, form, form)
		g := newGateway(t, up.URL)
		c := g.askable(asksAll)
		for i := range 8 {
			key := "a"
			if i > 0 {
				key = fmt.Sprintf("a~%d", i+1)
			}
			asked(t, c, `"`+key+`"`)
			answer(t, c, key, `{"action":"accept"}`)
		}
		g.follow(c).want(t, call.Failed, "8 times without an end")
		if n := up.Count("tools/call"); n != 9 {
			t.Errorf("%d requests", n)
		}
	})
	t.Run("undeclared", func(t *testing.T) {
		up := rounder(t, mind)
		g := newGateway(t, up.URL)
		g.follow(g.askable(`{"elicitation":{}}`)).want(t, call.Failed, "has not said it can give")
	})
	t.Run("refused", func(t *testing.T) {
		up := rounder(t, mind)
		g := newGateway(t, up.URL)
		c := g.askable(asksAll)
		asked(t, c, `"m"`)
		answer(t, c, "m", `{"dev.longcall/refused":{"code":-1,"message":"No thanks"}}`)
		g.follow(c).want(t, call.Failed, "No thanks")
	})
	t.Run("nobody, session", func(t *testing.T) {
		up := rounder(t, form)
		g := newGateway(t, up.URL)
		c := g.askable(asksAll, func(s *call.Spec) { s.Limits.Answer = 20 * time.Millisecond })
		g.follow(c).want(t, call.Completed, "worked")
		if body := up.Requests("tools/call")[1].Body; !strings.Contains(body, `{"a":{"action":"cancel"}}`) {
			t.Errorf("the second request is %s", body)
		}
	})
	t.Run("nobody, stateless", func(t *testing.T) {
		up := rounder(t, form+`,"requestState":"kept"`)
		g := newGateway(t, up.URL)
		c := g.askable(asksAll, func(s *call.Spec) { s.Limits.Answer, s.Era = 200*time.Millisecond, mcp.V20260728 })
		asked(t, c, `"a"`)
		_, state := c.Question()
		s := g.follow(c)
		s.want(t, call.TimedOut, "nobody answered")
		if s.end.End.Limit != "answer" {
			t.Errorf("limit %q", s.end.End.Limit)
		}
		// The answer comes all the same, in another call.
		g.follow(g.askable(asksAll, func(s *call.Spec) {
			s.Era, s.State, s.Answers = mcp.V20260728, state, []byte(`{"a":{"action":"accept"}}`)
		})).want(t, call.Completed, "worked")
		if body := up.Requests("tools/call")[1].Body; !strings.Contains(body, `"inputResponses":{"a":{"action":"accept"}},"requestState":"kept"`) {
			t.Errorf("the second request is %s", body)
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		up := rounder(t, form)
		g := newGateway(t, up.URL)
		c := g.askable(asksAll)
		asked(t, c, `"a"`)
		if err := c.Cancel(call.End{By: "agent"}); err != nil {
			t.Fatal(err)
		}
		g.follow(c).want(t, call.Cancelled, "")
		if n := up.Count("tools/call"); n != 1 {
			t.Errorf("%d requests", n)
		}
	})
}

// TestPageFirst: -32042 of a server with sessions becomes a question for a stateless
// agent, and the call is made again when the page was visited; an agent of 2025-11-25
// gets the error as it is (SPEC §4.2).
func TestPageFirst(t *testing.T) {
	var n atomic.Int32
	up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) {
		if n.Add(1)%2 == 1 {
			c.Answer(`{"jsonrpc":"2.0","id":` + string(r.ID) + `,"error":{"code":-32042,"message":"Sign in","data":{"elicitations":[{"mode":"url","elicitationId":"e1","url":"https://x.example/","message":"Sign in"}]}}}`)
			return
		}
		c.Answer(r.Text("worked"))
	}}})
	g := newGateway(t, up.URL)
	g.follow(g.askable(asksAll)).want(t, call.Failed, `"code":-32042`)
	n.Store(0)
	c := g.askable(asksAll, func(s *call.Spec) { s.Era = mcp.V20260728 })
	asked(t, c, `"url-1"`, `"url":"https://x.example/"`)
	answer(t, c, "url-1", `{"action":"accept"}`)
	g.follow(c).want(t, call.Completed, "worked")
	n.Store(0)
	c = g.askable(asksAll, func(s *call.Spec) { s.Era = mcp.V20260728 })
	asked(t, c, `"url-1"`)
	answer(t, c, "url-1", `{"action":"decline"}`)
	g.follow(c).want(t, call.Failed, "was declined")
}
