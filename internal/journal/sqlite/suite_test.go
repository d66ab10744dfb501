package sqlite

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/call/calltest"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		crashChild(dir)
		return
	}
	if dir := os.Getenv(ownerDir); dir != "" {
		ownerChild(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

func open(t testing.TB, dir string, opt Options) *Journal {
	t.Helper()
	j, err := Open(t.Context(), filepath.Join(dir, "journal.db"), opt)
	must(t, err)
	t.Cleanup(func() { j.Close() })
	return j
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestLog guards I2, I3, I4 and I5 for this implementation.
func TestLog(t *testing.T) {
	for name, opt := range map[string]Options{
		"Default":      {},
		"SyncFull":     {Sync: "full"},
		"SmallBatches": {Delay: time.Microsecond, Spill: 1},
	} {
		t.Run(name, func(t *testing.T) {
			calltest.Log(t, func(t testing.TB) call.Log { return open(t, t.TempDir(), opt) })
		})
	}
}

// create makes a call that runs.
func create(t testing.TB, j *Journal) *call.Record {
	t.Helper()
	r := calltest.Record(j.Epoch())
	must(t, j.Create(t.Context(), r, call.Event{Seq: 1, Kind: call.KindAccepted, Time: time.Now(), Hole: -1}))
	return r
}

func event(seq uint64, body string) call.Event {
	return call.Event{Seq: seq, Kind: call.KindProgress, Time: time.Now(), Hole: -1, Body: []byte(body)}
}

// finish ends a call with an event of that seq.
func finish(t testing.TB, j *Journal, r *call.Record, seq uint64) {
	t.Helper()
	must(t, tryFinish(t, j, r, seq))
}

func tryFinish(t testing.TB, j *Journal, r *call.Record, seq uint64) error {
	t.Helper()
	f := *r
	f.End, f.Ended, f.Seq = call.End{Outcome: call.Completed}, time.Now(), seq
	return j.Finish(t.Context(), &f, call.Event{Seq: seq, Kind: call.KindEnd, Time: f.Ended, Hole: -1, Body: []byte("{}"), End: &f.End})
}

// ask has the writer run SQL, outside of its transactions.
func ask(t testing.TB, j *Journal, sql string) {
	t.Helper()
	j.turn <- struct{}{}
	defer j.release()
	must(t, j.w.c.exec(sql))
}

func number1(t testing.TB, j *Journal, sql string) (n int64) {
	t.Helper()
	must(t, j.pool.with(t.Context(), func(r *reader) (err error) {
		n, err = r.c.queryInt(sql)
		return err
	}))
	return n
}
