package spool

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
)

// builder makes the text of a view from lines.
type builder struct {
	Look
	max     int
	text    []byte
	omitted int64
	cut     bool
}

// row is a line as a view shows it, with the equal ones that follow it.
type row struct {
	n       int    // bytes of output, newlines included
	text    []byte // of one line, without newline
	times   int    // how many lines
	ended   bool   // the last has a newline
	omitted int64  // bytes of output that text does not show
}

// append appends the row's text.
func (w row) append(b []byte) []byte {
	b = append(b, w.text...)
	switch {
	case w.times == 2:
		b = append(append(b, '\n'), w.text...)
	case w.times > 2:
		b = fmt.Appendf(b, "\n[… the line above %s more times]", comma(int64(w.times-1)))
	}
	if w.ended {
		b = append(b, '\n')
	}
	return b
}

// forward appends the lines at the start of data, which is at an offset, and says how many bytes it took. If more output follows the
// data, its last line is unfinished and left, unless it is all there is. Where a line does not fit and much room is left, a part of
// it is shown.
func (b *builder) forward(data []byte, offset int64, more bool) (taken int64) {
	whole := data
	if more {
		whole = data[:bytes.LastIndexByte(data, '\n')+1]
	}
	for taken < int64(len(whole)) {
		w := b.first(whole[taken:], offset+taken)
		if text := w.append(b.text); len(text) <= b.max {
			b.text = text
		} else {
			break
		}
		b.count(w)
		taken += int64(w.n)
	}
	if rest := data[taken:]; len(rest) > 0 && (taken == 0 || len(rest) > b.max-len(b.text) && len(b.text) < b.max/2) {
		taken += int64(b.prefix(line(rest)))
	}
	return taken
}

// backward makes the text of the lines at the end of data, which is at an offset, and says how many bytes at its start it left. If
// more output precedes the data, its first line is unfinished, as in forward.
func (b *builder) backward(data []byte, offset int64, more bool) (left int64) {
	first := 0 // where the first whole line begins
	if more {
		if first = bytes.IndexByte(data, '\n') + 1; first == 0 {
			first = len(data)
		}
	}
	rest := data
	var rows []row
	size := 0
	for len(rest) > first {
		w := b.last(rest[first:], offset+int64(first))
		n := len(w.append(nil))
		if size+n > b.max {
			break
		}
		rows, size, rest = append(rows, w), size+n, rest[:len(rest)-w.n]
		b.count(w)
	}
	if len(rest) > 0 && (len(rows) == 0 || len(rest) > b.max-size && size < b.max/2) {
		rest = rest[:len(rest)-b.suffix(lastLine(rest), b.max-size)]
	}
	for _, w := range slices.Backward(rows) {
		b.text = w.append(b.text)
	}
	return int64(len(rest))
}

func (b *builder) count(w row) {
	b.omitted += w.omitted
	b.cut = b.cut || w.omitted > 0
}

// line is the first line of data, with its newline.
func line(data []byte) []byte {
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		return data[:i+1]
	}
	return data
}

// lastLine is the last line of data, with its newline.
func lastLine(data []byte) []byte {
	return data[bytes.LastIndexByte(data[:len(data)-1], '\n')+1:]
}

// first is the row at the start of data.
func (b *builder) first(data []byte, offset int64) row {
	l := line(data)
	w := b.row(l, offset)
	for !b.Raw && w.omitted == 0 && w.n < len(data) {
		next := line(data[w.n:])
		if !w.equals(l, next) {
			break
		}
		w.n, w.times, w.ended = w.n+len(next), w.times+1, bytes.HasSuffix(next, newline)
	}
	return w
}

// last is the row at the end of data, which is at an offset.
func (b *builder) last(data []byte, offset int64) row {
	l := lastLine(data)
	w := b.row(l, offset+int64(len(data)-len(l)))
	for !b.Raw && w.omitted == 0 && w.n < len(data) {
		next := lastLine(data[:len(data)-w.n])
		if !w.equals(l, next) {
			break
		}
		w.n, w.times = w.n+len(next), w.times+1
	}
	return w
}

