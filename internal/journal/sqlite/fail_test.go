package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/call/calltest"
)

func wantWords(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; it should say %q", words)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error does not say %q: %v", w, err)
		}
	}
}

func TestOneOwner(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{})
	path := filepath.Join(dir, "journal.db")
	_, err := Open(t.Context(), path, Options{})
	wantWords(t, err, dir, fmt.Sprintf("(process %d)", os.Getpid()), "stop")
	must(t, j.Close())
	must(t, j.Close()) // again does nothing
	next := open(t, dir, Options{})
	if next.Epoch() <= j.Epoch() {
		t.Errorf("epoch %d after %d", next.Epoch(), j.Epoch())
	}
}

func TestClosed(t *testing.T) {
	j := open(t, t.TempDir(), Options{})
	r := create(t, j)
	must(t, j.Append(r.ID, r.Epoch, event(2, "x")))
	must(t, j.Close())
	if err := j.Append(r.ID, r.Epoch, event(3, "x")); err == nil {
		t.Error("a closed journal takes events")
	}
	if err := j.Create(t.Context(), calltest.Record(1)); err == nil {
		t.Error("a closed journal takes calls")
	}
	if err := tryFinish(t, j, r, 3); err == nil {
		t.Error("a closed journal takes ends")
	}
	if _, err := j.Get(t.Context(), r.ID); err == nil {
		t.Error("a closed journal reads")
	}
	j.Deliver(call.Delivery{Call: r.ID, How: call.Delivered})
	dir := filepath.Dir(j.path)
	next := open(t, dir, Options{})
	got, err := next.Get(t.Context(), r.ID)
	must(t, err)
	if got.Seq != 2 {
		t.Errorf("Close did not write what was queued: seq %d", got.Seq)
	}
}

func TestModes(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no modes there")
	}
	dir := filepath.Join(t.TempDir(), "a", "b")
	j := open(t, dir, Options{Spill: 1})
	r := create(t, j)
	finish(t, j, r, 2)
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		must(t, err)
		fi, err := d.Info()
		must(t, err)
		if fi.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s is open to others: %s", path, fi.Mode())
		}
		return nil
	}))
}

func TestUnusableFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	_, err := Open(t.Context(), filepath.Join(file, "journal.db"), Options{})
	wantWords(t, err, file, "state")
	if os.Getuid() > 0 {
		dir := t.TempDir()
		must(t, os.Chmod(dir, 0o500))
		_, err = Open(t.Context(), filepath.Join(dir, "journal.db"), Options{})
		wantWords(t, err, dir, "state", "writable")
	}
	_, err = Open(t.Context(), filepath.Join(t.TempDir(), "journal.db"), Options{Sync: "sometimes"})
	wantWords(t, err, "sometimes", "full")
}

func TestNewerSchema(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{})
	ask(t, j, "PRAGMA user_version = 99")
	must(t, j.Close())
	_, err := Open(t.Context(), j.path, Options{})
	wantWords(t, err, j.path, "newer", "99")
	if !errors.Is(err, ErrNewer) {
		t.Error("it is not ErrNewer")
	}
	_, err = OpenReadOnly(j.path)
	wantWords(t, err, j.path, "newer")
}

func TestNoDatabase(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	must(t, os.WriteFile(path, []byte(strings.Repeat("this is no database\n", 1000)), 0o600))
	_, err := Open(t.Context(), path, Options{})
	wantWords(t, err, path, "damaged", "move")
	_, err = OpenReadOnly(path)
	wantWords(t, err, path, "damaged")
	_, err = OpenReadOnly(filepath.Join(t.TempDir(), "none.db"))
	wantWords(t, err, "none.db", "serve")
}

// TestDamaged overwrites pages of a journal: it answers with errors, and
// neither hangs nor dies.
func TestDamaged(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{})
	var ids []call.ID
	for range 200 {
		r := create(t, j)
		finish(t, j, r, 2)
		ids = append(ids, r.ID)
	}
	must(t, j.Close())
	f, err := os.OpenFile(j.path, os.O_RDWR, 0)
	must(t, err)
	fi, err := f.Stat()
	must(t, err)
	for at := int64(8 * 4096); at < fi.Size(); at += 4096 {
		_, err = f.WriteAt(make([]byte, 1000), at)
		must(t, err)
	}
	must(t, f.Close())
	j, err = Open(t.Context(), j.path, Options{})
	if err != nil {
		wantWords(t, err, "damaged")
		return
	}
	defer j.Close()
	failed := 0
	for _, id := range ids {
		if _, err := j.Get(t.Context(), id); err != nil {
			failed++
		}
	}
	for range 10 {
		r := calltest.Record(j.Epoch())
		if err := j.Create(t.Context(), r, call.Event{Seq: 1, Kind: call.KindAccepted, Time: time.Now(), Hole: -1}); err != nil {
			failed++
			wantWords(t, err, j.path)
			continue
		}
		_ = j.Append(r.ID, r.Epoch, event(2, "x"))
		if err := tryFinish(t, j, r, 3); err != nil {
			failed++
		}
	}
	if failed == 0 {
		t.Error("nothing of the damage was noticed")
	}
}

