package sqlite

import (
	"errors"
	"fmt"
	"time"

	"modernc.org/libc"
	lib "modernc.org/sqlite/lib"

	"github.com/longcall/longcall/internal/call"
)

// An event's key is its call's number and its seq side by side: see the schema.
const (
	seqBits = 28
	maxSeq  = 1<<seqBits - 1
)

// A commit takes at most so much, so that one transaction stays small in
// memory, whatever waits.
const (
	batchOps   = 4096
	batchBytes = 8 << 20
)

// writer is the one connection that writes, and its statements.
type writer struct {
	j *Journal
	c *conn
	// frames, in C memory, is how long the WAL is: SQLite notes it after
	// every commit.
	frames uintptr

	begin, commit, rollback      *stmt
	create, finish, event, deliv *stmt
	find, count, low             *stmt
	holeFiles, holeEvents        *stmt

	number  uint64 // of the batch
	touched []*run // by the batch
	files   []file // to remove after the commit
}

func newWriter(j *Journal) (*writer, error) {
	c, err := openConn(j.path, openWriter)
	if err != nil {
		return nil, err
	}
	w := &writer{j: j, c: c}
	if err := w.prepare(); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *writer) prepare() error {
	sync := "NORMAL"
	if w.j.opt.Sync == "full" {
		sync = "FULL"
	}
	if err := w.c.exec("PRAGMA busy_timeout = 2000; PRAGMA synchronous = " + sync + "; PRAGMA wal_autocheckpoint = 0;" +
		"PRAGMA cache_size = -1024; PRAGMA temp_store = MEMORY; PRAGMA foreign_keys = OFF; PRAGMA cell_size_check = ON"); err != nil {
		return err
	}
	if w.frames = libc.Xcalloc(w.c.tls, 1, 8); w.frames == 0 {
		return &dbError{code: lib.SQLITE_NOMEM, text: "out of memory"}
	}
	w.c.onCommit(w.frames)
	for _, p := range []struct {
		s   **stmt
		sql string
	}{
		{&w.begin, "BEGIN IMMEDIATE"},
		{&w.commit, "COMMIT"},
		{&w.rollback, "ROLLBACK"},
		{&w.create, `INSERT INTO calls (n, id, outcome, epoch, started, principal, server, tool, public_tool, session, client, era,
			request_id, traceparent, digest, limits, arguments) VALUES (?1, ?2, 0, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)`},
		{&w.finish, `UPDATE calls SET outcome = ?2, ended = ?3, dispatched = ?4, first_byte = ?5, seq = ?6, missing = ?7, bytes = ?8,
			tool_error = ?9, code = ?10, ended_by = ?11, end_limit = ?12, end_text = ?13 WHERE n = ?1 AND outcome = 0 AND epoch = ?14`},
		{&w.event, "INSERT INTO events (key, kind, at, hole, body, file) VALUES (?1, ?2, ?3, ?4, ?5, ?6)"},
		{&w.deliv, `INSERT INTO deliveries (key, kind, how, era, attached, first_byte, ended, bytes, events, dropped)
			SELECT coalesce(max(key), ?1 << 16) + 1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10 FROM deliveries WHERE key BETWEEN ?1 << 16 AND (?1 << 16) + 65535`},
		{&w.find, "SELECT n FROM calls WHERE id = ?1"},
		{&w.count, "SELECT count(*) FROM events WHERE key BETWEEN ?1 << 28 AND (?1 << 28) + 268435455"},
		{&w.low, "UPDATE owner SET low = ?1 WHERE id = 1"},
		{&w.holeFiles, "SELECT key FROM events WHERE key BETWEEN ?1 AND ?2 AND file IS NOT NULL"},
		{&w.holeEvents, "DELETE FROM events WHERE key BETWEEN ?1 AND ?2"},
	} {
		s, err := w.c.prepare(p.sql)
		if err != nil {
			return err
		}
		*p.s = s
	}
	return nil
}

func (w *writer) close() {
	if w.frames != 0 {
		libc.Xfree(w.c.tls, w.frames)
		w.frames = 0
	}
	w.c.close()
}