// row is a line as it is shown.
func (b *builder) row(l []byte, offset int64) row {
	text, ended := bytes.CutSuffix(l, newline)
	w := row{n: len(l), text: text, times: 1, ended: ended}
	if b.Raw {
		return w
	}
	w.text = appendClean(nil, text)
	if len(w.text) > maxLine {
		cut := builder{}
		n := cut.fitStart(text, maxLine)
		w.text = cut.show(text[:n])
		w.omitted = int64(len(text) - n)
		w.text = fmt.Appendf(w.text, " [… %s bytes of this line omitted — %s cursor=%d]", comma(w.omitted), b.tool(), offset+int64(n))
	}
	return w
}

// equals says whether a line, cleaned, looks like the row, which was made of line l.
func (w *row) equals(l, other []byte) bool {
	if bytes.Equal(bytes.TrimSuffix(l, newline), bytes.TrimSuffix(other, newline)) {
		return true
	}
	other = bytes.TrimSuffix(other, newline)
	if plain(other) {
		return bytes.Equal(w.text, other)
	}
	return bytes.Equal(w.text, appendClean(nil, other))
}

// prefix appends what fits of a line, at least a character, and says how many bytes of output that is.
func (b *builder) prefix(l []byte) int {
	text, ended := bytes.CutSuffix(l, newline)
	n := b.fitStart(text, max(b.max-len(b.text), 0))
	b.text = append(b.text, b.show(text[:n])...)
	if n == len(text) && ended {
		b.text = append(b.text, '\n')
		return n + 1
	}
	b.cut = true
	return n
}

// suffix appends what fits of a line's end in a room, as prefix does of its start.
func (b *builder) suffix(l []byte, room int) int {
	text, ended := bytes.CutSuffix(l, newline)
	from := b.fitEnd(text, max(room, 0))
	b.text = append(b.text, b.show(text[from:])...)
	if ended {
		b.text = append(b.text, '\n')
	}
	b.cut = true
	return len(l) - from
}

// fitStart is the length of the longest start of a line that fits, at least one unit.
func (b *builder) fitStart(text []byte, room int) int {
	n := len(text)
	for n > 0 {
		shown := len(b.show(text[:n]))
		first, _ := unit(text)
		if shown <= room || n <= first {
			return n
		}
		n = max(unitStart(text, shrink(n, room, shown)), first)
	}
	return n
}

// fitEnd is where the longest end of a line that fits begins, at least one unit before the line's own.
func (b *builder) fitEnd(text []byte, room int) int {
	if len(text) == 0 {
		return 0
	}
	last := unitStart(text, len(text)-1)
	from := 0
	for from < last {
		shown := len(b.show(text[from:]))
		if shown <= room {
			break
		}
		from = len(text) - shrink(len(text)-from, room, shown)
		if start := unitStart(text, from); start < from {
			n, _ := unit(text[start:])
			from = start + n
		}
		from = min(from, last)
	}
	return from
}

// shrink is a length less than n of which a room's worth may be shown, if n bytes are shown as so many.
func shrink(n, room, shown int) int {
	return max(min(n-1, int(int64(n)*int64(room)/int64(shown))), 0)
}

func (b *builder) show(text []byte) []byte {
	if b.Raw {
		return text
	}
	return appendClean(nil, text)
}

func (b *builder) tool() string {
	if b.Tool == "" {
		return "read_output"
	}
	return b.Tool
}

// gone says that output before the view is evicted.
func (b *builder) gone(n int64) {
	if n > 0 && !b.Raw {
		b.text = fmt.Appendf(b.text, "[… %s bytes no longer kept]\n", comma(n))
	}
}

// between says what lies between two ends of a view.
func (b *builder) between(s *snap, from, to int64) {
	if from >= to {
		return
	}
	if len(b.text) > 0 && !bytes.HasSuffix(b.text, newline) {
		b.text = append(b.text, '\n')
	}
	for _, g := range append(s.gaps(from, to), Range{From: to, To: to}) {
		if n := g.From - from; n > 0 {
			b.omitted += n
			b.text = fmt.Appendf(b.text, "[… %s bytes omitted — %s cursor=%d]\n", comma(n), b.tool(), from)
		}
		if n := g.To - g.From; n > 0 {
			b.text = fmt.Appendf(b.text, "[… %s bytes no longer kept]\n", comma(n))
		}
		from = g.To
	}
}

// comma writes a number with commas between its thousands.
func comma(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
