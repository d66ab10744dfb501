package upstream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

const (
	// coldStart is the least time that a process gets to become ready: npx and
	// uvx download first. Calls wait no longer than their own limits.connect.
	coldStart = 60 * time.Second
	// patience is the longest back-off that a call waits out; during a longer
	// one it fails at once and says why.
	patience = 5 * time.Second
	// steady is the life after which a process counts as sound again.
	steady = 60 * time.Second
	// eofWait and termWait are the steps of an orderly end (SPEC §5.9).
	eofWait  = 2 * time.Second
	termWait = 5 * time.Second
	// legacyAge is how long a legacy verdict holds: servers get upgraded.
	legacyAge = 24 * time.Hour
)

// stdioConn is a tool server as a process of ours, or behind one event stream of
// the 2024-11-05 transport, which fares alike (newSSE). It starts at the first
// use, lives on, and is started again at the next use after it ended, with a
// back-off. Many calls share one process.
type stdioConn struct {
	s      Server
	hooks  Hooks
	begin  func(st *starting) (*life, error) // brings up what takes calls
	late   string                            // what else to say when it was not ready in time
	renews func()                            // may be nil: it was begun again

	ctx    context.Context // ends starts
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.Mutex
	life     *life     // ready for calls; nil if there is none
	start    *starting // under way; nil if none
	starts   int       // that succeeded
	era      string    // "modern" or "legacy" once known
	eraTime  time.Time
	failures int       // ends in a row without a steady life
	notUntil time.Time // of the next start
	last     goneError // why the last process ended
	closed   bool
}

// starting is one start that any number of callers wait for.
type starting struct {
	done  chan struct{}
	life  *life // these two are valid after done
	err   error
	phase string // what it waits for now; under stdioConn.mu
	tail  func() string
}

func newStdio(s Server, hooks Hooks) *stdioConn {
	if s.PingEvery == 0 {
		s.PingEvery = defaultPing
	}
	if s.RestartMin <= 0 {
		s.RestartMin = 500 * time.Millisecond
	}
	if s.RestartMax <= 0 {
		s.RestartMax = 30 * time.Second
	}
	c := &stdioConn{
		s: s, hooks: hooks, renews: hooks.Restarted,
		late: "longcall goes on starting it, so try again shortly; a server whose start takes long, such as one that npx or uvx downloads first, needs a higher limit",
	}
	c.begin = c.open
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

func (c *stdioConn) mirrors() bool { return false }

func (c *stdioConn) modern() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.era == "modern"
}

// call carries one call. A call that left for a process is never sent to another.
func (c *stdioConn) call(ctx context.Context, x *call.Exec) call.Answer {
	wait, cancel := ctx, context.CancelFunc(func() {})
	if x.Limits.Connect > 0 {
		wait, cancel = context.WithTimeoutCause(ctx, x.Limits.Connect, errConnect)
	}
	defer cancel()
	for lost := 0; ; {
		l, err := c.ready(wait)
		switch {
		case err == nil:
			a, ok := l.wire.call(ctx, x, c.s.PingEvery)
			if ok {
				return a
			}
			if a.Outcome == call.Interrupted { // it left, and only reads; see httpConn.again
				if lost++; lost > 1 {
					return a
				}
				<-l.over
				x.Note("The tool server's process ended; the request only reads, so it is sent once more.")
			}
		case ctx.Err() != nil:
			return call.Answer{} // nothing left for the server
		case errors.Is(err, errConnect):
			return c.notInTime(x.Limits.Connect)
		default:
			a := failed("Not started: %v. Nothing was sent.", err)
			var gone *goneError
			if errors.As(err, &gone) {
				a.Text += gone.tail
			}
			return a
		}
	}
}

// goneError is a process that did not start, or has ended. Its text may be
// logged; the last lines of stderr may hold anything, and are only for the
// caller whose process it is (I10).
type goneError struct{ text, tail string }

func (e *goneError) Error() string { return e.text }

var (
	errConnect = errors.New("limits.connect was reached")
	errClosed  = errors.New("longcall has stopped the tool server")
)

// notInTime is the answer for a call whose server was not ready in time.
func (c *stdioConn) notInTime(limit time.Duration) call.Answer {
	phase, tail := "is waiting to be started", ""
	c.mu.Lock()
	if c.start != nil {
		phase = c.start.phase
		if c.start.tail != nil {
			tail = c.start.tail()
		}
	}
	c.mu.Unlock()
	a := timedOut("connect", limit, fmt.Sprintf(
		"the tool server %q %s; nothing was sent; %s", c.s.Name, phase, c.late))
	a.Text += tail
	return a
}

