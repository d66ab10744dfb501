package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// addressTask is the kind of an address whose call is found again as a task.
const addressTask = "task"

// taskAddress is where a later process finds the task of a call. Request is the
// progress token, which in 2025-11-25 holds to the task's end.
type taskAddress struct {
	address
	Task string `json:"task"`
}

// otherEra is the one that a server does not speak where this is the address.
func (a *address) otherEra() string {
	if mcp.Modern(a.Version) {
		return "legacy"
	}
	return "modern"
}

// absorb follows the task that the tool server made of the call.
func (x *exchange) absorb(ctx context.Context, made *taskState) call.Answer {
	x.enterTask(ctx)
	return x.followTask(ctx, x.sess, *made)
}

// enterTask ends what belongs to the call's own stream: from here on the task's
// clock counts, and its way to be cancelled.
func (x *exchange) enterTask(ctx context.Context) {
	x.mu.Lock()
	x.tasked = true
	if x.timer != nil {
		x.timer.Stop()
	}
	rest, cancel := x.rest, x.cancelRead
	x.rest = nil
	x.read, x.cancelRead = context.WithCancelCause(x.c.apart)
	x.mu.Unlock()
	switch {
	case rest == nil:
		cancel(nil)
	case !x.c.spawn(func() { drain(rest, cancel) }):
		rest.Close()
		cancel(nil)
	}
}

// followTask carries the call to its end as a task.
func (x *exchange) followTask(ctx context.Context, sess *session, s taskState) call.Answer {
	p := &httpTask{x: x, sess: sess, id: s.id}
	told, leave := x.c.tasks.enter(s.id)
	defer leave()
	if (sess.isModern || x.asTask == taskRequired) && !s.over() {
		x.exec.ServerTask()
	}
	if x.made != nil {
		x.exec.Address(p.address())
	}
	t := &task{x: x.exec, peer: p, id: s.id, modern: sess.isModern, state: s, told: told}
	a := t.run(ctx)
	if a.Outcome == call.Running && isLeft(ctx) {
		p.session().left.Store(true)
	}
	return a
}

// resumeTask follows a task that an earlier process left at the server.
func (c *httpConn) resumeTask(ctx context.Context, x *call.Exec) call.Answer {
	var a taskAddress
	if err := json.Unmarshal(x.Resume.Address, &a); err != nil || a.Task == "" {
		return interrupted("longcall was restarted and cannot read any more where the call's task is.")
	}
	sess := &session{isModern: true, version: mcp.LatestModern}
	if !mcp.Modern(a.Version) {
		sess = c.adopt(a.Session, a.Version, a.Tasks)
		defer c.release(sess)
	}
	e := &exchange{
		c: c, exec: x, sess: sess, id: a.Request, caps: a.Asks, asTask: a.AsTask, done: make(chan struct{}),
		left: true, got: true, tasked: true, sent: time.Now(), last: time.Now(),
	}
	return e.carry(ctx, func(e *exchange, ctx context.Context) call.Answer {
		return e.followTask(ctx, sess, taskState{id: a.Task})
	})
}

// httpTask is a task at a server that is reached over HTTP.
type httpTask struct {
	x  *exchange
	id string

	mu   sync.Mutex
	sess *session // renewed when the server has forgotten it
}

func (p *httpTask) session() *session {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sess
}

func (p *httpTask) address() []byte {
	s := p.session()
	b, err := json.Marshal(taskAddress{
		address: address{Kind: addressTask, URL: p.x.c.digest, Session: s.id, Version: s.version, Tasks: s.tasks, Request: p.x.id, AsTask: p.x.asTask, Asks: p.x.caps},
		Task:    p.id,
	})
	if err != nil {
		return nil // strings always marshal
	}
	return b
}

func (p *httpTask) last() (time.Time, float64) {
	p.x.mu.Lock()
	defer p.x.mu.Unlock()
	return p.x.last, p.x.reached
}

func (p *httpTask) gone() <-chan struct{} { return nil }
func (p *httpTask) ended() call.Answer    { return call.Answer{} }
func (p *httpTask) limit() int64          { return p.x.limit() }

