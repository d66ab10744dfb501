package call_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/call/calltest"
)

// place is what an agent remembers of a stream: where it was, as which process
// showed it, and what it has seen.
type place struct {
	j          *job
	epoch, seq uint64
	from       int   // messages that are not for it: it joined later
	seen       []int // messages
	end        *call.End
	loose      bool // only the end is sure to come: see enter
}

// attached is a reader of a call.
type attached struct {
	w       *lives
	home    *life
	c       *call.Call
	watcher bool
	join    call.Join
	p       *place
	stop    context.CancelFunc
	done    chan struct{}
}

func (w *lives) attach(rt *rapid.T, j *job, c *call.Call, p *place, join call.Join, watcher bool) {
	pause := rapid.SampledFrom([]time.Duration{0, 0, 40 * time.Millisecond}).Draw(rt, "pause")
	ctx, cancel := context.WithCancel(context.Background())
	r := &attached{w: w, home: w.now, c: c, p: p, join: join, watcher: watcher, stop: cancel, done: make(chan struct{})}
	w.mu.Lock()
	w.readers = append(w.readers, r)
	w.mu.Unlock()
	go r.read(ctx, pause)
	synctest.Wait()
}

// read follows the call to its end.
func (r *attached) read(ctx context.Context, pause time.Duration) {
	defer close(r.done)
	p := r.p
	after := r.c.Position(p.epoch, p.seq)
	for ev, err := range r.c.Follow(ctx, after, 7*time.Second) {
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, call.ErrLeft) {
				r.w.problem("I5: a reader of %s at %d.%d got %v", p.j.tag, p.epoch, p.seq, err)
			}
			return
		}
		if ev.Kind == call.KindBeat {
			continue
		}
		r.w.mu.Lock()
		p.epoch, p.seq = r.home.epoch, ev.Seq
		if p.end != nil {
			r.w.problems = append(r.w.problems, "I2: "+ev.Kind.String()+" after the end of "+p.j.tag)
		}
		switch ev.Kind {
		case call.KindMessage:
			n, _ := strconv.Atoi(strings.TrimRight(string(ev.Body), "x"))
			if k := len(p.seen); !p.j.shuffled && (k > 0 && p.seen[k-1] >= n) {
				r.w.problems = append(r.w.problems, "I5: a reader of "+p.j.tag+" got message "+strconv.Itoa(n)+" after "+strconv.Itoa(p.seen[k-1]))
			}
			p.seen = append(p.seen, n)
		case call.KindEnd:
			p.end = ev.End
		}
		r.w.mu.Unlock()
		if ev.Kind == call.KindEnd {
			return
		}
		if pause > 0 {
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
		}
	}
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	if ctx.Err() == nil && p.end == nil {
		r.w.problems = append(r.w.problems, "I5: a reader of "+p.j.tag+" was let go without the end")
	}
}

// read is a reader that found the call by its id, such as await_call.
func (w *lives) read(rt *rapid.T) {
	w.look()
	j := w.pick(rt, func(*job) bool { return true })
	if _, err := w.now.e.Get(context.Background(), "mallory", j.id); !errors.Is(err, call.ErrUnknown) {
		rt.Fatalf("I6: a foreign id gives %v", err)
	}
	c, err := w.now.e.Get(context.Background(), j.spec.Principal, j.id)
	if err != nil {
		rt.Fatalf("get: %v", err)
	}
	w.enter(rt, j, c, &place{j: j, epoch: w.epoch}, rapid.Bool().Draw(rt, "watch"))
}

// enter adds a reader that came by an id. One of a call that nobody can join any
// more, or that runs elsewhere, counts for nothing in the engine of the model's
// own process.
func (w *lives) enter(rt *rapid.T, j *job, c *call.Call, p *place, watch bool) {
	// What a process showed and lost, of a call whose messages do not come again,
	// is known to the process after it only, while it has the call.
	if n := len(j.owners); j.spec.Tool == toolPoll && p.epoch < j.owners[n-1] && (j.home != w.now || c != j.c || j.owners[n-1] != w.epoch || p.epoch < j.owners[n-2]) {
		p.loose = true
	}
	if watch {
		c.Watch()
	} else {
		c.Enter()
	}
	w.attach(rt, j, c, p, call.Joined, watch)
}

