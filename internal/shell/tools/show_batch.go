package tools

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/longcall/longcall/internal/argument"
	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/command"
)

// batchResult is a batch as results show it.
type batchResult struct {
	CallID    string   `json:"call_id"`
	State     string   `json:"state"`
	Outcome   string   `json:"outcome,omitempty"`
	Mode      string   `json:"mode,omitempty"`
	StartedAt string   `json:"started_at,omitempty"`
	EndedAt   string   `json:"ended_at,omitempty"`
	WallMS    int64    `json:"wall_ms"`
	Commands  []result `json:"commands"`
	Joined    bool     `json:"joined,omitempty"`
	Replayed  bool     `json:"replayed,omitempty"`
	Next      string   `json:"next"`
}

// stateWaits and stateNotStarted are of a command that is no call: the batch has
// not come to it, or never will.
const (
	stateWaits      = "waiting"
	stateNotStarted = "not_started"
)

// batchState is the state of a batch: running until its call has ended (D13).
func batchState(rec *call.Record, n *tally) string {
	if rec.End.Outcome == call.Running {
		return "running"
	}
	return n.state()
}

// batchLine says in a few words how a batch stands.
func batchLine(rec *call.Record, n *tally) string {
	if rec.End.Outcome == call.Running {
		return "running " + took(time.Since(rec.Started)) + " · " + thousands(int64(n.all-n.running)) + " of " + some(n.all, "command", "commands") + " ended so far"
	}
	after := " after " + took(rec.Ended.Sub(rec.Started))
	switch state := n.state(); {
	case rec.End.Outcome == call.Failed || rec.End.Outcome == call.Denied:
		return rec.End.Text
	case rec.End.Outcome == call.Cancelled:
		return "stopped" + after + ", by " + argument.Plain(rec.End.By, 64) + ": " + n.exited()
	default:
		return state + after + ": " + n.exited()
	}
}

// showBatch renders a run_commands_parallel: a line of its own, then for each
// command a line and its output.
func (t *Tools) showBatch(ctx context.Context, rec *call.Record, o *command.ShowOptions) command.Shown {
	isRunning := rec.End.Outcome == call.Running
	b, err := t.batches.load(rec.ID)
	if err != nil { // not yet there, or not any more
		b = &batch{}
	}
	n, records := t.count(ctx, rec.Principal, b, isRunning)
	r := batchResult{
		CallID: string(rec.ID), State: batchState(rec, &n), Outcome: string(rec.End.Outcome), Mode: "parallel", StartedAt: stamp(rec.Started), EndedAt: stamp(rec.Ended),
		Commands: []result{}, Joined: o.Joined, Replayed: o.Replayed,
	}
	if b.Sequence {
		r.Mode = "sequence"
	}
	if isRunning {
		r.WallMS, r.EndedAt = max(time.Since(rec.Started).Milliseconds(), 0), ""
	} else {
		r.WallMS = max(rec.Ended.Sub(rec.Started).Milliseconds(), 0)
	}
	if err != nil && !isRunning {
		r.State = stateOfEnd(&rec.End)
	}
	each := *o
	each.MaxBytes = max(maxBytes(o)/max(len(b.Commands), 1), 1)
	each.Joined, each.Replayed, each.Why, each.From = false, false, command.ShowNow, 0
	shown := command.Shown{Text: []string{""}, Link: isRunning}
	for i := range b.Commands {
		c := &b.Commands[i]
		head := "command " + strconv.Itoa(i+1)
		if c.Label != "" {
			head += " (" + argument.Plain(c.Label, maxLabel) + ")"
		}
		child := result{State: stateNotStarted}
		switch crec := records[i]; {
		case crec == nil && c.ID == "" && isRunning && c.Refused == "":
			child.State = stateWaits
			shown.Text = append(shown.Text, head+": not started yet.")
		case crec == nil:
			text := c.Refused
			switch {
			case text == "" && rec.End.Outcome == call.Completed:
				text = "Not started: the command before it did not exit 0."
			case text == "":
				text = "Not started: the batch had ended before."
			}
			child.Next = text
			shown.Text = append(shown.Text, head+": "+text)
		default:
			v := t.see(ctx, crec)
			w := v.look(ctx, &each)
			child = v.fill(&w)
			next := ""
			if !v.running {
				next = v.next(&w, &each)
				shown.Told = append(shown.Told, crec.ID)
			} else {
				next = v.warnings(&o.Names)
			}
			child.Next = next
			line := v.headline(&w, &each)
			if c.Joined {
				line += " It ran already: joined, not started."
			}
			shown.Text = append(shown.Text, join(head+": "+line, next))
			if w.ok && w.Text != "" {
				shown.Text = append(shown.Text, w.Text)
			}
		}
		child.Index, child.Label, child.Joined, child.Replayed = i+1, argument.Plain(c.Label, maxLabel), c.Joined, c.Replayed
		r.Commands = append(r.Commands, child)
	}
	line, next := batchLine(rec, &n)+" · "+string(rec.ID)+".", ""
	switch {
	case isRunning:
		next = goOn(rec.ID, &o.Names)
	case n.unknown > 0:
		next = "The outcome of " + some(n.unknown, "command is", "commands are") + " unknown: check for side effects before starting it again."
	case n.failed+n.notRun > 0 && n.succeeded > 0:
		next = "Run only those again that did not exit 0."
	}
	if r.Next = next; next == "" {
		r.Next = textOver
	}
	shown.Text[0] = join(batchBefore(rec, o)+line, next)
	shown.IsError = !isRunning && (r.State != "succeeded" || rec.End.Outcome != call.Completed)
	shown.Structured = encode(&r)
	return shown
}

// stateOfEnd is the state of an ended batch as its record has it.
func stateOfEnd(end *call.End) string {
	switch word, _, _ := strings.Cut(end.Text, ":"); {
	case end.Outcome == call.Completed && slices.Contains([]string{"succeeded", "failed", "partial"}, word):
		return word
	case end.Outcome == call.Completed && !end.ToolError:
		return "succeeded"
	case end.Outcome == call.Interrupted:
		return "unknown"
	}
	return "failed"
}

func batchBefore(rec *call.Record, o *command.ShowOptions) string {
	switch {
	case o.Why == command.ShowLeft:
		return "longcall is restarting, and the commands go on; "
	case o.Joined && rec.End.Outcome == call.Running:
		return "Already running since " + clock(rec.Started) + " (same commands, same directories). Joined it; nothing was started.\n"
	case o.Joined:
		return "The same batch ran already, since " + clock(rec.Started) + "; nothing was started.\n"
	case o.Replayed:
		return replayedLine(rec.Started) + "\n"
	}
	return ""
}

func maxBytes(o *command.ShowOptions) int {
	if o.MaxBytes == 0 {
		return DefaultOutput
	}
	return o.MaxBytes
}

// briefBatch is Brief of a batch. Its record says all.
func (t *Tools) briefBatch(rec *call.Record) command.Brief {
	b := command.Brief{State: "running", Line: "running " + took(time.Since(rec.Started))}
	if kept, err := t.batches.load(rec.ID); err == nil {
		b.Label = argument.Plain(kept.Label, maxLabel)
	}
	if rec.End.Outcome != call.Running {
		b.State, b.Line = stateOfEnd(&rec.End), rec.End.Text
		if rec.End.Outcome == call.Cancelled {
			b.Line = "stopped after " + took(rec.Ended.Sub(rec.Started)) + ", by " + argument.Plain(rec.End.By, 64)
		}
	}
	return b
}
