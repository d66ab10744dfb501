package downstream

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// viewOf is how an agent of an era's newest revision sees an answer.
func viewOf(modern bool) view {
	if modern {
		return view{modern: true, version: mcp.LatestModern, info: []byte(`{"name":"longcall","version":"0"}`)}
	}
	return view{version: mcp.LatestLegacy}
}

// TestConvertResults is SPEC §7.6, field by field.
func TestConvertResults(t *testing.T) {
	read := func(v view, uncached bool) view { v.method, v.uncached = mcp.MethodResourcesRead, uncached; return v }
	stamped := viewOf(true)
	stamped.stamps = newStamps(stamped.info)
	replayed := replayedView(true)
	old := func(version string) view { return view{version: version} }
	for _, tt := range []struct {
		name     string
		v        view
		in, want string
	}{
		{"a read of a session server must not be cached", read(viewOf(true), false), `{"contents":[]}`, `{"resultType":"complete","ttlMs":0,"cacheScope":"private","contents":[]}`},
		{"nothing", read(viewOf(true), false), `{}`, `{"resultType":"complete","ttlMs":0,"cacheScope":"private"}`},
		{"a read of a stateless server holds as it says", read(viewOf(true), false), `{"resultType":"complete","ttlMs":5,"cacheScope":"public","contents":[]}`, ``},
		{"but not after answers to its questions (SPEC §4.1)", read(viewOf(true), true), `{"resultType":"complete","ttlMs":5,"cacheScope":"public","contents":[]}`, `{"resultType":"complete","ttlMs":0,"cacheScope":"public","contents":[]}`},
		{"a question is not cached, and says nothing of it", read(viewOf(true), true), `{"resultType":"input_required","inputRequests":{}}`, ``},
		{"fields of the stateless era, at the end", read(viewOf(false), false), `{"contents":[],"resultType":"complete","ttlMs":5,"cacheScope":"public"}`, `{"contents":[]}`},
		{"apart", read(viewOf(false), false), `{"ttlMs":5,"contents":[] , "cacheScope":"public" , "x":1,"resultType":"complete"}`, `{"contents":[] , "x":1}`},
		{"and alone", read(viewOf(false), false), ` { "resultType":"complete" , "ttlMs":5,"cacheScope":"public" }`, ` {  }`},
		{"a tool's own field of that name", viewOf(false), `{"content":[],"ttlMs":5}`, ``},
		{"structured content that is no object, with text", viewOf(false), `{"content":[{"type":"text","text":"[1]"}],"structuredContent":[1]}`, `{"content":[{"type":"text","text":"[1]"}]}`},
		{"and without", viewOf(false), `{"content":[ ],"structuredContent":[1,"a"],"isError":false}`, `{"content":[{"type":"text","text":"[1,\"a\"]"}],"isError":false}`},
		{"an object", viewOf(false), `{"content":[],"structuredContent":{"a":[1]}}`, ``},
		{"any, for stateless agents", viewOf(true), `{"resultType":"complete","content":[],"structuredContent":null}`, ``},
		{"a link before 2025-06-18", old(mcp.V20250326), `{"content":[{"type":"text","text":"a"},{"type":"resource_link","uri":"x:1","name":"one"},{"type":"audio","data":"AA=="}]}`, `{"content":[{"type":"text","text":"a"},{"type":"text","text":"one: x:1"},{"type":"audio","data":"AA=="}]}`},
		{"a link since", old(mcp.V20250618), `{"content":[{"type":"resource_link","uri":"x:1","name":"one"}]}`, ``},
		{"sound before 2025-03-26", old(mcp.V20241105), `{"content":[{"type":"audio","data":"AA==","mimeType":"audio/wav"}]}`, `{"content":[{"type":"text","text":"[audio, audio/wav: this client's revision of the protocol cannot show it]"}]}`},
		{"in a prompt", old(mcp.V20250326), `{"messages":[{"role":"user","content":{"uri":"x:1","type":"resource_link","title":"One","name":"one"}},{"role":"user","content":{"type":"text","text":"resource_link"}}]}`, `{"messages":[{"role":"user","content":{"type":"text","text":"One: x:1"}},{"role":"user","content":{"type":"text","text":"resource_link"}}]}`},
		{"who does not say is us (SPEC §7.6)", stamped, `{"content":[]}`, `{"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"longcall","version":"0"}},"content":[]}`},
		{"beside other _meta", stamped, `{"_meta":{"a":1},"content":[]}`, `{"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"longcall","version":"0"},"a":1},"content":[]}`},
		{"in an empty _meta", stamped, `{"resultType":"complete","_meta":{ }}`, `{"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"longcall","version":"0"} }}`},
		{"and nothing else", stamped, `{ }`, `{"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"longcall","version":"0"}} }`},
		{"a read", read(stamped, false), `{"resultType":"complete","contents":[]}`, `{"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"longcall","version":"0"}},"ttlMs":0,"cacheScope":"private","resultType":"complete","contents":[]}`},
		{"a replayed one", replayed, `{"content":[]}`, `{"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"longcall","version":"0"},"dev.longcall/replayed":true},"content":[]}`},
		{"a replayed one of somebody", replayed, `{"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"up"}}}`, `{"resultType":"complete","_meta":{"dev.longcall/replayed":true,"io.modelcontextprotocol/serverInfo":{"name":"longcall","version":"0"},"dev.longcall/upstreamServer":{"name":"up"}}}`},
		{"who answered us is not who answers the agent (SPEC §5.7)", viewOf(true), `{"resultType":"complete","_meta":{"a":1,"io.modelcontextprotocol/serverInfo":{"name":"up"}}}`, `{"resultType":"complete","_meta":{"a":1,"io.modelcontextprotocol/serverInfo":{"name":"longcall","version":"0"},"dev.longcall/upstreamServer":{"name":"up"}}}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.want == "" {
				tt.want = tt.in
			}
			body := []byte(`{"jsonrpc":"2.0","id":0,"result":` + tt.in + `}`)
			if got := string(splice(nil, body, convert(body, tt.v, nil))); got != `{"jsonrpc":"2.0","id":0,"result":`+tt.want+`}` {
				t.Errorf("%s became\n%s, want\n%s", tt.in, got, tt.want)
			}
			marked := splice(nil, body, markReplayed(body, convert(body, tt.v, nil)))
			if !json.Valid(marked) || !strings.Contains(string(marked), metaKeyReplayed) {
				t.Errorf("as a kept result: %s", marked)
			}
		})
	}
}

// FuzzConvert: valid stays valid, for every agent.
func FuzzConvert(f *testing.F) {
	for _, s := range []string{
		`{"contents":[],"resultType":"complete","ttlMs":5,"cacheScope":"public"}`, `{"content":[{"type":"resource_link","uri":"x"},{"type":"audio"}],"structuredContent":[1]}`,
		`{"messages":[{"content":[{"type":"audio"}]},{"content":1}],"content":1}`, `{"_meta":{"io.modelcontextprotocol/serverInfo":{}},"structuredContent":1,"content":[]}`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, result string) {
		body := []byte(`{"jsonrpc":"2.0","id":0,"result":` + result + `}`)
		if _, err := mcp.Parse(body); err != nil {
			return
		}
		for _, version := range []string{mcp.V20241105, mcp.V20250326, mcp.V20250618, mcp.V20260728} {
			for _, method := range []string{"", mcp.MethodResourcesRead} {
				v := view{modern: mcp.Modern(version), version: version, method: method, uncached: true, info: []byte("{}")}
				if out := splice(nil, body, convert(body, v, nil)); !json.Valid(out) {
					t.Fatalf("%s: %q became %q", version, body, out)
				}
			}
		}
	})
}

// TestPages is SPEC §4.2: the error by which a server of 2025-11-25 sends the person
// to a page is told in words to agents that do not know the code; those that do get
// it as it is. That it is a question for a stateless agent that can be sent there is
// the tool servers' side's to do.
func TestPages(t *testing.T) {
	r := newRig(t)
	everything(r)
	page := `{"jsonrpc":"2.0","id":0,"error":{"code":-32042,"message":"go there","data":{"elicitations":[{"mode":"url","elicitationId":"e1","url":"https://pay.example/1","message":"Pay first."}]}}}`
	answer := func(_ context.Context, x *call.Exec) call.Answer { return reply(x, page) }
	r.tools["work"], r.reads["up prompts/get"], r.reads["up completion/complete"] = answer, answer, answer
	c := r.serve()
	visits := strings.Replace(modernMeta, `clientCapabilities":{}`, `clientCapabilities":{"elicitation":{"url":{}}}`, 1)
	ask := func(method, params, meta string) string {
		_, body := c.post("/mcp/up", `{"jsonrpc":"2.0","id":"i","method":"`+method+`","params":{`+params+`,"_meta":{`+meta+`}}}`, modern(method, "work")...)
		d := data(body)
		if len(d) == 0 {
			return body
		}
		return d[len(d)-1]
	}
	complete := ask("completion/complete", `"ref":{"type":"ref/prompt","name":"ask"},"argument":{"name":"a","value":"b"}`, visits)
	for what, got := range map[string]string{
		"a completion": complete, "a prompt, not declared": ask("prompts/get", `"name":"work"`, modernMeta), "a tool, not declared": ask("tools/call", `"name":"work"`, modernMeta),
	} {
		if strings.Contains(got, "32042") || strings.Contains(got, "input_required") || !strings.Contains(got, "Pay first. https://pay.example/1") {
			t.Errorf("%s: %s", what, got)
		}
		if isTool := strings.Contains(got, `"isError":true`); isTool != strings.Contains(what, "tool") || isTool == strings.Contains(got, `"code":-32603`) {
			t.Errorf("%s: %s", what, got)
		}
	}
	for version, knows := range map[string]bool{mcp.V20251125: true, mcp.V20250618: false} {
		c.session = ""
		c.open("/mcp/up", version)
		_, body := c.post("/mcp/up", legacyCall("1", "work", ""))
		if knows != strings.Contains(body, `"error":{"code":-32042`) || knows == strings.Contains(body, `"isError":true`) {
			t.Errorf("%s: %s", version, body)
		}
	}
}

// TestTemplates: which resources a template may mean.
func TestTemplates(t *testing.T) {
	var got []string
	for _, tt := range []struct{ template, uri string }{
		{"db:{id}", "db:1"},
		{"db:{id}", "db:"},
		{"db:{id}/x", "db:1/x"},
		{"db:{a},{b}", "db:1,2"},
		{"f:{+path}", "f:a/b?c"},
		{"f:{/path*}", "f:/a/b"},
		{"f:{path*}", "f:a/b"},
		{"s{?q,n}", "s?q=1&n=2"},
		{"x:1", "x:1"},
		{"x.{y}", "x.1"},
		{"db:{id}", "db:1/x"},
		{"db:{id}", "da:1"},
		{"db:{id}/x", "db:1/y"},
		{"x.{y}", "xa1"},
		{"x:{", "x:1"},
		{"x:1", "x:2"},
		{strings.Repeat("{a}", maxExpressions+1), "x"},
	} {
		if inTemplate(tt.template, tt.uri) {
			got = append(got, tt.template+" "+tt.uri)
		}
	}
	want := []string{"db:{id} db:1", "db:{id} db:", "db:{id}/x db:1/x", "db:{a},{b} db:1,2", "f:{+path} f:a/b?c", "f:{/path*} f:/a/b", "f:{path*} f:a/b", "s{?q,n} s?q=1&n=2", "x:1 x:1", "x.{y} x.1"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}
