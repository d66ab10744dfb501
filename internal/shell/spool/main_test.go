package spool

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain is also the process that writes for TestReadersBesideAWriter.
func TestMain(m *testing.M) {
	if dir := os.Getenv("SPOOL_FLOOD"); dir != "" {
		if err := flood(dir, floodTotal); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}
