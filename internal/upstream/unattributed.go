package upstream

import (
	"fmt"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

const (
	// looseCalls is how many calls' records keep one unattributed message, and
	// looseBytes how much of its text.
	looseCalls = 16
	looseBytes = 4 << 10
)

// bystander is a call that runs while a message comes that names no call.
type bystander interface {
	spec() *call.Spec
	// note tells the call's record, unless the call has its answer.
	note(format string, args ...any)
}

// keepUnattributed keeps a log message that names no call in the records of the
// calls that ran when it came, shown to no agent (P5). If they are of several
// principals nobody can say whose it is: then the records say that it came, and
// its text is in none of them.
func keepUnattributed(m *mcp.Message, running []bystander) {
	if len(running) == 0 {
		return
	}
	text := m.Raw[:min(len(m.Raw), looseBytes)]
	for _, b := range running[1:] {
		if b.spec().Principal != running[0].spec().Principal {
			text = fmt.Appendf(nil, "%d bytes, which are not kept, because calls of several principals share the connection", len(m.Raw))
			break
		}
	}
	for _, b := range running[:min(len(running), looseCalls)] {
		b.note("unattributed message of the tool server: %s", text)
	}
}
