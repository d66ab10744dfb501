package mcp

import (
	"io"
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
// ends also when they are split over reads, a leading BOM, several data lines,
// a missing blank after the colon. It starts with a small buffer and grows it
// as needed, so that a parked stream costs little; a buffer that grew large is
// let go after its event.
type SSEReader struct{}

// NewSSEReader reads from r; an event of more than limit bytes of data is
// skipped and given as ErrTooLarge, after which Next goes on.
func NewSSEReader(r io.Reader, limit int) *SSEReader { panic("todo") }

// Next returns the next event or comment. An event with neither data nor id
// nor retry is not returned. At the end of the stream it returns io.EOF; a
// half-written event is discarded with io.ErrUnexpectedEOF.
func (r *SSEReader) Next() (SSEvent, error) { panic("todo") }

// LastID is the id of the last whole event that carried one (P3).
func (r *SSEReader) LastID() string { panic("todo") }

// AppendSSE appends one event with the parts of data joined. CR and LF in data
// make further data lines, so that nothing can break out of the event; an id
// or name with CR, LF or NUL is left out.
func AppendSSE(dst []byte, id, name string, data ...[]byte) []byte { panic("todo") }

// LineReader reads newline-delimited messages (stdio).
type LineReader struct{}

// NewLineReader reads from r; a line over limit bytes is skipped and given as
// a *LongLine.
func NewLineReader(r io.Reader, limit int) *LineReader { panic("todo") }

// LongLine is a line over the limit: its first and last bytes, by which its
// message may be recognised.
type LongLine struct {
	Head, Tail []byte // up to 64 KiB and 4 KiB
	Size       int64
}

func (l *LongLine) Error() string { return ErrTooLarge.Error() }

// Unwrap makes errors.Is(err, ErrTooLarge) true.
func (l *LongLine) Unwrap() error { return ErrTooLarge }

// Next returns the next line without its line end, valid until the next call;
// blank lines are skipped. At the end of input it returns io.EOF; a last line
// without a line end counts.
func (r *LineReader) Next() ([]byte, error) { panic("todo") }
