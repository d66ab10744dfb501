package chaos_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// scripted are calls of each kind, short, with nothing broken but the process.
// Their args have no nonce yet.
var scripted = []struct {
	name string
	a    script
}{
	{"resume", script{kind: "session", server: "ids", args: args{For: 60, Every: 8}}},
	{"cancel", script{kind: "session", server: "ids", args: args{For: 300, Every: 8}, cancel: 60 * time.Millisecond}},
	{"lost", script{kind: "session", server: "plain", args: args{For: 60, Every: 8}}},
	{"large", script{kind: "stateless", server: "ids", args: args{For: 30, Every: 8, Size: 200_000}}},
	{"key", script{kind: "stateless", server: "modern", args: args{For: 60, Every: 8}, key: "k"}},
	{"upstream task", script{kind: "stateless", server: "detached", args: args{For: 80, Every: 8, Task: true}}},
	{"task", script{kind: "tasks", tasks: true, name: "hasty", server: "ids", args: args{For: 180, Every: 20}}},
	{"task of a session", script{kind: "session", wantTask: true, server: "ids", args: args{For: 60, Every: 8}}},
}

// TestCrashPoints kills the process at every op that the journal takes, and
// after every commit, from its start to the end of one call: nothing is lost,
// nothing runs twice (I1 to I4, X-6).
func TestCrashPoints(t *testing.T) {
	bin, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("CHAOS_SEED") != "" {
		t.Skip("a round's seed is played")
	}
	t.Parallel()
	begun := time.Now()
	var wg sync.WaitGroup
	var points, crashes atomic.Int64
	for _, s := range scripted {
		for _, what := range []string{"op", "commit"} {
			wg.Go(func() {
				for n := 1; ; n++ {
					at := fmt.Sprintf("%s:%d", what, n)
					slots <- struct{}{}
					crashed, wrong := playPoint(t.Context(), bin, s.a, at)
					<-slots
					points.Add(1)
					for _, w := range wrong {
						t.Errorf("%s, LONGCALL_CRASH_AT=%s: %s", s.name, at, w)
					}
					if !crashed {
						if n < 4 {
							t.Errorf("%s: only %d points of kind %s", s.name, n-1, what)
						}
						return
					}
					crashes.Add(1)
					if n > 60 {
						t.Errorf("%s: the call does not come to an end without a crash", s.name)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	t.Logf("%d crash points, %d crashes in %v", points.Load(), crashes.Load(), time.Since(begun).Round(time.Millisecond))
}

// playPoint makes one call with a process that crashes at a point, and says
// whether it did before the call's end.
func playPoint(ctx context.Context, bin string, plan script, at string) (crashed bool, wrong []string) {
	r := &round{begun: time.Now()}
	dir, err := os.MkdirTemp("", "longcall-chaos-point-*")
	if err != nil {
		return false, []string{err.Error()}
	}
	defer os.RemoveAll(dir)
	if r.up, err = newUpstream(); err != nil {
		return false, []string{err.Error()}
	}
	defer r.up.close()
	if r.back, err = newProxy(r.up.addr, 0, 2, faults{}); err != nil {
		return false, []string{err.Error()}
	}
	defer r.back.close()
	if r.gw, err = newGateway(bin, dir, r.servers()); err != nil {
		return false, []string{err.Error()}
	}
	defer r.gw.kill()
	if r.front, err = newProxy(r.gw.addr, 0, 1, faults{}); err != nil {
		return false, []string{err.Error()}
	}
	defer r.front.close()
	a := &agent{script: plan, r: r, rng: rand.New(rand.NewPCG(1, 1))}
	a.token = tokenAnn
	a.args.Nonce = "p" + strings.ReplaceAll(at, ":", "")
	if a.name == "" {
		a.name = "patient"
	}
	r.agents = []*agent{a}

	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	again := func() {
		crashed = true
		if err := r.gw.start(ctx); err != nil {
			wrong = append(wrong, fmt.Sprintf("the restart: %v\n%s", err, r.gw.lastLog(3000)))
			cancel()
		}
	}
	if err := r.gw.start(ctx, "LONGCALL_CRASH_AT="+at); err != nil {
		r.gw.crashed()
		again() // it crashed on its way up
	}
	ended := make(chan struct{})
	go func() {
		a.run(ctx)
		close(ended)
	}()
	select {
	case <-ended:
		// What is stored after the call's end is still to come: deliveries.
		if !crashed && r.gw.wait(200*time.Millisecond) {
			again()
		}
	case <-r.gw.over():
		r.gw.crashed()
		again()
	}
	<-ended
	r.begun = r.gw.starts[0]
	r.gw.armed = !crashed
	if ctx.Err() != nil {
		wrong = append(wrong, "the agent knew no end after 30 s")
	}
	r.check(context.WithoutCancel(ctx))
	if a.cancel == 0 && a.final == nil {
		r.wrong("the agent never knew the end:\n%s", a.history())
	}
	return crashed, append(wrong, r.faults...)
}
