// Package calltest holds the suites that implementations of call's interfaces pass.
package calltest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
)

// Log tests an implementation of call.Log (I2, I3, I4, I5). open gives an
// empty log of its own to each test, and closes it when that test ends.
func Log(t *testing.T, open func(t testing.TB) call.Log) {
	for _, tt := range []struct {
		name string
		f    func(*testing.T, call.Log)
	}{
		{"CreateThenGet", createThenGet},
		{"CreateDenied", createDenied},
		{"CreateTwice", createTwice},
		{"AppendInOrder", appendInOrder},
		{"AppendRefused", appendRefused},
		{"ReadPages", readPages},
		{"ReadYourWrites", readYourWrites},
		{"Bodies", bodies},
		{"FinishStoresAll", finishStoresAll},
		{"FinishOnce", finishOnce},
		{"FinishAtOnceByMany", finishAtOnceByMany},
		{"Gap", gap},
		{"Unknown", unknown},
		{"RunningAndRecover", runningAndRecover},
		{"RunningPlace", runningPlace},
		{"RunningAsks", runningAsks},
		{"Adopt", adopt},
		{"AdoptRefused", adoptRefused},
		{"AdoptAtOnceByMany", adoptAtOnceByMany},
		{"Given", givenTo},
		{"Undelivered", undelivered},
		{"UndeliveredNewest", undeliveredNewest},
		{"Owned", owned},
		{"Deliveries", deliveries},
		{"ManyAtOnce", manyAtOnce},
		{"SameAsMemory", sameAsMemory},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.f(t, open(t)) })
	}
}

// Record makes a record as the engine creates one.
func Record(epoch uint64) *call.Record {
	return &call.Record{
		ID: call.NewID(),
		Spec: call.Spec{
			Principal: "alice", Session: "s1", Client: "test 1.0", Server: "files", Tool: "work",
			PublicTool: "files__work", Era: "2025-11-25", RequestID: "r1",
			Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
			Request:     []byte(`{"secret":1}`), Arguments: []byte(`{"a":1}`), Digest: "d1",
			AgentRequest: `"7"`, Idempotency: "k1", Parent: call.NewID(), Index: 3,
			Limits: call.Limits{
				Connect: time.Second, FirstByte: 2 * time.Second, Idle: 3 * time.Second, Total: 4 * time.Second,
				Message: 5, Call: 6, PerServer: 7, PerPrincipal: 8,
			},
		},
		Epoch: epoch, Started: now(), Seq: 1,
	}
}

// now is a time as logs keep it.
func now() time.Time { return time.Now().Truncate(time.Microsecond) }

func accepted() call.Event {
	return call.Event{Seq: 1, Kind: call.KindAccepted, Time: now(), Hole: -1}
}

func progress(seq uint64, body string) call.Event {
	return call.Event{Seq: seq, Kind: call.KindProgress, Time: now(), Hole: 3, Body: []byte(body)}
}

func end(seq uint64) call.Event {
	return call.Event{Seq: seq, Kind: call.KindEnd, Time: now(), Hole: 4, Body: []byte(`{"id":0}`), End: &call.End{Outcome: call.Completed, ToolError: true}}
}

// finished is the record that goes with the end e.
func finished(r *call.Record, e call.Event) *call.Record {
	f := *r
	f.End, f.Ended, f.Seq = *e.End, e.Time, e.Seq
	f.Bytes = uint64(len(e.Body))
	return &f
}

func create(t testing.TB, l call.Log, epoch uint64) *call.Record {
	t.Helper()
	r := Record(epoch)
	must(t, l.Create(t.Context(), r, accepted()))
	return r
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error is %v, want %v", err, want)
	}
}

