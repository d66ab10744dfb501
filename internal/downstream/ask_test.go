package downstream

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

const (
	askForm = `"form":{"method":"elicitation/create","params":{"message":"Name?","requestedSchema":{"big":9007199254740993}}}`
	askPage = `"page":{"method":"elicitation/create","params":{"mode":"url","message":"Sign in","url":"https://x.example/","elicitationId":"e1","_meta":{"progressToken":true,"x":1}}}`
	askMind = `"mind":{"method":"sampling/createMessage","params":{"messages":[],"maxTokens":5}}`
)

// asking is a tool that asks requests, and answers with what it was answered.
func asking(requests string, state []byte) script {
	return func(ctx context.Context, x *call.Exec) call.Answer {
		_ = x.Dispatched()
		var all map[string]json.RawMessage
		if err := json.Unmarshal([]byte("{"+requests+"}"), &all); err != nil {
			panic(err)
		}
		x.Ask([]byte("{"+requests+"}"), state)
		var got strings.Builder
		for len(all) > 0 {
			select {
			case b := <-x.Answers():
				members, err := mcp.Members(b)
				if err != nil {
					panic(err)
				}
				for _, m := range members {
					delete(all, m.Name)
					got.WriteString(m.Name + "=" + string(m.Value) + ";")
				}
			case p := <-x.Pulses():
				got.WriteString("pulse of " + p.Key + ";")
			case <-ctx.Done():
				return call.Answer{}
			}
		}
		return reply(x, `{"jsonrpc":"2.0","id":0,"result":{"content":[{"type":"text","text":`+string(mcp.Quote(got.String()))+`}]}}`)
	}
}

// openWith makes a session of a client with capabilities.
func (c *client) openWith(path, version, caps string) {
	c.t.Helper()
	status, h, b := c.do("POST", path, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"`+version+`","capabilities":`+caps+`,"clientInfo":{"name":"test","version":"1"}}}`)
	if c.session = h.Get(mcp.HeaderSession); status != 200 || c.session == "" {
		c.t.Fatalf("initialize: %d %s", status, b)
	}
}

// stream is an event stream that is read as it comes.
type watchedStream struct {
	t    *testing.T
	resp *http.Response
	in   *bufio.Scanner
	last string // event id
}

func (c *client) watch(t *testing.T, method, path, body string, header ...string) *watchedStream {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	resp, err := c.http.Do(c.request(ctx, method, path, body, header...))
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); resp.Body.Close() })
	return &watchedStream{t: t, resp: resp, in: bufio.NewScanner(resp.Body)}
}

// next is the next message.
func (s *watchedStream) next() mcp.Message {
	s.t.Helper()
	id := ""
	for s.in.Scan() {
		if v, ok := strings.CutPrefix(s.in.Text(), "id: "); ok {
			id = v
		}
		if d, ok := strings.CutPrefix(s.in.Text(), "data: "); ok && d != "" {
			m, err := mcp.Parse([]byte(d))
			if err != nil {
				s.t.Fatal(err)
			}
			for s.in.Scan() && s.in.Text() != "" {
				if v, ok := strings.CutPrefix(s.in.Text(), "id: "); ok {
					id = v
				}
			}
			if id != "" {
				s.last = id
			}
			return m
		}
	}
	s.t.Fatal("the stream ended: ", s.in.Err())
	return mcp.Message{}
}

func (c *client) respond(t *testing.T, m *mcp.Message, member string) {
	t.Helper()
	if status, b := c.post("/mcp", `{"jsonrpc":"2.0","id":`+string(m.ID.Of(m.Raw))+`,`+member+`}`); status != 202 {
		t.Errorf("a response got %d %s", status, b)
	}
}

// TestAskSession: an agent of a session is sent what the tool asks on the call's
// stream, with the name of the server that asks, and its responses go to the call, also its
// refusals (LL and LM of SPEC §4.2, R-16, R-21).
func TestAskSession(t *testing.T) {
	r := newRig(t)
	r.tools["work"] = asking(askForm+","+askPage+","+askMind, nil)
	c := r.serve()
	c.openWith("/mcp", mcp.V20251125, `{"elicitation":{"form":{},"url":{}},"sampling":{}}`)
	s := c.watch(t, "POST", "/mcp", legacyCall("7", "up__work", ""))
	form, page, mind := s.next(), s.next(), s.next()
	if form.Method != mcp.MethodElicit || string(form.Params.Of(form.Raw)) != `{"message":"[up] Name?","requestedSchema":{"big":9007199254740993}}` {
		t.Errorf("asked %s", form.Raw)
	}
	id := string(page.ID.Of(page.Raw))
	if got := string(page.Params.Of(page.Raw)); got != `{"mode":"url","message":"[up] Sign in","url":"https://x.example/","elicitationId":"e1","_meta":{"x":1,"progressToken":`+id+`}}` {
		t.Errorf("asked %s", got)
	}
	if mind.Method != mcp.MethodSample {
		t.Errorf("asked %s", mind.Raw)
	}
	c.post("/mcp", `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":`+id+`,"progress":1}}`)
	c.respond(t, &page, `"result":{"action":"accept"}`)
	c.respond(t, &mind, `"error":{"code":-1,"message":"No."}`)
	c.respond(t, &form, `"result":{"action":"accept","content":{"n":9007199254740993}}`)
	c.respond(t, &form, `"result":{"action":"decline"}`) // too late
	end := s.next()
	want := `pulse of page;page={\"action\":\"accept\"};mind={\"dev.longcall/refused\":{\"code\":-1,\"message\":\"No.\"}};form={\"action\":\"accept\",\"content\":{\"n\":9007199254740993}};`
	if !strings.Contains(string(end.Raw), want) || string(end.ID.Of(end.Raw)) != "7" {
		t.Errorf("ended with %s", end.Raw)
	}
	if n := len(r.log.record(t, "up__work").ID); n == 0 {
		t.Error("no record")
	}
}

