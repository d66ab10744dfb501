package cases_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/longcall/longcall/test/wire"
)

const betweenWait = 10 * time.Second

// sees waits until one of a method's messages on the stream has a text, and counts those that do.
func sees(t *testing.T, x *wire.Exchange, method, text string) (n int) {
	t.Helper()
	deadline := time.Now().Add(betweenWait)
	for {
		for _, m := range x.Method(method) {
			if strings.Contains(m.JSON, text) {
				n++
			}
		}
		if n > 0 {
			return n
		}
		if time.Now().After(deadline) {
			t.Fatalf("no %s with %s; got %v", method, text, x.Messages())
		}
		<-time.After(2 * time.Millisecond)
	}
}

// What passes between a server and an agent, both with sessions, outside of any call:
// roots that the server asks for, notifications of an extension that the operator
// lets through, and what outlives a restart of longcall: the agent's subscriptions
// and its log level.
func TestBetweenCalls(t *testing.T) {
	t.Parallel()
	var streams sync.Map // of the sessions that longcall has with the server
	answer := func(c *wire.Conn, r *wire.Request) { c.JSON(200, r.Result(`{}`)) }
	up := wire.NewUpstream(t, wire.Options{Capabilities: `{"tools":{},"resources":{"subscribe":true},"logging":{},"extensions":{"com.example/x":{"v":1}}}`, On: map[string]wire.Handler{
		"resources/subscribe": answer, "logging/setLevel": answer,
		"GET": func(c *wire.Conn, r *wire.Request) {
			c.SSE()
			streams.Store(r.Header.Get("Mcp-Session-Id"), c)
			c.Hold()
		},
	}})
	// The stream of the session in which the agent's subscription is.
	ofAgent := func(r *wire.Request) *wire.Conn {
		deadline := time.Now().Add(betweenWait)
		for {
			if c, ok := streams.Load(r.Header.Get("Mcp-Session-Id")); ok {
				return c.(*wire.Conn)
			}
			if time.Now().After(deadline) {
				t.Fatal("the session has no stream")
			}
			<-time.After(2 * time.Millisecond)
		}
	}
	dir := t.TempDir()
	config := fmt.Sprintf("shutdown: {drain: 1s}\nmcpServers: {up: {url: %q, extensions: {com.example/x: [\"x/*\", notifications/x/news]}}}\n", up.URL)
	g := startIn(t, dir, config)
	c := wire.NewClient(t, g.app.URL()+"/mcp", "2025-11-25")
	c.Caps = `{"roots":{"listChanged":true},"extensions":{"com.example/x":{"theirs":[1]}}}`
	c.Initialize()
	stream := c.Listen("")
	stream.Head(betweenWait)
	for _, m := range []wire.Msg{c.Request("resources/subscribe", `"uri":"file:///a"`), c.Request("logging/setLevel", `"level":"error"`)} {
		if m.Error != nil {
			t.Fatal(m.JSON)
		}
	}
	up.WaitRequest("logging/setLevel", 1, betweenWait)
	if !slices.ContainsFunc(up.Requests("initialize"), func(r *wire.Request) bool {
		return strings.Contains(r.Body, `"capabilities":{"extensions":{"com.example/x":{"theirs":[1]}},"roots":{"listChanged":true}}`)
	}) {
		t.Error("the agent's capabilities are not declared")
	}
	server := ofAgent(up.WaitRequest("resources/subscribe", 1, betweenWait))
	server.Event(`{"jsonrpc":"2.0","id":"r","method":"roots/list"}`)
	asked := stream.WaitMessages("roots/list", 1, betweenWait)
	response := c.Do(wire.HTTP{Body: `{"jsonrpc":"2.0","id":` + string(asked[0].ID) + `,"result":{"roots":[{"uri":"file:///work"}]}}`, Header: map[string]string{"Mcp-Protocol-Version": "2025-11-25"}})
	response.Head(betweenWait)
	deadline := time.Now().Add(betweenWait)
	for !slices.ContainsFunc(up.Requests(""), func(r *wire.Request) bool { return string(r.ID) == `"r"` && strings.Contains(r.Body, "file:///work") }) {
		if time.Now().After(deadline) {
			t.Fatal("the server has not got the roots")
		}
		<-time.After(2 * time.Millisecond)
	}
	server.Event(`{"jsonrpc":"2.0","method":"notifications/x/other"}`, `{"jsonrpc":"2.0","method":"notifications/x/news","params":{"n":1}}`)
	sees(t, stream, "notifications/x/news", `"n":1`)
	if len(stream.Method("notifications/x/other")) != 0 {
		t.Error("a notification passed that nobody let through")
	}
	c.Notify("x/open", `"v":2`)
	up.WaitRequest("x/open", 1, betweenWait)

	g.stop()
	subscribed, levels := up.Count("resources/subscribe"), up.Count("logging/setLevel")
	g = startIn(t, dir, config)
	again := wire.NewClient(t, g.app.URL()+"/mcp", "2025-11-25")
	again.Session = c.Session
	stream = again.Listen("")
	resubscribed := up.WaitRequest("resources/subscribe", subscribed+1, betweenWait)
	up.WaitRequest("logging/setLevel", levels+1, betweenWait)
	sees(t, stream, "notifications/resources/updated", "file:///a") // what may have changed meanwhile
	before := len(stream.Method("notifications/resources/updated"))
	ofAgent(resubscribed).Event(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file:///a"}}`)
	stream.WaitMessages("notifications/resources/updated", before+1, betweenWait)
}

// TestX17 is X-17: lists of every kind are the same byte for byte, whatever the order in
// which servers are configured, tell what they have and are asked, and over a restart, also
// before the servers have been asked again.
func TestX17(t *testing.T) {
	t.Parallel()
	var turn atomic.Bool
	list := func(member string, entries ...string) wire.Handler {
		return func(c *wire.Conn, r *wire.Request) {
			now := slices.Clone(entries)
			if turn.Load() {
				slices.Reverse(now)
			}
			c.JSON(200, r.Result(`{"`+member+`":[`+strings.Join(now, ",")+`]}`))
		}
	}
	server := func() *wire.Upstream {
		return wire.NewUpstream(t, wire.Options{Capabilities: `{"tools":{},"prompts":{},"resources":{}}`, On: map[string]wire.Handler{
			"tools/list":               list("tools", `{"name":"b","inputSchema":{"type":"object"}}`, `{"name":"a","inputSchema":{"type":"object","x":[1,2]}}`, `{"name":"a.b","inputSchema":{"type":"object"}}`, `{"name":"a_b","inputSchema":{"type":"object"}}`),
			"prompts/list":             list("prompts", `{"name":"q"}`, `{"name":"p"}`),
			"resources/list":           list("resources", `{"uri":"x:2","name":"2"}`, `{"uri":"x:1","name":"1"}`),
			"resources/templates/list": list("resourceTemplates", `{"uriTemplate":"x:{b}","name":"b"}`, `{"uriTemplate":"x:{a}","name":"a"}`),
		}})
	}
	one, two := server(), server()
	dir := t.TempDir()
	lists := func(dir string, first, second string) (all []string) {
		g := startIn(t, dir, fmt.Sprintf("shutdown: {drain: 1s}\nmcpServers: {%s, %s}\n", first, second))
		defer g.stop()
		for _, version := range []string{"2025-11-25", wire.Modern} {
			c := g.client(version, "")
			for _, method := range []string{"tools/list", "prompts/list", "resources/list", "resources/templates/list"} {
				m := c.Request(method, "")
				all = append(all, version+" "+method+" "+strings.TrimSuffix(string(m.At("result.tools"))+string(m.At("result.prompts"))+string(m.At("result.resources"))+string(m.At("result.resourceTemplates")), "\n"))
			}
		}
		return all
	}
	a, b := fmt.Sprintf("one: {url: %q}", one.URL), fmt.Sprintf("two: {url: %q}", two.URL)
	want := lists(dir, a, b)
	if !strings.Contains(want[0], `"one__a"`) || !strings.Contains(want[0], `"two__b"`) || !strings.Contains(want[2], "x:1") {
		t.Fatalf("%s", want)
	}
	for i, got := range [][]string{lists(dir, a, b), lists(dir, b, a), nil, nil} {
		if got == nil { // of servers that tell it in another order
			turn.Store(true)
			if i == 2 {
				got = lists(dir, a, b)
			} else {
				got = lists(t.TempDir(), b, a)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("start %d:\n%s\nat first:\n%s", i+1, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}