// comeBack resumes a stream from a place that an agent really had.
func (w *lives) comeBack(rt *rapid.T) {
	w.look()
	var some []*place
	w.mu.Lock()
	for _, p := range w.places {
		if p.end == nil {
			some = append(some, p)
		}
	}
	w.mu.Unlock()
	if len(some) == 0 {
		rt.Skip("no place")
	}
	p := some[rapid.IntRange(0, len(some)-1).Draw(rt, "place")]
	w.mu.Lock()
	w.places = slices.DeleteFunc(w.places, func(o *place) bool { return o == p })
	w.mu.Unlock()
	c, err := w.now.e.Get(context.Background(), p.j.spec.Principal, p.j.id)
	if err != nil {
		rt.Fatalf("get: %v", err)
	}
	if at := c.Position(p.epoch, p.seq); !c.Reached(at) {
		rt.Fatalf("a place that was reached counts as none: %d.%d of %s", p.epoch, p.seq, p.j.tag)
	}
	w.enter(rt, p.j, c, p, false)
}

// leave ends an attachment.
func (w *lives) leave(rt *rapid.T) {
	w.look()
	w.mu.Lock()
	some := slices.Clone(w.readers)
	w.mu.Unlock()
	if len(some) == 0 {
		rt.Skip("no reader")
	}
	r := some[rapid.IntRange(0, len(some)-1).Draw(rt, "reader")]
	hows := []call.How{call.AbortedDownstream, call.AbortedDownstream, call.Slow, call.HandedOff, ""}
	if r.watcher {
		hows = []call.How{call.AbortedDownstream, call.HandedOff}
	}
	w.mu.Lock()
	ended := r.p.end != nil
	w.mu.Unlock()
	if ended {
		hows = []call.How{call.Delivered, call.Delivered, call.AbortedDownstream}
		if r.join == call.Replay {
			hows = []call.How{call.Replayed, call.Replayed, call.Slow}
		}
	}
	how := rapid.SampledFrom(hows).Draw(rt, "how")
	if how == call.HandedOff && (!r.c.Stored() || r.p.j.outcome != call.Running) {
		how = call.AbortedDownstream
	}
	after := time.Duration(rapid.SampledFrom([]int{-1, -1, 0, 2, 15}).Draw(rt, "cancel after")) * time.Second
	before := r.p.j.fate
	w.detach(r, how, after)
	w.look()
	j := r.p.j
	if after != 0 && (j.outcome != before.outcome || j.cancelled != before.cancelled) {
		rt.Fatalf("I7: a reader left, and %+v became %+v", before, j.fate)
	}
	if requests, others := w.readersOf(j); j.cancelled && !before.cancelled && (requests+others > 0 || before.handed || how == call.HandedOff) {
		rt.Fatalf("I7: a call was cancelled that is read by %d or was handed off", requests+others)
	}
}

// detach takes a reader away.
func (w *lives) detach(r *attached, how call.How, after time.Duration) {
	r.stop()
	<-r.done
	d := call.Delivery{Call: r.c.ID(), How: how}
	if r.watcher {
		r.c.Unwatch(d)
	} else {
		r.c.Leave(d, after)
	}
	w.mu.Lock()
	w.readers = slices.DeleteFunc(w.readers, func(o *attached) bool { return o == r })
	w.places = append(w.places, r.p)
	w.mu.Unlock()
}

// cut takes all readers of a process away.
func (w *lives) cut(l *life, how call.How) {
	w.mu.Lock()
	all := slices.Clone(w.readers)
	w.mu.Unlock()
	for _, r := range all {
		if r.home == l {
			w.detach(r, how, -1)
		}
	}
}

func (w *lives) wait(rt *rapid.T) {
	ms := rapid.SampledFrom([]int{10, 1000, 10_000, 20_000, 300_000, 700_000}).Draw(rt, "ms")
	time.Sleep(time.Duration(ms) * time.Millisecond)
	w.look()
}

// sync is the log's own delay.
func (w *lives) sync(*rapid.T) { w.log.Sync() }

