package downstream

import (
	"strconv"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

const (
	// taskTTL is how long a task can be asked for after its end, and at least
	// (SPEC §7.8).
	taskTTL = 24 * time.Hour
	// maxStatus is how long a status message may be, in bytes.
	maxStatus = 200
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

// taskCreated is the answer that makes a task of a modern request.
func (a *attachment) taskCreated() []byte {
	b := append([]byte(`{"jsonrpc":"2.0","id":`), a.id...)
	b = append(b, `,"result":{"resultType":"task",`...)
	b = appendTask(b, a.call, true)
	b = append(b, ',')
	b = append(b, a.x.h.metaInfo()...)
	return append(b, `}}`...)
}

// appendTask appends the members that a call has as a task, in the words of
// either generation (SPEC §3.1).
func appendTask(b []byte, c *call.Call, modern bool) []byte {
	rec := c.Record()
	status, message := taskStatus(c, &rec, modern)
	updated := rec.Started
	if ev, ok := c.Latest(call.KindProgress); ok {
		updated = ev.Time
	}
	if !rec.Ended.IsZero() {
		updated = rec.Ended
	}
	ttl := taskTTL
	if rec.Ended.IsZero() {
		ttl += time.Since(rec.Started).Truncate(time.Second)
	} else {
		ttl += rec.Ended.Sub(rec.Started).Truncate(time.Second)
	}
	ttlName, pollName := "ttl", "pollInterval"
	if modern {
		ttlName, pollName = "ttlMs", "pollIntervalMs"
	}
	b = append(b, `"taskId":"`+string(rec.ID)+`","status":"`+status+`"`...)
	if message != "" {
		b = append(append(b, `,"statusMessage":`...), mcp.Quote(message)...)
	}
	b = append(b, `,"createdAt":"`+stampText(rec.Started)+`","lastUpdatedAt":"`+stampText(updated)+`","`+ttlName+`":`...)
	b = strconv.AppendInt(b, ttl.Milliseconds(), 10)
	b = append(b, `,"`+pollName+`":`...)
	return strconv.AppendInt(b, pollAfter(time.Since(rec.Started)).Milliseconds(), 10)
}

// taskStatus is a call's state in the words of tasks, and what a person may be
// told about it.
func taskStatus(c *call.Call, rec *call.Record, modern bool) (status, message string) {
	switch rec.End.Outcome {
	case call.Running:
		if c.Asked() != nil {
			return "input_required", "The tool waits for input."
		}
		if ev, ok := c.Latest(call.KindProgress); ok {
			if m, ok := text(paramsOf(ev.Body), "message"); ok && oneLine(m, maxStatus) != "" {
				return "working", oneLine(m, maxStatus)
			}
		}
		return "working", "Running since " + rec.Started.UTC().Format("15:04:05") + " UTC."
	case call.Cancelled:
		return "cancelled", oneLine(plainWords(&rec.End), maxStatus)
	case call.Completed:
		if rec.End.ToolError && !modern {
			return "failed", "The tool answered with an error."
		}
		return "completed", ""
	case call.Failed:
		if rec.End.Text == "" {
			return "failed", "The tool server answered with an error."
		}
	}
	// What longcall itself says is a tool result with isError, as it would have
	// been without a task.
	if modern {
		return "completed", oneLine(plainWords(&rec.End), maxStatus)
	}
	return "failed", oneLine(plainWords(&rec.End), maxStatus)
}

// paramsOf is the params object of a notification.
func paramsOf(body []byte) []byte {
	p := find(body, 0, "params")
	if !p.ok() {
		return nil
	}
	return body[p.val:p.end]
}
