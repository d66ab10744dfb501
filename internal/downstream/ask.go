package downstream

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// What a tool asks of the agent whose call it works on (SPEC §4.2). The call has the
// questions (call.Call.Question); here they are put to the agent in the way of its
// era: as requests on the call's stream up to 2025-11-25, and as the result of the
// request from 2026-07-28 on, which is then made again with the answers.

// question is one that the agent can be asked.
type question struct {
	key, method string
	params      []byte // raw; nil if there are none
	progress    bool   // the tool server wants to hear that somebody is at work
}

// questions are those that wait for an answer and that the agent of this request has
// declared it can be asked. Others wait for another reader of the call.
func (x *exchange) questions(c *call.Call) (list []question, state []byte) {
	if x.asks == "" {
		return nil, nil
	}
	requests, state := c.Question()
	members, _ := mcp.Members(requests) // what the engine has is an object
	server := ""
	for _, m := range members {
		q := question{key: m.Name}
		q.method, _ = text(m.Value, "method")
		if f := find(m.Value, 0, "params"); f.ok() {
			q.params = m.Value[f.val:skipValue(m.Value, f.val)]
		}
		if !mcp.Askable([]byte(x.asks), q.method, q.params) {
			continue
		}
		if x.server == "" && server == "" {
			server = c.Record().Server
		}
		if q.plain(server, x.modern) {
			list = append(list, q)
		}
	}
	return list, state
}

// plain puts the params into the words of one era: without what belongs to another
// hop, and, at the endpoint of all servers, with the name of the one that asks
// before what a person reads. ok is false for params that cannot be read.
func (q *question) plain(server string, modern bool) (ok bool) {
	if q.params == nil {
		if modern { // roots are asked for without any, and the Go SDK reads no request without
			q.params = []byte("{}")
		}
		return true
	}
	var set []mcp.Member
	if message, is := text(q.params, "message"); is && server != "" && q.method == mcp.MethodElicit {
		set = append(set, mcp.Member{Name: "message", Value: mcp.Quote("[" + server + "] " + message)})
	}
	meta := find(q.params, 0, "_meta")
	if meta.ok() && q.params[meta.val] == '{' {
		raw := q.params[meta.val:skipValue(q.params, meta.val)]
		q.progress = find(raw, 0, mcp.MetaKeyProgressToken).ok()
		raw, err := mcp.EditObject(raw, func(name string) bool { return name == mcp.MetaKeyProgressToken })
		if err != nil {
			return false
		}
		if string(raw) != "{}" {
			set = append(set, mcp.Member{Name: "_meta", Value: raw})
			meta = field{}
		}
	}
	params, err := mcp.EditObject(q.params, func(name string) bool {
		return name == "_meta" && meta.ok() || name == memberElicitation && modern
	}, set...)
	q.params = params
	return err == nil
}

// inputRequests are requests as a stateless agent's task shows them.
func inputRequests(requests []byte) []byte {
	members, err := mcp.Members(requests)
	if err != nil {
		return requests
	}
	for i, m := range members {
		q := question{}
		q.method, _ = text(m.Value, "method")
		if f := find(m.Value, 0, "params"); f.ok() {
			q.params = m.Value[f.val:skipValue(m.Value, f.val)]
		}
		if !q.plain("", true) {
			continue
		}
		if v, err := mcp.EditObject(m.Value, nil, mcp.Member{Name: "params", Value: q.params}); err == nil {
			members[i].Value = v
		}
	}
	out, err := mcp.EditObject(nil, nil, members...)
	if err != nil {
		return requests
	}
	return out
}

// gatherFor is how long the first question of a tool server with sessions waits for
// more of them, which then go to a stateless agent in one result.
const gatherFor = 50 * time.Millisecond

// memberElicitation names an elicitation by page in 2025-11-25.
const memberElicitation = "elicitationId"

// inputRequired answers a modern request with what the tool asks. It returns false,
// and does nothing, if there is nothing that this agent can be asked.
func (a *attachment) inputRequired() bool {
	if a.asks == nil || a.quiet {
		return false
	}
	list, runner := a.gather(a.call)
	if len(list) == 0 {
		return false // or taken back
	}
	a.answer(a.asksThese(a.call, list, runner), nil, "")
	if !a.x.out.flush() {
		a.gone()
		return true
	}
	a.d.How = call.Asked
	a.d.Events++
	return true
}

// gather gives the questions of a call, for one result. A server with sessions asks one
// by one, and people are better asked once.
func (a *attachment) gather(c *call.Call) (list []question, runner []byte) {
	list, runner = a.x.questions(c)
	if len(list) == 0 || runner != nil {
		return list, runner
	}
	more := time.NewTimer(gatherFor)
	select {
	case <-more.C:
	case <-a.ctx.Done():
		more.Stop()
	}
	return a.x.questions(c)
}

