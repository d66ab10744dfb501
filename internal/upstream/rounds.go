package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

const (
	// maxRounds is how often one call may ask before longcall gives it up: a
	// server that asks on and on would never end.
	maxRounds = 8
	// pauseFirst and pauseMax are the pauses before a request that the server only
	// wants to be made again.
	pauseFirst = 250 * time.Millisecond
	pauseMax   = 5 * time.Second
	// maxRunner bounds what is kept in an agent's requestState of the server's own,
	// in bytes. Without it an answer must come while the call waits.
	maxRunner = 64 << 10
)

// question is an answer of a tool server that only asks: a result of kind
// input_required (SPEC §4.1), or an error that says a page has to be visited first
// (-32042, up to 2025-11-25). The server keeps nothing open: the answer goes with the
// request, made once more.
//
// That is no second run (I1): the server itself has said that the first request is
// not done and is to be made again, and no request is made again before it has. So
// it happens within the one call, which the agent of the session never sees.
type question struct {
	requests []mcp.Member      // by the server's own keys, raw
	keys     map[string]string // if the requests are by keys of ours already: the server's
	state    []byte            // requestState, raw; nil if there is none
	url      bool              // it is the error
}

// pageMayCome says whether the answer of a server with sessions may be an error that
// becomes a question (asksURL), so that the request has to be kept.
func pageMayCome(s *call.Spec) bool {
	return mcp.Modern(s.Era) && strings.Contains(s.Capabilities, "url")
}

// smallRequest is the size up to which a request is kept, in bytes, for a server that
// must not ask the agent but may want it to be made again.
const smallRequest = 1 << 10

// mayAsk says whether the answer to a request that was taken may still be a question.
func mayAsk(s *call.Spec) bool {
	return s != nil && (s.Capabilities != "" || len(s.Request) <= smallRequest)
}

// readQuestion reads a result of kind input_required.
func readQuestion(result []byte) (*question, error) {
	members, err := mcp.Members(bytes.Clone(result))
	if err != nil {
		return nil, err
	}
	q := &question{}
	for _, m := range members {
		switch m.Name {
		case "inputRequests":
			if q.requests, err = mcp.Members(m.Value); err != nil {
				return nil, err
			}
		case "requestState":
			q.state = m.Value
		}
	}
	return q, nil
}

// urlQuestion reads the error that a page has to be visited; nil if it names none.
func urlQuestion(rpcErr []byte) *question {
	var e struct {
		Data struct {
			Elicitations []json.RawMessage `json:"elicitations"`
		} `json:"data"`
	}
	if json.Unmarshal(rpcErr, &e) != nil {
		return nil
	}
	q := &question{url: true}
	for i, raw := range e.Data.Elicitations {
		if mcp.ElicitMode(raw) != "url" {
			continue
		}
		request := append([]byte(`{"method":"`+mcp.MethodElicit+`","params":`), raw...)
		q.requests = append(q.requests, mcp.Member{Name: "url-" + strconv.Itoa(i+1), Value: append(request, '}')})
	}
	if q.requests == nil {
		return nil
	}
	return q
}

// asksURL says whether an error of a server with sessions is one whose page the
// agent can be led to by a question: one of the stateless era, where there is no such
// error. Agents of 2025-11-25 know it themselves, and get it as it is; others get
// its words (SPEC §4.2).
func asksURL(x *call.Exec, caps string, code int) bool {
	return code == mcp.CodeURLElicitation && mcp.Modern(x.Spec.Era) && mcp.Askable([]byte(caps), mcp.MethodElicit, []byte(`{"mode":"url"}`))
}

// rounds are the questions of one call, one after the other.
type rounds struct {
	x     *call.Exec
	caps  string
	spec  *call.Spec // with the request; nil if it was not kept
	n     int        // questions so far
	again int        // requests that were only to be made again, so far
	used  map[string]bool
	hooks *Hooks     // of a server that outlives us; nil for others
	place address    // of that server
	pages *pageBoard // may be nil
}

// runnerState is how another call goes on after a question whose call has ended; see
// call.Exec.Ask.
type runnerState struct {
	State json.RawMessage   `json:"s,omitempty"`
	Keys  map[string]string `json:"k,omitempty"` // the server's, by ours
}

// next waits for the answers to a question, and gives the members of params that
// the request is made again with. If it is not to be made again, a is the end.
func (r *rounds) next(ctx context.Context, q *question) (more []mcp.Member, a *call.Answer) {
	if r.spec == nil || r.x.Spec.Method == mcp.MethodComplete { // a completion must not ask (SPEC §4.1, R-08)
		end := unfinished(mcp.ResultInput)
		return nil, &end
	}
	if len(q.requests) == 0 {
		return r.later(ctx, q)
	}
	if r.n++; r.n > maxRounds {
		end := failed("The tool server asked for input %d times without an end, so longcall gave the call up. What it had done by then may have taken effect.", maxRounds)
		return nil, &end
	}
	answers, end := r.ask(ctx, q)
	if end != nil {
		return nil, end
	}
	return q.answered(answers), nil
}

