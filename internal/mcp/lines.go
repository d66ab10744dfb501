package mcp

import (
	"bytes"
	"io"
)

// LineReader reads newline-delimited messages (stdio). Its buffer grows and
// shrinks like that of SSEReader.
type LineReader struct {
	in      input
	limit   int
	readErr error
	long    *LongLine // being passed over
}

// NewLineReader reads from r; a line over limit bytes is skipped and given as
// a *LongLine (O25). A limit that is not positive is none.
func NewLineReader(r io.Reader, limit int) *LineReader {
	return &LineReader{in: input{r: r}, limit: bound(limit)}
}

// LongLine is a line over the limit: its first and last bytes, by which its
// message may be recognised.
type LongLine struct {
	Head, Tail []byte // up to 64 KiB and 4 KiB; they overlap if Size is small
	Size       int64  // of the line without its line end
}

const (
	longHead = 64 << 10
	longTail = 4 << 10
)

func (l *LongLine) Error() string { return ErrTooLarge.Error() }

// Unwrap makes errors.Is(err, ErrTooLarge) true.
func (l *LongLine) Unwrap() error { return ErrTooLarge }

// add takes the next bytes of the line. It keeps one byte of tail more than it
// gives, for the CR of a line end.
func (l *LongLine) add(b []byte) {
	l.Size += int64(len(b))
	l.Head = append(l.Head, b[:min(len(b), longHead-len(l.Head))]...)
	if over := len(l.Tail) + len(b) - longTail - 1; over > 0 {
		if over < len(l.Tail) {
			l.Tail = l.Tail[:copy(l.Tail, l.Tail[over:])]
		} else {
			b = b[over-len(l.Tail):]
			l.Tail = l.Tail[:0]
		}
	}
	l.Tail = append(l.Tail, b...)
}

// finish takes the CR of the line end away.
func (l *LongLine) finish() *LongLine {
	if n := len(l.Tail); n > 0 && l.Tail[n-1] == '\r' {
		l.Size--
		l.Tail = l.Tail[:n-1]
		l.Head = l.Head[:min(int64(len(l.Head)), l.Size)]
	}
	l.Tail = l.Tail[max(0, len(l.Tail)-longTail):]
	return l
}

// Next returns the next line without its line end (LF or CRLF), valid until the
// next call; blank lines are skipped. At the end of input it returns io.EOF; a
// last line without a line end counts.
func (r *LineReader) Next() ([]byte, error) {
	in := &r.in
	in.letGo()
	for {
		n := bytes.IndexByte(in.buf[in.scan:in.end], '\n')
		if n < 0 {
			in.scan = in.end
			if r.readErr == nil {
				if in.end-in.line > r.limit+1 || r.long != nil { // 1 for a CR
					r.passOver(in.end)
				}
				_, r.readErr = in.fill(in.line)
				continue
			}
			if in.line == in.end && r.long == nil {
				return nil, r.readErr
			}
			n = 0
		}
		at := in.scan + n
		line := in.buf[in.line:at]
		if r.long == nil {
			if trimmed := bytes.TrimSuffix(line, []byte("\r")); len(trimmed) <= r.limit {
				in.line = min(at+1, in.end)
				in.scan = in.line
				if len(bytes.TrimLeft(trimmed, blanks)) == 0 {
					continue
				}
				return trimmed, nil
			}
		}
		r.passOver(at)
		in.line = min(at+1, in.end)
		in.scan = in.line
		long := r.long.finish()
		r.long = nil
		return nil, long
	}
}

// passOver moves the bytes of a long line up to at from the buffer to r.long.
func (r *LineReader) passOver(at int) {
	if r.long == nil {
		r.long = new(LongLine)
	}
	r.long.add(r.in.buf[r.in.line:at])
	r.in.line = at
}
