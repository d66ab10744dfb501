package sqlite

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	lib "modernc.org/sqlite/lib"

	"github.com/longcall/longcall/internal/call"
)

// wal is what the writer and the checkpoints know of each other. A frame is a
// page, 4 KiB.
type wal struct {
	frames atomic.Int64  // in the WAL after the last commit
	next   atomic.Int64  // the number of frames at which a checkpoint is due
	due    chan struct{} // says that it is
}

// Checkpoints move the WAL's pages into the database while others write; that
// costs the disk's time, but nobody waits. Only when all is moved does the WAL
// start again from its beginning, and while calls come and go there is always
// some more. So at walFull nobody writes until the last few are moved, too.
const (
	walStep = 1024
	walFull = 8192
)

// Housekeeping intervals.
const (
	idleReader  = 30 * time.Second
	idleIndex   = 4096 // recent calls at which they are indexed at once
	indexChunk  = 256
	housekeeper = time.Second
)

// maintainer does what is not urgent: checkpoints, the index of ids,
// retention, idle connections.
type maintainer struct {
	j    *Journal
	c    *conn // checkpoints, and reads for itself
	last int64 // frames at the last tick
	low  int64
}

func newMaintainer(j *Journal) (*maintainer, error) {
	c, err := openConn(j.path, openWriter)
	if err != nil {
		return nil, err
	}
	// Checkpoints never wait: there is a next one.
	if err := c.exec("PRAGMA busy_timeout = 0; PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = 0; PRAGMA cache_size = -64"); err != nil {
		c.close()
		return nil, err
	}
	j.wal.next.Store(walStep)
	return &maintainer{j: j, c: c}, nil
}

func (m *maintainer) close() { m.c.close() }

// checkpointIfDue is called by the writer after each commit.
func (j *Journal) checkpointIfDue(frames int64) {
	j.wal.frames.Store(frames)
	if frames >= j.wal.next.Load() {
		select {
		case j.wal.due <- struct{}{}:
		default:
		}
	}
}

// run is the maintainer's goroutine.
func (m *maintainer) run() {
	defer m.close()
	tick := time.NewTicker(housekeeper)
	defer tick.Stop()
	for {
		select {
		case <-m.j.wal.due:
			m.checkpoint()
		case <-tick.C:
			m.tick()
		case <-m.j.quit:
			return
		}
	}
}

func (m *maintainer) tick() {
	m.j.pool.trim(idleReader)
}

// checkpoint moves pages while others write, and all of them if the WAL is full.
func (m *maintainer) checkpoint() {
	w := &m.j.wal
	_, moved, err := m.c.checkpoint(lib.SQLITE_CHECKPOINT_PASSIVE)
	if err != nil {
		w.next.Store(w.frames.Load() + walStep) // a reader holds it up: later
		return
	}
	if w.frames.Load() < walFull {
		w.next.Store(int64(moved) + walStep)
		return
	}
	m.j.turn <- struct{}{}
	_, _, _ = m.c.checkpoint(lib.SQLITE_CHECKPOINT_PASSIVE)
	// The next commit starts the WAL again and syncs its head: better one
	// here than one that somebody waits for.
	_ = m.j.w.c.exec("UPDATE owner SET epoch = epoch WHERE id = 1")
	frames := m.j.w.walFrames()
	w.frames.Store(frames)
	w.next.Store(frames + walStep)
	m.j.release()
}

// index puts recent calls in ids, in the order of ids, so that each page of
// that index is touched once for many calls.
func (m *maintainer) index() error {
	from, err := m.c.queryInt("SELECT indexed FROM owner")
	if err != nil {
		return err
	}
	s, err := m.c.prepare("SELECT n, id FROM calls WHERE n > ?1 ORDER BY n")
	if err != nil {
		return err
	}
	defer m.c.drop(s)
	type entry struct {
		n  int64
		id string
	}
	var list []entry
	s.int(1, from)
	for {
		ok, err := s.step()
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		list = append(list, entry{s.colInt(0), s.colText(1)})
	}
	if len(list) == 0 {
		return nil
	}
	to := list[len(list)-1].n
	slices.SortFunc(list, func(a, b entry) int { return strings.Compare(a.id, b.id) })
	for chunk := range slices.Chunk(list, indexChunk) {
		err := m.j.do(context.Background(), opTask, func(w *writer) error {
			for _, e := range chunk {
				w.index.text(1, e.id)
				w.index.int(2, e.n)
				if err := w.index.run(); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	err = m.j.do(context.Background(), opTask, func(w *writer) error {
		w.indexed.int(1, to)
		return w.indexed.run()
	})
	if err != nil {
		return err
	}
	m.j.mu.Lock()
	defer m.j.mu.Unlock()
	for _, e := range list {
		delete(m.j.recents, call.ID(e.id))
	}
	return nil
}

// Stats of a Journal, for metrics.
type Stats struct {
	QueueBytes   int64
	Commits      uint64
	Ops          uint64
	LargestBatch int
	Dropped      uint64
	Failures     uint64
	LastError    error
	LastErrorAt  time.Time
}

// Stats gives the numbers as of now.
func (j *Journal) Stats() Stats {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.stats
	s.QueueBytes = j.queued
	return s
}
