package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
	"github.com/longcall/longcall/internal/seal"
)

// addressQuestion is the kind of an address of a call whose request was answered with
// a question. The server keeps nothing open, so that a process after ours asks the
// same again, and makes the same request with the answers.
const addressQuestion = "question"

// maxQuestion bounds what is kept of one, in bytes. A call with a larger request ends
// with our process.
const maxQuestion = 256 << 10

// questionAddress is the address of such a call. What is the agent's and the server's
// own in it is sealed: of arguments nothing is stored but what policy keeps.
type questionAddress struct {
	address
	Sealed []byte `json:"sealed"` // a keptQuestion
}

// keptQuestion is all that is needed to go on after a question.
type keptQuestion struct {
	Request  []byte            `json:"request"` // as its agent made it
	LogLevel string            `json:"log_level,omitempty"`
	Params   map[string]string `json:"params,omitempty"`
	Asked    json.RawMessage   `json:"asked"`           // by our keys
	Keys     map[string]string `json:"keys"`            // the server's, by ours
	State    json.RawMessage   `json:"state,omitempty"` // the server's
	Page     bool              `json:"page,omitempty"`  // see question.url
	Round    int               `json:"round"`
	Used     []string          `json:"used"` // keys of this question and those before
}

// purposeQuestion is what the key of Hooks is used for here.
const purposeQuestion = "question"

// keep stores what a later process needs to go on with the call, before the question
// is shown: by then it is true that a restart loses nothing.
func (r *rounds) keep(q *question, shown []byte, theirs map[string]string) {
	if r.hooks == nil || r.spec == nil {
		return
	}
	b, err := json.Marshal(&keptQuestion{
		Request: r.spec.Request, LogLevel: r.spec.LogLevel, Params: r.spec.Params, Asked: shown, Keys: theirs,
		State: q.state, Page: q.url, Round: r.n, Used: slices.Sorted(maps.Keys(r.used)),
	})
	if err != nil || len(b) > maxQuestion {
		return
	}
	a := questionAddress{address: r.place, Sealed: seal.Seal(r.hooks.Key, purposeQuestion, b, []byte(r.x.ID))}
	a.Kind, a.Asks = addressQuestion, r.caps
	if body, err := json.Marshal(&a); err == nil {
		r.x.Address(body)
	}
}

var errKept = errors.New("what was kept of the question cannot be read")

// openQuestion reads what keep has stored.
func (h *Hooks) openQuestion(id call.ID, body []byte) (a questionAddress, k keptQuestion, err error) {
	if err := json.Unmarshal(body, &a); err != nil {
		return a, k, errKept
	}
	b, ok := seal.Open(h.Key, purposeQuestion, a.Sealed, []byte(id))
	if !ok || json.Unmarshal(b, &k) != nil {
		return a, k, errKept
	}
	return a, k, nil
}

// askAgain goes on with a call that an earlier process left with a question.
func (c *httpConn) askAgain(ctx context.Context, x *call.Exec) call.Answer {
	a, k, err := c.hooks.openQuestion(x.ID, x.Resume.Address)
	var asked []mcp.Member
	if err == nil {
		asked, err = mcp.Members(k.Asked)
	}
	if err != nil {
		return interrupted("longcall was restarted while the tool waited for an answer, and cannot ask again: %v.", err)
	}
	spec := *x.Spec
	spec.Request, spec.LogLevel, spec.Params, spec.Capabilities = bytes.Clone(k.Request), k.LogLevel, k.Params, a.Asks
	r := &rounds{x: x, caps: a.Asks, spec: &spec, hooks: &c.hooks, pages: c.hooks.pages, place: a.address, n: k.Round - 1, used: map[string]bool{}}
	for _, key := range k.Used {
		r.used[key] = true
	}
	x.Note("longcall was restarted; what the tool had asked is asked again.")
	return c.goRounds(ctx, r, &question{requests: asked, keys: k.Keys, state: k.State, url: k.Page})
}
