package upstream_test

import (
	"strings"
	"testing"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
	"github.com/longcall/longcall/internal/upstream"
	"github.com/longcall/longcall/test/wire"
)

// TestForeignNotifications_R31: notifications that longcall does not know pass in both
// directions if the operator lets them through, and never from a connection that
// several principals share; that a page is done always is told.
func TestForeignNotifications_R31(t *testing.T) {
	up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"resources/read": func(c *wire.Conn, r *wire.Request) { c.JSON(200, r.Result(`{"contents":[]}`)) }}})
	for _, share := range []string{"principal", "server"} {
		g := newGateway(t, up.URL, func(s *upstream.Server) {
			s.Share, s.Extensions = share, map[string][]string{"com.example/x": {"notifications/x/*", "x/*"}}
		})
		told := make(chan string, 10)
		t.Cleanup(g.pool.Watch(func(server string, c mcp.Change) {
			if c.Message != "" {
				told <- server + " " + c.Principal + " " + c.Message
			}
		}))
		g.pool.Notify(call.Caller{Principal: "ann"}, "up", "x/none", nil) // there is no connection
		c, err := g.engine.Start(t.Context(), call.Spec{
			Principal: "ann", Server: "up", Method: "resources/read", Volatile: true,
			Request: []byte(`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"r://1"}}`),
		})
		if err != nil {
			t.Fatal(err)
		}
		g.follow(c)
		stream := up.Stream()
		stream.Event(`{"jsonrpc":"2.0","method":"notifications/y/z"}`, `{"jsonrpc":"2.0","method":"notifications/x/a","params":{"n":9007199254740993}}`,
			`{"jsonrpc":"2.0","method":"notifications/elicitation/complete","params":{"elicitationId":"e"}}`)
		want := []string{`up ann {"jsonrpc":"2.0","method":"notifications/x/a","params":{"n":9007199254740993}}`, `up ann {"jsonrpc":"2.0","method":"notifications/elicitation/complete","params":{"elicitationId":"e"}}`}
		if share == "server" {
			want = []string{strings.Replace(want[1], "up ann", "up ", 1)}
		}
		for _, w := range want {
			if got := <-told; got != w {
				t.Errorf("%s: told %s, want %s", share, got, w)
			}
		}
		g.pool.Notify(call.Caller{Principal: "ann"}, "up", "x/open", []byte(`{"v":1,"_meta":{"progressToken":5,"a.b/c":1}}`))
		if r := up.WaitRequest("x/open", 1, deadline); r.Body != `{"jsonrpc":"2.0","method":"x/open","params":{"v":1,"_meta":{"a.b/c":1}}}` {
			t.Errorf("sent %s", r.Body)
		}
		if up.Count("x/none") != 0 {
			t.Error("a connection was made for a notification")
		}
		up.Close()
		up = wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"resources/read": func(c *wire.Conn, r *wire.Request) { c.JSON(200, r.Result(`{"contents":[]}`)) }}})
	}
}

// R-31 towards a stateless server: with its envelope and headers; roots are nothing to it.
func TestNotifyStateless_R31(t *testing.T) {
	up := wire.NewUpstream(t, wire.Options{Version: wire.Modern})
	g := newGateway(t, up.URL)
	who := call.Caller{Principal: "p", Capabilities: `{"roots":{"listChanged":true}}`}
	g.follow(g.askable(who.Capabilities)).want(t, call.Completed, "worked")
	g.pool.RootsChanged(who)
	g.pool.Notify(who, "up", "x/open", nil)
	r := up.WaitRequest("x/open", 1, deadline)
	if r.Header.Get(mcp.HeaderMethod) != "x/open" || !strings.Contains(r.Body, `"params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"`) || strings.Contains(r.Body, `"id"`) {
		t.Errorf("sent %v %s", r.Header, r.Body)
	}
	if up.Count("notifications/roots/list_changed") != 0 {
		t.Error("a stateless server was told of roots")
	}
}