func wantEvents(t testing.TB, got []call.Event, want ...call.Event) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("got %d events, want %d", len(got), len(want))
	}
	for i, g := range got {
		w := want[i]
		if g.Seq != w.Seq || g.Kind != w.Kind || !g.Time.Equal(w.Time) || g.Hole != w.Hole || !bytes.Equal(g.Body, w.Body) || !bytes.Equal(g.Cursor, w.Cursor) {
			t.Errorf("event %d is %d %s %s hole %d %.100q,\nwant %d %s %s hole %d %.100q", i, g.Seq, g.Kind, g.Time, g.Hole, g.Body, w.Seq, w.Kind, w.Time, w.Hole, w.Body)
		}
		if (g.Body == nil) != (w.Body == nil) {
			t.Errorf("event %d: no body and an empty one are mixed up", i)
		}
		if (g.Cursor == nil) != (w.Cursor == nil) {
			t.Errorf("event %d: no cursor and an empty one are mixed up", i)
		}
		if (g.End == nil) != (w.End == nil) || g.End != nil && *g.End != *w.End {
			t.Errorf("event %d ends with %+v, want %+v", i, g.End, w.End)
		}
	}
}

// readAll reads a call's events page by page.
func readAll(t testing.TB, l call.Log, id call.ID) (events []call.Event) {
	t.Helper()
	after := uint64(0)
	for {
		page, err := l.Read(t.Context(), id, after, 1000)
		must(t, err)
		if len(page) == 0 {
			return events
		}
		events = append(events, page...)
		after = page[len(page)-1].Seq
	}
}

func createThenGet(t *testing.T, l call.Log) {
	r := create(t, l, 7)
	got, err := l.Get(t.Context(), r.ID)
	must(t, err)
	want := *r
	want.Request = nil // never stored
	if !got.Started.Equal(want.Started) {
		t.Errorf("started %s, want %s", got.Started, want.Started)
	}
	got.Started = want.Started
	if fmt.Sprintf("%+v", *got) != fmt.Sprintf("%+v", want) {
		t.Errorf("got  %+v\nwant %+v", *got, want)
	}

	bare := &call.Record{ID: call.NewID(), Epoch: 7, Started: now()}
	must(t, l.Create(t.Context(), bare, accepted()))
	got, err = l.Get(t.Context(), bare.ID)
	must(t, err)
	if got.Arguments != nil || got.AgentRequest != "" || got.Idempotency != "" || got.Parent != "" || got.Index != 0 || got.Delivered || got.HandedOff || got.Principal != "" || got.Limits != (call.Limits{}) || !got.Ended.IsZero() || !got.Dispatched.IsZero() || !got.FirstByte.IsZero() {
		t.Errorf("empty fields came back as %+v", *got)
	}
}

func createDenied(t *testing.T, l call.Log) {
	r := Record(7)
	e := end(2)
	e.Body, e.Hole = nil, -1
	e.End = &call.End{Outcome: call.Denied, By: "policy", Limit: "concurrency", Text: "no", Code: -3}
	r.Denied = e.End
	r = finished(r, e)
	first := accepted()
	must(t, l.Create(t.Context(), r, first, e))
	got, err := l.Get(t.Context(), r.ID)
	must(t, err)
	if got.End != *e.End || got.Denied == nil || *got.Denied != *e.End || !got.Ended.Equal(e.Time) || got.Seq != 2 || got.Missing != 0 {
		t.Errorf("got %+v", *got)
	}
	wantEvents(t, readAll(t, l, r.ID), first, e)
	wantErr(t, l.Append(r.ID, 7, progress(3, "x")), call.ErrNotRunning)
	wantErr(t, l.Finish(t.Context(), finished(r, end(3)), end(3)), call.ErrNotRunning)
	left, err := l.Running(t.Context(), 100)
	must(t, err)
	if len(left) != 0 {
		t.Errorf("a denied call counts as running")
	}
}

func createTwice(t *testing.T, l call.Log) {
	r := create(t, l, 7)
	if l.Create(t.Context(), r, accepted()) == nil {
		t.Error("a running call was created again")
	}
	must(t, l.Append(r.ID, 7, progress(2, "still there")))
	must(t, l.Finish(t.Context(), finished(r, end(3)), end(3)))
	if l.Create(t.Context(), r, accepted()) == nil {
		t.Error("an ended call was created again")
	}
	if n := len(readAll(t, l, r.ID)); n != 3 {
		t.Errorf("the call has %d events, want 3", n)
	}
	other := Record(7)
	if l.Create(t.Context(), other, progress(2, "")) == nil {
		t.Error("a call was created whose events do not begin at 1")
	}
	if _, err := l.Get(t.Context(), other.ID); !errors.Is(err, call.ErrUnknown) {
		t.Errorf("get what was not created: %v", err)
	}
}

