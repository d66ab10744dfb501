package downstream

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// A tool that policy has run only as a task refuses who knows none, in the words
// of each revision, and nothing is started (SPEC §3.3).
func TestTaskOnly(t *testing.T) {
	for version, want := range map[string]string{mcp.V20260728: `"code":-32021`, mcp.V20251125: `"code":-32601`} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			defer r.stop()
			r.decide = func(string, string, string, bool) Decision { return Decision{HandOff: true, TaskOnly: true} }
			ran := false
			r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer {
				ran = true
				_ = x.Dispatched()
				return reply(x, okResult)
			}
			o := asker{t: t, r: r}
			if version != mcp.V20260728 {
				s, _ := r.h.sessions.open("ann", "", version, "test", nil)
				o.session = s.id
			}
			if got := o.request(t.Context(), "1", "up__work", "{}").text(); !strings.Contains(got, want) {
				t.Errorf("%s: it answers %s", version, got)
			}
			if ran {
				t.Errorf("%s: the tool ran", version)
			}
		})
	}
}
