package call

import (
	"context"
	"slices"
	"time"
)

// Join says what Attach gave.
type Join uint8

// What Attach gives.
const (
	Started Join = iota // a new call
	Joined              // a call that runs
	Replay              // a call that has ended
)

// joinKey is what equal requests have in common (SPEC §3.7). Either idempotency
// is set, or the others are.
type joinKey struct{ principal, server, tool, digest, idempotency string }

func keyOf(s *Spec) (joinKey, bool) {
	switch {
	case s.Volatile:
		return joinKey{}, false
	case s.Idempotency != "":
		return joinKey{principal: s.Principal, idempotency: s.Idempotency}, true
	}
	return joinKey{principal: s.Principal, server: s.Server, tool: s.Tool, digest: s.Digest}, s.Digest != ""
}

// maxOwed bounds the ended calls that wait for an equal request. When it is
// reached, the oldest is forgotten: an equal request then starts a new call.
const maxOwed = 10_000

// Attach gives an equal call of the principal, as Spec.Attach says, or starts a
// new one. Its caller is a reader of the call from now on, until Leave. Two
// requests that come at the same time never take over the same call, unless it
// is AttachAlways or an idempotency key that lets them: nothing runs twice, and
// two calls that both are wanted are two.
//
// ErrMismatch says that the idempotency key belongs to a call with another tool
// or other arguments; nothing was started.
func (e *Engine) Attach(ctx context.Context, spec Spec) (*Call, Join, error) {
	key, ok := keyOf(&spec)
	if !ok || spec.Denied != nil || spec.Attach == AttachNever && spec.Idempotency == "" {
		c, err := e.start(ctx, e.new(spec, 1))
		return c, Started, err
	}
	e.mu.Lock()
	e.expire()
	c := e.find(key, &spec) // none for AttachFresh without a key
	for c != nil && c.elsewhere() {
		// Another process ends it: what became of it is in the log.
		e.mu.Unlock()
		if err := c.refresh(ctx); err != nil {
			return nil, Joined, err
		}
		e.mu.Lock()
		c.mu.Lock()
		running := !c.ended
		c.readers-- // of find
		c.mu.Unlock()
		if running {
			c.Enter()
			break
		}
		e.settle(c)
		c = e.find(key, &spec)
	}
	if c != nil {
		e.mu.Unlock()
		return c.joined(&spec)
	}
	c = e.new(spec, 1)
	if spec.Idempotency == "" && !spec.Attach.shared() {
		e.mu.Unlock()
		c, err := e.start(ctx, c)
		return c, Started, err
	}
	// An equal request has to find it from now on, not from when it is stored.
	c.indexed = true
	e.joinable[key] = append(e.joinable[key], c)
	e.mu.Unlock()
	return e.startReserved(ctx, c)
}

// find takes a joinable call for one more reader; nil if there is none. e.mu is
// held.
func (e *Engine) find(key joinKey, spec *Spec) *Call {
	if spec.Attach == AttachFresh && spec.Idempotency == "" {
		return nil
	}
	for _, c := range e.joinable[key] {
		if c.join(spec) {
			return c
		}
	}
	return nil
}

// joined is what Attach says about a call that it found.
func (c *Call) joined(spec *Spec) (*Call, Join, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.same(spec) {
		c.readers--
		return nil, Joined, ErrMismatch
	}
	if c.alone != nil {
		c.alone.Stop()
		c.alone = nil
	}
	if c.ended {
		return c, Replay, nil
	}
	return c, Joined, nil
}

// startReserved starts a call that is in joinable already.
func (e *Engine) startReserved(ctx context.Context, c *Call) (*Call, Join, error) {
	started, err := e.start(ctx, c)
	if err != nil {
		// Whoever joined meanwhile must not wait for ever.
		end := End{Outcome: Denied, By: "journal", Text: "Not started: an equal call could not be recorded. Nothing was sent. Call again later."}
		c.mu.Lock()
		c.rec.Seq++
		c.rec.End, c.rec.Ended = end, time.Now()
		c.ending, c.ended = true, true
		c.push(Event{Seq: c.rec.Seq, Kind: KindEnd, Time: c.rec.Ended, Hole: -1, End: &end})
		c.mu.Unlock()
		e.mu.Lock()
		e.unindex(c)
		e.mu.Unlock()
		return nil, Started, err
	}
	return started, Started, nil
}

// same says whether the request is for the same tool with the same arguments,
// which only an idempotency key leaves open; c.mu is held.
func (c *Call) same(s *Spec) bool {
	return c.rec.Server == s.Server && c.rec.Tool == s.Tool && c.rec.Digest == s.Digest
}

// join takes the call for one more reader, if a request equal to it may; e.mu is
// held.
func (c *Call) join(s *Spec) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case s.Idempotency != "":
	case c.ended:
		if c.readers > 0 || c.rec.Delivered {
			return false
		}
	case c.cancelled:
		return false
	case s.Attach != AttachAlways && c.readers > c.watchers && !c.rec.HandedOff && c.handing == 0:
		return false
	}
	if s.Attach == AttachAlways && c.rec.Attach == AttachUndelivered {
		c.rec.Attach = AttachAlways // of an earlier process, which did not store it
	}
	c.readers++
	return true
}

// shared says whether a running call is taken over also while it is read.
func (a Attach) shared() bool { return a == AttachAlways || a == AttachFresh }

