package downstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// params are those of the request that a call carries.
func params(x *call.Exec) (p struct {
	Name, URI string
	Arguments map[string]string
	Ref       struct{ Name, URI string }
},
) {
	var m struct{ Params json.RawMessage }
	if err := json.Unmarshal(x.Spec.Request, &m); err != nil {
		panic(err)
	}
	if err := json.Unmarshal(m.Params, &p); err != nil {
		panic(err)
	}
	return p
}

// readsRig gives a rig two servers with prompts and resources, one of either era.
func readsRig(r *rig) {
	r.lists, r.fresh = map[string][]mcp.Entry{"up": nil}, map[string]bool{"up": true}
	everything(r)
	text := func(x *call.Exec, member, value string) call.Answer {
		return reply(x, `{"jsonrpc":"2.0","id":0,"result":{"`+member+`":`+value+`}}`)
	}
	for _, server := range []string{"up", "up2"} {
		kind := ""
		if server == "up2" {
			kind = `{"resultType":"complete","ttlMs":7000,"cacheScope":"public",`
		}
		r.reads[server+" prompts/get"] = func(_ context.Context, x *call.Exec) call.Answer {
			if err := progress(x, `"progress":1,"total":2`); err != nil {
				panic(err)
			}
			p := params(x)
			return text(x, "description", string(mcp.Quote(server+" "+p.Name+" "+p.Arguments["on"]))+`,"messages":[]`)
		}
		r.reads[server+" resources/read"] = func(_ context.Context, x *call.Exec) call.Answer {
			uri := params(x).URI
			listed := slices.ContainsFunc(r.more[mcp.ListResources][server], func(e mcp.Entry) bool { return e.Name == uri })
			switch {
			case listed && kind != "", strings.HasPrefix(uri, "db:") && kind != "":
				return reply(x, `{"jsonrpc":"2.0","id":0,"result":`+kind+`"contents":[{"uri":"`+uri+`","text":"of `+server+`"}]}}`)
			case listed:
				return text(x, "contents", `[{"uri":"`+uri+`","text":"of `+server+`"}]`)
			case kind != "":
				return reply(x, `{"jsonrpc":"2.0","id":0,"error":{"code":-32602,"message":"no such resource"}}`)
			}
			return reply(x, `{"jsonrpc":"2.0","id":0,"error":{"code":-32002,"message":"no such resource","data":{"uri":"`+uri+`"}}}`)
		}
		r.reads[server+" completion/complete"] = func(_ context.Context, x *call.Exec) call.Answer {
			p := params(x)
			return text(x, "completion", `{"values":["`+server+`","`+p.Ref.Name+p.Ref.URI+`"],"hasMore":false}`)
		}
	}
	r.reads["up x/find"] = func(_ context.Context, x *call.Exec) call.Answer { return text(x, "found", `"`+x.Spec.Method+`"`) }
	r.settings.Extensions = map[string]map[string][]string{"up": {"com.example/x": {"x/*"}}}
	r.caps["up"] = strings.Replace(r.caps["up"], `"tools":{}`, `"tools":{},"extensions":{"com.example/x":{"deep":[1]},"com.example/y":{}}`, 1)
}

