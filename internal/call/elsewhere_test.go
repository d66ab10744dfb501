package call_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/call/calltest"
)

// replaced gives a process that carries on one call, and the one that replaces it.
func replaced(t *testing.T, s call.Spec, opt call.Options) (r *tool, log *calltest.Memory, old, e *call.Engine, c *call.Call) {
	t.Helper()
	r, log = newTool(), calltest.NewMemory()
	opt.Epoch = 1
	old = call.NewEngine(log, r, opt)
	c = attach(t, old, s, call.Started)
	synctest.Wait()
	log.SetAlive(1, true)
	old.Refuse()
	opt.Epoch = 2
	e = call.NewEngine(log, r, opt)
	if _, _, err := e.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r, log, old, e, c
}

// retired ends the process that was replaced.
func retired(t *testing.T, log *calltest.Memory, old, e *call.Engine) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	old.Stop(ctx)
	log.SetAlive(1, false)
	if _, _, err := e.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// The result of a call that the process before ours ended, and that nobody got,
// is shown to the request that comes again; it does not wait for ever.
func TestAttachToEndElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, old, e, c := replaced(t, spec("a"), call.Options{})
		r.end("a") <- done("result")
		synctest.Wait()
		leave(c, call.AbortedDownstream)
		again := attach(t, e, spec("a"), call.Replay)
		if ev := last(t, again); string(ev.Body) != "result" {
			t.Errorf("got %q", ev.Body)
		}
		leave(again, call.Replayed)
		attach(t, e, spec("a"), call.Started)
		r.end("a") <- done("second")
		old.Stop(t.Context())
		e.Stop(t.Context())
	})
}

// What the process before ours gave up is owed once, also if it was known here
// before.
func TestEndElsewhereIsOwedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := spec("a")
		s.Tool = "gone"
		r, log, old, e, c := replaced(t, s, call.Options{})
		leave(c, call.AbortedDownstream)
		retired(t, log, old, e)
		first := attach(t, e, s, call.Replay)
		attach(t, e, s, call.Started) // first is being read
		leave(first, call.Replayed)
		attach(t, e, s, call.Started)
		r.end("a") <- done("")
		r.end("a") <- done("")
		e.Stop(t.Context())
	})
}

// A call that is taken up keeps those who read it while it ran elsewhere: it is
// not cancelled for want of readers, and they can cancel it.
func TestAdoptedWithItsReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opt := call.Options{Orphan: func(*call.Record) time.Duration { return 15 * time.Second }}
		r, log, old, e, c := replaced(t, spec("a"), opt)
		leave(c, call.ShutDown)
		joined := attach(t, e, spec("a"), call.Joined)
		byID, err := e.Get(t.Context(), "ann", c.ID())
		if err != nil || byID != joined {
			t.Fatalf("the id gives another call: %v", err)
		}
		if err := joined.Cancel(call.End{By: "agent"}); !errors.Is(err, call.ErrElsewhere) {
			t.Errorf("cancel elsewhere: %v", err)
		}
		got := make(chan call.Event, 1)
		go func() { got <- last(t, joined) }()
		retired(t, log, old, e)
		time.Sleep(time.Minute)
		if rec := joined.Record(); rec.End.Outcome != call.Running || len(r.heard) != 0 {
			t.Fatalf("a call that is read was ended: %+v, %q", rec.End, r.heard)
		}
		attach(t, e, spec("a"), call.Started) // it is read
		if err := joined.Cancel(call.End{By: "agent", Text: "enough"}); err != nil {
			t.Errorf("cancel: %v", err)
		}
		if ev := <-got; ev.End == nil || ev.End.Outcome != call.Cancelled {
			t.Errorf("the reader got %+v", ev)
		}
		r.end("a") <- done("")
		e.Stop(t.Context())
	})
}

// The window of a call that ended elsewhere ends as that of any other, also if
// a reader that learnt of its end has not left yet.
func TestWindowOfEndElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := spec("a")
		s.Idempotency = "key"
		r, _, old, e, c := replaced(t, s, call.Options{Window: time.Minute})
		joined := attach(t, e, s, call.Joined)
		r.end("a") <- done("result")
		if ev := last(t, joined); string(ev.Body) != "result" {
			t.Errorf("got %q", ev.Body)
		}
		leave(c, call.AbortedDownstream)
		time.Sleep(61 * time.Second) // joined writes it to somebody slow
		attach(t, e, s, call.Started)
		r.end("a") <- done("")
		old.Stop(t.Context())
		e.Stop(t.Context())
	})
}

// After a restart, too, each result is kept for its own window.
func TestWindowAfterRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, r := calltest.NewMemory(), newTool()
		e := call.NewEngine(log, r, call.Options{Epoch: 1, Window: time.Minute})
		long, short := attach(t, e, spec("long"), call.Started), attach(t, e, spec("short"), call.Started)
		r.end("short") <- done("")
		time.Sleep(50 * time.Second)
		r.end("long") <- done("")
		synctest.Wait()
		leave(long, call.AbortedDownstream)
		leave(short, call.AbortedDownstream)
		e.Stop(t.Context())
		e = call.NewEngine(log, r, call.Options{Epoch: 2, Window: time.Minute})
		if _, _, err := e.Recover(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		attach(t, e, spec("short"), call.Started)
		attach(t, e, spec("long"), call.Replay)
		r.end("short") <- done("")
		e.Stop(t.Context())
	})
}

// A reader that was further, in a process that was lost, than the call comes
// again gets the end all the same, whatever its number is (I5).
func TestEndForReaderThatWasAhead(t *testing.T) {
	for n := range uint64(8) {
		ahead, elsewhere := n%4, n >= 4 // taken up by a process that is being replaced
		synctest.Test(t, func(t *testing.T) {
			log := calltest.NewMemory()
			rec := &call.Record{ID: call.NewID(), Spec: spec("a"), Epoch: 1, Started: time.Now(), Seq: 1}
			if err := log.Create(t.Context(), rec,
				call.Event{Seq: 1, Kind: call.KindAccepted, Time: rec.Started, Hole: -1},
				call.Event{Seq: 2, Kind: call.KindDispatched, Time: rec.Started, Hole: -1},
				call.Event{Seq: 3, Kind: call.KindAddress, Time: rec.Started, Hole: -1, Body: []byte("here"), Cursor: []byte("0")},
			); err != nil {
				t.Fatal(err)
			}
			r := newTool()
			e := call.NewEngine(log, r, call.Options{Epoch: 2})
			if n, _, err := e.Recover(t.Context()); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			reads := e
			if elsewhere {
				log.SetAlive(2, true)
				reads = call.NewEngine(log, r, call.Options{Epoch: 3})
				if _, _, err := reads.Recover(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			c, err := reads.Get(t.Context(), "ann", rec.ID)
			if err != nil {
				t.Fatal(err)
			}
			got := make(chan call.Event, 1)
			go func() {
				var ev call.Event
				for e, err := range c.Follow(t.Context(), c.Position(1, 3+ahead), 0) {
					if err != nil {
						t.Error(err)
					}
					ev = e
				}
				got <- ev
			}()
			synctest.Wait()
			r.end("a") <- done("result")
			if ev := <-got; string(ev.Body) != "result" {
				t.Errorf("ahead by %d, elsewhere %v: got %+v", ahead, elsewhere, ev)
			}
			e.Stop(t.Context())
			reads.Stop(t.Context())
		})
	}
}
