package upstream_test

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
	"github.com/longcall/longcall/test/wire"
)

// listens is a stateless server that serves subscriptions/listen.
type listens struct {
	*shop
	mu   sync.Mutex
	open []*listenStream
	wake chan struct{}
}

// listenStream is one that is open, or was.
type listenStream struct {
	c  *wire.Conn
	id string // raw
}

func newListens(t *testing.T, more ...func(on map[string]wire.Handler)) *listens {
	l := &listens{wake: make(chan struct{}, 16)}
	l.shop = newShop(t, wire.Modern, everything, append([]func(map[string]wire.Handler){func(on map[string]wire.Handler) {
		on["subscriptions/listen"] = func(c *wire.Conn, r *wire.Request) {
			c.SSE()
			c.Event(acknowledged(r, "r://never"))
			l.mu.Lock()
			l.open = append(l.open, &listenStream{c, string(r.ID)})
			l.mu.Unlock()
			l.wake <- struct{}{}
			c.Hold()
		}
	}}, more...)...)
	return l
}

// acknowledged honours all that was asked for, but for one URI.
func acknowledged(r *wire.Request, but string) string {
	asked := string(wire.At(string(r.Params), "notifications"))
	asked = strings.ReplaceAll(strings.ReplaceAll(asked, `,"`+but+`"`, ""), `"`+but+`"`, "")
	asked = strings.ReplaceAll(asked, `[,`, `[`)
	return `{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":` +
		string(r.ID) + `},"notifications":` + asked + `}}`
}

// stream waits for the nth one to be open, from 1.
func (l *listens) stream(n int) *listenStream {
	l.t.Helper()
	over := time.After(20 * time.Second)
	for {
		l.mu.Lock()
		if len(l.open) >= n {
			defer l.mu.Unlock()
			return l.open[n-1]
		}
		l.mu.Unlock()
		select {
		case <-l.wake:
		case <-over:
			l.t.Fatalf("subscription %d was not opened", n)
		}
	}
}

func (s *listenStream) send(method, params string) {
	s.c.Event(`{"jsonrpc":"2.0","method":"` + method + `","params":{` + params + `"_meta":{"io.modelcontextprotocol/subscriptionId":` + s.id + `}}}`)
}

func (s *listenStream) updated(uri string) {
	s.send("notifications/resources/updated", `"uri":`+wire.Quote(uri)+`,`)
}

func filterOf(r *wire.Request) string { return string(wire.At(string(r.Params), "notifications")) }

const allLists = `"toolsListChanged":true,"promptsListChanged":true,"resourcesListChanged":true`

// SPEC §5.1: one subscription per connection tells of all lists; its filter is
// changed by opening the next one before the last is closed.
func TestListen(t *testing.T) {
	l := newListens(t)
	for _, k := range mcp.ListKinds {
		l.set(k.Method(), fmt.Sprintf(`{%q:[{%q:"one"}],"ttlMs":3600000,"cacheScope":"private"}`, k.Member(), k.Key()))
		l.list(k)
	}
	first := l.stream(1)
	r := l.up.Requests("subscriptions/listen")[0]
	if got := filterOf(r); got != "{"+allLists+"}" {
		t.Errorf("filter %s", got)
	}
	if r.Header.Get("Mcp-Method") != "subscriptions/listen" || !r.Modern() {
		t.Errorf("sent %v %s", r.Header, r.Body)
	}
	for _, k := range mcp.ListKinds {
		l.set(k.Method(), fmt.Sprintf(`{%q:[{%q:"two"}],"ttlMs":3600000,"cacheScope":"private"}`, k.Member(), k.Key()))
	}
	for _, k := range mcp.ListKinds[:mcp.ListTemplates] {
		first.send(k.ChangedMethod(), "")
	}
	for _, k := range mcp.ListKinds {
		l.told(mcp.Change{List: k})
		if got := l.list(k); names(got) != "two" {
			t.Errorf("%s: %q", k, names(got))
		}
	}

	if err := l.subscribe(ann, "r://1"); err != nil {
		t.Fatal(err)
	}
	second := l.stream(2)
	if got := filterOf(l.up.Requests("subscriptions/listen")[1]); got != "{"+allLists+`,"resourceSubscriptions":["r://1"]}` {
		t.Errorf("filter %s", got)
	}
	<-first.c.Gone() // only now: it was open until the next one was acknowledged
	second.updated("r://1")
	l.told(mcp.Change{URI: "r://1"})

	if err := l.subscribe(ann, "r://0"); err != nil {
		t.Fatal(err)
	}
	l.stream(3)
	<-second.c.Gone()
	if err := l.subscribe(ann, "r://0"); err != nil { // what is there already needs no new one
		t.Fatal(err)
	}
	l.pool.Unsubscribe(ann, "up", "r://0")
	l.pool.Unsubscribe(ann, "up", "r://0")
	l.stream(4)
	if got := filterOf(l.up.Requests("subscriptions/listen")[3]); got != "{"+allLists+`,"resourceSubscriptions":["r://1"]}` {
		t.Errorf("filter %s", got)
	}
	l.up.Quiet("subscriptions/listen", 4, 50*time.Millisecond)
}

