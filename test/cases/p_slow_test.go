package cases_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/test/wire"
)

// writeTimeout is how long one write to an agent may take. It is no setting.
const writeTimeout = 30 * time.Second

// TestP19 lets streams live for longer than a write may take, and cuts readers
// that take nothing, or next to nothing.
func TestP19(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("z", 12*mib)
	handler := func(c *wire.Conn, r *wire.Request) {
		switch arg(r.Msg, "tag") {
		case "silent":
			if c.Pause(writeTimeout + 4*time.Second) {
				c.JSON(200, r.Text("worked"))
			}
		case "lively":
			c.SSE()
			for range 17 {
				c.Event(r.Progress("1", "", "step"))
				c.Pause(2 * time.Second)
			}
			c.Event(r.Text("worked"))
			c.End()
		case "large":
			c.JSON(200, r.Text(large))
		}
	}
	newUp := func(t *testing.T) *wire.Upstream {
		return wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"tools/call": handler}})
	}

	for _, tag := range []string{"silent", "lively"} {
		for _, accept := range []string{wire.AcceptBoth, wire.AcceptJSON} {
			for _, version := range []string{wire.Legacy, wire.Modern} {
				t.Run(tag+"/"+accept+"/"+version, func(t *testing.T) {
					t.Parallel()
					g := before(t, newUp(t), "limits: {first_byte: 0}")
					dn := g.client(version, "up")
					dn.Accept = accept
					x := dn.Start(wire.Call{Args: `{"tag":"` + tag + `"}`})
					m := x.TimedResponse(writeTimeout + 15*time.Second)
					if m.ToolText() != "worked" || m.Came < writeTimeout {
						t.Errorf("%v: %s", m.Came, m.JSON)
					}
					if err := x.End(0); err != nil {
						t.Errorf("the answer was cut: %v", err)
					}
				})
			}
		}
	}

	slow := func(name, accept, more string, read func(r io.Reader)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := newUp(t)
			g := before(t, up, more)
			dn := g.client(wire.Legacy, "up")
			conn := g.dial()
			if err := conn.post(dn, "up", accept, dn.Message("1", "tools/call", `"name":"work","arguments":{"tag":"large"}`, "")); err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				read(conn)
			}()
			defer func() {
				conn.Close()
				<-done
			}()
			poll(t, 2*writeTimeout, "the end of the call", func() bool {
				r := g.records()
				return len(r) == 1 && r[0].End.Outcome == call.Completed // what becomes of the reader changes nothing about it
			})
			var d []call.Delivery
			poll(t, 2*writeTimeout, "the end of the reader", func() bool {
				var err error
				d, err = g.journal().Deliveries(t.Context(), g.records()[0].ID)
				return err == nil && len(d) > 0
			})
			if len(d) != 1 || d[0].How != call.Slow {
				t.Fatalf("the deliveries are %+v", d)
			}
			if took := d[0].Ended.Sub(g.records()[0].Ended); took < writeTimeout*5/6-time.Second || took > writeTimeout+8*time.Second {
				t.Errorf("the reader was cut after %v", took)
			}
		})
	}
	nothing := func(io.Reader) {}
	trickle := func(r io.Reader) {
		b := make([]byte, 512)
		for {
			if _, err := r.Read(b); err != nil {
				return
			}
			pause(time.Second)
		}
	}
	slow("json, reads nothing", wire.AcceptJSON, "relay: live", nothing)
	slow("json, reads a trickle", wire.AcceptJSON, "relay: live", trickle)
	slow("buffered, reads nothing", wire.AcceptBoth, "relay: buffered", nothing)
	slow("stream, reads nothing", wire.AcceptBoth, "relay: live", nothing)

	// A reader that takes longer than one write may, but goes on, is served.
	for _, accept := range []string{wire.AcceptJSON, wire.AcceptBoth} {
		t.Run("steady/"+accept, func(t *testing.T) {
			t.Parallel()
			g := before(t, newUp(t))
			dn := g.client(wire.Legacy, "up")
			conn := g.dial()
			if err := conn.post(dn, "up", accept, dn.Message("1", "tools/call", `"name":"work","arguments":{"tag":"large"}`, "")); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			resp, err := http.ReadResponse(conn.br, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			n, b := 0, make([]byte, 64<<10)
			for err == nil {
				var k int
				k, err = resp.Body.Read(b)
				n += k
				// 12 MiB in 36 s
				if ahead := time.Duration(n)*36*time.Second/(12*mib) - time.Since(began); ahead > 0 {
					pause(ahead)
				}
			}
			if err != io.EOF || n < 12*mib || time.Since(began) < writeTimeout {
				t.Errorf("%d bytes in %v, then %v", n, time.Since(began), err)
			}
			g.audited("delivered", func(_ *call.Record, d []call.Delivery) bool { return len(d) == 1 && d[0].How == call.Delivered })
		})
	}
}

// pause waits, and is true.
func pause(d time.Duration) bool {
	<-time.After(d)
	return true
}
