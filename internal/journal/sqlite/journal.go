// Package sqlite keeps calls and their events in an SQLite database in the state folder.
package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/longcall/longcall/internal/call"
)

var _ call.Log = (*Journal)(nil)

// Options of a Journal. The zero value means the defaults.
type Options struct {
	// Sync is "normal" or "full". Normal, the default, survives any crash of
	// the process; full makes accepted and terminal events survive a power
	// cut too, for one fsync per commit.
	Sync string
	// Queue bounds in bytes what waits to be written. When it is full, Append
	// returns call.ErrFull, Deliver drops, Create and Finish wait. 0 means 64 MiB.
	Queue int64
	// Delay is how long an appended event waits at most until it is written;
	// sooner if a call begins or ends in the meantime. 0 means 10 ms.
	Delay time.Duration
	// MaxEvents and MaxBytes (of bodies) bound what is kept of one call: the
	// first quarter and the last three quarters of that; what lies between is
	// deleted and counted in Record.Missing. 0 means 10 000 events and 64 MiB.
	MaxEvents int
	MaxBytes  int64
	// Age is how long a call is kept after its end. 0 means 30 days, less
	// than 0 for ever.
	Age time.Duration
	// Size bounds the database and the blobs folder together, in bytes; the
	// oldest ended calls go first, running ones never. 0 means 2 GiB, less
	// than 0 no bound.
	Size int64
	// Spill is from how many bytes on a body is kept in a file of its own in
	// the folder blobs beside the database. 0 means 128 KiB.
	Spill int
	// Logger is told when writing begins to fail and when it works again. nil
	// means nobody is.
	Logger *slog.Logger
}