// write is the writer's goroutine. It goes on whatever happens to the disk,
// and ends when the journal is closed and all that can be written is.
func (j *Journal) write(w *writer) {
	defer close(j.done)
	defer w.close()
	pause := time.Duration(0)
	for {
		quit := false
		select {
		case <-j.wake:
		case <-j.timer.C:
		case <-j.quit:
			quit = true
		}
		for {
			more, err := w.batch()
			if err != nil {
				pause = min(max(2*pause, 100*time.Millisecond), 5*time.Second)
				j.mu.Lock()
				j.timer.Reset(pause)
				j.armed = true
				j.mu.Unlock()
				break
			}
			pause = 0
			if !more {
				break
			}
		}
		if quit {
			return
		}
	}
}

// take moves the head of the queue into the writer's hands.
func (j *Journal) take() (ops []op, since time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.armed = false
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
	j.queue = append(j.empty[:0], rest...)
	j.empty = nil
	clear(rest)
	if len(j.queue) == 0 {
		j.urgent = false
	}
	return ops, since
}

// batch writes the head of the queue in one transaction. more says that
// there is more for now.
func (w *writer) batch() (more bool, err error) {
	j := w.j
	ops, since := j.take()
	if len(ops) == 0 {
		j.giveBack(ops)
		return false, nil
	}
	err = w.tryBatch(ops)
	if err != nil && !passing(err) && len(ops) > 1 {
		// Something in the database or in one op is broken for good: what
		// can be written alone shall be, the rest is given up.
		err = w.oneByOne(ops)
	}
	return j.settle(ops, since, err)
}

// tryBatch writes ops in one transaction. An error of the database fails them
// all; one that concerns a single op is left in its waiter.
func (w *writer) tryBatch(ops []op) error {
	w.number++
	w.touched, w.files = w.touched[:0], w.files[:0]
	err := w.begin.run()
	for i := range ops {
		if err != nil {
			break
		}
		o := &ops[i]
		e := w.apply(o)
		switch {
		case e == nil:
		case single(e) && o.wait != nil:
			o.wait.err = e
		case single(e):
			w.j.drop()
		default:
			err = e
		}
	}
	if err == nil {
		err = w.commit.run()
	}
	if err != nil {
		if w.c.inTransaction() {
			_ = w.rollback.run() // the error above is the one to tell
		}
		for _, r := range w.touched {
			r.kept = r.saved
		}
		return err
	}
	for _, f := range w.files {
		w.j.blobs.remove(f)
	}
	return nil
}

// oneByOne gives every op a transaction of its own. Those that fail are told,
// or dropped if nobody waits; the error is the last one.
func (w *writer) oneByOne(ops []op) (err error) {
	for i := range ops {
		if ops[i].wait != nil {
			ops[i].wait.err = nil
		}
		e := w.tryBatch(ops[i : i+1])
		if e == nil {
			continue
		}
		err = e
		if ops[i].wait != nil {
			ops[i].wait.err = e
		} else {
			w.j.drop()
		}
	}
	if err != nil {
		w.j.note(err)
	}
	return nil
}

// settle tells those who wait, and puts back what could not be written but
// may be later.
func (j *Journal) settle(ops []op, since time.Time, err error) (more bool, _ error) {
	if err != nil {
		err = j.explain("write", err)
	}
	now := time.Now()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed == nil && err != nil {
		j.opt.Logger.Error("the journal cannot be written", "error", err)
	}
	if err != nil {
		j.failed = err
		j.stats.LastError, j.stats.LastErrorAt = err, now
		// Whoever waits gets the failure now, in the whole queue; events and
		// deliveries stay for the next try.
		all := append(ops, j.queue...)
		kept := all[:0]
		for i := range all {
			o := all[i]
			if o.wait == nil {
				kept = append(kept, o)
				continue
			}
			j.endLocked(&o, err)
		}
		clear(all[len(kept):])
		j.empty, j.queue, j.urgent, j.since = j.queue[:0], kept, false, since
		j.makeRoomLocked()
		return false, err
	}
	if j.failed != nil {
		j.failed = nil
		j.opt.Logger.Info("the journal can be written again")
	}
	j.stats.Commits++
	j.stats.Ops += uint64(len(ops))
	j.stats.LargestBatch = max(j.stats.LargestBatch, len(ops))
	for i := range ops {
		j.endLocked(&ops[i], nil)
	}
	j.makeRoomLocked()
	clear(ops)
	j.empty = ops[:0]
	more = j.urgent || len(j.queue) >= batchOps || j.closed && len(j.queue) > 0
	if !more && len(j.queue) > 0 && !j.armed {
		j.armed = true
		j.timer.Reset(j.opt.Delay)
	}
	return more, nil
}

