//go:build darwin || freebsd || netbsd || openbsd || dragonfly

package upstream

import (
	"syscall"

	"golang.org/x/sys/unix"
)

func groupAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// waitExit waits until the process has ended, and leaves it to be reaped: until
// then nobody else can get its id. It says whether it could.
func waitExit(pid int) bool {
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
		case nil, unix.ESRCH: // it is a zombie already
			return true
		case unix.EINTR:
		default:
			return false
		}
	}
}
