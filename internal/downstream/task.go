package downstream

import (
	"context"
	"errors"
	"math"
	"strconv"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// Methods of tasks. Both generations have get and cancel, the extension update,
// 2025-11-25 result and list.
const (
	methodTasksGet    = "tasks/get"
	methodTasksUpdate = "tasks/update"
	methodTasksCancel = "tasks/cancel"
	methodTasksResult = "tasks/result"
	methodTasksList   = "tasks/list"
)

const (
	// taskTTL is how long a task can be asked for after its end, and at least
	// (SPEC §7.8).
	taskTTL = 24 * time.Hour
	// maxStatus is how long a status message may be, in bytes.
	maxStatus = 200
)

// The states of a task.
const (
	taskWorking   = "working"
	taskInput     = "input_required"
	taskCompleted = "completed"
	taskFailed    = "failed"
	taskCancelled = "cancelled"
)

// pollAfter is how long a client should wait before it asks again, by the age of
// the task (SPEC §3.4).
func pollAfter(age time.Duration) time.Duration {
	switch {
	case age < 10*time.Second:
		return time.Second
	case age < time.Minute:
		return 2 * time.Second
	case age < 10*time.Minute:
		return 5 * time.Second
	}
	return 15 * time.Second
}

// findCall gives a call of the principal by its id, which is its task's too. Ids
// that are malformed, never were, or belong to somebody else are all
// call.ErrUnknown (I6, X-11). There is one spelling of an id: the engine would not
// find what runs here by another.
func (x *exchange) findCall(id string) (*call.Call, error) {
	if b := call.ID(id).Bytes(); b == nil || call.IDOf(b) != call.ID(id) {
		return nil, call.ErrUnknown
	}
	return x.h.opt.Engine.Get(x.r.Context(), x.q.Principal, call.ID(id))
}

// noTask answers for a task that findCall did not give.
func noTask(id []byte, err error) []byte {
	if errors.Is(err, call.ErrUnknown) {
		return mcp.ErrorResponse(id, mcp.CodeInvalidParams, "There is no such task. Its id may be mistyped, or its time is over.", nil)
	}
	return mcp.ErrorResponse(id, mcp.CodeInternal, "The task could not be read from longcall's journal. It goes on; ask again in a moment.", nil)
}

// elsewhere answers for a task that another process carries to its end.
func elsewhere(id []byte) []byte {
	return mcp.ErrorResponse(id, mcp.CodeInternal, "Nothing was changed: longcall is being replaced, and the task is still with the process that goes. Ask again in a moment.", nil)
}

// taskID is params.taskId; ok is false if it is no string.
func taskID(m *mcp.Message) (string, bool) {
	if !m.Params.Ok() {
		return "", false
	}
	return text(m.Params.Of(m.Raw), "taskId")
}

// taskView is a call as a task, at one moment, in the words of one generation
// (SPEC §3.1).
type taskView struct {
	call    *call.Call
	rec     call.Record
	modern  bool
	status  string
	message string // for people; may be empty
	asked   []byte // input requests by key, raw; nil if there are none
	updated time.Time
	// elsewhere says that another process carries the call to its end.
	elsewhere bool
}

// taskWords are what a client is told of when they change.
type taskWords struct{ status, message, asked string }

func (v *taskView) words() taskWords { return taskWords{v.status, v.message, string(v.asked)} }

// viewTask looks at a call as a task. It has ended when its end may be shown (I4),
// and the time of its last change moves only with what it shows.
func viewTask(ctx context.Context, c *call.Call, modern bool) taskView {
	state, _ := c.Look(ctx, math.MaxUint64) // an error says that the log does not know more now
	v := taskView{call: c, rec: c.Record(), modern: modern, elsewhere: state.Elsewhere}
	if state.Outcome == call.Running {
		v.rec.End, v.rec.Ended = call.End{}, time.Time{}
	} else {
		v.updated = v.rec.Ended
		v.status, v.message = endStatus(&v.rec.End, modern)
		return v
	}
	v.updated = v.rec.Started
	v.status, v.message = taskWorking, "Running since "+v.rec.Started.UTC().Format("15:04:05")+" UTC."
	if ev, ok := c.Latest(call.KindProgress); ok {
		v.updated = ev.Time
		if m := progressText(ev.Body); m != "" {
			v.message = m
		}
	}
	for _, k := range [...]call.Kind{call.KindAsk, call.KindAnswer, call.KindCancelRequested} {
		if ev, ok := c.Latest(k); ok && ev.Time.After(v.updated) {
			v.updated = ev.Time
		}
	}
	if v.asked = c.Asked(); v.asked != nil {
		if modern {
			v.asked = inputRequests(v.asked)
		}
		v.status, v.message = taskInput, "The tool waits for input."
	}
	if _, ok := c.Latest(call.KindCancelRequested); ok {
		v.message = "Being cancelled."
		if !modern { // where a cancelled task is cancelled at once, and stays so
			v.status, v.asked, v.message = taskCancelled, nil, "The task was cancelled. What the tool had done by then may have taken effect."
		}
	}
	return v
}

// progressText is what a progress message tells people.
func progressText(body []byte) string {
	p := paramsOf(body)
	if m, ok := text(p, "message"); ok {
		if m = oneLine(m, maxStatus); m != "" {
			return m
		}
	}
	value, total := find(p, 0, "progress"), find(p, 0, "total")
	switch {
	case !value.ok():
		return ""
	case !total.ok():
		return oneLine("Progress: "+string(p[value.val:value.end]), maxStatus)
	}
	return oneLine("Progress: "+string(p[value.val:value.end])+" of "+string(p[total.val:total.end]), maxStatus)
}

// endStatus is how a call's end reads as a task. What longcall itself says about
// a call is a tool result with isError, as it would have been without a task; one
// whose outcome nobody knows has failed (SPEC §3.4 i). In 2025-11-25 a tool's own
// error is a failure too.
func endStatus(end *call.End, modern bool) (status, message string) {
	switch end.Outcome {
	case call.Cancelled:
		return taskCancelled, oneLine(plainWords(end), maxStatus)
	case call.Interrupted:
		return taskFailed, oneLine(plainWords(end), maxStatus)
	case call.Completed:
		switch {
		case end.Text != "":
			return own(modern), oneLine(end.Text, maxStatus)
		case end.ToolError && !modern:
			return taskFailed, "The tool answered with an error."
		}
		return taskCompleted, ""
	case call.Failed:
		if end.Text == "" {
			return taskFailed, "The tool server answered with an error."
		}
	}
	return own(modern), oneLine(plainWords(end), maxStatus)
}

// own is the status of what longcall itself says.
func own(modern bool) string {
	if modern {
		return taskCompleted
	}
	return taskFailed
}

// over says whether the status is one that never changes.
func (v *taskView) over() bool {
	return v.status != taskWorking && v.status != taskInput
}

// append appends the members of the task. Its ttl counts from its creation and
// never shrinks (A23).
func (v *taskView) append(b []byte) []byte {
	ran := time.Since(v.rec.Started)
	if !v.rec.Ended.IsZero() {
		ran = v.rec.Ended.Sub(v.rec.Started)
	}
	ttl := taskTTL + ran.Truncate(time.Second)
	ttlName, pollName := "ttl", "pollInterval"
	if v.modern {
		ttlName, pollName = "ttlMs", "pollIntervalMs"
	}
	b = append(b, `"taskId":"`+string(v.rec.ID)+`","status":"`+v.status+`"`...)
	if v.message != "" {
		b = append(append(b, `,"statusMessage":`...), mcp.Quote(v.message)...)
	}
	b = append(b, `,"createdAt":"`+stampText(v.rec.Started)+`","lastUpdatedAt":"`+stampText(v.updated)+`","`+ttlName+`":`...)
	b = strconv.AppendInt(b, ttl.Milliseconds(), 10)
	b = append(b, `,"`+pollName+`":`...)
	return strconv.AppendInt(b, pollAfter(time.Since(v.rec.Started)).Milliseconds(), 10)
}

// lastEvent is the terminal event of a call that has ended. One that cannot be
// read any more gives an event without a body, whose End says so.
func lastEvent(ctx context.Context, c *call.Call, rec *call.Record) call.Event {
	if ev, err := endOf(ctx, c); err == nil {
		return *ev
	}
	end := rec.End
	if end.Text == "" && (end.Outcome == call.Completed || end.Outcome == call.Failed) {
		end.Text = "The tool server answered, but longcall cannot give its answer back any more. The call has run: check what it did before you make it again."
	}
	return call.Event{Seq: rec.Seq, Kind: call.KindEnd, Time: rec.Ended, Hole: -1, End: &end}
}

// paramsOf is the params object of a notification.
func paramsOf(body []byte) []byte {
	p := find(body, 0, "params")
	if !p.ok() {
		return nil
	}
	return body[p.val:p.end]
}

// insertMember puts a member first into the object at obj, where cuts may take
// others out, or put others in at the same place. It goes before the cuts that are
// there.
func insertMember(body []byte, obj int, member string, cuts []cut) []cut {
	at := obj + 1
	next, beside := space(body, at), false
	for _, c := range cuts {
		if len(c.with) == 0 && c.from <= next && next < c.to {
			next = space(body, c.to)
		}
		beside = beside || c.from == at && c.to == at && len(c.with) > 0
	}
	if beside || next < len(body) && body[next] != '}' {
		member += ","
	}
	return append([]cut{{at, at, []byte(member)}}, cuts...)
}
