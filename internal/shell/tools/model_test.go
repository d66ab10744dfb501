//go:build linux

package tools

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/command"
	"github.com/longcall/longcall/internal/shell"
)

// model is what must be true of commands whatever happens to them: each was run at
// most once, its output is whole, and its end is what it was.
type model struct {
	r    *rig
	dir  string
	jobs []*job
}

// job is one distinct command. It appends a line to a file of its own when it
// begins, echoes what it reads, and exits when its input says so, or a file does.
type job struct {
	name  string
	args  string
	call  *call.Call
	id    call.ID
	ended bool
	state string // once it has ended
	code  int
	typed []string // what it has to answer
}

// TestModelOfLife drives commands through random starts, joins, reads, writes,
// waits, stops, restarts and kills of shims, by way of the real engine, journal and
// processes.
func TestModelOfLife(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts many processes")
	}
	few(t, "rapid.checks", "100", "5")
	few(t, "rapid.steps", "30", "15")
	r := newRig(t, func(r *rig) { r.opts.MaxPerOwner, r.opts.MaxTotal = 64, 64 })
	rapid.Check(t, func(rt *rapid.T) {
		m := &model{r: r, dir: filepath.Join(r.root, fmt.Sprint(time.Now().UnixNano()))}
		if err := os.Mkdir(m.dir, 0o700); err != nil {
			rt.Fatal(err)
		}
		pick := func(rt *rapid.T, ok func(*job) bool) *job {
			var list []*job
			for _, j := range m.jobs {
				if ok(j) {
					list = append(list, j)
				}
			}
			if len(list) == 0 {
				rt.Skip("none")
			}
			return rapid.SampledFrom(list).Draw(rt, "job")
		}
		runs := func(j *job) bool { return !j.ended }
		rt.Repeat(map[string]func(*rapid.T){
			"": func(rt *rapid.T) { m.check(rt) },
			"start": func(rt *rapid.T) {
				if len(m.jobs) >= 5 {
					rt.Skip("enough")
				}
				j := &job{name: fmt.Sprint("job", len(m.jobs))}
				// A child of it ends it when the file says so.
				script := `echo x >> N; (i=0; while [ ! -e N.exit ] && [ $i -lt 9000 ]; do i=$((i+1)); sleep 0.02; kill -0 $$ || exit; done; kill -USR1 $$) 2>/dev/null >/dev/null &
					trap 'touch N.gone; exit $(cat N.exit)' USR1
					while :; do read l || { sleep 0.05; continue; }; case "$l" in exit*) exit ${l#exit};; *) echo "got $l";; esac; done`
				j.args = args("command", strings.ReplaceAll(script, "N", j.name),
					"cwd", m.dir, "stdin", "pipe", "yield_ms", 0, "label", j.name)
				m.attach(rt, j, call.Started)
				m.jobs = append(m.jobs, j)
				r.until("its start", func() bool { return m.begun(j) > 0 })
			},
			"join": func(rt *rapid.T) { m.attach(rt, pick(rt, runs), call.Joined) },
			"write": func(rt *rapid.T) {
				j := pick(rt, runs)
				text := fmt.Sprint("w", len(j.typed))
				a := args("id", string(j.id), "text", text+"\n", "wait_ms", 0, "idempotency_key", text)
				for range rapid.IntRange(1, 2).Draw(rt, "times") {
					if p := r.do("ann", Write, a); p.shown.IsError {
						rt.Fatalf("%q", p.shown.Text)
					}
				}
				j.typed = append(j.typed, "got "+text)
				m.awaitOutput(rt, j)
			},
			"exit": func(rt *rapid.T) {
				j := pick(rt, runs)
				j.code = rapid.IntRange(0, 3).Draw(rt, "code")
				if p := r.do("ann", Write, args("id", string(j.id), "text", fmt.Sprintf("exit%d\n", j.code), "wait_ms", 0)); p.shown.IsError {
					rt.Fatalf("%q", p.shown.Text)
				}
				m.end(rt, j, "exited")
			},
			"stop": func(rt *rapid.T) {
				j := pick(rt, runs)
				if err := j.call.Cancel(call.End{By: "agent", Text: "enough"}); err != nil {
					rt.Fatal(err)
				}
				m.end(rt, j, "stopped")
			},
			"kill the shim": func(rt *rapid.T) {
				j := pick(rt, runs)
				r.until("its pid", func() bool { return r.manager.Find(string(j.id)).Status().PID > 0 })
				r.killShim(r.manager.Find(string(j.id)).Status().PID)
				m.end(rt, j, "lost")
			},
			"restart": func(rt *rapid.T) {
				r.restart()
				for _, j := range m.jobs {
					j.call = r.again(j.id)
				}
			},
			"exit while longcall is away": func(rt *rapid.T) {
				j := pick(rt, runs)
				j.code = rapid.IntRange(0, 3).Draw(rt, "code")
				// It sees the file at its next line, which comes after we have gone.
				// In one step: the job reads it as soon as it is there.
				whole := filepath.Join(m.dir, j.name+".exit")
				err := os.WriteFile(whole+".new", fmt.Append(nil, j.code), 0o600)
				if err == nil {
					err = os.Rename(whole+".new", whole)
				}
				if err != nil {
					rt.Fatal(err)
				}
				r.close()
				r.until("its end", func() bool { _, err := os.Stat(filepath.Join(m.dir, j.name+".gone")); return err == nil })
				r.open()
				for _, j := range m.jobs {
					j.call = r.again(j.id)
				}
				m.end(rt, j, "exited")
			},
		})
		for _, j := range m.jobs {
			if !j.ended {
				_ = j.call.Cancel(call.End{By: "agent"})
				m.end(rt, j, "stopped")
			}
		}
		m.check(rt)
	})
}

