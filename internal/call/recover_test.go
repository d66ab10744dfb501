package call_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/call/calltest"
)

// A restart takes up what can be taken up, once; the rest is interrupted, and
// whoever asks again hears of it instead of running it a second time.
func TestRecoverAdopts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, r := calltest.NewMemory(), newTool()
		e := call.NewEngine(log, r, call.Options{Epoch: 1})
		kept := attach(t, e, spec("kept"), call.Started)
		gone := spec("gone")
		gone.Tool = "gone"
		lost := attach(t, e, gone, call.Started)
		ended := attach(t, e, spec("ended"), call.Started)
		r.end("ended") <- done("nobody got it")
		got := attach(t, e, spec("got"), call.Started)
		r.end("got") <- done("somebody got it")
		synctest.Wait()
		leave(got, call.Delivered)
		log.Sync()
		// Killed: the old engine is stopped only so that nothing of it is left.
		frozen := calltest.NewMemory()
		log.CopyTo(frozen)

		orphaned := 0
		e2 := call.NewEngine(frozen, r, call.Options{Epoch: 2, Orphan: func(*call.Record) time.Duration { orphaned++; return 15 * time.Second }})
		adopted, interrupted, err := e2.Recover(t.Context())
		if adopted != 1 || interrupted != 1 || err != nil || orphaned != 1 {
			t.Fatalf("adopted %d, interrupted %d, orphans %d, %v", adopted, interrupted, orphaned, err)
		}
		if adopted, interrupted, err = e2.Recover(t.Context()); adopted+interrupted != 0 || err != nil {
			t.Errorf("a second time: %d, %d, %v", adopted, interrupted, err)
		}
		again := attach(t, e2, spec("kept"), call.Joined)
		if again.ID() != kept.ID() {
			t.Error("another call")
		}
		time.Sleep(time.Minute) // the reader has ended the orphan's grace
		unknown := attach(t, e2, gone, call.Replay)
		if ev := last(t, unknown); unknown.ID() != lost.ID() || ev.End.Outcome != call.Interrupted {
			t.Errorf("end %+v", ev.End)
		}
		leave(unknown, call.Replayed)
		if c := attach(t, e2, spec("ended"), call.Replay); c.ID() != ended.ID() || string(last(t, c).Body) != "nobody got it" {
			t.Error("the result that nobody got is lost")
		}
		fresh := attach(t, e2, spec("got"), call.Started)
		leave(fresh, call.AbortedDownstream)
		// The old one still runs in this test, so both wait for the end of "kept".
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		e.Stop(ctx)
		r.end("kept") <- done("after the restart")
		synctest.Wait()
		if ev := last(t, again); string(ev.Body) != "after the restart" {
			t.Errorf("end %+v %q", ev.End, ev.Body)
		}
		leave(again, call.Delivered)
		e2.Stop(ctx)
		if r.runs["kept"] != 1 || r.runs["gone"] != 1 {
			t.Errorf("runs %v", r.runs)
		}
	})
}

// A process that is killed may have sent a call before the log had taken that
// down: who asks again hears that the outcome is unknown, and nothing is sent.
func TestRecoverOwesWhatMayHaveRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, r := calltest.NewMemory(), newTool()
		keyed := spec("keyed")
		keyed.Idempotency = "key"
		for _, s := range []call.Spec{spec("plain"), keyed} {
			rec := &call.Record{ID: call.NewID(), Spec: s, Epoch: 1, Started: time.Now(), Seq: 1}
			if err := log.Create(t.Context(), rec, call.Event{Seq: 1, Kind: call.KindAccepted, Time: rec.Started, Hole: -1}); err != nil {
				t.Fatal(err)
			}
		}
		e := call.NewEngine(log, r, call.Options{Epoch: 2})
		defer e.Stop(t.Context())
		if _, interrupted, err := e.Recover(t.Context()); interrupted != 2 || err != nil {
			t.Fatalf("%d interrupted, %v", interrupted, err)
		}
		for _, s := range []call.Spec{spec("plain"), keyed} {
			c := attach(t, e, s, call.Replay)
			if ev := last(t, c); ev.End.Outcome != call.Interrupted {
				t.Errorf("%s: end %+v", s.Digest, ev.End)
			}
			leave(c, call.Replayed)
		}
		if len(r.runs) != 0 {
			t.Errorf("runs %v", r.runs)
		}
	})
}

