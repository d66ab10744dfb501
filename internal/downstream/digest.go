package downstream

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// TellEnds says on which tool results an agent is told which of its calls have
// ended since it was told to come back for them (SHELL §5).
type TellEnds uint8

// The choices.
const (
	TellWithAll TellEnds = iota // on the next result of any tool
	TellWithOwn                 // on the next of the shell's tools and longcall's own
	TellNever
)

const (
	// maxComebacks bounds the calls that are remembered for one principal; the
	// oldest is forgotten, and still listed by list_calls.
	maxComebacks = 256
	// digestAge is how long after its end a call is told of.
	digestAge = 24 * time.Hour
	// awayAfter is how long a session has to be unused before its calls' ends
	// are told to another one of the same client.
	awayAfter = 10 * time.Minute
)

// comebacks are the calls whose agents have to come back: those that were handed
// off, or whose reader was lost. What an earlier process left is read once per
// principal, from the log. Of a call it keeps who made it, and nothing else.
type comebacks struct {
	mu sync.Mutex
	m  map[string]*comeback // by principal
}

type comeback struct {
	loaded bool
	calls  []absent // oldest first
}

// absent is a call without its agent.
type absent struct {
	id              call.ID
	session, client string
}

// of gives a principal's; cb.mu is held.
func (cb *comebacks) of(principal string) *comeback {
	if cb.m == nil {
		cb.m = map[string]*comeback{}
	}
	p := cb.m[principal]
	if p == nil {
		p = &comeback{}
		cb.m[principal] = p
	}
	return p
}

// add remembers a call.
func (cb *comebacks) add(principal string, rec *call.Record) {
	cb.mu.Lock()
	defer cb.mu.Unlock()
	p := cb.of(principal)
	if slices.ContainsFunc(p.calls, func(a absent) bool { return a.id == rec.ID }) {
		return
	}
	if len(p.calls) >= maxComebacks {
		p.calls = slices.Delete(p.calls, 0, 1)
	}
	p.calls = append(p.calls, absent{rec.ID, rec.Session, rec.Client})
}

func (cb *comebacks) drop(principal string, id call.ID) {
	cb.mu.Lock()
	defer cb.mu.Unlock()
	p := cb.of(principal)
	p.calls = slices.DeleteFunc(p.calls, func(a absent) bool { return a.id == id })
}

// list gives a principal's calls; fresh says that those of earlier processes are
// still to be added.
func (cb *comebacks) list(principal string) (all []absent, fresh bool) {
	cb.mu.Lock()
	defer cb.mu.Unlock()
	p := cb.of(principal)
	fresh, p.loaded = !p.loaded, true
	return slices.Clone(p.calls), fresh
}

// comesLater remembers the call of a request that ended without its end, unless
// its task tells of it.
func (a *attachment) comesLater() {
	if h := a.x.h; h.opt.Shell != nil && a.read == nil && !a.tasked() && a.d.How != call.Delivered && a.d.How != call.Replayed && a.d.How != "" {
		rec := a.call.Record()
		h.comebacks.add(a.x.q.Principal, &rec)
	}
}

// tasked says whether the agent has a task that tells it of the end.
func (a *attachment) tasked() bool { return a.asTask || a.task && a.d.How == call.HandedOff }

// untold are calls that this agent came away from, that have ended, and of which
// it was not told; at most as many as one await_call takes, oldest end first. Those
// of except are told of by the answer itself.
func (x *exchange) untold(except []call.ID) (list []call.Record) {
	all, fresh := x.h.comebacks.list(x.q.Principal)
	if fresh {
		x.leftBefore()
		all, _ = x.h.comebacks.list(x.q.Principal)
	}
	for _, a := range all {
		if x.h.running(x.q.Principal, a.id) || slices.Contains(except, a.id) || !x.isTheirs(a) {
			continue
		}
		c, err := x.h.opt.Engine.Get(x.r.Context(), x.q.Principal, a.id)
		if errors.Is(err, call.ErrUnknown) {
			x.h.comebacks.drop(x.q.Principal, a.id)
		}
		if err != nil || c.HasReaders() {
			continue
		}
		// The end may be shown (I4), and the record says to whom it was.
		if st, err := c.Look(x.r.Context(), 0); err != nil || st.Outcome == call.Running {
			continue
		}
		rec := c.Record()
		if !isUnread(&rec) || rec.Told || rec.Parent != "" || time.Since(rec.Ended) > digestAge {
			x.h.comebacks.drop(x.q.Principal, rec.ID)
			continue
		}
		list = append(list, rec)
	}
	slices.SortFunc(list, func(a, b call.Record) int { return a.Ended.Compare(b.Ended) })
	return list[:min(len(list), maxAwaited)]
}

