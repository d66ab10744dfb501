//go:build unix

package cases_test

import (
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/longcall/longcall/test/wire"
)

// held is an HTTP server whose calls show a progress and end when the test says.
func held(t *testing.T) (up *wire.Upstream, release func()) {
	t.Helper()
	done := make(chan struct{})
	up = wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{
		"tools/call": func(c *wire.Conn, r *wire.Request) {
			if strings.Contains(string(r.Args), `"now"`) {
				c.Answer(r.Text("now"))
				return
			}
			c.SSE()
			c.Event(r.Progress("1", "2", "held"))
			select {
			case <-done:
				c.Event(r.Text("released"))
			case <-c.Gone():
			}
			c.End()
		},
	}})
	var once atomic.Bool
	release = func() {
		if once.CompareAndSwap(false, true) {
			close(done)
		}
	}
	t.Cleanup(release)
	return up, release
}

func upServer(up *wire.Upstream, more ...string) string {
	return fmt.Sprintf("up: {%s}", strings.Join(append([]string{fmt.Sprintf("url: %q", up.URL)}, more...), ", "))
}

// Both eras on one pipe, many calls at once, each message as it comes, nothing
// but messages on stdout, and the session ended with the pipe.
func TestStdioBothEras(t *testing.T) {
	t.Parallel()
	up, release := held(t)
	h := newHome(t, upServer(up))
	p := h.host(nil, "stdio", "--config", h.config)
	p.send(`{"jsonrpc":"2.0","id":"d","method":"server/discover","params":{"_meta":{"x":1` + eraMeta(wire.Modern) + `}}}`)
	if m := p.response(`"d"`); !strings.Contains(m.JSON, `"supportedVersions"`) {
		t.Fatalf("%s", m.JSON)
	}
	p.open()
	const each = 10
	for i := range each {
		p.call(wire.Legacy, fmt.Sprint(100+i), "up__work", fmt.Sprintf(`{"n":%d}`, i))
		p.call(wire.Modern, fmt.Sprint(200+i), "up__work", fmt.Sprintf(`{"m":%d}`, i))
	}
	for i := range each {
		p.progressed(fmt.Sprint(100+i), 1)
		p.progressed(fmt.Sprint(200+i), 1)
	}
	// While they run, an instant one is not held up.
	p.call(wire.Modern, `"quick"`, "up__work", `{"now":1}`)
	p.response(`"quick"`)
	release()
	for i := range each {
		for _, id := range []string{fmt.Sprint(100 + i), fmt.Sprint(200 + i)} {
			if m := p.response(id); m.ToolText() != "released" || strings.Contains(m.JSON, "resultType") != (id[0] == '2') {
				t.Errorf("%s: %s", id, m.JSON)
			}
		}
	}
	if n := up.Count("tools/call"); n != 2*each+1 {
		t.Errorf("%d calls reached the server, want %d", n, 2*each+1)
	}
	if strings.Contains(p.text(), "not a message") {
		t.Errorf("stdout has something else: %s", p.text())
	}
	p.close()
	if got := p.err.String(); got != "" {
		t.Errorf("stderr: %s", got)
	}
	if !h.serving().Background || syscall.Kill(h.pid(), 0) != nil {
		t.Error("the serve went with the host")
	}
}

// A cancel is honoured in both eras: the call ends as cancelled by the agent,
// the server is told, and nothing more is said about it.
func TestStdioCancel(t *testing.T) {
	t.Parallel()
	for _, version := range []string{wire.Legacy, wire.Modern} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			up, _ := held(t)
			h := newHome(t, upServer(up))
			p := h.host(nil, "stdio", "--config", h.config, "--server", "up")
			p.open()
			p.call(version, "7", "work", "{}")
			p.progressed("7", 1)
			p.cancel("7")
			up.WaitRequest("notifications/cancelled", 1, 0)
			p.call(version, "8", "work", `{"now":1}`)
			p.response("8")
			p.close()
			if n := p.count(`"id":7`); n != 0 {
				t.Errorf("a cancelled call was answered: %s", p.text())
			}
			h.until("the record says who cancelled it", func() bool {
				out, err := h.command(nil, "calls").CombinedOutput()
				return err == nil && strings.Count(string(out), "cancelled by agent") == 1
			})
		})
	}
}