// TestReadOwner is proto.md 7 and R-07: a resource is read at the server that lists
// it, else where a template fits, else at the first that has it; nobody's is not
// found, in the era's own code (SPEC §5.6).
func TestReadOwner(t *testing.T) {
	r := newRig(t)
	readsRig(r)
	var asked []string
	for _, server := range []string{"up", "up2"} {
		read := r.reads[server+" resources/read"]
		r.reads[server+" resources/read"] = func(ctx context.Context, x *call.Exec) call.Answer {
			asked = append(asked, server)
			return read(ctx, x)
		}
	}
	c := r.serve()
	for _, tt := range []struct{ uri, asked, want string }{
		{"file:///a", "[up]", "of up"}, // of both: of the first
		{"db:1", "[up2]", "of up2"},
		{"db:77", "[up2]", "of up2"},
		{"file:///nobodys", "[up up2]", "Resource not found"},
	} {
		for _, era := range []string{mcp.V20260728, mcp.V20251125} {
			asked = nil
			var body string
			if mcp.Modern(era) {
				_, body = c.post("/mcp", `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"`+tt.uri+`","_meta":{`+modernMeta+`}}}`, modern("resources/read", tt.uri)...)
			} else {
				c.open("/mcp", era)
				_, body = c.post("/mcp", `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"`+tt.uri+`"}}`)
				c.session = ""
			}
			notFound := strings.Contains(body, `"code":-32602`)
			if tt.want == "Resource not found" {
				tt.want = "no such resource"
			}
			if !strings.Contains(body, tt.want) || fmt.Sprint(asked) != tt.asked || strings.Contains(tt.want, "no such") != notFound {
				t.Errorf("%s of %s: asked %v, got %s", era, tt.uri, asked, body)
			}
		}
	}
}