// makeRoomLocked wakes those who wait for the full queue.
func (j *Journal) makeRoomLocked() {
	if j.room != nil {
		close(j.room)
		j.room = nil
	}
}

// endLocked ends an op, with the error that its waiter holds, or err.
func (j *Journal) endLocked(o *op, err error) {
	j.queued -= o.cost
	if o.run != nil {
		o.run.pending--
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
	case o.kind == opFinish, o.kind == opCreate && o.run.ended:
		delete(j.runs, o.run.id)
	case o.kind == opCreate && w.abandoned:
		// Its caller was told that there is no such call.
		delete(j.runs, o.run.id)
		n := o.run.n
		j.enqueueLocked(op{kind: opTask, wait: &waiter{ended: make(chan error, 1), task: func(w *writer) error { return w.forget(n) }}})
	}
	w.ended <- err
}

// giveBack returns an unused buffer.
func (j *Journal) giveBack(ops []op) {
	j.mu.Lock()
	j.empty = ops[:0]
	j.mu.Unlock()
}

func (j *Journal) drop() {
	j.mu.Lock()
	j.stats.Dropped++
	j.mu.Unlock()
}

func (j *Journal) note(err error) {
	err = j.explain("write", err)
	j.mu.Lock()
	j.stats.LastError, j.stats.LastErrorAt = err, time.Now()
	j.mu.Unlock()
	j.opt.Logger.Error("the journal gave up some events", "error", err)
}

// apply executes one op in the open transaction.
func (w *writer) apply(o *op) error {
	switch o.kind {
	case opCreate:
		return w.applyCreate(o)
	case opAppend:
		if err := w.insert(o.run, &o.ev, o.file); err != nil {
			return err
		}
		return w.cap(o.run, o.ev.Seq)
	case opFinish:
		return w.applyFinish(o)
	case opDeliver:
		return w.applyDeliver(o.d)
	case opTask:
		return o.wait.task(w)
	default:
		return nil
	}
}

func (w *writer) applyCreate(o *op) error {
	r, s := &o.wait.rec, w.create
	s.int(1, o.run.n)
	s.text(2, string(r.ID))
	s.int(3, int64(r.Epoch))
	s.int(4, stamp(r.Started))
	s.text(5, r.Principal)
	s.text(6, r.Server)
	s.text(7, r.Tool)
	s.text(8, r.PublicTool)
	s.text(9, r.Session)
	s.text(10, r.Client)
	s.text(11, r.Era)
	s.text(12, r.RequestID)
	s.text(13, r.Traceparent)
	s.text(14, r.Digest)
	var buf [256]byte
	s.bytesAsText(15, appendLimits(buf[:0], r.Limits))
	s.blob(16, r.Arguments)
	if err := s.run(); err != nil {
		return err
	}
	for i := range o.wait.events {
		ev := &o.wait.events[i]
		if err := w.insert(o.run, ev, 0); err != nil {
			return err
		}
		if ev.Kind == call.KindEnd {
			return w.end(o.run, r, ev)
		}
	}
	return nil
}

func (w *writer) applyFinish(o *op) error {
	run, r := o.run, &o.wait.rec
	w.touch(run)
	if run.n == 0 {
		n, err := w.lookup(r.ID)
		if err != nil {
			return err
		}
		if n == 0 {
			return call.ErrNotRunning
		}
		run.n = n
		w.count.int(1, n)
		if _, err := w.count.step(); err != nil {
			return err
		}
		run.kept.events = int(w.count.colInt(0))
		w.count.reset()
	}
	run.kept.events++ // the end itself
	err := w.end(run, r, &o.ev)
	run.kept.events--
	if err != nil {
		return err
	}
	return w.insert(run, &o.ev, o.file)
}

