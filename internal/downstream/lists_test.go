package downstream

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// listEntry makes an entry of a list.
func listEntry(kind mcp.ListKind, name, more string) mcp.Entry {
	return mcp.Entry{Name: name, Raw: []byte(`{"` + kind.Key() + `":` + string(mcp.Quote(name)) + more + `}`)}
}

// everything gives the rig two servers with all that there is.
func everything(r *rig) {
	r.lists["up2"] = nil
	r.fresh["up2"] = true
	for _, s := range []string{"up", "up2"} {
		r.caps[s] = `{"tools":{},"prompts":{},"resources":{"subscribe":true},"completions":{},"logging":{}}`
	}
	r.more[mcp.ListPrompts] = map[string][]mcp.Entry{
		"up":  {listEntry(mcp.ListPrompts, "write a poem", `,"arguments":[{"name":"on"}],"x":9007199254740993`), listEntry(mcp.ListPrompts, "ask", "")},
		"up2": {listEntry(mcp.ListPrompts, "ask", `,"title":"Ask"`)},
	}
	r.more[mcp.ListResources] = map[string][]mcp.Entry{
		"up":  {listEntry(mcp.ListResources, "file:///b", `,"name":"b"`), listEntry(mcp.ListResources, "file:///a", `,"name":"a"`)},
		"up2": {listEntry(mcp.ListResources, "file:///a", `,"name":"another a"`), listEntry(mcp.ListResources, "db:1", `,"name":"one"`)},
	}
	r.more[mcp.ListTemplates] = map[string][]mcp.Entry{
		"up2": {listEntry(mcp.ListTemplates, "db:{id}", `,"name":"row"`)},
	}
}

// ask sends a modern request without more and gives its answer.
func (c *client) ask(path, method, params string) (answer map[string]any) {
	c.t.Helper()
	_, body := c.post(path, `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":{`+params+`"_meta":{`+modernMeta+`}}}`, modern(method, "")...)
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		c.t.Fatalf("%v: %s", err, body)
	}
	return answer
}

// TestLists is: lists of every kind, aggregated in one order, prompts
// named like tools, resources by their own URIs and each once; at /mcp/<server> as
// the server has them.
func TestLists(t *testing.T) {
	r := newRig(t)
	everything(r)
	c := r.serve()
	want := map[string]map[mcp.ListKind]string{
		"/mcp": {
			mcp.ListPrompts:   `["up__ask","` + hashedName("up", "write a poem", 0) + `","up2__ask"]`, // by server first
			mcp.ListResources: `["file:///a","file:///b","db:1"]`,
			mcp.ListTemplates: `["db:{id}"]`,
		},
		"/mcp/up2": {
			mcp.ListPrompts:   `["ask"]`,
			mcp.ListResources: `["db:1","file:///a"]`,
			mcp.ListTemplates: `["db:{id}"]`,
		},
	}
	for range 3 {
		for path, kinds := range want {
			for kind, names := range kinds {
				for _, list := range r.more[kind] {
					rand.Shuffle(len(list), func(i, k int) { list[i], list[k] = list[k], list[i] })
				}
				result := c.ask(path, kind.Method(), "")["result"].(map[string]any)
				var got []any
				for _, e := range result[kind.Member()].([]any) {
					got = append(got, e.(map[string]any)[kind.Key()])
				}
				if b, _ := json.Marshal(got); string(b) != names {
					t.Errorf("%s %s: %s, want %s", path, kind, b, names)
				}
				if result["ttlMs"] != 60000.0 || result["cacheScope"] != "private" || result["resultType"] != "complete" {
					t.Errorf("%s %s: %v", path, kind, result)
				}
			}
		}
	}
	c.open("/mcp", mcp.V20251125)
	_, body := c.post("/mcp", `{"jsonrpc":"2.0","id":1,"method":"prompts/list"}`)
	if !strings.Contains(body, `"arguments":[{"name":"on"}],"x":9007199254740993}`) || strings.Contains(body, "ttlMs") || strings.Contains(body, "resultType") {
		t.Errorf("a session's list: %s", body)
	}
}

