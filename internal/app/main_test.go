package app

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/longcall/longcall/internal/shell"
)

// TestMain is also the shim of commands that tests start.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == shell.ShimCommand {
		os.Exit(shell.Shim(os.Args[2:]))
	}
	goleak.VerifyTestMain(m)
}