// SPEC §5.1: only what the server has acknowledged counts as subscribed to.
func TestListenAcknowledgedSubset(t *testing.T) {
	l := newListens(t)
	if err := l.subscribe(ann, "r://1"); err != nil {
		t.Fatal(err)
	}
	var rpc *mcp.RPCError
	if err := l.subscribe(ann, "r://never"); !errors.As(err, &rpc) {
		t.Errorf("got %v", err)
	}
}

// A server that refuses is asked again only with another filter; its lists are
// read by their age.
func TestListenRefused(t *testing.T) {
	l := newListens(t, func(on map[string]wire.Handler) {
		on["subscriptions/listen"] = func(c *wire.Conn, r *wire.Request) { c.JSON(404, r.Fail("-32601", "no such method")) }
	})
	var rpc *mcp.RPCError
	if err := l.subscribe(ann, "r://1"); !errors.As(err, &rpc) || rpc.Code != mcp.CodeMethodNotFound {
		t.Errorf("got %v", err)
	}
	l.set("tools/list", `{"tools":[{"name":"a"}]}`)
	if got := l.list(mcp.ListTools); names(got) != "a" {
		t.Errorf("%+v", got)
	}
}

// SPEC §5.1: a subscription that broke, or that the server ended, is opened again,
// and all is read anew, since nothing is replayed.
func TestListenAgain(t *testing.T) {
	for name, end := range map[string]func(s *listenStream){
		"cut": func(s *listenStream) { s.c.Close() },
		"ended": func(s *listenStream) {
			s.c.Event(`{"jsonrpc":"2.0","id":` + s.id + `,"result":{"resultType":"complete","_meta":{"io.modelcontextprotocol/subscriptionId":` + s.id + `}}}`)
			s.c.End()
			s.c.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newListens(t)
			l.set("tools/list", `{"tools":[{"name":"one"}],"ttlMs":3600000}`)
			l.list(mcp.ListTools)
			if err := l.subscribe(ann, "r://1"); err != nil {
				t.Fatal(err)
			}
			n := l.up.Count("subscriptions/listen")
			l.set("tools/list", `{"tools":[{"name":"two"}],"ttlMs":3600000}`)
			end(l.stream(n))
			l.stream(n + 1)
			l.told(mcp.Change{URI: "r://1"})
			l.told(mcp.Change{List: mcp.ListTools})
			if l.up.Count("prompts/list") != 0 {
				t.Error("a list was read that nobody has asked for")
			}
		})
	}
}

