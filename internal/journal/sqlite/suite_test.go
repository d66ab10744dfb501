package sqlite

import (
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/call/calltest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

func open(t testing.TB, dir string, opt Options) *Journal {
	t.Helper()
	j, err := Open(t.Context(), filepath.Join(dir, "journal.db"), opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	return j
}

func TestLog(t *testing.T) {
	calltest.Log(t, func(t testing.TB) call.Log { return open(t, t.TempDir(), Options{}) })
}
