package shell

import "golang.org/x/sys/unix"

// Calls that newer architectures do not have.
const (
	sysSelect = unix.SYS_SELECT
	sysPoll   = unix.SYS_POLL
)
