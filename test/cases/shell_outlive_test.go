//go:build unix

package cases_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/longcall/longcall/test/wire"
)

// SHELL §7: kill -9 of the server mid-run, restart: the exit code and the complete
// output; the task of the call resolves after it too.
func TestShellKillServer(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.agent(wire.Modern, "/mcp/shell")
	const lines = "for i in $(seq 1 80); do echo line $i; sleep 0.1; done; exit 7"
	r := ask(t, c, "exec_command", command(lines, `,"yield_ms":12000,"ready_pattern":"line 1"`))
	if r.State != "running" || !strings.Contains(r.Output, "line 1\n") {
		t.Fatalf("%s", r.JSON)
	}
	m.restart()
	c = m.agent(wire.Modern, "/mcp/shell")
	again := ask(t, c, "exec_command", command(lines, `,"yield_ms":0`))
	if !again.Joined || again.CallID != r.CallID {
		t.Errorf("the same command after the restart: %s", again.JSON)
	}
	end := await(t, c, r.CallID)
	if end.exit() != 7 || strings.Count(end.Output, "line ") != 80 || end.State != "exited" {
		t.Errorf("its end: %s", end.JSON)
	}
	ended := ask(t, c, "exec_command", command("echo quick; sleep 2; exit 5", `,"yield_ms":0`)) // ends while nobody serves
	m.until("it runs", func() bool { return m.meta(ended.CallID).Leader.PID > 0 })
	m.kill()
	<-m.end
	m.until("it has ended", func() bool {
		_, err := os.Stat(filepath.Join(m.folder(ended.CallID), "exit.json"))
		return err == nil
	})
	m.start()
	c = m.agent(wire.Modern, "/mcp/shell")
	if end = await(t, c, ended.CallID); end.exit() != 5 || end.Output != "quick\n" {
		t.Errorf("what ended meanwhile: %s", end.JSON)
	}
}

