package upstream

import "golang.org/x/sys/unix"

const ioctlPending = unix.TIOCINQ // FIONREAD