// TestReadLong: whatever may take long has all that a tools/call has: a first byte,
// beats, progress with the agent's own token, and log messages at its level; and it
// ends with its reader, in both eras, without leaving anything behind.
func TestReadLong(t *testing.T) {
	for _, modernAgent := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			everything(r)
			cancelled := make(chan struct{})
			r.reads["up resources/read"] = func(ctx context.Context, x *call.Exec) call.Answer {
				_ = x.Dispatched()
				time.Sleep(12 * time.Second)
				_ = progress(x, `"progress":1,"total":2`)
				for _, level := range []string{"debug", "error"} {
					_ = x.Emit(call.Event{Kind: call.KindMessage, Hole: -1, Body: []byte(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"` + level + `","data":"x"}}`)})
				}
				<-ctx.Done()
				close(cancelled)
				return call.Answer{}
			}
			w := newTape()
			ctx, cancel := context.WithCancel(t.Context())
			var req *http.Request
			body := `{"jsonrpc":"2.0","id":"a","method":"resources/read","params":{"uri":"file:///a","_meta":{%s"progressToken":"t"}}}`
			if modernAgent {
				req = request(ctx, "POST", fmt.Sprintf(body, modernMeta+`,"io.modelcontextprotocol/logLevel":"error",`), modern("resources/read", "=?base64?ZmlsZTovLy9h?=")...)
			} else {
				s, _ := r.h.sessions.open("ann", "up", mcp.V20251125, "", nil)
				level := request(ctx, "POST", `{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"error"}}`, mcp.HeaderSession, s.id)
				r.h.ServeHTTP(newTape(), level)
				req = request(ctx, "POST", fmt.Sprintf(body, ""), mcp.HeaderSession, s.id)
			}
			req.Header.Set("Accept", "application/json, text/event-stream")
			done := make(chan struct{})
			go func() { r.h.ServeHTTP(w, req); close(done) }()
			time.Sleep(24 * time.Second)
			if r.eng.InFlight() != 1 {
				t.Fatalf("%d calls run", r.eng.InFlight())
			}
			cancel()
			<-done
			select {
			case <-cancelled:
			case <-time.After(time.Second):
				t.Error("the read goes on without its reader")
			}
			synctest.Wait()
			text := w.text()
			for _, want := range []string{"0 : open", "5 : ka", `"progressToken":"t","progress":0.00001,"message":"still running, 10 s"`, `"progressToken":"t","progress":1,"total":2`, `"level":"error"`, "22 "} {
				if !strings.Contains(text, want) {
					t.Errorf("modern %v: no %s in\n%s", modernAgent, want, text)
				}
			}
			if strings.Contains(text, "debug") || strings.Contains(text, "id: ") {
				t.Errorf("modern %v:\n%s", modernAgent, text)
			}
			if r.eng.InFlight() != 0 || len(r.log.recs) != 0 || len(r.log.hows()) != 0 {
				t.Errorf("left behind: %d calls, %v, %v", r.eng.InFlight(), r.log.recs, r.log.hows())
			}
			r.stop()
		})
	}
}

// TestReadCancelled is R-23: a session's cancel ends its read, which is not
// answered.
func TestReadCancelled(t *testing.T) {
	r := newRig(t)
	everything(r)
	r.reads["up prompts/get"] = r.holds()
	c := r.serve()
	c.open("/mcp", mcp.V20251125)
	_, s := c.stream(t.Context(), "POST", "/mcp", `{"jsonrpc":"2.0","id":"p","method":"prompts/get","params":{"name":"up__ask"}}`)
	expectLine(t, s, ": open")
	if status, _ := c.post("/mcp", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"p"}}`); status != 202 {
		t.Errorf("status %d", status)
	}
	for {
		line, err := s.ReadString('\n')
		if strings.HasPrefix(line, "data: ") && line != "data: \n" {
			t.Errorf("answered: %s", line)
		}
		if err != nil {
			break
		}
	}
}

// holds is a script that waits for its cancel.
func (r *rig) holds() script {
	return func(ctx context.Context, x *call.Exec) call.Answer {
		_ = x.Dispatched()
		<-ctx.Done()
		return call.Answer{}
	}
}

// What longcall itself has to say about a read is an error, not a tool result
// (DESIGN §1): a limit, an unknown outcome, a refusal.
func TestReadWords(t *testing.T) {
	r := newRig(t)
	everything(r)
	r.reads["up prompts/get"] = func(_ context.Context, x *call.Exec) call.Answer {
		_ = x.Dispatched()
		return call.Answer{End: call.End{Outcome: call.TimedOut, Limit: "idle", Text: "Stopped: silent for 5m0s."}}
	}
	c := r.serve()
	want := `"error":{"code":-32603,"message":"Stopped: silent for 5m0s.","data":{"dev.longcall/outcome":{"outcome":"timed_out","limit":"idle"}}}`
	body := `{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":"ask","_meta":{` + modernMeta + `}}}`
	if _, got := c.post("/mcp/up", body, modern("prompts/get", "ask")...); !strings.Contains(got, want) {
		t.Errorf("a limit: %s", got)
	}
	r.decide = func(_, _, _ string, _ bool) Decision {
		return Decision{Denied: &call.End{Outcome: call.Denied, By: "policy", Text: "Not allowed."}}
	}
	if _, got := c.post("/mcp/up", body, modern("prompts/get", "ask")...); !strings.Contains(got, `"message":"Not allowed."`) || !strings.Contains(got, `"outcome":"denied"`) {
		t.Errorf("denied: %s", got)
	}
}

// TestReadHeaders is SPEC §1.3: Mcp-Name has to say what the body says, decoded.
func TestReadHeaders(t *testing.T) {
	r := newRig(t)
	readsRig(r)
	c := r.serve()
	for _, tt := range []struct {
		method, params string
		name           string
		status         int
	}{
		{"prompts/get", `"name":"up__ask"`, "up__ask", 200},
		{"prompts/get", `"name":"up__ask"`, "up__other", 400},
		{"prompts/get", `"name":"up__ask"`, "", 400},
		{"resources/read", `"uri":"file:///a"`, "file:///a", 200},
		{"resources/read", `"uri":"file:///a"`, "=?base64?ZmlsZTovLy9h?=", 200},
		{"resources/read", `"uri":"file:///ä"`, "=?base64?ZmlsZTovLy/DpA==?=", 200},
		{"resources/read", `"uri":"file:///a"`, "=?base64?ZmlsZTovLy9i?=", 400},
		{"resources/read", `"uri":"file:///a"`, "=?base64?%?=", 400},
		{"completion/complete", `"ref":{"type":"ref/prompt","name":"up__ask"},"argument":{"name":"on","value":"a"}`, "", 200},
		{"completion/complete", `"ref":{"type":"ref/prompt","name":"up__ask"},"argument":{"name":"on","value":"a"}`, "whatever", 200},
	} {
		body := `{"jsonrpc":"2.0","id":1,"method":"` + tt.method + `","params":{` + tt.params + `,"_meta":{` + modernMeta + `}}}`
		status, got := c.post("/mcp", body, modern(tt.method, tt.name)...)
		if status != tt.status || status == 400 && !strings.Contains(got, "-32020") {
			t.Errorf("%s %s as %q: %d %s", tt.method, tt.params, tt.name, status, got)
		}
		status, got = c.post("/mcp", body, mcp.HeaderVersion, mcp.V20260728, mcp.HeaderMethod, "tools/list", mcp.HeaderName, tt.name)
		if status != 400 || !strings.Contains(got, "-32020") {
			t.Errorf("%s as tools/list: %d %s", tt.method, status, got)
		}
	}
}

// A tool server's -32021 reaches a stateless agent with status 400, unless its
// stream has begun (SPEC §1.3, A2); one's own -32601 about an extension with 404.
func TestRefusedStatus(t *testing.T) {
	r := newRig(t)
	r.settings.Extensions = map[string]map[string][]string{"up": {"com.example/x": {"x/find"}}}
	r.settings.Together = 5 * time.Second // however slow the machine
	missing := `{"jsonrpc":"2.0","id":0,"error":{"code":-32021,"message":"sampling is needed","data":{"requiredCapabilities":{"sampling":{}}}}}`
	r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer { return reply(x, missing) }
	slow := make(chan struct{})
	r.tools["slow"] = func(_ context.Context, x *call.Exec) call.Answer {
		_ = progress(x, `"progress":1`)
		<-slow
		return reply(x, missing)
	}
	c := r.serve()
	for _, accept := range []string{"application/json, text/event-stream", "application/json", "text/event-stream"} {
		status, h, body := c.do("POST", "/mcp/up", modernCall("1", "work", ""), append(modern("tools/call", "work"), "Accept", accept)...)
		if status != 400 || !strings.HasPrefix(body, `{"jsonrpc":"2.0","id":1,"error":{"code":-32021`) || h.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %d %v %s", accept, status, h, body)
		}
	}
	if status, body := c.post("/mcp/up", `{"jsonrpc":"2.0","id":1,"method":"x/find","params":{"_meta":{`+modernMeta+`}}}`, modern("x/find", "")...); status != 404 || !strings.Contains(body, "-32601") {
		t.Errorf("x/find: %d %s", status, body)
	}
	_, s := c.stream(t.Context(), "POST", "/mcp/up", modernCall("1", "slow", `,"progressToken":1`), modern("tools/call", "slow")...)
	expectLine(t, s, ": open")
	close(slow)
	for {
		line, err := s.ReadString('\n')
		if strings.Contains(line, "-32021") {
			break
		}
		if err != nil {
			t.Fatalf("the error did not come: %v", err)
		}
	}
}

