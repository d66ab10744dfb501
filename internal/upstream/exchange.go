package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// exchange is one call on its way over HTTP: the POST, and whatever streams
// follow it until the answer is there.
type exchange struct {
	c    *httpConn
	exec *call.Exec
	old  *stdioConn // not nil: it carries the call, and there is nothing else
	sess *session
	id   string // our request id, and the progress token
	done chan struct{}

	body   []byte            // of the request, until it is sent
	params []mcp.HeaderParam // modern: the arguments that are mirrored into headers

	kept      *call.Spec // with the agent's request, until it is taken; nil if it is not to be sent again
	malformed int        // the code with which the server refused what was sent
	anew      bool       // it is sent for the second time, after such a refusal

	left   bool          // the request was allowed to leave; only the call's goroutine
	rest   io.ReadCloser // of the response, after the answer
	ended  call.Answer   // what stream has found
	lastID string        // of the last whole event (P3); only the call's goroutine
	retry  time.Duration // as the server asked

	caps string // what the agent can be asked; see call.Caller
	asks *asks  // what the server asks of it; nil if nothing yet; under mu

	numbered atomic.Bool // lastID is there, so that the stream can be resumed
	gone     bool        // the request or its answer was lost; only the call's goroutine

	addressed bool     // the address is kept; written under mu by the call's goroutine only
	apart     bool     // progress came on the standalone stream; under mu
	later     []string // notes for the end of the record; under mu

	round    bool      // it is made again
	question *question // the answer is one; only the call's goroutine

	asTask string     // the tool's task support, if the call was sent as a legacy task
	made   *taskState // the task that the server made of the call; only the call's goroutine

	mu         sync.Mutex
	read       context.Context // of the response being read now
	cancelRead context.CancelCauseFunc
	over       bool          // the answer is there: exec must not be used any more
	sent       time.Time     // when the request left; zero before
	last       time.Time     // of the last sign of work
	got        bool          // the first byte came
	broken     bool          // no stream is read: it has to be resumed
	resumed    bool          // a stream was resumed
	asking     bool          // a ping is under way
	asked      time.Time     // when it left
	deaf       bool          // no ping was answered since the last sign of work
	complete   chan struct{} // closed when Path B progress reaches its total; nil if it has, or has none
	timer      *time.Timer
	tasked     bool    // the call goes on as a task, which has its own clock and its own cancel
	reached    float64 // the highest progress value
}

var (
	errUnanswered = errors.New("the tool server answers no ping any more")
	errStale      = errors.New("the resumed stream is silent")
)

func (c *httpConn) call(ctx context.Context, x *call.Exec) call.Answer {
	if x.Resume != nil {
		return c.takeUp(ctx, x)
	}
	e, refused := c.prepare(ctx, x, x.Spec, nil)
	if refused != nil {
		return *refused
	}
	if e.old != nil {
		return e.old.call(ctx, x)
	}
	a := e.carry(ctx, (*exchange).exchange)
	switch {
	case e.question != nil:
		return c.rounds(ctx, x, e)
	case ctx.Err() != nil:
	case e.gone && readsOnly(x.Spec):
		return c.again(ctx, x)
	case e.malformed != 0 && e.kept != nil:
		return c.anew(ctx, x, e)
	}
	return a
}

// again sends a request that only reads once more, under a new id, after it or
// its answer was lost: in the stateless era a client must (SPEC §1.4, R-72), and
// in the other one it changes nothing either. A call is never sent again (I1).
//
//go:noinline
func (c *httpConn) again(ctx context.Context, x *call.Exec) call.Answer {
	x.Note("The connection to the tool server was lost; the request only reads, so it was sent once more.")
	e, refused := c.prepare(ctx, x, x.Spec, nil)
	if refused != nil {
		return *refused
	}
	if e.old != nil {
		return e.old.call(ctx, x)
	}
	return c.carried(ctx, x, e)
}

