package sqlite

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/call/calltest"
)

// ownerDir names the variable that makes the test binary a process that is
// replaced.
const ownerDir = "LONGCALL_TEST_OWNER_DIR"

// oldCalls is how many calls run in the process that is replaced.
const oldCalls = 50

// starved is when one of two owners has waited too long for the other: some 10 ms
// are usual, and far more under the race detector on a busy machine.
const starved = 5 * time.Second

// ownerOptions have every kind of body: in rows, and in files.
var ownerOptions = Options{Spill: 2 << 10}

// oldOwner is a process that is replaced: calls that run, with steady events.
type oldOwner struct {
	j     *Journal
	calls []*call.Record
	stop  chan struct{}
	wg    sync.WaitGroup
	slow  atomic.Int64 // the longest Finish
}

func startOldOwner(ctx context.Context, j *Journal) (*oldOwner, error) {
	o := &oldOwner{j: j, stop: make(chan struct{})}
	for range oldCalls {
		r := calltest.Record(j.Epoch())
		if err := j.Create(ctx, r, call.Event{Seq: 1, Kind: call.KindAccepted, Time: time.Now(), Hole: -1}); err != nil {
			return nil, err
		}
		o.calls = append(o.calls, r)
	}
	return o, nil
}

// run appends to every call, some 1000 events a second in all, until stop is
// closed, then ends it.
func (o *oldOwner) run(ctx context.Context, failed func(error)) {
	for i, r := range o.calls {
		o.wg.Go(func() {
			tick := time.NewTicker(time.Duration(30+i%40) * time.Millisecond)
			defer tick.Stop()
			for stopped := false; !stopped; {
				select {
				case <-tick.C:
				case <-o.stop:
					stopped = true
				}
				r.Seq++
				e := call.Event{Seq: r.Seq, Kind: call.KindProgress, Time: time.Now(), Hole: -1, Body: make([]byte, 20+i), Cursor: fmt.Append(nil, r.Seq)}
				if r.Seq == 2 {
					e.Kind, e.Body = call.KindAddress, []byte(r.ID)
				}
				if err := o.j.Append(r.ID, r.Epoch, e); err != nil {
					failed(fmt.Errorf("append: %w", err))
				}
			}
			r.Seq++
			r.End, r.Ended = call.End{Outcome: call.Completed}, time.Now()
			err := o.j.Finish(ctx, r, call.Event{Seq: r.Seq, Kind: call.KindEnd, Time: r.Ended, Hole: -1, Body: make([]byte, 100*i), End: &r.End})
			if err != nil {
				failed(fmt.Errorf("finish: %w", err))
			}
			longest(&o.slow, time.Since(r.Ended))
			o.j.Deliver(call.Delivery{Call: r.ID, How: call.Delivered, Attached: r.Ended, Ended: r.Ended})
		})
	}
}

func longest(max *atomic.Int64, d time.Duration) {
	for now := max.Load(); int64(d) > now && !max.CompareAndSwap(now, int64(d)); now = max.Load() {
	}
}

// ownerChild is the process that is replaced. It does what it is told on stdin,
// and says on stdout when it has done so.
func ownerChild(dir string) {
	ctx := context.Background()
	failed := func(err error) { fmt.Println("error", err) }
	j, err := Open(ctx, filepath.Join(dir, "journal.db"), ownerOptions)
	if err != nil {
		failed(err)
		return
	}
	o, err := startOldOwner(ctx, j)
	if err != nil {
		failed(err)
		return
	}
	o.run(ctx, failed)
	fmt.Println("ready", j.Epoch())
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		switch lines.Text() {
		case "drain":
			j.Drain()
			fmt.Println("drained")
		case "end":
			close(o.stop)
			o.wg.Wait()
			for _, r := range o.calls {
				fmt.Println("ended", r.ID, r.Seq)
			}
			if err := j.Close(); err != nil {
				failed(err)
			}
			fmt.Println("slowest", time.Duration(o.slow.Load()))
			fmt.Println("closed")
			return
		}
	}
}