// A reader that comes back after a restart misses nothing and sees nothing
// twice, whatever the lost process had shown beyond what it had stored.
func TestPositionAfterCrash(t *testing.T) {
	for _, tt := range []struct {
		name   string
		cursor bool // the tool server sends its events again
		stored int  // progress events that survive, of 5 shown
		seen   int  // by the reader, of them
		want   string
	}{
		{"all stored", true, 5, 5, "6 end"},
		{"reader behind", true, 5, 2, "3 4 5 6 end"},
		{"some lost, sent again", true, 2, 5, "6 end"},
		{"some lost, reader between", true, 2, 3, "4 5 6 end"},
		{"some lost for good", false, 2, 5, "end"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := calltest.NewMemory()
				shown := make(chan struct{})
				emit := func(x *call.Exec, n int) {
					ev := call.Event{Kind: call.KindProgress, Hole: -1, Body: fmt.Append(nil, n)}
					if tt.cursor {
						ev.Cursor = fmt.Append(nil, n)
					}
					_ = x.Emit(ev)
				}
				run := func(ctx context.Context, x *call.Exec) call.Answer {
					if r := x.Resume; r != nil {
						if tt.cursor {
							var from int
							fmt.Sscan(string(r.Cursor), &from)
							for n := from + 1; n <= 6; n++ {
								emit(x, n)
							}
						}
						return done("result")
					}
					_ = x.Dispatched()
					x.Address([]byte("here"))
					for n := 1; n <= 5; n++ {
						emit(x, n)
						if n == tt.stored {
							log.Sync()
						}
					}
					close(shown)
					<-ctx.Done()
					return call.Answer{}
				}
				e := call.NewEngine(log, resumable(run), call.Options{Epoch: 1})
				c := attach(t, e, spec("a"), call.Started)
				<-shown
				const before = 3 // accepted, dispatched, address
				after := uint64(before + tt.seen)
				frozen := calltest.NewMemory()
				log.Crash()
				log.CopyTo(frozen)
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				e.Stop(ctx)

				e = call.NewEngine(frozen, resumable(run), call.Options{Epoch: 2})
				if n, _, err := e.Recover(t.Context()); n != 1 || err != nil {
					t.Fatal(n, err)
				}
				c, err := e.Get(t.Context(), "ann", c.ID())
				if err != nil {
					t.Fatal(err)
				}
				var got string
				for ev, err := range c.Follow(t.Context(), c.Position(1, after), 0) {
					if err != nil {
						t.Fatal(err)
					}
					if ev.Kind == call.KindEnd {
						got += "end"
					} else {
						got += string(ev.Body) + " "
					}
				}
				if got != tt.want {
					t.Errorf("got %q, want %q", got, tt.want)
				}
				e.Stop(t.Context())

				// Killed again: the end is in the log alone, and no reader of the
				// first process has seen it.
				e = call.NewEngine(frozen, resumable(run), call.Options{Epoch: 3})
				defer e.Stop(t.Context())
				if c, err = e.Get(t.Context(), "ann", c.ID()); err != nil {
					t.Fatal(err)
				}
				ended := false
				for ev, err := range c.Follow(t.Context(), c.Position(1, after), 0) {
					if err != nil {
						t.Fatal(err)
					}
					ended = ev.Kind == call.KindEnd
				}
				if !ended {
					t.Error("in the third process the end is not shown")
				}
			})
		})
	}
}

