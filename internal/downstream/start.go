package downstream

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/command"
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
	return badMeta(m)
}

// badMeta says what is wrong with the _meta of a request that may take long; empty
// if nothing is.
func badMeta(m *mcp.Message) string {
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
	if d.AutoAttach || d.AutoDisconnect {
		x.byHints(&d, t)
	}
	if x.relayed() {
		d.CancelOnDisconnect = false // on a pipe, only a message cancels (SPEC §2.3)
	}
	args := m.Arguments.Of(m.Raw)
	if !isObject(args) {
		args = []byte("{}")
	}
	spec := call.Spec{
		Principal: x.q.Principal, Capabilities: x.asks, Server: t.server, Tool: t.tool, PublicTool: t.public,
		Era: x.version, RequestID: x.q.ID, Traceparent: x.traceparent(m),
		Request: m.Raw, Limits: d.Limits, Denied: d.Denied, Attach: d.Attach, LogLevel: logLevel(m),
		Params: x.unknownParams(t),
	}
	var plan *command.Plan
	if x.isShell(t.server) {
		var answer []byte
		if plan, answer = x.shellPlan(m, t, s, &d, args); plan == nil {
			return nil, answer
		}
	}
	if keep := x.set.KeepArguments; keep != nil {
		spec.Arguments = keep(args)
	}
	if digest := x.set.Digest; digest != nil {
		spec.Digest = digest(args)
		if d.PerSession && s != nil {
			spec.Digest = sessionDigest(spec.Digest, s.id)
		}
	}
	a := x.newAttachment(m, d)
	a.shell, a.plan = plan != nil, plan
	spec.Client = x.clientOf(m, s)
	key, wrong := x.idempotencyKey(m)
	if wrong != "" {
		return nil, mcp.ErrorResponse(id, mcp.CodeInvalidParams, wrong, nil)
	}
	if spec.Idempotency = key; key != "" && d.PerSession && s != nil {
		spec.Idempotency = sessionDigest(key, s.id)
	}
	if plan != nil {
		planned(plan, &spec)
	}
	if !x.modern && d.Buffered {
		spec.Capabilities = "" // there is no stream to ask on
	}
	x.tried.into(&spec)
	x.q.Server, x.q.Tool, x.q.Traceparent = t.server, t.public, spec.Traceparent
	p := x.profile(spec.Client)
	a.task = x.modern && p.Tasks && declaresTasks(m.MetaCapabilities.Of(m.Raw)) && (plan == nil || plan.Job)
	a.budget(p)
	a.enter(s)
	if answer := a.start(spec); answer != nil {
		return nil, answer
	}
	return a, nil
}

// logLevel is from where on a request wants log messages; empty if it does not say.
func logLevel(m *mcp.Message) string {
	l, _ := mcp.String(m.MetaLogLevel.Of(m.Raw))
	return l
}

// newAttachment makes what answers a request that may take long.
func (x *exchange) newAttachment(m *mcp.Message, d Decision) *attachment {
	a := &attachment{
		x: x, ctx: x.r.Context(), modern: x.modern, policy: d, wantLogs: true,
		id: append([]byte(nil), m.ID.Of(m.Raw)...),
	}
	if t := m.MetaToken.Of(m.Raw); t != nil && isProgressToken(t) {
		a.token = append([]byte(nil), t...)
	}
	if x.modern {
		if x.asks != "" {
			if sum, ok := requestDigest(m); ok {
				a.asks = &sum
			}
		}
		var l string
		l, a.wantLogs = mcp.String(m.MetaLogLevel.Of(m.Raw))
		a.logs, _ = level(l)
	}
	return a
}

// clientOf is the name and version of the agent, as it says.
func (x *exchange) clientOf(m *mcp.Message, s *session) string {
	if s != nil {
		return s.client
	}
	return clientName(m.MetaClientInfo.Of(m.Raw))
}

// enter notes the request in its session, if it has one, before it is started.
func (a *attachment) enter(s *session) {
	if s == nil {
		return
	}
	a.session, a.key = s, idKey(a.id)
	a.entry = s.begin(a.key, a.x.h.running)
	if a.plan != nil {
		a.letGo()
	}
}

