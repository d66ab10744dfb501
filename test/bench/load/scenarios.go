package load

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"sync"
	"time"
)

const maxAgents = 100 // more calls than this share sessions

// Bench is the floor and one gateway side by side, in front of one upstream.
type Bench struct {
	Floor, Peer *Endpoint
	Stats       string  // URL of the upstream's counters
	Length      float64 // of the slices, 1 being the usual
}

// Variant is one measurement of a scenario.
type Variant struct {
	Scenario, Name string
	Calls          int  // at once
	Quick          bool // part of the short run
	limit          time.Duration
	run            func(context.Context, *Bench) (floor, peer, spread Metrics, err error)
}

// Variants are all measurements, in their order.
var Variants = []Variant{
	{"S1", "instant calls", 1, false, 40 * time.Second, sliced(1, instant(1))},
	{"S1", "instant calls", 20, true, 40 * time.Second, sliced(20, instant(20))},
	{"S1", "instant calls", 100, false, 60 * time.Second, sliced(100, instant(100))},
	{"S2", "10 progress events over 2 s", 100, true, 60 * time.Second, sliced(100, progress(100))},
	{"S2", "10 progress events over 2 s, one session", 100, false, 60 * time.Second, sliced(1, progress(100))},
	{"S2", "10 progress events over 2 s", 1000, false, 100 * time.Second, sliced(100, progress(1000))},
	{"S3", "silent for 15 s", 100, true, 50 * time.Second, silent(100)},
	{"S3", "silent for 15 s", 1000, false, 60 * time.Second, silent(1000)},
	{"S3", "silent for 15 s", 5000, false, 90 * time.Second, silent(5000)},
	{"S4", "agents hang up at 1 s of 3 s", 200, true, 60 * time.Second, eachSide(clientDrop)},
	{"S5", "the upstream's stream breaks", 50, true, 60 * time.Second, eachSide(upstreamDrop)},
	{"S6", "result of 540 KB", 1, false, 40 * time.Second, sliced(1, large(540<<10))},
	{"S6", "result of 1 MiB", 1, true, 40 * time.Second, sliced(1, large(1<<20))},
	{"S7", "50 agents with equal ids and tokens", 50, true, 40 * time.Second, eachSide(isolation)},
}

// Record is one measurement: a line of the result file.
type Record struct {
	Time     string  `json:"time"`
	Run      string  `json:"run"`
	Era      string  `json:"era"`
	Scenario string  `json:"scenario"`
	Variant  string  `json:"variant"`
	Calls    int     `json:"calls"`
	Failed   string  `json:"failed,omitempty"`
	Why      string  `json:"why,omitempty"` // how most of the gateway's calls failed that did
	Floor    Metrics `json:"floor,omitempty"`
	Peer     Metrics `json:"peer,omitempty"`
	Ratio    Metrics `json:"ratio,omitempty"`
	Spread   Metrics `json:"spread,omitempty"` // between the two slices of one side: the machine's noise
}

// Measure runs one variant within its limit.
func (b *Bench) Measure(ctx context.Context, v Variant) Record {
	r := Record{Time: time.Now().UTC().Format(time.RFC3339), Scenario: v.Scenario, Variant: v.Name, Calls: v.Calls}
	ctx, cancel := context.WithTimeout(ctx, v.limit)
	defer cancel()
	b.Peer.why = ""
	floor, peer, noise, err := v.run(ctx, b)
	switch {
	case ctx.Err() != nil:
		r.Failed = "not done after " + v.limit.String()
	case err != nil:
		r.Failed = err.Error()
	}
	r.Floor, r.Peer, r.Spread = floor.clean(), peer.clean(), noise.clean()
	r.Ratio, r.Why = ratios(r.Peer, r.Floor), b.Peer.why
	return r
}

// WaitFor waits until the endpoint shows the tool, at most for a limit.
func (e *Endpoint) WaitFor(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		s, err := e.open(ctx, 1)
		e.close(s)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", e.name, err)
		}
	}
}

type measure func(ctx context.Context, b *Bench, e *Endpoint, agents []*session) (Metrics, error)

// sliced measures floor, peer, peer, floor, so that a slow drift of the machine
// cancels. Each side gets the mean of its two slices.
func sliced(c int, f measure) func(context.Context, *Bench) (Metrics, Metrics, Metrics, error) {
	return func(ctx context.Context, b *Bench) (floor, peer, noise Metrics, err error) {
		agents := map[*Endpoint][]*session{}
		for _, e := range []*Endpoint{b.Floor, b.Peer} {
			if agents[e], err = e.open(ctx, min(c, maxAgents)); err != nil {
				return nil, nil, nil, fmt.Errorf("%s: %w", e.name, err)
			}
			defer e.close(agents[e])
			agents[e][0].call(ctx, work{}) // the first call may build connections
		}
		var got [4]Metrics
		for i, e := range []*Endpoint{b.Floor, b.Peer, b.Peer, b.Floor} {
			if got[i], err = f(ctx, b, e, agents[e]); err != nil {
				return nil, nil, nil, fmt.Errorf("%s: %w", e.name, err)
			}
		}
		noise = Metrics{}
		for k, v := range spread(got[0], got[3]) {
			noise["floor_"+k] = v
		}
		for k, v := range spread(got[1], got[2]) {
			noise["peer_"+k] = v
		}
		return mean(got[0], got[3]), mean(got[1], got[2]), noise, nil
	}
}

