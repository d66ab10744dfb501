package cli

import (
	"syscall"

	"golang.org/x/sys/windows"
)

// detached starts a process without our console.
func detached() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP | windows.DETACHED_PROCESS}
}
