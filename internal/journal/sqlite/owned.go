package sqlite

import (
	"context"
	"time"

	"github.com/longcall/longcall/internal/call"
)

// given is what queued deliveries say of calls that the database does not.
type given map[call.ID]struct{ delivered, handedOff, told bool }

// show fills it in.
func (g given) show(r *call.Record) {
	d := g[r.ID]
	r.Delivered = r.Delivered || d.delivered
	r.HandedOff = r.HandedOff || d.handedOff
	r.Told = r.Told || d.told
}

// noteDeliveries writes the deliveries that are queued. Those that cannot be
// written it gives back.
func (j *Journal) noteDeliveries(ctx context.Context) (given, error) {
	j.mu.Lock()
	n := j.delivers
	j.mu.Unlock()
	if n == 0 {
		return nil, nil
	}
	err := j.Flush(ctx)
	if err == nil || ctx.Err() != nil {
		return nil, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	g := given{}
	for i := range j.queue {
		if d := j.queue[i].d; d != nil {
			v := g[d.Call]
			v.delivered = v.delivered || d.How == call.Delivered || d.How == call.Replayed
			v.handedOff = v.handedOff || d.How == call.HandedOff
			v.told = v.told || d.How == call.Told
			g[d.Call] = v
		}
	}
	return g, nil
}

// undeliveredAmong is how many of the last calls Undelivered looks at.
const undeliveredAmong = 100_000

// Undelivered implements call.Log.
func (j *Journal) Undelivered(ctx context.Context, since time.Time, max int) ([]call.Record, error) {
	if err := j.catchUp(ctx); err != nil {
		return nil, err
	}
	queued, err := j.noteDeliveries(ctx)
	if err != nil {
		return nil, err
	}
	var list []call.Record
	err = j.pool.with(ctx, func(r *reader) error {
		// A plus keeps SQLite from looking at the calls first: few of the ends
		// are as new as that, and they are small.
		s, err := r.c.prepare("SELECT " + callColumns + ` WHERE c.n IN (SELECT n FROM ends x
			WHERE x.n > (SELECT max(n) FROM calls) - ?1 AND x.ended >= ?2 AND (
				(x.dispatched <> 0 OR x.outcome = 6) AND x.outcome NOT IN (3, 5)
					AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.key BETWEEN x.n << 16 AND (x.n << 16) + 65535 AND d.how IN (1, 4))
				OR (SELECT k.idempotency FROM calls k WHERE k.n = x.n) IS NOT NULL))
			ORDER BY c.n DESC`)
		if err != nil {
			return err
		}
		defer r.c.drop(s)
		s.int(1, undeliveredAmong)
		s.int(2, stamp(since))
		for len(list) < max {
			ok, err := s.step()
			if err != nil || !ok {
				return err
			}
			rec, err := r.record(s)
			if err != nil {
				return err
			}
			if queued.show(rec); rec.Delivered && rec.Idempotency == "" {
				continue
			}
			list = append(list, *rec)
		}
		return nil
	})
	return list, err
}

// Owned implements call.Log. A call of another principal as before is unknown
// (I6).
func (j *Journal) Owned(ctx context.Context, principal string, before call.ID, max int) ([]call.Record, error) {
	if err := j.catchUp(ctx); err != nil {
		return nil, err
	}
	queued, err := j.noteDeliveries(ctx)
	if err != nil {
		return nil, err
	}
	n := int64(0)
	if before != "" {
		n = j.recent(before)
	}
	var list []call.Record
	err = j.pool.with(ctx, func(r *reader) error {
		last, err := r.c.queryInt("SELECT max(n) FROM calls")
		if err != nil {
			return err
		}
		first, err := r.c.queryInt("SELECT min(n) FROM calls")
		if err != nil {
			return err
		}
		if before != "" {
			if n, err = r.open(before, n); err != nil {
				return err
			}
			if r.head.colText(5) != principal {
				return call.ErrUnknown
			}
			r.head.reset()
			last = n - 1
		}
		s, err := r.c.prepare("SELECT " + callColumns + " WHERE c.n BETWEEN ?1 AND ?2 AND c.principal IS ?3 ORDER BY c.n DESC")
		if err != nil {
			return err
		}
		defer r.c.drop(s)
		for ; last >= first && last > 0 && len(list) < max; last -= listWindow {
			if err := ctx.Err(); err != nil {
				return err
			}
			s.int(1, last-listWindow+1)
			s.int(2, last)
			s.text(3, principal)
			for len(list) < max {
				ok, err := s.step()
				if err != nil {
					return err
				}
				if !ok {
					break
				}
				rec, err := r.record(s)
				if err != nil {
					return err
				}
				queued.show(rec)
				list = append(list, *rec)
			}
			s.reset()
		}
		return nil
	})
	return list, err
}
