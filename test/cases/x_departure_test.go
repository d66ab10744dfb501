package cases_test

import (
	"strings"
	"testing"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/test/wire"
)

// Behind a proxy that hides the departure of its client, longcall still finds out:
// by a write that fails, or that nobody takes for too long. The call goes on, and
// whoever asks again gets it.
func TestHiddenDeparture(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("z", mib/2)
	for _, tt := range []struct {
		name string
		how  call.How
	}{
		{"a write fails", call.AbortedDownstream},
		{"nobody reads", call.Slow},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			bothEras(t, func(t *testing.T, version string) {
				said, let := make(chan struct{}), make(chan struct{})
				up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) {
					c.SSE()
					for range 24 { // more than the buffers of two sockets hold
						c.Event(r.Progress("1", "", large))
					}
					close(said)
					select {
					case <-let:
						c.Event(r.Text("worked"))
						c.End()
					case <-c.Gone():
					}
				}}})
				g := before(t, up, "on_disconnect: detach")
				dn := g.client(version, "up")
				conn := g.dial()
				if err := conn.post(dn, "up", wire.AcceptBoth, dn.Message("1", "tools/call", `"name":"work","arguments":{}`, `"progressToken":1`)); err != nil {
					t.Fatal(err)
				}
				<-said
				if tt.how == call.AbortedDownstream { // the proxy gives up while longcall writes
					up.WaitRequest("tools/call", 1, 0)
					_ = conn.SetLinger(0)
					conn.Close()
				}
				var d []call.Delivery
				poll(t, 2*writeTimeout, "the departure", func() bool {
					records := g.records()
					if len(records) != 1 {
						return false
					}
					var err error
					if d, err = g.journal().Deliveries(t.Context(), records[0].ID); err != nil {
						t.Fatal(err)
					}
					return len(d) == 1
				})
				if d[0].How != tt.how {
					t.Errorf("recorded as %s, want %s", d[0].How, tt.how)
				}
				again := dn.Start(wire.Call{})
				again.WaitItems(1, 0)
				close(let)
				answered(t, again, "worked")
				if n, c := up.Count("tools/call"), up.Count(cancelledMethod); n != 1 || c != 0 {
					t.Errorf("sent %d times, cancelled %d times", n, c)
				}
				g.ended(call.Completed)
			})
		})
	}
}
