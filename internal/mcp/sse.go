package mcp

import (
	"bytes"
	"io"
	"math"
	"strings"
	"time"
)

// SSEvent is one server-sent event, or one comment.
type SSEvent struct {
	ID      string        // last id seen on the stream, also by earlier events
	HasID   bool          // this event carried an id field
	Name    string        // event field; empty means "message"
	Data    []byte        // valid until the next call of Next
	Retry   time.Duration // of this event; 0 if none
	Comment bool          // only a comment line; nothing else is set
}

// SSEReader reads an event stream (WHATWG HTML §9.2.6): LF, CRLF and CR line
// ends also when they are split over reads (O11, O12), a leading BOM, several
// data lines, a missing blank after the colon (O13). An event is given as soon
// as the line end of its blank line is there. It starts with a small buffer and
// grows it as needed, so that a parked stream costs little; a buffer that grew
// large is let go after its event.
type SSEReader struct {
	in      input
	limit   int
	readErr error // what the underlying reader ended with
	err     error // what Next ends with

	began  bool // the first line, which may have a BOM, is over
	skipLF bool // the last line ended in CR: an LF that follows belongs to it
	long   bool // the rest of this line is passed over ...
	remark bool // ... and it is a comment
	value  bool // ... or data

	// The event being read.
	dataStart, dataEnd int // in in.buf
	hasData            bool
	tooLarge           bool
	rest               LongLine // of what is too large
	hasID, hasRetry    bool
	id, name           string
	retry              time.Duration

	lastID string
}

// minLineLimit is what a line may have at least, whatever the limit on data.
const minLineLimit = 4 << 10

// NewSSEReader reads from r; an event of more than limit bytes of data is
// skipped and given as a *LongEvent, after which Next goes on (O25). A limit
// that is not positive is none.
func NewSSEReader(r io.Reader, limit int) *SSEReader {
	return &SSEReader{in: input{r: r}, limit: bound(limit)}
}

// LongEvent is an event over the limit: the first and last bytes of its data, by
// which its message may be recognised.
type LongEvent struct {
	Head, Tail []byte // up to 256 bytes and 4 KiB; they overlap if Size is small
	Size       int64  // of the data
}

func (l *LongEvent) Error() string { return ErrTooLarge.Error() }

// Unwrap makes errors.Is(err, ErrTooLarge) true.
func (l *LongEvent) Unwrap() error { return ErrTooLarge }

const longEventHead = 256

// bound leaves room to add to a limit.
func bound(limit int) int {
	if limit <= 0 || limit > math.MaxInt/2 {
		return math.MaxInt / 2
	}
	return limit
}

// lineLimit is how long a line may be: one over it has too much data, or is
// none that we need.
func (r *SSEReader) lineLimit() int { return max(r.limit, minLineLimit) + 16 }

// Next returns the next event or comment. An event with neither data nor id
// nor retry is not returned. At the end of the stream it returns io.EOF; a
// half-written event is discarded with io.ErrUnexpectedEOF (P3). An error of
// the underlying reader comes as it is. The end stays: later calls return it again.
func (r *SSEReader) Next() (SSEvent, error) {
	in := &r.in
	for {
		if r.skipLF && in.line < in.end {
			if in.buf[in.line] == '\n' {
				in.line++
				in.scan = max(in.scan, in.line)
			}
			r.skipLF = false
		}
		n := lineEnd(in.buf[in.scan:in.end])
		if n < 0 {
			in.scan = in.end
			r.passOver()
			if err := r.fill(); err != nil {
				return SSEvent{}, err
			}
			continue
		}
		at := in.scan + n
		start, line := in.line, in.buf[in.line:at]
		r.skipLF = in.buf[at] == '\r'
		in.line, in.scan = at+1, at+1
		if !r.began {
			r.began = true
			trimmed := bytes.TrimPrefix(line, bom)
			start += len(line) - len(trimmed)
			line = trimmed
		}
		switch {
		case r.long:
			r.long = false
			if r.remark {
				return SSEvent{Comment: true}, nil
			}
			if r.value {
				r.rest.add(line)
			}
		case len(line) == 0:
			if e, ok, err := r.dispatch(); ok {
				return e, err
			}
		case line[0] == ':':
			return SSEvent{Comment: true}, nil
		default:
			r.field(line, start)
		}
	}
}

// LastID is the id of the last whole event that carried one (P3).
func (r *SSEReader) LastID() string { return r.lastID }

var bom = []byte("\xEF\xBB\xBF")

// lineEnd finds the first CR or LF. It looks in growing windows, so that no
// mix of line ends makes it read far beyond the line.
func lineEnd(b []byte) int {
	for off, size := 0, 512; off < len(b); off, size = off+size, size*4 {
		w := b[off:min(off+size, len(b))]
		lf := bytes.IndexByte(w, '\n')
		if lf >= 0 {
			w = w[:lf]
		}
		if cr := bytes.IndexByte(w, '\r'); cr >= 0 {
			return off + cr
		}
		if lf >= 0 {
			return off + lf
		}
	}
	return -1
}

// fill reads more, and keeps the event's data.
func (r *SSEReader) fill() error {
	if r.err != nil {
		return r.err
	}
	if r.readErr != nil { // all that came before it is used up
		r.err = r.readErr
		if r.err == io.EOF && r.half() {
			r.err = io.ErrUnexpectedEOF
		}
		return r.err
	}
	keep := r.in.line
	if r.hasData {
		keep = r.dataStart
	}
	moved, err := r.in.fill(keep)
	r.dataStart -= moved
	r.dataEnd -= moved
	r.readErr = err
	return nil
}

