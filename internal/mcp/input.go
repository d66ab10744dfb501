package mcp

import "io"

// Sizes of the readers' buffers, in bytes.
const (
	smallBuffer = 512      // of a stream that is parked
	busyBuffer  = 4 << 10  // once reads fill the small one
	largeBuffer = 64 << 10 // a buffer over it is let go after its event or line
)

// input is the growing buffer below SSEReader and LineReader:
//
//	buf[:line]     read and done, but for what fill is told to keep
//	buf[line:scan] the line being read, known to have no line end
//	buf[scan:end]  not yet looked at
type input struct {
	r               io.Reader
	buf             []byte
	line, scan, end int
	full            bool // the last read filled the buffer
}

// fill reads more. Bytes from keep on (at most line) stay; moved is by how much
// all offsets went down.
func (in *input) fill(keep int) (moved int, err error) {
	kept, size := in.end-keep, len(in.buf)
	switch {
	case size < busyBuffer && in.full:
		size = max(busyBuffer, 2*size)
	case size == 0:
		size = smallBuffer
	case size == kept:
		size *= 2
	}
	switch {
	case size > len(in.buf):
		buf := make([]byte, size)
		copy(buf, in.buf[keep:in.end])
		in.buf, moved = buf, keep
	case kept == 0, keep > 0 && len(in.buf)-in.end < len(in.buf)/2:
		copy(in.buf, in.buf[keep:in.end])
		moved = keep
	}
	in.line, in.scan, in.end = in.line-moved, in.scan-moved, in.end-moved

	for range 100 {
		n, err := in.r.Read(in.buf[in.end:])
		in.end += n
		in.full = in.end == len(in.buf)
		if n > 0 || err != nil {
			return moved, err
		}
	}
	return moved, io.ErrNoProgress
}

// letGo gives a large buffer up when little in it is still unread. What was
// returned from it stays as it is.
func (in *input) letGo() {
	unread := in.end - in.line
	if len(in.buf) <= largeBuffer || unread > len(in.buf)/4 {
		return
	}
	buf := make([]byte, max(smallBuffer, unread))
	copy(buf, in.buf[in.line:in.end])
	in.buf, in.line, in.scan, in.end, in.full = buf, 0, in.scan-in.line, unread, false
}
