package cases_test

import (
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/test/wire"
)

func init() {
	// state: counts calls, holds some, and ends its process in several ways.
	var n atomic.Int64
	addTool("state", func(w *worker, r *wire.Request) {
		switch do := arg(r.Msg, "do"); do {
		case "hold":
			w.send(r.Progress("1", "", "held"))
			w.pause(time.Hour)
		case "exit", "half":
			fmt.Fprintln(os.Stderr, "boom: something broke")
			if do == "half" {
				fmt.Print(`{"jsonrpc":"2.0","id":` + string(r.ID) + `,"result":{"cont`)
			}
			os.Exit(3)
		default:
			w.send(r.Text(fmt.Sprint("call ", n.Add(1))))
		}
	})
}

// TestP13 uses one process for all calls, and another after a crash.
func TestP13(t *testing.T) {
	t.Parallel()
	for _, w := range ways[3:5] {
		for _, how := range []string{"exit", "half", "kill"} {
			t.Run(w.name+"/"+how, func(t *testing.T) {
				t.Parallel()
				s := newServer(t, w, "state")
				g := s.start(t)
				a, b := g.client(wire.Legacy, "up"), g.client(wire.Modern, "up")
				sent := 0
				for round := 1; round <= 3; round++ {
					for i := range 10 {
						sent++
						dn := []*wire.Client{a, b}[i%2]
						if m := dn.Start(wire.Call{}).Response(0); m.ToolText() != fmt.Sprint("call ", i+1) {
							t.Fatalf("round %d, call %d: %s", round, i+1, m.JSON)
						}
					}
					if n := len(s.cmd.Notes("start")); n != round {
						t.Fatalf("%d processes, want %d", n, round)
					}
					held := []*wire.Exchange{
						a.Start(wire.Call{Token: "1", Args: `{"do":"hold"}`}),
						b.Start(wire.Call{Token: "1", Args: `{"do":"hold"}`}),
					}
					for _, x := range held {
						x.WaitMessages(progressMethod, 1, 0)
					}
					reason := "exit status 3"
					if how == "kill" {
						reason = "killed"
						if err := syscall.Kill(s.cmd.Notes("start")[round-1].PID, syscall.SIGKILL); err != nil {
							t.Fatal(err)
						}
					} else {
						held = append(held, a.Start(wire.Call{Args: `{"do":"` + how + `"}`}))
					}
					sent += len(held)
					for _, x := range held {
						m := x.TimedResponse(0)
						saysUnknown(t, m.Msg)
						if !strings.Contains(m.ToolText(), reason) || how != "kill" && !strings.Contains(m.ToolText(), "boom: something broke") {
							t.Errorf("the answer does not say why: %s", m.ToolText())
						}
					}
				}
				// The next call gets a new process, and nothing was sent twice.
				if m := b.Start(wire.Call{}).Response(0); m.ToolText() != "call 1" {
					t.Error(m.JSON)
				}
				if n := len(s.cmd.Notes("start")); n != 4 {
					t.Errorf("%d processes", n)
				}
				if n := len(s.got("tools/call")); n != sent+1 {
					t.Errorf("%d calls reached the processes, %d were made", n, sent+1)
				}
				outcomes := map[call.Outcome]int{}
				for _, r := range g.allEnded(sent + 1) {
					outcomes[r.End.Outcome]++
				}
				if outcomes[call.Completed] != 31 || outcomes[call.Interrupted] != sent-30 {
					t.Errorf("the record has %v", outcomes)
				}
			})
		}
	}
}

// TestP13AtOnce starts one process for many calls that come before it is there.
func TestP13AtOnce(t *testing.T) {
	t.Parallel()
	for _, w := range ways[3:5] {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, w, "state")
			g := s.start(t)
			dn := g.client(wire.Modern, "up")
			var xs []*wire.Exchange
			for range 10 {
				xs = append(xs, dn.Start(wire.Call{}))
			}
			seen := map[string]bool{}
			for _, x := range xs {
				seen[x.Response(0).ToolText()] = true
			}
			if len(seen) != 10 || !seen["call 1"] || !seen["call 10"] {
				t.Errorf("the calls were counted as %v", seen)
			}
			if n := len(s.cmd.Notes("start")); n != 1 {
				t.Errorf("%d processes", n)
			}
		})
	}
}

// TestP13Idle: a process that ends between two calls is not noticed by agents.
func TestP13Idle(t *testing.T) {
	t.Parallel()
	for _, w := range ways[3:5] {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, w, "state")
			g := s.start(t)
			dn := g.client(wire.Legacy, "up")
			for i := range 3 {
				shows(t, dn.Start(wire.Call{Token: "1"}), "1", "call 1")
				if err := syscall.Kill(s.cmd.Notes("start")[i].PID, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				soon(t, "the end of the process", func() bool { return strings.Count(g.log.String(), "tool server ended") > i })
			}
			for _, r := range g.allEnded(3) {
				if r.End.Outcome != call.Completed {
					t.Errorf("a call ended as %s", r.End.Outcome)
				}
			}
		})
	}
}
