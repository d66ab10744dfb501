package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/longcall/longcall/internal/call"
)

const (
	// retainEvents is about how many events one commit deletes at most, so
	// that nobody waits long.
	retainEvents = 1000
	// retainRound is how many calls are looked for at once.
	retainRound = 256
	// vacuumPages is how many free pages one commit gives back.
	vacuumPages = 64
	// freePages is how many free pages are kept for what comes.
	freePages = 4096
)

// victim is a call to delete.
type victim struct {
	n      int64
	id     call.ID
	events uint64
}

// retain deletes ended calls that are too old, and the oldest while all
// together are too large.
func (m *maintainer) retain(ctx context.Context, now time.Time) error {
	opt := &m.j.opt
	var over int64
	if opt.Size > 0 {
		size, err := m.size()
		if err != nil {
			return err
		}
		if size > opt.Size {
			over = size - (opt.Size - opt.Size/16) // not again at the next call
		}
	}
	cutoff := int64(0)
	if opt.Age > 0 {
		cutoff = stamp(now.Add(-opt.Age))
	}
	for from := int64(0); ; {
		list, next, freed, err := m.victims(from, cutoff, over)
		if err != nil {
			return err
		}
		if err := m.delete(ctx, list); err != nil {
			return err
		}
		over -= freed
		if next == 0 {
			return nil
		}
		from = next
	}
}

// size is what calls take, in the database and beside it.
func (m *maintainer) size() (int64, error) {
	pages, err := m.c.queryInt("PRAGMA page_count")
	if err != nil {
		return 0, err
	}
	free, err := m.c.queryInt("PRAGMA freelist_count")
	if err != nil {
		return 0, err
	}
	page, err := m.c.queryInt("PRAGMA page_size")
	return (pages-free)*page + m.j.blobs.bytes.Load(), err
}

// victims gives calls to delete, oldest first, from a number on: those that
// ended before the cutoff, and others until about over bytes are freed. next is
// where to go on, 0 at the end.
func (m *maintainer) victims(from, cutoff, over int64) (list []victim, next, freed int64, err error) {
	s, err := m.c.prepare(`SELECT c.n, c.id, c.started, e.ended, e.seq - e.missing, e.bytes, length(c.arguments)
		FROM calls c LEFT JOIN ends e ON e.n = c.n WHERE c.n >= ?1 ORDER BY c.n`)
	if err != nil {
		return nil, 0, 0, err
	}
	defer m.c.drop(s)
	s.int(1, from)
	for {
		ok, err := s.step()
		if err != nil || !ok {
			return list, 0, freed, err
		}
		n, started, ended := s.colInt(0), s.colInt(2), s.colInt(3)
		if len(list) >= retainRound {
			return list, n, freed, nil
		}
		if freed >= over && started >= cutoff {
			return list, 0, freed, nil // and so did all that come
		}
		if s.colNull(3) || freed >= over && ended >= cutoff {
			continue // it runs, or may stay
		}
		v := victim{n, call.ID(s.colText(1)), uint64(s.colInt(4))}
		list = append(list, v)
		freed += 600 + s.colInt(6) + s.colInt(5) + int64(v.events)*24
	}
}

// delete deletes calls, a few in each commit.
func (m *maintainer) delete(ctx context.Context, list []victim) error {
	for len(list) > 0 {
		if err := m.deleteLong(ctx, &list[0]); err != nil {
			return err
		}
		k, events := 0, uint64(0)
		for k < len(list) && list[k].events+events <= retainEvents {
			events += list[k].events + 3
			k++
		}
		some := list[:max(k, 1)]
		err := m.j.do(ctx, opTask, func(w *writer) error {
			for _, v := range some {
				if err := w.forget(v.n, v.id); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		m.j.mu.Lock()
		for _, v := range some {
			delete(m.j.recents, v.id)
		}
		m.j.stats.Deleted += uint64(len(some))
		m.j.mu.Unlock()
		list = list[len(some):]
	}
	return nil
}

// deleteLong deletes events of a call that has more of them than one commit
// should delete.
func (m *maintainer) deleteLong(ctx context.Context, v *victim) error {
	for v.events > retainEvents {
		last, err := m.c.queryInt(fmt.Sprintf("SELECT key FROM events WHERE key BETWEEN %d AND %d ORDER BY key LIMIT 1 OFFSET %d",
			v.n<<seqBits, v.n<<seqBits|maxSeq, retainEvents-1))
		if err != nil {
			return err
		}
		if last == 0 {
			v.events = 0
			return nil
		}
		deleted := 0
		err = m.j.do(ctx, opTask, func(w *writer) (err error) {
			deleted, err = w.deleteEvents(v.n, 0, uint64(last&maxSeq), 0)
			return err
		})
		if err != nil {
			return err
		}
		v.events -= uint64(min(deleted, int(v.events)))
	}
	return nil
}

// shrink gives free pages back to the disk when there are many.
func (m *maintainer) shrink(ctx context.Context) error {
	pages, err := m.c.queryInt("PRAGMA page_count")
	if err != nil {
		return err
	}
	free, err := m.c.queryInt("PRAGMA freelist_count")
	if err != nil || free <= max(freePages, pages/8) {
		return err
	}
	for free > max(freePages, pages/8)/2 {
		err := m.j.do(ctx, opTask, func(w *writer) error {
			return w.c.exec(fmt.Sprintf("PRAGMA incremental_vacuum(%d)", vacuumPages))
		})
		if err != nil {
			return err
		}
		free -= vacuumPages
	}
	return nil
}
