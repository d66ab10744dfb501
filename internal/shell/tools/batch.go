package tools

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// A run_commands_parallel is a call of its own, whose runner makes each of its
// commands a call too, with its id as their Parent. It holds no process.

// runBatch carries a batch to its end.
func (t *Tools) runBatch(ctx context.Context, x *call.Exec) call.Answer {
	var b *batch
	var err error
	if x.Resume != nil {
		b, err = t.batches.load(x.ID)
		if err == nil {
			err = t.reclaim(ctx, x, b)
		}
		if err == nil {
			err = t.batches.store(x.ID, b)
		}
	} else {
		var wrong string
		if b, wrong = t.newBatch(x.Spec); wrong != "" {
			return failed(wrong)
		}
		err = t.batches.store(x.ID, b)
	}
	switch {
	case errors.Is(context.Cause(ctx), call.ErrLeft):
		return call.Answer{}
	case err != nil && x.Resume != nil:
		return failed(textNotStarted)
	case err != nil:
		return failed("Not started: the batch could not be kept: " + err.Error() + ".")
	case x.Resume != nil && !b.begun():
		return failed(textNotStarted)
	case x.Resume != nil:
		left(x)
	default:
		if err := x.Dispatched(); err != nil { // it was cancelled first
			return call.Answer{}
		}
		x.FirstByte()
	}
	r := &batchRun{t: t, x: x, b: b}
	if b.Sequence {
		r.sequence(ctx)
	} else {
		var wg sync.WaitGroup
		for i := range b.Commands {
			wg.Go(func() { r.one(ctx, i) })
		}
		wg.Wait()
	}
	if ctx.Err() != nil {
		return call.Answer{}
	}
	return t.batchEnd(ctx, x.Spec.Principal, b)
}

// newBatch reads the agent's request.
func (t *Tools) newBatch(spec *call.Spec) (b *batch, wrong string) {
	r, wrong := t.set.Load().request(spec)
	if wrong != "" {
		return nil, wrong
	}
	b = &batch{Sequence: r.sequence, Fresh: r.ifRunning == "new", Label: r.label}
	for i := range r.commands {
		c := &r.commands[i]
		args := map[string]any{"command": c.text, "cwd": c.dir}
		if c.timeout > 0 {
			args["timeout_s"] = int64(c.timeout.Seconds())
		}
		if c.label != "" {
			args["label"] = c.label
		}
		if c.env != nil {
			args["env"] = c.env
		}
		b.Commands = append(b.Commands, batchCommand{Arguments: encode(args), Digest: c.digest(), Label: c.label})
	}
	return b, ""
}

// reclaim finds the commands that an earlier process started without noting it.
func (t *Tools) reclaim(ctx context.Context, x *call.Exec, b *batch) error {
	var before call.ID
	for {
		list, err := t.engine.List(ctx, x.Spec.Principal, before, 200)
		if err != nil {
			return err
		}
		for i := range list {
			r := &list[i]
			if r.ID == x.ID {
				return nil // nothing of it is older
			}
			if r.Parent == x.ID && r.Index >= 1 && r.Index <= len(b.Commands) {
				if c := &b.Commands[r.Index-1]; c.ID == "" {
					c.ID = r.ID
				}
			}
		}
		if len(list) == 0 {
			return nil
		}
		before = list[len(list)-1].ID
	}
}

// batchRun is a batch that runs.
type batchRun struct {
	t  *Tools
	x  *call.Exec
	mu sync.Mutex
	b  *batch
}

// sequence runs one command after the other, up to the first that does not exit 0.
func (r *batchRun) sequence(ctx context.Context) {
	for i := range r.b.Commands {
		if r.one(ctx, i) != succeeded {
			return
		}
	}
}

// one runs a command of the batch, or goes on with it, and says how it ended;
// running if ctx was done before. A command that the batch started is cancelled
// with it; one that it joined is left to those who started it.
func (r *batchRun) one(ctx context.Context, i int) fate {
	c, err := r.start(ctx, i)
	if err != nil {
		if errors.Is(err, call.ErrStopping) {
			<-ctx.Done() // the next process goes on with the batch
		}
		if ctx.Err() != nil {
			return running
		}
		r.update(i, func(c *batchCommand) { c.Refused = "Not started: " + err.Error() + "." })
		return notRun
	}
	defer c.Leave(call.Delivery{}, -1)
	if ended(ctx, c) {
		rec := recordOf(ctx, c)
		return r.t.fateOf(&rec)
	}
	var cause *call.Cause
	if errors.As(context.Cause(ctx), &cause) && !r.command(i).Joined {
		r.cancel(ctx, c, cause.End)
	}
	return running
}