// The list of an endpoint holds as long as the shortest of its servers' (SPEC
// §5.5), and a cursor of one list is none of another.
func TestListTTL(t *testing.T) {
	r := newRig(t)
	everything(r)
	r.ttl["up"], r.ttl["up2"] = 2500*time.Millisecond, time.Hour
	c := r.serve()
	for path, want := range map[string]float64{"/mcp": 2500, "/mcp/up": 2500, "/mcp/up2": 60000} {
		if got := c.ask(path, "prompts/list", "")["result"].(map[string]any)["ttlMs"]; got != want {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
	}
	r.fresh["up2"] = false
	if got := c.ask("/mcp", "resources/list", "")["result"].(map[string]any)["ttlMs"]; got != 0.0 {
		t.Errorf("a partial list may be kept for %v (A22)", got)
	}
	for i := range pageSize + 1 {
		r.more[mcp.ListPrompts]["up"] = append(r.more[mcp.ListPrompts]["up"], listEntry(mcp.ListPrompts, fmt.Sprint("p", i), ""))
		r.more[mcp.ListResources]["up"] = append(r.more[mcp.ListResources]["up"], listEntry(mcp.ListResources, fmt.Sprint("r:", i), ""))
	}
	cursor := c.ask("/mcp", "prompts/list", "")["result"].(map[string]any)["nextCursor"].(string)
	if c.ask("/mcp", "prompts/list", `"cursor":"`+cursor+`",`)["error"] != nil {
		t.Error("the cursor is not known to its own list")
	}
	if c.ask("/mcp", "resources/list", `"cursor":"`+cursor+`",`)["error"] == nil {
		t.Error("a cursor of one list was taken for another")
	}
}

// What a tool says that sessions do not know is left out for them: an output that is
// no object (SPEC §7.6). What policy denies is not listed to anybody.
func TestToolEntries(t *testing.T) {
	r := newRig(t)
	r.lists["up"] = []mcp.Entry{
		listEntry(mcp.ListTools, "list", `,"outputSchema":{"type":"array"},"inputSchema":{"type":"object"}`),
		listEntry(mcp.ListTools, "object", `,"outputSchema":{"properties":{"type":{"type":"string"}},"type":"object"}`),
		listEntry(mcp.ListTools, "secret", ``),
	}
	r.decide = func(_, _, tool string, _ bool) Decision {
		if tool == "secret" {
			return Decision{Denied: &call.End{Outcome: call.Denied}}
		}
		return Decision{}
	}
	c := r.serve()
	if _, body := c.post("/mcp/up", `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{`+modernMeta+`}}}`, modern("tools/list", "")...); strings.Count(body, "outputSchema") != 2 || strings.Contains(body, "secret") {
		t.Errorf("modern: %s", body)
	}
	c.open("/mcp/up", mcp.V20251125)
	want := `"tools":[{"name":"list","inputSchema":{"type":"object"}},{"name":"object","outputSchema":{"properties":{"type":{"type":"string"}},"type":"object"}}]`
	if _, body := c.post("/mcp/up", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`); !strings.Contains(body, want) {
		t.Errorf("with sessions: %s", body)
	}
}

// TestOffers is: capabilities and instructions are the union of what the
// endpoint's servers have. One that has not spoken yet may have everything, and
// then the answer must not be kept; nobody is waited for (A3).
func TestOffers(t *testing.T) {
	r := newRig(t)
	r.lists["full"], r.lists["late"] = nil, nil
	r.caps["full"] = `{"prompts":{},"resources":{"subscribe":false},"completions":{},"experimental":{"x":{}}}`
	r.caps["late"] = ""
	r.said["up"], r.said["full"] = "Be brief.", "  \n"
	c := r.serve()
	for path, want := range map[string]string{
		"/mcp/up":   `{"tools":{"listChanged":true},"extensions":{"io.modelcontextprotocol/tasks":{}}},"instructions":"Long calls hold.\n\nBe brief.","ttlMs":60000`,
		"/mcp/full": `{"tools":{"listChanged":true},"prompts":{"listChanged":true},"resources":{"listChanged":true},"completions":{},"extensions":{"io.modelcontextprotocol/tasks":{}}},"instructions":"Long calls hold.","ttlMs":60000`,
		"/mcp":      `{"tools":{"listChanged":true},"prompts":{"listChanged":true},"resources":{"subscribe":true,"listChanged":true},"completions":{},"logging":{},"extensions":{"io.modelcontextprotocol/tasks":{}}},"instructions":"Long calls hold.\n\nAbout the tools whose names begin with up__:\nBe brief.","ttlMs":0`,
	} {
		_, body := c.post(path, `{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{"_meta":{`+modernMeta+`}}}`, modern("server/discover", "")...)
		if !strings.Contains(body, `"capabilities":`+want) {
			t.Errorf("%s: %s\nwant %s", path, body, want)
		}
		_, body = c.post(path, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-03-26"}}`)
		want, _, _ := strings.Cut(want, `,"extensions"`)
		if !strings.Contains(body, `"capabilities":`+want+`}`) {
			t.Errorf("%s: %s\nwant %s", path, body, want)
		}
	}
}

