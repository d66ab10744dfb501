package downstream

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/command"
	"github.com/longcall/longcall/internal/mcp"
)

// maxResults is how many bytes of results one await_call gives, if it gives more
// than one; what is left out can be asked for alone.
const maxResults = 16 << 20

// told is how one call is told of: in text, and as structured content.
type told struct {
	rec   call.Record
	first string // what happened
	state string
	bad   bool // an error, if nothing else is told
	body  []byte
	// Of body, if the tool answered: its blocks of content without the
	// brackets, and its structured content. nil if there is none.
	blocks, structured []byte
	progress           string         // of a running call
	shown              *command.Shown // of a call of the shell: all that there is
}

// render makes the answer. ok is false if the agent has gone meanwhile.
func (w *waiter) render() (p *pieces, ok bool) {
	if w.cancel {
		return w.digested(w.renderCancel()), true
	}
	list := make([]told, len(w.calls))
	room, shown := maxResults, 0
	var running []string
	open := 0 // of them, those without what is waited for
	for i := range w.calls {
		c := &w.calls[i]
		if c.is {
			list[i] = w.tellCommand(c)
			if c.end == nil && list[i].state == stateRunning {
				running = append(running, string(c.call.ID()))
				if c.met == 0 {
					open++
				}
			}
			if w.ctx.Err() != nil {
				return nil, false
			}
			continue
		}
		if c.state.Outcome == call.Running {
			list[i] = stillRunning(c.call)
			running = append(running, string(c.call.ID()))
			open++
			continue
		}
		end, err := endOf(w.ctx, c.call)
		switch {
		case w.ctx.Err() != nil:
			return nil, false
		case err != nil:
			list[i] = lostResult(c.call)
		case len(end.Body) > room && shown > 0:
			list[i] = leftOut(c.call)
		default:
			list[i] = hasEnded(c.call, end)
			room -= len(end.Body)
			shown++
			c.end = end
		}
	}
	next := w.next(list, running)
	p = &pieces{}
	w.x.openResult(p, w.id)
	w.blocks(p, list, next)
	p.raw(`],"structuredContent":{"calls":[`)
	for i := range list {
		if i > 0 {
			p.raw(`,`)
		}
		list[i].append(p)
	}
	p.raw(`],"waited_out":` + strconv.FormatBool(open > 0 && (w.all || open == len(list))))
	if len(w.unknown) > 0 {
		p.raw(`,"unknown":[`)
		for i, id := range w.unknown {
			if i > 0 {
				p.raw(`,`)
			}
			p.quote(oneLine(id, 64))
		}
		p.raw(`]`)
	}
	if next != "" {
		p.raw(`,"next":`)
		p.quote(next)
	}
	p.raw(`}`)
	if len(list) == 1 && len(w.unknown) == 0 && list[0].bad {
		p.raw(`,"isError":true`)
	}
	p.raw(`}}`)
	return w.digested(p), true
}

// digested is the answer with a digest of what else has ended.
func (w *waiter) digested(p *pieces) *pieces {
	if w.x.h.opt.Shell == nil {
		return p
	}
	shown := slices.Clone(w.x.told)
	for i := range w.calls {
		shown = append(shown, w.calls[i].call.ID())
	}
	body := w.x.ownDigest(p.join(), shown...)
	return &pieces{list: [][]byte{body}, size: len(body)}
}

// blocks writes what each call says: a line of ours, then the tool's own blocks,
// byte for byte. What is to be done next comes last.
func (w *waiter) blocks(p *pieces, list []told, next string) {
	first := true
	for i := range list {
		t := &list[i]
		if t.shown != nil {
			for _, text := range t.shown.Text {
				if !first {
					p.raw(`,`)
				}
				first = false
				p.text(text)
			}
			continue
		}
		if t.state == stateRunning {
			continue
		}
		if !first {
			p.raw(`,`)
		}
		first = false
		p.text(t.first)
		if len(t.blocks) > 0 {
			p.raw(`,`)
			p.bytes(t.blocks)
		}
	}
	if next != "" {
		if !first {
			p.raw(`,`)
		}
		p.text(next)
	}
}