// half says whether an event has begun.
func (r *SSEReader) half() bool {
	if r.hasData || r.hasID || r.hasRetry || r.tooLarge || r.name != "" {
		return true
	}
	if r.long {
		return !r.remark
	}
	line := r.in.buf[r.in.line:r.in.end]
	if !r.began {
		line = bytes.TrimPrefix(line, bom)
	}
	return len(line) > 0 && line[0] != ':'
}

// passOver drops what is there of a line that is too long to keep.
func (r *SSEReader) passOver() {
	in := &r.in
	if !r.long {
		line := in.buf[in.line:in.end]
		if !r.began {
			line = bytes.TrimPrefix(line, bom)
		}
		if len(line) > r.lineLimit() {
			value, ok := bytes.CutPrefix(line, []byte("data:"))
			r.long, r.remark, r.value = true, line[0] == ':', ok
			if ok {
				r.refuse(bytes.TrimPrefix(value, []byte(" ")))
			}
			in.line = in.end
			return
		}
	}
	if r.long {
		if r.value {
			r.rest.add(in.buf[in.line:in.end])
		}
		in.line = in.end
	}
}

// refuse gives the event up, but for its id and how its data begins and ends;
// more is data that comes after what is there.
func (r *SSEReader) refuse(more []byte) {
	if r.hasData {
		r.rest.add(r.in.buf[r.dataStart:r.dataEnd])
	}
	r.tooLarge, r.hasData = true, false
	r.rest.add(more)
}

// field takes one line of the event; start is where it is in the buffer.
func (r *SSEReader) field(line []byte, start int) {
	name, value := line, line[len(line):]
	valueStart := start + len(line)
	if colon := bytes.IndexByte(line, ':'); colon >= 0 {
		name, value = line[:colon], line[colon+1:]
		valueStart = start + colon + 1
		if len(value) > 0 && value[0] == ' ' {
			value = value[1:]
			valueStart++
		}
	}
	if len(line) > r.lineLimit() && string(name) != "data" {
		return // as if it had come in pieces
	}
	switch string(name) {
	case "data":
		r.data(value, valueStart)
	case "id":
		if bytes.IndexByte(value, 0) >= 0 {
			return
		}
		r.hasID = true
		if r.id != string(value) {
			r.id = string(value)
		}
	case "event":
		if r.name = "message"; string(value) != r.name {
			r.name = string(value)
		}
	case "retry":
		if d, ok := retryTime(value); ok {
			r.hasRetry, r.retry = true, d
		}
	}
}

// data adds a data line. A first one stays where it is in the buffer; further
// ones move down to it.
func (r *SSEReader) data(value []byte, start int) {
	switch {
	case r.tooLarge:
		r.rest.add(value)
	case !r.hasData:
		r.hasData, r.dataStart, r.dataEnd = true, start, start+len(value)
	default:
		buf := r.in.buf
		buf[r.dataEnd] = '\n' // the line end or field name that stood here is done
		copy(buf[r.dataEnd+1:], value)
		r.dataEnd += 1 + len(value)
	}
	if r.hasData && r.dataEnd-r.dataStart > r.limit {
		r.refuse(nil)
	}
}

// dispatch ends the event at its blank line; ok is false if there is none.
func (r *SSEReader) dispatch() (e SSEvent, ok bool, err error) {
	if r.hasID {
		r.lastID = r.id
	}
	switch {
	case r.tooLarge:
		l := r.rest.finish()
		err, ok = &LongEvent{Head: l.Head[:min(len(l.Head), longEventHead)], Tail: l.Tail, Size: l.Size}, true
	case r.hasData || r.hasID || r.hasRetry:
		e = SSEvent{ID: r.lastID, HasID: r.hasID, Name: r.name, Retry: r.retry}
		if r.hasData {
			e.Data = r.in.buf[r.dataStart:r.dataEnd:r.dataEnd]
		}
		ok = true
	}
	r.hasData, r.tooLarge, r.hasID, r.hasRetry = false, false, false, false
	r.name, r.retry, r.rest = "", 0, LongLine{}
	r.in.letGo()
	return e, ok, err
}

// maxRetry bounds what a server may ask us to wait.
const maxRetry = 24 * time.Hour

// retryTime reads milliseconds: digits only, at most a day.
func retryTime(b []byte) (time.Duration, bool) {
	if len(b) == 0 {
		return 0, false
	}
	var d time.Duration
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		d = min(d*10+time.Duration(c-'0')*time.Millisecond, maxRetry)
	}
	return d, true
}

// AppendSSE appends one event with the parts of data joined. CR and LF in data
// make further data lines, so that nothing can break out of the event; an id
// or name with CR, LF or NUL is left out, as is an empty one.
func AppendSSE(dst []byte, id, name string, data ...[]byte) []byte {
	const unsafe = "\r\n\x00"
	if id != "" && !strings.ContainsAny(id, unsafe) {
		dst = append(append(append(dst, "id: "...), id...), '\n')
	}
	if name != "" && !strings.ContainsAny(name, unsafe) {
		dst = append(append(append(dst, "event: "...), name...), '\n')
	}
	dst = append(dst, "data: "...)
	cr := false // a CR ended the last line: an LF that follows belongs to it
	for _, part := range data {
		for len(part) > 0 {
			if cr && part[0] == '\n' {
				part = part[1:]
			}
			cr = false
			n := lineEnd(part)
			if n < 0 {
				dst = append(dst, part...)
				break
			}
			dst = append(append(dst, part[:n]...), "\ndata: "...)
			cr = part[n] == '\r'
			part = part[n+1:]
		}
	}
	return append(dst, "\n\n"...)
}
