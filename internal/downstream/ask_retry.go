package downstream

import (
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// What is wrong with a request that is made again. Nothing is lost by any of them:
// the question waits on for its own answer.
const (
	badState     = "This requestState was not given to you here, or was changed on the way: nothing was done with it. Send it exactly as it came, with the same method and params. If you have lost it, make the call without it, and you are asked again."
	otherState   = "This requestState belongs to another request: nothing was done. It goes with the method and params that it was the answer to."
	oldState     = "This question waits for no answer any more: its time is over, or longcall was restarted. Nothing was done. Make the call again without requestState, and you are asked anew."
	usedState    = "This question has its answer: nothing was done. The request that brought it is the one that gets the result."
	badResponses = "params.inputResponses must be an object: the answers by the keys of the questions. Nothing was done."
)

// secondTry is a request that is made again with answers.
type secondTry struct {
	state     inputState
	responses []byte // raw object; nil if it brings none
}

// takesUp says whether a request is made again with answers, and reads them. wrong
// is what is wrong with it.
func (x *exchange) takesUp(m *mcp.Message) (r *secondTry, wrong string) {
	params := m.Params.Of(m.Raw)
	state, responses := find(params, 0, memberState), find(params, 0, memberResponses)
	if responses.ok() && params[responses.val] != '{' {
		return nil, badResponses
	}
	if !state.ok() || string(params[state.val:state.end]) == "null" {
		return nil, ""
	}
	r = &secondTry{}
	sealed, ok := mcp.String(params[state.val:skipValue(params, state.val)])
	if ok {
		r.state, ok = x.h.openState(sealed, x.q.Principal, x.server)
	}
	if !ok {
		return nil, badState
	}
	if time.Now().After(r.state.expires) {
		return nil, oldState
	}
	if sum, ok := requestDigest(m); !ok || sum != r.state.digest {
		return nil, otherState
	}
	if responses.ok() {
		r.responses = params[responses.val:skipValue(params, responses.val)]
	}
	return r, ""
}

// comesBack serves a request that is made again with answers. For any other, and for
// one that another call has to go on with, it returns the request to be started.
func (x *exchange) comesBack(m *mcp.Message) (start *mcp.Message, a *attachment, answer []byte) {
	r, wrong := x.takesUp(m)
	if r == nil && wrong == "" {
		if answersInput(m) { // to nothing that was asked here: a stateless server may know what to do with it
			if plain, err := withoutState(m); err == nil {
				params := m.Params.Of(m.Raw)
				if f := find(params, 0, memberResponses); f.ok() {
					x.tried = &secondTry{responses: params[f.val:skipValue(params, f.val)]}
				}
				return plain, nil, nil
			}
		}
		return m, nil, nil
	}
	fresh := false
	if wrong == "" {
		if a, wrong, fresh = x.goOn(m, r); fresh {
			plain, err := withoutState(m)
			if err == nil {
				x.tried = r
				return plain, nil, nil
			}
			wrong = badState
		}
	}
	if wrong != "" {
		return nil, nil, mcp.ErrorResponse(m.ID.Of(m.Raw), mcp.CodeInvalidParams, wrong, nil)
	}
	return nil, a, nil
}

// into has a call go on from where the one that asked has ended. It equals only a
// request that brings the same answers.
func (r *secondTry) into(s *call.Spec) {
	if r == nil {
		return
	}
	s.State, s.Answers = r.state.runner, r.responses
	if s.Answers == nil {
		s.Answers = []byte("{}")
	}
	if s.Digest != "" {
		s.Digest = sessionDigest(s.Digest, string(r.state.runner)+"\x00"+string(r.responses))
	}
	if s.State != nil {
		s.Idempotency = ""
	}
}

// withoutState is the request as it was made first.
func withoutState(m *mcp.Message) (*mcp.Message, error) {
	params, err := mcp.EditObject(m.Params.Of(m.Raw), func(name string) bool { return name == memberState || name == memberResponses })
	if err != nil {
		return nil, err
	}
	plain, err := mcp.Parse(mcp.AppendEdited(nil, m.Raw, mcp.Edit{At: m.Params, With: params}))
	return &plain, err
}

// goOn serves a request that is made again: it attaches to the call that asked, and
// brings it the answers. What it brings no answer to is asked again; what was not
// asked is ignored (SPEC §4.1). A question that has its answer is answered once: the
// state is then good only for who lost the rest, and makes the same request again
// (SPEC §3.7). fresh says that the call has ended, and that another one goes on from
// the state.
func (x *exchange) goOn(m *mcp.Message, r *secondTry) (a *attachment, wrong string, fresh bool) {
	c, err := x.findCall(string(r.state.call))
	if err != nil {
		return nil, oldState, r.state.runner != nil
	}
	rec := c.Record()
	after, ended := joinedAt(c), rec.End.Outcome != call.Running
	switch {
	case ended && rec.End.Limit == "answer" && r.state.runner != nil:
		return nil, "", true
	case ended && (rec.Delivered || c.Attended()):
		return nil, usedState, false
	}
	taken, keys, wrong := answersTo(c, r.responses)
	switch {
	case wrong != "":
		return nil, wrong, false
	case taken == nil && c.Asked() == nil && c.Attended():
		return nil, usedState, false
	}
	a = &attachment{
		x: x, ctx: x.r.Context(), modern: true, call: c, join: call.Joined, wantLogs: true, after: after, since: rec.Started,
		id: append([]byte(nil), m.ID.Of(m.Raw)...), asks: &r.state.digest,
		policy: x.h.opt.Admit(x.q.Principal, rec.Server, rec.Tool, true),
	}
	if m.Method != mcp.MethodToolsCall {
		a.read, a.policy = &reading{method: m.Method, uncached: true}, x.admitRead(rec.Server)
	}
	if ended {
		a.join = call.Replay
	}
	if t := m.MetaToken.Of(m.Raw); t != nil && isProgressToken(t) {
		a.token = append([]byte(nil), t...)
	}
	var l string
	l, a.wantLogs = mcp.String(m.MetaLogLevel.Of(m.Raw))
	a.logs, _ = level(l)
	if x.relayed() {
		a.policy.CancelOnDisconnect = false
	}
	p := x.profile(clientName(m.MetaClientInfo.Of(m.Raw)))
	a.task = p.Tasks && declaresTasks(m.MetaCapabilities.Of(m.Raw))
	a.budget(p)
	x.q.Server, x.q.Tool, x.q.Call = rec.Server, rec.PublicTool, rec.ID
	c.Enter()
	x.observe()
	if taken != nil {
		// An error says that the call has ended meanwhile, and the end is what this
		// request then shows; or that there are too many answers, and it asks again.
		_ = c.Answer(taken, keys)
	}
	return a, "", false
}

// answersTo is what responses say to the questions that wait now, with the JSON
// array of their keys; nil if nothing.
func answersTo(c *call.Call, responses []byte) (taken, keys []byte, wrong string) {
	if responses == nil {
		return nil, nil, ""
	}
	asked, _ := mcp.Members(c.Asked())
	open := make(map[string]string, len(asked))
	for _, q := range asked {
		open[q.Name], _ = text(q.Value, "method")
	}
	answers, err := mcp.Members(responses)
	if err != nil {
		return nil, nil, badResponses
	}
	for _, v := range answers {
		method, ok := open[v.Name]
		if !ok {
			continue
		}
		if bad := mcp.BadAnswer(method, v.Value); bad != "" {
			return nil, nil, "The answer to " + oneLine(v.Name, 100) + " cannot be used: " + bad + ". Nothing was done; the question waits on."
		}
		sep := byte(',')
		if taken == nil {
			taken, keys, sep = []byte{'{'}, []byte{'['}, 0
		}
		if sep != 0 {
			taken, keys = append(taken, sep), append(keys, sep)
		}
		name := mcp.Quote(v.Name)
		taken = append(append(append(taken, name...), ':'), v.Value...)
		keys = append(keys, name...)
	}
	if taken == nil {
		return nil, nil, ""
	}
	return append(taken, '}'), append(keys, ']'), ""
}
