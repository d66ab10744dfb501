package calltest_test

import (
	"errors"
	"testing"

	"go.uber.org/goleak"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/call/calltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemory(t *testing.T) {
	calltest.Log(t, func(testing.TB) call.Log { return calltest.NewMemory() })
}

func TestMemoryFails(t *testing.T) {
	m := calltest.NewMemory()
	broken := errors.New("broken")
	m.Fail(func(op string) error {
		if op == "create" {
			return broken
		}
		return nil
	})
	r := calltest.Record(1)
	if err := m.Create(t.Context(), r); !errors.Is(err, broken) {
		t.Errorf("create: %v", err)
	}
	m.Fail(nil)
	if err := m.Create(t.Context(), r); err != nil {
		t.Errorf("create after healing: %v", err)
	}
}

func TestMemoryCrash(t *testing.T) {
	m := calltest.NewMemory()
	r := calltest.Record(1)
	if err := m.Create(t.Context(), r, call.Event{Seq: 1, Kind: call.KindAccepted}); err != nil {
		t.Fatal(err)
	}
	for seq := uint64(2); seq <= 5; seq++ {
		if err := m.Append(r.ID, 1, call.Event{Seq: seq, Kind: call.KindNote}); err != nil {
			t.Fatal(err)
		}
		if seq == 3 {
			m.Sync()
		}
	}
	m.Crash()
	got, err := m.Read(t.Context(), r.ID, 0, 1<<20)
	if err != nil || len(got) != 3 {
		t.Errorf("%d events survive, want 3 (%v)", len(got), err)
	}
}
