package downstream

import (
	"errors"
	"net/http"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/command"
	"github.com/longcall/longcall/internal/mcp"
)

// The tasks extension of 2026-07-28: a call is a task whenever its agent
// asks for it by its id, which is the call's.

// missingTasks is the data of CodeMissingCapability for a request that did not
// declare the extension.
var missingTasks = []byte(`{"requiredCapabilities":{"extensions":{"` + extensionTasks + `":{}}}}`)

// taskCreated is the answer that makes a task of a modern request.
func (a *attachment) taskCreated() []byte {
	v := viewTask(a.ctx, a.call, true)
	b := append([]byte(`{"jsonrpc":"2.0","id":`), a.id...)
	b = append(b, `,"result":{"resultType":"task",`...)
	b = append(v.append(b), ',')
	b = append(b, a.x.h.metaInfo()...)
	return append(b, `}}`...)
}

// badTask says what is wrong with the params of a request about a task; empty if
// nothing is.
func badTask(m *mcp.Message) string {
	if id, ok := taskID(m); !ok || id == "" {
		return m.Method + " needs params.taskId, a string."
	}
	if m.Method == methodTasksUpdate {
		if inputResponses(m) == nil {
			return "tasks/update needs params.inputResponses, an object."
		}
	}
	return ""
}

// inputResponses is the object of answers that a tasks/update brings; nil if
// there is none.
func inputResponses(m *mcp.Message) []byte {
	params := m.Params.Of(m.Raw)
	f := find(params, 0, "inputResponses")
	if !f.ok() || params[f.val] != '{' {
		return nil
	}
	return params[f.val:skipValue(params, f.val)]
}

// serveTask serves a checked tasks/get, tasks/update or tasks/cancel.
func (x *exchange) serveTask(m *mcp.Message) {
	id := m.ID.Of(m.Raw)
	name, _ := taskID(m)
	if !x.namedBy(mcp.Quote(name)) {
		x.mismatch(id, "The Mcp-Name header must be there once and equal params.taskId.")
		return
	}
	if !declaresTasks(m.MetaCapabilities.Of(m.Raw)) {
		x.needsTasks(id, m.Method)
		return
	}
	x.observe()
	c, err := x.findCall(name)
	if err != nil {
		x.reply(noTask(id, err))
		return
	}
	switch m.Method {
	case methodTasksGet:
		x.getTask(id, c)
	case methodTasksUpdate:
		x.reply(x.updateTask(id, c, inputResponses(m)))
	case methodTasksCancel:
		x.reply(x.cancelTask(id, c))
	}
}

// needsTasks answers a request of a client that did not declare the extension.
func (x *exchange) needsTasks(id []byte, what string) {
	x.fail(http.StatusBadRequest, id, mcp.CodeMissingCapability, what+" needs the client capability "+extensionTasks+", declared in this request's _meta.", missingTasks)
}

// getTask answers tasks/get. One that tells of the end is a delivery of it.
func (x *exchange) getTask(id []byte, c *call.Call) {
	v := viewTask(x.r.Context(), c, true)
	b := append([]byte(`{"jsonrpc":"2.0","id":`), id...)
	b = append(b, `,"result":{"resultType":"complete",`...)
	b = v.appendDetail(b, x)
	b = append(append(b, ','), x.h.metaInfo()...)
	b = append(b, `}}`...)
	if !v.over() {
		x.reply(b)
		return
	}
	x.deliverTask(&v, func() { x.reply(b) })
}

// deliverTask writes what tells of a task's end, and records how that went.
func (x *exchange) deliverTask(v *taskView, write func()) {
	d := call.Delivery{Call: v.rec.ID, Kind: "task", Era: x.version, Attached: time.Now(), Events: 1}
	before := x.out.bytes
	v.call.Enter()
	gone := x.r.Context().Err() != nil
	write()
	d.Ended, d.Bytes = time.Now(), x.out.bytes-before
	switch {
	case x.out.slow:
		d.How = call.Slow
	case gone || x.out.err != nil:
		d.How = call.AbortedDownstream
	default:
		d.How = call.Delivered
		d.FirstByte = max(1, x.out.last.Sub(d.Attached))
	}
	v.call.Leave(d, -1)
}

