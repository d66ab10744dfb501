package call_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/call/calltest"
)

// asker is a runner whose calls ask until they are answered: those of the tool "kept"
// go on in a later process, and ask the same again.
type asker struct{}

func (asker) Resumable(rec *call.Record) bool {
	return len(rec.Address) > 0
}

func (asker) Run(ctx context.Context, x *call.Exec) call.Answer {
	if x.Resume == nil {
		_ = x.Dispatched()
		if x.Spec.Tool == "kept" {
			x.Address([]byte("the question"))
		}
		time.Sleep(3 * time.Second)
	} else {
		time.Sleep(time.Second)
	}
	x.Ask([]byte(`{"a":{"method":"elicitation/create"}}`), nil)
	select {
	case <-x.Answers():
		if err := x.Again(); err != nil {
			return call.Answer{}
		}
		x.Ask(nil, nil)
		if x.Spec.RequestID == "held" {
			<-ctx.Done()
			return call.Answer{}
		}
		return call.Answer{End: call.End{Outcome: call.Completed}, Body: []byte("answered"), Hole: -1}
	case <-ctx.Done():
		return call.Answer{}
	}
}

// TestX8QuestionOutlives: a question that was open when its process was killed is asked
// on by the next, as the same one: a resumed stream knows that it has it (AskedAt), its
// wait does not count for limits.total, and nobody's absence cancels the call. One that
// nobody can take up ends in words that say so.
func TestX8QuestionOutlives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := calltest.NewMemory()
		e := call.NewEngine(log, asker{}, call.Options{Epoch: 1})
		start := func(tool string) *call.Call {
			c, err := e.Start(t.Context(), call.Spec{Principal: "ann", Server: "up", Tool: tool, Limits: call.Limits{Total: 10 * time.Second}})
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		kept, lost := start("kept"), start("lost")
		time.Sleep(time.Minute)
		at := kept.AskedAt("a")
		log.Sync()
		frozen := calltest.NewMemory()
		log.CopyTo(frozen)

		e2 := call.NewEngine(frozen, asker{}, call.Options{Epoch: 2, Orphan: func(*call.Record) time.Duration { return 0 }})
		if adopted, interrupted, err := e2.Recover(t.Context()); adopted != 1 || interrupted != 1 || err != nil {
			t.Fatalf("adopted %d, interrupted %d, %v", adopted, interrupted, err)
		}
		c, err := e2.Get(t.Context(), "ann", lost.ID())
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{"waited for an answer", "your answer was not delivered", "check before you call it again"} {
			if text := c.Record().End.Text; !strings.Contains(text, part) {
				t.Errorf("%q does not say %q", text, part)
			}
		}
		if c, err = e2.Get(t.Context(), "ann", kept.ID()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if c.Asked() == nil || c.AskedAt("a") != at || at == 0 {
			t.Errorf("asks %s since %d, first at %d", c.Asked(), c.AskedAt("a"), at)
		}
		if err := c.Answer([]byte(`{"a":{}}`), []byte(`["a"]`)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if r := c.Record(); r.End.Outcome != call.Completed {
			t.Errorf("ended as %+v", r.End)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		e.Stop(ctx)
		e2.Stop(ctx)
	})
}

// TestX8AnswerIsSentOnce: once the request has left again with its answer, no later
// process asks for it once more, however early the kill comes (I1).
func TestX8AnswerIsSentOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := calltest.NewMemory()
		e := call.NewEngine(log, asker{}, call.Options{Epoch: 1})
		c, err := e.Start(t.Context(), call.Spec{Principal: "ann", Server: "up", Tool: "kept", RequestID: "held"})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		log.Sync() // the question is kept
		if err := c.Answer([]byte(`{"a":{}}`), []byte(`["a"]`)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		log.Crash() // at its worst: nothing is synced but by Again itself
		frozen := calltest.NewMemory()
		log.CopyTo(frozen)
		e2 := call.NewEngine(frozen, asker{}, call.Options{Epoch: 2})
		if adopted, interrupted, err := e2.Recover(t.Context()); adopted != 0 || interrupted != 1 || err != nil {
			t.Fatalf("adopted %d, interrupted %d, %v", adopted, interrupted, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		e.Stop(ctx)
		e2.Stop(ctx)
	})
}
