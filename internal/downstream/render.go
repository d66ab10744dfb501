package downstream

import (
	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// ownWords is longcall's own answer to a tools/call: a tool result, because
// hosts show protocol errors to nobody, that says in plain words what happened
// and in _meta which outcome that was (DESIGN §1). It is never a success.
func ownWords(id []byte, end *call.End, c call.ID, modern bool) []byte {
	b := make([]byte, 0, 512+len(end.Text))
	b = append(b, `{"jsonrpc":"2.0","id":`...)
	b = append(b, id...)
	b = append(b, `,"result":{`...)
	if modern {
		b = append(b, completeC...)
	}
	b = append(b, `"content":[{"type":"text","text":`...)
	b = append(b, mcp.Quote(plainWords(end))...)
	b = append(b, `}],"isError":true,"_meta":{`...)
	return append(append(b, outcomeMeta(end, c)...), `}}}`...)
}

// outcomeMeta is the member of _meta that says which outcome a result tells.
func outcomeMeta(end *call.End, c call.ID) string {
	b := []byte(`"` + mcp.MetaKeyOutcome + `":{"outcome":`)
	b = append(b, mcp.Quote(string(end.Outcome))...)
	if end.Limit != "" {
		b = append(b, `,"limit":`...)
		b = append(b, mcp.Quote(end.Limit)...)
	}
	if end.By != "" {
		b = append(b, `,"by":`...)
		b = append(b, mcp.Quote(end.By)...)
	}
	if c != "" {
		b = append(b, `,"call":`...)
		b = append(b, mcp.Quote(string(c))...)
	}
	return string(append(b, '}'))
}

func plainWords(end *call.End) string {
	if end.Text != "" {
		return end.Text
	}
	switch end.Outcome {
	case call.Failed:
		return "The call failed: the tool server could not be used. See longcall's log for the reason."
	case call.Cancelled:
		return "The call was cancelled by " + end.By + ". What the tool had done by then may have taken effect: check before you call it again."
	case call.TimedOut:
		return "The call was stopped at a time limit of longcall. What the tool had done by then may have taken effect: check before you call it again."
	case call.Denied:
		return "The call was not allowed. Nothing was sent to the tool server."
	}
	return "Outcome unknown: longcall lost the call. It may have taken effect: check before you call it again."
}

// levels of notifications/message, by severity.
var levels = [...]string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// level is the rank of a level's name, from 0; ok is false if there is none.
func level(name string) (rank int, ok bool) {
	for i, l := range levels {
		if l == name {
			return i, true
		}
	}
	return 0, false
}

// logRank finds the level of a notifications/message; ok is false if body is
// another notification, which nobody asked for.
func logRank(body []byte) (rank int, ok bool) {
	m := find(body, 0, "method")
	if !m.ok() || string(body[m.val:m.end]) != `"`+mcp.MethodMessage+`"` {
		return 0, false
	}
	p := find(body, 0, "params")
	if !p.ok() {
		return 0, false
	}
	l := find(body, p.val, "level")
	if !l.ok() || body[l.val] != '"' {
		return 0, false
	}
	return level(string(body[l.val+1 : l.end-1]))
}
