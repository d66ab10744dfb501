package downstream

import (
	"errors"
	"net/http"
	"slices"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

const maxBatch = 100

// batch serves an array of messages: in a session of 2025-03-26 only (R-15,
// O23). Its calls run at the same time, and one array answers all its requests
// when the last has ended; so a batch gets no progress and no first byte ahead.
func (x *exchange) batch(body []byte) {
	_, hasSession := x.r.Header[mcp.HeaderSession]
	if v, _, _ := only(x.r.Header, mcp.HeaderVersion); !hasSession || mcp.Modern(v) {
		x.refuse(http.StatusBadRequest, mcp.CodeInvalidRequest, "Batches are not served: send one message per request.")
		return
	}
	s := x.session(nil)
	if s == nil {
		return
	}
	defer s.done()
	x.asks = "" // one array answers all: there is no stream to ask on
	if s.version != mcp.V20250326 {
		x.refuse(http.StatusBadRequest, mcp.CodeInvalidRequest, "Batches are not part of "+s.version+": send one message per request.")
		return
	}
	parts, ok := elements(body)
	if !ok || len(parts) == 0 || len(parts) > maxBatch {
		x.refuse(http.StatusBadRequest, mcp.CodeInvalidRequest, "A batch is an array of 1 to 100 messages.")
		return
	}
	x.q.Method = "batch"
	x.observe()
	answers := make([][]byte, len(parts)) // nil where nothing is owed
	calls := make([]*attachment, len(parts))
	for i, p := range parts {
		calls[i], answers[i] = x.member(s, p)
	}
	for i, a := range calls {
		if a != nil {
			answers[i] = a.collect()
		}
	}
	gone := x.r.Context().Err() != nil
	out := []byte{'['}
	for _, b := range answers {
		if b != nil {
			if len(out) > 1 {
				out = append(out, ',')
			}
			out = append(out, b...)
		}
	}
	if len(out) == 1 && !slices.ContainsFunc(calls, func(a *attachment) bool { return a != nil }) {
		x.accepted()
	} else {
		x.reply(append(out, ']'))
	}
	for _, a := range calls {
		if a != nil {
			a.collected(gone)
		}
	}
}

// member serves one message of a batch: it returns a call, an answer or neither.
func (x *exchange) member(s *session, raw []byte) (*attachment, []byte) {
	m, err := mcp.Parse(raw)
	if err != nil {
		var pe *mcp.ParseError
		if errors.As(err, &pe) {
			return nil, mcp.ErrorResponse(pe.ID, pe.Code, pe.Text, nil)
		}
		return nil, mcp.ErrorResponse(nil, mcp.CodeParse, "A message of the batch is not JSON.", nil)
	}
	switch {
	case m.Kind == mcp.Notification:
		x.notified(s, &m)
		return nil, nil
	case m.Kind == mcp.Response:
		x.answered(s, &m)
		return nil, nil
	case m.Kind != mcp.Request:
		return nil, nil
	case m.Method == mcp.MethodInitialize:
		return nil, mcp.ErrorResponse(m.ID.Of(raw), mcp.CodeInvalidRequest, "initialize must not be part of a batch.", nil)
	}
	return x.legacyRequest(&m, s)
}

// collect waits for the call's end and returns the answer; nil if the agent
// cancelled the call or is gone.
func (a *attachment) collect() (answer []byte) {
	if a.own != nil {
		return a.own.collect()
	}
	a.begin("json")
	a.batched = true
	a.follow(0, func(ev call.Event) bool {
		if ev.Kind != call.KindEnd {
			return true
		}
		if a.owed(ev.End) {
			body, cuts := a.response(&ev)
			answer = splice(make([]byte, 0, len(body)+64), body, cuts)
		}
		return false
	})
	if a.kept != nil {
		return a.kept
	}
	return answer
}

// collected records how a call of a batch was delivered, once the batch is
// answered; gone says that the agent had left before.
func (a *attachment) collected(gone bool) {
	if a.own != nil {
		a.own.collected(gone)
		return
	}
	end := a.call.Record().End
	switch {
	case a.kept != nil && (gone || a.x.out.err != nil):
		a.gone()
	case a.d.How != "" || end.Outcome == call.Running || !a.owed(&end):
	case gone || a.x.out.err != nil:
		a.gone()
	default:
		a.delivered(&end)
	}
	a.finish()
}
