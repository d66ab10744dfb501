//go:build linux || darwin

package tools

import (
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/command"
)

// A command that ends within the yield: its whole output and its exit code, which
// is no error (SHELL §4).
func TestExecEnds(t *testing.T) {
	r := newRig(t)
	p := r.call(Exec, args("command", "echo out; echo err >&2; exit 3", "label", "probe"))
	if p.shown.IsError || p.shown.Link || p.State != "exited" || p.Outcome != "completed" || *p.ExitCode != 3 || p.Output != "out\nerr\n" || *p.Total != 8 || *p.NextCursor != 8 {
		t.Errorf("%s", p.shown.Structured)
	}
	first := p.shown.Text[0]
	if !strings.HasPrefix(first, "exit 3 after 0.") || !strings.HasSuffix(first, " s · "+p.CallID+" · 8 B of output.") || p.shown.Text[1] != "out\nerr\n" {
		t.Errorf("%q", p.shown.Text)
	}
	rec := p.call.Record()
	if rec.End.Outcome != call.Completed || rec.End.ToolError || rec.End.Text != "exit 3" || rec.Dispatched.IsZero() || rec.FirstByte.IsZero() {
		t.Errorf("%+v", rec.End)
	}
	if b := r.tools.Brief(&rec); b.State != "exited" || b.Label != "probe" || b.ExitCode != 3 || !b.Exited || !strings.HasPrefix(b.Line, "exit 3 after 0.") {
		t.Errorf("%+v", b)
	}
	q := r.call(Exec, args("command", "true"))
	if *q.ExitCode != 0 || q.Output != "" || !strings.HasSuffix(q.shown.Text[0], "· no output.") || len(q.shown.Text) != 1 {
		t.Errorf("%q", q.shown.Text)
	}
}

// nonzero_is_error, the operator's switch.
func TestNonzeroIsError(t *testing.T) {
	r := newRig(t, func(r *rig) { r.set.NonzeroIsError = true })
	if p := r.call(Exec, args("command", "exit 1")); !p.shown.IsError || *p.ExitCode != 1 || !p.call.Record().End.ToolError {
		t.Errorf("%s", p.shown.Structured)
	}
	if p := r.call(Exec, args("command", "exit 0")); p.shown.IsError || p.call.Record().End.ToolError {
		t.Errorf("%s", p.shown.Structured)
	}
}

// A command that takes longer than its yield is handed on: running, never a
// success, and its end is there afterwards.
func TestExecYields(t *testing.T) {
	r := newRig(t)
	start := time.Now()
	p := r.call(Exec, args("command", "echo begun; while [ ! -e go ]; do sleep 0.02; done; echo done", "yield_ms", 300))
	if d := time.Since(start); d < 300*time.Millisecond || d > 2*time.Second {
		t.Errorf("it came back after %v", d)
	}
	want := "Not finished: do not run it again, sleep or poll. Continue with other work; call await_call with {\"ids\":[\"" + p.CallID + "\"]} when you need the result."
	if p.State != "running" || p.Outcome != "" || p.ExitCode != nil || p.EndedAt != "" || p.shown.IsError || !p.shown.Link || p.Next != want || p.Output != "begun\n" {
		t.Errorf("%s", p.shown.Structured)
	}
	if !strings.HasPrefix(p.shown.Text[0], "running 0.") || !strings.HasSuffix(p.shown.Text[0], " · "+p.CallID+" · 6 B so far. "+want) {
		t.Errorf("%q", p.shown.Text)
	}
	r.must(writeFile(r.path("go")))
	q := r.end(p.call)
	if *q.ExitCode != 0 || q.Output != "begun\ndone\n" || q.CallID != p.CallID {
		t.Errorf("%s", q.shown.Structured)
	}
	// Reading it again, as often as one likes.
	for range 2 {
		if q := r.do("ann", Read, args("id", p.CallID)); q.Output != "begun\ndone\n" || q.shown.IsError || q.State != "exited" {
			t.Errorf("%s", q.shown.Structured)
		}
	}
}

// yield_ms 0 is the background at once.
func TestExecYieldZero(t *testing.T) {
	r := newRig(t)
	p := r.call(Exec, args("command", "sleep 60", "yield_ms", 0))
	if p.State != "starting" && p.State != "running" || p.shown.IsError || !p.shown.Link {
		t.Errorf("%s", p.shown.Structured)
	}
}

// ready_pattern: back as soon as the output matches, and the command runs on.
func TestExecReady(t *testing.T) {
	r := newRig(t)
	start := time.Now()
	p := r.call(Exec, args("command", "echo starting; echo listening on :80; exec sleep 60", "ready_pattern", `listening on :\d+`, "kind", "service", "yield_ms", 12000))
	if !p.ready || time.Since(start) > 5*time.Second || p.State != "running" || !strings.HasPrefix(p.shown.Text[0], "ready: the output matched ready_pattern; running 0.") ||
		!strings.Contains(p.Next, "It runs on: do not run it again.") || p.Output != "starting\nlistening on :80\n" {
		t.Errorf("%v %q", p.ready, p.shown.Text)
	}
	// One that ends without a match tells its end.
	p = r.call(Exec, args("command", "echo no", "ready_pattern", "never", "yield_ms", 12000))
	if p.ready || p.State != "exited" {
		t.Errorf("%s", p.shown.Structured)
	}
}

