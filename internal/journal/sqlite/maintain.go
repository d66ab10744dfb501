package sqlite

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	lib "modernc.org/sqlite/lib"
)

// wal is what the writer and the checkpoints know of each other. A frame is a
// page, 4 KiB.
type wal struct {
	frames atomic.Int64 // in the WAL after the last commit
	next   atomic.Int64 // the number of frames at which a checkpoint is due
}

// Checkpoints move the WAL's pages into the database while others write; that
// costs the disk's time, but nobody waits. Only when all is moved does the WAL
// start again from its beginning, and while calls come and go there is always
// some more. So at walFull nobody writes until the last few are moved, too.
const (
	walStep = 1024
	walFull = 8192
)

const (
	housekeeping = time.Second      // how often it looks around
	idleReader   = 30 * time.Second // after which a connection is closed
	indexAt      = 4096             // recent calls at which they are indexed, also while others come
	indexChunk   = 64               // of them in one commit, so that nobody waits long
	lowEvery     = 10               // housekeepings between two looks at the oldest running call
	retainEvery  = 10               // housekeepings between two looks at age and size
)

// maintainer does what is not urgent: checkpoints, the index of ids,
// retention, idle connections.
type maintainer struct {
	j *Journal
	c *conn // checkpoints, and reads for itself

	ticks  int
	frames int64 // at the last tick
	idle   int   // ticks since then without a commit
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

// callMaintainer has the maintainer look around before its next tick.
func (j *Journal) callMaintainer() {
	select {
	case j.chores <- struct{}{}:
	default:
	}
}

// run is the maintainer's goroutine.
func (m *maintainer) run(ctx context.Context) {
	defer m.close()
	tick := time.NewTicker(housekeeping)
	defer tick.Stop()
	for {
		select {
		case <-m.j.chores:
			m.urgent(ctx)
		case <-tick.C:
			m.tick(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// urgent does what cannot wait for the next tick.
func (m *maintainer) urgent(ctx context.Context) {
	if w := &m.j.wal; w.frames.Load() >= w.next.Load() {
		m.checkpoint()
	}
	m.j.mu.Lock()
	recent := len(m.j.recents)
	m.j.mu.Unlock()
	if recent >= indexAt {
		m.note(m.index(ctx))
	}
}

// note remembers what went wrong.
func (m *maintainer) note(err error) {
	if err == nil || errors.Is(err, errClosed) {
		return
	}
	err = m.j.explain("maintain", err)
	m.j.mu.Lock()
	defer m.j.mu.Unlock()
	m.j.stats.LastError, m.j.stats.LastErrorAt = err, time.Now()
}

// tick does what is due. What fails is noted, and tried again at a later tick.
func (m *maintainer) tick(ctx context.Context) {
	j := m.j
	m.ticks++
	m.idle++
	if n := j.wal.frames.Load(); n != m.frames {
		m.frames, m.idle = n, 0
	}
	j.pool.trim(idleReader)
	if j.shared.Load() {
		m.note(m.share())
	}
	j.mu.Lock()
	recent, failed := len(j.recents), j.failed
	j.mu.Unlock()
	if failed != nil {
		return // the disk has trouble enough
	}
	if recent >= indexAt || recent > 0 && m.idle > 0 {
		m.note(m.index(ctx))
	}
	if m.ticks%lowEvery == 0 {
		m.note(m.raiseLow(ctx))
	}
	if m.ticks%retainEvery == 0 {
		m.note(m.retain(ctx, time.Now()))
		m.note(m.retainSessions(ctx, time.Now()))
		m.note(m.shrink(ctx))
	}
	if m.idle >= 2 && m.frames > 0 {
		m.truncate()
	}
}

// share does what is to be done while another process writes, too: its commits
// and its files are not counted here. When that one is gone, it is the last time.
func (m *maintainer) share() error {
	j := m.j
	const page = 4096
	size := sizeOf(j.path + "-wal")
	if size > walStep*page {
		_, _, _ = m.c.checkpoint(lib.SQLITE_CHECKPOINT_PASSIVE) // there is a next one
	}
	if size > walFull*page {
		m.truncate()
	}
	if m.ticks%retainEvery != 0 {
		return nil
	}
	others := j.others()
	if err := j.blobs.recount(); err != nil {
		return err
	}
	j.shared.Store(others)
	return nil
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

// truncate empties the WAL while nobody writes.
func (m *maintainer) truncate() {
	m.j.turn <- struct{}{}
	defer m.j.release()
	if _, _, err := m.c.checkpoint(lib.SQLITE_CHECKPOINT_TRUNCATE); err == nil {
		m.j.wal.frames.Store(0)
		m.j.wal.next.Store(walStep)
		m.frames = 0
	}
}

// raiseLow notes which calls are known to have ended, so that a start need
// not look at them.
func (m *maintainer) raiseLow(ctx context.Context) error {
	low, err := m.c.queryInt("SELECT low FROM owner")
	if err != nil {
		return err
	}
	now, err := m.c.queryInt(fmt.Sprintf(`SELECT coalesce(
		(SELECT c.n FROM calls c LEFT JOIN ends e ON e.n = c.n WHERE c.n >= %d AND e.n IS NULL ORDER BY c.n LIMIT 1),
		(SELECT max(n) + 1 FROM calls), 0)`, low))
	if err != nil || now <= low {
		return err
	}
	return m.j.do(ctx, opTask, func(w *writer) error {
		w.low.int(1, now)
		return w.low.run()
	})
}
