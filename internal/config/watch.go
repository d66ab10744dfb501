package config

import (
	"context"
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// settle is how long a file must stay the same before it counts as written.
// Editors truncate and then write, and half a file may well parse: an empty one
// is a valid config without servers.
const settle = 100 * time.Millisecond

// Watch calls onChange whenever the file at path has new content, one call at a
// time, until ctx is done; then it returns nil. It returns an error if the
// folder cannot be watched. The caller runs it in a goroutine of its own, and
// waits for it.
//
// The folder is watched, not the file: editors and configuration maps replace
// files by renaming. A file that is gone is no change.
func Watch(ctx context.Context, path string, onChange func()) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("watch the config: %w", err)
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch the config: %w", err)
	}
	defer w.Close()
	told, _ := sum(path)
	if err := w.Add(filepath.Dir(path)); err != nil {
		return fmt.Errorf("watch the folder of the config %s: %w", path, err)
	}
	follow(w, path)
	seen := told
	// The file may have changed while the watch was being set up.
	timer := time.NewTimer(settle)
	defer timer.Stop()
	waiting := true
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-w.Events:
			if !ok {
				return nil
			}
			// Not reset by further events: a busy folder would put it off for ever.
			if !waiting {
				waiting = true
				timer.Reset(settle)
			}
		case _, ok := <-w.Errors:
			if !ok {
				return nil
			}
			// Events were lost, so this may be a change.
			if !waiting {
				waiting = true
				timer.Reset(settle)
			}
		case <-timer.C:
			waiting = false
			follow(w, path)
			now, ok := sum(path)
			switch {
			case !ok || now == told:
				seen = told
			case now != seen:
				seen, waiting = now, true
				timer.Reset(settle)
			default:
				told = now
				onChange()
			}
		}
	}
}

// follow watches also the folder of the file that a link points to, which may
// be another one after each change. To add a folder again does nothing.
func follow(w *fsnotify.Watcher, path string) {
	if real, err := filepath.EvalSymlinks(path); err == nil && filepath.Dir(real) != filepath.Dir(path) {
		_ = w.Add(filepath.Dir(real)) // what is watched already still tells of a replaced link
	}
}

func sum(path string) ([sha256.Size]byte, bool) {
	data, err := read(path)
	if err != nil {
		return [sha256.Size]byte{}, false
	}
	return sha256.Sum256(data), true
}
