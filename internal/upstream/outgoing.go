package upstream

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// clientInfo is who we say we are. The agent's own name stays on its side.
const clientInfo = `{"name":"longcall","version":"1"}`

// declared is the raw object of capabilities that initialize declares.
func declared(caps string) string {
	if caps == "" {
		return "{}"
	}
	return caps
}

// modernMeta are the members that a stateless server needs with every request
// . Of capabilities there is only that we can follow tasks, whether or not
// the agent can: they are absorbed.
var modernMeta = []mcp.Member{
	{Name: mcp.MetaKeyVersion, Value: []byte(`"` + mcp.LatestModern + `"`)},
	{Name: mcp.MetaKeyClientInfo, Value: []byte(clientInfo)},
	{Name: mcp.MetaKeyCapabilities, Value: []byte(`{` + tasksDeclared + `}`)},
}

const (
	tasksMember   = `"` + extensionTasks + `":{}`
	tasksDeclared = `"extensions":{` + tasksMember + `}`
)

// capabilities are those of a call: ours, and what its agent has declared (SPEC
// §4.3; see call.Caller).
func capabilities(asks string) []byte {
	if ext := mcp.Value([]byte(asks), "extensions"); len(ext) > len("{}") {
		all := append([]byte(`{`+tasksMember+`,`), ext[1:]...)
		if b, err := mcp.EditObject([]byte(asks), nil, mcp.Member{Name: "extensions", Value: all}); err == nil {
			return b
		}
	}
	b := append([]byte{'{'}, tasksDeclared...)
	if len(asks) > len("{}") {
		b = append(append(b, ','), asks[1:]...)
		return b
	}
	return append(b, '}')
}

// hopLocal says which members of _meta end at this hop (SPEC §5.7).
func hopLocal(name string) bool {
	switch name {
	case mcp.MetaKeyVersion, mcp.MetaKeyCapabilities, mcp.MetaKeyClientInfo, mcp.MetaKeyProgressToken:
		return true
	}
	return false
}

// outgoingCall makes the message for the tool server out of the agent's: our
// id and progress token, the server's name of the tool or prompt, and the _meta of
// the server's era, spliced into the agent's bytes. level is that of log messages,
// for a stateless server whose agent's request does not say one. All else stays as it was (I12),
// but for the task of 2025-11-25: whether the agent wants one is between it and
// us, and whether the server makes one is ours to ask, for as long as ttl; 0
// means that we do not.
func outgoingCall(s *call.Spec, id, token string, modern bool, level string, ttl time.Duration) ([]byte, error) {
	request := s.Request
	m, err := mcp.Parse(request)
	if err == nil && asksForTask(&m) {
		var params []byte
		if params, err = mcp.EditObject(m.Params.Of(m.Raw), func(name string) bool { return name == "task" }); err == nil {
			request = mcp.AppendEdited(nil, request, mcp.Edit{At: m.Params, With: params})
			m, err = mcp.Parse(request)
		}
	}
	if err != nil {
		return nil, err
	}
	set := []mcp.Member{{Name: mcp.MetaKeyProgressToken, Value: mcp.Quote(token)}}
	if modern {
		set = append(set, modernMeta...)
		set = append(set, mcp.Member{Name: mcp.MetaKeyCapabilities, Value: capabilities(s.Capabilities)})
	}
	if modern && level != "" && !m.MetaLogLevel.Ok() {
		set = append(set, mcp.Member{Name: mcp.MetaKeyLogLevel, Value: mcp.Quote(level)})
	}
	if s.Traceparent != "" {
		set = append(set, mcp.Member{Name: "traceparent", Value: mcp.Quote(s.Traceparent)})
	}
	meta, err := mcp.EditObject(m.Meta.Of(m.Raw), func(name string) bool {
		return hopLocal(name) && !slices.ContainsFunc(set, func(m mcp.Member) bool { return m.Name == name }) ||
			!modern && name == mcp.MetaKeyLogLevel
	}, set...)
	if err != nil {
		return nil, err
	}
	edits := append(make([]mcp.Edit, 0, 4), mcp.Edit{At: m.ID, With: mcp.Quote(id)})
	if s.Tool != "" && m.Name.Ok() {
		edits = append(edits, mcp.Edit{At: m.Name, With: mcp.Quote(s.Tool)})
	}
	var more []byte // members of params
	switch {
	case m.Meta.Ok():
		edits = append(edits, mcp.Edit{At: m.Meta, With: meta})
	case m.Params.Ok() && bytes.IndexByte(m.Params.Of(m.Raw), '"') >= 0:
		more = append([]byte(`,"_meta":`), meta...)
	default: // other methods may have no params, null, or an empty object
		params := append(append([]byte(`{"_meta":`), meta...), '}')
		at := m.Params
		if !at.Ok() {
			end := bytes.LastIndexByte(request, '}')
			at, params = mcp.Span{Start: end, End: end}, append([]byte(`,"params":`), params...)
		}
		edits = append(edits, mcp.Edit{At: at, With: params})
	}
	if ttl > 0 {
		more = fmt.Appendf(more, `,"task":{"ttl":%d}`, ttl.Milliseconds())
	}
	if more != nil {
		end := m.Params.End - 1 // before the closing brace
		edits = append(edits, mcp.Edit{At: mcp.Span{Start: end, End: end}, With: more})
	}
	slices.SortFunc(edits, func(a, b mcp.Edit) int { return a.At.Start - b.At.Start })
	n := 0
	for _, e := range edits {
		n += len(e.With)
	}
	// A line of stdio must not break, and an HTTP body need not.
	return mcp.OneLine(mcp.AppendEdited(make([]byte, 0, len(request)+n), request, edits...)), nil
}

