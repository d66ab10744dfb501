package downstream

import (
	"errors"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// badCall says what is wrong with a tools/call's params; empty if nothing is.
func badCall(m *mcp.Message) string {
	if name, ok := mcp.String(m.Name.Of(m.Raw)); !ok || name == "" {
		return "tools/call needs params.name, a string."
	}
	if a := m.Arguments.Of(m.Raw); a != nil && !isObject(a) && string(a) != "null" {
		return "params.arguments must be an object."
	}
	if t := m.MetaToken.Of(m.Raw); t != nil && !isProgressToken(t) && string(t) != "null" {
		return "params._meta.progressToken must be a string or a number."
	}
	if m.MetaLogLevel.Ok() {
		l, ok := mcp.String(m.MetaLogLevel.Of(m.Raw))
		if _, known := level(l); !ok || !known {
			return "params._meta[\"" + mcp.MetaKeyLogLevel + "\"] must be one of debug, info, notice, warning, error, critical, alert, emergency."
		}
	}
	return ""
}

// isProgressToken says whether a raw value may be a progress token.
func isProgressToken(raw []byte) bool {
	c := raw[0]
	return c == '"' || c == '-' || c >= '0' && c <= '9'
}

func unknownTool(id []byte, name string) []byte {
	return mcp.ErrorResponse(id, mcp.CodeInvalidParams, "Unknown tool: "+oneLine(name, 200), nil)
}

// startCall starts a checked tools/call and returns what answers it; if it could
// not be started, the answer itself. The call outlives the request.
func (x *exchange) startCall(m *mcp.Message, t target, s *session) (*attachment, []byte) {
	id := m.ID.Of(m.Raw)
	d := x.h.opt.Admit(x.q.Principal, t.server, t.tool, x.modern)
	args := m.Arguments.Of(m.Raw)
	if !isObject(args) {
		args = []byte("{}")
	}
	spec := call.Spec{
		Principal: x.q.Principal, Server: t.server, Tool: t.tool, PublicTool: t.public,
		Era: x.version, RequestID: x.q.ID, Traceparent: x.traceparent(m),
		Request: m.Raw, Limits: d.Limits, Denied: d.Denied,
	}
	if keep := x.set.KeepArguments; keep != nil {
		spec.Arguments = keep(args)
	}
	if digest := x.set.Digest; digest != nil {
		spec.Digest = digest(args)
	}
	a := &attachment{
		x: x, ctx: x.r.Context(), modern: x.modern, policy: d, wantLogs: true,
		id: append([]byte(nil), id...),
	}
	if t := m.MetaToken.Of(m.Raw); t != nil && isProgressToken(t) {
		a.token = append([]byte(nil), t...)
	}
	if x.modern {
		var l string
		l, a.wantLogs = mcp.String(m.MetaLogLevel.Of(m.Raw))
		a.logs, _ = level(l)
		spec.Client = clientName(m.MetaClientInfo.Of(m.Raw))
	}
	x.q.Server, x.q.Tool, x.q.Traceparent = t.server, t.public, spec.Traceparent
	if s != nil {
		spec.Session, spec.Client = s.id, s.client
		a.session, a.key = s, idKey(id)
		a.entry = s.begin(a.key, x.h.running)
	}
	c, err := x.h.opt.Engine.Start(a.ctx, spec)
	if err != nil {
		x.observe()
		if s != nil {
			s.detach(a.key, a.entry, false)
		}
		return nil, ownWords(id, notStarted(err), "", x.modern)
	}
	a.call, x.q.Call = c, c.ID()
	x.observe()
	if s != nil {
		if end := s.started(a.entry, c.ID()); end != nil {
			// An error says that the call has ended by itself already.
			_ = c.Cancel(*end)
		}
	}
	return a, nil
}

// notStarted is the end of a call that never was one.
func notStarted(err error) *call.End {
	if errors.Is(err, call.ErrStopping) {
		return &call.End{Outcome: call.Denied, By: "shutdown", Text: "Not started: longcall is stopping. Nothing was sent to the tool server. Call again in a moment."}
	}
	return &call.End{Outcome: call.Denied, By: "journal", Text: "Not started: longcall could not record the call, and its config says to refuse calls then (journal.on_failure). Nothing was sent to the tool server. Call again later."}
}

// traceparent is the caller's trace context: from _meta, else from the header;
// empty if it is not well-formed (SPEC §5.7).
func (x *exchange) traceparent(m *mcp.Message) string {
	v, ok := mcp.String(m.Traceparent.Of(m.Raw))
	if !ok {
		v, _, _ = only(x.r.Header, "Traceparent")
	}
	if !isTraceparent(v) {
		return ""
	}
	return v
}

// isTraceparent checks the form 00-<32 hex>-<16 hex>-<2 hex>, ids not all zero.
func isTraceparent(v string) bool {
	const form = "xx-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-xxxxxxxxxxxxxxxx-xx"
	const none = "00-00000000000000000000000000000000-0000000000000000-00"
	if len(v) < len(form) || v[:2] == "ff" || v[:2] == "00" && len(v) > len(form) || len(v) > len(form) && v[len(form)] != '-' || len(v) > 256 {
		return false
	}
	for i := range len(form) {
		c := v[i]
		if form[i] == '-' != (c == '-') || form[i] == 'x' && (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return v[3:35] != none[3:35] && v[36:52] != none[36:52]
}