// TestAskSessionOf: only the session that was asked can answer, what was not
// declared is not asked, and what was asked is taken back when the call ends before
//
func TestAskSessionOf(t *testing.T) {
	r := newRig(t)
	ended := make(chan struct{})
	r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer {
		_ = x.Dispatched()
		x.Ask([]byte("{"+askForm+","+askMind+"}"), nil)
		<-ended
		if len(x.Answers()) > 0 {
			t.Errorf("somebody answered: %s", <-x.Answers())
		}
		return reply(x, okResult)
	}
	c := r.serve()
	c.openWith("/mcp", mcp.V20251125, `{"elicitation":{}}`)
	s := c.watch(t, "POST", "/mcp", legacyCall("7", "up__work", ""))
	form := s.next()
	if form.Method != mcp.MethodElicit {
		t.Fatalf("asked %s", form.Raw)
	}
	mine := c.session
	c.openWith("/mcp", mcp.V20251125, `{"elicitation":{}}`) // another of the same principal
	c.respond(t, &form, `"result":{"action":"accept"}`)
	c.session = mine
	for _, wrong := range []string{`"c_aaaaaaaaaaaaaaaaaaaaaaaaaa/0011223344556677"`, `7`, `"x"`} {
		if status, b := c.post("/mcp", `{"jsonrpc":"2.0","id":`+wrong+`,"result":{}}`); status != 202 {
			t.Errorf("a response to %s got %d %s", wrong, status, b)
		}
	}
	close(ended)
	back, end := s.next(), s.next()
	if back.Method != mcp.MethodCancelled || string(back.RequestID.Of(back.Raw)) != string(form.ID.Of(form.Raw)) {
		t.Errorf("before the end came %s", back.Raw)
	}
	if end.Kind != mcp.Response {
		t.Errorf("the end is %s", end.Raw)
	}
}

