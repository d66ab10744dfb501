package sqlite

import (
	"context"
	"time"

	"github.com/longcall/longcall/internal/call"
)

// Adopt implements call.Log.
func (j *Journal) Adopt(ctx context.Context, r *call.Record, from uint64) error {
	return call.ErrNotRunning
}

// Undelivered implements call.Log.
func (j *Journal) Undelivered(ctx context.Context, since time.Time, max int) ([]call.Record, error) {
	return nil, nil
}

// Owned implements call.Log.
func (j *Journal) Owned(ctx context.Context, principal string, before call.ID, max int) ([]call.Record, error) {
	return nil, nil
}
