package upstream

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// finish makes the call's end out of the response, or follows the task that the
// server made of it.
func (w *wire) finish(ctx context.Context, x *call.Exec, p *waiter, r *response) call.Answer {
	if r.made == nil {
		if p.question = w.asksForInput(x, p, r); p.question != nil {
			return call.Answer{}
		}
		return w.answer(x, r)
	}
	if r.made.err != nil {
		return unusableTask(r.made.err)
	}
	s := r.made.taskState
	if (w.modern || p.asTask == taskRequired) && !s.over() {
		x.ServerTask()
		x.Note("The tool server made a task of the call; longcall asks how it stands.")
	}
	told, leave := w.tasks.enter(s.id)
	defer leave()
	t := &task{x: x, peer: &stdioTask{w: w, p: p, x: x}, id: s.id, modern: w.modern, state: s, told: told}
	return t.run(ctx)
}

// madeTask is a task that a response made of its call.
type madeTask struct {
	taskState
	err error // why it cannot be followed
}

// made finds out whether a response made a task of its call. If it did, what
// comes for the call's token is still the call's.
func (w *wire) made(p *waiter, m *mcp.Message) *madeTask {
	if p.token == "" || p.of.Method != "" || !w.modern && p.asTask == "" {
		return nil
	}
	s, err := createdTask(m, w.modern)
	if s == nil {
		return nil
	}
	p.mu.Lock()
	p.goesOn = err == nil
	p.mu.Unlock()
	w.mu.Lock()
	if !p.forgotten {
		w.tokens[p.token] = p
	}
	w.mu.Unlock()
	return &madeTask{*s, err}
}

// stdioTask is a task at a process of ours. It has no address: the process ends
// with us.
type stdioTask struct {
	w *wire
	p *waiter // of the call
	x *call.Exec
}

func (t *stdioTask) address() []byte { return nil }

func (t *stdioTask) last() (time.Time, float64) {
	return t.w.epoch.Add(time.Duration(t.p.last.Load())), math.Float64frombits(t.p.reached.Load())
}

func (t *stdioTask) gone() <-chan struct{} { return t.w.ended }
func (t *stdioTask) ended() call.Answer    { return t.w.lost() }

func (t *stdioTask) limit() int64 {
	if l := t.x.Limits.Message; l > 0 && (t.w.limit <= 0 || l < t.w.limit) {
		return l
	}
	return t.w.limit
}

func (t *stdioTask) ask(ctx context.Context, method string, params []byte) (mcp.Message, error) {
	r, err := t.w.ask(ctx, method, params, t.w.modern)
	switch {
	case err != nil:
		return mcp.Message{}, err
	case t.limit() > 0 && r.size > t.limit():
		return mcp.Message{}, mcp.ErrTooLarge
	case r.body == nil:
		return mcp.Message{}, errors.New("it gave an answer that cannot be used")
	}
	return mcp.Parse(r.body)
}

func (t *stdioTask) tell(method string, params []byte) (<-chan struct{}, func()) {
	p := t.w.expect(nil)
	t.w.send(outgoingRequest(p.id, method, params, t.w.modern))
	return p.wake, func() { t.w.forget(p) }
}