// eachSide measures the floor and then the peer, once.
func eachSide(f measure) func(context.Context, *Bench) (Metrics, Metrics, Metrics, error) {
	return func(ctx context.Context, b *Bench) (floor, peer, noise Metrics, err error) {
		var got [2]Metrics
		for i, e := range []*Endpoint{b.Floor, b.Peer} {
			agents, err := e.open(ctx, 50)
			if err == nil {
				got[i], err = f(ctx, b, e, agents)
			}
			e.close(agents)
			if err != nil {
				return nil, nil, nil, fmt.Errorf("%s: %w", e.name, err)
			}
		}
		return got[0], got[1], nil, nil
	}
}

func mean(a, b Metrics) Metrics {
	m := Metrics{}
	for k, x := range a {
		if y, ok := b[k]; ok && !math.IsNaN(x) && !math.IsNaN(y) {
			m[k] = (x + y) / 2
		}
	}
	return m
}

// S1: calls that take no time, one after the other on each of c connections.
func instant(c int) measure {
	return func(ctx context.Context, b *Bench, e *Endpoint, agents []*session) (Metrics, error) {
		length := time.Duration(1.5 * b.Length * float64(time.Second))
		var t tally
		before, start := e.proc.usage(), time.Now()
		each(c, func(i int) {
			for time.Since(start) < length && ctx.Err() == nil {
				t.add(agents[i%len(agents)].call(ctx, work{}))
			}
		})
		elapsed, after := time.Since(start), e.proc.usage()
		m := t.metrics(e)
		m.quantiles("ms", t.took)
		m["per_s"] = float64(t.ok) / elapsed.Seconds()
		if e.proc != 0 {
			m["cpu_us"] = us(after.cpu-before.cpu) / float64(t.ok)
			m["rss_mb"] = mib(after.rss)
		}
		return m, t.verdict()
	}
}

// S2: calls of 2 s with 10 progress events, two in a row on each of c workers.
func progress(c int) measure {
	return func(ctx context.Context, b *Bench, e *Endpoint, agents []*session) (Metrics, error) {
		w := work{ms: 2000, n: 10, patience: 20 * time.Second}
		rounds := max(1, int(2*b.Length))
		var t tally
		var middle usage
		before := e.proc.usage()
		time.AfterFunc(1700*time.Millisecond, func() { middle = e.proc.usage() })
		each(c, func(i int) {
			time.Sleep(200 * time.Millisecond * time.Duration(i) / time.Duration(c)) // else all events come in bursts
			for range rounds {
				t.add(agents[i%len(agents)].call(ctx, w))
			}
		})
		after := e.proc.usage()
		m := t.metrics(e)
		m["delivered"] = 100 * float64(t.events) / float64(c*rounds*w.n)
		m["order"], m["cross"] = float64(t.order), float64(t.cross)
		m.quantiles("ev_ms", t.latency)
		m.quantiles("late_ms", t.late(w))
		if e.proc != 0 {
			m["cpu_us"] = us(after.cpu-before.cpu) / float64(c*rounds*(w.n+1))
			m["rss_mb"] = mib(middle.rss)
		}
		return m, t.verdict()
	}
}

// S3: c calls that say nothing for 15 s, on both sides at the same time: the
// floor's are sent first, then the peer's.
func silent(c int) func(context.Context, *Bench) (Metrics, Metrics, Metrics, error) {
	return func(ctx context.Context, b *Bench) (Metrics, Metrics, Metrics, error) {
		const parked, watched = 15 * time.Second, 7 * time.Second
		ramp := time.Duration(c) * time.Millisecond
		w := work{ms: int((parked + 2*ramp) / time.Millisecond), hold: true}
		sides := []*Endpoint{b.Floor, b.Peer}
		tallies := make([]tally, 2)
		agents := make([][]*session, 2)
		usages := make([][3]usage, 2)
		for i, e := range sides {
			var err error
			if agents[i], err = e.open(ctx, min(c, maxAgents)); err != nil {
				return nil, nil, nil, fmt.Errorf("%s: %w", e.name, err)
			}
			defer e.close(agents[i])
			usages[i][0] = e.proc.usage()
		}
		var wg sync.WaitGroup
		for i := range sides {
			for k := range c {
				wg.Go(func() { tallies[i].add(agents[i][k%len(agents[i])].call(ctx, w)) })
				time.Sleep(ramp / time.Duration(c))
			}
		}
		time.Sleep(2 * time.Second) // settle
		for i, e := range sides {
			usages[i][1] = e.proc.usage()
		}
		time.Sleep(watched)
		for i, e := range sides {
			usages[i][2] = e.proc.usage()
		}
		wg.Wait()
		out := make([]Metrics, 2)
		for i, e := range sides {
			t, u := &tallies[i], usages[i]
			m := t.metrics(e)
			m.quantiles("headers_ms", t.headers)
			m.quantiles("first_ms", t.first)
			m["gap_s_p99"] = quantile(t.gap, .99) / 1000
			m["gap_s_max"] = quantile(t.gap, 1) / 1000
			m["beats"] = float64(t.beats) / float64(c)
			if e.proc != 0 {
				m["kb_per_call"] = float64(u[2].rss-u[0].rss) / 1024 / float64(c)
				m["idle_cpu_pct"] = 100 * float64(u[2].cpu-u[1].cpu) / float64(watched)
			}
			out[i] = m
		}
		return out[0], out[1], nil, tallies[1].verdict()
	}
}

