package call

import (
	"context"
	"testing"
)

// TestAnsweredIsAskedNoMore: once Answer returns, its keys are gone, and a tool
// server that was asked before does not bring them back. One that refused an
// answer does.
func TestAnsweredIsAskedNoMore(t *testing.T) {
	const both = `{"a":{"method":"elicitation/create"},"b":{"method":"elicitation/create"}}`
	asked, again, refused := make(chan struct{}), make(chan struct{}), make(chan struct{})
	answered, seen := make(chan struct{}), make(chan struct{})
	e := NewEngine(newFakeLog(), runFunc(func(ctx context.Context, x *Exec) Answer {
		x.Ask([]byte(both))
		close(asked)
		<-answered
		x.Ask([]byte(both)) // the server has not seen the answer yet
		close(again)
		<-seen
		<-x.Answers()
		x.Ask([]byte(both))
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
