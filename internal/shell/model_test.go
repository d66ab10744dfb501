//go:build linux || darwin

package shell

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestModel lets starts, input, reads, waits, stops, restarts of the manager
// and kills of shims come in any order, over real processes, and holds the life
// of each to what was done to it: a final state is the right one and stays, the
// output is what was typed, in order and once, and nothing that ended is left.
func TestModel(t *testing.T) {
	// A round starts a dozen processes: less rounds than rapid's own 100, unless
	// the command line asks for a number.
	const rounds = "rapid.checks"
	asked := false
	flag.Visit(func(f *flag.Flag) { asked = asked || f.Name == rounds })
	if usual := flag.Lookup(rounds).Value.String(); !asked {
		flag.Set(rounds, "15")
		t.Cleanup(func() { flag.Set(rounds, usual) })
	}
	rapid.Check(t, func(rt *rapid.T) {
		w := &model{rt: rt, opts: Options{Dir: t.TempDir(), Exe: testShim, MaxPerOwner: 4, MaxTotal: 6}}
		w.open()
		defer w.settle()
		rt.Repeat(map[string]func(*rapid.T){
			"start":      w.start,
			"type":       w.write,
			"type again": w.writeAgain,
			"exit":       w.exit,
			"stop":       w.stop,
			"kill shim":  w.killShim,
			"restart":    w.restart,
			"crash both": w.crashBoth,
			"wait":       w.wait,
			"":           w.check,
		})
	})
}

// modelScript echoes its input, and leaves a child behind if it is told to.
const modelScript = `while read -r word rest; do case $word in
	exit) exit $rest;;
	fork) setsid sleep 60 & echo forked;;
	*) echo "$word $rest";;
	esac; done; exit 77`

type model struct {
	rt   *rapid.T
	opts Options
	m    *Manager
	all  []*modelProcess
}

type modelProcess struct {
	id, owner string
	said      string   // what it has to print
	last      Input    // typed before, with its key
	forks     int      // what it left running
	may       []State  // how it may end; nil: it must run
	code      int      // when Exited
	seen      Status   // when it was first final
	id0, shim Identity // while it runs
	n         int
}

func (w *model) ctx() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), patience)
}

func (w *model) open() {
	ctx, cancel := w.ctx()
	defer cancel()
	var err error
	if w.m, err = Open(ctx, w.opts); err != nil {
		w.rt.Fatal(err)
	}
}

// running is one of those that must run, or a skip of the action.
func (w *model) running(rt *rapid.T) (*modelProcess, *Process) {
	var list []*modelProcess
	for _, p := range w.all {
		if p.may == nil {
			list = append(list, p)
		}
	}
	if len(list) == 0 {
		rt.Skip("nothing runs")
	}
	p := list[rapid.IntRange(0, len(list)-1).Draw(rt, "process")]
	return p, w.find(p)
}

func (w *model) find(p *modelProcess) *Process {
	q := w.m.Find(p.id)
	if q == nil {
		w.rt.Fatalf("%s is unknown", p.id)
	}
	return q
}

func (w *model) start(rt *rapid.T) {
	owner := rapid.SampledFrom([]string{"anna", "bert"}).Draw(rt, "owner")
	own, all := 0, 0
	for _, q := range w.m.running() {
		all++
		if q.Status().Owner == owner {
			own++
		}
	}
	ctx, cancel := w.ctx()
	defer cancel()
	c := testCommand(modelScript)
	c.Owner, c.Stdin, c.Grace = owner, true, 200*time.Millisecond
	q, err := w.m.Start(ctx, c)
	var many *TooMany
	switch {
	case errors.As(err, &many):
		if own < w.opts.MaxPerOwner && all < w.opts.MaxTotal {
			rt.Fatalf("refused with %d of %d running: %v", own, all, err)
		}
		return
	case err != nil:
		rt.Fatal(err)
	}
	p := &modelProcess{id: c.ID, owner: owner}
	var m meta
	if ok, err := load(q.dir, metaFile, &m); !ok || q.Status().State != Running {
		rt.Fatalf("started as %+v, %v", q.Status(), err)
	}
	p.id0, p.shim = m.Leader, m.Shim
	w.all = append(w.all, p)
}

func (w *model) put(rt *rapid.T, q *Process, in Input, repeated bool) {
	ctx, cancel := w.ctx()
	defer cancel()
	if got, err := q.Input(ctx, in); err != nil || got.Repeated != repeated {
		rt.Fatalf("%+v: %+v, %v; %+v", in, got, err, q.Status())
	}
}

func (w *model) write(rt *rapid.T) {
	p, q := w.running(rt)
	p.n++
	text := rapid.SampledFrom([]string{"a", "ä€😀", "fork"}).Draw(rt, "text")
	in := Input{Text: fmt.Sprintf("%s %d\n", text, p.n), Key: fmt.Sprint("k", p.n)}
	if text == "fork" {
		p.forks++
		p.said += "forked\n"
	} else {
		p.said += in.Text
	}
	w.put(rt, q, in, false)
	p.last = in
	w.await(rt, p, q)
}

func (w *model) writeAgain(rt *rapid.T) {
	p, q := w.running(rt)
	if p.n == 0 {
		rt.Skip("nothing was typed")
	}
	w.put(rt, q, p.last, true)
}

