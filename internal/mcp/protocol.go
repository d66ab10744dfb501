package mcp

// The revisions of the protocol that longcall speaks. They compare as strings.
const (
	V20241105 = "2024-11-05"
	V20250326 = "2025-03-26"
	V20250618 = "2025-06-18"
	V20251125 = "2025-11-25"
	V20260728 = "2026-07-28"

	LatestLegacy = V20251125
	LatestModern = V20260728
)

// Modern says whether a revision is stateless (2026-07-28 and later).
func Modern(version string) bool { return version >= V20260728 }

// Legacy revisions that are served over Streamable HTTP, newest first, and the modern ones.
var (
	LegacyVersions = []string{V20251125, V20250618, V20250326}
	ModernVersions = []string{V20260728}
)

// JSON-RPC and MCP error codes (SPEC §5.6).
const (
	CodeParse              = -32700
	CodeInvalidRequest     = -32600
	CodeMethodNotFound     = -32601
	CodeInvalidParams      = -32602
	CodeInternal           = -32603
	CodeHeaderMismatch     = -32020
	CodeMissingCapability  = -32021
	CodeUnsupportedVersion = -32022
)

// Keys of _meta.
const (
	MetaKeyProgressToken = "progressToken"
	MetaKeyVersion       = "io.modelcontextprotocol/protocolVersion"
	MetaKeyCapabilities  = "io.modelcontextprotocol/clientCapabilities"
	MetaKeyClientInfo    = "io.modelcontextprotocol/clientInfo"
	MetaKeyServerInfo    = "io.modelcontextprotocol/serverInfo"
	MetaKeyLogLevel      = "io.modelcontextprotocol/logLevel"
	// MetaKeyOutcome tells what longcall itself has to say about a call.
	MetaKeyOutcome = "dev.longcall/outcome"
)

// HTTP headers.
const (
	HeaderSession   = "Mcp-Session-Id"
	HeaderVersion   = "Mcp-Protocol-Version"
	HeaderMethod    = "Mcp-Method"
	HeaderName      = "Mcp-Name"
	HeaderLastEvent = "Last-Event-Id"
)

// Methods that longcall knows by name.
const (
	MethodInitialize   = "initialize"
	MethodInitialized  = "notifications/initialized"
	MethodPing         = "ping"
	MethodDiscover     = "server/discover"
	MethodToolsList    = "tools/list"
	MethodToolsCall    = "tools/call"
	MethodCancelled    = "notifications/cancelled"
	MethodProgress     = "notifications/progress"
	MethodMessage      = "notifications/message"
	MethodToolsChanged = "notifications/tools/list_changed"
)

// ErrorResponse is a JSON-RPC error response. id and data are raw JSON; a nil
// id is left out (2026-07-28: string or number, never null).
func ErrorResponse(id []byte, code int, text string, data []byte) []byte { panic("todo") }

// ResultResponse is a JSON-RPC response with a raw JSON result.
func ResultResponse(id, result []byte) []byte { panic("todo") }

// EncodeHeader makes a value safe for an HTTP header, with the base64 sentinel
// of SPEC §1.3 where it needs one; DecodeHeader undoes it, ok false if a
// sentinel is malformed.
func EncodeHeader(s string) string              { panic("todo") }
func DecodeHeader(v string) (s string, ok bool) { panic("todo") }

// Tool is one entry of a tools/list result.
type Tool struct {
	Name string // the tool server's own
	Raw  []byte // the entry as it came
}

// Tools splits a tools/list result. Entries without a name are an error.
func Tools(result []byte) (tools []Tool, nextCursor string, err error) { panic("todo") }
