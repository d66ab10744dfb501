package call_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/call/calltest"
)

// tool is a runner whose calls end when they are told to; it counts how often
// each set of arguments was dispatched.
type tool struct {
	mu    sync.Mutex
	runs  map[string]int
	ends  map[string]chan call.Answer
	heard []string // digests that were cancelled
}

func newTool() *tool { return &tool{runs: map[string]int{}, ends: map[string]chan call.Answer{}} }

func (r *tool) end(digest string) chan call.Answer {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ends[digest] == nil {
		r.ends[digest] = make(chan call.Answer)
	}
	return r.ends[digest]
}

func (r *tool) Run(ctx context.Context, x *call.Exec) call.Answer {
	if x.Resume == nil {
		if err := x.Dispatched(); err != nil {
			return call.Answer{}
		}
		r.mu.Lock()
		r.runs[x.Spec.Digest]++
		r.mu.Unlock()
		x.Address([]byte(`{"at":"` + x.Spec.Digest + `"}`))
	}
	select {
	case a := <-r.end(x.Spec.Digest):
		return a
	case <-ctx.Done():
		if !errors.Is(context.Cause(ctx), call.ErrLeft) {
			r.mu.Lock()
			r.heard = append(r.heard, x.Spec.Digest)
			r.mu.Unlock()
		}
		return call.Answer{}
	}
}

func (r *tool) Resumable(rec *call.Record) bool {
	return rec.Tool != "gone" && rec.Address != nil && !rec.Dispatched.IsZero()
}

func done(text string) call.Answer {
	return call.Answer{End: call.End{Outcome: call.Completed}, Body: []byte(text), Hole: -1}
}

func spec(digest string) call.Spec {
	return call.Spec{Principal: "ann", Server: "up", Tool: "work", Digest: digest}
}

func attach(t *testing.T, e *call.Engine, s call.Spec, want call.Join) *call.Call {
	t.Helper()
	c, join, err := e.Attach(t.Context(), s)
	if err != nil || join != want {
		t.Fatalf("attach: join %d, %v; want %d", join, err, want)
	}
	return c
}

func leave(c *call.Call, how call.How) { c.Leave(call.Delivery{Call: c.ID(), How: how}, -1) }

func last(t *testing.T, c *call.Call) call.Event {
	t.Helper()
	var ev call.Event
	for e, err := range c.Follow(t.Context(), 0, 0) {
		if err != nil {
			t.Fatal(err)
		}
		ev = e
	}
	return ev
}

// X-7, SPEC §3.7: a call whose reader vanished takes the request that comes
// again; one that is still read does not.
func TestAttachRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTool()
		e := call.NewEngine(calltest.NewMemory(), r, call.Options{Epoch: 1})
		first := attach(t, e, spec("a"), call.Started)
		twin := attach(t, e, spec("a"), call.Started) // both wanted: two calls
		leave(first, call.AbortedDownstream)
		other := spec("a")
		other.Principal = "bob"
		stranger := attach(t, e, other, call.Started) // I6
		never := spec("a")
		never.Attach = call.AttachNever
		apart := attach(t, e, never, call.Started)
		if again := attach(t, e, spec("a"), call.Joined); again != first {
			t.Error("joined another call")
		}
		fourth := attach(t, e, spec("a"), call.Started) // it is read again
		leave(first, call.HandedOff)
		if again := attach(t, e, spec("a"), call.Joined); again != first {
			t.Error("a call that was handed off is not found")
		}
		always := spec("a")
		always.Attach = call.AttachAlways
		if again := attach(t, e, always, call.Joined); again != first {
			t.Error("always does not join")
		}
		for range 5 {
			r.end("a") <- done("x")
		}
		synctest.Wait()
		for _, c := range []*call.Call{twin, stranger, apart, fourth} {
			leave(c, call.Delivered)
		}
		e.Stop(t.Context())
		if r.runs["a"] != 5 {
			t.Errorf("%d runs", r.runs["a"])
		}
	})
}