// kill -9 of the serve while a call runs on a server that can be resumed: the
// host gets progress once, the result, and sees nothing else.
func TestStdioServeKilled(t *testing.T) {
	t.Parallel()
	for _, version := range []string{wire.Legacy, wire.Modern} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			var up *wire.Upstream
			goOn := make(chan struct{})
			up = wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{
				"tools/call": func(c *wire.Conn, r *wire.Request) {
					log := up.NewLog("k")
					log.Append(r.Progress("1", "3", "one"))
					log.Append(r.Progress("2", "3", "two"))
					go func() {
						<-goOn
						log.Append(r.Progress("3", "3", "three"))
						log.Append(r.Text("whole"))
						log.Finish()
					}()
					c.SSE()
					log.Serve(c, 0, 0)
				},
			}})
			h := newHome(t, upServer(up))
			p := h.host(nil, "stdio", "--config", h.config)
			p.open()
			p.call(version, "7", "up__work", "{}")
			p.progressed("7", 2)
			<-time.After(200 * time.Millisecond) // progress is stored a group commit later
			old := h.kill()
			h.until("another serve", func() bool { return h.pid() != old && h.pid() != 0 })
			close(goOn)
			if m := p.response("7"); m.ToolText() != "whole" {
				t.Errorf("%s", m.JSON)
			}
			if n := up.Count("tools/call"); n != 1 {
				t.Errorf("the call was sent %d times", n)
			}
			for _, text := range []string{`"one"`, `"two"`, `"three"`, `"id":7`} {
				// Without event ids, what came before the host was there again is in the record only.
				if n := p.count(text); n > 1 || n == 0 && (version == wire.Legacy || text != `"three"`) {
					t.Errorf("%s comes %d times: %s", text, n, p.text())
				}
			}
			// And the pipe goes on as if nothing had been.
			p.send(`{"jsonrpc":"2.0","id":"l","method":"tools/list"}`)
			p.response(`"l"`)
			p.close()
		})
	}
}

// Hosts that start at once share one serve.
func TestStdioOneServe(t *testing.T) {
	t.Parallel()
	up, _ := held(t)
	h := newHome(t, upServer(up))
	const n = 4
	hosts := make([]*pipe, n)
	for i := range hosts {
		hosts[i] = h.host(nil, "stdio", "--config", h.config)
	}
	for _, p := range hosts {
		p.open()
		p.call(wire.Legacy, "1", "up__work", `{"now":1}`)
	}
	for _, p := range hosts {
		if m := p.response("1"); m.ToolText() != "now" {
			t.Errorf("%s", m.JSON)
		}
	}
	pid := h.pid()
	for _, p := range hosts {
		p.close()
	}
	if h.pid() != pid {
		t.Errorf("the serve has changed from %d to %d", pid, h.pid())
	}
	log, err := os.ReadFile(h.state + "/serve.log")
	if got := strings.Count(string(log), "msg=serving"); err != nil || got != 1 {
		t.Errorf("%d serves, %v:\n%s", got, err, log)
	}
}

