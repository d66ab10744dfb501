package downstream

import (
	"bytes"

	"github.com/longcall/longcall/internal/mcp"
)

// maxAskable bounds what is said of one kind of question, in bytes. No revision
// needs a tenth of it; a kind that says more counts as not declared.
const maxAskable = 512

// askable is what an agent of a revision can be asked, from the client capabilities
// that it declared: elicitation, sampling and roots with all that they hold, in
// canonical form; empty if it can be asked nothing. It is never more than was
// declared (SPEC §4.2).
func askable(caps []byte, version string) string {
	var set []byte
	for _, kind := range [...]string{"elicitation", "roots", "sampling"} {
		if kind == "elicitation" && version < mcp.V20250618 || !bytes.Contains(caps, []byte(kind)) {
			continue // before 2025-06-18 there is no elicitation
		}
		f := find(caps, 0, kind)
		if !f.ok() || caps[f.val] != '{' {
			continue
		}
		v, err := mcp.Canonical(caps[f.val:skipValue(caps, f.val)])
		if err != nil || len(v) > maxAskable {
			continue
		}
		if set == nil {
			set = append(set, '{')
		} else {
			set = append(set, ',')
		}
		set = append(append(append(set, mcp.Quote(kind)...), ':'), v...)
	}
	if set == nil {
		return ""
	}
	return string(append(set, '}'))
}
