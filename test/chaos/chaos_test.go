// Package chaos_test breaks everything around the real binary, and checks that
// no call is lost, none runs twice, and the record tells the truth.
//
// A round is one scenario, drawn from its seed: agents of every kind, a tool
// server of every kind, a fault proxy on both sides, and kill -9 of longcall.
// CHAOS_SEED=n plays one seed again, CHAOS_ROUNDS says how many rounds.
package chaos_test

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if builtIn != "" {
		os.RemoveAll(builtIn)
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// setting is a number in the environment.
func setting(t *testing.T, name string, def uint64) uint64 {
	v := os.Getenv(name)
	if v == "" {
		return def
	}
	n, err := strconv.ParseUint(v, 10, 64)
	if err != nil {
		t.Fatalf("%s=%q is no number", name, v)
	}
	return n
}

// slots are as many rounds and crash points as are played at the same time: they
// mostly wait.
var slots = make(chan struct{}, 10)

// TestChaos plays rounds (I1 to I6, I11, X-1 to X-7).
func TestChaos(t *testing.T) {
	bin, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	t.Parallel()
	rounds := setting(t, "CHAOS_ROUNDS", 100)
	if testing.Short() {
		rounds = min(rounds, 10)
	}
	first := setting(t, "CHAOS_SEED", 0)
	switch {
	case first == 0:
		first = uint64(time.Now().Unix()) % 1_000_000 * 10_000
	case os.Getenv("CHAOS_ROUNDS") == "":
		rounds = 1
	}
	t.Logf("%d rounds from CHAOS_SEED=%d", rounds, first)
	begun := time.Now()
	seeds := make(chan uint64)
	var mu sync.Mutex
	var sum stats
	failed := 0
	var wg sync.WaitGroup
	for range min(cap(slots), int(rounds)) {
		wg.Go(func() {
			for seed := range seeds {
				slots <- struct{}{}
				r, err := play(t.Context(), bin, seed)
				<-slots
				mu.Lock()
				switch {
				case err != nil:
					failed++
					t.Errorf("CHAOS_SEED=%d: %v", seed, err)
				case len(r.faults) > 0:
					failed++
					for _, f := range r.faults {
						t.Errorf("CHAOS_SEED=%d: %s", seed, f)
					}
					if log := r.gw.lastLog(1500); log != "" {
						t.Logf("CHAOS_SEED=%d: longcall said:\n%s", seed, log)
					}
				}
				if r != nil {
					sum.add(r.stats)
				}
				mu.Unlock()
			}
		})
	}
	for i := range rounds {
		mu.Lock()
		enough := failed >= 20
		mu.Unlock()
		if enough {
			t.Log("that is enough")
			break
		}
		seeds <- first + i
	}
	close(seeds)
	wg.Wait()
	for what, n := range map[string]int{
		"results": sum.results, "cancels": sum.cancelled, "kills": sum.kills, "broken connections": sum.cuts, "resumes": sum.resumed, "re-issues": sum.reissued,
		"replays": sum.replayed, "adopted calls": sum.adopted, "interrupted calls": sum.interrupted, "tasks": sum.tasks, "handles": sum.handles,
	} {
		if rounds >= 50 && failed == 0 && n < int(rounds)/10 {
			t.Errorf("only %d %s in %d rounds: that proves little", n, what, rounds)
		}
	}
	took := time.Since(begun)
	t.Logf("%d rounds in %v (%.1f/s): %v", rounds, took.Round(time.Millisecond), float64(rounds)/took.Seconds(), sum)
}