// leftBefore remembers such calls of earlier processes.
func (x *exchange) leftBefore() {
	recs, err := x.h.opt.Engine.List(x.r.Context(), x.q.Principal, "", scanPage)
	if err != nil {
		return // they are still listed by list_calls
	}
	for i := len(recs) - 1; i >= 0; i-- {
		r := &recs[i]
		running := r.End.Outcome == call.Running
		switch {
		case r.Parent != "", r.Delivered, r.Told, !running && time.Since(r.Ended) > digestAge:
		case running, r.HandedOff, x.isShell(r.Server):
			x.h.comebacks.add(x.q.Principal, r)
		}
	}
}

// isTheirs says whether a call is of the agent that asks now, as far as that can
// be known: of its session, or of the same client without a session that is used.
func (x *exchange) isTheirs(a absent) bool {
	if a.session != "" && a.session == x.q.Session {
		return true
	}
	return a.client == x.who && !x.h.sessions.inUse(a.session, awayAfter)
}

// digest tells of calls that have ended, in a block of content; empty if there are
// none. Its text is ours alone: no output, no arguments (SHELL §6).
func (x *exchange) digest(except ...call.ID) string {
	set := x.set.TellEnds
	if x.h.opt.Shell == nil || set == TellNever || x.r.Context().Err() != nil {
		return ""
	}
	list := x.untold(except)
	if len(list) == 0 {
		return ""
	}
	var b strings.Builder
	ids := make([]string, len(list))
	for i := range list {
		rec := &list[i]
		ids[i] = string(rec.ID)
		if i > 0 {
			b.WriteString("\n")
		}
		b.WriteString("Ended meanwhile: " + x.endedLine(rec))
		x.h.comebacks.drop(x.q.Principal, rec.ID)
	}
	x.digested = append(x.digested, list...)
	b.WriteString("\nNot read yet: call " + x.ownNames().await + " with " + idList(ids) + " for what it gave, instead of running it again.")
	return `{"type":"text","text":` + string(mcp.Quote(b.String())) + `}`
}

// endedLine says in one line how a call ended.
func (x *exchange) endedLine(rec *call.Record) string {
	if !x.isShell(rec.Server) {
		line, _, _ := strings.Cut(endLine(rec, &rec.End), ". ")
		return strings.TrimSuffix(line, ".") + "."
	}
	brief := x.h.opt.Shell.Brief(rec)
	r := row{rec: *rec, brief: &brief}
	return string(rec.ID) + " (" + oneLine(rec.PublicTool, 128) + r.label() + "): " + strings.TrimSuffix(oneLine(brief.Line, 200), ".") + "."
}

// withDigest adds a digest to the content of a tool result, which has cuts to be
// made already. What is no result, or has no content, is left as it is.
func (x *exchange) withDigest(body []byte, cuts []cut, except ...call.ID) []cut {
	if x.h.opt.Shell == nil {
		return cuts
	}
	result := find(body, 0, "result")
	if !result.ok() || body[result.val] != '{' {
		return cuts
	}
	content := find(body, result.val, "content")
	if !content.ok() || body[content.val] != '[' {
		return cuts
	}
	block := x.digest(except...)
	if block == "" {
		return cuts
	}
	if at := space(body, content.val+1); at < len(body) && body[at] != ']' {
		block = "," + block
	}
	end := skipValue(body, content.val) - 1
	return append(cuts, cut{end, end, []byte(block)})
}

// ownDigest is withDigest for a message of ours.
func (x *exchange) ownDigest(body []byte, except ...call.ID) []byte {
	if cuts := x.withDigest(body, nil, except...); cuts != nil {
		return splice(nil, body, cuts)
	}
	return body
}

// tellDigested records that the digest got out; if it did not, it is told again.
func (x *exchange) tellDigested(out bool) {
	if len(x.digested) == 0 {
		return
	}
	ctx := context.WithoutCancel(x.r.Context())
	for i := range x.digested {
		id := x.digested[i].ID
		if !out {
			x.h.comebacks.add(x.q.Principal, &x.digested[i])
			continue
		}
		c, err := x.h.opt.Engine.Get(ctx, x.q.Principal, id)
		if err != nil {
			continue
		}
		c.Enter()
		c.Leave(call.Delivery{Call: id, Kind: kindDigest, How: call.Told, Era: x.version, Attached: x.q.Start, Ended: time.Now(), Events: 1}, -1)
	}
	x.digested = nil
}
