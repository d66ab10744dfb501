package upstream_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/upstream"
	"github.com/longcall/longcall/test/wire"
)

const said = `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"whose?"}}`

// logged runs n calls side by side, of which the server says something on its
// standalone stream while they run; it returns what each got to see and to note.
func logged(t *testing.T, n int, edit ...func(*upstream.Server)) (messages, notes []string) {
	release := make(chan struct{})
	up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"resources/read": func(c *wire.Conn, r *wire.Request) {
		select {
		case <-release:
			c.JSON(200, r.Result(`{"contents":[]}`))
		case <-c.Gone():
		}
	}}})
	g := newGateway(t, up.URL, edit...)
	var calls []*call.Call
	for range n {
		calls = append(calls, g.request("resources/read", "", `{"uri":"r://1"}`))
	}
	up.WaitRequest("resources/read", n, 0)
	stream := up.Stream()
	stream.Event(said)
	stream.Event(`{"jsonrpc":"2.0","id":"barrier","method":"ping"}`)
	up.WaitRequest("POST", 1, 0) // its answer: what came before is handled
	close(release)
	for _, c := range calls {
		ctx := t.Context()
		for ev, err := range c.Follow(ctx, 0, 0) {
			switch {
			case err != nil:
				t.Fatal(err)
			case ev.Kind == call.KindMessage:
				messages = append(messages, string(ev.Body))
			case ev.Kind == call.KindNote && strings.Contains(string(ev.Body), "unattributed"):
				notes = append(notes, string(ev.Body))
			}
		}
	}
	return messages, notes
}

// P5, SPEC §2.5: a log message on the standalone stream is that of the only call
// that runs, if all calls of the connection are of one principal; else it is
// nobody's.
func TestLogsOnStandalone_P5(t *testing.T) {
	if messages, notes := logged(t, 1); len(messages) != 1 || messages[0] != said || len(notes) != 0 {
		t.Errorf("the only call: %q, notes %q", messages, notes)
	}
	if messages, notes := logged(t, 2); len(messages) != 0 || len(notes) != 2 {
		t.Errorf("two calls: %q, notes %q", messages, notes)
	}
	if messages, notes := logged(t, 1, func(s *upstream.Server) { s.Share = "server" }); len(messages) != 0 || len(notes) != 1 {
		t.Errorf("a shared connection: %q, notes %q", messages, notes)
	}
}

// roots that changed are told to the sessions that were told that they may.
func TestRootsChanged_R27(t *testing.T) {
	up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{
		"resources/read": func(c *wire.Conn, r *wire.Request) { c.JSON(200, r.Result(`{"contents":[]}`)) },
	}})
	g := newGateway(t, up.URL)
	const asks = `{"roots":{"listChanged":true}}`
	for _, caps := range []string{asks, `{"roots":{}}`} {
		c, err := g.engine.Start(t.Context(), call.Spec{
			Principal: "ann", Capabilities: caps, Server: "up", Method: "resources/read", Volatile: true,
			Request: []byte(`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"r://1"}}`),
		})
		if err != nil {
			t.Fatal(err)
		}
		g.follow(c)
	}
	g.pool.RootsChanged(call.Caller{Principal: "ann", Capabilities: `{"roots":{}}`})
	g.pool.RootsChanged(call.Caller{Principal: "bob", Capabilities: asks}) // has no session
	g.pool.RootsChanged(call.Caller{Principal: "ann", Capabilities: asks})
	r := up.WaitRequest("notifications/roots/list_changed", 1, 0)
	if want := up.Requests("resources/read")[0].Header.Get("Mcp-Session-Id"); r.Header.Get("Mcp-Session-Id") != want {
		t.Errorf("told session %q, not %q", r.Header.Get("Mcp-Session-Id"), want)
	}
	if n := up.Count("notifications/roots/list_changed"); n != 1 {
		t.Errorf("told %d times", n)
	}
}

// roots that a server asks for outside of a call are those of who its connection
// serves; it hears when there are more. Of one that several principals share there are
// none.
func TestRootsApart_R42(t *testing.T) {
	const asks = `{"roots":{"listChanged":true}}`
	for _, share := range []string{"principal", "session", "server"} {
		t.Run(share, func(t *testing.T) {
			up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{
				"resources/read": func(c *wire.Conn, r *wire.Request) { c.JSON(200, r.Result(`{"contents":[]}`)) },
			}})
			g := newGateway(t, up.URL, func(s *upstream.Server) { s.Share, s.Unasked = share, []string{"sampling"} })
			g.pool.AnswerRoots(func(_ context.Context, who call.Caller, server string, same func(string) bool) []byte {
				return fmt.Appendf(nil, `{"roots":[{"uri":"x:%s/%s/%s/%v%v"}]}`, server, who.Principal, who.Session, same(`{"roots":{"listChanged":true},"sampling":{}}`), same(`{"roots":{}}`))
			})
			who := call.Caller{Principal: "ann", Session: "s", Capabilities: asks}
			g.pool.RootsJoined(who)
			c, err := g.engine.Start(t.Context(), call.Spec{
				Principal: "ann", Session: "s", Capabilities: asks, Server: "up", Method: "resources/read", Volatile: true,
				Request: []byte(`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"r://1"}}`),
			})
			if err != nil {
				t.Fatal(err)
			}
			g.follow(c)
			g.pool.RootsJoined(who) // it has not asked
			up.Stream().Event(`{"jsonrpc":"2.0","id":3,"method":"roots/list"}`)
			waitReply(t, up, "3", map[string]string{
				"principal": `"result":{"roots":[{"uri":"x:up/ann//truefalse"}]}`, "session": `"result":{"roots":[{"uri":"x:up/ann/s/truefalse"}]}`, "server": `"result":{"roots":[]}`,
			}[share])
			if n := up.Count("notifications/roots/list_changed"); n != 0 {
				t.Errorf("told of changes %d times before it asked", n)
			}
			g.pool.RootsJoined(who)
			up.WaitRequest("notifications/roots/list_changed", 1, deadline)
		})
	}
}
