package app

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longcall/longcall/internal/config"
)

func never(string) bool { return false }

// A name is that of a command line in a folder, whatever its environment, fit
// for an endpoint and a tool name.
func TestWrapName(t *testing.T) {
	a := Wrap{Name: "files", Command: "npx", Args: []string{"-y", "files"}, Cwd: "/a", Env: map[string]string{"A": "1"}}
	b := a
	b.Env, b.Lease = map[string]string{"A": "2"}, "w_x"
	if wrapName(&a) != wrapName(&b) {
		t.Error("the environment changes the name")
	}
	for what, change := range map[string]func(w *Wrap){
		"name": func(w *Wrap) { w.Name = "f" }, "command": func(w *Wrap) { w.Command = "n" }, "folder": func(w *Wrap) { w.Cwd = "/b" },
		"arguments": func(w *Wrap) { w.Args = []string{"-yfiles"} },
	} {
		c := a
		change(&c)
		if wrapName(&c) == wrapName(&a) {
			t.Errorf("another %s gives the same name", what)
		}
	}
	valid := regexp.MustCompile(`^[A-Za-z0-9_-]{1,32}$`)
	for _, name := range []string{"", "__", "@scope/é x", strings.Repeat("long", 20), "a__b", "-a-"} {
		got := wrapName(&Wrap{Name: name}) + "-256"
		if !valid.MatchString(got) || strings.Contains(got, "__") {
			t.Errorf("%q gives %q", name, got)
		}
	}
}

// A place belongs to one relay at a time; whoever comes when it is free gets it,
// and it stays while a call runs on it.
func TestWrapsLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ws wraps
		spec := Wrap{Name: "s", Command: "c", Cwd: "/"}
		a, b := ws.hold(spec, never), ws.hold(spec, never)
		if a.Server == b.Server || a.Lease == b.Lease || b.Server != a.Server+"-2" {
			t.Fatalf("%+v, %+v", a, b)
		}
		again := spec
		again.Lease = a.Lease
		if got := ws.hold(again, never); *got != *a {
			t.Errorf("with its lease: %+v, not %+v", got, a)
		}
		var other wraps
		first, second := other.hold(spec, never), other.hold(spec, never)
		other.drop(first.Lease)
		again.Lease = second.Lease
		if got := other.hold(again, never); *got != *second {
			t.Errorf("with its lease, when the first place is free: %+v, not %+v", got, second)
		}
		leave, ok := ws.enter(a.Lease)
		if _, foreign := ws.enter("w_other"); !ok || foreign {
			t.Error("presence")
		}
		time.Sleep(2 * wrapSilence)
		if !ws.sweep() || ws.has(b.Server) || !ws.has(a.Server) {
			t.Error("the one that is silent goes, the one that is there stays")
		}
		leave()
		time.Sleep(wrapSilence - time.Second)
		if ws.sweep() {
			t.Error("gone too early")
		}
		done := ws.count(a.Server)
		time.Sleep(wrapSilence)
		if ws.sweep() || !ws.has(a.Server) {
			t.Error("gone, though a call runs")
		}
		c := ws.hold(spec, never) // a host that comes again while its call runs
		if c.Server != a.Server || c.Lease == a.Lease {
			t.Errorf("%+v", c)
		}
		if ws.drop(a.Lease) || !ws.drop(c.Lease) || ws.sweep() {
			t.Error("drop")
		}
		done()
		if !ws.sweep() || ws.has(a.Server) || ws.n.Load() != 0 {
			t.Error("it stays for ever")
		}
		if got := ws.hold(spec, func(name string) bool { return name == a.Server }); got.Server != b.Server {
			t.Errorf("a configured name is taken: %+v", got)
		}
	})
}

func TestWrapsAreBounded(t *testing.T) {
	var ws wraps
	for i := range maxWraps {
		if ws.hold(Wrap{Name: "s", Command: fmt.Sprint(i), Cwd: "/"}, never) == nil {
			t.Fatalf("%d is too many", i)
		}
	}
	if ws.hold(Wrap{Name: "s", Command: "more", Cwd: "/"}, never) != nil {
		t.Error("there is no limit")
	}
	c := config.Default()
	c.Servers = map[string]config.Server{"own": {}}
	if got := ws.over(c); len(got.Servers) != maxWraps+1 || len(c.Servers) != 1 {
		t.Errorf("%d servers, and %d in the config itself", len(got.Servers), len(c.Servers))
	}
}