// settle puts the call among those that an equal request takes over, or out of
// them, as it is now; e.mu is held.
func (e *Engine) settle(c *Call) {
	c.mu.Lock()
	key, ok := keyOf(&c.rec.Spec)
	var want bool
	switch {
	case !ok:
	case c.rec.Idempotency != "":
		want = !c.ended || c.rec.mayHaveRun() && time.Since(c.rec.Ended) <= e.opt.Window
	case c.ended:
		want = !c.rec.Delivered && c.rec.replayable() && time.Since(c.rec.Ended) <= e.opt.Window
	default:
		want = !c.cancelled && (c.rec.Attach.shared() || c.rec.Attach != AttachNever && (c.readers == c.watchers || c.rec.HandedOff || c.handing > 0))
	}
	ended := c.ended
	if want && ended && c.stored && c.readers == 0 && e.late[c.rec.ID] == nil {
		c.tail, c.tailBytes = nil, 0 // read from the log, should somebody ask
	}
	c.mu.Unlock()
	switch {
	case want && !c.indexed:
		c.indexed = true
		e.joinable[key] = append(e.joinable[key], c)
	case !want && c.indexed:
		e.unindex(c)
	}
	if want && ended && !c.queued {
		c.queued = true
		i := len(e.owed)
		for i > 0 && e.owed[i-1].rec.Ended.After(c.rec.Ended) { // of another process, and found late
			i--
		}
		e.owed = slices.Insert(e.owed, i, c)
		e.kept[c.rec.ID] = c
		e.expire()
	}
}

// replayable says whether the end is one that a caller who asks again has to
// hear instead of having the call run again.
func (r *Record) replayable() bool {
	switch r.End.Outcome {
	case Completed, Failed, TimedOut, Interrupted:
		return r.mayHaveRun()
	}
	return false
}

// mayHaveRun says whether the ended call may have reached its tool server. A
// process that was killed may have sent it before the log had taken that down:
// an end as interrupted counts as sent (see unsent for all others).
func (r *Record) mayHaveRun() bool {
	return !r.Dispatched.IsZero() || r.End.Outcome == Interrupted
}

// unindex takes the call out of joinable; e.mu is held.
func (e *Engine) unindex(c *Call) {
	if !c.indexed {
		return
	}
	c.indexed = false
	key, _ := keyOf(&c.rec.Spec)
	list := slices.DeleteFunc(e.joinable[key], func(o *Call) bool { return o == c })
	if len(list) == 0 {
		delete(e.joinable, key)
		return
	}
	e.joinable[key] = list
}

// expire forgets ended calls whose time is over; e.mu is held.
func (e *Engine) expire() {
	n := 0
	for n < len(e.owed) && (len(e.owed)-n > maxOwed || time.Since(e.owed[n].rec.Ended) > e.opt.Window) {
		e.unindex(e.owed[n])
		delete(e.kept, e.owed[n].rec.ID)
		e.owed[n] = nil
		n++
	}
	e.owed = e.owed[n:]
}

// Enter counts one more reader of the call, until Leave.
func (c *Call) Enter() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.enter()
}

// enter is Enter; c.mu is held.
func (c *Call) enter() {
	c.readers++
	if c.alone != nil {
		c.alone.Stop()
		c.alone = nil
	}
}

// Leave ends an attachment and records how, if d.How says so. If it was the last
// one of a running call that was not handed off, and cancelAfter is not negative,
// the call is cancelled after that time, unless a reader comes (I7). A volatile
// call is cancelled at once.
func (c *Call) Leave(d Delivery, cancelAfter time.Duration) {
	c.readerLeft(d.How, cancelAfter, false) // before it can be read that the reader is gone
	c.deliver(d)
}

// deliver records how an attachment ended, if d.How says so and the call is in
// the log.
func (c *Call) deliver(d Delivery) {
	if d.How != "" && !c.rec.Volatile {
		c.e.log.Deliver(d)
	}
}

// HandingOff says that a reader is being told to come back: an equal request takes
// the call over from now on, for it may come before Leave. done follows Leave, or
// the write that failed.
func (c *Call) HandingOff() (done func()) {
	c.hand(1)
	return func() { c.hand(-1) }
}

func (c *Call) hand(n int) {
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	c.mu.Lock()
	c.handing += n
	c.mu.Unlock()
	e.settle(c)
}

// readerLeft notes that a reader is gone; watcher says that it came by Watch.
func (c *Call) readerLeft(how How, cancelAfter time.Duration, watcher bool) {
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	c.mu.Lock()
	c.readers--
	if watcher {
		c.watchers--
	}
	switch how {
	case Delivered, Replayed:
		c.rec.Delivered = true
	case Told:
		c.rec.Told = true
	case HandedOff:
		c.rec.HandedOff = c.rec.HandedOff || !watcher || c.readers == c.watchers
	}
	if c.rec.Volatile && how != Asked {
		cancelAfter = 0
	}
	if c.readers == 0 && !c.ended && !c.rec.HandedOff && cancelAfter >= 0 && !e.stopping {
		c.leaveAlone(cancelAfter)
	}
	c.mu.Unlock()
	e.settle(c)
}

// leaveAlone cancels the call after a time in which no reader came; c.mu is held.
func (c *Call) leaveAlone(after time.Duration) {
	var t *time.Timer
	t = time.AfterFunc(after, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.alone == t {
			// An error says that the call has ended, which is as good.
			_ = c.cancelLocked(End{By: "disconnect", Text: "The agent's connection was lost, and on_disconnect says to stop the call then."})
		}
	})
	c.alone = t
}
