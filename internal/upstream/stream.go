package upstream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

const (
	resumeFirst = 100 * time.Millisecond // before the first resume, if the server asked for nothing else
	resumeMax   = 10 * time.Second
	// resumeFor bounds resuming, and waiting for a server that answers no ping,
	// where the call has no idle limit.
	resumeFor = 5 * time.Minute
)

// stream reads the call's event stream to its answer, and resumes it where it
// breaks and the server numbered its events.
func (x *exchange) stream(ctx context.Context, body io.ReadCloser) call.Answer {
	pause := resumeFirst
	for {
		done, news, err := x.events(body)
		if done {
			x.rest = body
			return x.ended
		}
		body.Close()
		if x.stops(ctx) {
			return x.ended
		}
		if x.sess.isModern || x.lastID == "" {
			return x.lost(ctx, err)
		}
		if news {
			pause = resumeFirst
		}
		resp := x.resume(ctx, err, &pause) //nolint:bodyclose // closed when it breaks, or drained after the answer
		if resp == nil {
			return x.ended
		}
		body = resp.Body
	}
}

// stops says whether reading is to end, with the answer in x.ended.
//
//go:noinline
func (x *exchange) stops(ctx context.Context) (ok bool) {
	x.ended, ok = x.stopped(ctx)
	return ok
}

// events reads one response until the answer, which it leaves in x.ended, or
// until it breaks. news says whether anything came.
func (x *exchange) events(body io.Reader) (done, news bool, err error) {
	r := mcp.NewSSEReader(body, int(x.limit()))
	for {
		ev, err := r.Next()
		var cursor []byte // the id of this event, if it has one of its own
		if id := r.LastID(); id != "" && id != x.lastID {
			x.lastID, cursor = id, []byte(id)
			x.numbered.Store(true)
		}
		if err != nil {
			long, answer := x.long(err, cursor)
			switch {
			case answer:
				return true, true, nil
			case !long:
				return false, news, err
			}
			ev = mcp.SSEvent{} // its id and its retry count all the same
		}
		x.sess.alive()
		if ev.Comment {
			continue // life of the connection, not of the work
		}
		if ev.Retry > 0 {
			x.retry = ev.Retry
		}
		// Also a priming event: a server that closes on purpose after it is not
		// failing, and says itself when to come back (O14).
		news = true
		if len(ev.Data) > 0 && x.data(ev.Data, cursor) {
			return true, true, nil
		}
		x.address(cursor)
	}
}

// long takes an event that was too large to read; it says whether err was that,
// and whether the event was the answer.
//
//go:noinline
func (x *exchange) long(err error, cursor []byte) (long, answer bool) {
	var ev *mcp.LongEvent
	if !errors.As(err, &ev) {
		return false, false
	}
	if x.isAnswer(ev.Head) {
		x.ended = tooLarge(x.limit())
		return true, true
	}
	x.mu.Lock()
	x.touch()
	x.mu.Unlock()
	x.remark(cursor, "%s", skipped(x.limit()))
	return true, false
}

// messages are lent to who reads one: a Message is too large for the stacks of
// thousands of parked calls.
var messages = sync.Pool{New: func() any { return new(mcp.Message) }}

func giveMessage(m *mcp.Message) {
	*m = mcp.Message{}
	messages.Put(m)
}

// data takes the data of one event. It is apart from events, which is on the
// stack of every parked call.
//
//go:noinline
func (x *exchange) data(b, cursor []byte) (done bool) {
	m := messages.Get().(*mcp.Message)
	defer giveMessage(m)
	if err := mcp.ParseInto(m, b); err != nil {
		x.remark(cursor, "The tool server sent an event that is no JSON-RPC message; it was skipped: %v", err)
		return false
	}
	x.ended, done = x.take(m, cursor)
	return done
}

// isAnswer says whether a message that begins like this is the call's answer.
// If it does not tell, it is: what else would be that large?
func (x *exchange) isAnswer(head []byte) bool {
	d := jsontext.NewDecoder(bytes.NewReader(head))
	if t, err := d.ReadToken(); err != nil || t.Kind() != '{' {
		return false // no message at all
	}
	for {
		name, err := d.ReadToken()
		if err != nil || name.Kind() != '"' {
			return true
		}
		member := name.String()
		if member == "method" {
			return false
		}
		v, err := d.ReadValue()
		if err != nil {
			return true
		}
		if id, ok := mcp.String(v); ok && member == "id" {
			return id == x.id
		}
	}
}

