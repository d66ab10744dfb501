package spool

import (
	"bytes"
	"slices"
	"unicode/utf8"
)

// Bounds of a terminal's line, so that a few bytes cannot ask for much: how far a cursor is moved over nothing, in how long a line
// characters are inserted and deleted, and how long a control string (a window title, a link) may be before it is taken for a stray
// start of one.
const (
	maxBlank  = 256
	maxEdit   = 4 << 10
	maxString = 4 << 10
)

// Clean gives output as a terminal would show it, in plain text: escape sequences are gone, what a carriage return or a backspace let
// overwrite is overwritten, invalid UTF-8 and characters that change the direction of text or cannot be seen are U+FFFD, and no
// control characters are left but newline and tab. Lines are cleaned each on its own, so cutting at newlines changes nothing.
func Clean(b []byte) []byte {
	out := make([]byte, 0, len(b))
	for len(b) > 0 {
		line, rest, ended := bytes.Cut(b, newline)
		out = appendClean(out, line)
		if ended {
			out = append(out, '\n')
		}
		b = rest
	}
	return out
}

var newline = []byte{'\n'}

// appendClean appends the clean form of one line, which has no newline.
func appendClean(dst, line []byte) []byte {
	if plain(line) {
		return append(dst, line...)
	}
	var t terminal
	for len(line) > 0 {
		line = line[t.take(line):]
	}
	t.feed()
	return append(dst, t.done...)
}

// plain says whether a line is clean already, as nearly all are.
func plain(line []byte) bool {
	for _, c := range line {
		if c < ' ' && c != '\t' || c >= 0x7f {
			return false
		}
	}
	return true
}

// terminal is one line of a screen.
type terminal struct {
	done []byte // rows that a jump to another row has ended
	row  []rune
	col  int

	saved int // column
}

// take applies the first unit of b and says how long it is.
func (t *terminal) take(b []byte) int {
	switch c := b[0]; {
	case c == 0x1b:
		n, _, final := escape(b)
		if final != 0 {
			t.control(final, b[2:max(n-1, 2)])
		}
		return n
	case c == '\r':
		t.col = 0
	case c == '\b':
		t.col = max(t.col-1, 0)
	case c == '\t':
		t.put('\t')
	case c == '\f' || c == '\v':
		t.jump()
	case c < ' ' || c == 0x7f:
	default:
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n == 1 {
			for n < len(b) && !utf8.RuneStart(b[n]) {
				n++ // one mark for a broken character, not one per byte
			}
		}
		switch {
		case 0x80 <= r && r < 0xa0:
		case deceptive(r):
			t.put(utf8.RuneError)
		default:
			t.put(r)
		}
		return n
	}
	return 1
}

// deceptive says whether a character is invisible or reorders what is around it, and so could show a reader something other than what
// a program reads.
func deceptive(r rune) bool {
	switch {
	case r < 0x061c:
		return false
	case r == 0x061c, // Arabic letter mark
		0x200b <= r && r <= 0x200c,   // zero width space, non-joiner; the joiner holds emoji together
		0x200e <= r && r <= 0x200f,   // direction marks
		0x2028 <= r && r <= 0x202e,   // line and paragraph separators, embeddings, overrides
		0x2060 <= r && r <= 0x206f,   // word joiner, invisible operators, isolates
		r == 0xfeff,                  // byte order mark
		0xfff9 <= r && r <= 0xfffb,   // interlinear annotations
		0xe0000 <= r && r <= 0xe007f: // tags
		return true
	}
	return false
}

// put writes a character at the cursor.
func (t *terminal) put(r rune) {
	for len(t.row) < t.col {
		t.row = append(t.row, ' ')
	}
	if t.col < len(t.row) {
		t.row[t.col] = r
	} else {
		t.row = append(t.row, r)
	}
	t.col++
}

// feed ends the row.
func (t *terminal) feed() {
	for _, r := range t.row {
		t.done = utf8.AppendRune(t.done, r)
	}
	t.row, t.col = t.row[:0], 0
}

// control applies the sequences that move within the line or change it. One that goes to another row ends this one.
func (t *terminal) control(final byte, args []byte) {
	n := number(args)
	switch final {
	case 'K':
		t.erase(n)
	case 'C', 'a':
		t.col = t.reach(t.col + max(n, 1))
	case 'D':
		t.col = max(t.col-max(n, 1), 0)
	case 'G', '`':
		t.col = t.reach(max(n, 1) - 1)
	case '7', 's':
		t.saved = t.col
	case '8', 'u':
		t.col = t.saved
	case 'P', 'X', '@':
		t.shift(final, max(n, 1))
	case 'J':
		if n < 2 {
			t.erase(n)
			return
		}
		t.jump()
	case 'A', 'B', 'E', 'F', 'H', 'f', 'd':
		t.jump()
	}
}

// jump goes to another row.
func (t *terminal) jump() {
	if len(t.row) > 0 {
		t.feed()
		t.done = append(t.done, '\n')
	}
}

