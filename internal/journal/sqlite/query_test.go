package sqlite

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/call/calltest"
)

// fill makes calls of two principals on two servers, every fourth of which runs.
func fill(t *testing.T, j *Journal, n int) (ids []call.ID) {
	base := time.Now().Add(-time.Hour)
	for i := range n {
		r := calltest.Record(j.Epoch())
		r.Principal = []string{"alice", "bob"}[i%2]
		r.Server = []string{"files", "search"}[i/2%2]
		r.Tool, r.PublicTool = fmt.Sprint("tool", i%3), r.Server+"__"+fmt.Sprint("tool", i%3)
		r.Started = base.Add(time.Duration(i) * time.Minute)
		must(t, j.Create(t.Context(), r, call.Event{Seq: 1, Kind: call.KindAccepted, Time: r.Started, Hole: -1}))
		if i%4 != 3 {
			finish(t, j, r, 2)
		}
		ids = append(ids, r.ID)
	}
	return ids
}

func TestList(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{})
	ids := fill(t, j, 40)
	ro, err := OpenReadOnly(j.path)
	must(t, err)
	defer ro.Close()
	start := time.Now().Add(-time.Hour)
	for _, tt := range []struct {
		name string
		f    Filter
		want func(i int) bool
		max  int
	}{
		{"all", Filter{}, func(int) bool { return true }, 40},
		{"limit", Filter{Limit: 3}, func(i int) bool { return i >= 37 }, 3},
		{"principal", Filter{Principal: "bob"}, func(i int) bool { return i%2 == 1 }, 20},
		{"nobody", Filter{Principal: "eve"}, func(int) bool { return false }, 0},
		{"server", Filter{Server: "search"}, func(i int) bool { return i/2%2 == 1 }, 20},
		{"tool", Filter{Tool: "tool1"}, func(i int) bool { return i%3 == 1 }, 13},
		{"public tool", Filter{Tool: "files__tool1"}, func(i int) bool { return i%3 == 1 && i/2%2 == 0 }, 7},
		{"outcome", Filter{Outcome: call.Completed}, func(i int) bool { return i%4 != 3 }, 30},
		{"other outcome", Filter{Outcome: call.Denied}, func(int) bool { return false }, 0},
		{"running", Filter{RunningOnly: true}, func(i int) bool { return i%4 == 3 }, 10},
		{"since", Filter{Since: start.Add(30*time.Minute - 30*time.Second)}, func(i int) bool { return i >= 30 }, 10},
		{"before", Filter{Before: start.Add(10*time.Minute - 30*time.Second)}, func(i int) bool { return i < 10 }, 10},
		{"all at once", Filter{Principal: "bob", Server: "search", RunningOnly: true, Limit: 2}, func(i int) bool { return i == 39 || i == 35 }, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var want []call.ID
			for i := len(ids) - 1; i >= 0; i-- {
				if tt.want(i) {
					want = append(want, ids[i])
				}
			}
			if len(want) != tt.max {
				t.Fatalf("the test wants %d, not %d", len(want), tt.max)
			}
			for who, list := range map[string]func() ([]call.Record, error){
				"owner":  func() ([]call.Record, error) { return j.List(t.Context(), tt.f) },
				"reader": func() ([]call.Record, error) { return ro.List(t.Context(), tt.f) },
			} {
				records, err := list()
				must(t, err)
				var got []call.ID
				for _, r := range records {
					got = append(got, r.ID)
				}
				if !slices.Equal(got, want) {
					t.Errorf("%s: got %d calls, want %d: newest first", who, len(got), len(want))
				}
			}
		})
	}
	if _, err := j.List(t.Context(), Filter{Outcome: "splendid"}); err == nil {
		t.Error("an outcome that is none is listed")
	}
}

func TestFind(t *testing.T) {
	j := open(t, t.TempDir(), Options{})
	ids := fill(t, j, 40)
	m := maintenance(t, j)
	for _, indexed := range []bool{false, true} {
		if indexed {
			must(t, m.index(t.Context()))
			if n := number1(t, j, "SELECT count(*) FROM ids"); n != 40 || len(j.recents) != 0 {
				t.Fatalf("%d ids are indexed, %d are recent", n, len(j.recents))
			}
		}
		for _, id := range ids {
			for _, prefix := range []string{string(id), string(id[2:]), string(id[:18]), " " + string(id[2:18]) + "\n"} {
				got, err := j.Find(t.Context(), prefix)
				must(t, err)
				if got != id {
					t.Errorf("%q finds %s, want %s", prefix, got, id)
				}
			}
			got, err := j.Get(t.Context(), id)
			must(t, err)
			if got.ID != id {
				t.Errorf("got %s, want %s", got.ID, id)
			}
		}
		for _, prefix := range []string{"", "c_"} {
			if _, err := j.Find(t.Context(), prefix); err == nil || errors.Is(err, call.ErrUnknown) {
				t.Errorf("%q: %v", prefix, err)
			}
		}
		for _, prefix := range []string{"c_0", "%", "c_%", "'", string(call.NewID())} {
			if _, err := j.Find(t.Context(), prefix); !errors.Is(err, call.ErrUnknown) {
				t.Errorf("%q: %v", prefix, err)
			}
		}
	}
}

