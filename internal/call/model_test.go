package call

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

const (
	modelTail = 300 // bytes: small, so that readers fall behind it
	modelBeat = 5 * time.Second
)

// TestModel lets calls, readers, cancels, crashes and failures of the log come
// in any order, and holds the engine to I1–I7 and I9 all the while. Time is
// fake, so that limits and silences cost nothing.
func TestModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(struct{ rapid.TB }{t}, func(rt *rapid.T) { // a bubble has no Deadline
			w := newWorld(rt)
			defer w.close()
			rt.Repeat(map[string]func(*rapid.T){
				"start":       w.start,
				"emit":        w.emit,
				"end":         w.end,
				"attach":      w.attach,
				"foreign":     w.foreign,
				"detach":      w.detach,
				"cancel":      w.cancel,
				"lose wakes":  w.loseWakes,
				"wait":        w.wait,
				"break log":   w.breakLog,
				"mend log":    w.mendLog,
				"forget past": w.forgetPast,
				"crash":       w.crash,
				"ask":         w.ask,
				"withdraw":    w.withdraw,
				"answer":      w.answer,
				"":            w.check,
			})
			w.settle()
		})
	})
}

// world is the model: what was asked for, and what may come of it.
type world struct {
	rt    *rapid.T
	disk  *fakeLog // survives crashes
	gen   int      // which process: 1, 2, …
	log   *process // what this process sees of disk
	e     *Engine
	calls []*modelCall

	mu       sync.Mutex
	readers  []*reader
	problems []string
	active   int // runs of all processes
}

type modelCall struct {
	id        ID
	tool      string
	principal string
	gen       int
	c         *Call // nil after its process has crashed
	cmds      chan func(x *Exec) *Answer
	late      bool // answers after a cancel
	deadline  time.Time
	stopped   bool // its runner hears no more commands
	asking    asking

	// allowed are the outcomes for which there is a reason. Readers that leave
	// are none (I7).
	allowed []Outcome

	// Guarded by world.mu:
	runs, dispatches int
	holes            bool // events are not in the log, and that is known
	unstored         bool // its end could not be stored when it came
	seen             map[seenKey]string
}

type seenKey struct {
	gen int
	seq uint64
}

// process is the log as one process sees it, until it crashes.
type process struct {
	*fakeLog
	w *world

	mu         sync.Mutex
	dead       bool
	noCreate   bool
	full       bool
	noFinish   int  // how many more times Finish fails
	slowFinish bool // Finish waits as long as it may, and fails
}

func (p *process) Create(ctx context.Context, r *Record, events ...Event) error {
	p.mu.Lock()
	bad := p.dead || p.noCreate
	p.mu.Unlock()
	if bad {
		p.w.mark(r.Tool, func(c *modelCall) { c.unstored, c.holes = true, true })
		return errDown
	}
	return p.fakeLog.Create(ctx, r, events...)
}

func (p *process) Append(id ID, epoch uint64, e Event) error {
	p.mu.Lock()
	dead, full := p.dead, p.full
	p.mu.Unlock()
	if dead {
		return ErrNotRunning
	}
	if full {
		p.w.markID(id, func(c *modelCall) { c.holes = true })
		return ErrFull
	}
	return p.fakeLog.Append(id, epoch, e)
}

func (p *process) Finish(ctx context.Context, r *Record, e Event) error {
	p.mu.Lock()
	dead, slow, fail := p.dead, p.slowFinish, p.noFinish > 0
	if fail {
		p.noFinish--
	}
	p.mu.Unlock()
	switch {
	case dead:
		return ErrNotRunning
	case slow:
		p.w.mark(r.Tool, func(c *modelCall) { c.unstored = true })
		<-ctx.Done()
		return ctx.Err()
	case fail:
		p.w.mark(r.Tool, func(c *modelCall) { c.unstored = true })
		return errDown
	}
	return p.fakeLog.Finish(ctx, r, e)
}

func newWorld(rt *rapid.T) *world {
	w := &world{rt: rt, disk: newFakeLog()}
	w.boot()
	return w
}

func (w *world) boot() {
	w.gen++
	w.log = &process{fakeLog: w.disk, w: w}
	w.e = NewEngine(w.log, runFunc(w.run), Options{Epoch: uint64(w.gen), Tail: modelTail})
}

func (w *world) mark(tool string, f func(*modelCall)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.calls {
		if c.tool == tool {
			f(c)
		}
	}
}

func (w *world) markID(id ID, f func(*modelCall)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.calls {
		if c.id == id {
			f(c)
		}
	}
}

