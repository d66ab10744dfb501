package sqlite

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// lockFile is held as long as a process owns the journal in its folder. The
// system lets go of it when the process ends, however it ends.
type lockFile struct{ f *os.File }

// takeLock takes the lock of the file at path, and makes the file.
func takeLock(path string) (*lockFile, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open journal: cannot write %s: %w; make the folder writable, or choose another with state: in the config", path, err)
	}
	held, err := lockNow(f)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open journal: lock %s: %w; choose a state folder on a local disk", path, err)
	}
	if !held {
		pid := holder(f)
		f.Close()
		return nil, fmt.Errorf("open journal: %s is held by another longcall%s: stop that one, or choose another state folder", path, pid)
	}
	if err := f.Truncate(0); err == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0) // only to name the holder
	}
	return &lockFile{f}, nil
}

// holder names the process in the lock file, if it says one.
func holder(f *os.File) string {
	b, _ := io.ReadAll(io.NewSectionReader(f, 0, 32))
	if pid, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil {
		return fmt.Sprintf(" (process %d)", pid)
	}
	return ""
}

// release lets go of the lock. The file stays: removing it would let two
// processes hold a lock of the same name.
func (l *lockFile) release() {
	// A child that is about to start may still have the file open for a moment:
	// closing it would not be enough.
	unlock(l.f)
	l.f.Close()
}
