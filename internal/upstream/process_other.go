//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package upstream

import (
	"os"
	"syscall"
)

type groupSignal int

const (
	terminate groupSignal = iota
	kill
)

func groupAttr() *syscall.SysProcAttr { return nil }

// signalGroup can only kill the process itself here: its children see the end
// of their stdin.
func signalGroup(p *os.Process, sig groupSignal) {
	if sig == kill {
		p.Kill()
	}
}