// newCalls runs whole calls in the new owner, several at a time. It gives their
// ids and last seqs, and the longest time that one step took.
func newCalls(t *testing.T, j *Journal, n int) (map[call.ID]uint64, time.Duration) {
	t.Helper()
	var mu sync.Mutex
	var slow, left atomic.Int64
	ended := map[call.ID]uint64{}
	left.Store(int64(n))
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				start := time.Now()
				r := create(t, j)
				longest(&slow, time.Since(start))
				must(t, j.Append(r.ID, r.Epoch, event(2, "two")))
				start = time.Now()
				finish(t, j, r, 3)
				longest(&slow, time.Since(start))
				mu.Lock()
				ended[r.ID] = 3
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return ended, time.Duration(slow.Load())
}

// checkOwners checks that all calls ended whole, and are found by their ids,
// also by the next owner.
func checkOwners(t *testing.T, dir string, ended map[call.ID]uint64) {
	t.Helper()
	j := open(t, dir, ownerOptions)
	created := map[call.ID]bool{}
	for id := range ended {
		created[id] = true
		if found, err := j.Find(t.Context(), string(id[:14])); err != nil || found != id {
			t.Errorf("find %s: %s, %v", id, found, err)
		}
	}
	if n := number1(t, j, "SELECT count(*) FROM calls"); n != int64(len(ended)) {
		t.Errorf("%d calls are stored, want %d", n, len(ended))
	}
	if n := number1(t, j, "SELECT count(*) FROM calls WHERE n NOT IN (SELECT n FROM ids)"); n != 0 {
		t.Errorf("%d calls are not indexed", n)
	}
	if n := number1(t, j, "SELECT count(*) FROM pragma_integrity_check WHERE integrity_check <> 'ok'"); n != 0 {
		t.Fatal("the database is damaged")
	}
	for id, seq := range ended {
		r, err := j.Get(t.Context(), id)
		if err != nil || r.Seq != seq || r.Missing != 0 || r.End.Outcome != call.Completed {
			t.Errorf("call %s: %+v, %v", id, r, err)
			continue
		}
		for after := uint64(0); after < seq; {
			page, err := j.Read(t.Context(), id, after, 1<<20)
			if err != nil || len(page) == 0 {
				t.Errorf("call %s after %d: %v", id, after, err)
				break
			}
			after = page[len(page)-1].Seq
		}
	}
	must(t, j.Close())
}

// TestTwoOwners: one journal takes over from another, which ends its calls
// meanwhile; nothing is lost, and nobody waits long (I2, I3).
func TestTwoOwners(t *testing.T) {
	dir := t.TempDir()
	a := open(t, dir, ownerOptions)
	if _, err := Open(t.Context(), a.path, Options{}); err == nil || !strings.Contains(err.Error(), "held by another") {
		t.Fatalf("two own one folder: %v", err)
	}
	old, err := startOldOwner(t.Context(), a)
	must(t, err)
	old.run(t.Context(), func(err error) { t.Error(err) })
	before, _ := newCalls(t, a, 200)
	a.Drain()
	a.Drain() // does nothing
	wantErr := a.Create(t.Context(), calltest.Record(a.Epoch()))
	if !errors.Is(wantErr, call.ErrStopping) {
		t.Errorf("create while draining: %v", wantErr)
	}

	b := open(t, dir, ownerOptions)
	running := func() (alive, dead int) {
		left, err := b.Running(t.Context(), b.Epoch())
		must(t, err)
		for _, r := range left {
			if r.Alive {
				alive++
			} else {
				dead++
			}
			if string(r.Address) != string(r.ID) && r.Seq > 1 {
				t.Errorf("address is %q", r.Address)
			}
		}
		return alive, dead
	}
	if alive, dead := running(); alive != oldCalls || dead != 0 {
		t.Errorf("%d calls run in good hands and %d do not, want %d and none", alive, dead, oldCalls)
	}
	gone := make(chan error, 1)
	go func() { gone <- b.WaitOwner(t.Context(), a.Epoch()) }()
	ended, slow := newCalls(t, b, 500)
	m, err := newMaintainer(b)
	must(t, err)
	must(t, m.index(t.Context()))
	must(t, m.raiseLow(t.Context()))
	m.close()
	select {
	case err := <-gone:
		t.Errorf("the owner was taken for gone (%v)", err)
	default:
	}
	if r, err := b.Get(t.Context(), old.calls[0].ID); err != nil || r.End.Outcome != call.Running {
		t.Errorf("the new owner sees %+v, %v", r, err)
	}
	for id := range ended { // and the old one the new calls
		if r, err := a.Get(t.Context(), id); err != nil || r.Epoch != b.Epoch() {
			t.Errorf("the old owner sees %+v, %v", r, err)
		}
		break
	}
	close(old.stop)
	old.wg.Wait()
	must(t, a.Close())
	must(t, <-gone)
	if alive, dead := running(); alive+dead != 0 {
		t.Errorf("%d calls run for ever", alive+dead)
	}
	t.Logf("slowest step: new owner %s, old owner %s", slow, time.Duration(old.slow.Load()))
	if slow > starved || time.Duration(old.slow.Load()) > starved {
		t.Error("one owner starved the other")
	}
	maps.Copy(ended, before)
	for _, r := range old.calls {
		ended[r.ID] = r.Seq
	}
	must(t, b.Close())
	checkOwners(t, dir, ended)
	if left, err := filepath.Glob(filepath.Join(dir, ownersDir, "*")); err != nil || len(left) != 0 {
		t.Errorf("locks of owners are left: %v", left)
	}
}