// ask sends a question, in a new session if the server does not know ours any
// more: whoever keeps tasks longer than sessions knows the task there.
func (p *httpTask) ask(ctx context.Context, method string, params []byte) (mcp.Message, error) {
	sess := p.session()
	m, err := p.send(ctx, sess, method, params, p.beside)
	var status *statusError
	if !errors.As(err, &status) || sess.isModern || sess.id == "" || !status.lost(sess) {
		return m, err
	}
	p.x.c.forget(sess)
	fresh, err := p.x.c.session(ctx)
	if err != nil || fresh.isModern {
		return m, errors.Join(err, ctx.Err(), errors.New("the tool server has forgotten our session"))
	}
	p.mu.Lock()
	p.sess = fresh
	p.mu.Unlock()
	m, err = p.send(ctx, fresh, method, params, p.beside)
	if err == nil && !m.Error.Ok() {
		p.x.exec.Address(p.address())
	}
	return m, err
}

func (p *httpTask) tell(method string, params []byte) (<-chan struct{}, func()) {
	answered := make(chan struct{})
	p.x.c.spawn(func() {
		ctx, cancel := context.WithTimeout(p.x.c.ctx, tellTime)
		defer cancel()
		if _, err := p.send(ctx, p.session(), method, params, func(*mcp.Message) {}); err == nil {
			close(answered)
		}
	})
	return answered, func() {}
}

// send posts one request about the task and reads to its response; other
// messages that come with it go to beside.
func (p *httpTask) send(ctx context.Context, sess *session, method string, params []byte, beside func(*mcp.Message)) (m mcp.Message, err error) {
	c := p.x.c
	id := c.nextID()
	resp, err := c.post(ctx, sess, method, p.id, outgoingRequest(id, method, params, sess.isModern))
	if err != nil {
		return m, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable {
		return m, &busyError{&statusError{Status: resp.StatusCode}, retryAfter(resp.Header.Get("Retry-After"))}
	}
	if resp.StatusCode == http.StatusOK && mediaType(resp) == "text/event-stream" {
		m, err = readBeside(resp.Body, id, p.limit(), beside)
	} else {
		m, err = c.readAnswer(resp, id, p.limit())
		switch {
		case err != nil || resp.StatusCode/100 == 2:
		case !sess.isModern && sess.id != "" && !sameID(&m, id),
			resp.StatusCode == http.StatusNotFound && !sess.isModern && m.Code != mcp.CodeInvalidParams && m.Code != mcp.CodeMethodNotFound:
			err = &statusError{Status: resp.StatusCode} // in whatever words, it does not know the session
		}
	}
	if err == nil {
		sess.alive()
	}
	return m, err
}

// retryAfter reads seconds; a date is not worth the trouble.
func retryAfter(v string) time.Duration {
	s, err := strconv.Atoi(v)
	if err != nil || s < 0 {
		return 0
	}
	return time.Duration(min(s, int(pollMax/time.Second))) * time.Second
}

// readBeside finds the response to our id in an event stream. The message is
// valid for good: nothing is read after it.
func readBeside(body io.Reader, id string, limit int64, beside func(*mcp.Message)) (mcp.Message, error) {
	r := mcp.NewSSEReader(body, int(limit))
	for {
		ev, err := r.Next()
		if err != nil {
			return mcp.Message{}, fmt.Errorf("the stream ended without an answer: %w", err)
		}
		if len(ev.Data) == 0 {
			continue
		}
		m, err := mcp.Parse(ev.Data)
		switch {
		case err != nil:
		case m.Kind != mcp.Response:
			beside(&m)
		case sameID(&m, id):
			return m, nil
		}
	}
}

// beside takes a message that came with a response about the task.
func (p *httpTask) beside(m *mcp.Message) {
	if m.Kind == mcp.Request && !p.x.sess.isModern {
		p.x.takeRequest(m, nil)
		return
	}
	p.x.take(m, nil)
}
