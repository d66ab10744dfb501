//go:build unix

package cases_test

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/longcall/longcall/test/wire"
)

func init() {
	// secretive: says whether it got its host's secret, not what it is, and its folder.
	addTool("secretive", func(w *worker, r *wire.Request) {
		switch arg(r.Msg, "do") {
		case "hold":
			w.send(r.Progress("1", "", "held"))
			w.pause(time.Hour)
		default:
			dir, _ := os.Getwd()
			got := "no secret"
			if os.Getenv("WRAP_SECRET") == wrapSecret {
				got = "the secret"
			}
			w.send(r.Text(got + " in " + dir))
		}
	})
}

const wrapSecret = "sesame-3f9ad1c07b"

// wrapHost starts "longcall wrap" in front of a scripted child.
func (h *home) wrapHost(cmd *wire.Command, more ...string) *pipe {
	h.t.Helper()
	env := append([]string{"WRAP_SECRET=" + wrapSecret}, more...)
	for k, v := range cmd.Env {
		env = append(env, k+"="+v)
	}
	return h.host(env, append([]string{"wrap", "--name", "kid", "--", cmd.Path}, cmd.Args...)...)
}

// Prefixing a host's line is the whole set-up: the server has its host's
// environment and folder, its tools their names, and each host its own process;
// nothing of the environment is in any file.
func TestWrap(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	cmd := wire.NewCommand(t, "secretive/"+wire.Legacy)
	p := h.wrapHost(cmd)
	p.open()
	p.send(`{"jsonrpc":"2.0","id":"t","method":"tools/list"}`)
	if m := p.response(`"t"`); !strings.Contains(m.JSON, `"name":"work"`) {
		t.Errorf("%s", m.JSON)
	}
	p.call(wire.Legacy, "1", "work", "{}")
	p.call(wire.Modern, "2", "work", `{"x":1}`)
	for _, id := range []string{"1", "2"} {
		if m := p.response(id); m.ToolText() != "the secret in "+h.dir {
			t.Errorf("%s", m.JSON)
		}
	}
	if n := len(cmd.Notes("start")); n != 1 {
		t.Errorf("%d processes", n)
	}
	// A second host with the same line has a process of its own.
	q := h.wrapHost(cmd)
	q.open()
	q.call(wire.Legacy, "1", "work", "{}")
	q.response("1")
	if n := len(cmd.Notes("start")); n != 2 {
		t.Errorf("%d processes", n)
	}
	// Others do not see it: it is not among the tools of all servers.
	s := h.host(nil, "stdio")
	s.open()
	s.send(`{"jsonrpc":"2.0","id":"t","method":"tools/list"}`)
	if m := s.response(`"t"`); strings.Contains(m.JSON, "kid-") {
		t.Errorf("a host that has not brought it sees it: %s", m.JSON)
	}
	s.close()
	q.close()
	p.close()
	cmd.WaitNote("exit", 2, sLimit)
	err := filepath.WalkDir(h.state, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil // gone meanwhile
		}
		if b, err := os.ReadFile(path); err == nil && bytes.Contains(b, []byte(wrapSecret)) {
			t.Errorf("%s has the host's secret", path)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// A restarted serve gets the server from the relay again, and the same line gets
// the same name, so that its records belong together.
func TestWrapServeKilled(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	cmd := wire.NewCommand(t, "secretive/"+wire.Legacy)
	p := h.wrapHost(cmd)
	p.open()
	p.call(wire.Legacy, "1", "work", "{}")
	p.response("1")
	h.kill()
	p.call(wire.Legacy, "2", "work", `{"x":2}`)
	if m := p.response("2"); m.ToolText() != "the secret in "+h.dir {
		t.Errorf("%s", m.JSON)
	}
	p.close()
	p = h.wrapHost(cmd, "WINDOW=17") // another environment
	p.open()
	p.call(wire.Legacy, "3", "work", `{"x":3}`)
	p.response("3")
	p.close()
	h.until("three calls of one server", func() bool {
		out, err := h.command(nil, "calls", "--json").CombinedOutput()
		i := strings.Index(string(out), `"kid-`)
		return err == nil && i > 0 && strings.Count(string(out), string(out)[i:i+12]) >= 3
	})
}

// The child goes with its host, but not before its calls have ended.
func TestWrapKeepsCalls(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	cmd := wire.NewCommand(t, "secretive/"+wire.Legacy)
	p := h.wrapHost(cmd)
	p.open()
	p.call(wire.Legacy, "1", "work", `{"do":"hold"}`)
	p.progressed("1", 1)
	child := cmd.WaitNote("start", 1, sLimit).PID
	p.close()
	q := h.wrapHost(cmd)
	q.open()
	q.call(wire.Legacy, "5", "work", `{"do":"hold"}`) // the same call: it is joined
	q.call(wire.Legacy, "6", "work", `{}`)
	q.response("6")
	if n := len(cmd.Notes("start")); n != 1 || syscall.Kill(child, 0) != nil {
		t.Errorf("%d processes", n)
	}
	n := 0
	for _, note := range cmd.Notes("line") {
		if strings.Contains(note.Text, `"hold"`) {
			n++
		}
	}
	if n != 1 {
		t.Errorf("the call was sent %d times", n)
	}
	q.cancel("5")
	q.close()
	h.until("the child is gone", func() bool { return syscall.Kill(child, 0) != nil || zombie(child) })
}
