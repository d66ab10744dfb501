package call

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// reader is an attachment of the model. It checks what it sees.
type reader struct {
	w      *world
	call   *modelCall
	gen    int
	pause  time.Duration // after each event: a slow one
	cancel context.CancelFunc
	done   chan struct{}

	mu    sync.Mutex
	after uint64
}

func (w *world) attach(rt *rapid.T) {
	c := w.pick(rt, func(*modelCall) bool { return true })
	r := &reader{
		w: w, call: c, gen: w.gen, done: make(chan struct{}),
		pause: rapid.SampledFrom([]time.Duration{0, 0, time.Millisecond, 700 * time.Millisecond}).Draw(rt, "pause"),
	}
	if c.c != nil {
		r.after = rapid.Uint64Range(0, c.c.Record().Seq).Draw(rt, "after")
	} else {
		r.after = rapid.Uint64Range(0, 10).Draw(rt, "after")
	}
	direct := c.c
	if rapid.Bool().Draw(rt, "by id") {
		direct = nil
	}
	var ctx context.Context
	ctx, r.cancel = context.WithCancel(context.Background())
	w.mu.Lock()
	w.readers = append(w.readers, r)
	w.mu.Unlock()
	go r.read(ctx, w.e, direct)
	if rapid.Bool().Draw(rt, "settle") {
		synctest.Wait()
	}
}

// foreign is a reader who may not.
func (w *world) foreign(rt *rapid.T) {
	c := w.pick(rt, func(*modelCall) bool { return true })
	n := 0
	for ev, err := range follow(context.Background(), w.e, "mallory", c.id, 0, 0) {
		if n++; !errors.Is(err, ErrUnknown) || ev.Seq != 0 || n > 1 {
			rt.Fatalf("I6: a foreign reader got %v, %v", ev, err)
		}
	}
}

// detach takes a reader away. Nothing about the call may change by it (I7).
func (w *world) detach(rt *rapid.T) {
	var some []*reader
	w.mu.Lock()
	for _, r := range w.readers {
		if !r.isDone() {
			some = append(some, r)
		}
	}
	w.mu.Unlock()
	if len(some) == 0 {
		rt.Skip("no reader")
	}
	r := rapid.SampledFrom(some).Draw(rt, "reader")
	synctest.Wait()
	before := r.call.state()
	r.leave()
	synctest.Wait()
	if after := r.call.state(); after != before {
		rt.Fatalf("I7: a reader left, and %s became %s", before, after)
	}
}

func (c *modelCall) state() string {
	if c.c == nil {
		return "gone"
	}
	r := c.c.Record()
	return fmt.Sprint(r.Seq, r.End.Outcome, r.Missing, r.Bytes)
}

func (r *reader) isDone() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

func (r *reader) at() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.after
}

func (r *reader) leave() {
	r.cancel()
	<-r.done
}

// read follows the call to its end, and checks I4 and I5 on the way.
func (r *reader) read(ctx context.Context, e *Engine, direct *Call) {
	defer close(r.done)
	events := follow(ctx, e, r.call.principal, r.call.id, r.at(), modelBeat)
	if direct != nil {
		events = direct.Follow(ctx, r.at(), modelBeat)
	}
	first := true
	for ev, err := range events {
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, ErrGap):
			r.gap()
			return
		case errors.Is(err, ErrUnknown) && direct == nil && r.isUnstored():
			return
		case err != nil:
			// An end that is not stored yet is no longer in memory only when
			// its process has crashed.
			r.w.problem("I5: a reader of %s at %d got %v", r.call.id, r.at(), err)
			return
		case ev.Kind == KindBeat:
			continue
		}
		r.event(ev, first)
		first = false
		if ev.Kind == KindEnd {
			r.end(ev)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(r.pause):
		}
	}
	// A reader may be let go without a word only if it stands at the end of a
	// call that it can have seen end. That it cannot if the end was made by a
	// later process: see Position. (An end that its own process made was seen by
	// whoever stands there, and showing it again would be twice, A2.)
	rec, _ := r.w.disk.kept(r.call.id)
	if ctx.Err() == nil && !r.isUnstored() && (r.at() != rec.Seq || rec.End.By == byRestart && direct == nil) {
		r.w.problem("I5: a reader of %s was let go at %d of %d without the end (%s)", r.call.id, r.at(), rec.Seq, rec.End.Outcome)
	}
}

func (r *reader) event(ev Event, first bool) {
	// After a crash the position of a reader may be from the life before: then
	// it gets the end, whatever its number is.
	resumed := first && ev.Kind == KindEnd && ev.End.Outcome == Interrupted
	r.mu.Lock()
	if ev.Seq != r.after+1 && !resumed {
		r.w.problem("I5: a reader of %s got %d after %d", r.call.id, ev.Seq, r.after)
	}
	r.after = ev.Seq
	r.mu.Unlock()
	text := fmt.Sprintf("%s %q %v", ev.Kind, ev.Body, ev.End)
	if ev.End != nil {
		text = fmt.Sprintf("%s %q %s", ev.Kind, ev.Body, ev.End.Outcome)
	}
	r.w.mu.Lock()
	key := seenKey{r.gen, ev.Seq}
	was, ok := r.call.seen[key]
	r.call.seen[key] = text
	r.w.mu.Unlock()
	if ok && was != text {
		r.w.problem("I5: event %d of %s was %s and is %s", ev.Seq, r.call.id, was, text)
	}
}

// end checks that the log had the end before the reader.
func (r *reader) end(ev Event) {
	rec, _ := r.w.disk.kept(r.call.id)
	if rec.End.Outcome != ev.End.Outcome && !r.isUnstored() {
		r.w.problem("I4: %s was shown as %s while the log has %q", r.call.id, ev.End.Outcome, rec.End.Outcome)
	}
}

// gap checks that there is one.
func (r *reader) gap() {
	r.w.mu.Lock()
	known := r.call.holes
	r.w.mu.Unlock()
	rec, _ := r.w.disk.kept(r.call.id)
	switch {
	case !known && r.at() <= rec.Seq:
		r.w.problem("I5: a gap at %d of %s, where nothing is missing", r.at(), r.call.id)
	case rec.End.By == byRestart && r.at() >= rec.Seq && !r.isUnstored(): // an end of its own process has the last number, and nobody was past it
		r.w.problem("I5: a reader of %s at %d, lost in a crash, does not learn that the call was interrupted", r.call.id, r.at())
	}
}

func (r *reader) isUnstored() bool {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	return r.call.unstored
}
