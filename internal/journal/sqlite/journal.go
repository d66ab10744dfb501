// Package sqlite keeps calls and their events in an SQLite database in the state folder.
package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
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
	// the folder blobs beside the database. 0 means 256 KiB.
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
	set(&o.Spill, 256<<10)
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
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
// database: one goroutine writes, in group commits; readers have connections
// of their own.
type Journal struct {
	path  string
	opt   Options
	epoch uint64
	lock  *lockFile
	blobs blobs
	pool  *pool

	wake chan struct{} // the queue has something urgent
	quit chan struct{} // closed by Close: flush and end
	done chan struct{} // closed by the writer when it has ended
	wg   sync.WaitGroup

	mu     sync.Mutex
	queue  []op
	empty  []op // the queue's other buffer
	queued int64
	since  time.Time     // when the oldest op of the queue came
	urgent bool          // the queue has an op that somebody waits for
	timer  *time.Timer   // ends the delay of lazy ops
	armed  bool          // the timer runs
	room   chan struct{} // closed when the full queue has room again; nil if nobody waits
	runs   map[call.ID]*run
	next   int64 // number of the next call
	closed bool
	failed error // why the last commit failed; nil if it did not
	stats  Stats
}

// run is a call that this journal created and that has not ended.
type run struct {
	n     int64
	id    call.ID
	epoch uint64
	// Guarded by Journal.mu:
	seq     uint64 // of the last event that was taken
	pending int    // ops in the queue or being written
	ended   bool   // a Finish is on its way
	// Owned by the writer:
	kept  kept
	saved kept   // kept before the batch, to go back to if it fails
	batch uint64 // that touched the run last
}

var errClosed = errors.New("the journal is closed")

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
		blobs: blobs{dir: filepath.Join(dir, "blobs"), sync: opt.Sync == "full"},
		wake:  make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
		runs: map[call.ID]*run{},
	}
	w, err := j.open(ctx)
	if err != nil {
		lock.release()
		return nil, err
	}
	j.timer = time.NewTimer(time.Hour)
	j.timer.Stop()
	j.pool = newPool(path, false)
	j.wg.Go(func() { j.write(w) })
	j.wg.Go(j.maintain)
	return j, nil
}

// open brings the database up to date and takes a new epoch.
func (j *Journal) open(ctx context.Context) (*writer, error) {
	// SQLite gives -wal and -shm the mode of the database.
	f, err := os.OpenFile(j.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open journal: cannot write %s: %w; make the folder writable, or choose another with state: in the config", j.path, err)
	}
	f.Close()
	if err := migrate(ctx, j.path); err != nil {
		return nil, err
	}
	w, err := newWriter(j)
	if err != nil {
		return nil, j.explain("open", err)
	}
	epoch, err := w.c.queryInt("UPDATE owner SET epoch = epoch + 1 WHERE id = 1 RETURNING epoch")
	if err == nil {
		j.next, err = w.c.queryInt("SELECT coalesce(max(n), 0) + 1 FROM calls")
	}
	if err == nil {
		err = w.sweep()
	}
	if err != nil {
		w.close()
		return nil, j.explain("open", err)
	}
	j.epoch = uint64(epoch)
	return w, nil
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
	if j.room != nil {
		close(j.room)
		j.room = nil
	}
	j.mu.Unlock()
	close(j.quit)
	j.wg.Wait()
	j.pool.close()
	j.lock.release()
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.failed
}
