package config

import (
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"go.uber.org/goleak"
)

var update = flag.Bool("update", false, "write the goldens anew")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// env is a getenv over a fixed set of variables.
func env(kv ...string) func(string) (string, bool) {
	m := map[string]string{"HOME": "/home/ann"}
	for i := 0; i < len(kv); i += 2 {
		m[kv[i]] = kv[i+1]
	}
	return func(k string) (string, bool) { v, ok := m[k]; return v, ok }
}

func mustParse(t *testing.T, text, name string, getenv func(string) (string, bool)) *Config {
	t.Helper()
	c, err := Parse([]byte(text), name, getenv)
	if err != nil {
		t.Fatalf("Parse: %v", err)
	}
	return c
}

// TestDefaults: what --defaults prints means exactly what no config means, and
// no key is left out.
func TestDefaults(t *testing.T) {
	c := mustParse(t, Defaults(), "defaults.yaml", nil)
	want := Default()
	c.File, c.pos, c.secrets = "", nil, nil
	if !reflect.DeepEqual(c, want) {
		t.Errorf("Defaults() parses to\n%+v\nDefault() is\n%+v", c, want)
	}
	for key := range homes {
		if !regexp.MustCompile(`(?m)^[# {]*` + key + `:|[{ ]` + key + `:`).MatchString(Defaults()) {
			t.Errorf("key %q is not in Defaults()", key)
		}
	}
}

// TestDefaultServerText: the example entry in Defaults shows real defaults.
func TestDefaultServerText(t *testing.T) {
	_, example, _ := strings.Cut(Defaults(), "mcpServers: {}\n")
	example = regexp.MustCompile(`(?m)^# ?`).ReplaceAllString(example, "")
	c := mustParse(t, example, "example.yaml", env("SEARCH_TOKEN", "x"))
	if len(c.Warnings) > 0 {
		t.Errorf("warnings: %v", c.Warnings)
	}
	want := DefaultServer()
	for name, s := range c.Servers {
		if s.Era != want.Era || s.Share != want.Share || s.Ping != want.Ping || s.Restart != want.Restart || s.Asks != want.Asks || s.Disabled || s.Tools["x"].Deny {
			t.Errorf("%s: the example is not the default: %+v", name, s)
		}
	}
}

// TestDefaultClientsText: the example of clients in Defaults can be used as it is.
func TestDefaultClientsText(t *testing.T) {
	_, example, _ := strings.Cut(Defaults(), "\nclients: {}\n")
	example, _, _ = strings.Cut(example, "\n\n")
	example = regexp.MustCompile(`(?m)^# ?`).ReplaceAllString(example, "")
	c := mustParse(t, example+"\nauth: {tokens: {ci: aaaaaaaaaaaaaaaaaaaaaaaa}}\nmcpServers: {search: {url: 'https://h.example'}}\n", "example.yaml", env())
	if len(c.Warnings) > 0 {
		t.Errorf("warnings: %v", c.Warnings)
	}
	one := c.Clients["claude-code"]
	if len(c.Clients) != 2 || one.Match != (Match{}) || *one.Budget != 110*time.Second || *one.AwaitToken != 45*time.Second || one.Tasks != On {
		t.Errorf("%+v", c.Clients)
	}
	if got := c.Clients["nightly"]; got.Match != (Match{"*", "ci", "search"}) || *got.Budget != 0 || got.BudgetToken != nil || got.Tasks != "" {
		t.Errorf("nightly: %+v", got)
	}
}

// What a server may ask of agents is all of it, unless the operator says otherwise
// (SPEC §4.3).
func TestAsks(t *testing.T) {
	c := mustParse(t, `mcpServers: {a: {url: "https://h.example", asks: {sampling: false}}, b: {url: "https://h.example"}}`, "c.yaml", env())
	if a, b := c.Servers["a"].Asks, c.Servers["b"].Asks; a != (Asks{Elicitation: true, Roots: true}) || b != (Asks{true, true, true}) {
		t.Errorf("%+v, %+v", a, b)
	}
}

