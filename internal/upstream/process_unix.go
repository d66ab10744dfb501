//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package upstream

import (
	"os"

	"golang.org/x/sys/unix"
)

type groupSignal = unix.Signal

const (
	terminate = unix.SIGTERM
	kill      = unix.SIGKILL
)

// signalGroup signals the process and all of its group. That nobody is left is
// no error.
func signalGroup(p *os.Process, sig groupSignal) { unix.Kill(-p.Pid, sig) }
