package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/longcall/longcall/internal/mcp"
)

// session is what the host's initialize opened. If the serve forgets it, the
// relay opens it again with the same message, unseen by the host.
type session struct {
	init     []byte        // the host's initialize
	ready    chan struct{} // closed when it was answered
	renewing chan struct{} // holds one token while it is being opened again

	once    sync.Once
	mu      sync.Mutex
	id      string // at the serve; empty if it gave none
	version string // negotiated
}

func (s *session) settle() { s.once.Do(func() { close(s.ready) }) }

// await waits for the answer to initialize.
func (s *session) await(ctx context.Context) error {
	select {
	case <-s.ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *session) known() (id, version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id, s.version
}

func (s *session) stamp(h http.Header, id, version string) {
	h.Set(mcp.HeaderSession, id)
	if version != "" {
		h.Set(mcp.HeaderVersion, version)
	}
}

// set takes what the answer to initialize says.
func (s *session) set(id string, m *mcp.Message) {
	version, _ := mcp.String(mcp.Value(m.Result.Of(m.Raw), "protocolVersion"))
	s.mu.Lock()
	s.id, s.version = id, version
	s.mu.Unlock()
}

// opened notes the session that the host's initialize opened, and listens on
// its stream. What came before it on the pipe is of an older session, which ends.
func (r *relay) opened(s *session, id string, m *mcp.Message) {
	s.set(id, m)
	s.settle()
	if id != "" {
		r.spawn(func() { r.listen(s) })
	}
}

// renew opens a session again that the serve does not know as stale any more.
func (r *relay) renew(ctx context.Context, s *session, stale string) error {
	select {
	case s.renewing <- struct{}{}:
		defer func() { <-s.renewing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if id, _ := s.known(); id != stale {
		return nil // somebody else has done it
	}
	t, err := r.target(ctx)
	if err != nil {
		return err
	}
	resp, err := r.send1(ctx, t, s.init, "", "")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("open the session again: %w", err)
	}
	m, err := mcp.Parse(body)
	if err != nil || !m.Result.Ok() {
		return errors.New("open the session again: longcall did not agree")
	}
	s.set(resp.Header.Get(mcp.HeaderSession), &m)
	id, version := s.known()
	if resp, err := r.send1(ctx, t, []byte(`{"jsonrpc":"2.0","method":"`+mcp.MethodInitialized+`"}`), id, version); err == nil {
		resp.Body.Close()
	}
	// The new session has seen no list: what has changed meanwhile it cannot tell.
	if bytes.Contains(body, []byte("listChanged")) {
		r.out.line(nil, []byte(`{"jsonrpc":"2.0","method":"`+mcp.MethodToolsChanged+`"}`))
	}
	return nil
}

// send1 posts a message of a session, once.
func (r *relay) send1(ctx context.Context, t *served, line []byte, id, version string) (*http.Response, error) {
	q, err := r.newRequest(ctx, t, http.MethodPost, t.Path, line)
	if err != nil {
		return nil, err
	}
	if id != "" {
		q.Header.Set(mcp.HeaderSession, id)
		q.Header.Set(mcp.HeaderVersion, version)
	}
	resp, err := r.client.Do(q)
	if err != nil {
		return nil, fmt.Errorf("reach longcall: %w", err)
	}
	return resp, nil
}

// listen reads the session's own stream, over as many connections as it takes,
// until the host is gone or has opened another session.
func (r *relay) listen(s *session) {
	last, failures := "", 0
	for failures <= maxFailures {
		r.mu.Lock()
		other := r.session != s
		r.mu.Unlock()
		if other || r.ctx.Err() != nil {
			return
		}
		t, err := r.target(r.ctx)
		if err != nil {
			return // the next request of the host hears why, and tries again
		}
		id, version := s.known()
		delay, heard, goOn := r.listenOnce(s, t, id, version, &last)
		if !goOn {
			return
		}
		if heard {
			failures = 0
		} else {
			failures++
		}
		if delay == 0 {
			delay = min(firstPause<<min(failures, 10), longestPause)
		}
		if !wait(r.ctx, delay) {
			return
		}
	}
}

func (r *relay) listenOnce(s *session, t *served, id, version string, last *string) (delay time.Duration, heard, goOn bool) {
	q, err := r.newRequest(r.ctx, t, http.MethodGet, t.Path, nil)
	if err != nil {
		return 0, false, false
	}
	s.stamp(q.Header, id, version)
	q.Header.Set("Accept", "text/event-stream")
	if *last != "" {
		q.Header.Set(mcp.HeaderLastEvent, *last)
	}
	resp, err := r.client.Do(q)
	if err != nil {
		r.lost(t)
		return comeBack, false, true
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		*last = ""
		if err := r.renew(r.ctx, s, id); err != nil {
			r.lost(t)
		}
		return 0, false, true
	case http.StatusMethodNotAllowed:
		return 0, false, false // there is no such stream
	default:
		*last = ""
		return 0, false, true
	}
	in := mcp.NewSSEReader(resp.Body, maxAnswer)
	for {
		ev, err := in.Next()
		if errors.Is(err, mcp.ErrTooLarge) {
			continue
		}
		if err != nil {
			return delay, heard, true
		}
		heard = true
		if ev.HasID {
			*last = ev.ID
		}
		if ev.Retry > 0 {
			delay = ev.Retry
		}
		if ev.Comment || len(ev.Data) == 0 || ev.Name != "" && ev.Name != "message" {
			continue
		}
		if _, err := mcp.Parse(ev.Data); err == nil {
			r.out.line(nil, ev.Data)
		}
	}
}
