package sqlite

import (
	"fmt"
	"math/rand/v2"

	"modernc.org/libc"
	lib "modernc.org/sqlite/lib"

	"github.com/longcall/longcall/internal/call"
)

// An event's key is its call's number and its seq side by side: see the schema.
const (
	seqBits = 28
	maxSeq  = 1<<seqBits - 1
)

// writer is the one connection that writes, and its statements. It belongs to
// who holds Journal.turn.
type writer struct {
	j *Journal
	c *conn
	// frames, in C memory, is how long the WAL is: SQLite notes it after
	// every commit.
	frames uintptr

	begin, commit, rollback     *stmt
	create, end, event, deliver *stmt
	find, epoch, count, adopt   *stmt
	index, indexedAs            *stmt
	indexed, low                *stmt
	holeFiles, holeEvents       *stmt
	forgetCall, forgetEnd       *stmt
	forgetID, forgetDeliveries  *stmt
	putSession, touchSession    *stmt
	dropSession, trimSessions   *stmt

	puts       int    // of sessions
	full       bool   // every commit waits for the disk
	number     uint64 // of the batch
	touched    []*run // by the batch
	files      []file // to remove after the commit
	deliveries int64  // so far, and a random number
}

func newWriter(j *Journal) (*writer, error) {
	c, err := openConn(j.path, openWriter)
	if err != nil {
		return nil, err
	}
	w := &writer{j: j, c: c, deliveries: rand.Int64N(1 << 16)}
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
	// No busy timeout: waiting for another program's lock is up to the queue.
	if err := w.c.exec("PRAGMA busy_timeout = 0; PRAGMA synchronous = " + sync + "; PRAGMA wal_autocheckpoint = 0;" +
		"PRAGMA cache_size = -1024; PRAGMA temp_store = MEMORY; PRAGMA foreign_keys = OFF; PRAGMA cell_size_check = ON"); err != nil {
		return err
	}
	if w.frames = libc.Xcalloc(w.c.tls, 1, 8); w.frames == 0 {
		return &dbError{code: lib.SQLITE_NOMEM, text: "out of memory"}
	}
	w.full = sync == "FULL"
	w.c.onCommit(w.frames)
	return w.c.prepareAll([]prepared{
		{&w.begin, "BEGIN IMMEDIATE"},
		{&w.commit, "COMMIT"},
		{&w.rollback, "ROLLBACK"},
		{&w.create, `INSERT INTO calls (n, id, epoch, started, accepted, principal, server, tool, public_tool, session, client, era,
			request_id, traceparent, digest, limits, arguments, agent_request, idempotency, parent, child)
			VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21)`},
		{&w.end, `INSERT INTO ends (n, seq, outcome, ended, dispatched, first_byte, missing, bytes, tool_error, code, ended_by, end_limit, end_text)
			VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)`},
		{&w.event, "INSERT INTO events (key, kind, at, hole, body, file, cursor) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)"},
		{&w.deliver, `INSERT INTO deliveries (key, kind, how, era, attached, first_byte, ended, bytes, events, dropped)
			VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)`},
		{&w.find, findSQL},
		{&w.epoch, "SELECT epoch, accepted IS NOT NULL, EXISTS (SELECT 1 FROM ends WHERE ends.n = calls.n) FROM calls WHERE n = ?1"},
		{&w.adopt, "UPDATE calls SET epoch = ?2 WHERE n = ?1 AND epoch = ?3 AND NOT EXISTS (SELECT 1 FROM ends WHERE ends.n = ?1)"},
		{&w.count, "SELECT count(*), max(key), sum(coalesce(file, length(body))) FROM events WHERE key BETWEEN ?1 << 28 AND (?1 << 28) + 268435455"},
		{&w.index, "INSERT INTO ids (h, n) VALUES (?1, ?2)"},
		{&w.indexedAs, "SELECT n FROM ids WHERE h = ?1"},
		{&w.indexed, "UPDATE owner SET indexed = ?1 WHERE id = 1"},
		{&w.low, "UPDATE owner SET low = ?1 WHERE id = 1"},
		{&w.holeFiles, "SELECT key FROM events WHERE key BETWEEN ?1 AND ?2 AND file IS NOT NULL AND key <> ?3"},
		{&w.holeEvents, "DELETE FROM events WHERE key BETWEEN ?1 AND ?2 AND key <> ?3"},
		{&w.forgetCall, "DELETE FROM calls WHERE n = ?1"},
		{&w.forgetEnd, "DELETE FROM ends WHERE n = ?1"},
		{&w.forgetID, "DELETE FROM ids WHERE h BETWEEN ?1 AND ?2 AND n = ?3"},
		{&w.forgetDeliveries, "DELETE FROM deliveries WHERE key BETWEEN ?1 << 16 AND (?1 << 16) + 65535"},
		{&w.putSession, `INSERT INTO sessions (hash, principal, server, version, client, created, used, data) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
			ON CONFLICT (hash) DO UPDATE SET principal = ?2, server = ?3, version = ?4, client = ?5, created = ?6, used = max(used, ?7), data = ?8`},
		{&w.touchSession, "UPDATE sessions SET used = ?2 WHERE hash = ?1 AND used < ?2"},
		{&w.dropSession, "DELETE FROM sessions WHERE hash = ?1"},
		{&w.trimSessions, "DELETE FROM sessions WHERE rowid IN (SELECT rowid FROM sessions ORDER BY used DESC LIMIT -1 OFFSET ?1)"},
	})
}

