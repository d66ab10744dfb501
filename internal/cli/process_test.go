//go:build unix

package cli

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// asMain makes the test binary longcall itself.
const asMain = "LONGCALL_TEST_AS_MAIN"

func init() {
	if os.Getenv(asMain) != "" {
		os.Exit(Main(context.Background(), OS(), os.Args[1:]))
	}
}

// process starts longcall as a process of its own.
func process(t *testing.T, args ...string) (cmd *exec.Cmd, stdout, stderr *output) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command(self, args...)
	cmd.Env = append(os.Environ(), asMain+"=1")
	stdout, stderr = newOutput(), newOutput()
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // if the test failed before its end
	return cmd, stdout, stderr
}

func waitFor(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case <-done:
		return cmd.ProcessState.ExitCode()
	case <-time.After(20 * time.Second):
		_ = cmd.Process.Kill()
		<-done
		t.Fatalf("%v does not end", cmd.Args)
		return -1
	}
}

func writeConfig(t *testing.T, u *upstreamServer, more string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte(more+"mcpServers: {srv: {url: \""+u.url+"\"}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// The first signal lets running calls end, the second does not; the journal
// has the truth about both.
func TestSignalsOfServe(t *testing.T) {
	w, u := newWorld(t), newUpstream(t)
	file := writeConfig(t, u, "")
	cmd, _, stderr := process(t, "serve", "--config", file, "--listen", "127.0.0.1:0")
	stderr.await(t, "msg=serving")
	agent, agentOut, agentErr := process(t, "call", "srv", "hang")
	id := runningCall(t, w)

	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	stderr.await(t, "config read again")
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	stderr.await(t, "longcall: stopping; running calls have 30s to end.")
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := waitFor(t, cmd); code != 128+int(syscall.SIGTERM) {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
	if code := waitFor(t, agent); code != exitInterrupted {
		t.Errorf("the agent's exit code is %d\n%s%s", code, agentOut, agentErr)
	}
	wantContains(t, "the agent", agentErr.String(), "the connection was lost before the result came")

	// serve.json is left behind; nobody answers there.
	v := w.expect(t, exitUnreachable, "tools")
	wantContains(t, "tools", v.err.String(), "no longcall is running on the state folder")
	cmd, _, stderr = process(t, "serve", "--config", file, "--listen", "127.0.0.1:0")
	stderr.await(t, "msg=serving")
	v = w.expect(t, exitOK, "calls", "show", id)
	wantContains(t, "the lost call", v.out.String(), "interrupted, outcome unknown")
	w.expect(t, exitInterrupted, "calls", "follow", id)
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := waitFor(t, cmd); code != exitOK {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
}

func TestCtrlCOfAProcess(t *testing.T) {
	w, u := newWorld(t), newUpstream(t)
	file := writeConfig(t, u, "")
	cmd, stdout, stderr := process(t, "call", "--config", file, "srv", "hang") // in its own process
	runningCall(t, w)
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := waitFor(t, cmd); code != exitCancelled {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
	<-u.gone
	v := w.expect(t, exitOK, "calls", "--outcome", "cancelled", "--json")
	if n := strings.Count(v.out.String(), "\n"); n != 1 {
		t.Errorf("%d cancelled calls:\n%s", n, v.out)
	}
}

// A command that is started without any terminal works, and writes no escape.
func TestNoEscapesWithoutATerminal(t *testing.T) {
	newWorld(t)
	cmd, stdout, stderr := process(t, "demo", "--tool", "3s", "--cut", "1s")
	waitFor(t, cmd)
	if all := stdout.String() + stderr.String(); bytes.ContainsRune([]byte(all), '\x1b') {
		t.Errorf("escapes in:\n%q", all)
	}
}