// TestListChanges is R-25: each kind of change once, 250 ms after the first, to
// those who read that list or asked to hear of it, and to nobody else's connection.
func TestListChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := tasksRig(t)
		everything(r)
		r.fresh["up"] = true
		w := newTape()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { r.listen(ctx, w, "1", `"promptsListChanged":true,"resourcesListChanged":true`); close(done) }()
		synctest.Wait()
		r.mu.Lock()
		watch := r.watch
		r.mu.Unlock()
		for range 3 {
			for _, kind := range mcp.ListKinds {
				watch("up2", mcp.Change{List: kind})
				watch("up", mcp.Change{List: kind})
			}
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(time.Second)
		watch("up", mcp.Change{List: mcp.ListPrompts, Principal: "bob"})
		watch("up", mcp.Change{List: mcp.ListPrompts, Principal: "ann", Session: "s_other"})
		time.Sleep(time.Second)
		cancel()
		<-done
		at, got := heard(t, w)
		var methods []string
		for _, m := range got {
			methods = append(methods, m["method"].(string))
		}
		want := []string{mcp.MethodAcknowledged, mcp.MethodPromptsChanged, mcp.MethodResourcesChanged}
		if !slices.Equal(methods, want) || fmt.Sprint(at) != "[0 0.25 0.25]" {
			t.Errorf("heard %v at %v", methods, at)
		}
		r.stop()
	})
}

// TestNotOffered: what no server of the endpoint has is not declared, and not there
// (R-01, R-04, R-14, SPEC §5.2); while a server has not spoken it is. Who asked for such
// a list is told when there is one.
func TestNotOffered(t *testing.T) {
	r := newRig(t)
	c := r.serve()
	c.open("/mcp", mcp.V20251125)
	methods := map[string]string{
		"prompts/list": `{}`, "prompts/get": `{"name":"x"}`, "resources/list": `{}`, "resources/templates/list": `{}`,
		"resources/read": `{"uri":"x:1"}`, "completion/complete": `{"ref":{"type":"ref/prompt","name":"x"},"argument":{"name":"a","value":"b"}}`,
		"resources/subscribe": `{"uri":"x:1"}`, "resources/unsubscribe": `{"uri":"x:1"}`,
	}
	ask := func(method, params string) (legacy, modernAnswer string, status int) {
		t.Helper()
		_, legacy = c.post("/mcp", `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":`+params+`}`)
		meta := `"_meta":{` + modernMeta + `}}`
		if params != "{}" {
			meta = "," + meta
		}
		name, _ := mcp.String(mcp.Value([]byte(params), "name"))
		if uri, ok := mcp.String(mcp.Value([]byte(params), "uri")); ok {
			name = uri
		}
		status, modernAnswer = c.post("/mcp", `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":`+params[:len(params)-1]+meta+`}`, modern(method, name)...)
		return legacy, modernAnswer, status
	}
	for method, params := range methods {
		legacy, answer, status := ask(method, params)
		if !strings.Contains(legacy, `"code":-32601`) {
			t.Errorf("%s: %s", method, legacy)
		}
		if !strings.Contains(answer, `"code":-32601`) || status != 404 {
			t.Errorf("%s: %d %s", method, status, answer)
		}
	}
	r.mu.Lock()
	r.caps["up"] = "" // it has not spoken
	r.mu.Unlock()
	for method, params := range methods {
		legacy, answer, _ := ask(method, params)
		if strings.Contains(legacy, `-32601,"message":"Method not found: `) || strings.Contains(answer, "Method not found: ") != strings.Contains(method, "subscribe") {
			t.Errorf("%s of a server that has not spoken: %s %s", method, legacy, answer)
		}
	}
	everything(r)
	_, s := c.stream(t.Context(), "GET", "/mcp", "")
	r.mu.Lock()
	watch := r.watch
	r.mu.Unlock()
	watch("up", mcp.Change{List: mcp.ListPrompts})
	for line := ""; !strings.Contains(line, "prompts/list_changed"); {
		var err error
		if line, err = s.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
}
