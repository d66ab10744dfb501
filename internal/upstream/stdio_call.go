package upstream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// call carries one call. ok is false if the process ended before anything left
// for it, or if the request only reads: then it may be sent to the next one.
//
// The call has no address: the process is ours and dies with us, so a call that
// a crash of ours leaves behind ends as interrupted.
func (w *wire) call(ctx context.Context, x *call.Exec, every time.Duration) (a call.Answer, ok bool) {
	r := &rounds{x: x, caps: x.Spec.Capabilities, pages: w.hooks.pages}
	if len(x.Spec.Request) <= maxKept && (w.modern || pageMayCome(x.Spec)) {
		kept := *x.Spec
		r.spec = &kept
	}
	spec, leaves, more := x.Spec, x.Dispatched, []mcp.Member(nil)
	for {
		a, q, ok := w.once(ctx, x, every, spec, leaves, more)
		if q == nil {
			if r.n > 0 {
				a, ok = inRound(a), true
			}
			return a, ok
		}
		var end *call.Answer
		if more, end = r.next(ctx, q); end != nil {
			return *end, true
		}
		spec, leaves = r.spec, x.Again
	}
}

// once makes the request once. q is what the server asks, if it only asks.
func (w *wire) once(ctx context.Context, x *call.Exec, every time.Duration, spec *call.Spec, leaves func() error, more []mcp.Member) (a call.Answer, q *question, ok bool) {
	p := w.expect(x)
	defer w.forget(p)
	if w.canTask && x.Spec.Method == "" {
		// A task is no gain where the tool may do without: the process ends with us.
		p.asTask = w.hooks.legacyTask(ctx, x.Spec.Tool, false)
	}
	message, err := outgoingCall(spec, p.id, p.token, w.modern, w.hooks.logLevel(spec), taskTTL(p.asTask, x.Limits.Total))
	if err == nil && more == nil {
		more, err = goesOn(spec, w.modern)
	}
	if err == nil {
		message, err = withMembers(message, more)
	}
	if err != nil {
		return failed("Not started: the request cannot be passed on: %v. Nothing was sent.", err), nil, true
	}
	if err := w.out.put(p.id, message, leaves); err != nil {
		switch {
		case errors.Is(err, errOver) && more != nil:
			return failed("Not started: %v. Nothing was sent.", err), nil, true
		case errors.Is(err, errOver):
			return a, nil, false
		case ctx.Err() != nil:
			return a, nil, true
		}
		return failed("Not started: %v. Nothing was sent.", err), nil, true
	}
	for _, limit := range []time.Duration{x.Limits.FirstByte, x.Limits.Idle} {
		if limit > 0 {
			every = min(every, limit/3) // a server gets the chance to answer before it counts as silent
		}
	}
	t := &clock{w: w, p: p, limits: x.Limits, every: every, sent: w.since()}
	timer := time.NewTimer(t.next())
	defer timer.Stop()
	for {
		select {
		case <-p.wake:
			r, stop := p.got()
			if r != nil {
				return w.finish(ctx, x, p, r), p.question, true
			}
			return w.stopped(p, stop), nil, true
		case <-w.ended:
			if r, _ := p.got(); r != nil {
				return w.finish(ctx, x, p, r), p.question, true
			}
			return w.lost(), nil, !readsOnly(x.Spec)
		case <-ctx.Done():
			return w.cancelled(ctx, x, p), nil, true
		case <-timer.C:
			if limit := t.hit(); limit != "" {
				if r, _ := p.got(); r != nil {
					return w.finish(ctx, x, p, r), p.question, true
				}
				return w.overdue(p, limit, x.Limits), nil, true
			}
			timer.Reset(t.next())
		}
	}
}

// lost is the answer for a call whose process has ended.
func (w *wire) lost() call.Answer {
	a := interrupted("%s while the call ran. It is started again at its next use.", w.cause)
	a.Text += w.tail
	return a
}

// answer makes the call's end out of the response.
func (w *wire) answer(x *call.Exec, r *response) call.Answer {
	switch {
	case r.unsent != nil:
		return r.unsent.answer
	case r.tooLarge:
		if l := x.Limits.Message; l > 0 && l < w.limit {
			return tooLarge(l)
		}
		return tooLarge(w.limit)
	case r.trouble != "":
		return failed("The tool server %q ended the call, but %s. The tool did run.", w.name, r.trouble)
	case r.kind != "" && r.kind != "complete" && !(r.kind == mcp.ResultInput && w.modern):
		return unfinished(r.kind)
	case x.Limits.Message > 0 && r.size > x.Limits.Message:
		return tooLarge(x.Limits.Message)
	}
	if err := x.Count(int64(len(r.body))); err != nil {
		var cause *call.Cause
		if errors.As(err, &cause) {
			return call.Answer{End: cause.End}
		}
	}
	a := call.Answer{Body: r.body, Hole: r.hole}
	switch {
	case r.failed && r.code == codeCancelled:
		return cancelledThere()
	case r.failed && w.modern && malformed(r.code):
		return refusedForm(w.name, r.code, r.text)
	case r.failed:
		a.Outcome, a.Code = call.Failed, r.code
	default:
		a.Outcome, a.ToolError = call.Completed, r.toolError
	}
	return a
}

