//go:build unix

package hosts_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/test/hosts"
	"github.com/longcall/longcall/test/peers"
	"github.com/longcall/longcall/test/wire"
)

const (
	direct  = "direct"  // hosts call the slow server itself
	gateway = "gateway" // hosts call longcall, which calls the slow server
)

const answer = "the slow tool has finished"

func TestMain(m *testing.M) { os.Exit(peers.Main(m)) }

// TestHosts lets each host make one tool call that is silent for a while, and
// checks what its model got back, and what the host did on the wire.
func TestHosts(t *testing.T) {
	mode := os.Getenv("LONGCALL_HOSTS")
	if mode != direct && mode != gateway {
		t.Skip("it takes 1.3 GB of hosts: run `make hosts`")
	}
	silence := 12 * time.Second
	if s := os.Getenv("LONGCALL_HOSTS_SILENCE"); s != "" {
		var err error
		if silence, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
	}
	dir := hosts.Install(t)
	if mode == gateway {
		peers.Binary(t)
	}
	for _, h := range hosts.Hosts {
		t.Run(h.Name, func(t *testing.T) {
			t.Parallel()
			r := run(t, h, hosts.Setup{Dir: dir}, silence, mode == gateway, "")
			if len(r.results) != 1 || !strings.Contains(r.results[0], answer) {
				t.Errorf("the model got back %q, not %q", r.results, answer)
			}
			facts[h.Name](t, r.tap, mode)
			// A1, A6: whatever the host does after the result, the call stays completed and delivered.
			if r.gw != nil && r.gw.Delivered(t) != 1 {
				t.Error("the journal must have one call")
			}
			r.explain(t)
		})
	}
}

// The hosts' own limit in TestHandOff, and when longcall answers before it.
const (
	patience = 12 * time.Second
	budget   = 5 * time.Second
)

// TestHandOff lets each host call a tool that takes far longer than the host
// waits (A9): its model must see a hand-off that says no success, and by doing
// what that says come to the result of the one run.
func TestHandOff(t *testing.T) {
	if os.Getenv("LONGCALL_HOSTS") != gateway {
		t.Skip("it takes 1.3 GB of hosts, and longcall between: run `make hosts`")
	}
	dir := hosts.Install(t)
	peers.Binary(t)
	for _, h := range hosts.Hosts {
		t.Run(h.Name, func(t *testing.T) {
			t.Parallel()
			config := fmt.Sprintf("clients: {%s: {budget: %v, budget_token: %[2]v, await: %[2]v, await_token: %[2]v}}\n", h.Client, budget)
			r := run(t, h, hosts.Setup{Dir: dir, Patience: patience}, 90*time.Second, true, config)
			last := len(r.results) - 1
			if last < 1 || !strings.Contains(r.results[max(last, 0)], answer) {
				t.Errorf("the model did not come from a hand-off to the result: %q", r.results)
			}
			for i, text := range r.results[:max(last, 0)] {
				low := strings.ToLower(text)
				ran := strings.Contains(low, "still running")
				if hosts.Looked(i) { // its last look may come after the end
					ran = strings.Contains(low, "running") || i == last-1
					low = strings.ReplaceAll(low, "completed, not read", "")
				}
				if !ran || strings.Contains(text, answer) || strings.Contains(low, "success") || strings.Contains(low, "completed") {
					t.Errorf("while the tool ran, the model was told %q", text)
				}
			}
			var all []peers.Record
			r.gw.Until(t, "has noted the end", func(context.Context) bool {
				all = r.gw.Calls(t)
				return len(all) > 0 && all[0].Outcome != "running"
			})
			if len(all) != 1 || all[0].Outcome != "completed" || all[0].ToolError {
				t.Errorf("the journal has %+v", all)
			}
			t.Logf("the model came to the result in %d turns", last+1)
			r.explain(t)
		})
	}
}

