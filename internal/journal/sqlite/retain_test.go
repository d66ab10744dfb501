package sqlite

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/call/calltest"
)

// TestCap: of a call with too many events the first quarter and the last are
// kept, and the hole is an error, not a silence (I5).
func TestCap(t *testing.T) {
	for name, opt := range map[string]Options{
		"Events": {MaxEvents: 400},
		"Bytes":  {MaxBytes: 400 * 100},
		"Files":  {MaxBytes: 400 * 100, Spill: 100},
	} {
		t.Run(name, func(t *testing.T) {
			j := open(t, t.TempDir(), opt)
			r := create(t, j)
			const last = 2000
			for seq := uint64(2); seq < last; seq++ {
				must(t, j.Append(r.ID, r.Epoch, event(seq, strings.Repeat("x", 100))))
				if seq%100 == 0 {
					must(t, j.Flush(t.Context()))
					if n := number1(t, j, "SELECT count(*) FROM events"); n > 410 {
						t.Fatalf("%d events are kept of %d", n, seq)
					}
				}
			}
			finish(t, j, r, last)
			got, err := j.Get(t.Context(), r.ID)
			must(t, err)
			kept := got.Seq - got.Missing
			if kept < 390 || kept > 402 {
				t.Errorf("%d events are kept, want about 400", kept)
			}
			seen, after, gaps := 0, uint64(0), 0
			for after < last {
				page, err := j.Read(t.Context(), r.ID, after, 1000)
				if errors.Is(err, call.ErrGap) {
					if gaps == 0 && (after < 95 || after > 105) {
						t.Errorf("the head ends at %d, want about 100", after)
					}
					gaps++
					after++
					continue
				}
				must(t, err)
				seen += len(page)
				after = page[len(page)-1].Seq
			}
			if uint64(seen) != kept || uint64(gaps) != got.Missing {
				t.Errorf("%d events and %d gaps can be read, want %d and %d", seen, gaps, kept, got.Missing)
			}
			if opt.Spill > 0 {
				files, err := filepath.Glob(filepath.Join(j.blobs.dir, "[0-9]*"))
				must(t, err)
				if len(files) > 402 || j.Stats().BlobBytes != int64(len(files))*100 {
					t.Errorf("%d files of %d bytes", len(files), j.Stats().BlobBytes)
				}
			}
		})
	}
}

// past makes a call that started and ended that long ago.
func past(t *testing.T, j *Journal, ago time.Duration, bodies int, size int) *call.Record {
	t.Helper()
	r := calltest.Record(j.Epoch())
	r.Started = time.Now().Add(-ago)
	must(t, j.Create(t.Context(), r, call.Event{Seq: 1, Kind: call.KindAccepted, Time: r.Started, Hole: -1}))
	for i := range bodies {
		must(t, j.Append(r.ID, r.Epoch, event(uint64(i+2), strings.Repeat("x", size))))
	}
	f := *r
	f.End, f.Ended, f.Seq, f.Bytes = call.End{Outcome: call.Completed}, r.Started, uint64(bodies+2), uint64(bodies*size)
	must(t, j.Finish(t.Context(), &f, call.Event{Seq: f.Seq, Kind: call.KindEnd, Time: f.Ended, Hole: -1, End: &f.End}))
	j.Deliver(call.Delivery{Call: r.ID, How: call.Delivered, Attached: r.Started, Ended: r.Started})
	return r
}

// maintenance gives the test a maintainer of its own.
func maintenance(t *testing.T, j *Journal) *maintainer {
	m, err := newMaintainer(j)
	must(t, err)
	t.Cleanup(m.close)
	return m
}

func TestRetainByAge(t *testing.T) {
	j := open(t, t.TempDir(), Options{Age: time.Hour, Spill: 1000})
	m := maintenance(t, j)
	runs := create(t, j)
	ask(t, j, "UPDATE calls SET started = 1") // and for very long
	var old, young []*call.Record
	for i := range 300 {
		old = append(old, past(t, j, 2*time.Hour, i%3, 1000))
	}
	long := past(t, j, 2*time.Hour, 3500, 10)
	for range 20 {
		young = append(young, past(t, j, time.Minute, 1, 10))
	}
	must(t, m.index(t.Context()))
	must(t, m.retain(t.Context(), time.Now()))
	for _, r := range append(old, long) {
		if _, err := j.Get(t.Context(), r.ID); !errors.Is(err, call.ErrUnknown) {
			t.Fatalf("an old call is there: %v", err)
		}
	}
	for _, r := range append(young, runs) {
		if _, err := j.Get(t.Context(), r.ID); err != nil {
			t.Fatalf("a young or running call is gone: %v", err)
		}
	}
	for table, want := range map[string]int64{"calls": 21, "ends": 20, "events": 40, "deliveries": 20, "ids": 21} {
		if n := number1(t, j, "SELECT count(*) FROM "+table); n != want {
			t.Errorf("%s has %d rows, want %d", table, n, want)
		}
	}
	if s := j.Stats(); s.Deleted != 301 || s.BlobBytes != 0 {
		t.Errorf("stats %+v", s)
	}
	finish(t, j, runs, 2)
}

