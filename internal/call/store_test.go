package call

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestEndIsStoredBeforeShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		log.onFinish = func(context.Context) error { time.Sleep(1500 * time.Millisecond); return nil }
		e := NewEngine(log, runFunc(answerNow), Options{})
		began := time.Now()
		c := start(t, e, Spec{})
		for ev, err := range c.Follow(t.Context(), 0, 0) {
			if err != nil {
				t.Fatal(err)
			}
			if ev.Kind == KindEnd {
				if r, _ := log.kept(c.ID()); r.End.Outcome != Completed {
					t.Error("I4: shown before it was stored")
				}
				if since(began) != 1500*time.Millisecond {
					t.Errorf("shown after %s", since(began))
				}
			}
		}
		e.Stop(t.Context())
	})
}

func TestBlockedLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, obs := newFakeLog(), newWatcher()
		began := time.Now()
		log.onFinish = func(ctx context.Context) error {
			if since(began) < time.Minute {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		e := NewEngine(log, runFunc(answerNow), Options{FinishWait: 2 * time.Second, Observer: obs})
		c := start(t, e, Spec{Digest: "owed"}) // an equal request may come for it
		if got := end(t, c); got.Outcome != Completed || since(began) != 2*time.Second {
			t.Errorf("%+v after %s, want completed after the wait of 2s", got, since(began))
		}
		synctest.Wait()
		if len(obs.stored) != 1 || obs.stored[0] {
			t.Errorf("observer was told stored=%v, want one unstored end", obs.stored)
		}
		if e.InFlight() != 0 {
			t.Error("the call is still in flight")
		}
		// Until it is stored, the end is still there for who comes back.
		for ev, err := range follow(t.Context(), e, "alice", c.ID(), 2, 0) {
			if err != nil || ev.Kind != KindEnd {
				t.Errorf("resume before the late store: %v %v", ev.Kind, err)
			}
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if r, evs := log.kept(c.ID()); r.End.Outcome != Completed || len(evs) != 3 {
			t.Errorf("late store: %+v", r)
		}
		if n := len(e.late); n != 0 {
			t.Error("the call still runs after its end is stored")
		}
		if c.tail != nil {
			t.Error("its events stay in memory after its end is stored")
		}
		e.Stop(t.Context())
	})
}

func TestLateStoreRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		var at []time.Duration
		began := time.Now()
		log.onFinish = func(context.Context) error {
			at = append(at, since(began))
			if len(at) <= 9 {
				return errDown
			}
			return nil
		}
		e := NewEngine(log, runFunc(answerNow), Options{})
		c := start(t, e, Spec{})
		if end(t, c); since(began) != 0 {
			t.Errorf("a failing log delayed the result by %s", since(began))
		}
		e.Stop(t.Context())
		if r, _ := log.kept(c.ID()); r.End.Outcome != Completed {
			t.Error("never stored")
		}
		if d := at[9] - at[8]; d != 10*time.Second {
			t.Errorf("pause between tries grew to %s, want 10s", d)
		}
	})
}

func TestStopWithBrokenLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		log.onFinish = func(context.Context) error { return errDown }
		e := NewEngine(log, runFunc(func(ctx context.Context, x *Exec) Answer {
			if x.Spec.Tool == "slow" {
				return untilTold(ctx, x)
			}
			return answerNow(ctx, x)
		}), Options{})
		done, running := start(t, e, Spec{}), start(t, e, Spec{Tool: "slow"})
		end(t, done)
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		e.Stop(ctx)
		if since(began) > 6*time.Second {
			t.Errorf("stopped after %s", since(began))
		}
		if got := end(t, running); got.Outcome != Interrupted {
			t.Errorf("%+v", got)
		}
	})
}

