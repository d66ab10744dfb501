package relay

import (
	"errors"
	"net/http"
	"slices"

	"github.com/longcall/longcall/internal/mcp"
)

// headerRelay marks the requests of a relay. With the token of the state folder
// and on a loopback connection it tells the serve that a host is on a pipe: it
// cannot mirror arguments into headers, because the relay does not know the
// tools' schemas, and it cancels by message only, never by closing a stream.
const headerRelay = "Longcall-Relay"

// headerCall is the id of the call that answers a tools/call, in the response.
// In a request of a relay it names the call that the request was about before
// its stream was lost.
const headerCall = "Longcall-Call"

// modern says whether a message is of a revision without sessions. Each message
// says so itself: a host may speak both on one pipe (SPEC §5.3).
func modern(m *mcp.Message) bool {
	if !m.MetaVersion.Ok() {
		return false
	}
	v, ok := mcp.String(m.MetaVersion.Of(m.Raw))
	return !ok || !slices.Contains(mcp.LegacyVersions, v) && v != mcp.V20241105
}

var errMethod = errors.New("there is no method with such a name")

// headers are those that 2026-07-28 asks of HTTP clients, made from the message
// (SPEC §1.3).
func headers(m *mcp.Message) (http.Header, error) {
	h := http.Header{}
	version, ok := mcp.String(m.MetaVersion.Of(m.Raw))
	if !ok || !safe(version) {
		version = mcp.LatestModern // the serve says what is wrong with the message
	}
	if !safe(m.Method) {
		return nil, errMethod
	}
	h.Set(mcp.HeaderVersion, version)
	h.Set(mcp.HeaderMethod, m.Method)
	if name, ok := mcp.String(named(m)); ok {
		h.Set(mcp.HeaderName, mcp.EncodeHeader(name))
	}
	return h, nil
}

// named is the raw value that Mcp-Name mirrors; nil for methods that name nothing.
func named(m *mcp.Message) []byte {
	switch m.Method {
	case mcp.MethodToolsCall, "prompts/get":
		return m.Name.Of(m.Raw)
	case "resources/read":
		return m.URI.Of(m.Raw)
	case "tasks/get", "tasks/update", "tasks/cancel":
		return mcp.Value(m.Params.Of(m.Raw), "taskId")
	}
	return nil
}

// safe says whether s can be the value of a header as it is.
func safe(s string) bool { return s != "" && mcp.EncodeHeader(s) == s }

// idKey makes ids comparable: 1 and "1" are two, and however a string is escaped
// it is one.
func idKey(raw []byte) string {
	if len(raw) > 0 && raw[0] == '"' {
		if s, ok := mcp.String(raw); ok {
			return `"` + s
		}
	}
	return string(raw)
}
