//go:build linux || darwin

package tools

import (
	"strings"
	"testing"
)

// Typing into a command with a pipe: what it printed since comes back.
func TestWriteStdin(t *testing.T) {
	r := newRig(t)
	p := r.call(Exec, args("command", "echo name?; read n; echo hello $n; cat; echo over", "stdin", "pipe", "yield_ms", 200))
	id := p.CallID
	r.until("its question", func() bool { return r.tools.Total(p.call.ID()) > 0 })
	q := r.do("ann", Write, args("id", id, "text", "ann\n", "wait_ms", 1000))
	if q.Output != "hello ann\n" || *q.From != 6 || q.State != "running" || q.shown.IsError {
		t.Errorf("%q %s", q.shown.Text, q.shown.Structured)
	}
	// Typed once, however often it is sent; the answer is the same.
	for range 2 {
		if q = r.do("ann", Write, args("id", id, "text", "again\n", "wait_ms", 500, "idempotency_key", "k")); q.Output != "again\n" {
			t.Errorf("%s", q.shown.Structured)
		}
	}
	if !strings.Contains(q.Next, "It was typed before, with this idempotency_key") {
		t.Errorf("%q", q.Next)
	}
	q = r.do("ann", Write, args("id", id, "eof", true, "wait_ms", 5000))
	if q.Output != "over\n" {
		t.Errorf("%s", q.shown.Structured)
	}
	if e := r.end(p.call); *e.ExitCode != 0 || e.Output != "name?\nhello ann\nagain\nover\n" {
		t.Errorf("%s", e.shown.Structured)
	}
	if q = r.do("ann", Write, args("id", id, "text", "x")); !q.shown.IsError || !strings.HasPrefix(q.shown.Text[0], "Nothing was typed: the command has ended: exit 0 after ") {
		t.Errorf("%q", q.shown.Text)
	}
}

// A terminal: keys, its size, ctrl-c and ctrl-d.
func TestWriteTerminal(t *testing.T) {
	r := newRig(t)
	p := r.call(Exec, args("command", "stty size; stty -echo; read x; stty size; cat", "tty", true, "cols", 100, "rows", 30, "yield_ms", 200))
	r.until("the size", func() bool { return r.tools.Total(p.call.ID()) > 0 })
	q := r.do("ann", Write, args("id", p.CallID, "keys", []string{"enter"}, "cols", 90, "rows", 20, "wait_ms", 1000))
	if !strings.Contains(q.Output, "20 90") {
		t.Errorf("%s", q.shown.Structured)
	}
	r.do("ann", Write, args("id", p.CallID, "keys", []string{"ctrl-d"}, "wait_ms", 5000))
	if e := r.end(p.call); *e.ExitCode != 0 || !strings.Contains(e.Output, "30 100") {
		t.Errorf("%s", e.shown.Structured)
	}
	p = r.call(Exec, args("command", "cat", "tty", true, "yield_ms", 200))
	if e := r.do("ann", Write, args("id", p.CallID, "keys", []string{"ctrl-c"}, "wait_ms", 5000)); e.shown.IsError {
		t.Errorf("%q", e.shown.Text)
	}
	if e := r.end(p.call); e.State != "signaled" && (e.ExitCode == nil || *e.ExitCode != 130) {
		t.Errorf("%s", e.shown.Structured)
	}
}

// A command that asks and cannot be answered gets the end of its input, and one
// that can is said to wait.
func TestWaitingForInput(t *testing.T) {
	r := newRig(t)
	if p := r.call(Exec, args("command", "read x || echo eof")); p.Output != "eof\n" {
		t.Errorf("%s", p.shown.Structured)
	}
	p := r.call(Exec, args("command", "echo name?; read n", "stdin", "pipe", "yield_ms", 500))
	if !p.Waiting || !strings.Contains(p.Next, `It seems to wait for input: answer with write_stdin and {"id":"`+p.CallID+`","text":"…\n"}.`) {
		t.Skipf("this system does not tell: %s", p.shown.Structured)
	}
}
