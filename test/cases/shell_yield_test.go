//go:build unix

package cases_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/test/wire"
)

// near says whether a time is what is wanted, give or take; the machine may be
// loaded, so late is forgiven more than early.
func near(got, want time.Duration) bool {
	return got > want-300*time.Millisecond && got < want+300*time.Millisecond
}

// SHELL §7: first byte <300 ms for a silent command in both eras; a silent 4 s
// command returns running at 3.0±0.3 s, and its end is read later (D1, D4, D8).
func TestShellFirstByteAndYield(t *testing.T) { // beside no other case, for its times
	eachEra(t, func(t *testing.T, m *machine, c *wire.Client) {
		x := c.Start(wire.Call{Tool: "exec_command", Args: command("sleep 4; echo done", "")})
		r := read(t, x.Response(0))
		if at := x.FirstAt(); at > 300*time.Millisecond || x.Head(0).Get("Content-Type") != "text/event-stream" {
			t.Errorf("the first byte came after %s as %v", at, x.Head(0))
		}
		if at := x.TimedResponse(0).Came; !near(at, 3*time.Second) || r.State != "running" || r.IsError || r.ExitCode != nil {
			t.Errorf("after %s: %s", at, r.JSON)
		}
		if end := await(t, c, r.CallID); end.exit() != 0 || end.Output != "done\n" || end.State != "exited" {
			t.Errorf("its end: %s", end.JSON)
		}
	})
}

// SHELL §7: a beat every ≤5.5 s for 30 s, in both eras, while a wait is open (D2).
func TestShellBeatsForHalfAMinute(t *testing.T) {
	t.Parallel()
	eachEra(t, func(t *testing.T, m *machine, c *wire.Client) {
		r := ask(t, c, "exec_command", command("sleep 60", `,"yield_ms":0`))
		x := c.Start(wire.Call{Tool: "await_call", Args: `{"ids":["` + r.CallID + `"],"wait_ms":30000}`, Token: "1"})
		w := read(t, x.Response(40*time.Second))
		if !w.WaitedOut || w.IsError || w.Calls[0].State != "running" {
			t.Errorf("%s", w.JSON)
		}
		last, beats := time.Duration(0), 0
		for _, i := range x.Items() {
			if gap := i.At - last; gap > 5500*time.Millisecond {
				t.Errorf("silence of %s before %s", gap, i.At)
			}
			last = i.At
			beats++
		}
		if beats < 6 {
			t.Errorf("%d pieces in 30 s:\n%s", beats, x.Body())
		}
	})
}

// SHELL §7: a yield of 12 000 is honoured, 12 001 refused with the limit's name,
// and then nothing was started (D6).
func TestShellYieldLimit(t *testing.T) { // beside no other case, for its times
	eachEra(t, func(t *testing.T, m *machine, c *wire.Client) {
		r := ask(t, c, "exec_command", command("echo x >> refused", `,"yield_ms":12001`))
		if !r.IsError || !strings.Contains(r.text(), "yield_ms") || !strings.Contains(r.text(), "12000") {
			t.Errorf("12001: %s", r.JSON)
		}
		x := c.Start(wire.Call{Tool: "exec_command", Args: command("sleep 60", `,"yield_ms":12000`)})
		if r = read(t, x.Response(20*time.Second)); !near(x.TimedResponse(0).Came, 12*time.Second) || r.State != "running" {
			t.Errorf("12000 after %s: %s", x.TimedResponse(0).Came, r.JSON)
		}
		if n := m.lines("refused"); n != 0 {
			t.Errorf("the refused one ran %d times", n)
		}
	})
}

// O28: a command that outlasts its yield returns a handle that is no error and no
// success; its end stays readable, and it ran once.
func TestO28YieldKeepsOutputAndExit(t *testing.T) {
	t.Parallel()
	eachEra(t, func(t *testing.T, m *machine, c *wire.Client) {
		x := c.Start(wire.Call{Tool: "exec_command", Args: command("echo run >> side; sleep 6; echo done; exit 3", "")})
		r := read(t, x.Response(0))
		if x.TimedResponse(0).Came > 4*time.Second || r.State != "running" || r.IsError || strings.Contains(r.text(), "exit 0") {
			t.Errorf("%s", r.JSON)
		}
		end := await(t, c, r.CallID)
		if end.exit() != 3 || !strings.Contains(end.Output, "done") {
			t.Errorf("its end: %s", end.JSON)
		}
		<-time.After(2 * time.Second) // as the case has it
		if end = await(t, c, r.CallID); end.exit() != 3 || !strings.Contains(end.Output, "done") {
			t.Errorf("read again: %s", end.JSON)
		}
		if n := m.lines("side"); n != 1 {
			t.Errorf("it ran %d times", n)
		}
	})
}