// TestExtensions is R-14: a method that longcall does not know goes to the one
// server whose extension the operator lets through; all others are unknown, and so
// is one that two servers would take.
func TestExtensions(t *testing.T) {
	r := newRig(t)
	readsRig(r)
	c := r.serve()
	call := func(path, method string) (int, string) {
		return c.post(path, `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":{"_meta":{`+modernMeta+`}}}`, modern(method, "")...)
	}
	for _, path := range []string{"/mcp", "/mcp/up"} {
		if status, body := call(path, "x/find"); status != 200 || !strings.Contains(body, `"found":"x/find"`) || !strings.Contains(body, `"resultType":"complete"`) {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	r.settings.Extensions["up2"] = map[string][]string{"com.example/all": {"*"}}
	for _, method := range []string{"tasks/result", "resources/subscribe", "ping", "sampling/createMessage"} {
		if status, body := call("/mcp/up2", method); status != 404 || !strings.Contains(body, "-32601") {
			t.Errorf("%s: %d %s", method, status, body)
		}
	}
	delete(r.settings.Extensions, "up2")
	for path, method := range map[string]string{"/mcp": "y/find", "/mcp/up2": "x/find"} {
		if status, body := call(path, method); status != 404 || !strings.Contains(body, "-32601") {
			t.Errorf("%s %s: %d %s", path, method, status, body)
		}
	}
	r.settings.Extensions["up2"] = map[string][]string{"com.example/x": {"x/find"}}
	if status, body := call("/mcp", "x/find"); status != 404 {
		t.Errorf("of two servers: %d %s", status, body)
	}
	if body := fmt.Sprint(c.ask("/mcp/up", "server/discover", "")["result"].(map[string]any)["capabilities"].(map[string]any)["extensions"]); body != "map[com.example/x:map[deep:[1]] io.modelcontextprotocol/tasks:map[]]" {
		t.Errorf("declared: %s", body)
	}
	c.open("/mcp/up", mcp.V20251125)
	if _, body := c.post("/mcp/up", `{"jsonrpc":"2.0","id":1,"method":"x/find"}`); !strings.Contains(body, `"found":"x/find"`) {
		t.Errorf("with sessions: %s", body)
	}
	if status, body := c.post("/mcp/up", `{"jsonrpc":"2.0","id":1,"method":"y/find"}`); status != 200 || !strings.Contains(body, "-32601") {
		t.Errorf("with sessions: %d %s", status, body)
	}
}

// TestReadBatch is R-15: reads are a part of a batch like calls.
func TestReadBatch(t *testing.T) {
	r := newRig(t)
	readsRig(r)
	c := r.serve()
	c.open("/mcp", mcp.V20250326)
	_, body := c.post("/mcp", `[{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"db:1"}},{"jsonrpc":"2.0","id":2,"method":"prompts/get","params":{"name":"up__ask"}},{"jsonrpc":"2.0","id":3,"method":"prompts/list"}]`)
	var all []struct {
		ID     int
		Result map[string]any
	}
	if err := json.Unmarshal([]byte(body), &all); err != nil || len(all) != 3 || all[0].Result["contents"] == nil || all[1].Result["messages"] == nil || all[2].Result["prompts"] == nil {
		t.Errorf("%v: %s", err, body)
	}
}

// TestSubscribe is: a session's subscriptions are one each at the owner,
// ended with the session; changes are told on its stream, once, and only those of
// what it subscribed to and of its own connections.
func TestSubscribe(t *testing.T) {
	r := newRig(t)
	everything(r)
	c := r.serve()
	c.open("/mcp", mcp.V20251125)
	sub := func(method, uri string) string {
		_, body := c.post("/mcp", `{"jsonrpc":"2.0","id":1,"method":"resources/`+method+`","params":{"uri":"`+uri+`"}}`)
		return body
	}
	for _, uri := range []string{"file:///b", "file:///b", "db:1"} {
		if body := sub("subscribe", uri); body != `{"jsonrpc":"2.0","id":1,"result":{}}` {
			t.Errorf("%s: %s", uri, body)
		}
	}
	r.subscribeErr = map[string]error{"up2": &mcp.RPCError{Code: -32002, Text: "no such resource"}}
	if body := sub("subscribe", "db:2"); !strings.Contains(body, `"code":-32002,"message":"no such resource"`) {
		t.Errorf("refused: %s", body)
	}
	r.subscribeErr = map[string]error{"up2": errors.New("no connection"), "up": errors.New("no connection")}
	if body := sub("subscribe", "x:"); !strings.Contains(body, "-32603") || !strings.Contains(body, "no connection") {
		t.Errorf("failed: %s", body)
	}
	r.subscribeErr = nil
	r.mu.Lock()
	watch := r.watch
	r.mu.Unlock()
	watch("up", mcp.Change{URI: "file:///b"}) // before there is a stream
	_, s := c.stream(t.Context(), "GET", "/mcp", "")
	expectLine(t, s, ": open")
	expectLine(t, s, "\n")
	expectLine(t, s, "event: message")
	expectLine(t, s, `data: {"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file:///b"}}`)
	watch("up2", mcp.Change{URI: "file:///b"})                                  // of another server
	watch("up", mcp.Change{URI: "file:///b", Principal: "bob"})                 // of somebody else
	watch("up", mcp.Change{URI: "file:///b", Principal: "ann", Session: "s_x"}) // of another session
	watch("up", mcp.Change{URI: "file:///bb"})                                  // of another resource
	for range 3 {
		watch("up2", mcp.Change{URI: "db:1/part", Principal: "ann", Session: c.session})
	}
	watch("up2", mcp.Change{URI: "db:1"})
	expectLine(t, s, "\n")
	for _, uri := range []string{"db:1/part", "db:1"} {
		expectLine(t, s, "event: message")
		expectLine(t, s, `data: {"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"`+uri+`"}}`)
		expectLine(t, s, "\n")
	}
	sub("unsubscribe", "file:///b")
	sub("unsubscribe", "file:///never")
	watch("up", mcp.Change{URI: "file:///b"})
	if status, _, _ := c.do("DELETE", "/mcp", ""); status != 204 {
		t.Errorf("DELETE: %d", status)
	}
	for {
		line, err := s.ReadString('\n')
		if strings.Contains(line, "updated") {
			t.Errorf("after all: %s", line)
		}
		if err != nil {
			break
		}
	}
	want := "[+ann up file:///b +ann up2 db:1 -ann up file:///b -ann up2 db:1]"
	if got := fmt.Sprint(r.subscribed); got != want {
		t.Errorf("asked the servers %s, want %s", got, want)
	}
}

// TestSubscribeUndeclared is R-09 where a server does not say that it takes
// subscriptions: it is asked for what is its own, and for nothing else.
func TestSubscribeUndeclared(t *testing.T) {
	r := newRig(t)
	everything(r)
	r.caps["up"], r.caps["up2"] = `{"resources":{"subscribe":false}}`, `{"resources":{}}`
	c := r.serve()
	c.open("/mcp", mcp.V20251125)
	for uri, want := range map[string]string{"file:///b": `"result":{}`, "db:7": `"result":{}`, "x:": `"code":-32002`} {
		if _, body := c.post("/mcp", `{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"`+uri+`"}}`); !strings.Contains(body, want) {
			t.Errorf("%s: %s", uri, body)
		}
	}
	slices.Sort(r.subscribed)
	if got := fmt.Sprint(r.subscribed); got != "[+ann up file:///b +ann up2 db:7]" {
		t.Errorf("asked the servers %s", got)
	}
}

// Without a session nobody could be told: such a subscription is refused, and leaves
// nothing behind.
func TestSubscribeSessionless(t *testing.T) {
	r := newRig(t)
	everything(r)
	r.settings.Sessionless = true
	c := r.serve()
	if _, body := c.post("/mcp", `{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"db:1"}}`); !strings.Contains(body, "-32600") {
		t.Errorf("subscribed: %s", body)
	}
	if _, body := c.post("/mcp", `{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"info"}}`); !strings.Contains(body, `"result":{}`) {
		t.Errorf("a level: %s", body)
	}
	if len(r.subscribed) != 0 || len(r.levels) != 0 {
		t.Errorf("asked %v %v", r.subscribed, r.levels)
	}
}

// TestListenResources is R-10: what somebody takes is acknowledged, before anything
// else, and only that is told.
func TestListenResources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := tasksRig(t)
		everything(r)
		r.subscribeErr = map[string]error{}
		w := newTape()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			r.listen(ctx, w, `"l"`, `"resourceSubscriptions":["file:///a","file:///b","file:///a"]`)
			close(done)
		}()
		synctest.Wait()
		r.mu.Lock()
		watch := r.watch
		r.mu.Unlock()
		for _, uri := range []string{"file:///a", "file:///a", "file:///c"} {
			watch("up", mcp.Change{URI: uri})
		}
		time.Sleep(time.Second)
		cancel()
		<-done
		_, got := heard(t, w)
		if len(got) != 2 || got[0]["method"] != mcp.MethodAcknowledged || got[1]["method"] != mcp.MethodUpdated || got[1]["params"].(map[string]any)["uri"] != "file:///a" {
			t.Fatalf("heard %v", got)
		}
		if honoured, _ := json.Marshal(got[0]["params"].(map[string]any)["notifications"]); string(honoured) != `{"resourceSubscriptions":["file:///a","file:///b"]}` {
			t.Errorf("honoured %s", honoured)
		}
		for _, m := range got {
			if subscriptionOf(m) != "l" {
				t.Errorf("of no subscription: %v", m)
			}
		}
		slices.Sort(r.subscribed)
		if s := fmt.Sprint(r.subscribed); s != "[+ann up file:///a +ann up file:///b -ann up file:///a -ann up file:///b]" {
			t.Errorf("asked the server %s", s)
		}
		r.subscribeErr["up"] = errors.New("no connection")
		none := newTape()
		ctx, cancel = context.WithCancel(t.Context())
		done = make(chan struct{})
		go func() { r.listen(ctx, none, "1", `"resourceSubscriptions":["file:///a"]`); close(done) }()
		synctest.Wait()
		if _, got := heard(t, none); len(got) != 1 || fmt.Sprint(got[0]["params"].(map[string]any)["notifications"]) != "map[]" {
			t.Errorf("nobody took it: %v", got)
		}
		cancel()
		<-done
		r.stop()
	})
}

