//go:build chaos && unix

package sqlite

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// LONGCALL_CRASH_AT=op:7 kills the process as soon as the journal has taken its
// 7th op, and commit:7 right after its 7th commit.
func init() {
	at, number, ok := strings.Cut(os.Getenv("LONGCALL_CRASH_AT"), ":")
	n, err := strconv.ParseInt(number, 10, 64)
	if !ok || err != nil {
		return
	}
	var seen atomic.Int64
	crashPoint = func(what string) {
		if what == at && seen.Add(1) == n {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // it cannot fail on oneself
		}
	}
}
