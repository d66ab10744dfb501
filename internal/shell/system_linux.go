package shell

import (
	"context"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// becomeReaper makes this process the parent of all orphans below it: no
// descendant can get away, whatever session it makes, and when there is no
// child left the tree is gone.
func becomeReaper() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

const isReaper = true

// hearAll gives signals their default that whoever started us ignores, and that the
// Go runtime neither catches nor can be asked to: a command would ignore them, too.
func hearAll() {
	type action struct { // of the kernel, where the handler comes first
		handler uintptr
		_       [3]uint64
	}
	const ignored, maskSize = 1, 8
	for sig := uintptr(32); sig <= 64; sig++ {
		var was, standard action
		_, _, e := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, sig, 0, uintptr(unsafe.Pointer(&was)), maskSize, 0, 0)
		if e == 0 && was.handler == ignored {
			// A refusal leaves the signal as it was, which is all that can be done.
			_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&standard)), 0, maskSize, 0, 0)
		}
	}
}

// awaitChild waits until a child, whichever, can be reaped, and leaves that to
// the caller. It is false when there is no child.
func awaitChild(int) bool {
	for {
		switch unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT, nil) {
		case nil:
			return true
		case unix.EINTR:
		default:
			return false
		}
	}
}

// signalExact signals one process and never another that has its number now.
func signalExact(id Identity, sig syscall.Signal) error {
	fd, err := unix.PidfdOpen(id.PID, 0)
	if err == unix.ENOSYS || err == unix.EPERM {
		if !alive(id) {
			return unix.ESRCH
		}
		return unix.Kill(id.PID, sig)
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if !alive(id) { // what we hold is what we look at
		return unix.ESRCH
	}
	return unix.PidfdSendSignal(fd, sig, nil, 0)
}

// awaitGone waits until the process has ended, whose child it need not be.
func awaitGone(ctx context.Context, id Identity) error {
	fd, err := unix.PidfdOpen(id.PID, unix.PIDFD_NONBLOCK)
	if err != nil {
		return pollGone(ctx, id)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	defer f.Close()
	if !alive(id) {
		return nil
	}
	stop := context.AfterFunc(ctx, func() { f.Close() })
	defer stop()
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	gone := false
	_ = raw.Read(func(fd uintptr) bool { // gone says what came of it
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		gone = n > 0 && err == nil
		return gone
	})
	switch {
	case gone:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return pollGone(ctx, id)
}
