package shell

import (
	"os"

	"golang.org/x/sys/unix"
)

const (
	ioctlPending = unix.TIOCINQ // FIONREAD of pipes
	ioctlMode    = unix.TCGETS
	maxLine      = 4095 // bytes that a terminal collects before the end of a line
)

// pipeSize in bytes is enough for a command and its shim to take turns less
// often, and keeps 64 commands within what one user may have of pipes.
const pipeSize = 256 << 10

func widen(pipe *os.File) {
	if raw, err := pipe.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, pipeSize) }) // the usual size will do
	}
}

// pollable takes over a terminal so that reading it can be interrupted.
func pollable(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, err
	}
	f.Close()
	return os.NewFile(uintptr(fd), f.Name()), nil
}