// start starts the call that the attachment shows, or finds the one that it takes
// over; what it returns is the answer if it shows none.
func (a *attachment) start(spec call.Spec) (answer []byte) {
	x, s := a.x, a.session
	if s != nil {
		spec.Session, spec.AgentRequest = s.id, a.key
	}
	c, join, err := x.attach(a.ctx, spec)
	if err != nil {
		x.observe()
		a.released()
		if s != nil {
			s.detach(a.key, a.entry, false)
		}
		return a.words(notStarted(err), "")
	}
	a.call, a.join, a.after, x.q.Call = c, join, 0, c.ID()
	if a.plan != nil && join == call.Joined {
		a.back = a.x.names(c.ID())
		if a.plan.ErrorIfRunning && !a.back {
			return a.runsAlready()
		}
	}
	if join != call.Started {
		a.after, a.since = joinedAt(c), c.Record().Started
	}
	x.observe()
	if s != nil && a.plan == nil {
		if end := s.started(a.entry, c.ID()); end != nil {
			// An error says that the call has ended by itself already.
			_ = c.Cancel(*end)
		}
	}
	return nil
}

// byHints fills in what is left to what the tool says of itself: an idempotent
// one is joined by all who make the same call, if the operator trusts it that far
// (attach: auto), and a destructive one is not cut off in the middle because a
// stream was lost: half a change is worse than a whole one, and who asks again is
// given its result.
func (x *exchange) byHints(d *Decision, t target) {
	f := x.facts(x.h.spent, t)
	if d.AutoAttach && f.idempotent {
		d.Attach = call.AttachAlways
	}
	if d.AutoDisconnect && f.destructive && !f.idempotent {
		d.CancelOnDisconnect = false
	}
}

// sessionDigest keeps the calls of one session apart from those of others, where
// each has its own connection to the tool server.
func sessionDigest(digest, session string) string {
	sum := sha256.Sum256([]byte(digest + "\x00" + session))
	return hex.EncodeToString(sum[:])
}

// attach starts the call, or finds the one that the request takes over. A relay
// that lost the serve names the call that its request had become.
func (x *exchange) attach(ctx context.Context, spec call.Spec) (*call.Call, call.Join, error) {
	if id, present, ok := only(x.r.Header, HeaderCall); present && ok && spec.Denied == nil && !spec.Volatile && x.relayed() {
		c, err := x.findCall(id)
		if err == nil {
			if rec := c.Record(); rec.Server == spec.Server && rec.Tool == spec.Tool && rec.Digest == spec.Digest {
				c.Enter()
				return c, call.Joined, nil
			}
		}
	}
	return x.h.opt.Engine.Attach(ctx, spec)
}

// names says whether the request is one of a relay that had become this call
// before, and has lost its serve.
func (x *exchange) names(id call.ID) bool {
	v, present, ok := only(x.r.Header, HeaderCall)
	return present && ok && v == string(id) && x.relayed()
}

// joinedAt is where a reader begins that joins a call: at what comes next, or at
// the end if that is there.
func joinedAt(c *call.Call) uint64 {
	rec := c.Record()
	if rec.End.Outcome != call.Running {
		return rec.Seq - 1
	}
	return rec.Seq
}

const (
	metaKeyIdempotency = "dev.longcall/idempotencyKey"
	headerIdempotency  = "Idempotency-Key"
	maxIdempotency     = 256 // bytes of a key
)

// idempotencyKey is a digest of the key that the caller gave for the call, in
// _meta or as a header; empty if it gave none. wrong says what is wrong with it.
func (x *exchange) idempotencyKey(m *mcp.Message) (digest, wrong string) {
	key, present, ok := only(x.r.Header, headerIdempotency)
	if meta := m.Meta.Of(m.Raw); bytes.Contains(meta, []byte(metaKeyIdempotency)) {
		if f := find(meta, 0, metaKeyIdempotency); f.ok() {
			present = true
			key, ok = mcp.String(meta[f.val:f.end])
		}
	}
	switch {
	case !present:
		return "", ""
	case !ok || key == "" || len(key) > maxIdempotency:
		return "", "The idempotency key must be one string of 1 to 256 bytes."
	}
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:16]), ""
}

// extensionTasks is the tasks extension of 2026-07-28.
const extensionTasks = "io.modelcontextprotocol/tasks"

// declaresTasks says whether a request's client capabilities have it.
func declaresTasks(caps []byte) bool {
	if !bytes.Contains(caps, []byte(extensionTasks)) {
		return false
	}
	ext := find(caps, 0, "extensions")
	if !ext.ok() {
		return false
	}
	f := find(caps, ext.val, extensionTasks)
	return f.ok() && caps[f.val] == '{'
}

// notStarted is the end of a call that never was one.
func notStarted(err error) *call.End {
	if errors.Is(err, call.ErrStopping) {
		return &call.End{Outcome: call.Denied, By: "shutdown", Text: "Not started: longcall is stopping. Nothing was sent to the tool server. Call again in a moment."}
	}
	if errors.Is(err, call.ErrMismatch) {
		return &call.End{Outcome: call.Denied, By: "idempotency_key", Text: "Not started: this idempotency key was used for another tool or with other arguments. Nothing was sent to the tool server. Use a new key for a new call."}
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
