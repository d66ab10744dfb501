package cli

import (
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// Every command has a help text with examples; the texts are goldens.
func TestHelp(t *testing.T) {
	w := newWorld(t)
	var g grammar
	k, err := newParser(w.sys, &g)
	if err != nil {
		t.Fatal(err)
	}
	paths := []string{"", "calls", "config"}
	for _, n := range k.Model.Leaves(true) {
		paths = append(paths, commandPath(n))
	}
	var all strings.Builder
	for _, p := range paths {
		v := w.again()
		if code := v.run(append(strings.Fields(p), "--help")...); code != exitOK {
			t.Errorf("%s --help: exit code %d", p, code)
		}
		if !strings.Contains(v.out.String(), "Example") {
			t.Errorf("%s --help has no example", p)
		}
		if v.err.String() != "" {
			t.Errorf("%s --help wrote to stderr: %s", p, v.err)
		}
		all.WriteString(strings.TrimSpace("$ longcall "+p) + " --help\n" + v.out.String() + "\n")
	}
	golden(t, "help.txt", all.String())
	for i, line := range strings.Split(all.String(), "\n") {
		if len(line) > 100 {
			t.Errorf("line %d of the help is wider than 100 columns: %s", i+1, line)
		}
	}
}

func commandPath(n *kong.Node) string { return n.Path() }

func TestCommandLineErrors(t *testing.T) {
	w := newWorld(t)
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"srve"}, exitUsage, `longcall: unexpected argument srve, did you mean "serve"?; see longcall --help` + "\n"},
		{[]string{"serve", "--lisen", "x"}, exitUsage, `longcall: unknown flag --lisen, did you mean "--listen"?; see longcall serve --help` + "\n"},
		{[]string{"calls", "show"}, exitUsage, `longcall: expected "<id>"; see longcall calls show --help` + "\n"},
		{[]string{"config"}, exitUsage, "longcall: config needs a command: check, defaults; see longcall config --help\n"},
		{[]string{"call", "a=1"}, exitUsage, "longcall: name the tool before its arguments: longcall call [SERVER] TOOL [ARGS]\n"},
		{[]string{"call", "a", "b", "c"}, exitUsage, `longcall: "c" is neither a server, a tool, nor an argument: arguments are key=value pairs or one JSON object` + "\n"},
		{[]string{"clients", "emacs"}, exitUsage, `longcall: no client is called "emacs" here; there are claude-code, codex, vscode, cursor, generic` + "\n"},
		{[]string{"calls", "--since", "soon"}, exitToolError, "longcall: there is no journal in STATE: no longcall has served this state folder yet (another: --state DIR)\n"},
		{[]string{"tools"}, exitUnreachable, "longcall: no longcall is running on the state folder STATE. Start one with: longcall serve --config FILE. Or name one with --url, or a config with --config\n"},
		{[]string{"tools", "--url", "ftp://x"}, exitUsage, `longcall: --url: "ftp://x" is no address. Write it like http://127.0.0.1:8722` + "\n"},
		{[]string{"serve", "--no-auth", "--listen", "0.0.0.0:0"}, exitUsage, "longcall: --no-auth on 0.0.0.0:0 would let everybody who can reach this machine call your tools. Leave it out, or listen on 127.0.0.1\n"},
	} {
		v := w.expect(t, tt.code, tt.args...)
		got := strings.ReplaceAll(v.err.String(), w.state, "STATE")
		if got != tt.want {
			t.Errorf("%v: got %q, want %q", tt.args, got, tt.want)
		}
		if v.out.String() != "" {
			t.Errorf("%v wrote to stdout: %s", tt.args, v.out)
		}
	}
}
