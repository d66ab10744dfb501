package sqlite

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// lockAt is the byte that is locked: far behind the text, so that others can
// read the text.
const lockAt = 1 << 20

func lockNow(f *os.File) (held bool, err error) { return lock(f, windows.LOCKFILE_EXCLUSIVE_LOCK) }

func lockShared(f *os.File) (held bool, err error) { return lock(f, 0) }

func unlock(f *os.File) {
	// Closing unlocks, too.
	_ = windows.UnlockFileEx(windows.Handle(f.Fd()), 0, 1, 0, &windows.Overlapped{Offset: lockAt})
}

func lock(f *os.File, how uint32) (held bool, err error) {
	at := &windows.Overlapped{Offset: lockAt}
	err = windows.LockFileEx(windows.Handle(f.Fd()), how|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, at)
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return false, nil
	}
	return err == nil, err
}
