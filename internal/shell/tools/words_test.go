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
	"github.com/longcall/longcall/internal/shell/spool"
)

// Every string that a model gets of a command says what happened, what not to do
// and what to do next (O9).
func TestResultStrings(t *testing.T) {
	at := time.Date(2026, 11, 30, 12, 4, 11, 0, time.UTC)
	sec := func(s float64) time.Time { return at.Add(time.Duration(s * float64(time.Second))) }
	record := func(end call.End, ended float64) call.Record {
		r := call.Record{ID: "c_x", Spec: call.Spec{Server: Server, Tool: Exec}, Started: at, End: end}
		if end.Outcome != call.Running {
			r.Ended = sec(ended)
		}
		return r
	}
	runs := shell.Status{State: shell.Running, Started: at, ExitCode: -1}
	exited := func(code int) shell.Status {
		return shell.Status{State: shell.Exited, ExitCode: code, Started: at, Ended: sec(41.2), TreeEnded: sec(41.2)}
	}
	exit := func(code int) call.End { return call.End{Outcome: call.Completed, Text: fmt.Sprint("exit ", code)} }
	with := func(s shell.Status, f func(*shell.Status)) *shell.Status { f(&s); return &s }
	ptr := func(s shell.Status) *shell.Status { return &s }
	some := &spool.View{Text: "made it\n", Next: 8, Total: 8}
	var b strings.Builder
	for _, k := range []struct {
		name    string
		rec     call.Record
		st      *shell.Status
		view    *spool.View
		o       command.ShowOptions
		waiting bool
	}{
		{name: "starting", rec: record(call.End{}, 0), st: &shell.Status{State: shell.Starting}},
		{name: "running", rec: record(call.End{}, 0), st: &runs, view: &spool.View{Text: "…", Next: 2114, Total: 2114}, o: command.ShowOptions{Why: command.ShowYield}},
		{name: "running, silent", rec: record(call.End{}, 0), st: &runs, view: &spool.View{}},
		{name: "service", rec: record(call.End{}, 0), st: with(runs, func(s *shell.Status) { s.Service = true }), view: some},
		{name: "ready", rec: record(call.End{}, 0), st: &runs, view: some, o: command.ShowOptions{Why: command.ShowReady}},
		{name: "new output", rec: record(call.End{}, 0), st: &runs, view: some, o: command.ShowOptions{Why: command.ShowOutput}},
		{name: "match", rec: record(call.End{}, 0), st: &runs, view: some, o: command.ShowOptions{Why: command.ShowMatch, Match: 7}},
		{name: "waited out", rec: record(call.End{}, 0), st: &runs, view: some, o: command.ShowOptions{Why: command.ShowWaited}},
		{name: "restarting", rec: record(call.End{}, 0), st: &runs, view: some, o: command.ShowOptions{Why: command.ShowLeft}},
		{name: "joined", rec: record(call.End{}, 0), st: &runs, view: some, o: command.ShowOptions{Joined: true, Why: command.ShowYield}},
		{name: "waits for input", rec: record(call.End{}, 0), st: with(runs, func(s *shell.Status) { s.TTY = true }), view: some, waiting: true},
		{name: "unsupervised", rec: record(call.End{}, 0), st: with(runs, func(s *shell.Status) { s.Unsupervised = true }), view: some},
		{name: "ended, not on record yet", rec: record(call.End{}, 0), st: ptr(exited(0)), view: some},
		{name: "exit 0", rec: record(exit(0), 41.3), st: ptr(exited(0)), view: some},
		{name: "exit 1", rec: record(exit(1), 41.3), st: ptr(exited(1)), view: some},
		{name: "no output", rec: record(exit(0), 41.3), st: ptr(exited(0)), view: &spool.View{}},
		{name: "joined and ended", rec: record(exit(0), 41.3), st: ptr(exited(0)), view: some, o: command.ShowOptions{Joined: true}},
		{name: "replayed", rec: record(exit(0), 41.3), st: ptr(exited(0)), view: some, o: command.ShowOptions{Replayed: true}},
		{name: "large", rec: record(exit(0), 41.3), st: ptr(exited(0)), view: &spool.View{Text: "head\n[… 1,234,567 bytes omitted — read_output cursor=9000]\ntail\n", Next: 1300000, Total: 1300000, Omitted: 1234567, Evicted: 99}},
		{name: "descendants", rec: record(exit(0), 41.3), st: with(exited(0), func(s *shell.Status) { s.Descendants, s.TreeEnded = 2, time.Time{} }), view: some},
		{name: "an output that is gone", rec: record(exit(3), 41.3), st: ptr(exited(3))},
		{name: "a process that is gone", rec: record(exit(3), 41.3)},
		{name: "signal", rec: record(call.End{Outcome: call.Completed, ToolError: true, Text: "ended by SIGSEGV"}, 41.3), st: with(exited(-1), func(s *shell.Status) { s.State, s.Signal = shell.Signaled, "SIGSEGV" }), view: some},
		{name: "timed out", rec: record(call.End{Outcome: call.TimedOut, Limit: "timeout_s"}, 60), st: with(exited(-1), func(s *shell.Status) { s.State, s.Signal, s.Ended = shell.TimedOut, "SIGTERM", sec(60) }), view: some},
		{name: "stopped", rec: record(call.End{Outcome: call.Cancelled, By: "agent (cancel_call)"}, 41.3), st: with(exited(-1), func(s *shell.Status) { s.State, s.Signal, s.StoppedBy = shell.Stopped, "SIGTERM", "ann\u202e" }), view: some},
		{name: "stopped, survivors", rec: record(call.End{Outcome: call.Cancelled, By: "operator"}, 41.3), st: with(exited(-1), func(s *shell.Status) { s.State, s.Survivors = shell.Stopped, []int{12, 13} }), view: some},
		{name: "lost", rec: record(call.End{Outcome: call.Interrupted, Text: join(lostLine(sec(0)), textCheck)}, 0), st: with(exited(-1), func(s *shell.Status) { s.State, s.Ended = shell.Lost, at }), view: some},
		{name: "lost, processes left", rec: record(call.End{Outcome: call.Interrupted, Text: join(lostLine(sec(0)), textCheck)}, 0), st: with(exited(-1), func(s *shell.Status) { s.State, s.Ended, s.Survivors = shell.Lost, at, []int{12} }), view: some},
		{name: "lost, a process that is gone", rec: record(call.End{Outcome: call.Interrupted, Text: join(lostLine(sec(0)), textCheck)}, 0)},
		{name: "not started", rec: record(call.End{Outcome: call.Failed, Text: "Not started: the shell was not found."}, 0.1), st: &shell.Status{State: shell.StartFailed, Error: "the shell was not found"}},
		{name: "never began", rec: record(call.End{Outcome: call.Failed, Text: textNotStarted}, 0)},
	} {
		v := &sight{rec: &k.rec, running: k.rec.End.Outcome == call.Running, now: sec(3), waiting: k.waiting}
		if k.st != nil {
			v.st, v.has = *k.st, true
		}
		w := window{ok: k.view != nil}
		if w.ok {
			w.View = *k.view
		}
		k.o.Names = OwnNames
		s := v.render(&w, &k.o, &Settings{})
		fmt.Fprintf(&b, "== %s (error %v, link %v)\n%s\n%s\n", k.name, s.IsError, s.Link, strings.Join(s.Text, "\n--\n"), s.Structured)
		if v.running && (s.IsError || strings.Contains(string(s.Structured), `"outcome"`) || !strings.Contains(strings.Join(s.Text, ""), "do not run it again")) {
			t.Errorf("%s: a running command is told as ended, or nothing says not to run it again: %q", k.name, s.Text)
		}
	}
	golden(t, "results.txt", []byte(b.String()))
}

