package shell

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// programs are what the test binary can be when it is started with the name as
// its first argument.
var programs = map[string]func(args []string) int{ShimCommand: Shim}

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		if run := programs[os.Args[1]]; run != nil {
			os.Exit(run(os.Args[2:]))
		}
	}
	goleak.VerifyTestMain(m)
}