func appendInOrder(t *testing.T, l call.Log) {
	r := Record(7)
	want := []call.Event{accepted()}
	must(t, l.Create(t.Context(), r, want...))
	for seq := uint64(2); seq <= 300; seq++ {
		e := progress(seq, fmt.Sprint("event ", seq))
		switch seq % 5 {
		case 1:
			e.Cursor = []byte(fmt.Sprint("cursor ", seq))
		case 2:
			e.Cursor = []byte{}
		case 3:
			e.Kind = []call.Kind{call.KindAddress, call.KindAsk, call.KindAnswer}[seq%3]
		}
		must(t, l.Append(r.ID, 7, e))
		want = append(want, e)
	}
	wantEvents(t, readAll(t, l, r.ID), want...)
}

func appendRefused(t *testing.T, l call.Log) {
	r := create(t, l, 7)
	must(t, l.Append(r.ID, 7, progress(2, "first")))
	wantErr(t, l.Append(r.ID, 6, progress(3, "old owner")), call.ErrNotRunning)
	wantErr(t, l.Append(r.ID, 8, progress(3, "new owner")), call.ErrNotRunning)
	wantErr(t, l.Append(call.NewID(), 7, progress(2, "nobody")), call.ErrNotRunning)
	for _, seq := range []uint64{0, 1, 2} {
		if l.Append(r.ID, 7, progress(seq, "again")) == nil {
			t.Errorf("seq %d was taken twice", seq)
		}
	}
	must(t, l.Append(r.ID, 7, progress(3, "second")))
	events := readAll(t, l, r.ID)
	if len(events) != 3 || string(events[1].Body) != "first" || string(events[2].Body) != "second" {
		t.Errorf("got %d events: %+v", len(events), events)
	}
	e := end(4)
	must(t, l.Finish(t.Context(), finished(r, e), e))
	wantErr(t, l.Append(r.ID, 7, progress(5, "late")), call.ErrNotRunning)
	if n := len(readAll(t, l, r.ID)); n != 4 {
		t.Errorf("%d events, want 4: the end is the last", n)
	}
}

func readPages(t *testing.T, l call.Log) {
	r := create(t, l, 7)
	for seq := uint64(2); seq <= 50; seq++ {
		must(t, l.Append(r.ID, 7, progress(seq, string(make([]byte, 100)))))
	}
	for _, max := range []int{-1, 0, 1} {
		page, err := l.Read(t.Context(), r.ID, 10, max)
		must(t, err)
		if len(page) != 1 || page[0].Seq != 11 {
			t.Errorf("up to %d bytes gave %d events", max, len(page))
		}
	}
	page, err := l.Read(t.Context(), r.ID, 0, 1000)
	must(t, err)
	if len(page) < 4 || len(page) > 12 {
		t.Errorf("1000 bytes gave %d events of 100", len(page))
	}
	for _, after := range []uint64{50, 51, 1 << 40, 1<<64 - 1} {
		page, err := l.Read(t.Context(), r.ID, after, 1000)
		must(t, err)
		if len(page) != 0 {
			t.Errorf("after %d: %d events", after, len(page))
		}
	}
}

func readYourWrites(t *testing.T, l call.Log) {
	r := create(t, l, 7)
	for seq := uint64(2); seq <= 40; seq++ {
		must(t, l.Append(r.ID, 7, progress(seq, "x")))
		events, err := l.Read(t.Context(), r.ID, seq-1, 1)
		must(t, err)
		if len(events) != 1 || events[0].Seq != seq {
			t.Fatalf("event %d cannot be read: got %d", seq, len(events))
		}
		got, err := l.Get(t.Context(), r.ID)
		must(t, err)
		if got.Seq != seq {
			t.Fatalf("record says seq %d, want %d", got.Seq, seq)
		}
	}
}