// child starts a process that is replaced.
type child struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Scanner
	epoch uint64
}

func startChild(t *testing.T, dir string) *child {
	t.Helper()
	if testing.Short() {
		t.Skip("starts processes")
	}
	c := &child{cmd: exec.CommandContext(t.Context(), os.Args[0])}
	c.cmd.Env = append(os.Environ(), ownerDir+"="+dir)
	out, err := c.cmd.StdoutPipe()
	must(t, err)
	c.in, err = c.cmd.StdinPipe()
	must(t, err)
	c.cmd.Stderr = os.Stderr
	must(t, c.cmd.Start())
	c.lines = bufio.NewScanner(out)
	_, err = fmt.Sscan(c.until(t, "ready", nil), &c.epoch)
	must(t, err)
	return c
}

func (c *child) tell(t *testing.T, what string) {
	t.Helper()
	_, err := io.WriteString(c.in, what+"\n")
	must(t, err)
}

// until reads on to the line that begins like that, and gives its rest.
func (c *child) until(t *testing.T, word string, each func(line string)) string {
	t.Helper()
	for c.lines.Scan() {
		what, rest, _ := strings.Cut(c.lines.Text(), " ")
		if what == word {
			return rest
		}
		if what == "error" {
			t.Error("child: ", c.lines.Text())
		}
		if each != nil {
			each(c.lines.Text())
		}
	}
	t.Fatalf("the child ended before it said %q", word)
	return ""
}

// TestReplaceProcess: as TestTwoOwners, with two processes.
func TestReplaceProcess(t *testing.T) {
	dir := t.TempDir()
	c := startChild(t, dir)
	if _, err := Open(t.Context(), filepath.Join(dir, "journal.db"), Options{}); err == nil || !strings.Contains(err.Error(), fmt.Sprint("process ", c.cmd.Process.Pid)) {
		t.Fatalf("two processes own one folder: %v", err)
	}
	c.tell(t, "drain")
	c.until(t, "drained", nil)
	j := open(t, dir, ownerOptions)
	ended, slow := newCalls(t, j, 500)
	left, err := j.Running(t.Context(), j.Epoch())
	must(t, err)
	if len(left) != oldCalls || !left[0].Alive || left[0].Epoch != c.epoch {
		t.Errorf("%d calls run, want %d, in good hands", len(left), oldCalls)
	}
	c.tell(t, "end")
	slowest := c.until(t, "slowest", func(line string) {
		var id call.ID
		var seq uint64
		if _, err := fmt.Sscanf(line, "ended %s %d", &id, &seq); err == nil {
			ended[id] = seq
		}
	})
	c.until(t, "closed", nil)
	must(t, c.cmd.Wait())
	must(t, j.WaitOwner(t.Context(), c.epoch))
	t.Logf("slowest step: new process %s, old one %s", slow, slowest)
	if d, err := time.ParseDuration(slowest); err != nil || slow > starved || d > starved {
		t.Error("one process starved the other")
	}
	left, err = j.Running(t.Context(), j.Epoch())
	must(t, err)
	if len(left) != 0 || len(ended) != 500+oldCalls {
		t.Errorf("%d calls run for ever, %d ended", len(left), len(ended))
	}
	must(t, j.Close())
	checkOwners(t, dir, ended)
}

