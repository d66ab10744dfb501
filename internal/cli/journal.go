package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/longcall/longcall/internal/app"
	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/cli/client"
	"github.com/longcall/longcall/internal/journal/sqlite"
)

// openJournal opens the journal of a state folder to read, beside whoever
// writes it.
func openJournal(state string) (*sqlite.Reader, error) {
	path := app.JournalPath(state)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, exit(exitToolError, "there is no journal in %s: no longcall has served this state folder yet (another: --state DIR)", state)
	}
	return sqlite.OpenReadOnly(path)
}

// closeJournal closes what was only read: nothing can be lost.
func closeJournal(j *sqlite.Reader) { _ = j.Close() }

// findCall finds the one call whose id begins so.
func findCall(ctx context.Context, j *sqlite.Reader, prefix string) (call.ID, error) {
	if prefix == "" {
		return "", usage("name a call by its id, or by how the id begins")
	}
	id, err := j.Find(ctx, prefix)
	switch {
	case errors.Is(err, call.ErrUnknown):
		return "", usage("there is no call %s; longcall calls lists them", clean(prefix))
	case err != nil:
		return "", &exitError{exitUsage, err}
	}
	return id, nil
}

// eachCall hands f the calls of a filter, newest first, until f says that it
// has enough. It reads them page by page: a journal can be long.
func eachCall(ctx context.Context, j *sqlite.Reader, f sqlite.Filter, want func(*call.Record) (bool, error)) error {
	// Calls are in the order of acceptance, which differs from that of their
	// start by an instant. So pages overlap, and what was seen is passed over.
	const overlap = time.Second
	seen := map[call.ID]bool{}
	for f.Limit = page; ; {
		part, err := j.List(ctx, f)
		if err != nil {
			return err
		}
		fresh := map[call.ID]bool{}
		for i := range part {
			r := &part[i]
			if fresh[r.ID] = true; seen[r.ID] {
				continue
			}
			if more, err := want(r); err != nil || !more {
				return err
			}
		}
		if len(part) < f.Limit {
			return nil
		}
		before := part[len(part)-1].Started.Add(overlap)
		if !f.Before.IsZero() && !before.Before(f.Before) {
			f.Limit *= 4 // more calls in the overlap than a page has
		}
		f.Before = before
		if f.Limit == page {
			seen = fresh
			continue
		}
		for id := range fresh {
			seen[id] = true
		}
	}
}

// callID finds a call of the gateway by the trace that it was made with. It is
// empty if the gateway's journal is not on this machine, or has no such call.
func callID(ctx context.Context, g *gateway, trace string, since time.Time) call.ID {
	if g.state == "" {
		return ""
	}
	j, err := openJournal(g.state)
	if err != nil {
		return ""
	}
	defer closeJournal(j)
	var id call.ID
	err = eachCall(ctx, j, sqlite.Filter{Since: since}, func(r *call.Record) (bool, error) {
		if r.Traceparent != "" && traceID(r.Traceparent) == traceID(trace) {
			id = r.ID
		}
		return id == "", nil
	})
	if err != nil {
		return ""
	}
	return id
}

// cancel tells the gateway to cancel a call.
func (g *gateway) cancel(ctx context.Context, id call.ID, reason string) error {
	body, err := json.Marshal(map[string]string{"reason": reason})
	if err != nil {
		return err
	}
	url := g.url + "/api/calls/" + string(id) + "/cancel"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(string(body)))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if g.token != "" {
		req.Header.Set("Authorization", "Bearer "+g.token)
	}
	resp, err := client.NewHTTP().Do(req)
	if err != nil {
		return &exitError{exitUnreachable, fmt.Errorf("cannot reach longcall at %s: %w", g.url, err)}
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusNoContent:
		return nil
	case http.StatusNotFound:
		return exit(exitToolError, "longcall at %s knows no call %s of this token", g.url, shortID(id))
	case http.StatusConflict:
		return exit(exitToolError, "the call %s has ended already; see longcall calls show %s", shortID(id), shortID(id))
	}
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 300))
	return exit(exitToolError, "longcall refused to cancel: %s %s", resp.Status, clean(strings.TrimSpace(string(text))))
}
