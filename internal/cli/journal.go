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
)

// openJournal opens the journal of a state folder to read, beside whoever
// writes it.
func openJournal(state string) (*reader, error) {
	path := app.JournalPath(state)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, exit(exitToolError, "there is no journal in %s: no longcall has served this state folder yet (another: --state DIR)", state)
	}
	return openReadOnly(path)
}

// findCall finds the one call whose id begins so.
func findCall(ctx context.Context, j *reader, prefix string) (call.ID, error) {
	if prefix == "" {
		return "", usage("name a call by its id, or by how the id begins")
	}
	ids, err := j.Find(ctx, prefix, 5)
	if err != nil {
		return "", err
	}
	switch len(ids) {
	case 0:
		return "", usage("there is no call %s; longcall calls lists them", clean(prefix))
	case 1:
		return ids[0], nil
	}
	words := make([]string, len(ids))
	for i, id := range ids {
		if id == call.ID(prefix) {
			return id, nil
		}
		words[i] = shortID(id)
	}
	return "", usage("%s is the beginning of several calls: %s. Write more of it", clean(prefix), strings.Join(words, ", "))
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
	defer j.Close()
	recs, err := j.List(ctx, filter{Since: since, Limit: 200})
	if err != nil {
		return ""
	}
	for _, r := range recs {
		if r.Traceparent != "" && traceID(r.Traceparent) == traceID(trace) {
			return r.ID
		}
	}
	return ""
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
