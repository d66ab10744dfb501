package call

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// I1, I2, I3: one dispatch, contiguous events, one end; the log and the reader
// see the same.
func TestOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, obs := newFakeLog(), newWatcher()
		e := NewEngine(log, runFunc(func(_ context.Context, x *Exec) Answer {
			if err := x.Dispatched(); err != nil {
				t.Errorf("first dispatch: %v", err)
			}
			if err := x.Dispatched(); err == nil {
				t.Error("I1: a second dispatch was let through")
			}
			x.FirstByte()
			for i := range 3 {
				time.Sleep(time.Second)
				if err := x.Emit(progress(i)); err != nil {
					t.Errorf("emit: %v", err)
				}
			}
			x.Note("the stream was lost and %s", "resumed")
			return completed("done")
		}), Options{Epoch: 7, Observer: obs})
		began := time.Now()
		c := start(t, e, Spec{Request: []byte("secret"), Tool: "slow"})
		evs := all(t, c)
		want := "accepted dispatched progress progress progress note end"
		if got := strings.Join(kinds(evs), " "); got != want {
			t.Errorf("events %q, want %q", got, want)
		}
		last := evs[len(evs)-1]
		if last.End.Outcome != Completed || string(last.Body) != "done" || since(began) != 3*time.Second {
			t.Errorf("end %+v body %q after %s", last.End, last.Body, since(began))
		}
		e.Stop(t.Context())
		r, stored := log.kept(c.ID())
		checkEvents(t, stored)
		if len(stored) != len(evs) || r.Seq != 7 || r.Epoch != 7 || r.End.Outcome != Completed || r.Missing != 0 {
			t.Errorf("stored %v, record %+v", kinds(stored), r)
		}
		if r.Bytes != uint64(3+len("the stream was lost and resumed")+len("done")) {
			t.Errorf("bytes %d", r.Bytes)
		}
		if c.Record().Request != nil {
			t.Error("the request stays in memory after it was sent")
		}
		if obs.started[c.ID()] != 1 || obs.ended[c.ID()] != 1 || !obs.stored[0] || e.InFlight() != 0 {
			t.Errorf("observer %+v, in flight %d", obs, e.InFlight())
		}
	})
}

// I2: nothing follows the terminal event, not even what a runner lets slip
// while its end is being stored.
func TestNothingAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		log.onFinish = func(context.Context) error { time.Sleep(time.Second); return nil }
		slipped := make(chan struct{})
		e := NewEngine(log, runFunc(func(_ context.Context, x *Exec) Answer {
			_ = x.Dispatched()
			go func() {
				defer close(slipped)
				time.Sleep(time.Second / 2)
				_ = x.Emit(progress(1))
				x.Note("too late")
				time.Sleep(time.Second)
				_ = x.Emit(progress(2))
			}()
			return completed("done")
		}), Options{})
		c := start(t, e, Spec{})
		evs := all(t, c)
		<-slipped
		e.Stop(t.Context())
		r, stored := log.kept(c.ID())
		checkEvents(t, stored)
		if len(evs) != 3 || len(stored) != 3 || r.Seq != 3 || c.Record().Seq != 3 {
			t.Errorf("shown %v, stored %v, seq %d", kinds(evs), kinds(stored), c.Record().Seq)
		}
	})
}

