// Package hosts drives real agent hosts (Claude Code, Codex, Gemini CLI, opencode) with a scripted model, without an account or a network.
//
// Each host runs once, with an empty environment and a home of its own, and
// is told to make one tool call; its model API is Model, on loopback. `make
// hosts` runs the tests; `go test ./...` skips them.
package hosts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/test/peers"
)

// Host is one agent host.
type Host struct {
	Name string
	// command makes the command that runs the host once. It writes the host's
	// configuration below home: a tool server "slow" at url, a model at model.
	command func(dir, home, url, model string) (peers.Command, error)
}

// Hosts are all hosts.
var Hosts = []Host{
	{"claude", claude}, {"codex", codex}, {"gemini", gemini}, {"opencode", opencode},
}

// Install installs the hosts, unless that was done before, and returns their folder.
func Install(t testing.TB) string {
	t.Helper()
	peers.NeedNode(t)
	src := filepath.Join(peers.Source(), "..", "hosts", "node")
	return peers.Install(t, "hosts", []string{filepath.Join(src, "package.json")}, func(ctx context.Context, dir string) error {
		return peers.NPM(ctx, dir, src)
	})
}

// Run runs the host to its end and returns what it printed. The limit bounds
// how long it may take.
func (h Host) Run(t testing.TB, dir, url, model string, limit time.Duration) string {
	t.Helper()
	home := t.TempDir()
	c, err := h.command(dir, home, url, model)
	if err != nil {
		t.Fatal(err)
	}
	c.Dir = filepath.Join(home, "work")
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	c.Env = append(c.Env, "HOME="+home, "TERM=dumb")
	out, errs, code := peers.Output(t, limit, c)
	if code != 0 {
		t.Errorf("%s ended with exit code %d", h.Name, code)
	}
	return out + errs
}

// native finds a host's own binary in its package for this platform. The
// packages would link it in an install script, which we do not run.
func native(dir, pattern string) (string, error) {
	found, err := filepath.Glob(filepath.Join(dir, "node_modules", filepath.FromSlash(pattern)))
	if err != nil {
		return "", err
	}
	for _, f := range found {
		if !strings.Contains(f, "-musl") && !strings.Contains(f, "-baseline") {
			return f, nil
		}
	}
	return "", fmt.Errorf("no %s for this platform among %v", pattern, found)
}

// write puts a file below home.
func write(home, name, content string) error {
	path := filepath.Join(home, filepath.FromSlash(name))
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600))
}

// config is a JSON document whose %s are replaced by JSON strings.
func config(format string, args ...string) string {
	quoted := make([]any, len(args))
	for i, a := range args {
		b, err := json.Marshal(a)
		if err != nil {
			panic(err) // strings always marshal
		}
		quoted[i] = string(b)
	}
	return fmt.Sprintf(format, quoted...)
}

func claude(dir, home, url, model string) (peers.Command, error) {
	bin, err := native(dir, "@anthropic-ai/claude-code-*/claude")
	if err != nil {
		return peers.Command{}, err
	}
	file := filepath.Join(home, "mcp.json")
	err = write(home, "mcp.json", config(`{"mcpServers":{"slow":{"type":"http","url":%s}}}`, url))
	return peers.Command{
		Path: bin,
		Args: []string{
			"-p", "run it", "--mcp-config", file, "--strict-mcp-config", "--allowedTools", "mcp__slow__" + ToolName,
			"--output-format", "stream-json", "--verbose",
		},
		Env: []string{
			"ANTHROPIC_BASE_URL=" + model, "ANTHROPIC_API_KEY=sk-none", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1",
			"DISABLE_AUTOUPDATER=1", "ENABLE_TOOL_SEARCH=false",
		},
	}, err
}

func codex(dir, home, url, model string) (peers.Command, error) {
	err := write(home, ".codex/config.toml", config(`model = "scripted"
model_provider = "scripted"
approval_policy = "never"
sandbox_mode = "danger-full-access"
[model_providers.scripted]
name = "scripted"
base_url = %s
wire_api = "responses"
requires_openai_auth = false
[analytics]
enabled = false
[mcp_servers.slow]
url = %s
`, model+"/v1", url))
	return peers.Command{
		Path: filepath.Join(dir, "node_modules", ".bin", "codex"),
		Args: []string{"exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "run it"},
		Env:  []string{"RUST_LOG=error"},
	}, err
}

func gemini(dir, home, url, model string) (peers.Command, error) {
	err := write(home, ".gemini/settings.json", config(`{
 "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": false}},
 "telemetry": {"enabled": false}, "privacy": {"usageStatisticsEnabled": false},
 "general": {"disableAutoUpdate": true, "enableAutoUpdate": false},
 "mcpServers": {"slow": {"httpUrl": %s, "trust": true}}}`, url))
	return peers.Command{
		Path: filepath.Join(dir, "node_modules", ".bin", "gemini"),
		Args: []string{"-m", "gemini-2.5-flash", "--yolo", "-p", "run it"},
		Env:  []string{"GEMINI_API_KEY=none", "GOOGLE_GEMINI_BASE_URL=" + model, "GEMINI_CLI_TRUST_WORKSPACE=true"},
	}, err
}

func opencode(dir, home, url, model string) (peers.Command, error) {
	bin, err := native(dir, "opencode-*/bin/opencode")
	if err != nil {
		return peers.Command{}, err
	}
	err = write(home, ".config/opencode/opencode.json", config(`{
 "autoupdate": false, "share": "disabled", "permission": "allow",
 "model": "scripted/scripted", "small_model": "scripted/scripted",
 "provider": {"scripted": {"npm": "@ai-sdk/openai-compatible", "name": "scripted", "options": {"baseURL": %s, "apiKey": "none"},
  "models": {"scripted": {"name": "scripted", "tool_call": true}}}},
 "mcp": {"slow": {"type": "remote", "url": %s, "enabled": true}}}`, model+"/v1", url))
	return peers.Command{
		Path: bin, Args: []string{"run", "--format", "json", "run it"},
		Env: []string{"OPENCODE_DISABLE_AUTOUPDATE=1", "OPENCODE_DISABLE_MODELS_FETCH=1", "OPENCODE_DISABLE_DEFAULT_PLUGINS=1"},
	}, err
}