// next is what there is to do now; empty if nothing.
func (w *waiter) next(list []told, running []string) string {
	var b strings.Builder
	if len(w.unknown) > 0 {
		b.WriteString(w.unknownText())
	}
	if len(running) == 0 {
		return b.String()
	}
	if b.Len() > 0 {
		b.WriteByte(' ')
	}
	name := w.x.ownNames().await
	if w.away {
		b.WriteString("longcall is restarting, so the wait ended early. ")
	}
	said := true // of each call that runs, by what is shown of it
	for i := range list {
		if list[i].state == stateRunning && list[i].shown == nil {
			b.WriteString(list[i].first)
			b.WriteByte(' ')
			said = false
		}
	}
	if said {
		b.WriteString("To wait again, call " + name + " with " + againWith(running, w.attempt) + ".")
		return b.String()
	}
	b.WriteString("Not finished, and not failed: do not run it again, and do not sleep. Call " + name + " again with " + againWith(running, w.attempt) + " when you need the result, or go on with other work.")
	return b.String()
}

// idList is a list of ids as an argument.
func idList(ids []string) string { return `{"ids":["` + strings.Join(ids, `","`) + `"]}` }

// againWith is idList with the number of the next attempt.
func againWith(ids []string, attempt int64) string {
	list := idList(ids)
	return list[:len(list)-1] + `,"attempt":` + strconv.FormatInt(min(max(attempt, 1)+1, 10_000), 10) + "}"
}

// unknownText says which ids are no calls of the principal: the same words for
// one that never was, one of somebody else, and what is no id at all.
func (w *waiter) unknownText() string {
	ids := make([]string, len(w.unknown))
	for i, id := range w.unknown {
		ids[i] = strconv.Quote(oneLine(id, 64))
	}
	return "No such call of yours: " + strings.Join(ids, ", ") + "; " + w.x.ownNames().list + " shows yours."
}

// endOf is the terminal event of a call that has ended.
func endOf(ctx context.Context, c *call.Call) (*call.Event, error) {
	after := c.Record().Seq - 1
	for ev, err := range c.Follow(ctx, after, 0) {
		if err != nil {
			return nil, err
		}
		if ev.Kind == call.KindEnd {
			return &ev, nil
		}
	}
	return nil, call.ErrGap
}

// The states that a call has to who asks by its id; the others are outcomes.
const (
	stateRunning   = "running"
	stateToolError = "tool_error"
)

// stateOf is a call's state.
func stateOf(end *call.End) string {
	switch {
	case end.Outcome == call.Running:
		return stateRunning
	case end.Outcome == call.Completed && end.ToolError:
		return stateToolError
	}
	return string(end.Outcome)
}

// title names a call: its id and tool.
func title(rec *call.Record) string {
	return string(rec.ID) + " (" + oneLine(rec.PublicTool, 128) + ")"
}

// lasted is how long a call took, or has run for.
func lasted(rec *call.Record) time.Duration {
	if rec.Ended.IsZero() {
		return max(time.Since(rec.Started), 0)
	}
	return max(rec.Ended.Sub(rec.Started), 0)
}

// took is a time for people: "41.2 s", "2 min 5 s".
func took(d time.Duration) string {
	if d < time.Minute-50*time.Millisecond {
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + " s"
	}
	return string(appendElapsed(nil, d))
}

// stillRunning tells of a call that has not ended.
func stillRunning(c *call.Call) told {
	t := told{rec: c.Record(), state: stateRunning}
	t.rec.End, t.rec.Ended = call.End{}, time.Time{}
	t.first = "Still running: " + title(&t.rec) + ", since " + t.rec.Started.UTC().Format("15:04:05") + " UTC, " + took(lasted(&t.rec)) + " so far"
	if ev, ok := c.Latest(call.KindProgress); ok {
		t.progress = progressText(ev.Body)
	}
	switch {
	case c.Asked() != nil:
		t.progress = "Waiting for input."
		t.first += "; the tool waits for an answer to a question that it has asked"
	case t.progress != "":
		t.first += "; it last said: " + strconv.Quote(t.progress)
	}
	t.first += "."
	return t
}

// lostResult tells of a call whose result is not kept any more.
func lostResult(c *call.Call) told {
	t := told{rec: c.Record(), bad: true}
	t.state = stateOf(&t.rec.End)
	t.first = endLine(&t.rec, &t.rec.End) + " Its result is not kept any more, or cannot be read right now."
	return t
}