func TestRetainBySize(t *testing.T) {
	const limit = 4 << 20
	j := open(t, t.TempDir(), Options{Size: limit, Spill: 50 << 10})
	m := maintenance(t, j)
	runs := create(t, j)
	var all []*call.Record
	for i := range 300 {
		size := 1000
		if i%10 == 0 {
			size = 60 << 10
		}
		all = append(all, past(t, j, time.Minute, 30, size))
		if i%20 == 0 {
			must(t, m.retain(t.Context(), time.Now()))
			must(t, m.shrink(t.Context()))
		}
	}
	must(t, m.retain(t.Context(), time.Now()))
	size, err := m.size()
	must(t, err)
	if size > limit || size < limit/2 {
		t.Errorf("%d bytes are kept, want up to %d", size, limit)
	}
	if s := j.Stats(); s.DBBytes+s.BlobBytes > 3*limit {
		t.Errorf("the files have %d bytes: %+v", s.DBBytes+s.BlobBytes, s)
	}
	if _, err := j.Get(t.Context(), runs.ID); err != nil {
		t.Errorf("a running call is gone: %v", err)
	}
	gone := 0
	for i, r := range all {
		_, err := j.Get(t.Context(), r.ID)
		switch {
		case errors.Is(err, call.ErrUnknown):
			if gone++; gone != i+1 {
				t.Fatalf("call %d is gone, and an older one is not", i)
			}
		case err != nil:
			t.Fatal(err)
		}
	}
	if gone == 0 || gone == len(all) {
		t.Errorf("%d of %d are gone", gone, len(all))
	}
}

// TestShrink: what is deleted is given back to the disk.
func TestShrink(t *testing.T) {
	j := open(t, t.TempDir(), Options{Age: time.Hour, Spill: 1 << 30})
	m := maintenance(t, j)
	for range 40 {
		past(t, j, 2*time.Hour, 10, 100<<10)
	}
	empty := func() bool { // the journal's own maintainer may be in the way
		m.truncate()
		return j.Stats().WALBytes == 0
	}
	until(t, empty)
	before := j.Stats().DBBytes
	must(t, m.retain(t.Context(), time.Now()))
	must(t, m.shrink(t.Context()))
	until(t, empty)
	after := j.Stats()
	if before < 30<<20 || after.DBBytes > 20<<20 || after.WALBytes != 0 {
		t.Errorf("from %d to %d bytes, WAL %d", before, after.DBBytes, after.WALBytes)
	}
}

// TestWAL: the log does not grow for ever while calls never stop, and is
// emptied when they do.
func TestWAL(t *testing.T) {
	j := open(t, t.TempDir(), Options{})
	restarts, last := 0, int64(0)
	for range 3000 { // how many frames it takes depends on the disk
		past(t, j, 0, 40, 4000)
		n := j.wal.frames.Load()
		if n < last {
			restarts++
		}
		if last = n; restarts == 2 {
			break
		}
	}
	if restarts < 2 {
		t.Errorf("the WAL started again %d times, and has %d bytes now", restarts, j.Stats().WALBytes)
	}
	m := maintenance(t, j)
	until(t, func() bool { // unless the journal's own maintainer is at it
		m.tick(t.Context())
		return j.Stats().WALBytes == 0
	})
}

// TestLow: a start looks at no call that is known to have ended, and at all others.
func TestLow(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{})
	m := maintenance(t, j)
	for range 5 {
		finish(t, j, create(t, j), 2)
	}
	must(t, m.raiseLow(t.Context()))
	if n := number1(t, j, "SELECT low FROM owner"); n != 6 {
		t.Errorf("low is %d, want 6", n)
	}
	runs := create(t, j)
	finish(t, j, create(t, j), 2)
	must(t, m.raiseLow(t.Context()))
	if n := number1(t, j, "SELECT low FROM owner"); n != 6 {
		t.Errorf("low is %d, want 6: call 6 runs", n)
	}
	must(t, j.Close())
	next := open(t, dir, Options{})
	left, err := next.Running(t.Context(), next.Epoch())
	must(t, err)
	if len(left) != 1 || left[0].ID != runs.ID {
		t.Errorf("running: %v", left)
	}
	if next.next != 8 {
		t.Errorf("the next number is %d, want 8", next.next)
	}
}

// TestNumbersAreNotReused: a call never gets the rows of one that is gone.
func TestNumbersAreNotReused(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{Age: time.Nanosecond})
	for range 5 {
		finish(t, j, create(t, j), 2)
	}
	m := maintenance(t, j)
	must(t, m.index(t.Context()))
	must(t, m.retain(t.Context(), time.Now()))
	if n := number1(t, j, "SELECT count(*) FROM calls"); n != 0 {
		t.Fatalf("%d calls are left", n)
	}
	must(t, j.Close())
	next := open(t, dir, Options{})
	if next.next != 6 {
		t.Errorf("the next number is %d, want 6", next.next)
	}
	create(t, next)
}

func TestTickFinds(t *testing.T) {
	j := open(t, t.TempDir(), Options{Age: time.Nanosecond})
	m := maintenance(t, j)
	r := create(t, j)
	finish(t, j, r, 2)
	for range 2 * retainEvery {
		m.tick(t.Context())
	}
	if _, err := j.Get(t.Context(), r.ID); !errors.Is(err, call.ErrUnknown) {
		t.Error("the old call is there")
	}
	if err := j.Stats().LastError; err != nil {
		t.Error(err)
	}
	if n := len(j.recents); n != 0 {
		t.Error(fmt.Sprint(n, " calls are remembered"))
	}
}
