package sqlite

import (
	"time"

	lib "modernc.org/sqlite/lib"
)

// maintain is the goroutine of what is not urgent: checkpoints, retention,
// idle connections.
func (j *Journal) maintain() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			j.pool.trim(30 * time.Second)
			c, err := openConn(j.path, openWriter)
			if err == nil {
				c.checkpoint(lib.SQLITE_CHECKPOINT_PASSIVE)
				c.close()
			}
		case <-j.quit:
			return
		}
	}
}

// Stats of a Journal, for metrics.
type Stats struct {
	QueueBytes   int64
	Commits      uint64
	Ops          uint64
	LargestBatch int
	Dropped      uint64
	LastError    error
	LastErrorAt  time.Time
}
