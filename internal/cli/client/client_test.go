package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// answer is a server that always answers so, and keeps what it was asked.
func answer(t *testing.T, status int, typ, body string) (c *Client, asked func() (http.Header, string)) {
	t.Helper()
	var header http.Header
	var got string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		header, got = r.Header.Clone(), string(b)
		w.Header().Set("Content-Type", typ)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(s.Close)
	return &Client{URL: s.URL + "/mcp", Token: "tok", Name: "test", Version: "1"}, func() (http.Header, string) { return header, got }
}

const sse = "text/event-stream"

func TestRequestIsOfTheStatelessRevision(t *testing.T) {
	c, asked := answer(t, 200, "application/json", `{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`)
	_, err := c.Do(context.Background(), Call{Tool: "näme", Arguments: []byte(`{"big":12345678901234567890}`), Traceparent: "00-x-y-01", Message: func(string, string) {}})
	if err != nil {
		t.Fatal(err)
	}
	h, body := asked()
	want := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"näme","arguments":{"big":12345678901234567890},"_meta":{` +
		`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"test","version":"1"},"io.modelcontextprotocol/clientCapabilities":{},` +
		`"progressToken":1,"io.modelcontextprotocol/logLevel":"info","traceparent":"00-x-y-01"}}}`
	if body != want {
		t.Errorf("body\n%s\nwant\n%s", body, want)
	}
	for k, v := range map[string]string{
		"Accept": "application/json, text/event-stream", "Content-Type": "application/json", "Authorization": "Bearer tok",
		"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "=?base64?bsOkbWU=?=",
	} {
		if h.Get(k) != v {
			t.Errorf("%s: %q, want %q", k, h.Get(k), v)
		}
	}
}

func TestStreamOfACall(t *testing.T) {
	c, _ := answer(t, 200, sse, ": open\n\n: ka\n\n"+
		"data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":1,\"progress\":1.5,\"total\":3,\"message\":\"half\"}}\n\n"+
		"data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":2,\"progress\":9}}\n\n"+
		"data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"level\":\"warning\",\"data\":\"hot\"}}\n\n"+
		"data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"level\":\"info\",\"data\":{\"a\":1}}}\n\n"+
		"data: junk\n\n"+
		"data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"Denied.\"}],\"isError\":true,\"_meta\":{\"dev.longcall/outcome\":{\"outcome\":\"denied\",\"by\":\"policy\",\"call\":\"c_x\"}}}}\n\n")
	var seen []string
	res, err := c.Do(context.Background(), Call{
		Tool: "t",
		Beat: func() { seen = append(seen, "beat") },
		Progress: func(p Progress) {
			if p != (Progress{1.5, 3, "half"}) {
				t.Errorf("progress %v", p)
			}
			seen = append(seen, "progress")
		},
		Message: func(level, text string) { seen = append(seen, level+" "+text) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(seen, ", "); got != `beat, beat, progress, warning hot, info {"a":1}` {
		t.Errorf("seen: %s", got)
	}
	if !res.IsError || res.Outcome != "denied" || res.By != "policy" || res.CallID != "c_x" || res.Content[0].Text != "Denied." {
		t.Errorf("result: %+v", res)
	}
}

func TestErrorsSayWhatIsKnown(t *testing.T) {
	do := func(c *Client) error {
		_, err := c.Do(context.Background(), Call{Tool: "t"})
		return err
	}
	var lost *LostError
	c, _ := answer(t, 200, sse, ": open\n\n")
	if err := do(c); !errors.As(err, &lost) || !lost.Stream {
		t.Errorf("a stream without result: %v", err)
	}
	var rpc *RPCError
	c, _ = answer(t, 200, sse, "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":-32602,\"message\":\"no\"}}\n\n")
	if err := do(c); !errors.As(err, &rpc) || rpc.Code != -32602 || rpc.Status != 200 {
		t.Errorf("an error in the stream: %v", err)
	}
	c, _ = answer(t, 401, "application/json", `{"jsonrpc":"2.0","error":{"code":-32600,"message":"who are you"}}`)
	if err := do(c); !errors.As(err, &rpc) || rpc.Status != 401 {
		t.Errorf("401: %v", err)
	}
	var st *StatusError
	c, _ = answer(t, 504, "text/html", "<html>gateway</html>")
	if err := do(c); !errors.As(err, &st) || st.Error() != "the server answered 504 Gateway Timeout" {
		t.Errorf("504: %v", err)
	}
	var un *UnreachableError
	if err := do(&Client{URL: "http://127.0.0.1:1/mcp"}); !errors.As(err, &un) {
		t.Errorf("nobody there: %v", err)
	}
	if err := do(&Client{URL: "::"}); err == nil {
		t.Error("a bad address is no error")
	}
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	if _, err := c.Do(ctx, Call{Tool: "t"}); !errors.Is(err, cause) {
		t.Errorf("cancelled: %v", err)
	}
	c, _ = answer(t, 200, "application/json", `{"jsonrpc":"2.0","id":1,"result":7}`)
	if err := do(c); err == nil {
		t.Error("a result that is no object is no error")
	}
}

func TestToolsReadsAllPages(t *testing.T) {
	n := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		if n++; n == 1 {
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"a","description":"A.","inputSchema":{"type":"object"}}],"nextCursor":"p\"2"}}`)
			return
		}
		if !strings.Contains(string(b), `"cursor":"p\"2"`) {
			t.Errorf("no cursor: %s", b)
		}
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"b","description":7}]}}`)
	}))
	defer s.Close()
	tools, err := (&Client{URL: s.URL}).Tools(context.Background())
	if err != nil || len(tools) != 2 || tools[0].Description != "A." || tools[1].Name != "b" {
		t.Errorf("%+v, %v", tools, err)
	}
}

func TestParamHeaders(t *testing.T) {
	schema := `{"properties":{
		"region":{"type":"string","x-mcp-header":"Region"},
		"dry":{"type":"boolean","x-mcp-header":"Dry-Run"},
		"none":{"type":"string","x-mcp-header":"None"},
		"in":{"properties":{"n":{"type":"integer","x-mcp-header":"N"}}}}}`
	h := paramHeaders([]byte(schema), []byte(`{"region":"zürich","dry":true,"none":null,"in":{"n":42},"other":1}`))
	for k, v := range map[string]string{"Mcp-Param-Region": "=?base64?esO8cmljaA==?=", "Mcp-Param-Dry-Run": "true", "Mcp-Param-N": "42"} {
		if h.Get(k) != v {
			t.Errorf("%s: %q, want %q", k, h.Get(k), v)
		}
	}
	if len(h) != 3 {
		t.Errorf("headers: %v", h)
	}
	if h := paramHeaders([]byte(`{"properties":{"a":{"type":"string"}}}`), []byte(`{"a":"b"}`)); h != nil {
		t.Errorf("headers without annotation: %v", h)
	}
}
