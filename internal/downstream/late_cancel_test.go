package downstream

import (
	"context"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// opencode cancels each request after it has got its result. If that result is a
// hand-off, the call must go on all the same (A1, A9).
func TestLateCancelOfAHandedOffCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.stop()
		r.decide = func(string, string, string, bool) Decision { return Decision{HandOff: true} }
		r.h.opt.Profile = func(string, string, string) Profile { return Profile{Budget: 25 * time.Second} }
		r.tools["work"] = func(ctx context.Context, x *call.Exec) call.Answer {
			_ = x.Dispatched()
			select {
			case <-time.After(40 * time.Second):
				return reply(x, okResult)
			case <-ctx.Done():
				return call.Answer{}
			}
		}
		s, _ := r.h.sessions.open("ann", "", mcp.V20251125, "opencode/1.18.33", nil)
		w := asker{t: t, r: r, session: s.id}.request(t.Context(), "1", "up__work", "{}")
		id := regexp.MustCompile(`c_[a-z2-7]{26}`).FindString(w.text())
		if id == "" {
			t.Fatalf("no hand-off: %s", w.text())
		}
		const late = `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"reason":"AbortError: The operation was aborted."}}`
		req := httptest.NewRequest("POST", "/mcp", strings.NewReader(late))
		req.Header.Set("Authorization", "Bearer ann")
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set(mcp.HeaderSession, s.id)
		r.h.ServeHTTP(newTape(), req)
		time.Sleep(time.Minute)
		c, err := r.h.opt.Engine.Get(t.Context(), "ann", call.ID(id))
		if err != nil {
			t.Fatal(err)
		}
		if end := c.Record().End; end.Outcome != call.Completed {
			t.Errorf("the call ended as %+v", end)
		}
	})
}
