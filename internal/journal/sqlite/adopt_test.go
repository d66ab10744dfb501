package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"path/filepath"
	"testing"
	"time"

	"github.com/pressly/goose/v3"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/call/calltest"
)

// left makes a journal of an earlier process with running calls that have an
// address and a cursor each, and gives its folder.
func left(t testing.TB, calls, events int) string {
	t.Helper()
	dir := t.TempDir()
	j, err := Open(t.Context(), filepath.Join(dir, "journal.db"), Options{})
	must(t, err)
	var records []*call.Record
	for range calls {
		r := calltest.Record(j.Epoch())
		records = append(records, r)
	}
	// Many at once, so that it does not take long.
	work := make(chan *call.Record)
	done := make(chan error)
	for range 50 {
		go func() {
			var first error
			for r := range work {
				if err := j.Create(context.Background(), r, call.Event{Seq: 1, Kind: call.KindAccepted, Time: time.Now(), Hole: -1}); err != nil && first == nil {
					first = err
				}
			}
			done <- first
		}()
	}
	for _, r := range records {
		work <- r
	}
	close(work)
	for range 50 {
		must(t, <-done)
	}
	for seq := uint64(2); seq <= uint64(events); seq++ {
		for _, r := range records {
			e := call.Event{Seq: seq, Kind: call.KindProgress, Time: time.Now(), Hole: -1, Body: make([]byte, 150), Cursor: fmt.Append(nil, "cursor-", seq)}
			switch seq {
			case 2:
				e.Kind, e.Body, e.Cursor = call.KindAddress, []byte(`{"server":"files","session":"`+string(r.ID)+`"}`), nil
			case 3:
				e.Kind, e.Body, e.Cursor = call.KindDispatched, nil, nil
			}
			must(t, j.Append(r.ID, r.Epoch, e))
		}
	}
	must(t, j.Close())
	return dir
}

// BenchmarkRecover: a start with 10 000 calls that run, of 10 events each: Open,
// Running, and Adopt of one after the other, as the engine does.
func BenchmarkRecover(b *testing.B) {
	for _, sync := range []string{"normal", "full"} {
		b.Run("sync="+sync, func(b *testing.B) {
			const calls = 10_000
			var opened, found, adopted time.Duration
			for range b.N {
				b.StopTimer()
				dir := left(b, calls, 10)
				b.StartTimer()
				start := time.Now()
				j := open(b, dir, Options{Sync: sync})
				opened += time.Since(start)
				start = time.Now()
				list, err := j.Running(b.Context(), j.Epoch())
				must(b, err)
				found += time.Since(start)
				start = time.Now()
				for i := range list {
					from := list[i].Epoch
					list[i].Epoch = j.Epoch()
					must(b, j.Adopt(b.Context(), &list[i], from))
				}
				adopted += time.Since(start)
				if len(list) != calls {
					b.Fatalf("%d calls run", len(list))
				}
				b.StopTimer()
				must(b, j.Close())
				b.StartTimer()
			}
			n := float64(b.N)
			b.ReportMetric(float64(opened.Milliseconds())/n, "open-ms")
			b.ReportMetric(float64(found.Milliseconds())/n, "running-ms")
			b.ReportMetric(float64(adopted.Milliseconds())/n, "adopt-ms")
			b.ReportMetric(float64(adopted.Microseconds())/n/calls, "us/adopt")
		})
	}
}

