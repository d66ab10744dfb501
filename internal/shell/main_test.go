package shell

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// The test binary is a shim, too, when it is started as one.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == ShimCommand {
		os.Exit(Shim(os.Args[2:]))
	}
	goleak.VerifyTestMain(m)
}
