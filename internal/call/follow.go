package call

import (
	"context"
	"iter"
	"slices"
	"time"
)

// page is how many bytes of event bodies a reader takes from the log at once:
// with the event that it is writing, all the memory that a reader costs (I9).
const page = 256 << 10

// Follow yields the events after seq, each once and in order, and ends after
// the terminal event. A position that is not kept any more, or was never
// reached, gives ErrGap (I5), and a call that stays for the next process ErrLeft.
// If beat is not 0, a KindBeat without seq comes after every silence of that
// length. It changes nothing about the call when a reader leaves (I7).
//
// It is a cursor: it keeps no queue, so a slow reader costs nothing.
func (c *Call) Follow(ctx context.Context, after uint64, beat time.Duration) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		wake := make(chan struct{}, 1)
		c.mu.Lock()
		c.wakes = append(c.wakes, wake)
		c.mu.Unlock()
		defer func() {
			c.mu.Lock()
			c.wakes = slices.DeleteFunc(c.wakes, func(w chan struct{}) bool { return w == wake })
			c.mu.Unlock()
		}()
		var tick <-chan time.Time
		var timer *time.Timer
		last := time.Now()
		if beat > 0 {
			timer = time.NewTimer(aligned(beat))
			defer timer.Stop()
			tick = timer.C
		}
		var look <-chan time.Time
		if c.elsewhere() {
			// Nobody wakes us: the owner is another process, for its last seconds.
			t := time.NewTicker(LookEvery)
			defer t.Stop()
			look = t.C
		}
		ahead := c.isAhead(after)
		var buf []Event
		for {
			events, ended, err := c.since(ctx, after, buf[:0])
			for i := range events {
				after = events[i].Seq
				if !yield(events[i], nil) || events[i].Kind == KindEnd {
					return
				}
			}
			if err != nil {
				yield(Event{}, err)
				return
			}
			clear(events)
			buf = events
			if len(events) > 0 {
				last = time.Now()
				continue
			}
			switch {
			case ended && ahead: // the end is numbered like what came before in a process that was lost
				ahead, after = false, c.seq()-1
				continue
			case ended:
				return // after was at or past the end
			}
			select {
			case <-wake:
			case <-look:
			case <-tick:
				if quiet := time.Since(last); quiet < beat-grid(beat) {
					timer.Reset(aligned(beat - quiet))
					continue
				}
				last = time.Now()
				timer.Reset(aligned(beat))
				if !yield(Event{Kind: KindBeat, Time: last, Hole: -1}, nil) {
					return
				}
			case <-ctx.Done():
				yield(Event{}, context.Cause(ctx))
				return
			}
		}
	}
}

// grid is by how much a beat may come early. Beats of all calls fall on the same
// multiples of it: a thousand parked calls wake the process ten times a second,
// not a thousand times.
func grid(beat time.Duration) time.Duration {
	if beat < time.Second {
		return 0
	}
	return 100 * time.Millisecond
}

// aligned is d, or a little less, so that it ends on the grid.
func aligned(d time.Duration) time.Duration {
	g := grid(d)
	if g == 0 {
		return d
	}
	return d - time.Duration(time.Now().Add(d).UnixNano()%int64(g))
}

// LookEvery is how often who follows a call, or waits for it by Notify, has to look
// for news if it runs in the process that this one replaces (State.Elsewhere):
// nobody wakes it.
const LookEvery = 100 * time.Millisecond

func (c *Call) elsewhere() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.foreign && !c.ended
}

// seq is that of the last event. Not Record's: a copy of that would lie on the
// stack of every reader.
func (c *Call) seq() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rec.Seq
}

// isAhead says whether a reader was, in a process that was lost, at a place that
// the call has not come to again, here or in the process that carries it on.
func (c *Call) isAhead(after uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return (c.resume != nil || c.foreign) && !c.ended && after > c.rec.Seq
}

// More says whether events after seq can be followed right now.
func (c *Call) More(seq uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.tail)
	return n > 0 && c.tail[n-1].Seq > seq
}

// since returns some events after seq: from memory, or a page from the log.
func (c *Call) since(ctx context.Context, after uint64, buf []Event) (events []Event, ended bool, err error) {
	if c.elsewhere() {
		if err := c.refresh(ctx); err != nil {
			return nil, false, err
		}
	}
	c.mu.Lock()
	if after > c.rec.Seq {
		switch {
		case c.ended && (c.resume != nil || c.foreign):
			after = c.rec.Seq - 1 // the end was never shown: it is stored before
		case c.resume != nil, c.foreign && !c.ended:
			c.mu.Unlock()
			return nil, false, nil // what the reader has seen comes again, and is not for it
		default:
			c.mu.Unlock()
			return nil, false, ErrGap
		}
	}
	first := c.rec.Seq + 1
	switch {
	case len(c.tail) > 0:
		first = c.tail[0].Seq
	case c.ending && !c.ended && !c.left:
		first = c.rec.Seq // the end has its seq, and comes as soon as it is stored
	}
	if after+1 >= first || after == c.rec.Seq {
		if n := int(after + 1 - first); n < len(c.tail) {
			buf = append(buf, c.tail[n:]...)
		}
		ended = c.ended
		if c.left && len(buf) == 0 {
			err = ErrLeft
		}
		c.mu.Unlock()
		return buf, ended, err
	}
	stored := c.stored
	c.mu.Unlock()
	if !stored {
		return nil, false, ErrGap
	}
	events, err = c.e.log.Read(ctx, c.rec.ID, after, page)
	if err != nil {
		return nil, false, err
	}
	if len(events) == 0 || events[0].Seq != after+1 {
		return nil, false, ErrGap
	}
	return events, false, nil
}
