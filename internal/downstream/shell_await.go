package downstream

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/command"
)

const (
	// shellTail is how much of its newest output is shown of a command whose
	// wait was over without a cursor, shellNear how much before a match; bytes.
	shellTail, shellNear = 2000, 4000
	// stopGrace is how long a cancel_call that names no grace waits for a tree
	// of processes, besides cancelWait.
	stopGrace = 10 * time.Second
)

// shellWait is what a waiter keeps of a call of the shell.
type shellWait struct {
	is      bool
	from    int64        // output before it does not count
	scan    command.Scan // not nil: a match is waited for
	met     command.Why  // command.ShowOutput or command.ShowMatch: what was waited for is there
	match   int64        // where the match ends
	unwatch func()       // ends its wakes
}

// forCommands prepares the wait for what commands print; other calls have an end
// only.
func (w *waiter) forCommands(v *awaitArgs) (wrong string) {
	w.cursor = v.cursor
	shell := w.x.h.opt.Shell
	for i := range w.calls {
		c := &w.calls[i]
		rec := c.call.Record()
		c.is = w.x.isShell(rec.Server)
		w.shell = w.shell || c.is
		if v.until == untilExit && v.cursor < 0 {
			continue
		}
		if !c.is {
			return title(&rec) + " is no command: only commands have output to wait for. Call " + w.x.ownNames().await + " with " + idList([]string{string(rec.ID)}) + ", without until, cursor and pattern, to wait for its end."
		}
		c.from = max(v.cursor, 0)
		switch v.until {
		case untilOutput:
			if v.cursor < 0 {
				c.from = shell.Total(rec.ID)
			}
			c.unwatch = shell.Watch(rec.ID, w.wake)
			w.output = true
		case untilPattern:
			scan, err := shell.Scan(rec.ID, c.from, v.pattern)
			if err != nil {
				return err.Error()
			}
			w.searches = true
			c.scan, c.unwatch = scan, shell.Watch(rec.ID, w.wake)
		}
	}
	return ""
}

// release ends what forCommands began.
func (c *shellWait) release() {
	if c.unwatch != nil {
		c.unwatch()
	}
	c.unwatch, c.scan = nil, nil
}

// look says whether what is waited for of a running command is there.
func (w *waiter) look(c *waited) bool {
	switch {
	case c.met != 0:
	case c.scan != nil:
		end, found, err := c.scan.Next(w.ctx)
		if err != nil { // its output cannot be read any more: its end is still told
			c.scan = nil
		}
		if found {
			c.met, c.match = command.ShowMatch, end
		}
	case w.output && w.x.h.opt.Shell.Total(c.call.ID()) > c.from:
		c.met = command.ShowOutput
	}
	return c.met != 0
}

// tellCommand tells of a call of the shell, as it is now.
func (w *waiter) tellCommand(c *waited) told {
	t := told{rec: c.call.Record()}
	o := &command.ShowOptions{From: max(w.cursor, 0), Names: w.x.shellNames()}
	if c.state.Outcome == call.Running {
		t.rec = asRunning(t.rec)
		switch {
		case c.met == command.ShowOutput:
			o.From = c.from
		case c.met == command.ShowMatch:
			o.Match, o.From = c.match, max(c.from, c.match-shellNear)
		case w.cursor < 0:
			o.From, o.MaxBytes = -shellTail, shellTail
		}
		if o.Why = c.met; o.Why == 0 {
			o.Why = command.ShowWaited
		}
	} else if ev, err := endOf(w.ctx, c.call); err == nil {
		c.end = ev
	} else { // of a record whose events are not kept any more; the output may be
		c.end = &call.Event{Kind: call.KindEnd, Time: t.rec.Ended, End: &t.rec.End, Hole: -1}
	}
	t.state = stateOf(&t.rec.End)
	if t.rec.End.Outcome == call.Denied {
		t.first, t.bad = endLine(&t.rec, &t.rec.End), true
		return t
	}
	sh := w.x.h.opt.Shell.Show(w.ctx, &t.rec, o)
	w.x.told = append(w.x.told, sh.Told...)
	t.shown, t.bad = &sh, sh.IsError
	return t
}

// stopCommand says how the cancel is to stop a call of the shell, and stops what is
// left of one that has ended.
func (w *waiter) stopCommand(v *cancelArgs) (wrong string) {
	c := &w.calls[0]
	rec := c.call.Record()
	c.is = w.x.isShell(rec.Server)
	if w.shell = c.is; !c.is {
		if v.signal != "" || v.grace >= 0 {
			return title(&rec) + " is no command: signal and grace_ms are for commands only. Nothing was cancelled. Call " + w.x.ownNames().cancel + ` with {"id":"` + string(rec.ID) + `"}.`
		}
		return ""
	}
	left, err := w.x.h.opt.Shell.Stop(w.ctx, &rec, command.Stop{Signal: v.signal, Grace: v.grace, By: byCancelTool})
	if err != nil {
		return err.Error()
	}
	w.left = left
	grace := v.grace
	if grace < 0 {
		grace = stopGrace
	}
	w.until = w.x.out.start.Add(grace + cancelWait)
	return ""
}

// commandCancelled is what the answer to a cancel_call adds about a command.
func (w *waiter) commandCancelled(rec *call.Record) *command.Shown {
	sh := w.x.h.opt.Shell.Show(w.ctx, rec, &command.ShowOptions{From: -shellTail, MaxBytes: shellTail, Names: w.x.shellNames()})
	w.x.told = append(w.x.told, sh.Told...)
	return &sh
}

// briefs adds what the shell knows to the rows of a list.
func (x *exchange) briefs(rows []row) {
	for i := range rows {
		if r := &rows[i]; x.isShell(r.rec.Server) {
			b := x.h.opt.Shell.Brief(&r.rec)
			r.brief = &b
		}
	}
}

// label is what the caller calls the command, for a line of a table.
func (r *row) label() string {
	if r.brief == nil || r.brief.Label == "" {
		return ""
	}
	return " " + strconv.Quote(oneLine(strings.ReplaceAll(r.brief.Label, "|", "/"), 64))
}

// appendBrief writes what the shell knows of the call.
func (r *row) appendBrief(p *pieces) {
	if r.brief == nil {
		return
	}
	if r.brief.Label != "" {
		p.raw(`,"label":`)
		p.quote(oneLine(r.brief.Label, math.MaxInt))
	}
	if r.brief.State != "" {
		p.raw(`,"command_state":`)
		p.quote(r.brief.State)
	}
	if r.brief.Exited {
		p.raw(`,"exit_code":` + strconv.Itoa(r.brief.ExitCode))
	}
}
