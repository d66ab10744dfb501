package upstream

import "syscall"

// groupAttr makes a process group, and has the child told when longcall dies
// without a word: with its stdin at the end as well, it should leave.
func groupAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
