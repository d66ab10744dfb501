package shell

import (
	"os"

	"golang.org/x/sys/unix"
)

const (
	ioctlPending = 0x4004667f // FIONREAD of sys/filio.h
	ioctlMode    = unix.TIOCGETA
	maxLine      = 1023 // bytes that a terminal collects before the end of a line
)

func widen(*os.File) {}

// pollable leaves a terminal as it is: kqueue does not know terminals.
func pollable(f *os.File) (*os.File, error) { return f, nil }
