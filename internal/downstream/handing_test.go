package downstream

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// early is a reader that acts on the hand-off while it is still being written.
type early struct {
	*tape
	act func()
}

func (w *early) FlushError() error {
	if act := w.act; act != nil && strings.Contains(string(w.pending), metaKeyHandOff) {
		w.act = nil
		act()
	}
	return w.tape.FlushError()
}

// An agent that makes the call again as soon as it has the hand-off joins it,
// though nobody has noted yet that the frame is out: nothing runs twice.
func TestAgainWhileHandingOff(t *testing.T) {
	bubble(t, "", func(r *rig, _ *tape, _ func(context.Context)) {
		r.settings.Digest = func([]byte) string { return "equal" }
		r.decide = func(string, string, string, bool) Decision { return Decision{HandOff: true} }
		r.h.opt.Profile = func(string, string, string) Profile { return Profile{Budget: time.Second, BudgetToken: time.Second} }
		r.tools["work"] = func(ctx context.Context, x *call.Exec) call.Answer {
			_ = x.Dispatched()
			<-ctx.Done()
			return call.Answer{}
		}
		again := 0
		w := &early{tape: newTape()}
		w.act = func() {
			go r.h.ServeHTTP(newTape(), postCall(context.Background(), modernCall("2", "work", "")))
			synctest.Wait()
			again = r.eng.InFlight()
		}
		r.h.ServeHTTP(w, postCall(context.Background(), modernCall("1", "work", "")))
		if again != 1 {
			t.Errorf("%d calls run", again)
		}
		over, stop := context.WithCancel(context.Background())
		stop()
		r.eng.Stop(over)
		synctest.Wait()
	})
}

// A task that is asked for while its session is deleted leaves nothing behind.
func TestTaskOfAnEndedSession(t *testing.T) {
	r := newRig(t)
	c := r.serve()
	c.open("/mcp/up", mcp.V20251125)
	r.h.opt.Profile = func(string, string, string) Profile { return Profile{Tasks: true} }
	ended := false
	r.decide = func(string, string, string, bool) Decision {
		if s := r.h.sessions.m[c.session]; s != nil && !ended {
			ended = true
			r.h.sessions.drop(s)
		}
		return Decision{HandOff: true}
	}
	g := newGate()
	r.tools["work"] = g.run
	_, body := c.post("/mcp/up", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"work","task":{}}}`)
	if !ended || !strings.Contains(body, `"taskId"`) {
		t.Fatalf("no task was made while the session ended: %s", body)
	}
	r.h.asked.mu.Lock()
	defer r.h.asked.mu.Unlock()
	if n := len(r.h.asked.m); n != 0 {
		t.Errorf("%d ended sessions are remembered", n)
	}
}
