package downstream

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// What nobody has configured follows what the tool says of itself; what somebody
// has does not (SPEC §2.3, §3.7).
func TestHints(t *testing.T) {
	for _, tt := range []struct {
		name, hints string
		decide      Decision
		calls       int  // of two that run at once
		outlives    bool // the loss of its stream, in the modern era
	}{
		{"no hint", `{}`, Decision{AutoAttach: true, AutoDisconnect: true}, 2, false},
		{"idempotent", `{"idempotentHint":true}`, Decision{AutoAttach: true, AutoDisconnect: true}, 1, false},
		{"idempotent, configured", `{"idempotentHint":true}`, Decision{AutoDisconnect: true}, 2, false},
		{"read only", `{"readOnlyHint":true}`, Decision{AutoAttach: true, AutoDisconnect: true}, 2, false},
		{"destructive", `{"destructiveHint":true,"idempotentHint":false}`, Decision{AutoAttach: true, AutoDisconnect: true}, 2, true},
		{"destructive, configured", `{"destructiveHint":true}`, Decision{AutoAttach: true}, 2, false},
		{"destructive and idempotent", `{"destructiveHint":true,"idempotentHint":true}`, Decision{AutoAttach: true, AutoDisconnect: true}, 1, false},
		{"hints that are none", `{"destructiveHint":"true","idempotentHint":1}`, Decision{AutoAttach: true, AutoDisconnect: true}, 2, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, "", func(r *rig, _ *tape, _ func(context.Context)) {
				r.settings.Digest = func([]byte) string { return "equal" }
				r.lists = map[string][]mcp.Entry{"up": {{Name: "work", Raw: []byte(`{"annotations":` + tt.hints + `,"name":"work"}`)}}}
				r.decide = func(_, _, _ string, modern bool) Decision {
					d := tt.decide
					d.CancelOnDisconnect, d.Grace = modern, 15*time.Second
					return d
				}
				r.tools["work"] = func(ctx context.Context, x *call.Exec) call.Answer {
					_ = x.Dispatched()
					<-ctx.Done()
					return call.Answer{}
				}
				ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
				defer cancel()
				done := make(chan struct{}, 2)
				for range 2 {
					go func() {
						r.h.ServeHTTP(newTape(), postCall(ctx, modernCall("1", "work", "")))
						done <- struct{}{}
					}()
				}
				time.Sleep(time.Second)
				synctest.Wait()
				if n := r.eng.InFlight(); n != tt.calls {
					t.Errorf("%d calls", n)
				}
				<-done
				<-done
				time.Sleep(20 * time.Second)
				synctest.Wait()
				if outlives := r.eng.InFlight() > 0; outlives != tt.outlives {
					t.Errorf("outlives its stream: %v", outlives)
				}
				over, stop := context.WithCancel(context.Background())
				stop()
				r.eng.Stop(over)
			})
		})
	}
}

// Where each session has a connection of its own, equal calls of two sessions are
// two: the one would act in the other's browser.
func TestSessionsApart(t *testing.T) {
	for i, apart := range []bool{false, true, false, true} {
		var key []string
		if i > 1 {
			key = []string{"Idempotency-Key", "one"}
		}
		r := newRig(t)
		r.settings.Digest = func([]byte) string { return "equal" }
		r.decide = func(string, string, string, bool) Decision { return Decision{PerSession: apart} }
		g := newGate()
		r.tools["work"] = g.run
		c := r.serve()
		c.open("/mcp/up", mcp.V20251125)
		ctx, hangUp := context.WithCancel(t.Context())
		_, body := c.stream(ctx, "POST", "/mcp/up", legacyCall("1", "work", ""), key...)
		expectPrimed(t, body)
		<-g.running
		first := c.session
		hangUp()
		<-r.log.delivered
		c.session = ""
		c.open("/mcp/up", mcp.V20251125)
		if c.session == first {
			t.Fatal("the same session")
		}
		_, body = c.stream(t.Context(), "POST", "/mcp/up", legacyCall("1", "work", ""), key...)
		expectPrimed(t, body)
		want := 1
		if apart {
			want = 2
		}
		until(t, "as many calls as are wanted", func() bool { return r.eng.InFlight() == want })
	}
}
