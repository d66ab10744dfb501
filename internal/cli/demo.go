package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/longcall/longcall/internal/config"
	"github.com/longcall/longcall/internal/demo"
)

type demoCmd struct {
	Tool time.Duration `hidden:"" default:"12s"`
	Cut  time.Duration `hidden:"" default:"3s"`
}

// Help has the details and examples.
func (demoCmd) Help() string {
	return `A slow tool, a proxy that cuts silent connections, and the same call twice: once
directly, once through longcall. All of it runs in this process, on loopback,
and leaves nothing behind. It takes about 15 seconds.

The exit code is 0 only if the direct call really died and the other one really
came through.

Example:
  longcall demo`
}

// Run is the command.
func (c *demoCmd) Run(r *runner) error {
	sys := r.sys
	ctx, cancel := context.WithCancelCause(r.ctx)
	defer cancel(nil)
	sigs := make(chan os.Signal, 1)
	defer sys.Notify(sigs, os.Interrupt, syscall.SIGTERM)()
	go func() {
		select {
		case <-sigs:
			cancel(errInterrupted)
		case <-ctx.Done():
		}
	}()
	state, err := os.MkdirTemp("", "longcall-demo-*")
	if err != nil {
		return fmt.Errorf("make a folder for the demo: %w", err)
	}
	defer os.RemoveAll(state)

	o := demo.Options{
		Tool: c.Tool, Cut: c.Cut, Out: sys.Out,
		Terminal: sys.OutTerminal, Color: sys.Color, Width: sys.width(), Version: buildVersion().Version,
	}
	d, err := demo.New(ctx, o)
	if err != nil {
		return err
	}
	defer d.Close()
	cfg := config.Default()
	cfg.State = state
	cfg.Beats = config.Beats{Comment: o.Beat(), Progress: 2 * o.Beat()}
	server := config.DefaultServer()
	server.URL, server.Type = d.ToolURL(), "http"
	cfg.Servers[demo.ServerName] = server
	g, err := startHere(ctx, cfg)
	if err != nil {
		return err
	}
	defer g.stop()
	report, err := d.Run(ctx, g.url, g.token)
	if errors.Is(err, errInterrupted) {
		return &exitError{code: signalCode(syscall.SIGINT)}
	}
	if err != nil {
		return err
	}
	g.stop() // so that the record is whole
	if err := showDemoCall(r, state); err != nil {
		return err
	}
	if !report.Proved() {
		return exit(exitToolError, "the demo did not show what it is there to show: see above")
	}
	return nil
}

// showDemoCall prints what the demo's longcall has on record.
func showDemoCall(r *runner, state string) error {
	j, err := openJournal(state)
	if err != nil {
		return err
	}
	recs, err := j.List(r.ctx, newestCall)
	if cerr := j.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if len(recs) == 0 {
		return errors.New("longcall has no record of the demo's call")
	}
	fmt.Fprint(r.sys.Out, "\nWhat longcall has on record (longcall calls show ID):\n\n")
	return showCall(r, state, string(recs[0].ID), false, false)
}
