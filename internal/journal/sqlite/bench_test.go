//go:build unix

package sqlite

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/call/calltest"
)

// cpu is the processor time of the process, of all threads.
func cpu() time.Duration {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// perOp reports processor time per op from now until the returned function is called.
func perOp(b *testing.B) func() {
	start := cpu()
	b.ReportAllocs()
	b.ResetTimer()
	return func() {
		b.StopTimer()
		b.ReportMetric(float64(cpu()-start)/float64(b.N), "cpu-ns/op")
	}
}

// oneCall is the journal's part of an instant call with one progress event.
func oneCall(b *testing.B, j *Journal, body []byte) {
	ctx := context.Background()
	r := calltest.Record(j.Epoch())
	now := time.Now()
	err := j.Create(ctx, r, call.Event{Seq: 1, Kind: call.KindAccepted, Time: now, Hole: -1})
	if err == nil {
		err = j.Append(r.ID, r.Epoch, call.Event{Seq: 2, Kind: call.KindDispatched, Time: now, Hole: -1})
	}
	if err == nil {
		err = j.Append(r.ID, r.Epoch, call.Event{Seq: 3, Kind: call.KindProgress, Time: now, Hole: 40, Body: body[:min(len(body), 120)]})
	}
	r.Seq, r.Dispatched, r.FirstByte, r.Ended = 4, now, now, now
	r.End = call.End{Outcome: call.Completed}
	if err == nil {
		err = j.Finish(ctx, r, call.Event{Seq: 4, Kind: call.KindEnd, Time: now, Hole: 23, Body: body, End: &r.End})
	}
	if err != nil {
		b.Error(err)
	}
	j.Deliver(call.Delivery{Call: r.ID, Kind: "sse", How: call.Delivered, Era: "2025-11-25", Attached: now, FirstByte: time.Millisecond, Ended: now, Bytes: 300, Events: 2})
}

// BenchmarkCall: a whole call (create, two events, finish, delivery), from
// one caller and from 20 at once.
func BenchmarkCall(b *testing.B) {
	for _, callers := range []int{1, 20, 100} {
		b.Run(fmt.Sprint("callers=", callers), func(b *testing.B) {
			j := open(b, b.TempDir(), Options{})
			body := make([]byte, 200)
			var wg sync.WaitGroup
			var n atomic.Int64
			stop := perOp(b)
			for range callers {
				wg.Go(func() {
					for n.Add(1) <= int64(b.N) {
						oneCall(b, j, body)
					}
				})
			}
			wg.Wait()
			stop()
			s := j.Stats()
			b.ReportMetric(float64(s.Ops)/float64(s.Commits), "ops/commit")
		})
	}
}

// BenchmarkProgress: events of many calls, 50 in each commit; of one call after
// the other as they were created, as when all report in the same rhythm, or of
// calls at random, which is the worst.
func BenchmarkProgress(b *testing.B) {
	for _, bb := range []struct {
		name        string
		calls, step int
	}{{"calls=1", 1, 1}, {"calls=1000/inTurn", 1000, 1}, {"calls=1000/atRandom", 1000, 7919}} {
		b.Run(bb.name, func(b *testing.B) {
			calls := bb.calls
			j := open(b, b.TempDir(), Options{MaxEvents: 1 << 30, MaxBytes: 1 << 40})
			ctx := context.Background()
			body := make([]byte, 150)
			ids := make([]call.ID, calls)
			for i := range ids {
				r := calltest.Record(j.Epoch())
				ids[i] = r.ID
				if err := j.Create(ctx, r, call.Event{Seq: 1, Kind: call.KindAccepted, Time: time.Now(), Hole: -1}); err != nil {
					b.Fatal(err)
				}
			}
			stop := perOp(b)
			for i := range b.N {
				e := call.Event{Seq: uint64(i/calls + 2), Kind: call.KindProgress, Time: time.Now(), Hole: 40, Body: body}
				if err := j.Append(ids[i*bb.step%calls], j.Epoch(), e); err != nil {
					b.Fatal(err)
				}
				if i%50 == 49 { // dozens per commit
					if err := j.Flush(ctx); err != nil {
						b.Fatal(err)
					}
				}
			}
			if err := j.Flush(ctx); err != nil {
				b.Fatal(err)
			}
			stop()
		})
	}
}

// BenchmarkLargeResult: a whole call with a result of that size.
func BenchmarkLargeResult(b *testing.B) {
	for _, kib := range []int{64, 127, 256, 1024} {
		b.Run(fmt.Sprint("kib=", kib), func(b *testing.B) {
			j := open(b, b.TempDir(), Options{})
			body := make([]byte, kib<<10)
			b.SetBytes(int64(len(body)))
			stop := perOp(b)
			for range b.N {
				oneCall(b, j, body)
			}
			stop()
		})
	}
}

// BenchmarkRead: a page of 256 KiB of a long call.
func BenchmarkRead(b *testing.B) {
	j := open(b, b.TempDir(), Options{})
	ctx := context.Background()
	r := calltest.Record(j.Epoch())
	if err := j.Create(ctx, r, call.Event{Seq: 1, Kind: call.KindAccepted, Time: time.Now(), Hole: -1}); err != nil {
		b.Fatal(err)
	}
	for seq := uint64(2); seq <= 5000; seq++ {
		if err := j.Append(r.ID, r.Epoch, call.Event{Seq: seq, Kind: call.KindProgress, Time: time.Now(), Hole: 40, Body: make([]byte, 150)}); err != nil {
			b.Fatal(err)
		}
	}
	if err := j.Flush(ctx); err != nil {
		b.Fatal(err)
	}
	stop := perOp(b)
	for range b.N {
		if _, err := j.Read(ctx, r.ID, 100, 256<<10); err != nil {
			b.Fatal(err)
		}
	}
	stop()
}

// BenchmarkTwoOwners: what the end of a call waits for in the old owner while 20
// callers keep the new one as busy as they can.
func BenchmarkTwoOwners(b *testing.B) {
	dir := b.TempDir()
	old := open(b, dir, Options{})
	calls := make([]*call.Record, b.N)
	for i := range calls {
		calls[i] = create(b, old)
	}
	old.Drain()
	j := open(b, dir, Options{})
	body := make([]byte, 200)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var n atomic.Int64
	for range 20 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				oneCall(b, j, body)
				n.Add(1)
			}
		})
	}
	var slow atomic.Int64
	b.ResetTimer()
	for _, r := range calls {
		start := time.Now()
		finish(b, old, r, 2)
		longest(&slow, time.Since(start))
	}
	b.StopTimer()
	close(stop)
	wg.Wait()
	b.ReportMetric(float64(slow.Load())/1e6, "max-ms")
	b.ReportMetric(float64(n.Load())/b.Elapsed().Seconds(), "new-calls/s")
}