// shift is the sequences that delete, blank and insert characters at the cursor.
func (t *terminal) shift(final byte, n int) {
	if t.col >= len(t.row) || len(t.row) > maxEdit {
		return
	}
	end := min(t.col+n, len(t.row))
	switch final {
	case 'P':
		t.row = slices.Delete(t.row, t.col, end)
	case 'X':
		for i := t.col; i < end; i++ {
			t.row[i] = ' '
		}
	case '@':
		t.row = slices.Insert(t.row, t.col, slices.Repeat([]rune{' '}, min(n, max(maxBlank-len(t.row), 0)))...)
	}
}

// reach bounds a column that the cursor is moved to.
func (t *terminal) reach(col int) int { return min(col, max(len(t.row), maxBlank)) }

// erase is the sequence EL: to the end of the line, from its start, or all.
func (t *terminal) erase(how int) {
	switch how {
	case 0:
		t.row = t.row[:min(t.col, len(t.row))]
	case 1:
		for i := range min(t.col+1, len(t.row), maxEdit) {
			t.row[i] = ' '
		}
	case 2:
		t.row = t.row[:0]
	}
}

// number is the first argument of a control sequence, 0 if it has none.
func number(args []byte) (n int) {
	for _, c := range args {
		if c < '0' || c > '9' {
			break
		}
		n = min(n*10+int(c-'0'), 1<<20)
	}
	return n
}

// escape measures the escape sequence that b begins with. It is not whole if b ends before it does. A control sequence (CSI) also has
// its final byte, as have the two that save and restore the cursor. A byte that cannot belong to the sequence ends it.
func escape(b []byte) (n int, whole bool, final byte) {
	if len(b) < 2 {
		return len(b), false, 0
	}
	switch c := b[1]; {
	case c == '[':
		for i := 2; i < len(b); i++ {
			switch c := b[i]; {
			case 0x40 <= c && c <= 0x7e:
				return i + 1, true, c
			case c < ' ' || c > '?':
				return i, true, 0
			}
		}
		return len(b), false, 0
	case c == ']' || c == 'P' || c == 'X' || c == '^' || c == '_':
		return controlString(b)
	case ' ' <= c && c < '0':
		for i := 2; i < len(b); i++ {
			switch c := b[i]; {
			case '0' <= c && c <= 0x7e:
				return i + 1, true, 0
			case c < ' ' || c > '/':
				return i, true, 0
			}
		}
		return len(b), false, 0
	case c == '7' || c == '8':
		return 2, true, c
	case '0' <= c && c <= 0x7e:
		return 2, true, 0
	default:
		return 1, true, 0
	}
}

// controlString measures a sequence that carries a string, such as a title.
func controlString(b []byte) (n int, whole bool, final byte) {
	for i := 2; i < min(len(b), maxString); i++ {
		switch {
		case b[i] == '\n':
			return i, true, 0
		case b[i] == 7:
			return i + 1, true, 0
		case b[i] == 0x1b && i+1 < len(b) && b[i+1] == '\\':
			return i + 2, true, 0
		case b[i] == 0x1b && i+1 < len(b):
			return i, true, 0 // another sequence ends an unfinished string
		}
	}
	if len(b) < maxString {
		return len(b), false, 0
	}
	return 2, true, 0 // no string is that long
}

// Units: what a cut between two bytes must not part, a character or an escape sequence. Escape sequences longer than this may be cut.
const maxUnit = 256

// unit is the length of the unit at the start of b, and whether it is whole.
func unit(b []byte) (n int, whole bool) {
	if b[0] == 0x1b {
		if n, whole, _ = escape(b); n <= maxUnit {
			return n, whole
		}
		return 1, true
	}
	_, n = utf8.DecodeRune(b)
	return n, utf8.FullRune(b)
}

// unitStart is the last start of a unit at or before i in b: where a cut at i must go to.
func unitStart(b []byte, i int) int {
	if i <= 0 {
		return 0
	}
	i = min(i, len(b))
	// an escape sequence that reaches over i
	for j := i - 1; j >= max(i-maxUnit, 0) && b[j] != '\n'; j-- {
		if b[j] == 0x1b {
			if n, _ := unit(b[j:]); j+n > i {
				return j
			}
			break
		}
	}
	return runeStart(b, i)
}

// runeStart is unitStart for characters alone.
func runeStart(b []byte, i int) int {
	for j := i - 1; j >= max(i-utf8.UTFMax+1, 0); j-- {
		if utf8.RuneStart(b[j]) {
			if r, n := utf8.DecodeRune(b[j:]); j+n > i && (r != utf8.RuneError || n > 1) {
				return j
			}
			break
		}
	}
	return i
}

// tail is how many bytes at the end of b are the beginning of a unit whose rest may still come.
func tail(b []byte) int {
	for j := len(b) - 1; j >= max(len(b)-maxUnit, 0) && b[j] != '\n'; j-- {
		if b[j] == 0x1b {
			if n, whole := unit(b[j:]); n == len(b)-j && !whole {
				return n
			}
			break
		}
	}
	for j := len(b) - 1; j >= max(len(b)-utf8.UTFMax+1, 0); j-- {
		if utf8.RuneStart(b[j]) {
			if !utf8.FullRune(b[j:]) {
				return len(b) - j
			}
			break
		}
	}
	return 0
}