// TestMigrateV1: a database of the first version is brought up to date in place,
// with all that is in it.
func TestMigrateV1(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "journal.db")
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=auto_vacuum(2)&_pragma=journal_mode(wal)")
	must(t, err)
	files, err := fs.Sub(migrations, "migrations")
	must(t, err)
	p, err := goose.NewProvider(goose.DialectSQLite3, db, files)
	must(t, err)
	_, err = p.UpTo(t.Context(), 1)
	must(t, err)
	ended, runs := call.NewID(), call.NewID()
	at := time.Now().Truncate(time.Microsecond)
	for _, q := range []struct {
		sql  string
		args []any
	}{
		{"UPDATE owner SET epoch = 6", nil},
		{"INSERT INTO calls (n, id, epoch, started, accepted, principal, tool, arguments) VALUES (1, ?, 5, ?, ?, 'alice', 'work', x'7b7d')", []any{ended, at.UnixMicro(), at.UnixMicro()}},
		{"INSERT INTO ends VALUES (1, 3, 1, ?, ?, ?, 0, 5, 0, 0, NULL, NULL, NULL)", []any{at.UnixMicro(), at.UnixMicro(), at.UnixMicro()}},
		{"INSERT INTO events VALUES (1 << 28 | 2, 4, ?, -1, x'61', NULL), (1 << 28 | 3, 9, ?, 2, x'62636465', NULL)", []any{at.UnixMicro(), at.UnixMicro()}},
		{"INSERT INTO deliveries VALUES (1 << 16 | 7, 'sse', 1, NULL, ?, 0, ?, 9, 2, 0)", []any{at.UnixMicro(), at.UnixMicro()}},
		{"INSERT INTO calls (n, id, epoch, started, accepted, principal, tool) VALUES (2, ?, 6, ?, ?, 'alice', 'work')", []any{runs, at.UnixMicro(), at.UnixMicro()}},
		{"INSERT INTO events VALUES (2 << 28 | 2, 2, ?, -1, NULL, NULL)", []any{at.UnixMicro()}},
	} {
		_, err := db.ExecContext(t.Context(), q.sql, q.args...)
		must(t, err)
	}
	must(t, db.Close())
	if _, err := OpenReadOnly(path); err == nil {
		t.Error("the reader took an old schema")
	}

	j := open(t, dir, Options{})
	if n := number1(t, j, "PRAGMA user_version"); n != schema || j.Epoch() != 7 {
		t.Errorf("schema %d, epoch %d", n, j.Epoch())
	}
	r, err := j.Get(t.Context(), ended)
	must(t, err)
	if !r.Delivered || r.HandedOff || r.End.Outcome != call.Completed || r.Seq != 3 || r.Bytes != 5 || string(r.Arguments) != "{}" || !r.Started.Equal(at) || r.AgentRequest != "" || r.Idempotency != "" || r.Parent != "" || r.Index != 0 {
		t.Errorf("got %+v", *r)
	}
	events, err := j.Read(t.Context(), ended, 0, 1<<20)
	must(t, err)
	if len(events) != 3 || string(events[2].Body) != "bcde" || events[2].Hole != 2 || events[1].Cursor != nil {
		t.Errorf("got %+v", events)
	}
	list, err := j.Running(t.Context(), j.Epoch())
	must(t, err)
	if len(list) != 1 || list[0].ID != runs || !list[0].Dispatched.Equal(at) || list[0].Address != nil || list[0].Cursor != nil {
		t.Fatalf("running: %+v", list)
	}
	list[0].Epoch = 7
	must(t, j.Adopt(t.Context(), &list[0], 6))
	must(t, j.Append(runs, 7, call.Event{Seq: 3, Kind: call.KindAddress, Time: at, Hole: -1, Body: []byte("secret"), Cursor: []byte("c")}))
	finish(t, j, &list[0], 4)
	j.PutSession(session("a", at))
	if n := len(sessions(t, j)); n != 1 {
		t.Errorf("%d sessions", n)
	}
	if n := number1(t, j, "SELECT count(*) FROM event_list WHERE kind = 'address' AND body IS NULL"); n != 1 {
		t.Errorf("%d addresses in the view, want 1 without its body", n)
	}
	if n := number1(t, j, "SELECT count(*) FROM event_list WHERE kind IS NULL"); n != 0 {
		t.Errorf("%d events of no kind in the view", n)
	}
}

// TestMigrateDown: the way back leaves what the first version knows.
func TestMigrateDown(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{})
	finish(t, j, create(t, j), 2)
	must(t, j.Close())
	db, err := sql.Open("sqlite", "file:"+j.path)
	must(t, err)
	defer db.Close()
	files, err := fs.Sub(migrations, "migrations")
	must(t, err)
	p, err := goose.NewProvider(goose.DialectSQLite3, db, files)
	must(t, err)
	_, err = p.DownTo(t.Context(), 1)
	must(t, err)
	var n int
	must(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM event_list").Scan(&n))
	if n != 2 {
		t.Errorf("%d events are left", n)
	}
}

// TestAddressIsKept: the cap takes the middle of a call's events, but never the
// place where the call can be found again (Options.MaxEvents).
func TestAddressIsKept(t *testing.T) {
	t.Run("OneOwner", func(t *testing.T) { addressIsKept(t, false) })
	t.Run("Adopted", func(t *testing.T) { addressIsKept(t, true) })
}

func addressIsKept(t *testing.T, adopt bool) {
	dir := t.TempDir()
	opt := Options{MaxEvents: 64, Spill: 50}
	j := open(t, dir, opt)
	r := create(t, j)
	seq := uint64(1)
	more := func(n int) {
		for range n {
			seq++
			must(t, j.Append(r.ID, r.Epoch, event(seq, "x")))
		}
	}
	address := func(s string) {
		seq++
		must(t, j.Append(r.ID, r.Epoch, call.Event{Seq: seq, Kind: call.KindAddress, Time: time.Now(), Hole: -1, Body: []byte(s)}))
	}
	more(30)
	address("first, in the middle")
	more(100)
	address("second, and so long that it has a file of its own, which must not go either")
	last := seq
	more(1000)
	check := func() {
		t.Helper()
		list, err := j.Running(t.Context(), j.Epoch()+1)
		must(t, err)
		if len(list) != 1 || len(list[0].Address) != 75 || list[0].Alive {
			t.Fatalf("running: %+v", list)
		}
		if n := number1(t, j, "SELECT count(*) FROM events WHERE kind = 3"); n != 1 {
			t.Errorf("%d addresses are kept, want the last", n)
		}
		if n := number1(t, j, "SELECT count(*) FROM events"); n > 64+2 {
			t.Errorf("%d events are kept", n)
		}
	}
	check()
	if page, err := j.Read(t.Context(), r.ID, last-1, 1); err != nil || len(page) != 1 || page[0].Kind != call.KindAddress {
		t.Errorf("the address cannot be read: %v", err)
	}
	// The next owner keeps it, too, and counts right.
	if adopt {
		must(t, j.Close())
		j = open(t, dir, opt)
		a := *r
		a.Epoch = j.Epoch()
		must(t, j.Adopt(t.Context(), &a, r.Epoch))
		r = &a
		more(1000)
		check()
	}
	finish(t, j, r, seq+1)
	got, err := j.Get(t.Context(), r.ID)
	must(t, err)
	if n := number1(t, j, "SELECT count(*) FROM events") + 1; got.Missing != got.Seq-uint64(n) {
		t.Errorf("%d of %d are missing, but %d are there", got.Missing, got.Seq, n)
	}
}

