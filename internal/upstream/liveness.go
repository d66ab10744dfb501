package upstream

import (
	"context"
	"errors"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// pingTime is how long a server may take to answer a ping, or to begin a
// stream that is resumed.
const pingTime = 10 * time.Second

// vital is what became of a ping.
type vital int

const (
	living vital = iota
	// deaf: the server takes connections and answers nothing. It may be gone
	// behind a proxy or a cable that is cut; it may as well have one thread that
	// the call keeps busy, as many Python and Node servers do.
	deaf
	gone // the server cannot be reached, or does not know the session any more
)

// probe is one ping for all calls that wonder.
type probe struct {
	done  chan struct{}
	vital vital // valid after done
}

// lives asks the server for a sign of life.
func (c *httpConn) lives(s *session) vital {
	c.mu.Lock()
	p := s.probe
	if p != nil {
		c.mu.Unlock()
		<-p.done
		return p.vital
	}
	p = &probe{done: make(chan struct{})}
	s.probe = p
	c.mu.Unlock()
	p.vital = c.askTwice(s)
	c.mu.Lock()
	s.probe = nil
	c.mu.Unlock()
	close(p.done)
	return p.vital
}

// askTwice pings again if the first one met a connection that was just closed.
func (c *httpConn) askTwice(s *session) vital {
	for range 2 {
		if s.quietFor() < c.s.PingEvery/2 {
			return living
		}
		var connected atomic.Bool
		err := c.ping(httptrace.WithClientTrace(c.ctx, &httptrace.ClientTrace{
			GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
		}), s)
		var status *statusError
		switch {
		case err == nil || c.ctx.Err() != nil:
			return living
		case errors.As(err, &status):
			if status.lost(s) {
				return gone
			}
			return living
		case connected.Load() && errors.Is(err, context.DeadlineExceeded):
			return deaf
		}
	}
	return gone
}

// ping asks for a sign of life, in the way of the era: the modern one has no ping.
func (c *httpConn) ping(ctx context.Context, s *session) error {
	ctx, cancel := context.WithTimeout(ctx, pingTime)
	defer cancel()
	method := mcp.MethodPing
	if s.isModern {
		method = mcp.MethodDiscover
	}
	_, err := c.ask(ctx, s, method, nil)
	var rpc *mcp.RPCError
	if errors.As(err, &rpc) {
		return nil // whatever it said, it lives
	}
	return err
}

// touch notes a sign of work. x.mu is held.
func (x *exchange) touch() {
	x.last = time.Now()
	x.deaf = false
	if !x.got {
		x.got = true // another clock runs from here on
		x.timer.Reset(x.nextTick(x.last))
	}
}

// silence is how long the call may be silent after its first byte; 0 means for
// ever. x.mu is held.
func (x *exchange) silence() time.Duration {
	if d := x.exec.Limits.Idle; d > 0 {
		return d
	}
	if x.broken || x.resumed || x.deaf {
		return resumeFor // it must end some time, and pings cannot help
	}
	return 0
}

// nextTick is how long until a clock may run out. x.mu is held.
func (x *exchange) nextTick(now time.Time) time.Duration {
	next := x.last.Add(x.c.s.PingEvery)
	if !next.After(now) {
		next = now.Add(x.c.s.PingEvery)
	}
	limit := func(from time.Time, d time.Duration) {
		if d > 0 && from.Add(d).Before(next) {
			next = from.Add(d)
		}
	}
	if x.got {
		limit(x.last, x.silence())
	} else {
		limit(x.sent, x.exec.Limits.FirstByte)
	}
	return max(next.Sub(now), time.Millisecond)
}

// tick looks at the clocks: the limits, and the silence after which the server
// must show that it lives (P16, P21).
func (x *exchange) tick() {
	x.mu.Lock()
	now := time.Now()
	if x.asks.waiting() {
		x.last = now // it is not the server's turn (SPEC §2.4)
	}
	silence, l := now.Sub(x.last), x.exec.Limits
	ask := false
	switch bound := x.silence(); {
	case x.over || x.tasked:
		x.mu.Unlock()
		return
	case !x.got && l.FirstByte > 0 && now.Sub(x.sent) >= l.FirstByte:
		x.abort(&call.Cause{End: x.overdue("first_byte", l.FirstByte)})
	case x.got && bound > 0 && silence >= bound:
		x.abort(&call.Cause{End: x.overdue("idle", bound)})
	case silence >= x.c.s.PingEvery && !x.asking && !x.broken: // resuming is a question, too
		ask = true
		x.asking, x.asked = true, now
	}
	x.timer.Reset(x.nextTick(now))
	x.mu.Unlock()
	if ask {
		x.heard(x.c.lives(x.sess))
	}
}

// heard takes what became of a ping.
func (x *exchange) heard(v vital) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.asking = false
	switch {
	case x.over || x.broken || x.tasked:
	case v == gone:
		x.abort(errUnanswered)
	case v == deaf:
		x.deaf = true // it gets as long as a call may be silent
	case x.resumed:
		// The server lives, but does it still hold this call? A new resume
		// brings what it may have said to a stream that nobody read.
		x.abort(errStale)
	case x.deaf && x.numbered.Load() && !x.sess.isModern:
		// It can be reached again. Whether our stream survived nobody knows.
		x.abort(errUnanswered)
	default:
		x.deaf = false
		if time.Since(x.last) >= x.c.s.PingEvery {
			x.last = time.Now() // an answered ping is a sign of life
		}
	}
}

// overdue is the end of a call that was silent for too long: a limit of ours
// with a name, or, if it is known that the server or its stream was lost, the
// loss. x.mu is held.
func (x *exchange) overdue(limit string, d time.Duration) call.End {
	unanswered := x.deaf || x.asking && time.Since(x.asked) > min(d/2, time.Second)
	switch {
	case x.resumed && unanswered:
		return interrupted("the tool server's stream broke, was resumed, and then stayed silent for %s. The server answers no ping either.", d).End
	case x.resumed:
		return interrupted("the tool server's stream broke, was resumed, and then stayed silent for %s although the server lives.", d).End
	case x.broken:
		return interrupted("the tool server's stream broke and could not be resumed for %s.", d).End
	case unanswered:
		return interrupted("the tool server has sent nothing for %s and answers no ping any more.", d).End
	case limit == "first_byte":
		return *limitEnd(limit, d, "the tool server had not answered with a single byte; longcall told it to cancel, but the call may have taken effect: check before you call it again")
	}
	return *limitEnd(limit, d, "the tool server had sent nothing for that long; longcall told it to cancel, but the call may have taken effect: check before you call it again")
}
