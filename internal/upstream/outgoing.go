package upstream

import (
	"slices"

	"github.com/longcall/longcall/internal/mcp"
)

// clientInfo is who we say we are. The agent's own name stays on its side.
const clientInfo = `{"name":"longcall","version":"1"}`

// modernMeta are the members that a stateless server needs with every request
// . No capability is declared: requests of the server could not be
// answered yet.
var modernMeta = []mcp.Member{
	{Name: mcp.MetaKeyVersion, Value: []byte(`"` + mcp.LatestModern + `"`)},
	{Name: mcp.MetaKeyClientInfo, Value: []byte(clientInfo)},
	{Name: mcp.MetaKeyCapabilities, Value: []byte(`{}`)},
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
// id and progress token, the server's name of the tool, and the _meta of the
// server's era, spliced into the agent's bytes. All else stays as it was (I12).
func outgoingCall(request []byte, tool, id, token string, modern bool, traceparent string) ([]byte, error) {
	m, err := mcp.Parse(request)
	if err != nil {
		return nil, err
	}
	set := []mcp.Member{{Name: mcp.MetaKeyProgressToken, Value: mcp.Quote(token)}}
	if modern {
		set = append(set, modernMeta...)
	}
	if traceparent != "" {
		set = append(set, mcp.Member{Name: "traceparent", Value: mcp.Quote(traceparent)})
	}
	meta, err := mcp.EditObject(m.Meta.Of(m.Raw), func(name string) bool {
		return hopLocal(name) && !slices.ContainsFunc(set, func(s mcp.Member) bool { return s.Name == name }) ||
			!modern && name == mcp.MetaKeyLogLevel
	}, set...)
	if err != nil {
		return nil, err
	}
	edits := []mcp.Edit{{At: m.ID, With: mcp.Quote(id)}, {At: m.Name, With: mcp.Quote(tool)}}
	if m.Meta.Ok() {
		edits = append(edits, mcp.Edit{At: m.Meta, With: meta})
	} else {
		end := m.Params.End - 1 // before the closing brace; a call's params are never empty
		edits = append(edits, mcp.Edit{
			At:   mcp.Span{Start: end, End: end},
			With: slices.Concat([]byte(`,"_meta":`), meta),
		})
	}
	slices.SortFunc(edits, func(a, b mcp.Edit) int { return a.At.Start - b.At.Start })
	n := 0
	for _, e := range edits {
		n += len(e.With)
	}
	// A line of stdio must not break, and an HTTP body need not.
	return mcp.OneLine(mcp.AppendEdited(make([]byte, 0, len(request)+n), request, edits...)), nil
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