// what an agent says of its roots goes to the servers that asked to hear it.
func TestRootsChanged(t *testing.T) {
	r := newRig(t)
	c := r.serve()
	c.open("/mcp/up", mcp.V20250618)
	if status, body := c.post("/mcp/up", `{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`); status != 202 {
		t.Errorf("%d %s", status, body)
	}
	until(t, "the servers heard of it", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.roots == 1
	})
}

// TestSetLevel is R-11: what a session says holds for its calls from then on.
func TestSetLevel(t *testing.T) {
	r := newRig(t)
	r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer {
		_ = x.Dispatched()
		for _, level := range levels {
			_ = x.Emit(call.Event{Kind: call.KindMessage, Hole: -1, Body: []byte(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"` + level + `","data":"x"}}`)})
		}
		return reply(x, okResult)
	}
	c := r.serve()
	c.open("/mcp/up", mcp.V20250618)
	for level, want := range map[string]int{"": 8, "warning": 5, "emergency": 1, "debug": 8} {
		if level != "" {
			if _, body := c.post("/mcp/up", `{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"`+level+`"}}`); !strings.Contains(body, `"result":{}`) {
				t.Errorf("%s: %s", level, body)
			}
		} else if r.levels != nil {
			continue
		}
		if _, body := c.post("/mcp/up", legacyCall("1", "work", "")); strings.Count(body, "notifications/message") != want {
			t.Errorf("%s: %s", level, body)
		}
	}
	if !slices.Contains(r.levels, c.session+" emergency") {
		t.Errorf("the servers heard %v", r.levels)
	}
	if _, body := c.post("/mcp/up", `{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"loud"}}`); !strings.Contains(body, "-32602") {
		t.Errorf("loud: %s", body)
	}
}

// TestBadAnswers is SPEC §4.1: answers that are none are refused before anything is
// sent.
func TestBadAnswers(t *testing.T) {
	r := newRig(t)
	r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer { return reply(x, okResult) }
	c := r.serve()
	for more, good := range map[string]bool{
		`"inputResponses":{"a":{"action":"accept"}}`: true, `"inputResponses":{}`: true,
		`"inputResponses":{"a":{},"b":12345}`: false, `"inputResponses":[]`: false, `"inputResponses":"x"`: false,
	} {
		_, body := c.post("/mcp/up", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"work",`+more+`,"_meta":{`+modernMeta+`}}}`, modern("tools/call", "work")...)
		if strings.Contains(body, `"code":-32602`) == good {
			t.Errorf("%s: %s", more, body)
		}
	}
}