// appendDetail appends the members of a DetailedTask.
func (v *taskView) appendDetail(b []byte, x *exchange) []byte {
	b = v.append(b)
	switch {
	case v.asked != nil:
		b = append(append(b, `,"inputRequests":`...), v.asked...)
	case v.status == taskCompleted, v.status == taskFailed:
		ev := lastEvent(x.r.Context(), v.call, &v.rec)
		b = v.appendOutcome(b, x, &ev)
	}
	return b
}

// appendOutcome appends the result or error that a task has ended with, as the
// agent would have got it without a task; an unknown outcome is an error (SPEC
// §3.4 i), and a result that only asks for input is never one (A17).
func (v *taskView) appendOutcome(b []byte, x *exchange, ev *call.Event) []byte {
	body := ev.Body
	if x.isShell(v.rec.Server) && v.status == taskCompleted && ev.End.Outcome != call.Denied {
		rec := ended(v.rec, ev)
		sh := x.h.opt.Shell.Show(x.r.Context(), &rec, &command.ShowOptions{Names: x.shellNames()})
		p := &pieces{}
		x.appendShown(p, &rec, &sh, false)
		return append(append(append(b, `,"result":{`...), p.join()...), '}')
	}
	ours := body == nil || ev.Hole < 0 || ev.Hole >= len(body) || asksForInput(body)
	var cuts []cut
	switch {
	case ours && v.status == taskFailed:
		outcome := "unknown"
		if ev.End.Outcome != call.Interrupted {
			outcome = string(ev.End.Outcome)
		}
		b = append(b, `,"error":{"code":-32603,"message":`...)
		b = append(b, mcp.Quote(plainWords(ev.End))...)
		return append(b, `,"data":{"outcome":"`+outcome+`","call":"`+string(v.rec.ID)+`"}}`...)
	case ours:
		body = ownWords([]byte("0"), ownEnd(ev), v.rec.ID, true)
	default:
		cuts = convert(body, view{modern: true, info: x.h.info}, nil)
	}
	for _, name := range [...]string{"result", "error"} {
		f := find(body, 0, name)
		if !f.ok() {
			continue
		}
		end := skipValue(body, f.val) // find does not look for the end of a large one
		for i := range cuts {
			cuts[i].from -= f.val
			cuts[i].to -= f.val
		}
		b = append(b, `,"`+name+`":`...)
		return splice(b, body[f.val:end], cuts)
	}
	return b
}

// acknowledged is the whole result of tasks/update and tasks/cancel.
func (x *exchange) acknowledged(id []byte) []byte {
	b := append([]byte(`{"resultType":"complete",`), x.h.metaInfo()...)
	return mcp.ResultResponse(id, append(b, '}'))
}

// updateTask answers tasks/update. Answers to what was not asked, or has an
// answer, are ignored, and so are all once the task is over.
func (x *exchange) updateTask(id []byte, c *call.Call, responses []byte) []byte {
	taken, keys, wrong := answersTo(c, responses)
	switch {
	case wrong != "":
		return mcp.ErrorResponse(id, mcp.CodeInvalidParams, wrong, nil)
	case taken == nil:
		return x.acknowledged(id)
	}
	switch err := c.Answer(mcp.OneLine(taken), keys); {
	case errors.Is(err, call.ErrElsewhere):
		return elsewhere(id)
	case errors.Is(err, call.ErrFull):
		return mcp.ErrorResponse(id, mcp.CodeInternal, "Too many answers wait for the tool server. Nothing was taken; answer again in a moment.", nil)
	}
	return x.acknowledged(id)
}

// cancelTask answers tasks/cancel at once: the task ends when its tool server has
// stopped. One that is over already gets the same answer.
func (x *exchange) cancelTask(id []byte, c *call.Call) []byte {
	if err := c.Cancel(agentCancel); errors.Is(err, call.ErrElsewhere) {
		return elsewhere(id)
	}
	return x.acknowledged(id)
}

// agentCancel is the end of a task that its agent cancels.
var agentCancel = call.End{By: "agent", Text: "The agent cancelled the task."}
