package downstream

import (
	"net/http"
	"slices"
	"strconv"

	"github.com/longcall/longcall/internal/mcp"
)

// claimsModern decides the era of a message (SPEC §5.3): what _meta says counts,
// then the header. initialize without such a claim is legacy whatever its
// header says, and an agent of a legacy session may name its revision in _meta.
func (x *exchange) claimsModern(m *mcp.Message) bool {
	header, _, _ := only(x.r.Header, mcp.HeaderVersion)
	if m.MetaVersion.Ok() {
		_, session := x.r.Header[mcp.HeaderSession]
		v, ok := mcp.String(m.MetaVersion.Of(m.Raw))
		return !(ok && session && slices.Contains(mcp.LegacyVersions, v) && !mcp.Modern(header))
	}
	return mcp.Modern(header) && m.Method != mcp.MethodInitialize
}

// serveModern serves a message of 2026-07-28 and later: no session, everything
// about the request in the request. The order of the checks is SPEC §8.1 A4's.
func (x *exchange) serveModern(m *mcp.Message) *attachment {
	id := m.ID.Of(m.Raw)
	x.modern, x.version = true, mcp.LatestModern
	x.q.Era = x.version
	switch m.Kind {
	case mcp.Notification: // also notifications/cancelled: here a request is cancelled by closing its stream (A7)
		x.accepted()
		return nil
	case mcp.Response:
		x.fail(http.StatusBadRequest, nil, mcp.CodeInvalidRequest, "A response must not be sent: longcall asks nothing in this revision.", nil)
		return nil
	}
	version, ok := mcp.String(m.MetaVersion.Of(m.Raw))
	if !ok || !isObject(m.MetaCapabilities.Of(m.Raw)) {
		x.fail(http.StatusBadRequest, id, mcp.CodeInvalidParams, "params._meta must hold "+mcp.MetaKeyVersion+", a string, and "+mcp.MetaKeyCapabilities+", an object.", nil)
		return nil
	}
	if v, present, ok := only(x.r.Header, mcp.HeaderVersion); !present || !ok || v != version {
		x.mismatch(id, "The Mcp-Protocol-Version header must be there once and equal "+mcp.MetaKeyVersion+" in params._meta.")
		return nil
	}
	if !slices.Contains(mcp.ModernVersions, version) {
		data := append([]byte(`{"supported":`), versions(mcp.ModernVersions, mcp.LegacyVersions)...)
		data = append(append(data, `,"requested":`...), mcp.Quote(version)...)
		x.fail(http.StatusBadRequest, id, mcp.CodeUnsupportedVersion, "This protocol version is not served here.", append(data, '}'))
		return nil
	}
	x.version, x.q.Era = version, version
	if m.Method != mcp.MethodComplete { // whose answer cannot be a question (SPEC §4.1, R-08)
		x.asks = askable(m.MetaCapabilities.Of(m.Raw), version)
	}
	extension, known := false, true
	switch m.Method {
	case mcp.MethodDiscover, mcp.MethodToolsCall, mcp.MethodPromptsGet, mcp.MethodResourcesRead, mcp.MethodComplete, methodTasksGet, methodTasksUpdate, methodTasksCancel, mcp.MethodListen,
		mcp.MethodToolsList, mcp.MethodPromptsList, mcp.MethodResourcesList, mcp.MethodTemplatesList:
	default:
		extension = x.isRead(m.Method)
		known = extension
	}
	if !known || !x.serves(m.Method) {
		x.writeJSON(http.StatusNotFound, noMethod(m))
		return nil
	}
	if text := badParams(m); text != "" {
		x.fail(http.StatusOK, id, mcp.CodeInvalidParams, text, nil)
		return nil
	}
	if v, present, ok := only(x.r.Header, mcp.HeaderMethod); !present || !ok || v != m.Method {
		x.mismatch(id, "The Mcp-Method header must be there once and equal the request's method.")
		return nil
	}
	if kind, ok := listOf(m.Method); ok {
		x.observe()
		x.reply(x.list(m, kind))
		return nil
	}
	if extension {
		return x.modernRead(m)
	}
	switch m.Method {
	case mcp.MethodDiscover:
		x.observe()
		x.result(id, x.discover(clientName(m.MetaClientInfo.Of(m.Raw))))
	case methodTasksGet, methodTasksUpdate, methodTasksCancel:
		x.serveTask(m)
	case mcp.MethodListen:
		x.subscribe(m)
	case mcp.MethodResourcesRead:
		if !x.namedBy(m.URI.Of(m.Raw)) {
			x.mismatch(id, "The Mcp-Name header must be there once and equal params.uri.")
			return nil
		}
		return x.modernRead(m)
	case mcp.MethodComplete:
		return x.modernRead(m)
	case mcp.MethodPromptsGet, mcp.MethodToolsCall:
		name, _ := mcp.String(m.Name.Of(m.Raw))
		if !x.namedBy(m.Name.Of(m.Raw)) {
			x.mismatch(id, "The Mcp-Name header must be there once and equal params.name.")
			return nil
		}
		if m.Method == mcp.MethodPromptsGet {
			return x.modernRead(m)
		}
		if a, answer, own := x.callOwn(m, nil); own {
			if a == nil {
				x.reply(answer)
			}
			return a
		}
		t, ok := x.resolve(mcp.ListTools, name)
		if !ok {
			x.reply(unknownTool(id, t.public))
			return nil
		}
		if wrong := x.paramHeaders(m, t); wrong != "" && !x.relayed() {
			x.mismatch(id, wrong)
			return nil
		}
		if x.taskOnly(t) && !declaresTasks(m.MetaCapabilities.Of(m.Raw)) {
			x.needsTasks(id, "This tool runs only as a task: a call of it")
			return nil
		}
		m, a, answer := x.comesBack(m)
		if m != nil {
			a, answer = x.startCall(m, t, nil)
		}
		if a == nil {
			x.reply(answer)
		}
		return a
	}
	return nil
}

