package upstream

import (
	"strings"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// named is a request's method, and the name that goes with it in the headers of
// the stateless era: of a tool, a prompt or a resource (SPEC §1.3).
func named(s *call.Spec, request []byte) (method, name string) {
	switch s.Method {
	case "":
		return mcp.MethodToolsCall, s.Tool
	case mcp.MethodPromptsGet:
		return s.Method, s.Tool
	case mcp.MethodResourcesRead:
		if m, err := mcp.Parse(request); err == nil {
			name, _ = mcp.String(m.URI.Of(m.Raw))
		}
	}
	return s.Method, name
}

// readsOnly says whether a request changes nothing at its server, by the meaning
// of its method, so that it may be sent again after it was lost. Nothing is known
// of the methods of extensions.
func readsOnly(s *call.Spec) bool {
	switch s.Method {
	case mcp.MethodPromptsGet, mcp.MethodResourcesRead, mcp.MethodComplete:
		return s.Volatile
	}
	return false
}

// inWords makes the end of another request than a call say what is true of it: one
// that only reads has no effect that its caller would have to look for.
func inWords(s *call.Spec, a call.Answer) call.Answer {
	if a.Outcome != call.Interrupted || !readsOnly(s) {
		return a
	}
	text, _ := strings.CutPrefix(a.Text, unknownOutcome)
	text = strings.Replace(text, checkFirst, "", 1)
	a.Text = "No answer: " + text + " The request only reads, so you may send it again."
	return a
}
