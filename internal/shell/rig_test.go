//go:build linux || darwin

package shell

import (
	"context"
	"crypto/rand"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/shell/spool"
)

const patience = 20 * time.Second

// testShim starts this test binary; the race detector would keep it for a
// second when it ends.
var testShim = []string{"/usr/bin/env", "GORACE=atexit_sleep_ms=0", os.Args[0], ShimCommand}

// rig is a manager with a folder of its own, which ends all that it started.
type rig struct {
	*testing.T
	m    *Manager
	opts Options
}

func newRig(t *testing.T, change ...func(*Options)) *rig {
	t.Helper()
	r := &rig{T: t, opts: Options{Dir: t.TempDir(), Exe: testShim}}
	for _, f := range change {
		f(&r.opts)
	}
	r.open()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		r.m.StopAll(ctx, "the test")
		for _, p := range r.m.running() {
			r.await(p, "the tree to end", func(Status) bool { return p.over() })
		}
		r.m.Close()
	})
	return r
}

func (r *rig) open() {
	r.Helper()
	m, err := Open(r.Context(), r.opts)
	if err != nil {
		r.Fatal(err)
	}
	r.m = m
}

// reopen is a restart: the commands go on.
func (r *rig) reopen() {
	r.Helper()
	r.m.Close()
	r.open()
}

func testCommand(script string) Command {
	return Command{
		ID: "c_" + rand.Text(), Owner: "anna", Argv: []string{"/bin/sh", "-c", script}, Dir: os.TempDir(),
		Env: []string{"PATH=" + os.Getenv("PATH"), "HOME=/nowhere"}, Grace: time.Second,
	}
}

func (r *rig) start(script string, change ...func(*Command)) *Process {
	r.Helper()
	c := testCommand(script)
	for _, f := range change {
		f(&c)
	}
	p, err := r.m.Start(r.Context(), c)
	if err != nil {
		r.Fatal(err)
	}
	return p
}

// await waits, by its notifications, until the process is as it should be.
func (r *rig) await(p *Process, what string, ok func(Status) bool) Status {
	r.Helper()
	wake := make(chan struct{}, 1)
	defer p.Notify(wake)()
	deadline := time.After(patience)
	for {
		if s := p.Status(); ok(s) {
			return s
		}
		select {
		case <-wake:
		case <-deadline:
			r.Fatalf("waiting for %s: %+v; output %q", what, p.Status(), r.output(p))
		}
	}
}

func (r *rig) end(p *Process) Status {
	r.Helper()
	return r.await(p, "the end", func(s Status) bool { return s.State.Final() })
}

func (r *rig) treeEnd(p *Process) Status {
	r.Helper()
	return r.await(p, "the end of the tree", func(s Status) bool { return s.State.Final() && !s.TreeEnded.IsZero() })
}

func (r *rig) output(p *Process) string {
	r.Helper()
	out, err := p.Output()
	if err != nil {
		r.Fatal(err)
	}
	v, err := out.Summary(r.Context(), 0, spool.Look{Raw: true})
	if err != nil {
		r.Fatal(err)
	}
	return v.Text
}

// says waits for output.
func (r *rig) says(p *Process, text string) {
	r.Helper()
	r.await(p, "the output "+text, func(Status) bool { return strings.Contains(r.output(p), text) })
}

// eventually looks until something holds of which nothing tells.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waiting until %s", what)
		}
	}
}

func openFifo(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}