// asksForTask says whether params may have a member "task". It looks beside the
// arguments, which may be large.
func asksForTask(m *mcp.Message) bool {
	head, tail := m.Params.Of(m.Raw), []byte(nil)
	if m.Arguments.Ok() {
		head, tail = m.Raw[m.Params.Start:m.Arguments.Start], m.Raw[m.Arguments.End:m.Params.End]
	}
	for _, part := range [][]byte{head, tail} {
		if bytes.Contains(part, []byte("task")) || bytes.IndexByte(part, '\\') >= 0 { // a name can be written with escapes
			return true
		}
	}
	return false
}

// outgoingRequest makes a request of our own. params is a raw JSON object or nil.
func outgoingRequest(id, method string, params []byte, modern bool) []byte {
	if modern {
		meta, _ := mcp.EditObject(nil, nil, modernMeta...)
		params, _ = mcp.EditObject(params, nil, mcp.Member{Name: "_meta", Value: meta})
	}
	b := append([]byte(`{"jsonrpc":"2.0","id":`), mcp.Quote(id)...)
	b = append(append(b, `,"method":`...), mcp.Quote(method)...)
	if len(params) > 0 {
		b = append(append(b, `,"params":`...), params...)
	}
	return append(b, '}')
}

// note is a notification to a server.
type note struct {
	method string
	params []byte // a raw JSON object, or nil
	any    bool   // for servers of both eras
}

// message is the note in one line, in the words of an era.
func (n *note) message(modern bool) []byte {
	params := n.params
	if meta := mcp.Value(params, "_meta"); meta != nil || modern {
		set := []mcp.Member(nil)
		if modern {
			set = modernMeta
		}
		if meta, err := mcp.EditObject(meta, hopLocal, set...); err == nil {
			params, _ = mcp.EditObject(params, nil, mcp.Member{Name: "_meta", Value: meta})
		}
	}
	b := append([]byte(`{"jsonrpc":"2.0","method":`), mcp.Quote(n.method)...)
	if params != nil {
		b = append(append(b, `,"params":`...), params...)
	}
	return mcp.OneLine(append(b, '}'))
}

// outgoingCancel tells a server to cancel the request with our id.
func outgoingCancel(id, reason string) []byte {
	b := append([]byte(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`), mcp.Quote(id)...)
	return append(append(append(b, `,"reason":`...), mcp.Quote(reason)...), "}}"...)
}

// refusal answers a server's request that no agent can serve: ping with an
// empty result, all else with "method not found", because we declared no
// capability. id is raw JSON.
func refusal(id []byte, method string) []byte {
	if method == mcp.MethodPing {
		return mcp.ResultResponse(id, []byte(`{}`))
	}
	return mcp.ErrorResponse(id, mcp.CodeMethodNotFound, "longcall did not declare this capability: the agent cannot serve "+method, nil)
}
