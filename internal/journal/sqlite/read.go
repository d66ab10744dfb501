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

	mu     sync.Mutex
	idle   []*reader
	closed bool
}

const readers = 4

func newPool(path string, cli bool) *pool {
	return &pool{path: path, cli: cli, slots: make(chan struct{}, readers)}
}

// reader is a connection with the statements that are used often.
type reader struct {
	c                       *conn
	head, events, get, tell *stmt
	used                    time.Time
}

const recordColumns = `n, id, outcome, epoch, started, principal, server, tool, public_tool, session, client, era,
	request_id, traceparent, digest, limits, arguments, ended, dispatched, first_byte, seq, missing, bytes,
	tool_error, code, ended_by, end_limit, end_text`

func newReader(path string, flags int32) (*reader, error) {
	c, err := openConn(path, flags)
	if err != nil {
		return nil, err
	}
	r := &reader{c: c}
	err = c.exec("PRAGMA busy_timeout = 2000; PRAGMA query_only = ON; PRAGMA cache_size = -256; PRAGMA temp_store = MEMORY; PRAGMA wal_autocheckpoint = 0")
	for _, p := range []struct {
		s   **stmt
		sql string
	}{
		{&r.head, "SELECT n, outcome, seq, tool_error, code, ended_by, end_limit, end_text FROM calls WHERE id = ?1"},
		{&r.events, "SELECT key, kind, at, hole, body, file FROM events WHERE key BETWEEN ?1 AND ?2 ORDER BY key"},
		{&r.get, "SELECT " + recordColumns + " FROM calls WHERE id = ?1"},
		{&r.tell, "SELECT count(*), coalesce(max(key), 0), coalesce(sum(coalesce(file, length(body))), 0), max(CASE WHEN kind = 2 THEN at END) FROM events WHERE key BETWEEN ?1 AND ?2"},
	} {
		if err == nil {
			*p.s, err = c.prepare(p.sql)
		}
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
	}
	defer func() { <-p.slots }()
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return errClosed
	}
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
	for _, s := range []*stmt{r.head, r.events, r.get, r.tell} {
		s.reset()
	}
	r.used = time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		r.c.close()
		return err
	}
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
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	for range readers {
		p.slots <- struct{}{}
	}
	for _, r := range p.idle {
		r.c.close()
	}
	p.idle = nil
}

// Read implements call.Log.
func (j *Journal) Read(ctx context.Context, id call.ID, after uint64, max int) (events []call.Event, err error) {
	if err := j.barrier(ctx, id); err != nil {
		return nil, err
	}
	err = j.pool.with(ctx, func(r *reader) error {
		events, err = r.read(&j.blobs, id, after, max)
		return err
	})
	return events, err
}

// read takes a page of events. Both statements see the same commit: the first
// is kept open meanwhile.
func (r *reader) read(b *blobs, id call.ID, after uint64, max int) ([]call.Event, error) {
	h := r.head
	h.text(1, string(id))
	ok, err := h.step()
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, call.ErrUnknown
	}
	n, seq, over := h.colInt(0), uint64(h.colInt(2)), h.colInt(1) != 0
	if after >= maxSeq {
		return nil, nil
	}
	r.events.int(1, n<<seqBits|int64(after+1))
	r.events.int(2, n<<seqBits|maxSeq)
	var events []call.Event
	size := 0
	next := after + 1
	for size < max || len(events) == 0 {
		ok, err := r.events.step()
		if err != nil {
			return nil, err
		}
		if !ok {
			if len(events) == 0 && over && after < seq {
				return nil, call.ErrGap
			}
			break
		}
		ev := call.Event{Seq: uint64(r.events.colInt(0) & maxSeq)}
		if ev.Seq != next {
			if len(events) == 0 {
				return nil, call.ErrGap
			}
			break // the next read finds the gap
		}
		next++
		ev.Kind = call.Kind(r.events.colInt(1))
		ev.Time = unstamp(r.events.colInt(2))
		ev.Hole = int(r.events.colInt(3))
		if r.events.colNull(5) {
			ev.Body = r.events.colBlob(4)
		} else if ev.Body, err = b.read(file{n, ev.Seq}, r.events.colInt(5)); err != nil {
			return nil, fmt.Errorf("%w: the body of event %d of call %s is lost: %w", call.ErrGap, ev.Seq, id, err)
		}
		if ev.Kind == call.KindEnd {
			ev.End = new(endOf(h, 1, 3))
		}
		size += len(ev.Body) + 64
		events = append(events, ev)
	}
	return events, nil
}

