package policy

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Profile is how patient one agent host is. Budgets count from the agent's
// request; zero means no bound.
type Profile struct {
	Name string // of the table's entry, or of the operator's that was applied last
	// Budget is how long a tools/call may stay without an answer if it came
	// without a progress token, BudgetToken if it came with one: below the
	// host's own hard ceiling, so that a hand-off still reaches its model.
	Budget, BudgetToken time.Duration
	// Tasks says whether tasks, of either generation, are offered at all.
	Tasks bool
	// TaskBudget is the same for a request that declared the tasks extension,
	// where a hand-off costs the model no turn (SPEC §7.8). It is never above
	// the budgets.
	TaskBudget time.Duration
	// Await is how long await_call waits if nobody says otherwise, AwaitToken
	// with a progress token; never above the budgets.
	Await, AwaitToken time.Duration
	// Yield is how long a command of the shell that says nothing itself stays in
	// the foreground; 0 leaves it to the shell (SHELL §4).
	Yield time.Duration
}

// The defaults of every profile.
const (
	// taskBudget is below the tightest ceiling that was seen, 9 to 12 s.
	taskBudget = 8 * time.Second
	// A silent await must end before a host that shows no sign of patience
	// gives up; with a token there are beats, and 45 s is below every total.
	await, awaitToken = 8 * time.Second, 45 * time.Second
)

// unknown is the profile of a host that the table does not have: 60 s is the
// total of the SDKs that it is likely built with, whether or not it sends a
// token (SPEC §8.2). Shorter budgets were proposed, but each hand-off costs the
// model a turn, and is never made for what could still be a plain answer; the
// hosts that give up sooner are in the table, or are the operator's to name.
var unknown = host{"unknown", 50 * time.Second, 50 * time.Second, true, ""}

// host is one row of the table. name is the beginning of what the host says in
// clientInfo, up to the end of a word.
type host struct {
	name                string
	budget, budgetToken time.Duration
	tasks               bool
	profile             string // name of the profile, if it is not name
}

