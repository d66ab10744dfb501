package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Two processes have a journal open for the time in which one replaces the
// other: see Drain. The one that holds the lock of the folder owns it: it takes
// new calls, and keeps the house. Beside that, each holds a lock of its epoch as
// long as it has calls to write, so that the other can tell whose calls are in
// good hands. Both write to the database; who finds it busy tries again.

// ownersDir is the folder of the epochs' locks, beside the database.
const ownersDir = "owners"

func (j *Journal) ownerPath(epoch uint64) string {
	return filepath.Join(filepath.Dir(j.path), ownersDir, strconv.FormatUint(epoch, 10)+".lock")
}

// lockEpoch takes the lock of this opening, and removes those that nobody holds
// any more.
func (j *Journal) lockEpoch() error {
	path := j.ownerPath(j.epoch)
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("open journal: cannot make the folder %s: %w; make the state folder writable, or choose another with state: in the config", dir, err)
	}
	own, err := takeLock(path)
	if err != nil {
		return err
	}
	j.own = own
	// Whoever gets such a lock now is this process alone: it owns the folder.
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("open journal: %w", err)
	}
	for _, e := range entries {
		epoch, err := strconv.ParseUint(strings.TrimSuffix(e.Name(), ".lock"), 10, 64)
		if err != nil || epoch == j.epoch {
			continue
		}
		held, err := held(filepath.Join(dir, e.Name()))
		if err != nil || held {
			j.shared.Store(true)
			continue
		}
		os.Remove(filepath.Join(dir, e.Name())) // if it stays, the next start tries again
	}
	return nil
}

// held says whether a process holds the lock at path.
func held(path string) (bool, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	// Shared, so that two who look do not take each other for the owner.
	free, err := lockShared(f)
	if free {
		unlock(f)
	}
	return !free && err == nil, err
}

// alive says whether the owner with that epoch is another process that lives. If
// that cannot be found out, it is: its calls must not be taken from it.
func (j *Journal) alive(epoch uint64) bool {
	if epoch == j.epoch {
		return false
	}
	held, err := held(j.ownerPath(epoch))
	return held || err != nil
}

// others says whether another process still has calls to write.
func (j *Journal) others() bool {
	entries, err := os.ReadDir(filepath.Dir(j.ownerPath(0)))
	if err != nil {
		return true
	}
	for _, e := range entries {
		epoch, err := strconv.ParseUint(strings.TrimSuffix(e.Name(), ".lock"), 10, 64)
		if err == nil && j.alive(epoch) {
			return true
		}
	}
	return false
}

// ownerPoll is how often it is looked whether an owner is gone: nobody says so
// when a process is killed.
const ownerPoll = 50 * time.Millisecond

// WaitOwner returns when the owner with that epoch is gone, however it went, or
// with ctx's cause. What it left can then be adopted.
func (j *Journal) WaitOwner(ctx context.Context, epoch uint64) error {
	if !j.alive(epoch) {
		return context.Cause(ctx)
	}
	tick := time.NewTicker(ownerPoll)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if !j.alive(epoch) {
				return nil
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Drain makes the folder free for the process that replaces this one. From now
// on Create gives call.ErrStopping; the calls that run go on to their ends, with
// Append, Finish, Deliver and all that reads, until Close. When it returns, what
// was taken so far is stored, unless the disk fails, and another process can
// open the journal: that one numbers new calls, indexes them, and deletes what
// is old, and this one never again.
func (j *Journal) Drain() {
	j.mu.Lock()
	if j.closed || j.draining {
		j.mu.Unlock()
		return
	}
	j.draining = true
	j.mu.Unlock()
	j.rest()
	<-j.rested
	// Creates that were taken have their numbers, and must be stored before
	// another process numbers calls. An error is told to those who wait, and
	// noted in Stats; nothing that waits can be a call then.
	_ = j.Flush(j.life)
	j.shared.Store(true)
	j.lock.release()
}
