package calltest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
)

// running gives the calls of owners before epoch by their id.
func running(t testing.TB, l call.Log, epoch uint64) map[call.ID]call.Record {
	t.Helper()
	list, err := l.Running(t.Context(), epoch)
	must(t, err)
	m := map[call.ID]call.Record{}
	for _, r := range list {
		m[r.ID] = r
	}
	if len(m) != len(list) {
		t.Errorf("%d records of %d calls run", len(list), len(m))
	}
	return m
}

func note(seq uint64, kind call.Kind, body, cursor string) call.Event {
	e := call.Event{Seq: seq, Kind: kind, Time: now(), Hole: -1, Body: []byte(body)}
	if cursor != "" {
		e.Cursor = []byte(cursor)
	}
	return e
}

// runningPlace: Running says where a call goes on.
func runningPlace(t *testing.T, l call.Log) {
	bare, placed, moved, late := create(t, l, 6), create(t, l, 6), create(t, l, 6), create(t, l, 6)
	must(t, l.Append(placed.ID, 6, note(2, call.KindAddress, `{"task":1}`, "")))
	must(t, l.Append(placed.ID, 6, note(3, call.KindProgress, "p", "c3")))
	must(t, l.Append(placed.ID, 6, note(4, call.KindProgress, "p", "c4")))
	must(t, l.Append(placed.ID, 6, note(5, call.KindMessage, "m", "")))
	must(t, l.Append(moved.ID, 6, note(2, call.KindAddress, "old", "c2")))
	must(t, l.Append(moved.ID, 6, note(3, call.KindAddress, "new", "")))
	must(t, l.Append(late.ID, 6, note(2, call.KindNote, "n", "c2")))
	l.Deliver(call.Delivery{Call: moved.ID, How: call.HandedOff})
	e := end(3)
	must(t, l.Finish(t.Context(), finished(late, e), e))

	got := running(t, l, 7)
	if len(got) != 3 {
		t.Fatalf("%d calls run, want 3", len(got))
	}
	for _, want := range []struct {
		id              call.ID
		address, cursor string
		seq             uint64
		handedOff       bool
	}{{bare.ID, "", "", 1, false}, {placed.ID, `{"task":1}`, "c4", 5, false}, {moved.ID, "new", "c2", 3, true}} {
		r := got[want.id]
		if string(r.Address) != want.address || string(r.Cursor) != want.cursor || r.Seq != want.seq || r.HandedOff != want.handedOff || r.Delivered || r.Alive || r.Epoch != 6 {
			t.Errorf("address %q, cursor %q, seq %d, handed off %t, delivered %t, alive %t; want %+v", r.Address, r.Cursor, r.Seq, r.HandedOff, r.Delivered, r.Alive, want)
		}
		if (r.Address == nil) != (want.address == "") || (r.Cursor == nil) != (want.cursor == "") {
			t.Errorf("call without a place has one: %+v", r)
		}
	}
	for _, r := range got {
		if r.Asked != nil {
			t.Errorf("%s waits for an answer, and has asked nothing", r.ID)
		}
	}
	r, err := l.Get(t.Context(), placed.ID)
	must(t, err)
	if r.Address != nil || r.Cursor != nil {
		t.Error("Get shows where a call can be found again: that is for Running only")
	}
}

// adopt: the new owner writes on where the old one stopped.
func adopt(t *testing.T, l call.Log) {
	r := create(t, l, 6)
	must(t, l.Append(r.ID, 6, note(2, call.KindAddress, "a", "c2")))
	must(t, l.Append(r.ID, 6, progress(3, "old owner")))
	a := *r
	a.Epoch, a.Seq = 7, 3
	must(t, l.Adopt(t.Context(), &a, 6))
	wantErr(t, l.Append(r.ID, 6, progress(4, "old owner")), call.ErrNotRunning)
	wantErr(t, l.Finish(t.Context(), finished(r, end(4)), end(4)), call.ErrNotRunning)
	for _, seq := range []uint64{1, 3} {
		if l.Append(r.ID, 7, progress(seq, "again")) == nil {
			t.Errorf("seq %d was taken twice", seq)
		}
	}
	must(t, l.Append(r.ID, 7, progress(4, "new owner")))
	got, err := l.Get(t.Context(), r.ID)
	must(t, err)
	if got.Epoch != 7 || got.Seq != 4 || got.End.Outcome != call.Running {
		t.Errorf("adopted as %+v", *got)
	}
	if n := len(running(t, l, 7)); n != 0 {
		t.Errorf("%d calls of older owners run, want none", n)
	}
	// And once more, by the owner after that.
	b := running(t, l, 8)[r.ID]
	if string(b.Address) != "a" || string(b.Cursor) != "c2" || b.Seq != 4 || b.Epoch != 7 {
		t.Errorf("the next owner finds %+v", b)
	}
	b.Epoch = 8
	must(t, l.Adopt(t.Context(), &b, 7))
	e := end(5)
	f := finished(r, e)
	f.Epoch = 7
	wantErr(t, l.Finish(t.Context(), f, e), call.ErrNotRunning)
	f.Epoch = 8
	must(t, l.Finish(t.Context(), f, e))
	got, err = l.Get(t.Context(), r.ID)
	must(t, err)
	if got.Epoch != 8 || got.End.Outcome != call.Completed || got.Missing != 0 || got.Seq != 5 {
		t.Errorf("ended as %+v", *got)
	}
	if n := len(readAll(t, l, r.ID)); n != 5 {
		t.Errorf("%d events, want 5", n)
	}
}