// later waits a moment before a request that is only to be made again.
func (r *rounds) later(ctx context.Context, q *question) (more []mcp.Member, a *call.Answer) {
	t := time.NewTimer(min(pauseFirst<<min(r.again, 10), pauseMax))
	defer t.Stop()
	r.again++
	select {
	case <-t.C:
		return q.answered(nil), nil
	case <-ctx.Done():
		return nil, &call.Answer{}
	}
}

// answered are the members of params that go with the answers.
func (q *question) answered(answers []mcp.Member) (more []mcp.Member) {
	if q.url {
		return []mcp.Member{} // what was to be visited is between the page and the server
	}
	if answers != nil {
		b, _ := mcp.EditObject(nil, nil, answers...) // which makes one of nothing
		more = append(more, mcp.Member{Name: "inputResponses", Value: b})
	}
	if q.state != nil {
		more = append(more, mcp.Member{Name: "requestState", Value: q.state})
	}
	if more == nil {
		more = []mcp.Member{}
	}
	return more
}

// ask shows the question, and waits until all of it is answered.
func (r *rounds) ask(ctx context.Context, q *question) (answers []mcp.Member, end *call.Answer) {
	theirs := make(map[string]string, len(q.requests))
	methods := make(map[string]string, len(q.requests))
	var shown []mcp.Member
	paged, byPage := make(chan string, len(q.requests)), map[string]string{} // keys by page
	url := false
	for _, m := range q.requests {
		method, _ := mcp.String(mcp.Value(m.Value, "method"))
		params := mcp.Value(m.Value, "params")
		if !mcp.Askable([]byte(r.caps), method, params) {
			a := r.cannot(method, params)
			return nil, &a
		}
		url = url || method == mcp.MethodElicit && mcp.ElicitMode(params) == "url"
		key, name := m.Name, q.keys[m.Name]
		if q.keys == nil {
			key, name = r.key(m.Name), m.Name
		}
		theirs[key], methods[key] = name, method
		if page := pageOf(method, params); page != "" && mcp.Modern(r.x.Spec.Era) {
			byPage[page] = key
		}
		shown = append(shown, mcp.Member{Name: key, Value: m.Value})
	}
	for page := range byPage {
		r.pages.wait(page, paged)
	}
	defer func() {
		for page := range byPage {
			r.pages.leave(page, paged)
		}
	}()
	requests, err := mcp.EditObject(nil, nil, shown...)
	if err == nil {
		err = r.x.Count(int64(len(requests)))
	}
	if err != nil {
		return nil, &call.Answer{} // over its limit: the engine knows
	}
	r.keep(q, requests, theirs)
	r.x.Ask(mcp.OneLine(requests), r.state(q, theirs))
	defer r.x.Ask(nil, nil)
	since := time.Now()
	wait := time.NewTimer(0)
	defer wait.Stop()
	for len(theirs) > 0 {
		limit := (&ask{url: url}).limit(&r.x.Limits, r.x.Attended())
		left := limit - time.Since(since)
		switch {
		case limit < 0:
			wait.Reset(time.Hour)
		case left <= 0:
			return r.expired(q, answers, theirs, methods, limit)
		default:
			wait.Reset(min(left, lookAround))
		}
		select {
		case b := <-r.x.Answers():
			members, _ := mcp.Members(b)
			for _, m := range members {
				name, ok := theirs[m.Name]
				if !ok {
					continue
				}
				value, end := r.value(q, methods[m.Name], m.Value)
				if end != nil {
					return nil, end
				}
				answers = append(answers, mcp.Member{Name: name, Value: value})
				delete(theirs, m.Name)
			}
		case page := <-paged:
			if name, ok := theirs[byPage[page]]; ok {
				r.x.Note("The tool server says that the page is done, which it sent the person to: the call goes on.")
				answers = append(answers, mcp.Member{Name: name, Value: visited})
				delete(theirs, byPage[page])
			}
		case <-r.x.Pulses(): // nobody waits for it
		case <-wait.C:
		case <-ctx.Done():
			return nil, &call.Answer{}
		}
	}
	return answers, nil
}

// key is a key of the server's that no question before had; else one like it.
func (r *rounds) key(name string) string {
	if r.used == nil {
		r.used = map[string]bool{}
	}
	key := name
	for n := 2; r.used[key]; n++ {
		key = name + "~" + strconv.Itoa(n)
	}
	r.used[key] = true
	return key
}

// state is how another call goes on, should nobody answer while this one waits.
// Only an agent of the stateless era can bring it.
func (r *rounds) state(q *question, theirs map[string]string) []byte {
	if !mcp.Modern(r.x.Spec.Era) {
		return nil
	}
	s := runnerState{State: q.state, Keys: theirs}
	if q.url {
		s = runnerState{}
	}
	b, err := json.Marshal(&s)
	if err != nil || len(b) > maxRunner {
		return nil
	}
	return b
}

