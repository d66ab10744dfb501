package call

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Exec is what a Runner gets to carry out one call. It is safe for concurrent
// use until Run returns.
type Exec struct {
	c      *Call
	ctx    context.Context // the call's
	ID     ID
	Spec   *Spec
	Limits Limits
	Resume *Resume // not nil: the request left in an earlier process
	bytes  atomic.Int64
}

// Dispatched notes that the request leaves now. It fails if it was called
// before: a call is sent at most once (I1), but for a volatile one, of which its
// runner knows whether it may be sent again. It also fails if the call's context
// is done: a request that was cancelled first never leaves.
func (x *Exec) Dispatched() error {
	c := x.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.rec.Dispatched.IsZero() && !c.rec.Volatile {
		return fmt.Errorf("call %s was dispatched before: it is never sent again", x.ID)
	}
	if x.ctx.Err() != nil {
		return context.Cause(x.ctx)
	}
	c.rec.Dispatched = time.Now()
	c.appendLocked(Event{Kind: KindDispatched, Hole: -1})
	if !c.rec.Volatile {
		c.rec.Request, x.Spec.Request = nil, nil // sent: never needed again, also in a copy of the Spec
		c.rec.State, c.rec.Answers = nil, nil
	}
	return nil
}

// Again notes that the request leaves once more, because the tool server has
// answered that it is not done without what it asked for: it goes with the answers,
// and is no second run. It fails if nothing was asked before, or if the call's
// context is done.
//
// The Address that the call had is void from here on, and stored as such before
// Again returns: no later process asks once more for answers that have left.
func (x *Exec) Again() error {
	c := x.c
	c.mu.Lock()
	switch {
	case c.rec.Dispatched.IsZero():
		c.mu.Unlock()
		return fmt.Errorf("call %s was not dispatched: it cannot go on", x.ID)
	case x.ctx.Err() != nil:
		c.mu.Unlock()
		return context.Cause(x.ctx)
	}
	c.appendLocked(Event{Kind: KindNote, Hole: -1, Body: []byte("The request was made again with the answers, as the tool server asked.")})
	placed := len(c.rec.Address) > 0 && c.stored
	if placed {
		c.appendLocked(Event{Kind: KindAddress, Hole: -1, Body: []byte{}})
	}
	c.mu.Unlock()
	if placed {
		ctx, cancel := context.WithTimeout(x.ctx, c.e.opt.CreateWait)
		defer cancel()
		// A log that fails does not hold a call up that runs.
		_ = c.e.log.Flush(ctx)
	}
	return nil
}

// Address keeps where the call can be found again at its tool server, in the
// runner's own words: with it, a later process takes the call up (Resumer). The
// last one counts. A runner that has a Cursor by then emits a KindAddress event
// with both.
func (x *Exec) Address(body []byte) {
	c := x.c
	c.mu.Lock()
	defer c.mu.Unlock()
	c.appendLocked(Event{Kind: KindAddress, Hole: -1, Body: body})
}

// Ask shows the input requests that the tool server waits for now, a JSON object
// by key; nil or {} if it waits for none any more. Those whose answers the runner
// has still to take from Answers are left out. While something is asked, the clock
// of limits.total stands.
//
// state is the runner's own: with it as Spec.State, another call goes on with
// answers to these requests, should this one have ended meanwhile. nil says that
// the tool server waits in this call, and nowhere else.
func (x *Exec) Ask(requests, state []byte) {
	c := x.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending {
		return
	}
	if string(requests) == "{}" {
		requests = nil
	}
	if len(c.answers) == 0 {
		clear(c.answered) // from here on the runner knows best
	}
	if c.answers == nil {
		c.answers, c.pulses = make(chan []byte, maxAnswers), make(chan Pulse, maxPulses)
	}
	c.askState = state
	c.ask(c.open(requests))
}

// Answers gives what agents answered to the requests of Ask: JSON objects of
// input responses by key. It is nil before the first Ask.
func (x *Exec) Answers() <-chan []byte {
	c := x.c
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.answers
}

// Pulses gives signs that agents work on their answers. It is nil before the
// first Ask.
func (x *Exec) Pulses() <-chan Pulse {
	c := x.c
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pulses
}

// Attended says whether the request of an agent reads the call now, so that there
// is somebody to be asked.
func (x *Exec) Attended() bool {
	return x.c.Attended()
}

// FirstByte notes the first byte of the tool server's answer.
func (x *Exec) FirstByte() {
	c := x.c
	c.mu.Lock()
	if !c.rec.FirstByte.IsZero() {
		c.mu.Unlock()
		return
	}
	c.rec.FirstByte = time.Now()
	r := copies.Get().(*Record)
	*r = c.rec
	c.mu.Unlock()
	if o := c.e.opt.Observer; o != nil {
		o.CallAnswered(r)
	}
	*r = Record{}
	copies.Put(r)
}

// copies are lent to CallAnswered.
var copies = sync.Pool{New: func() any { return new(Record) }}

// Note tells the record in plain words what happened on the way.
func (x *Exec) Note(format string, args ...any) {
	x.c.append(Event{Kind: KindNote, Hole: -1, Body: fmt.Appendf(nil, format, args...)})
}

// Emit takes one event of the tool server. It keeps e.Body: the caller must
// not use it again. An error is a Cause, and the call's context is done with
// it: the runner stops and cancels upstream.
func (x *Exec) Emit(e Event) error {
	if err := x.Count(int64(len(e.Body))); err != nil {
		return err
	}
	x.c.append(e)
	return nil
}

// Count adds bytes of the tool server to the call's sum, and fails with a
// Cause when they pass the limit.
func (x *Exec) Count(n int64) error {
	if l, sum := x.Limits.Call, x.bytes.Add(n); l > 0 && sum > l {
		cause := &Cause{End{Outcome: Failed, Limit: "call_bytes", Text: fmt.Sprintf(
			"The tool server sent more than %d bytes for this call (limits.call); longcall stopped reading and told it to cancel. It may have taken effect. Ask for less at once, or raise the limit.", l)}}
		x.c.end(cause)
		return cause
	}
	return nil
}