// A reader of a call that was taken up again waits while its end is being stored:
// there is no gap before it.
func TestFollowWhileAdoptedCallEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := calltest.NewMemory()
		rec := &call.Record{ID: call.NewID(), Spec: spec("a"), Epoch: 1, Started: time.Now(), Seq: 1}
		events := []call.Event{
			{Seq: 1, Kind: call.KindAccepted, Time: rec.Started, Hole: -1},
			{Seq: 2, Kind: call.KindDispatched, Time: rec.Started, Hole: -1},
			{Seq: 3, Kind: call.KindAddress, Time: rec.Started, Hole: -1, Body: []byte("here")},
		}
		if err := log.Create(t.Context(), rec, events...); err != nil {
			t.Fatal(err)
		}
		release := make(chan struct{})
		log.Fail(func(op string) error {
			if op == "finish" {
				<-release
			}
			return nil
		})
		e := call.NewEngine(log, resumable(func(context.Context, *call.Exec) call.Answer { return done("result") }), call.Options{Epoch: 2})
		defer e.Stop(t.Context())
		if n, _, err := e.Recover(t.Context()); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		c := attach(t, e, spec("a"), call.Joined)
		synctest.Wait() // it stores the end
		for _, after := range []uint64{1, 3} {
			var got call.Event
			ended := make(chan error, 1)
			go func() {
				for ev, err := range c.Follow(t.Context(), after, 0) {
					if err != nil {
						ended <- err
						return
					}
					got = ev
				}
				ended <- nil
			}()
			synctest.Wait()
			if after == 3 {
				close(release)
			}
			defer func() {
				if err := <-ended; err != nil || string(got.Body) != "result" {
					t.Errorf("after %d: %q, %v", after, got.Body, err)
				}
			}()
		}
		leave(c, call.Delivered)
	})
}

// anywhere is a runner that knows a call by its id alone, as the shell does.
type anywhere struct{ resumable }

func (anywhere) Resumable(r *call.Record) bool {
	r.Attach = call.AttachAlways
	return true
}

// A runner that needs no address takes calls up without one, also one whose
// dispatch was not noted before the crash: it knows whether it began. What it says
// of sharing holds again.
func TestRecoverWithoutAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, frozen := calltest.NewMemory(), calltest.NewMemory()
		hang := func(ctx context.Context, x *call.Exec) call.Answer {
			if x.Spec.Tool == "sent" {
				_ = x.Dispatched()
			}
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), call.ErrLeft) {
				t.Errorf("%s was not left: %v", x.Spec.Tool, context.Cause(ctx))
			}
			return call.Answer{}
		}
		stop := func(e *call.Engine) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			e.Stop(ctx)
		}
		e := call.NewEngine(log, anywhere{hang}, call.Options{Epoch: 1})
		sent, unsent := spec("a"), spec("b")
		sent.Tool, unsent.Tool = "sent", "unsent"
		a, b := attach(t, e, sent, call.Started), attach(t, e, unsent, call.Started)
		synctest.Wait()
		stop(e)
		log.Sync()
		log.CopyTo(frozen)

		var seen sync.Map
		e = call.NewEngine(frozen, anywhere{func(ctx context.Context, x *call.Exec) call.Answer {
			if x.Resume == nil || x.Resume.Address != nil {
				t.Errorf("%s: %+v", x.Spec.Tool, x.Resume)
			}
			seen.Store(x.ID, true)
			time.Sleep(time.Second)
			if x.Spec.Tool == "unsent" {
				return call.Answer{End: call.End{Outcome: call.Failed, Text: "Not started: it never began."}}
			}
			return done("found")
		}}, call.Options{Epoch: 2})
		if adopted, interrupted, err := e.Recover(t.Context()); adopted != 2 || interrupted != 0 || err != nil {
			t.Fatalf("adopted %d, interrupted %d, %v", adopted, interrupted, err)
		}
		sent.Attach = call.AttachAlways
		again, both := attach(t, e, sent, call.Joined), attach(t, e, sent, call.Joined)
		time.Sleep(2 * time.Second)
		if ev := last(t, again); string(ev.Body) != "found" || again.ID() != a.ID() || both.ID() != a.ID() {
			t.Errorf("end %+v %q", ev.End, ev.Body)
		}
		if _, ok := seen.Load(b.ID()); !ok {
			t.Error("the other was not taken up")
		}
		if c, err := e.Get(t.Context(), "ann", b.ID()); err != nil || c.Record().End.Outcome != call.Failed {
			t.Errorf("%v, %+v", err, c)
		}
		leave(again, call.Delivered)
		leave(both, call.Delivered)
		stop(e)
	})
}

