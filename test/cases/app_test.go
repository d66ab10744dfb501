package cases_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/test/wire"
)

// rewrite changes the config file and reads it again.
func (g *gateway) rewrite(yaml string) error {
	g.t.Helper()
	text := "listen: 127.0.0.1:0\nstate: " + filepath.Join(g.dir, "state") + "\n" + yaml
	if err := os.WriteFile(filepath.Join(g.dir, "longcall.yaml"), []byte(text), 0o600); err != nil {
		g.t.Fatal(err)
	}
	return g.app.Reload()
}

// A reload changes what the next call gets, and drops nothing that runs. A
// config that is wrong changes nothing and says why.
func TestReload(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{
		"tools/call": func(c *wire.Conn, r *wire.Request) {
			c.SSE()
			c.Event(r.Progress("1", "2", ""))
			if strings.Contains(string(r.Args), "hold") {
				<-release
			}
			c.Event(r.Text("worked"))
			c.End()
		},
	}})
	config := func(more string) string { return fmt.Sprintf("mcpServers: {up: {url: %q%s}}\n", up.URL, more) }
	g := start(t, config(""))
	dn := g.client(wire.Legacy, "up")
	running := dn.Start(wire.Call{Args: `{"hold":true}`, Token: "1"})
	running.WaitMessages("notifications/progress", 1, 0)

	if err := g.rewrite("limts: {}\n" + config("")); err == nil || !strings.Contains(err.Error(), "limits") {
		t.Errorf("a bad config was taken: %v", err)
	}
	if !strings.Contains(g.log.String(), "the old one stays in force") {
		t.Error("nothing in the log about the bad config")
	}
	if m := dn.Start(wire.Call{Token: "2"}).Response(0); m.ToolText() != "worked" {
		t.Errorf("after a bad config: %s", m.JSON)
	}

	if err := g.rewrite(config(", relay: buffered")); err != nil {
		t.Fatal(err)
	}
	next := dn.Start(wire.Call{Token: "3"})
	if m := next.Response(0); m.ToolText() != "worked" || len(next.Progress()) != 0 || next.Head(0).Get("Content-Type") != "application/json" {
		t.Errorf("the kill switch was not taken: %s", next.Body())
	}
	if err := g.rewrite(config(", tools: {work: {deny: true}}")); err != nil {
		t.Fatal(err)
	}
	if m := dn.Start(wire.Call{}).Response(0); !strings.Contains(m.ToolText(), "does not allow") {
		t.Errorf("a denied tool: %s", m.JSON)
	}

	close(release)
	if m := running.Response(0); m.ToolText() != "worked" || len(running.Progress()) != 1 {
		t.Errorf("the running call: %s", m.JSON)
	}
	if n := up.Count("tools/call"); n != 3 {
		t.Errorf("%d calls reached the server", n)
	}
}

// A stop lets calls end, ends those that do not, and tells every stream.
func TestGracefulStop(t *testing.T) {
	t.Parallel()
	called := make(chan struct{}, 2)
	up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{
		"tools/call": func(c *wire.Conn, r *wire.Request) {
			c.SSE()
			called <- struct{}{}
			if strings.Contains(string(r.Args), "stuck") {
				c.Hold()
				return
			}
			c.Pause(600 * time.Millisecond)
			c.Event(r.Text("worked"))
			c.End()
		},
	}})
	g := before(t, up)
	dn := g.client(wire.Legacy, "up")
	short := dn.Start(wire.Call{})
	<-called
	stuck := dn.Start(wire.Call{Args: `{"stuck":true}`}) // the newest in the record
	<-called
	stopped := make(chan struct{})
	go func() { g.stop(); close(stopped) }()
	if m := short.Response(0); m.ToolText() != "worked" {
		t.Errorf("the call that could end: %s", m.JSON)
	}
	if m := stuck.Response(0); !strings.Contains(m.ToolText(), "Outcome unknown") || string(m.At("result.isError")) != "true" {
		t.Errorf("the call that could not: %s", m.JSON)
	}
	<-stopped
	r, d := g.ended(call.Interrupted)
	if r.End.By != "shutdown" || len(d) != 1 || d[0].How != call.Delivered {
		t.Errorf("recorded as %+v, %+v", r.End, d)
	}
	up.WaitRequest("notifications/cancelled", 1, 0)
}

// Sessions and credentials of one principal are nothing to another, and to no
// tool server (I6, I12, X-11, X-12).
func TestPrincipalsApart(t *testing.T) {
	t.Parallel()
	up := wire.NewUpstream(t, wire.Options{})
	const ann, bob = "ann-0123456789abcdefghijkl", "bob-0123456789abcdefghijkl"
	g := start(t, fmt.Sprintf("auth: {tokens: {ann: %s, bob: %s}}\nmcpServers: {up: {url: %q}}\n", ann, bob, up.URL))
	as := func(token string) *wire.Client {
		c := wire.NewClient(t, g.app.URL()+"/mcp/up", wire.Legacy)
		c.Header = map[string]string{"Authorization": "Bearer " + token}
		return c
	}
	a, b := as(ann), as(bob)
	a.Initialize()
	b.Initialize()
	for _, c := range []*wire.Client{a, b} {
		if m := c.Start(wire.Call{}).Response(0); m.ToolText() != "worked" {
			t.Errorf("call: %s", m.JSON)
		}
	}
	used := map[string]bool{}
	for _, r := range up.Requests("tools/call") {
		used[r.Header.Get("Mcp-Session-Id")] = true
	}
	if len(used) != 2 {
		t.Errorf("%d sessions at the server for two principals", len(used))
	}
	thief := as(bob)
	thief.Session = a.Session
	for want, c := range map[int]*wire.Client{404: thief, 401: as("wrong")} {
		x := c.Start(wire.Call{})
		x.Head(0)
		if x.Status() != want {
			t.Errorf("HTTP %d, not %d", x.Status(), want)
		}
	}
	for _, key := range []string{"POST", "GET"} {
		for _, r := range up.Requests(key) {
			if all := fmt.Sprint(r.Header, r.Body); strings.Contains(all, ann) || strings.Contains(all, bob) {
				t.Errorf("an agent's credential reached the server: %s", all)
			}
		}
	}
	if log := g.log.String(); strings.Contains(log, ann) || strings.Contains(log, bob) {
		t.Error("a credential is in the log")
	}
}
