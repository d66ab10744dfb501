//go:build darwin || freebsd || netbsd || openbsd || dragonfly

package exit

import "golang.org/x/sys/unix"

// Await waits until the child has ended. It is ErrGone if it had before, or if there
// is no such process.
func Await(pid int) error {
	kq, err := unix.Kqueue()
	if err != nil {
		return err
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
		case unix.EINTR:
		case unix.ESRCH:
			return ErrGone
		default:
			return err
		}
	}
}