// cancel cancels a command and waits for its end, which its own runner bounds.
func (r *batchRun) cancel(ctx context.Context, c *call.Call, end call.End) {
	t := r.t
	t.mu.Lock()
	if how, ok := t.stops[r.x.ID]; ok {
		t.stops[c.ID()] = how
	}
	t.mu.Unlock()
	if end.Outcome != call.Cancelled {
		end = call.End{By: "limit", Text: end.Text}
	}
	if c.Cancel(end) == nil {
		ended(context.WithoutCancel(ctx), c)
	}
}

// lookAgain is how long a batch waits before it follows a command again that could
// not be followed: the journal of another process's call cannot be read.
const lookAgain = time.Second

// ended waits for a call's end; false if ctx is done before.
func ended(ctx context.Context, c *call.Call) bool {
	for ctx.Err() == nil {
		for ev, err := range c.Follow(ctx, c.Record().Seq, 0) {
			switch {
			case err == nil && ev.Kind != call.KindEnd:
			case err == nil:
				return true
			case errors.Is(err, call.ErrLeft): // this process is stopping, and whoever waits with it
				if ctx.Done() != nil {
					<-ctx.Done()
				}
				return false
			}
		}
		if rec := recordOf(ctx, c); rec.End.Outcome != call.Running {
			return true
		}
		select {
		case <-time.After(lookAgain):
		case <-ctx.Done():
		}
	}
	return false
}

// start starts a command of the batch, joins the one that runs, or finds the one
// that an earlier process had started. The caller is a reader of it.
func (r *batchRun) start(ctx context.Context, i int) (*call.Call, error) {
	cmd, spec := r.command(i), r.x.Spec
	if cmd.ID != "" {
		c, err := r.t.engine.Get(ctx, spec.Principal, cmd.ID)
		if err == nil {
			c.Enter()
		}
		return c, err
	}
	child := call.Spec{
		Principal: spec.Principal, Session: spec.Session, Client: spec.Client, Server: Server, Tool: Exec,
		PublicTool: strings.Replace(spec.PublicTool, Parallel, Exec, 1), Era: spec.Era, RequestID: spec.RequestID, Traceparent: spec.Traceparent,
		Digest: cmd.Digest, Attach: call.AttachAlways, Parent: r.x.ID, Index: i + 1,
		Request: encode(map[string]any{"jsonrpc": "2.0", "id": 0, "method": mcp.MethodToolsCall, "params": map[string]any{"name": Exec, "arguments": cmd.Arguments}}),
	}
	if r.b.Fresh {
		child.Attach = call.AttachFresh
	}
	// Whoever goes away: it is a call or it is none, and a cancel finds it.
	ctx = context.WithoutCancel(ctx)
	c, join, err := r.t.engine.Attach(ctx, child)
	if err == nil && join == call.Replay && c.Record().Parent == r.x.ID {
		// The same command stands in the batch twice: that it ran once is no reason.
		c.Leave(call.Delivery{}, -1)
		child.Attach = call.AttachFresh
		c, join, err = r.t.engine.Attach(ctx, child)
	}
	if err != nil {
		return nil, err
	}
	r.update(i, func(cmd *batchCommand) {
		cmd.ID, cmd.Joined, cmd.Replayed = c.ID(), join == call.Joined, join == call.Replay
	})
	return c, nil
}

func (r *batchRun) command(i int) batchCommand {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.b.Commands[i]
}

// update changes what is kept of a command. If it cannot be stored, the next
// process still finds the command by its parent.
func (r *batchRun) update(i int, f func(*batchCommand)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.b.Commands[i])
	if err := r.t.batches.store(r.x.ID, r.b); err != nil {
		r.t.log.Warn("a batch could not be kept", "call", string(r.x.ID), "error", err)
	}
}