// crash kills all processes: what was not committed is lost.
func (w *lives) crash(rt *rapid.T) {
	w.look()
	if rapid.Bool().Draw(rt, "lucky") || w.old != nil { // another process sees only what is stored
		w.log.Sync()
	}
	frozen := calltest.NewMemory()
	w.log.Crash()
	w.log.CopyTo(frozen)
	w.log = frozen
	dead := []*life{w.now}
	if w.old != nil {
		dead = append(dead, w.old)
	}
	for _, l := range dead {
		w.cut(l, "") // nothing is noted
	}
	for _, l := range dead {
		stopAt(l.e) // its goroutines do not outlive it
	}
	for _, j := range w.jobs {
		lost := j.cancelled
		for _, ev := range w.stored(j) {
			lost = lost && ev.Kind != call.KindCancelRequested
		}
		if r, err := w.log.Get(context.Background(), j.id); err == nil && r.End.Outcome == call.Running {
			if lost {
				j.cancelled, j.reasons = false, nil
				w.mu.Lock()
				j.shuffled = true
				w.mu.Unlock()
			}
			j.outcome = call.Running
		}
	}
	w.old = nil
	w.now = w.boot()
	w.recovered(rt)
}

func (w *lives) stored(j *job) []call.Event {
	var all []call.Event
	for {
		var after uint64
		if n := len(all); n > 0 {
			after = all[n-1].Seq
		}
		page, err := w.log.Read(context.Background(), j.id, after, 1<<20)
		if err != nil {
			w.rt.Fatalf("read %s after %d: %v", j.tag, after, err)
		}
		if len(page) == 0 {
			return all
		}
		all = append(all, page...)
	}
}

func stopAt(e *call.Engine) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	e.Stop(ctx)
}

// recovered lets the process find what others left.
func (w *lives) recovered(rt *rapid.T) {
	if _, _, err := w.now.e.Recover(context.Background()); err != nil {
		rt.Fatalf("recover: %v", err)
	}
	synctest.Wait()
	for _, j := range w.jobs {
		r, err := w.log.Get(context.Background(), j.id)
		if err != nil {
			rt.Fatalf("call %s is lost: %v", j.tag, err)
		}
		if j.home == w.now || w.old != nil && j.home == w.old && r.End.Outcome == call.Running {
			continue // nothing changed
		}
		j.home, j.c = w.now, nil
		if j.c, err = w.now.e.Get(context.Background(), j.spec.Principal, j.id); err != nil {
			rt.Fatalf("get %s: %v", j.tag, err)
		}
		switch {
		case r.End.Outcome == call.Interrupted && r.End.By == "restart":
			j.reasons = []call.Outcome{call.Interrupted}
			if j.spec.Tool != toolGone && r.Address != nil {
				rt.Fatalf("call %s could be taken up, and was not", j.tag)
			}
		case r.End.Outcome == call.Running && j.spec.Tool == toolGone:
			rt.Fatalf("call %s runs for ever", j.tag)
		case r.End.Outcome == call.Running || j.result != nil:
			if r.Epoch == w.epoch {
				j.owners = append(j.owners, w.epoch)
			}
			if j.result != nil && !j.cancelled {
				j.reasons = []call.Outcome{j.result.Outcome}
			}
		}
	}
	w.look()
}

// stopped is what a process leaves that was stopped in order.
func (w *lives) stopped(rt *rapid.T, l *life) {
	for _, j := range w.jobs {
		if j.home != l || j.outcome != call.Running {
			continue
		}
		if j.spec.Tool == toolGone || j.held || j.cancelled {
			j.reasons = append(slices.Clone(j.reasons), call.Interrupted)
			if j.held {
				j.reasons = append(j.reasons, call.Failed)
			}
		}
	}
	stopAt(l.e)
	synctest.Wait()
	w.cut(l, call.ShutDown)
}

// restart stops the process in order; the next one comes up.
func (w *lives) restart(rt *rapid.T) {
	w.look()
	if w.old != nil {
		rt.Skip("two processes")
	}
	w.stopped(rt, w.now)
	w.now = w.boot()
	w.recovered(rt)
}

// replace starts a process that takes over new requests; the old one carries its
// calls on.
func (w *lives) replace(rt *rapid.T) {
	w.look()
	if w.old != nil {
		rt.Skip("two processes")
	}
	w.old = w.now
	w.log.SetAlive(w.old.epoch, true)
	w.old.e.Refuse()
	w.now = w.boot()
	w.recovered(rt)
}

