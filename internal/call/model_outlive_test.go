package call_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/call/calltest"
)

const (
	outliveWindow = 10 * time.Minute
	outliveTail   = 400 // bytes: small, so that readers fall behind it
)

// The sorts of tools, by what a process after a crash can do with their calls.
const (
	toolGone   = "gone"   // nothing: outcome unknown
	toolPoll   = "poll"   // ask how it stands; what was shown and not stored does not come again
	toolStream = "stream" // ask for all after the last stored event
)

// TestModelOutlive lets requests, readers, answers, cancels, restarts, crashes
// and hand-overs between two processes come in any order, and holds the engine
// to SPEC §3.7, I1, I2, I3, I5, I6 and I7 over all processes. Time is fake, so
// that windows and graces cost nothing.
func TestModelOutlive(t *testing.T) {
	round := inBubble(t, func(rt *rapid.T) {
		w := newLives(rt)
		defer w.close()
		rt.Repeat(map[string]func(*rapid.T){
			"request":  w.request,
			"request ": w.request, // twice as often
			"say":      w.say,
			"answer":   w.answer,
			"dispatch": w.dispatch,
			"ask":      w.ask,
			"reply":    w.reply,
			"read":     w.read,
			"return":   w.comeBack,
			"leave":    w.leave,
			"leave ":   w.leave,
			"cancel":   w.cancel,
			"wait":     w.wait,
			"stored":   w.sync,
			"crash":    w.crash,
			"restart":  w.restart,
			"replace":  w.replace,
			"retire":   w.retire,
			"":         w.check,
		})
		w.settle()
	})
	for range 5 { // what it is after takes some hundred rounds
		rapid.Check(t, round)
	}
}

// inBubble runs one round of rapid in a bubble of its own: in one for all rounds,
// rapid's own deadline would be of fake time.
func inBubble(t *testing.T, f func(*rapid.T)) func(*rapid.T) {
	return func(rt *rapid.T) {
		var failed any
		synctest.Test(t, func(*testing.T) {
			defer func() { failed = recover() }()
			f(rt)
		})
		switch {
		case failed == nil:
		case fmt.Sprintf("%T", failed) == "rapid.invalidData":
			panic(failed) // another line: rapid knows failures by where they are
		default:
			panic(failed)
		}
	}
}

// lives is the model: a log and tool servers that outlive processes.
type lives struct {
	rt    *rapid.T
	log   *calltest.Memory
	epoch uint64
	now   *life // takes requests
	old   *life // is being replaced; nil if none is
	tags  int

	mu       sync.Mutex
	jobs     []*job
	coming   *job // perhaps
	problems []string
	readers  []*attached
	places   []*place
}

// life is one process.
type life struct {
	w     *lives
	epoch uint64
	e     *call.Engine
}

// job is a call, as the model and the tool server know it.
type job struct {
	tag  string // Spec.RequestID
	spec call.Spec
	id   call.ID
	home *life
	c    *call.Call // in its home, while that is there

	// Of the tool server, guarded by lives.mu:
	held    bool // not dispatched yet
	late    bool // answers all the same, a while after it was told to cancel
	sent    int  // how often it came
	runs    int
	said    int // messages so far, numbered from 1
	result  *call.Answer
	open    map[string]bool // questions
	asked   int             // questions so far
	heard   map[string]int  // answers that the tool got, by question
	changed chan struct{}

	// Of the model:
	owners   []uint64 // epochs of the processes that ran it
	fate              // as of the last look
	reasons  []call.Outcome
	shuffled bool // a cancel was lost in a crash: seqs moved
}

// fate is what decides about equal requests.
type fate struct {
	outcome                      call.Outcome
	cancelled, delivered, handed bool
	dispatched                   bool
	endedAt                      time.Time
}

func newLives(rt *rapid.T) *lives {
	w := &lives{rt: rt, log: calltest.NewMemory()}
	w.now = w.boot()
	return w
}

func (w *lives) boot() *life {
	w.epoch++
	l := &life{w: w, epoch: w.epoch}
	l.e = call.NewEngine(w.log, l, call.Options{
		Epoch: w.epoch, Tail: outliveTail, Window: outliveWindow,
		Orphan: func(r *call.Record) time.Duration {
			if r.Server == "strict" {
				return 15 * time.Second
			}
			return -1
		},
	})
	return l
}