// Extensions are let through by name, with their methods; by default none.
func TestExtensions(t *testing.T) {
	c := mustParse(t, `mcpServers: {a: {url: "https://h.example", extensions: {com.example/x: [x/get, "x/y/*"]}}, b: {url: "https://h.example"}}`, "c.yaml", env())
	if got := c.Servers["a"].Extensions["com.example/x"]; len(got) != 2 || got[1] != "x/y/*" || c.Servers["b"].Extensions != nil {
		t.Errorf("%v, %v", c.Servers["a"].Extensions, c.Servers["b"].Extensions)
	}
}

// TestHandOffAndAttach: global, server and tool, each empty where nothing is said.
func TestHandOffAndAttach(t *testing.T) {
	c := mustParse(t, `
hand_off: off
attach: always
attach_window: 0
stream_age: 10s
mcpServers:
  a: {url: "https://h.example", hand_off: auto, tools: {t: {hand_off: off, attach: never}, u: {}}}
`, "c.yaml", env())
	a := c.Servers["a"]
	if c.HandOff != HandOffOff || c.Attach != AttachAlways || c.AttachWindow != 0 || c.StreamAge != 10*time.Second {
		t.Errorf("global: %+v", c)
	}
	if a.HandOff != HandOffAuto || a.Attach != "" || a.Tools["t"].HandOff != HandOffOff || a.Tools["t"].Attach != AttachNever || a.Tools["u"] != (Tool{}) {
		t.Errorf("server: %+v", a)
	}
}

func TestEmpty(t *testing.T) {
	for _, text := range []string{"", "\n", "# nothing\n", "---\n", "mcpServers:\n", "limits:\n", "\ufeff"} {
		c := mustParse(t, text, "c.yaml", env())
		want := defaults(env())
		c.File, c.pos, c.secrets = "", nil, nil
		if !reflect.DeepEqual(c, want) {
			t.Errorf("%q does not give the defaults: %+v", text, c)
		}
	}
	if c := mustParse(t, "", "c.json", env()); len(c.Servers) != 0 {
		t.Errorf("servers out of nothing: %v", c.Servers)
	}
}

