package downstream

import (
	"cmp"
	"net/http"
	"strconv"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// owed says whether the agent gets a response: not if it cancelled (O22). Where
// a closed stream is the only cancel there is nobody to answer either.
func (a *attachment) owed(end *call.End) bool {
	return end.Outcome != call.Cancelled || end.By != "agent" || a.modern || a.result
}

// response is the message that answers the request, and what to cut in it.
func (a *attachment) response(ev *call.Event) (body []byte, cuts []cut) {
	if a.shell && ev.End.Outcome != call.Denied {
		body = a.commandEnd(ev)
		if a.result {
			return a.taskEnd(ev.End, body, nil)
		}
		return body, a.x.withDigest(body, nil, a.call.ID())
	}
	body = ev.Body
	if body == nil || ev.Hole < 0 || ev.Hole >= len(body) || !a.modern && asksForInput(body) {
		body = a.words(ownEnd(ev), a.call.ID())
	} else if page := a.pages(ev); page != nil {
		body = page
	} else {
		cuts = convert(body, a.view(), append(make([]cut, 0, 3), cut{ev.Hole, ev.Hole + 1, a.id}))
	}
	if a.join == call.Replay && cuts == nil { // else convert has
		cuts = markReplayed(body, cuts)
	}
	if a.result {
		return a.taskEnd(ev.End, body, cuts)
	}
	if a.x.set.TellEnds == TellWithAll {
		cuts = a.x.withDigest(body, cuts, a.call.ID())
	}
	return body, cuts
}

// words is what longcall itself has to say about the request: a tool result for a
// tools/call, an error for others (DESIGN §1).
func (a *attachment) words(end *call.End, id call.ID) []byte {
	if a.read != nil {
		return ownFault(a.id, end)
	}
	return ownWords(a.id, end, id, a.modern)
}

// status is what HTTP says of an error of the tool server: that this request should
// have declared something, or that its method is not there (SPEC §1.3); 0 for all
// else. Once a stream has begun it is too late for either (A2).
func (a *attachment) status(ev *call.Event) int {
	switch {
	case ev.Body == nil || ev.End.Outcome != call.Failed:
	case ev.End.Code == mcp.CodeMissingCapability:
		return http.StatusBadRequest
	case ev.End.Code == mcp.CodeMethodNotFound && a.read != nil && a.read.extension():
		return http.StatusNotFound
	}
	return 0
}

// end writes the answer, and records whether it got out.
func (a *attachment) end(ev *call.Event) {
	if !a.owed(ev.End) {
		if a.x.out.status == 0 {
			a.x.out.head(http.StatusNoContent)
		}
		a.flush()
		return
	}
	if a.ctx.Err() != nil { // not after: an agent may hang up as soon as it has its answer
		a.gone()
		return
	}
	body, cuts := a.response(ev)
	a.takeBackAll()
	if ev.End.Code == mcp.CodeURLElicitation {
		a.sent(ev.Body)
	}
	if a.modern && a.x.out.status == 0 {
		a.refusal = a.status(ev)
	}
	a.answer(body, cuts, strconv.FormatUint(ev.Seq, 10))
	if !a.x.out.flush() {
		a.gone()
		return
	}
	a.delivered(ev.End)
}

func (a *attachment) delivered(end *call.End) {
	a.d.How = call.Delivered
	if a.join == call.Replay {
		a.d.How = call.Replayed
	}
	a.d.Events++
	a.x.q.End = end
}

// answer writes body with cuts made, as an event or as the whole reply. An event
// that follows others gets an id with seq; one that is the whole reply has
// nothing before it that could be resumed.
func (a *attachment) answer(body []byte, cuts []cut, seq string) {
	out := &a.x.out
	b := a.take()
	ids := a.prefix != nil && seq != "" && (out.status != 0 || a.from != "")
	sse := a.d.Kind != "json" && a.refusal == 0
	if out.status == 0 { // the answer is the whole reply, so its size is known
		h := out.w.Header()
		size := len(body)
		for _, c := range cuts {
			size += len(c.with) - (c.to - c.from)
		}
		if sse {
			streamHead(h)
			size += len(eventHead) + len(eventTail)
			if ids {
				size += len("id: \n") + len(a.prefix) + len(seq)
			}
		} else {
			h["Content-Type"] = valueJSON
			h["Cache-Control"] = valueNoStore
		}
		h["Content-Length"] = []string{strconv.Itoa(size)}
		out.head(cmp.Or(a.refusal, http.StatusOK))
	}
	if sse {
		if ids {
			*b = append(append(append(append(*b, "id: "...), a.prefix...), seq...), '\n')
		}
		*b = append(*b, eventHead...)
	}
	head, rest := spliceHead(*b, body, cuts)
	if len(rest) < bigBody {
		head = append(head, rest...)
		if sse {
			head = append(head, eventTail...)
		}
		rest = nil
	}
	*b = head
	out.write(*b)
	a.give()
	if rest != nil {
		out.write(rest)
		if sse {
			out.write(eventTail)
		}
	}
}

// gone records that the agent did not get the answer, and why; what becomes of
// the call is the era's and the policy's to say (I7).
func (a *attachment) gone() {
	switch {
	case a.x.h.isStopping():
		a.d.How = call.ShutDown
		return
	case a.x.out.slow:
		a.d.How = call.Slow
	default:
		a.d.How = call.AbortedDownstream
	}
}
