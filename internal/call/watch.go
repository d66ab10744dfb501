package call

import (
	"context"
	"slices"
)

// State is how a call stands, without its events.
type State struct {
	Outcome   Outcome // Running until the end is shown
	Seq       uint64  // of the last event
	Progress  Event   // the last progress after the place asked for, if it is in memory; else its Seq is 0
	Left      bool    // the call stays for the next process: nothing more comes from this one
	Elsewhere bool    // another process carries it to its end, and wakes nobody here
}

// Look says how the call stands now, and what progress came after seq. It costs
// what has happened since.
func (c *Call) Look(ctx context.Context, after uint64) (State, error) {
	if c.elsewhere() {
		if err := c.refresh(ctx); err != nil {
			return State{}, err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := State{Seq: c.rec.Seq, Left: c.left, Elsewhere: c.foreign && !c.ended}
	if c.ended {
		s.Outcome = c.rec.End.Outcome
	}
	for i := len(c.tail) - 1; i >= 0 && c.tail[i].Seq > after; i-- {
		if c.tail[i].Kind == KindProgress {
			s.Progress = c.tail[i]
			break
		}
	}
	return s, nil
}

// Notify sends on wake, without waiting, whenever something happens to the call,
// until stop was called. With room for one, wake serves any number of calls: a
// wake says only that it is time to Look at them. It costs no goroutine.
func (c *Call) Notify(wake chan struct{}) (stop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wakes = append(c.wakes, wake)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if i := slices.Index(c.wakes, wake); i >= 0 {
			c.wakes = slices.Delete(c.wakes, i, i+1)
		}
	}
}

// Watch counts one more reader of the call that found it by its id, until
// Unwatch. As long as it is there the call is not cancelled for want of readers,
// but an equal request takes the call over all the same, as if it had none: the
// request that the call was started for is gone.
func (c *Call) Watch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watchers++
	c.enter()
}

// Unwatch is Leave for a Watch. The call goes on to its end, whoever is left. A
// watcher that was told to come back has the call handed off only if no request
// reads it any more: what one that does reads is its own to say (I7).
func (c *Call) Unwatch(d Delivery) {
	c.readerLeft(d.How, -1, true)
	c.deliver(d)
}

// Open gives the principal's calls that run in this process, newest first, also
// those that the log does not know, but for volatile ones.
func (e *Engine) Open(principal string) []*Call {
	e.mu.Lock()
	defer e.mu.Unlock()
	var list []*Call
	for _, c := range e.calls {
		if c.rec.Principal == principal && !c.rec.Volatile {
			list = append(list, c)
		}
	}
	slices.SortFunc(list, func(a, b *Call) int { return b.rec.Started.Compare(a.rec.Started) })
	return list
}

// HasReaders says whether somebody reads the call now, or waits for it by its id.
func (c *Call) HasReaders() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.readers > 0
}