func TestTotalLimit(t *testing.T) {
	for _, tt := range []struct {
		name   string
		run    runFunc
		want   Outcome
		after  time.Duration
		phrase string
	}{
		{"silent", untilTold, TimedOut, 10 * time.Second, "limits.total"},
		{"progress does not help", func(ctx context.Context, x *Exec) Answer {
			_ = x.Dispatched()
			for ctx.Err() == nil {
				_ = x.Emit(progress(1))
				select {
				case <-ctx.Done():
				case <-time.After(time.Second):
				}
			}
			return Answer{}
		}, TimedOut, 10 * time.Second, "may have taken effect"},
		{"never sent", func(ctx context.Context, _ *Exec) Answer {
			<-ctx.Done()
			return Answer{}
		}, TimedOut, 10 * time.Second, "Nothing was sent"},
		{"just in time", func(_ context.Context, x *Exec) Answer {
			_ = x.Dispatched()
			time.Sleep(10*time.Second - 1)
			return completed("ok")
		}, Completed, 10*time.Second - 1, ""},
		{"an answer that came all the same is an answer", func(ctx context.Context, x *Exec) Answer {
			_ = x.Dispatched()
			<-ctx.Done()
			time.Sleep(time.Second)
			return completed("ok")
		}, Completed, 11 * time.Second, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := NewEngine(newFakeLog(), tt.run, Options{})
				began := time.Now()
				c := start(t, e, Spec{Limits: Limits{Total: 10 * time.Second}})
				got := end(t, c)
				if got.Outcome != tt.want || !strings.Contains(got.Text, tt.phrase) || since(began) != tt.after {
					t.Errorf("%+v after %s, want %s after %s", got, since(began), tt.want, tt.after)
				}
				if got.Outcome == TimedOut && got.Limit != "total" {
					t.Errorf("limit %q", got.Limit)
				}
				e.Stop(t.Context())
			})
		})
	}
}

// I4: a terminal event is stored before it is shown.
// A log that takes nothing delays a result by FinishWait and no longer; the
// end is stored as soon as the log works again.
func TestStopWaitsForCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := NewEngine(newFakeLog(), runFunc(func(_ context.Context, x *Exec) Answer {
			_ = x.Dispatched()
			time.Sleep(20 * time.Second)
			return completed("ok")
		}), Options{})
		c := start(t, e, Spec{})
		began := time.Now()
		go func() {
			time.Sleep(time.Second)
			if _, err := e.Start(t.Context(), Spec{}); !errors.Is(err, ErrStopping) {
				t.Errorf("start while stopping: %v", err)
			}
		}()
		e.Stop(t.Context())
		if got := end(t, c); got.Outcome != Completed || since(began) != 20*time.Second {
			t.Errorf("%+v after %s", got, since(began))
		}
	})
}

// leaver is a runner all of whose calls can be left, and those of a tool at once.
type leaver struct{ runFunc }

func (leaver) Resumable(*Record) bool { return true }
func (leaver) Leaves(r *Record) bool  { return r.Tool == "command" }

// A call that goes on by itself is left at once, and stays running on record; the
// others are waited for, and a cancelled one ends.
func TestStopLeavesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		e := NewEngine(log, leaver{func(ctx context.Context, x *Exec) Answer {
			_ = x.Dispatched()
			<-ctx.Done()
			time.Sleep(time.Second)
			return Answer{}
		}}, Options{})
		c, cancelled, other := start(t, e, Spec{Tool: "command"}), start(t, e, Spec{Tool: "command"}), start(t, e, Spec{})
		synctest.Wait()
		if err := cancelled.Cancel(End{By: "agent"}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		var left time.Duration
		go func() {
			for _, err := range c.Follow(t.Context(), 0, 0) {
				if errors.Is(err, ErrLeft) {
					left = since(began)
				}
			}
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		e.Stop(ctx)
		synctest.Wait()
		if since(began) != 21*time.Second || left != time.Second {
			t.Errorf("stopped after %s, left after %s", since(began), left)
		}
		for want, c := range map[Outcome]*Call{Running: c, Cancelled: cancelled} {
			if r, _ := log.kept(c.ID()); r.End.Outcome != want {
				t.Errorf("recorded as %+v, not %q", r.End, want)
			}
		}
		if r, _ := log.kept(other.ID()); r.End.Outcome != Running {
			t.Errorf("what was left after the wait is recorded as %+v", r.End)
		}
	})
}

func TestStopInterrupts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		e := NewEngine(log, runFunc(func(ctx context.Context, x *Exec) Answer {
			if x.Spec.Tool != "unsent" {
				_ = x.Dispatched()
			}
			<-ctx.Done()
			return Answer{}
		}), Options{})
		c, unsent := start(t, e, Spec{}), start(t, e, Spec{Tool: "unsent"})
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		e.Stop(ctx)
		if since(began) != 5*time.Second {
			t.Errorf("stopped after %s", since(began))
		}
		if got := end(t, c); got.Outcome != Interrupted || got.By != "shutdown" {
			t.Errorf("%+v", got)
		}
		if got := end(t, unsent); got.Outcome != Failed || !strings.Contains(got.Text, "Nothing was sent") {
			t.Errorf("a request that never left has a known outcome: %+v", got)
		}
		if r, _ := log.kept(c.ID()); r.End.Outcome != Interrupted {
			t.Errorf("stored %+v", r.End)
		}
	})
}

