package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longcall/longcall/internal/config"
)

func TestClientEntries(t *testing.T) {
	var b strings.Builder
	plain := func(s string) string { return s }
	for _, e := range []struct {
		what string
		entry
	}{
		{"with the token", entry{url: "http://127.0.0.1:8722/mcp", name: "longcall", auth: true, token: "s3cret", tokenFile: "/home/me/state/token"}},
		{"without it", entry{url: "http://127.0.0.1:8722/mcp", name: "longcall", auth: true, tokenFile: "/home/me/my state/token"}},
		{"no authentication", entry{url: "http://127.0.0.1:8722/mcp/files", name: "files"}},
	} {
		b.WriteString("=== " + e.what + "\n")
		for _, c := range clients {
			printEntry(&b, c, e.entry, plain)
		}
		for _, c := range clients {
			for _, s := range c.parts(&e.entry) {
				if strings.HasPrefix(s.Text, "{") && !json.Valid([]byte(s.Text)) {
					t.Errorf("%s, %s: not JSON: %s", e.what, c.Name, s.Text)
				}
			}
		}
	}
	golden(t, "clients.txt", b.String())
}

func TestClientsBeforeTheFirstStart(t *testing.T) {
	w := newWorld(t)
	v := w.expect(t, exitOK, "clients", "claude-code", "--server", "files")
	wantContains(t, "clients", v.out.String(), "claude mcp add --transport http files http://127.0.0.1:8722/mcp/files", "$(cat "+w.state+"/token)")
	v = w.expect(t, exitOK, "clients", "--json")
	var list []struct{ Client, Title, Where, Text string }
	if err := json.Unmarshal([]byte(v.out.String()), &list); err != nil || len(list) != 6 || list[0].Client != "claude-code" || list[0].Where == "" {
		t.Errorf("clients --json: %v\n%s", err, v.out)
	}
}

func TestConfigCommands(t *testing.T) {
	w := newWorld(t)
	for _, args := range [][]string{{"config", "--defaults"}, {"config", "defaults"}} {
		if v := w.expect(t, exitOK, args...); v.out.String() != config.Defaults() {
			t.Errorf("%v prints something else", args)
		}
	}
	v := w.expect(t, exitUsage, "config", "check")
	wantContains(t, "no file", v.err.String(), "there is no config file")
	good := filepath.Join(t.TempDir(), "good.yaml")
	if err := os.WriteFile(good, []byte("mcpServers: {a: {command: x}, b: {url: \"http://h/mcp\"}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	v = w.expect(t, exitOK, "config", "check", good)
	if want := good + " is good; its 2 tool servers are a, b\n"; v.out.String() != want {
		t.Errorf("%q, want %q", v.out, want)
	}
	t.Setenv("LONGCALL_CONFIG", good)
	w.expect(t, exitOK, "config", "check")
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("relay: never\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	v = w.expect(t, exitUsage, "config", "check", bad, "--json")
	var list []finding
	if err := json.Unmarshal([]byte(v.out.String()), &list); err != nil || len(list) != 1 || list[0].Level != "error" || list[0].Line != 1 || list[0].Key != "relay" {
		t.Errorf("config check --json: %v\n%s", err, v.out)
	}
}

func TestVersion(t *testing.T) {
	w := newWorld(t)
	v := w.expect(t, exitOK, "version")
	wantContains(t, "version", v.out.String(), "longcall ", "MCP 2026-07-28, 2025-11-25, 2025-06-18, 2025-03-26\n")
	v = w.expect(t, exitOK, "version", "--json")
	var b build
	if err := json.Unmarshal([]byte(v.out.String()), &b); err != nil || b.Version == "" || b.Go == "" || len(b.Protocols) != 4 {
		t.Errorf("version --json: %v\n%s", err, v.out)
	}
}

func TestDemo(t *testing.T) {
	w := newWorld(t)
	v := w.expect(t, exitOK, "demo", "--tool", "6s", "--cut", "2s")
	wantContains(t, "demo", v.out.String(),
		"proxy: no byte for 2 s, connection cut", "agent: the connection was lost before the result came",
		"tool: finished; nobody is there for the result", "agent: has the result: Indexed 48213 files.",
		"Directly, the agent lost the call", "Through longcall, no silence was longer than ", "Next: longcall serve --config FILE",
		"completed after 6.", "delivered  by sse")
	left, err := filepath.Glob(filepath.Join(os.TempDir(), "longcall-demo-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
