package downstream

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/command"
	"github.com/longcall/longcall/internal/mcp"
)

// shellProgress is the silence before a progress message about a command (D2).
const shellProgress = 5 * time.Second

// shellResume is how long a resumed stream waits for a command before it yields:
// what its request had asked for is not known any more.
const shellResume = 3 * time.Second

// kindTold is the kind of a delivery of an end that the result of another request
// told; kindDigest of one that only said that there is something to read.
const kindTold, kindDigest = "told", "digest"

// isShell says whether a server's calls are the shell's.
func (x *exchange) isShell(server string) bool {
	return server == ServerShell && x.h.opt.Shell != nil
}

// shellPlan plans a call of the shell, and changes what policy says of it to what
// holds for commands: they outlive their connection (D14), and yield. For a tool
// that is no call, or arguments that are none, plan is nil and answer is it.
func (x *exchange) shellPlan(m *mcp.Message, t target, s *session, d *Decision, args []byte) (plan *command.Plan, answer []byte) {
	id := m.ID.Of(m.Raw)
	x.q.Server, x.q.Tool, x.q.Traceparent = t.server, t.public, x.traceparent(m)
	ask := &command.Ask{Principal: x.q.Principal, Client: x.client(m, s), Tool: t.tool, Arguments: args, Names: x.shellNames()}
	is := slices.Contains(shellCalls, t.tool)
	switch {
	case is && d.Denied != nil: // recorded like any denied call
		plan = &command.Plan{}
	case is:
		var wrong string
		if plan, wrong = x.h.opt.Shell.Plan(x.r.Context(), ask); wrong != "" {
			x.observe()
			return nil, x.ownDigest(x.ownError(id, wrong))
		}
	case s != nil && x.wantsTask(m, s):
		return nil, mcp.ErrorResponse(id, mcp.CodeMethodNotFound, t.public+" does not run as a task: it answers itself, in time. Call it without params.task.", nil)
	case !slices.Contains(shellAnswers, t.tool):
		return nil, unknownTool(id, t.public)
	case d.Denied != nil:
		x.observe()
		return nil, ownWords(id, d.Denied, "", x.modern)
	default:
		x.observe()
		sh := x.h.opt.Shell.Do(x.r.Context(), ask)
		return nil, x.ownDigest(x.shownResult(id, nil, &sh, false), sh.Told...)
	}
	d.CancelOnDisconnect, d.HandOff, d.TaskOnly = false, true, false
	return plan, nil
}

// wantsTask says whether a tools/call of the session asks for a task.
func (x *exchange) wantsTask(m *mcp.Message, s *session) bool {
	asks, _ := x.asksTask(m, s)
	return asks
}

// planned makes the call one of the plan's command.
func planned(p *command.Plan, spec *call.Spec) {
	spec.Digest, spec.Attach = p.Digest, p.Attach
	// The shell has limits of its own; a silent command is no lost one.
	spec.Limits = call.Limits{PerServer: spec.Limits.PerServer, PerPrincipal: spec.Limits.PerPrincipal}
	if p.Key != "" {
		sum := sha256.Sum256([]byte(p.Key))
		spec.Idempotency = hex.EncodeToString(sum[:16])
	}
}

// letGo has a cancel of the request end this attachment, and nothing else: a
// command goes on until it ends or cancel_call stops it (O6, D14).
func (a *attachment) letGo() {
	ctx, stop := context.WithCancelCause(a.ctx)
	a.ctx, a.stop = ctx, stop
	a.session.waits(a.entry, func() { stop(errWaitCancelled) })
}

// released ends what letGo began; an agent that cancelled gets no response (O22).
func (a *attachment) released() {
	if a.stop == nil {
		return
	}
	if out := &a.x.out; errors.Is(context.Cause(a.ctx), errWaitCancelled) && out.status == 0 {
		out.head(http.StatusNoContent)
		out.flush()
	}
	a.stop(nil)
}

// runsAlready answers a request that must not join the running command that it
// found, and lets go of that.
func (a *attachment) runsAlready() []byte {
	rec := a.call.Record()
	a.call.Leave(call.Delivery{}, -1)
	a.released()
	if a.session != nil {
		a.session.detach(a.key, a.entry, false)
	}
	a.x.observe()
	names, id := a.x.shellNames(), string(rec.ID)
	return a.x.ownError(a.id, "Already running since "+rec.Started.UTC().Format("15:04:05")+" UTC (same command, same directory), as "+id+". Nothing was started, because if_running is error. "+
		"Call "+names.Await+" with "+idList([]string{id})+" for its result, leave if_running out to join it, or stop it with "+names.Cancel+".")
}

