package sqlite

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

func lockNow(f *os.File) (held bool, err error) {
	// A byte far behind the text is locked, so that others can read the text.
	at := &windows.Overlapped{Offset: 1 << 20}
	err = windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, at)
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return false, nil
	}
	return err == nil, err
}
