package tools

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/longcall/longcall/internal/argument"
	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/command"
	"github.com/longcall/longcall/internal/shell"
	"github.com/longcall/longcall/internal/shell/spool"
)

// Bounds of write_stdin (SHELL §4).
const (
	maxText     = 64 << 10 // bytes
	maxKeys     = 64
	defaultWait = 250 * time.Millisecond
	maxTyped    = 1000 // writes whose place in the output is remembered
	// catchUp is how long the beginning of a call is waited for that was just accepted, and the end of one whose command has ended,
	// at most: it is being stored.
	catchUp = time.Second
)

var (
	readParameters  = []string{"id", "cursor", "max_bytes", "grep", "context", "raw"}
	writeParameters = []string{"id", "text", "keys", "eof", "cols", "rows", "wait_ms", "idempotency_key"}
)

// Do answers a read_output or write_stdin; a foreign id looks unknown (I6).
func (t *Tools) Do(ctx context.Context, ask *command.Ask) command.Shown {
	if wrong := t.set.Load().refused(ask.Principal); wrong != "" {
		return refusal(wrong)
	}
	if ask.Tool == Write {
		return t.write(ctx, ask)
	}
	return t.read(ctx, ask)
}

// begins waits for the process of a call that has just been accepted: a model that
// has its id need not know that there was none for some milliseconds.
func (t *Tools) begins(ctx context.Context, c *call.Call) {
	ctx, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for t.manager.Find(string(c.ID())) == nil && recordOf(ctx, c).End.Outcome == call.Running {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// find gives the principal's command with an id; else what is wrong with it, in a
// sentence for the model.
func (t *Tools) find(ctx context.Context, ask *command.Ask, id string) (*sight, string) {
	n := &ask.Names
	c, err := t.engine.Get(ctx, ask.Principal, call.ID(id))
	switch {
	case errors.Is(err, call.ErrUnknown):
		return nil, "No such call of yours: " + strconv.Quote(argument.Plain(id, 64)) + "; " + n.List + " shows yours."
	case err != nil:
		return nil, "The record of the calls cannot be read right now. They go on all the same. Call again in a moment."
	}
	rec := recordOf(ctx, c)
	if p := t.manager.Find(id); p != nil && rec.End.Outcome == call.Running && p.Status().State.Final() {
		short, cancel := context.WithTimeout(ctx, catchUp)
		ended(short, c)
		cancel()
		rec = recordOf(ctx, c)
	}
	switch {
	case rec.Server != Server:
		return nil, id + " is a call of the tool " + argument.Plain(rec.PublicTool, 128) + ", not a command. " + n.Await + " with " + awaitArguments(rec.ID) + " gives its result."
	case rec.Tool == Parallel:
		var ids []string
		for _, id := range t.members(&rec) {
			ids = append(ids, string(id))
		}
		if len(ids) == 0 {
			return nil, id + " is a batch, none of whose commands has started. Call " + n.Await + " with " + awaitArguments(rec.ID) + "."
		}
		return nil, id + " is a batch. Name one of its commands: " + strings.Join(ids, ", ") + "."
	}
	v := t.see(ctx, &rec)
	if v.p == nil && v.running {
		t.begins(ctx, c)
		rec = recordOf(ctx, c)
		v = t.see(ctx, &rec)
	}
	if v.p == nil && !v.running {
		return nil, "The output of " + id + " is not kept any more, or it never began: " + strings.TrimSuffix(v.line(), ".") + "."
	}
	if v.p == nil {
		return nil, id + " is just being started. Call again in a moment."
	}
	return v, ""
}

// read answers a read_output.
func (t *Tools) read(ctx context.Context, ask *command.Ask) command.Shown {
	a := argument.Read(ask.Names.Read, ask.Arguments, readParameters...)
	id := a.Text("id", true, 256, `one call id, such as "c_…"; `+ask.Names.List+" shows them")
	paged := a.Value("cursor") != nil
	cursor := a.Int("cursor", -1<<53, 1<<53, 0, " (bytes; below 0 counts from the end)")
	look := spool.Look{Max: int(a.Int("max_bytes", 1, maxOutput, DefaultOutput, " (bytes)")), Raw: a.Bool("raw"), Tool: ask.Names.Read}
	pattern := a.Text("grep", false, 1<<20, "a regular expression")
	around := int(a.Int("context", 0, 50, 0, " (lines)"))
	if a.Wrong() != "" {
		return refusal(a.Wrong())
	}
	v, wrong := t.find(ctx, ask, id)
	if wrong != "" {
		return refusal(wrong)
	}
	r, err := v.p.Output()
	if err != nil {
		if errors.Is(err, shell.ErrOutputGone) {
			return refusal("The output of " + id + " was removed to make room for that of later commands. It is still known how it ended: " + strings.TrimSuffix(v.line(), ".") + ".")
		}
		return refusal("The output of " + id + " cannot be read right now. Call again in a moment.")
	}
	var view spool.View
	switch {
	case pattern != "":
		re, wrong := compile("grep", pattern)
		if wrong != "" {
			return refusal(wrong)
		}
		view, err = r.Grep(ctx, re, cursor, around, look)
	case paged:
		view, err = r.Page(ctx, cursor, look)
	default:
		view, err = r.Summary(ctx, 0, look)
	}
	if err != nil {
		return refusal("The output of " + id + " cannot be read right now. Call again in a moment.")
	}
	w := &window{view, true}
	var next string
	switch {
	case view.Next < view.Total:
		next = "There is more: call " + ask.Names.Read + ` again with "cursor":` + strconv.FormatInt(view.Next, 10) + "."
	case v.running:
		next = "That is all so far. " + goOn(v.rec.ID, &ask.Names)
	}
	if pattern != "" && view.Text == "" {
		next = join("No line matches.", next)
	}
	return t.shown(v, w, next, &ask.Names)
}

// shown is what read_output and write_stdin answer.
func (t *Tools) shown(v *sight, w *window, next string, n *command.Names) command.Shown {
	next = join(next, v.warnings(n))
	r := v.fill(w)
	if r.Next = next; next == "" {
		r.Next = textOver
	}
	line := strings.TrimSuffix(v.line(), ".") + " · " + string(v.rec.ID) + " · bytes " + thousands(w.From) + " to " + thousands(w.Next) + " of " + thousands(w.View.Total) + "."
	shown := command.Shown{Text: []string{join(line, next)}, Structured: encode(&r), Link: v.running}
	if w.Text != "" {
		shown.Text = append(shown.Text, w.Text)
	}
	return shown
}

// write answers a write_stdin.
func (t *Tools) write(ctx context.Context, ask *command.Ask) command.Shown {
	a := argument.Read(ask.Names.Write, ask.Arguments, writeParameters...)
	id := a.Text("id", true, 256, `one call id, such as "c_…"; `+ask.Names.List+" shows them")
	in := shell.Input{
		Text: a.Text("text", false, maxText, "a string of at most "+thousands(maxText)+" bytes; write more to a file"),
		Keys: a.Texts("keys", maxKeys, "an array of at most "+strconv.Itoa(maxKeys)+" keys: "+keyNames), EOF: a.Bool("eof"),
		Cols: int(a.Int("cols", 1, 1000, 0, "")), Rows: int(a.Int("rows", 1, 1000, 0, "")),
		Key: a.Text("idempotency_key", false, maxKey, "a string of 1 to "+strconv.Itoa(maxKey)+" bytes"),
	}
	wait := time.Duration(a.Int("wait_ms", 0, MaxYield.Milliseconds(), defaultWait.Milliseconds(), " (milliseconds)")) * time.Millisecond
	if a.Wrong() == "" && in.Text == "" && len(in.Keys) == 0 && !in.EOF && in.Cols == 0 && in.Rows == 0 {
		a.Fail(ask.Names.Write + " has nothing to write. Give text, keys, eof, or cols and rows; " + ask.Names.Read + " shows output without writing.")
	}
	if a.Wrong() != "" {
		return refusal(a.Wrong())
	}
	v, wrong := t.find(ctx, ask, id)
	if wrong != "" {
		return refusal(wrong)
	}
	from := v.st.Total
	typed, err := v.p.Input(ctx, in)
	switch {
	case errors.Is(err, shell.ErrEnded):
		if v, wrong = t.find(ctx, ask, id); wrong != "" {
			return refusal(wrong)
		}
		return refusal("Nothing was typed: the command has ended: " + strings.TrimSuffix(v.line(), ".") + ". " + ask.Names.Read + " with " + idArguments(v.rec.ID) + " shows its output.")
	case err != nil:
		return refusal(id + ": " + strings.TrimSuffix(err.Error(), ".") + ".")
	}
	from = t.place(id+" "+in.Key, in.Key, from, typed.Repeated)
	t.settle(ctx, v.p, wait)
	v, wrong = t.find(ctx, ask, id)
	if wrong != "" {
		return refusal(wrong)
	}
	w := v.look(ctx, &command.ShowOptions{From: from, Names: ask.Names})
	next := ""
	if typed.Repeated {
		next = "It was typed before, with this idempotency_key: nothing was typed now."
	}
	if typed.Unread > 0 {
		next = join(next, thousands(typed.Unread)+" B wait: the command does not read its input now.")
	}
	if v.running {
		next = join(next, goOn(v.rec.ID, &ask.Names))
	}
	return t.shown(v, &w, next, &ask.Names)
}

// place is where the output was when an input was typed first, as far as that is
// remembered.
func (t *Tools) place(name, key string, now int64, repeated bool) int64 {
	if key == "" {
		return now
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if from, ok := t.typed[name]; repeated && ok {
		return from
	}
	if len(t.typed) >= maxTyped {
		clear(t.typed)
	}
	t.typed[name] = now
	return now
}

// settle waits for what a command prints after it was written to: until it ends, or
// the time is over.
func (t *Tools) settle(ctx context.Context, p *shell.Process, wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.Done():
	case <-ctx.Done():
	}
}