// TestAskSessionWithdrawn: what the tool takes back is taken back from the agent too.
func TestAskSessionWithdrawn(t *testing.T) {
	r := newRig(t)
	shown := make(chan struct{})
	r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer {
		_ = x.Dispatched()
		x.Ask([]byte("{"+askForm+"}"), nil)
		<-shown
		x.Ask(nil, nil)
		<-shown
		return reply(x, okResult)
	}
	c := r.serve()
	c.openWith("/mcp", mcp.V20250618, `{"elicitation":{}}`)
	s := c.watch(t, "POST", "/mcp", legacyCall("7", "up__work", ""))
	form := s.next()
	shown <- struct{}{}
	if back := s.next(); back.Method != mcp.MethodCancelled || string(back.RequestID.Of(back.Raw)) != string(form.ID.Of(form.Raw)) {
		t.Errorf("then came %s", back.Raw)
	}
	shown <- struct{}{}
	if end := s.next(); end.Kind != mcp.Response {
		t.Errorf("the end is %s", end.Raw)
	}
}

// TestAskResumed: a resumed stream does not ask again what was asked before it broke,
// and asks what was not; both can still be answered.
func TestAskResumed(t *testing.T) {
	r := newRig(t)
	more, broken := make(chan struct{}), make(chan struct{})
	r.tools["work"] = func(ctx context.Context, x *call.Exec) call.Answer {
		_ = x.Dispatched()
		x.Ask([]byte("{"+askForm+"}"), nil)
		<-more
		x.Ask([]byte("{"+askForm+","+askMind+"}"), nil)
		close(broken)
		var a, b []byte
		for _, p := range []*[]byte{&a, &b} {
			select {
			case *p = <-x.Answers():
			case <-ctx.Done():
				return call.Answer{}
			}
		}
		return reply(x, `{"jsonrpc":"2.0","id":0,"result":{"content":[{"type":"text","text":`+string(mcp.Quote(string(a)+string(b)))+`}]}}`)
	}
	c := r.serve()
	c.openWith("/mcp", mcp.V20251125, `{"elicitation":{},"sampling":{}}`)
	s := c.watch(t, "POST", "/mcp", legacyCall("7", "up__work", ""))
	form := s.next()
	s.resp.Body.Close()
	close(more)
	<-broken
	s = c.watch(t, "GET", "/mcp", "", mcp.HeaderLastEvent, s.last)
	mind := s.next()
	if mind.Method != mcp.MethodSample {
		t.Errorf("the resumed stream asked %s", mind.Raw)
	}
	c.respond(t, &form, `"result":{"action":"accept"}`)
	c.respond(t, &mind, `"result":{"role":"assistant","content":{}}`)
	if end := s.next(); !strings.Contains(string(end.Raw), `\"form\":{\"action\":\"accept\"}}{\"mind\"`) {
		t.Errorf("ended with %s", end.Raw)
	}
}

// TestAskWithoutStream: who takes no stream cannot be asked anything, and the tool
// server hears so from the beginning.
func TestAskWithoutStream(t *testing.T) {
	r := newRig(t)
	caps := make(chan string, 3)
	r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer {
		caps <- x.Spec.Capabilities
		return reply(x, okResult)
	}
	c := r.serve()
	c.openWith("/mcp", mcp.V20250326, `{"sampling":{}}`)
	c.post("/mcp", legacyCall("1", "up__work", ""))
	c.post("/mcp", legacyCall("2", "up__work", ""), "Accept", "application/json")
	c.post("/mcp", "["+legacyCall("3", "up__work", "")+"]")
	if got := []string{<-caps, <-caps, <-caps}; fmt.Sprint(got) != `[{"sampling":{}}  ]` {
		t.Errorf("capabilities %q", got)
	}
	r.decide = func(_, _, _ string, _ bool) Decision { return Decision{Buffered: true} }
	c.post("/mcp", legacyCall("4", "up__work", ""))
	if got := <-caps; got != "" {
		t.Errorf("under the kill switch: %q", got)
	}
}

// modernAsk is a tools/call of a client with capabilities.
func modernAsk(id, name, caps, more string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"` + name + `"` + more + `,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":` + caps + `}}}`
}

