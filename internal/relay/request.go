package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/longcall/longcall/internal/mcp"
)

// request is one request of the host that is under way, or a batch of them.
type request struct {
	id      []byte // raw JSON; nil for a batch
	key     string // id, comparable
	method  string
	line    []byte
	modern  bool
	batch   bool
	header  http.Header // of a modern one
	session *session    // of a legacy one, at the time it came; nil without initialize
	opens   *session    // for initialize: the session that its answer opens

	ctx  context.Context
	stop context.CancelFunc
	done chan struct{} // closed when nothing of it runs any more

	once  sync.Once
	heard chan struct{} // closed when the serve has the request; see cancel
	told  chan struct{} // closed when the serve was told of its cancel, or cannot be

	mu   sync.Mutex
	call string // id of the call that answers it, once known

	// cancelled says that no line about the request is to be written. It is no
	// part of output.mu: a host that does not read may still cancel.
	cancelled atomic.Bool

	// Of the goroutine that carries it.
	sent     bool // it may have reached a serve
	again    bool // and was sent once more after its stream was lost
	answered bool
	lastID   string // of the last event that had one
	resume   bool   // take the stream up after lastID, instead of sending it again
	progress float64
	seen     bool // progress holds a value
	acked    bool // subscriptions/listen was acknowledged
}

// slot is where the request is found by its id.
func (q *request) slot() string {
	if q.batch {
		return fmt.Sprintf("batch %p", q)
	}
	return q.key
}

func (q *request) callID() string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.call
}

func (q *request) noteHeard() { q.once.Do(func() { close(q.heard) }) }

// carry brings a request to its answer, over as many connections and serves as
// it takes.
func (r *relay) carry(q *request) {
	if q.opens != nil {
		defer q.opens.settle()
	}
	for failures := 0; !q.answered; {
		resp, t, err := r.send(q)
		if q.ctx.Err() != nil {
			if err == nil {
				resp.Body.Close()
			}
			return
		}
		var none *findError
		switch {
		case errors.As(err, &none):
			r.refuse(q, strings.TrimRight(none.Error(), ". ")+".")
			return
		case err != nil:
			if failures++; failures > maxFailures {
				r.refuse(q, fmt.Sprintf("longcall could not be reached, or broke the connection, %d times in a row. Look into its log.", failures))
				return
			}
			r.lost(t)
			if !pause(q.ctx, failures) {
				return
			}
			continue
		}
		heard, delay := r.answer(q, t, resp)
		switch {
		case q.answered || q.ctx.Err() != nil || q.cancelled.Load():
			return // a cancelled request has no answer
		case heard:
			failures = 0
		default:
			failures++
		}
		if failures > maxFailures {
			r.refuse(q, "longcall ended the answer before it was complete, several times. Look into its log.")
			return
		}
		if delay == 0 && failures > 0 {
			delay = min(firstPause<<failures, longestPause)
		}
		if !wait(q.ctx, delay) {
			return
		}
	}
}

// send posts the request, or takes its stream up again. t is what it was sent
// to, also with an error.
func (r *relay) send(q *request) (resp *http.Response, t *served, err error) {
	t, err = r.target(q.ctx)
	if err != nil {
		return nil, nil, err
	}
	method, body := http.MethodPost, q.line
	if q.resume {
		method, body = http.MethodGet, nil
	}
	h, err := r.newRequest(q.ctx, t, method, t.Path, body)
	if err != nil {
		return nil, t, &findError{err}
	}
	maps.Copy(h.Header, q.header)
	if q.resume {
		h.Header.Set(mcp.HeaderLastEvent, q.lastID)
	}
	if id := q.callID(); id != "" && !q.resume {
		h.Header.Set(headerCall, id)
	}
	if !q.modern && q.opens == nil && q.session != nil {
		if err := q.session.await(q.ctx); err != nil {
			return nil, t, err
		}
		if id, version := q.session.known(); id != "" {
			q.session.stamp(h.Header, id, version)
		}
	}
	// A cancel that overtook its request would name nothing yet.
	trace := &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) {
		time.AfterFunc(settleTime, q.noteHeard)
	}}
	resp, err = r.client.Do(h.WithContext(httptrace.WithClientTrace(q.ctx, trace)))
	var op *net.OpError
	if err == nil || !errors.As(err, &op) || op.Op != "dial" {
		q.again, q.sent = q.sent, true
	}
	if err != nil {
		return nil, t, fmt.Errorf("reach longcall: %w", err)
	}
	if id := resp.Header.Get(headerCall); id != "" {
		q.mu.Lock()
		q.call = id
		q.mu.Unlock()
	}
	q.noteHeard()
	return resp, t, nil
}