func (w *lives) problem(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.problems = append(w.problems, fmt.Sprintf(format, args...))
}

func (w *lives) job(tag string) *job {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, j := range w.jobs {
		if j.tag == tag {
			return j
		}
	}
	return w.coming
}

// tell changes a job at its tool server.
func (w *lives) tell(j *job, f func()) {
	w.mu.Lock()
	f()
	close(j.changed)
	j.changed = make(chan struct{})
	w.mu.Unlock()
	synctest.Wait()
}

// Resumable implements call.Resumer.
func (l *life) Resumable(r *call.Record) bool {
	return r.Tool != toolGone && r.Address != nil && !r.Dispatched.IsZero()
}

// Run is the way to the tool server.
func (l *life) Run(ctx context.Context, x *call.Exec) call.Answer {
	w := l.w
	j := w.job(x.Spec.RequestID)
	shown, asked := 0, -1
	if x.Resume != nil {
		if j.spec.Tool == toolStream {
			shown, _ = strconv.Atoi(string(x.Resume.Cursor))
		} else {
			w.mu.Lock()
			shown = j.said
			w.mu.Unlock()
		}
	} else {
		w.mu.Lock()
		j.runs++
		w.mu.Unlock()
		if !l.waitFor(ctx, j, func() bool { return !j.held }) {
			return call.Answer{}
		}
		if x.Dispatched() != nil {
			return call.Answer{}
		}
		w.mu.Lock()
		j.sent++
		w.mu.Unlock()
		switch j.spec.Tool {
		case toolStream:
			_ = x.Emit(call.Event{Kind: call.KindAddress, Hole: -1, Body: []byte(`{"at":"` + j.tag + `"}`), Cursor: []byte("0")})
		case toolPoll:
			x.Address([]byte(`{"at":"` + j.tag + `"}`))
		}
	}
	for {
		w.mu.Lock()
		said, result, changed, n := j.said, j.result, j.changed, j.asked
		questions := map[string]string{}
		for k := range j.open {
			questions[k] = "?"
		}
		w.mu.Unlock()
		for shown < said {
			shown++
			ev := call.Event{Kind: call.KindMessage, Hole: -1, Body: []byte(strconv.Itoa(shown) + strings.Repeat("x", shown*37%120))}
			if j.spec.Tool == toolStream {
				ev.Cursor = []byte(strconv.Itoa(shown))
			}
			if err := x.Emit(ev); err != nil {
				w.problem("emit: %v", err)
			}
		}
		if n > 0 && asked != len(questions) {
			asked = len(questions)
			b, _ := json.Marshal(questions)
			x.Ask(b, nil)
		}
		if result != nil {
			return *result
		}
		select {
		case <-changed:
		case b := <-x.Answers():
			var got map[string]string
			if err := json.Unmarshal(b, &got); err != nil {
				w.problem("answers %q: %v", b, err)
			}
			w.mu.Lock()
			for k := range got {
				j.heard[k]++
				delete(j.open, k)
			}
			w.mu.Unlock()
		case <-ctx.Done():
			var cause *call.Cause
			if j.late && errors.As(context.Cause(ctx), &cause) && cause.End.Outcome == call.Cancelled {
				time.Sleep(2 * time.Second)
				return call.Answer{End: call.End{Outcome: call.Completed}, Body: []byte("too late"), Hole: -1}
			}
			return call.Answer{}
		}
	}
}

