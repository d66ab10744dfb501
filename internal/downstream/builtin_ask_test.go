package downstream

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// background is a tool that asks when the test says so, and whose calls are handed off
// at once; asked gives its call.
func background(r *rig, requests string) (asks chan<- struct{}) {
	begin := make(chan struct{})
	tool := asking(requests, nil)
	r.tools["work"] = func(ctx context.Context, x *call.Exec) call.Answer {
		_ = x.Dispatched()
		select {
		case <-begin:
		case <-ctx.Done():
			return call.Answer{}
		}
		return tool(ctx, x)
	}
	r.decide = func(_, _, _ string, modern bool) Decision {
		return Decision{CancelOnDisconnect: modern, HandOff: true}
	}
	r.h.opt.Profile = func(_, _, _ string) Profile {
		return Profile{Budget: 20 * time.Millisecond, BudgetToken: 20 * time.Millisecond}
	}
	return begin
}

// patient makes the agents wait as long as it takes from now on: only calls that were
// made before are handed off.
func patient(r *rig) {
	r.h.opt.Profile = func(_, _, _ string) Profile { return Profile{Await: 10 * time.Second} }
}

// callIn is the id of the call in a hand-off.
func callIn(t *testing.T, answer string) string {
	t.Helper()
	_, rest, ok := strings.Cut(answer, `"call":"`)
	id, _, _ := strings.Cut(rest, `"`)
	if !ok {
		t.Fatalf("not handed off: %s", answer)
	}
	return id
}

func legacyAwait(id, ids, more string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"await_call","arguments":{"ids":["` + ids + `"]` + more + `}}}`
}

// TestAwaitAsksSession: a call in the background asks on the stream of who waits for
// it, once, also if the wait ends before the answer; what nobody waits for any more is
// taken back there (SPEC §4.2).
func TestAwaitAsksSession(t *testing.T) {
	r := newRig(t)
	asks := background(r, askForm+","+askPage)
	c := r.serve()
	c.openWith("/mcp", mcp.V20251125, `{"elicitation":{"form":{},"url":{}}}`)
	_, answer := c.post("/mcp", legacyCall("7", "up__work", ""))
	id := callIn(t, answer)
	patient(r)
	s := c.watch(t, "POST", "/mcp", legacyAwait("8", id, ""))
	asks <- struct{}{}
	form, page := s.next(), s.next()
	if form.Method != mcp.MethodElicit || !strings.Contains(string(form.Raw), "[up] Name?") {
		t.Errorf("asked %s", form.Raw)
	}
	if page.Method != mcp.MethodElicit || !strings.Contains(string(page.Raw), `"mode":"url"`) {
		t.Errorf("asked %s", page.Raw)
	}
	// Another wait beside it, which ends before the answers: it asks nothing twice.
	_, b := c.post("/mcp", legacyAwait("9", id, `,"wait_ms":50`))
	if strings.Contains(b, mcp.MethodElicit) || !strings.Contains(b, "the tool waits for an answer") {
		t.Errorf("a second wait: %s", b)
	}
	c.respond(t, &form, `"result":{"action":"accept"}`)
	c.respond(t, &page, `"result":{"action":"decline"}`)
	end := s.next()
	if string(end.ID.Of(end.Raw)) != "8" || !strings.Contains(string(end.Raw), `form={\"action\":\"accept\"};page={\"action\":\"decline\"};`) {
		t.Errorf("the wait ended with %s", end.Raw)
	}
}

