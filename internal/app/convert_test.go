package app

import (
	"fmt"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/config"
	"github.com/longcall/longcall/internal/downstream"
	"github.com/longcall/longcall/internal/mcp"
)

// configured is an App that has a config, and nothing else.
func configured(t *testing.T, text string) *App {
	t.Helper()
	c, err := config.Parse([]byte(text), "c.yaml", func(string) (string, bool) { return "/home/ann", true })
	if err != nil {
		t.Fatal(err)
	}
	a := &App{}
	a.snap.Store(newSnapshot(c))
	return a
}

func TestHandOffAndAttachReachAgents(t *testing.T) {
	a := configured(t, `
attach: always
stream_age: 1m
mcpServers:
  s: {url: "https://h.example", hand_off: off, tools: {t: {hand_off: auto, attach: never}}}
`)
	for _, tt := range []struct {
		server, tool string
		handOff      bool
		attach       call.Attach
	}{
		{"x", "x", true, call.AttachAlways},
		{"s", "x", false, call.AttachAlways},
		{"s", "t", true, call.AttachNever},
	} {
		if d := a.admit("local", tt.server, tt.tool, true); d.HandOff != tt.handOff || d.Attach != tt.attach {
			t.Errorf("%s/%s: %+v", tt.server, tt.tool, d)
		}
	}
	if got := a.snap.Load().settings.StreamAge; got != time.Minute {
		t.Errorf("StreamAge %s", got)
	}
	if d := configured(t, "").admit("local", "s", "t", true); !d.HandOff || d.Attach != call.AttachUndelivered {
		t.Errorf("default: %+v", d)
	}
}

// What a server may ask of agents, and which extensions it hears of, reach its connections
// (SPEC §4.3, R-14).
func TestAsksReachServers(t *testing.T) {
	snap := configured(t, `
mcpServers:
  all: {url: "https://h.example"}
  some: {url: "https://h.example", asks: {sampling: false, elicitation: false}, extensions: {com.example/x: ["x/*"]}}
`).snap.Load()
	got := servers(snap.config, snap.rules)
	if s := got["all"]; s.Unasked != nil || s.Extensions != nil {
		t.Errorf("of all: %q %v", s.Unasked, s.Extensions)
	}
	if s := got["some"]; fmt.Sprint(s.Unasked) != "[elicitation sampling]" || fmt.Sprint(s.Extensions) != "map[com.example/x:[x/*]]" {
		t.Errorf("of some: %q %v", s.Unasked, s.Extensions)
	}
}

func TestClientsReachAgents(t *testing.T) {
	a := configured(t, `
clients:
  claude-code: {budget: 70s, budget_token: 0, tasks: off}
  all: {match: {client: "*"}, await: 1s, task_budget: 2s}
  ours: {match: {principal: local, server: s}, await_token: 3s}
mcpServers:
  s: {url: "https://h.example"}
`)
	want := downstream.Profile{Name: "claude-code", Budget: 70 * time.Second, TaskBudget: 2 * time.Second, Await: time.Second, AwaitToken: 45 * time.Second}
	if got := a.profile("local", "", "claude-code/2.1.332"); got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	want.Name, want.AwaitToken = "ours", 3*time.Second
	if got := a.profile("local", "s", "claude-code/2.1.332"); got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	// An entry with a match is not also for a client of its name.
	if got := a.profile("ci", "s", "ours/1"); got.Name != "all" || got.AwaitToken != 45*time.Second {
		t.Errorf("%+v", got)
	}
}

// TestExampleIsTheTable: the figures that the config's example shows are those
// of the table, so who copies it changes nothing.
func TestExampleIsTheTable(t *testing.T) {
	a := configured(t, "")
	want := downstream.Profile{
		Name: "claude-code", Budget: 110 * time.Second, BudgetToken: 110 * time.Second, Tasks: true,
		TaskBudget: 8 * time.Second, Await: 8 * time.Second, AwaitToken: 45 * time.Second,
	}
	if got := a.profile("local", "", "claude-code/2.1.332"); got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestOrphans: what runs on after a restart without a reader (I7).
func TestOrphans(t *testing.T) {
	a := configured(t, `
disconnect_grace: 20s
mcpServers:
  s: {url: "https://h.example", tools: {keep: {on_disconnect: detach}, stop: {on_disconnect: cancel, disconnect_grace: 0}}}
`)
	for _, tt := range []struct {
		era, tool string
		want      time.Duration
	}{
		{mcp.V20260728, "t", 20 * time.Second},
		{mcp.V20260728, "keep", -1},
		{mcp.V20260728, "stop", 0},
		{mcp.V20250618, "t", -1},
		{mcp.V20250618, "stop", -1}, // a closed stream is no cancel there (O20)
	} {
		r := &call.Record{}
		r.Server, r.Tool, r.Era = "s", tt.tool, tt.era
		if got := a.orphan(r); got != tt.want {
			t.Errorf("%s %s: %s, want %s", tt.era, tt.tool, got, tt.want)
		}
		r.Server = downstream.ServerShell
		if got := a.orphan(r); got != -1 {
			t.Errorf("a command of %s: %s", tt.era, got)
		}
	}
}