func bodies(t *testing.T, l call.Log) {
	r := Record(7)
	want := []call.Event{accepted()}
	must(t, l.Create(t.Context(), r, want...))
	large := bytes.Repeat([]byte("0123456789abcde\x00"), 3<<16) // 3 MiB
	for i, body := range [][]byte{nil, {}, {0}, []byte("\xff\xfe"), large[:255<<10], large[:256<<10], large} {
		e := call.Event{Seq: uint64(i + 2), Kind: call.KindMessage, Time: now(), Hole: i - 1, Body: body}
		must(t, l.Append(r.ID, 7, e))
		want = append(want, e)
	}
	e := end(uint64(len(want) + 1))
	e.Body = large[1:]
	want = append(want, e)
	f := finished(r, e)
	f.Bytes = 12345
	must(t, l.Finish(t.Context(), f, e))
	wantEvents(t, readAll(t, l, r.ID), want...)
	got, err := l.Get(t.Context(), r.ID)
	must(t, err)
	if got.Bytes != 12345 {
		t.Errorf("bytes are %d", got.Bytes)
	}
}

func finishStoresAll(t *testing.T, l call.Log) {
	r := create(t, l, 7)
	must(t, l.Append(r.ID, 7, progress(2, "x")))
	e := end(3)
	f := finished(r, e)
	f.Dispatched, f.FirstByte = now(), now().Add(time.Millisecond)
	f.End = call.End{Outcome: call.Failed, Code: -32000, By: "agent", Limit: "idle", Text: "because"}
	e.End = &f.End
	must(t, l.Finish(t.Context(), f, e))
	got, err := l.Get(t.Context(), r.ID)
	must(t, err)
	if got.End != f.End || !got.Ended.Equal(f.Ended) || !got.Dispatched.Equal(f.Dispatched) || !got.FirstByte.Equal(f.FirstByte) ||
		got.Seq != 3 || got.Missing != 0 || got.Bytes != f.Bytes || got.Principal != r.Principal {
		t.Errorf("got  %+v\nwant %+v", *got, *f)
	}
	events := readAll(t, l, r.ID)
	if len(events) != 3 || events[2].End == nil || *events[2].End != f.End {
		t.Errorf("the end is not the last of %d events", len(events))
	}
	for _, o := range []call.Outcome{call.Completed, call.Failed, call.Cancelled, call.TimedOut, call.Interrupted} {
		r := create(t, l, 7)
		e := end(2)
		e.End = &call.End{Outcome: o}
		must(t, l.Finish(t.Context(), finished(r, e), e))
		got, err := l.Get(t.Context(), r.ID)
		must(t, err)
		if got.End.Outcome != o {
			t.Errorf("outcome %s came back as %s", o, got.End.Outcome)
		}
	}
}

func finishOnce(t *testing.T, l call.Log) {
	r := create(t, l, 7)
	for _, epoch := range []uint64{6, 8} {
		f := finished(r, end(2))
		f.Epoch = epoch
		wantErr(t, l.Finish(t.Context(), f, end(2)), call.ErrNotRunning)
	}
	got, err := l.Get(t.Context(), r.ID)
	must(t, err)
	if got.End.Outcome != call.Running {
		t.Error("another owner ended the call (I3)")
	}
	e := end(2)
	must(t, l.Finish(t.Context(), finished(r, e), e))
	again := end(3)
	again.End = &call.End{Outcome: call.Cancelled}
	wantErr(t, l.Finish(t.Context(), finished(r, again), again), call.ErrNotRunning)
	wantErr(t, l.Finish(t.Context(), finished(r, e), e), call.ErrNotRunning)
	if events := readAll(t, l, r.ID); len(events) != 2 || events[1].End.Outcome != call.Completed {
		t.Errorf("the second end left a trace (I2): %d events", len(events))
	}
	wantErr(t, l.Finish(t.Context(), finished(Record(7), e), e), call.ErrNotRunning)
}

