//go:build linux || darwin

package tools

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/command"
)

func commands(texts ...string) []any {
	var list []any
	for _, t := range texts {
		list = append(list, map[string]any{"command": t})
	}
	return list
}

// begun waits until all commands of a batch have a process, and shows it again.
func (r *rig) begun(p *reply) {
	r.Helper()
	r.until("the start of all commands", func() bool {
		r.show(p, false, &command.ShowOptions{Names: OwnNames})
		return !slices.ContainsFunc(p.Commands, func(c result) bool {
			process := r.manager.Find(c.CallID)
			return process == nil || process.Status().PID == 0
		})
	})
}

// states are those of a batch and its commands.
func (p *reply) states() string {
	all := []string{p.State}
	for _, c := range p.Commands {
		all = append(all, c.State)
	}
	return strings.Join(all, " ")
}

// All at once, and the word for the whole: a success only if all exited 0 (D13).
func TestBatchStates(t *testing.T) {
	r := newRig(t)
	for _, k := range []struct {
		mode     string
		commands []any
		states   string
		first    string
		outcome  call.Outcome
		bad      bool
	}{
		{"parallel", commands("echo 1", "echo 2"), "succeeded exited exited", "succeeded after 0.", call.Completed, false},
		{"parallel", commands("exit 1", "exit 2"), "failed exited exited", "failed after 0.", call.Completed, true},
		{"parallel", commands("exit 0", "exit 2"), "partial exited exited", "partial after 0.", call.Completed, true},
		{"sequence", commands("echo a > f", "cat f"), "succeeded exited exited", "succeeded after 0.", call.Completed, false},
		{"sequence", commands("true", "exit 7", "touch never"), "partial exited exited not_started", "partial after 0.", call.Completed, true},
		{"sequence", commands("exit 7", "touch never"), "failed exited not_started", "failed after 0.", call.Completed, true},
		{"sequence", commands("echo x >> twice", "echo x >> twice"), "succeeded exited exited", "succeeded after 0.", call.Completed, false},
	} {
		p := r.call(Parallel, args("commands", k.commands, "mode", k.mode, "yield_ms", 12000))
		if p.states() != k.states || p.Mode != k.mode || !strings.HasPrefix(p.shown.Text[0], k.first) || p.shown.IsError != k.bad || p.Outcome != string(k.outcome) || p.shown.Link {
			t.Errorf("%v:\n%s\n%q", k.commands, p.shown.Structured, p.shown.Text)
		}
		rec := p.call.Record()
		if rec.End.ToolError != k.bad || !strings.HasPrefix(rec.End.Text, p.State+": ") {
			t.Errorf("%+v", rec.End)
		}
		if b := r.tools.Brief(&rec); b.State != p.State || b.Line != rec.End.Text {
			t.Errorf("%+v", b)
		}
	}
	if r.exists("never") || r.file("twice") != "x\nx\n" {
		t.Errorf("a sequence went on, or ran a command once: %q", r.file("twice"))
	}
}

// D12: the aggregate's id and the child's index are in each child's record, and on
// its start, first byte and end.
func TestBatchChildren(t *testing.T) {
	r := newRig(t)
	p := r.call(Parallel, args("commands", []any{
		map[string]any{"command": "echo one", "label": "first"}, map[string]any{"command": "echo two >&2; exit 5"},
	}, "yield_ms", 12000, "label", "both"))
	for i, c := range p.Commands {
		rec := r.again(call.ID(c.CallID)).Record()
		if rec.Parent != p.call.ID() || rec.Index != i+1 || rec.PublicTool != "shell__exec_command" || rec.RequestID != "r1" || c.Index != i+1 {
			t.Errorf("%+v", rec)
		}
		var what []string
		for _, l := range r.seen.of(rec.ID) {
			if l.parent != p.call.ID() || l.index != i+1 {
				t.Errorf("%+v", l)
			}
			what = append(what, l.what)
		}
		if !slices.Equal(what, []string{"start", "first byte", "end"}) {
			t.Errorf("%v", what)
		}
		stored, err := r.log.Get(t.Context(), rec.ID)
		if err != nil || stored.Parent != p.call.ID() || stored.Index != i+1 {
			t.Errorf("%v %+v", err, stored)
		}
	}
	if one, two := p.Commands[0], p.Commands[1]; one.Output != "one\n" || *one.ExitCode != 0 || one.Label != "first" || *two.ExitCode != 5 || two.Output != "two\n" {
		t.Errorf("%s", p.shown.Structured)
	}
	text := p.text()
	for _, want := range []string{"1 of 2 commands exited 0 · " + string(p.call.ID()) + ". Run only those again that did not exit 0.", "command 1 (first): exit 0 after 0.", "\none\n", "command 2: exit 5 after 0."} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in %q", want, text)
		}
	}
	if len(p.shown.Told) != 2 {
		t.Errorf("told %v", p.shown.Told)
	}
}

