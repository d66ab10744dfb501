package sqlite

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/longcall/longcall/internal/call"
)

// pool keeps a few connections that only read. They see every commit as of
// when their statement began, and neither wait for the writer nor stop it.
type pool struct {
	path  string
	slots chan struct{} // bounds how many there are
	cli   bool          // of another process than the writer's
	over  chan struct{} // closed by close

	mu   sync.Mutex
	idle []*reader
}

const readers = 4

func newPool(path string, cli bool) *pool {
	return &pool{path: path, cli: cli, slots: make(chan struct{}, readers), over: make(chan struct{})}
}

// reader is a connection with the statements that are used often.
type reader struct {
	c                             *conn
	find, scan, head, events, sum *stmt
	given, place                  *stmt
	used                          time.Time
}

// callColumns are of a call and its end, as record reads them.
const callColumns = `c.n, c.id, c.epoch, c.started, c.accepted, c.principal, c.server, c.tool, c.public_tool, c.session, c.client, c.era,
	c.request_id, c.traceparent, c.digest, c.limits, c.arguments,
	e.outcome, e.tool_error, e.code, e.ended_by, e.end_limit, e.end_text,
	e.seq, e.ended, e.dispatched, e.first_byte, e.missing, e.bytes,
	c.agent_request, c.idempotency, c.parent, c.child FROM calls c LEFT JOIN ends e ON e.n = c.n`

func newReader(path string, flags int32) (*reader, error) {
	c, err := openConn(path, flags)
	if err != nil {
		return nil, err
	}
	r := &reader{c: c}
	err = c.exec("PRAGMA busy_timeout = 2000; PRAGMA query_only = ON; PRAGMA cache_size = -256; PRAGMA temp_store = MEMORY; PRAGMA wal_autocheckpoint = 0")
	if err == nil {
		err = c.prepareAll([]prepared{
			{&r.find, findSQL},
			{&r.scan, "SELECT n FROM calls WHERE n > (SELECT indexed FROM owner) AND id = ?1"},
			{&r.head, "SELECT " + callColumns + " WHERE c.n = ?1"},
			{&r.events, "SELECT key, kind, at, hole, body, file, cursor FROM events WHERE key BETWEEN ?1 AND ?2 ORDER BY key"},
			{&r.sum, "SELECT count(*), max(key), sum(coalesce(file, length(body))), max(CASE WHEN kind = 2 THEN at END) FROM events WHERE key BETWEEN ?1 AND ?2"},
			{&r.given, "SELECT max(how IN (1, 4)), max(how = 3), max(how = 8) FROM deliveries WHERE key BETWEEN ?1 << 16 AND (?1 << 16) + 65535"},
			// typeof looks at no more of a row than its head.
			{&r.place, "SELECT max(CASE WHEN kind = 3 THEN key END), max(CASE WHEN typeof(cursor) <> 'null' THEN key END), max(CASE WHEN kind = 7 THEN key END), max(CASE WHEN kind IN (11, 12) THEN key END) FROM events WHERE key BETWEEN ?1 AND ?2"},
		})
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return r, nil
}

// with gives f a reader. What f leaves running is reset.
func (p *pool) with(ctx context.Context, f func(*reader) error) error {
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-p.over:
		return errClosed
	}
	defer func() { <-p.slots }()
	p.mu.Lock()
	var r *reader
	if n := len(p.idle); n > 0 {
		r, p.idle = p.idle[n-1], p.idle[:n-1]
	}
	p.mu.Unlock()
	if r == nil {
		var err error
		if r, err = newReader(p.path, openWriter); err != nil && p.cli {
			r, err = newReader(p.path, openReadOnly)
		}
		if err != nil {
			return explain("read", p.path, err)
		}
	}
	err := f(r)
	for _, s := range []*stmt{r.find, r.scan, r.head, r.events, r.sum, r.given, r.place} {
		s.reset()
	}
	r.used = time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = append(p.idle, r)
	return err
}

// trim closes connections that nobody used for a while.
func (p *pool) trim(idle time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	keep := p.idle[:0]
	for _, r := range p.idle {
		if time.Since(r.used) > idle {
			r.c.close()
			continue
		}
		keep = append(keep, r)
	}
	clear(p.idle[len(keep):])
	p.idle = keep
}

// close waits until nobody reads any more.
func (p *pool) close() {
	close(p.over)
	for range readers {
		p.slots <- struct{}{}
	}
	for _, r := range p.idle {
		r.c.close()
	}
	p.idle = nil
}

// number finds a call; 0 if there is none.
func (r *reader) number(id call.ID) (int64, error) {
	n, err := findID(r.find, id)
	if err != nil || n != 0 {
		return n, err
	}
	// It may be too new for the index.
	r.scan.text(1, string(id))
	ok, err := r.scan.step()
	switch {
	case err != nil:
		return 0, err
	case !ok:
		// The index may have taken it in between the two looks.
		return findID(r.find, id)
	}
	n = r.scan.colInt(0)
	r.scan.reset()
	return n, nil
}

// open positions head on a call. The other statements see the same commit as
// long as it is not reset.
func (r *reader) open(id call.ID, n int64) (int64, error) {
	var err error
	if n == 0 {
		if n, err = r.number(id); err != nil {
			return 0, err
		}
	}
	r.head.int(1, n)
	ok, err := r.head.step()
	if err != nil {
		return 0, err
	}
	if !ok {
		return 0, call.ErrUnknown
	}
	return n, nil
}

// Read implements call.Log.
func (j *Journal) Read(ctx context.Context, id call.ID, after uint64, max int) (events []call.Event, err error) {
	if err := j.barrier(ctx, id); err != nil {
		return nil, err
	}
	n := j.recent(id)
	err = j.pool.with(ctx, func(r *reader) error {
		events, err = r.read(j.blobs, id, n, after, max)
		return err
	})
	return events, err
}

