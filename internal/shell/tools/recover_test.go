//go:build linux || darwin

package tools

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/command"
	"github.com/longcall/longcall/internal/shell"
)

// A command outlives the process that started it: the next one follows it, equal
// requests join it, also two at once, and its end and output are whole.
func TestRestartWhileRunning(t *testing.T) {
	r := newRig(t)
	p := r.call(Exec, args("command", slow, "yield_ms", 0))
	r.until("the start", func() bool { return r.exists("runs") })
	r.restart()
	c := r.again(p.call.ID())
	if rec := c.Record(); rec.End.Outcome != call.Running || rec.Epoch != r.log.Epoch() {
		t.Fatalf("%+v", rec)
	}
	for range 2 {
		if _, join, _ := r.start("ann", Exec, args("command", slow)); join != call.Joined {
			t.Errorf("join %d", join)
		}
	}
	r.must(writeFile(r.path("go")))
	if q := r.end(c); *q.ExitCode != 0 || q.Output != "ok\n" || strings.Count(r.file("runs"), "\n") != 1 {
		t.Errorf("%s", q.shown.Structured)
	}
	if got := r.seen.of(c.ID()); len(got) != 4 || got[2].what != "resume" {
		t.Errorf("%+v", got)
	}
}

// A command that ended while nobody looked: its exit code and output are there.
func TestRestartAfterEnd(t *testing.T) {
	r := newRig(t)
	p := r.call(Exec, args("command", "touch up; while [ ! -e go ]; do sleep 0.02; done; echo late; touch gone; exit 4", "yield_ms", 0))
	r.until("the start", func() bool { return r.exists("up") })
	r.close()
	r.must(writeFile(r.path("go")))
	r.until("the end", func() bool { return r.exists("gone") })
	r.open()
	if q := r.end(r.again(p.call.ID())); *q.ExitCode != 4 || q.Output != "late\n" || q.shown.IsError {
		t.Errorf("%s", q.shown.Structured)
	}
}

// One that was accepted and never began says so, and may be called again.
func TestRestartBeforeStart(t *testing.T) {
	r := newRig(t)
	spec, _ := r.spec("ann", Exec, args("command", "echo x >> runs"))
	rec := &call.Record{ID: call.NewID(), Spec: spec, Epoch: r.log.Epoch(), Started: time.Now(), Seq: 1}
	r.must(r.log.Create(t.Context(), rec, call.Event{Seq: 1, Kind: call.KindAccepted, Time: time.Now(), Hole: -1}))
	r.restart()
	q := r.end(r.again(rec.ID))
	if q.State != "start_failed" || q.Outcome != "failed" || !q.shown.IsError || q.shown.Text[0] != textNotStarted || r.exists("runs") {
		t.Errorf("%q %s", q.shown.Text, q.shown.Structured)
	}
}

// A command whose supervision was lost: interrupted, never a success or failure.
func TestShimKilled(t *testing.T) {
	r := newRig(t)
	p := r.call(Exec, args("command", "echo up; exec sleep 60", "yield_ms", 0))
	r.until("output", func() bool { return r.tools.Total(p.call.ID()) > 0 })
	pid := r.manager.Find(p.CallID).Status().PID
	r.killShim(pid)
	q := r.end(p.call)
	if q.State != "lost" || q.Outcome != "interrupted" || q.ExitCode != nil || !q.shown.IsError ||
		!strings.HasPrefix(q.shown.Text[0], "Outcome unknown: supervision ended at ") || !strings.Contains(q.shown.Text[0], " UTC. Check for side effects before starting it again.") {
		t.Errorf("%q %s", q.shown.Text, q.shown.Structured)
	}
	rec := p.call.Record()
	if rec.End.Outcome != call.Interrupted {
		t.Errorf("%+v", rec.End)
	}
	// What outlived its shim can still be stopped.
	if !strings.Contains(q.shown.Text[0], fmt.Sprintf("1 process of it still ran when that was noticed: pid %d; cancel_call with", pid)) {
		t.Errorf("%q", q.shown.Text)
	}
	if left, err := r.tools.Stop(t.Context(), &rec, command.Stop{Grace: -1, By: "ann"}); !left || err != nil {
		t.Error(left, err)
	}
	r.until("its end", func() bool { return !alive(pid) })
}

// A cancel that was asked for before the restart holds after it.
func TestCancelIsKeptOverRestart(t *testing.T) {
	r := newRig(t)
	p := r.call(Exec, args("command", "trap '' TERM; echo up; while :; do sleep 0.02; done", "yield_ms", 0))
	r.until("output", func() bool { return r.tools.Total(p.call.ID()) > 0 })
	rec := p.call.Record()
	_, err := r.tools.Stop(t.Context(), &rec, command.Stop{Grace: 300 * time.Millisecond})
	r.must(err)
	r.must(p.call.Cancel(call.End{By: "agent", Text: "enough"}))
	r.restart()
	if q := r.end(r.again(p.call.ID())); q.State != "stopped" || q.Outcome != "cancelled" {
		t.Errorf("%s", q.shown.Structured)
	}
}

// At the limit a command is refused with the ones that run, and none is stopped.
func TestTooMany(t *testing.T) {
	r := newRig(t, func(r *rig) { r.opts.MaxPerOwner = 1 })
	p := r.call(Exec, args("command", "sleep 60", "label", "the first", "yield_ms", 0))
	r.until("the start", func() bool { return r.manager.Find(p.CallID) != nil })
	q := r.call(Exec, args("command", "sleep 61", "yield_ms", 12000))
	if !q.shown.IsError || q.State != "start_failed" || !strings.Contains(q.shown.Text[0], p.CallID) || !strings.Contains(q.shown.Text[0], `"the first"`) {
		t.Errorf("%q", q.shown.Text)
	}
	if s := r.manager.Find(p.CallID).Status().State; s != shell.Running && s != shell.Starting {
		t.Error(s)
	}
}
