package upstream

import (
	"context"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// asked takes a request of the server. A pipe does not say what it belongs to: it is
// of the call that is under way, if there is exactly one, and nobody else's call can
// have left it behind (SPEC §4.2, P5).
func (w *wire) asked(m *mcp.Message) {
	p := w.only()
	if w.modern { // not allowed, but refused and not dropped, since it may wait for ever
		w.send(refusal(m.ID.Of(m.Raw), m.Method))
		if p != nil && m.Method != mcp.MethodPing {
			p.note("The tool server sent the request %s, which its era of the protocol does not allow; it was refused.", printable([]byte(m.Method)))
		}
		return
	}
	var a *asks
	if p != nil && w.single && m.Method != mcp.MethodPing {
		a = p.questions(w)
	}
	if a == nil {
		w.hooks.orphan(m, func(b []byte) { w.send(b) })
		return
	}
	p.last.Store(w.since())
	refused, why := a.request(m)
	if refused != nil {
		w.send(refused)
	}
	if why != "" {
		p.note("%s", asksNote(m.Method, why))
	}
}

// withdrawn takes a notifications/cancelled of the server.
func (w *wire) withdrawn(m *mcp.Message) {
	id := cancelledRequest(m)
	if id == nil {
		return
	}
	w.mu.Lock()
	calls := make([]*waiter, 0, len(w.tokens))
	for _, p := range w.tokens {
		calls = append(calls, p)
	}
	w.mu.Unlock()
	for _, p := range calls {
		p.mu.Lock()
		a := p.asks
		p.mu.Unlock()
		if a.withdraw(id) {
			return
		}
	}
}

// questions are what the server asks within the call; nil if the call is over.
func (p *waiter) questions(w *wire) *asks {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.x == nil || p.answer != nil && !p.goesOn {
		return nil
	}
	if p.asks == nil {
		p.asks = &asks{x: p.x, caps: []byte(p.of.Capabilities), note: p.note, pages: w.hooks.pages, say: func(_ context.Context, b []byte) error {
			p.last.Store(w.since()) // it is the server's turn again
			return w.out.put("", b, nil)
		}}
	}
	return p.asks
}

// waiting says whether the call waits for an answer of its agent.
func (p *waiter) waiting() bool {
	p.mu.Lock()
	a := p.asks
	p.mu.Unlock()
	return a.waiting()
}

// asksForInput reads an answer that only asks; nil if it is another.
func (w *wire) asksForInput(x *call.Exec, p *waiter, r *response) *question {
	switch {
	case r.body == nil:
		return nil
	case r.kind == mcp.ResultInput && w.modern && !r.failed:
		m, err := mcp.Parse(r.body)
		if err != nil {
			return nil
		}
		q, err := readQuestion(m.Result.Of(m.Raw))
		if err != nil {
			return nil
		}
		return q
	case r.failed && !w.modern && p.asTask == "" && asksURL(x, x.Spec.Capabilities, r.code):
		if m, err := mcp.Parse(r.body); err == nil {
			return urlQuestion(m.Error.Of(m.Raw))
		}
	}
	return nil
}