// TestAwaitAsksLater: a question that was put in one wait can be answered after it,
// and is taken back in a later one if the call has ended meanwhile.
func TestAwaitAsksLater(t *testing.T) {
	r := newRig(t)
	ends := make(chan struct{})
	asks := background(r, askForm)
	inner := r.tools["work"]
	r.tools["work"] = func(ctx context.Context, x *call.Exec) call.Answer {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() {
			select {
			case <-ends:
				cancel()
			case <-ctx.Done():
			}
		}()
		if a := inner(ctx, x); a.Body != nil {
			return a
		}
		return reply(x, okResult)
	}
	c := r.serve()
	c.openWith("/mcp", mcp.V20251125, `{"elicitation":{}}`)
	begin := func(n string) string {
		background := r.h.opt.Profile
		r.h.opt.Profile = func(_, _, _ string) Profile { return Profile{Budget: 20 * time.Millisecond} }
		defer func() { r.h.opt.Profile = background }()
		_, answer := c.post("/mcp", strings.Replace(legacyCall(n, "up__work", ""), `"name"`, `"arguments":{"n":`+n+`},"name"`, 1))
		return callIn(t, answer)
	}
	first := begin("1")
	patient(r)
	s := c.watch(t, "POST", "/mcp", legacyAwait("8", first, `,"wait_ms":300`))
	asks <- struct{}{}
	form := s.next()
	if end := s.next(); end.Kind != mcp.Response || !strings.Contains(string(end.Raw), `"waited_out":true`) {
		t.Fatalf("the wait ended with %s", end.Raw)
	}
	c.respond(t, &form, `"result":{"action":"accept"}`)
	if _, b := c.post("/mcp", legacyAwait("9", first, "")); strings.Contains(b, mcp.MethodElicit) || !strings.Contains(b, `form={\"action\":\"accept\"};`) {
		t.Errorf("after the answer: %s", b)
	}
	second := begin("2")
	s = c.watch(t, "POST", "/mcp", legacyAwait("10", second, ""))
	asks <- struct{}{}
	form = s.next()
	ends <- struct{}{}
	if back := s.next(); back.Method != mcp.MethodCancelled || string(back.RequestID.Of(back.Raw)) != string(form.ID.Of(form.Raw)) {
		t.Errorf("then came %s", back.Raw)
	}
	if end := s.next(); end.Kind != mcp.Response {
		t.Errorf("the wait ended with %s", end.Raw)
	}
}

// TestAwaitAsksNobody: a session that has not declared what is asked is told that the
// tool waits, as before.
func TestAwaitAsksNobody(t *testing.T) {
	r := newRig(t)
	asks := background(r, askForm)
	c := r.serve()
	c.open("/mcp", mcp.V20251125)
	_, answer := c.post("/mcp", legacyCall("7", "up__work", ""))
	id := callIn(t, answer)
	asks <- struct{}{}
	_, b := c.post("/mcp", legacyAwait("8", id, `,"wait_ms":50`))
	if strings.Contains(b, mcp.MethodElicit) || !strings.Contains(b, "the tool waits for an answer") {
		t.Errorf("it says %s", b)
	}
}

// modernAwait is an await_call of a stateless client that can be asked all there is.
func (c *client) modernAwait(t *testing.T, args, more string) (r inputResult) {
	t.Helper()
	body := strings.Replace(modernAsk("8", "await_call", allCaps, more), `"name"`, `"arguments":`+args+`,"name"`, 1)
	status, b := c.post("/mcp", body, modern("tools/call", "await_call")...)
	msgs := data(b)
	if len(msgs) == 0 {
		msgs = []string{b}
	}
	if err := json.Unmarshal([]byte(msgs[len(msgs)-1]), &r); err != nil || status != 200 {
		t.Fatalf("%d %s", status, b)
	}
	return r
}