// leftOut tells of a call whose result is too large to be given with others.
func leftOut(c *call.Call) told {
	t := told{rec: c.Record()}
	t.state = stateOf(&t.rec.End)
	t.first = endLine(&t.rec, &t.rec.End) + " Its result is too large to be given with the others: ask for it alone."
	return t
}

// hasEnded tells of a call with its end.
func hasEnded(c *call.Call, ev *call.Event) told {
	t := told{rec: c.Record()}
	end := ev.End
	if ev.Body != nil && asksForInput(ev.Body) {
		end = ownEnd(ev)
	}
	t.state = stateOf(end)
	t.bad = t.state != string(call.Completed)
	t.first = endLine(&t.rec, end)
	if ev.Body == nil || end != ev.End {
		return t
	}
	result := find(ev.Body, 0, "result")
	if !result.ok() {
		t.first = endLine(&t.rec, withError(end, ev.Body))
		return t
	}
	t.body = ev.Body
	if f := find(ev.Body, result.val, "content"); f.ok() && ev.Body[f.val] == '[' {
		inner := ev.Body[f.val+1 : max(skipValue(ev.Body, f.val)-1, f.val+1)]
		if i := space(inner, 0); i < len(inner) {
			t.blocks = inner[i:]
		}
	}
	if f := find(ev.Body, result.val, "structuredContent"); f.ok() && ev.Body[f.val] == '{' {
		t.structured = ev.Body[f.val:skipValue(ev.Body, f.val)]
	}
	return t
}

// withError is the end with what the tool server's JSON-RPC error says.
func withError(end *call.End, body []byte) *call.End {
	e := *end
	f := find(body, 0, "error")
	if !f.ok() || e.Text != "" {
		return &e
	}
	said, _ := text(body[f.val:], "message")
	e.Text = "The tool server answered with the error " + strconv.Itoa(e.Code) + ": " + oneLine(said, 1000)
	return &e
}

// endLine says in one line how a call ended.
func endLine(rec *call.Record, end *call.End) string {
	after := " after " + took(lasted(rec))
	switch {
	case end.Outcome == call.Completed && end.ToolError:
		return title(rec) + " ended with a tool error" + after + "."
	case end.Outcome == call.Completed:
		return title(rec) + " completed" + after + "."
	}
	how := " has an unknown outcome"
	switch end.Outcome {
	case call.Failed:
		how = " failed"
	case call.Cancelled:
		return title(rec) + " was cancelled" + after + " by " + by(end.By) + ". " + plainWords(end)
	case call.TimedOut:
		how = " was stopped at a time limit"
	case call.Denied:
		how = " was not allowed to run"
	}
	return title(rec) + how + after + ". " + plainWords(end)
}

// by is who cancelled, for people.
func by(who string) string {
	switch who {
	case "agent":
		return "the agent"
	case byCancelTool:
		return "the agent, with " + toolCancel
	case "disconnect":
		return "longcall, because the agent's connection was lost"
	case "operator":
		return "the operator"
	case "":
		return "somebody"
	}
	return who
}

// appendCall writes the members that every answer has of a call, without braces.
func appendCall(p *pieces, rec *call.Record, state string) {
	p.raw(`"call_id":"` + string(rec.ID) + `","tool":`)
	p.quote(oneLine(rec.PublicTool, 128))
	p.raw(`,"state":"` + state + `"`)
}

// appendTimes writes when it started and ended, and how long it took.
func appendTimes(p *pieces, rec *call.Record) {
	p.raw(`,"started_at":"` + stampText(rec.Started) + `"`)
	if !rec.Ended.IsZero() {
		p.raw(`,"ended_at":"` + stampText(rec.Ended) + `"`)
	}
	p.raw(`,"wall_ms":` + strconv.FormatInt(lasted(rec).Milliseconds(), 10))
}

// append writes the structured content. Hosts show models that or the blocks, so
// each has all that there is: a tool without structured content has its text here.
func (t *told) append(p *pieces) {
	p.raw(`{`)
	appendCall(p, &t.rec, t.state)
	appendTimes(p, &t.rec)
	switch {
	case t.shown != nil:
		if t.shown.Structured != nil {
			p.raw(`,"result":`)
			p.bytes(t.shown.Structured)
		}
	case t.state == stateRunning:
		if t.progress != "" {
			p.raw(`,"progress":`)
			p.quote(t.progress)
		}
	case t.structured != nil:
		p.raw(`,"result":`)
		p.bytes(t.structured)
	case t.body == nil:
		p.raw(`,"text":`)
		p.quote(t.first)
	case t.blocks != nil:
		p.raw(`,"text":"`)
		appendTexts(p, t.blocks)
		p.raw(`"`)
	}
	p.raw(`}`)
}

