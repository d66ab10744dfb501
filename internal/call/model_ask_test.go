package call

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// asking is what the model knows of a call's questions.
type asking struct {
	last  int       // number of its last key
	since time.Time // since when its clock stands; zero if it runs
	open  map[string]bool
	// old are keys that somebody has seen open, and may answer too late.
	old []string

	// Guarded by world.mu:
	waits map[string]bool // keys that the runner waits for
	got   map[string]int  // how often the runner got an answer to a key
}

// requests makes what Exec.Ask takes.
func requests(keys map[string]bool) []byte {
	all := map[string]map[string]string{}
	for k := range keys {
		all[k] = map[string]string{"method": "elicitation/create"}
	}
	b, err := json.Marshal(all)
	if err != nil {
		panic(err)
	}
	return b
}

// ask has the tool server ask one to three things more, or the same again.
func (w *world) ask(rt *rapid.T) {
	c := w.pick(rt, w.obeys)
	a := &c.asking
	if a.open == nil {
		a.open = map[string]bool{}
		w.mu.Lock()
		a.waits, a.got = map[string]bool{}, map[string]int{}
		w.mu.Unlock()
	}
	for range rapid.IntRange(0, 3).Draw(rt, "more") {
		a.last++
		key := fmt.Sprintf("k%d", a.last)
		a.open[key] = true
		a.old = append(a.old, key)
	}
	w.show(c)
}

// withdraw has the tool server take questions back, as it does when nobody answered in
// time.
func (w *world) withdraw(rt *rapid.T) {
	c := w.pick(rt, func(c *modelCall) bool { return w.obeys(c) && len(c.asking.open) > 0 })
	for _, key := range rapid.SliceOfDistinct(rapid.SampledFrom(slices.Sorted(maps.Keys(c.asking.open))), rapid.ID[string]).Draw(rt, "keys") {
		delete(c.asking.open, key)
	}
	w.show(c)
}

// show has the runner ask what is open.
func (w *world) show(c *modelCall) {
	open := maps.Clone(c.asking.open)
	c.cmds <- func(x *Exec) *Answer {
		w.mu.Lock()
		c.asking.waits = open
		w.mu.Unlock()
		x.Ask(requests(open), nil)
		return nil
	}
	w.settleAsk(c)
}

// answered is the runner that gets answers: each counts once, and the rest is asked
// again, as a tool server with sessions has it.
func (w *world) answered(c *modelCall, x *Exec, responses []byte) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(responses, &all); err != nil {
		w.problem("call %s got the answers %s", c.id, responses)
	}
	w.mu.Lock()
	for key, v := range all {
		c.asking.got[key]++
		delete(c.asking.waits, key)
		if string(v) != `{"to":"`+key+`"}` {
			w.problems = append(w.problems, fmt.Sprintf("call %s got %s for %s", c.id, v, key))
		}
	}
	left := requests(c.asking.waits)
	w.mu.Unlock()
	x.Ask(left, nil)
}

// answer has an agent answer some of what it has ever seen asked, or what was never
// asked; and one who may not, which finds no such call.
func (w *world) answer(rt *rapid.T) {
	c := w.pick(rt, func(c *modelCall) bool { return c.c != nil && c.asking.last > 0 })
	other := map[string]string{"alice": "bob", "bob": "alice"}[c.principal]
	if _, err := w.e.Get(context.Background(), other, c.id); !errors.Is(err, ErrUnknown) {
		rt.Fatalf("I6: another principal finds what is asked: %v", err)
	}
	keys := rapid.SliceOfN(rapid.SampledFrom(append(slices.Clone(c.asking.old), "never asked")), 1, 4).Draw(rt, "keys")
	slices.Sort(keys)
	keys = slices.Compact(keys)
	all := map[string]map[string]string{}
	for _, k := range keys {
		all[k] = map[string]string{"to": k}
	}
	responses, err := json.Marshal(all)
	if err != nil {
		rt.Fatal(err)
	}
	names, err := json.Marshal(keys)
	if err != nil {
		rt.Fatal(err)
	}
	switch err := c.c.Answer(responses, names); {
	case errors.Is(err, ErrNotRunning):
		return
	case err != nil:
		rt.Fatalf("answer: %v", err)
	}
	asked := w.asked(rt, c)
	for _, k := range keys {
		if _, ok := asked[k]; ok {
			rt.Fatalf("call %s still asks %s, which was just answered", c.id, k)
		}
		delete(c.asking.open, k)
	}
	w.settleAsk(c)
}

// asked is what agents see of the call's questions.
func (w *world) asked(rt *rapid.T, c *modelCall) (asked map[string]json.RawMessage) {
	if b := c.c.Asked(); b != nil {
		if err := json.Unmarshal(b, &asked); err != nil || len(asked) == 0 {
			rt.Fatalf("call %s asks %s", c.id, b)
		}
	}
	return asked
}

// settleAsk lets what was asked and answered arrive, holds what agents see against
// what is open, and stops the model's clock of the call while anything is.
func (w *world) settleAsk(c *modelCall) {
	synctest.Wait()
	if !w.obeys(c) { // it is being cancelled, or has ended
		return
	}
	asked := w.asked(w.rt, c)
	if got, want := slices.Sorted(maps.Keys(asked)), slices.Sorted(maps.Keys(c.asking.open)); !slices.Equal(got, want) {
		w.rt.Fatalf("call %s asks %q, and %q is open", c.id, got, want)
	}
	for key := range asked {
		if c.c.AskedAt(key) == 0 {
			w.rt.Fatalf("call %s asks %s since nobody knows when", c.id, key)
		}
	}
	w.mu.Lock()
	for key, n := range c.asking.got {
		if n > 1 {
			w.rt.Errorf("%s of call %s was answered %d times", key, c.id, n)
		}
	}
	w.mu.Unlock()
	switch a := &c.asking; {
	case len(asked) > 0 && a.since.IsZero():
		a.since = time.Now()
	case len(asked) == 0 && !a.since.IsZero():
		if !c.deadline.IsZero() {
			c.deadline = c.deadline.Add(time.Since(a.since))
		}
		a.since = time.Time{}
	}
}

// checkAnswers: in what is stored, each answer is to what was asked before, once.
func checkAnswers(rt *rapid.T, c *modelCall, evs []Event) {
	if c.holes {
		return
	}
	asked, done := map[string]bool{}, map[string]bool{}
	for _, ev := range evs {
		switch ev.Kind {
		case KindAsk:
			var all map[string]json.RawMessage
			if err := json.Unmarshal(ev.Body, &all); err != nil {
				rt.Fatalf("call %s has asked %s", c.id, ev.Body)
			}
			for k := range all {
				asked[k] = true
				if done[k] {
					rt.Fatalf("call %s asks %s again after its answer", c.id, k)
				}
			}
		case KindAnswer:
			var keys []string
			if err := json.Unmarshal(ev.Body, &keys); err != nil || len(keys) == 0 {
				rt.Fatalf("call %s has answers to %s", c.id, ev.Body)
			}
			for _, k := range keys {
				if !asked[k] || done[k] {
					rt.Fatalf("call %s: an answer to %s, which was asked %t and answered %t", c.id, k, asked[k], done[k])
				}
				done[k] = true
			}
		}
	}
}