func (w *writer) close() {
	if w.frames != 0 {
		libc.Xfree(w.c.tls, w.frames)
		w.frames = 0
	}
	w.c.close()
}

// walFrames is how many frames the WAL had after the last commit.
func (w *writer) walFrames() int64 { return int64(*(*int32)(mem(w.frames))) }

// write writes ops in one transaction. An error of the database fails them
// all; one that concerns a single op is left in its waiter.
func (w *writer) write(ops []op) error {
	w.number++
	w.touched, w.files = w.touched[:0], w.files[:0]
	err := w.wait(ops)
	if err == nil {
		err = w.begin.run()
	}
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

// wait sees to it that the commit of ops waits for the disk, if it has to:
// who owns a call need not survive a power cut, after which there is a new owner
// anyway. So a start that adopts thousands of calls takes no fsync for each.
func (w *writer) wait(ops []op) error {
	if w.j.opt.Sync != "full" {
		return nil
	}
	full := false
	for i := range ops {
		full = full || ops[i].kind != opAdopt && ops[i].kind != opFlush
	}
	if full == w.full {
		return nil
	}
	sql := "PRAGMA synchronous = NORMAL"
	if full {
		sql = "PRAGMA synchronous = FULL"
	}
	err := w.c.exec(sql)
	if err == nil {
		w.full = full
	}
	return err
}

// oneByOne gives every op a transaction of its own: something in the database
// is broken for good, but what can be written shall be. Of the ops that fail,
// those with a waiter tell it, and the others are dropped.
func (w *writer) oneByOne(ops []op) (wrote bool, last error) {
	for i := range ops {
		o := &ops[i]
		if o.wait != nil {
			o.wait.err = nil
		}
		err := w.write(ops[i : i+1])
		if err == nil {
			wrote = true
			continue
		}
		last = err
		if o.wait != nil {
			o.wait.err = err
		} else {
			w.j.drop()
		}
	}
	return wrote, last
}

// apply executes one op in the open transaction.
func (w *writer) apply(o *op) error {
	switch o.kind {
	case opCreate:
		return w.applyCreate(o)
	case opAppend:
		if err := w.owns(o.run); err != nil {
			return err
		}
		if err := w.insert(o.run, &o.ev, o.file); err != nil {
			return err
		}
		return w.cap(o.run, o.ev.Seq)
	case opFinish:
		return w.applyFinish(o)
	case opAdopt:
		return w.applyAdopt(o)
	case opSession:
		return w.applySession(o)
	case opDeliver:
		return w.applyDeliver(o.d, o.n)
	case opTask:
		return o.wait.task(w)
	default:
		return nil
	}
}

func (w *writer) applyCreate(o *op) error {
	r, s, events := &o.wait.rec, w.create, o.wait.events
	w.touch(o.run)
	s.int(1, o.run.n)
	s.text(2, string(r.ID))
	s.int(3, int64(r.Epoch))
	s.int(4, stamp(r.Started))
	if len(events) > 0 && inRow(&events[0]) {
		s.int(5, stamp(events[0].Time))
		o.run.kept.events++
		events = events[1:]
	} else {
		s.null(5)
	}
	s.text(6, r.Principal)
	s.text(7, r.Server)
	s.text(8, r.Tool)
	s.text(9, r.PublicTool)
	s.text(10, r.Session)
	s.text(11, r.Client)
	s.text(12, r.Era)
	s.text(13, r.RequestID)
	s.text(14, r.Traceparent)
	s.text(15, r.Digest)
	var buf [256]byte
	s.bytesAsText(16, appendLimits(buf[:0], r.Limits))
	s.blob(17, r.Arguments)
	s.text(18, r.AgentRequest)
	s.text(19, r.Idempotency)
	s.text(20, string(r.Parent))
	if r.Index == 0 {
		s.null(21)
	} else {
		s.int(21, int64(r.Index))
	}
	if err := s.run(); err != nil {
		return err
	}
	for i := range events {
		ev := &events[i]
		if err := w.insert(o.run, ev, 0); err != nil {
			return err
		}
		if ev.Kind == call.KindEnd {
			return w.applyEnd(o.run, r, ev)
		}
	}
	return nil
}

// inRow says whether an event needs no row of its own, since the call's row
// says all about it.
func inRow(ev *call.Event) bool {
	return ev.Seq == 1 && ev.Kind == call.KindAccepted && ev.Body == nil && ev.Hole == -1 && !ev.Time.IsZero()
}

func (w *writer) applyFinish(o *op) error {
	run, r := o.run, &o.wait.rec
	w.touch(run)
	if !run.stranger {
		if err := w.owns(run); err != nil {
			return err
		}
	} else {
		last, err := w.meet(run, r.Epoch)
		if err != nil {
			return err
		}
		if o.ev.Seq <= last {
			return &singleError{fmt.Errorf("finish call %s: seq %d follows %d", r.ID, o.ev.Seq, last)}
		}
	}
	run.kept.events++ // the end itself
	err := w.applyEnd(run, r, &o.ev)
	run.kept.events--
	if err != nil {
		return err
	}
	return w.insert(run, &o.ev, o.file)
}

// applyEnd notes how the call ended, if it has not.
func (w *writer) applyEnd(run *run, r *call.Record, ev *call.Event) error {
	e := r.End
	if ev.End != nil {
		e = *ev.End
	}
	outcome, err := number(outcomes, e.Outcome)
	if err == nil && outcome == 0 {
		err = fmt.Errorf("call %s cannot end as running", r.ID)
	}
	if err != nil {
		return &singleError{err}
	}
	ended := r.Ended
	if ended.IsZero() {
		ended = ev.Time
	}
	s := w.end
	s.int(1, run.n)
	s.int(2, int64(ev.Seq))
	s.int(3, outcome)
	s.int(4, stamp(ended))
	s.int(5, stamp(r.Dispatched))
	s.int(6, stamp(r.FirstByte))
	// Events are contiguous: what is not there is missing, whatever the reason.
	s.int(7, int64(ev.Seq)-int64(run.kept.events))
	s.int(8, int64(r.Bytes))
	s.int(9, bit(e.ToolError))
	s.int(10, int64(e.Code))
	s.text(11, e.By)
	s.text(12, e.Limit)
	s.text(13, e.Text)
	if err := s.run(); err != nil {
		if single(err) {
			return call.ErrNotRunning // it has an end
		}
		return err
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
	s.blob(7, ev.Cursor)
	if err := s.run(); err != nil {
		return err
	}
	w.touch(run)
	run.kept.add(ev.Seq, int64(len(body))+file)
	if ev.Kind == call.KindAddress {
		run.kept.address = ev.Seq
	}
	return nil
}

// touch saves the run's counts, to be restored if the batch fails.
func (w *writer) touch(run *run) {
	if run.batch != w.number {
		run.batch, run.saved = w.number, run.kept
		w.touched = append(w.touched, run)
	}
}

func (w *writer) applyDeliver(d *call.Delivery, n int64) error {
	how, err := number(hows, d.How)
	if err != nil {
		return &singleError{err}
	}
	if n == 0 {
		if n, err = w.lookup(d.Call); err != nil {
			return err
		}
	}
	if n == 0 {
		return &singleError{fmt.Errorf("note a delivery of call %s: %w", d.Call, call.ErrUnknown)}
	}
	s := w.deliver
	s.text(2, d.Kind)
	s.int(3, how)
	s.text(4, d.Era)
	s.int(5, stamp(d.Attached))
	s.int(6, d.FirstByte.Microseconds())
	s.int(7, stamp(d.Ended))
	s.int(8, d.Bytes)
	s.int(9, d.Events)
	s.int(10, d.Dropped)
	for range 8 {
		w.deliveries++
		s.int(1, n<<16|w.deliveries&0xffff)
		// A number may be taken, by a delivery of the same call in an earlier
		// life or 65 536 deliveries ago. SQLite keeps what is bound.
		if err = s.again(); err == nil || !single(err) {
			break
		}
	}
	w.c.freeArena()
	return err
}

// forget deletes a call. Its events should be few by now.
func (w *writer) forget(n int64, id call.ID) error {
	if _, err := w.deleteEvents(n, 0, maxSeq, 0); err != nil {
		return err
	}
	h := idNumber(string(id))
	w.forgetID.int(1, h)
	w.forgetID.int(2, h+idTries)
	w.forgetID.int(3, n)
	if err := w.forgetID.run(); err != nil {
		return err
	}
	for _, s := range []*stmt{w.forgetDeliveries, w.forgetEnd, w.forgetCall} {
		s.int(1, n)
		if err := s.run(); err != nil {
			return err
		}
	}
	return nil
}

// deleteEvents deletes the events of a call with seq from first to last, but
// for the one with seq spare; the files of their bodies go after the commit.
func (w *writer) deleteEvents(n int64, first, last, spare uint64) (int, error) {
	from, to := n<<seqBits|int64(first), n<<seqBits|int64(last)
	w.holeFiles.int(1, from)
	w.holeFiles.int(2, to)
	w.holeFiles.int(3, n<<seqBits|int64(spare))
	for w.j.blobs.bytes.Load() > 0 || w.j.shared.Load() {
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
	w.holeEvents.int(3, n<<seqBits|int64(spare))
	if err := w.holeEvents.run(); err != nil {
		return 0, err
	}
	return w.c.changes(), nil
}