// asksThese is the InputRequiredResult with questions of a call.
func (a *attachment) asksThese(c *call.Call, list []question, runner []byte) []byte {
	b := append([]byte(`{"jsonrpc":"2.0","id":`), a.id...)
	b = append(b, `,"result":{"resultType":"`+mcp.ResultInput+`","`...)
	b = append(b, `inputRequests":{`...)
	for i, q := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, mcp.Quote(q.key)...), `:{"method":`...), mcp.Quote(q.method)...)
		if q.params != nil {
			b = append(append(b, `,"params":`...), q.params...)
		}
		b = append(b, '}')
	}
	s := inputState{call: c.ID(), expires: time.Now().Add(stateFor), digest: *a.asks, runner: runner}
	b = append(b, `},"requestState":"`...)
	b = append(b, a.x.h.sealState(&s, a.x.q.Principal, a.x.server)...)
	b = append(append(b, `",`...), a.x.h.metaInfo()...)
	return append(b, `}}`...)
}

// asked takes a KindAsk: it returns true if the attachment is over.
func (a *attachment) asked(ev *call.Event) bool {
	if a.modern {
		return a.inputRequired()
	}
	if a.session != nil && a.x.out.status != 0 && !a.batched { // there is a stream to ask on
		a.askAgent(ev)
	}
	return false
}

// asksAlready asks what was asked before this reader came.
func (a *attachment) asksAlready() (over bool) {
	if a.from != "" || a.call.Asked() == nil {
		return false
	}
	return a.asked(&call.Event{Kind: call.KindAsk, Seq: a.after})
}

// askAgent writes the requests that the agent has not been sent yet on the call's
// stream, and takes back those that nobody waits for any more. ev is what says
// so: a KindAsk, or one that stands for those that came before this reader.
func (a *attachment) askAgent(ev *call.Event) {
	list, _ := a.x.questions(a.call)
	var frames [][]byte
	for i := range list {
		q := &list[i]
		at := a.call.AskedAt(q.key)
		if a.put[q.key] || at > ev.Seq { // its own event comes
			continue
		}
		if a.put == nil {
			a.put = map[string]bool{}
		}
		a.put[q.key] = true
		if a.from != "" && at <= a.seen {
			continue // on the stream that this one goes on with
		}
		a.session.hasPut(askID(a.call.ID(), a.session.id, q.key))
		frames = append(frames, a.serverRequest(a.call, q))
	}
	if len(a.put) > 0 && ev.Body != nil {
		var open []string // by then: an answer that has come since has an event of its own
		members, _ := mcp.Members(ev.Body)
		for _, m := range members {
			open = append(open, m.Name)
		}
		for key := range a.put {
			if !slices.Contains(open, key) {
				frames = append(frames, a.takeBack(key))
			}
		}
	}
	b := a.take()
	for i, f := range frames {
		*b = append(append(append(*b, eventHead...), f...), '\n')
		if i == len(frames)-1 && ev.Body != nil { // one that breaks before brings all of them again
			*b = a.appendID(*b, ev.Seq)
		}
		*b = append(*b, '\n')
		a.lastData = time.Now()
		a.d.Events++
	}
	if len(*b) == 0 {
		a.give()
	}
}

// serverRequest is a question of a call as a request of ours.
func (a *attachment) serverRequest(c *call.Call, q *question) []byte {
	id := mcp.Quote(askID(c.ID(), a.session.id, q.key))
	params := q.params
	var set []mcp.Member
	if page, ok := text(params, memberElicitation); ok && q.method == mcp.MethodElicit {
		a.session.pages.add(c.Record().Server, page)
	} else if q.method == mcp.MethodElicit && mcp.ElicitMode(params) == "url" {
		set = append(set, mcp.Member{Name: memberElicitation, Value: id}) // 2026-07-28 has none
	}
	var meta []mcp.Member
	if q.progress {
		meta = append(meta, mcp.Member{Name: mcp.MetaKeyProgressToken, Value: id})
	}
	if a.result {
		meta = append(meta, mcp.Member{Name: metaKeyRelated, Value: []byte(`{"taskId":"` + string(c.ID()) + `"}`)})
	}
	if meta != nil {
		var was []byte
		if f := find(params, 0, "_meta"); f.ok() {
			was = params[f.val:skipValue(params, f.val)]
		}
		if m, err := mcp.EditObject(was, nil, meta...); err == nil {
			set = append(set, mcp.Member{Name: "_meta", Value: m})
		}
	}
	if set != nil {
		if edited, err := mcp.EditObject(params, nil, set...); err == nil {
			params = edited
		}
	}
	b := append([]byte(`{"jsonrpc":"2.0","id":`), id...)
	b = append(append(b, `,"method":`...), mcp.Quote(q.method)...)
	if params != nil {
		b = append(append(b, `,"params":`...), params...)
	}
	return mcp.OneLine(append(b, '}'))
}

