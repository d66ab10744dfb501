//go:build unix

package peers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/longcall/longcall/test/peers"
	"github.com/longcall/longcall/test/wire"
)

// TestTaskOfARealServer calls a tool that must run as a task of 2025-11-25, of a
// server that nobody here wrote, from agents that know of no tasks: they get its
// result as that of any call, and its stages live.
func TestTaskOfARealServer(t *testing.T) {
	s := peers.Find("everything")
	stdio := s.Stdio(t)
	entry, err := json.Marshal(map[string]any{"command": stdio.Path, "args": stdio.Args})
	if err != nil {
		t.Fatal(err)
	}
	gw := peers.StartLongcall(t, fmt.Sprintf("mcpServers:\n  http: {url: %q}\n  stdio: %s\n", s.Start(t, peers.Legacy), entry))
	for _, server := range []string{"http", "stdio"} {
		for _, version := range []string{wire.Legacy, wire.Modern} {
			t.Run(server+"/"+version, func(t *testing.T) {
				t.Parallel()
				c := wire.NewClient(t, gw.URL(server), version)
				if version == wire.Legacy {
					c.Initialize()
				}
				x := c.Start(wire.Call{Tool: "simulate-research-query", Args: `{"topic":"long calls"}`, Token: `"mine"`})
				m := x.TimedResponse(30 * time.Second)
				if text := m.ToolText(); !strings.HasPrefix(text, "# Research Report: long calls") || m.At("result.isError") != nil {
					t.Fatalf("the result is %s", m.JSON)
				}
				if strings.Contains(m.JSON, "related-task") {
					t.Errorf("the server's task shows: %s", m.JSON)
				}
				var stages []string
				var last float64
				for _, p := range x.Progress() {
					var params struct {
						ProgressToken string
						Progress      float64
						Message       string
					}
					if err := json.Unmarshal(p.Params, &params); err != nil || params.ProgressToken != "mine" || params.Progress <= last {
						t.Errorf("progress after %v: %s, %v", last, p.JSON, err)
					}
					last = params.Progress
					if strings.HasSuffix(params.Message, "...") {
						stages = append(stages, params.Message)
					}
				}
				// A stage takes a second, as long as the time between two questions.
				if len(stages) < 3 || !strings.HasPrefix(stages[len(stages)-1], "Generating report") && !strings.HasPrefix(stages[len(stages)-1], "Synthesizing") {
					t.Errorf("the stages were %q", stages)
				}
			})
		}
	}
}

// TestCancelTaskOfARealServer cancels such a call: the server's task is
// cancelled, in the words of tasks.
func TestCancelTaskOfARealServer(t *testing.T) {
	gw := peers.StartLongcall(t, fmt.Sprintf("mcpServers:\n  http: {url: %q}\n", peers.Find("everything").Start(t, peers.Legacy)))
	c := wire.NewClient(t, gw.URL("http"), wire.Legacy)
	c.Initialize()
	x := c.Start(wire.Call{Tool: "simulate-research-query", Args: `{"topic":"x"}`, Token: "1", ID: "77"})
	x.WaitMessages("notifications/progress", 1, 0)
	c.Cancel("77")
	began := time.Now()
	gw.Until(t, "has cancelled the call", func(context.Context) bool {
		all := gw.Calls(t)
		return len(all) == 1 && all[0].Outcome == "cancelled"
	})
	if d := time.Since(began); d > 3*time.Second {
		t.Errorf("it took %v: longer than the task would have", d)
	}
}

// TestTaskOfARealServerOutlivesUs kills longcall in the middle of such a call:
// the next process follows the task to its end.
func TestTaskOfARealServerOutlivesUs(t *testing.T) {
	gw := peers.StartLongcall(t, fmt.Sprintf("mcpServers:\n  http: {url: %q}\n", peers.Find("everything").Start(t, peers.Legacy)))
	c := wire.NewClient(t, gw.URL("http"), wire.Legacy)
	c.Initialize()
	x := c.Start(wire.Call{Tool: "simulate-research-query", Args: `{"topic":"x"}`, Token: "1"})
	x.WaitMessages("notifications/progress", 2, 0) // by then the journal has where the task is
	gw.Signal(syscall.SIGKILL)
	<-gw.Done()
	config := filepath.Join(filepath.Dir(gw.State), "longcall.yaml")
	gw.Process = peers.Start(t, peers.Command{Path: peers.Binary(t), Args: []string{"serve", "--config", config, "--no-auth"}})
	gw.Until(t, "has followed the call to its end", func(context.Context) bool {
		all := gw.Calls(t)
		return len(all) == 1 && all[0].Outcome != "running"
	})
	if all := gw.Calls(t); all[0].Outcome != "completed" || all[0].ToolError {
		t.Errorf("the journal says of the call: %+v", all[0])
	}
}
