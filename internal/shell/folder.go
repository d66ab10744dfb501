package shell

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// The files of a process's folder (SHELL §3). Those of its output are spool's.
const (
	specFile  = "spec.json" // Command, written before the shim starts
	metaFile  = "meta.json" // meta, written by the shim
	exitFile  = "exit.json" // snapshot, written when the leader has ended, and again when its tree has
	lockFile  = "lock"      // locked from before the shim starts until it is gone
	typedFile = "typed"     // keys of the input that was typed
	ctlFile   = "ctl.sock"  // where the shim listens
	shimFile  = "shim.log"  // what the shim says when it breaks; empty otherwise
)

// controlVersion is what shims speak on ctl.sock. A newer longcall has to
// understand the shims of an older one that still run.
const controlVersion = 1

// meta is what somebody who finds the folder must know to find the process.
type meta struct {
	Control int       `json:"control"`
	Shim    Identity  `json:"shim"`
	Leader  Identity  `json:"leader,omitzero"` // absent until the command runs
	Started time.Time `json:"started"`
}

// snapshot is what a shim knows of its command, on ctl.sock and as exit.json.
type snapshot struct {
	State       State     `json:"state"`
	PID         int       `json:"pid,omitempty"`
	ExitCode    int       `json:"exit_code"`
	Signal      string    `json:"signal,omitempty"`
	Started     time.Time `json:"started,omitzero"`
	Ended       time.Time `json:"ended,omitzero"`
	Total       int64     `json:"total"`
	Descendants int       `json:"descendants,omitempty"`
	TreeEnded   time.Time `json:"tree_ended,omitzero"`
	Survivors   []int     `json:"survivors,omitempty"`
	StoppedBy   string    `json:"stopped_by,omitempty"`
	Error       string    `json:"error,omitempty"`
}

// store writes a JSON file as a whole or not at all; durable also when the
// machine loses power.
func store(dir, name string, v any, durable bool) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, name+".*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil && durable {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, name))
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// flush has a file of the folder survive a power cut from now on.
func flush(dir, name string) error {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// load reads a JSON file of the folder; false if there is none.
func load(dir, name string, v any) (bool, error) {
	b, err := os.ReadFile(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		err = json.Unmarshal(b, v)
	}
	if err != nil {
		return false, fmt.Errorf("read %s: %w", name, err)
	}
	return true, nil
}

// lockFolder takes the folder's lock, which a shim holds for life. It is nil if
// somebody has it.
func lockFolder(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if ok, err := tryLock(f); !ok {
		f.Close()
		return nil, err
	}
	return f, nil
}

// lockSoon takes the lock of a new folder, which others may hold for a moment to
// see whether somebody has it.
func lockSoon(dir string) (*os.File, error) {
	for end := time.Now().Add(time.Second); ; time.Sleep(time.Millisecond) {
		if lock, err := lockFolder(dir); lock != nil || err != nil {
			return lock, err
		}
		if time.Now().After(end) {
			return nil, errors.New("its folder is in use")
		}
	}
}

// validID keeps ids from being paths.
func validID(id string) bool {
	if id == "" || len(id) > 128 {
		return false
	}
	for i := range len(id) {
		switch c := id[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}
