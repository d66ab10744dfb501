package call_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/call/calltest"
)

// One who waits for a call by its id keeps it alive, and keeps nobody from taking
// it over whose request it was: nothing runs twice because somebody looks on.
func TestWatchAndAttach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTool()
		e := call.NewEngine(calltest.NewMemory(), r, call.Options{Epoch: 1})
		defer e.Stop(gone(t))
		first := attach(t, e, spec("a"), call.Started)
		first.Watch()
		attach(t, e, spec("a"), call.Started) // the first is still read by its request
		first.Leave(call.Delivery{Call: first.ID(), How: call.AbortedDownstream}, time.Second)
		if again := attach(t, e, spec("a"), call.Joined); again != first {
			t.Error("joined another call")
		}
		// With a request that reads it, a watcher's coming back is the watcher's own.
		first.Unwatch(call.Delivery{Call: first.ID(), Kind: "await", How: call.HandedOff})
		attach(t, e, spec("a"), call.Started)
		first.Leave(call.Delivery{Call: first.ID(), How: call.AbortedDownstream}, time.Second)
		time.Sleep(900 * time.Millisecond)
		first.Watch() // within the grace
		time.Sleep(time.Hour)
		first.Unwatch(call.Delivery{Call: first.ID(), Kind: "await", How: call.HandedOff})
		time.Sleep(time.Hour)
		if rec := first.Record(); rec.End.Outcome != call.Running || !rec.HandedOff {
			t.Errorf("%+v, handed off %v", rec.End, rec.HandedOff)
		}
		if again := attach(t, e, spec("a"), call.Joined); again != first {
			t.Error("joined another call")
		}
	})
}

// gone is over at once, for a Stop that waits for nothing.
func gone(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// One channel wakes for any number of calls, and Look shows what has come since.
func TestNotifyAndLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ends := make(chan struct{})
		e := call.NewEngine(calltest.NewMemory(), runs(func(ctx context.Context, x *call.Exec) call.Answer {
			_ = x.Dispatched()
			for i := range 2000 {
				if err := x.Emit(call.Event{Kind: call.KindProgress, Hole: -1, Body: fmt.Appendf(nil, "%d", i)}); err != nil {
					return call.Answer{}
				}
			}
			<-ends
			return done("worked")
		}), call.Options{Epoch: 1})
		defer e.Stop(gone(t))
		wake := make(chan struct{}, 1)
		var calls []*call.Call
		for i := range 3 {
			c := attach(t, e, spec(fmt.Sprint(i)), call.Started)
			stop := c.Notify(wake)
			defer stop()
			calls = append(calls, c)
		}
		if list := e.Open("ann"); len(list) != 3 || len(e.Open("bob")) != 0 {
			t.Errorf("%d calls are open", len(list))
		}
		synctest.Wait()
		<-wake
		var seen uint64
		for _, c := range calls {
			s, err := c.Look(t.Context(), 0)
			if err != nil || s.Outcome != call.Running || string(s.Progress.Body) != "1999" || s.Elsewhere || s.Left {
				t.Fatalf("%+v, %v", s, err)
			}
			seen = s.Seq
			if s, _ = c.Look(t.Context(), seen); s.Progress.Seq != 0 {
				t.Errorf("progress %d again after %d", s.Progress.Seq, seen)
			}
		}
		ends <- struct{}{}
		synctest.Wait()
		select {
		case <-wake:
		default:
			t.Fatal("an end wakes nobody")
		}
		n := 0
		for _, c := range calls {
			if s, _ := c.Look(t.Context(), seen); s.Outcome == call.Completed {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%d calls have ended", n)
		}
		stop := calls[0].Notify(wake)
		stop()
		stop() // as good as once
		close(ends)
		synctest.Wait()
	})
}

type runs func(ctx context.Context, x *call.Exec) call.Answer

func (f runs) Run(ctx context.Context, x *call.Exec) call.Answer { return f(ctx, x) }