// hosts is what is known about agent hosts, each with its source. "measured"
// means: with the real host and a 330 s call, on 2026-11-30. Names are as hosts
// say them: measured, or from
// https://github.com/MCPJam/inspector/blob/6d550c0/sdk/src/host-compat/catalog.generated.ts (recorded handshakes) or
// https://github.com/apify/mcp-client-capabilities (0.0.14).
// A host whose ceiling or name is not known is left out.
var hosts = []host{
	// Claude Code with progress waits for hours (measured to 330 s), but moves a
	// call to the background at 120 s. From there progress is thrown away, and
	// the result comes as a notification that its model may ignore, and does:
	// https://github.com/anthropics/claude-code/issues/78566
	// https://github.com/anthropics/claude-code/issues/86464
	// One report has it cut calls at 352 to 363 s all the same, which in the
	// stateless era asks to cancel the work:
	// https://github.com/anthropics/claude-code/issues/93143
	// So the hand-off comes first, while the model still listens. Without
	// progress 300 s is the ceiling (measured), which is later.
	{"claude-code", 110 * time.Second, 110 * time.Second, true, ""},
	// Claude Desktop and claude.ai say the same name. About 60 s; 52 s was on
	// the border: https://github.com/anthropics/claude-code/issues/22542
	// https://github.com/anthropics/claude-ai-mcp/issues/115
	{"claude-ai", 45 * time.Second, 45 * time.Second, true, ""},
	// 9 to 12 s seen, 60 s at most, no token:
	// https://github.com/Waishnav/devspace/issues/352
	// https://community.openai.com/t/handling-long-running-tasks-in-chatgpt-apps/1369488
	{"openai-mcp", 8 * time.Second, 8 * time.Second, true, "chatgpt"},
	{"ChatGPT", 8 * time.Second, 8 * time.Second, true, "chatgpt"},
	// 300 s whatever it hears: measured; https://github.com/openai/codex/pull/28234
	{"codex-mcp-client", 280 * time.Second, 280 * time.Second, true, "codex"},
	{"Codex", 280 * time.Second, 280 * time.Second, true, "codex"},
	// 600 s whatever it hears, also with comments alone: measured;
	// https://github.com/google-gemini/gemini-cli/blob/5411f11/packages/core/src/tools/mcp-client.ts
	{"gemini-cli-mcp-client", 570 * time.Second, 570 * time.Second, true, "gemini-cli"},
	// 10 min, and 5 min without progress: https://github.com/QwenLM/qwen-code/issues/574
	// https://github.com/QwenLM/qwen-code/pull/6061
	{"qwen-code-mcp-client", 280 * time.Second, 570 * time.Second, true, "qwen-code"},
	{"qwen-cli-mcp-client", 280 * time.Second, 570 * time.Second, true, "qwen-code"},
	// 60 s of silence, and progress resets it for ever: measured;
	// https://github.com/anomalyco/opencode/pull/32477
	{"opencode", 50 * time.Second, 0, true, ""},
	// 60 s whatever it hears: measured with 2.12.0 and 1.0.3. The command line
	// declares the tasks extension on every request, and gives up on a task with
	// "Unsupported result type 'task' for tools/call": measured with 2.12.0.
	{"inspector-cli", 50 * time.Second, 50 * time.Second, false, "inspector"},
	{"mcp-inspector", 50 * time.Second, 50 * time.Second, true, "inspector"},
	// Waits for ever: https://github.com/microsoft/vscode/issues/311595
	// A task freezes its chat until it ends, so a call is better:
	// https://github.com/microsoft/vscode/issues/308961
	{"Visual Studio Code", 0, 0, false, "vscode"},
	{"Visual-Studio-Code", 0, 0, false, "vscode"},
	// 60 s, also if more is configured: https://github.com/github/copilot-cli/issues/1535
	{"github-copilot-developer", 50 * time.Second, 50 * time.Second, true, "copilot-cli"},
	// 30 s: https://github.com/microsoft/copilot-intellij-feedback/issues/1935
	// The name goes on with the product, as in JetBrains-IU-copilot-intellij.
	{"JetBrains", 25 * time.Second, 25 * time.Second, true, "copilot-intellij"},
	// 300 s: https://github.com/aaif-goose/goose/issues/1422
	{"goose", 280 * time.Second, 280 * time.Second, true, ""},
	// 60 s: https://github.com/cline/cline/blob/21cb8d2/sdk/packages/shared/src/mcp.ts
	{"Cline", 50 * time.Second, 50 * time.Second, true, "cline"},
	// 60 s: https://github.com/RooCodeInc/Roo-Code/blob/cb83656/src/services/mcp/McpHub.ts
	{"Roo-Code", 50 * time.Second, 50 * time.Second, true, "roo-code"},
	{"Roo Code", 50 * time.Second, 50 * time.Second, true, "roo-code"},
	// 60 s: https://github.com/zed-industries/zed/issues/32668
	{"Zed", 50 * time.Second, 50 * time.Second, true, "zed"},
	// 60 s: https://github.com/n8n-io/n8n/pull/21478
	{"@n8n/n8n-nodes-langchain.mcpClientTool", 50 * time.Second, 50 * time.Second, true, "n8n"},
	// About 60 s: https://glama.ai/mcp/servers/tharun52/timer-mcp-http
	{"bedrock-agentcore", 50 * time.Second, 50 * time.Second, true, ""},
	// 40 s: https://help.make.com/connect-to-openai
	{"make-app-mcp-client", 35 * time.Second, 35 * time.Second, true, "make"},
	// What the Python SDK says for whoever says nothing: LlamaIndex gives up at
	// 30 s, whatever it hears, and LangChain has 30 s of its own:
	// https://github.com/run-llama/llama_index/issues/20270
	// https://github.com/langchain-ai/langchain-mcp-adapters/blob/cc0f284/langchain_mcp_adapters/sessions.py
	{"mcp/", 25 * time.Second, 25 * time.Second, true, "python-sdk"},
}