// TestLineEnds: an editor on Windows.
func TestLineEnds(t *testing.T) {
	for name, text := range map[string]string{
		"c.yaml": "limits:\r\n  idle: 1m\r\nhosts:\r\n- a.example\r\n",
		"c.json": "{\r\n\"limits\": {\"idle\": \"1m\"}, // x\r\n\"hosts\": [\"a.example\",]\r\n}\r\n",
	} {
		if c := mustParse(t, text, name, env()); c.Limits.Idle != time.Minute || len(c.Hosts) != 1 || c.Hosts[0] != "a.example" {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

// TestDesignExample is the config of DESIGN §8.
func TestDesignExample(t *testing.T) {
	c := mustParse(t, `
listen: 127.0.0.1:8722
state: ~/.local/state/longcall
shell: {enabled: true, roots: [~/code]}
mcpServers:                       # the shape every host already uses, plus our own keys
  files:  {command: npx, args: [-y, "@modelcontextprotocol/server-filesystem", "."]}
  search: {url: "https://search.example/mcp", headers: {Authorization: "Bearer ${SEARCH_TOKEN}"}, era: auto,
           limits: {connect: 10s, first_byte: 60s, idle: 5m, total: 2h, message: 16MiB}, relay: live,
           tools: {deploy: {on_disconnect: detach}}}
`, "c.yaml", env("SEARCH_TOKEN", "s3cret"))
	if c.State != "/home/ann/.local/state/longcall" {
		t.Errorf("state %q", c.State)
	}
	f, s := c.Servers["files"], c.Servers["search"]
	if f.Command != "npx" || f.Type != TransportStdio || len(f.Args) != 3 || f.Args[2] != "." {
		t.Errorf("files: %+v", f)
	}
	if s.Headers["Authorization"].Reveal() != "Bearer s3cret" || s.Type != TransportHTTP || s.Tools["deploy"].OnDisconnect != DisconnectDetach {
		t.Errorf("search: %+v", s)
	}
	if *s.Limits.FirstByte != time.Minute || *s.Limits.Message != 16<<20 || s.Limits.Call != nil {
		t.Errorf("limits: %+v", s.Limits)
	}
	if got := fmt.Sprint(c.Enabled()); got != "[files search]" {
		t.Errorf("Enabled: %s", got)
	}
}

// TestBenchExample is the config that the outside measure writes.
func TestBenchExample(t *testing.T) {
	c := mustParse(t, "listen: 127.0.0.1:1234\nstate: /w/state\nmcpServers: {up: {url: \"http://127.0.0.1:9/mcp\", limits: {concurrent: 20000}}}\n", "c.yaml", env())
	if *c.Servers["up"].Limits.Concurrent != 20000 || c.Limits.PerPrincipal < 5000 {
		t.Errorf("the bench's 5000 calls would be refused: %+v", c.Limits)
	}
}

// TestHostFiles: files as hosts have them work as they are.
func TestHostFiles(t *testing.T) {
	tests := []struct{ name, file, text string }{
		{"claude", ".claude.json", `{"numStartups": 3, "theme": "dark", "projects": {}, "a": 1, "b": 2, "c": 3,
	"mcpServers": {"srv": {"type": "http", "url": "https://h.example/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}, "timeout": 600000, "oauth": {}}}}`},
		{"cursor", ".cursor/mcp.json", `{"mcpServers": {"srv": {"url": "https://h.example/mcp", "headers": {"Authorization": "Bearer ${env:TOKEN}", "Accept": "application/json"}}}}`},
		{"vscode", ".vscode/mcp.json", `{
	// comments and trailing commas are allowed there
	"inputs": [{"type": "promptString", "id": "token", "description": "d", "password": true}],
	"servers": {"srv": {"type": "http", "url": "https://h.example/mcp", "gallery": true, /* x */ "headers": {"Authorization": "Bearer ${input:token}",},},},
}`},
		{"gemini", "settings.json", `{"ui": {"theme": "x"}, "mcpServers": {"srv": {"httpUrl": "https://h.example/mcp", "timeout": 5000, "trust": true, "description": "d", "headers": {"Authorization": "Bearer $${TOKEN}"}, "includeTools": ["a"]}}}`},
		{"cline", "cline_mcp_settings.json", `{"mcpServers": {"srv": {"type": "streamableHttp", "url": "https://h.example/mcp", "disabled": false, "alwaysAllow": ["x"], "autoApprove": [], "timeout": 60, "headers": {"Authorization": "Bearer ${TOKEN}"}}}}`},
		{"copilot", "mcp-config.json", `{"mcpServers": {"srv": {"type": "remote", "url": "https://h.example/mcp", "tools": ["*"], "someNewKey": {"a": 1}, "headers": {"Authorization": "Bearer ${TOKEN:-x}"}}}}`},
		{"enabled", "c.yaml", "mcpServers: {srv: {url: https://h.example/mcp, enabled: true, headers: {Authorization: 'Bearer ${TOKEN}'}}}"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := mustParse(t, tt.text, tt.file, env("TOKEN", "s3cret"))
			s := c.Servers["srv"]
			want := "Bearer s3cret"
			if tt.name == "gemini" {
				want = "Bearer ${TOKEN}"
			}
			if s.URL != "https://h.example/mcp" || s.Type != TransportHTTP || s.Headers["Authorization"].Reveal() != want || len(s.Headers) != 1 {
				t.Errorf("%+v %q", s, s.Headers["Authorization"].Reveal())
			}
			for _, w := range c.Warnings {
				t.Log(w)
			}
		})
	}
}

func TestStdioHostFile(t *testing.T) {
	c := mustParse(t, `{"mcpServers": {"srv": {"type": "local", "command": "./bin/srv", "args": ["--port", 8080, true, "${workspaceFolder}"], "env": {"PORT": 8080, "BIG": 9007199254740993, "E": ""}, "cwd": "sub"},
	"off": {"command": "x", "args": ["${NOT_SET}"], "disabled": true}, "off2": {"command": "x", "enabled": false}}}`, "/w/.vscode/mcp.json", env())
	s := c.Servers["srv"]
	if s.Command != "/w/bin/srv" || fmt.Sprint(s.Args) != "[--port 8080 true /w]" || s.Cwd != "/w/sub" {
		t.Errorf("%+v", s)
	}
	if s.Env["PORT"].Reveal() != "8080" || s.Env["BIG"].Reveal() != "9007199254740993" || s.Env["E"].Reveal() != "" {
		t.Errorf("env %v", s.Env)
	}
	if got := fmt.Sprint(c.Enabled()); got != "[srv]" {
		t.Errorf("Enabled: %s", got)
	}
	if len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0].Error(), "NOT_SET") {
		t.Errorf("warnings %v", c.Warnings)
	}
}