func TestLogDownAtStart(t *testing.T) {
	for _, refuse := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			log, obs := newFakeLog(), newWatcher()
			log.onCreate = func(context.Context) error { return errDown }
			e := NewEngine(log, runFunc(answerNow), Options{Refuse: refuse, Observer: obs})
			c, err := e.Start(t.Context(), Spec{Principal: "alice", Server: "files"})
			if refuse {
				if !errors.Is(err, errDown) || c != nil {
					t.Errorf("refuse: %v", err)
				}
			} else {
				if err != nil {
					t.Fatal(err)
				}
				if got := end(t, c); got.Outcome != Completed {
					t.Errorf("degrade: %+v", got)
				}
			}
			e.Stop(t.Context())
			if e.InFlight() != 0 || len(e.perServer) != 0 {
				t.Error("counts are left")
			}
			if !refuse && (len(obs.stored) != 1 || obs.stored[0]) {
				t.Errorf("an unrecorded call was reported as stored: %v", obs.stored)
			}
		})
	}
}

func TestClientGoneBeforeAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		log.onCreate = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		e := NewEngine(log, runFunc(func(context.Context, *Exec) Answer {
			t.Error("it ran")
			return Answer{}
		}), Options{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := e.Start(ctx, Spec{Denied: nil}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("start: %v", err)
		}
		e.Stop(t.Context())
	})
}

func TestFullQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, obs := newFakeLog(), newWatcher()
		n := 0
		log.onAppend = func() error {
			if n++; n > 2 && n < 6 {
				return ErrFull
			}
			return nil
		}
		e := NewEngine(log, runFunc(func(_ context.Context, x *Exec) Answer {
			_ = x.Dispatched()
			for i := range 10 {
				_ = x.Emit(progress(i))
			}
			return completed("ok")
		}), Options{Observer: obs})
		c := start(t, e, Spec{})
		if evs := all(t, c); len(evs) != 13 {
			t.Errorf("the reader saw %v", kinds(evs))
		}
		e.Stop(t.Context())
		r, evs := log.kept(c.ID())
		if r.Missing != 3 || obs.lost != 3 || len(evs) != 10 || r.Seq != 13 {
			t.Errorf("missing %d, lost %d, kept %d, seq %d", r.Missing, obs.lost, len(evs), r.Seq)
		}
		var seen []uint64
		var last error
		for ev, err := range follow(t.Context(), e, "alice", c.ID(), 0, 0) {
			if last = err; err == nil {
				seen = append(seen, ev.Seq)
			}
		}
		if !errors.Is(last, ErrGap) || !slices.Equal(seen, []uint64{1, 2, 3}) {
			t.Errorf("I5: history with a hole gave %v, then %v", seen, last)
		}
	})
}

func TestRecover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		old := NewEngine(log, runFunc(untilTold), Options{Epoch: 1})
		c := start(t, old, Spec{})
		synctest.Wait()
		log.mu.Lock()
		log.commitLocked(c.ID())
		log.mu.Unlock()

		e := NewEngine(log, runFunc(answerNow), Options{Epoch: 2})
		own := start(t, e, Spec{})
		if _, n, err := e.Recover(t.Context()); n != 1 || err != nil {
			t.Errorf("recovered %d, %v", n, err)
		}
		end(t, own)
		var evs []Event
		for ev, err := range follow(t.Context(), e, "alice", c.ID(), 0, 0) {
			if err != nil {
				t.Fatal(err)
			}
			evs = append(evs, ev)
		}
		checkEvents(t, evs)
		if got := evs[len(evs)-1].End; got.Outcome != Interrupted {
			t.Errorf("%+v", got)
		}
		if _, n, err := e.Recover(t.Context()); n != 0 || err != nil {
			t.Errorf("again: %d, %v", n, err)
		}
		e.Stop(t.Context())

		// I3: the old owner, should it still live, cannot write any more.
		stopNow(old)
		if r, evs := log.kept(c.ID()); r.End.Outcome != Interrupted || len(evs) != 3 || r.End.By == "shutdown" {
			t.Errorf("the old owner wrote: %+v %v", r.End, kinds(evs))
		}
	})
}