// TestAdoptWhileHeld: an Adopt, or the end of a call of an earlier owner, that
// needs several tries counts no event twice and none as missing.
func TestAdoptWhileHeld(t *testing.T) {
	dir := left(t, 2, 9)
	j := open(t, dir, Options{})
	list, err := j.Running(t.Context(), j.Epoch())
	must(t, err)
	release := hold(t, j)
	done := make(chan error, 2)
	go func() {
		r := list[0]
		from := r.Epoch
		r.Epoch = j.Epoch()
		done <- j.Adopt(t.Context(), &r, from)
	}()
	go func() { done <- tryFinish(t, j, &list[1], 10) }()
	until(t, func() bool {
		j.mu.Lock()
		defer j.mu.Unlock()
		return j.waiting && len(j.queue) == 2
	})
	release()
	must(t, <-done)
	must(t, <-done)
	list[0].Epoch = j.Epoch()
	must(t, j.Append(list[0].ID, j.Epoch(), event(10, "x")))
	finish(t, j, &list[0], 11)
	for i := range list {
		r, err := j.Get(t.Context(), list[i].ID)
		must(t, err)
		if r.Missing != 0 || r.End.Outcome != call.Completed {
			t.Errorf("got %+v", *r)
		}
	}
}

// TestAdoptGivenUp: an Adopt whose caller does not wait leaves the call to its
// owner, if it was not written.
func TestAdoptGivenUp(t *testing.T) {
	j := open(t, t.TempDir(), Options{})
	r := create(t, j)
	release := hold(t, j)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	a := *r
	a.Epoch = 99
	go func() { done <- j.Adopt(ctx, &a, r.Epoch) }()
	until(t, func() bool {
		j.mu.Lock()
		defer j.mu.Unlock()
		return j.waiting
	})
	cancel()
	if err := <-done; err == nil {
		t.Error("adopted while the database was held")
	}
	release()
	must(t, j.Flush(t.Context()))
	must(t, j.Append(r.ID, r.Epoch, event(2, "still mine")))
	finish(t, j, r, 3)
}

// TestGivenWhileFull: what was delivered is known, also when it cannot be
// written.
func TestGivenWhileFull(t *testing.T) {
	j := open(t, t.TempDir(), Options{})
	r := create(t, j)
	finish(t, j, r, 2)
	pages := number1(t, j, "PRAGMA page_count")
	ask(t, j, fmt.Sprintf("PRAGMA max_page_count = %d", pages))
	for range 200 {
		j.Deliver(call.Delivery{Call: r.ID, Kind: "sse", How: call.Slow, Attached: time.Now(), Ended: time.Now()})
	}
	j.Deliver(call.Delivery{Call: r.ID, Kind: "sse", How: call.Delivered, Attached: time.Now(), Ended: time.Now()})
	for _, get := range []func() (*call.Record, error){
		func() (*call.Record, error) { return j.Get(t.Context(), r.ID) },
		func() (*call.Record, error) {
			list, err := j.Owned(t.Context(), "alice", "", 1)
			return &list[0], err
		},
	} {
		got, err := get()
		must(t, err)
		if !got.Delivered {
			t.Error("a delivery that waits is not known")
		}
	}
	if j.Stats().Failing == nil {
		t.Fatal("the disk is not full: this tests nothing")
	}
}

// TestGetCostsNoCommit: to know what was delivered, nothing is written when
// nothing waits.
func TestGetCostsNoCommit(t *testing.T) {
	j := open(t, t.TempDir(), Options{Delay: time.Hour})
	r := create(t, j)
	finish(t, j, r, 2)
	j.Deliver(call.Delivery{Call: r.ID, How: call.Delivered})
	for range 3 {
		got, err := j.Get(t.Context(), r.ID)
		must(t, err)
		if !got.Delivered {
			t.Error("the delivery is not seen")
		}
	}
	if n := j.Stats().Commits; n != 3 {
		t.Errorf("%d commits, want those of the create, the end and the delivery", n)
	}
}
