package downstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

type listResult struct {
	Result struct {
		Tools      []struct{ Name string }
		NextCursor string
		TTLMs      *int
		CacheScope string
	}
	Error *struct{ Code int }
}

func (c *client) list(path, params string) (l listResult) {
	c.t.Helper()
	_, body := c.post(path, `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{`+params+`"_meta":{`+modernMeta+`}}}`, modern("tools/list", "")...)
	if err := json.Unmarshal([]byte(body), &l); err != nil {
		c.t.Fatalf("%v: %s", err, body)
	}
	return l
}

// TestPagination: pages of 200, stable in order, whatever order the servers give
// cursors are sealed to the principal and the endpoint (SPEC §6.4).
func TestPagination(t *testing.T) {
	r := newRig(t)
	for _, s := range []string{"a", "b"} {
		r.lists[s], r.fresh[s] = nil, true
		for i := range 301 {
			name := fmt.Sprintf("t%03d", i)
			r.lists[s] = append(r.lists[s], mcp.Entry{Name: name, Raw: []byte(`{"name":"` + name + `"}`)})
		}
	}
	c := r.serve()
	var first []string
	for round := range 2 {
		for _, l := range r.lists {
			rand.Shuffle(len(l), func(i, k int) { l[i], l[k] = l[k], l[i] })
		}
		var names []string
		params := ""
		for pages := 1; ; pages++ {
			l := c.list("/mcp", params)
			for _, tool := range l.Result.Tools {
				names = append(names, tool.Name)
			}
			if *l.Result.TTLMs == 0 || l.Result.CacheScope != "private" {
				t.Errorf("page %d: %+v", pages, l.Result)
			}
			if l.Result.NextCursor == "" {
				if pages != 4 {
					t.Errorf("%d pages", pages)
				}
				break
			}
			params = `"cursor":"` + l.Result.NextCursor + `",`
		}
		if len(names) != 603 || !slices.IsSorted(names) {
			t.Errorf("%d names, sorted %v", len(names), slices.IsSorted(names))
		}
		if round == 0 {
			first = names
		} else if !slices.Equal(first, names) {
			t.Error("the order changed")
		}
	}
	cursor := `"cursor":"` + c.list("/mcp", "").Result.NextCursor + `",`
	if l := c.list("/mcp/a", cursor); l.Error == nil || l.Error.Code != mcp.CodeInvalidParams {
		t.Errorf("another endpoint: %+v", l)
	}
	c.header.Set("Authorization", "Bearer bob")
	if l := c.list("/mcp", cursor); l.Error == nil || l.Error.Code != mcp.CodeInvalidParams {
		t.Errorf("another principal: %+v", l)
	}
	if l := c.list("/mcp", `"cursor":"x",`); l.Error == nil || l.Error.Code != mcp.CodeInvalidParams {
		t.Errorf("no cursor: %+v", l)
	}
}

// TestPartialList is A22: what is known is served, and must not be kept.
func TestPartialList(t *testing.T) {
	r := newRig(t)
	r.lists["down"], r.listErr["down"] = nil, errors.New("connection refused")
	c := r.serve()
	if l := c.list("/mcp", ""); len(l.Result.Tools) != 1 || *l.Result.TTLMs != 0 {
		t.Errorf("%+v", l.Result)
	}
	if l := c.list("/mcp/up", ""); len(l.Result.Tools) != 1 || *l.Result.TTLMs == 0 {
		t.Errorf("%+v", l.Result)
	}
}

