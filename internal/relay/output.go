package relay

import (
	"io"
	"sync"

	"github.com/longcall/longcall/internal/mcp"
)

// output writes whole lines to the host, one at a time.
type output struct {
	broken func(err error)

	mu  sync.Mutex
	w   io.Writer
	buf []byte
	err error
}

// keepBuffer is how large the buffer between two lines may stay.
const keepBuffer = 64 << 10

// line writes a message, unless the host has cancelled the request that it is
// about: after a cancel nothing more is said (SPEC §2.3). It changes msg: line
// ends between its tokens become blanks.
func (o *output) line(q *request, msg []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil || q != nil && q.cancelled.Load() {
		return
	}
	o.buf = append(append(o.buf[:0], mcp.OneLine(msg)...), '\n')
	_, o.err = o.w.Write(o.buf)
	if cap(o.buf) > keepBuffer {
		o.buf = nil
	}
	if o.err != nil {
		o.broken(o.err)
	}
}