// settleTime is how long after it was sent a request whose answer has not begun
// counts as known to the serve: a buffered answer begins with its end.
const settleTime = 500 * time.Millisecond

// answer shows what came back. heard says that something did; if the request is
// not answered then, it is to be sent or resumed after delay.
func (r *relay) answer(q *request, t *served, resp *http.Response) (heard bool, delay time.Duration) {
	defer resp.Body.Close()
	kind, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	switch code := resp.StatusCode; {
	case code == http.StatusOK && kind == "text/event-stream":
		return r.stream(q, resp.Body)
	case code == http.StatusAccepted && q.batch: // of notifications only
		q.answered = true
		return true, 0
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return false, 0
	}
	m, perr := mcp.Parse(body)
	switch code := resp.StatusCode; {
	case code == http.StatusOK && (q.batch || perr == nil && m.Kind == mcp.Response):
		if q.opens != nil && m.Result.Ok() {
			r.opened(q.opens, resp.Header.Get(mcp.HeaderSession), &m)
		}
		r.finish(q, body)
	case code == http.StatusNotFound && !(perr == nil && m.Code == mcp.CodeMethodNotFound):
		// A serve that was restarted may not know our session or endpoint any more.
		return false, r.unknown(q, t, resp)
	case q.resume:
		// What is left of the stream cannot be had there: ask again.
		q.resume = false
		return false, firstPause
	case code == http.StatusServiceUnavailable:
		r.lost(t) // it is being replaced, perhaps by one at another address
		return false, retryAfter(resp.Header)
	case code == http.StatusTooManyRequests, code == http.StatusBadGateway:
		return false, retryAfter(resp.Header)
	case code == http.StatusUnauthorized && !q.again:
		r.lost(t) // the token may be a new one
		return false, firstPause
	case perr == nil && m.Kind == mcp.Response && m.ID.Ok() && idKey(m.ID.Of(body)) == q.key:
		r.finish(q, body)
	case perr == nil && m.Error.Ok():
		r.finish(q, mcp.ErrorResponse(q.id, m.Code, m.ErrText, mcp.Value(m.Error.Of(body), "data")))
	default:
		r.refuse(q, fmt.Sprintf("longcall answered with HTTP status %d, which means nothing here. Is something else listening at its address?", code))
	}
	return true, 0
}

// unknown handles a 404: the session is opened again, or the endpoint found
// again.
func (r *relay) unknown(q *request, t *served, resp *http.Response) (delay time.Duration) {
	q.resume = false
	used := resp.Request.Header.Get(mcp.HeaderSession)
	if used == "" || q.session == nil {
		r.lost(t)
		return firstPause
	}
	if err := r.renew(q.ctx, q.session, used); err != nil {
		r.lost(t)
		return firstPause
	}
	return 0
}

// retryAfter is how long a busy serve asks to wait, within reason.
func retryAfter(h http.Header) time.Duration {
	if n, err := strconv.Atoi(h.Get("Retry-After")); err == nil && n > 0 {
		return min(time.Duration(n)*time.Second, 5*time.Second)
	}
	return 500 * time.Millisecond
}

