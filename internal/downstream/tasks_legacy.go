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

// Tasks of 2025-11-25: the agent asks for one with params.task, and gets
// the result by a request that waits for it.

const (
	methodTaskStatus = "notifications/tasks/status"

	metaKeyRelated   = "io.modelcontextprotocol/related-task"
	metaKeyImmediate = "io.modelcontextprotocol/model-immediate-response"
)

const (
	// cancelWait is how long tasks/cancel waits for the call's end.
	cancelWait = 2 * time.Second
	// maxAsked bounds the tasks that are remembered of a session, for their
	// tokens and status notifications; the oldest is forgotten.
	maxAsked = 1000
	listPage = 50  // tasks of one page
	listScan = 500 // calls that are looked through for it
)

// hasTasks says whether tasks are offered to the session.
func (x *exchange) hasTasks(s *session) bool {
	return s.version == mcp.V20251125 && x.profile(s.client).Tasks
}

// legacyTasks is the capability of initialize, with its comma; empty if tasks are
// not offered to the client.
func (x *exchange) legacyTasks(client string) string {
	switch {
	case x.version != mcp.V20251125 || !x.profile(client).Tasks:
		return ""
	case x.h.opt.Anonymous:
		return `,"tasks":{"cancel":{},"requests":{"tools":{"call":{}}}}`
	}
	return `,"tasks":{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}`
}

// taskSupport is what a tool's entry says about tasks; nil if nothing.
func (x *exchange) taskSupport(server, tool string) []byte {
	if !x.tasks {
		return nil
	}
	switch d := x.h.opt.Admit(x.q.Principal, server, tool, false); {
	case x.isShell(server):
		if d.Denied == nil && slices.Contains(shellCalls, tool) {
			return []byte(`{"taskSupport":"optional"}`)
		}
		return nil
	case !d.HandOff || d.Denied != nil:
		return nil
	case d.TaskOnly:
		return []byte(`{"taskSupport":"required"}`)
	}
	return []byte(`{"taskSupport":"optional"}`)
}

// taskOnly says whether policy has a tool run for agents with tasks only. A tool
// that is denied says so instead.
func (x *exchange) taskOnly(t target) bool {
	d := x.h.opt.Admit(x.q.Principal, t.server, t.tool, x.modern)
	return d.TaskOnly && d.Denied == nil && !x.isShell(t.server)
}

// asksTask says whether a tools/call of a session that has tasks asks for one.
// Elsewhere the param means nothing.
func (x *exchange) asksTask(m *mcp.Message, s *session) (asks bool, wrong string) {
	if !m.Params.Ok() {
		return false, ""
	}
	params := m.Params.Of(m.Raw)
	f := find(params, 0, "task")
	switch {
	case !f.ok() || string(params[f.val:f.end]) == "null" || !x.hasTasks(s):
		return false, ""
	case params[f.val] != '{':
		return false, "params.task must be an object."
	}
	return true, ""
}

// createTask answers a tools/call that asked for a task, at once. It returns
// false, and does nothing, for a call that could not be found again (I4) or must
// not be handed off: that one is answered as if it had not asked.
func (a *attachment) createTask() bool {
	if !a.policy.HandOff || !a.call.Stored() || a.plan != nil && !a.plan.Job {
		return false
	}
	kind := "json"
	if !a.x.json {
		kind = "sse"
	}
	a.begin(kind)
	a.session.detach(a.key, a.entry, false) // a task is cancelled by its own request
	a.x.h.asked.add(a.ctx, a.session.id, a.call, a.token)
	if !a.x.h.sessions.has(a.session.id) { // it ended meanwhile, and forgot what it had by then
		a.x.h.asked.forget(a.session.id)
	}
	if a.ctx.Err() == nil {
		a.handing = a.call.HandingOff()
		a.answer(a.askedTask(), nil, "")
	}
	if a.ctx.Err() == nil && a.x.out.flush() {
		a.d.How = call.HandedOff
		a.d.Events++
	} else {
		a.gone()
	}
	a.finish()
	a.session.done()
	return true
}