// TestShell lets each host run a command in longcall's own shell that takes longer
// than its yield: the model is told that it runs on, waits for it instead of
// polling, and gets output and exit code of the one process (SHELL §5).
func TestShell(t *testing.T) {
	if os.Getenv("LONGCALL_HOSTS") != gateway {
		t.Skip("it takes 1.3 GB of hosts, and longcall between: run `make hosts`")
	}
	dir := hosts.Install(t)
	peers.Binary(t)
	for _, h := range hosts.Hosts {
		t.Run(h.Name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			r := &ran{model: hosts.NewModel(t)}
			r.model.Tool = "exec_command"
			r.model.Args = map[string]any{"command": "echo x >> ran; echo begun; sleep 9; echo done; exit 3"}
			r.gw = peers.StartLongcall(t, fmt.Sprintf("shell: {enabled: true, roots: [%q]}\n", root))
			r.tap = hosts.NewTap(t, r.gw.URL("shell"))
			r.out = h.Run(t, hosts.Setup{Dir: dir, URL: r.tap.URL, Model: r.model.URL}, 3*time.Minute)
			r.results = r.model.Results()
			switch n := len(r.results); {
			case n < 2:
				t.Errorf("the model did not come from the yield to the end: %q", r.results)
			case !strings.Contains(r.results[0], "Not finished: do not run it again") || strings.Contains(r.results[0], "exit 3"):
				t.Errorf("at the yield the model was told %q", r.results[0])
			// Claude Code shows its model the structured result only, the others the text.
			case !strings.Contains(r.results[n-1], "exit 3 after 9.") && !strings.Contains(strings.ReplaceAll(r.results[n-1], `\`, ""), `"exit_code":3`) || !strings.Contains(r.results[n-1], "done"):
				t.Errorf("at the end the model was told %q", r.results[n-1])
			}
			if b, err := os.ReadFile(filepath.Join(root, "ran")); string(b) != "x\n" {
				t.Errorf("the command ran %q times, %v", b, err)
			}
			if all := r.gw.Calls(t); len(all) != 1 || all[0].Outcome != "completed" {
				t.Errorf("the journal has %+v", all)
			}
			t.Logf("the model came to the end in %d turns", len(r.results))
			r.explain(t)
		})
	}
}

// ran is what there was to see of a host's run.
type ran struct {
	gw      *peers.Longcall // nil if the host called the server itself
	tap     *hosts.Tap
	model   *hosts.Model
	results []string // what the model got from tools
	out     string
}

// run lets a host make its call of a tool that is silent for a while. The config
// is longcall's, without its servers.
func run(t *testing.T, h hosts.Host, s hosts.Setup, silence time.Duration, through bool, config string) *ran {
	t.Helper()
	up := wire.NewUpstream(t, wire.Options{
		Version: wire.Modern, Both: true,
		Tools: `[{"name":"` + hosts.ToolName + `","description":"Takes its time.","inputSchema":{"type":"object","properties":{}}}]`,
		On:    map[string]wire.Handler{"tools/call": slow(silence)},
	})
	r := &ran{model: hosts.NewModel(t)}
	url := up.URL
	if through {
		r.gw = peers.StartLongcall(t, fmt.Sprintf("mcpServers: {slow: {url: %q}}\n%s", up.URL, config))
		url = r.gw.URL("slow")
	}
	r.tap = hosts.NewTap(t, url)
	s.URL, s.Model = r.tap.URL, r.model.URL
	r.out = h.Run(t, s, silence+3*time.Minute)
	r.results = r.model.Results()
	if n := up.Count("tools/call"); n != 1 {
		t.Errorf("the tool ran %d times", n)
	}
	for _, e := range r.tap.Entries("") {
		if e.Status >= 400 && e.Status != 405 && e.Msg.Method != "server/discover" {
			t.Errorf("%s %s was answered with HTTP %d: %s", e.Verb, e.Msg.Method, e.Status, e.Body)
		}
	}
	return r
}

// explain shows what happened, if the test has failed.
func (r *ran) explain(t *testing.T) {
	if t.Failed() {
		t.Logf("the host printed:\n%s\nthe tap saw:\n%s\nthe model did not know: %q", r.out, r.tap, r.model.Unknown())
	}
}

// slow is the upstream's tool: it sends headers and then nothing for a while.
func slow(silence time.Duration) wire.Handler {
	return func(c *wire.Conn, r *wire.Request) {
		c.SSE()
		if c.Pause(silence) {
			c.Event(r.Text(answer))
			c.End()
		}
	}
}

// facts check what each host does on the wire (CASES.md A1 to A5), and that it
// is answered as it needs.
var facts = map[string]func(t *testing.T, tap *hosts.Tap, mode string){
	"claude": func(t *testing.T, tap *hosts.Tap, _ string) {
		// A3: it asks server/discover first, on every connect.
		first := tap.Entries("")[0]
		if first.Msg.Method != "server/discover" {
			t.Errorf("A3: the first request is %s %s", first.Verb, first.Msg.Method)
		}
		if d := first.EndAt - first.At; d > time.Second {
			t.Errorf("A3: it was answered after %v", d)
		}
		if call := only(t, tap, "tools/call"); call.Header.Get("Mcp-Protocol-Version") != wire.Modern {
			t.Errorf("A3: the call is of %q", call.Header.Get("Mcp-Protocol-Version"))
		}
	},
	"codex": func(t *testing.T, tap *hosts.Tap, _ string) {
		// A4: the event stream stands first in Accept, tools/list has a token, and DELETE ends the session.
		list := only(t, tap, "tools/list")
		if a := list.Header.Get("Accept"); !strings.HasPrefix(a, "text/event-stream") {
			t.Errorf("A4: Accept is %q", a)
		}
		if list.Msg.At("params._meta.progressToken") == nil {
			t.Error("A4: tools/list has no progress token")
		}
		if d := tap.Entries("DELETE"); len(d) != 1 || d[0].EndAt-d[0].At > time.Second {
			t.Errorf("A4: DELETE: %v", d)
		}
	},
	"gemini": func(t *testing.T, tap *hosts.Tap, mode string) {
		// A5: no revision in the header after initialize; the session's counts.
		if only(t, tap, "initialize").Msg.Str("params.protocolVersion") != "2025-06-18" {
			t.Error("A5: it does not ask for 2025-06-18")
		}
		call := only(t, tap, "tools/call")
		if v := call.Header.Get("Mcp-Protocol-Version"); v != "" {
			t.Errorf("A5: the call has the revision %q", v)
		}
		// A2: after a finished stream whose events carried ids it comes back
		// with the last one, and must not get messages of another stream.
		for _, e := range tap.Entries("GET") {
			if e.Header.Get("Last-Event-Id") == "" {
				continue
			}
			if strings.Contains(e.Body, "jsonrpc") || e.EndAt == 0 || e.EndAt-e.At > 2*time.Second {
				t.Errorf("A2: the stream after %q brought %q and ended after %v", e.Header.Get("Last-Event-Id"), e.Body, e.EndAt-e.At)
			}
		}
		if ids := strings.Contains(call.Body, "\nid:") || strings.HasPrefix(call.Body, "id:"); mode == direct && ids {
			t.Error("A2: the scripted server sends no ids")
		}
	},
	"opencode": func(t *testing.T, tap *hosts.Tap, _ string) {
		// A1: it cancels the call after its successful result.
		call := only(t, tap, "tools/call")
		late := 0
		for _, e := range tap.Entries("notifications/cancelled") {
			if string(e.Msg.At("params.requestId")) != string(call.Msg.ID) {
				continue
			}
			if e.At < call.EndAt {
				t.Errorf("A1: the call was cancelled at %v and ended at %v", e.At, call.EndAt)
			}
			if e.Status != 202 {
				t.Errorf("A1: the late cancel was answered with HTTP %d", e.Status)
			}
			late++
		}
		if late == 0 {
			t.Error("A1: it did not cancel the finished call")
		}
	},
}

// only is the one request of a method.
func only(t *testing.T, tap *hosts.Tap, method string) hosts.Entry {
	t.Helper()
	e := tap.Entries(method)
	if len(e) != 1 {
		t.Fatalf("%d requests %s", len(e), method)
	}
	return e[0]
}