// waitFor waits until the tool server lets a thing be; false if ctx is done.
func (l *life) waitFor(ctx context.Context, j *job, ok func() bool) bool {
	for {
		l.w.mu.Lock()
		done, changed := ok(), j.changed
		l.w.mu.Unlock()
		if done {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// look takes down what has become of the calls.
func (w *lives) look() {
	synctest.Wait()
	for _, j := range w.jobs {
		r, err := w.log.Get(context.Background(), j.id)
		if err != nil {
			w.rt.Fatalf("call %s is lost: %v", j.tag, err)
		}
		if j.c != nil {
			live := j.c.Record()
			r.Delivered, r.HandedOff, r.Dispatched, r.End, r.Ended = live.Delivered, live.HandedOff, live.Dispatched, live.End, live.Ended
		}
		f := fate{outcome: r.End.Outcome, delivered: r.Delivered, handed: r.HandedOff, dispatched: !r.Dispatched.IsZero(), endedAt: r.Ended, cancelled: j.cancelled}
		if j.outcome != call.Running && j.outcome != f.outcome {
			w.rt.Fatalf("I2: call %s ended as %q, and then as %q", j.tag, j.outcome, f.outcome)
		}
		if ev, ok := j.latest(call.KindCancelRequested); ok && !f.cancelled {
			f.cancelled = true
			j.reasons = []call.Outcome{call.Cancelled}
			if !strings.HasPrefix(string(ev.Body), "disconnect:") {
				w.rt.Fatalf("I7: nobody asked to cancel call %s: %s", j.tag, ev.Body)
			}
			if requests, others := w.readersOf(j); requests+others > 0 || f.handed {
				w.rt.Fatalf("I7: call %s was cancelled for want of readers, and has %d, %+v", j.tag, requests+others, f)
			}
		}
		j.fate = f
	}
}

func (j *job) latest(k call.Kind) (call.Event, bool) {
	if j.c == nil {
		return call.Event{}, false
	}
	return j.c.Latest(k)
}

// request is an agent's tools/call: it must get an equal call where it has to,
// and never where it may not.
func (w *lives) request(rt *rapid.T) {
	w.look()
	w.tags++
	spec := call.Spec{
		RequestID: fmt.Sprint("r", w.tags),
		Principal: rapid.SampledFrom([]string{"ann", "ann", "ann", "bob"}).Draw(rt, "principal"),
		Server:    rapid.SampledFrom([]string{"strict", "lenient"}).Draw(rt, "server"),
		Tool:      rapid.SampledFrom([]string{toolGone, toolPoll, toolStream}).Draw(rt, "tool"),
		Digest:    rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "digest"),
		Attach:    rapid.SampledFrom([]call.Attach{call.AttachUndelivered, call.AttachUndelivered, call.AttachUndelivered, call.AttachAlways, call.AttachNever}).Draw(rt, "attach"),
	}
	if rapid.IntRange(0, 4).Draw(rt, "keyed") == 0 {
		spec.Idempotency = rapid.SampledFrom([]string{"k1", "k2"}).Draw(rt, "key")
	}
	coming := &job{
		tag: spec.RequestID, spec: spec, home: w.now, held: rapid.IntRange(0, 3).Draw(rt, "held") == 0, late: rapid.Bool().Draw(rt, "late"),
		open: map[string]bool{}, heard: map[string]int{}, changed: make(chan struct{}),
	}
	w.mu.Lock()
	w.coming = coming
	w.mu.Unlock()
	c, join, err := w.now.e.Attach(context.Background(), spec)
	found := w.jobOf(c)
	var must []*job
	for _, j := range w.jobs {
		if w.fits(j, &spec) == yes {
			must = append(must, j)
		}
	}
	switch {
	case errors.Is(err, call.ErrMismatch):
		for _, j := range w.jobs {
			if spec.Idempotency != "" && j.spec.Idempotency == spec.Idempotency && j.spec.Principal == spec.Principal && !sameWork(&j.spec, &spec) && w.fits(j, &spec) != no {
				return
			}
		}
		rt.Fatalf("a key that nobody has used gives %v", err)
	case err != nil:
		rt.Fatalf("attach: %v", err)
	case join == call.Started:
		if len(must) > 0 {
			rt.Fatalf("SPEC §3.7: a new call was started, though %s is there (%+v)", must[0].tag, must[0].fate)
		}
		j := coming
		j.id, j.c, j.owners = c.ID(), c, []uint64{w.epoch}
		w.mu.Lock()
		w.jobs = append(w.jobs, j)
		w.mu.Unlock()
		w.attach(rt, j, c, &place{j: j, epoch: w.epoch}, join, false)
		return
	case found == nil:
		rt.Fatalf("joined a call that is none: %s", c.ID())
	}
	if w.fits(found, &spec) == no {
		requests, others := w.readersOf(found)
		rt.Fatalf("SPEC §3.7, I6: %+v joined %+v, with %d requests, %d other readers, %+v", spec, found.spec, requests, others, found.fate)
	}
	if !sameWork(&found.spec, &spec) {
		rt.Fatalf("a key joined another tool or other arguments: %+v and %+v", spec, found.spec)
	}
	if (join == call.Replay) != (found.outcome != call.Running) {
		rt.Fatalf("join %d of a call that is %q", join, found.outcome)
	}
	seq := c.Record().Seq
	if join == call.Replay {
		seq--
	}
	w.mu.Lock()
	p := &place{j: found, epoch: w.epoch, seq: seq, from: found.said}
	w.mu.Unlock()
	w.attach(rt, found, c, p, join, false)
}

func (w *lives) jobOf(c *call.Call) *job {
	for _, j := range w.jobs {
		if c != nil && j.id == c.ID() {
			return j
		}
	}
	return nil
}

func sameWork(a, b *call.Spec) bool {
	return a.Server == b.Server && a.Tool == b.Tool && a.Digest == b.Digest
}

type verdict int

const (
	no verdict = iota
	maybe
	yes
)

// fits says whether a request takes over the call, by SPEC §3.7.
func (w *lives) fits(j *job, s *call.Spec) verdict {
	if j.spec.Principal != s.Principal || j.spec.Idempotency != s.Idempotency {
		return no // I6
	}
	ended := j.outcome != call.Running
	kept := ended && time.Since(j.endedAt) <= outliveWindow && (j.dispatched || j.outcome == call.Interrupted)
	if s.Idempotency != "" {
		switch {
		case ended && !kept:
			return no
		case !sameWork(&j.spec, s):
			return maybe // says that the key is taken
		}
		return yes
	}
	if !sameWork(&j.spec, s) || s.Attach == call.AttachNever {
		return no
	}
	soft := yes
	requests, others := w.readersOf(j)
	if j.spec.Attach == call.AttachNever {
		soft = maybe // a setting that changed, or was forgotten in a restart
	}
	switch {
	case ended && !kept:
		return no
	case j.home != w.now:
		return maybe // the other process knows who reads it
	case ended:
		if j.delivered || requests+others > 0 || j.outcome == call.Cancelled || j.outcome == call.Denied {
			return no
		}
		return soft
	case j.cancelled:
		return no
	case requests == 0 || j.handed:
		return soft
	case s.Attach == call.AttachAlways && j.spec.Attach == call.AttachAlways:
		return maybe // not after a restart
	case s.Attach == call.AttachAlways:
		return maybe
	}
	return no
}

// readersOf counts who reads the call in its process: by a request of its own, and
// by its id.
func (w *lives) readersOf(j *job) (requests, others int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.readers {
		switch {
		case r.c != j.c:
		case r.watcher:
			others++
		default:
			requests++
		}
	}
	return requests, others
}

// pick draws a job that ok accepts, or skips the action.
func (w *lives) pick(rt *rapid.T, ok func(*job) bool) *job {
	var some []*job
	for _, j := range w.jobs {
		if ok(j) {
			some = append(some, j)
		}
	}
	if len(some) == 0 {
		rt.Skip("no such call")
	}
	return some[rapid.IntRange(0, len(some)-1).Draw(rt, "job")]
}

func (w *lives) running(j *job) bool { return j.outcome == call.Running && j.c != nil }

func (w *lives) say(rt *rapid.T) {
	w.look()
	j := w.pick(rt, func(j *job) bool { return j.outcome == call.Running && !j.held && j.result == nil })
	n := rapid.IntRange(1, 6).Draw(rt, "n")
	w.tell(j, func() { j.said += n })
}

func (w *lives) dispatch(rt *rapid.T) {
	w.look()
	j := w.pick(rt, func(j *job) bool { return j.held })
	w.tell(j, func() { j.held = false })
}

func (w *lives) answer(rt *rapid.T) {
	w.look()
	j := w.pick(rt, func(j *job) bool { return j.outcome == call.Running && !j.held && j.result == nil })
	o := rapid.SampledFrom([]call.Outcome{call.Completed, call.Completed, call.Failed}).Draw(rt, "outcome")
	n := rapid.IntRange(0, 2).Draw(rt, "n") // messages that come with it
	if w.running(j) && !j.cancelled {
		j.reasons = []call.Outcome{o}
	}
	w.tell(j, func() {
		j.said += n
		j.result = &call.Answer{End: call.End{Outcome: o}, Body: []byte("result of " + j.tag), Hole: -1}
	})
}

// ask is a question of a tool whose calls are asked for (a task).
func (w *lives) ask(rt *rapid.T) {
	w.look()
	j := w.pick(rt, func(j *job) bool {
		return j.outcome == call.Running && !j.held && j.result == nil && j.spec.Tool == toolPoll
	})
	w.tell(j, func() {
		j.asked++
		j.open[fmt.Sprint("q", j.asked)] = true
	})
}