// TestKilledWhileDraining: what the old process cannot end is found, and adopted
// by the new one (I2, I3).
func TestKilledWhileDraining(t *testing.T) {
	dir := t.TempDir()
	c := startChild(t, dir)
	c.tell(t, "drain")
	c.until(t, "drained", nil)
	j := open(t, dir, ownerOptions)
	ended, _ := newCalls(t, j, 20)
	short, cancel := context.WithTimeout(t.Context(), 3*ownerPoll)
	if err := j.WaitOwner(short, c.epoch); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waited for a process that lives: %v", err)
	}
	cancel()
	until(t, func() bool {
		left, err := j.Running(t.Context(), j.Epoch())
		must(t, err)
		return len(left) == oldCalls && !slices.ContainsFunc(left, func(r call.Record) bool { return r.Address == nil })
	})
	must(t, c.cmd.Process.Kill())
	must(t, j.WaitOwner(t.Context(), c.epoch))
	_ = c.cmd.Wait() // killed
	left, err := j.Running(t.Context(), j.Epoch())
	must(t, err)
	if len(left) != oldCalls {
		t.Errorf("%d calls run, want %d", len(left), oldCalls)
	}
	for i := range left {
		r := &left[i]
		if r.Alive || string(r.Address) != string(r.ID) || string(r.Cursor) != fmt.Sprint(r.Seq) {
			t.Errorf("call %s: alive %t, address %q, cursor %q, seq %d", r.ID, r.Alive, r.Address, r.Cursor, r.Seq)
		}
		from := r.Epoch
		r.Epoch = j.Epoch()
		must(t, j.Adopt(t.Context(), r, from))
		must(t, j.Append(r.ID, r.Epoch, event(r.Seq+1, "goes on")))
		finish(t, j, r, r.Seq+2)
		ended[r.ID] = r.Seq + 2
	}
	must(t, j.Close())
	checkOwners(t, dir, ended)
}

// TestSweepSparesTheLiving: a start removes no file that a process which still
// lives has written or is about to name.
func TestSweepSparesTheLiving(t *testing.T) {
	dir := t.TempDir()
	a := open(t, dir, Options{Spill: 10})
	r, dead := create(t, a), create(t, a)
	finish(t, a, dead, 2)
	must(t, a.Append(r.ID, r.Epoch, event(2, strings.Repeat("x", 100)))) // has spares made
	a.Drain()
	n := a.recent(r.ID)
	must(t, a.blobs.write(n, 3, []byte("the row comes later")))
	must(t, a.blobs.write(a.recent(dead.ID), 9, []byte("no row comes any more")))
	b := open(t, dir, Options{Spill: 10})
	if _, err := os.Stat(a.blobs.path(file{n, 3})); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(a.blobs.path(file{a.recent(dead.ID), 9})); err == nil {
		t.Error("litter was left")
	}
	for seq := uint64(4); seq < 20; seq++ {
		must(t, a.Append(r.ID, r.Epoch, event(seq, strings.Repeat("x", 100))))
		finish(t, b, create(t, b), 2)
	}
	f := *r
	f.End, f.Ended = call.End{Outcome: call.Completed}, time.Now()
	must(t, a.Finish(t.Context(), &f, call.Event{Seq: 20, Kind: call.KindEnd, Time: f.Ended, Hole: -1, Body: []byte(strings.Repeat("y", 200)), End: &f.End}))
	page, err := b.Read(t.Context(), r.ID, 3, 1<<20)
	must(t, err)
	if len(page) != 17 || len(page[16].Body) != 200 {
		t.Errorf("%d events can be read", len(page))
	}
	must(t, a.Close())
	m, err := newMaintainer(b)
	must(t, err)
	defer m.close()
	must(t, m.share())
	if b.shared.Load() {
		t.Error("a process that is gone still counts as there")
	}
	if want := sizeOfFolder(t, b.blobs.dir); b.blobs.bytes.Load() != want {
		t.Errorf("%d bytes of files are counted, %d are there", b.blobs.bytes.Load(), want)
	}
}

func sizeOfFolder(t *testing.T, dir string) (sum int64) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		if _, ok := parseFile(e.Name()); ok {
			fi, err := e.Info()
			must(t, err)
			sum += fi.Size()
		}
	}
	return sum
}