// TestDiskFull fills the disk while calls run: who waits is told, events are
// kept, and all is written when there is room again.
func TestDiskFull(t *testing.T) {
	j := open(t, t.TempDir(), Options{})
	r := create(t, j)
	ask(t, j, fmt.Sprintf("PRAGMA max_page_count = %d", number1(t, j, "PRAGMA page_count")))
	for seq := uint64(2); seq <= 100; seq++ {
		must(t, j.Append(r.ID, r.Epoch, event(seq, strings.Repeat("x", 1000))))
	}
	err := tryFinish(t, j, r, 101)
	wantWords(t, err, j.path, "full", "free some space")
	other := calltest.Record(j.Epoch())
	wantWords(t, j.Create(t.Context(), other), j.path, "full")
	s := j.Stats()
	if s.Failing == nil || s.LastError == nil || s.Failures == 0 || s.QueueOps != 99 || s.Lag == 0 {
		t.Errorf("stats %+v", s)
	}
	if got, err := j.Get(t.Context(), r.ID); err == nil {
		t.Errorf("a read that does not see all that was appended: %+v", got)
	}
	if list, err := j.List(t.Context(), Filter{}); err != nil || len(list) != 1 {
		t.Errorf("the list shows %d calls, %v", len(list), err)
	}
	ask(t, j, "PRAGMA max_page_count = 1000000")
	finish(t, j, r, 101)
	got, err := j.Get(t.Context(), r.ID)
	must(t, err)
	if got.Missing != 0 || got.Seq != 101 {
		t.Errorf("%d missing of %d", got.Missing, got.Seq)
	}
	if s := j.Stats(); s.Failing != nil || s.QueueBytes != 0 {
		t.Errorf("stats %+v", s)
	}
	must(t, j.Create(t.Context(), other))
}

// TestRetriesAlone checks that a failing journal writes what waits without
// anybody calling.
func TestRetriesAlone(t *testing.T) {
	j := open(t, t.TempDir(), Options{Delay: time.Millisecond})
	r := create(t, j)
	ask(t, j, fmt.Sprintf("PRAGMA max_page_count = %d", number1(t, j, "PRAGMA page_count")))
	must(t, j.Append(r.ID, r.Epoch, event(2, strings.Repeat("x", 10_000))))
	until(t, func() bool { return j.Stats().Failing != nil })
	ask(t, j, "PRAGMA max_page_count = 1000000")
	until(t, func() bool { s := j.Stats(); return s.Failing == nil && s.QueueOps == 0 })
	got, err := j.Get(t.Context(), r.ID)
	must(t, err)
	if got.Seq != 2 {
		t.Errorf("seq %d", got.Seq)
	}
}

// until polls: the disk and the writer's pauses are real here.
func until(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatal("it did not happen in 20 s")
		}
	}
}

func TestCloseWhileFull(t *testing.T) {
	j := open(t, t.TempDir(), Options{})
	r := create(t, j)
	ask(t, j, fmt.Sprintf("PRAGMA max_page_count = %d", number1(t, j, "PRAGMA page_count")))
	must(t, j.Append(r.ID, r.Epoch, event(2, strings.Repeat("x", 10_000))))
	wantWords(t, j.Close(), "1 events", j.path, "full")
}

// hold makes another program hold the database, until the returned function
// is called.
func hold(t *testing.T, j *Journal) func() {
	c, err := openConn(j.path, openWriter)
	must(t, err)
	must(t, c.exec("PRAGMA busy_timeout = 5000; BEGIN IMMEDIATE"))
	return func() {
		must(t, c.exec("COMMIT"))
		c.close()
	}
}

// TestHeld: while another program holds the database, callers wait no longer
// than they want to, and nothing is lost.
func TestHeld(t *testing.T) {
	j := open(t, t.TempDir(), Options{})
	r, other := create(t, j), create(t, j)
	free := hold(t, j)
	must(t, j.Append(r.ID, r.Epoch, event(2, "x")))

	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	begin := time.Now()
	gone := calltest.Record(j.Epoch())
	err := j.Create(ctx, gone, call.Event{Seq: 1, Kind: call.KindAccepted, Time: time.Now(), Hole: -1})
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) > time.Second {
		t.Errorf("create gave up after %s: %v", time.Since(begin), err)
	}
	f := *other
	f.End.Outcome = call.Completed
	end := call.Event{Seq: 2, Kind: call.KindEnd, Time: time.Now(), End: &f.End}
	if err := j.Finish(ctx, &f, end); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("finish: %v", err)
	}
	done := make(chan error, 1)
	go func() { done <- tryFinish(t, j, r, 3) }()
	free()
	must(t, <-done)
	got, err := j.Get(t.Context(), r.ID)
	must(t, err)
	if got.Seq != 3 || got.Missing != 0 {
		t.Errorf("%d missing of %d", got.Missing, got.Seq)
	}
	if _, err := j.Get(t.Context(), gone.ID); !errors.Is(err, call.ErrUnknown) {
		t.Errorf("a call that was given up is there: %v", err)
	}
	must(t, j.Finish(t.Context(), &f, end)) // the end that was given up is stored later
	if n := number1(t, j, "SELECT count(*) FROM calls"); n != 2 {
		t.Errorf("%d calls, want 2", n)
	}
}

