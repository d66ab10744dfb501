//go:build darwin || freebsd || netbsd || openbsd || dragonfly

package upstream

import "syscall"

func groupAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