func TestInputDefault(t *testing.T) {
	c := mustParse(t, `{"inputs": [{"id": "api-url", "default": "https://d.example/mcp"}], "servers": {"a": {"url": "${input:api-url}"}}}`, "mcp.json", env())
	if got := c.Servers["a"].URL; got != "https://d.example/mcp" {
		t.Errorf("url %q", got)
	}
	c = mustParse(t, `{"servers": {"a": {"url": "${input:api-url}"}}}`, "mcp.json", env("API_URL", "https://e.example/mcp"))
	if got := c.Servers["a"].URL; got != "https://e.example/mcp" {
		t.Errorf("url %q", got)
	}
}

func TestAnchorsAndMerge(t *testing.T) {
	c := mustParse(t, `
limits: &l {idle: 1m, total: 3h}
mcpServers:
  a: &a {url: "https://a.example/mcp", limits: *l, ping: 5s}
  b: {<<: *a, url: "https://b.example/mcp"}
`, "c.yaml", env())
	if b := c.Servers["b"]; b.URL != "https://b.example/mcp" || *b.Limits.Total != 3*time.Hour || c.Limits.Idle != time.Minute {
		t.Errorf("%+v", b)
	}
}

func TestStateFolder(t *testing.T) {
	for _, tt := range []struct {
		goos string
		env  func(string) (string, bool)
		want string
	}{
		{"linux", env(), "/home/ann/.local/state/longcall"},
		{"linux", env("XDG_STATE_HOME", "/x"), "/x/longcall"},
		{"linux", env("XDG_STATE_HOME", "rel"), "/home/ann/.local/state/longcall"},
		{"linux", env("HOME", ""), ""},
		{"darwin", env("XDG_STATE_HOME", "/x"), "/home/ann/Library/Application Support/longcall"},
	} {
		if got := defaultState(tt.goos, tt.env); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.goos, got, tt.want)
		}
	}
	if c := mustParse(t, "state: st", "/etc/longcall/c.yaml", env()); c.State != "/etc/longcall/st" {
		t.Errorf("relative state: %q", c.State)
	}
}