func TestWords(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0.0 s", -time.Second: "0.0 s", 41200 * time.Millisecond: "41.2 s", 59940 * time.Millisecond: "59.9 s", 59960 * time.Millisecond: "1 min 0 s",
		125 * time.Second: "2 min 5 s", time.Hour - time.Second: "59 min 59 s", time.Hour - 100*time.Millisecond: "1 h 0 min", 27*time.Hour + 90*time.Second: "27 h 2 min",
	} {
		if got := took(d); got != want {
			t.Errorf("%v is %q, want %q", d, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1000: "-1,000", -999: "-999", 100: "100"} {
		if got := thousands(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
}

// The arguments of any agent: no panic, and either one sentence or a plan that is
// within its bounds.
func FuzzPlan(f *testing.F) {
	for _, a := range []string{`{"command":"true"}`, `{"command":"x","cwd":"../..","yield_ms":1e300}`, `{"commands":[{"command":"a"},{}],"mode":null}`, `{"command":"\ud800","env":{"A":"\u0000"}}`, `[]`, `{"command":"a","ready_pattern":"(a*)*{9}"}`} {
		f.Add(a, true)
		f.Add(a, false)
	}
	s := &Settings{Roots: []string{f.TempDir()}, Env: []string{"A"}}
	f.Fuzz(func(t *testing.T, a string, batch bool) {
		tool := Exec
		if batch {
			tool = Parallel
		}
		r, wrong := s.parse(tool, []byte(a), &OwnNames, DefaultYield)
		if wrong != "" {
			if strings.ContainsAny(wrong, "\n\x1b") || !strings.HasSuffix(wrong, ".") || len(wrong) > 1000 {
				t.Errorf("%q", wrong)
			}
			return
		}
		if len(r.commands) == 0 || len(r.commands) > maxCommands || r.yield < 0 || r.yield > MaxYield || r.maxBytes < 1 || r.maxBytes > maxOutput || r.digest() == "" {
			t.Errorf("%+v", r)
		}
		for _, c := range r.commands {
			if len(c.text) > maxCommand || strings.TrimSpace(c.text) == "" || !within(s.Roots[0], c.dir) {
				t.Errorf("%+v", c)
			}
		}
	})
}