// D7, D13: a batch yields after the one default, running, which is a success
// nowhere; its commands can be read, and its end is there afterwards.
func TestBatchYields(t *testing.T) {
	r := newRig(t)
	start := time.Now()
	p := r.call(Parallel, args("commands", commands("echo quick", "echo slow; while [ ! -e go ]; do sleep 0.02; done")))
	if d := time.Since(start); d < DefaultYield || d > DefaultYield+2*time.Second {
		t.Errorf("it came back after %v", d)
	}
	if p.states() != "running exited running" || p.Outcome != "" || p.EndedAt != "" || p.shown.IsError || !p.shown.Link || !strings.HasPrefix(p.shown.Text[0], "running 3.") ||
		!strings.Contains(p.shown.Text[0], "1 of 2 commands ended so far") || !strings.Contains(p.Next, "Not finished: do not run it again") || len(p.shown.Told) != 1 {
		t.Errorf("%q\n%s", p.shown.Text, p.shown.Structured)
	}
	rec := p.call.Record()
	if b := r.tools.Brief(&rec); b.State != "running" || !strings.HasPrefix(b.Line, "running 3.") {
		t.Errorf("%+v", b)
	}
	if q := r.do("ann", Read, args("id", p.Commands[1].CallID)); q.Output != "slow\n" || q.State != "running" {
		t.Errorf("%s", q.shown.Structured)
	}
	r.must(writeFile(r.path("go")))
	if q := r.end(p.call); q.states() != "succeeded exited exited" {
		t.Errorf("%s", q.shown.Structured)
	}
}

// A batch joins commands that run already, and the cancel of it stops what it
// started, not what it joined.
func TestBatchJoinsAndCancels(t *testing.T) {
	r := newRig(t)
	alone := r.call(Exec, args("command", slow, "yield_ms", 0))
	r.until("the start", func() bool { return r.exists("lock") })
	p := r.call(Parallel, args("commands", commands(slow, "exec sleep 60"), "yield_ms", 300))
	r.begun(p)
	if p.states() != "running running running" || !p.Commands[0].Joined || p.Commands[0].CallID != alone.CallID || p.Commands[1].Joined {
		t.Fatalf("%s", p.shown.Structured)
	}
	// The same batch is joined, too.
	if q := r.call(Parallel, args("commands", commands(slow, "exec sleep 60"), "yield_ms", 0)); !q.Joined || q.call.ID() != p.call.ID() || !strings.HasPrefix(q.shown.Text[0], "Already running since ") {
		t.Errorf("%s", q.shown.Structured)
	}
	r.must(p.call.Cancel(call.End{By: "agent (cancel_call)", Text: "enough"}))
	q := r.end(p.call)
	if q.Outcome != "cancelled" || !q.shown.IsError || q.Commands[1].State != "stopped" || q.Commands[0].State != "running" || !strings.Contains(q.shown.Text[0], "stopped after ") {
		t.Errorf("%q\n%s", q.shown.Text, q.shown.Structured)
	}
	r.must(writeFile(r.path("go")))
	if q := r.end(alone.call); *q.ExitCode != 0 || q.Output != "ok\n" {
		t.Errorf("%s", q.shown.Structured)
	}
}