// A command that ends by a signal, or over its time, is a tool error.
func TestExecEndsBadly(t *testing.T) {
	r := newRig(t)
	p := r.call(Exec, args("command", "kill -SEGV $$", "yield_ms", 12000))
	if p.State != "signaled" || p.Signal != "SIGSEGV" || p.ExitCode != nil || !p.shown.IsError || !strings.HasPrefix(p.shown.Text[0], "ended by SIGSEGV after 0.") {
		t.Errorf("%q %s", p.shown.Text, p.shown.Structured)
	}
	p = r.call(Exec, args("command", "sleep 60", "timeout_s", 1, "yield_ms", 12000))
	if p.State != "timed_out" || p.Outcome != "timed_out" || !p.shown.IsError || !strings.HasPrefix(p.shown.Text[0], "timed out: stopped after 1.") {
		t.Errorf("%q %s", p.shown.Text, p.shown.Structured)
	}
	rec := p.call.Record()
	if rec.End.Outcome != call.TimedOut || rec.End.Limit != "timeout_s" {
		t.Errorf("%+v", rec.End)
	}
}

// shell.max_runtime ends what names no time of its own, in batches too.
func TestMaxRuntime(t *testing.T) {
	r := newRig(t, func(r *rig) { r.set.MaxRuntime = 300 * time.Millisecond })
	if p := r.call(Exec, args("command", "exec sleep 60", "yield_ms", 12000)); p.State != "timed_out" {
		t.Errorf("%s", p.shown.Structured)
	}
	if p := r.call(Parallel, args("commands", commands("exec sleep 60"), "yield_ms", 12000)); p.states() != "failed timed_out" {
		t.Errorf("%s", p.shown.Structured)
	}
}

// A cancel stops the whole tree, and the record says who asked (D10).
func TestExecCancel(t *testing.T) {
	r := newRig(t)
	p := r.call(Exec, args("command", "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.02; done", "yield_ms", 0))
	r.until("output", func() bool { return r.tools.Total(p.call.ID()) > 0 })
	rec := p.call.Record()
	if _, err := r.tools.Stop(t.Context(), &rec, command.Stop{Signal: "NOSUCH", Grace: -1}); err == nil || !strings.Contains(err.Error(), "TERM, INT") {
		t.Errorf("%v", err)
	}
	left, err := r.tools.Stop(t.Context(), &rec, command.Stop{Signal: "sigterm", Grace: -1, By: "agent (cancel_call)"})
	if left || err != nil {
		t.Error(left, err)
	}
	r.must(p.call.Cancel(call.End{By: "agent (cancel_call)", Text: "enough"}))
	q := r.end(p.call)
	if q.State != "stopped" || q.Outcome != "cancelled" || !q.shown.IsError || !strings.Contains(q.shown.Text[0], ", by agent (cancel_call) · ") || !strings.HasSuffix(q.Output, "bye\n") {
		t.Errorf("%q %s", q.shown.Text, q.shown.Structured)
	}
}

// What an ended command left behind is told of, and stopped on demand.
func TestExecDescendants(t *testing.T) {
	r := newRig(t)
	start := time.Now()
	p := r.call(Exec, args("command", "sleep 60 & echo started", "yield_ms", 12000))
	if time.Since(start) > 5*time.Second || p.State != "exited" || p.Descendants != 1 || !strings.Contains(p.shown.Text[0], "1 process that it started still runs: do not start them again; cancel_call with") {
		t.Errorf("after %v: %q", time.Since(start), p.shown.Text)
	}
	rec := p.call.Record()
	if left, err := r.tools.Stop(t.Context(), &rec, command.Stop{Grace: -1, By: "ann"}); !left || err != nil {
		t.Error(left, err)
	}
	r.until("the tree to end", func() bool {
		s := r.tools.Show(t.Context(), &rec, &command.ShowOptions{Names: OwnNames})
		return !strings.Contains(s.Text[0], "still run")
	})
}

// None of longcall's own secrets reach a command; what is allowed does.
func TestExecEnvironment(t *testing.T) {
	r := newRig(t, func(r *rig) { r.set.Env, r.set.Set = []string{"ALLOWED", "ALSO"}, map[string]string{"FIXED": "1"} })
	p := r.call(Exec, args("command", "env | sort", "env", map[string]string{"ALSO": "mine"}))
	for _, want := range []string{"ALLOWED=yes\n", "ALSO=mine\n", "FIXED=1\n", "CI=1\n", "PAGER=cat\n", "TERM=dumb\n", "GIT_TERMINAL_PROMPT=0\n", "LANG=C.UTF-8\n", "PWD=" + r.root + "\n"} {
		if !strings.Contains("\n"+p.Output, "\n"+want) {
			t.Errorf("%q is not in %q", want, p.Output)
		}
	}
	if strings.Contains(p.Output, "shh") || strings.Contains(strings.ToLower(p.Output), "longcall") && !strings.Contains(r.root, "longcall") {
		t.Errorf("%q", p.Output)
	}
}

// A sandbox is run before the shell, with the command as its last argument.
func TestExecSandbox(t *testing.T) {
	r := newRig(t, func(r *rig) { r.set.Sandbox = []string{"/usr/bin/env", "BOXED=1"} })
	if p := r.call(Exec, args("command", "echo $BOXED")); p.Output != "1\n" {
		t.Errorf("%s", p.shown.Structured)
	}
}
