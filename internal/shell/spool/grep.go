package spool

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
)

// maxMatch is how many bytes of a line a search shows, around the match, and of a line beside one.
const maxMatch = 2 << 10

// Grep shows the lines from a cursor on that match, with lines of context around them, in up to Look.Max bytes of text. Each line is
// led by its offset, which is a cursor to read from there, and a colon if it matches, a dash if it is context; "--" parts what does not
// adjoin. Lines are matched clean, unless Look.Raw, and those over 64 KiB in pieces. Next is where to search on: the total if all was
// searched, and the start of the last line if that is still being printed.
//
// It reads all there is from the cursor on until the text is full or ctx is done, a little at a time.
func (r *Reader) Grep(ctx context.Context, re *regexp.Regexp, cursor int64, around int, look Look) (View, error) {
	s, v, err := r.open(cursor)
	if err != nil {
		return View{}, err
	}
	defer s.close()
	g := grep{re: re, around: max(around, 0), look: look, next: v.From}
	in := lines{s: s, offset: v.From}
	for !g.full {
		offset, l, err := in.next(ctx)
		if err != nil {
			return View{}, err
		}
		if len(l) == 0 {
			break
		}
		g.line(offset, l)
		if whole := bytes.HasSuffix(l, newline) || offset+int64(len(l)) < s.total || r.settled(s); !whole && !g.hit {
			g.next = offset
		}
	}
	v.Text, v.Next, v.Cut = string(g.text), g.next, g.cut
	v.Evicted += in.evicted
	return v, nil
}

// grep is a search under way.
type grep struct {
	re     *regexp.Regexp
	around int
	look   Look

	text   []byte
	before []found // lines that would be context of a match that follows
	after  int     // how many lines of context the last match still wants
	shown  int64   // offset behind the last line in text
	next   int64   // where to search on
	hit    bool    // the last line matched
	full   bool
	cut    bool
}

// found is a line that may be shown.
type found struct {
	offset, end int64
	text        []byte
}

// line takes the next line.
func (g *grep) line(offset int64, l []byte) {
	f := found{offset: offset, end: offset + int64(len(l))}
	show := builder{Look: g.look}
	f.text = show.show(bytes.TrimSuffix(l, newline))
	at := g.re.FindIndex(f.text)
	g.hit = at != nil
	switch {
	case g.hit:
		g.add(at, f)
	case g.after > 0:
		g.after--
		g.add(nil, f)
	case g.around > 0:
		if len(g.before) == g.around {
			g.before = append(g.before[:0], g.before[1:]...)
		}
		f.text = bytes.Clone(f.text)
		g.before = append(g.before, f)
	}
	if !g.full {
		g.next = f.end
	}
}

// add shows a line, with the context before it if it is a match. If they do not fit, the search ends before them, unless they are the first.
func (g *grep) add(at []int, f found) {
	text := g.text
	first := f.offset
	if at != nil && len(g.before) > 0 {
		first = g.before[0].offset
	}
	if len(text) > 0 && g.around > 0 && first > g.shown {
		text = append(text, "--\n"...)
	}
	mark := byte('-')
	if at != nil {
		for _, c := range g.before {
			text = fmt.Appendf(text, "%d-%s\n", c.offset, g.clip(c.text, nil))
		}
		mark = ':'
	}
	text = fmt.Appendf(text, "%d%c%s\n", f.offset, mark, g.clip(f.text, at))
	if len(text) > g.look.size() && len(g.text) > 0 {
		g.full, g.next = true, first
		return
	}
	g.text, g.shown = text, f.end
	if at != nil {
		g.before, g.after = g.before[:0], g.around
	}
}

// clip shortens a long line to what is around the match in it.
func (g *grep) clip(text []byte, at []int) []byte {
	if len(text) <= maxMatch {
		return text
	}
	g.cut = true
	from, end := 0, maxMatch
	if at != nil {
		from = max(min(at[0]-maxMatch/4, len(text)-maxMatch), 0)
		end = from + maxMatch
	}
	from, end = unitStart(text, from), unitStart(text, end)
	out := make([]byte, 0, end-from+8)
	if from > 0 {
		out = append(out, "…"...)
	}
	out = append(out, text[from:end]...)
	if end < len(text) {
		out = append(out, "…"...)
	}
	return out
}