// ProfileOverride is what the operator says about some clients. It holds where
// all of Client, Principal and Server do that are not empty; nil fields leave
// what they find.
type ProfileOverride struct {
	Name string
	// Client is the beginning of the client's "name/version", up to the end of a
	// word, in any case; "*" is any client, also one that gave no name.
	Client    string
	Principal string
	Server    string // configured name of the endpoint's server; none at /mcp

	Budget, BudgetToken, TaskBudget, Await, AwaitToken, Yield *time.Duration
	Tasks                                                     *bool
}

// Profiles finds profiles. The zero value, and nil, have the table alone. Nobody
// may change what was made: a reload makes new ones.
type Profiles struct {
	overrides []ProfileOverride // the weakest first
}

// NewProfiles makes Profiles. Where several overrides hold, all are applied: one
// with a principal goes before one with a server, that before one with a client,
// and a longer client before a shorter one, for each figure that it has.
func NewProfiles(list []ProfileOverride) *Profiles {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b ProfileOverride) int {
		return cmp.Or(
			compareBool(a.Principal != "", b.Principal != ""),
			compareBool(a.Server != "", b.Server != ""),
			cmp.Compare(clientRank(a.Client), clientRank(b.Client)),
			cmp.Compare(a.Name, b.Name),
		)
	})
	return &Profiles{list}
}

func clientRank(pattern string) int {
	if pattern == "*" {
		return 0
	}
	return len(pattern)
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// For is the profile of a request: endpoint is the server that the endpoint is
// for, empty at /mcp, and client the "name/version" that the agent gave, which
// nobody has checked. It does not allocate.
func (p *Profiles) For(principal, endpoint, client string) Profile {
	h := &unknown
	for i := range hosts {
		if matches(client, hosts[i].name) && (h == &unknown || len(hosts[i].name) > len(h.name)) {
			h = &hosts[i]
		}
	}
	f := Profile{
		Name: cmp.Or(h.profile, h.name), Budget: h.budget, BudgetToken: h.budgetToken,
		Tasks: h.tasks, TaskBudget: taskBudget, Await: await, AwaitToken: awaitToken,
	}
	if p != nil {
		for i := range p.overrides {
			if o := &p.overrides[i]; o.holds(principal, endpoint, client) {
				o.apply(&f)
			}
		}
	}
	f.TaskBudget = within(f.TaskBudget, within(f.Budget, f.BudgetToken))
	f.Await = within(f.Await, f.Budget)
	f.AwaitToken = within(f.AwaitToken, f.BudgetToken)
	return f
}

// within is the shorter one of two times of which 0 is the longest.
func within(d, bound time.Duration) time.Duration {
	if bound > 0 && (d == 0 || d > bound) {
		return bound
	}
	return d
}

func (o *ProfileOverride) holds(principal, endpoint, client string) bool {
	return (o.Principal == "" || o.Principal == principal) &&
		(o.Server == "" || o.Server == endpoint) &&
		(o.Client == "" || o.Client == "*" || matches(client, o.Client))
}

func (o *ProfileOverride) apply(f *Profile) {
	f.Name = o.Name
	set(&f.Budget, o.Budget)
	set(&f.BudgetToken, o.BudgetToken)
	set(&f.TaskBudget, o.TaskBudget)
	set(&f.Await, o.Await)
	set(&f.AwaitToken, o.AwaitToken)
	set(&f.Yield, o.Yield)
	set(&f.Tasks, o.Tasks)
}

// matches says whether client begins with pattern, in any case, and a word ends
// there: claude-code/2.1 has 2.1.332, and not 2.10.
func matches(client, pattern string) bool {
	n := len(pattern)
	if n == 0 || len(client) < n || !strings.EqualFold(client[:n], pattern) {
		return false
	}
	return n == len(client) || !wordByte(client[n]) || !wordByte(pattern[n-1])
}

func wordByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c >= 0x80
}