func (w *model) exit(rt *rapid.T) {
	p, q := w.running(rt)
	if rapid.Bool().Draw(rt, "by eof") {
		p.code = 77
		w.put(rt, q, Input{EOF: true}, false)
	} else {
		p.code = rapid.IntRange(0, 5).Draw(rt, "code")
		w.put(rt, q, Input{Text: fmt.Sprintf("exit %d\n", p.code)}, false)
	}
	p.may = []State{Exited}
}

func (w *model) stop(rt *rapid.T) {
	if len(w.all) == 0 {
		rt.Skip("nothing was started")
	}
	p := rapid.SampledFrom(w.all).Draw(rt, "process")
	q := w.find(p)
	ctx, cancel := w.ctx()
	defer cancel()
	s, err := q.Stop(ctx, "", 0, "anna")
	if err != nil {
		rt.Fatal(err)
	}
	switch {
	case p.may == nil:
		p.may = []State{Stopped}
		if !s.State.Final() && !s.Unsupervised || len(s.Survivors) > 0 {
			rt.Fatalf("stopped as %+v", s)
		}
	case len(p.may) == 1 && p.may[0] == Exited: // its end and the stop met
		p.may = append(p.may, Stopped)
	}
	if !contains(p.may, Lost) {
		p.forks = 0
	}
}

// killShim is seen by the manager: lost, at once.
func (w *model) killShim(rt *rapid.T) {
	p, q := w.running(rt)
	syscall.Kill(p.shim.PID, syscall.SIGKILL)
	p.may = []State{Lost}
	w.await(rt, p, q)
}

func (w *model) restart(*rapid.T) {
	w.m.Close()
	w.open()
}

// crashBoth kills a shim while no manager is there.
func (w *model) crashBoth(rt *rapid.T) {
	p, _ := w.running(rt)
	w.m.Close()
	syscall.Kill(p.shim.PID, syscall.SIGKILL)
	p.may = []State{Lost, Stopped}
	w.open()
}

func (w *model) wait(rt *rapid.T) {
	for _, p := range w.all {
		if p.may != nil {
			w.await(rt, p, w.find(p))
		}
	}
}

// await waits until the process is as the model says.
func (w *model) await(rt *rapid.T, p *modelProcess, q *Process) {
	wake := make(chan struct{}, 1)
	defer q.Notify(wake)()
	deadline := time.After(patience)
	for {
		s := q.Status()
		if p.may != nil && s.State.Final() || p.may == nil && s.Total == int64(len(p.said)) {
			return
		}
		select {
		case <-wake:
		case <-deadline:
			rt.Fatalf("it should be %v with %q: %+v", p.may, p.said, s)
		}
	}
}

func (w *model) check(rt *rapid.T) {
	for _, p := range w.all {
		q := w.find(p)
		s := q.Status()
		if s.Owner != p.owner || s.ID != p.id {
			rt.Fatalf("%s of %s is %+v", p.id, p.owner, s)
		}
		select {
		case <-q.Done():
			s = q.Status()
			if !s.State.Final() {
				rt.Fatalf("done, and %+v", s)
			}
		default:
		}
		switch {
		case !s.State.Final():
			if p.seen.State != "" {
				rt.Fatalf("it had ended as %+v, and is %+v", p.seen, s)
			}
		case p.may == nil || !contains(p.may, s.State):
			rt.Fatalf("it may be %v: %+v", p.may, s)
		case p.seen.State == "":
			p.seen = s
			if s.State == Exited && s.ExitCode != p.code {
				rt.Fatalf("exit code %d: %+v", p.code, s)
			}
			if s.State == Exited && s.Descendants != p.forks && !contains(p.may, Stopped) {
				rt.Fatalf("it left %d: %+v", p.forks, s)
			}
		case s.State != p.seen.State || s.ExitCode != p.seen.ExitCode || !s.Ended.Equal(p.seen.Ended):
			rt.Fatalf("it had ended as %+v, and is %+v", p.seen, s)
		}
		out, err := os.ReadFile(q.dir + "/out.log")
		if err != nil || !strings.HasPrefix(p.said, string(out)) {
			rt.Fatalf("it printed %q, of %q, %v", out, p.said, err)
		}
		if s.State == Exited && string(out) != p.said {
			rt.Fatalf("it ended with %q, of %q", out, p.said)
		}
	}
}

// settle stops all, and looks whether anything is left that should not be.
func (w *model) settle() {
	ctx, cancel := w.ctx()
	defer cancel()
	defer func() { w.m.Close() }()
	for _, p := range w.all {
		q := w.m.Find(p.id)
		if q == nil {
			continue
		}
		if _, err := q.Stop(ctx, "kill", 0, "the test"); err != nil {
			w.rt.Errorf("stop: %v", err)
		}
		if alive(p.id0) {
			w.rt.Errorf("%s is alive: %+v", p.id, q.Status())
		}
		if p.may == nil {
			p.may = []State{Stopped}
		}
		if contains(p.may, Exited) {
			p.may = append(p.may, Stopped)
		}
		w.await(w.rt, p, q)
	}
	w.check(w.rt)
}

func contains(list []State, s State) bool {
	for _, o := range list {
		if o == s {
			return true
		}
	}
	return false
}