// prepare gets all that a call needs before it is sent, or the answer if it
// cannot be. It is apart from call, which is on the stack of every parked call.
//
//go:noinline
func (c *httpConn) prepare(ctx context.Context, x *call.Exec, spec *call.Spec, more []mcp.Member) (e *exchange, refused *call.Answer) {
	sess, err := c.provenWithin(ctx, x.Limits.Connect)
	var a call.Answer
	var old *oldError
	switch {
	case err == nil:
	case errors.As(err, &old):
		return &exchange{old: old.conn}, nil
	case ctx.Err() != nil:
		return nil, &a
	case errors.Is(err, context.DeadlineExceeded):
		a = timedOut("connect", x.Limits.Connect, fmt.Sprintf("the tool server %q could not be reached; nothing was sent, so calling again is safe", c.s.Name))
		return nil, &a
	default:
		a = failed("Not started: the tool server %q cannot be used now: %v. Nothing was sent, so calling again is safe.", c.s.Name, rootCause(err))
		return nil, &a
	}
	id := c.nextID()
	support := ""
	if sess.tasks > 0 && x.Spec.Method == "" {
		support = c.hooks.legacyTask(ctx, x.Spec.Tool, sess.tasks == tasksCancelled)
	}
	body, err := outgoingCall(spec, id, id, sess.isModern, c.hooks.logLevel(spec), taskTTL(support, x.Limits.Total))
	if err == nil && more == nil {
		more, err = goesOn(spec, sess.isModern)
	}
	if err == nil {
		body, err = withMembers(body, more)
	}
	if err != nil {
		a = failed("Not started: the call cannot be passed on: %v. Nothing was sent.", err)
		return nil, &a
	}
	e = &exchange{c: c, exec: x, sess: sess, id: id, caps: spec.Capabilities, asTask: support, body: body, done: make(chan struct{})}
	if sess.isModern && x.Spec.Method == "" {
		e.params = c.hooks.params(ctx, x.Spec.Tool, false)
	}
	if len(spec.Request) <= maxKept && (sess.isModern || pageMayCome(spec)) {
		kept := *spec
		e.kept = &kept
	}
	return e, nil
}

// exchange sends the call and takes what comes back.
func (x *exchange) exchange(ctx context.Context) call.Answer {
	body := x.body
	x.body = nil
	resp, err := x.c.sendCall(x, body)
	if err != nil {
		return x.unsent(ctx, err)
	}
	a := x.receive(ctx, resp)
	if x.made != nil {
		return x.absorb(ctx, x.made)
	}
	return a
}

// unsent is the answer for a call that was sent without a response, or not at all.
//
//go:noinline
func (x *exchange) unsent(ctx context.Context, err error) call.Answer {
	switch {
	case x.left:
		return x.lost(ctx, err)
	case ctx.Err() != nil:
		return call.Answer{}
	}
	return failed("Not started: the tool server %q cannot be reached: %v. Nothing was sent, so calling again is safe.", x.c.s.Name, rootCause(err))
}

// carry runs what brings the answer, between all that goes with it.
func (x *exchange) carry(ctx context.Context, run func(*exchange, context.Context) call.Answer) call.Answer {
	c := x.c
	x.reading()
	c.pending.Store(x.id, x)
	if x.exec.Resume != nil {
		c.listenTo(x.sess)
	}
	stop := context.AfterFunc(ctx, func() {
		if !c.spawn(func() { x.passCancel(ctx) }) {
			x.abortNow(context.Cause(ctx))
		}
	})
	a := run(x, ctx)
	if a.Body != nil {
		x.settled(ctx)
	}
	if stop() && ctx.Err() != nil && a.Outcome == call.Running {
		// What brings the answer saw the cancel before the context came to tell
		// it, and now never will.
		c.spawn(func() { x.passCancel(ctx) })
	}
	c.pending.Delete(x.id)
	left := a.Outcome == call.Running && isLeft(ctx)
	if left {
		x.sess.left.Store(true)
	}
	x.end(left)
	switch {
	case x.rest != nil && a.Body != nil:
		rest, cancel := x.rest, x.cancelRead
		a.Release = func() { drain(rest, cancel) }
	case x.rest != nil:
		x.rest.Close()
		fallthrough
	default:
		x.cancelRead(nil)
	}
	return a
}