func TestTokens(t *testing.T) {
	dir := t.TempDir()
	long := strings.Repeat("k", 30)
	if err := os.WriteFile(filepath.Join(dir, "ann"), []byte(long+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := mustParse(t, "auth: {tokens: {ann: 'file:ann', ci: '${CI}'}}", filepath.Join(dir, "c.yaml"), env("CI", long+"2"))
	if got := fmt.Sprint(c.Auth.TokenValues()); got != "map[ann:"+long+" ci:"+long+"2]" {
		t.Errorf("tokens %s", got)
	}
}

// TestSecretsStayHidden: however a config is printed, no credential shows (I10).
func TestSecretsStayHidden(t *testing.T) {
	c := mustParse(t, `{"auth": {"tokens": {"ci": "hunter2hunter2hunter2hunter2"}}, "otel": {"headers": {"x": "hunter2"}},
	"mcpServers": {"a": {"url": "https://u:hunter2@h.example/mcp?key=hunter2", "headers": {"X-Key": "hunter2"}}, "b": {"command": "x", "env": {"K": "hunter2"}}}}`, "c.json", env())
	var b strings.Builder
	slog.New(slog.NewJSONHandler(&b, nil)).Info("x", "auth", c.Auth, "otel", c.OTel, "h", c.Servers["a"].Headers, "s", c.Servers["a"].Headers["X-Key"])
	slog.New(slog.NewTextHandler(&b, nil)).Info("x", "auth", c.Auth, "env", c.Servers["b"].Env)
	for _, f := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
		fmt.Fprintf(&b, f, []any{c.Auth, c.OTel, c.Servers["a"].Headers, c.Servers["b"].Env})
	}
	y, err := yaml.Marshal([]any{c.Auth, c.Servers["b"].Env})
	if err != nil {
		t.Fatal(err)
	}
	b.Write(y)
	b.WriteString(c.Servers["a"].Where())
	if s := b.String(); strings.Contains(s, "hunter2") || strings.Contains(s, "68756e74657232") {
		t.Errorf("a secret shows: %s", s)
	}
	if got := c.Servers["a"].Where() + " " + c.Servers["b"].Where(); got != "https://h.example/mcp x" {
		t.Errorf("Where: %s", got)
	}
}

func TestDurationsAndSizes(t *testing.T) {
	for s, want := range map[string]time.Duration{
		"10s": 10 * time.Second, "1h30m": 90 * time.Minute, "2d": 48 * time.Hour, "1d12h": 36 * time.Hour,
		"0": 0, "0s": 0, "1.5d": 36 * time.Hour, "250ms": 250 * time.Millisecond,
	} {
		if got, err := parseDuration(s); err != nil || got != want {
			t.Errorf("%q: %s, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "10", "-5s", "+5s", "5 minutes", "d", "xd", "1d-1h", "9999999d", "infd", "nand", "-1d", "1d1d", "1e400d", "2562047h1d", "106000d20000h"} {
		if got, err := parseDuration(s); err == nil {
			t.Errorf("%q was taken for %s", s, got)
		}
	}
	for s, want := range map[string]Size{
		"16MiB": 16 << 20, "64KB": 64000, "1048576": 1 << 20, "2gib": 2 << 30, "0": 0, "1.5KiB": 1536, "7B": 7, "8 KiB": 8192, "1TiB": 1 << 40, "3mb": 3000000, "1tb": 1e12,
	} {
		if got, err := parseSize(s); err != nil || got != want {
			t.Errorf("%q: %d, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "B", "MiB", "-1", "1M", "1e3", "0x10", "1.5", "1.1.1KiB", "99999999TiB", "Inf", "NaNB", "1_000"} {
		if got, err := parseSize(s); err == nil {
			t.Errorf("%q was taken for %d", s, got)
		}
	}
}

func TestIsLoopback(t *testing.T) {
	for s, want := range map[string]bool{
		"127.0.0.1:1": true, "127.9.9.9:1": true, "[::1]:1": true, "localhost:1": true, "LOCALHOST.:1": true, "[::ffff:127.0.0.1]:1": true,
		":1": false, "0.0.0.0:1": false, "[::]:1": false, "10.0.0.1:1": false, "localhost.example:1": false, "127.0.0.1": false, "127.1:1": false,
	} {
		if got := IsLoopback(s); got != want {
			t.Errorf("%s: %v", s, got)
		}
	}
}

func TestNearest(t *testing.T) {
	known := []string{"limits", "first_byte", "era", "url", "disconnect_grace", "args", "env"}
	for s, want := range map[string]string{
		"limts": "limits", "limist": "limits", "Limits": "limits", "firstByte": "first_byte", "first-byte": "first_byte", "fist_bite": "first_byte",
		"disconect_grace": "disconnect_grace", "ear": "era", "arg": "args", "ENV": "env", "URL": "url", "urls": "url",
		"icon": "", "trust": "", "gallery": "", "dev": "", "x": "", "": "",
	} {
		if got := nearest(s, known); got != want {
			t.Errorf("%q: %q, want %q", s, got, want)
		}
	}
}
