package upstream_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
	"github.com/longcall/longcall/internal/upstream"
	"github.com/longcall/longcall/test/wire"
)

var ann = call.Caller{Principal: "ann"}

// shop is a pool before one scripted server whose lists a test changes.
type shop struct {
	t    *testing.T
	pool *upstream.Pool
	up   *wire.Upstream

	mu    sync.Mutex
	lists map[string]string // result objects by method; a method without one is unknown
	news  []mcp.Change
	wake  chan struct{}
}

// newShop starts a server with these capabilities; more adds to what it answers.
func newShop(t *testing.T, version, caps string, more ...func(on map[string]wire.Handler)) *shop {
	s := &shop{t: t, lists: map[string]string{}, wake: make(chan struct{}, 1)}
	on := map[string]wire.Handler{}
	for _, k := range mcp.ListKinds {
		on[k.Method()] = func(c *wire.Conn, r *wire.Request) {
			s.mu.Lock()
			list, ok := s.lists[r.Method]
			s.mu.Unlock()
			if !ok {
				c.JSON(200, r.Fail("-32601", "no such method"))
				return
			}
			c.JSON(200, r.Result(list))
		}
	}
	for _, f := range more {
		f(on)
	}
	s.up = wire.NewUpstream(t, wire.Options{Version: version, Capabilities: caps, Instructions: "Use me.", On: on})
	s.pool = newShopPool(t, s.up.URL, "")
	s.watch()
	return s
}

// watch notes all changes from now on.
func (s *shop) watch() {
	s.pool.Watch(func(_ string, c mcp.Change) {
		s.mu.Lock()
		s.news = append(s.news, c)
		s.mu.Unlock()
		select {
		case s.wake <- struct{}{}:
		default:
		}
	})
}

func newShopPool(t *testing.T, url, dir string) *upstream.Pool {
	server := upstream.Server{Name: "up", URL: url, Era: "auto", Share: "principal"}
	pool := upstream.NewPool(upstream.Options{Dir: dir, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	pool.SetServers(map[string]upstream.Server{"up": server})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		pool.Stop(ctx)
	})
	return pool
}

// set says what the server answers to a list request from now on.
func (s *shop) set(method, result string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists[method] = result
}

func (s *shop) list(kind mcp.ListKind) mcp.Listing {
	s.t.Helper()
	l, err := s.pool.List(s.t.Context(), ann, "up", kind)
	if err != nil {
		s.t.Fatalf("%s: %v", kind, err)
	}
	return l
}

func names(l mcp.Listing) string {
	var out []string
	for _, e := range l.Entries {
		out = append(out, e.Name)
	}
	return strings.Join(out, " ")
}

// told waits for a change.
func (s *shop) told(want mcp.Change) {
	s.t.Helper()
	want.Principal = "ann"
	over := time.After(10 * time.Second)
	for {
		s.mu.Lock()
		i := slices.Index(s.news, want)
		if i >= 0 {
			s.news = slices.Delete(s.news, i, i+1)
		}
		s.mu.Unlock()
		if i >= 0 {
			return
		}
		select {
		case <-s.wake:
		case <-over:
			s.t.Fatalf("not told of %+v but of %+v", want, s.news)
		}
	}
}

const everything = `{"tools":{"listChanged":true},"prompts":{"listChanged":true},"resources":{"listChanged":true,"subscribe":true},"logging":{}}`

// every kind of list is read, page by page, from a server of either era.
func TestLists_R05(t *testing.T) {
	for _, version := range []string{wire.Legacy, wire.Modern} {
		t.Run(version, func(t *testing.T) {
			s := newShop(t, version, everything)
			s.set("tools/list", `{"tools":[{"name":"a"}]}`)
			s.set("prompts/list", `{"prompts":[{"name":"p"}],"ttlMs":120000,"cacheScope":"public"}`)
			s.set("resources/list", `{"resources":[{"uri":"r://1","name":"x"},{"uri":"r://2","name":"x"}]}`)
			s.set("resources/templates/list", `{"resourceTemplates":[{"uriTemplate":"r://{id}","name":"x"}]}`)
			for kind, want := range map[mcp.ListKind]string{mcp.ListTools: "a", mcp.ListPrompts: "p", mcp.ListResources: "r://1 r://2", mcp.ListTemplates: "r://{id}"} {
				if l := s.list(kind); names(l) != want || !l.Fresh {
					t.Errorf("%s: %q, fresh %v", kind, names(l), l.Fresh)
				}
			}
			if l := s.list(mcp.ListPrompts); l.TTL <= time.Minute || l.TTL > 2*time.Minute || !l.Public {
				t.Errorf("ttl %s, public %v", l.TTL, l.Public)
			}
			if l := s.list(mcp.ListTools); l.TTL >= 0 || l.Public {
				t.Errorf("ttl %s, public %v", l.TTL, l.Public)
			}
			if caps, ok := s.pool.Capabilities(ann, "up"); !ok || string(caps) != everything {
				t.Errorf("%s %v", caps, ok)
			}
			if got := s.pool.Instructions(ann, "up"); string(got) != `"Use me."` {
				t.Errorf("instructions %s", got)
			}
		})
	}
}

