package downstream

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/command"
)

const (
	// maxScanned is how many of a principal's newest calls list_calls looks at.
	maxScanned = 1000
	scanPage   = 200
)

// row is one call of a list.
type row struct {
	rec      call.Record
	unread   bool
	progress string
	brief    *command.Brief // of a call of the shell
}

// listCalls answers a list_calls.
func (x *exchange) listCalls(id []byte, s *session, args []byte) (answer []byte, wrong string) {
	names := x.ownNames()
	v, wrong := parseList(args, names)
	if wrong != "" {
		return nil, wrong
	}
	all, more, err := x.ownCalls(x.r.Context(), v.state)
	if err != nil {
		return nil, "The record of the calls cannot be read right now. They go on all the same. Call again in a moment."
	}
	unread := 0
	var ids []string
	for i := range all {
		if all[i].unread {
			if unread++; len(ids) < maxAwaited {
				ids = append(ids, string(all[i].rec.ID))
			}
		}
	}
	total := len(all)
	if len(all) > v.limit {
		all, more = all[:v.limit], true
	}
	x.briefs(all)
	next := ""
	switch {
	case len(ids) > 0:
		next = strconv.Itoa(unread) + " ended without anybody reading the result. Call " + names.await + " with " + idList(ids) + " to read them."
	case total > 0 && all[0].rec.End.Outcome == call.Running:
		next = "Call " + names.await + " when you need the result of one that runs; do not run it again."
	}
	return x.renderList(id, all, v.state, more, next), ""
}

// ownCalls are the principal's calls in a state: those first that have ended
// without anybody getting the end, then the newest. more says that older ones
// were not looked at.
func (x *exchange) ownCalls(ctx context.Context, state string) (all []row, more bool, err error) {
	e, principal := x.h.opt.Engine, x.q.Principal
	var unread, rest []row
	known := map[call.ID]bool{}
	add := func(r row) {
		running := r.rec.End.Outcome == call.Running
		switch {
		case state == "running" && !running, state == "ended" && running, state == "unread" && !r.unread:
		case r.unread:
			unread = append(unread, r)
		default:
			rest = append(rest, r)
		}
	}
	// The engine knows what runs, the log what has run. A call that ends in
	// between is in the log, and may be in both.
	open := map[call.ID]row{}
	var unlogged []row
	for _, c := range e.Open(principal) {
		st, err := c.Look(ctx, 0)
		if err != nil || st.Outcome != call.Running {
			continue
		}
		r := row{rec: asRunning(c.Record())}
		if ev, ok := c.Latest(call.KindProgress); ok {
			r.progress = progressText(ev.Body)
		}
		open[r.rec.ID] = r
		unlogged = append(unlogged, r)
	}
	var before call.ID
	var logged []row
	for n := 0; n < maxScanned; n += scanPage {
		list, err := e.List(ctx, principal, before, scanPage)
		if err != nil {
			return nil, false, err
		}
		for i := range list {
			r := row{rec: list[i]}
			r.rec.Arguments = nil
			if o, ok := open[r.rec.ID]; ok {
				r = o
			}
			known[r.rec.ID] = true
			r.unread = isUnread(&r.rec)
			logged = append(logged, r)
		}
		if len(list) < scanPage {
			break
		}
		before = list[len(list)-1].ID
		more = n+scanPage >= maxScanned
	}
	for _, r := range unlogged { // too old for the scan, or not recorded
		if !known[r.rec.ID] {
			logged = append(logged, r)
		}
	}
	for _, r := range logged {
		add(r)
	}
	return append(unread, rest...), more, nil
}

// asRunning is a record without an end that was not shown yet (I4).
func asRunning(rec call.Record) call.Record {
	rec.End, rec.Ended, rec.Arguments = call.End{}, time.Time{}, nil
	return rec
}

// isUnread says whether a call has ended with something to read that nobody got:
// not if its own agent ended it, nor if it never ran.
func isUnread(rec *call.Record) bool {
	switch rec.End.Outcome {
	case call.Running, call.Denied:
		return false
	case call.Cancelled:
		return !rec.Delivered && !strings.HasPrefix(rec.End.By, "agent")
	}
	return !rec.Delivered
}

// renderList is the answer: a table for people and models, and the same as
// structured content.
func (x *exchange) renderList(id []byte, rows []row, state string, more bool, next string) []byte {
	var b strings.Builder
	if len(rows) == 0 {
		what := state + " calls"
		if state == "all" {
			what = "calls"
		}
		b.WriteString("You have no " + what + ".")
	} else {
		b.WriteString("call | tool | state | started (UTC) | took | last progress\n")
		for i := range rows {
			r := &rows[i]
			st := stateOf(&r.rec.End)
			if r.brief != nil && r.brief.Line != "" {
				st = r.brief.Line
			}
			if r.unread {
				st += ", not read"
			}
			b.WriteString(string(r.rec.ID) + " | " + oneLine(r.rec.PublicTool, 128) + r.label() + " | " + st + " | " +
				r.rec.Started.UTC().Format("2006-01-02 15:04:05") + " | " + took(lasted(&r.rec)))
			if r.progress != "" {
				b.WriteString(" | " + r.progress)
			}
			b.WriteByte('\n')
		}
	}
	if more {
		b.WriteString("There are more; name a state, or a higher limit (at most " + strconv.Itoa(maxListed) + ").\n")
	}
	b.WriteString(next)
	var p pieces
	x.openResult(&p, id)
	p.text(strings.TrimSuffix(b.String(), "\n"))
	p.raw(`],"structuredContent":{"calls":[`)
	for i := range rows {
		r := &rows[i]
		if i > 0 {
			p.raw(`,`)
		}
		p.raw(`{`)
		appendCall(&p, &r.rec, stateOf(&r.rec.End))
		p.raw(`,"unread":` + strconv.FormatBool(r.unread))
		appendTimes(&p, &r.rec)
		if r.progress != "" {
			p.raw(`,"progress":`)
			p.quote(r.progress)
		}
		r.appendBrief(&p)
		p.raw(`}`)
	}
	p.raw(`],"more":` + strconv.FormatBool(more))
	if next != "" {
		p.raw(`,"next":`)
		p.quote(next)
	}
	p.raw(`}}}`)
	return p.join()
}