// TestWALOfTwo: the log of what the old owner writes is emptied by the new one,
// also while that one has nothing to write.
func TestWALOfTwo(t *testing.T) {
	dir := t.TempDir()
	a := open(t, dir, Options{MaxEvents: 1 << 30, MaxBytes: 1 << 40})
	r := create(t, a)
	a.Drain()
	b := open(t, dir, Options{})
	m, err := newMaintainer(b)
	must(t, err)
	defer m.close()
	written := 0
	for seq := uint64(2); written < 3*walFull*4096; seq++ {
		e := event(seq, strings.Repeat("x", 8<<10))
		written += len(e.Body)
		must(t, a.Append(r.ID, r.Epoch, e))
		if seq%256 == 0 {
			must(t, a.Flush(t.Context()))
			must(t, m.share())
		}
	}
	if size := b.Stats().WALBytes; size > (walFull+walStep)*4096 {
		t.Errorf("the log has %d MiB after %d MiB were written", size>>20, written>>20)
	}
}

// TestDrainFlushes: what was taken before Drain is there for the next owner.
func TestDrainFlushes(t *testing.T) {
	dir := t.TempDir()
	a := open(t, dir, Options{Delay: time.Hour})
	r := create(t, a)
	must(t, a.Append(r.ID, r.Epoch, event(2, "not written for an hour")))
	a.Drain()
	b := open(t, dir, Options{})
	if page, err := b.Read(t.Context(), r.ID, 1, 1); err != nil || len(page) != 1 {
		t.Errorf("%d events, %v", len(page), err)
	}
}

// TestDrainStores: numbers of calls are never used twice, however many are being
// created at the time of Drain, and each of them is there.
func TestDrainStores(t *testing.T) {
	dir := t.TempDir()
	a := open(t, dir, Options{})
	var mu sync.Mutex
	created := map[call.ID]bool{}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for {
				n := calltest.Record(a.Epoch())
				err := a.Create(t.Context(), n, call.Event{Seq: 1, Kind: call.KindAccepted, Time: time.Now(), Hole: -1})
				if errors.Is(err, call.ErrStopping) {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				created[n.ID] = true
				mu.Unlock()
			}
		})
	}
	until(t, func() bool { mu.Lock(); defer mu.Unlock(); return len(created) > 100 })
	a.Drain()
	select {
	case <-a.rested:
	default:
		t.Error("the old owner goes on with its housekeeping")
	}
	b := open(t, dir, Options{})
	for range 20 {
		id := create(t, b).ID
		mu.Lock()
		created[id] = true
		mu.Unlock()
	}
	wg.Wait()
	for id := range created {
		if _, err := b.Get(t.Context(), id); err != nil {
			t.Errorf("call %s: %v", id, err)
		}
	}
	if n := number1(t, b, "SELECT count(*) FROM calls"); n != int64(len(created)) {
		t.Errorf("%d calls, want %d", n, len(created))
	}
}

// TestFence: should a new owner have taken a call from an old one that lives,
// that one writes no more of it (I3).
func TestFence(t *testing.T) {
	dir := t.TempDir()
	a := open(t, dir, Options{})
	r := create(t, a)
	a.Drain()
	b := open(t, dir, Options{})
	taken := *r
	taken.Epoch = b.Epoch()
	must(t, b.Adopt(t.Context(), &taken, a.Epoch()))
	must(t, a.Append(r.ID, r.Epoch, event(2, "too late"))) // finds out later
	must(t, b.Append(r.ID, b.Epoch(), event(2, "in time")))
	if err := tryFinish(t, a, r, 3); !errors.Is(err, call.ErrNotRunning) {
		t.Errorf("the old owner ended the call: %v", err)
	}
	again := *r
	again.Epoch = 99
	if err := a.Adopt(t.Context(), &again, a.Epoch()); !errors.Is(err, call.ErrNotRunning) {
		t.Errorf("the old owner adopted its own call: %v", err)
	}
	if n := a.Stats().Dropped; n != 1 {
		t.Errorf("%d events were dropped, want 1", n)
	}
	finish(t, b, &taken, 3)
	page, err := b.Read(t.Context(), r.ID, 0, 1<<20)
	must(t, err)
	if len(page) != 3 || string(page[1].Body) != "in time" {
		t.Errorf("got %+v", page)
	}
}