func (o *Options) defaults() error {
	switch o.Sync {
	case "":
		o.Sync = "normal"
	case "normal", "full":
	default:
		return fmt.Errorf("journal.sync is %q: it must be normal or full", o.Sync)
	}
	set(&o.Queue, 64<<20)
	set(&o.Delay, 10*time.Millisecond)
	set(&o.MaxEvents, 10_000)
	set(&o.MaxBytes, 64<<20)
	set(&o.Age, 30*24*time.Hour)
	set(&o.Size, 2<<30)
	set(&o.Spill, 128<<10)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

func set[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// Journal is the durable record of calls. It is the only writer of its
// database, but for the time in which one process replaces another (see Drain):
// one connection writes, in group commits; readers have connections of their
// own.
type Journal struct {
	path  string
	opt   Options
	epoch uint64
	lock  *lockFile // of the folder
	own   *lockFile // of the epoch
	blobs *blobs
	pool  *pool

	turn   chan struct{} // holds one token: the right to use w
	w      *writer
	wake   chan struct{}   // has the writer's goroutine look at the queue
	quit   chan struct{}   // closed by Close: write the rest and end
	life   context.Context // ends with Close, for what the journal does for itself
	end    context.CancelFunc
	rest   context.CancelFunc // ends the maintainer before that
	rested chan struct{}      // closed when it has ended
	wg     sync.WaitGroup
	wal    wal
	chores chan struct{} // calls the maintainer
	shared atomic.Bool   // another process writes to the database, too

	mu       sync.Mutex
	queue    []op
	other    []op      // the queue's other buffer
	queued   int64     // bytes
	since    time.Time // when the oldest op of the queue came
	urgent   bool      // the queue has an op that somebody waits for
	timer    *time.Timer
	armed    bool          // the timer runs
	room     chan struct{} // closed when the full queue has room again; nil if nobody waits
	runs     map[call.ID]*run
	recents  map[call.ID]int64    // numbers of calls that are not in ids yet
	next     int64                // number of the next call
	delivers int                  // deliveries in the queue or being written
	touched  map[string]time.Time // when which session was noted as used
	draining bool
	closed   bool
	stats    Stats

	failed    error         // why nothing can be written; nil if it can
	pause     time.Duration // before the next try
	waiting   bool          // for the end of that pause
	busySince time.Time     // another program holds the database
}

// Open opens the journal at path, a database file, and makes it and its folder
// if there is none. Only one process at a time can own a journal. ctx bounds
// the opening only.
func Open(ctx context.Context, path string, opt Options) (*Journal, error) {
	if err := opt.defaults(); err != nil {
		return nil, err
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open journal: cannot make the state folder %s: %w; choose another with state: in the config", dir, err)
	}
	lock, err := takeLock(filepath.Join(dir, "lock"))
	if err != nil {
		return nil, err
	}
	j := &Journal{
		path: path, opt: opt, lock: lock,
		blobs:  newBlobs(filepath.Join(dir, "blobs"), opt.Sync == "full"),
		pool:   newPool(path, false),
		turn:   make(chan struct{}, 1),
		wake:   make(chan struct{}, 1),
		quit:   make(chan struct{}),
		chores: make(chan struct{}, 1),
		rested: make(chan struct{}),
		timer:  time.NewTimer(time.Hour),
		runs:   map[call.ID]*run{}, recents: map[call.ID]int64{}, touched: map[string]time.Time{},
	}
	j.timer.Stop()
	j.life, j.end = context.WithCancel(context.WithoutCancel(ctx))
	m, err := j.open(ctx)
	if err != nil {
		j.end()
		if j.own != nil {
			j.own.release()
		}
		lock.release()
		return nil, err
	}
	j.wg.Go(j.write)
	duty, rest := context.WithCancel(j.life)
	j.rest = rest
	j.wg.Go(func() {
		defer close(j.rested)
		m.run(duty)
	})
	j.wg.Go(func() { j.blobs.makeSpares(j.epoch, j.quit) })
	return j, nil
}

// open brings the database up to date and takes a new epoch.
func (j *Journal) open(ctx context.Context) (_ *maintainer, err error) {
	// SQLite gives -wal and -shm the mode of the database.
	f, err := os.OpenFile(j.path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	switch {
	case err == nil:
		f.Close()
	case !errors.Is(err, fs.ErrExist):
		return nil, fmt.Errorf("open journal: cannot make %s: %w; make the folder writable, or choose another with state: in the config", j.path, err)
	}
	if err := migrate(ctx, j.path); err != nil {
		return nil, err
	}
	if j.w, err = newWriter(j); err != nil {
		return nil, j.explain("open", err)
	}
	defer func() {
		if err != nil {
			j.w.close()
		}
	}()
	// Until it runs, waiting for another process is up to SQLite: see prepare.
	if err := j.w.c.exec("PRAGMA busy_timeout = 2000"); err != nil {
		return nil, j.explain("open", err)
	}
	epoch, err := j.w.c.queryInt("UPDATE owner SET epoch = epoch + 1 WHERE id = 1 RETURNING epoch")
	if err != nil {
		return nil, j.explain("open", err)
	}
	j.epoch = uint64(epoch)
	if err := j.lockEpoch(); err != nil {
		return nil, err
	}
	if err := j.start(); err != nil {
		return nil, j.explain("open", err)
	}
	m, err := newMaintainer(j)
	if err != nil {
		return nil, j.explain("open", err)
	}
	return m, nil
}

// start finds the next call number, and tidies up after earlier processes.
func (j *Journal) start() (err error) {
	// Numbers are never used twice, even if their calls are gone.
	j.next, err = j.w.c.queryInt("SELECT max(coalesce((SELECT max(n) FROM calls), 0) + 1, low, indexed + 1) FROM owner")
	if err != nil {
		return err
	}
	if err := j.w.indexAll(); err != nil {
		return err
	}
	if err := j.w.sweep(); err != nil {
		return err
	}
	return j.w.c.exec("PRAGMA busy_timeout = 0")
}

// Epoch is of this opening: higher than that of every one before.
func (j *Journal) Epoch() uint64 { return j.epoch }

// Close writes what is queued, and returns when nothing of the journal runs
// any more. Its error says what could not be written.
func (j *Journal) Close() error {
	j.mu.Lock()
	if j.closed {
		j.mu.Unlock()
		return nil
	}
	j.closed = true
	j.makeRoomLocked()
	j.mu.Unlock()
	j.end()
	close(j.quit)
	j.wg.Wait()
	j.turn <- struct{}{} // and nobody gets it again
	j.w.close()
	j.pool.close()
	j.own.release()
	os.Remove(j.own.f.Name()) // if it stays, the next start removes it
	j.lock.release()
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.queue) > 0 {
		return fmt.Errorf("%d events and deliveries are lost: %w", len(j.queue), j.failed)
	}
	return nil
}