// meet starts the process, if need be.
func (c *stdioConn) meet(ctx context.Context) (intro, error) {
	l, err := c.ready(ctx)
	if err != nil {
		return intro{}, err
	}
	return l.wire.said, nil
}

// request sends a short request. It has no effects, so it may be sent to a
// second process if the first ended.
func (c *stdioConn) request(ctx context.Context, method string, params []byte) ([]byte, error) {
	for try := 0; ; try++ {
		l, err := c.ready(ctx)
		if err != nil {
			return nil, err
		}
		within, cancel := context.WithTimeoutCause(ctx, requestTime, fmt.Errorf("the tool server %q did not answer %s within %s", c.s.Name, method, requestTime))
		r, err := l.wire.ask(within, method, params, l.wire.modern)
		cancel()
		if errors.Is(err, errOver) {
			if <-l.over; try == 0 {
				continue
			}
			return nil, &goneError{l.wire.cause, l.wire.tail}
		}
		if err != nil {
			return nil, err
		}
		return r.result()
	}
}

// notify tells the process that runs.
func (c *stdioConn) notify(n *note) {
	c.mu.Lock()
	l := c.life
	c.mu.Unlock()
	if l != nil && (n.any || !l.wire.modern) {
		l.wire.send(n.message(l.wire.modern))
	}
}

// result is the raw result, or the *mcp.RPCError.
func (r *response) result() ([]byte, error) {
	m, err := mcp.Parse(r.body)
	if err != nil {
		return nil, err
	}
	if r.failed {
		return nil, m.RPC()
	}
	return m.Result.Of(m.Raw), nil
}

// ready returns a process that takes calls, starting one if needed. Its start
// goes on when ctx ends: others may wait for it.
func (c *stdioConn) ready(ctx context.Context) (*life, error) {
	for {
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return nil, errClosed
		}
		l := c.life
		if l != nil && !l.dying() {
			c.mu.Unlock()
			return l, nil
		}
		if l != nil { // its end is being noted
			c.mu.Unlock()
			select {
			case <-l.noted:
				continue
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		if c.start == nil {
			if wait := time.Until(c.notUntil); wait > patience {
				err := &goneError{fmt.Sprintf("the tool server %q ended or did not start %d times in a row and gets its next try in %s; the last time, %s",
					c.s.Name, c.failures, wait.Round(time.Second), c.last.text), c.last.tail}
				c.mu.Unlock()
				return nil, err
			}
			st := &starting{done: make(chan struct{}), phase: "is waiting to be started again, because it ended too soon"}
			c.start = st
			c.wg.Go(func() { c.live(st) })
		}
		st := c.start
		c.mu.Unlock()
		select {
		case <-st.done:
			return st.life, st.err
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// live owns one process from its start to its end.
func (c *stdioConn) live(st *starting) {
	l, err := c.begin(st)
	born := time.Now()
	c.mu.Lock()
	if err == nil && c.closed {
		c.mu.Unlock()
		l.stop(context.Background(), 0, time.Second)
		err = errClosed
		c.mu.Lock()
	}
	c.start = nil
	again := c.starts > 0
	if err == nil {
		c.life = l
		c.starts++
	} else {
		c.endedLocked(0, err)
	}
	failures := c.failures
	c.mu.Unlock()
	switch {
	case err == nil:
	case !errors.Is(err, errClosed):
		c.hooks.Log.Warn("tool server did not start", "error", err, "in_a_row", failures)
	}
	st.life, st.err = l, err
	close(st.done)
	if err != nil {
		return
	}
	c.hooks.introduced(l.wire.said)
	if again {
		if c.renews != nil {
			c.renews()
		}
		c.hooks.renewed()
	}
	<-l.over
	c.mu.Lock()
	c.life = nil
	c.endedLocked(time.Since(born), &goneError{l.wire.cause, l.wire.tail})
	c.mu.Unlock()
	close(l.noted)
	c.hooks.parted()
}

// endedLocked sets the back-off. c.mu is held.
func (c *stdioConn) endedLocked(lived time.Duration, why error) {
	if lived >= steady {
		c.failures = 0
	}
	c.failures++
	pause := c.s.RestartMin << min(c.failures-1, 20)
	c.notUntil = time.Now().Add(min(pause, c.s.RestartMax))
	var gone *goneError
	if c.last = (goneError{text: why.Error()}); errors.As(why, &gone) {
		c.last = *gone
	}
}

// close ends the process in an orderly way and waits until nothing of it is
// left; when ctx is done, it is killed.
func (c *stdioConn) close(ctx context.Context) {
	c.mu.Lock()
	c.closed = true
	l := c.life
	c.mu.Unlock()
	c.cancel()
	if l != nil {
		l.stop(ctx, eofWait, termWait)
	}
	c.wg.Wait()
}
