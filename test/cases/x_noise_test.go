package cases_test

import (
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/test/wire"
)

func init() {
	addTool("noise", func(w *worker, r *wire.Request) {
		if arg(r.Msg, "tag") == "quiet" {
			w.pause(4 * time.Second)
			w.send(r.Text("worked"))
			return
		}
		for i := range 40 {
			w.send("Listening on port 3000 {not json", "", `{"level":"info"}`, `"text"`, "[1]")
			switch i {
			case 10: // over limits.message
				w.send(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"` + strings.Repeat("x", 17*mib) + `"}}`)
			case 20:
				w.send(r.Text(strings.Repeat("y", 15*mib)))
			}
			w.pause(50 * time.Millisecond)
		}
	})
}

// TestX15 is X-15: a command that writes noise to its output, a line over 16 MiB and a
// result of almost as much, for an agent that does not read it, hold up nobody else: the
// beats of another call of the same process stay on time, and both get their results.
func TestX15(t *testing.T) {
	t.Parallel()
	const beat, late = 400 * time.Millisecond, 2 * time.Second // a loaded machine is late, too
	for _, w := range ways {
		if w.handler != nil {
			continue
		}
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, w, "noise")
			g := s.startWith(t, "beats: {comment: 400ms, progress: 1s}")
			other, slow := g.client(w.version, "up"), g.client(w.version, "up")
			x := other.Start(wire.Call{Args: `{"tag":"quiet"}`, Token: "1"})
			x.Head(betweenWait)
			conn := g.dial()
			if err := conn.post(slow, "up", wire.AcceptBoth, slow.Message("7", "tools/call", `"name":"work","arguments":{"tag":"loud"}`, "")); err != nil {
				t.Fatal(err)
			}
			m := x.TimedResponse(20 * time.Second)
			if m.ToolText() != "worked" {
				t.Errorf("the other call: %.200s", m.JSON)
			}
			if n := gaps(t, x, late); n < int(2*time.Second/beat) {
				t.Errorf("%d comments in %s", n, m.Came)
			}
			if n := len(x.Progress()); n < 2 {
				t.Errorf("%d progress messages of ours", n)
			}
			if text, _, err := conn.result(); err != nil || text != strings.Repeat("y", 15*mib) {
				t.Errorf("the slow agent got %d bytes of its result, %v", len(text), err)
			}
			if log := g.log.String(); !strings.Contains(log, "lines that are no messages") {
				t.Error("the operator hears nothing of the noise")
			}
		})
	}
}