// endOf takes an End from a row: outcome in one column, the rest from another on.
func endOf(s *stmt, outcome, rest int32) call.End {
	return call.End{
		Outcome:   word(outcomes, s.colInt(outcome)),
		ToolError: s.colInt(rest) != 0,
		Code:      int(s.colInt(rest + 1)),
		By:        s.colText(rest + 2),
		Limit:     s.colText(rest + 3),
		Text:      s.colText(rest + 4),
	}
}

// Get implements call.Log.
func (j *Journal) Get(ctx context.Context, id call.ID) (*call.Record, error) {
	if err := j.barrier(ctx, id); err != nil {
		return nil, err
	}
	var rec call.Record
	err := j.pool.with(ctx, func(r *reader) error { return r.record(id, &rec) })
	if err != nil {
		return nil, err
	}
	return &rec, nil
}

func (r *reader) record(id call.ID, rec *call.Record) error {
	r.get.text(1, string(id))
	ok, err := r.get.step()
	if err != nil {
		return err
	}
	if !ok {
		return call.ErrUnknown
	}
	return r.scan(r.get, rec)
}

// scan takes a record from a row of recordColumns. What a running call's row
// does not say yet is taken from its events.
func (r *reader) scan(s *stmt, rec *call.Record) error {
	n := s.colInt(0)
	limits, err := parseLimits(s.colText(15))
	if err != nil {
		return err
	}
	*rec = call.Record{
		ID: call.ID(s.colText(1)),
		Spec: call.Spec{
			Principal: s.colText(5), Server: s.colText(6), Tool: s.colText(7), PublicTool: s.colText(8),
			Session: s.colText(9), Client: s.colText(10), Era: s.colText(11),
			RequestID: s.colText(12), Traceparent: s.colText(13), Digest: s.colText(14),
			Limits: limits, Arguments: s.colBlob(16),
		},
		Epoch: uint64(s.colInt(3)), Started: unstamp(s.colInt(4)),
		Ended: unstamp(s.colInt(17)), Dispatched: unstamp(s.colInt(18)), FirstByte: unstamp(s.colInt(19)),
		Seq: uint64(s.colInt(20)), Missing: uint64(s.colInt(21)), Bytes: uint64(s.colInt(22)),
		End: endOf(s, 2, 23),
	}
	if rec.End.Outcome == call.Denied {
		rec.Denied = &rec.End
	}
	if rec.End.Outcome != call.Running {
		return nil
	}
	r.tell.int(1, n<<seqBits)
	r.tell.int(2, n<<seqBits|maxSeq)
	if _, err := r.tell.step(); err != nil {
		return err
	}
	rec.Seq = uint64(r.tell.colInt(1) & maxSeq)
	rec.Missing = rec.Seq - uint64(r.tell.colInt(0))
	rec.Bytes = uint64(r.tell.colInt(2))
	rec.Dispatched = unstamp(r.tell.colInt(3))
	r.tell.reset()
	return nil
}

// Running implements call.Log.
func (j *Journal) Running(ctx context.Context, epoch uint64) ([]call.Record, error) {
	if err := j.flush(ctx); err != nil {
		return nil, err
	}
	var records []call.Record
	err := j.pool.with(ctx, func(r *reader) error {
		s, err := r.c.prepare("SELECT " + recordColumns + " FROM calls WHERE n >= (SELECT low FROM owner) AND outcome = 0 AND epoch < ?1 ORDER BY n")
		if err != nil {
			return err
		}
		defer r.c.drop(s)
		s.int(1, int64(epoch))
		for {
			ok, err := s.step()
			if err != nil || !ok {
				return err
			}
			var rec call.Record
			if err := r.scan(s, &rec); err != nil {
				return err
			}
			records = append(records, rec)
		}
	})
	return records, err
}
