//go:build linux || darwin

package shell

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// printed waits until a command has printed n numbers, the pids of what it
// started, and returns who they are.
func (r *rig) printed(p *Process, n int) (ids []Identity) {
	r.Helper()
	var words []string
	r.await(p, "its pids", func(Status) bool {
		words = strings.Fields(r.output(p))
		return len(words) >= n
	})
	for _, w := range words {
		pid, err := strconv.Atoi(w)
		if err != nil {
			r.Fatal(err)
		}
		e, err := readEntry(pid)
		if err != nil {
			r.Fatal(err)
		}
		ids = append(ids, e.identity())
	}
	return ids
}

func leader(t *testing.T, p *Process) Identity {
	t.Helper()
	e, err := readEntry(p.Status().PID)
	if err != nil {
		t.Fatal(err)
	}
	return e.identity()
}

func shimOf(t *testing.T, p *Process) Identity {
	t.Helper()
	var m meta
	if ok, err := load(p.dir, metaFile, &m); !ok {
		t.Fatal(err)
	}
	return m.Shim
}

func allGone(ids []Identity) bool { return !slices.ContainsFunc(ids, alive) }

// SHELL §7: a grandchild holds stdout: the end is reported within 300 ms with
// one descendant; what it still writes is kept, and its end is told (§2).
func TestGrandchildHoldsOutput(t *testing.T) {
	r := newRig(t)
	p := r.start("sleep 600 & echo now; exit 5")
	s := r.end(p)
	if d := time.Since(s.Ended); d > 300*time.Millisecond {
		t.Errorf("the end was told after %s", d)
	}
	if s.State != Exited || s.ExitCode != 5 || s.Descendants != 1 || !s.TreeEnded.IsZero() || r.output(p) != "now\n" {
		t.Errorf("ended as %+v, %q", s, r.output(p))
	}
}

func TestDescendants(t *testing.T) {
	r := newRig(t)
	fifo := t.TempDir() + "/f"
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	p := r.start("(read x < " + fifo + "; echo late) & echo now; exit 5")
	s := r.end(p)
	if s.State != Exited || s.ExitCode != 5 || s.Descendants != 1 || !s.TreeEnded.IsZero() {
		t.Errorf("ended as %+v", s)
	}
	if got := len(r.m.Owned("anna")); got != 1 {
		t.Errorf("%d processes run", got)
	}
	if out := r.output(p); out != "now\n" {
		t.Errorf("output %q", out)
	}
	r.reopen() // the next manager sees it, too
	p = r.m.Find(p.ID())
	if s := p.Status(); s.State != Exited || s.ExitCode != 5 || s.Descendants != 1 || !s.TreeEnded.IsZero() {
		t.Errorf("after a restart %+v", s)
	}
	fmt.Fprintln(openFifo(t, fifo), "go")
	s = r.treeEnd(p)
	if out := r.output(p); out != "now\nlate\n" || s.Total != int64(len(out)) || s.Descendants != 1 {
		t.Errorf("output %q, %+v", out, s)
	}
	eventually(t, "it counts no more", func() bool { return len(r.m.Owned("anna")) == 0 })
}

// A descendant that never stops writing does not delay the end.
func TestEndWhileDescendantWrites(t *testing.T) {
	r := newRig(t)
	p := r.start("yes & echo the-leader-said-this; exit 0")
	s := r.end(p)
	if d := time.Since(s.Ended); d > 300*time.Millisecond {
		t.Errorf("the end was told after %s", d)
	}
	if !strings.Contains(r.output(p), "the-leader-said-this") || s.Descendants != 1 {
		t.Errorf("not all is there: %+v", s)
	}
	if _, err := p.Stop(t.Context(), "", 0, "anna"); err != nil {
		t.Fatal(err)
	}
	if s := r.treeEnd(p); s.State != Exited || s.StoppedBy != "" {
		t.Errorf("what had ended was stopped: %+v", s)
	}
}

