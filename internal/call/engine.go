package call

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// Observer is told about calls as they pass, for log lines, metrics and spans.
// Its methods must not block, and keep no record.
type Observer interface {
	CallStarted(r *Record)
	// CallResumed comes instead for a call of an earlier process that runs on.
	CallResumed(r *Record)
	// CallAnswered comes with the first byte of the tool server's answer.
	CallAnswered(r *Record)
	// CallEnded comes after the terminal event was stored, or shown unstored.
	CallEnded(r *Record, stored bool)
	// EventLost says that an event of the call was not kept in the log.
	EventLost(id ID)
}

// Options of an Engine.
type Options struct {
	Epoch uint64 // of this owner; every process start has a higher one
	// Tail is how many bytes of a running call's events stay in memory for its
	// readers; older ones are read from the log. 0 means 256 KiB.
	Tail int
	// CreateWait bounds how long a new call waits for the log before it runs
	// unrecorded, or is refused. 0 means 10 s.
	CreateWait time.Duration
	// FinishWait bounds how long a result waits for the log before it is shown
	// all the same and stored later. 0 means 2 s.
	FinishWait time.Duration
	// Refuse new calls while the log cannot store them, instead of running
	// them unrecorded (journal.on_failure).
	Refuse   bool
	Observer Observer // may be nil
	// Window is how long an ended call that nobody got the end of can be shown
	// to an equal request; less than 0 means not at all. 0 means 10 min.
	Window time.Duration
	// Orphan says how long a call that was taken up again after a restart may
	// run on without a reader; less than 0 means to its end. nil means that for
	// all.
	Orphan func(r *Record) time.Duration
}

// Engine runs calls. It is the only writer of their events (I3).
type Engine struct {
	log    Log
	runner Runner
	opt    Options

	mu           sync.Mutex // taken before a Call's
	calls        map[ID]*Call
	joinable     map[joinKey][]*Call // calls that an equal request takes over, oldest first
	owed         []*Call             // ended and joinable, by the time of their end
	kept         map[ID]*Call        // the same, by id
	late         map[ID]*Call        // ended and shown, not stored yet
	foreign      map[ID]*Call        // run in another process, and shown here
	perServer    map[string]int
	perPrincipal map[string]int
	stopping     bool
	wg           sync.WaitGroup // runs and late stores

	root     context.Context    // of all runs: they hold on to nothing of the request that started them
	stop     context.CancelFunc // ends late stores
	stopped  context.Context
	shutdown *Cause // of calls that Stop ends
}

// NewEngine makes an engine; nothing runs until Start.
func NewEngine(log Log, runner Runner, opt Options) *Engine {
	if opt.Tail == 0 {
		opt.Tail = 256 << 10
	}
	if opt.CreateWait == 0 {
		opt.CreateWait = 10 * time.Second
	}
	if opt.FinishWait == 0 {
		opt.FinishWait = 2 * time.Second
	}
	if opt.Window == 0 {
		opt.Window = 10 * time.Minute
	}
	e := &Engine{
		log: log, runner: runner, opt: opt,
		calls: map[ID]*Call{}, late: map[ID]*Call{}, foreign: map[ID]*Call{}, joinable: map[joinKey][]*Call{}, kept: map[ID]*Call{}, perServer: map[string]int{}, perPrincipal: map[string]int{},
	}
	e.root = context.Background()
	e.stopped, e.stop = context.WithCancel(e.root)
	return e
}

// Cause is why a call's context is done. Its End is what the call ends with,
// unless a real answer comes first.
type Cause struct{ End End }

func (c *Cause) Error() string {
	if c.End.Text != "" {
		return c.End.Text
	}
	return string(c.End.Outcome)
}

// Call is one call of this process, running or just ended.
type Call struct {
	e      *Engine
	ctx    context.Context // of the run; nil if the call does not run here
	cancel context.CancelCauseFunc

	mu        sync.Mutex
	rec       Record
	tail      []Event // the last events, contiguous up to rec.Seq
	tailBytes int
	stored    bool // Create succeeded
	cancelled bool // a cancel was asked for
	ending    bool // the terminal event has its seq: nothing may follow
	ended     bool // the terminal event is shown
	wakes     []chan struct{}

	asked      []byte // input requests that wait for an answer, as in KindAsk
	askState   []byte // of them: see Exec.Ask
	askedSeq   map[string]uint64
	askedAt    time.Time       // since when it has waited without a break; under asked
	waited     time.Duration   // for answers, before that
	total      *time.Timer     // of limits.total; nil if there is none
	pulses     chan Pulse      // for the runner; nil until it asked
	answered   map[string]bool // keys of answers that the runner has not taken
	answers    chan []byte     // for the runner; nil until it asked
	resume     *Resume         // of an adopted call
	serverTask bool            // the tool server made a task of it
	left       bool            // it stays for the next process
	foreign    bool            // another process carries it to its end: see Follow
	readers    int             // attachments that show it now
	watchers   int             // those of them that found it by its id: see Watch
	handing    int             // readers that are being told to come back: see HandingOff
	indexed    bool            // in Engine.joinable
	queued     bool            // in Engine.owed
	alone      *time.Timer     // cancels the call, unless a reader comes
}