// S4: 200 calls of 3 s whose agents hang up after 1 s.
func clientDrop(ctx context.Context, b *Bench, e *Endpoint, agents []*session) (Metrics, error) {
	const c = 200
	agents[0].call(ctx, work{})
	u0, s0 := e.proc.usage(), b.counters()
	each(c, func(i int) {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		agents[i%len(agents)].call(ctx, work{ms: 3000, n: 10})
	})
	e.client.CloseIdleConnections()
	time.Sleep(5 * time.Second)
	u1, s1 := e.proc.usage(), b.counters()
	share := func(k string) float64 { return 100 * (s1[k] - s0[k]) / c }
	m := Metrics{
		"cancels": share("cancels"), "closed_early": share("closed_early"),
		"ran_on": share("completed"), "stopped": share("stopped"), "started": share("started"),
	}
	if e.proc != 0 {
		m["fds_left"] = float64(u1.fds - u0.fds)
		m["rss_left_mb"] = mib(u1.rss - u0.rss)
	}
	return m, nil
}

// S5: 50 calls of 2 s with 10 numbered events whose upstream connection breaks
// after event 3. An agent of the legacy era comes back with Last-Event-ID.
func upstreamDrop(ctx context.Context, b *Bench, e *Endpoint, agents []*session) (Metrics, error) {
	const c = 50
	w := work{ms: 2000, n: 10, ids: true, drop: 3, resume: !e.modern}
	var t tally
	before := b.counters()
	each(c, func(i int) { t.add(agents[i%len(agents)].call(ctx, w)) })
	after := b.counters()
	m := t.metrics(e)
	m["dropped"] = 100 * (after["dropped"] - before["dropped"]) / c
	m["whole"] = 100 * float64(t.whole[w.n]) / c
	m["hidden"] = 100 * float64(t.unbroken[w.n]) / c
	m["result"] = 100 * float64(t.ok) / c
	m.quantiles("stall_ms", t.stall)
	m.quantiles("late_ms", t.late(w))
	return m, nil
}

// S6: large results, one at a time.
func large(size int) measure {
	return func(ctx context.Context, b *Bench, e *Endpoint, agents []*session) (Metrics, error) {
		var t tally
		before := e.proc.usage()
		for i := range max(20, int(60*b.Length)) {
			if i%10 == 0 {
				e.client.CloseIdleConnections() // some connections are slower than others
			}
			t.add(agents[0].call(ctx, work{bytes: size}))
		}
		after := e.proc.usage()
		m := t.metrics(e)
		m.quantiles("ms", t.took)
		if e.proc != 0 {
			m["cpu_us"] = us(after.cpu-before.cpu) / float64(t.ok)
			m["rss_mb"] = mib(after.rss)
		}
		return m, t.verdict()
	}
}

// S7: 50 agents that all use the same request id and progress token, and (in
// the legacy era) each listen on a standalone stream.
func isolation(ctx context.Context, b *Bench, e *Endpoint, agents []*session) (Metrics, error) {
	const c, rounds, n = 50, 6, 5
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var calls, streams tally
	var listeners sync.WaitGroup
	each(c, func(i int) {
		w := work{ms: 300, n: n, id: "7", token: `"same"`, tag: fmt.Sprintf("tagent%d.", i)}
		if !e.modern {
			listeners.Go(func() { streams.add(agents[i].listen(ctx, w.tag)) })
			time.Sleep(100 * time.Millisecond)
		}
		for range rounds {
			calls.add(agents[i].call(ctx, w))
		}
	})
	cancel()
	listeners.Wait()
	m := calls.metrics(e)
	m["cross"] = float64(calls.cross + streams.cross)
	m["delivered"] = 100 * float64(calls.events) / (c * rounds * n)
	m["elsewhere"] = 100 * float64(streams.events+streams.order) / (c * rounds * n)
	m["result"] = 100 * float64(calls.ok) / (c * rounds)
	return m, nil
}

// each runs f for 0 to n-1 at the same time.
func each(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

// counters of the upstream.
func (b *Bench) counters() map[string]float64 {
	resp, err := http.Get(b.Stats)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	var m map[string]float64
	if json.NewDecoder(resp.Body).Decode(&m) != nil {
		return nil // the record then shows zeros
	}
	return m
}
