package load

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// tally sums up outcomes.
type tally struct {
	mu                                        sync.Mutex
	calls, ok, events, order, cross, beats    int
	whole, unbroken                           map[int]int // calls with a result, by number of events; those without a resume
	why                                       map[string]int
	took, latency, headers, first, gap, stall []time.Duration
}

func (t *tally) add(o *outcome) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls++
	t.events += o.events
	t.order += o.order
	t.cross += o.cross
	t.beats += o.beats
	t.latency = append(t.latency, o.latency...)
	t.gap = append(t.gap, o.gap)
	t.headers = append(t.headers, o.headers)
	if o.first > 0 {
		t.first = append(t.first, o.first)
	}
	if o.stall > 0 {
		t.stall = append(t.stall, o.stall)
	}
	if !o.ok {
		if t.why == nil {
			t.why = map[string]int{}
		}
		t.why[o.why]++
		return
	}
	t.ok++
	if t.whole == nil {
		t.whole, t.unbroken = map[int]int{}, map[int]int{}
	}
	t.whole[o.events]++
	if o.resumed == 0 {
		t.unbroken[o.events]++
	}
	t.took = append(t.took, o.done.Sub(o.sent))
}

// late says how much longer than the tool the calls took.
func (t *tally) late(w work) []time.Duration {
	d := slices.Clone(t.took)
	for i := range d {
		d[i] -= time.Duration(w.ms) * time.Millisecond
	}
	return d
}

// metrics starts a side's metrics, and notes how its calls failed.
func (t *tally) metrics(e *Endpoint) Metrics {
	n := 0
	for why, k := range t.why {
		if k > n {
			n, e.why = k, why
		}
	}
	return Metrics{"failed": 100 * float64(t.calls-t.ok) / float64(max(t.calls, 1))}
}

// verdict is an error if hardly any call worked: the numbers mean nothing then.
func (t *tally) verdict() error {
	if t.ok*2 >= t.calls && t.ok > 0 {
		return nil
	}
	return fmt.Errorf("%d of %d calls failed", t.calls-t.ok, t.calls)
}
