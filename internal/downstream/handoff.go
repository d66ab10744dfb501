package downstream

import (
	"bytes"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// HeaderCall names the call that a tools/call answer is of.
const HeaderCall = "Longcall-Call"

const (
	// metaKeyHandOff says in a result's _meta which call goes on.
	metaKeyHandOff = "dev.longcall/handoff"
	// metaKeyReplayed says there that the result was kept, and not made again.
	metaKeyReplayed = "dev.longcall/replayed"
)

// handOff answers the request before the client's patience ends, while the call
// goes on: with a task where this request declared them, else with a result that
// says what to call (DESIGN §3, SPEC §3.6). It returns false, and does nothing,
// for a call that could not be found again (I4), one whose end is there to be
// shown, or if policy has it off.
func (a *attachment) handOff() bool {
	if a.shell && !a.call.Stored() {
		a.task = false // a command yields all the same, and is found as long as this process runs
	}
	if !a.policy.HandOff || !a.call.Stored() && !a.shell || a.quiet || a.hasEnded() {
		return false
	}
	if a.ctx.Err() != nil {
		a.gone()
		return true
	}
	var body []byte
	switch {
	case a.task:
		body = a.taskCreated()
	case a.shell:
		body = a.x.ownDigest(a.yields(), a.call.ID())
	default:
		body = a.handle()
	}
	if a.entry != nil {
		a.session.answered(a.entry, true) // before the agent can know it
	}
	a.handing = a.call.HandingOff()
	if a.batched {
		a.kept, a.d.How = body, call.HandedOff
		return true
	}
	a.answer(body, nil, handedOff)
	if !a.x.out.flush() {
		if a.entry != nil {
			a.session.answered(a.entry, false)
		}
		a.gone()
		return true
	}
	a.d.How = call.HandedOff
	a.d.Events++
	return true
}

// hasEnded says whether the call's end can be shown.
func (a *attachment) hasEnded() bool {
	state, err := a.call.Look(a.ctx, math.MaxUint64)
	return err == nil && state.Outcome != call.Running
}

// handle is the result that leads a model back to its call. It is no success and
// says so; where the tool has an output schema it is an error without
// structured content, since that would have to conform (SPEC §8.1 A8).
func (a *attachment) handle() []byte {
	rec := a.call.Record()
	id := string(rec.ID)
	names := a.x.ownNames()
	text := "Still running after " + string(appendElapsed(nil, time.Since(rec.Started))) + ": " + oneLine(rec.PublicTool, 128) + " (call " + id + "). " +
		waitsText(a.call) + "It has not finished and has not failed: do not call it again, and do not wait or sleep. " +
		"Go on with other work. When you need the result, call " + names.await + ` with {"ids":["` + id + `"]}; ` +
		"to stop it, call " + names.cancel + ` with {"id":"` + id + `"}.`
	var p pieces
	a.x.openResult(&p, a.id)
	p.text(text)
	p.raw(`]`)
	if a.x.hasOutputSchema(rec.Server, rec.Tool) {
		p.raw(`,"isError":true`)
	} else {
		p.raw(`,"structuredContent":{"call_id":"` + id + `","state":"running","started_at":"` + stampText(rec.Started) + `","next":`)
		p.quote(text)
		p.raw(`}`)
	}
	p.raw(`,"_meta":{"` + metaKeyHandOff + `":{"call":"` + id + `","state":"running"}}}}`)
	return p.join()
}

// waitsText says that a call waits for an answer, if it does.
func waitsText(c *call.Call) string {
	if c.Asked() == nil {
		return ""
	}
	return "The tool has asked a question and waits for its answer. "
}

// hasOutputSchema says whether a tool's results have to conform to a schema, as
// far as its list is known without waiting.
func (x *exchange) hasOutputSchema(server, tool string) bool {
	raw := x.knownTool(server, tool)
	return raw != nil && find(raw, 0, "outputSchema").ok()
}

// knownTool is a tool's entry in the list as last known; nil if there is none.
func (x *exchange) knownTool(server, tool string) []byte {
	// What is not known now is not waited for.
	tools, _ := x.h.opt.Catalog.List(x.h.spent, x.caller(), server, mcp.ListTools)
	for _, t := range tools.Entries {
		if t.Name == tool {
			return t.Raw
		}
	}
	return nil
}

// stampText is a time as the protocol writes it: RFC 3339, UTC, milliseconds.
func stampText(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// asksForInput says whether a stateless server's answer only asks for input.
func asksForInput(body []byte) bool {
	if !bytes.Contains(body[:min(len(body), 4<<10)], []byte(`"input_required"`)) {
		return false
	}
	result := find(body, 0, "result")
	if !result.ok() {
		return false
	}
	kind, _ := text(body[result.val:], "resultType")
	return kind == "input_required"
}

// ownEnd is the end that our own words have to tell.
func ownEnd(ev *call.Event) *call.End {
	if ev.Body == nil {
		return ev.End
	}
	return &call.End{Outcome: call.Interrupted, Text: "The tool asks for input that this client cannot give, so it did not finish. What it did until then may have taken effect. Use another tool, or a client that can answer questions of tools."}
}

// markReplayed marks a result that was kept because nobody had got it.
func markReplayed(body []byte, cuts []cut) []cut {
	result := find(body, 0, "result")
	if !result.ok() || body[result.val] != '{' {
		return cuts
	}
	return intoMeta(body, result.val, replayedMember, cuts)
}

// budget sets when the call is handed off, by what is known of the client.
func (a *attachment) budget(p Profile) {
	if a.plan != nil {
		a.due = a.x.out.start.Add(a.plan.Yield)
		return
	}
	budget := p.Budget
	if a.token != nil && a.x.sse && !a.policy.Buffered {
		budget = p.BudgetToken
	}
	if a.task {
		budget = p.TaskBudget
	}
	if budget > 0 && a.policy.HandOff {
		a.due = a.x.out.start.Add(budget)
	}
}

// unknownEvent refuses an event id that was not sent, or not in this session.
const unknownEvent = "This Last-Event-ID is not known in this session. Nothing can be resumed from it."

// resume serves a GET with Last-Event-ID: the rest of that stream, each event
// once and the answer too, also if the call has ended meanwhile or longcall was
// started anew.
func (x *exchange) resume(s *session) *attachment {
	v, _, ok := only(x.r.Header, mcp.HeaderLastEvent)
	p, seqText, known := openPlace(&x.h.opt.Key, s.principal, s.id, v)
	if !ok || !known {
		x.refuse(http.StatusBadRequest, mcp.CodeInvalidRequest, unknownEvent)
		return nil
	}
	if seqText == handedOff {
		x.over()
		return nil
	}
	mode, seqText := resultMode(seqText)
	seqText, value, hasValue := cutValue(seqText)
	seq, err := strconv.ParseUint(seqText, 10, 64)
	if err != nil {
		x.refuse(http.StatusBadRequest, mcp.CodeInvalidRequest, unknownEvent)
		return nil
	}
	c, err := x.h.opt.Engine.Get(x.r.Context(), s.principal, p.call)
	switch {
	case errors.Is(err, call.ErrUnknown):
		x.refuse(http.StatusBadRequest, mcp.CodeInvalidRequest, "This Last-Event-ID has expired: the call that it belongs to is not kept any more.")
		return nil
	case err != nil:
		x.refuse(http.StatusServiceUnavailable, mcp.CodeInternal, "The call of this Last-Event-ID could not be read from longcall's journal. It goes on, and nothing of it is lost: come back in a moment.")
		return nil
	}
	rec := c.Record()
	a := &attachment{
		x: x, ctx: x.r.Context(), call: c, id: p.id, token: p.token, wantLogs: true, from: v, since: rec.Started,
		session: s, key: idKey(p.id), after: c.Position(p.epoch, seq), seen: seq,
		policy: x.h.opt.Admit(s.principal, rec.Server, rec.Tool, false),
	}
	if a.shell = x.isShell(rec.Server); a.shell {
		a.policy.HandOff, a.due = true, time.Now().Add(shellResume)
	}
	if hasValue {
		a.line.resumed(value, time.Since(rec.Started))
	}
	if !c.Reached(a.after) {
		x.refuse(http.StatusBadRequest, mcp.CodeInvalidRequest, unknownEvent)
		return nil
	}
	if rec.End.Outcome != call.Running && a.after >= rec.Seq {
		x.over()
		return nil
	}
	p.epoch = x.h.opt.Epoch
	a.showsResult(mode, p.seal(&x.h.opt.Key, s.principal, s.id))
	x.q.Server, x.q.Tool, x.q.Call, x.q.Method = rec.Server, rec.PublicTool, rec.ID, "resume"
	c.Enter()
	x.observe()
	return a
}

// over answers for a stream that has nothing more to bring (A2).
func (x *exchange) over() {
	x.observe()
	streamHead(x.out.w.Header())
	x.out.head(http.StatusOK)
	x.out.write(commentOpen)
	x.out.flush()
}
