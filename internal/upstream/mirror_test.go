package upstream_test

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
	"github.com/longcall/longcall/internal/upstream"
	"github.com/longcall/longcall/test/wire"
)

// regional is a tool whose argument is mirrored into a header.
func regional(header string) string {
	return `{"name":"work","inputSchema":{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"` + header + `"},"n":{"type":"integer","x-mcp-header":"Count"}}}}`
}

// startWith starts a call whose client sent these arguments.
func (g *gateway) startWith(arguments string) *call.Call {
	g.t.Helper()
	c, err := g.engine.Start(g.t.Context(), call.Spec{
		Principal: "p", Server: "up", Tool: "work",
		Request: []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"up__work","arguments":` + arguments + `}}`),
	})
	if err != nil {
		g.t.Fatal(err)
	}
	return c
}

// A server over HTTP gets headers that mirror the arguments as they are sent, which
// policy may have changed; tools that ask for what cannot be are left out (R-05,
// Servers that are no HTTP or not modern get none.
func TestMirroredHeaders(t *testing.T) {
	t.Parallel()
	tools := "[" + regional("Region") + `,{"name":"broken","inputSchema":{"type":"object","properties":{"a":{"type":"number","x-mcp-header":"A"}}}}]`
	for _, version := range []string{wire.Modern, wire.Legacy} {
		up := wire.NewUpstream(t, wire.Options{Version: version, Tools: tools})
		g := newGateway(t, up.URL)
		for _, c := range []struct{ args, region, count string }{
			{`{"region":"eu","n":9007199254740993}`, "eu", "9007199254740993"},
			{`{"region":"zürich","n":1e3}`, "=?base64?esO8cmljaA==?=", "1000"},
			{`{"region":" x","n":null}`, "=?base64?IHg=?=", ""},
			{`{"region":{"a":1}}`, "", ""},
			{`{}`, "", ""},
		} {
			g.follow(g.startWith(c.args)).want(t, call.Completed, "worked")
			calls := up.Requests("tools/call")
			h := calls[len(calls)-1].Header
			if version == wire.Legacy {
				c.region, c.count = "", ""
			}
			if h.Get("Mcp-Param-Region") != c.region || h.Get("Mcp-Param-Count") != c.count {
				t.Errorf("%s %s: region %q, count %q", version, c.args, h.Get("Mcp-Param-Region"), h.Get("Mcp-Param-Count"))
			}
			if version == wire.Modern && (h.Get("Mcp-Method") != "tools/call" || h.Get("Mcp-Name") != "work" || h.Get("Mcp-Protocol-Version") != wire.Modern) {
				t.Errorf("headers %v", h)
			}
		}
		list, err := g.pool.List(t.Context(), call.Caller{Principal: "p"}, "up", mcp.ListTools)
		if want := map[string]int{wire.Modern: 1, wire.Legacy: 2}[version]; err != nil || len(list.Entries) != want {
			t.Errorf("%s: %d tools, %v", version, len(list.Entries), err)
		}
	}
}

// A header that does not fit is mended with a new list, once, and never shown to the
// agent.
func TestHeaderMismatchRepaired(t *testing.T) {
	t.Parallel()
	for _, mends := range []bool{true, false} {
		for _, status := range []int{400, 200} {
			var up *wire.Upstream
			up = wire.NewUpstream(t, wire.Options{Version: wire.Modern, On: map[string]wire.Handler{
				"tools/list": func(c *wire.Conn, r *wire.Request) {
					header := "Region"
					if mends && up.Count("tools/list") > 1 {
						header = "Area"
					}
					c.JSON(200, r.Result(`{"tools":[`+regional(header)+`],"ttlMs":3600000,"cacheScope":"public"}`))
				},
				"tools/call": func(c *wire.Conn, r *wire.Request) {
					if r.Header.Get("Mcp-Param-Area") != "eu" {
						c.JSON(status, r.Fail("-32020", "Mcp-Param-Area is missing"))
						return
					}
					c.JSON(200, r.Text("worked"))
				},
			}})
			g := newGateway(t, up.URL)
			s := g.follow(g.startWith(`{"region":"eu"}`))
			calls := up.Requests("tools/call")
			if mends {
				s.want(t, call.Completed, "worked")
			} else {
				s.want(t, call.Failed, "It did not run")
			}
			if s.end.Body != nil && strings.Contains(string(s.end.Body), "-32020") {
				t.Errorf("the agent is shown %s", s.end.Body)
			}
			if len(calls) != 2 || string(calls[0].ID) == string(calls[1].ID) || up.Count("tools/list") != 2 {
				t.Errorf("sent %d times, with %d lists", len(calls), up.Count("tools/list"))
			}
			if dispatched := len(s.notes); dispatched == 0 || !strings.Contains(s.notes[0], "sent anew") {
				t.Errorf("notes %q", s.notes)
			}
		}
	}
}

// A server that does not speak the revision any more is asked again what it speaks,
// and the call goes there, once. The list is read in the same way.
func TestUnsupportedVersionRepaired(t *testing.T) {
	t.Parallel()
	var legacy atomic.Bool
	on := map[string]wire.Handler{}
	up := wire.NewUpstream(t, wire.Options{Version: wire.Legacy, Both: true, On: on})
	refuse := func(usual func(c *wire.Conn, r *wire.Request)) wire.Handler {
		return func(c *wire.Conn, r *wire.Request) {
			if r.Modern() && legacy.Load() {
				c.JSON(400, strings.Replace(r.Fail("-32022", "no"), `"message":"no"`, `"message":"no","data":{"supported":["2025-11-25"],"requested":"2026-07-28"}`, 1))
				return
			}
			usual(c, r)
		}
	}
	for _, method := range []string{"server/discover", "tools/list", "tools/call"} {
		on[method] = refuse(up.Usual)
	}
	g := newGateway(t, up.URL)
	g.follow(g.startWith(`{}`)).want(t, call.Completed, "worked")
	up.Quiet("server/discover", 1, 0)
	legacy.Store(true)
	g.follow(g.startWith(`{}`)).want(t, call.Completed, "worked")
	g.follow(g.startWith(`{}`)).want(t, call.Completed, "worked")
	var versions []string
	for _, r := range up.Requests("tools/call") {
		versions = append(versions, r.Version)
	}
	if got := strings.Join(versions, " "); got != "2026-07-28 2026-07-28 2025-11-25 2025-11-25" {
		t.Errorf("calls were sent as %s", got) // the third call remembers
	}
}

// A server that insists is not asked for ever, and its code stays with us.
func TestMalformedForGood(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"-32020", "-32022"} {
		up := wire.NewUpstream(t, wire.Options{Version: wire.Modern, On: map[string]wire.Handler{
			"tools/call": func(c *wire.Conn, r *wire.Request) { c.JSON(400, r.Fail(code, "no")) },
		}})
		g := newGateway(t, up.URL, func(s *upstream.Server) { s.Era = "modern" })
		s := g.follow(g.startWith(`{}`))
		s.want(t, call.Failed, "Calling again will not help")
		if n := up.Count("tools/call"); n != 2 || s.end.Body != nil {
			t.Errorf("%s: sent %d times, %s", code, n, s.end.Body)
		}
	}
}
