package shell

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// MaxInput is how many bytes of input one process may have that it has not
// read yet, and so the most that one Input can hold.
const MaxInput = 1 << 20

// Input is something typed: first the new size of the terminal, then the text,
// then the keys in order, then the end of the input.
type Input struct {
	Text string   `json:"text,omitempty"` // as it is: a line end is "\n"; Enter in a full-screen program is the key
	Keys []string `json:"keys,omitempty"` // names, in any case: "enter", "ctrl-c", "up"
	EOF  bool     `json:"eof,omitempty"`  // closes a pipe; on a terminal it is ctrl-d
	Cols int      `json:"cols,omitempty"` // both or none, of a terminal
	Rows int      `json:"rows,omitempty"`
	Key  string   `json:"key,omitempty"` // an Input with the same Key is typed once; empty: always
}

// Typed is what became of an Input.
type Typed struct {
	Repeated bool  `json:"repeated,omitempty"` // the Key was used before: nothing was typed now
	Unread   int64 `json:"unread,omitempty"`   // bytes that wait because the command does not read its input
}

// keys are what a terminal sends for a key. ctrl- with a letter is worked out.
var keys = map[string]string{
	"enter": "\r", "return": "\r", "tab": "\t", "shift-tab": "\x1b[Z", "escape": "\x1b", "esc": "\x1b", "space": " ",
	"backspace": "\x7f", "delete": "\x1b[3~", "insert": "\x1b[2~",
	"up": "\x1b[A", "down": "\x1b[B", "right": "\x1b[C", "left": "\x1b[D",
	"home": "\x1b[H", "end": "\x1b[F", "page-up": "\x1b[5~", "page-down": "\x1b[6~",
	"f1": "\x1bOP", "f2": "\x1bOQ", "f3": "\x1bOR", "f4": "\x1bOS", "f5": "\x1b[15~", "f6": "\x1b[17~",
	"f7": "\x1b[18~", "f8": "\x1b[19~", "f9": "\x1b[20~", "f10": "\x1b[21~", "f11": "\x1b[23~", "f12": "\x1b[24~",
	`ctrl-\`: "\x1c", "ctrl-]": "\x1d",
}

// key is the bytes of a named key.
func key(name string) (string, error) {
	n := strings.ToLower(strings.TrimSpace(name))
	if len(n) == len("ctrl-x") && strings.HasPrefix(n, "ctrl-") && n[5] >= 'a' && n[5] <= 'z' {
		return string(rune(n[5] - 'a' + 1)), nil
	}
	if s, ok := keys[n]; ok {
		return s, nil
	}
	return "", fmt.Errorf("there is no key %s, and nothing was typed; the keys are ctrl-a to ctrl-z, %s", quote(name), strings.Join(slices.Sorted(maps.Keys(keys)), ", "))
}

// typing is an Input as it reaches the command.
type typing struct {
	data    string
	eof     bool     // close the pipe after data
	signals []string // to the group, where there is no terminal to make them
}

// encode says what an Input means for a command with these streams.
func (in *Input) encode(tty, stdin bool) (typing, error) {
	var t typing
	if (in.Cols != 0 || in.Rows != 0) && !tty {
		return t, errors.New("this command has no terminal that could get another size; start it with tty: true for one")
	}
	if in.Cols < 0 || in.Rows < 0 || in.Cols > 10000 || in.Rows > 10000 || (in.Cols == 0) != (in.Rows == 0) {
		return t, errors.New("cols and rows go together, each from 1 to 10000; nothing was typed")
	}
	if len(in.Text) > MaxInput {
		return t, fmt.Errorf("the text has %d bytes, and at most %d can be typed at once; nothing was typed: send it in parts, or write it to a file", len(in.Text), MaxInput)
	}
	t.data = in.Text
	for _, name := range in.Keys {
		s, err := key(name)
		if err != nil {
			return t, err
		}
		switch {
		case tty:
			t.data += s
		case s == "\x03":
			t.signals = append(t.signals, "INT")
		case s == "\x1c":
			t.signals = append(t.signals, "QUIT")
		case t.eof:
			return t, errors.New("nothing can be typed after the end of the input; nothing was typed")
		case s == "\x04":
			t.eof = true
		case s == "\r":
			t.data += "\n"
		case s == "\t" || s == " ":
			t.data += s
		default:
			return t, fmt.Errorf("the key %s needs a terminal, and this command has none; nothing was typed: start the command with tty: true", quote(name))
		}
	}
	if in.EOF {
		if tty {
			t.data += "\x04"
		}
		t.eof = !tty
	}
	if !tty && !stdin && (t.data != "" || t.eof) {
		return t, errors.New("this command has no input: its stdin is /dev/null, which is at its end already; nothing was typed: start the command with stdin: \"pipe\" or tty: true to type")
	}
	return t, nil
}

// digest is one line of the typed file: the key and what was typed with it,
// neither of them readable.
func (in *Input) digest() typedLine {
	what := *in
	what.Key = ""
	b, _ := json.Marshal(what)
	sum := func(b []byte) string { h := sha256.Sum256(b); return hex.EncodeToString(h[:16]) }
	return typedLine{Key: sum([]byte(in.Key)), What: sum(b)}
}

type typedLine struct {
	Key  string `json:"key"`
	What string `json:"what"`
}

var errKeyReused = errors.New("this idempotency key was used for another input; nothing was typed: use a new key for a new input")

// repeated says whether the input was typed before, going by the lines of the
// typed file.
func repeated(in *Input, typed map[string]string) (bool, error) {
	d := in.digest()
	what, ok := typed[d.Key]
	if in.Key == "" || !ok {
		return false, nil
	}
	if what != d.What {
		return false, errKeyReused
	}
	return true, nil
}

// quote puts a short name that somebody else chose into a sentence.
func quote(s string) string {
	if len(s) > 40 {
		s = strings.ToValidUTF8(s[:40], "") + "…"
	}
	return fmt.Sprintf("%q", s)
}

// readTyped reads the keys that a process remembers.
func readTyped(dir string) (map[string]string, error) {
	typed := map[string]string{}
	f, err := os.Open(filepath.Join(dir, typedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return typed, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for d := json.NewDecoder(f); ; {
		var l typedLine
		if err := d.Decode(&l); err != nil {
			return typed, nil //nolint:nilerr // the last line may be cut short: what it was for was not typed
		}
		typed[l.Key] = l.What
	}
}
