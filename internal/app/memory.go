package app

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// gcPercent lets the heap grow further between collections than Go's 100:
	// instant calls cost less. What that keeps in memory is given back by tidy.
	gcPercent = 200
	tidyEvery = 3 * time.Second
	tidyFrom  = 4 << 20 // bytes allocated between two looks: more is a burst
	// stackShifts takes the stack of a goroutine that wrote to the journal back
	// to that of one that waits.
	stackShifts = 3
)

// tidy gives memory back to the system when a burst of calls is over: thousands
// of calls may now be parked for hours, and what starting them took is garbage.
func tidy(ctx context.Context) {
	debug.SetGCPercent(gcPercent)
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	read := func() uint64 {
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	tick := time.NewTicker(tidyEvery)
	defer tick.Stop()
	last := read()
	burst := true // the start itself leaves garbage, too
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := read()
		switch {
		case now-last >= tidyFrom:
			burst = true
		case burst: // it is over: once is enough, the beats of parked calls make little garbage
			burst = false
			for range stackShifts {
				runtime.GC() // each halves the stacks that are mostly unused
			}
			debug.FreeOSMemory()
		}
		last = now
	}
}