// A host that exits while a call runs, and one that comes after it and asks for
// the same: the call is found, and runs once.
func TestStdioHostRestarts(t *testing.T) {
	t.Parallel()
	for _, version := range []string{wire.Legacy, wire.Modern} {
		for _, how := range []string{"closes", "crashes"} {
			t.Run(version+"/"+how, func(t *testing.T) {
				t.Parallel()
				up, release := held(t)
				// A host on a pipe cancels by message only: no grace is needed for it.
				h := newHome(t, upServer(up, "disconnect_grace: 0s"))
				p := h.host(nil, "stdio", "--config", h.config)
				p.open()
				p.call(version, "7", "up__work", `{"a":1}`)
				p.progressed("7", 1)
				if how == "closes" {
					p.close()
				} else {
					_ = p.cmd.Process.Kill() // it runs
					<-p.ended
				}
				p = h.host(nil, "stdio", "--config", h.config)
				p.open()
				p.send(`{"jsonrpc":"2.0","id":"t","method":"tools/list"}`)
				if m := p.response(`"t"`); !strings.Contains(m.JSON, `"list_calls"`) {
					t.Errorf("list_calls is no tool: %s", m.JSON)
				}
				p.send(`{"jsonrpc":"2.0","id":"c","method":"tools/call","params":{"name":"list_calls","arguments":{}}}`)
				if m := p.response(`"c"`); !strings.Contains(m.JSON, `"call_id":"c_`) || !strings.Contains(m.JSON, "work") {
					t.Errorf("the call is not listed: %s", m.JSON)
				}
				p.call(version, "9", "up__work", `{"a":1}`)
				p.send(`{"jsonrpc":"2.0","id":"x","method":"ping"}`)
				p.response(`"x"`)
				release()
				if m := p.response("9"); m.ToolText() != "released" {
					t.Errorf("%s", m.JSON)
				}
				if n := up.Count("tools/call"); n != 1 {
					t.Errorf("the call was sent %d times", n)
				}
				p.close()
			})
		}
	}
}

// Another config than that of the serve is refused, with both files' names.
func TestStdioOtherConfig(t *testing.T) {
	t.Parallel()
	up, _ := held(t)
	h := newHome(t, upServer(up))
	p := h.host(nil, "stdio", "--config", h.config)
	p.open()
	other := h.dir + "/other.yaml"
	h.write(other, upServer(up))
	q := h.host(nil, "stdio", "--config", other)
	q.send(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)
	if m := q.response("1"); !strings.Contains(m.JSON, other) || !strings.Contains(m.JSON, h.config) || !strings.Contains(m.JSON, `"error"`) {
		t.Errorf("%s", m.JSON)
	}
	q.close()
	if !strings.Contains(q.err.String(), other) {
		t.Errorf("stderr: %s", q.err.String())
	}
	p.close()
}

// A serve that cannot start: people and the host hear why, and where the log is.
func TestStdioCannotStart(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	if err := os.MkdirAll(h.state+"/journal.db", 0o700); err != nil { // a folder where the database should be
		t.Fatal(err)
	}
	p := h.host(nil, "stdio", "--config", h.config)
	p.send(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)
	m := p.response("1")
	p.close()
	for _, got := range []string{m.JSON, p.err.String()} {
		if !strings.Contains(got, "serve.log") || !strings.Contains(got, "cannot be started") || !strings.Contains(got, "journal") {
			t.Errorf("it does not say why: %s", got)
		}
	}
}

// A background serve ends when nobody needs it, and not while a host is there or
// a call runs.
func TestBackgroundEndsWhenIdle(t *testing.T) {
	t.Parallel()
	up, release := held(t)
	h := newHome(t, upServer(up))
	idle := time.Second
	if raceEnabled {
		idle *= 4 // a host takes a second to start
	}
	out, err := h.command(nil, "serve", "--config", h.config, "--background", "--idle-exit", idle.String()).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "serve.log") {
		t.Fatalf("%v\n%s", err, out)
	}
	pid := h.pid()
	lives := func() bool { return syscall.Kill(pid, 0) == nil && !zombie(pid) }
	p := h.host(nil, "stdio", "--config", h.config)
	p.open()
	<-time.After(idle * 3 / 2) // that is silence, with a host there
	p.call(wire.Legacy, "1", "up__work", "{}")
	p.progressed("1", 1)
	p.close()
	<-time.After(idle * 3 / 2) // and a call that runs, without a host
	if !lives() {
		t.Fatal("it ended, though it was needed")
	}
	release()
	h.until("it has ended", func() bool { return !lives() })
	if h.pid() != 0 {
		t.Errorf("serve.json is left behind: %+v", h.serving())
	}
	// The next host starts another one.
	p = h.host(nil, "stdio", "--config", h.config)
	p.open()
	p.close()
}