// tellCancel tells the server to stop the request. It is false if the
// request had not left yet and was taken back.
func (w *wire) tellCancel(p *waiter, reason string) bool {
	if w.out.takeBack(p.id) {
		return false
	}
	w.send(outgoingCancel(p.id, reason))
	return true
}

// stopped ends a call whose record takes no more.
func (w *wire) stopped(p *waiter, err error) call.Answer {
	w.tellCancel(p, "a limit of longcall was reached")
	var cause *call.Cause
	if errors.As(err, &cause) {
		return call.Answer{End: cause.End}
	}
	return interrupted("longcall could not record what came: %v.", err)
}

// overdue ends a call that hit a time limit.
func (w *wire) overdue(p *waiter, limit string, l call.Limits) call.Answer {
	after, what := l.Idle, "no progress, no message and no answer to a ping"
	if limit == "first_byte" {
		after, what = l.FirstByte, "no answer, no progress and no answer to a ping"
	}
	if !w.tellCancel(p, "limits."+limit+" of longcall was reached") {
		return timedOut(limit, after, fmt.Sprintf("the tool server %q takes no request, so the call never left and had no effect", w.name))
	}
	return timedOut(limit, after, fmt.Sprintf(
		"%s came from the tool server %q; it was told to cancel, but the call may have taken effect, so check before you call it again; a tool that works this long in silence needs a higher limit", what, w.name))
}

// cancelled passes the cancel on at once and waits shortly for a late answer.
// An error that comes now only confirms the cancel: it is for the record, and
// not what the call ends with.
func (w *wire) cancelled(ctx context.Context, x *call.Exec, p *waiter) call.Answer {
	if r, _ := p.got(); r != nil {
		return w.finish(ctx, x, p, r)
	}
	if isLeft(ctx) {
		return call.Answer{}
	}
	reason, asked := "longcall ended the call", false
	var cause *call.Cause
	if errors.As(context.Cause(ctx), &cause) {
		asked = cause.End.Outcome == call.Cancelled
		switch {
		case asked && cause.End.By != "":
			reason = "cancelled by " + cause.End.By
		case cause.End.Limit != "":
			reason = "limits." + cause.End.Limit + " of longcall was reached"
		}
	}
	if !w.tellCancel(p, reason) {
		x.Note("The request had not left for the tool server, which takes none now; it was taken back.")
		return call.Answer{}
	}
	t := time.NewTimer(linger)
	defer t.Stop()
	for {
		select {
		case <-p.wake:
			r, _ := p.got()
			if r == nil {
				continue
			}
			if a := w.finish(ctx, x, p, r); a.Body != nil && (asked || a.Outcome == call.Completed) {
				return a
			}
		case <-w.ended:
		case <-t.C:
		}
		return call.Answer{}
	}
}

// clock watches one call's silence.
type clock struct {
	w      *wire
	p      *waiter
	limits call.Limits
	every  time.Duration // of pings; 0 means none
	sent   int64
}

// sign is when the server last showed life to this call: by a message for it
// or by an answered ping. A pipe has no headers to show that a request has
// arrived, so an answered ping counts as a first byte, too.
func (c *clock) sign() int64 { return max(c.sent, c.p.last.Load(), c.w.ponged.Load()) }

// limit is the one that runs now: until the first sign of life it is that of
// the first byte, because a server that is busy with the call may have no time
// for pings; then it is that of silence.
func (c *clock) limit(sign int64) (name string, d time.Duration) {
	if sign == c.sent {
		return "first_byte", c.limits.FirstByte
	}
	return "idle", c.limits.Idle
}

// hit is the name of the limit that was reached; if there is none, it pings a
// silent server.
func (c *clock) hit() string {
	if c.p.waiting() {
		c.p.last.Store(c.w.since()) // it is not the server's turn (SPEC §2.4)
	}
	sign := c.sign()
	quiet := time.Duration(c.w.since() - sign)
	name, limit := c.limit(sign)
	switch {
	case limit > 0 && quiet >= limit:
		return name
	case c.every > 0 && quiet >= c.every:
		c.w.ping()
	}
	return ""
}

// next is how long nothing can have to be done.
func (c *clock) next() time.Duration {
	sign := c.sign()
	quiet := time.Duration(c.w.since() - sign)
	wait := time.Hour
	if _, limit := c.limit(sign); limit > 0 {
		wait = min(wait, limit-quiet)
	}
	switch {
	case c.every > 0 && quiet < c.every:
		wait = min(wait, c.every-quiet)
	case c.every > 0:
		wait = min(wait, c.every)
	}
	return wait
}

// ping asks the server for a sign of life, one question at a time: a server
// that is busy finds one and not a hundred. The modern era has no ping.
func (w *wire) ping() {
	w.mu.Lock()
	if w.pinged != "" {
		w.mu.Unlock()
		return
	}
	id := w.nameLocked()
	w.pinged = id
	w.mu.Unlock()
	method := mcp.MethodPing
	if w.modern {
		method = mcp.MethodDiscover
	}
	if w.out.put("", outgoingRequest(id, method, nil, w.modern), nil) != nil {
		w.mu.Lock()
		w.pinged = ""
		w.mu.Unlock()
	}
}