func (w *world) problem(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.problems = append(w.problems, fmt.Sprintf(format, args...))
}

// run is the tool server: it does what it is told.
func (w *world) run(ctx context.Context, x *Exec) Answer {
	var mc *modelCall
	w.mark(x.Spec.Tool, func(c *modelCall) { mc, c.runs = c, c.runs+1 })
	w.mu.Lock()
	w.active++
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.active--
		w.mu.Unlock()
	}()
	for {
		select {
		case f := <-mc.cmds:
			if a := f(x); a != nil {
				return *a
			}
		case b := <-x.Answers():
			w.answered(mc, x, b)
		case <-ctx.Done():
			var cause *Cause
			if errors.As(context.Cause(ctx), &cause) && cause.End.Outcome == Cancelled && mc.late {
				time.Sleep(2 * time.Second)
				return completed("too late")
			}
			return Answer{}
		}
	}
}

// pick draws a call that ok accepts, or skips the action.
func (w *world) pick(rt *rapid.T, ok func(*modelCall) bool) *modelCall {
	var some []*modelCall
	for _, c := range w.calls {
		if ok(c) {
			some = append(some, c)
		}
	}
	if len(some) == 0 {
		rt.Skip("no such call")
	}
	return rapid.SampledFrom(some).Draw(rt, "call")
}

// obeys says that the call's runner still takes commands.
func (w *world) obeys(c *modelCall) bool {
	if c.stopped || c.c == nil {
		return false
	}
	return c.deadline.IsZero() || !c.asking.since.IsZero() || time.Now().Before(c.deadline)
}

func (w *world) start(rt *rapid.T) {
	c := &modelCall{
		tool: fmt.Sprintf("t%d", len(w.calls)), gen: w.gen,
		principal: rapid.SampledFrom([]string{"alice", "bob"}).Draw(rt, "principal"),
		late:      rapid.Bool().Draw(rt, "late"),
		cmds:      make(chan func(*Exec) *Answer),
		seen:      map[seenKey]string{},
	}
	spec := Spec{Principal: c.principal, Server: "s", Tool: c.tool}
	switch rapid.IntRange(0, 5).Draw(rt, "sort") {
	case 0:
		spec.Denied = &End{By: "policy"}
		c.allowed, c.stopped = []Outcome{Denied}, true
	case 1:
		spec.Limits.Total = time.Duration(rapid.IntRange(1, 40).Draw(rt, "total")) * time.Second
		c.allowed = []Outcome{TimedOut}
		c.deadline = time.Now().Add(spec.Limits.Total)
	}
	w.mu.Lock()
	w.calls = append(w.calls, c)
	w.mu.Unlock()
	request, gone := context.WithCancel(context.Background())
	got, err := w.e.Start(request, spec)
	gone() // the call outlives the request that started it (I7)
	if err != nil {
		rt.Fatalf("start: %v", err)
	}
	w.mu.Lock()
	c.c, c.id = got, got.ID()
	w.mu.Unlock()
	synctest.Wait()
}

func (w *world) emit(rt *rapid.T) {
	c := w.pick(rt, w.obeys)
	n, size := rapid.IntRange(1, 8).Draw(rt, "n"), rapid.IntRange(0, 200).Draw(rt, "size")
	dispatch := rapid.Bool().Draw(rt, "dispatch")
	c.cmds <- func(x *Exec) *Answer {
		if dispatch {
			if x.Dispatched() == nil {
				w.mark(c.tool, func(c *modelCall) { c.dispatches++ })
			}
		}
		for i := range n {
			body := fmt.Sprintf("%s/%d/%s", c.tool, i, strings.Repeat("x", size))
			if err := x.Emit(Event{Kind: KindMessage, Hole: -1, Body: []byte(body)}); err != nil {
				w.problem("emit: %v", err)
			}
		}
		x.FirstByte()
		return nil
	}
	if rapid.Bool().Draw(rt, "settle") {
		synctest.Wait()
	}
}

func (w *world) end(rt *rapid.T) {
	c := w.pick(rt, w.obeys)
	o := rapid.SampledFrom([]Outcome{Completed, Failed, Interrupted}).Draw(rt, "outcome")
	c.stopped = true
	c.allowed = []Outcome{o}
	if o == Interrupted && c.c.Record().Dispatched.IsZero() {
		c.allowed = []Outcome{Failed, Interrupted} // which one depends on commands under way
	}
	c.cmds <- func(*Exec) *Answer {
		a := Answer{End: End{Outcome: o}, Hole: -1}
		if o != Interrupted {
			a.Body = []byte("the answer of " + c.tool)
		}
		return &a
	}
	if rapid.Bool().Draw(rt, "settle") {
		synctest.Wait()
	}
}