const allCaps = `{"elicitation":{"form":{},"url":{}},"sampling":{},"roots":{}}`

// inputResult is what a request was answered with.
type inputResult struct {
	Result struct {
		ResultType    string
		InputRequests map[string]json.RawMessage
		RequestState  string
		Content       []struct{ Text string }
		Meta          map[string]json.RawMessage `json:"_meta"`
	}
	Error *struct {
		Code    int
		Message string
	}
}

func (c *client) asked(t *testing.T, caps, more string) (r inputResult) {
	t.Helper()
	status, b := c.post("/mcp", modernAsk("7", "up__work", caps, more), modern("tools/call", "up__work")...)
	msgs := data(b)
	if len(msgs) == 0 {
		msgs = []string{b}
	}
	if err := json.Unmarshal([]byte(msgs[len(msgs)-1]), &r); err != nil || status != 200 {
		t.Fatalf("%d %s", status, b)
	}
	return r
}

// TestX8AskStateless: a stateless agent gets what the tool asks as the result of its
// request, and makes it again with the answers: the same call goes on (ML of SPEC
// §4.2). Missing answers are asked for again, surplus ones ignored, and malformed
// ones refused without loss.
func TestX8AskStateless(t *testing.T) {
	r := newRig(t)
	r.tools["work"] = asking(askForm+","+askPage, nil)
	c := r.serve()
	first := c.asked(t, allCaps, "")
	if first.Result.ResultType != "input_required" || len(first.Result.InputRequests) != 2 {
		t.Fatalf("answered %+v", first)
	}
	if got := string(first.Result.InputRequests["page"]); got != `{"method":"elicitation/create","params":{"mode":"url","message":"[up] Sign in","url":"https://x.example/","_meta":{"x":1}}}` {
		t.Errorf("asked %s", got)
	}
	if rec := r.log.record(t, "up__work"); rec.End.Outcome != call.Running {
		t.Errorf("the call that waits counts as %s", rec.End.Outcome)
	}
	state := `,"requestState":` + string(mcp.Quote(first.Result.RequestState))
	bad := c.asked(t, allCaps, state+`,"inputResponses":{"form":{"action":"perhaps"}}`)
	if bad.Error == nil || bad.Error.Code != -32602 || !strings.Contains(bad.Error.Message, "action must be") {
		t.Errorf("a malformed answer: %+v", bad.Error)
	}
	half := c.asked(t, allCaps, state+`,"inputResponses":{"form":{"action":"decline"},"unheard of":{"x":1}}`)
	if half.Result.ResultType != "input_required" || len(half.Result.InputRequests) != 1 || half.Result.InputRequests["page"] == nil {
		t.Errorf("after one of two: %+v", half)
	}
	whole := c.asked(t, allCaps, `,"requestState":`+string(mcp.Quote(half.Result.RequestState))+`,"inputResponses":{"page":{"action":"accept"},"form":{"action":"accept"}}`)
	if whole.Result.ResultType != "complete" || whole.Result.Content[0].Text != `form={"action":"decline"};page={"action":"accept"};` {
		t.Errorf("ended with %+v", whole)
	}
	if n := len(r.log.recs); n != 1 {
		t.Errorf("%d calls", n)
	}
	hows := fmt.Sprint(r.log.hows())
	if hows != "[asked asked delivered]" {
		t.Errorf("deliveries %s", hows)
	}
}

// TestAskRootsStateless: a request without params, as many tool servers ask for
// roots, has some for a stateless agent, in its result and in its task: the official
// Go SDK gives up on a call that is answered with a request without.
func TestAskRootsStateless(t *testing.T) {
	r := newRig(t)
	r.tools["work"] = asking(`"roots":{"method":"roots/list"}`, nil)
	c := r.serve()
	if got := string(c.asked(t, allCaps, "").Result.InputRequests["roots"]); got != `{"method":"roots/list","params":{}}` {
		t.Errorf("asked %s", got)
	}
	if got := string(inputRequests([]byte(`{"roots":{"method":"roots/list"}}`))); got != `{"roots":{"method":"roots/list","params":{}}}` {
		t.Errorf("a task shows %s", got)
	}
}

