package downstream

import (
	"slices"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// A call that goes on in the background has no stream on which its tool could ask the
// agent. Who waits for it with await_call is there: so the question comes on that
// stream, or as the result of that request, in the way of the agent's era (SPEC §4.2).

// ask puts to the agent what the tool of a call asks.
func (w *waiter) ask(c *waited) {
	switch {
	case w.cancel || w.x.asks == "" || w.away:
	case w.modern && c.state.Outcome == call.Running && w.asker == nil && w.asks != nil:
		if list, _ := w.x.questions(c.call); len(list) > 0 {
			w.asker = c
		}
	case !w.modern && w.show && w.session != nil:
		w.put(c)
	}
}

// put writes the requests that the agent does not have yet, and takes back those that
// nobody waits for any more. One that is still open when this wait ends stays so: the
// person who thinks about it may answer then, too.
func (w *waiter) put(c *waited) {
	var list []question
	if c.state.Outcome == call.Running {
		if c.call.Attended() { // the call's own stream has them
			return
		}
		list, _ = w.x.questions(c.call)
	}
	var open []string
	for i := range list {
		id := askID(c.call.ID(), w.session.id, list[i].key)
		open = append(open, id)
		if !c.put[id] && w.session.hasPut(id) {
			w.frame(w.serverRequest(c.call, &list[i]))
		}
		if c.put == nil {
			c.put = map[string]bool{}
		}
		c.put[id] = true
	}
	for id := range c.put {
		if !slices.Contains(open, id) {
			delete(c.put, id)
			if w.session.hasSettled(id) {
				w.frame(tookBack(id))
			}
		}
	}
}

// frame writes a message as an event.
func (w *waiter) frame(message []byte) {
	b := w.take()
	*b = append(append(append(*b, eventHead...), message...), eventTail...)
	w.d.Events++
}

// forgetPut notes that the agent may not have got what was put to it.
func (w *waiter) forgetPut(c *waited) {
	for id := range c.put {
		w.session.hasSettled(id)
	}
}

// question is the answer to a stateless agent that is asked something; ok is false if
// it is not, or not any more.
func (w *waiter) question() (p *pieces, ok bool) {
	if w.asker == nil {
		return nil, false
	}
	list, runner := w.gather(w.asker.call)
	if len(list) == 0 {
		w.asker = nil
		return nil, false
	}
	p = &pieces{}
	p.bytes(w.asksThese(w.asker.call, list, runner))
	return p, true
}

// answersAwait takes the answers that an await_call brings to what it was asked before,
// to the call that asked. wrong is what is wrong with them; nothing was done then.
func (x *exchange) answersAwait(m *mcp.Message) (wrong string) {
	r, wrong := x.takesUp(m)
	if r == nil || wrong != "" {
		return wrong
	}
	c, err := x.findCall(string(r.state.call))
	if err != nil {
		return oldState
	}
	taken, keys, wrong := answersTo(c, r.responses)
	if taken != nil {
		// An error says that the call has ended, which this wait shows; or that there
		// are too many answers, and it asks again.
		_ = c.Answer(taken, keys)
	}
	return wrong
}

// maxPut bounds the requests of ours that a session is remembered to have. One that is
// forgotten may be put again.
const maxPut = 256

// hasPut notes that the session's agent has a request of ours; false if it had it
// before.
func (s *session) hasPut(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.put[id] {
		return false
	}
	if s.put == nil || len(s.put) >= maxPut {
		s.put = map[string]bool{}
	}
	s.put[id] = true
	return true
}

// hasSettled notes that a request of ours is answered, taken back or lost; false if
// the agent did not have it.
func (s *session) hasSettled(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	had := s.put[id]
	delete(s.put, id)
	return had
}
