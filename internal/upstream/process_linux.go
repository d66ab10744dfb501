package upstream

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// groupAttr makes a process group, and has the child told when longcall dies
// without a word: with its stdin at the end as well, it should leave.
func groupAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}

// waitExit waits until the process has ended, and leaves it to be reaped: until
// then nobody else can get its id. It says whether it could.
func waitExit(pid int) bool {
	for {
		switch unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) {
		case nil:
			return true
		case unix.EINTR:
		default:
			return false
		}
	}
}
