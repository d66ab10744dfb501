package call

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// refusing is a log that may not be used.
type refusing struct {
	*fakeLog
	t *testing.T
}

func (l refusing) Create(context.Context, *Record, ...Event) error {
	l.t.Error("the call was stored")
	return nil
}

func (l refusing) Append(ID, uint64, Event) error {
	l.t.Error("an event was stored")
	return nil
}

func (l refusing) Finish(context.Context, *Record, Event) error {
	l.t.Error("the end was stored")
	return nil
}
func (l refusing) Deliver(Delivery) { l.t.Error("a delivery was stored") }

func volatileSpec() Spec {
	return Spec{
		Principal: "ann", Server: "up", Method: "prompts/get", Volatile: true, Digest: "d", Idempotency: "key",
		Attach: AttachAlways, Request: []byte(`{}`), Arguments: []byte(`{}`),
	}
}

// A volatile call is shown to its end like any other, and leaves nothing behind.
func TestVolatileIsNotStored(t *testing.T) {
	w := newWatcher()
	e := NewEngine(refusing{newFakeLog(), t}, runFunc(func(_ context.Context, x *Exec) Answer {
		for range 2 { // it may be sent again
			if err := x.Dispatched(); err != nil {
				t.Error(err)
			}
			if x.Spec.Request == nil {
				t.Error("the request is gone")
			}
		}
		if err := x.Emit(Event{Kind: KindProgress, Body: []byte(`{"p":0}`), Hole: 5}); err != nil {
			t.Error(err)
		}
		return Answer{End: End{Outcome: Completed}, Body: []byte(`{"id":0}`), Hole: 6}
	}), Options{Epoch: 1, Observer: w})
	c, join, err := e.Attach(t.Context(), volatileSpec())
	if err != nil || join != Started {
		t.Fatal(join, err)
	}
	var kinds []string
	for ev, err := range c.Follow(t.Context(), 0, 0) {
		if err != nil {
			t.Fatal(err)
		}
		kinds = append(kinds, ev.Kind.String())
	}
	if got := strings.Join(kinds, " "); got != "accepted dispatched dispatched progress end" {
		t.Error(got)
	}
	c.Leave(Delivery{Call: c.ID(), How: Delivered}, -1)
	e.Stop(t.Context())
	if _, err := e.Get(t.Context(), "ann", c.ID()); !errors.Is(err, ErrUnknown) {
		t.Errorf("it is still there: %v", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.started[c.ID()] != 1 || w.ended[c.ID()] != 1 {
		t.Errorf("observed %d starts, %d ends", w.started[c.ID()], w.ended[c.ID()])
	}
}

// Equal volatile calls are never one, whatever they say, and are in no list.
func TestVolatileIsNotJoined(t *testing.T) {
	log := newFakeLog()
	e := NewEngine(log, runFunc(func(ctx context.Context, _ *Exec) Answer { <-ctx.Done(); return Answer{} }), Options{Epoch: 1})
	var calls []*Call
	for range 2 {
		c, join, err := e.Attach(t.Context(), volatileSpec())
		if err != nil || join != Started {
			t.Fatal(join, err)
		}
		calls = append(calls, c)
	}
	if n := len(e.Open("ann")); n != 0 {
		t.Errorf("%d calls are open", n)
	}
	if got, err := e.Get(t.Context(), "ann", calls[0].ID()); err != nil || got != calls[0] {
		t.Errorf("the running call is not found by its id: %v", err)
	}
	for _, c := range calls {
		c.Leave(Delivery{Call: c.ID(), How: AbortedDownstream}, -1)
	}
	e.Stop(t.Context())
}

// A volatile call ends with its reader, whatever the reader's era says of that.
func TestVolatileEndsWithItsReader(t *testing.T) {
	sent, gone := make(chan struct{}), make(chan error, 1)
	e := NewEngine(newFakeLog(), runFunc(func(ctx context.Context, x *Exec) Answer {
		if err := x.Dispatched(); err != nil {
			t.Error(err)
		}
		close(sent)
		<-ctx.Done()
		gone <- context.Cause(ctx)
		return Answer{}
	}), Options{Epoch: 1})
	c, _, err := e.Attach(t.Context(), volatileSpec())
	if err != nil {
		t.Fatal(err)
	}
	<-sent
	c.Leave(Delivery{Call: c.ID(), How: AbortedDownstream}, -1)
	select {
	case cause := <-gone:
		var why *Cause
		if !errors.As(cause, &why) || why.End.Outcome != Cancelled || why.End.By != "disconnect" {
			t.Errorf("ended because of %v", cause)
		}
	case <-time.After(10 * time.Second):
		t.Error("it runs on without a reader")
	}
	e.Stop(t.Context())
}
