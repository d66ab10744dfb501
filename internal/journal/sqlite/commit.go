package sqlite

import (
	"errors"
	"runtime"
	"time"

	lib "modernc.org/sqlite/lib"

	"github.com/longcall/longcall/internal/call"
)

// A commit takes at most so much, so that one transaction stays small in
// memory, whatever waits.
const (
	batchOps   = 4096
	batchBytes = 8 << 20
	keepOps    = 1024 // a larger buffer is left to the collector
)

// crashPoint is told of each op that was taken and each commit that was made. It
// is nil but in builds of the chaos tests (crash_chaos.go).
var crashPoint func(what string)

// busyWait is how long a commit waits for another program that holds the
// database.
const busyWait = 2 * time.Second

// nudge has the writer's goroutine look at the queue now.
func (j *Journal) nudge() {
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// release ends the turn of whoever writes. Ops that came meanwhile, and whose
// callers did not get the turn, are left to the writer's goroutine.
func (j *Journal) release() {
	<-j.turn
	j.mu.Lock()
	more := j.urgent && !j.waiting
	j.mu.Unlock()
	if more {
		j.nudge()
	}
}

// write is the writer's goroutine: it takes a turn whenever an op waits that
// nobody else writes. It goes on whatever happens to the disk, and ends when
// the journal is closed and all is written that can be.
func (j *Journal) write() {
	for quit := false; ; {
		select {
		case <-j.wake:
		case <-j.timer.C:
			if !j.due() {
				continue
			}
		case <-j.quit:
			quit = true
		}
		j.turn <- struct{}{}
		for more := true; more; {
			runtime.Gosched() // as in await
			more = j.batch()
		}
		j.release()
		if quit && j.drained() {
			return
		}
	}
}

// due says whether the timer is right to call: the oldest op has waited long
// enough.
func (j *Journal) due() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.armed, j.waiting = false, false
	if len(j.queue) == 0 {
		return false
	}
	if left := j.opt.Delay - time.Since(j.since); left > 0 && !j.urgent {
		j.armLocked(left)
		return false
	}
	return true
}

// drained says whether a closed journal has nothing left to write, or cannot.
// If the next try comes after a pause, it waits for that.
func (j *Journal) drained() bool {
	j.mu.Lock()
	drained, waiting := len(j.queue) == 0 || j.failed != nil, j.waiting
	j.mu.Unlock()
	if !drained && waiting {
		<-j.timer.C
		j.due()
	}
	return drained
}

// take moves the head of the queue into the writer's hands.
func (j *Journal) take() (ops []op, since time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	n, bytes := 0, int64(0)
	for n < len(j.queue) && n < batchOps && (n == 0 || bytes+j.queue[n].cost <= batchBytes) {
		if w := j.queue[n].wait; w != nil {
			w.taken = true
		}
		bytes += j.queue[n].cost
		n++
	}
	ops, since = j.queue[:n:n], j.since
	rest := j.queue[n:]
	// The rest moves to the other buffer; this one is the next other.
	j.queue = append(j.other[:0], rest...)
	j.other = nil
	clear(rest)
	if len(j.queue) == 0 {
		j.urgent = false
	}
	return ops, since
}

// batch writes the head of the queue in one transaction, and tells those who
// wait. The caller holds the turn. more says that there is more to write now.
func (j *Journal) batch() (more bool) {
	ops, since := j.take()
	if len(ops) == 0 {
		j.mu.Lock()
		j.other = ops[:0]
		j.mu.Unlock()
		return false
	}
	w := j.w
	err := w.write(ops)
	if crashPoint != nil {
		crashPoint("commit")
	}
	if err != nil && !passing(err) {
		wrote, e := w.oneByOne(ops)
		if e != nil {
			j.giveUp(e, wrote)
		}
		return j.settle(ops, e == nil || wrote)
	}
	if err != nil {
		if isBusy(err) && j.putBack(ops, since) {
			return false
		}
		j.fail(ops, since, j.explain("write", err))
		return false
	}
	frames := w.walFrames()
	j.wal.frames.Store(frames)
	if frames >= j.wal.next.Load() {
		j.callMaintainer()
	}
	return j.settle(ops, true)
}

func isBusy(err error) bool {
	var db *dbError
	return errors.As(err, &db) && (db.code&0xff == lib.SQLITE_BUSY || db.code&0xff == lib.SQLITE_LOCKED)
}

