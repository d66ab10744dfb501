package upstream

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/longcall/longcall/internal/mcp"
)

// outboxSize is how many bytes may wait for a process that does not read. What
// does not fit is refused at once, so that a stuck process holds up nobody; a
// message that finds the outbox empty is always taken.
const outboxSize = 4 << 20

var errOver = errors.New("the tool server's process has ended")

// outbox is the one writer of a process's stdin.
type outbox struct {
	w io.WriteCloser

	mu       sync.Mutex
	queue    []outgoing
	bytes    int
	writing  bool // the first message, taken from the queue, is being written
	finished bool // no more is taken; stdin closes after the last
	wake     chan struct{}
}

type outgoing struct {
	id   string // of a request that may be taken back; else empty
	line []byte
}

func newOutbox(w io.WriteCloser) *outbox { return &outbox{w: w, wake: make(chan struct{}, 1)} }

// put queues a message. before runs when it is sure that the message will be
// taken, and before a byte of it can leave; its error keeps it back.
func (o *outbox) put(id string, message []byte, before func() error) error {
	line := append(mcp.OneLine(message), '\n')
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.finished:
		return errOver
	case o.bytes > 0 && o.bytes+len(line) > outboxSize:
		return fmt.Errorf("the tool server does not read its input (%d bytes are waiting for it); if this goes on, it hangs and must be restarted", o.bytes)
	}
	if before != nil {
		if err := before(); err != nil {
			return err
		}
	}
	o.queue = append(o.queue, outgoing{id, line})
	o.bytes += len(line)
	o.wakeUp()
	return nil
}

// takeBack removes a request of which no byte has left, and says whether it could.
func (o *outbox) takeBack(id string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, m := range o.queue {
		if m.id == id && (i > 0 || !o.writing) {
			o.queue = append(o.queue[:i], o.queue[i+1:]...)
			o.bytes -= len(m.line)
			return true
		}
	}
	return false
}

// finish takes no more; stdin is closed when all that waits was written.
func (o *outbox) finish() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.finished = true
	o.wakeUp()
}

// over says whether nothing more is taken.
func (o *outbox) over() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.finished
}

func (o *outbox) wakeUp() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// run writes until finish or an error, and closes stdin.
func (o *outbox) run() error {
	defer o.w.Close()
	for {
		o.mu.Lock()
		if len(o.queue) == 0 {
			finished := o.finished
			o.queue = nil
			o.mu.Unlock()
			if finished {
				return nil
			}
			<-o.wake
			continue
		}
		o.writing = true
		line := o.queue[0].line
		o.mu.Unlock()

		_, err := o.w.Write(line)

		o.mu.Lock()
		o.queue[0] = outgoing{}
		o.queue = o.queue[1:]
		o.bytes -= len(line)
		o.writing = false
		if err != nil {
			o.finished = true
		}
		o.mu.Unlock()
		if err != nil {
			return err
		}
	}
}