func (w *world) cancel(rt *rapid.T) {
	c := w.pick(rt, w.obeys)
	if err := w.e.Tell("mallory", c.id, End{By: "agent"}); !errors.Is(err, ErrUnknown) {
		rt.Fatalf("I6: a foreign cancel: %v", err)
	}
	for range rapid.IntRange(1, 2).Draw(rt, "times") {
		if err := w.e.Tell(c.principal, c.id, End{By: "agent"}); err != nil && !errors.Is(err, ErrUnknown) && !errors.Is(err, ErrNotRunning) {
			rt.Fatalf("cancel: %v", err)
		}
	}
	c.stopped = true
	c.allowed = []Outcome{Cancelled}
	synctest.Wait()
}

func (w *world) wait(rt *rapid.T) {
	time.Sleep(time.Duration(rapid.IntRange(1, 20_000).Draw(rt, "ms")) * time.Millisecond)
	synctest.Wait()
}

func (w *world) breakLog(rt *rapid.T) {
	w.log.mu.Lock()
	defer w.log.mu.Unlock()
	switch rapid.IntRange(0, 3).Draw(rt, "what") {
	case 0:
		w.log.full = true
	case 1:
		w.log.noFinish = rapid.IntRange(1, 5).Draw(rt, "n")
	case 2:
		w.log.slowFinish = true
	case 3:
		w.log.noCreate = true
	}
}

func (w *world) mendLog(*rapid.T) {
	w.log.mu.Lock()
	defer w.log.mu.Unlock()
	w.log.full, w.log.noCreate, w.log.slowFinish, w.log.noFinish = false, false, false, 0
}

// forgetPast is what retention does to a call.
func (w *world) forgetPast(rt *rapid.T) {
	c := w.pick(rt, func(c *modelCall) bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return !c.unstored
	})
	r, _ := w.disk.kept(c.id)
	if r.Seq < 2 {
		rt.Skip("nothing to forget")
	}
	w.markID(c.id, func(c *modelCall) { c.holes = true })
	w.disk.forget(c.id, rapid.Uint64Range(1, r.Seq-1).Draw(rt, "seq"))
}

// loseWakes takes every wake-up from the readers that a call has now.
func (w *world) loseWakes(rt *rapid.T) {
	c := w.pick(rt, func(c *modelCall) bool { return c.c != nil })
	c.c.mu.Lock()
	defer c.c.mu.Unlock()
	c.c.wakes = nil
}

// crash ends the process as it stands: what was not committed is lost, readers
// are cut off, and the next process starts on the same disk.
func (w *world) crash(rt *rapid.T) {
	w.mu.Lock()
	cut := slices.Clone(w.readers)
	w.mu.Unlock()
	for _, r := range cut {
		r.leave()
	}
	w.log.mu.Lock()
	w.log.dead = true
	w.log.mu.Unlock()
	stopNow(w.e) // its goroutines do not outlive it
	w.disk.mu.Lock()
	for _, c := range w.calls {
		if n := len(w.disk.pending[c.id]); n > 0 {
			w.disk.pending[c.id] = w.disk.pending[c.id][:rapid.IntRange(0, n).Draw(rt, "kept")]
			w.disk.commitLocked(c.id)
		}
	}
	w.disk.mu.Unlock()
	for _, c := range w.calls {
		if c.c == nil {
			continue
		}
		c.c, c.stopped = nil, true
		if r, _ := w.disk.kept(c.id); r.End.Outcome == Running {
			c.allowed = []Outcome{Interrupted}
		}
	}
	w.boot()
	if _, _, err := w.e.Recover(context.Background()); err != nil {
		rt.Fatalf("recover: %v", err)
	}
	for _, c := range w.calls {
		if r, _ := w.disk.kept(c.id); r.ID != "" && r.End.Outcome == Running {
			rt.Fatalf("call %s still says that it runs after its process is gone", c.id)
		}
	}
}