// SHELL §7: kill -9 of the shim gives lost: outcome interrupted, in no column a
// success or a failure of the command.
func TestShellKillShim(t *testing.T) {
	t.Parallel()
	eachEra(t, func(t *testing.T, m *machine, c *wire.Client) {
		r := ask(t, c, "exec_command", command("echo begun; sleep 300", `,"yield_ms":300`))
		m.until("it runs", func() bool { return m.meta(r.CallID).Leader.PID > 1 })
		pid := m.meta(r.CallID).Shim.PID
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		leader := m.meta(r.CallID).Leader.PID
		w := ask(t, c, "await_call", `{"ids":["`+r.CallID+`"],"wait_ms":1500}`)
		if v := w.inner(t, 0); v.State == "running" { // the command goes on, unsupervised, until it ends
			if err := syscall.Kill(leader, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			w = ask(t, c, "await_call", `{"ids":["`+r.CallID+`"],"wait_ms":20000}`)
		}
		v := w.inner(t, 0)
		if v.State != "lost" || v.Outcome != "interrupted" || v.ExitCode != nil || w.Calls[0].State != "interrupted" || !w.IsError {
			t.Errorf("%s", w.JSON)
		}
		if !strings.Contains(w.text(), "Outcome unknown") || !strings.Contains(w.text(), "before starting it again") {
			t.Errorf("what to do: %s", w.text())
		}
		if list := ask(t, c, "list_calls", `{}`); list.Calls[0].State != "interrupted" {
			t.Errorf("%s", list.JSON)
		}
	})
}

// A stopped serve leaves commands running, and the next one picks them up.
func TestShellStopKeepsCommands(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.agent(wire.Legacy, "/mcp/shell")
	r := ask(t, c, "exec_command", command("sleep 3; echo survived; exit 4", `,"yield_ms":0`))
	if err := syscall.Kill(m.pid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-m.end:
	case <-time.After(sLimit):
		t.Fatal("the serve does not stop")
	}
	m.start()
	c = m.agent(wire.Modern, "/mcp/shell")
	if end := await(t, c, r.CallID); end.exit() != 4 || end.Output != "survived\n" {
		t.Errorf("%s", end.JSON)
	}
}

// SHELL §7: a grandchild holds stdout: the exit is reported ≤300 ms after it, with
// descendants 1.
func TestShellGrandchildHoldsStdout(t *testing.T) { // beside no other case, for its times
	eachEra(t, func(t *testing.T, m *machine, c *wire.Client) {
		r := ask(t, c, "exec_command", command("sleep 30 & exit 6", ""))
		now := time.Now()
		ended, err := time.Parse(time.RFC3339, r.Str("result.structuredContent.ended_at"))
		if err != nil {
			t.Fatalf("%v: %s", err, r.JSON)
		}
		if came := now.Sub(ended); came > 300*time.Millisecond || r.exit() != 6 || r.Descendants != 1 || !strings.Contains(r.text(), "still runs") {
			t.Errorf("after %s: %s", came, r.JSON)
		}
		end := ask(t, c, "cancel_call", `{"id":"`+r.CallID+`"}`) // stops what is left
		if !strings.Contains(end.text(), "what was left of its processes") {
			t.Errorf("%s", end.JSON)
		}
	})
}

// SHELL §7: a setsid escapee is stopped by cancel, with the rest of the tree.
func TestShellCancelStopsTheTree(t *testing.T) {
	t.Parallel()
	eachEra(t, func(t *testing.T, m *machine, c *wire.Client) {
		r := ask(t, c, "exec_command", command("setsid sh -c 'echo $$ > escaped; exec sleep 300' & echo $$ > leader; sleep 300", `,"yield_ms":300`))
		pid := func(name string) int {
			var n int
			m.until(name, func() bool {
				b, err := os.ReadFile(filepath.Join(m.root, name))
				n, _ = strconv.Atoi(strings.TrimSpace(string(b)))
				return err == nil && n > 1
			})
			return n
		}
		escaped, leader := pid("escaped"), pid("leader")
		end := ask(t, c, "cancel_call", `{"id":"`+r.CallID+`","grace_ms":500,"reason":"the test asks"}`)
		if end.IsError || !strings.Contains(end.text(), "was cancelled") {
			t.Errorf("%s", end.JSON)
		}
		for _, p := range []int{escaped, leader} {
			m.until(fmt.Sprint("pid ", p, " is gone"), func() bool { return syscall.Kill(p, 0) != nil || zombie(p) })
		}
		if v := await(t, c, r.CallID); v.State != "stopped" || v.Outcome != "cancelled" {
			t.Errorf("%s", v.JSON)
		}
	})
}

// SHELL §7: two identical commands at once are one process, from the first
// millisecond on.
func TestShellTwoAtOnce(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	agents := []*wire.Client{m.agent(wire.Legacy, "/mcp/shell"), m.agent(wire.Modern, "/mcp"), m.agent(wire.Modern, "/mcp/shell")}
	for round := range 3 {
		var wg sync.WaitGroup
		answers := make([]*wire.Exchange, 9)
		for i := range answers {
			wg.Go(func() {
				answers[i] = agents[i%3].Start(wire.Call{Tool: "exec_command", Args: command(fmt.Sprintf("echo run >> once%d; sleep 1; exit 9", round), "")})
			})
		}
		wg.Wait()
		ids, joined := map[string]bool{}, 0
		for _, x := range answers {
			r := read(t, x.Response(0))
			ids[r.CallID] = true
			if r.Joined {
				joined++
			}
			if r.exit() != 9 {
				t.Errorf("%s", r.JSON)
			}
		}
		if n := m.lines(fmt.Sprintf("once%d", round)); n != 1 || len(ids) != 1 || joined != 8 {
			t.Errorf("it ran %d times, as %d calls, %d joined", n, len(ids), joined)
		}
	}
}

// SHELL §7: cancel and call again: joined. In the sessions' era a message cancels
// the request, in the other the closed stream; neither stops the command (D14).
func TestShellCancelAndCallAgain(t *testing.T) {
	t.Parallel()
	eachEra(t, func(t *testing.T, m *machine, c *wire.Client) {
		args := command("echo run >> side; sleep 4; exit 3", `,"yield_ms":12000`)
		x := c.Start(wire.Call{Tool: "exec_command", Args: args})
		m.until("it runs", func() bool { return m.lines("side") == 1 })
		if c.Version == wire.Legacy {
			if status := c.Cancel(x.ID); status != 202 {
				t.Errorf("cancel: %d", status)
			}
			if err := x.End(2 * time.Second); err != nil {
				t.Errorf("the stream of a cancelled request: %v", err)
			}
			if _, ok := x.WaitResponse(time.Millisecond); ok {
				t.Errorf("it got a response: %s", x.Body())
			}
		}
		x.Close()
		r := ask(t, c, "exec_command", args)
		if !r.Joined || r.exit() != 3 || m.lines("side") != 1 {
			t.Errorf("again: %s; it ran %d times", r.JSON, m.lines("side"))
		}
		// D10: the abort is on the record, and is no success.
		var rec string
		m.until("the abort is recorded", func() bool {
			rec = m.record(r.CallID)
			return strings.Contains(rec, "aborted_downstream") && strings.Contains(rec, `"delivered"`)
		})
		if i, k := strings.Index(rec, "aborted_downstream"), strings.Index(rec, `"delivered"`); k < i {
			t.Errorf("%s", rec)
		}
		if log := m.log.String(); !strings.Contains(log, "aborted_downstream") {
			t.Error("no abort in the log")
		}
	})
}

// record is what the command line says of a call.
func (m *machine) record(id string) string {
	ctx, cancel := context.WithTimeout(m.t.Context(), sLimit)
	defer cancel()
	cmd := m.command(nil, "calls", "show", id, "--json")
	out, err := cmd.CombinedOutput()
	if err != nil && ctx.Err() == nil {
		return fmt.Sprint(err, string(out))
	}
	return string(out)
}

// SHELL §7: an undelivered result is replayed once, a delivered one never.
func TestShellReplay(t *testing.T) {
	t.Parallel()
	eachEra(t, func(t *testing.T, m *machine, c *wire.Client) {
		args := command("echo run >> side; exit 3", "")
		ask(t, c, "exec_command", strings.Replace(args, "}", `,"yield_ms":0}`, 1)) // handed off before its end
		m.until("it has ended", func() bool {
			list := ask(t, c, "list_calls", `{"state":"unread"}`)
			return len(list.Calls) == 1
		})
		r := ask(t, c, "exec_command", args)
		if !r.Replayed || r.exit() != 3 || m.lines("side") != 1 {
			t.Errorf("undelivered: %s; it ran %d times", r.JSON, m.lines("side"))
		}
		r = ask(t, c, "exec_command", args)
		if r.Replayed || r.exit() != 3 || m.lines("side") != 2 {
			t.Errorf("delivered: %s; it ran %d times", r.JSON, m.lines("side"))
		}
		keyed := command("echo run >> keyed", `,"idempotency_key":"k1"`)
		ask(t, c, "exec_command", keyed)
		if r = ask(t, c, "exec_command", keyed); !r.Replayed || m.lines("keyed") != 1 {
			t.Errorf("a key: %s; it ran %d times", r.JSON, m.lines("keyed"))
		}
		if r = ask(t, c, "exec_command", command("echo other", `,"idempotency_key":"k1"`)); !r.IsError || !strings.Contains(r.text(), "idempotency key") {
			t.Errorf("a key of another command: %s", r.JSON)
		}
	})
}

// Over a host's pipe the host cancels by message, in both eras: that too lets go of
// the request only.
func TestShellCancelOverThePipe(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	for _, version := range eras {
		p := m.host(nil, "stdio", "--server", "shell")
		if version == wire.Legacy {
			p.open()
		}
		args := command("echo run >> "+version+"; sleep 5; exit 3", `,"yield_ms":12000`)
		p.call(version, "20", "exec_command", args)
		m.until("it runs", func() bool { return m.lines(version) == 1 })
		p.cancel("20")
		p.call(version, "21", "exec_command", args)
		r := read(t, p.response("21"))
		if !r.Joined || r.exit() != 3 || m.lines(version) != 1 {
			t.Errorf("%s: %s; it ran %d times", version, r.JSON, m.lines(version))
		}
		if n := p.count(`"id":20,"result"`); n != 0 {
			t.Errorf("%s: the cancelled request got an answer:\n%s", version, p.text())
		}
		p.close()
	}
}

// D9: four lifecycle records with one request id: start, first byte, completion,
// client abort; a yield is none of a success's words.
func TestShellLifecycleRecords(t *testing.T) {
	t.Parallel()
	eachEra(t, func(t *testing.T, m *machine, c *wire.Client) {
		events := func(x *wire.Exchange, last string) (all []string) {
			t.Helper()
			id := ""
			m.until(last, func() bool {
				all = nil
				for line := range strings.Lines(m.log.String()) {
					var l struct{ Event, Request, Call, Delivery, Outcome, Msg string }
					if json.Unmarshal([]byte(line), &l) != nil || l.Request == "" || id != "" && l.Request != id {
						continue
					}
					if id == "" && l.Event == "start" && l.Call != "" && l.Call == x.Head(0).Get("Longcall-Call") {
						id = l.Request
					}
					if id != "" && l.Request == id && !strings.HasPrefix(l.Event, "call_") {
						all = append(all, l.Event)
						if l.Delivery == "handed_off" && (strings.Contains(l.Msg, "completed") || l.Outcome != "running") {
							t.Errorf("a yield reads as a success: %s", line)
						}
					}
				}
				return len(all) > 0 && all[len(all)-1] == last
			})
			return all
		}
		done := c.Start(wire.Call{Tool: "exec_command", Args: command("true", "")})
		done.Response(0)
		if got := fmt.Sprint(events(done, "completion")); got != "[start first_byte completion]" {
			t.Errorf("of one that ended: %s", got)
		}
		yields := c.Start(wire.Call{Tool: "exec_command", Args: command("sleep 60", `,"yield_ms":200`)})
		yields.Response(0)
		if got := fmt.Sprint(events(yields, "completion")); got != "[start first_byte completion]" {
			t.Errorf("of one that yields: %s", got)
		}
		gone := c.Start(wire.Call{Tool: "exec_command", Args: command("sleep 61", `,"yield_ms":9000`)})
		gone.WaitItems(1, 0)
		gone.Close()
		if got := fmt.Sprint(events(gone, "abort")); got != "[start first_byte abort]" {
			t.Errorf("of one whose client is gone: %s", got)
		}
	})
}

// A host on a pipe sees a lost serve as a pause: its request comes back to its own
// command, which is no other's, also with if_running error.
func TestShellServeLostUnderAPipe(t *testing.T) {
	t.Parallel()
	for _, version := range eras {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			p := m.host(nil, "stdio", "--server", "shell", "--config", m.config)
			if version == wire.Legacy {
				p.open()
			}
			p.call(version, "30", "exec_command", command("echo run >> side; sleep 5; exit 3", `,"yield_ms":12000,"if_running":"error"`))
			m.until("it runs", func() bool { return m.lines("side") == 1 })
			m.kill() // and the relay starts another one
			<-m.end
			r := read(t, p.response("30"))
			id := r.CallID
			if r.State == "running" { // a resumed stream yields after 3 s
				p.call(version, "31", "await_call", `{"ids":["`+id+`"]}`)
				r = read(t, p.response("31"))
				r = r.inner(t, 0)
			}
			if r.IsError || r.Joined || r.exit() != 3 || m.lines("side") != 1 {
				t.Errorf("%s; it ran %d times", r.JSON, m.lines("side"))
			}
			p.close()
		})
	}
}

// A command that was still in the foreground when the server was killed goes on
// too, although its stateless agent is gone: nobody said to stop it (D14).
func TestShellKillServerInTheForeground(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "disconnect_grace: 200ms")
	c := m.agent(wire.Modern, "/mcp/shell")
	args := command("echo run >> side; sleep 4; exit 8", `,"yield_ms":12000`)
	c.Start(wire.Call{Tool: "exec_command", Args: args})
	m.until("it runs", func() bool { return m.lines("side") == 1 })
	m.restart()
	c = m.agent(wire.Modern, "/mcp/shell")
	m.until("it has ended", func() bool { return len(ask(t, c, "list_calls", `{"state":"unread"}`).Calls) == 1 })
	if r := ask(t, c, "exec_command", args); !r.Replayed || r.exit() != 8 || m.lines("side") != 1 {
		t.Errorf("%s; it ran %d times", r.JSON, m.lines("side"))
	}
}