// TestHeldTooLong: in the end callers without a bound of their own are told.
func TestHeldTooLong(t *testing.T) {
	j := open(t, t.TempDir(), Options{})
	r := create(t, j)
	free := hold(t, j)
	must(t, j.Append(r.ID, r.Epoch, event(2, "x")))
	wantWords(t, tryFinish(t, j, r, 3), j.path, "another program")
	free()
	finish(t, j, r, 3)
	got, err := j.Get(t.Context(), r.ID)
	must(t, err)
	if got.Missing != 0 {
		t.Error("the event is lost")
	}
}

// TestFull: a full queue refuses events, has calls wait, and says what is
// missing.
func TestFull(t *testing.T) {
	j := open(t, t.TempDir(), Options{Queue: 4 << 10})
	r := create(t, j)
	free := hold(t, j)
	kept, lost := 0, 0
	for seq := uint64(2); seq <= 21; seq++ {
		switch err := j.Append(r.ID, r.Epoch, event(seq, strings.Repeat("x", 500))); {
		case err == nil:
			kept++
		case errors.Is(err, call.ErrFull):
			lost++
		default:
			t.Fatal(err)
		}
	}
	if kept < 4 || kept > 8 || j.Stats().Dropped != uint64(lost) || j.Stats().QueueBytes > 4<<10 {
		t.Errorf("4 KiB hold %d events: %+v", kept, j.Stats())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	large := calltest.Record(j.Epoch())
	large.Arguments = make([]byte, 3<<10)
	err := j.Create(ctx, large)
	if !errors.Is(err, call.ErrFull) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("create: %v", err)
	}
	done := make(chan error, 1)
	go func() { done <- tryFinish(t, j, r, 22) }()
	free()
	must(t, <-done)
	got, err := j.Get(t.Context(), r.ID)
	must(t, err)
	if got.Missing != uint64(lost) || got.Seq != 22 {
		t.Errorf("%d missing of %d, want %d", got.Missing, got.Seq, lost)
	}
}

// TestLostFile: a body whose file is gone is a gap, not an empty body.
func TestLostFile(t *testing.T) {
	j := open(t, t.TempDir(), Options{Spill: 10})
	r := create(t, j)
	must(t, j.Append(r.ID, r.Epoch, event(2, "a body of its own")))
	finish(t, j, r, 3)
	files, err := filepath.Glob(filepath.Join(j.blobs.dir, "[0-9]*"))
	must(t, err)
	if len(files) != 1 {
		t.Fatalf("%d files", len(files))
	}
	name := files[0]
	for _, damage := range []func() error{func() error { return os.Truncate(name, 3) }, func() error { return os.Remove(name) }} {
		must(t, damage())
		if _, err := j.Read(t.Context(), r.ID, 1, 1000); !errors.Is(err, call.ErrGap) {
			t.Errorf("read: %v", err)
		}
	}
}

// TestLitter: files that no row names are gone after a start.
func TestLitter(t *testing.T) {
	j := open(t, t.TempDir(), Options{Spill: 10})
	r := create(t, j)
	must(t, j.Append(r.ID, r.Epoch, event(2, "a body of its own")))
	must(t, j.Close())
	litter, other := filepath.Join(j.blobs.dir, "77-3"), filepath.Join(j.blobs.dir, "README")
	must(t, os.WriteFile(litter, []byte("x"), 0o600))
	must(t, os.WriteFile(other, []byte("x"), 0o600))
	j = open(t, filepath.Dir(j.path), Options{Spill: 10})
	if _, err := os.Stat(litter); !errors.Is(err, fs.ErrNotExist) {
		t.Error("litter stays")
	}
	if _, err := os.Stat(other); err != nil {
		t.Error("a file that is not ours is gone")
	}
	events, err := j.Read(t.Context(), r.ID, 1, 1000)
	must(t, err)
	if len(events) != 1 || string(events[0].Body) != "a body of its own" {
		t.Errorf("got %v", events)
	}
	if j.Stats().BlobBytes != 17 {
		t.Errorf("%d bytes of blobs", j.Stats().BlobBytes)
	}
}