// O27: stdin is not the protocol's: what reads it gets its end at once, and no
// byte of the stream is lost. Here over a host's pipe, where that was the pain.
func TestO27StdinEnds(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	for _, version := range eras {
		p := m.host(nil, "stdio", "--server", "shell")
		if version == wire.Legacy {
			p.open()
		}
		for i, text := range []string{"cat", "read x; echo got:$x"} {
			id := strconv.Itoa(10 + i)
			start := time.Now()
			p.call(version, id, "exec_command", command(text, fmt.Sprintf(`,"label":"%s %d"`, version, i)))
			r := read(t, p.response(id))
			if took := time.Since(start); took > time.Second+500*time.Millisecond || r.State != "exited" || r.exit() != 0 && i == 0 {
				t.Errorf("%s after %s: %s", text, took, r.JSON)
			}
			if want := []string{"", "got:\n"}[i]; r.Output != want {
				t.Errorf("%s printed %q", text, r.Output)
			}
		}
		p.close()
	}
}

// SHELL §7: await returns ≤50 ms after the exit. The command writes when it ended.
func TestShellAwaitReturnsAtTheExit(t *testing.T) { // beside no other case, for its times
	m := newMachineOf(t, product(t))
	c := m.agent(wire.Modern, "/mcp/shell")
	best := time.Hour
	for i := range 5 {
		name := fmt.Sprintf("end%d", i)
		r := ask(t, c, "exec_command", command("sleep 0.5; exec date +%s%N > "+name, `,"yield_ms":0`))
		end := await(t, c, r.CallID)
		now := time.Now()
		if end.exit() != 0 {
			t.Fatalf("%s", end.JSON)
		}
		b, err := os.ReadFile(filepath.Join(m.root, name))
		if err != nil {
			t.Fatal(err)
		}
		ns, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		best = min(best, now.Sub(time.Unix(0, ns)))
	}
	t.Logf("the fastest of five waits returned %s after the command wrote its time", best)
	if best > 50*time.Millisecond {
		t.Errorf("the fastest of five waits returned %s after the exit", best)
	}
}

// SHELL §4: a wait for output and one for a pattern return when it comes, while
// other tools answer.
func TestShellAwaitPattern(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.agent(wire.Modern, "/mcp/shell")
	r := ask(t, c, "exec_command", command("echo one; sleep 1; echo two; sleep 1; echo Listening on port 80; sleep 60", `,"yield_ms":12000,"kind":"service","label":"web","ready_pattern":"^one$"`))
	if r.State != "running" || r.Output != "one\n" {
		t.Fatalf("%s", r.JSON)
	}
	open := c.Start(wire.Call{Tool: "await_call", Args: `{"ids":["` + r.CallID + `"],"pattern":"on port [0-9]+"}`})
	next := ask(t, c, "await_call", fmt.Sprintf(`{"ids":["%s"],"until":"output","cursor":%d}`, r.CallID, r.NextCursor))
	if v := next.inner(t, 0); v.Output != "two\n" || v.State != "running" {
		t.Errorf("output: %s", next.JSON)
	}
	if list := ask(t, c, "list_calls", `{"state":"running"}`); len(list.Calls) != 1 || !strings.Contains(list.text(), `"web"`) {
		t.Errorf("list while a wait is open: %s", list.JSON)
	}
	found := read(t, open.Response(0))
	if v := found.inner(t, 0); !strings.Contains(v.Output, "Listening on port 80") || v.State != "running" || found.WaitedOut {
		t.Errorf("pattern: %s", found.JSON)
	}
	r = ask(t, c, "exec_command", command("sleep 0.3; echo up and ready; sleep 60", `,"yield_ms":12000,"kind":"service","ready_pattern":"ready$"`))
	if r.State != "running" || !strings.Contains(r.Output, "ready") {
		t.Errorf("ready_pattern: %s", r.JSON)
	}
}

// D7, D13: commands of a batch yield together; a running one is never a success,
// and failed, complete and running are three words.
func TestShellBatchStates(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.agent(wire.Modern, "/mcp/shell")
	x := c.Start(wire.Call{Tool: "run_commands_parallel", Args: `{"commands":[{"command":"exit 0"},{"command":"sleep 5; exit 2"}]}`})
	r := read(t, x.Response(0))
	if x.TimedResponse(0).Came > 5*time.Second || r.State != "running" || r.IsError || strings.Contains(r.text(), "succeeded") {
		t.Errorf("running: %s", r.JSON)
	}
	end := await(t, c, r.CallID)
	if end.State != "partial" && end.State != "failed" {
		t.Errorf("one of two failed: %s", end.JSON)
	}
	good := ask(t, c, "run_commands_parallel", `{"commands":[{"command":"echo a"},{"command":"echo b"}]}`)
	if good.State != "succeeded" || good.IsError {
		t.Errorf("good: %s", good.JSON)
	}
	bad := ask(t, c, "run_commands_parallel", `{"commands":[{"command":"exit 1"},{"command":"exit 2"}]}`)
	if bad.State != "failed" {
		t.Errorf("bad: %s", bad.JSON)
	}
	var children struct{ Commands []struct{ Index int } }
	if err := json.Unmarshal(good.At("result.structuredContent"), &children); err != nil || len(children.Commands) != 2 || children.Commands[1].Index != 2 {
		t.Errorf("children %+v of %s", children, good.JSON)
	}
	m.until("the records of the children", func() bool { return strings.Count(m.log.String(), `"child":2`) >= 3 })
}
