package downstream

import (
	"slices"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// The requests beside tools/call that a tool server answers, and that may take long
// prompts/get, resources/read, completion/complete, and methods
// of extensions that the operator allows. Each is a volatile call of the engine:
// it has everything of a call but a record, and ends with its reader.

// reading is what an attachment knows of such a request.
type reading struct {
	method   string
	uncached bool      // its result must not be cached
	spec     call.Spec // of what was started
	others   []string  // servers that may have the resource, if the one that was asked has not
}

// isRead says whether a method is one of them.
func (x *exchange) isRead(method string) bool {
	return coreRead(method) || x.extensionOwner(method) != ""
}

func coreRead(method string) bool {
	switch method {
	case mcp.MethodPromptsGet, mcp.MethodResourcesRead, mcp.MethodComplete:
		return true
	}
	return false
}

// extension says whether the method is one of an extension.
func (r *reading) extension() bool { return !coreRead(r.method) }

// badRead says what is wrong with the params of one; empty if nothing is.
func badRead(m *mcp.Message) string {
	switch m.Method {
	case mcp.MethodPromptsGet:
		if name, ok := mcp.String(m.Name.Of(m.Raw)); !ok || name == "" {
			return "prompts/get needs params.name, a string."
		}
		if a := m.Arguments.Of(m.Raw); a != nil && !isObject(a) && string(a) != "null" {
			return "params.arguments must be an object."
		}
	case mcp.MethodResourcesRead, mcp.MethodSubscribe, mcp.MethodUnsubscribe:
		if uri, ok := mcp.String(m.URI.Of(m.Raw)); !ok || uri == "" {
			return m.Method + " needs params.uri, a string."
		}
	case mcp.MethodComplete:
		if r := readRef(m); r.wrong != "" {
			return r.wrong
		}
		if f := find(m.Raw, m.Params.Start, "argument"); !f.ok() || m.Raw[f.val] != '{' {
			return "completion/complete needs params.argument, an object with name and value."
		}
	}
	return badMeta(m)
}

// ref is what a completion is for.
type ref struct {
	kind  mcp.ListKind // ListPrompts or ListTemplates
	name  string       // of the prompt, or the URI
	at    mcp.Span     // where name stands
	wrong string
}

func readRef(m *mcp.Message) (r ref) {
	f := find(m.Raw, m.Params.Start, "ref")
	if !f.ok() || m.Raw[f.val] != '{' {
		r.wrong = "completion/complete needs params.ref, an object."
		return r
	}
	member := "name"
	switch kind, _ := text(m.Raw[f.val:], "type"); kind {
	case "ref/prompt":
		r.kind = mcp.ListPrompts
	case "ref/resource":
		r.kind, member = mcp.ListTemplates, "uri"
	default:
		r.wrong = "params.ref.type must be ref/prompt or ref/resource."
		return r
	}
	n := find(m.Raw, f.val, member)
	var ok bool
	if n.ok() {
		r.at = mcp.Span{Start: n.val, End: n.end}
		r.name, ok = mcp.String(r.at.Of(m.Raw))
	}
	if !ok || r.name == "" {
		r.wrong = "params.ref." + member + " must be a string."
	}
	return r
}

// startRead starts a checked request, or answers what is wrong with it.
func (x *exchange) startRead(m *mcp.Message, s *session) (*attachment, []byte) {
	id := m.ID.Of(m.Raw)
	if wrong := badRead(m); wrong != "" {
		return nil, mcp.ErrorResponse(id, mcp.CodeInvalidParams, wrong, nil)
	}
	var t target
	var others []string // servers that may have it if the target has not
	request := m.Raw
	switch m.Method {
	case mcp.MethodPromptsGet:
		var ok bool
		public, _ := mcp.String(m.Name.Of(m.Raw))
		if t, ok = x.resolve(mcp.ListPrompts, public); !ok {
			return nil, mcp.ErrorResponse(id, mcp.CodeInvalidParams, "Unknown prompt: "+oneLine(public, 200), nil)
		}
		request = renamed(m, m.Name, t)
	case mcp.MethodResourcesRead:
		uri, _ := mcp.String(m.URI.Of(m.Raw))
		if own := x.h.own; own != nil && own.owns(uri) {
			return nil, x.readOwn(id, uri)
		}
		likely, rest := x.owners(uri)
		owners := append(likely, rest...)
		if len(owners) == 0 {
			return nil, x.noResource(id, uri)
		}
		t, others = target{server: owners[0], tool: uri, public: uri}, owners[1:]
	case mcp.MethodComplete:
		r := readRef(m)
		var ok bool
		if t, ok = x.refOwner(r); !ok {
			return nil, mcp.ErrorResponse(id, mcp.CodeInvalidParams, "There is no such prompt or resource template: "+oneLine(r.name, 200), nil)
		}
		if r.kind == mcp.ListPrompts {
			request = renamed(m, r.at, t)
		}
	default:
		t = target{server: x.extensionOwner(m.Method)}
	}
	x.q.Server, x.q.Traceparent = t.server, x.traceparent(m)
	d := x.admitRead(t.server)
	a := x.newAttachment(m, d)
	a.read = &reading{
		method: m.Method, others: others, uncached: answersInput(m) || x.tried != nil,
		spec: call.Spec{
			Principal: x.q.Principal, Capabilities: x.asks, Client: x.clientOf(m, s), Server: t.server, Method: m.Method, Volatile: true,
			Era: x.version, RequestID: x.q.ID, Traceparent: x.q.Traceparent, Request: request, Limits: d.Limits, Denied: d.Denied, Attach: call.AttachNever,
			LogLevel: logLevel(m),
		},
	}
	spec := &a.read.spec
	x.tried.into(spec)
	if !x.modern && d.Buffered {
		spec.Capabilities = "" // there is no stream to ask on
	}
	if m.Method == mcp.MethodPromptsGet {
		spec.Tool, spec.PublicTool = t.tool, t.public
	}
	a.enter(s)
	if answer := a.start(*spec); answer != nil {
		return nil, answer
	}
	if len(others) == 0 {
		spec.Request = nil // the call has it, until it is sent
	}
	return a, nil
}

// admitRead decides about a request that is no tools/call: as about the server's
// tools, but nobody takes it over, and it ends with its reader.
func (x *exchange) admitRead(server string) Decision {
	d := x.h.opt.Admit(x.q.Principal, server, "", x.modern)
	d.HandOff, d.TaskOnly, d.Attach, d.CancelOnDisconnect, d.Grace = false, false, call.AttachNever, true, 0
	return d
}

// renamed is the request with the server's own name at a place, where the agent
// used another.
func renamed(m *mcp.Message, at mcp.Span, t target) []byte {
	if t.tool == t.public {
		return m.Raw
	}
	return mcp.AppendEdited(nil, m.Raw, mcp.Edit{At: at, With: mcp.Quote(t.tool)})
}

// answersInput says whether a request brings answers to an InputRequiredResult:
// then its result must not be cached (SPEC §4.1).
func answersInput(m *mcp.Message) bool {
	params := m.Params.Of(m.Raw)
	return find(params, 0, "inputResponses").ok() || find(params, 0, "requestState").ok()
}

// owners are the servers that may have a resource: likely the one that lists it, or
// else those with a template that fits, and then the rest of those that have
// resources. Lists are taken as they are known.
func (x *exchange) owners(uri string) (likely, rest []string) {
	if x.server != "" {
		return []string{x.server}, nil
	}
	for _, server := range x.servers() {
		if caps, known := x.h.opt.Catalog.Capabilities(x.caller(), server); known && !find(caps, 0, "resources").ok() {
			continue
		}
		list, _ := x.h.opt.Catalog.List(x.h.spent, x.caller(), server, mcp.ListResources)
		if slices.ContainsFunc(list.Entries, func(e mcp.Entry) bool { return e.Name == uri }) {
			return []string{server}, nil
		}
		list, _ = x.h.opt.Catalog.List(x.h.spent, x.caller(), server, mcp.ListTemplates)
		if slices.ContainsFunc(list.Entries, func(e mcp.Entry) bool { return inTemplate(e.Name, uri) }) {
			likely = append(likely, server)
		} else {
			rest = append(rest, server)
		}
	}
	return likely, rest
}

// refOwner finds who completes an argument: a prompt by its name, a resource
// template by who lists it, else who may have it.
func (x *exchange) refOwner(r ref) (t target, ok bool) {
	if r.kind == mcp.ListPrompts {
		return x.resolve(mcp.ListPrompts, r.name)
	}
	for _, server := range x.servers() {
		list, _ := x.h.opt.Catalog.List(x.h.spent, x.caller(), server, mcp.ListTemplates)
		if x.server != "" || slices.ContainsFunc(list.Entries, func(e mcp.Entry) bool { return e.Name == r.name }) {
			return target{server: server, tool: r.name, public: r.name}, true
		}
	}
	likely, rest := x.owners(r.name)
	if likely = append(likely, rest...); len(likely) == 0 {
		return t, false
	}
	return target{server: likely[0], tool: r.name, public: r.name}, true
}

// noResource answers for a resource that nobody has, in the era's code (SPEC §5.6).
func (x *exchange) noResource(id []byte, uri string) []byte {
	code := mcp.CodeResourceNotFound
	if x.modern {
		code = mcp.CodeInvalidParams
	}
	return mcp.ErrorResponse(id, code, "Resource not found: "+oneLine(uri, 200), append(append([]byte(`{"uri":`), mcp.Quote(uri)...), '}'))
}

// readOwn answers resources/read for a resource of longcall itself.
func (x *exchange) readOwn(id []byte, uri string) []byte {
	contents, ok := x.h.own.read(x, uri)
	if !ok {
		return x.noResource(id, uri)
	}
	b := []byte(`{`)
	if x.modern {
		b = append(b, completeC...)
	}
	b = append(append(b, `"contents":`...), contents...)
	if x.modern {
		b = append(b, `,"ttlMs":0,"cacheScope":"private",`...)
		b = append(b, x.h.metaInfo()...)
	}
	return mcp.ResultResponse(id, append(b, '}'))
}

// next asks the next server, if the answer only says that the one before has no
// such resource. It returns false if the answer is the agent's.
func (r *reading) next(a *attachment, ev *call.Event) bool {
	if r == nil || len(r.others) == 0 || !notFound(ev) || a.ctx.Err() != nil {
		return false
	}
	r.spec.Server, r.others = r.others[0], r.others[1:]
	a.policy = a.x.admitRead(r.spec.Server)
	r.spec.Limits, r.spec.Denied = a.policy.Limits, a.policy.Denied
	before, after := a.call, a.after
	if a.start(r.spec) != nil {
		a.after = after
		return false
	}
	before.Leave(call.Delivery{}, 0)
	a.x.q.Server = r.spec.Server
	return true
}

// notFound says whether an answer is an error by which servers say that they have
// no such resource: there is a code for it up to 2025-11-25, bad params after, and
// the Python SDK says 0.
func notFound(ev *call.Event) bool {
	if ev.End == nil || ev.End.Outcome != call.Failed || ev.Body == nil {
		return false
	}
	switch ev.End.Code {
	case mcp.CodeResourceNotFound, mcp.CodeInvalidParams, mcp.CodeMethodNotFound, 0:
		return true
	}
	return false
}

// allowedExtensions are those that the operator lets through to a server, by
// name.
func (x *exchange) allowedExtensions(server string) (names []string) {
	for name := range x.set.Extensions[server] {
		names = append(names, name)
	}
	return names
}

// extensionOwner is the server that gets requests and notifications of a method that
// longcall does not know: the one, if there is only one here, whose extensions the operator
// lets through. Empty if there is none.
func (x *exchange) extensionOwner(method string) (owner string) {
	if len(x.set.Extensions) == 0 {
		return ""
	}
	for _, server := range x.servers() {
		if !mcp.Allows(x.set.Extensions[server], method) {
			continue
		}
		if owner != "" {
			return ""
		}
		owner = server
	}
	return owner
}