// check looks at what must hold at any moment.
func (w *world) check(rt *rapid.T) {
	w.mu.Lock()
	problems := slices.Clone(w.problems)
	for _, c := range w.calls {
		if c.runs > 1 || c.dispatches > 1 {
			problems = append(problems, fmt.Sprintf("I1: call %s ran %d times and was dispatched %d times", c.id, c.runs, c.dispatches))
		}
	}
	w.mu.Unlock()
	for _, c := range w.calls {
		if c.c == nil {
			continue
		}
		if r := c.c.Record(); r.End.Outcome == TimedOut && !c.asking.since.IsZero() {
			problems = append(problems, fmt.Sprintf("call %s waits for an answer, and ended as %s", c.id, r.End.Outcome))
		}
		c.c.mu.Lock()
		held := 0
		for i, ev := range c.c.tail {
			held += len(ev.Body) + eventCost
			if ev.Seq != c.c.tail[0].Seq+uint64(i) {
				problems = append(problems, fmt.Sprintf("I3: the tail of call %s has seq %d at %d", c.id, ev.Seq, i))
			}
		}
		if held > modelTail && len(c.c.tail) > 1 || c.c.tailBytes != held {
			problems = append(problems, fmt.Sprintf("I9: call %s holds %d bytes in %d events, and counts %d", c.id, held, len(c.c.tail), c.c.tailBytes))
		}
		c.c.mu.Unlock()
	}
	w.disk.mu.Lock()
	if w.disk.maxRead > page {
		problems = append(problems, fmt.Sprintf("I9: a reader took %d bytes at once", w.disk.maxRead))
	}
	w.disk.mu.Unlock()
	if len(problems) > 0 {
		rt.Fatal(problems[0])
	}
}

// settle lets all come to its end, and looks at what is left.
func (w *world) settle() {
	rt := w.rt
	w.mendLog(rt)
	synctest.Wait()
	if drain := rapid.Bool().Draw(rt, "drain"); drain {
		for _, c := range w.calls {
			if w.obeys(c) {
				c.stopped, c.allowed = true, []Outcome{Completed}
				c.cmds <- func(*Exec) *Answer { a := completed("at last"); return &a }
			}
		}
		w.e.Stop(context.Background())
	} else {
		for _, c := range w.calls {
			if w.obeys(c) {
				c.allowed = append(c.allowed, Interrupted, Failed)
			} else if c.late {
				c.allowed = append(c.allowed, Cancelled)
			}
		}
		stopNow(w.e)
	}
	w.mu.Lock()
	if w.active != 0 || w.e.InFlight() != 0 || len(w.e.late) != 0 {
		rt.Errorf("I8: %d runs, %d calls and %d late ends are left after Stop", w.active, w.e.InFlight(), len(w.e.late))
	}
	readers := w.readers
	w.mu.Unlock()
	for range 3600 {
		if !slices.ContainsFunc(readers, func(r *reader) bool { return !r.isDone() }) {
			break
		}
		time.Sleep(time.Second)
	}
	for _, r := range readers {
		if !r.isDone() {
			rt.Errorf("I5: a reader of %s waits for ever at %d of %d", r.call.id, r.at(), r.call.c.Record().Seq)
		}
	}
	w.check(rt)
	for _, c := range w.calls {
		w.checkStored(rt, c)
	}
}

// checkStored holds what the log has in the end to I2, I3 and I7.
func (w *world) checkStored(rt *rapid.T, c *modelCall) {
	r, evs := w.disk.kept(c.id)
	if r.ID == "" {
		if !c.unstored {
			rt.Fatalf("call %s was never stored, and nobody noticed", c.id)
		}
		return
	}
	if !slices.Contains(c.allowed, r.End.Outcome) {
		rt.Fatalf("I7: call %s ended as %q; there was reason for %q only", c.id, r.End.Outcome, c.allowed)
	}
	checkAnswers(rt, c, evs)
	for i, ev := range evs {
		if (ev.Kind == KindEnd) != (i == len(evs)-1) {
			rt.Fatalf("I2: call %s: %v", c.id, kinds(evs))
		}
		if i > 0 && (ev.Seq <= evs[i-1].Seq || !c.holes && ev.Seq != evs[i-1].Seq+1) || i == 0 && !c.holes && ev.Seq != 1 {
			rt.Fatalf("I3: call %s has seq %d at %d", c.id, ev.Seq, i)
		}
	}
	if len(evs) == 0 || evs[len(evs)-1].Seq != r.Seq || evs[len(evs)-1].End.Outcome != r.End.Outcome {
		rt.Fatalf("I2: the record of call %s and its last event do not agree", c.id)
	}
}

func (w *world) close() {
	w.mu.Lock()
	readers := w.readers
	w.mu.Unlock()
	for _, r := range readers {
		r.leave()
	}
	w.log.mu.Lock()
	w.log.dead = true
	w.log.mu.Unlock()
	stopNow(w.e)
	synctest.Wait()
}