// ID of the call.
func (c *Call) ID() ID { return c.rec.ID }

// Record is the call as it is now.
func (c *Call) Record() Record {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rec
}

// Start accepts a call: it is stored, then runs on the engine's own context,
// and outlives whoever asked for it. A call over its concurrency limits or with
// Spec.Denied set is recorded as denied and ends at once; that is no error.
func (e *Engine) Start(ctx context.Context, spec Spec) (*Call, error) {
	return e.start(ctx, e.new(spec, 0))
}

// new makes a call that is not running yet.
func (e *Engine) new(spec Spec, readers int) *Call {
	c := &Call{e: e, rec: Record{ID: NewID(), Spec: spec, Epoch: e.opt.Epoch, Started: time.Now(), Seq: 1}, readers: readers}
	c.tail = append(c.tail, Event{Seq: 1, Kind: KindAccepted, Time: c.rec.Started, Hole: -1})
	c.tailBytes = eventCost
	c.ctx, c.cancel = context.WithCancelCause(e.root)
	return c
}

func (e *Engine) start(ctx context.Context, c *Call) (*Call, error) {
	if err := e.admit(c); err != nil {
		c.cancel(nil)
		return nil, err
	}
	if d := c.rec.Denied; d != nil {
		return c, e.deny(ctx, c, *d)
	}
	if err := e.create(ctx, c); err != nil {
		e.forget(c)
		e.wg.Done()
		c.cancel(nil)
		return nil, err
	}
	if o := e.opt.Observer; o != nil {
		r := c.Record()
		o.CallStarted(&r)
	}
	e.mu.Lock()
	e.calls[c.rec.ID] = c
	e.settle(c)
	if e.shutdown != nil {
		c.cancel(e.shutdown)
	}
	e.mu.Unlock()
	go e.run(c)
	return c, nil
}

// admit counts the call, or marks it denied.
func (e *Engine) admit(c *Call) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := &c.rec.Spec
	if e.stopping {
		return ErrStopping
	}
	if s.Denied != nil {
		return nil
	}
	switch {
	case s.Limits.PerServer > 0 && e.perServer[s.Server] >= s.Limits.PerServer:
		s.Denied = &End{Outcome: Denied, By: "policy", Limit: "concurrency", Text: fmt.Sprintf(
			"Not started: %d calls are already running on %q, which is its limit. Nothing was sent. Wait until one has ended, then call again.", s.Limits.PerServer, s.Server)}
		return nil
	case s.Limits.PerPrincipal > 0 && e.perPrincipal[s.Principal] >= s.Limits.PerPrincipal:
		s.Denied = &End{Outcome: Denied, By: "policy", Limit: "concurrency", Text: fmt.Sprintf(
			"Not started: you already have %d calls running, which is your limit. Nothing was sent. Wait until one has ended, then call again.", s.Limits.PerPrincipal)}
		return nil
	}
	e.perServer[s.Server]++
	e.perPrincipal[s.Principal]++
	e.wg.Add(1)
	return nil
}

func (e *Engine) forget(c *Call) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.calls, c.rec.ID)
	drop(e.perServer, c.rec.Server)
	drop(e.perPrincipal, c.rec.Principal)
}

func drop(m map[string]int, k string) {
	if m[k]--; m[k] <= 0 {
		delete(m, k)
	}
}

func (e *Engine) create(ctx context.Context, c *Call) error {
	if c.rec.Volatile {
		return nil
	}
	c.mu.Lock()
	r, events := c.rec, c.tail
	c.mu.Unlock()
	wait, cancel := context.WithTimeout(ctx, e.opt.CreateWait)
	defer cancel()
	err := e.log.Create(wait, &r, events...)
	c.mu.Lock()
	c.stored = err == nil
	if err == nil {
		c.rec.Arguments = nil // they are in the log, and may be a part of a large request
	}
	c.mu.Unlock()
	if err != nil && (e.opt.Refuse || ctx.Err() != nil) {
		return fmt.Errorf("store the call: %w", err)
	}
	return nil
}

