package downstream

import (
	"errors"
	"net/http"
	"os"
	"time"
)

const (
	defaultWriteTimeout = 30 * time.Second
	// bodyTimeout is how long a request body may take to arrive.
	bodyTimeout = 60 * time.Second
	// piece is how much is written under one write deadline.
	piece = 256 << 10
)

// sink writes to one agent. A reader that takes nothing for the write timeout
// trips its own deadline and nobody else's. After an error it writes no more.
type sink struct {
	w        http.ResponseWriter
	rc       *http.ResponseController
	h2       bool
	timeout  time.Duration
	deadline time.Time // what the connection has; HTTP/1 only

	start  time.Time
	last   time.Time // when something was flushed last
	first  time.Duration
	gap    time.Duration // longest silence
	bytes  int64
	status int
	err    error
	slow   bool // err is the write deadline's
}

func (s *sink) init(w http.ResponseWriter, r *http.Request, timeout time.Duration) {
	if timeout <= 0 {
		timeout = defaultWriteTimeout
	}
	s.w, s.rc, s.h2, s.timeout = w, http.NewResponseController(w), r.ProtoMajor >= 2, timeout
	s.start = time.Now()
	s.last = s.start
}

// head writes status and headers, to be flushed with what follows.
func (s *sink) head(status int) {
	s.status = status
	s.w.WriteHeader(status)
}

// arm sets the write deadline. On HTTP/1 it only matters while something is
// written, and the server clears it after the response, so that it is set
// anew only when a sixth of it has passed. On HTTP/2 it resets an idle stream
// too, and has to be cleared after each write.
func (s *sink) arm(now time.Time) {
	if !s.h2 && s.deadline.Sub(now) > s.timeout-s.timeout/6 {
		return
	}
	s.deadline = now.Add(s.timeout)
	_ = s.rc.SetWriteDeadline(s.deadline) // a writer without deadlines writes all the same
}

// write hands p to the connection, in pieces that each have their own deadline.
func (s *sink) write(p []byte) {
	for len(p) > 0 && s.err == nil {
		n := min(len(p), piece)
		s.arm(time.Now())
		n, err := s.w.Write(p[:n])
		s.bytes += int64(n)
		s.check(err)
		p = p[n:]
	}
}

// flush sends what was written, and says whether all is well.
func (s *sink) flush() bool {
	if s.err != nil {
		return false
	}
	now := time.Now()
	s.arm(now)
	s.check(s.rc.Flush())
	if s.h2 && s.err == nil {
		_ = s.rc.SetWriteDeadline(time.Time{})
	}
	if s.err != nil {
		return false
	}
	if s.first == 0 {
		s.first = max(1, now.Sub(s.start))
	}
	s.gap = max(s.gap, now.Sub(s.last))
	s.last = now
	return true
}

func (s *sink) check(err error) {
	if err == nil || errors.Is(err, http.ErrNotSupported) {
		return
	}
	s.err = err
	s.slow = errors.Is(err, os.ErrDeadlineExceeded) || (s.h2 && !time.Now().Before(s.deadline))
}