// A result that nobody got is shown once; one that somebody got never is.
func TestAttachReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTool()
		e := call.NewEngine(calltest.NewMemory(), r, call.Options{Epoch: 1, Window: time.Minute})
		defer e.Stop(t.Context())
		c := attach(t, e, spec("a"), call.Started)
		leave(c, call.AbortedDownstream)
		r.end("a") <- done("result")
		synctest.Wait()
		again := attach(t, e, spec("a"), call.Replay)
		if string(last(t, again).Body) != "result" {
			t.Error("another result")
		}
		leave(again, call.AbortedDownstream) // lost again: still owed
		again = attach(t, e, spec("a"), call.Replay)
		busy := attach(t, e, spec("a"), call.Started) // it is being shown to somebody
		leave(again, call.Replayed)
		leave(busy, call.AbortedDownstream)
		r.end("a") <- done("second")
		synctest.Wait()
		if again = attach(t, e, spec("a"), call.Replay); string(last(t, again).Body) != "second" {
			t.Error("the delivered result came again")
		}
		leave(again, call.AbortedDownstream)
		time.Sleep(time.Minute + time.Second)
		fresh := attach(t, e, spec("a"), call.Started) // the window is over
		if err := fresh.Cancel(call.End{By: "agent", Text: "no"}); err != nil {
			t.Error(err)
		}
		leave(fresh, "")
		synctest.Wait()
		fresh = attach(t, e, spec("a"), call.Started) // a cancelled one is owed to nobody
		r.end("a") <- done("third")
		leave(fresh, call.Delivered)
		synctest.Wait()
		if got, err := e.Get(t.Context(), "ann", c.ID()); err != nil || string(last(t, got).Body) != "result" {
			t.Errorf("the first result is not kept: %v", err)
		}
	})
}

// An idempotency key is one call, whoever still reads it and however it ended.
func TestIdempotencyKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, r := calltest.NewMemory(), newTool()
		e := call.NewEngine(log, r, call.Options{Epoch: 1})
		keyed := spec("a")
		keyed.Idempotency, keyed.Attach = "k1", call.AttachNever
		var started, joined atomic.Int32
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				c, join, err := e.Attach(t.Context(), keyed)
				if err != nil {
					t.Error(err)
					return
				}
				if join == call.Started {
					started.Add(1)
				} else {
					joined.Add(1)
				}
				if string(last(t, c).Body) != "once" {
					t.Error("another result")
				}
				leave(c, call.Delivered)
			})
		}
		synctest.Wait()
		r.end("a") <- done("once")
		wg.Wait()
		if started.Load() != 1 || joined.Load() != 49 || r.runs["a"] != 1 {
			t.Errorf("started %d, joined %d, ran %d", started.Load(), joined.Load(), r.runs["a"])
		}
		c := attach(t, e, keyed, call.Replay)
		leave(c, call.Replayed)
		wrong := keyed
		wrong.Digest = "b"
		if _, _, err := e.Attach(t.Context(), wrong); !errors.Is(err, call.ErrMismatch) {
			t.Errorf("other arguments: %v", err)
		}
		other := keyed
		other.Principal = "bob"
		c = attach(t, e, other, call.Started)
		r.end("a") <- done("bob's")
		leave(c, call.Delivered)
		e.Stop(t.Context())

		e = call.NewEngine(log, r, call.Options{Epoch: 2})
		if _, _, err := e.Recover(t.Context()); err != nil {
			t.Fatal(err)
		}
		c = attach(t, e, keyed, call.Replay)
		if string(last(t, c).Body) != "once" {
			t.Error("after a restart: another result")
		}
		leave(c, call.Replayed)
		e.Stop(t.Context())
	})
}

