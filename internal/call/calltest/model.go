package calltest

import (
	"bytes"
	"errors"
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/longcall/longcall/internal/call"
)

// sameAsMemory does the same random things to a log and to a Memory: they
// must answer alike (I2, I3, I5).
func sameAsMemory(t *testing.T, l call.Log) {
	ctx := t.Context()
	rapid.Check(t, func(t *rapid.T) {
		memory := NewMemory()
		principal := string(call.NewID()) // the log has calls of earlier rounds
		newRecord := func() *call.Record {
			r := Record(7)
			r.Principal, r.Idempotency = principal, rapid.SampledFrom([]string{"", "key"}).Draw(t, "key")
			return r
		}
		var records []*call.Record
		seqs := map[call.ID]uint64{}
		bodyOf := func(t *rapid.T) []byte {
			return make([]byte, rapid.SampledFrom([]int{0, 1, 100, 3000, 140 << 10}).Draw(t, "bytes"))
		}
		pick := func(t *rapid.T) *call.Record {
			if len(records) == 0 || rapid.IntRange(0, 30).Draw(t, "stranger") == 0 {
				return newRecord()
			}
			return rapid.SampledFrom(records).Draw(t, "call")
		}
		// seqOf is mostly the next one; else one that came before, or one
		// that leaves a gap.
		seqOf := func(t *rapid.T, r *call.Record) uint64 {
			return uint64(max(0, int(seqs[r.ID])+rapid.SampledFrom([]int{1, 1, 1, 1, 1, 1, 0, -1, 2, 5}).Draw(t, "step")))
		}
		// epochOf is mostly the owner's.
		epochOf := func(t *rapid.T, r *call.Record) uint64 {
			return r.Epoch + rapid.SampledFrom([]uint64{1, 1, 1, 1, 1, 1, 0, 2}).Draw(t, "epoch") - 1
		}
		same := func(t *rapid.T, what string, got, want []call.Record) {
			got = slices.DeleteFunc(got, func(r call.Record) bool { return r.Principal != principal })
			if len(got) != len(want) {
				t.Fatalf("%s: %d calls, memory has %d", what, len(got), len(want))
			}
			for i := range got {
				g, w := got[i], want[i]
				if g.ID != w.ID || !sameRecord(&g, &w) {
					t.Fatalf("%s: call %d is %+v,\nmemory has %+v", what, i, g, w)
				}
			}
		}
		alike := func(t *rapid.T, what string, got, want error) bool {
			if class(got) != class(want) {
				t.Fatalf("%s: %v, but memory says %v", what, got, want)
			}
			return want == nil
		}
		t.Repeat(map[string]func(*rapid.T){
			"create": func(t *rapid.T) {
				r := newRecord()
				events := []call.Event{accepted()}
				if rapid.Bool().Draw(t, "more") {
					events = append(events, progress(2, "x"))
				}
				if rapid.IntRange(0, 5).Draw(t, "denied") == 0 {
					e := end(uint64(len(events) + 1))
					e.End.Outcome = call.Denied
					events = append(events, e)
					r = finished(r, e)
				}
				if alike(t, "create", l.Create(ctx, r, events...), memory.Create(ctx, r, events...)) {
					records = append(records, r)
					seqs[r.ID] = uint64(len(events))
				}
			},
			"append": func(t *rapid.T) {
				r := pick(t)
				e := call.Event{Seq: seqOf(t, r), Kind: call.KindMessage, Time: now(), Hole: -1, Body: bodyOf(t)}
				if rapid.Bool().Draw(t, "place") {
					e.Kind, e.Cursor = call.KindAddress, []byte(strconv.Itoa(int(e.Seq)))
				}
				epoch := epochOf(t, r)
				if alike(t, "append", l.Append(r.ID, epoch, e), memory.Append(r.ID, epoch, e)) {
					seqs[r.ID] = e.Seq
				}
			},
			"finish": func(t *rapid.T) {
				r := pick(t)
				e := end(seqOf(t, r))
				e.Body = bodyOf(t)
				f := finished(r, e)
				f.Epoch = epochOf(t, r)
				if rapid.Bool().Draw(t, "dispatched") {
					f.Dispatched = e.Time
				}
				if alike(t, "finish", l.Finish(ctx, f, e), memory.Finish(ctx, f, e)) {
					seqs[r.ID] = e.Seq
				}
			},
			"read": func(t *rapid.T) {
				r := pick(t)
				after := uint64(rapid.IntRange(0, int(seqs[r.ID])+2).Draw(t, "after"))
				max := rapid.SampledFrom([]int{1, 500, 10_000, 1 << 20}).Draw(t, "max")
				got, err := l.Read(ctx, r.ID, after, max)
				want, wantErr := memory.Read(ctx, r.ID, after, max)
				if !alike(t, "read", err, wantErr) {
					return
				}
				if (len(got) == 0) != (len(want) == 0) {
					t.Fatalf("read after %d: %d events, memory has %d", after, len(got), len(want))
				}
				for i := range min(len(got), len(want)) {
					if g, w := got[i], want[i]; g.Seq != w.Seq || g.Kind != w.Kind || !g.Time.Equal(w.Time) || len(g.Body) != len(w.Body) || (g.End == nil) != (w.End == nil) {
						t.Fatalf("read after %d: event %d is %d %s of %d bytes, memory has %d %s of %d", after, i, g.Seq, g.Kind, len(g.Body), w.Seq, w.Kind, len(w.Body))
					}
				}
			},
			"get": func(t *rapid.T) {
				r := pick(t)
				got, err := l.Get(ctx, r.ID)
				want, wantErr := memory.Get(ctx, r.ID)
				if !alike(t, "get", err, wantErr) {
					return
				}
				if !sameRecord(got, want) {
					t.Fatalf("get: %+v,\nmemory has %+v", *got, *want)
				}
			},
			"deliver": func(t *rapid.T) {
				how := rapid.SampledFrom([]call.How{call.Delivered, call.AbortedDownstream, call.HandedOff, call.Replayed, call.Slow, call.ShutDown}).Draw(t, "how")
				d := call.Delivery{Call: pick(t).ID, How: how, Attached: time.Now(), Ended: time.Now()}
				l.Deliver(d)
				memory.Deliver(d)
			},
			"adopt": func(t *rapid.T) {
				r := pick(t)
				a, from := *r, epochOf(t, r)
				a.Epoch = rapid.Uint64Range(6, 12).Draw(t, "to")
				if alike(t, "adopt", l.Adopt(ctx, &a, from), memory.Adopt(ctx, &a, from)) {
					r.Epoch = a.Epoch
				}
			},
			"running": func(t *rapid.T) {
				epoch := rapid.Uint64Range(6, 13).Draw(t, "epoch")
				got, err := l.Running(ctx, epoch)
				want, wantErr := memory.Running(ctx, epoch)
				if alike(t, "running", err, wantErr) {
					same(t, "running", got, want)
				}
			},
			"undelivered": func(t *rapid.T) {
				got, err := l.Undelivered(ctx, time.Time{}, 1<<20)
				want, wantErr := memory.Undelivered(ctx, time.Time{}, 1<<20)
				if alike(t, "undelivered", err, wantErr) {
					same(t, "undelivered", got, want)
				}
			},
			"owned": func(t *rapid.T) {
				before := call.ID("")
				if rapid.Bool().Draw(t, "page") {
					before = pick(t).ID
				}
				max := rapid.SampledFrom([]int{0, 1, 3, 100}).Draw(t, "max")
				got, err := l.Owned(ctx, principal, before, max)
				want, wantErr := memory.Owned(ctx, principal, before, max)
				if alike(t, "owned", err, wantErr) {
					same(t, "owned", got, want)
				}
			},
		})
		for _, r := range records { // none must run into the next round
			e := end(seqs[r.ID] + 1)
			_ = l.Finish(ctx, finished(r, e), e)
		}
	})
}

// sameRecord says whether two logs say the same of a call.
func sameRecord(a, b *call.Record) bool {
	return a.Seq == b.Seq && a.Missing == b.Missing && a.Bytes == b.Bytes && a.End == b.End && a.Ended.Equal(b.Ended) &&
		a.Dispatched.Equal(b.Dispatched) && a.Epoch == b.Epoch && a.Delivered == b.Delivered && a.HandedOff == b.HandedOff &&
		a.Idempotency == b.Idempotency && bytes.Equal(a.Address, b.Address) && bytes.Equal(a.Cursor, b.Cursor)
}

// class is what callers can tell of an error.
func class(err error) string {
	for _, e := range []error{call.ErrUnknown, call.ErrGap, call.ErrFull, call.ErrNotRunning} {
		if errors.Is(err, e) {
			return e.Error()
		}
	}
	if err != nil {
		return "another error"
	}
	return ""
}