// lines goes through output line by line.
type lines struct {
	s       *snap
	offset  int64 // of buf
	buf     []byte
	mem     []byte
	overlap int   // bytes that a piece of a line over 64 KiB begins with of the one before it
	evicted int64 // bytes passed over
}

// Bytes read at once by lines: more than a line that is not cut.
const lineChunk = 2 * maxLine

// next is the next line, with its newline if it has one, and its offset; none at the end. A line over 64 KiB comes in pieces. It is
// valid until the next call.
func (l *lines) next(ctx context.Context) (offset int64, line []byte, err error) {
	for searched := 0; ; {
		if i := bytes.IndexByte(l.buf[searched:], '\n'); i >= 0 {
			offset, line = l.take(searched + i + 1)
			return offset, line, nil
		}
		if len(l.buf) > maxLine {
			offset, line = l.offset, l.buf[:unitStart(l.buf, maxLine)]
			l.take(unitStart(l.buf, maxLine-l.overlap))
			return offset, line, nil
		}
		searched = len(l.buf)
		more, err := l.fill(ctx)
		if err != nil {
			return 0, nil, err
		}
		if !more {
			if len(l.buf) > 0 {
				offset, line = l.take(len(l.buf))
				return offset, line, nil
			}
			kept := l.s.kept(l.offset)
			if kept == l.s.total {
				return l.offset, nil, nil
			}
			l.evicted += kept - l.offset
			l.offset = kept
		}
	}
}

func (l *lines) take(n int) (offset int64, line []byte) {
	offset, line = l.offset, l.buf[:n]
	l.offset, l.buf = l.offset+int64(n), l.buf[n:]
	return offset, line
}

// fill reads what follows the buffer, unless there is a gap or the end.
func (l *lines) fill(ctx context.Context) (more bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if l.mem == nil {
		l.mem = make([]byte, lineChunk)
	}
	n := copy(l.mem, l.buf)
	data, err := l.s.read(l.mem[n:], l.offset+int64(n))
	l.buf = l.mem[:n+len(data)]
	return len(data) > 0, err
}

// Scan looks for a pattern in output that grows: what is not found is not looked at again, but for the line that is still being
// printed. Each line is matched clean, and each state of one that is overwritten by carriage returns; a match never reaches over lines.
// A Scan is for one goroutine.
type Scan struct {
	re   *regexp.Regexp
	from int64
}

// NewScan looks from a cursor on.
func NewScan(re *regexp.Regexp, from int64) *Scan { return &Scan{re: re, from: max(from, 0)} }

// Next looks at what was printed since. If the pattern matched, end is the offset behind the line that matches, or behind what there is
// of it, and the next call looks from there.
func (s *Scan) Next(ctx context.Context, r *Reader) (end int64, found bool, err error) {
	p, err := r.snap(s.from)
	if err != nil {
		return 0, false, err
	}
	defer p.close()
	if s.from >= p.total {
		return 0, false, nil
	}
	in := lines{s: p, offset: s.from, overlap: maxLine / 2, mem: make([]byte, min(lineChunk, p.total-s.from))}
	for {
		offset, l, err := in.next(ctx)
		if err != nil || len(l) == 0 {
			return 0, false, err
		}
		if end, found := s.line(offset, l); found {
			return end, true, nil
		}
	}
}

// line looks at one line, and remembers where to go on.
func (s *Scan) line(offset int64, l []byte) (end int64, found bool) {
	for len(l) > 0 {
		n := bytes.IndexByte(l, '\r') + 1
		whole := n > 0
		if !whole {
			n = len(l)
			whole = l[n-1] == '\n'
		}
		s.from = offset
		text := bytes.TrimRight(l[:n], "\r\n")
		if s.re.Match(Clean(text)) {
			s.from = offset + int64(n)
			return s.from, true
		}
		if whole {
			s.from = offset + int64(n)
		}
		l, offset = l[n:], offset+int64(n)
	}
	return 0, false
}