// retire ends the process that is being replaced.
func (w *lives) retire(rt *rapid.T) {
	w.look()
	if w.old == nil {
		rt.Skip("one process")
	}
	old := w.old
	w.stopped(rt, old)
	w.log.SetAlive(old.epoch, false)
	w.old = nil
	w.recovered(rt)
}

// check looks at what must hold at any moment.
func (w *lives) check(rt *rapid.T) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, j := range w.jobs {
		if j.sent > 1 || j.runs > 1 {
			rt.Fatalf("I1: call %s was sent %d times and run %d times", j.tag, j.sent, j.runs)
		}
	}
	if len(w.problems) > 0 {
		rt.Fatal(w.problems[0])
	}
}

// settle lets all calls end, all places be read to their end, and looks at what
// is stored.
func (w *lives) settle() {
	rt := w.rt
	if w.old != nil {
		w.retire(rt)
	}
	w.look()
	for _, j := range w.jobs {
		if j.outcome == call.Running && j.result == nil {
			w.tell(j, func() {
				j.held = false
				j.result = &call.Answer{End: call.End{Outcome: call.Completed}, Body: []byte("result of " + j.tag), Hole: -1}
			})
			if !j.cancelled {
				j.reasons = []call.Outcome{call.Completed}
			}
		}
	}
	time.Sleep(time.Minute) // slow readers
	w.look()
	w.mu.Lock()
	readers := slices.Clone(w.readers)
	w.mu.Unlock()
	for _, r := range readers {
		select {
		case <-r.done:
		default:
			rt.Errorf("I5: a reader of %s waits for ever", r.p.j.tag)
		}
		w.detach(r, "", -1)
	}
	for _, j := range w.jobs {
		if j.outcome == call.Running {
			rt.Fatalf("call %s never ends", j.tag)
		}
		if len(j.reasons) > 0 && !slices.Contains(j.reasons, j.outcome) {
			rt.Fatalf("I7: call %s ended as %q; there was reason for %q only", j.tag, j.outcome, j.reasons)
		}
		evs := w.stored(j)
		for i, ev := range evs {
			if ev.Seq != uint64(i+1) || (ev.Kind == call.KindEnd) != (i == len(evs)-1) {
				rt.Fatalf("I2, I3: event %d of %s is %d, %s", i+1, j.tag, ev.Seq, ev.Kind)
			}
		}
	}
	// Every place that an agent had leads to the rest, each event once.
	places := w.places
	w.places = nil
	for _, p := range places {
		c, err := w.now.e.Get(context.Background(), p.j.spec.Principal, p.j.id)
		if err != nil {
			rt.Fatalf("get: %v", err)
		}
		had := p.end != nil
		if !had {
			w.enter(rt, p.j, c, p, false)
		}
	}
	time.Sleep(time.Minute)
	w.cut(w.now, "")
	w.check(rt)
	for _, p := range places {
		if p.end == nil || p.end.Outcome != p.j.outcome {
			rt.Fatalf("I5: a reader of %s that was at %d.%d never got the end %q: %v", p.j.tag, p.epoch, p.seq, p.j.outcome, p.end)
		}
		if p.j.shuffled || p.loose {
			continue
		}
		for _, ev := range w.stored(p.j) {
			if ev.Kind != call.KindMessage {
				continue
			}
			n, _ := strconv.Atoi(strings.TrimRight(string(ev.Body), "x"))
			if n > p.from && !slices.Contains(p.seen, n) {
				rt.Fatalf("I5: a reader of %s (%s) at %d.%d missed message %d: it saw %v", p.j.tag, p.j.spec.Tool, p.epoch, p.seq, n, p.seen)
			}
		}
	}
}

func (w *lives) close() {
	w.mu.Lock()
	readers := slices.Clone(w.readers)
	w.mu.Unlock()
	for _, r := range readers {
		r.stop()
		<-r.done
	}
	for _, l := range []*life{w.now, w.old} {
		if l != nil {
			stopAt(l.e)
		}
	}
	synctest.Wait()
}