// appendTexts writes the texts among blocks of content as one JSON string, without
// its quotes, and says where something else is.
func appendTexts(p *pieces, blocks []byte) {
	first := true
	for i := 0; i < len(blocks); {
		end := skipValue(blocks, i)
		if !first {
			p.raw(`\n`)
		}
		first = false
		block := blocks[i:end]
		kind, _ := text(block, "type")
		if f := find(block, 0, "text"); kind == "text" && f.ok() && block[f.val] == '"' && f.end-f.val >= 2 {
			p.bytes(block[f.val+1 : f.end-1])
		} else {
			q := mcp.Quote("[" + oneLine(kind, 32) + ": see the content of this result]")
			p.bytes(q[1 : len(q)-1])
		}
		if i = space(blocks, end); i < len(blocks) && blocks[i] == ',' {
			i = space(blocks, i+1)
		} else {
			return
		}
	}
}

// renderCancel is the answer to a cancel_call.
func (w *waiter) renderCancel() *pieces {
	c := &w.calls[0]
	rec := c.call.Record()
	names := w.x.ownNames()
	id := string(rec.ID)
	ended := c.state.Outcome != call.Running
	if !ended {
		rec.End, rec.Ended = call.End{}, time.Time{}
	}
	state := stateOf(&rec.End)
	how, _, _ := strings.Cut(endLine(&rec, &rec.End), ". ")
	how = strings.TrimSuffix(how, ".") + "."
	read := " Its result is kept: call " + names.await + " with " + idList([]string{id}) + " to read it."
	var said string
	switch {
	case w.left && w.cancelErr != nil && ended:
		said = how + " That was before; what was left of its processes was told to stop now."
	case w.cancelErr != nil && ended && rec.End.Outcome == call.Cancelled:
		said = "Nothing was done: " + how + " That was before."
	case w.cancelErr != nil && ended:
		said = "Nothing was cancelled, the call had ended before: " + how + read
	case errors.Is(w.cancelErr, call.ErrElsewhere):
		said = title(&rec) + " still runs, and cannot be cancelled right now: longcall is being restarted, and the call runs in the process that leaves. Nothing was done. Call " + names.cancel + " again in a few seconds."
	case w.cancelErr != nil:
		said = title(&rec) + " is ending right now, before the cancel. Call " + names.await + " with " + idList([]string{id}) + " to read how."
	case ended && rec.End.Outcome == call.Cancelled:
		said = how + " What it had done by then may have taken effect: check before you call it again."
		if rec.Dispatched.IsZero() {
			said = how + " It had not been sent to its tool server, so nothing took effect."
			if c.is {
				said = how + " The command had not been started."
			}
		}
	case ended:
		said = "The cancel came too late, the call ended by itself: " + how + read
	default:
		said = "The cancel of " + title(&rec) + " was asked for, and the tool server has not confirmed it yet: it may still take effect, or end by itself. " +
			"Do not call the tool again before that is known: call " + names.await + " with " + idList([]string{id}) + "."
	}
	p := &pieces{}
	w.x.openResult(p, w.id)
	p.text(said)
	var shown *command.Shown
	if c.is {
		shown = w.commandCancelled(&rec)
		for _, text := range shown.Text {
			p.raw(`,`)
			p.text(text)
		}
	}
	p.raw(`],"structuredContent":{`)
	appendCall(p, &rec, state)
	if shown != nil && shown.Structured != nil {
		p.raw(`,"result":`)
		p.bytes(shown.Structured)
	}
	p.raw(`,"cancelled":` + strconv.FormatBool(ended && rec.End.Outcome == call.Cancelled))
	appendTimes(p, &rec)
	p.raw(`,"next":`)
	p.quote(said)
	p.raw(`}`)
	if !ended && errors.Is(w.cancelErr, call.ErrElsewhere) {
		p.raw(`,"isError":true`)
	}
	p.raw(`}}`)
	return p
}
