package sqlite

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/longcall/longcall/internal/call"
)

type opKind uint8

const (
	opAppend opKind = iota
	opDeliver
	opSession
	// The rest is urgent: somebody waits.
	opCreate
	opFinish
	opAdopt
	opTask  // something the journal does for itself, such as retention
	opFlush // nothing but the commit
)

// op is one thing to write.
type op struct {
	kind    opKind
	run     *run
	ev      call.Event
	file    int64 // size of ev's body if it is in a file already
	d       *call.Delivery
	session *sessionOp
	n       int64 // number of d's call, if known
	wait    *waiter
	cost    int64
}

// opCost is what an op takes in memory besides its body.
const opCost = 200

// waiter is somebody who waits for an op.
type waiter struct {
	rec    call.Record  // opCreate, opFinish, opAdopt
	from   uint64       // opAdopt: the earlier owner's epoch
	last   uint64       // opAdopt: seq of the call's last event
	events []call.Event // opCreate
	task   func(*writer) error
	err    error // what is wrong with this op alone
	ended  chan error

	// Guarded by Journal.mu:
	taken     bool // it is being written
	abandoned bool // nobody waits any more
}

// run is a call that this journal created or adopted and that has not ended.
type run struct {
	n  int64
	id call.ID
	// Guarded by Journal.mu:
	epoch   uint64
	adopted bool   // an Adopt is on its way
	seq     uint64 // of the last event that was taken
	pending int    // ops in the queue or being written
	ended   bool   // a Finish is on its way
	// Owned by the writer:
	stranger bool // of an earlier owner: n and kept are as met last
	kept     kept
	saved    kept   // kept before the batch, to go back to if it fails
	batch    uint64 // that touched the run last
}

func newRun(r *call.Record) *run { return &run{id: r.ID, epoch: r.Epoch} }

func newStranger(r *call.Record) *run {
	run := newRun(r)
	run.stranger = true
	return run
}

// enqueueLocked adds an op to the queue. An urgent one must be followed by
// await; for others, the timer sees to it that they get written.
func (j *Journal) enqueueLocked(o op) {
	if len(j.queue) == 0 {
		j.since = time.Now()
	}
	j.queue = append(j.queue, o)
	j.queued += o.cost
	if o.run != nil {
		o.run.pending++
	}
	if o.wait != nil {
		j.urgent = true
	} else {
		j.armLocked(j.opt.Delay)
	}
	if crashPoint != nil {
		crashPoint("op")
	}
}

// armLocked has the writer look at the queue after d, or sooner.
func (j *Journal) armLocked(d time.Duration) {
	if !j.armed {
		j.armed = true
		j.timer.Reset(d)
	}
}

// hasRoom waits until the queue takes more. It is called and returns with j.mu
// held.
func (j *Journal) hasRoom(ctx context.Context, cost int64) error {
	// While writing fails, room may never come: those who wait get the
	// failure instead.
	for j.queued+cost > j.opt.Queue && j.queued > 0 && j.failed == nil && !j.closed {
		if j.room == nil {
			j.room = make(chan struct{})
		}
		room := j.room
		j.urgent = true
		j.mu.Unlock()
		j.nudge()
		select {
		case <-room:
		case <-ctx.Done():
		}
		j.mu.Lock()
		if ctx.Err() != nil {
			return fmt.Errorf("%w: %w", call.ErrFull, context.Cause(ctx))
		}
	}
	if j.closed {
		return errClosed
	}
	return nil
}

