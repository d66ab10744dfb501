//go:build linux || darwin

package shell

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// typeWait is how long an Input waits for the command to take it.
	typeWait = 500 * time.Millisecond
	// maxKeys bounds the keys that a process remembers: each input of a session
	// with a person behind it, and more.
	maxKeys = 10_000
)

// inputWriter types into the command, in order, without anybody waiting for a
// command that does not read. What waits is bounded by MaxInput; an Input that
// does not fit is refused.
type inputWriter struct {
	dir  string
	file *os.File // nil: there is no input
	tty  bool

	mu      sync.Mutex
	wake    sync.Cond // something was queued, or written
	queue   []byte
	busy    int  // bytes being written
	eof     bool // nothing more is taken; the file is closed behind the queue
	broken  error
	typed   map[string]string
	changed chan struct{} // closed when bytes were written
}

func newInputWriter(dir string, file *os.File, tty bool) *inputWriter {
	w := &inputWriter{dir: dir, file: file, tty: tty, typed: map[string]string{}, changed: make(chan struct{})}
	w.wake.L = &w.mu
	return w
}

// run writes what is queued, until the end of the input.
func (w *inputWriter) run() {
	if w.file == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		for len(w.queue) == 0 && !w.eof {
			w.wake.Wait()
		}
		if len(w.queue) == 0 {
			w.file.Close()
			return
		}
		b := w.queue
		w.queue, w.busy = nil, len(b)
		w.mu.Unlock()
		for len(b) > 0 { // in small parts, so that what is unread is known
			n, err := w.file.Write(b[:min(len(b), 4<<10)])
			b = b[n:]
			w.mu.Lock()
			w.busy = len(b)
			if err != nil {
				w.broken, w.busy, w.queue, b = err, 0, nil, nil
			}
			close(w.changed)
			w.changed = make(chan struct{})
			w.mu.Unlock()
		}
		w.mu.Lock()
		if w.broken != nil {
			return
		}
	}
}

// put types an Input once. signal signals the command's group.
func (w *inputWriter) put(in *Input, signal func(name string)) (Typed, error) {
	t, err := in.encode(w.tty, w.file != nil && !w.tty)
	if err != nil {
		return Typed{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if again, err := repeated(in, w.typed); again || err != nil {
		return Typed{Repeated: again, Unread: w.unread()}, err
	}
	if t.data != "" || t.eof {
		switch {
		case w.eof:
			return Typed{}, errors.New("the input of the command was ended before; nothing was typed")
		case w.broken != nil:
			return Typed{}, errors.New("the command has closed its input; nothing was typed")
		case w.unread()+int64(len(t.data)) > MaxInput:
			return Typed{Unread: w.unread()}, fmt.Errorf("the command does not read its input: %d bytes wait for it, and at most %d may; nothing was typed", w.unread(), MaxInput)
		}
	}
	if err := w.fits(t.data); err != nil {
		return Typed{}, err
	}
	if err := w.remember(in); err != nil {
		return Typed{}, err
	}
	if in.Cols > 0 {
		if err := w.resize(in.Cols, in.Rows); err != nil {
			return Typed{}, fmt.Errorf("the terminal could not get another size: %w; nothing was typed", err)
		}
	}
	w.queue = append(w.queue, t.data...)
	w.eof = w.eof || t.eof
	w.wake.Signal()
	for _, name := range t.signals {
		signal(name)
	}
	for end := time.After(typeWait); w.unread() > 0; {
		changed := w.changed
		w.mu.Unlock()
		select {
		case <-changed:
			w.mu.Lock()
		case <-end:
			w.mu.Lock()
			return Typed{Unread: w.unread()}, nil
		}
	}
	if w.broken != nil && t.data != "" {
		return Typed{}, errors.New("the command closed its input before it had read all of this")
	}
	return Typed{}, nil
}

// fits refuses a line that a terminal would cut short without a word, as all do
// that collect lines for the command.
func (w *inputWriter) fits(data string) error {
	if !w.tty || len(data) <= maxLine {
		return nil
	}
	raw, err := w.file.SyscallConn()
	if err != nil {
		return err
	}
	var mode *unix.Termios
	if cerr := raw.Control(func(fd uintptr) { mode, err = unix.IoctlGetTermios(int(fd), ioctlMode) }); cerr != nil || err != nil {
		return errors.Join(cerr, err)
	}
	if mode.Lflag&unix.ICANON == 0 {
		return nil
	}
	for line := range strings.FieldsFuncSeq(data, func(r rune) bool { return r == '\n' || r == '\r' || r == 4 }) {
		if len(line) > maxLine {
			return fmt.Errorf("a line has %d bytes, and this terminal takes at most %d in one; nothing was typed: use shorter lines, or stdin: \"pipe\" instead of a terminal", len(line), maxLine)
		}
	}
	return nil
}

func (w *inputWriter) unread() int64 { return int64(len(w.queue) + w.busy) }

// remember stores the key of an Input before it is typed: whoever tries again
// must not type twice.
func (w *inputWriter) remember(in *Input) error {
	if in.Key == "" {
		return nil
	}
	if len(w.typed) >= maxKeys {
		return fmt.Errorf("this command has had %d inputs with an idempotency key, and no more can be remembered; nothing was typed: leave the key out", maxKeys)
	}
	line := in.digest()
	f, err := os.OpenFile(filepath.Join(w.dir, typedFile), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err == nil {
		err = json.NewEncoder(f).Encode(line)
		if cerr := f.Close(); err == nil {
			err = cerr
		}
	}
	if err != nil {
		return fmt.Errorf("the idempotency key could not be stored: %w; nothing was typed", err)
	}
	w.typed[line.Key] = line.What
	return nil
}

func (w *inputWriter) resize(cols, rows int) error {
	raw, err := w.file.SyscallConn()
	if err != nil {
		return err
	}
	size := &unix.Winsize{Col: uint16(cols), Row: uint16(rows)}
	if cerr := raw.Control(func(fd uintptr) { err = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, size) }); cerr != nil {
		return cerr
	}
	return err
}
