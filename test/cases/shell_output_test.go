//go:build unix

package cases_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/test/wire"
)

// SHELL §7: a flood of 1 GiB: memory of serve and shim stays bounded, and what is
// shown says how much is not.
func TestShellFlood(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("a GiB takes a while")
	}
	m := newMachine(t)
	c := m.agent(wire.Modern, "/mcp/shell")
	r := ask(t, c, "exec_command", command("head -c 1073741824 /dev/zero | tr '\\0' 'x' | fold -w 99; echo the end", `,"yield_ms":0`))
	var peak int64
	shim := 0
	for {
		w := ask(t, c, "await_call", `{"ids":["`+r.CallID+`"],"wait_ms":500}`)
		if shim == 0 {
			shim = m.meta(r.CallID).Shim.PID
		}
		peak = max(peak, rss(m.pid()), rss(shim))
		if !w.WaitedOut {
			v := w.inner(t, 0)
			if v.exit() != 0 || v.TotalBytes < 1<<30 || !strings.HasSuffix(v.Output, "the end\n") || v.Omitted == 0 || !strings.Contains(v.Output, "bytes omitted") || len(v.Output) > 40000 {
				t.Errorf("%.2000s", w.JSON)
			}
			break
		}
	}
	t.Logf("peak memory %d MiB", peak>>20)
	if peak > 200<<20 { // the serve here is a test binary, with a race detector perhaps
		t.Errorf("%d MiB of memory", peak>>20)
	}
}

// rss is how much memory a process has, in bytes; 0 if that cannot be told.
func rss(pid int) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(b), "VmRSS:")
	var kb int64
	fmt.Sscan(rest, &kb)
	return kb << 10
}

// SHELL §7: 4-byte runes at every split, as they come and as they are read.
func TestShellRunes(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.agent(wire.Modern, "/mcp/shell")
	r := ask(t, c, "exec_command", command(`for i in 1 2 3 4 5; do printf '\360\237'; sleep 0.1; printf '\230\200'; done; echo`, `,"yield_ms":150`))
	end := await(t, c, r.CallID)
	want := strings.Repeat("😀", 5) + "\n"
	if strings.Contains(r.Output, "\uFFFD") || end.Output != want {
		t.Errorf("%q, then %q", r.Output, end.Output)
	}
	got := ""
	for cursor := int64(0); cursor < end.TotalBytes; {
		p := ask(t, c, "read_output", fmt.Sprintf(`{"id":"%s","cursor":%d,"max_bytes":6}`, r.CallID, cursor))
		if p.NextCursor <= cursor || p.IsError {
			t.Fatalf("no progress: %s", p.JSON)
		}
		got, cursor = got+p.Output, p.NextCursor
	}
	if got != want {
		t.Errorf("in pages: %q", got)
	}
}

// SHELL §7: colours and progress bars are read as a terminal would show them, and
// raw on request.
func TestShellCleansOutput(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.agent(wire.Modern, "/mcp/shell")
	r := ask(t, c, "exec_command", command(`printf '\033[31mred\033[0m\n 10%%\r 50%%\r100%%\nok\n'`, ""))
	if r.Output != "red\n100%\nok\n" {
		t.Errorf("%q", r.Output)
	}
	if p := ask(t, c, "read_output", `{"id":"`+r.CallID+`","raw":true}`); !strings.Contains(p.Output, "\x1b[31mred") {
		t.Errorf("raw: %s", p.JSON)
	}
	if p := ask(t, c, "read_output", `{"id":"`+r.CallID+`","grep":"o[k]"}`); !strings.Contains(p.text(), "ok") || strings.Contains(p.text(), "red\n") {
		t.Errorf("grep: %s", p.JSON)
	}
}

// SHELL §7: a terminal: resize, ctrl-c, ctrl-d.
func TestShellTerminal(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.agent(wire.Modern, "/mcp/shell")
	r := ask(t, c, "exec_command", command("stty size; read x; stty size; cat; echo after cat; sleep 300", `,"tty":true,"cols":100,"rows":30,"yield_ms":12000,"ready_pattern":"30 100"`))
	if r.State != "running" || !strings.Contains(r.Output, "30 100") {
		t.Fatalf("%s", r.JSON)
	}
	write := func(args string) ran {
		t.Helper()
		return ask(t, c, "write_stdin", `{"id":"`+r.CallID+`","wait_ms":1000,`+args+`}`)
	}
	write(`"cols":132,"rows":50`)
	w := write(`"text":"go\n"`)
	if !strings.Contains(w.Output, "50 132") {
		t.Errorf("after a resize: %s", w.JSON)
	}
	w = write(`"text":"echoed\n"`)
	if strings.Count(w.Output, "echoed") != 2 { // by the terminal and by cat
		t.Errorf("%q", w.Output)
	}
	if w = write(`"keys":["ctrl-d"]`); !strings.Contains(w.Output, "after cat") {
		t.Errorf("after ctrl-d: %s", w.JSON)
	}
	write(`"keys":["ctrl-c"]`)
	end := await(t, c, r.CallID)
	if end.State != "signaled" && end.exit() != 130 {
		t.Errorf("after ctrl-c: %s", end.JSON)
	}
}

// SHELL §7: a prompt that reads stdin gets its end, at once.
func TestShellPromptGetsEOF(t *testing.T) {
	t.Parallel()
	eachEra(t, func(t *testing.T, m *machine, c *wire.Client) {
		x := c.Start(wire.Call{Tool: "exec_command", Args: command("read -p 'Really? ' x || echo no answer", "")})
		r := read(t, x.Response(0))
		if came := x.TimedResponse(0).Came; came > time.Second+500*time.Millisecond || r.State != "exited" || !strings.Contains(r.Output, "no answer") {
			t.Errorf("after %s: %s", came, r.JSON)
		}
	})
}

// SHELL §7, I10: no command and no secret in any log.
func TestShellLogsNoCommand(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.agent(wire.Modern, "/mcp/shell")
	r := ask(t, c, "exec_command", command("MARKER1=1; echo marker2; exit 3", `,"label":"marker3","idempotency_key":"marker4"`))
	ask(t, c, "run_commands_parallel", `{"commands":[{"command":"echo marker5"},{"command":"exit 1"}]}`)
	ask(t, c, "read_output", `{"id":"`+r.CallID+`","grep":"marker6"}`)
	ask(t, c, "exec_command", command("echo marker7", `,"cwd":"/marker8"`))
	p := ask(t, c, "exec_command", command("cat", `,"stdin":"pipe","yield_ms":200`))
	ask(t, c, "write_stdin", `{"id":"`+p.CallID+`","text":"marker9\n","eof":true}`)
	await(t, c, p.CallID)
	log := strings.ToLower(m.log.String())
	for i := 1; i <= 9; i++ {
		if strings.Contains(log, fmt.Sprint("marker", i)) {
			t.Errorf("marker%d is in the log:\n%s", i, log)
		}
	}
	if token := m.token(); token == "" || strings.Contains(log, token) {
		t.Error("the token is in the log")
	}
	if !strings.Contains(log, strings.ToLower(r.CallID)) {
		t.Error("the call is not in the log at all")
	}
}