func (r *reader) read(b *blobs, id call.ID, n int64, after uint64, max int) (events []call.Event, err error) {
	if n, err = r.open(id, n); err != nil {
		return nil, err
	}
	if after >= maxSeq {
		return nil, nil
	}
	h := r.head
	size := 0
	add := func(ev call.Event) {
		size += len(ev.Body) + 64
		events = append(events, ev)
	}
	if after == 0 && !h.colNull(4) {
		add(call.Event{Seq: 1, Kind: call.KindAccepted, Time: unstamp(h.colInt(4)), Hole: -1})
	}
	r.events.int(1, n<<seqBits|int64(after+1))
	r.events.int(2, n<<seqBits|maxSeq)
	for size < max || len(events) == 0 {
		ok, err := r.events.step()
		if err != nil {
			return nil, err
		}
		if !ok {
			if len(events) == 0 && !h.colNull(23) && after < uint64(h.colInt(23)) {
				return nil, call.ErrGap
			}
			break
		}
		ev := call.Event{Seq: uint64(r.events.colInt(0) & maxSeq)}
		if ev.Seq != after+1+uint64(len(events)) {
			if len(events) == 0 {
				return nil, call.ErrGap
			}
			break // the next read finds the gap
		}
		ev.Kind = call.Kind(r.events.colInt(1))
		ev.Time = unstamp(r.events.colInt(2))
		ev.Hole = int(r.events.colInt(3))
		if ev.Body, err = r.body(b, id, n, ev.Seq); err != nil {
			return nil, err
		}
		ev.Cursor = r.events.colBlob(6)
		if ev.Kind == call.KindEnd {
			ev.End = new(endOf(h))
		}
		add(ev)
	}
	return events, nil
}

// body gives the body of the event that r.events stands at.
func (r *reader) body(b *blobs, id call.ID, n int64, seq uint64) ([]byte, error) {
	if r.events.colNull(5) {
		return r.events.colBlob(4), nil
	}
	body, err := b.read(file{n, seq}, r.events.colInt(5))
	if err != nil {
		return nil, fmt.Errorf("%w: the body of event %d of call %s is lost: %w", call.ErrGap, seq, id, err)
	}
	return body, nil
}

// endOf takes an End from a row of callColumns.
func endOf(s *stmt) call.End {
	return call.End{
		Outcome:   word(outcomes, s.colInt(17)),
		ToolError: s.colInt(18) != 0,
		Code:      int(s.colInt(19)),
		By:        s.colText(20),
		Limit:     s.colText(21),
		Text:      s.colText(22),
	}
}

// Get implements call.Log.
func (j *Journal) Get(ctx context.Context, id call.ID) (*call.Record, error) {
	if err := j.barrier(ctx, id); err != nil {
		return nil, err
	}
	queued, err := j.noteDeliveries(ctx)
	if err != nil {
		return nil, err
	}
	var rec *call.Record
	n := j.recent(id)
	err = j.pool.with(ctx, func(r *reader) (err error) {
		if n, err = r.open(id, n); err == nil {
			rec, err = r.record(r.head)
		}
		return err
	})
	if err == nil {
		queued.show(rec)
	}
	return rec, err
}

// record takes a record from a row of callColumns. What is noted only when a
// call ends is taken from the events of one that runs.
func (r *reader) record(s *stmt) (*call.Record, error) {
	n := s.colInt(0)
	limits, err := parseLimits(s.colText(15))
	if err != nil {
		return nil, err
	}
	rec := &call.Record{
		ID: call.ID(s.colText(1)),
		Spec: call.Spec{
			Principal: s.colText(5), Server: s.colText(6), Tool: s.colText(7), PublicTool: s.colText(8),
			Session: s.colText(9), Client: s.colText(10), Era: s.colText(11),
			RequestID: s.colText(12), Traceparent: s.colText(13), Digest: s.colText(14),
			Limits: limits, Arguments: s.colBlob(16),
			AgentRequest: s.colText(29), Idempotency: s.colText(30),
			Parent: call.ID(s.colText(31)), Index: int(s.colInt(32)),
		},
		Epoch: uint64(s.colInt(2)), Started: unstamp(s.colInt(3)),
	}
	r.given.int(1, n)
	if _, err := r.given.step(); err != nil {
		return nil, err
	}
	rec.Delivered, rec.HandedOff, rec.Told = r.given.colInt(0) != 0, r.given.colInt(1) != 0, r.given.colInt(2) != 0
	r.given.reset()
	if !s.colNull(17) {
		rec.End = endOf(s)
		if rec.End.Outcome == call.Denied {
			rec.Denied = new(rec.End)
		}
		rec.Seq, rec.Ended, rec.Dispatched, rec.FirstByte = uint64(s.colInt(23)), unstamp(s.colInt(24)), unstamp(s.colInt(25)), unstamp(s.colInt(26))
		rec.Missing, rec.Bytes = uint64(s.colInt(27)), uint64(s.colInt(28))
		return rec, nil
	}
	r.sum.int(1, n<<seqBits)
	r.sum.int(2, n<<seqBits|maxSeq)
	if _, err := r.sum.step(); err != nil {
		return nil, err
	}
	defer r.sum.reset()
	events := uint64(r.sum.colInt(0))
	rec.Seq = uint64(r.sum.colInt(1) & maxSeq)
	if !s.colNull(4) {
		events++
		rec.Seq = max(rec.Seq, 1)
	}
	rec.Missing, rec.Bytes = rec.Seq-events, uint64(r.sum.colInt(2))
	rec.Dispatched = unstamp(r.sum.colInt(3))
	return rec, nil
}