// modernRead starts a request that is no tools/call, or answers it.
func (x *exchange) modernRead(m *mcp.Message) *attachment {
	m, a, answer := x.comesBack(m)
	if m != nil {
		a, answer = x.startRead(m, nil)
	}
	if a == nil {
		x.observe()
		x.reply(answer)
	}
	return a
}

// namedBy says whether the Mcp-Name header is there once and says the same as a
// member of params, raw (SPEC §1.3).
func (x *exchange) namedBy(raw []byte) bool {
	name, _ := mcp.String(raw)
	v, present, ok := only(x.r.Header, mcp.HeaderName)
	if ok && present {
		v, ok = mcp.DecodeHeader(v)
	}
	return present && ok && v == name
}

// badParams says what is wrong with a request's params; empty if nothing is.
func badParams(m *mcp.Message) (wrong string) {
	switch m.Method {
	case mcp.MethodToolsCall:
		wrong = badCall(m)
	case methodTasksGet, methodTasksUpdate, methodTasksCancel:
		return badTask(m)
	case mcp.MethodListen:
		return badListen(m)
	default:
		wrong = badRead(m)
	}
	if wrong == "" {
		wrong = badAnswers(m)
	}
	return wrong
}

// badAnswers says what is wrong with the answers that a request brings to what it
// was asked before (SPEC §4.1); empty if nothing is. Its state is looked at where it
// is opened.
func badAnswers(m *mcp.Message) string {
	f := find(m.Raw, m.Params.Start, "inputResponses")
	if !f.ok() {
		return ""
	}
	const wrong = "params.inputResponses must be an object that holds an object for each question."
	if m.Raw[f.val] != '{' {
		return wrong
	}
	bad := ""
	members(m.Raw, f.val, func(_ []byte, answer field) {
		if m.Raw[answer.val] != '{' {
			bad = wrong
		}
	})
	return bad
}

func (x *exchange) mismatch(id []byte, text string) {
	x.fail(http.StatusBadRequest, id, mcp.CodeHeaderMismatch, text, nil)
}

// discover says what longcall serves to a client that calls itself so. It never
// waits for a tool server (A3).
func (x *exchange) discover(client string) []byte {
	b := []byte(`{"resultType":"complete","supportedVersions":`)
	b = append(b, versions(mcp.ModernVersions, mcp.LegacyVersions)...)
	b = append(b, `,"capabilities":{`...)
	o := x.offers()
	b = o.append(b)
	extensions := o.extensions
	if x.profile(client).Tasks {
		extensions = append(extensions, mcp.Member{Name: extensionTasks, Value: []byte("{}")})
	}
	if len(extensions) > 0 {
		all, _ := mcp.EditObject(nil, nil, extensions...) // which makes one of nothing
		b = append(append(b, `,"extensions":`...), all...)
	}
	b = append(b, '}')
	b = x.appendInstructions(b)
	b = append(b, `,"ttlMs":`...)
	b = strconv.AppendInt(b, o.ttl().Milliseconds(), 10)
	b = append(b, `,"cacheScope":"private",`...)
	return append(append(b, x.h.metaInfo()...), '}')
}

// metaInfo is the _meta of our own results.
func (h *Handler) metaInfo() []byte {
	b := []byte(`"_meta":{"` + mcp.MetaKeyServerInfo + `":`)
	return append(append(b, h.info...), '}')
}

func serverInfo(i ServerInfo) []byte {
	b := append([]byte(`{"name":`), mcp.Quote(i.Name)...)
	b = append(append(b, `,"version":`...), mcp.Quote(i.Version)...)
	return append(b, '}')
}

func versions(lists ...[]string) []byte {
	b := []byte{'['}
	for _, l := range lists {
		for _, v := range l {
			if len(b) > 1 {
				b = append(b, ',')
			}
			b = append(b, mcp.Quote(v)...)
		}
	}
	return append(b, ']')
}