// askedTask is the answer to a request that asked for a task, which always begins
// as a working one.
func (a *attachment) askedTask() []byte {
	v := viewTask(a.ctx, a.call, false)
	v.status, v.message, v.asked, v.updated = taskWorking, "", nil, v.rec.Started
	text := "Running in the background as task " + string(v.rec.ID) + ". It has not finished: do not call the tool again. Its result comes when it has ended."
	b := append([]byte(`{"jsonrpc":"2.0","id":`), a.id...)
	b = append(b, `,"result":{"task":{`...)
	b = v.append(b)
	b = append(b, `},"_meta":{"`+metaKeyImmediate+`":`...)
	b = append(b, mcp.Quote(text)...)
	return append(b, `}}}`...)
}

// legacyTask answers tasks/get, tasks/list and tasks/cancel of a session that has
// tasks; ok is false for another method.
func (x *exchange) legacyTask(m *mcp.Message, s *session) (answer []byte, ok bool) {
	id := m.ID.Of(m.Raw)
	switch m.Method {
	case methodTasksGet, methodTasksCancel:
		c, wrong := x.namedTask(m)
		switch {
		case wrong != nil:
			return wrong, true
		case m.Method == methodTasksCancel:
			return x.cancelLegacy(id, c), true
		}
		v := viewTask(x.r.Context(), c, false)
		return mcp.ResultResponse(id, append(v.append([]byte{'{'}), '}')), true
	case methodTasksList:
		if !x.h.opt.Anonymous {
			return x.listTasks(m), true
		}
	}
	return nil, false
}

// namedTask finds the task that a request names, or says what is wrong.
func (x *exchange) namedTask(m *mcp.Message) (c *call.Call, wrong []byte) {
	id := m.ID.Of(m.Raw)
	if text := badTask(m); text != "" {
		return nil, mcp.ErrorResponse(id, mcp.CodeInvalidParams, text, nil)
	}
	name, _ := taskID(m)
	c, err := x.findCall(name)
	if err != nil {
		return nil, noTask(id, err)
	}
	return c, nil
}

// cancelLegacy answers tasks/cancel: the task is cancelled when the answer is
// written, and stays so, whatever its tool server still says.
func (x *exchange) cancelLegacy(id []byte, c *call.Call) []byte {
	v := viewTask(x.r.Context(), c, false)
	if v.over() {
		return taskOver(id, &v)
	}
	switch err := c.Cancel(agentCancel); {
	case errors.Is(err, call.ErrElsewhere):
		return elsewhere(id)
	case err != nil: // it is just ending
		waitEnd(x.r.Context(), c)
		v = viewTask(x.r.Context(), c, false)
		return taskOver(id, &v)
	}
	waitEnd(x.r.Context(), c)
	v = viewTask(x.r.Context(), c, false)
	return mcp.ResultResponse(id, append(v.append([]byte{'{'}), '}'))
}

// taskOver answers a cancel that came too late.
func taskOver(id []byte, v *taskView) []byte {
	return mcp.ErrorResponse(id, mcp.CodeInvalidParams, "Nothing was cancelled, the task is over: "+v.status+". "+methodTasksResult+" says how it ended.", nil)
}

// waitEnd waits for a call's end, for cancelWait at most.
func waitEnd(ctx context.Context, c *call.Call) {
	ctx, cancel := context.WithTimeout(ctx, cancelWait)
	defer cancel()
	for _, err := range c.Follow(ctx, c.Record().Seq, 0) {
		if err != nil {
			return
		}
	}
}

// listTasks answers tasks/list with one page of the principal's calls that were
// handed off, newest first.
func (x *exchange) listTasks(m *mcp.Message) []byte {
	id := m.ID.Of(m.Raw)
	before := ""
	if m.Cursor.Ok() {
		c, ok := mcp.String(m.Cursor.Of(m.Raw))
		if ok {
			before, ok = x.h.cursors.open(c, methodTasksList, x.q.Principal, x.server)
		}
		if !ok {
			return mcp.ErrorResponse(id, mcp.CodeInvalidParams, "This cursor is not known. Read the list from its start.", nil)
		}
	}
	list, err := x.h.opt.Engine.List(x.r.Context(), x.q.Principal, call.ID(before), listScan)
	if err != nil {
		return mcp.ErrorResponse(id, mcp.CodeInternal, "The tasks could not be read from longcall's journal. They go on; ask again in a moment.", nil)
	}
	b := []byte(`{"tasks":[`)
	n, next := 0, ""
	for i := range list {
		r := &list[i]
		if n == listPage {
			next = string(list[i-1].ID)
			break
		}
		if i == listScan-1 {
			next = string(r.ID)
		}
		if !r.HandedOff || !r.Ended.IsZero() && time.Since(r.Ended) > taskTTL {
			continue
		}
		c, err := x.findCall(string(r.ID))
		if err != nil {
			continue // its time is over
		}
		if n++; n > 1 {
			b = append(b, ',')
		}
		v := viewTask(x.r.Context(), c, false)
		b = append(v.append(append(b, '{')), '}')
	}
	b = append(b, ']')
	if next != "" {
		b = append(b, `,"nextCursor":`...)
		b = append(b, mcp.Quote(x.h.cursors.seal(next, methodTasksList, x.q.Principal, x.server))...)
	}
	return mcp.ResultResponse(id, append(b, '}'))
}