// take handles one message of the call's stream. What it emits gets the cursor,
// the id of the message's event: a process after ours goes on from there.
func (x *exchange) take(m *mcp.Message, cursor []byte) (a call.Answer, done bool) {
	switch {
	case m.Kind == mcp.Response:
		if sameID(m, x.id) {
			return x.answer(m), true
		}
		return a, false // a replay of another call's (server-everything does this)
	case m.Kind == mcp.Request:
		if x.sess.isModern {
			x.remark(cursor, "The tool server sent the request %s, which its era of the protocol does not allow; it was ignored.", printable([]byte(m.Method)))
			return a, false
		}
		x.takeRequest(m, cursor)
		return a, false
	case m.Method == mcp.MethodCancelled:
		x.withdrawn(m)
		return a, false
	case m.Method == mcp.MethodProgress:
		token, _ := mcp.String(m.ProgressToken.Of(m.Raw))
		if token == x.id {
			x.progress(m, cursor)
		} else if other, ok := x.c.pending.Load(token); ok {
			other.(*exchange).progress(m, nil)
		}
		return a, false // a token that we never gave is nobody's (O6)
	case x.c.hooks.told(m):
		return a, false
	case m.Method == methodTaskStatus:
		x.c.tasks.word(m)
		return a, false
	}
	if m.Method == mcp.MethodElicited {
		x.c.hooks.pages.done(m)
	}
	x.message(m, cursor)
	return a, false
}

// message hands another notification to the call, unless it has its result. cursor
// is nil if it came on the standalone stream.
func (x *exchange) message(m *mcp.Message, cursor []byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.over {
		return
	}
	x.touch()
	if l := x.limit(); l > 0 && int64(len(m.Raw)) > l { // the standalone stream has the limit of the server
		x.exec.Note("%s", skipped(l))
		return
	}
	if err := x.exec.Emit(call.Event{Kind: call.KindMessage, Body: mcp.OneLine(bytes.Clone(m.Raw)), Hole: -1, Cursor: cursor}); err != nil {
		x.abort(err)
	}
}

// resume opens the stream again after the last whole event, with back-off
// inside the call's limits (P2, P4, O14). Without a response, x.ended has the
// answer.
func (x *exchange) resume(ctx context.Context, why error, pause *time.Duration) *http.Response {
	if cause := context.Cause(x.read); cause != nil {
		why = cause
	}
	x.mu.Lock()
	x.broken = true
	x.mu.Unlock()
	for {
		wait := *pause + rand.N(*pause/4+1)
		if x.retry > 0 && *pause == resumeFirst {
			wait = min(x.retry, time.Minute)
		}
		*pause = min(2**pause, resumeMax)
		x.reading()
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-x.read.Done():
		case <-ctx.Done():
		}
		timer.Stop()
		if x.stops(ctx) {
			return nil
		}
		req, err := http.NewRequestWithContext(x.read, http.MethodGet, x.c.s.URL, http.NoBody)
		if err != nil {
			x.ended = x.lost(ctx, err)
			return nil
		}
		x.c.header(req, x.sess)
		req.Header["Accept"] = []string{"text/event-stream"}
		req.Header[mcp.HeaderLastEvent] = []string{x.lastID}
		cancel := x.cancelRead // nobody else sets it
		late := time.AfterFunc(pingTime, func() { cancel(errUnanswered) })
		resp, err := x.c.client.Do(req)
		late.Stop()
		switch {
		case err != nil:
			if x.stops(ctx) {
				return nil
			}
			continue
		case resp.StatusCode == http.StatusOK && mediaType(resp) == "text/event-stream":
			x.mu.Lock()
			again := x.resumed
			x.broken, x.resumed = false, true
			x.mu.Unlock()
			if !again {
				x.note("%s", resumedNote(why))
			}
			x.c.hooks.Reconnected("resumed")
			return resp
		case resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusRequestTimeout,
			resp.StatusCode == http.StatusConflict: // it has not noticed that the last stream broke
			resp.Body.Close()
			continue
		}
		resp.Body.Close()
		if resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusBadRequest {
			x.sess.suspect.Store(true) // it may not know the session: the next call asks first
		}
		x.c.hooks.Reconnected("lost")
		x.gone = true
		x.ended = interrupted("the tool server's stream broke (%v) and it refused to resume it (HTTP %d).", rootCause(why), resp.StatusCode)
		return nil
	}
}