func adoptRefused(t *testing.T, l call.Log) {
	r := create(t, l, 6)
	as := func(id call.ID, from, to uint64) error {
		a := *r
		a.ID, a.Epoch = id, to
		return l.Adopt(t.Context(), &a, from)
	}
	wantErr(t, as(r.ID, 5, 7), call.ErrNotRunning)
	wantErr(t, as(r.ID, 7, 8), call.ErrNotRunning)
	wantErr(t, as(call.NewID(), 6, 7), call.ErrNotRunning)
	must(t, l.Append(r.ID, 6, progress(2, "its owner still")))
	must(t, as(r.ID, 6, 7))
	wantErr(t, as(r.ID, 6, 8), call.ErrNotRunning)
	e := end(3)
	f := finished(r, e)
	f.Epoch = 7
	must(t, l.Finish(t.Context(), f, e))
	wantErr(t, as(r.ID, 7, 8), call.ErrNotRunning)
	got, err := l.Get(t.Context(), r.ID)
	must(t, err)
	if got.Epoch != 7 || got.Missing != 0 {
		t.Errorf("got %+v", *got)
	}
}

// adoptAtOnceByMany: one of several new owners wins, and the old one's end comes
// before or not at all (I2, I3).
func adoptAtOnceByMany(t *testing.T, l call.Log) {
	for round := range 20 {
		r := create(t, l, 6)
		errs := make([]error, 8)
		var endErr error
		var wg sync.WaitGroup
		for i := range errs {
			wg.Go(func() {
				a := *r
				a.Epoch = uint64(7 + i)
				errs[i] = l.Adopt(t.Context(), &a, 6)
			})
		}
		if round%2 == 0 {
			endErr = call.ErrNotRunning
		} else {
			wg.Go(func() { endErr = l.Finish(t.Context(), finished(r, end(2)), end(2)) })
		}
		wg.Wait()
		won := uint64(0)
		for i, err := range append(errs, endErr) {
			switch {
			case err == nil && won == 0:
				won = uint64(7 + i)
			case err == nil:
				t.Errorf("owners %d and %d both won", won, 7+i)
			case !errors.Is(err, call.ErrNotRunning):
				t.Error(err)
			}
		}
		got, err := l.Get(t.Context(), r.ID)
		must(t, err)
		ended := got.End.Outcome != call.Running
		if won == 0 || ended != (endErr == nil) || !ended && got.Epoch != won {
			t.Errorf("owner %d won, but the log has owner %d, outcome %q", won, got.Epoch, got.End.Outcome)
		}
		if !ended {
			f := finished(r, end(2))
			f.Epoch = won
			must(t, l.Finish(t.Context(), f, end(2)))
		}
	}
}

