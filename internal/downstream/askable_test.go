package downstream

import (
	"strings"
	"testing"

	"github.com/longcall/longcall/internal/mcp"
)

// What an agent can be asked is what it declared, with all that it holds, and never
// more (SPEC §4.2, §4.3).
func TestAskable(t *testing.T) {
	for _, c := range []struct{ name, caps, version, want string }{
		{"nothing", `{}`, mcp.V20260728, ``},
		{"no capabilities", ``, mcp.V20251125, ``},
		{"other things only", `{"extensions":{"io.modelcontextprotocol/tasks":{}},"experimental":{"sampling":{}}}`, mcp.V20260728, ``},
		{"extensions but tasks", `{"extensions":{"io.modelcontextprotocol/tasks":{},"b/x":{"z":1,"a":2},"a/x":{}}}`, mcp.V20250326, `{"extensions":{"a/x":{},"b/x":{"a":2,"z":1}}}`},
		{"too much of extensions", `{"extensions":{"a/x":"` + strings.Repeat("x", maxExtensions) + `"},"roots":{}}`, mcp.V20260728, `{"roots":{}}`},
		{"form", `{"elicitation":{}}`, mcp.V20250618, `{"elicitation":{}}`},
		{"modes, order and blanks", `{ "sampling" : {"tools":{}, "context":{}}, "elicitation": {"url":{}, "form": {}}}`, mcp.V20260728, `{"elicitation":{"form":{},"url":{}},"sampling":{"context":{},"tools":{}}}`},
		{"what the next revision adds", `{"elicitation":{"voice":{"b":1,"a":[1,2]}}}`, mcp.V20260728, `{"elicitation":{"voice":{"a":[1,2],"b":1}}}`},
		{"roots", `{"roots":{"listChanged":true}}`, mcp.V20250326, `{"roots":{"listChanged":true}}`},
		{"there is no elicitation before 2025-06-18", `{"elicitation":{},"roots":{}}`, mcp.V20250326, `{"roots":{}}`},
		{"not an object", `{"elicitation":true,"sampling":null,"roots":[]}`, mcp.V20260728, ``},
		{"too much", `{"elicitation":{"x":"` + strings.Repeat("x", maxAskable) + `"},"roots":{}}`, mcp.V20260728, `{"roots":{}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := askable([]byte(c.caps), c.version); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}
