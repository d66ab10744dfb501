package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// candidates are what the shells are given for the last word, without descriptions.
func candidates(w *world, words ...string) []string {
	v := w.again()
	v.run(append([]string{"__complete"}, words...)...)
	var out []string
	for line := range strings.Lines(v.out.String()) {
		value, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
		out = append(out, value)
	}
	return out
}

func TestComplete(t *testing.T) {
	w := newWorld(t)
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("mcpServers: {files: {command: x}, search: {command: y}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		words string // | is a blank: the last word may be empty
		want  []string
	}{
		{"", []string{"serve", "stdio", "wrap", "demo", "call", "tools", "calls", "clients", "config", "completion", "version"}},
		{"c", []string{"call", "calls", "clients", "config", "completion"}},
		{"calls|", []string{"list", "show", "follow", "cancel"}},
		{"calls|s", []string{"show"}},
		{"config|", []string{"check", "defaults"}},
		{"config|check|", []string{":files"}},
		{"serve|--lo", []string{"--log-format", "--log-level"}},
		{"serve|--log-format|", []string{"text", "json"}},
		{"serve|--log-format=j", []string{"--log-format=json"}},
		{"serve|--log-format|=|j", []string{"json"}},
		{"serve|--config|", []string{":files"}},
		{"serve|-c|", []string{":files"}},
		{"serve|--state|", []string{":dirs"}},
		{"calls|--out", []string{"--outcome"}}, // of the command that is left out
		{"calls|--outcome|c", []string{"completed", "cancelled"}},
		{"calls|list|--running|--s", []string{"--state", "--server", "--since"}},
		{"clients|co", []string{"codex"}},
		{"completion|", []string{"bash", "zsh", "fish"}},
		{"version|", nil},
		{"serve|--no-such|", nil},
		{"tools|--config|" + file + "|", []string{"files", "search"}},
		{"call|--config|" + file + "|f", []string{"files"}},
		{"calls|show|", nil}, // no journal yet
	} {
		got := candidates(w, strings.Split(tt.words, "|")...)
		slices.Sort(got)
		slices.Sort(tt.want)
		if !slices.Equal(got, tt.want) {
			t.Errorf("%q: %q, want %q", tt.words, got, tt.want)
		}
	}
}

func TestCompleteFromWhatRuns(t *testing.T) {
	w, u := newWorld(t), newUpstream(t)
	serve(t, w, u)
	w.expect(t, exitOK, "call", "steps", "n=1")
	if got := candidates(w, "calls", "show", ""); len(got) != 1 || !idPattern.MatchString(got[0]) {
		t.Errorf("calls show: %q", got)
	}
	if got := candidates(w, "call", "srv", "s"); !slices.Equal(got, []string{"steps"}) {
		t.Errorf("call srv s: %q", got)
	}
	if got := candidates(w, "call", "srv__st"); !slices.Equal(got, []string{"srv__steps"}) {
		t.Errorf("call srv__st: %q", got)
	}
	got := candidates(w, "call", "srv", "add", "")
	if slices.Sort(got); !slices.Equal(got, []string{"a=", "b=", "text="}) {
		t.Errorf("call srv add: %q", got)
	}
	if got := candidates(w, "tools", ""); !slices.Equal(got, []string{"srv"}) {
		t.Errorf("tools: %q", got)
	}
}

// The scripts are run by the shells that they are for, where those are there.
func TestCompletionScripts(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	// What the scripts call: it prints what this binary would.
	fake := filepath.Join(dir, "longcall")
	if err := os.WriteFile(fake, []byte("#!/bin/sh\nshift\necho \"$*\" >> "+dir+"/asked\nprintf 'show\\tShow it: all.\\nserve\\tRun.\\n'\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for shell, run := range map[string]string{
		"bash": `source SCRIPT; COMP_WORDS=(FAKE calls sh); COMP_CWORD=2; _longcall; printf '%s\n' "${COMPREPLY[@]}"`,
		"fish": `source SCRIPT; complete -C "FAKE calls sh"`,
		"zsh":  `_describe() { print -l -- "${(@P)3}" }; compdef() { }; source SCRIPT; words=(FAKE calls sh); CURRENT=3; _longcall`,
	} {
		v := w.expect(t, exitOK, "completion", shell)
		path, err := exec.LookPath(shell)
		if err != nil {
			t.Logf("no %s on this machine: its script was not run", shell)
			continue
		}
		script := filepath.Join(dir, "script."+shell)
		if err := os.WriteFile(script, []byte(v.out.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(path, "-c", strings.NewReplacer("SCRIPT", script, "FAKE", fake).Replace(run))
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "show") {
			t.Errorf("%s: %v\n%s", shell, err, out)
		}
		asked, _ := os.ReadFile(filepath.Join(dir, "asked"))
		if got := strings.TrimSpace(string(asked)); got != "calls sh" {
			t.Errorf("%s asked for %q", shell, got)
		}
		os.Remove(filepath.Join(dir, "asked"))
	}
}
