package policy

import (
	"strings"
	"testing"
	"time"
)

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }

func TestProfilesOfHosts(t *testing.T) {
	tests := []struct {
		client              string
		name                string
		budget, budgetToken int // s
		tasks               bool
		task                int
		await, awaitToken   int
	}{
		// Nobody is named, so O2 and A9 want a plain answer after 12 s.
		{"", "unknown", 50, 50, true, 8, 8, 45},
		{"somebody/1", "unknown", 50, 50, true, 8, 8, 45},
		{"claude-code/2.1.332", "claude-code", 110, 110, true, 8, 8, 45},
		{"claude-code", "claude-code", 110, 110, true, 8, 8, 45},
		{"Claude-Code/3", "claude-code", 110, 110, true, 8, 8, 45},
		{"claude-codex/1", "unknown", 50, 50, true, 8, 8, 45},
		{"claude-ai/0.1.0", "claude-ai", 45, 45, true, 8, 8, 45},
		{"codex-mcp-client/0.171.0", "codex", 280, 280, true, 8, 8, 45},
		{"gemini-cli-mcp-client/0.61.0", "gemini-cli", 570, 570, true, 8, 8, 45},
		{"qwen-cli-mcp-client-files/0.0.1", "qwen-code", 280, 570, true, 8, 8, 45},
		{"opencode/1.18.33", "opencode", 50, 0, true, 8, 8, 45},
		{"inspector-cli/2.12.0", "inspector", 50, 50, false, 8, 8, 45},
		{"openai-mcp/1.0.0", "chatgpt", 8, 8, true, 8, 8, 8},
		{"Visual Studio Code/1.130.0", "vscode", 0, 0, false, 8, 8, 45},
		{"Visual Studio Code - Insiders/1.131.0", "vscode", 0, 0, false, 8, 8, 45},
		{"JetBrains-IU-copilot-intellij/1.5", "copilot-intellij", 25, 25, true, 8, 8, 25},
		{"goose-desktop/1.38.0", "goose", 280, 280, true, 8, 8, 45},
		{"mcp/0.1.0", "python-sdk", 25, 25, true, 8, 8, 25},
		{"mcp-proxy/1", "unknown", 50, 50, true, 8, 8, 45},
		{"make-app-mcp-client/1", "make", 35, 35, true, 8, 8, 35},
	}
	for _, tt := range tests {
		want := Profile{
			Name: tt.name, Budget: seconds(tt.budget), BudgetToken: seconds(tt.budgetToken),
			Tasks: tt.tasks, TaskBudget: seconds(tt.task), Await: seconds(tt.await), AwaitToken: seconds(tt.awaitToken),
		}
		for _, p := range []*Profiles{nil, {}, NewProfiles(nil)} {
			if got := p.For("local", "files", tt.client); got != want {
				t.Errorf("%q:\ngot  %+v\nwant %+v", tt.client, got, want)
			}
		}
	}
}

// TestHostsAreFound: every row of the table is what its own name finds, so none
// hides another.
func TestHostsAreFound(t *testing.T) {
	for _, h := range hosts {
		client := strings.TrimSuffix(h.name, "/") + "/1.2.3"
		want := h.profile
		if want == "" {
			want = h.name
		}
		if got := (*Profiles)(nil).For("", "", client); got.Name != want || got.Budget != h.budget || got.BudgetToken != h.budgetToken || got.Tasks != h.tasks {
			t.Errorf("%s: %+v", client, got)
		}
		// A budget below what a plain answer may take is for hosts that are
		// known to be so impatient only (O2, A9).
		if h.budget != 0 && h.budget < seconds(12) && want != "chatgpt" {
			t.Errorf("%s: a plain answer after 12 s would be handed off", h.name)
		}
	}
}

func TestProfileOverrides(t *testing.T) {
	d := func(n int) *time.Duration { return ptr(seconds(n)) }
	p := NewProfiles([]ProfileOverride{
		{Name: "ci", Principal: "ci", Budget: d(5)},
		{Name: "files", Server: "files", Budget: d(100), BudgetToken: d(200), Tasks: ptr(false)},
		{Name: "old", Client: "claude-code/2.1", BudgetToken: d(40)},
		{Name: "claude-code", Client: "CLAUDE-code", Budget: d(70), BudgetToken: d(0), TaskBudget: d(0), Await: d(0), AwaitToken: d(0)},
		{Name: "all", Client: "*", TaskBudget: d(3), Await: d(20)},
		{Name: "patient", Client: "patient", Yield: d(9)},
		{Name: "both", Client: "codex", Principal: "ann", Tasks: ptr(false)},
	})
	tests := []struct {
		name, principal, endpoint, client string
		want                              Profile
	}{
		{"any client", "local", "", "x/1", Profile{"all", seconds(50), seconds(50), true, seconds(3), seconds(20), seconds(45), 0}},
		{"no client", "local", "", "", Profile{"all", seconds(50), seconds(50), true, seconds(3), seconds(20), seconds(45), 0}},
		{"by client, and 0 as far as the budget goes", "local", "", "claude-code/3.0", Profile{"claude-code", seconds(70), 0, true, seconds(70), seconds(70), 0, 0}},
		{"a longer name over a shorter one", "local", "", "claude-code/2.1.332", Profile{"old", seconds(70), seconds(40), true, seconds(40), seconds(70), seconds(40), 0}},
		{"a version is not the beginning of a number", "local", "", "claude-code/2.10", Profile{"claude-code", seconds(70), 0, true, seconds(70), seconds(70), 0, 0}},
		{"server over client", "local", "files", "claude-code/3.0", Profile{"files", seconds(100), seconds(200), false, seconds(100), seconds(100), seconds(200), 0}},
		{"the yield of commands", "local", "", "patient/1", Profile{"patient", seconds(50), seconds(50), true, seconds(3), seconds(20), seconds(45), seconds(9)}},
		{"principal over server, field by field", "ci", "files", "x/1", Profile{"ci", seconds(5), seconds(200), false, seconds(3), seconds(5), seconds(45), 0}},
		{"all that an entry says must hold", "ann", "", "codex-mcp-client/1", Profile{"both", seconds(280), seconds(280), false, seconds(3), seconds(20), seconds(45), 0}},
		{"not for another principal", "bob", "", "codex-mcp-client/1", Profile{"all", seconds(280), seconds(280), true, seconds(3), seconds(20), seconds(45), 0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := p.For(tt.principal, tt.endpoint, tt.client); got != tt.want {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

func TestProfilesDoNotAllocate(t *testing.T) {
	p := NewProfiles([]ProfileOverride{{Name: "a", Client: "claude", Budget: ptr(time.Second)}})
	if n := testing.AllocsPerRun(100, func() { p.For("local", "files", "claude-code/2.1.332") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkProfile(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		(*Profiles)(nil).For("local", "files", "claude-code/2.1.332")
	}
}
