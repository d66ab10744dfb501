package upstream_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
	"github.com/longcall/longcall/internal/upstream"
	"github.com/longcall/longcall/test/wire"
)

var bob = call.Caller{Principal: "bob"}

// subscribable is a server with sessions that takes subscriptions.
func subscribable(t *testing.T, caps string) *shop {
	return newShop(t, wire.Legacy, caps, func(on map[string]wire.Handler) {
		on["resources/subscribe"] = func(c *wire.Conn, r *wire.Request) {
			if strings.Contains(string(r.Params), "unknown") {
				c.JSON(200, r.Fail("-32002", "Resource not found"))
				return
			}
			c.JSON(200, r.Result(`{}`))
		}
		on["resources/unsubscribe"] = func(c *wire.Conn, r *wire.Request) { c.JSON(200, r.Result(`{}`)) }
		on["logging/setLevel"] = func(c *wire.Conn, r *wire.Request) { c.JSON(200, r.Result(`{}`)) }
	})
}

func (s *shop) subscribe(who call.Caller, uri string) error {
	ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Second)
	defer cancel()
	return s.pool.Subscribe(ctx, who, "up", uri)
}

func updatedNote(uri string) string {
	return `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":` + wire.Quote(uri) + `}}`
}

// the first subscription and the end of the last one go to the server, for
// each principal's connection; R-26: its news come back.
func TestSubscribeLegacy_R09(t *testing.T) {
	s := subscribable(t, everything)
	for range 3 {
		if err := s.subscribe(ann, "r://1"); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.up.Count("resources/subscribe"); n != 1 {
		t.Errorf("subscribed %d times", n)
	}
	s.up.Stream().Event(updatedNote("r://1"))
	s.told(mcp.Change{URI: "r://1"})
	for range 2 {
		s.pool.Unsubscribe(ann, "up", "r://1")
	}
	if err := s.subscribe(bob, "r://1"); err != nil { // a connection of his own
		t.Fatal(err)
	}
	if n := s.up.Count("resources/unsubscribe"); n != 0 {
		t.Errorf("unsubscribed %d times too early", n)
	}
	s.pool.Unsubscribe(ann, "up", "r://1")
	if r := s.up.WaitRequest("resources/unsubscribe", 1, 0); string(wire.At(string(r.Params), "uri")) != `"r://1"` {
		t.Errorf("unsubscribed from %s", r.Params)
	}
	if n := s.up.Count("resources/subscribe"); n != 2 {
		t.Errorf("subscribed %d times", n)
	}
}

func TestSubscribeRefused(t *testing.T) {
	s := subscribable(t, everything)
	var rpc *mcp.RPCError
	if err := s.subscribe(ann, "r://unknown"); !errors.As(err, &rpc) || rpc.Code != -32002 {
		t.Errorf("got %v", err)
	}
	if err := s.subscribe(ann, "r://unknown"); !errors.As(err, &rpc) {
		t.Errorf("got %v", err)
	}
	if n := s.up.Count("resources/subscribe"); n != 2 {
		t.Errorf("asked %d times", n)
	}
	if err := s.subscribe(ann, strings.Repeat("x", 8<<10+1)); !errors.As(err, &rpc) || rpc.Code != mcp.CodeInvalidParams {
		t.Errorf("got %v", err)
	}
	// A server that does not say that it takes subscriptions may take them all the same:
	// version 1 of the Python SDK says of each of its servers that it does not.
	s = subscribable(t, `{"tools":{},"resources":{"subscribe":false}}`)
	if err := s.subscribe(ann, "r://1"); err != nil {
		t.Errorf("got %v", err)
	}
	s = newShop(t, wire.Legacy, `{"tools":{},"resources":{}}`)
	if err := s.subscribe(ann, "r://1"); !errors.As(err, &rpc) || rpc.Code != mcp.CodeMethodNotFound {
		t.Errorf("got %v", err)
	}
}

// A server that restarted is told again, and what it may have said meanwhile is
// told as news.
func TestSubscribeAgain(t *testing.T) {
	s := subscribable(t, everything)
	if err := s.subscribe(ann, "r://1"); err != nil {
		t.Fatal(err)
	}
	stream := s.up.Stream()
	s.up.Forget()
	stream.Close() // the standalone stream comes back with a session that is not known
	r := s.up.WaitRequest("resources/subscribe", 2, 0)
	if got := r.Header.Get("Mcp-Session-Id"); got != "session-2" {
		t.Errorf("in session %q", got)
	}
	s.told(mcp.Change{URI: "r://1"})
}

// a server with sessions is set to the most verbose of what the sessions of
// its connection want, and told again when it has forgotten.
func TestSetLevelLegacy_R11(t *testing.T) {
	s := subscribable(t, everything)
	level := func(n int) string {
		t.Helper()
		r := s.up.WaitRequest("logging/setLevel", n, 0)
		l, _ := mcp.String(wire.At(string(r.Params), "level"))
		return l
	}
	one, two := call.Caller{Principal: "ann", Session: "1"}, call.Caller{Principal: "ann", Session: "2"}
	s.pool.SetLevel(one, "warning") // before there is a connection
	s.set("tools/list", `{"tools":[]}`)
	s.list(mcp.ListTools)
	if got := level(1); got != "warning" {
		t.Error(got)
	}
	s.pool.SetLevel(two, "debug")
	if got := level(2); got != "debug" {
		t.Error(got)
	}
	s.pool.SetLevel(call.Caller{Principal: "bob", Session: "3"}, "debug") // nothing to do with ann's
	s.pool.EndSession("ann", "2")
	s.pool.SetLevel(one, "error")
	if got := level(3); got != "error" {
		t.Error(got)
	}
	s.up.Forget()
	if _, err := s.pool.List(t.Context(), one, "up", mcp.ListPrompts); err != nil {
		t.Log(err) // the list is none of this test's
	}
	if got := level(4); got != "error" {
		t.Error(got)
	}
}

// A request of the other era that wants log messages raises the level before it
// is sent.
func TestLevelOfRequest(t *testing.T) {
	up := wire.NewUpstream(t, wire.Options{Capabilities: everything, On: map[string]wire.Handler{
		"logging/setLevel": func(c *wire.Conn, r *wire.Request) { c.JSON(200, r.Result(`{}`)) },
		"resources/read":   func(c *wire.Conn, r *wire.Request) { c.JSON(200, r.Result(`{"contents":[]}`)) },
	}})
	g := newGateway(t, up.URL)
	for _, level := range []string{"info", "info", "error", "debug"} {
		c, err := g.engine.Start(t.Context(), call.Spec{
			Principal: "ann", Server: "up", Method: "resources/read", Volatile: true, LogLevel: level,
			Request: []byte(`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"r://1","_meta":{"io.modelcontextprotocol/logLevel":"` + level + `"}}}`),
		})
		if err != nil {
			t.Fatal(err)
		}
		g.follow(c).want(t, call.Completed, "contents")
	}
	var got []string
	for _, r := range up.Requests("") {
		switch r.Method {
		case "logging/setLevel":
			got = append(got, "set "+string(wire.At(string(r.Params), "level")))
		case "resources/read":
			got = append(got, "read")
			if strings.Contains(r.Body, "logLevel") {
				t.Errorf("sent %s", r.Body)
			}
		}
	}
	if want := []string{`set "info"`, "read", "read", "read", `set "debug"`, "read"}; !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

// a stateless server hears with each request what its session wants.
func TestLevelOfSession(t *testing.T) {
	up := wire.NewUpstream(t, wire.Options{Version: wire.Modern, On: map[string]wire.Handler{
		"resources/read": func(c *wire.Conn, r *wire.Request) { c.JSON(200, r.Result(`{"contents":[]}`)) },
	}})
	g := newGateway(t, up.URL)
	g.pool.SetLevel(call.Caller{Principal: "ann"}, "notice")
	g.follow(g.request("resources/read", "", `{"uri":"r://1"}`)).want(t, call.Completed, "contents")
	if r := up.WaitRequest("resources/read", 1, 0); !strings.Contains(r.Body, `"io.modelcontextprotocol/logLevel":"notice"`) {
		t.Errorf("sent %s", r.Body)
	}
	g.pool.SetLevel(call.Caller{Principal: "ann"}, "")
	g.follow(g.request("resources/read", "", `{"uri":"r://1"}`)).want(t, call.Completed, "contents")
	if r := up.WaitRequest("resources/read", 2, 0); strings.Contains(r.Body, "logLevel") {
		t.Errorf("sent %s", r.Body)
	}
}

// A connection whose configuration changed hands its subscriptions to the next.
func TestSubscribeNewConfiguration(t *testing.T) {
	s := subscribable(t, everything)
	if err := s.subscribe(ann, "r://1"); err != nil {
		t.Fatal(err)
	}
	s.pool.SetServers(map[string]upstream.Server{"up": {Name: "up", URL: s.up.URL + "?again", Era: "auto", Share: "principal"}})
	if r := s.up.WaitRequest("resources/subscribe", 2, 0); !strings.HasSuffix(r.Path, "?again") {
		t.Errorf("sent to %s", r.Path)
	}
	s.pool.Unsubscribe(ann, "up", "r://1")
	s.up.WaitRequest("resources/unsubscribe", 1, 0)
}