// deny stores a call that never runs, with its end, in one transaction.
func (e *Engine) deny(ctx context.Context, c *Call, end End) error {
	if end.Outcome == "" {
		end.Outcome = Denied
	}
	c.cancel(nil)
	c.mu.Lock()
	c.rec.End, c.rec.Ended, c.rec.Seq = end, c.rec.Started, 2
	c.ending, c.ended = true, true
	c.push(Event{Seq: 2, Kind: KindEnd, Time: c.rec.Started, Hole: -1, End: &end})
	c.mu.Unlock()
	err := e.create(ctx, c)
	if o := e.opt.Observer; o != nil && err == nil {
		r := c.rec
		o.CallStarted(&r)
		o.CallEnded(&r, c.stored)
	}
	return err
}

// run is the one goroutine of a call.
func (e *Engine) run(c *Call) {
	ctx := c.ctx
	defer e.wg.Done()
	defer c.cancel(nil)
	if c.rec.Limits.Total > 0 {
		c.mu.Lock()
		c.total = time.AfterFunc(time.Until(c.overdueAt()), c.overdue)
		c.mu.Unlock()
		defer c.total.Stop()
	}
	x := &Exec{c: c, ctx: ctx, Spec: &c.rec.Spec, ID: c.rec.ID, Limits: c.rec.Limits, Resume: c.resume}
	if c.resume != nil {
		c.mu.Lock()
		x.bytes.Store(int64(c.rec.Bytes))
		c.mu.Unlock()
	}
	a := e.runner.Run(ctx, x)
	if a.Outcome == Running && errors.Is(context.Cause(ctx), ErrLeft) {
		c.leave()
	} else {
		c.finish(ctx, a)
	}
	e.forget(c)
	if a.Release != nil {
		a.Release()
	}
}

// overdue ends a call at limits.total, unless it waits for an answer just now.
func (c *Call) overdue() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asked != nil || time.Now().Before(c.overdueAt()) {
		return // the clock was stopped, or set again, while it went off
	}
	c.cancel(&Cause{End{Outcome: TimedOut, Limit: "total", Text: fmt.Sprintf(
		"Stopped after %s, the limit for the whole call (limits.total). The tool server was told to cancel; what it had done by then may have taken effect. Check before you call it again.", c.rec.Limits.Total)}})
}

// finish decides the end, stores it, and shows it: in this order (I4).
func (c *Call) finish(ctx context.Context, a Answer) {
	end := a.End
	var cause *Cause
	if errors.As(context.Cause(ctx), &cause) {
		switch {
		case a.Outcome == Running:
			end = cause.End
		case cause.End.Outcome == Cancelled:
			if a.Body != nil {
				c.append(Event{Kind: KindLateResult, Body: a.Body, Hole: a.Hole})
			}
			end, a.Body = cause.End, nil
		}
	}
	if end.Outcome == Running {
		end = End{Outcome: Interrupted, Text: "Outcome unknown: longcall lost the call. It may have taken effect: check before you call it again."}
	}
	c.mu.Lock()
	if c.rec.Dispatched.IsZero() {
		end = unsent(end, c.rec.Limits.Total)
	}
	ev := Event{Seq: c.rec.Seq + 1, Kind: KindEnd, Time: time.Now(), Hole: -1, Body: a.Body, End: &end}
	if a.Body != nil {
		ev.Hole = a.Hole
	}
	c.rec.Seq, c.rec.End, c.rec.Ended = ev.Seq, end, ev.Time
	c.rec.Bytes += uint64(len(ev.Body))
	c.ending = true
	r := c.rec
	stored := c.stored
	c.mu.Unlock()

	e := c.e
	if stored {
		wait, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.opt.FinishWait)
		err := e.log.Finish(wait, &r, ev)
		cancel()
		if stored = err == nil; err != nil && !errors.Is(err, ErrNotRunning) {
			e.mu.Lock()
			e.late[r.ID] = c
			e.mu.Unlock()
			e.wg.Go(func() { c.finishLate(r, ev) })
		}
	}
	c.mu.Lock()
	c.ended = true
	if c.alone != nil {
		c.alone.Stop()
	}
	c.push(ev)
	c.mu.Unlock()
	e.mu.Lock()
	e.settle(c)
	e.mu.Unlock()
	if o := e.opt.Observer; o != nil {
		o.CallEnded(&r, stored)
	}
}

// finishLate stores an end that was shown before it could be stored: the
// agent must not lose a result to the audit. Until then it is in memory.
func (c *Call) finishLate(r Record, ev Event) {
	e := c.e
	stored := false
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.late, r.ID)
		if stored {
			e.settle(c)
		}
	}()
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 10*time.Second) {
		last := false
		select {
		case <-e.stopped.Done():
			last = true
		case <-time.After(pause):
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		err := e.log.Finish(ctx, &r, ev)
		cancel()
		if stored = err == nil || errors.Is(err, ErrNotRunning); stored || last {
			return
		}
	}
}

