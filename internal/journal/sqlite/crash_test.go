package sqlite

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/call/calltest"
)

// crashDir names the variable that makes the test binary the process that is
// killed.
const crashDir = "LONGCALL_TEST_CRASH_DIR"

// crashChild runs calls until it is killed, and says on stdout what the
// journal has acknowledged.
func crashChild(dir string) {
	ctx := context.Background()
	j, err := Open(ctx, filepath.Join(dir, "journal.db"), Options{Spill: 4 << 10})
	if err != nil {
		fmt.Println("error", err)
		return
	}
	var mu sync.Mutex
	say := func(what string, r *call.Record, seq uint64) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Println(what, r.ID, seq)
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for {
				r := calltest.Record(j.Epoch())
				now := time.Now()
				err := j.Create(ctx, r, call.Event{Seq: 1, Kind: call.KindAccepted, Time: now, Hole: -1})
				say("created", r, 1)
				seq := uint64(1)
				for range i * 5 {
					seq++
					if err == nil {
						err = j.Append(r.ID, r.Epoch, call.Event{Seq: seq, Kind: call.KindProgress, Time: now, Hole: -1, Body: make([]byte, 1<<(seq%14))})
					}
				}
				seq++
				r.End, r.Ended, r.Seq = call.End{Outcome: call.Completed}, now, seq
				if err == nil {
					err = j.Finish(ctx, r, call.Event{Seq: seq, Kind: call.KindEnd, Time: now, Hole: -1, Body: make([]byte, 1<<(seq%14)), End: &r.End})
				}
				if err != nil {
					fmt.Println("error", err)
					return
				}
				say("finished", r, seq)
				j.Deliver(call.Delivery{Call: r.ID, How: call.Delivered, Attached: now, Ended: now})
			}
		})
	}
	wg.Wait()
}

// TestCrash kills a process under load, several times on one journal: what was
// acknowledged is there, whole, and what ran is found as running (I2, I3, I4).
func TestCrash(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	dir := t.TempDir()
	ended := map[call.ID]uint64{}
	created := map[call.ID]bool{}
	epoch := uint64(0)
	for round := range 3 {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), crashDir+"="+dir)
		out, err := cmd.StdoutPipe()
		must(t, err)
		cmd.Stderr = os.Stderr
		must(t, cmd.Start())
		lines := bufio.NewScanner(out)
		for n := 0; lines.Scan(); n++ {
			var id call.ID
			var seq uint64
			what, rest, _ := strings.Cut(lines.Text(), " ")
			if what == "error" {
				t.Error(lines.Text())
			}
			if _, err := fmt.Sscan(rest, &id, &seq); err != nil {
				continue // cut off by the kill
			}
			switch what {
			case "created":
				created[id] = true
			case "finished":
				ended[id] = seq
			}
			if n == 400+300*round {
				must(t, cmd.Process.Kill())
			}
		}
		_ = cmd.Wait() // killed

		j := open(t, dir, Options{Spill: 4 << 10})
		if j.Epoch() <= epoch {
			t.Errorf("epoch %d after %d", j.Epoch(), epoch)
		}
		epoch = j.Epoch()
		checkCrashed(t, j, created, ended)
		must(t, j.Close())
	}
	if len(ended) < 300 {
		t.Errorf("only %d calls ended", len(ended))
	}
}

func checkCrashed(t *testing.T, j *Journal, created map[call.ID]bool, ended map[call.ID]uint64) {
	if n := number1(t, j, "SELECT count(*) FROM pragma_integrity_check WHERE integrity_check <> 'ok'"); n != 0 {
		t.Fatal("the database is damaged")
	}
	left, err := j.Running(t.Context(), j.Epoch())
	must(t, err)
	for i := range left {
		r := &left[i]
		if _, ok := ended[r.ID]; ok {
			t.Errorf("call %s was acknowledged as ended, and runs", r.ID)
		}
		created[r.ID] = true
		r.Seq++
		r.End, r.Ended = call.End{Outcome: call.Interrupted}, time.Now()
		must(t, j.Finish(t.Context(), r, call.Event{Seq: r.Seq, Kind: call.KindEnd, Time: r.Ended, Hole: -1, End: &r.End}))
		ended[r.ID] = r.Seq
	}
	for id := range created {
		r, err := j.Get(t.Context(), id)
		if err != nil {
			t.Errorf("call %s was acknowledged: %v", id, err)
			continue
		}
		if r.End.Outcome == call.Running {
			t.Errorf("call %s runs for ever", id)
		}
		if seq := ended[id]; seq != 0 && r.Seq != seq || r.Missing != 0 {
			t.Errorf("call %s ended with seq %d, %d missing; want %d, none", id, r.Seq, r.Missing, seq)
		}
		after := uint64(0)
		for after < r.Seq {
			page, err := j.Read(t.Context(), id, after, 4<<10)
			if err != nil || len(page) == 0 {
				t.Errorf("call %s after %d: %d events, %v", id, after, len(page), err)
				break
			}
			for _, e := range page {
				if after++; e.Seq != after {
					t.Fatalf("call %s: event %d where %d was next", id, e.Seq, after)
				}
				if e.Kind == call.KindProgress && len(e.Body) != 1<<(e.Seq%14) {
					t.Errorf("call %s: body of event %d has %d bytes", id, e.Seq, len(e.Body))
				}
			}
		}
	}
	n := number1(t, j, "SELECT count(*) FROM calls")
	if int64(len(created)) > n {
		t.Errorf("%d calls are stored, %d were acknowledged", n, len(created))
	}
	if n := number1(t, j, "SELECT count(*) FROM calls WHERE n NOT IN (SELECT n FROM ids)"); n != 0 {
		t.Errorf("%d calls are not indexed after the start", n)
	}
}
