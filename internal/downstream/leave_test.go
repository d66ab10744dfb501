package downstream

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// TestAgentCancels is O21, O22: the call is cancelled at once, the agent gets no
// response, and a late answer goes to the record only.
func TestAgentCancels(t *testing.T) {
	for _, id := range []string{"101", `"101"`} {
		t.Run(id, func(t *testing.T) {
			r := newRig(t)
			g := newGate()
			r.tools["work"] = func(ctx context.Context, x *call.Exec) call.Answer {
				g.run(ctx, x)
				return reply(x, okResult) // answers all the same
			}
			c := r.serve()
			c.open("/mcp", mcp.V20251125)
			_, body := c.stream(t.Context(), "POST", "/mcp", legacyCall(id, "up__work", "1"))
			expectPrimed(t, body)
			<-g.running
			other := map[string]string{"101": `"101"`, `"101"`: "101"}[id]
			for _, cancelled := range []string{other, id} { // the other JSON type names another request
				if status, _ := c.post("/mcp", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`+cancelled+`,"reason":"user\nsaid so"}}`); status != 202 {
					t.Errorf("cancel: %d", status)
				}
				if cancelled == other && r.eng.InFlight() != 1 {
					t.Error("another request's id cancelled the call")
				}
			}
			rest, err := io.ReadAll(body)
			if err != nil || strings.Contains(string(rest), "data:") {
				t.Errorf("after the cancel: %q, %v", rest, err)
			}
			until(t, "end recorded", func() bool { return r.log.record(t, "up__work").End.Outcome != call.Running })
			rec := r.log.record(t, "up__work")
			if e := rec.End; e.Outcome != call.Cancelled || e.By != "agent" || e.Text != "The agent cancelled the call: user said so" {
				t.Errorf("end %+v", e)
			}
			if hows := r.log.hows(); len(hows) != 0 {
				t.Errorf("deliveries %v: nothing was delivered", hows)
			}
			var kinds []call.Kind
			for _, e := range r.log.events[rec.ID] {
				kinds = append(kinds, e.Kind)
			}
			if !slices.Contains(kinds, call.KindLateResult) {
				t.Errorf("events %v: no late result", kinds)
			}
		})
	}
}

// TestCancelOfJSONReply: a client without streams gets an empty answer.
func TestCancelOfJSONReply(t *testing.T) {
	r := newRig(t)
	g := newGate()
	r.tools["work"] = g.run
	c := r.serve()
	c.open("/mcp", mcp.V20250618)
	done := make(chan string, 1)
	go func() {
		status, body := c.post("/mcp", legacyCall("1", "up__work", ""), "Accept", "application/json")
		done <- fmt.Sprint(status, body)
	}()
	<-g.running
	c.post("/mcp", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	if got := <-done; got != "204" {
		t.Errorf("got %s", got)
	}
}

// TestCancelBeforeStart: a cancel that overtakes its call still counts.
func TestCancelBeforeStart(t *testing.T) {
	s, _ := newSessions(func(string, call.ID) bool { return true }, nil, nil).open("ann", "", mcp.V20251125, "", nil)
	entry := s.begin("7", nil)
	if _, _, ok := s.cancel("7", call.End{By: "agent"}); ok {
		t.Error("there is no call yet")
	}
	if end := s.started(entry, "c_1"); end == nil || end.By != "agent" {
		t.Errorf("the cancel was lost: %v", end)
	}
}

// TestLegacyDisconnect is O20, P14: the call goes on, and the record has both.
func TestLegacyDisconnect(t *testing.T) {
	for _, accept := range []string{"text/event-stream", "application/json"} {
		t.Run(accept, func(t *testing.T) {
			r := newRig(t)
			g := newGate()
			r.tools["work"] = g.run
			r.decide = func(string, string, string, bool) Decision { return Decision{CancelOnDisconnect: true} }
			c := r.serve()
			c.open("/mcp/up", mcp.V20251125)
			ctx, hangUp := context.WithCancel(t.Context())
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				resp, err := c.http.Do(c.request(ctx, "POST", "/mcp/up", legacyCall("1", "work", "1"), "Accept", accept))
				if err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
				}
			}()
			<-g.running
			hangUp()
			<-gone
			<-r.log.delivered
			if r.eng.InFlight() != 1 {
				t.Fatal("the call ended with its reader")
			}
			// It can still be cancelled, or end by itself: here it ends.
			close(g.end)
			until(t, "end", func() bool { return r.eng.InFlight() == 0 })
			if e := r.log.record(t, "work").End; e.Outcome != call.Completed {
				t.Errorf("end %+v", e)
			}
			if hows := r.log.hows(); !slices.Equal(hows, []call.How{call.AbortedDownstream}) {
				t.Errorf("deliveries %v", hows)
			}
			if status, body := c.post("/mcp/up", legacyCall("2", "work", "")); status != 200 || len(data(body)) != 1 {
				t.Errorf("next call: %d %s", status, body)
			}
		})
	}
}

// TestCancelAfterDisconnect: a call whose stream is lost is cancelled by its id.
func TestCancelAfterDisconnect(t *testing.T) {
	r := newRig(t)
	g := newGate()
	r.tools["work"] = g.run
	c := r.serve()
	c.open("/mcp/up", mcp.V20251125)
	ctx, hangUp := context.WithCancel(t.Context())
	_, body := c.stream(ctx, "POST", "/mcp/up", legacyCall("1", "work", "1"))
	expectPrimed(t, body)
	<-g.running
	hangUp()
	<-r.log.delivered
	c.post("/mcp/up", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	until(t, "cancel", func() bool { return r.log.record(t, "work").End.Outcome == call.Cancelled })
}

// TestModernDisconnect is R-63 and A1: stream or JSON, a lost connection is a
// cancel of the request, and is recorded as what was seen (A6).
func TestModernDisconnect(t *testing.T) {
	for _, accept := range []string{"text/event-stream", "application/json"} {
		for _, cancels := range []bool{true, false} {
			t.Run(fmt.Sprint(accept, cancels), func(t *testing.T) {
				r := newRig(t)
				g := newGate()
				r.tools["work"] = g.run
				r.decide = func(string, string, string, bool) Decision { return Decision{CancelOnDisconnect: cancels} }
				c := r.serve()
				ctx, hangUp := context.WithCancel(t.Context())
				gone := make(chan struct{})
				go func() {
					defer close(gone)
					resp, err := c.http.Do(c.request(ctx, "POST", "/mcp/up", modernCall("1", "work", ""), append(modern("tools/call", "work"), "Accept", accept)...))
					if err == nil {
						_, _ = io.Copy(io.Discard, resp.Body)
						_ = resp.Body.Close()
					}
				}()
				<-g.running
				hangUp()
				<-gone
				<-r.log.delivered
				if !cancels {
					if r.eng.InFlight() != 1 {
						t.Error("on_disconnect says to go on")
					}
					close(g.end)
				}
				until(t, "end", func() bool { return r.eng.InFlight() == 0 })
				want := call.Completed
				if cancels {
					want = call.Cancelled
				}
				if e := r.log.record(t, "work").End; e.Outcome != want {
					t.Errorf("end %+v", e)
				}
				if hows := r.log.hows(); !slices.Equal(hows, []call.How{call.AbortedDownstream}) {
					t.Errorf("deliveries %v", hows)
				}
			})
		}
	}
}

// expectPrimed reads the event without data that begins a stream of 2025-11-25.
func expectPrimed(t *testing.T, body *bufio.Reader) {
	t.Helper()
	for _, want := range []string{`^: open\n$`, `^\n$`, `^id: \S+\.\d+\n$`, `^retry: 1000\n$`, `^data: \n$`, `^\n$`} {
		if l, err := body.ReadString('\n'); err != nil || !regexp.MustCompile(want).MatchString(l) {
			t.Fatalf("got %q, %v; want %s", l, err, want)
		}
	}
}
