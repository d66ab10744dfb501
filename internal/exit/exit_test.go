//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package exit

import (
	"errors"
	"os"
	"os/exec"
	"testing"
)

// A child is waited for while it runs, and when it has ended, and can be reaped
// all the same.
func TestAwait(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := Await(cmd.Process.Pid); err != nil {
		t.Errorf("it ran: %v", err)
	}
	if err := Await(cmd.Process.Pid); err != nil && !errors.Is(err, ErrGone) {
		t.Errorf("it had ended: %v", err)
	}
	stdin.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("it was reaped by somebody else: %v", err)
	}
	if Await(cmd.Process.Pid) == nil {
		t.Error("it was reaped, and is said to have ended just now")
	}
}