// givenTo: a record says at once what was delivered.
func givenTo(t *testing.T, l call.Log) {
	for _, tt := range []struct {
		hows                       []call.How
		delivered, handedOff, told bool
	}{
		{nil, false, false, false},
		{[]call.How{call.AbortedDownstream, call.Slow, call.ShutDown}, false, false, false},
		{[]call.How{call.AbortedDownstream, call.Delivered}, true, false, false},
		{[]call.How{call.HandedOff}, false, true, false},
		{[]call.How{call.HandedOff, call.Replayed, call.Slow}, true, true, false},
		{[]call.How{call.HandedOff, call.Told}, false, true, true},
	} {
		r := create(t, l, 7)
		e := end(2)
		must(t, l.Finish(t.Context(), finished(r, e), e))
		for _, how := range tt.hows {
			l.Deliver(call.Delivery{Call: r.ID, How: how, Attached: now(), Ended: now()})
		}
		got, err := l.Get(t.Context(), r.ID)
		must(t, err)
		if got.Delivered != tt.delivered || got.HandedOff != tt.handedOff || got.Told != tt.told {
			t.Errorf("after %v: delivered %t, handed off %t, told %t", tt.hows, got.Delivered, got.HandedOff, got.Told)
		}
		l.Deliver(call.Delivery{Call: r.ID, How: call.HandedOff})
		list, err := l.Owned(t.Context(), "alice", "", 1)
		must(t, err)
		if len(list) != 1 || list[0].ID != r.ID || list[0].Delivered != tt.delivered || !list[0].HandedOff || list[0].Told != tt.told {
			t.Errorf("after %v: owned are %+v", tt.hows, list)
		}
	}
}

func undelivered(t *testing.T, l call.Log) {
	began := now()
	finish := func(outcome call.Outcome, change func(*call.Record), hows ...call.How) call.ID {
		r := Record(7)
		r.Idempotency = ""
		e := end(2)
		e.End = &call.End{Outcome: outcome}
		f := finished(r, e)
		f.Dispatched = now()
		if change != nil {
			change(f)
			r.Idempotency = f.Idempotency
			e.Time = f.Ended
		}
		must(t, l.Create(t.Context(), r, accepted()))
		must(t, l.Finish(t.Context(), f, e))
		for _, how := range hows {
			l.Deliver(call.Delivery{Call: r.ID, How: how})
		}
		return r.ID
	}
	keyed := func(r *call.Record) { r.Idempotency = "key" }
	undispatched := func(r *call.Record) { r.Dispatched = time.Time{} }
	old := func(r *call.Record) { r.Ended = began.Add(-time.Minute) }
	just := func(r *call.Record) { r.Ended = began }
	var want []call.ID
	for _, o := range []call.Outcome{call.Completed, call.Failed, call.TimedOut, call.Interrupted} {
		want = append(want, finish(o, nil))
	}
	want = append(want,
		finish(call.Interrupted, undispatched), // its process was killed: it may have left all the same
		finish(call.Completed, just),
		finish(call.Completed, nil, call.AbortedDownstream, call.HandedOff, call.Slow, call.ShutDown),
		finish(call.Completed, keyed, call.Delivered),
		finish(call.Cancelled, keyed),
		finish(call.Denied, keyed),
		finish(call.Failed, func(r *call.Record) { keyed(r); undispatched(r) }))
	finish(call.Completed, func(r *call.Record) { keyed(r); old(r) })
	finish(call.Completed, old)
	finish(call.Completed, undispatched)
	finish(call.Cancelled, nil)
	finish(call.Denied, nil)
	finish(call.Completed, nil, call.Delivered)
	finish(call.Completed, nil, call.Slow, call.Replayed)
	create(t, l, 7) // runs

	list, err := l.Undelivered(t.Context(), began, 100)
	must(t, err)
	slices.Reverse(want) // newest first
	var got []call.ID
	for _, r := range list {
		got = append(got, r.ID)
	}
	if !slices.Equal(got, want) {
		t.Errorf("undelivered are %v,\nwant %v", got, want)
	}
	if r := list[len(list)-1]; r.Digest != "d1" || r.Principal != "alice" || r.Seq != 2 || r.End.Outcome != call.Completed || r.Dispatched.IsZero() {
		t.Errorf("got %+v", r)
	}
	if r := list[4]; !r.HandedOff || r.Delivered {
		t.Errorf("got %+v", r)
	}
	if r := list[3]; !r.Delivered || r.Idempotency != "key" {
		t.Errorf("got %+v", r)
	}
	for _, max := range []int{0, 1, 3} {
		list, err := l.Undelivered(t.Context(), began, max)
		must(t, err)
		if len(list) != max || max > 0 && list[0].ID != want[0] {
			t.Errorf("%d records, want the newest %d", len(list), max)
		}
	}
	list, err = l.Undelivered(t.Context(), now().Add(time.Hour), 100)
	must(t, err)
	if len(list) != 0 {
		t.Errorf("%d calls ended in the future", len(list))
	}
}

