//go:build unix

package cases_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/longcall/longcall/test/wire"
)

// Over a pipe too, a host of either era hears of changes of lists and of resources that it
// has subscribed to, and a session still does when the serve was killed
// in between.
func TestStdioChanges(t *testing.T) {
	t.Parallel()
	var streams sync.Map // those that are open to the server
	answer := func(c *wire.Conn, r *wire.Request) { c.JSON(200, r.Result(`{}`)) }
	up := wire.NewUpstream(t, wire.Options{Capabilities: `{"tools":{"listChanged":true},"resources":{"subscribe":true,"listChanged":true}}`, On: map[string]wire.Handler{
		"resources/subscribe": answer, "resources/unsubscribe": answer,
		"resources/list": func(c *wire.Conn, r *wire.Request) {
			c.JSON(200, r.Result(`{"resources":[{"uri":"file:///a","name":"a"},{"uri":"file:///b","name":"b"}]}`))
		},
		"GET": func(c *wire.Conn, _ *wire.Request) {
			c.SSE()
			streams.Store(c, true)
			c.Hold()
			streams.Delete(c)
		},
	}})
	tell := func(messages ...string) {
		streams.Range(func(c, _ any) bool { c.(*wire.Conn).Event(messages...); return true })
	}
	const (
		tools   = `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`
		updated = `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file:///`
	)
	h := newHome(t, upServer(up))
	p := h.host(nil, "stdio", "--config", h.config)
	p.open()
	p.send(`{"jsonrpc":"2.0","id":"t","method":"tools/list"}`, `{"jsonrpc":"2.0","id":"r","method":"resources/list"}`)
	p.response(`"t"`)
	p.response(`"r"`)
	p.send(`{"jsonrpc":"2.0","id":"s","method":"resources/subscribe","params":{"uri":"file:///a"}}`)
	if m := p.response(`"s"`); m.Error != nil {
		t.Fatal(m.JSON)
	}
	p.send(`{"jsonrpc":"2.0","id":"l","method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true,"resourceSubscriptions":["file:///b"]},"_meta":{"x":1` + eraMeta(wire.Modern) + `}}}`)
	p.find(1, "acknowledgement", func(m *wire.Msg) bool {
		return m.Method == "notifications/subscriptions/acknowledged" && strings.Contains(m.JSON, `"file:///b"`) && strings.Contains(m.JSON, `"io.modelcontextprotocol/subscriptionId":"l"`)
	})
	tell(tools, updated+`a"}}`, updated+`b"}}`)
	has := func(what, method, text string, listen bool) {
		t.Helper()
		p.find(1, what, func(m *wire.Msg) bool {
			return m.Method == method && strings.Contains(m.JSON, text) && listen == strings.Contains(m.JSON, `subscriptionId":"l"`)
		})
	}
	has("list change of the session", "notifications/tools/list_changed", "", false)
	has("list change of the listen", "notifications/tools/list_changed", "", true)
	has("resource of the session", "notifications/resources/updated", "file:///a", false)
	has("resource of the listen", "notifications/resources/updated", "file:///b", true)
	if n := p.count(`"file:///b"},"_meta"`) + p.count(updated+"b"); n != p.count(updated+`b","_meta`) {
		t.Errorf("the session heard of what it has not subscribed to: %s", p.text())
	}
	p.cancel(`"l"`)
	p.send(`{"jsonrpc":"2.0","id":"u","method":"ping"}`)
	p.response(`"u"`)

	before, subscribed := p.count(updated+"a"), up.Count("resources/subscribe")
	h.kill()
	up.WaitRequest("resources/subscribe", subscribed+1, sLimit)
	h.until("the host hears of the resource again", func() bool {
		tell(updated + `a"}}`)
		return p.count(updated+"a") > before+1 // more than that it may have changed meanwhile
	})
	p.close()
}
