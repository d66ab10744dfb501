package downstream

import (
	"bytes"

	"github.com/longcall/longcall/internal/mcp"
)

// maxAskable bounds what is said of one kind of question, in bytes. No revision
// needs a tenth of it; a kind that says more counts as not declared.
const maxAskable = 512

// maxExtensions bounds the settings of extensions together, in bytes; with more, none
// counts as declared.
const maxExtensions = 4 << 10

// askable is what an agent of a revision has declared of itself that concerns tool
// servers, from its client capabilities: elicitation, sampling and roots with all
// that they hold, and its settings of extensions but tasks, in canonical form; empty
// if there is nothing. It is never more than was declared (SPEC §4.2); what of it a
// server hears is the operator's to say.
func askable(caps []byte, version string) string {
	var set []byte
	for _, kind := range [...]string{"elicitation", "extensions", "roots", "sampling"} {
		if kind == "elicitation" && version < mcp.V20250618 || !bytes.Contains(caps, []byte(kind)) {
			continue // before 2025-06-18 there is no elicitation
		}
		f := find(caps, 0, kind)
		if !f.ok() || caps[f.val] != '{' {
			continue
		}
		v, most := caps[f.val:skipValue(caps, f.val)], maxAskable
		if kind == "extensions" {
			if !hasOther(caps, f.val) {
				continue
			}
			v, most = otherExtensions(v), maxExtensions
		}
		v, err := mcp.Canonical(v)
		if err != nil || len(v) > most || len(v) <= len("{}") && kind == "extensions" {
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

// hasOther says whether there is an extension that longcall does not end itself. Most
// requests have none, and cost nothing.
func hasOther(caps []byte, obj int) (other bool) {
	members(caps, obj, func(name []byte, _ field) { other = other || string(name) != extensionTasks })
	return other
}

// otherExtensions are those that longcall does not end itself.
func otherExtensions(raw []byte) []byte {
	b, err := mcp.EditObject(raw, func(name string) bool { return name == extensionTasks })
	if err != nil {
		return []byte("{}")
	}
	return b
}
