//go:build unix

package cli

import "syscall"

// detached starts a process in a session of its own: no signal of our terminal
// or process group reaches it.
func detached() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }
