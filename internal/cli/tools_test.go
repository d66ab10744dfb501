package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/mcp"
)

// upstreamServer is a small tool server of the stateless revision.
type upstreamServer struct {
	url  string
	gone chan struct{} // gets one when the agent of a hang is gone

	mu    sync.Mutex
	calls map[string]int
}

const upstreamTools = `[
	{"name":"add","description":"Add two numbers. They may be big.","inputSchema":{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"},"text":{"type":"string"}},"required":["a","b"]}},
	{"name":"evil","description":"Says \u001b[31mred\u202e things.","inputSchema":{"type":"object"}},
	{"name":"fail","inputSchema":{"type":"object"}},
	{"name":"hang","inputSchema":{"type":"object"}},
	{"name":"image","inputSchema":{"type":"object"}},
	{"name":"refuse","inputSchema":{"type":"object"}},
	{"name":"steps","description":"Work in steps.","inputSchema":{"type":"object","properties":{"n":{"type":"integer"}}}}
]`

func newUpstream(t *testing.T) *upstreamServer {
	t.Helper()
	u := &upstreamServer{gone: make(chan struct{}, 16), calls: map[string]int{}}
	s := httptest.NewServer(u)
	t.Cleanup(s.Close)
	u.url = s.URL + "/mcp"
	return u
}

func (u *upstreamServer) count(tool string) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.calls[tool]
}

func (u *upstreamServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	m, err := mcp.Parse(raw)
	if err != nil || m.Kind != mcp.Request {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	id := m.ID.Of(m.Raw)
	reply := func(result string) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(mcp.ResultResponse(id, []byte(result)))
	}
	switch m.Method {
	case mcp.MethodDiscover:
		reply(`{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"serverInfo":{"name":"test","version":"1"},"ttlMs":1000,"cacheScope":"public"}`)
	case mcp.MethodToolsList:
		reply(`{"resultType":"complete","tools":` + upstreamTools + `,"ttlMs":1000,"cacheScope":"public"}`)
	case mcp.MethodToolsCall:
		u.call(w, r, &m)
	default:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write(mcp.ErrorResponse(id, mcp.CodeMethodNotFound, "method not found", nil))
	}
}

func (u *upstreamServer) call(w http.ResponseWriter, r *http.Request, m *mcp.Message) {
	name, _ := mcp.String(m.Name.Of(m.Raw))
	u.mu.Lock()
	u.calls[name]++
	u.mu.Unlock()
	id := m.ID.Of(m.Raw)
	rc := http.NewResponseController(w)
	text := func(s string, isError bool) []byte {
		return mcp.ResultResponse(id, fmt.Appendf(nil, `{"resultType":"complete","content":[{"type":"text","text":%s}],"isError":%v}`, mcp.Quote(s), isError))
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	_ = rc.Flush()
	send := func(msg []byte) {
		_, _ = w.Write(mcp.AppendSSE(nil, "", "message", msg))
		_ = rc.Flush()
	}
	switch name {
	case "add":
		send(mcp.ResultResponse(id, fmt.Appendf(nil, `{"resultType":"complete","content":[{"type":"text","text":"added"}],"structuredContent":%s}`, m.Arguments.Of(m.Raw))))
	case "evil":
		send(text("\x1b[31mred\u202e\nsecond line", false))
	case "fail":
		send(text("the disk is full", true))
	case "image":
		send(mcp.ResultResponse(id, []byte(`{"resultType":"complete","content":[{"type":"image","mimeType":"image/png","data":"AAAAAAAA"},{"type":"resource_link","uri":"file:///x"},{"type":"resource","resource":{"uri":"file:///y","text":"inside"}}]}`)))
	case "refuse":
		send(mcp.ErrorResponse(id, -32099, "not today", nil))
	case "steps":
		var args struct {
			N int `json:"n"`
		}
		_ = json.Unmarshal(m.Arguments.Of(m.Raw), &args)
		for i := range args.N {
			send(fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d,"total":%d,"message":"step %d"}}`, m.MetaToken.Of(m.Raw), i+1, args.N, i+1))
			select {
			case <-time.After(20 * time.Millisecond):
			case <-r.Context().Done():
				return
			}
		}
		send(text("all steps done", false))
	case "hang":
		<-r.Context().Done()
		u.gone <- struct{}{}
	}
}