// showOptions are how this request wants the call shown.
func (a *attachment) showOptions(why command.Why) *command.ShowOptions {
	o := &command.ShowOptions{Why: why, Joined: a.join == call.Joined && !a.back, Replayed: a.join == call.Replay, Names: a.x.shellNames()}
	if a.plan != nil {
		o.MaxBytes = a.plan.MaxBytes
	}
	return o
}

// yields is the answer of a command that goes on in the background: neither an
// error nor a success (D8, O3).
func (a *attachment) yields() []byte {
	why := command.ShowYield
	if a.ready {
		why = command.ShowReady
	}
	rec := asRunning(a.call.Record())
	sh := a.x.h.opt.Shell.Show(a.ctx, &rec, a.showOptions(why))
	return a.x.shownResult(a.id, &rec, &sh, false)
}

// commandEnd is the answer of a call of the shell that has ended.
func (a *attachment) commandEnd(ev *call.Event) []byte {
	rec := ended(a.call.Record(), ev)
	sh := a.x.h.opt.Shell.Show(a.ctx, &rec, a.showOptions(command.ShowNow))
	return a.x.shownResult(a.id, &rec, &sh, a.join == call.Replay)
}

// ended is the record with the end that an event tells.
func ended(rec call.Record, ev *call.Event) call.Record {
	rec.End = *ev.End
	if rec.Ended.IsZero() {
		rec.Ended = ev.Time
	}
	return rec
}

// shownResult is a tool result that shows a call of the shell; rec is nil if it
// is about none.
func (x *exchange) shownResult(id []byte, rec *call.Record, sh *command.Shown, replayed bool) []byte {
	p := &pieces{}
	p.raw(`{"jsonrpc":"2.0","id":`)
	p.bytes(id)
	p.raw(`,"result":{`)
	x.appendShown(p, rec, sh, replayed)
	p.raw(`}}`)
	return p.join()
}

// appendShown writes the members of a result that shows a call of the shell;
// replayed says that it was kept, and not made again.
func (x *exchange) appendShown(p *pieces, rec *call.Record, sh *command.Shown, replayed bool) {
	x.told = append(x.told, sh.Told...)
	if x.modern {
		p.bytes(completeC)
	}
	p.raw(`"content":[`)
	for i, text := range sh.Text {
		if i > 0 {
			p.raw(`,`)
		}
		p.text(text)
	}
	if sh.Link && rec != nil && x.version >= mcp.V20250618 { // before, there is no such block
		p.raw(`,`)
		appendCallLink(p, rec)
	}
	p.raw(`]`)
	if sh.Structured != nil {
		p.raw(`,"structuredContent":`)
		p.bytes(sh.Structured)
	}
	if sh.IsError {
		p.raw(`,"isError":true`)
	}
	if rec == nil {
		return
	}
	switch end := &rec.End; {
	case end.Outcome == call.Running:
		p.raw(`,"_meta":{"` + metaKeyHandOff + `":{"call":"` + string(rec.ID) + `","state":"running"}}`)
	case end.Outcome != call.Completed:
		p.raw(`,"_meta":{` + outcomeMeta(end, rec.ID))
		if replayed {
			p.raw(`,"` + metaKeyReplayed + `":true`)
		}
		p.raw(`}`)
	case replayed:
		p.raw(`,"_meta":{"` + metaKeyReplayed + `":true}`)
	}
}

// appendCallLink writes a link to the call's resource.
func appendCallLink(p *pieces, rec *call.Record) {
	p.raw(`{"type":"resource_link","uri":"` + callURI(rec.ID) + `","name":"` + string(rec.ID) + `","description":"How this command stands; subscribe to be told of its end.","mimeType":"application/json"}`)
}

// callURI is the resource of a call.
func callURI(id call.ID) string { return callScheme + string(id) }

const callScheme = "longcall://calls/"

// tellTold records that the agent has learned the ends of other calls with this
// answer, so that they are told nowhere else, unless it did not get out.
func (x *exchange) tellTold() {
	out := x.out.err == nil && x.out.status != 0
	x.tellDigested(out)
	if !out || len(x.told) == 0 {
		return
	}
	ctx := context.WithoutCancel(x.r.Context())
	for _, id := range x.told {
		c, err := x.h.opt.Engine.Get(ctx, x.q.Principal, id)
		if err != nil || c.Record().End.Outcome == call.Running {
			continue
		}
		c.Enter()
		c.Leave(call.Delivery{Call: id, Kind: kindTold, How: call.Delivered, Era: x.version, Attached: x.q.Start, Ended: time.Now(), Events: 1}, -1)
	}
	x.told = nil
}