// drain reads the stream to its end after the answer, which is a few bytes off:
// a connection whose response was not read whole cannot be used again, and a
// new one costs more than the rest of an instant call. A server that keeps the
// stream open after its answer loses the connection after a second.
func drain(rest io.ReadCloser, cancel context.CancelCauseFunc) {
	late := time.AfterFunc(drainTime, func() { cancel(nil) })
	io.Copy(io.Discard, io.LimitReader(rest, drainBytes))
	late.Stop()
	rest.Close()
	cancel(nil)
}

const (
	drainTime  = time.Second
	drainBytes = 64 << 10
)

// limit is how many bytes one message for the call may have.
func (x *exchange) limit() int64 {
	if l := x.exec.Limits.Message; l > 0 {
		return l
	}
	return x.c.s.Limits.Message
}

// provenWithin is proven, bounded by the connect limit when there is anything
// to wait for.
func (c *httpConn) provenWithin(ctx context.Context, limit time.Duration) (*session, error) {
	if limit <= 0 {
		limit = c.s.Limits.Connect
	}
	c.mu.Lock()
	s := c.sess
	c.mu.Unlock()
	if s != nil && c.holds(s) {
		return s, nil
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return c.proven(ctx)
}

// reading begins to read a response: the context of the last one may be spent.
func (x *exchange) reading() {
	read, cancel := context.WithCancelCause(x.c.apart)
	x.mu.Lock()
	x.read, x.cancelRead = read, cancel
	x.mu.Unlock()
}

// dispatched notes that the request leaves, and starts the clocks.
func (x *exchange) dispatched() error {
	switch {
	case x.anew: // still the one dispatch
		if err := x.read.Err(); err != nil {
			return err
		}
	case x.round:
		if err := x.exec.Again(); err != nil {
			return err
		}
	default:
		if err := x.exec.Dispatched(); err != nil {
			return err
		}
	}
	x.left = true
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sent = time.Now()
	x.last = x.sent
	x.timer = time.AfterFunc(x.nextTick(x.sent), func() { x.c.spawn(x.tick) })
	return nil
}

// end stops everything that belongs to the exchange. From here on exec is not
// used any more. If the call was taken up and is left again, what readers have
// seen of it may not have come again yet, so that no note may go before it.
func (x *exchange) end(left bool) {
	x.mu.Lock()
	x.over = true
	for _, text := range x.later {
		if !left || x.exec.Resume == nil {
			x.exec.Note("%s", text)
		}
	}
	if x.timer != nil {
		x.timer.Stop()
	}
	asks := x.asks
	x.mu.Unlock()
	asks.close(left, func(b []byte) { x.c.tell(x.sess, b) })
	close(x.done)
}

// abort stops reading, for a reason that the answer then tells. x.mu is held.
func (x *exchange) abort(err error) { x.cancelRead(err) }

func (x *exchange) abortNow(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.abort(err)
}

func (x *exchange) firstByte() {
	x.exec.FirstByte()
	x.mu.Lock()
	x.touch()
	x.mu.Unlock()
	x.sess.alive()
}

// isLeft says whether the call stays at its server for the next process: then
// the server must hear nothing of our end.
func isLeft(ctx context.Context) bool { return errors.Is(context.Cause(ctx), call.ErrLeft) }

// passCancel tells the server that nobody wants the answer any more,
// and lets the reading go on for a moment where a late answer may come (O22). A
// task is cancelled by whoever follows it.
func (x *exchange) passCancel(ctx context.Context) {
	x.mu.Lock()
	sent := !x.sent.IsZero() && !x.tasked
	x.mu.Unlock()
	if sent && !x.sess.isModern && !isLeft(ctx) {
		x.tellCancel("the call was cancelled")
		wait := time.NewTimer(linger)
		defer wait.Stop()
		select {
		case <-x.done:
			return
		case <-wait.C:
		case <-x.c.ctx.Done():
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.tasked {
		x.abort(context.Cause(ctx))
	}
}

func (x *exchange) tellCancel(reason string) {
	ctx, cancel := context.WithTimeout(x.c.ctx, tellTime)
	defer cancel()
	x.c.send(ctx, x.sess, outgoingCancel(x.id, reason))
}

// stopped is the answer when reading ended because of ctx or a limit; ok is
// false if the response itself broke.
func (x *exchange) stopped(ctx context.Context) (a call.Answer, ok bool) {
	var cause *call.Cause
	if errors.As(context.Cause(x.read), &cause) && ctx.Err() == nil {
		if !x.sess.isModern {
			x.c.spawn(func() { x.tellCancel("longcall hit a limit") })
		}
		return call.Answer{End: cause.End}, true
	}
	return call.Answer{}, ctx.Err() != nil
}

// lost is the answer for a call whose request left and whose response broke
// off for good. It is never sent again (O17, O19).
func (x *exchange) lost(ctx context.Context, err error) call.Answer {
	if a, ok := x.stopped(ctx); ok {
		return a
	}
	x.c.hooks.Reconnected("lost")
	x.gone = true
	if !x.sess.isModern {
		x.c.spawn(func() { x.tellCancel("the stream was lost") })
	}
	if cause := context.Cause(x.read); cause != nil {
		err = cause
	}
	return interrupted("the connection to the tool server was lost before its answer came (%v).", rootCause(err))
}

// receive takes the response to the POST.
func (x *exchange) receive(ctx context.Context, resp *http.Response) call.Answer {
	x.firstByte()
	if resp.StatusCode == http.StatusBadRequest && !x.sess.isModern && x.sess.id != "" {
		// Some servers say so, in whatever words, that they do not know the session (O18).
		x.sess.suspect.Store(true)
	}
	switch t := mediaType(resp); {
	case resp.StatusCode == http.StatusOK && t == "text/event-stream":
		if !mayAsk(x.kept) {
			x.kept = nil
		}
		return x.stream(ctx, resp.Body)
	case resp.StatusCode == http.StatusNotFound && !x.sess.isModern && x.sess.id != "":
		resp.Body.Close()
		x.gone = true
		x.c.forget(x.sess)
		return forgotten()
	case resp.StatusCode == http.StatusAccepted || resp.StatusCode == http.StatusNoContent:
		resp.Body.Close()
		return interrupted("the tool server accepted the call (HTTP %d) but gives no answer to it.", resp.StatusCode)
	}
	return x.single(ctx, resp)
}

// single takes a response that is one message. It is apart from receive, which
// is on the stack of every parked call.
//
//go:noinline
func (x *exchange) single(ctx context.Context, resp *http.Response) call.Answer {
	m, err := x.c.readAnswer(resp, x.id, x.limit())
	resp.Body.Close()
	var status *statusError
	switch {
	case errors.Is(err, mcp.ErrTooLarge):
		return tooLarge(x.limit())
	case errors.As(err, &status) && status.Status/100 == 2:
		return interrupted("the tool server answered with a message that is no answer (HTTP %d).", status.Status)
	case errors.As(err, &status):
		return refusedCall(x.c.s.Name, resp, unnamed(status.Body, x.id))
	case err != nil && resp.StatusCode/100 != 2:
		return refusedCall(x.c.s.Name, resp, "")
	case err != nil:
		return x.lost(ctx, err)
	case sameID(&m, x.id):
		return x.answer(&m)
	case malformed(m.Code):
		x.malformed = m.Code
		return refusedForm(x.c.s.Name, m.Code, unnamed(m.ErrText, x.id))
	case m.Error.Ok() && leavesOpen(resp.StatusCode, m.Code):
		return interrupted("the tool server, or a proxy before it, answered with an error that does not say when it came: %s (code %d, HTTP %d).", unnamed(printable([]byte(m.ErrText)), x.id), m.Code, resp.StatusCode)
	case m.Error.Ok():
		return failed("The tool server refused the call: %s (code %d, HTTP %d). It did not run.", unnamed(printable([]byte(m.ErrText)), x.id), m.Code, resp.StatusCode)
	}
	return interrupted("the tool server answered with the result of another request.")
}

// unnamed takes our own id out of what a server said in its own words: it is
// between the two (I12).
func unnamed(text, id string) string {
	if id == "" {
		return text
	}
	return strings.ReplaceAll(text, id, "…")
}

// refusedCall is the answer for an HTTP status without a JSON-RPC message.
func refusedCall(server string, resp *http.Response, body string) call.Answer {
	status := resp.StatusCode
	text := http.StatusText(status)
	if body != "" {
		text += ": " + body
	}
	switch {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return failed("The tool server %q refused longcall's credentials (HTTP %d %s). The call did not run. The operator has to check its headers in the config.", server, status, text)
	case status/100 == 3:
		return failed("The tool server %q sends its callers to another address (HTTP %d %s). The call did not run. The operator has to write that address as its url in the config.", server, status, text)
	case broken(status):
		return interrupted("the tool server, or a proxy before it, answered HTTP %d %s.", status, text)
	case status == http.StatusTooManyRequests:
		when := "later"
		if s, err := strconv.ParseUint(resp.Header.Get("Retry-After"), 10, 20); err == nil {
			when = fmt.Sprintf("in %d s or later", s)
		}
		return failed("The tool server %q takes no more calls now (HTTP %d %s). It did not run. Call again %s.", server, status, text, when)
	}
	return failed("The tool server %q refused the call (HTTP %d %s). It did not run.", server, status, text)
}

// broken says whether a status leaves open what became of the request: the server,
// or a proxy before it, may have failed after the tool ran (O17).
func broken(status int) bool { return status >= 500 || status == http.StatusRequestTimeout }

// leavesOpen says the same of an error that names no request. Only who could not
// read it, or refused it by its status, has certainly not begun with it.
func leavesOpen(status, code int) bool {
	switch code {
	case mcp.CodeParse, mcp.CodeInvalidRequest, mcp.CodeMethodNotFound, mcp.CodeInvalidParams:
		return broken(status)
	case mcp.CodeInternal:
		return true
	}
	return broken(status) || status/100 == 2
}

// takeOver is the size from which on an answer keeps the reader's buffer
// instead of a copy.
const takeOver = 32 << 10

// answer turns the response into the call's answer. It may take over m's bytes.
func (x *exchange) answer(m *mcp.Message) call.Answer {
	end := call.End{Outcome: call.Completed, ToolError: string(m.IsError.Of(m.Raw)) == "true"}
	switch kind, _ := mcp.String(m.ResultType.Of(m.Raw)); {
	case kind == "task" && x.sess.isModern && x.exec.Spec.Method == "", kind == "" && x.asTask != "":
		made, err := createdTask(m, x.sess.isModern)
		switch {
		case err != nil:
			return unusableTask(err)
		case made != nil:
			x.made = made
			return call.Answer{}
		}
	case kind == mcp.ResultInput && x.sess.isModern:
		return x.asksForInput(m)
	case kind != "" && kind != "complete":
		return unfinished(kind)
	}
	if err := x.exec.Count(int64(len(m.Raw))); err != nil {
		var cause *call.Cause
		errors.As(err, &cause)
		return call.Answer{End: cause.End}
	}
	if m.Error.Ok() {
		switch {
		case m.Code == codeCancelled:
			return cancelledThere()
		case malformed(m.Code):
			x.malformed = m.Code
			return refusedForm(x.c.s.Name, m.Code, unnamed(m.ErrText, x.id))
		}
		if q := x.pageFirst(m); q != nil {
			x.question = q
			return call.Answer{}
		}
		end = call.End{Outcome: call.Failed, Code: m.Code}
	}
	hold := m.WithHole
	if len(m.Raw) > takeOver {
		hold = m.TakeHole // nothing is read after the answer
	}
	body, hole := hold(m.ID)
	return call.Answer{End: end, Body: body, Hole: hole}
}

// rootCause says what went wrong without the URL, which may hold a secret.
func rootCause(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}