// end notes in the call's row how it ended, if it has not.
func (w *writer) end(run *run, r *call.Record, ev *call.Event) error {
	e := r.End
	if ev.End != nil {
		e = *ev.End
	}
	outcome, err := number(outcomes, e.Outcome)
	if err != nil {
		return &singleError{err}
	}
	s := w.finish
	s.int(1, run.n)
	s.int(2, outcome)
	ended := stamp(r.Ended)
	if ended == 0 {
		ended = stamp(ev.Time)
	}
	s.int(3, ended)
	s.int(4, stamp(r.Dispatched))
	s.int(5, stamp(r.FirstByte))
	s.int(6, int64(ev.Seq))
	// Events are contiguous: what is not there is missing, whatever the reason.
	s.int(7, int64(ev.Seq)-int64(run.kept.events))
	s.int(8, int64(r.Bytes))
	s.int(9, bit(e.ToolError))
	s.int(10, int64(e.Code))
	s.text(11, e.By)
	s.text(12, e.Limit)
	s.text(13, e.Text)
	s.int(14, int64(r.Epoch))
	if err := s.run(); err != nil {
		return err
	}
	if w.c.changes() == 0 {
		return call.ErrNotRunning
	}
	return nil
}

func bit(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// insert stores an event. file is the size of its body if that is in a file.
func (w *writer) insert(run *run, ev *call.Event, file int64) error {
	body := ev.Body
	if file == 0 && len(body) >= w.j.opt.Spill {
		if err := w.j.blobs.write(run.n, ev.Seq, body); err != nil {
			return err
		}
		file, body = int64(len(body)), nil
	}
	s := w.event
	s.int(1, run.n<<seqBits|int64(ev.Seq))
	s.int(2, int64(ev.Kind))
	s.int(3, stamp(ev.Time))
	s.int(4, int64(ev.Hole))
	s.blob(5, body)
	if file != 0 {
		s.int(6, file)
	} else {
		s.null(6)
	}
	if err := s.run(); err != nil {
		return err
	}
	w.touch(run)
	run.kept.add(ev.Seq, int64(len(body))+file)
	return nil
}

// touch saves the run's counts, to be restored if the batch fails.
func (w *writer) touch(run *run) {
	if run.batch != w.number {
		run.batch, run.saved = w.number, run.kept
		w.touched = append(w.touched, run)
	}
}

// lookup gives the number of a call; 0 if there is none.
func (w *writer) lookup(id call.ID) (int64, error) {
	w.find.text(1, string(id))
	ok, err := w.find.step()
	if err != nil || !ok {
		return 0, err
	}
	n := w.find.colInt(0)
	w.find.reset()
	return n, nil
}

func (w *writer) applyDeliver(d *call.Delivery) error {
	how, err := number(hows, d.How)
	if err != nil {
		return &singleError{err}
	}
	n, err := w.lookup(d.Call)
	if err != nil {
		return err
	}
	if n == 0 {
		return &singleError{fmt.Errorf("note a delivery of call %s: %w", d.Call, call.ErrUnknown)}
	}
	s := w.deliv
	s.int(1, n)
	s.text(2, d.Kind)
	s.int(3, how)
	s.text(4, d.Era)
	s.int(5, stamp(d.Attached))
	s.int(6, d.FirstByte.Microseconds())
	s.int(7, stamp(d.Ended))
	s.int(8, d.Bytes)
	s.int(9, d.Events)
	s.int(10, d.Dropped)
	return s.run()
}

// forget deletes all of a call that is small or was never told of.
func (w *writer) forget(n int64) error {
	if _, err := w.deleteEvents(n, 0, maxSeq); err != nil {
		return err
	}
	return w.c.exec(fmt.Sprintf("DELETE FROM deliveries WHERE key BETWEEN %d AND %d; DELETE FROM calls WHERE n = %d", n<<16, n<<16|0xffff, n))
}

// deleteEvents deletes the events of a call with seq from first to last; the
// files of their bodies go after the commit.
func (w *writer) deleteEvents(n int64, first, last uint64) (int, error) {
	from, to := n<<seqBits|int64(first), n<<seqBits|int64(last)
	w.holeFiles.int(1, from)
	w.holeFiles.int(2, to)
	for {
		ok, err := w.holeFiles.step()
		if err != nil {
			return 0, err
		}
		if !ok {
			break
		}
		w.files = append(w.files, file{n, uint64(w.holeFiles.colInt(0) & maxSeq)})
	}
	w.holeEvents.int(1, from)
	w.holeEvents.int(2, to)
	if err := w.holeEvents.run(); err != nil {
		return 0, err
	}
	return w.c.changes(), nil
}