// The seq in event ids of a stream that shows a task's result begins with one of
// these: what it shows is not what the call's own request would.
const (
	resultStream         = "t" // with the token of the tasks/result, if any
	resultStreamOriginal = "u" // with the token of the request that made the task
)

// taskResult serves tasks/result: an attachment that waits for the task's end.
// It returns nil when it has answered.
func (x *exchange) taskResult(m *mcp.Message, s *session) *attachment {
	id := m.ID.Of(m.Raw)
	c, wrong := x.namedTask(m)
	if wrong != nil {
		x.observe()
		x.reply(wrong)
		return nil
	}
	rec := c.Record()
	a := &attachment{
		x: x, ctx: x.r.Context(), call: c, id: append([]byte(nil), id...), wantLogs: true,
		session: s, key: idKey(id), after: joinedAt(c),
		policy: x.h.opt.Admit(s.principal, rec.Server, rec.Tool, false), shell: x.isShell(rec.Server),
	}
	mode := resultStream
	if t := m.MetaToken.Of(m.Raw); t != nil && isProgressToken(t) {
		a.token = append([]byte(nil), t...)
	} else if a.token = x.h.asked.token(s.id, rec.ID); a.token != nil {
		mode = resultStreamOriginal
		if ev, ok := c.Latest(call.KindProgress); ok {
			a.line.appendProgress(nil, ev.Body, ev.Hole, a.token) // what was shown before is below
		}
	}
	place := place{call: rec.ID, epoch: x.h.opt.Epoch, id: a.id, token: a.token}
	a.showsResult(mode, place.seal(&x.h.opt.Key, s.principal, s.id))
	x.q.Server, x.q.Tool, x.q.Call = rec.Server, rec.PublicTool, rec.ID
	c.Enter()
	x.observe()
	return a
}

// resultMode takes the mode of a stream that shows a task's result off the seq of
// its event ids; mode is empty for another stream.
func resultMode(seq string) (mode, rest string) {
	for _, mode := range [...]string{resultStream, resultStreamOriginal} {
		if rest, ok := strings.CutPrefix(seq, mode); ok {
			return mode, rest
		}
	}
	return "", seq
}

// showsResult makes the attachment one of a tasks/result, or of its stream's
// rest; prefix is that of the call's own streams.
func (a *attachment) showsResult(mode string, prefix []byte) {
	if mode == "" {
		a.prefix = prefix
		return
	}
	a.result, a.original = true, mode == resultStreamOriginal
	a.policy.HandOff = false
	if prefix != nil {
		a.prefix = append(prefix, mode...)
	}
}

// related names the task, as all messages about it do.
func (a *attachment) related() string {
	return `"` + metaKeyRelated + `":{"taskId":"` + string(a.call.ID()) + `"}`
}

// relate gives a notification of the call the name of the task.
func (a *attachment) relate(ev *call.Event) *call.Event {
	params := find(ev.Body, 0, "params")
	if !params.ok() || ev.Body[params.val] != '{' {
		return ev
	}
	cuts := intoMeta(ev.Body, params.val, a.related(), nil)
	out := *ev
	out.Body = splice(nil, ev.Body, cuts)
	if cuts[0].from <= ev.Hole {
		out.Hole += len(cuts[0].with)
	}
	return &out
}

// intoMeta puts a member into _meta of the object at obj.
func intoMeta(body []byte, obj int, member string, cuts []cut) []cut {
	if meta := find(body, obj, "_meta"); meta.ok() && body[meta.val] == '{' {
		return insertMember(body, meta.val, member, cuts)
	}
	return insertMember(body, obj, `"_meta":{`+member+`}`, cuts)
}