// SHELL §7: setsid escapees are stopped, also those that lost their parent, and
// those that do not care about TERM.
func TestStopTree(t *testing.T) {
	for _, tt := range []struct{ name, script string }{
		{"children", "sleep 600 & echo $!; sleep 600 & echo $!; wait"},
		{"deaf", "trap '' TERM; sleep 600 & echo $!; sleep 600 & echo $!; while :; do sleep 600; done"},
		{"sessions", "setsid sh -c 'echo $$; sleep 600' & setsid sh -c 'trap \"\" TERM; echo $$; sleep 600; sleep 600'"},
		{"orphans", "(setsid sh -c 'setsid sh -c \"echo \\$\\$; exec sleep 600\" & echo $$; exec sleep 600' &) ; sleep 600"},
		{"stopped", "sh -c 'kill -STOP $$' & echo $!; sleep 600 & echo $!; wait"},
		{"newborn", "trap 'setsid sleep 600 & sleep 600' TERM; setsid sleep 600 & echo $!; sleep 600 & echo $!; while :; do sleep 1; done"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			p := r.start(tt.script, func(c *Command) { c.Grace = 200 * time.Millisecond })
			ids := append(r.printed(p, 2), leader(t, p))
			s, err := p.Stop(t.Context(), "", 0, "anna")
			if err != nil || s.State != Stopped || s.StoppedBy != "anna" || len(s.Survivors) > 0 {
				t.Errorf("stopped as %+v, %v", s, err)
			}
			if !allGone(ids) {
				t.Error("something of it is left")
			}
			r.treeEnd(p)
		})
	}
}

// The first signal may be another one, and who cleans up has the grace for it.
func TestStopWithSignal(t *testing.T) {
	r := newRig(t)
	p := r.start("trap 'sleep 0.1; echo cleaned; exit 7' INT; echo ready; while :; do sleep 0.05; done")
	r.says(p, "ready")
	s, err := p.Stop(t.Context(), "int", 10*time.Second, "anna")
	if err != nil || s.State != Stopped || s.ExitCode != 7 || !strings.HasSuffix(r.output(p), "cleaned\n") {
		t.Errorf("stopped as %+v, %v, %q", s, err, r.output(p))
	}
	again, err := p.Stop(t.Context(), "", 0, "bert")
	if err != nil || again.StoppedBy != "anna" {
		t.Errorf("stopped again as %+v, %v", again, err)
	}
	if _, err := p.Stop(t.Context(), "SIGNONSENSE", 0, "anna"); err == nil || !strings.Contains(err.Error(), "no signal") {
		t.Errorf("a signal that does not exist: %v", err)
	}
}

// SHELL §7: kill -9 of the shim is Lost, at once and for ever; the command may
// live on, which is said, and it can be stopped.
func TestShimKilled(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.start("echo here; exec sleep 600")
	r.says(p, "here")
	id, shim := leader(t, p), shimOf(t, p)
	syscall.Kill(shim.PID, syscall.SIGKILL)
	s := r.end(p)
	if s.State != Lost || s.ExitCode != -1 || !slices.Equal(s.Survivors, []int{id.PID}) || !strings.Contains(s.Error, "still ran") {
		t.Errorf("ended as %+v", s)
	}
	if !alive(id) {
		t.Error("the command ended with its shim")
	}
	if e, err := readEntry(shim.PID); err == nil && e.start == shim.Start {
		t.Error("the shim was not reaped")
	}
	r.reopen()
	p = r.m.Find(p.ID())
	if s := p.Status(); s.State != Lost {
		t.Errorf("after a restart %+v", s)
	}
	s, err := p.Stop(t.Context(), "", 0, "anna")
	if err != nil || s.State != Lost || len(s.Survivors) > 0 || alive(id) {
		t.Errorf("stopped as %+v, %v", s, err)
	}
	if s := p.Status(); s.TreeEnded.IsZero() {
		t.Errorf("nothing is left of %+v", s)
	}
	if out := r.output(p); out != "here\n" {
		t.Errorf("output %q", out)
	}
}

// A shim that is killed after the leader's end takes nothing back.
func TestLingeringShimKilled(t *testing.T) {
	r := newRig(t)
	p := r.start("sleep 600 & echo $!; exit 5")
	child := r.printed(p, 1)[0]
	r.end(p)
	syscall.Kill(shimOf(t, p).PID, syscall.SIGKILL)
	r.await(p, "the manager to notice", func(Status) bool { return p.over() })
	for range 2 {
		if s := p.Status(); s.State != Exited || s.ExitCode != 5 || s.Descendants != 1 || !s.TreeEnded.IsZero() {
			t.Errorf("ended as %+v", s)
		}
		r.reopen()
		p = r.m.Find(p.ID())
	}
	if s, err := p.Stop(t.Context(), "", 0, "anna"); err != nil || s.State != Exited || s.TreeEnded.IsZero() || alive(child) {
		t.Errorf("stopped as %+v, %v", s, err)
	}
	r.reopen()
	if s := r.m.Find(p.ID()).Status(); s.TreeEnded.IsZero() {
		t.Errorf("after a restart %+v", s)
	}
}

