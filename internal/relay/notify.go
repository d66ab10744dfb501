package relay

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"time"

	"github.com/longcall/longcall/internal/mcp"
)

// queued is a notification or a response of the host.
type queued struct {
	line    []byte
	session *session
	header  http.Header // of a modern one
}

// enqueue hands a message over that gets no answer. Messages keep their order.
func (r *relay) enqueue(m *mcp.Message) {
	n := queued{line: m.Raw}
	if modern(m) {
		h, err := headers(m)
		if err != nil {
			return // a notification gets no error
		}
		n.header = h
	} else {
		r.mu.Lock()
		n.session = r.session
		r.mu.Unlock()
		if n.session == nil {
			return // of no session: nobody to tell
		}
	}
	select {
	case r.queue <- n:
	case <-r.ctx.Done():
	}
}

// post sends what was handed over, one after the other.
func (r *relay) post() {
	for {
		select {
		case n := <-r.queue:
			r.notify(r.ctx, n)
		case <-r.ctx.Done():
			return
		}
	}
}

// notify posts one message until a serve has taken it. It says whether the first
// session that it went to knew it.
func (r *relay) notify(ctx context.Context, n queued) (atOnce bool) {
	if n.session != nil && n.session.await(ctx) != nil {
		return false
	}
	for failures := 0; failures <= maxFailures; failures++ {
		if failures > 0 && !pause(ctx, failures) {
			return false
		}
		t, err := r.target(ctx)
		if err != nil {
			return false
		}
		status, known, err := r.postOnce(ctx, t, n)
		switch {
		case err != nil:
			r.lost(t)
		case status != http.StatusNotFound:
			return failures == 0
		case known == "":
			return false
		case r.renew(ctx, n.session, known) != nil:
			r.lost(t)
		}
	}
	return false
}

// postTime bounds one try to hand a message over that gets no answer: a serve
// that takes connections and says nothing must not hold up what comes after it.
const postTime = 30 * time.Second

// postOnce posts a message once. session is the id of the session that it named;
// empty if it named none.
func (r *relay) postOnce(ctx context.Context, t *served, n queued) (status int, session string, err error) {
	ctx, cancel := context.WithTimeout(ctx, postTime)
	defer cancel()
	q, err := r.newRequest(ctx, t, http.MethodPost, t.Path, n.line)
	if err != nil {
		return 0, "", err
	}
	maps.Copy(q.Header, n.header)
	if n.session != nil {
		var version string
		if session, version = n.session.known(); session != "" {
			n.session.stamp(q.Header, session, version)
		}
	}
	resp, err := r.client.Do(q)
	if err != nil {
		return 0, session, fmt.Errorf("reach longcall: %w", err)
	}
	resp.Body.Close()
	return resp.StatusCode, session, nil
}

// cancel takes the host's notifications/cancelled: nothing is written about the
// request from now on, and the call is told to stop, in both eras. One
// that names nothing under way is ignored.
func (r *relay) cancel(m *mcp.Message) {
	raw := m.RequestID.Of(m.Raw)
	if raw == nil {
		return
	}
	r.mu.Lock()
	q := r.requests[idKey(raw)]
	r.mu.Unlock()
	if q == nil || q.opens != nil { // initialize cannot be cancelled
		return
	}
	if q.cancelled.Swap(true) {
		return // once is enough
	}
	reason, _ := mcp.String(m.Reason.Of(m.Raw))
	line := bytes.Clone(m.Raw)
	r.spawn(func() { r.stopCall(q, line, reason) })
}

// stopCall cancels a request at the serve, and gives its stream the time to end
// by itself: a stream that we close looks like a host that was lost.
func (r *relay) stopCall(q *request, line []byte, reason string) {
	defer q.stop()
	told := r.tellCancel(q, line, reason)
	close(q.told)
	if !told {
		return
	}
	t := time.NewTimer(cancelTime)
	defer t.Stop()
	select {
	case <-q.done:
	case <-t.C:
	case <-r.ctx.Done():
	}
}

const cancelTime = 10 * time.Second

// tellCancel says whether somebody was told to cancel the request.
func (r *relay) tellCancel(q *request, line []byte, reason string) bool {
	select {
	case <-q.heard:
	case <-q.done:
		return false
	case <-r.ctx.Done():
		return false
	}
	if !q.modern && q.session != nil && r.notify(r.ctx, queued{line: line, session: q.session}) {
		return true
	}
	// Modern, or the session that knew the request by its id is lost.
	return q.method == mcp.MethodToolsCall && r.cancelCall(q, reason)
}

// headerWait is how long a cancel waits to hear which call it is for: an answer
// that is buffered to its end does not say so before.
const headerWait = 30 * time.Second

// cancelCall cancels the call of a request by its id.
func (r *relay) cancelCall(q *request, reason string) bool {
	deadline := time.NewTimer(headerWait)
	defer deadline.Stop()
	tick := time.NewTicker(firstPause)
	defer tick.Stop()
	for q.callID() == "" {
		select {
		case <-tick.C:
		case <-q.done:
			return true
		case <-deadline.C:
			return false // closing the stream is all that is left
		}
	}
	body, err := json.Marshal(map[string]string{"reason": reason, "by": "agent"})
	if err != nil {
		return false
	}
	for failures := range maxFailures {
		if failures > 0 && !pause(r.ctx, failures) {
			return false
		}
		t, err := r.target(r.ctx)
		if err != nil {
			return false
		}
		h, err := r.newRequest(r.ctx, t, http.MethodPost, "/api/calls/"+url.PathEscape(q.callID())+"/cancel", body)
		if err != nil {
			return false
		}
		resp, err := r.client.Do(h)
		if err != nil {
			r.lost(t)
			continue
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusNoContent || resp.StatusCode == http.StatusConflict
	}
	return false
}