// TestPublicNames: every name at /mcp is safe in headers, short enough, unique,
// and leads back to its server and tool.
func TestPublicNames(t *testing.T) {
	servers := []string{"a", "a__b", "srv"}
	lists := map[string][]string{
		"a":    {"x", "b__x", "__x", "x__y", "ä", "a b", "a/b", "", strings.Repeat("n", 200), strings.Repeat("n", 201), "x"},
		"a__b": {"x", "_x"},
		"srv":  {"bad name", "bad-name", "ok.tool"},
	}
	r := newRig(t)
	r.lists = map[string][]mcp.Entry{}
	seen := map[string]string{}
	for _, s := range servers {
		for _, n := range lists[s] {
			r.lists[s] = append(r.lists[s], mcp.Entry{Name: n, Raw: []byte(`{}`)})
		}
	}
	// A tool that is called like the safe name of another one.
	r.lists["srv"] = append(r.lists["srv"], mcp.Entry{Name: strings.TrimPrefix(hashedName("srv", "bad name", 0), "srv__")})
	for _, s := range servers {
		for i, public := range publicNames(s, r.lists[s], servers) {
			own := r.lists[s][i].Name
			if public == "" {
				if i != 10 || own != "x" {
					t.Errorf("%s %q has no name", s, own)
				}
				continue
			}
			if !safe(public) || len(public) > maxName || seen[public] != "" {
				t.Errorf("%s %q: %q, also of %s", s, own, public, seen[public])
			}
			seen[public] = s + " " + own
			x := &exchange{h: r.h, r: r.serve().request(t.Context(), "POST", "/", "")}
			if got, ok := x.resolve(mcp.ListTools, public); !ok || got.server != s || got.tool != own {
				t.Errorf("%q is %s %q, not %s %q", public, got.server, got.tool, s, own)
			}
		}
	}
	for _, plain := range []string{"a__x", "a__x__y", "a__b__x", "srv__ok.tool", "srv__bad-name"} {
		if seen[plain] == "" {
			t.Errorf("%s should be as it is", plain)
		}
	}
	if seen["a__b__x"] != "a__b x" {
		t.Errorf("a__b__x is %s", seen["a__b__x"])
	}
}

// A relay of this machine's user mirrors no arguments, and its host cancels by
// message only; nobody else gets off so lightly.
func TestRelayed(t *testing.T) {
	for _, tt := range []struct {
		who, header string
		served      bool
	}{{"local", "stdio", true}, {"local", "", false}, {"ann", "stdio", false}} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			r.lists = map[string][]mcp.Entry{"up": {{Name: "work", Raw: []byte(`{"name":"work","inputSchema":{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"}}}}`)}}}
			r.decide = func(_, _, _ string, modern bool) Decision {
				return Decision{CancelOnDisconnect: modern, Grace: 15 * time.Second, Attach: call.AttachNever}
			}
			r.tools["work"] = func(ctx context.Context, x *call.Exec) call.Answer {
				_ = x.Dispatched()
				<-ctx.Done()
				return call.Answer{}
			}
			body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"work","arguments":{"region":"eu"},"_meta":{` + modernMeta + `}}}`
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			local := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8722}
			req := httptest.NewRequest("POST", "/mcp/up", strings.NewReader(body)).WithContext(context.WithValue(ctx, http.LocalAddrContextKey, net.Addr(local)))
			req.Host = "127.0.0.1:8722"
			for k, v := range map[string]string{
				"Authorization": "Bearer " + tt.who, "Content-Type": "application/json", headerRelay: tt.header,
				mcp.HeaderVersion: mcp.V20260728, mcp.HeaderMethod: "tools/call", mcp.HeaderName: "work",
			} {
				if v != "" {
					req.Header.Set(k, v)
				}
			}
			w := httptest.NewRecorder()
			r.h.ServeHTTP(w, req)
			if (w.Code == 200) != tt.served {
				t.Fatalf("%s with %q: %d %s", tt.who, tt.header, w.Code, w.Body)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			if runs := r.eng.InFlight() == 1; runs != tt.served {
				t.Errorf("%s: runs %v", tt.who, runs)
			}
			if tt.served { // the relay names the call when it sends the request again
				ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), http.LocalAddrContextKey, net.Addr(local)), time.Second)
				defer cancel()
				again := req.Clone(ctx)
				again.Body = io.NopCloser(strings.NewReader(body))
				again.Header.Set(HeaderCall, w.Header().Get(HeaderCall))
				r.h.ServeHTTP(httptest.NewRecorder(), again)
				if n := r.eng.InFlight(); n != 1 {
					t.Errorf("%d calls run", n)
				}
			}
			over, stop := context.WithCancel(t.Context())
			stop()
			r.eng.Stop(over)
		})
	}
}