// takeBack cancels a request of ours, and forgets it.
func (a *attachment) takeBack(key string) []byte {
	delete(a.put, key)
	id := askID(a.call.ID(), a.session.id, key)
	a.session.hasSettled(id)
	return tookBack(id)
}

func tookBack(id string) []byte {
	b := append([]byte(`{"jsonrpc":"2.0","method":"`+mcp.MethodCancelled+`","params":{"requestId":`), mcp.Quote(id)...)
	return append(b, `,"reason":"Nobody waits for the answer any more."}}`...)
}

// forgetPut notes that the agent may not have got what was put to it.
func (a *attachment) forgetPut() {
	if a.d.How == call.AbortedDownstream || a.d.How == call.Slow {
		for key := range a.put {
			a.session.hasSettled(askID(a.call.ID(), a.session.id, key))
		}
	}
}

// takeBackAll cancels the requests that are still open when the call has ended
// (SPEC §2.3).
func (a *attachment) takeBackAll() {
	for key := range a.put {
		b := a.take()
		*b = append(append(append(*b, eventHead...), a.takeBack(key)...), eventTail...)
	}
}

// answeredKeys forgets requests that have their answer.
func (a *attachment) answeredKeys(ev *call.Event) {
	if a.put == nil {
		return
	}
	keys, _ := elements(ev.Body)
	for _, k := range keys {
		if key, ok := mcp.String(k); ok {
			delete(a.put, key)
		}
	}
}

// askID is the id of a request of ours: it names the call, and the question to one
// session only, so that no other can answer it.
func askID(c call.ID, session, key string) string {
	sum := sha256.Sum256(appendBytes(appendBytes(nil, []byte(session)), []byte(key)))
	return string(c) + "/" + hex.EncodeToString(sum[:8])
}

// findAsked gives the call and key of a question that the session was asked under
// the id or token; nil if it was asked none such, or nobody waits for it any more.
func (x *exchange) findAsked(s *session, raw []byte) (c *call.Call, key, method string) {
	id, _ := mcp.String(raw)
	name, _, ok := strings.Cut(id, "/")
	if !ok {
		return nil, "", ""
	}
	c, err := x.findCall(name)
	if err != nil {
		return nil, "", ""
	}
	members, _ := mcp.Members(c.Asked())
	for _, m := range members {
		if askID(c.ID(), s.id, m.Name) == id {
			method, _ = text(m.Value, "method")
			return c, m.Name, method
		}
	}
	return nil, "", ""
}

// answered takes a response of the session's agent to a request of ours. One that
// nobody waits for is ignored.
func (x *exchange) answered(s *session, m *mcp.Message) {
	if id, ok := mcp.String(m.ID.Of(m.Raw)); ok {
		s.hasSettled(id)
	}
	if x.rootsAnswered(s, m) {
		return
	}
	c, key, method := x.findAsked(s, m.ID.Of(m.Raw))
	if c == nil {
		return
	}
	value := m.Result.Of(m.Raw)
	if method == mcp.MethodRoots && s.roots.learn(value) {
		x.h.opt.Catalog.RootsJoined(x.caller())
	}
	if m.Error.Ok() || !isObject(value) {
		refused := m.Error.Of(m.Raw)
		if refused == nil {
			refused = []byte(`{"code":-32603,"message":"The agent's answer is not an object."}`)
		}
		value = append(append([]byte(`{"`+mcp.KeyRefused+`":`), refused...), '}')
	}
	name := mcp.Quote(key)
	response := append(append(append([]byte{'{'}, name...), ':'), value...)
	// An error says that the call has ended, is with another process, or has too
	// many answers to take already.
	if err := c.Answer(append(response, '}'), append(append([]byte{'['}, name...), ']')); err != nil {
		x.h.log.Warn("an agent's answer reached no tool server", "call", c.ID(), "error", err)
	}
}

// working takes progress of the session's agent on a request of ours.
func (x *exchange) working(s *session, m *mcp.Message) {
	if c, key, _ := x.findAsked(s, m.ProgressToken.Of(m.Raw)); c != nil {
		c.Pulse(call.Pulse{Key: key, Progress: bytes.Clone(m.Raw)})
	}
}
