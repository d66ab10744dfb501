package peers_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/longcall/longcall/test/peers"
)

// known is why a feature of a server does not arrive, which is tried apart: without
// longcall neither, unless it is lost.
type known struct {
	server  string
	feature peers.Feature
	lost    bool
	why     string
}

var knowns = []known{
	{"everything-2024 sse", peers.Subscription, true, "The server asks the agent's model before it takes a subscription. longcall can put a question to an agent within a call only (R-40), and refuses it; so the server refuses the subscription. Tried with the Go SDK's clients."},
	{"everything-path-b legacy", peers.Subscription, false, "The server takes subscriptions, but over Streamable HTTP it never says that a resource was updated. Tried with the Go SDK's clients."},
}

// lacking is what a server does not have, by its name.
var lacking = map[peers.Feature]string{
	peers.Elicitation: "The server has no tool that asks a user: it is of a revision before elicitation.",
	peers.ListChange:  "The server's lists do not change, and it does not say `listChanged`.",
}

// unseen is what the Inspector's command line cannot show.
const (
	inspectorShows = "Its command line shows the result, not the progress; the result is asserted."
	inspectorAsks  = "Its command line can answer no question: in a session the call fails without longcall, too, and in 2026-07-28 it waits for an answer that nobody can give."
	inspectorOnce  = "Its command line sends one request, waits for its result and ends. It has no method that subscribes, and cannot be told to cancel."
)

// table renders docs/matrix.md from what the test saw.
type table struct {
	t       *testing.T
	reasons []string
}

// mark is a cell with a reason.
func (b *table) mark(mark, why string) string {
	i := slices.Index(b.reasons, why)
	if i < 0 {
		b.reasons = append(b.reasons, why)
		i = len(b.reasons) - 1
	}
	return fmt.Sprintf("%s [%d](#%[2]d)", mark, i+1)
}

func (b *table) cell(m *matrix, c caller, s site, f peers.Feature) string {
	x, has := m.cells[c.name()+" at "+s.name()][f]
	switch {
	case has && x.cannot != "":
		return b.mark("n/a", c.Name+": "+x.cannot+".")
	case has && x.err == nil:
		return "✓"
	case has:
		b.t.Errorf("%s at %s, %s: %v; without longcall (%v): %v", c.name(), s.name(), f, x.err, x.paired, x.direct)
		return "?"
	}
	for _, k := range knowns {
		if k.server != s.name() || k.feature != f {
			continue
		}
		x := m.apart[s.name()]
		if x.err == nil || !x.paired || (x.direct == nil) != k.lost {
			b.t.Errorf("%s, %s: %v; without longcall (%v): %v", s.name(), f, x.err, x.paired, x.direct)
		}
		if k.lost {
			return b.mark("lost", k.why)
		}
		return b.mark("n/a", k.why)
	}
	if err := m.lacks(b.t, s, f); err != nil || lacking[f] == "" {
		b.t.Errorf("%s: nobody knows why it has no %s; %v", s.name(), f, err)
	}
	return b.mark("n/a", lacking[f])
}

func (b *table) render(m *matrix) string {
	var out strings.Builder
	for _, f := range peers.Features {
		fmt.Fprintf(&out, "\n## %s%s\n\n%s\n\n| server |", strings.ToUpper(string(f[:1])), f[1:], asserts[f])
		for _, c := range callers() {
			fmt.Fprintf(&out, " %s |", c.name())
		}
		for _, c := range inspectors() {
			fmt.Fprintf(&out, " %s |", c.name())
		}
		fmt.Fprintf(&out, "\n|---|%s\n", strings.Repeat("---|", len(callers())+len(inspectors())))
		for _, s := range sites() {
			fmt.Fprintf(&out, "| %s |", s.name())
			for _, c := range callers() {
				fmt.Fprintf(&out, " %s |", b.cell(m, c, s, f))
			}
			for range inspectors() {
				switch f {
				case peers.ToolProgress:
					fmt.Fprintf(&out, " %s |", b.mark("✓", inspectorShows))
				case peers.Elicitation, peers.Sampling:
					fmt.Fprintf(&out, " %s |", b.mark("n/a", inspectorAsks))
				default:
					fmt.Fprintf(&out, " %s |", b.mark("n/a", inspectorOnce))
				}
			}
			out.WriteString("\n")
		}
	}
	out.WriteString("\n## Reasons\n\n")
	for i, why := range b.reasons {
		fmt.Fprintf(&out, "%d. <a id=\"%[1]d\"></a>%s\n", i+1, why)
	}
	return out.String()
}

