package sqlite

import (
	"context"

	"github.com/longcall/longcall/internal/call"
)

// Adopt implements call.Log.
func (j *Journal) Adopt(ctx context.Context, r *call.Record, from uint64) error {
	w := &waiter{rec: *r, from: from, ended: make(chan error, 1)}
	j.mu.Lock()
	if j.closed {
		j.mu.Unlock()
		return errClosed
	}
	run := j.runs[r.ID]
	if run == nil { // of an earlier owner, or ended: the writer finds out
		run = newStranger(r)
	} else if run.ended || run.adopted || run.epoch != from {
		j.mu.Unlock()
		return call.ErrNotRunning
	}
	run.adopted = true
	j.enqueueLocked(op{kind: opAdopt, run: run, wait: w, cost: opCost})
	j.mu.Unlock()
	return j.await(ctx, w)
}

func (w *writer) applyAdopt(o *op) error {
	run, wait := o.run, o.wait
	w.touch(run)
	if run.stranger {
		last, err := w.meet(run, wait.from)
		if err != nil {
			return err
		}
		wait.last = last
	}
	w.adopt.int(1, run.n)
	w.adopt.int(2, int64(wait.rec.Epoch))
	w.adopt.int(3, int64(wait.from))
	if err := w.adopt.run(); err != nil {
		return err
	}
	if w.c.changes() == 0 {
		return call.ErrNotRunning
	}
	return nil
}

// owns fails if another process has adopted a call of this one, which it does
// only if it took this one for dead (I3).
func (w *writer) owns(run *run) error {
	if !w.j.shared.Load() {
		return nil
	}
	w.epoch.int(1, run.n)
	ok, err := w.epoch.step()
	if err != nil {
		return err
	}
	defer w.epoch.reset()
	if !ok || uint64(w.epoch.colInt(0)) != run.epoch {
		return call.ErrNotRunning
	}
	return nil
}

// meet finds a running call of the owner with that epoch that this journal did
// not create. It gives the seq of its last event.
func (w *writer) meet(run *run, epoch uint64) (last uint64, err error) {
	n, err := w.lookup(run.id)
	if err != nil {
		return 0, err
	}
	w.epoch.int(1, n)
	ok, err := w.epoch.step()
	if err != nil {
		return 0, err
	}
	defer w.epoch.reset()
	if !ok || uint64(w.epoch.colInt(0)) != epoch || w.epoch.colInt(2) != 0 {
		return 0, call.ErrNotRunning
	}
	w.count.int(1, n)
	if _, err := w.count.step(); err != nil {
		return 0, err
	}
	defer w.count.reset()
	accepted := w.epoch.colInt(1)
	run.n, run.kept.events, run.kept.bytes = n, int(accepted+w.count.colInt(0)), w.count.colInt(2)
	return max(uint64(accepted), uint64(w.count.colInt(1)&maxSeq)), nil
}

// Running implements call.Log.
func (j *Journal) Running(ctx context.Context, epoch uint64) ([]call.Record, error) {
	if err := j.Flush(ctx); err != nil {
		return nil, err
	}
	var records []call.Record
	err := j.pool.with(ctx, func(r *reader) error {
		s, err := r.c.prepare("SELECT " + callColumns + " WHERE c.n >= (SELECT low FROM owner) AND e.n IS NULL AND c.epoch < ?1 ORDER BY c.n")
		if err != nil {
			return err
		}
		defer r.c.drop(s)
		s.int(1, int64(epoch))
		alive := map[uint64]bool{}
		for {
			ok, err := s.step()
			if err != nil || !ok {
				return err
			}
			rec, err := r.record(s)
			if err == nil {
				err = r.findPlace(j.blobs, rec, s.colInt(0))
			}
			if err != nil {
				return err
			}
			a, ok := alive[rec.Epoch]
			if !ok {
				a = j.alive(rec.Epoch)
				alive[rec.Epoch] = a
			}
			rec.Alive = a
			records = append(records, *rec)
		}
	})
	return records, err
}

// findPlace fills in where the call with that number can be taken up again.
func (r *reader) findPlace(b *blobs, rec *call.Record, n int64) error {
	r.place.int(1, n<<seqBits)
	r.place.int(2, n<<seqBits|maxSeq)
	if _, err := r.place.step(); err != nil {
		return err
	}
	address, cursor, cancel, asked := r.place.colInt(0), r.place.colInt(1), r.place.colInt(2), r.place.colInt(3)
	r.place.reset()
	at := func(key int64, f func() error) error {
		if key == 0 {
			return nil
		}
		r.events.int(1, key)
		r.events.int(2, key)
		ok, err := r.events.step()
		if err == nil && ok {
			err = f()
		}
		r.events.reset()
		return err
	}
	err := at(address, func() (err error) {
		rec.Address, err = r.body(b, rec.ID, n, uint64(address&maxSeq))
		return err
	})
	if err != nil {
		return err
	}
	if err = at(cursor, func() error {
		rec.Cursor = r.events.colBlob(6)
		return nil
	}); err != nil {
		return err
	}
	err = at(asked, func() (err error) {
		ev := call.Event{Seq: uint64(asked & maxSeq), Kind: call.Kind(r.events.colInt(1)), Time: unstamp(r.events.colInt(2)), Hole: -1}
		if ev.Kind != call.KindAsk {
			return nil
		}
		if ev.Body, err = r.body(b, rec.ID, n, ev.Seq); err == nil && string(ev.Body) != "{}" {
			rec.Asked = &ev
		}
		return err
	})
	if err != nil {
		return err
	}
	return at(cancel, func() (err error) {
		rec.Cancel, err = r.body(b, rec.ID, n, uint64(cancel&maxSeq))
		return err
	})
}
