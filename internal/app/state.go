package app

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Serving is what a running serve leaves in the state folder, so that other
// commands find it.
type Serving struct {
	PID     int    `json:"pid"`
	URL     string `json:"url"`
	Version string `json:"version,omitempty"`
	// Config is the absolute path of its config file; empty if it has none.
	Config string `json:"config,omitempty"`
	// Background says that a relay started it, and that it ends by itself when
	// nobody needs it.
	Background bool `json:"background,omitempty"`
}

func servingPath(state string) string { return filepath.Join(state, "serve.json") }

// JournalPath is where the journal of a state folder is.
func JournalPath(state string) string { return filepath.Join(state, "journal.db") }

// Running finds the serve that uses a state folder, and its address. It is
// os.ErrNotExist if there is none; a file that a crash left behind still names
// an address where nobody answers.
func Running(state string) (url string, err error) {
	s, err := ReadServing(state)
	return s.URL, err
}

// ReadServing is Running with all that the serve says about itself.
func ReadServing(state string) (Serving, error) {
	var s Serving
	b, err := os.ReadFile(servingPath(state))
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("read %s: %w", servingPath(state), err)
	}
	return s, nil
}

// removeServing removes what this process wrote, unless a successor has put its
// own in its place.
func removeServing(state string) error {
	if s, err := ReadServing(state); err == nil && s.PID != os.Getpid() {
		return nil
	}
	return os.Remove(servingPath(state))
}

func writeServing(state string, s Serving) error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	tmp := servingPath(state) + ".new"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, servingPath(state))
}

// streamKey is the key that seals event ids: made once for a state folder, so
// that they hold over restarts.
func streamKey(state string) (key [32]byte, err error) {
	path := filepath.Join(state, "stream.key")
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		rand.Read(key[:])
		tmp := path + ".new"
		if err = os.WriteFile(tmp, key[:], 0o600); err == nil {
			err = os.Rename(tmp, path)
		}
	} else if err == nil && copy(key[:], b) != len(key) {
		err = errors.New("it is too short; remove it, and a new one is made")
	}
	if err != nil {
		return key, fmt.Errorf("key of event ids %s: %w", path, err)
	}
	return key, nil
}

// openState makes the state folder and proves that it can be written.
func openState(dir string) error {
	if dir == "" {
		return errors.New("no state folder: HOME is not set. Set it, or write state: FOLDER in the config")
	}
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		var f *os.File
		if f, err = os.CreateTemp(dir, ".writable-*"); err == nil {
			f.Close()
			err = os.Remove(f.Name())
		}
	}
	if err != nil {
		var pe *fs.PathError
		if errors.As(err, &pe) {
			err = pe.Err
		}
		return fmt.Errorf("cannot write to the state folder %s: %w. Make it writable for this user, or write state: OTHER_FOLDER in the config", dir, err)
	}
	return nil
}