// recordOf is a call's record, with its end only if that may be shown (I4).
func recordOf(ctx context.Context, c *call.Call) call.Record {
	rec := c.Record()
	if state, err := c.Look(ctx, rec.Seq); err == nil && state.Outcome == call.Running {
		rec.End, rec.Ended = call.End{}, time.Time{}
	}
	return rec
}

// fate is what became of a command of a batch.
type fate int

const (
	running fate = iota
	succeeded
	notSucceeded // it ended otherwise
	notRun       // it never ran
	unknown
)

// fateOf is what became of a call.
func (t *Tools) fateOf(rec *call.Record) fate {
	switch rec.End.Outcome {
	case call.Running:
		return running
	case call.Interrupted:
		return unknown
	case call.Failed, call.Denied:
		return notRun
	}
	if code, ok := exitOf(&rec.End); ok && code == 0 {
		return succeeded
	}
	return notSucceeded
}

// tally counts what became of the commands of a batch.
type tally struct{ all, running, succeeded, failed, notRun, unknown int }

func (t *tally) add(f fate) {
	t.all++
	switch f {
	case running:
		t.running++
	case succeeded:
		t.succeeded++
	case notSucceeded:
		t.failed++
	case notRun:
		t.notRun++
	default:
		t.unknown++
	}
}

// state is the state of an ended batch (SHELL §4): a success only if all its
// commands exited 0 (D13).
func (t *tally) state() string {
	switch {
	case t.unknown > 0:
		return "unknown"
	case t.succeeded == t.all:
		return "succeeded"
	case t.succeeded == 0:
		return "failed"
	}
	return "partial"
}

// count looks at all commands of a batch. Those that are no calls have not run; in
// a batch that runs they still may.
func (t *Tools) count(ctx context.Context, principal string, b *batch, runs bool) (tally, []*call.Record) {
	var n tally
	records := make([]*call.Record, len(b.Commands))
	for i := range b.Commands {
		f := notRun
		switch c := &b.Commands[i]; {
		case c.ID != "":
			f = unknown
			if c, err := t.engine.Get(ctx, principal, c.ID); err == nil {
				rec := recordOf(ctx, c)
				records[i], f = &rec, t.fateOf(&rec)
			}
		case runs && c.Refused == "":
			f = running
		}
		n.add(f)
	}
	return n, records
}

// batchEnd is how a batch ended whose commands all have.
func (t *Tools) batchEnd(ctx context.Context, principal string, b *batch) call.Answer {
	n, _ := t.count(ctx, principal, b, false)
	end := call.End{Outcome: call.Completed, Text: n.state() + ": " + n.exited()}
	switch n.state() {
	case "succeeded":
	case "unknown":
		end.Outcome = call.Interrupted
		end.Text = "Outcome unknown: of " + some(n.all, "command", "commands") + ", supervision of " + some(n.unknown, "command", "commands") + " was lost. " + textCheck
	default:
		end.ToolError = true
	}
	return call.Answer{End: end, Hole: -1}
}

// exited says how many commands exited 0.
func (t *tally) exited() string {
	return thousands(int64(t.succeeded)) + " of " + some(t.all, "command", "commands") + " exited 0"
}

// batch is what is kept of a batch: its commands and which calls they are.
type batch struct {
	Sequence bool           `json:"sequence,omitempty"`
	Fresh    bool           `json:"fresh,omitempty"`
	Label    string         `json:"label,omitempty"`
	Commands []batchCommand `json:"commands"`
}

// begun says whether one of its commands is a call already.
func (b *batch) begun() bool {
	return slices.ContainsFunc(b.Commands, func(c batchCommand) bool { return c.ID != "" })
}

type batchCommand struct {
	Arguments json.RawMessage `json:"arguments"` // of an exec_command
	Digest    string          `json:"digest"`
	Label     string          `json:"label,omitempty"`
	ID        call.ID         `json:"id,omitempty"`
	Joined    bool            `json:"joined,omitempty"`   // it ran already
	Replayed  bool            `json:"replayed,omitempty"` // it had ended, and nobody had got the end
	Refused   string          `json:"refused,omitempty"`  // why it was not started
}
