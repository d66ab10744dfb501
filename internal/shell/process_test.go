//go:build linux || darwin

package shell

import (
	"testing"
	"time"
)

// SHELL §3: the end of a command in each state, with its exit code and all of
// its output.
func TestEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, tt := range []struct {
		name, script string
		change       func(*Command)
		want         Status
		output       string
	}{
		{"exits", "echo out; echo err >&2; echo more", nil, Status{State: Exited}, "out\nerr\nmore\n"},
		{"fails", "exit 3", nil, Status{State: Exited, ExitCode: 3}, ""},
		{"is killed", "kill -9 $$", nil, Status{State: Signaled, ExitCode: -1, Signal: "SIGKILL"}, ""},
		{"takes too long", "echo a; sleep 60", func(c *Command) { c.Timeout = 50 * time.Millisecond }, Status{State: TimedOut, ExitCode: -1, Signal: "SIGTERM"}, "a\n"},
		{"has no folder", "true", func(c *Command) { c.Dir = "/nowhere/at/all" }, Status{State: StartFailed, ExitCode: -1, Error: `the folder "/nowhere/at/all" does not exist, or is no folder`}, ""},
		{"has no program", "true", func(c *Command) { c.Argv[0] = "nothing-like-it" }, Status{State: StartFailed, ExitCode: -1, Error: `the program "nothing-like-it" cannot be run: it is not on the PATH that commands get`}, ""},
		{"is no program", "true", func(c *Command) { c.Argv[0] = "/etc/passwd" }, Status{State: StartFailed, ExitCode: -1, Error: `the program "/etc/passwd" cannot be run: permission denied`}, ""},
		{"finds its program", "true", func(c *Command) { c.Argv = []string{"echo", "hi"} }, Status{State: Exited}, "hi\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := &rig{T: t, m: r.m}
			if tt.change == nil {
				tt.change = func(*Command) {}
			}
			p := r.start(tt.script, tt.change)
			s := r.end(p)
			if s.State != tt.want.State || s.ExitCode != tt.want.ExitCode || s.Signal != tt.want.Signal || s.Error != tt.want.Error {
				t.Errorf("ended as %+v", s)
			}
			if s.ID != p.ID() || s.Owner != "anna" || s.Started.IsZero() || s.Ended.Before(s.Started) || s.Descendants != 0 {
				t.Errorf("status %+v", s)
			}
			<-p.Done()
			if out := r.output(p); out != tt.output || int64(len(out)) != s.Total {
				t.Errorf("output %q, %d bytes", out, s.Total)
			}
		})
	}
}
