package call

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// script is a runner that does what the test sends.
type script chan func(x *Exec)

func (s script) Run(ctx context.Context, x *Exec) Answer {
	_ = x.Dispatched()
	for {
		select {
		case f, ok := <-s:
			if !ok {
				return completed("done")
			}
			f(x)
		case <-ctx.Done():
			return Answer{}
		}
	}
}

func (s script) emit(n ...int) {
	for _, i := range n {
		s <- func(x *Exec) { _ = x.Emit(progress(i)) }
	}
}

// I5: any number of readers, from any position, fast or slow, see each event
// once and in order.
func TestFollowOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		run := make(script)
		e := NewEngine(newFakeLog(), run, Options{Tail: 2000})
		c := start(t, e, Spec{})
		const n = 200
		results := make(chan error)
		readers := 0
		read := func(after uint64, pause time.Duration) {
			readers++
			go func() {
				want := after + 1
				for ev, err := range c.Follow(t.Context(), after, 0) {
					if err != nil || ev.Seq != want {
						results <- fmt.Errorf("after %d: seq %d, want %d (%v)", after, ev.Seq, want, err)
						return
					}
					want++
					time.Sleep(pause)
				}
				if want != n+4 {
					results <- fmt.Errorf("after %d: stopped before seq %d", after, want)
					return
				}
				results <- nil
			}()
		}
		read(0, 0)
		read(0, time.Second)
		read(1, 3*time.Second)
		for i := range n {
			run.emit(i)
			time.Sleep(100 * time.Millisecond)
			if i%50 == 25 {
				read(0, time.Millisecond)
				read(c.Record().Seq, 10*time.Millisecond)
			}
		}
		close(run)
		for range readers {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		c.mu.Lock()
		if len(c.wakes) != 0 {
			t.Errorf("%d readers are left behind", len(c.wakes))
		}
		c.mu.Unlock()
		e.Stop(t.Context())
	})
}

// A beat comes after each silence of that length and at no other time; an
// event starts the silence anew.
func TestFollowBeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		run := make(script)
		e := NewEngine(newFakeLog(), run, Options{})
		c := start(t, e, Spec{})
		synctest.Wait() // it is dispatched
		began := time.Now()
		go func() {
			time.Sleep(7 * time.Second)
			run.emit(1) // at 7
			time.Sleep(4 * time.Second)
			run.emit(2) // at 11
			time.Sleep(11 * time.Second)
			close(run) // at 22
		}()
		var got []string
		for ev, err := range c.Follow(t.Context(), 2, 5*time.Second) {
			if err != nil {
				t.Fatal(err)
			}
			if (ev.Kind == KindBeat) != (ev.Seq == 0) {
				t.Errorf("%s has seq %d", ev.Kind, ev.Seq)
			}
			got = append(got, fmt.Sprintf("%s@%s", ev.Kind, since(began)))
		}
		want := []string{"beat@5s", "progress@7s", "progress@11s", "beat@16s", "beat@21s", "end@22s"}
		if !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		e.Stop(t.Context())
	})
}

// A wake may be lost: the next beat finds what it was about.
func TestFollowLostWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		run := make(script)
		e := NewEngine(newFakeLog(), run, Options{})
		c := start(t, e, Spec{})
		var seqs []uint64
		done := make(chan struct{})
		go func() {
			defer close(done)
			for ev, err := range c.Follow(t.Context(), 0, 5*time.Second) {
				if err != nil {
					t.Error(err)
				}
				if ev.Kind != KindBeat {
					seqs = append(seqs, ev.Seq)
				}
			}
		}()
		synctest.Wait()
		c.mu.Lock()
		c.wakes = nil // no wake reaches the reader from here on
		c.mu.Unlock()
		run.emit(1, 2, 3)
		close(run)
		<-done
		if want := []uint64{1, 2, 3, 4, 5, 6}; !slices.Equal(seqs, want) {
			t.Errorf("got %v, want %v", seqs, want)
		}
		e.Stop(t.Context())
	})
}