// listener is a stateless child with one list, which it changes when told to.
func listener(c *wire.Child) {
	opt := wire.Options{Version: wire.Modern, Capabilities: `{"prompts":{"listChanged":true},"resources":{"subscribe":true}}`}
	list, open := "one", map[string]string{} // filters by id
	note := func(method, params, id string) {
		c.Send(`{"jsonrpc":"2.0","method":"` + method + `","params":{` + params + `"_meta":{"io.modelcontextprotocol/subscriptionId":` + id + `}}}`)
	}
	for {
		r := c.Next()
		switch {
		case r == nil:
			return
		case r.Method == "prompts/list":
			c.Send(r.Result(`{"prompts":[{"name":"` + list + `"}],"ttlMs":3600000}`))
		case r.Method == "subscriptions/listen":
			open[string(r.ID)] = filterOf(r)
			c.Note("open", filterOf(r))
			c.Send(acknowledged(r, "r://never"))
		case r.Method == "notifications/cancelled":
			id := string(wire.At(string(r.Params), "requestId"))
			c.Note("cancelled", open[id])
			delete(open, id)
			maps.DeleteFunc(open, func(_, filter string) bool { return strings.Contains(filter, "promptsListChanged") }) // as the Go SDK
		case r.Method == "vendor/change":
			list = "two"
			for id, filter := range open {
				if strings.Contains(filter, "promptsListChanged") {
					note("notifications/prompts/list_changed", "", id)
				}
				if strings.Contains(filter, "r://1") {
					note("notifications/resources/updated", `"uri":"r://1",`, id)
				}
			}
			c.Send(r.Result(`{}`))
		case r.Method == "vendor/end": // of its own accord
			for id, filter := range open {
				if strings.Contains(filter, "r://1") {
					c.Send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `}}`)
					delete(open, id)
				}
			}
			c.Send(r.Result(`{}`))
		case r.Method == "vendor/die":
			return
		default:
			c.Usual(opt, r)
		}
	}
}

// SPEC §2.3, §5.1, §8.1 A6: the same over stdio, where a subscription is sent again to
// the next process. Each resource has its own, which stays when nobody wants it any
// more: there are servers that forget all of a process's when one ends.
func TestListenStdio(t *testing.T) {
	cmd := wire.NewCommand(t, "listener")
	g := newGateway(t, "", stdioOf(cmd))
	s := &shop{t: t, pool: g.pool, wake: make(chan struct{}, 1)}
	s.watch()
	if got := s.list(mcp.ListPrompts); names(got) != "one" {
		t.Fatalf("%+v", got)
	}
	for _, uri := range []string{"r://1", "r://2"} {
		if err := s.subscribe(ann, uri); err != nil {
			t.Fatal(err)
		}
	}
	for n, want := range []string{`{"promptsListChanged":true}`, `{"resourceSubscriptions":["r://1"]}`, `{"resourceSubscriptions":["r://2"]}`} {
		if got := cmd.WaitNote("open", n+1, 10*time.Second).Text; got != want {
			t.Errorf("subscription %d is %s", n+1, got)
		}
	}
	s.pool.Unsubscribe(ann, "up", "r://2")
	if err := s.subscribe(ann, "r://2"); err != nil {
		t.Fatal(err)
	}
	s.pool.Unsubscribe(ann, "up", "r://2")
	do := func(method string) {
		t.Helper()
		g.follow(g.request(method, "", "")).want(t, call.Completed, "")
	}
	do("vendor/change")
	s.told(mcp.Change{URI: "r://1"})
	s.told(mcp.Change{List: mcp.ListPrompts})
	if n, m := len(cmd.Notes("open")), len(cmd.Notes("cancelled")); n != 3 || m != 0 {
		t.Errorf("%d subscriptions, %d of them ended", n, m)
	}
	do("vendor/end")
	s.told(mcp.Change{URI: "r://1"}) // opened again: it may have changed
	do("vendor/change")
	s.told(mcp.Change{URI: "r://1"})
	g.follow(g.request("vendor/die", "", ""))
	s.told(mcp.Change{URI: "r://1"}) // in the next process
	if n := len(cmd.Notes("start")); n != 2 {
		t.Errorf("%d processes", n)
	}
	for i := range 101 { // more than 100 are ended
		uri := fmt.Sprintf("r://spare/%d", i)
		if err := s.subscribe(ann, uri); err != nil {
			t.Fatal(err)
		}
		s.pool.Unsubscribe(ann, "up", uri)
	}
	cmd.WaitNote("cancelled", 1, 10*time.Second)
}