func finishAtOnceByMany(t *testing.T, l call.Log) {
	r := create(t, l, 7)
	var wg sync.WaitGroup
	errs := make([]error, 16)
	for i := range errs {
		wg.Go(func() {
			e := end(2)
			errs[i] = l.Finish(t.Context(), finished(r, e), e)
		})
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		switch {
		case err == nil:
			won++
		case !errors.Is(err, call.ErrNotRunning):
			t.Error(err)
		}
	}
	if won != 1 {
		t.Errorf("%d ends were stored, want 1 (I2)", won)
	}
}

func gap(t *testing.T, l call.Log) {
	r := create(t, l, 7)
	must(t, l.Append(r.ID, 7, progress(2, "x")))
	must(t, l.Append(r.ID, 7, progress(5, "3 and 4 got lost")))
	page, err := l.Read(t.Context(), r.ID, 0, 1<<20)
	must(t, err)
	if len(page) != 2 {
		t.Errorf("got %d events in front of the gap, want 2", len(page))
	}
	for _, after := range []uint64{2, 3} {
		_, err = l.Read(t.Context(), r.ID, after, 1<<20)
		wantErr(t, err, call.ErrGap)
	}
	page, err = l.Read(t.Context(), r.ID, 4, 1<<20)
	must(t, err)
	if len(page) != 1 || page[0].Seq != 5 {
		t.Error("what comes after the gap cannot be read")
	}
	e := end(7) // 6 got lost too
	must(t, l.Finish(t.Context(), finished(r, e), e))
	got, err := l.Get(t.Context(), r.ID)
	must(t, err)
	if got.Missing != 3 || got.Seq != 7 {
		t.Errorf("%d missing of %d, want 3 of 7", got.Missing, got.Seq)
	}
	_, err = l.Read(t.Context(), r.ID, 5, 1<<20)
	wantErr(t, err, call.ErrGap)
}

func unknown(t *testing.T, l call.Log) {
	create(t, l, 7)
	for _, id := range []call.ID{call.NewID(), "", "c_", "%"} {
		_, err := l.Get(t.Context(), id)
		wantErr(t, err, call.ErrUnknown)
		_, err = l.Read(t.Context(), id, 0, 1)
		wantErr(t, err, call.ErrUnknown)
	}
}

func runningAndRecover(t *testing.T, l call.Log) {
	old, dispatched := create(t, l, 6), create(t, l, 6)
	ended, current := create(t, l, 6), create(t, l, 7)
	at := now()
	must(t, l.Append(dispatched.ID, 6, call.Event{Seq: 2, Kind: call.KindDispatched, Time: at, Hole: -1}))
	must(t, l.Append(dispatched.ID, 6, progress(3, "12345")))
	e := end(2)
	must(t, l.Finish(t.Context(), finished(ended, e), e))

	left, err := l.Running(t.Context(), 7)
	must(t, err)
	slices.SortFunc(left, func(a, b call.Record) int { return int(a.Seq) - int(b.Seq) })
	if len(left) != 2 || left[0].ID != old.ID || left[1].ID != dispatched.ID {
		t.Fatalf("%d calls run, want the 2 of the old owner: %v", len(left), left)
	}
	if !left[0].Dispatched.IsZero() || !left[1].Dispatched.Equal(at) || left[1].Seq != 3 || left[1].Bytes != 5 || left[1].Principal != "alice" {
		t.Errorf("got %+v\nand %+v", left[0], left[1])
	}
	for i := range left {
		r := &left[i]
		r.Seq++
		r.End, r.Ended = call.End{Outcome: call.Interrupted, Text: "lost"}, now()
		ev := call.Event{Seq: r.Seq, Kind: call.KindEnd, Time: r.Ended, Hole: -1, End: &r.End}
		must(t, l.Finish(t.Context(), r, ev))
		got, err := l.Get(t.Context(), r.ID)
		must(t, err)
		if got.End != r.End || got.Missing != 0 || !got.Dispatched.Equal(r.Dispatched) || got.Bytes != r.Bytes {
			t.Errorf("closed as %+v", *got)
		}
		if n := len(readAll(t, l, r.ID)); uint64(n) != r.Seq {
			t.Errorf("%d events, want %d", n, r.Seq)
		}
	}
	left, err = l.Running(t.Context(), 7)
	must(t, err)
	if len(left) != 0 {
		t.Errorf("%d calls run for ever", len(left))
	}
	left, err = l.Running(t.Context(), 8)
	must(t, err)
	if len(left) != 1 || left[0].ID != current.ID {
		t.Errorf("the current owner's call does not count as running for the next owner")
	}
}