// I9: a call's memory is its tail; what is older comes from the log, a page at
// a time, and a reader far behind still gets all of it.
func TestFollowBehindTheTail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		run := make(script)
		e := NewEngine(log, run, Options{Tail: 64 << 10})
		c := start(t, e, Spec{})
		next, stop := pull(t, c, 0)
		defer stop()
		if ev := next(); ev.Seq != 1 {
			t.Fatalf("seq %d", ev.Seq)
		}
		const n, size = 100, 10 << 10
		for range n {
			run <- func(x *Exec) { _ = x.Emit(Event{Kind: KindMessage, Hole: -1, Body: make([]byte, size)}) }
			synctest.Wait()
			c.mu.Lock()
			if held := held(c.tail); held > 64<<10 {
				t.Errorf("I9: the tail holds %d bytes", held)
			}
			c.mu.Unlock()
		}
		close(run)
		for want := uint64(2); want <= n+3; want++ {
			if ev := next(); ev.Seq != want {
				t.Fatalf("seq %d, want %d", ev.Seq, want)
			}
		}
		if log.reads == 0 || log.maxRead > page {
			t.Errorf("I9: %d reads of up to %d bytes", log.reads, log.maxRead)
		}
		e.Stop(t.Context())
	})
}

// One event larger than the tail stays there until the next one comes.
func TestTailKeepsOneEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		run := make(script)
		e := NewEngine(newFakeLog(), run, Options{Tail: 100})
		c := start(t, e, Spec{})
		run <- func(x *Exec) { _ = x.Emit(Event{Kind: KindMessage, Hole: -1, Body: make([]byte, 1000)}) }
		synctest.Wait()
		if n := len(c.tail); n != 1 || c.tail[0].Seq != 3 {
			t.Errorf("%d events in the tail", n)
		}
		close(run)
		all(t, c)
		e.Stop(t.Context())
	})
}

func held(evs []Event) (n int) {
	for _, ev := range evs {
		n += len(ev.Body)
	}
	return n
}

// I5: a position that is not kept is an error, never a guess.
func TestFollowGap(t *testing.T) {
	t.Run("the log says so", func(t *testing.T) { testFollowGap(t, false) })
	t.Run("the log does not", func(t *testing.T) { testFollowGap(t, true) })
}

func testFollowGap(t *testing.T, careless bool) {
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		log.careless = careless
		run := make(script)
		e := NewEngine(log, run, Options{Tail: 300})
		c := start(t, e, Spec{})
		for i := range 20 {
			run.emit(i)
		}
		synctest.Wait()
		log.forget(c.ID(), 5)
		first := func(seq func(yield func(Event, error) bool)) (Event, error) {
			for ev, err := range seq {
				return ev, err
			}
			return Event{}, nil
		}
		if _, err := first(c.Follow(t.Context(), 0, 0)); !errors.Is(err, ErrGap) {
			t.Errorf("from the start: %v", err)
		}
		if ev, err := first(c.Follow(t.Context(), 5, 0)); err != nil || ev.Seq != 6 {
			t.Errorf("after 5: %d %v", ev.Seq, err)
		}
		if _, err := first(c.Follow(t.Context(), 1000, 0)); !errors.Is(err, ErrGap) {
			t.Errorf("a position that never was: %v", err)
		}
		close(run)
		all := c.Record().Seq
		e.Stop(t.Context())
		if _, err := first(follow(t.Context(), e, "alice", c.ID(), 0, 0)); !errors.Is(err, ErrGap) {
			t.Errorf("ended, from the start: %v", err)
		}
		if _, err := first(follow(t.Context(), e, "alice", c.ID(), all+7, 0)); !errors.Is(err, ErrGap) {
			t.Errorf("ended, past the end: %v", err)
		}
		for ev, err := range follow(t.Context(), e, "alice", c.ID(), c.Record().Seq, 0) {
			t.Errorf("at the end: %v %v", ev, err)
		}
	})
}

// A reader may have seen events that a crash then lost. Whatever its position
// is, it learns that the call was interrupted.
func TestFollowAfterCrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		run := make(script)
		old := NewEngine(log, run, Options{Epoch: 1})
		c := start(t, old, Spec{})
		run.emit(1, 2, 3, 4)
		synctest.Wait() // seen up to 6, stored up to 1
		log.mu.Lock()
		clear(log.pending)
		log.mu.Unlock()
		e := NewEngine(log, runFunc(answerNow), Options{Epoch: 2})
		if _, n, err := e.Recover(t.Context()); n != 1 || err != nil {
			t.Fatalf("recover: %d %v", n, err)
		}
		for after := range uint64(8) {
			var last Event
			for ev, err := range follow(t.Context(), e, "alice", c.ID(), after, 0) {
				if err != nil {
					t.Errorf("after %d: %v", after, err)
				}
				last = ev
			}
			if last.Kind != KindEnd || last.End.Outcome != Interrupted {
				t.Errorf("after %d: the reader last saw %s", after, last.Kind)
			}
		}
		stopNow(old)
		e.Stop(t.Context())
	})
}

