package call

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestAnsweredIsAskedNoMore: once Answer returns, its keys are gone, and a tool
// server that was asked before does not bring them back. One that refused an
// answer does.
func TestAnsweredIsAskedNoMore(t *testing.T) {
	const both = `{"a":{"method":"elicitation/create"},"b":{"method":"elicitation/create"}}`
	asked, again, refused := make(chan struct{}), make(chan struct{}), make(chan struct{})
	answered, seen := make(chan struct{}), make(chan struct{})
	e := NewEngine(newFakeLog(), runFunc(func(ctx context.Context, x *Exec) Answer {
		x.Ask([]byte(both), nil)
		close(asked)
		<-answered
		x.Ask([]byte(both), nil) // the server has not seen the answer yet
		close(again)
		<-seen
		<-x.Answers()
		x.Ask([]byte(both), nil)
		close(refused)
		<-ctx.Done()
		return Answer{}
	}), Options{Epoch: 1})
	c, err := e.Start(t.Context(), Spec{})
	if err != nil {
		t.Fatal(err)
	}
	<-asked
	if got := string(c.Asked()); got != both {
		t.Errorf("asked %s", got)
	}
	if err := c.Answer([]byte(`{"a":{}}`), []byte(`["a"]`)); err != nil {
		t.Fatal(err)
	}
	const left = `{"b":{"method":"elicitation/create"}}`
	if got := string(c.Asked()); got != left {
		t.Errorf("right after the answer: asked %s", got)
	}
	close(answered)
	<-again
	if got := string(c.Asked()); got != left {
		t.Errorf("asked again: %s", got)
	}
	close(seen)
	<-refused
	if got := string(c.Asked()); got != both {
		t.Errorf("after a refusal: asked %s", got)
	}
	if err := c.Answer([]byte(`{"a":{},"b":{}}`), []byte(`["a","b"]`)); err != nil {
		t.Fatal(err)
	}
	if got := c.Asked(); got != nil {
		t.Errorf("all answered, and still asked: %s", got)
	}
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	e.Stop(stopped)
}

// TestTotalStandsWhileAsked: the time in which a call waits for an answer does not
// count as its own (SPEC §2.4).
func TestTotalStandsWhileAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := NewEngine(newFakeLog(), runFunc(func(ctx context.Context, x *Exec) Answer {
			time.Sleep(6 * time.Second)
			x.Ask([]byte(`{"a":{}}`), nil)
			<-x.Answers()
			time.Sleep(2 * time.Second)
			x.Ask([]byte(`{"b":{}}`), nil)
			time.Sleep(time.Hour)
			x.Ask(nil, nil) // withdrawn
			<-ctx.Done()
			return Answer{}
		}), Options{Epoch: 1})
		c, err := e.Start(t.Context(), Spec{Limits: Limits{Total: 10 * time.Second}})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if err := c.Answer([]byte(`{"a":{}}`), []byte(`["a"]`)); err != nil {
			t.Fatal(err)
		}
		got := end(t, c)
		if got.Outcome != TimedOut || got.Limit != "total" {
			t.Errorf("ended as %+v", got)
		}
		if took := c.Record().Ended.Sub(c.Record().Started); took != 2*time.Hour+4*time.Second {
			t.Errorf("the call took %s: a limit of 10 s, and two waits of an hour, the first counted from 6 s on", took)
		}
		e.Stop(t.Context())
	})
}

// TestAskEventsTell: of the last of a call's ask and answer events, an ask that is
// not empty says that the call waits.
func TestAskEventsTell(t *testing.T) {
	asked, answered := make(chan struct{}), make(chan struct{})
	e := NewEngine(newFakeLog(), runFunc(func(_ context.Context, x *Exec) Answer {
		x.Ask([]byte(`{"a":{},"b":{}}`), []byte("s"))
		close(asked)
		<-answered
		<-x.Answers()
		x.Ask(nil, nil)
		return Answer{End: End{Outcome: Completed}}
	}), Options{Epoch: 1})
	c, err := e.Start(t.Context(), Spec{})
	if err != nil {
		t.Fatal(err)
	}
	<-asked
	if _, state := c.Question(); string(state) != "s" {
		t.Errorf("state %q", state)
	}
	if err := c.Answer([]byte(`{"a":{}}`), []byte(`["a"]`)); err != nil {
		t.Fatal(err)
	}
	close(answered)
	var got []string
	for ev, err := range c.Follow(t.Context(), 1, 0) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, ev.Kind.String()+string(ev.Body))
	}
	want := []string{`ask{"a":{},"b":{}}`, `answer["a"]`, `ask{"b":{}}`, `ask{}`, `end`}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if r, s := c.Question(); r != nil || s != nil {
		t.Errorf("an ended call asks %s %s", r, s)
	}
	e.Stop(t.Context())
}

// TestPulses: a sign that somebody works on an answer reaches the runner, never
// blocks, and means nothing to a call that asks nothing.
func TestPulses(t *testing.T) {
	asked, full := make(chan struct{}), make(chan struct{})
	start := make(chan struct{})
	e := NewEngine(newFakeLog(), runFunc(func(_ context.Context, x *Exec) Answer {
		<-start
		x.Ask([]byte(`{"a":{}}`), nil)
		close(asked)
		<-full
		n := 0
		for len(x.Pulses()) > 0 {
			if p := <-x.Pulses(); p.Key != "a" {
				t.Errorf("a pulse of %q", p.Key)
			}
			n++
		}
		if n != maxPulses {
			t.Errorf("%d pulses", n)
		}
		if x.Attended() {
			t.Error("nobody reads, and it is attended")
		}
		return Answer{End: End{Outcome: Completed}}
	}), Options{Epoch: 1})
	c, err := e.Start(t.Context(), Spec{})
	if err != nil {
		t.Fatal(err)
	}
	c.Pulse(Pulse{Key: "too early"})
	close(start)
	<-asked
	for range 2 * maxPulses {
		c.Pulse(Pulse{Key: "a"})
	}
	close(full)
	end(t, c)
	c.Pulse(Pulse{Key: "too late"})
	e.Stop(t.Context())
}