func deliveries(t *testing.T, l call.Log) {
	r := create(t, l, 7)
	first := call.Delivery{
		Call: r.ID, Kind: "sse", How: call.AbortedDownstream, Era: "2025-11-25", Attached: now(),
		FirstByte: 1500 * time.Microsecond, Ended: now().Add(time.Second), Bytes: 1, Events: 2, Dropped: 3,
	}
	l.Deliver(first)
	l.Deliver(call.Delivery{Call: call.NewID(), How: call.Delivered}) // of no call: nothing happens
	e := end(2)
	must(t, l.Finish(t.Context(), finished(r, e), e))
	second := call.Delivery{Call: r.ID, Kind: "resume", How: call.Delivered, Attached: now(), Ended: now()}
	l.Deliver(second)
	reader, ok := l.(interface {
		Deliveries(context.Context, call.ID) ([]call.Delivery, error)
	})
	if !ok {
		return
	}
	got, err := reader.Deliveries(t.Context(), r.ID)
	must(t, err)
	if len(got) != 2 {
		t.Fatalf("%d deliveries, want 2", len(got))
	}
	for i, want := range []call.Delivery{first, second} {
		g := got[i]
		if !g.Attached.Equal(want.Attached) || !g.Ended.Equal(want.Ended) {
			t.Errorf("delivery %d from %s to %s, want %s to %s", i, g.Attached, g.Ended, want.Attached, want.Ended)
		}
		g.Attached, g.Ended = want.Attached, want.Ended
		if g != want {
			t.Errorf("delivery %d is %+v, want %+v", i, g, want)
		}
	}
	if _, err := reader.Deliveries(t.Context(), call.NewID()); !errors.Is(err, call.ErrUnknown) {
		t.Errorf("deliveries of no call: %v", err)
	}
}

// manyAtOnce runs calls side by side, each with a writer and a reader that
// follows it, as the engine does.
func manyAtOnce(t *testing.T, l call.Log) {
	const calls, events = 24, 60
	var wg sync.WaitGroup
	for range calls {
		wg.Go(func() {
			r := Record(7)
			if err := l.Create(t.Context(), r, accepted()); err != nil {
				t.Error(err)
				return
			}
			wg.Go(func() { follow(t, l, r.ID, events) })
			for seq := uint64(2); seq < events; seq++ {
				if err := l.Append(r.ID, 7, progress(seq, string(r.ID))); err != nil {
					t.Error(err)
				}
			}
			e := end(events)
			if err := l.Finish(t.Context(), finished(r, e), e); err != nil {
				t.Error(err)
			}
			l.Deliver(call.Delivery{Call: r.ID, How: call.Delivered})
			if got, err := l.Get(t.Context(), r.ID); err != nil || got.End.Outcome != call.Completed || got.Missing != 0 {
				t.Errorf("after the end: %+v, %v", got, err)
			}
		})
	}
	wg.Wait()
}

func follow(t *testing.T, l call.Log, id call.ID, want uint64) {
	after := uint64(0)
	for after < want {
		page, err := l.Read(t.Context(), id, after, 2000)
		if err != nil {
			t.Error(err)
			return
		}
		for _, e := range page {
			if after++; e.Seq != after {
				t.Errorf("event %d came when %d was next (I5)", e.Seq, after)
				return
			}
			if e.Kind == call.KindProgress && string(e.Body) != string(id) {
				t.Errorf("an event of another call (I6)")
			}
		}
	}
}
