package shell

import (
	"context"
	"errors"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/longcall/longcall/internal/exit"
)

// becomeReaper has nothing to do: macOS gives orphans to launchd.
func becomeReaper() error { return nil }

const isReaper = false

// hearAll has nothing to do: all signals of the system can be caught.
func hearAll() {}

// awaitChild waits until the child, the only one, can be reaped, and leaves
// that to the caller. It is false when there is no child.
func awaitChild(pid int) bool {
	err := exit.Await(pid)
	if errors.Is(err, exit.ErrGone) { // it waits to be reaped already, or there is none
		e, err := readEntry(pid)
		return err == nil && e.parent == syscall.Getpid()
	}
	return err == nil
}

// signalExact signals one process if it is still the one that is meant.
func signalExact(id Identity, sig syscall.Signal) error {
	if !alive(id) {
		return unix.ESRCH
	}
	return unix.Kill(id.PID, sig)
}

// awaitGone waits until the process has ended, whose child it need not be.
func awaitGone(ctx context.Context, id Identity) error { return pollGone(ctx, id) }