// TestX8AwaitAsksStateless: to a stateless agent the question is the result of its
// await_call, which it makes again with the answer and so waits on; states that are
// wrong are refused, and the question waits on.
func TestX8AwaitAsksStateless(t *testing.T) {
	r := newRig(t)
	asks := background(r, askForm+","+askMind)
	c := r.serve()
	_, answer := c.post("/mcp", modernAsk("7", "up__work", allCaps, ""), modern("tools/call", "up__work")...)
	id := callIn(t, answer)
	patient(r)
	args := `{"ids":["` + id + `"]}`
	asks <- struct{}{}
	first := c.modernAwait(t, args, "")
	if first.Result.ResultType != "input_required" || len(first.Result.InputRequests) != 2 {
		t.Fatalf("answered %+v", first)
	}
	state := `,"requestState":` + string(mcp.Quote(first.Result.RequestState))
	const form, mind = `"form":{"action":"accept"}`, `"mind":{"role":"assistant","content":{}}`
	refused := func(what string, got inputResult, part string) {
		t.Helper()
		if got.Error == nil || got.Error.Code != -32602 || !strings.Contains(got.Error.Message, part) {
			t.Errorf("%s: %+v", what, got)
		}
	}
	refused("of other arguments", c.modernAwait(t, `{"ids":["`+id+`"],"attempt":2}`, state+`,"inputResponses":{`+form+`}`), "another request")
	refused("changed", c.modernAwait(t, args, strings.Replace(state, `:"`, `:"A`, 1)+`,"inputResponses":{`+form+`}`), "changed on the way")
	refused("malformed", c.modernAwait(t, args, state+`,"inputResponses":{"form":{"action":"perhaps"}}`), "action must be")
	c.header.Set("Authorization", "Bearer bob")
	refused("foreign", c.modernAwait(t, args, state+`,"inputResponses":{`+form+`}`), "changed on the way")
	c.header.Set("Authorization", "Bearer ann")
	half := c.modernAwait(t, args, state+`,"inputResponses":{`+form+`}`)
	if half.Result.ResultType != "input_required" || len(half.Result.InputRequests) != 1 {
		t.Errorf("after one of two: %+v", half)
	}
	whole := c.modernAwait(t, args, `,"requestState":`+string(mcp.Quote(half.Result.RequestState))+`,"inputResponses":{`+mind+`}`)
	if got := fmt.Sprint(whole.Result.Content); whole.Result.ResultType != "complete" || !strings.Contains(got, `form={"action":"accept"};mind=`) {
		t.Errorf("ended with %+v", whole)
	}
	until(t, "the delivery is recorded", func() bool { return len(r.log.hows()) == 4 }) // after the answer
	if hows := fmt.Sprint(r.log.hows()); hows != "[handed_off asked asked delivered]" {
		t.Errorf("deliveries %s", hows)
	}
}

// TestAwaitAsksAfterResults: of several calls, one that has ended goes before one that
// asks.
func TestAwaitAsksAfterResults(t *testing.T) {
	r := newRig(t)
	asks := background(r, askForm)
	done := make(chan struct{})
	r.tools["other"] = func(ctx context.Context, x *call.Exec) call.Answer {
		_ = x.Dispatched()
		select {
		case <-done:
			return reply(x, okResult)
		case <-ctx.Done():
			return call.Answer{}
		}
	}
	r.lists["up"] = append(r.lists["up"], mcp.Entry{Name: "other", Raw: []byte(`{"name":"other","inputSchema":{"type":"object"}}`)})
	c := r.serve()
	var ids []string
	for _, tool := range []string{"up__work", "up__other"} {
		_, answer := c.post("/mcp", modernAsk("7", tool, allCaps, ""), modern("tools/call", tool)...)
		ids = append(ids, callIn(t, answer))
	}
	patient(r)
	asks <- struct{}{}
	until(t, "the tool asks", func() bool {
		x, err := r.eng.Get(t.Context(), "ann", call.ID(ids[0]))
		return err == nil && x.Asked() != nil
	})
	args := `{"ids":["` + strings.Join(ids, `","`) + `"]}`
	if got := c.modernAwait(t, args, ""); got.Result.ResultType != "input_required" {
		t.Errorf("with both running: %+v", got)
	}
	close(done)
	until(t, "the other call ends", func() bool { return r.log.record(t, "up__other").End.Outcome != call.Running })
	if got := c.modernAwait(t, args, ""); got.Result.ResultType != "complete" || !strings.Contains(fmt.Sprint(got.Result.Content), "done") {
		t.Errorf("with one ended: %+v", got)
	}
}
