package downstream

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// FuzzHandler: whatever an agent sends, the handler neither panics nor answers
// 5xx, and what it says is a status with JSON, events or nothing.
func FuzzHandler(f *testing.F) {
	r := newRig(f)
	r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer {
		_ = progress(x, `"progress":1`)
		return reply(x, okResult)
	}
	ids := map[string]string{}
	for _, v := range mcp.LegacyVersions {
		s, _ := r.h.sessions.open("ann", "", v, "fuzz", nil)
		ids[v] = s.id
	}
	for _, v := range []string{"", mcp.V20250326, mcp.V20251125, mcp.V20260728, "x"} {
		for _, body := range []string{
			legacyCall("1", "up__work", "0"), modernCall(`"a"`, "up__work", token), "[" + legacyCall("1.5", "up__work", `"t"`) + "]",
			`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":"AA"}}`, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`,
			`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}`, `{"jsonrpc":"2.0","id":1,"result":{}}`, `[]`, `{}`, ``, `null`,
		} {
			f.Add([]byte(body), "POST", "/mcp", v, "tools/call", "up__work", "*/*", "", "")
		}
	}
	f.Add([]byte{}, "DELETE", "/mcp/up", "", "", "", "", "http://localhost", "a_1")
	f.Add([]byte{}, "OPTIONS", "/mcp/", "", "", "", "text/event-stream", "null", "")
	f.Fuzz(func(t *testing.T, body []byte, method, path, version, mcpMethod, name, accept, origin, lastEvent string) {
		if !strings.HasPrefix(path, "/") || strings.ContainsAny(path, " ?#%\x7f") || !isToken(method) {
			return
		}
		for _, c := range []byte(path) {
			if c < ' ' {
				return
			}
		}
		ctx, cancel := context.WithCancel(context.Background())
		req := httptest.NewRequest("POST", "/", strings.NewReader(string(body))).WithContext(ctx)
		req.Method, req.URL.Path = method, path
		for k, v := range map[string]string{
			mcp.HeaderVersion: version, mcp.HeaderMethod: mcpMethod, mcp.HeaderName: name, mcp.HeaderLastEvent: lastEvent,
			mcp.HeaderSession: ids[version], "Accept": accept, "Origin": origin,
		} {
			if v != "" {
				req.Header.Set(k, v)
			}
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer ann")
		if method == "GET" {
			cancel() // its stream would last
		}
		defer cancel()
		w := httptest.NewRecorder()
		r.h.ServeHTTP(w, req)
		for len(r.log.delivered) > 0 {
			<-r.log.delivered
		}
		if w.Code >= 500 || w.Code < 200 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		switch w.Header().Get("Content-Type") {
		case "application/json":
			if !json.Valid(w.Body.Bytes()) {
				t.Fatalf("not JSON: %s", w.Body)
			}
		case "text/event-stream":
			for _, d := range data(w.Body.String()) {
				if !json.Valid([]byte(d)) {
					t.Fatalf("not JSON: %s", d)
				}
			}
		default:
			if w.Body.Len() > 0 {
				t.Fatalf("a body without a type: %s", w.Body)
			}
		}
		if method == "DELETE" { // may have ended one
			for v := range ids {
				s, _ := r.h.sessions.open("ann", "", v, "fuzz", nil)
				ids[v] = s.id
			}
		}
	})
}