// await sees to it that the op of w is written, and waits until it is.
//
// If nobody is writing, the caller does, in its own goroutine: handing the op
// to another one and waking up again costs as much as half a commit. The price
// is that this one caller cannot leave before its commit is done, should the
// disk stand still; all others can. With Sync full, when every commit waits
// for the disk, nobody writes but the journal's own goroutine.
//
// When ctx ends first, an op that is not being written yet is taken back; of
// one that is, abandoned is set.
func (j *Journal) await(ctx context.Context, w *waiter) error {
	if j.opt.Sync == "full" {
		j.nudge()
	} else {
		// Whoever is about to call gets to do so first, so that one commit
		// serves many; if nobody is, this costs nothing.
		runtime.Gosched()
		select {
		case err := <-w.ended:
			return err
		default:
		}
		select {
		case j.turn <- struct{}{}:
			j.batch()
			j.release()
		default: // who holds it looks at the queue again
		}
	}
	select {
	case err := <-w.ended:
		return err
	case <-ctx.Done():
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	select {
	case err := <-w.ended:
		return err
	default:
	}
	w.abandoned = true
	if !w.taken {
		for i := range j.queue {
			if o := &j.queue[i]; o.wait == w {
				j.undoLocked(o)
				o.kind = opFlush // nothing to write any more
			}
		}
	}
	return fmt.Errorf("journal %s was too slow: %w", j.path, context.Cause(ctx))
}

// undoLocked forgets what was noted when an op was taken that is not written
// after all.
func (j *Journal) undoLocked(o *op) {
	switch o.kind {
	case opCreate:
		delete(j.runs, o.run.id)
		delete(j.recents, o.run.id)
	case opFinish:
		o.run.ended = false
	case opAdopt:
		o.run.adopted = false
	}
}

// Create implements call.Log.
func (j *Journal) Create(ctx context.Context, r *call.Record, events ...call.Event) error {
	cost := int64(opCost + len(r.Arguments))
	for i, e := range events {
		if e.Seq != uint64(i+1) {
			return fmt.Errorf("create call %s: its event %d has seq %d", r.ID, i+1, e.Seq)
		}
		cost += int64(opCost + len(e.Body))
	}
	w := &waiter{rec: *r, events: events, ended: make(chan error, 1)}
	w.rec.Request = nil
	run := newRun(r)
	run.seq = uint64(len(events))
	run.ended = len(events) > 0 && events[len(events)-1].Kind == call.KindEnd

	j.mu.Lock()
	err := j.hasRoom(ctx, cost)
	if j.draining {
		err = call.ErrStopping
	}
	if err == nil && j.recents[r.ID] != 0 {
		err = fmt.Errorf("create call %s: there is such a call", r.ID)
	}
	if err != nil {
		j.mu.Unlock()
		return err
	}
	run.n = j.next
	j.next++
	j.runs[r.ID] = run
	j.recents[r.ID] = run.n
	if len(j.recents)%indexAt == 0 {
		j.callMaintainer()
	}
	j.enqueueLocked(op{kind: opCreate, run: run, wait: w, cost: cost})
	j.mu.Unlock()
	return j.await(ctx, w)
}

// Append implements call.Log.
func (j *Journal) Append(id call.ID, epoch uint64, e call.Event) error {
	o := op{kind: opAppend, ev: e, cost: int64(opCost + len(e.Body) + len(e.Cursor))}
	j.mu.Lock()
	defer j.mu.Unlock()
	run := j.runs[id]
	switch {
	case j.closed:
		return errClosed
	case run == nil || run.ended || run.adopted || run.epoch != epoch:
		return call.ErrNotRunning
	case e.Seq <= run.seq || e.Seq > maxSeq:
		return fmt.Errorf("append to call %s: seq %d follows %d", id, e.Seq, run.seq)
	case j.queued+o.cost > j.opt.Queue && j.queued > 0:
		j.stats.Dropped++
		return call.ErrFull
	}
	run.seq = e.Seq
	o.run = run
	j.enqueueLocked(o)
	return nil
}

// Finish implements call.Log.
func (j *Journal) Finish(ctx context.Context, r *call.Record, e call.Event) error {
	w := &waiter{rec: *r, ended: make(chan error, 1)}
	w.rec.Request = nil
	o := op{kind: opFinish, ev: e, wait: w, cost: int64(opCost + len(e.Body))}
	j.mu.Lock()
	run := j.runs[r.ID]
	if run == nil { // of an earlier owner, or ended: the writer finds out
		run = newStranger(r)
	}
	known := j.runs[r.ID] != nil
	switch {
	case run.ended || run.adopted || run.epoch != r.Epoch:
		j.mu.Unlock()
		return call.ErrNotRunning
	case known && e.Seq <= run.seq || e.Seq > maxSeq:
		j.mu.Unlock()
		return fmt.Errorf("finish call %s: seq %d follows %d", r.ID, e.Seq, run.seq)
	}
	run.ended = true
	var err error
	if known && len(e.Body) >= j.opt.Spill {
		// Written here, so that nobody else waits for it.
		j.mu.Unlock()
		o.file, err = int64(len(e.Body)), j.blobs.write(run.n, e.Seq, e.Body)
		o.ev.Body, o.cost = nil, opCost
		j.mu.Lock()
	}
	if err == nil {
		err = j.hasRoom(ctx, o.cost)
	}
	if err != nil {
		run.ended = false
		j.mu.Unlock()
		return j.explain("write", err)
	}
	o.run = run
	j.enqueueLocked(o)
	j.mu.Unlock()
	return j.await(ctx, w)
}

// Deliver implements call.Log.
func (j *Journal) Deliver(d call.Delivery) {
	o := op{kind: opDeliver, d: &d, cost: opCost}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed || j.queued+o.cost > j.opt.Queue {
		j.stats.Dropped++
		return
	}
	if o.n = j.recents[d.Call]; o.n == 0 {
		if run := j.runs[d.Call]; run != nil {
			o.n = run.n
		}
	}
	j.delivers++
	j.enqueueLocked(o)
}

// Flush implements call.Log.
func (j *Journal) Flush(ctx context.Context) error { return j.do(ctx, opFlush, nil) }

// do has something done in the next commit.
func (j *Journal) do(ctx context.Context, kind opKind, task func(*writer) error) error {
	w := &waiter{task: task, ended: make(chan error, 1)}
	j.mu.Lock()
	if j.closed {
		j.mu.Unlock()
		return errClosed
	}
	j.enqueueLocked(op{kind: kind, wait: w})
	j.mu.Unlock()
	return j.await(ctx, w)
}

// barrier waits until everything is written that was taken of the call.
func (j *Journal) barrier(ctx context.Context, id call.ID) error {
	j.mu.Lock()
	run := j.runs[id]
	wait := run != nil && run.pending > 0
	j.mu.Unlock()
	if !wait {
		return nil
	}
	return j.Flush(ctx)
}

// recent gives the number of a call that may not be in ids yet; else 0.
func (j *Journal) recent(id call.ID) int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.recents[id]
}

func (j *Journal) drop() {
	j.mu.Lock()
	j.stats.Dropped++
	j.mu.Unlock()
}

var errClosed = errors.New("the journal is closed")
