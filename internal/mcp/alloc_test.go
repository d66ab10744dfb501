//go:build !race

package mcp

import "testing"

// The data path parses every message: it must leave the garbage collector
// alone. (The race detector makes sync.Pool drop things on purpose.)
func TestParseAllocatesNothing(t *testing.T) {
	raw := []byte(progressMessage)
	if n := testing.AllocsPerRun(200, func() {
		if _, err := Parse(raw); err != nil {
			t.Fatal(err)
		}
	}); n >= 1 {
		t.Errorf("%v allocations per message", n)
	}
}
