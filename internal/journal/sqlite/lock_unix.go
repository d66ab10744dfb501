//go:build unix

package sqlite

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

func lockNow(f *os.File) (held bool, err error) { return flock(f, unix.LOCK_EX) }

func lockShared(f *os.File) (held bool, err error) { return flock(f, unix.LOCK_SH) }

func unlock(f *os.File) { _ = unix.Flock(int(f.Fd()), unix.LOCK_UN) } // closing unlocks, too

func flock(f *os.File, how int) (held bool, err error) {
	err = unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}
