//go:build linux || darwin

package tools

import (
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/longcall/longcall/internal/call"
)

// slow is a command that says that it runs, holds a lock that only one may hold,
// and ends when the file go is there.
const slow = "mkdir lock || { echo locked; exit 9; }; echo $$ >> runs; while [ ! -e go ]; do sleep 0.02; done; rmdir lock; echo ok"

// O7: the same command asked for again is joined, from the first millisecond on,
// under concurrency, and by whoever's request was cut.
func TestJoinAtOnce(t *testing.T) {
	r := newRig(t)
	const n = 12
	calls := make([]*call.Call, n)
	joins := make([]call.Join, n)
	var wg sync.WaitGroup
	gate := make(chan struct{})
	spec, _ := r.spec("ann", Exec, args("command", slow))
	for i := range n {
		wg.Go(func() {
			<-gate
			s := spec
			var err error
			if calls[i], joins[i], err = r.engine.Attach(t.Context(), s); err != nil {
				t.Error(err)
			}
		})
	}
	close(gate)
	wg.Wait()
	started := 0
	for i := range calls {
		if calls[i].ID() != calls[0].ID() {
			t.Error("another call")
		}
		if joins[i] == call.Started {
			started++
		}
	}
	if started != 1 {
		t.Errorf("%d were started", started)
	}
	for i := range calls[1:] { // all but one are cut
		calls[i+1].Leave(call.Delivery{Call: calls[0].ID(), Kind: "sse", How: call.AbortedDownstream}, -1)
	}
	p := r.call(Exec, args("command", slow, "yield_ms", 0))
	first, _, _ := strings.Cut(p.shown.Text[0], "\n")
	if p.join != call.Joined || !p.Joined || p.call.ID() != calls[0].ID() || !strings.HasPrefix(first, "Already running since ") || !strings.HasSuffix(first, " UTC (same command, same directory). Joined it; nothing was started.") {
		t.Errorf("%q", p.shown.Text)
	}
	r.must(writeFile(r.path("go")))
	if q := r.end(p.call); *q.ExitCode != 0 || q.Output != "ok\n" || strings.Count(r.file("runs"), "\n") != 1 {
		t.Errorf("%s, runs %q", q.shown.Structured, r.file("runs"))
	}
}

// What makes two commands the same: the command, the folder as resolved, streams,
// environment and kind; not how long somebody waits, nor how much is shown.
func TestSameCommand(t *testing.T) {
	r := newRig(t, func(r *rig) { r.set.Env = []string{"X"} })
	r.must(os.MkdirAll(r.path("a/b"), 0o700))
	r.must(os.Symlink(r.path("a"), r.path("link")))
	base, _ := r.spec("ann", Exec, args("command", "true", "cwd", "a"))
	for _, k := range []struct {
		same bool
		args string
	}{
		{true, args("command", "true", "cwd", r.path("a"))},
		{true, args("command", "true", "cwd", "link")},
		{true, args("command", "true", "cwd", "a/b/..", "yield_ms", 5, "label", "x", "max_output_bytes", 9, "timeout_s", 3, "ready_pattern", "x", "if_running", "new", "idempotency_key", "k")},
		{false, args("command", "true ", "cwd", "a")},
		{false, args("command", "true")},
		{false, args("command", "true", "cwd", "a", "tty", true)},
		{false, args("command", "true", "cwd", "a", "stdin", "pipe")},
		{false, args("command", "true", "cwd", "a", "kind", "service")},
		{false, args("command", "true", "cwd", "a", "env", map[string]string{"X": "1"})},
	} {
		if s, _ := r.spec("ann", Exec, k.args); (s.Digest == base.Digest) != k.same {
			t.Errorf("%s: same %v", k.args, !k.same)
		}
	}
	one, _ := r.spec("ann", Parallel, args("commands", []any{map[string]any{"command": "true"}}))
	for _, other := range []string{
		args("commands", []any{map[string]any{"command": "true"}}, "mode", "sequence"),
		args("commands", []any{map[string]any{"command": "true", "cwd": "a"}}),
		args("commands", []any{map[string]any{"command": "true"}, map[string]any{"command": "true"}}),
	} {
		if s, _ := r.spec("ann", Parallel, other); s.Digest == one.Digest {
			t.Error(other)
		}
	}
}

// if_running new starts another one, which later requests can join; another
// principal never joins (I6).
func TestIfRunning(t *testing.T) {
	r := newRig(t)
	hang := "exec sleep 60"
	a, join, _ := r.start("ann", Exec, args("command", hang))
	b, second, _ := r.start("ann", Exec, args("command", hang, "if_running", "new"))
	if join != call.Started || second != call.Started || a.ID() == b.ID() {
		t.Error(join, second)
	}
	if c, join, _ := r.start("bob", Exec, args("command", hang)); join != call.Started || c.ID() == a.ID() || c.ID() == b.ID() {
		t.Error("another principal joined")
	}
	if _, plan := r.spec("ann", Exec, args("command", hang, "if_running", "error")); !plan.ErrorIfRunning || plan.Attach != call.AttachAlways {
		t.Errorf("%+v", plan)
	}
}

// A result that nobody got is shown once more to who asks again, marked; one that
// was delivered never is.
func TestUndeliveredIsReplayedOnce(t *testing.T) {
	r := newRig(t)
	c, _, _ := r.start("ann", Exec, args("command", "echo x >> runs; echo done"))
	if !ended(t.Context(), c) {
		t.Fatal("no end")
	}
	c.Leave(call.Delivery{Call: c.ID(), Kind: "sse", How: call.AbortedDownstream}, -1)
	p := r.call(Exec, args("command", "echo x >> runs; echo done"))
	if p.join != call.Replay || !p.Replayed || p.Output != "done\n" || !strings.HasPrefix(p.shown.Text[0], "Nothing was started now: this is the result of the same command, started at ") || r.file("runs") != "x\n" {
		t.Errorf("%q, runs %q", p.shown.Text, r.file("runs"))
	}
	if p := r.call(Exec, args("command", "echo x >> runs; echo done")); p.join != call.Started || p.Replayed || r.file("runs") != "x\nx\n" {
		t.Errorf("%q, runs %q", p.shown.Text, r.file("runs"))
	}
}

// An idempotency key is journaled before the spawn: the same key is the same call,
// also after its end, its delivery and a restart.
func TestIdempotencyKey(t *testing.T) {
	r := newRig(t)
	a := args("command", "echo x >> runs", "idempotency_key", "k1")
	p := r.call(Exec, a)
	for range 2 {
		q := r.call(Exec, a)
		if q.join != call.Replay || q.CallID != p.CallID {
			t.Errorf("join %d, %s", q.join, q.shown.Structured)
		}
		r.restart()
	}
	if q := r.call(Exec, args("command", "echo x >> runs", "idempotency_key", "k2")); q.join != call.Started {
		t.Errorf("join %d", q.join)
	}
	if r.file("runs") != "x\nx\n" {
		t.Errorf("runs %q", r.file("runs"))
	}
	spec, _ := r.spec("ann", Exec, args("command", "echo y", "idempotency_key", "k1"))
	if _, _, err := r.engine.Attach(t.Context(), spec); err != call.ErrMismatch {
		t.Errorf("the key for another command: %v", err)
	}
}
