//go:build unix

// Package hosts drives real agent hosts (Claude Code, Codex, Gemini CLI, opencode) with a scripted model, without an account or a network.
//
// Each host runs once, with an empty environment and a home of its own, and
// is told to make one tool call; its model API is Model, on loopback. `make
// hosts` runs the tests; `go test ./...` skips them.
package hosts

import (
	"context"
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
	Name   string
	Client string // how it names itself to servers
	// command makes the command that runs the host once. It writes the host's
	// configuration below the run's home.
	command func(Setup) (peers.Command, error)
}

// Setup is what a host is to find when it runs.
type Setup struct {
	Dir   string // where the hosts are installed
	URL   string // of the tool server, which the host calls "slow"
	Model string // where the model API is
	// Patience is how long the host waits for a tool; 0 leaves it as it is. In
	// opencode a progress message starts it anew, in the others nothing does.
	Patience time.Duration

	home string
}

// Hosts are all hosts.
var Hosts = []Host{
	{"claude", "claude-code", claude},
	{"codex", "codex-mcp-client", codex},
	{"gemini", "gemini-cli-mcp-client", gemini},
	{"opencode", "opencode", opencode},
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
func (h Host) Run(t testing.TB, s Setup, limit time.Duration) string {
	t.Helper()
	s.home = t.TempDir()
	c, err := h.command(s)
	if err != nil {
		t.Fatal(err)
	}
	c.Dir = filepath.Join(s.home, "work")
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	c.Env = append(c.Env, "HOME="+s.home, "TERM=dumb")
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

// raw is a part of a document that stays as it is.
type raw string

// config is a document whose %s are replaced by JSON strings.
func config(format string, args ...any) string {
	quoted := make([]any, len(args))
	for i, a := range args {
		if r, ok := a.(raw); ok {
			quoted[i] = string(r)
			continue
		}
		quoted[i] = encode(a)
	}
	return fmt.Sprintf(format, quoted...)
}

// timeout is a member of a JSON object that says how patient the host is.
func (s Setup) timeout() raw {
	if s.Patience == 0 {
		return ""
	}
	return raw(fmt.Sprintf(`, "timeout": %d`, s.Patience.Milliseconds()))
}

func claude(s Setup) (peers.Command, error) {
	bin, err := native(s.Dir, "@anthropic-ai/claude-code-*/claude")
	if err != nil {
		return peers.Command{}, err
	}
	file := filepath.Join(s.home, "mcp.json")
	err = write(s.home, "mcp.json", config(`{"mcpServers":{"slow":{"type":"http","url":%s}}}`, s.URL))
	env := []string{
		"ANTHROPIC_BASE_URL=" + s.Model, "ANTHROPIC_API_KEY=sk-none", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1",
		"DISABLE_AUTOUPDATER=1", "ENABLE_TOOL_SEARCH=false",
	}
	if s.Patience > 0 {
		env = append(env, fmt.Sprintf("MCP_TOOL_TIMEOUT=%d", s.Patience.Milliseconds()))
	}
	return peers.Command{
		Path: bin,
		Args: []string{
			"-p", "run it", "--mcp-config", file, "--strict-mcp-config", "--allowedTools", "mcp__slow",
			"--output-format", "stream-json", "--verbose",
		},
		Env: env,
	}, err
}

func codex(s Setup) (peers.Command, error) {
	patience := ""
	if s.Patience > 0 {
		patience = fmt.Sprintf("tool_timeout_sec = %d\n", int(s.Patience.Seconds()))
	}
	err := write(s.home, ".codex/config.toml", config(`model = "scripted"
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
`, s.Model+"/v1", s.URL)+patience)
	return peers.Command{
		Path: filepath.Join(s.Dir, "node_modules", ".bin", "codex"),
		Args: []string{"exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "run it"},
		Env:  []string{"RUST_LOG=error"},
	}, err
}

func gemini(s Setup) (peers.Command, error) {
	err := write(s.home, ".gemini/settings.json", config(`{
 "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": false}},
 "telemetry": {"enabled": false}, "privacy": {"usageStatisticsEnabled": false},
 "general": {"disableAutoUpdate": true, "enableAutoUpdate": false},
 "mcpServers": {"slow": {"httpUrl": %s, "trust": true%s}}}`, s.URL, s.timeout()))
	return peers.Command{
		Path: filepath.Join(s.Dir, "node_modules", ".bin", "gemini"),
		Args: []string{"-m", "gemini-2.5-flash", "--yolo", "-p", "run it"},
		Env:  []string{"GEMINI_API_KEY=none", "GOOGLE_GEMINI_BASE_URL=" + s.Model, "GEMINI_CLI_TRUST_WORKSPACE=true"},
	}, err
}

func opencode(s Setup) (peers.Command, error) {
	bin, err := native(s.Dir, "opencode-*/bin/opencode")
	if err != nil {
		return peers.Command{}, err
	}
	err = write(s.home, ".config/opencode/opencode.json", config(`{
 "autoupdate": false, "share": "disabled", "permission": "allow",
 "model": "scripted/scripted", "small_model": "scripted/scripted",
 "provider": {"scripted": {"npm": "@ai-sdk/openai-compatible", "name": "scripted", "options": {"baseURL": %s, "apiKey": "none"},
  "models": {"scripted": {"name": "scripted", "tool_call": true}}}},
 "mcp": {"slow": {"type": "remote", "url": %s, "enabled": true%s}}}`, s.Model+"/v1", s.URL, s.timeout()))
	return peers.Command{
		Path: bin, Args: []string{"run", "--format", "json", "run it"},
		Env: []string{"OPENCODE_DISABLE_AUTOUPDATE=1", "OPENCODE_DISABLE_MODELS_FETCH=1", "OPENCODE_DISABLE_DEFAULT_PLUGINS=1"},
	}, err
}
