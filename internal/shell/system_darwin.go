package shell

import (
	"context"
	"syscall"

	"golang.org/x/sys/unix"
)

// becomeReaper has nothing to do: macOS gives orphans to launchd.
func becomeReaper() error { return nil }

const isReaper = false

// hearAll has nothing to do: all signals of the system can be caught.
func hearAll() {}

// awaitChild waits until the child, the only one, can be reaped, and leaves
// that to the caller. It is false when there is no child.
func awaitChild(pid int) bool {
	kq, err := unix.Kqueue()
	if err != nil {
		return false
	}
	defer unix.Close(kq)
	unix.CloseOnExec(kq)
	var ev unix.Kevent_t
	unix.SetKevent(&ev, pid, unix.EVFILT_PROC, unix.EV_ADD|unix.EV_ONESHOT)
	ev.Fflags = unix.NOTE_EXIT
	got := make([]unix.Kevent_t, 1)
	for {
		n, err := unix.Kevent(kq, []unix.Kevent_t{ev}, got, nil)
		if err == nil && n > 0 && got[0].Flags&unix.EV_ERROR != 0 {
			err = unix.Errno(got[0].Data)
		}
		switch err {
		case nil:
			return true
		case unix.ESRCH: // it waits to be reaped already, or there is none
			e, err := readEntry(pid)
			return err == nil && e.parent == syscall.Getpid()
		case unix.EINTR:
		default:
			return false
		}
	}
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