// asserts says what each table asserts.
var asserts = map[peers.Feature]string{
	peers.ToolProgress: "The values 1, 2, 3 in this order, each once, on the SDK's own progress handler, and the tool's text after them. Where the server sends its last progress with the result, a client that drops it then may miss that one.",
	peers.Elicitation:  "The client's user is asked once, in the server's words, and the tool gets what the user said: \"accept Ada\".",
	peers.Sampling:     "The client's model is asked once, in the server's words, and the tool gets what the model said: \"sampled 42\".",
	peers.Subscription: "`notifications/resources/updated` for the very URI that was subscribed to, by `resources/subscribe` or `subscriptions/listen` as the client's era has it.",
	peers.Cancel:       "The SDK tells its caller of the cancel; a server of ours says that the call was cancelled there (the reference servers never look, and cannot say); and longcall's record says `cancelled`.",
	peers.ListChange:   "`notifications/…/list_changed`, and what is new in the list that is then read: of prompts, or of resources at the reference server.",
}

const docHead = `# Every client at every server

Real clients at real tool servers, in each era that they speak, all through one longcall. ` + "`TestMatrix`" + ` runs every pair, one client process each, which uses six features on one connection; it asserts what arrives on both sides, and that this page says what it saw. What fails is tried once more, and what fails again is run without longcall as well:

- **✓** all of it arrived.
- **n/a** one of the two cannot do it: it fails without longcall in the same way, or the SDK has no way to ask for it, or the server does not have it.
- **lost** it would work without longcall.

legacy is 2025-11-25 and before it, with sessions; modern is 2026-07-28; sse is the transport of 2024-11-05. The servers on SDKs have tools of ours, on HTTP in each era, and on stdio in the one that longcall finds out. everything is the reference server, everything-path-b its release of 2025-08-18, everything-2024 that of 2025-03-19.

Rewrite this page: ` + "`go test ./test/peers -run TestMatrix -parallel 6 -update`" + `.

`

// doc is the whole page.
func (m *matrix) doc(t *testing.T) string {
	return docHead + versions(t) + (&table{t: t}).render(m)
}

// versions names those of the peers, from what pins them.
func versions(t *testing.T) string {
	t.Helper()
	var out []string
	for _, p := range []struct{ file, pattern, name string }{
		{"gosdk/go.mod", `modelcontextprotocol/go-sdk v(\S+)`, "Go SDK"},
		{"node/package.json", `modelcontextprotocol/sdk": "([^"]+)"`, "TypeScript SDK (v1)"},
		{"node/package.json", `modelcontextprotocol/client": "([^"]+)"`, "TypeScript SDK (v2)"},
		{"python/requirements-v1.txt", `(?m)^mcp==(\S+)`, "Python SDK (v1)"},
		{"python/requirements-v2.txt", `(?m)^mcp==(\S+)`, "Python SDK (v2)"},
		{"node/package.json", `modelcontextprotocol/server-everything": "([^"]+)"`, "server-everything"},
		{"inspector/package.json", `modelcontextprotocol/inspector": "([^"]+)"`, "Inspector (`--cli`)"},
	} {
		b, err := os.ReadFile(filepath.Join(peers.Source(), filepath.FromSlash(p.file)))
		if err != nil {
			t.Fatal(err)
		}
		v := regexp.MustCompile(p.pattern).FindSubmatch(b)
		if v == nil {
			t.Fatalf("%s names no version of %s", p.file, p.name)
		}
		out = append(out, p.name+" "+string(v[1]))
	}
	return "The peers: " + strings.Join(out, ", ") + ".\n"
}