// unsent is an end of a call whose request never left: its outcome is known.
func unsent(end End, total time.Duration) End {
	switch {
	case end.Outcome == Interrupted && end.By == "shutdown":
		end.Outcome, end.Text = Failed, "Not started: longcall is restarting. Nothing was sent, so nothing took effect. Call again in a moment."
	case end.Outcome == Interrupted:
		end.Outcome, end.Text = Failed, "Not started: longcall could not send the request. Nothing was sent, so nothing took effect. You may call again."
	case end.Outcome == TimedOut && end.Limit == "total":
		end.Text = fmt.Sprintf("Stopped after %s, the limit for the whole call (limits.total), before the request left for the tool server. Nothing was sent, so nothing took effect. You may call again.", total)
	}
	return end
}

// append gives an event its seq, keeps it, and wakes the readers.
func (c *Call) append(ev Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.appendLocked(ev)
}

func (c *Call) appendLocked(ev Event) {
	if c.ending {
		return
	}
	ev.Time = time.Now()
	c.rec.Seq++
	ev.Seq = c.rec.Seq
	c.rec.Bytes += uint64(len(ev.Body))
	if ev.Kind == KindAddress {
		c.rec.Address = ev.Body
	}
	if c.stored {
		if err := c.e.log.Append(c.rec.ID, c.rec.Epoch, ev); err != nil {
			c.rec.Missing++
			if o := c.e.opt.Observer; o != nil {
				o.EventLost(c.rec.ID)
			}
		}
	}
	c.push(ev)
}

// eventCost is about what an event takes in memory besides its body, in bytes.
const eventCost = 64

// push adds an event to the tail and wakes the readers. A wake carries no data
// and may find its reader awake already.
func (c *Call) push(ev Event) {
	c.tail = append(c.tail, ev)
	c.tailBytes += len(ev.Body) + eventCost
	drop := 0
	for c.tailBytes > c.e.opt.Tail && drop < len(c.tail)-1 {
		c.tailBytes -= len(c.tail[drop].Body) + eventCost
		drop++
	}
	clear(c.tail[:drop])
	c.tail = c.tail[drop:]
	c.wake()
}

// wake wakes the readers; c.mu is held.
func (c *Call) wake() {
	for _, w := range c.wakes {
		select {
		case w <- struct{}{}:
		default:
		}
	}
}

// Cancel asks for the call's end. The end's By and Text say who and why.
func (c *Call) Cancel(end End) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cancelLocked(end)
}

func (c *Call) cancelLocked(end End) error {
	end.Outcome = Cancelled
	switch {
	case c.ended:
		return ErrNotRunning
	case c.foreign:
		return ErrElsewhere
	case c.ending:
		return ErrNotRunning
	case c.cancelled:
		return nil
	}
	c.cancelled = true
	c.appendLocked(Event{Kind: KindCancelRequested, Hole: -1, Body: []byte(end.By + ": " + end.Text)})
	c.cancel(&Cause{end})
	return nil
}

// end makes the call's context done, unless it is. Under the lock, a request
// either left before or never will (Exec.Dispatched).
func (c *Call) end(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cancel(cause)
}

// InFlight is how many calls run now.
func (e *Engine) InFlight() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.calls)
}

// Stop takes no new calls, leaves those that need not be waited for (Leaver) and
// waits until the others have ended or ctx is done, then leaves those that the next process can take up again where they
// are, ends the rest as interrupted, and returns when nothing of the engine runs
// any more (I8).
func (e *Engine) Stop(ctx context.Context) {
	e.mu.Lock()
	e.stopping = true
	running := slices.Collect(maps.Values(e.calls))
	e.mu.Unlock()
	for _, c := range running {
		c.leaveNow()
	}
	done := make(chan struct{})
	go func() { e.wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		e.mu.Lock()
		e.shutdown = &Cause{End{Outcome: Interrupted, By: "shutdown", Text: "Outcome unknown: longcall is restarting and could not wait for this call. The tool server was told to cancel; it may have taken effect all the same. Check before you call it again."}}
		running = slices.Collect(maps.Values(e.calls))
		e.mu.Unlock()
		for _, c := range running {
			c.end(c.stopCause(e.shutdown))
		}
		e.stop() // a log that still takes nothing gets one more try per end
	}
	<-done
	e.stop()
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.joinable)
	clear(e.kept)
	clear(e.foreign)
	e.owed = nil
}

// Refuse takes no new calls from now on; those that run go on. It is what a
// process does that is being replaced, before Stop.
func (e *Engine) Refuse() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stopping = true
}
