package app

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"
)

// usage counts the requests of an App that ends when nobody needs it.
type usage struct {
	open  atomic.Int64  // now
	total atomic.Uint64 // ever
}

// counted counts what passes through h, if somebody needs to know.
func (a *App) counted(h http.Handler) http.Handler {
	if a.opt.IdleExit <= 0 {
		return h
	}
	u := &a.usage
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u.open.Add(1)
		u.total.Add(1)
		defer u.open.Add(-1)
		h.ServeHTTP(w, r)
	})
}

// untilIdle returns when for that time no request was open, no call ran and none
// came, or when ctx is done. A relay that is there holds a request open.
func (a *App) untilIdle(ctx context.Context, after time.Duration) {
	tick := time.NewTicker(max(after/20, time.Millisecond))
	defer tick.Stop()
	last, since := a.usage.total.Load(), time.Now()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		now := a.usage.total.Load()
		if now != last || a.usage.open.Load() > 0 || a.engine.InFlight() > 0 {
			last, since = now, time.Now()
			continue
		}
		if time.Since(since) >= after {
			return
		}
	}
}