// TestX8AskedOneByOne: what a server with sessions asks one right after the other goes
// to a stateless agent in one result, and what was taken back meanwhile does not.
func TestX8AskedOneByOne(t *testing.T) {
	r := newRig(t)
	r.tools["work"] = func(ctx context.Context, x *call.Exec) call.Answer {
		x.Ask([]byte("{"+askMind+"}"), nil)
		<-time.After(gatherFor / 10)
		return asking(askForm+","+askPage, nil)(ctx, x)
	}
	c := r.serve()
	got := c.asked(t, allCaps, "").Result
	if got.ResultType != "input_required" || len(got.InputRequests) != 2 || got.InputRequests["mind"] != nil {
		t.Errorf("asked %v", got.InputRequests)
	}
}

// TestX8BadStates: a requestState that was changed, belongs to another principal,
// endpoint or request, is too old or has done its work is refused in plain words,
// and the question waits on.
func TestX8BadStates(t *testing.T) {
	r := newRig(t)
	r.tools["work"] = asking(askForm, nil)
	c := r.serve()
	first := c.asked(t, allCaps, "")
	state := first.Result.RequestState
	const accept = `,"inputResponses":{"form":{"action":"accept"}}`
	with := func(s string) string { return `,"requestState":` + string(mcp.Quote(s)) + accept }
	refused := func(what string, got inputResult, part string) {
		t.Helper()
		if got.Error == nil || got.Error.Code != -32602 || !strings.Contains(got.Error.Message, part) {
			t.Errorf("%s: %+v", what, got)
		}
	}
	changed := []byte(state)
	changed[len(changed)/2] ^= 1
	refused("tampered", c.asked(t, allCaps, with(string(changed))), "changed on the way")
	refused("cut", c.asked(t, allCaps, with(state[:20])), "changed on the way")
	refused("of nobody", c.asked(t, allCaps, with("")), "changed on the way")
	refused("not a string", c.asked(t, allCaps, `,"requestState":7`+accept), "changed on the way")
	refused("no answers", c.asked(t, allCaps, `,"requestState":`+string(mcp.Quote(state))+`,"inputResponses":[]`), "must be an object")
	c.header.Set("Authorization", "Bearer bob")
	refused("foreign", c.asked(t, allCaps, with(state)), "changed on the way")
	c.header.Set("Authorization", "Bearer ann")
	refused("of other arguments", c.asked(t, allCaps, `,"arguments":{"x":1}`+with(state)), "another request")
	old := inputState{call: call.NewID(), expires: time.Now().Add(-time.Second)}
	refused("expired", c.asked(t, allCaps, with(r.h.sealState(&old, "ann", ""))), "waits for no answer any more")
	gone := inputState{call: call.NewID(), expires: time.Now().Add(time.Hour)}
	m, err := mcp.Parse([]byte(modernAsk("7", "up__work", allCaps, "")))
	if err != nil {
		t.Fatal(err)
	}
	gone.digest, _ = requestDigest(&m)
	refused("of a call that is no more", c.asked(t, allCaps, with(r.h.sealState(&gone, "ann", ""))), "waits for no answer any more")
	refused("elsewhere", func() (r inputResult) {
		_, b := c.post("/mcp/up", modernAsk("7", "up__work", allCaps, with(state)), modern("tools/call", "up__work")...)
		if err := json.Unmarshal([]byte(b), &r); err != nil {
			t.Fatal(b)
		}
		return r
	}(), "changed on the way")

	if got := c.asked(t, allCaps, with(state)); got.Result.ResultType != "complete" {
		t.Fatalf("after all that, the question is lost: %+v", got)
	}
	refused("replayed", c.asked(t, allCaps, with(state)), "has its answer")
	if n := len(r.log.recs); n != 1 {
		t.Errorf("%d calls", n)
	}
}

