package call_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing/synctest"

	"pgregory.net/rapid"

	"github.com/longcall/longcall/internal/call"
)

// reply answers what a call asks; what it was told is asked no more.
func (w *lives) reply(rt *rapid.T) {
	w.look()
	j := w.pick(rt, func(j *job) bool { return w.running(j) && !j.cancelled && j.c.Asked() != nil })
	var open map[string]string
	if err := json.Unmarshal(j.c.Asked(), &open); err != nil || len(open) == 0 {
		rt.Fatalf("asked %q: %v", j.c.Asked(), err)
	}
	var keys []string
	for k := range open {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	k := rapid.SampledFrom(keys).Draw(rt, "question")
	err := j.c.Answer([]byte(`{"`+k+`":"!"}`), []byte(`["`+k+`"]`))
	if err != nil {
		rt.Fatalf("answer: %v", err)
	}
	if strings.Contains(string(j.c.Asked()), `"`+k+`"`) {
		rt.Fatalf("%s was answered, and is asked: %s", k, j.c.Asked())
	}
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if j.heard[k] != 1 {
		rt.Fatalf("the tool heard %d answers to %s", j.heard[k], k)
	}
}

func (w *lives) cancel(rt *rapid.T) {
	w.look()
	j := w.pick(rt, func(j *job) bool { return true })
	if err := w.now.e.Tell("mallory", j.id, call.End{By: "agent"}); !errors.Is(err, call.ErrUnknown) {
		rt.Fatalf("I6: a foreign cancel: %v", err)
	}
	c, err := w.now.e.Get(context.Background(), j.spec.Principal, j.id)
	if err != nil {
		rt.Fatalf("get: %v", err)
	}
	err = c.Cancel(call.End{By: "agent"})
	switch {
	case j.outcome != call.Running:
		if !errors.Is(err, call.ErrNotRunning) {
			rt.Fatalf("cancel of a call that has ended: %v", err)
		}
	case j.home != w.now:
		if !errors.Is(err, call.ErrElsewhere) {
			rt.Fatalf("cancel of a call elsewhere: %v", err)
		}
	case err != nil:
		rt.Fatalf("cancel: %v", err)
	default:
		j.cancelled, j.reasons = true, []call.Outcome{call.Cancelled}
	}
	synctest.Wait()
}