// A batch outlives the process, in the middle of a sequence, and runs nothing twice.
func TestBatchRestart(t *testing.T) {
	r := newRig(t)
	p := r.call(Parallel, args("mode", "sequence", "yield_ms", 0, "commands",
		commands("echo 1 >> runs", "echo 2 >> runs; while [ ! -e go ]; do sleep 0.02; done", "echo 3 >> runs")))
	r.until("the second", func() bool { return r.file("runs") == "1\n2\n" })
	r.restart()
	if c := r.again(p.call.ID()); c.Record().End.Outcome != call.Running {
		t.Fatalf("%+v", c.Record().End)
	}
	r.must(writeFile(r.path("go")))
	if q := r.end(r.again(p.call.ID())); q.states() != "succeeded exited exited exited" || r.file("runs") != "1\n2\n3\n" {
		t.Errorf("%s, runs %q", q.shown.Structured, r.file("runs"))
	}
}

// One whose commands were started and not noted before the crash finds them again.
func TestBatchReclaims(t *testing.T) {
	r := newRig(t)
	p := r.call(Parallel, args("yield_ms", 300, "commands", commands("echo x >> runs; while [ ! -e go ]; do sleep 0.02; done")))
	r.begun(p)
	r.close()
	b, err := r.tools.batches.load(p.call.ID())
	r.must(err)
	if b.Commands[0].ID == "" {
		t.Fatal("the command was not noted")
	}
	b.Commands[0].ID = ""
	r.must(r.tools.batches.store(p.call.ID(), b))
	r.open()
	r.must(writeFile(r.path("go")))
	if q := r.end(r.again(p.call.ID())); q.states() != "succeeded exited" || r.file("runs") != "x\n" {
		t.Errorf("%s, runs %q", q.shown.Structured, r.file("runs"))
	}
}

// An outcome that was lost makes the whole unknown, and not a success.
func TestBatchLost(t *testing.T) {
	r := newRig(t)
	p := r.call(Parallel, args("yield_ms", 300, "commands", commands("exit 0", "echo up; exec sleep 60")))
	r.begun(p)
	id := p.Commands[1].CallID
	r.until("output", func() bool { return r.tools.Total(call.ID(id)) > 0 })
	r.killShim(r.manager.Find(id).Status().PID)
	q := r.end(p.call)
	if q.states() != "unknown exited lost" || q.Outcome != "interrupted" || !q.shown.IsError || !strings.Contains(q.Next, "The outcome of 1 command is unknown: check for side effects") {
		t.Errorf("%q\n%s", q.shown.Text, q.shown.Structured)
	}
}

// A command that could not be started is told of, and the others run.
func TestBatchTooMany(t *testing.T) {
	r := newRig(t, func(r *rig) { r.opts.MaxPerOwner = 1 })
	p := r.call(Parallel, args("yield_ms", 12000, "commands", commands("sleep 0.3", "sleep 0.4")))
	if p.State != "partial" || !p.shown.IsError || !strings.Contains(p.text(), "which is the limit; nothing was started") {
		t.Errorf("%q", p.shown.Text)
	}
}

// What is kept of batches is removed when it is old, also while longcall runs.
func TestBatchesArePruned(t *testing.T) {
	b, err := openBatches(t.TempDir(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	old, recent := call.NewID(), call.NewID()
	for _, id := range []call.ID{old, recent} {
		if err := b.store(id, &batch{Label: "x"}); err != nil {
			t.Fatal(err)
		}
	}
	past := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(b.file(old), past, past); err != nil {
		t.Fatal(err)
	}
	b.pruned = past
	if err := b.store(call.NewID(), &batch{}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.load(old); err == nil {
		t.Error("the old one is there")
	}
	if v, err := b.load(recent); err != nil || v.Label != "x" {
		t.Error(v, err)
	}
	for _, id := range []call.ID{"", "c_x", "../../etc/passwd"} {
		if _, err := b.load(id); err == nil {
			t.Error(id)
		}
	}
}
