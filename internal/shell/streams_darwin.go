package shell

import (
	"os"
)

const ioctlPending = 0x4004667f // FIONREAD of sys/filio.h

func widen(*os.File) {}

// pollable leaves a terminal as it is: kqueue does not know terminals.
func pollable(f *os.File) (*os.File, error) { return f, nil }
