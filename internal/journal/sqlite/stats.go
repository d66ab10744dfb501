package sqlite

import (
	"os"
	"time"
)

// Stats of a Journal, for metrics and readiness.
type Stats struct {
	QueueBytes int64         // waiting to be written
	QueueOps   int           // of creates, events, ends and deliveries
	Lag        time.Duration // age of the oldest of them

	Commits      uint64 // transactions so far
	Ops          uint64 // creates, events, ends and deliveries written so far
	LargestBatch int    // the most of them in one commit
	Dropped      uint64 // events and deliveries that were not written: the queue was full, or the database is damaged
	Failures     uint64 // commits that failed

	WALBytes  int64  // size of the write-ahead log
	DBBytes   int64  // size of the database
	BlobBytes int64  // size of the bodies beside it
	Deleted   uint64 // calls that retention deleted so far

	Failing     error // why nothing can be written now; nil if it can
	LastError   error
	LastErrorAt time.Time
}

// Stats gives the numbers as of now.
func (j *Journal) Stats() Stats {
	j.mu.Lock()
	s := j.stats
	s.QueueBytes, s.QueueOps, s.Failing = j.queued, len(j.queue), j.failed
	if len(j.queue) > 0 {
		s.Lag = time.Since(j.since)
	}
	j.mu.Unlock()
	s.BlobBytes = j.blobs.bytes.Load()
	s.DBBytes = sizeOf(j.path)
	s.WALBytes = sizeOf(j.path + "-wal")
	return s
}

func sizeOf(path string) int64 {
	fi, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return fi.Size()
}