// TestReadOnly reads a journal from outside, while its owner writes it and
// after.
func TestReadOnly(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{})
	r := create(t, j)
	check := func() {
		t.Helper()
		ro, err := OpenReadOnly(filepath.Join(dir, "journal.db"))
		must(t, err)
		defer ro.Close()
		got, err := ro.Get(t.Context(), r.ID)
		must(t, err)
		events, err := ro.Read(t.Context(), r.ID, 0, 1<<20)
		must(t, err)
		if len(events) != int(got.Seq) {
			t.Errorf("%d events, want %d", len(events), got.Seq)
		}
		id, err := ro.Find(t.Context(), string(r.ID[:20]))
		must(t, err)
		if _, err := ro.Deliveries(t.Context(), id); err != nil {
			t.Error(err)
		}
		if _, err := ro.Get(t.Context(), call.NewID()); !errors.Is(err, call.ErrUnknown) {
			t.Error(err)
		}
		err = ro.pool.with(t.Context(), func(c *reader) error { return c.c.exec("DELETE FROM calls") })
		if err == nil {
			t.Error("a reader can write")
		}
	}
	check()
	epoch := j.Epoch()
	finish(t, j, r, 2)
	check()
	must(t, j.Close())
	check()
	if next := open(t, dir, Options{}); next.Epoch() != epoch+1 {
		t.Errorf("reading changed the epoch from %d to %d", epoch, next.Epoch()-1)
	}
	check()
}

// TestIndexCollides: calls whose ids share the indexed bits are told apart.
func TestIndexCollides(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{})
	var ids []call.ID
	for i := range 5 {
		r := calltest.Record(j.Epoch())
		r.ID = call.ID(fmt.Sprintf("c_abcdefghijkl%c", 'a'+i))
		ids = append(ids, r.ID)
		must(t, j.Create(t.Context(), r, call.Event{Seq: 1, Kind: call.KindAccepted, Time: time.Now(), Hole: -1}))
	}
	m := maintenance(t, j)
	must(t, m.index(t.Context()))
	ask(t, j, "UPDATE owner SET indexed = 0") // as if a crash had come before
	must(t, j.Close())
	j = open(t, dir, Options{})
	if n := number1(t, j, "SELECT count(*) FROM ids"); n != 5 {
		t.Errorf("%d entries", n)
	}
	for _, id := range ids {
		got, err := j.Get(t.Context(), id)
		must(t, err)
		found, err := j.Find(t.Context(), string(id))
		must(t, err)
		if got.ID != id || found != id {
			t.Errorf("got %s and found %s, want %s", got.ID, found, id)
		}
	}
	if _, err := j.Find(t.Context(), "abcdefghijkl"); err == nil || errors.Is(err, call.ErrUnknown) {
		t.Errorf("find: %v", err)
	}
	if _, err := j.Get(t.Context(), "c_abcdefghijklz"); !errors.Is(err, call.ErrUnknown) {
		t.Errorf("get: %v", err)
	}
	must(t, j.do(t.Context(), opTask, func(w *writer) error { return w.forget(2, ids[1]) }))
	if _, err := j.Get(t.Context(), ids[1]); !errors.Is(err, call.ErrUnknown) {
		t.Errorf("get: %v", err)
	}
	if _, err := j.Get(t.Context(), ids[2]); err != nil {
		t.Error(err)
	}
}

// TestAsks: the last of a call's ask and answer events says whether it waits.
func TestAsks(t *testing.T) {
	j := open(t, t.TempDir(), Options{})
	r := calltest.Record(j.Epoch())
	must(t, j.Create(t.Context(), r, call.Event{Seq: 1, Kind: call.KindAccepted, Time: r.Started, Hole: -1}))
	ro, err := OpenReadOnly(j.path)
	must(t, err)
	defer ro.Close()
	seq := uint64(1)
	for _, step := range []struct {
		kind  call.Kind
		body  string
		waits bool
	}{
		{call.KindNote, "nothing yet", false},
		{call.KindAsk, `{"a":{},"b":{}}`, true},
		{call.KindNote, "still", true},
		{call.KindAnswer, `["a"]`, false},
		{call.KindAsk, `{"b":{}}`, true},
		{call.KindAsk, `{}`, false},
	} {
		seq++
		must(t, j.Append(r.ID, j.Epoch(), call.Event{Seq: seq, Kind: step.kind, Time: time.Now(), Hole: -1, Body: []byte(step.body)}))
		if _, err := j.Read(t.Context(), r.ID, 0, 1<<20); err != nil { // written by then
			t.Fatal(err)
		}
		if got, err := ro.Asks(t.Context(), r.ID); err != nil || got != step.waits {
			t.Errorf("after %s %s: %v %v", step.kind, step.body, got, err)
		}
	}
}