// stream shows the events of an answer as they come. When it ends without the
// response, a stream with event ids is to be resumed, another sent again.
func (r *relay) stream(q *request, body io.Reader) (heard bool, delay time.Duration) {
	q.resume = false
	in := mcp.NewSSEReader(body, maxAnswer)
	for {
		ev, err := in.Next()
		if errors.Is(err, mcp.ErrTooLarge) {
			r.refuse(q, fmt.Sprintf("The answer has a message of more than %d bytes.", maxAnswer))
			return true, 0
		}
		if err != nil {
			q.resume = q.lastID != "" && !q.modern
			return heard, delay
		}
		heard = true
		if ev.HasID {
			q.lastID = ev.ID
		}
		if ev.Retry > 0 {
			delay = ev.Retry
		}
		if ev.Comment || len(ev.Data) == 0 || ev.Name != "" && ev.Name != "message" {
			continue
		}
		if q.show(r, ev.Data) {
			return true, 0
		}
	}
}

// show writes one message of the answer; it is true for the response.
func (q *request) show(r *relay, data []byte) bool {
	m, err := mcp.Parse(data)
	if err != nil {
		r.finish(q, bytes.Clone(data)) // a batch: its array answers it
		return true
	}
	switch {
	case m.Kind == mcp.Response:
		r.finish(q, data)
		return true
	case m.Method == mcp.MethodProgress:
		if v, err := strconv.ParseFloat(string(m.Progress.Of(data)), 64); err == nil {
			if q.again && q.seen && v <= q.progress {
				return false // shown before the stream was lost (I11)
			}
			q.progress, q.seen = v, true
		}
	case m.Method == methodAcknowledged:
		if q.acked {
			r.missed(q)
			return false
		}
		q.acked = true
	}
	r.out.line(q, data)
	return false
}

const methodAcknowledged = "notifications/subscriptions/acknowledged"

// missed has the host read again what may have changed while its listen request
// was not at a serve: nothing is replayed there (SPEC §5.1).
func (r *relay) missed(q *request) {
	m, err := mcp.Parse(q.line)
	if err != nil {
		return
	}
	filter := mcp.Value(m.Params.Of(q.line), "notifications")
	if string(mcp.Value(filter, "toolsListChanged")) != "true" {
		return
	}
	r.out.line(q, []byte(`{"jsonrpc":"2.0","method":"`+mcp.MethodToolsChanged+`","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":`+string(q.id)+`}}}`))
}

// finish writes the response.
func (r *relay) finish(q *request, msg []byte) {
	q.answered = true
	r.out.line(q, msg)
}

// refuse answers a request that has no answer: a tools/call in the model's own
// words, as a result (DESIGN §2), the rest with an error.
func (r *relay) refuse(q *request, why string) {
	if q.batch {
		r.finish(q, []byte("["+string(mcp.ErrorResponse(nil, mcp.CodeInternal, why, nil))+"]"))
		return
	}
	if q.method != mcp.MethodToolsCall {
		r.finish(q, mcp.ErrorResponse(q.id, mcp.CodeInternal, why, nil))
		return
	}
	outcome, text := "denied", "Not started: "+why+" Nothing was sent to the tool server."
	if q.sent {
		outcome, text = "interrupted", "Outcome unknown: "+why+" The call may be running or have taken effect: check before you call it again."
		if id := q.callID(); id != "" {
			text += " It is call " + id + "."
		}
	}
	b := append([]byte(nil), `{"jsonrpc":"2.0","id":`...)
	b = append(append(b, q.id...), `,"result":{`...)
	if q.modern {
		b = append(b, `"resultType":"complete",`...)
	}
	b = append(append(b, `"content":[{"type":"text","text":`...), mcp.Quote(text)...)
	b = append(b, `}],"isError":true,"_meta":{"`+mcp.MetaKeyOutcome+`":{"outcome":"`+outcome+`","by":"relay"}}}}`...)
	r.finish(q, b)
}