// settle tells those who wait that their ops are written, or what is wrong
// with them. works is false if nothing could be written.
func (j *Journal) settle(ops []op, works bool) (more bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed != nil && works {
		j.failed = nil
		j.opt.Logger.Info("the journal can be written again")
	}
	if j.waiting {
		j.waiting, j.armed = false, false
	}
	j.pause, j.busySince = 0, time.Time{}
	j.stats.Commits++
	j.stats.Ops += uint64(len(ops))
	j.stats.LargestBatch = max(j.stats.LargestBatch, len(ops))
	for i := range ops {
		j.endLocked(&ops[i], nil)
	}
	j.makeRoomLocked()
	clear(ops)
	if cap(ops) <= keepOps {
		j.other = ops[:0]
	}
	if len(j.queue) > 0 && !j.urgent {
		j.armLocked(j.opt.Delay)
	}
	return j.urgent || len(j.queue) >= batchOps || j.closed && len(j.queue) > 0
}

// putBack returns ops to the queue, to be tried again in a moment: another
// program holds the database. False if it has done so for too long.
func (j *Journal) putBack(ops []op, since time.Time) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := time.Now()
	if j.busySince.IsZero() {
		j.busySince = now
	}
	if j.failed != nil || now.Sub(j.busySince) > busyWait {
		return false
	}
	for i := range ops {
		if w := ops[i].wait; w != nil {
			w.taken, w.err = false, nil
			if w.abandoned {
				j.undoLocked(&ops[i])
				ops[i].kind = opFlush
			}
		}
	}
	j.queue, j.other = append(ops, j.queue...), j.queue[:0]
	j.urgent, j.since = true, since
	longest := 25 * time.Millisecond
	if j.shared.Load() {
		// It is a process like this one that holds it, for a millisecond at a
		// time, and again and again: who looks seldom comes seldom to its turn.
		longest = time.Millisecond
	}
	j.laterLocked(min(max(2*j.pause, time.Millisecond), longest))
	return true
}

// fail tells whoever waits, in the whole queue, that writing fails. Events and
// deliveries stay in the queue for the next try.
func (j *Journal) fail(ops []op, since time.Time, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed == nil {
		j.opt.Logger.Error("the journal cannot be written", "error", err)
	}
	j.failed = err
	j.stats.Failures++
	j.stats.LastError, j.stats.LastErrorAt = err, time.Now()
	all := append(ops, j.queue...)
	kept := all[:0]
	for _, o := range all {
		if o.wait == nil {
			kept = append(kept, o)
			continue
		}
		o.wait.err = nil
		j.endLocked(&o, err)
	}
	clear(all[len(kept):])
	j.queue, j.other, j.urgent, j.since = kept, j.queue[:0], false, since
	j.makeRoomLocked()
	j.laterLocked(min(max(2*j.pause, 100*time.Millisecond), 5*time.Second))
}

// laterLocked has the next try come after a pause, unless a new op comes first.
func (j *Journal) laterLocked(pause time.Duration) {
	j.pause, j.waiting, j.armed = pause, true, true
	j.timer.Reset(pause)
}

// giveUp notes that some ops cannot be written, now or later; works says that
// others could.
func (j *Journal) giveUp(err error, works bool) {
	err = j.explain("write", err)
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed == nil && time.Since(j.stats.LastErrorAt) > time.Minute {
		j.opt.Logger.Error("the journal lost a part of the record", "error", err)
	}
	if !works {
		j.failed = err
	}
	j.stats.Failures++
	j.stats.LastError, j.stats.LastErrorAt = err, time.Now()
}

// endLocked ends an op, with the error that its waiter holds, or err.
func (j *Journal) endLocked(o *op, err error) {
	j.queued -= o.cost
	if o.run != nil {
		o.run.pending--
	}
	if o.kind == opDeliver {
		j.delivers--
	}
	w := o.wait
	if w == nil {
		return
	}
	if err == nil && w.err != nil {
		if err = w.err; !errors.Is(err, call.ErrNotRunning) {
			err = j.explain("write", err)
		}
	}
	switch {
	case err != nil:
		j.undoLocked(o)
	case o.kind == opAdopt:
		o.run.epoch, o.run.adopted = w.rec.Epoch, false
		if o.run.stranger {
			o.run.stranger, o.run.seq = false, w.last
			j.runs[o.run.id] = o.run
		}
	case o.kind == opFinish, o.kind == opCreate && o.run.ended:
		delete(j.runs, o.run.id)
	case o.kind == opCreate && w.abandoned:
		// Its caller was told that there is no such call.
		delete(j.runs, o.run.id)
		n, id := o.run.n, o.run.id
		j.enqueueLocked(op{kind: opTask, wait: &waiter{ended: make(chan error, 1), task: func(w *writer) error { return w.forget(n, id) }}})
	}
	w.ended <- err
}

// makeRoomLocked wakes those who wait for the full queue.
func (j *Journal) makeRoomLocked() {
	if j.room != nil {
		close(j.room)
		j.room = nil
	}
}