// A server that does not say that it has a list is not asked for it; one that
// says so and has none has an empty one.
func TestListsWithoutCapability(t *testing.T) {
	s := newShop(t, wire.Legacy, `{"tools":{},"prompts":{}}`)
	s.set("tools/list", `{"tools":[{"name":"a"}]}`)
	for _, kind := range []mcp.ListKind{mcp.ListPrompts, mcp.ListResources, mcp.ListTemplates} {
		if l := s.list(kind); len(l.Entries) > 0 || !l.Fresh {
			t.Errorf("%s: %+v", kind, l)
		}
	}
	for method, want := range map[string]int{"prompts/list": 1, "resources/list": 0, "resources/templates/list": 0} {
		if n := s.up.Count(method); n != want {
			t.Errorf("%d requests %s", n, method)
		}
	}
}

// a changed list is read again and told of once it is known.
func TestListChanged_R25(t *testing.T) {
	s := newShop(t, wire.Legacy, everything)
	for _, k := range mcp.ListKinds {
		s.set(k.Method(), fmt.Sprintf(`{%q:[{%q:"one"}]}`, k.Member(), k.Key()))
		s.list(k)
	}
	for _, k := range mcp.ListKinds {
		s.set(k.Method(), fmt.Sprintf(`{%q:[{%q:"two"}]}`, k.Member(), k.Key()))
	}
	stream := s.up.Stream()
	for _, k := range mcp.ListKinds[:mcp.ListTemplates] { // the last one has none of its own
		stream.Event(`{"jsonrpc":"2.0","method":"` + k.ChangedMethod() + `"}`)
	}
	for _, k := range mcp.ListKinds {
		s.told(mcp.Change{List: k})
		if l := s.list(k); names(l) != "two" {
			t.Errorf("%s: %q", k, names(l))
		}
	}
	// Also if it is the same again: who looks for what the server says waits for it.
	stream.Event(`{"jsonrpc":"2.0","method":"` + mcp.MethodPromptsChanged + `"}`)
	s.told(mcp.Change{List: mcp.ListPrompts})
}

// once the server has said that a list changed, nobody gets the one of before,
// also while the new one is on its way, and the change is told once all the same.
func TestListAfterChange_R25(t *testing.T) {
	var prompts atomic.Int32
	asked := make(chan struct{}, 3)
	s := newShop(t, wire.Legacy, everything, func(on map[string]wire.Handler) {
		// What comes before an answer on its stream is known when the answer is.
		on["tools/list"] = func(c *wire.Conn, r *wire.Request) {
			c.Answer(`{"jsonrpc":"2.0","method":"`+mcp.MethodPromptsChanged+`"}`, r.Result(`{"tools":[]}`))
		}
		on["prompts/list"] = func(c *wire.Conn, r *wire.Request) {
			asked <- struct{}{}
			if prompts.Add(1) == 1 {
				c.JSON(200, r.Result(`{"prompts":[{"name":"one"}]}`))
				return
			}
			c.Pause(20 * time.Millisecond) // so that somebody comes meanwhile
			c.JSON(200, r.Result(`{"prompts":[{"name":"two"}]}`))
		}
	})
	if l := s.list(mcp.ListPrompts); names(l) != "one" {
		t.Fatalf("%q", names(l))
	}
	<-asked
	s.list(mcp.ListTools)
	var both sync.WaitGroup
	both.Go(func() {
		if l, err := s.pool.List(t.Context(), ann, "up", mcp.ListPrompts); err != nil || names(l) != "two" || !l.Fresh {
			t.Errorf("after the server said that it changed: %q, fresh %v, %v", names(l), l.Fresh, err)
		}
	})
	<-asked
	if l := s.list(mcp.ListPrompts); names(l) != "two" || !l.Fresh {
		t.Errorf("while it is read: %q, fresh %v", names(l), l.Fresh)
	}
	both.Wait()
	s.told(mcp.Change{List: mcp.ListPrompts})
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := prompts.Load(); n != 3 || len(s.news) > 0 {
		t.Errorf("read %d times; also told of %+v", n, s.news)
	}
}

// What was known of a server is known to the next process, before it is asked.
func TestListsKept(t *testing.T) {
	s := newShop(t, wire.Legacy, everything)
	dir := t.TempDir()
	s.pool = newShopPool(t, s.up.URL, dir)
	for _, k := range mcp.ListKinds {
		s.set(k.Method(), fmt.Sprintf(`{%q:[{%q:"one"}]}`, k.Member(), k.Key()))
		s.list(k)
	}
	s.pool.Stop(t.Context())
	s.up.Close()
	s.pool = newShopPool(t, s.up.URL, dir)
	for _, k := range mcp.ListKinds {
		if l, _ := s.pool.List(t.Context(), ann, "up", k); names(l) != "one" || l.Fresh {
			t.Errorf("%s: %+v", k, l)
		}
	}
	if caps, ok := s.pool.Capabilities(ann, "up"); !ok || string(caps) != everything {
		t.Errorf("%s %v", caps, ok)
	}
	if got := s.pool.Instructions(ann, "up"); string(got) != `"Use me."` {
		t.Errorf("instructions %s", got)
	}
	// A file of the time when only tools were kept is read as well.
	if err := os.WriteFile(dir+"/catalog-up.json", []byte(`{"tools":[{"name":"old"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	s.pool = newShopPool(t, s.up.URL, dir)
	if l, _ := s.pool.List(t.Context(), ann, "up", mcp.ListTools); names(l) != "old" {
		t.Errorf("%+v", l)
	}
	if _, ok := s.pool.Capabilities(ann, "up"); ok {
		t.Error("capabilities are known of a server that never said any")
	}
}