// A key whose call could not be stored leaves nobody waiting.
func TestIdempotencyKeyRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := calltest.NewMemory()
		block := make(chan struct{})
		log.Fail(func(op string) error {
			if op == "create" {
				<-block
				return errors.New("the disk is gone")
			}
			return nil
		})
		e := call.NewEngine(log, newTool(), call.Options{Epoch: 1, Refuse: true})
		keyed := spec("a")
		keyed.Idempotency = "k"
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, _, err := e.Attach(t.Context(), keyed); err == nil {
				t.Error("started without a record")
			}
		})
		synctest.Wait()
		second := attach(t, e, keyed, call.Joined)
		wg.Go(func() {
			if ev := last(t, second); ev.End == nil || ev.End.Outcome != call.Denied {
				t.Errorf("the second one got %+v", ev.End)
			}
			leave(second, call.Delivered)
		})
		synctest.Wait()
		close(block)
		wg.Wait()
		log.Fail(nil)
		third := attach(t, e, keyed, call.Started)
		_ = third.Cancel(call.End{By: "agent", Text: "enough"})
		leave(third, "")
		e.Stop(t.Context())
	})
}

// I7: on_disconnect cancels after its grace, unless a reader comes or the call
// was handed off.
func TestCancelWhenAlone(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(t *testing.T, e *call.Engine, c *call.Call)
		runs bool
	}{
		{"nobody comes", func(*testing.T, *call.Engine, *call.Call) {}, false},
		{"an equal call", func(t *testing.T, e *call.Engine, _ *call.Call) { attach(t, e, spec("a"), call.Joined) }, true},
		{"a reader", func(_ *testing.T, _ *call.Engine, c *call.Call) { c.Enter() }, true},
		{"one that leaves again", func(_ *testing.T, _ *call.Engine, c *call.Call) {
			c.Enter()
			c.Leave(call.Delivery{Call: c.ID(), How: call.AbortedDownstream}, 15*time.Second)
		}, false},
		{"handed off", func(_ *testing.T, _ *call.Engine, c *call.Call) { c.Enter(); leave(c, call.HandedOff) }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newTool()
				e := call.NewEngine(calltest.NewMemory(), r, call.Options{Epoch: 1})
				c := attach(t, e, spec("a"), call.Started)
				c.Leave(call.Delivery{Call: c.ID(), How: call.AbortedDownstream}, 15*time.Second)
				time.Sleep(14 * time.Second)
				synctest.Wait()
				if e.InFlight() != 1 {
					t.Fatal("cancelled within the grace")
				}
				tt.do(t, e, c)
				time.Sleep(20 * time.Second)
				synctest.Wait()
				if runs := e.InFlight() == 1; runs != tt.runs {
					t.Errorf("runs: %v", runs)
				}
				if !tt.runs {
					if end := c.Record().End; end.Outcome != call.Cancelled || end.By != "disconnect" {
						t.Errorf("end %+v", end)
					}
				}
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				e.Stop(ctx)
			})
		})
	}
}

// The call is found from the moment its agent is told to come back, not from when
// that was noted; a reader that could not be told leaves it as it was.
func TestAttachWhileHandingOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTool()
		e := call.NewEngine(calltest.NewMemory(), r, call.Options{Epoch: 1})
		c := attach(t, e, spec("a"), call.Started)
		done := c.HandingOff()
		if again := attach(t, e, spec("a"), call.Joined); again != c {
			t.Error("another call")
		}
		leave(c, call.HandedOff)
		done()
		if again := attach(t, e, spec("a"), call.Joined); again != c {
			t.Error("another call after it was handed off")
		}
		r.end("a") <- answered
		synctest.Wait()

		c = attach(t, e, spec("b"), call.Started)
		done = c.HandingOff()
		c.Leave(call.Delivery{Call: c.ID(), How: call.AbortedDownstream}, time.Second) // the write failed
		done()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if end := c.Record().End; end.By != "disconnect" {
			t.Errorf("the call outlives a hand-off that nobody got: %+v", end)
		}
		c = attach(t, e, spec("c"), call.Started)
		done = c.HandingOff()
		done()
		if again := attach(t, e, spec("c"), call.Started); again == c {
			t.Error("a call that is read is joined")
		}
		over, cancel := context.WithCancel(t.Context())
		cancel()
		e.Stop(over)
	})
}

var answered = done("x")