// SHELL §3: a shim that went while no manager was there leaves the leader,
// running without supervision, and lost when it ends.
func TestUnsupervised(t *testing.T) {
	for _, how := range []string{"ends", "is stopped"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			p := r.start("echo here; exec sleep 600")
			r.says(p, "here")
			id, shim := leader(t, p), shimOf(t, p)
			r.m.Close()
			syscall.Kill(shim.PID, syscall.SIGKILL)
			eventually(t, "the shim is gone", func() bool { return !alive(shim) })
			r.open()
			p = r.m.Find(p.ID())
			if s := p.Status(); s.State != Running || !s.Unsupervised || s.PID != id.PID || s.Total != 5 {
				t.Fatalf("found as %+v", s)
			}
			want := Lost
			if how == "ends" {
				syscall.Kill(id.PID, syscall.SIGTERM)
			} else {
				want = Stopped
				if _, err := p.Stop(t.Context(), "", 0, "anna"); err != nil {
					t.Error(err)
				}
			}
			if s := r.end(p); s.State != want || s.ExitCode != -1 || s.Error == "" || alive(id) {
				t.Errorf("ended as %+v", s)
			}
		})
	}
}

// SHELL §3: a process id alone is nobody.
func TestIdentity(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	stranger := r.start("echo $$; exec sleep 600")
	id := r.printed(stranger, 1)[0]

	p := r.start("exec sleep 600")
	shim, own := shimOf(t, p), leader(t, p)
	r.m.Close()
	syscall.Kill(shim.PID, syscall.SIGKILL)
	syscall.Kill(own.PID, syscall.SIGKILL)
	eventually(t, "both are gone", func() bool { return !alive(shim) && !alive(own) })
	for _, wrong := range []Identity{{id.PID, id.Start + 1, id.Boot}, {id.PID, id.Start, "another"}} {
		var m meta
		load(p.dir, metaFile, &m)
		m.Leader = wrong
		if err := store(p.dir, metaFile, m, false); err != nil {
			t.Fatal(err)
		}
		r.open()
		q := r.m.Find(p.ID())
		if s := q.Status(); s.State != Lost || len(s.Survivors) > 0 {
			t.Errorf("taken for a stranger: %+v", s)
		}
		if _, err := q.Stop(t.Context(), "", 0, "anna"); err != nil || !alive(id) {
			t.Errorf("a stranger was stopped, %v", err)
		}
		if err := signalExact(wrong, syscall.SIGKILL); err == nil || !alive(id) {
			t.Errorf("a stranger was killed, %v", err)
		}
		r.m.Close()
	}
	r.open()
}

// The supervisor is ended by who ends all of a service: the command is stopped
// with it, and that is known.
func TestShimIsTerminated(t *testing.T) {
	r := newRig(t)
	p := r.start("echo $$; setsid sleep 600 & echo $!; wait")
	ids := r.printed(p, 2)
	syscall.Kill(shimOf(t, p).PID, syscall.SIGTERM)
	if s := r.treeEnd(p); s.State != Stopped || !strings.Contains(s.StoppedBy, "SIGTERM") || !allGone(ids) {
		t.Errorf("ended as %+v", s)
	}
}

func TestTreeOfTable(t *testing.T) {
	table := []entry{
		{pid: 1},
		{pid: 10, parent: 1, session: 10, start: 1}, // a shim
		{pid: 11, parent: 10, session: 11, start: 2},
		{pid: 12, parent: 11, session: 11, start: 3, zombie: true},
		{pid: 13, parent: 12, session: 13, start: 4},
		{pid: 14, parent: 1, session: 11, start: 5},
		{pid: 15, parent: 14, session: 15, start: 6},
		{pid: 20, parent: 1, session: 20, start: 7},
	}
	for _, tt := range []struct {
		leader Identity
		roots  []int
		want   []int
	}{
		{Identity{PID: 11, Start: 2}, []int{10}, []int{11, 13, 14, 15}},
		{Identity{PID: 11, Start: 2}, nil, []int{11, 13, 14, 15}},
		{Identity{PID: 11, Start: 9}, nil, nil},
		{Identity{PID: 11, Start: 9}, []int{10}, []int{11, 13}},
		{Identity{}, []int{10}, []int{11, 13}},
	} {
		if got := pids(tree(table, tt.leader, tt.roots...)); !slices.Equal(got, tt.want) {
			t.Errorf("%+v, %v: %v, want %v", tt.leader, tt.roots, got, tt.want)
		}
	}
}
