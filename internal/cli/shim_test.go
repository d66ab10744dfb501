//go:build linux || darwin

package cli

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/shell"
	"github.com/longcall/longcall/internal/shell/spool"
)

// SHELL §3: longcall is its commands' supervisor, too, by a subcommand that no
// help shows.
func TestShimSubcommand(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	m, err := shell.Open(t.Context(), shell.Options{Dir: t.TempDir(), Exe: []string{"/usr/bin/env", asMain + "=1", self, shell.ShimCommand}})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	p, err := m.Start(t.Context(), shell.Command{ID: "c_1", Argv: []string{"/bin/sh", "-c", "echo hi; exit 4"}, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("it does not end")
	}
	out, err := p.Output()
	if err != nil {
		t.Fatal(err)
	}
	v, err := out.Summary(t.Context(), 0, spool.Look{})
	if s := p.Status(); err != nil || s.State != shell.Exited || s.ExitCode != 4 || v.Text != "hi\n" {
		t.Errorf("%+v, output %q, %v", s, v.Text, err)
	}

	w := newWorld(t)
	if code := Main(t.Context(), w.sys, []string{"--help"}); code != exitOK {
		t.Fatal(code)
	}
	if text := w.out.String(); strings.Contains(text, shell.ShimCommand) {
		t.Errorf("help shows the subcommand:\n%s", text)
	}
}