// value is an agent's answer as a stateless server takes it, which has no word for
// an agent that refuses, but for elicitations.
func (r *rounds) value(q *question, method string, answer []byte) (value []byte, end *call.Answer) {
	refused := mcp.Value(answer, mcp.KeyRefused)
	switch {
	case q.url:
		if action, _ := mcp.String(mcp.Value(answer, "action")); action != "accept" {
			a := failed("The tool needs a page to be visited first, and that was declined. The call did not run.")
			return nil, &a
		}
	case refused == nil:
	case method == mcp.MethodElicit && string(mcp.Value(refused, "code")) == "-1":
		return []byte(`{"action":"decline"}`), nil
	case method == mcp.MethodElicit:
		return []byte(`{"action":"cancel"}`), nil
	default:
		text, _ := mcp.String(mcp.Value(refused, "message"))
		a := failed("The tool asked for %s, and the agent refused: %s. So it did not finish; what it had done by then may have taken effect.", method, printable([]byte(text)))
		return nil, &a
	}
	return answer, nil
}

// cannot ends a call whose question the agent cannot be asked.
func (r *rounds) cannot(method string, params []byte) call.Answer {
	what := method
	if method == mcp.MethodElicit {
		what += " (mode " + printable([]byte(mcp.ElicitMode(params))) + ")"
	}
	return failed("The tool asks for input that this client has not said it can give: %s. So it did not finish; what it had done by then may have taken effect. Use another tool, or a client that can answer such questions.", printable([]byte(what)))
}

// expired ends the wait for an answer that did not come. An agent of a session is
// gone for good, so that its elicitations count as cancelled and the server may go
// on; one of the stateless era can still bring its answer, in another call.
func (r *rounds) expired(q *question, answers []mcp.Member, theirs, methods map[string]string, waited time.Duration) ([]mcp.Member, *call.Answer) {
	goOn := !q.url && !mcp.Modern(r.x.Spec.Era)
	for key := range theirs {
		goOn = goOn && methods[key] == mcp.MethodElicit
	}
	if !goOn {
		a := call.Answer{End: call.End{Outcome: call.TimedOut, Limit: "answer", Text: fmt.Sprintf(
			"The tool asked for input, and nobody answered within %s (limits.answer). It has not finished and does not run any more; what it had done by then may have taken effect. Make the call again to be asked again.", waited)}}
		return nil, &a
	}
	for _, name := range theirs {
		answers = append(answers, mcp.Member{Name: name, Value: []byte(`{"action":"cancel"}`)})
	}
	r.x.Note("Nobody answered the tool server's question within %s (limits.answer); it was told that the question was cancelled.", waited)
	return answers, nil
}

// goesOn gives the members of params for a request that goes on with the answers to
// a question of a call that has ended; or with answers that nobody asked for here,
// which a server with sessions has no place for.
func goesOn(s *call.Spec, modern bool) (more []mcp.Member, err error) {
	var v runnerState
	if s.State == nil {
		if s.Answers == nil || !modern {
			return nil, nil
		}
		members, err := mcp.Members(s.Answers)
		return new(question).answered(members), err
	}
	if err := json.Unmarshal(s.State, &v); err != nil {
		return nil, err
	}
	if v.State == nil && v.Keys == nil {
		return nil, nil // a page was visited
	}
	if !modern {
		return nil, fmt.Errorf("the tool server has changed to another era of the protocol since it asked")
	}
	members, err := mcp.Members(s.Answers)
	if err != nil {
		return nil, err
	}
	answers := []mcp.Member{}
	for _, m := range members {
		if name, ok := v.Keys[m.Name]; ok {
			answers = append(answers, mcp.Member{Name: name, Value: m.Value})
		}
	}
	q := question{state: v.State}
	return q.answered(answers), nil
}

// withMembers sets members of a request's params.
func withMembers(message []byte, more []mcp.Member) ([]byte, error) {
	if len(more) == 0 {
		return message, nil
	}
	m, err := mcp.Parse(message)
	if err != nil {
		return nil, err
	}
	params, err := mcp.EditObject(m.Params.Of(m.Raw), nil, more...)
	if err != nil {
		return nil, err
	}
	return mcp.OneLine(mcp.AppendEdited(nil, message, mcp.Edit{At: m.Params, With: params})), nil
}

// inRound makes the end of a request that was made again say what is true of it: it
// was not the first.
func inRound(a call.Answer) call.Answer {
	if text, ok := strings.CutPrefix(a.Text, "Not started: "); ok && a.Body == nil {
		text, _, _ = strings.Cut(text, " Nothing was sent")
		a.Text = "Not finished: the tool had asked for input, and the answer could not be brought to it: " + text + " What it had done by then may have taken effect: check before you call it again."
	}
	return a
}
