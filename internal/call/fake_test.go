package call

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"testing"
	"time"
)

// runFunc is a Runner made of one function.
type runFunc func(ctx context.Context, x *Exec) Answer

func (f runFunc) Run(ctx context.Context, x *Exec) Answer { return f(ctx, x) }

// fakeLog is a Log in memory whose every step can be made to fail or to wait.
// Appended events are pending until the next commit (Finish, or commit), as in
// a journal with group commit: crash loses them.
type fakeLog struct {
	onCreate func(ctx context.Context) error
	onAppend func() error
	onFinish func(ctx context.Context) error

	careless bool // Read does not notice a gap

	mu         sync.Mutex
	recs       map[ID]*Record
	stored     map[ID][]Event
	pending    map[ID][]Event
	deliveries []Delivery
	reads      int
	maxRead    int // most bytes of bodies that one Read gave
}

func newFakeLog() *fakeLog {
	return &fakeLog{recs: map[ID]*Record{}, stored: map[ID][]Event{}, pending: map[ID][]Event{}}
}

func (l *fakeLog) Create(ctx context.Context, r *Record, events ...Event) error {
	if l.onCreate != nil {
		if err := l.onCreate(ctx); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.recs[r.ID] != nil {
		return fmt.Errorf("call %s exists", r.ID)
	}
	c := *r
	c.Request = nil
	l.recs[r.ID] = &c
	l.stored[r.ID] = slices.Clone(events)
	return nil
}

func (l *fakeLog) Append(id ID, epoch uint64, e Event) error {
	if l.onAppend != nil {
		if err := l.onAppend(); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.recs[id]
	if r == nil || r.Epoch != epoch || r.End.Outcome != Running {
		return ErrNotRunning
	}
	l.pending[id] = append(l.pending[id], e)
	return nil
}

func (l *fakeLog) Finish(ctx context.Context, r *Record, e Event) error {
	if l.onFinish != nil {
		if err := l.onFinish(ctx); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.recs[r.ID]
	if old == nil || old.Epoch != r.Epoch || old.End.Outcome != Running {
		return ErrNotRunning
	}
	l.commitLocked(r.ID)
	c := *r
	c.Request = nil
	l.recs[r.ID] = &c
	l.stored[r.ID] = append(l.stored[r.ID], e)
	return nil
}

func (l *fakeLog) commitLocked(id ID) {
	l.stored[id] = append(l.stored[id], l.pending[id]...)
	delete(l.pending, id)
	if n := len(l.stored[id]); n > 0 {
		l.recs[id].Seq = l.stored[id][n-1].Seq
	}
}

func (l *fakeLog) Flush(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id := range l.recs {
		l.commitLocked(id)
	}
	return nil
}

func (l *fakeLog) Deliver(d Delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deliveries = append(l.deliveries, d)
}

func (l *fakeLog) Read(_ context.Context, id ID, after uint64, most int) ([]Event, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reads++
	if l.recs[id] == nil {
		return nil, ErrUnknown
	}
	l.commitLocked(id)
	var out []Event
	bytes := 0
	for _, e := range l.stored[id] {
		if e.Seq <= after {
			continue
		}
		if e.Seq != after+uint64(len(out))+1 {
			if l.careless {
				out = append(out, e)
				break
			}
			if len(out) == 0 {
				return nil, ErrGap
			}
			break
		}
		if len(out) > 0 && bytes+len(e.Body) > most {
			break
		}
		bytes += len(e.Body)
		out = append(out, e)
	}
	l.maxRead = max(l.maxRead, bytes)
	return out, nil
}

func (l *fakeLog) Get(_ context.Context, id ID) (*Record, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.recs[id]
	if r == nil {
		return nil, ErrUnknown
	}
	c := *r
	return &c, nil
}

func (l *fakeLog) Running(_ context.Context, epoch uint64) ([]Record, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []Record
	for _, r := range l.recs {
		if r.End.Outcome == Running && r.Epoch < epoch {
			out = append(out, *r)
		}
	}
	slices.SortFunc(out, func(a, b Record) int { return a.Started.Compare(b.Started) })
	return out, nil
}

// forget drops the stored events of a call up to seq, as retention or a cap does.
func (l *fakeLog) forget(id ID, seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.commitLocked(id)
	l.stored[id] = slices.DeleteFunc(l.stored[id], func(e Event) bool { return e.Seq <= seq })
}

// kept is what the log would still know after a crash.
func (l *fakeLog) kept(id ID) (Record, []Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.recs[id] == nil {
		return Record{}, nil
	}
	return *l.recs[id], slices.Clone(l.stored[id])
}

// watcher is an Observer that counts.
type watcher struct {
	mu      sync.Mutex
	started map[ID]int
	ended   map[ID]int
	ends    []End
	stored  []bool
	lost    int
}

func newWatcher() *watcher { return &watcher{started: map[ID]int{}, ended: map[ID]int{}} }

func (w *watcher) CallResumed(*Record) {}

func (w *watcher) CallAnswered(*Record) {}

func (w *watcher) CallStarted(r *Record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.started[r.ID]++
}

func (w *watcher) CallEnded(r *Record, stored bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended[r.ID]++
	w.ends = append(w.ends, r.End)
	w.stored = append(w.stored, stored)
}

func (w *watcher) EventLost(ID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lost++
}

var errDown = errors.New("the disk is gone")

func progress(n int) Event {
	return Event{Kind: KindProgress, Hole: -1, Body: fmt.Appendf(nil, "%d", n)}
}

func completed(body string) Answer {
	return Answer{End: End{Outcome: Completed}, Body: []byte(body), Hole: -1}
}

// untilTold runs until its context is done, like a tool that never answers.
func untilTold(ctx context.Context, x *Exec) Answer {
	if err := x.Dispatched(); err != nil {
		return Answer{}
	}
	<-ctx.Done()
	return Answer{}
}

func answerNow(_ context.Context, x *Exec) Answer {
	if err := x.Dispatched(); err != nil {
		panic(err)
	}
	return completed("done")
}

func start(t *testing.T, e *Engine, spec Spec) *Call {
	t.Helper()
	if spec.Principal == "" {
		spec.Principal = "alice"
	}
	if spec.Server == "" {
		spec.Server = "files"
	}
	c, err := e.Start(t.Context(), spec)
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	return c
}

// all reads a call from its first event to its end.
func all(t *testing.T, c *Call) []Event {
	t.Helper()
	var out []Event
	for ev, err := range c.Follow(t.Context(), 0, 0) {
		if err != nil {
			t.Fatalf("follow %s: %v", c.ID(), err)
		}
		out = append(out, ev)
	}
	checkEvents(t, out)
	return out
}

// end is how a call ends; it waits for it.
func end(t *testing.T, c *Call) End {
	t.Helper()
	evs := all(t, c)
	return *evs[len(evs)-1].End
}

// checkEvents checks I2 and I3 on a whole call: contiguous from 1, accepted
// first, exactly one end, last.
func checkEvents(t interface {
	Helper()
	Fatalf(string, ...any)
}, evs []Event,
) {
	t.Helper()
	for i, ev := range evs {
		if ev.Seq != uint64(i)+1 {
			t.Fatalf("I3: event %d has seq %d: %v", i, ev.Seq, kinds(evs))
		}
		if (ev.Kind == KindAccepted) != (i == 0) || (ev.Kind == KindEnd) != (i == len(evs)-1) || (ev.Kind == KindEnd) != (ev.End != nil) {
			t.Fatalf("I2: a call is accepted first and ends once, last: %v", kinds(evs))
		}
	}
	if len(evs) == 0 {
		t.Fatalf("I2: no events at all")
	}
}

func kinds(evs []Event) []string {
	var out []string
	for _, ev := range evs {
		out = append(out, ev.Kind.String())
	}
	return out
}

func stopNow(e *Engine) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	e.Stop(ctx)
}

func since(t time.Time) time.Duration { return time.Since(t) }

func (l *fakeLog) Adopt(_ context.Context, r *Record, from uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	have := l.recs[r.ID]
	if have == nil || have.Epoch != from || have.End.Outcome != Running {
		return ErrNotRunning
	}
	have.Epoch = r.Epoch
	return nil
}

func (l *fakeLog) Undelivered(context.Context, time.Time, int) ([]Record, error) { return nil, nil }

func (l *fakeLog) Owned(context.Context, string, ID, int) ([]Record, error) { return nil, nil }

// follow follows a call of the principal, running or ended.
func follow(ctx context.Context, e *Engine, principal string, id ID, after uint64, beat time.Duration) iter.Seq2[Event, error] {
	c, err := e.Get(ctx, principal, id)
	if err != nil {
		return func(yield func(Event, error) bool) { yield(Event{}, err) }
	}
	return c.Follow(ctx, c.Position(c.rec.Epoch, after), beat)
}
