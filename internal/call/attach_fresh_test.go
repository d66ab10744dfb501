package call_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/call/calltest"
)

// SHELL §4, if_running: a request for a new run never joins, and its run is joined
// like any other, from the first moment and while it is read.
func TestAttachFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTool()
		e := call.NewEngine(calltest.NewMemory(), r, call.Options{Epoch: 1})
		defer e.Stop(t.Context())
		fresh, always := spec("a"), spec("a")
		fresh.Attach, always.Attach = call.AttachFresh, call.AttachAlways
		first := attach(t, e, fresh, call.Started)
		if again := attach(t, e, always, call.Joined); again != first {
			t.Error("joined another call")
		}
		second := attach(t, e, fresh, call.Started)
		if second == first {
			t.Error("fresh joined")
		}
		keyed := fresh
		keyed.Idempotency = "key"
		third := attach(t, e, keyed, call.Started)
		if again := attach(t, e, keyed, call.Joined); again != third { // a key goes before it
			t.Error("a key was not kept")
		}
		for range 3 {
			r.end("a") <- done("result")
		}
		synctest.Wait()
		if fourth := attach(t, e, fresh, call.Started); fourth == first { // nor does it replay
			t.Error("fresh replayed")
		}
		r.end("a") <- done("result")
		if r.runs["a"] != 4 {
			t.Errorf("runs %v", r.runs)
		}
	})
}

// How a call may be joined is not stored: after a restart, the first request that
// joins whoever reads makes it so again.
func TestAttachAlwaysAfterRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, r := calltest.NewMemory(), newTool()
		always := spec("a")
		always.Attach = call.AttachAlways
		e := call.NewEngine(log, r, call.Options{Epoch: 1})
		c := attach(t, e, always, call.Started)
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		e.Stop(ctx)

		e = call.NewEngine(log, r, call.Options{Epoch: 2})
		defer e.Stop(t.Context())
		if n, _, err := e.Recover(t.Context()); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		first := attach(t, e, always, call.Joined)
		other := attach(t, e, spec("b"), call.Started)
		r.end("b") <- done("result")
		leave(other, call.Delivered)
		watcher, err := e.Get(t.Context(), "ann", c.ID())
		if err != nil {
			t.Fatal(err)
		}
		watcher.Watch()
		watcher.Unwatch(call.Delivery{}) // the index is settled with a reader there
		if second := attach(t, e, always, call.Joined); second != first {
			t.Error("joined another call")
		}
		r.end("a") <- done("result")
		if r.runs["a"] != 1 {
			t.Errorf("runs %v", r.runs)
		}
	})
}