// taskEnd is the answer to tasks/result: what the call's own request would have
// got. A cancelled one would have got nothing, which is an error here (A12).
func (a *attachment) taskEnd(end *call.End, body []byte, cuts []cut) ([]byte, []cut) {
	if end.Outcome == call.Cancelled {
		return mcp.ErrorResponse(a.id, mcp.CodeInternal, "The task was cancelled. "+plainWords(end), nil), nil
	}
	if result := find(body, 0, "result"); result.ok() && body[result.val] == '{' {
		cuts = intoMeta(body, result.val, a.related(), cuts)
	}
	return body, cuts
}

// resultLater answers a tasks/result that this process cannot wait for any more.
func (a *attachment) resultLater() []byte {
	return mcp.ErrorResponse(a.id, mcp.CodeInternal, "longcall is restarting. The task goes on and its result is kept: ask for it again in a moment.", nil)
}

// sessionTasks are the tasks that sessions asked for, as far as this process
// knows: for the token of each, and for whoever listens on the session's stream.
type sessionTasks struct {
	mu sync.Mutex
	m  map[string]*askedTasks // by session
}

type askedTasks struct {
	tokens map[call.ID][]byte
	order  []call.ID // oldest first
	watch  *watch    // of the session's stream; nil if there is none
}

// of gives a session's; ts.mu is held.
func (ts *sessionTasks) of(session string) *askedTasks {
	if ts.m == nil {
		ts.m = map[string]*askedTasks{}
	}
	t := ts.m[session]
	if t == nil {
		t = &askedTasks{tokens: map[call.ID][]byte{}}
		ts.m[session] = t
	}
	return t
}

// add remembers a task; token is that of its request, or nil.
func (ts *sessionTasks) add(ctx context.Context, session string, c *call.Call, token []byte) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.of(session)
	if _, ok := t.tokens[c.ID()]; !ok {
		if len(t.order) == maxAsked {
			delete(t.tokens, t.order[0])
			t.order = slices.Delete(t.order, 0, 1)
		}
		t.order = append(t.order, c.ID())
	}
	if len(token) > maxPlace {
		token = nil
	}
	t.tokens[c.ID()] = token
	if t.watch != nil {
		t.watch.add(ctx, c)
	}
}

// token is that of the request that made a task in the session; nil if it has
// none.
func (ts *sessionTasks) token(session string, id call.ID) []byte {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if t := ts.m[session]; t != nil {
		return t.tokens[id]
	}
	return nil
}

// done forgets a task that is over.
func (ts *sessionTasks) done(session string, id call.ID) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if t := ts.m[session]; t != nil {
		delete(t.tokens, id)
		t.order = slices.DeleteFunc(t.order, func(o call.ID) bool { return o == id })
	}
}

// forget drops a session's.
func (ts *sessionTasks) forget(session string) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	delete(ts.m, session)
}

// listen makes a watch of the session's tasks, for its stream, until quit.
func (ts *sessionTasks) listen(ctx context.Context, session string, find func(id string) (*call.Call, error)) *watch {
	w := newWatch(false)
	ts.mu.Lock()
	t := ts.of(session)
	t.watch = w
	order := slices.Clone(t.order)
	ts.mu.Unlock()
	for _, id := range order {
		if c, err := find(string(id)); err == nil {
			w.add(ctx, c)
		}
	}
	return w
}

func (ts *sessionTasks) quit(session string, w *watch) {
	ts.mu.Lock()
	if t := ts.m[session]; t != nil && t.watch == w {
		t.watch = nil
		if len(t.order) == 0 {
			delete(ts.m, session)
		}
	}
	ts.mu.Unlock()
	w.stop() // not before: a task that is added meanwhile would never be let go of
}

// taskChanged writes a notifications/tasks/status.
func (x *exchange) taskChanged(s *session, v *taskView) {
	b := []byte(`{"jsonrpc":"2.0","method":"` + methodTaskStatus + `","params":{`)
	b = append(v.append(b), `}}`...)
	x.out.write(eventHead)
	x.out.write(b)
	x.out.write(eventTail)
	x.q.Events++
	if v.over() {
		x.h.asked.done(s.id, v.rec.ID)
	}
}
