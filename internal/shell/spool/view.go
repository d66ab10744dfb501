package spool

import (
	"bytes"
	"context"
	"unicode/utf8"
)

// View is a window of output. Its bytes are those from From up to Next; Text shows them, but for what Omitted and Evicted count.
type View struct {
	Text    string
	From    int64 // of the first byte shown; later than asked for if that was evicted, earlier to keep a character whole
	Next    int64 // the cursor to read on from, at most Total
	Total   int64 // bytes printed so far
	Omitted int64 // bytes before Next left out of Text; its markers say where each lot can be read
	Evicted int64 // bytes between the cursor asked for and Next that are no longer kept
	Cut     bool  // a line did not fit, and is shown in part
}

// Look says how to show output.
type Look struct {
	Max  int    // bytes of text; a single character or marker may exceed it. 0 is DefaultMax
	Raw  bool   // as printed: not cleaned, nothing collapsed, no line shortened
	Tool string // what markers call the tool that reads on: "read_output" if empty
}

// DefaultMax is how many bytes of text a view has unless told otherwise (SHELL §4).
const DefaultMax = 30_000

// maxLine is how many bytes of one line a view shows, and chunk how many bytes of output it reads at most for its text, or for each
// end of it: enough for text of twice Look.Max, and much repeated or overwritten output.
const (
	maxLine = 64 << 10
	chunk   = 1 << 20
)

func (l Look) size() int {
	if l.Max == 0 {
		return DefaultMax
	}
	return max(l.Max, 1)
}

// Page shows output from a cursor on, up to the end of a line, or of a character where a line does not fit. A negative cursor counts
// from the end, and begins with the line after it. Pages that each begin at the Next of the one before show all of the output: Next is
// greater than the cursor as long as there is more, but for the first bytes of a character whose last are still to come.
//
// Unless raw, text is clean (see Clean), three or more equal lines are one with a marker, and a line over 64 KiB is shown in part.
// A page never reaches over evicted bytes: it begins behind them, and says so.
func (r *Reader) Page(ctx context.Context, cursor int64, look Look) (View, error) {
	s, v, err := r.open(cursor)
	if err != nil {
		return View{}, err
	}
	defer s.close()
	data, end, err := r.ahead(ctx, s, v.From, r.span(look))
	if err != nil {
		return View{}, err
	}
	b := builder{Look: look, max: look.size()}
	b.gone(v.Evicted)
	v.Next = v.From + b.forward(data, v.From, s.follows(end))
	v.Text, v.Omitted, v.Cut = string(b.text), b.omitted, b.cut
	return v, nil
}

// Summary shows the output from a cursor on: all of it if it fits, else its beginning (30 %) and its end (70 %), with a marker between
// them that says how much was left out and from which cursor to read it. Lines are as in Page. Next is the end of what there is.
func (r *Reader) Summary(ctx context.Context, from int64, look Look) (View, error) {
	s, v, err := r.open(from)
	if err != nil {
		return View{}, err
	}
	defer s.close()
	data, end, err := r.ahead(ctx, s, v.From, r.span(look))
	if err != nil {
		return View{}, err
	}
	if end == s.total {
		b := builder{Look: look, max: look.size()}
		b.gone(v.Evicted)
		if n := b.forward(data, v.From, false); n == int64(len(data)) {
			v.Next, v.Text, v.Omitted, v.Cut = v.From+n, string(b.text), b.omitted, b.cut
			return v, nil
		}
	}

	room := look.size() - min(reserve, look.size()/8)
	head := builder{Look: look, max: room * 3 / 10}
	head.gone(v.Evicted)
	headEnd := v.From + head.forward(data, v.From, s.follows(end))
	data, at, err := r.behind(ctx, s, headEnd, r.span(look))
	if err != nil {
		return View{}, err
	}
	tail := builder{Look: look, max: room - len(head.text)}
	tailStart := at + tail.backward(data, at, at > headEnd)
	head.between(s, headEnd, tailStart)
	for _, g := range s.gaps(headEnd, tailStart) {
		v.Evicted += g.To - g.From
	}
	v.Text, v.Next = string(head.text)+string(tail.text), at+int64(len(data))
	v.Omitted, v.Cut = head.omitted+tail.omitted, head.cut || tail.cut
	return v, nil
}

// open begins a view at a cursor, of the output as it is now; s has to be closed.
func (r *Reader) open(cursor int64) (s *snap, v View, err error) {
	if s, err = r.snap(max(cursor, 0)); err != nil {
		return nil, View{}, err
	}
	v.Total = s.total
	if v.From, v.Evicted, err = s.begin(cursor); err != nil {
		s.close()
		return nil, View{}, err
	}
	return s, v, nil
}

// span is how many bytes to read for a view, or for an end of it.
func (r *Reader) span(look Look) int64 { return max(r.chunk, 2*int64(look.size()), 2*maxUnit) }

// reserve is the room that a summary keeps for its markers, where it has so much.
const reserve = 256

// begin finds where a view starts, and how many bytes between the cursor and there are evicted.
func (s *snap) begin(cursor int64) (from, evicted int64, err error) {
	start := min(cursor, s.total)
	if cursor < 0 {
		start = max(s.total+cursor, 0)
	}
	from = s.kept(start)
	before, at, err := s.before(make([]byte, min(from, maxUnit)), from)
	if err != nil {
		return 0, 0, err
	}
	after, err := s.read(make([]byte, min(s.total-from, maxLine)), from)
	if err != nil {
		return 0, 0, err
	}
	if from > start { // whose first byte may be amid a character
		for len(after) > 0 && from-start < maxUnit && !utf8.RuneStart(after[0]) {
			after = after[1:]
			from++
		}
		return from, from - start, nil
	}
	if cursor < 0 && from > 0 && !bytes.HasSuffix(before, newline) {
		if i := bytes.IndexByte(after, '\n'); i >= 0 && i+1 < len(after) {
			return from + int64(i) + 1, 0, nil
		}
	}
	return at + int64(unitStart(append(before, after...), len(before))), 0, nil
}

// ahead reads the bytes from an offset on, up to a gap, and says where that is; it leaves out what is held back.
func (r *Reader) ahead(ctx context.Context, s *snap, from, n int64) (data []byte, end int64, err error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	if data, err = s.read(make([]byte, min(n, s.total-from)), from); err != nil {
		return nil, 0, err
	}
	return r.hold(s, data, from), from + int64(len(data)), nil
}

// follows says whether the bytes before an offset go on there, without a gap.
func (s *snap) follows(offset int64) bool { return offset < s.total && s.kept(offset) == offset }

// behind reads the last bytes of the output, back to a gap or to an offset, and says where they begin: with a whole character.
func (r *Reader) behind(ctx context.Context, s *snap, from, n int64) (data []byte, at int64, err error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	if data, at, err = s.before(make([]byte, min(n+maxUnit, s.total-from)), s.total); err != nil {
		return nil, 0, err
	}
	if int64(len(data)) > n {
		k := unitStart(data, len(data)-int(n))
		data, at = data[k:], at+int64(k)
	}
	return r.hold(s, data, at), at, nil
}

// hold leaves out what is half a character or half an escape sequence at the end of what was read, unless nothing will follow it.
func (r *Reader) hold(s *snap, data []byte, from int64) []byte {
	k := tail(data)
	if end := from + int64(len(data)); k > 0 && (s.follows(end) || end == s.total && !r.settled(s)) {
		return data[:len(data)-k]
	}
	return data
}
