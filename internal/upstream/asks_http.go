package upstream

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// takeRequest takes a request of the server that came within the call.
func (x *exchange) takeRequest(m *mcp.Message, cursor []byte) {
	a := x.questions()
	if a == nil {
		x.c.tell(x.sess, noParent(m.ID.Of(m.Raw)))
		return
	}
	refused, why := a.request(m)
	if refused != nil {
		x.c.tell(x.sess, refused)
	}
	if why != "" {
		x.remark(cursor, "%s", asksNote(m.Method, why))
	}
	x.mu.Lock()
	x.touch()
	if refused == nil && why == "" && x.addressed && !x.tasked {
		x.keepAddress(cursor)
	}
	x.mu.Unlock()
}

// keepOpen stores what is still asked with the call's address, if it has one.
func (x *exchange) keepOpen() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.addressed && !x.tasked && !x.over {
		x.keepAddress(nil)
	}
}

// withdrawn takes a notifications/cancelled of the server.
func (x *exchange) withdrawn(m *mcp.Message) {
	id := cancelledRequest(m)
	if id == nil {
		return
	}
	x.mu.Lock()
	a := x.asks
	x.mu.Unlock()
	a.withdraw(id)
}

// questions are what the server asks within the call; nil if the call is over.
func (x *exchange) questions() *asks {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.over {
		return nil
	}
	if x.asks == nil {
		x.asks = &asks{x: x.exec, caps: []byte(x.caps), note: x.note, settled: x.keepOpen, pages: x.c.hooks.pages, say: func(ctx context.Context, b []byte) error {
			err := x.c.deliver(ctx, x.sess, b)
			x.mu.Lock()
			x.touch() // it is the server's turn again
			x.mu.Unlock()
			return err
		}}
	}
	return x.asks
}

// carried carries a call to its end, also if the server asks for input first.
func (c *httpConn) carried(ctx context.Context, x *call.Exec, e *exchange) call.Answer {
	a := e.carry(ctx, (*exchange).exchange)
	if e.question != nil {
		return c.rounds(ctx, x, e)
	}
	return a
}

// rounds makes the request again with what the agent answers, until the server has
// done it (R-72: each time under a new id).
//
//go:noinline
func (c *httpConn) rounds(ctx context.Context, x *call.Exec, e *exchange) call.Answer {
	r := &rounds{x: x, caps: e.caps, spec: e.kept, hooks: &c.hooks, pages: c.hooks.pages}
	r.place = address{URL: c.digest, Version: mcp.LatestModern}
	if !e.sess.isModern {
		r.place.Version = e.sess.version
	}
	return c.goRounds(ctx, r, e.question)
}

// goRounds asks q, and what the server asks after it.
//
//go:noinline
func (c *httpConn) goRounds(ctx context.Context, r *rounds, q *question) call.Answer {
	x := r.x
	for {
		more, end := r.next(ctx, q)
		if end != nil {
			return *end
		}
		next, refused := c.prepare(ctx, x, r.spec, more)
		switch {
		case refused != nil:
			return inRound(*refused)
		case next.old != nil:
			return inRound(failed("Not started: the tool server %q speaks another transport now.", c.s.Name))
		}
		next.round = true
		a := next.carry(ctx, (*exchange).exchange)
		if q = next.question; q == nil {
			return inRound(a)
		}
	}
}

// asksForInput takes a result that only asks.
func (x *exchange) asksForInput(m *mcp.Message) call.Answer {
	q, err := readQuestion(m.Result.Of(m.Raw))
	if err != nil {
		return interrupted("the tool server asked for input in a way that cannot be read: %v.", err)
	}
	x.question = q
	return call.Answer{}
}

// pageFirst takes an error that may say that a page has to be visited first; nil if
// it is the agent's as it is.
func (x *exchange) pageFirst(m *mcp.Message) *question {
	if x.sess.isModern || x.asTask != "" || !asksURL(x.exec, x.caps, m.Code) {
		return nil
	}
	return urlQuestion(m.Error.Of(m.Raw))
}

// askedApart takes a request that came on the session's standalone stream: it is of
// the call that is under way, if there is exactly one (SPEC §4.2).
func (c *httpConn) askedApart(sess *session, m *mcp.Message) {
	var only *exchange
	n := 0
	c.pending.Range(func(_, v any) bool {
		if x := v.(*exchange); x.sess == sess {
			only = x
			n++
		}
		return n < 2
	})
	if n == 1 && m.Method != mcp.MethodPing {
		only.takeRequest(m, nil)
		return
	}
	c.hooks.orphan(m, func(b []byte) { c.tell(sess, b) })
}

// deliverTries is how often an answer is posted that does not get through.
const deliverTries = 3

// deliver posts a message that must not be lost, and waits until the server has it.
func (c *httpConn) deliver(ctx context.Context, sess *session, body []byte) (err error) {
	for try := range deliverTries {
		if try > 0 {
			t := time.NewTimer(retryFirst << try)
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
				return ctx.Err()
			}
		}
		if err = c.deliverOnce(ctx, sess, body); err == nil || ctx.Err() != nil {
			return err
		}
		var status *statusError
		if errors.As(err, &status) && status.Status < 500 && status.Status != http.StatusTooManyRequests {
			return err
		}
	}
	return err
}

func (c *httpConn) deliverOnce(ctx context.Context, sess *session, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	resp, err := c.post(ctx, sess, "", "", body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	if resp.StatusCode/100 != 2 {
		return &statusError{Status: resp.StatusCode}
	}
	return nil
}
