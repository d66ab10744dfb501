package chaos_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"
)

// round is one scenario: a gateway, a tool server, a broken network on both
// sides, and some agents. All of it is drawn from the seed.
type round struct {
	seed  uint64
	begun time.Time
	up    *upstream
	front *proxy // between the agents and longcall
	back  *proxy // between longcall and the tool server
	gw    *gateway

	agents []*agent
	kills  []time.Duration
	calmAt time.Duration
	faults []string
	stats  stats
}

// stats say what a round was made of, so that it is seen when nothing happens.
type stats struct {
	calls, results, told, lost, cancelled int
	kills, cuts                           int
	resumed, reissued, replayed, adopted  int
	interrupted, tasks, handles           int
}

func (s *stats) add(o stats) {
	s.calls += o.calls
	s.results += o.results
	s.told += o.told
	s.lost += o.lost
	s.cancelled += o.cancelled
	s.kills += o.kills
	s.cuts += o.cuts
	s.resumed += o.resumed
	s.reissued += o.reissued
	s.replayed += o.replayed
	s.adopted += o.adopted
	s.interrupted += o.interrupted
	s.tasks += o.tasks
	s.handles += o.handles
}

func (s stats) String() string {
	return fmt.Sprintf("%d calls: %d results, %d told otherwise, %d cancelled, %d without an answer; %d kills, %d connections broken; %d resumes, %d re-issues, %d replays, %d calls adopted, %d interrupted, %d tasks, %d handles",
		s.calls, s.results, s.told, s.cancelled, s.lost, s.kills, s.cuts, s.resumed, s.reissued, s.replayed, s.adopted, s.interrupted, s.tasks, s.handles)
}

func (r *round) since() time.Duration { return time.Since(r.begun) }

func (r *round) wrong(format string, args ...any) {
	r.faults = append(r.faults, fmt.Sprintf(format, args...))
}

// The shape of a round's faults.
func (r *round) draw(rng *rand.Rand) (front, back faults) {
	switch rng.IntN(4) {
	case 0:
	case 1:
		front = faults{cut: 10, reset: 10, half: 3, slow: 20, split: 30}
	default:
		front = faults{cut: 25, reset: 25, half: 8, slow: 20, split: 30}
	}
	switch rng.IntN(5) {
	case 0, 1:
	case 2:
		back = faults{slow: 30, split: 40}
	default:
		back = faults{cut: 20, reset: 20, half: 5, slow: 20, split: 30}
	}
	r.calmAt = 1600 * time.Millisecond
	for range []int{0, 1, 1, 1, 2, 2, 3}[rng.IntN(7)] {
		r.kills = append(r.kills, time.Duration(150+rng.IntN(1400))*time.Millisecond)
	}
	return front, back
}

const agentsPerRound = 14

func (r *round) drawAgents(rng *rand.Rand) {
	for i := range agentsPerRound {
		a := &agent{r: r, rng: rand.New(rand.NewPCG(r.seed, uint64(1000+i)))}
		a.script = script{
			token: tokenAnn, name: "chaos",
			wait: time.Duration(rng.IntN(900)) * time.Millisecond,
			args: args{
				Nonce: fmt.Sprintf("n%dx%d", r.seed, i), For: rng.IntN(1500),
				Every: []int{0, 5, 15, 40, 150}[rng.IntN(5)], Size: []int{0, 10, 300, 5000, 150_000}[rng.IntN(5)],
				Bad: rng.IntN(10) == 0, Task: rng.IntN(2) == 0,
			},
		}
		if rng.IntN(4) == 0 {
			a.args.For = rng.IntN(60) // the race of result and disconnect
		}
		if rng.IntN(3) == 0 {
			a.token = tokenBob
		}
		a.kind = []string{"session", "session", "stateless", "stateless", "tasks"}[rng.IntN(5)]
		a.tasks = a.kind == "tasks"
		a.server = []string{"ids", "ids", "plain", "modern", "detached"}[rng.IntN(5)]
		if rng.IntN(2) == 0 {
			a.key, a.keyMeta = "key-"+a.args.Nonce, rng.IntN(2) == 0
		}
		if rng.IntN(3) == 0 {
			a.cancel = time.Duration(1+rng.IntN(900)) * time.Millisecond
		}
		if rng.IntN(3) == 0 {
			a.name = "hasty"
		}
		a.wantTask = a.kind == "session" && rng.IntN(4) == 0
		r.agents = append(r.agents, a)
	}
}

func (r *round) servers() string {
	var b strings.Builder
	for _, s := range []struct{ name, path, era, more string }{
		{"ids", "ids", "legacy", ""},
		{"plain", "plain", "legacy", ""},
		{"modern", "modern", "modern", ""},
		{"detached", "modern", "modern", ", on_disconnect: detach"},
	} {
		fmt.Fprintf(&b, "  %s: {url: \"http://%s/%s\", era: %s, ping: 700ms%s}\n", s.name, r.back.addr, s.path, s.era, s.more)
	}
	return b.String()
}

// play runs the scenario of a seed, and says what was wrong.
func play(ctx context.Context, bin string, seed uint64) (r *round, err error) {
	rng := rand.New(rand.NewPCG(seed, 0))
	r = &round{seed: seed, begun: time.Now()}
	front, back := r.draw(rng)
	dir, err := os.MkdirTemp("", "longcall-chaos-round-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if r.up, err = newUpstream(); err != nil {
		return nil, err
	}
	defer r.up.close()
	if r.back, err = newProxy(r.up.addr, seed, 2, back); err != nil {
		return nil, err
	}
	defer r.back.close()
	if r.gw, err = newGateway(bin, dir, r.servers()); err != nil {
		return nil, err
	}
	defer r.gw.kill()
	if r.front, err = newProxy(r.gw.addr, seed, 1, front); err != nil {
		return nil, err
	}
	defer r.front.close()
	r.drawAgents(rng)
	if err := r.gw.start(ctx); err != nil {
		return r, fmt.Errorf("%w\n%s", err, r.gw.lastLog(4000))
	}
	r.begun = time.Now()

	ctx, cancel := context.WithTimeout(ctx, 40*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for _, a := range r.agents {
		wg.Go(func() { a.run(ctx) })
	}
	if err := r.storm(ctx, rng); err != nil {
		cancel()
		wg.Wait()
		return r, fmt.Errorf("%w\n%s", err, r.gw.lastLog(4000))
	}
	r.front.soothe()
	r.back.soothe()
	wg.Wait()
	if ctx.Err() != nil {
		r.wrong("some agents knew no end after 40 s")
	}
	r.check(context.WithoutCancel(ctx))
	return r, nil
}

// storm kills and restarts the gateway as the seed has it, and returns when it
// is over.
func (r *round) storm(ctx context.Context, rng *rand.Rand) error {
	over := time.NewTimer(r.calmAt)
	defer over.Stop()
	for _, at := range r.kills {
		if d := at - r.since(); d > 0 && !sleep(ctx, d) {
			return ctx.Err()
		}
		r.gw.kill()
		r.stats.kills++
		if rng.IntN(2) == 0 {
			sleep(ctx, time.Duration(rng.IntN(150))*time.Millisecond)
		}
		if rng.IntN(4) == 0 { // once more on its way up
			if err := r.gw.launch(); err != nil {
				return err
			}
			sleep(ctx, time.Duration(rng.IntN(120))*time.Millisecond)
			r.gw.kill()
			r.stats.kills++
		}
		if err := r.gw.start(ctx); err != nil {
			return err
		}
	}
	select {
	case <-over.C:
	case <-ctx.Done():
	}
	return ctx.Err()
}