// undeliveredNewest: newest is who came last, not who ended last.
func undeliveredNewest(t *testing.T, l call.Log) {
	first, second := create(t, l, 7), create(t, l, 7)
	for _, r := range []*call.Record{second, first} {
		e := end(2)
		must(t, l.Finish(t.Context(), finished(r, e), e))
	}
	list, err := l.Undelivered(t.Context(), time.Time{}, 2)
	must(t, err)
	if len(list) != 2 || list[0].ID != second.ID || list[1].ID != first.ID {
		t.Errorf("the newest call is not the first: %v", list)
	}
}

func owned(t *testing.T, l call.Log) {
	var mine []call.ID
	var foreign call.ID
	for i := range 25 {
		r := Record(7)
		if i%5 == 4 {
			r.Principal = "bob"
			foreign = r.ID
		} else {
			mine = append([]call.ID{r.ID}, mine...)
		}
		must(t, l.Create(t.Context(), r, accepted()))
		if i%3 == 0 {
			must(t, l.Append(r.ID, 7, progress(2, "x")))
			e := end(3)
			must(t, l.Finish(t.Context(), finished(r, e), e))
		}
	}
	newest := mine[0]
	must(t, l.Append(newest, 7, note(2, call.KindDispatched, "", "")))
	var got []call.ID
	before := call.ID("")
	for {
		page, err := l.Owned(t.Context(), "alice", before, 7)
		must(t, err)
		if len(page) == 0 {
			break
		}
		if len(page) > 7 {
			t.Errorf("a page of %d, at most 7 were asked for", len(page))
		}
		for _, r := range page {
			got = append(got, r.ID)
			if r.ID == newest && (r.Seq != 2 || r.Dispatched.IsZero()) {
				t.Errorf("what was appended so far is not seen: %+v", r)
			}
			if r.Principal != "alice" {
				t.Errorf("a call of %s is shown to alice (I6)", r.Principal)
			}
		}
		before = page[len(page)-1].ID
	}
	if !slices.Equal(got, mine) {
		t.Errorf("owned are %v,\nwant %v", got, mine)
	}
	for _, id := range []call.ID{foreign, call.NewID()} { // look the same (I6)
		list, err := l.Owned(t.Context(), "alice", id, 7)
		if !errors.Is(err, call.ErrUnknown) || len(list) != 0 {
			t.Errorf("before a call that is not hers: %d calls, %v", len(list), err)
		}
	}
	for who, want := range map[string]int{"alice": 0, "bob": 5, "carol": 0, "": 0} {
		max := 100
		if who == "alice" {
			max = 0
		}
		list, err := l.Owned(t.Context(), who, "", max)
		must(t, err)
		if len(list) != want {
			t.Errorf("%s owns %d calls, want %d", fmt.Sprintf("%q", who), len(list), want)
		}
	}
}

// runningAsks: Running says what a call waits for an answer to, and an address that
// was made void is none.
func runningAsks(t *testing.T, l call.Log) {
	const both, one = `{"a":{},"b":{}}`, `{"b":{}}`
	want := map[call.ID]uint64{}
	for _, c := range []struct {
		asked  uint64 // seq of what it waits for
		events []call.Event
	}{
		{2, []call.Event{note(2, call.KindAsk, one, ""), note(3, call.KindProgress, "p", "")}},
		{4, []call.Event{note(2, call.KindAsk, both, ""), note(3, call.KindAnswer, `["a"]`, ""), note(4, call.KindAsk, one, "")}},
		{0, []call.Event{note(2, call.KindAsk, one, ""), note(3, call.KindAnswer, `["b"]`, "")}},
		{0, []call.Event{note(2, call.KindAsk, one, ""), note(3, call.KindAnswer, `["b"]`, ""), note(4, call.KindAsk, "{}", "")}},
		{0, []call.Event{note(2, call.KindAddress, "a", ""), note(3, call.KindAddress, "", "")}},
	} {
		r := create(t, l, 6)
		for _, e := range c.events {
			must(t, l.Append(r.ID, 6, e))
		}
		want[r.ID] = c.asked
	}
	must(t, l.Flush(t.Context()))
	for id, r := range running(t, l, 7) {
		switch seq, mine := want[id]; {
		case !mine:
		case len(r.Address) != 0:
			t.Errorf("an address that was made void is %q", r.Address)
		case (r.Asked == nil) != (seq == 0):
			t.Errorf("asked %+v, want seq %d", r.Asked, seq)
		case seq != 0 && (r.Asked.Seq != seq || string(r.Asked.Body) != one || time.Since(r.Asked.Time) > time.Minute):
			t.Errorf("asked %+v, want %s at %d", r.Asked, one, seq)
		}
	}
}
