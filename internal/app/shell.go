package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/config"
	"github.com/longcall/longcall/internal/downstream"
	"github.com/longcall/longcall/internal/shell"
	"github.com/longcall/longcall/internal/shell/spool"
	"github.com/longcall/longcall/internal/shell/tools"
	"github.com/longcall/longcall/internal/telemetry"
)

// This file opens the shell, and shows it to the agents' side, to the engine and
// to telemetry.

// openShell finds what earlier processes left running. The commands are the
// shell's own and outlive it: closing it only ends the following.
func (a *App) openShell(ctx context.Context, c *config.Config) error {
	if !c.Shell.Enabled {
		return nil
	}
	exe, err := shell.Self()
	if err != nil {
		return fmt.Errorf("shell.enabled: %w; write enabled: false, or remove shell", err)
	}
	s := &c.Shell
	m, err := shell.Open(ctx, shell.Options{
		Dir: filepath.Join(c.State, "shell"), Exe: exe, MaxPerOwner: s.PerOwner, MaxTotal: s.Total,
		Caps:       spool.Caps{Head: int64(s.Spool.Head), Total: int64(s.Spool.Process)},
		SpoolTotal: int64(s.Spool.Total), Keep: s.Spool.Keep, Log: a.log,
	})
	if err != nil {
		return err
	}
	a.onStop("commands", func(context.Context) error { return m.Close() })
	t, err := tools.New(m, filepath.Join(c.State, "shell-batches"), s.Spool.Keep, os.Environ(), a.commands(c), a.log)
	if err != nil {
		return err
	}
	a.manager, a.shell = m, t
	a.tel.SetShell(func() telemetry.ShellStats {
		running, kept := m.Stats()
		return telemetry.ShellStats{Running: running, OutputBytes: kept}
	})
	return nil
}

// commands are what a config says of commands that start from now on.
func (a *App) commands(c *config.Config) tools.Settings {
	s := &c.Shell
	set := tools.Settings{
		Roots: s.Roots, Shell: s.Interpreter, Sandbox: s.Sandbox, Env: s.Env, Set: make(map[string]string, len(s.Set)),
		MaxRuntime: s.MaxRuntime, NonzeroIsError: s.NonzeroIsError,
		Yield: func(principal, client string) time.Duration {
			return a.snap.Load().profiles.For(principal, config.ShellServer, client).Yield
		},
		Off:     !s.Enabled,
		Allowed: func(principal string) bool { return c.MayRun(principal, a.opt.Config.Listen) },
	}
	if len(set.Shell) == 0 {
		set.Shell = []string{"/bin/sh", "-c"}
		if _, err := os.Stat("/bin/bash"); err == nil {
			set.Shell[0] = "/bin/bash"
		}
	}
	for name, value := range s.Set {
		set.Set[name] = value.Reveal()
	}
	return set
}

// stopsCommands says whether commands end with this process: its successor has
// them if it has one, and the operator may say so.
func (a *App) stopsCommands(replaced bool) bool {
	return a.manager != nil && !replaced && a.snap.Load().config.Shell.Lifetime == config.LifetimeServe
}

// shellSide shows the shell to the agents' side; nil if it is off.
func (a *App) shellSide() downstream.Shell {
	if a.shell == nil {
		return nil
	}
	return a.shell
}

// isCommand says whether the shell carries a call.
func (r *runner) isCommand(server string) bool { return r.shell != nil && server == config.ShellServer }

// runCommand carries a call of the shell. One that a stop of longcall ended was
// stopped with it, and that is no unknown outcome.
func (r *runner) runCommand(ctx context.Context, x *call.Exec) call.Answer {
	answer := r.shell.Run(ctx, x)
	var cause *call.Cause
	if answer.Outcome == call.Running && errors.As(context.Cause(ctx), &cause) && cause.End.By == "shutdown" {
		answer.End = call.End{Outcome: call.Cancelled, By: "shutdown", Text: "Stopped, because longcall was stopped (shell.lifetime: serve). What it had done by then stays done."}
	}
	return answer
}
