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
	CodeResourceNotFound   = -32002 // up to 2025-11-25
	CodeURLElicitation     = -32042 // 2025-11-25: a person has to visit a page first
)

// Keys of _meta.
const (
	MetaKeyProgressToken = "progressToken"
	MetaKeyVersion       = "io.modelcontextprotocol/protocolVersion"
	MetaKeyCapabilities  = "io.modelcontextprotocol/clientCapabilities"
	MetaKeyClientInfo    = "io.modelcontextprotocol/clientInfo"
	MetaKeyServerInfo    = "io.modelcontextprotocol/serverInfo"
	MetaKeyLogLevel      = "io.modelcontextprotocol/logLevel"
	MetaKeySubscription  = "io.modelcontextprotocol/subscriptionId"
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
	MethodInitialize    = "initialize"
	MethodInitialized   = "notifications/initialized"
	MethodPing          = "ping"
	MethodDiscover      = "server/discover"
	MethodToolsList     = "tools/list"
	MethodToolsCall     = "tools/call"
	MethodPromptsList   = "prompts/list"
	MethodPromptsGet    = "prompts/get"
	MethodResourcesList = "resources/list"
	MethodTemplatesList = "resources/templates/list"
	MethodResourcesRead = "resources/read"
	MethodComplete      = "completion/complete"
	MethodSubscribe     = "resources/subscribe"
	MethodUnsubscribe   = "resources/unsubscribe"
	MethodSetLevel      = "logging/setLevel"
	MethodListen        = "subscriptions/listen"

	MethodElicited         = "notifications/elicitation/complete" // 2025-11-25: what a page was for is done
	MethodCancelled        = "notifications/cancelled"
	MethodProgress         = "notifications/progress"
	MethodMessage          = "notifications/message"
	MethodToolsChanged     = "notifications/tools/list_changed"
	MethodPromptsChanged   = "notifications/prompts/list_changed"
	MethodResourcesChanged = "notifications/resources/list_changed"
	MethodUpdated          = "notifications/resources/updated"
	MethodAcknowledged     = "notifications/subscriptions/acknowledged"
	MethodRootsChanged     = "notifications/roots/list_changed"
)