// I8: Stop returns even if the log never takes the end of a call.
func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		e := NewEngine(log, runFunc(func(ctx context.Context, x *Exec) Answer {
			_ = x.Dispatched()
			<-ctx.Done()
			var cause *Cause
			if !errors.As(context.Cause(ctx), &cause) || cause.End.By != "agent" || cause.End.Outcome != Cancelled {
				t.Errorf("the runner sees %v", context.Cause(ctx))
			}
			time.Sleep(time.Second) // telling the tool server
			return Answer{}
		}), Options{})
		c := start(t, e, Spec{})
		time.Sleep(3 * time.Second)
		if err := e.Tell("mallory", c.ID(), End{By: "agent"}); !errors.Is(err, ErrUnknown) {
			t.Errorf("I6: a foreign cancel gave %v", err)
		}
		if err := e.Tell("alice", c.ID(), End{By: "agent", Text: "not needed any more"}); err != nil {
			t.Errorf("cancel: %v", err)
		}
		if err := e.Tell("alice", c.ID(), End{By: "operator"}); err != nil {
			t.Errorf("second cancel: %v", err)
		}
		evs := all(t, c)
		want := "accepted dispatched cancel_requested end"
		if got := strings.Join(kinds(evs), " "); got != want {
			t.Errorf("events %q, want %q", got, want)
		}
		if d := evs[3].Time.Sub(evs[2].Time); d != time.Second {
			t.Errorf("end %s after the cancel", d)
		}
		if last := evs[3]; last.End.Outcome != Cancelled || last.End.By != "agent" || last.Body != nil {
			t.Errorf("end %+v", last.End)
		}
		if err := c.Cancel(End{By: "agent"}); !errors.Is(err, ErrNotRunning) {
			t.Errorf("cancel after the end: %v", err)
		}
		synctest.Wait()
		if err := e.Tell("alice", c.ID(), End{By: "agent"}); !errors.Is(err, ErrUnknown) {
			t.Errorf("tell after the end: %v", err)
		}
		e.Stop(t.Context())
	})
}

// I1: what was cancelled before it left never leaves.
func TestCancelBeforeDispatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := NewEngine(newFakeLog(), runFunc(func(_ context.Context, x *Exec) Answer {
			time.Sleep(time.Second) // connecting
			var cause *Cause
			if err := x.Dispatched(); !errors.As(err, &cause) || cause.End.Outcome != Cancelled {
				t.Errorf("dispatch after the cancel: %v", err)
			}
			return Answer{}
		}), Options{})
		c := start(t, e, Spec{})
		if err := c.Cancel(End{By: "agent", Text: "never mind"}); err != nil {
			t.Fatal(err)
		}
		if got := end(t, c); got.Outcome != Cancelled || !c.Record().Dispatched.IsZero() {
			t.Errorf("%+v", got)
		}
		e.Stop(t.Context())
	})
}

// O22: an answer after the cancel is kept, and shown to no agent as the result.
func TestCancelWithLateAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		e := NewEngine(log, runFunc(func(ctx context.Context, x *Exec) Answer {
			_ = x.Dispatched()
			<-ctx.Done()
			return Answer{End: End{Outcome: Completed}, Body: []byte(`{"id":0}`), Hole: 6}
		}), Options{})
		c := start(t, e, Spec{})
		synctest.Wait()
		if err := c.Cancel(End{By: "operator", Text: "wrong folder"}); err != nil {
			t.Fatal(err)
		}
		evs := all(t, c)
		want := "accepted dispatched cancel_requested late_result end"
		if got := strings.Join(kinds(evs), " "); got != want {
			t.Fatalf("events %q, want %q", got, want)
		}
		if late := evs[3]; string(late.Body) != `{"id":0}` || late.Hole != 6 {
			t.Errorf("late result %q hole %d", late.Body, late.Hole)
		}
		if last := evs[4]; last.End.Outcome != Cancelled || last.End.By != "operator" || last.Body != nil || last.Hole != -1 {
			t.Errorf("end %+v body %q", last.End, last.Body)
		}
		e.Stop(t.Context())
	})
}

func TestDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, obs := newFakeLog(), newWatcher()
		e := NewEngine(log, runFunc(func(context.Context, *Exec) Answer {
			t.Error("a denied call reached the runner")
			return Answer{}
		}), Options{Observer: obs})
		c := start(t, e, Spec{Denied: &End{By: "policy", Text: "no deploys on Friday"}})
		if got := end(t, c); got.Outcome != Denied || got.Text != "no deploys on Friday" {
			t.Errorf("%+v", got)
		}
		r, evs := log.kept(c.ID())
		checkEvents(t, evs)
		if r.End.Outcome != Denied || r.Ended.IsZero() || !r.Dispatched.IsZero() {
			t.Errorf("record %+v", r)
		}
		if err := c.Cancel(End{}); !errors.Is(err, ErrNotRunning) {
			t.Errorf("cancel of a denied call: %v", err)
		}
		if obs.started[c.ID()] != 1 || obs.ended[c.ID()] != 1 || e.InFlight() != 0 {
			t.Errorf("observer %+v, in flight %d", obs, e.InFlight())
		}
		e.Stop(t.Context())
	})
}

func TestConcurrencyLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := NewEngine(newFakeLog(), runFunc(untilTold), Options{})
		spec := func(principal, server string) Spec {
			return Spec{Principal: principal, Server: server, Limits: Limits{PerServer: 2, PerPrincipal: 3}}
		}
		a1 := start(t, e, spec("a", "s1"))
		b1 := start(t, e, spec("b", "s1"))
		full := start(t, e, spec("c", "s1"))
		if got := end(t, full); got.Outcome != Denied || got.Limit != "concurrency" || !strings.Contains(got.Text, `"s1"`) {
			t.Errorf("third call on a server that takes two: %+v", got)
		}
		a2, a3 := start(t, e, spec("a", "s2")), start(t, e, spec("a", "s3"))
		if got := end(t, start(t, e, spec("a", "s4"))); got.Outcome != Denied || got.Limit != "concurrency" {
			t.Errorf("fourth call of a principal who may have three: %+v", got)
		}
		for _, c := range []*Call{a1, a2, a3, b1} {
			if err := c.Cancel(End{By: "agent"}); err != nil {
				t.Error(err)
			}
			end(t, c)
		}
		synctest.Wait()
		if len(e.perServer) != 0 || len(e.perPrincipal) != 0 || e.InFlight() != 0 {
			t.Errorf("counts are left: %v %v %d", e.perServer, e.perPrincipal, e.InFlight())
		}
		again := start(t, e, spec("c", "s1"))
		_ = again.Cancel(End{})
		if got := end(t, again); got.Outcome != Cancelled {
			t.Errorf("%+v", got)
		}
		e.Stop(t.Context())
	})
}

func TestCallBytesLimit(t *testing.T) {
	for _, tt := range []struct {
		name string
		give func(error) Answer
	}{
		{"runner gives no outcome", func(error) Answer { return Answer{} }},
		{"runner gives the cause", func(err error) Answer {
			var c *Cause
			errors.As(err, &c)
			return Answer{End: c.End}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var emitted atomic.Int32
				e := NewEngine(newFakeLog(), runFunc(func(_ context.Context, x *Exec) Answer {
					_ = x.Dispatched()
					for {
						if err := x.Emit(Event{Kind: KindMessage, Hole: -1, Body: make([]byte, 10)}); err != nil {
							return tt.give(err)
						}
						emitted.Add(1)
					}
				}), Options{})
				c := start(t, e, Spec{Limits: Limits{Call: 100}})
				got := end(t, c)
				if got.Outcome != Failed || got.Limit != "call_bytes" || emitted.Load() != 10 {
					t.Errorf("%+v after %d events", got, emitted.Load())
				}
				e.Stop(t.Context())
			})
		})
	}
}

// A request whose client is gone before it was accepted is not run.
// A full queue costs history, never the live update or the end.