type resumable func(ctx context.Context, x *call.Exec) call.Answer

func (f resumable) Run(ctx context.Context, x *call.Exec) call.Answer { return f(ctx, x) }
func (resumable) Resumable(r *call.Record) bool                       { return r.Address != nil }

// A cancel that is on record holds over a crash: the call is taken up only to be
// told so.
func TestCancelSurvivesCrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, r := calltest.NewMemory(), newTool()
		e := call.NewEngine(log, r, call.Options{Epoch: 1})
		c := attach(t, e, spec("a"), call.Started)
		synctest.Wait()
		frozen := calltest.NewMemory()
		log.Fail(func(op string) error {
			if op == "finish" { // killed before the end is stored
				return errors.New("killed")
			}
			return nil
		})
		if err := c.Cancel(call.End{By: "agent", Text: "enough: really"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		log.Sync()
		log.CopyTo(frozen)
		log.Fail(nil)
		leave(c, "")
		e.Stop(t.Context())

		e = call.NewEngine(frozen, r, call.Options{Epoch: 2})
		if n, _, err := e.Recover(t.Context()); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		synctest.Wait()
		got, err := e.Get(t.Context(), "ann", c.ID())
		if err != nil {
			t.Fatal(err)
		}
		if end := got.Record().End; end.Outcome != call.Cancelled || end.By != "agent" || end.Text != "enough: really" {
			t.Errorf("end %+v", end)
		}
		if len(r.heard) != 2 {
			t.Errorf("the tool server was told %d times, want once by each process", len(r.heard))
		}
		e.Stop(t.Context())
	})
}

// An engine that stops takes nothing up any more: the next one does. One that is
// told to stop in the middle of it waits for that, and leaves what it took.
func TestRecoverWhileStopping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, r := calltest.NewMemory(), newTool()
		e := call.NewEngine(log, r, call.Options{Epoch: 1})
		c := attach(t, e, spec("a"), call.Started)
		synctest.Wait()
		log.Sync()
		over, cancel := context.WithCancel(t.Context())
		cancel()
		e.Stop(over)

		e = call.NewEngine(log, r, call.Options{Epoch: 2})
		e.Stop(over)
		if n, lost, err := e.Recover(t.Context()); n != 0 || lost != 0 || err != nil {
			t.Errorf("a stopped engine took up %d and lost %d, %v", n, lost, err)
		}

		e = call.NewEngine(log, r, call.Options{Epoch: 3})
		hold := make(chan struct{})
		log.Fail(func(op string) error {
			if op == "adopt" {
				<-hold
			}
			return nil
		})
		var wg sync.WaitGroup
		wg.Go(func() {
			if n, _, err := e.Recover(t.Context()); n != 1 || err != nil {
				t.Errorf("took up %d, %v", n, err)
			}
		})
		synctest.Wait()
		stopped := false
		wg.Go(func() { e.Stop(over); stopped = true })
		synctest.Wait()
		if stopped {
			t.Error("Stop did not wait")
		}
		close(hold)
		wg.Wait()
		if rec, err := log.Get(t.Context(), c.ID()); err != nil || rec.End.Outcome != call.Running {
			t.Errorf("the call is not left to the next process: %+v, %v", rec.End, err)
		}
		leave(c, "")
	})
}
