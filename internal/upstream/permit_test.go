package upstream_test

import (
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
	"github.com/longcall/longcall/internal/upstream"
	"github.com/longcall/longcall/test/wire"
)

// TestPolicyOnAsks is SPEC §4.3: what the operator has turned off is not declared to a
// server, of either era, and refused if it asks all the same. Settings of extensions
// reach it if they are let through, beside ours.
func TestPolicyOnAsks(t *testing.T) {
	const declared = `{"elicitation":{"url":{}},"extensions":{"com.example/x":{"deep":[1]},"com.example/y":{}},"roots":{},"sampling":{}}`
	for _, version := range []string{wire.Legacy, wire.Modern} {
		t.Run(version, func(t *testing.T) {
			opt := wire.Options{Version: version, On: map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) {
				if version == wire.Modern {
					c.JSON(200, r.Result(`{"resultType":"input_required","inputRequests":{"k":{"method":"sampling/createMessage","params":{"messages":[],"maxTokens":5}}}}`))
					return
				}
				c.SSE()
				c.Event(`{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{"messages":[],"maxTokens":5}}`,
					`{"jsonrpc":"2.0","id":2,"method":"elicitation/create","params":{"mode":"url","url":"https://x.example","message":"Go"}}`, r.Text("worked"))
				c.End()
			}}}
			up := wire.NewUpstream(t, opt)
			g := newGateway(t, up.URL, func(s *upstream.Server) {
				s.Unasked, s.Extensions = []string{"elicitation", "sampling"}, map[string][]string{"com.example/x": {"x/*"}}
			})
			s := g.follow(g.askable(declared, func(s *call.Spec) { s.Era = mcp.V20260728 }))
			where, want := "initialize", `"capabilities":{"extensions":{"com.example/x":{"deep":[1]}},"roots":{}}`
			if version == wire.Modern {
				where, want = "tools/call", `clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{},"com.example/x":{"deep":[1]}},"roots":{}}`
				if s.end.End.Outcome != call.Failed || !strings.Contains(s.end.End.Text, "has not said it can give: sampling/createMessage") {
					t.Errorf("it ended as %+v", s.end.End)
				}
			} else {
				s.want(t, call.Completed, "worked")
				waitReply(t, up, "1", "-32601")
				waitReply(t, up, "2", "-32601")
			}
			if body := up.Requests(where)[0].Body; !strings.Contains(body, want) {
				t.Errorf("declared %s", body)
			}
		})
	}
}

// TestPolicyNarrows: when the operator turns something off, subscriptions move to the
// connection to which it is not declared.
func TestPolicyNarrows(t *testing.T) {
	up := wire.NewUpstream(t, wire.Options{Capabilities: everything, On: map[string]wire.Handler{
		"resources/subscribe":   func(c *wire.Conn, r *wire.Request) { c.JSON(200, r.Result(`{}`)) },
		"resources/unsubscribe": func(c *wire.Conn, r *wire.Request) { c.JSON(200, r.Result(`{}`)) },
	}})
	g := newGateway(t, up.URL)
	both, one := call.Caller{Principal: "ann", Capabilities: `{"roots":{},"sampling":{}}`}, call.Caller{Principal: "ann", Capabilities: `{"roots":{}}`}
	for _, who := range []call.Caller{both, one} {
		if err := g.pool.Subscribe(t.Context(), who, "up", "file:///a"); err != nil {
			t.Fatal(err)
		}
	}
	g.pool.SetServers(map[string]upstream.Server{"up": {Name: "up", URL: up.URL, Era: "auto", Share: "principal", Unasked: []string{"sampling"}}})
	r := up.WaitRequest("resources/subscribe", 3, deadline)
	last := up.Requests("initialize")
	if body := last[len(last)-1].Body; !strings.Contains(body, `"capabilities":{"roots":{}}`) {
		t.Errorf("declared %s", body)
	}
	g.pool.Unsubscribe(both, "up", "file:///a")
	if err := g.pool.Subscribe(t.Context(), one, "up", "file:///b"); err != nil { // what came before is handled
		t.Fatal(err)
	}
	if n := up.Count("resources/unsubscribe"); n != 0 {
		t.Errorf("unsubscribed from %s while somebody wants to hear", r.Body)
	}
	g.pool.Unsubscribe(one, "up", "file:///a")
	up.WaitRequest("resources/unsubscribe", 1, 10*time.Second)
}
