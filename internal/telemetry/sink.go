package telemetry

import (
	"context"
	"io"
	"sync"
	"time"
)

// Sink is where log lines go before they are written: Write copies and returns.
// A terminal that is paused, or a host that never reads our stderr, so holds
// up no call.
//
// It keeps at most a bounded number of bytes. When it is full, whole lines are
// dropped and counted; as soon as there is room again, a line says how many.
type Sink struct {
	w    io.Writer
	max  int
	wake chan struct{}
	quit chan struct{} // closed by Close
	done chan struct{} // Run has returned

	mu      sync.Mutex
	buf     []byte
	spare   []byte
	dropped uint64 // in all
	untold  uint64 // since the last line about it
	note    func(n uint64)
	closed  bool
}

// NewSink makes a Sink that holds up to max bytes for w; 0 means 1 MiB. Run
// must be started, and Close must be called.
func NewSink(w io.Writer, max int) *Sink {
	if max <= 0 {
		max = 1 << 20
	}
	return &Sink{w: w, max: max, wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{})}
}

func (s *Sink) setNote(f func(n uint64)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note = f
}

// Write takes one whole line. It never waits and never fails.
func (s *Sink) Write(p []byte) (int, error) {
	s.mu.Lock()
	if s.closed || len(s.buf)+len(p) > s.max {
		s.dropped++
		s.untold++
	} else {
		s.buf = append(s.buf, p...)
	}
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return len(p), nil
}

// Dropped is how many lines were not kept.
func (s *Sink) Dropped() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dropped
}

// gather is how long a line waits for others, to be written with them: each
// write costs more than making the line did.
const gather = 10 * time.Millisecond

// Run writes lines until Close. It is to be called once.
func (s *Sink) Run() {
	defer close(s.done)
	wait := time.NewTimer(gather)
	defer wait.Stop()
	for {
		s.mu.Lock()
		out, closed, untold, note := s.buf, s.closed, s.untold, s.note
		s.buf, s.spare, s.untold = s.spare[:0], nil, 0
		s.mu.Unlock()
		if len(out) > 0 {
			// Where an error could be told is just what failed.
			_, _ = s.w.Write(out)
		}
		s.mu.Lock()
		if cap(out) <= 64<<10 { // what one burst took is given back
			s.spare = out[:0]
		}
		s.mu.Unlock()
		switch {
		case untold > 0 && note != nil && !closed:
			note(untold)
		case len(out) > 0:
		case closed:
			return
		default:
			<-s.wake
			wait.Reset(gather)
			select {
			case <-wait.C:
			case <-s.quit:
			}
		}
	}
}

// Close writes what is left and ends Run. It waits until ctx is done, or that
// has happened. If it has not, a writer that is stuck is left behind: nothing
// can interrupt it.
func (s *Sink) Close(ctx context.Context) error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.quit)
	}
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