// few lowers a default of rapid, unless the command line names another: each step
// starts, kills or waits for real processes.
func few(t *testing.T, name, usual, value string) {
	f := flag.Lookup(name)
	if f.Value.String() != usual {
		return
	}
	if err := flag.Set(name, value); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = flag.Set(name, usual) })
}

// attach calls the job's command, as an agent that is told to come back.
func (m *model) attach(rt *rapid.T, j *job, want call.Join) {
	c, join, plan := m.r.start("ann", Exec, j.args)
	if join != want || plan.Yield != 0 || j.id != "" && c.ID() != j.id {
		rt.Fatalf("%s: join %d, want %d, of %s", j.name, join, want, c.ID())
	}
	c.Leave(call.Delivery{Call: c.ID(), Kind: "sse", How: call.HandedOff}, -1)
	j.call, j.id = c, c.ID()
}

func (m *model) begun(j *job) int {
	b, _ := os.ReadFile(filepath.Join(m.dir, j.name))
	return strings.Count(string(b), "x")
}

func (j *job) output() string {
	if len(j.typed) == 0 {
		return ""
	}
	return strings.Join(j.typed, "\n") + "\n"
}

// awaitOutput waits for what the job was made to print.
func (m *model) awaitOutput(rt *rapid.T, j *job) {
	m.r.until("the output of "+j.name, func() bool { return m.r.tools.Total(j.id) >= int64(len(j.output())) })
}

// end waits for the job's end, and reads it.
func (m *model) end(rt *rapid.T, j *job, state string) {
	p := m.r.end(j.call)
	if p.State != state {
		rt.Fatalf("%s is %s, want %s: %q", j.name, p.State, state, p.shown.Text)
	}
	j.ended, j.state = true, state
}

// check holds the model against what is told of each job.
func (m *model) check(rt *rapid.T) {
	for _, j := range m.jobs {
		if n := m.begun(j); n != 1 {
			rt.Fatalf("%s was run %d times", j.name, n)
		}
		rec := m.r.again(j.id).Record()
		p := &reply{shown: m.r.tools.Show(m.r.Context(), &rec, &command.ShowOptions{Names: OwnNames})}
		p.read(m.r)
		switch {
		case !j.ended && (p.State != "running" && p.State != "starting" || p.Outcome != "" || p.ExitCode != nil || p.shown.IsError || !p.shown.Link):
			rt.Fatalf("%s runs: %s", j.name, p.shown.Structured)
		case j.ended && p.State != j.state:
			rt.Fatalf("%s is %s: %s", j.name, j.state, p.shown.Structured)
		case j.state == "exited" && (*p.ExitCode != j.code || p.Outcome != "completed" || p.shown.IsError):
			rt.Fatalf("%s exited %d: %s", j.name, j.code, p.shown.Structured)
		case j.state == "stopped" && (p.Outcome != "cancelled" || !p.shown.IsError || p.ExitCode != nil):
			rt.Fatalf("%s was stopped: %s", j.name, p.shown.Structured)
		case j.state == "lost" && (p.Outcome != "interrupted" || !p.shown.IsError || p.ExitCode != nil):
			rt.Fatalf("%s is lost: %s", j.name, p.shown.Structured)
		}
		if p.Output != j.output() {
			rt.Fatalf("%s printed %q, shown is %q", j.name, j.output(), p.Output)
		}
		if q := m.r.do("ann", Read, args("id", string(j.id), "cursor", 0)); q.Output != j.output() {
			rt.Fatalf("%s printed %q, read is %q", j.name, j.output(), q.Output)
		}
		if q := m.r.do("bob", Read, args("id", string(j.id))); !q.shown.IsError || !strings.HasPrefix(q.shown.Text[0], "No such call of yours") {
			rt.Fatalf("bob reads %s: %q", j.name, q.shown.Text)
		}
		if st := m.r.manager.Find(string(j.id)).Status().State; !j.ended && st != shell.Running && st != shell.Starting {
			rt.Fatalf("%s is %s", j.name, st)
		}
	}
}