// I6: a foreign id looks like one that never was.
func TestForeignPrincipal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		run := make(script)
		e := NewEngine(newFakeLog(), run, Options{})
		c := start(t, e, Spec{Principal: "alice"})
		check := func(when string) {
			for _, id := range []ID{c.ID(), NewID()} {
				if _, err := e.Get(t.Context(), "mallory", id); !errors.Is(err, ErrUnknown) {
					t.Errorf("%s: lookup: %v", when, err)
				}
				if err := e.Tell("mallory", id, End{}); !errors.Is(err, ErrUnknown) {
					t.Errorf("%s: tell: %v", when, err)
				}
				n := 0
				for ev, err := range follow(t.Context(), e, "mallory", id, 0, 0) {
					if n++; !errors.Is(err, ErrUnknown) || ev.Seq != 0 || ev.Body != nil || err.Error() != ErrUnknown.Error() {
						t.Errorf("%s: follow: %v %v", when, ev, err)
					}
				}
				if n != 1 {
					t.Errorf("%s: follow yielded %d times", when, n)
				}
			}
		}
		check("running")
		close(run)
		all(t, c)
		synctest.Wait()
		check("ended")
		e.Stop(t.Context())
	})
}

// I7: readers that come and go leave no trace on the call.
func TestDetachChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		run := make(script)
		e := NewEngine(log, run, Options{})
		accepted, gone := context.WithCancel(t.Context())
		c, err := e.Start(accepted, Spec{Principal: "alice"})
		if err != nil {
			t.Fatal(err)
		}
		gone() // the request that started it
		left := errors.New("client left")
		ctx, leave := context.WithCancelCause(t.Context())
		seen := make(chan error)
		go func() {
			var last error
			for _, err := range c.Follow(ctx, 0, time.Second) {
				last = err
			}
			seen <- last
		}()
		for range c.Follow(t.Context(), 0, 0) {
			break // a write failed
		}
		run.emit(1)
		synctest.Wait()
		leave(left)
		if err := <-seen; !errors.Is(err, left) {
			t.Errorf("the reader learns %v, want why it left", err)
		}
		run.emit(2)
		close(run)
		evs := all(t, c)
		if got := evs[len(evs)-1].End.Outcome; got != Completed || len(evs) != 5 {
			t.Errorf("%s after %v", got, kinds(evs))
		}
		c.Enter()
		c.Leave(Delivery{Call: c.ID(), How: AbortedDownstream}, 0)
		if r, _ := log.kept(c.ID()); len(log.deliveries) != 1 || r.End.Outcome != Completed {
			t.Error("a delivery changed the call")
		}
		e.Stop(t.Context())
	})
}

// I7: a reader that leaves takes no wake-up from those who stay.
func TestDetachLeavesOthersAwake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		run := make(script)
		e := NewEngine(newFakeLog(), run, Options{})
		c := start(t, e, Spec{})
		synctest.Wait()
		_, leave1 := pull(t, c, 2)
		next, stop := pull(t, c, 2)
		_, leave2 := pull(t, c, 2)
		synctest.Wait()
		leave1()
		leave2()
		began := time.Now()
		run.emit(1)
		if ev := next(); ev.Seq != 3 || since(began) != 0 {
			t.Errorf("seq %d after %s", ev.Seq, since(began))
		}
		stop()
		close(run)
		e.Stop(t.Context())
	})
}

// pull is Follow one event at a time.
func pull(t *testing.T, c *Call, after uint64) (next func() Event, stop func()) {
	t.Helper()
	events := make(chan Event)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer close(events)
		for ev, err := range c.Follow(ctx, after, 0) {
			if err != nil {
				return
			}
			select {
			case events <- ev:
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() Event { return <-events }, func() {
		cancel()
		for range events {
			continue
		}
	}
}