// TestX8LostRetry: a retry whose stream was lost can be made once more, with the same
// state (SPEC §3.7): it gets the result, and the answer counts once.
func TestX8LostRetry(t *testing.T) {
	r := newRig(t)
	answered, release := make(chan struct{}), make(chan struct{})
	r.decide = func(_, _, _ string, modern bool) Decision {
		return Decision{CancelOnDisconnect: modern, Grace: time.Minute}
	}
	r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer {
		_ = x.Dispatched()
		x.Ask([]byte("{"+askForm+"}"), nil)
		<-x.Answers()
		close(answered)
		<-release
		if len(x.Answers()) > 0 {
			t.Error("answered twice")
		}
		return reply(x, okResult)
	}
	c := r.serve()
	more := `,"requestState":` + string(mcp.Quote(c.asked(t, allCaps, "").Result.RequestState)) + `,"inputResponses":{"form":{"action":"accept"}}`
	s := c.watch(t, "POST", "/mcp", modernAsk("7", "up__work", allCaps, more), modern("tools/call", "up__work")...)
	<-answered
	if got := c.asked(t, allCaps, more); got.Error == nil || !strings.Contains(got.Error.Message, "has its answer") {
		t.Errorf("a second one beside the first: %+v", got)
	}
	s.resp.Body.Close()
	<-r.log.delivered
	<-r.log.delivered // the one that was asked, and the one that was lost
	close(release)
	got := c.asked(t, allCaps, more)
	for over := time.Now().Add(10 * time.Second); got.Error != nil && time.Now().Before(over); {
		got = c.asked(t, allCaps, more) // the lost one leaves after its delivery is noted
	}
	if got.Result.ResultType != "complete" {
		t.Errorf("after the loss: %+v", got)
	}
}

// TestX8GoesOnElsewhere: a question of a stateless tool server, which waits for
// nobody, is answered by another call when the one that asked has ended: MM of SPEC
// §4.2.
func TestX8GoesOnElsewhere(t *testing.T) {
	r := newRig(t)
	first := true
	r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer {
		state, answers, request := string(x.Spec.State), string(x.Spec.Answers), string(x.Spec.Request)
		_ = x.Dispatched()
		if first {
			first = false
			x.Ask([]byte("{"+askForm+"}"), []byte("the server's own"))
			<-r.log.delivered // the reader was told, and has left
			return call.Answer{End: call.End{Outcome: call.TimedOut, Limit: "answer", Text: "Nobody answered."}}
		}
		if strings.Contains(request, "requestState") || strings.Contains(request, "inputResponses") {
			t.Errorf("the request is %s", request)
		}
		return reply(x, `{"jsonrpc":"2.0","id":0,"result":{"content":[{"type":"text","text":`+string(mcp.Quote(state+answers))+`}]}}`)
	}
	c := r.serve()
	state := c.asked(t, allCaps, "").Result.RequestState
	until(t, "the call to end", func() bool { return r.log.record(t, "up__work").End.Outcome != call.Running })
	got := c.asked(t, allCaps, `,"requestState":`+string(mcp.Quote(state))+`,"inputResponses":{"form":{"action":"accept"}}`)
	if got.Result.ResultType != "complete" || got.Result.Content[0].Text != `the server's own{"form":{"action":"accept"}}` {
		t.Errorf("went on as %+v", got)
	}
}

// TestAskUndeclared: what a request has not declared it is not asked (SPEC §4.1).
func TestAskUndeclared(t *testing.T) {
	r := newRig(t)
	r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer {
		_ = x.Dispatched()
		x.Ask([]byte("{"+askPage+","+askMind+"}"), nil)
		return reply(x, okResult)
	}
	c := r.serve()
	if got := c.asked(t, `{"elicitation":{}}`, ""); got.Result.ResultType != "complete" {
		t.Errorf("asked %+v", got)
	}
	if got := c.asked(t, `{}`, `,"inputResponses":{"a":{}}`); got.Result.ResultType != "complete" {
		t.Errorf("asked %+v", got)
	}
}
