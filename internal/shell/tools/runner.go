package tools

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
	"github.com/longcall/longcall/internal/shell"
	"github.com/longcall/longcall/internal/shell/spool"
)

var (
	_ call.Runner  = (*Tools)(nil)
	_ call.Resumer = (*Tools)(nil)
)

// Resumable says that a call of the shell can always be taken up again: its id is
// its address, and Run knows whether it ever began. As before, an equal request
// joins it.
func (t *Tools) Resumable(r *call.Record) bool {
	if r.Server != Server {
		return false
	}
	r.Attach = call.AttachAlways
	return true
}

// Run carries an exec_command or run_commands_parallel to its end; see call.Runner.
// It returns no body: what an agent reads is made by Show, whenever it asks.
func (t *Tools) Run(ctx context.Context, x *call.Exec) call.Answer {
	defer t.takeStop(x.ID)
	if x.Spec.Tool == Parallel {
		return t.runBatch(ctx, x)
	}
	if x.Resume != nil {
		p := t.manager.Find(string(x.ID))
		if p == nil {
			return failed(textNotStarted)
		}
		left(x)
		return t.follow(ctx, x, p, nil)
	}
	s := t.set.Load()
	r, wrong := s.request(x.Spec)
	if wrong != "" { // the folder was there when the call was planned, and is not now
		return failed(wrong)
	}
	c := &r.commands[0]
	timeout := c.timeout
	if timeout == 0 {
		timeout = s.MaxRuntime
	}
	if err := x.Dispatched(); err != nil { // it was cancelled first
		return call.Answer{}
	}
	cmd := shell.Command{
		ID: string(x.ID), Owner: x.Spec.Principal, Label: c.label, Argv: slices.Concat(s.Sandbox, s.Shell, []string{c.text}), Dir: c.dir, Env: s.environ(t.own, c.env),
		TTY: c.tty, Stdin: c.pipe, Cols: c.cols, Rows: c.rows, Service: c.service, Timeout: timeout, Parent: string(x.Spec.Parent), Index: x.Spec.Index,
	}
	// From here on it may run, whoever goes away: a cancel stops it.
	p, err := t.manager.Start(context.WithoutCancel(ctx), cmd)
	if err != nil {
		return failed(notStarted(err))
	}
	return t.follow(ctx, x, p, c)
}

// request reads the arguments of the agent's message once more: they are kept by
// nobody but the process.
func (s *Settings) request(spec *call.Spec) (r *request, wrong string) {
	m, err := mcp.Parse(spec.Request)
	if err != nil {
		return nil, "Not started: the request could not be read."
	}
	args := m.Arguments.Of(m.Raw)
	if len(args) == 0 || args[0] != '{' {
		args = []byte("{}")
	}
	return s.parse(spec.Tool, args, &OwnNames, DefaultYield)
}

// left notes that a call which is taken up had been started, should the process
// that did have been killed before that was stored: what has run is owed to who
// asks again.
func left(x *call.Exec) {
	_ = x.Dispatched() // an error says that it is on record, or that it is to be stopped
}

func failed(text string) call.Answer {
	return call.Answer{End: call.End{Outcome: call.Failed, Text: text}, Hole: -1}
}

// notStarted says why a command was not started.
func notStarted(err error) string {
	var many *shell.TooMany
	if errors.As(err, &many) {
		return many.Error()
	}
	return "Not started: " + err.Error() + "."
}

// follow waits until the command has ended or ctx is done; c is nil for one that an
// earlier process started.
func (t *Tools) follow(ctx context.Context, x *call.Exec, p *shell.Process, c *commandArgs) call.Answer {
	if x.Resume == nil {
		x.FirstByte() // it answers from now on, however silent it is
	}
	if c != nil && c.ready != nil {
		t.untilReady(ctx, x, p, c)
	}
	select {
	case <-p.Done():
	case <-ctx.Done():
		if errors.Is(context.Cause(ctx), call.ErrLeft) {
			return call.Answer{} // it goes on, and the next process takes it up
		}
		return t.stopped(ctx, x, p)
	}
	return t.endOf(p.Status())
}

// stopped ends the whole tree of a command whose call was cancelled or is over a
// limit.
func (t *Tools) stopped(ctx context.Context, x *call.Exec, p *shell.Process) call.Answer {
	how := t.takeStop(x.ID)
	var cause *call.Cause
	if errors.As(context.Cause(ctx), &cause) && how.By == "" {
		how.By = cause.End.By
	}
	st, err := p.Stop(context.WithoutCancel(ctx), how.Signal, graceOf(&how), how.By)
	switch {
	case err != nil:
		x.Note("The command could not be stopped: %s.", err)
	case len(st.Survivors) > 0:
		x.Note("%s of it could not be ended: pid %v.", some(len(st.Survivors), "process", "processes"), st.Survivors)
	}
	if st.State == shell.Stopped || !st.State.Final() {
		return call.Answer{} // as the call's cause says
	}
	return t.endOf(st)
}

// untilReady waits until the output matches ready_pattern, and says so to those who
// wait for it; the command's end ends it, too.
func (t *Tools) untilReady(ctx context.Context, x *call.Exec, p *shell.Process, c *commandArgs) {
	wake := make(chan struct{}, 1)
	defer p.Notify(wake)()
	scan := spool.NewScan(c.ready, 0)
	for {
		if out, err := p.Output(); err == nil { // else nothing was printed yet
			if _, found, err := scan.Next(ctx, out); found {
				// An error says that the call is at its end, which ends this, too.
				_ = x.Emit(call.Event{Kind: call.KindReady, Hole: -1, Body: []byte("the output matched ready_pattern")})
				return
			} else if err != nil {
				x.Note("The output cannot be searched for ready_pattern any more.")
				return
			}
		}
		select {
		case <-wake:
		case <-p.Done():
			return
		case <-ctx.Done():
			return
		}
	}
}

// endOf is how the call of a process ended that has.
func (t *Tools) endOf(st shell.Status) call.Answer {
	end := call.End{Outcome: call.Completed}
	switch st.State {
	case shell.Exited:
		end.Text = fmt.Sprint(exitPrefix, st.ExitCode)
		end.ToolError = st.ExitCode != 0 && t.set.Load().NonzeroIsError
	case shell.Signaled:
		end.ToolError, end.Text = true, "ended by "+st.Signal
	case shell.TimedOut:
		end.Outcome, end.Limit = call.TimedOut, "timeout_s"
		end.Text = "Stopped after " + took(st.Ended.Sub(st.Started)) + ", its time limit (timeout_s, or the operator's shell.max_runtime). What it had done by then stays done."
	case shell.Stopped: // by somebody who did not cancel the call
		end.Outcome, end.By = call.Cancelled, st.StoppedBy
		end.Text = "The command was stopped."
	case shell.StartFailed:
		return failed("Not started: " + st.Error + ".")
	default:
		end.Outcome, end.Text = call.Interrupted, join(lostLine(st.Ended), textCheck)
	}
	return call.Answer{End: end, Hole: -1}
}
