package upstream

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// inline makes the answer out of a task that carries its own end, as those of
// the extension do.
func (t *task) inline() call.Answer {
	raw, name := t.state.result, "result"
	if t.state.status == taskFailed {
		raw, name = t.state.failure, "error"
	}
	if _, err := strconv.Atoi(string(mcp.Value(raw, "code"))); err != nil && name == "error" {
		return t.failedThere()
	}
	if len(raw) == 0 || raw[0] != '{' {
		return interrupted("the tool server says that the call's task is completed, but gives no result.")
	}
	b := append([]byte(`{"jsonrpc":"2.0","id":0,"`+name+`":`), raw...)
	m, err := mcp.Parse(append(b, '}'))
	if err != nil {
		return interrupted("the tool server says that the call's task is over, but its end cannot be read: %v.", err)
	}
	return t.answer(m)
}

// failedThere is the answer for a task that failed and does not say how.
func (t *task) failedThere() call.Answer {
	return failed("The tool server says that the call's task failed%s. It gives no error and no result; what it had done by then may have taken effect.", t.words())
}

// words are the last status message, for a sentence.
func (t *task) words() string {
	if t.state.message == "" {
		return ""
	}
	return ": " + printable([]byte(t.state.message))
}

// cancelledThere is the answer for a task that the server, or somebody else who
// has access to it, cancelled.
func (t *task) cancelledThere() call.Answer {
	return call.Answer{End: call.End{
		Outcome: call.Cancelled, By: "tool server",
		Text: "Cancelled by the tool server itself, not by you or by longcall" + t.words() + ". What it had done by then may have taken effect: check before you call it again.",
	}}
}

// answer makes the call's end out of the response that the task ended with. It
// takes over m's bytes.
func (t *task) answer(m mcp.Message) call.Answer {
	if kind, _ := mcp.String(m.ResultType.Of(m.Raw)); kind != "" && kind != "complete" {
		return unfinished(kind)
	}
	m, err := t.clean(m)
	if err != nil {
		return interrupted("the tool server says that the call's task is over, but its result cannot be read: %v.", err)
	}
	if err := t.x.Count(int64(len(m.Raw))); err != nil {
		var cause *call.Cause
		errors.As(err, &cause)
		return call.Answer{End: cause.End}
	}
	end := call.End{Outcome: call.Completed, ToolError: string(m.IsError.Of(m.Raw)) == "true"}
	if m.Error.Ok() {
		end = call.End{Outcome: call.Failed, Code: m.Code}
	}
	body, hole := m.TakeHole(m.ID)
	return call.Answer{End: end, Body: body, Hole: hole}
}

// clean takes the server's own task id out of a result, where 2025-11-25 wants
// it: the agent knows the call by another (SPEC §3.5). And it marks the result
// of a task that failed, should the server have left that to the status.
func (t *task) clean(m mcp.Message) (mcp.Message, error) {
	if t.modern || !m.Result.Ok() {
		return m, nil
	}
	var set []mcp.Member
	if t.state.status == taskFailed && string(m.IsError.Of(m.Raw)) != "true" {
		set = append(set, mcp.Member{Name: "isError", Value: []byte("true")})
	}
	related := m.Meta.Ok() && mcp.Value(m.Meta.Of(m.Raw), metaRelated) != nil
	if related {
		meta, err := mcp.EditObject(m.Meta.Of(m.Raw), func(name string) bool { return name == metaRelated })
		if err != nil {
			return m, err
		}
		if string(meta) != "{}" {
			related = false
			set = append(set, mcp.Member{Name: "_meta", Value: meta})
		}
	}
	if set == nil && !related {
		return m, nil
	}
	result, err := mcp.EditObject(m.Result.Of(m.Raw), func(name string) bool { return related && name == "_meta" }, set...)
	if err != nil {
		return m, err
	}
	raw := mcp.AppendEdited(make([]byte, 0, len(m.Raw)+len(result)), m.Raw, mcp.Edit{At: m.Result, With: result})
	return mcp.Parse(raw)
}

// cancelled tells the server to cancel the task, for whatever reason the call is
// to end, and gives it a moment for a late answer, for the record only (O22). A
// call that stays for the next process is left alone.
func (t *task) cancelled(ctx context.Context) call.Answer {
	cause := context.Cause(ctx)
	t.drop()
	if errors.Is(cause, call.ErrLeft) {
		return call.Answer{}
	}
	t.closing = true
	within, stop := context.WithTimeout(context.WithoutCancel(ctx), linger)
	defer stop()
	answered, leave := t.peer.tell(methodTaskCancel, t.params())
	defer leave()
	select {
	case <-answered:
	case <-t.peer.gone():
		return call.Answer{}
	case <-within.Done():
		return call.Answer{}
	}
	var ended *call.Cause
	asked := errors.As(cause, &ended) && ended.End.Outcome == call.Cancelled
	for {
		a, done := t.tick(within)
		if !done && t.fetch != nil {
			<-t.fetch.done // it ends with within
			a, done = t.took(within)
		}
		if done {
			if a.Body != nil && (asked || a.Outcome == call.Completed) {
				return a
			}
			return call.Answer{}
		}
		pause := time.NewTimer(pollMin)
		select {
		case <-pause.C:
		case <-t.peer.gone():
			pause.Stop()
			return call.Answer{} // no question brings anything more
		case <-within.Done():
			pause.Stop()
			return call.Answer{}
		}
	}
}
