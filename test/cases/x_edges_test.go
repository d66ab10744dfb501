package cases_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/test/wire"
)

func init() {
	// environ: says what its process was given.
	addTool("environ", func(w *worker, r *wire.Request) {
		w.send(r.Text(strings.Join(os.Environ(), "\n")))
	})
}

// mirrorTool mirrors an argument into a header.
const mirrorTool = `[{"name":"work","inputSchema":{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"},"n":{"type":"integer","x-mcp-header":"Count"}}}}]`

// what stands between agent and tool server passes unknown Mcp-Param headers
// on and ignores them, and refuses headers that do not fit with 400 and -32020
// before anything runs (SPEC §1.3).
func TestX10Headers(t *testing.T) {
	t.Parallel()
	up := wire.NewUpstream(t, wire.Options{Version: wire.Modern, Tools: mirrorTool})
	g := before(t, up)
	up.WaitRequest("tools/list", 1, 0)
	dn := g.client(wire.Modern, "up")
	send := func(method, args string, more map[string]string) *wire.Exchange {
		h := map[string]string{"Mcp-Protocol-Version": wire.Modern, "Mcp-Method": method, "Mcp-Name": "work", "Mcp-Param-Region": "eu"}
		for k, v := range more {
			if v == "-" {
				delete(h, k)
			} else {
				h[k] = v
			}
		}
		x := dn.Do(wire.HTTP{Body: dn.Message("1", "tools/call", `"name":"work","arguments":`+args, ""), Header: h})
		x.End(0)
		return x
	}
	ran := 0
	for name, c := range map[string]struct {
		args string
		more map[string]string
		ok   bool
	}{
		"fits":              {`{"region":"eu"}`, nil, true},
		"unknown param":     {`{"region":"eu"}`, map[string]string{"Mcp-Param-Other": "kept as it is"}, true},
		"other case":        {`{"region":"eu"}`, map[string]string{"Mcp-Param-Region": "-", "mCP-pARAM-rEGION": "eu"}, true},
		"encoded":           {`{"region":"zürich"}`, map[string]string{"Mcp-Param-Region": "=?base64?esO8cmljaA==?="}, true},
		"number as number":  {`{"region":"eu","n":42}`, map[string]string{"Mcp-Param-Count": "42.0"}, true},
		"encoded name":      {`{"region":"eu"}`, map[string]string{"Mcp-Name": "=?base64?d29yaw==?="}, true},
		"unknown mcp name":  {`{"region":"eu"}`, map[string]string{"Mcp-Anything": "x"}, true},
		"last event id":     {`{"region":"eu"}`, map[string]string{"Last-Event-Id": "a_1"}, true}, // of the other era: ignored
		"missing":           {`{"region":"eu"}`, map[string]string{"Mcp-Param-Region": "-"}, false},
		"differs":           {`{"region":"eu"}`, map[string]string{"Mcp-Param-Region": "us"}, false},
		"value's case":      {`{"region":"eu"}`, map[string]string{"Mcp-Param-Region": "EU"}, false},
		"no such argument":  {`{}`, nil, false},
		"null":              {`{"region":null}`, nil, false},
		"number differs":    {`{"region":"eu","n":42}`, map[string]string{"Mcp-Param-Count": "43"}, false},
		"sentinel's case":   {`{"region":"zürich"}`, map[string]string{"Mcp-Param-Region": "=?Base64?esO8cmljaA==?="}, false},
		"not base64":        {`{"region":"zürich"}`, map[string]string{"Mcp-Param-Region": "=?base64?***?="}, false},
		"no version header": {`{"region":"eu"}`, map[string]string{"Mcp-Protocol-Version": "-"}, false},
		"other version":     {`{"region":"eu"}`, map[string]string{"Mcp-Protocol-Version": "2025-11-25"}, false},
		"no method":         {`{"region":"eu"}`, map[string]string{"Mcp-Method": "-"}, false},
		"other method":      {`{"region":"eu"}`, map[string]string{"Mcp-Method": "tools/list"}, false},
		"method's case":     {`{"region":"eu"}`, map[string]string{"Mcp-Method": "Tools/Call"}, false},
		"no name":           {`{"region":"eu"}`, map[string]string{"Mcp-Name": "-"}, false},
		"other name":        {`{"region":"eu"}`, map[string]string{"Mcp-Name": "play"}, false},
	} {
		x := send("tools/call", c.args, c.more)
		m := x.Response(0)
		switch {
		case c.ok && m.ToolText() != "worked":
			t.Errorf("%s: HTTP %d %s", name, x.Status(), m.JSON)
		case !c.ok && (x.Status() != 400 || string(m.At("error.code")) != "-32020" || string(m.ID) != "1"):
			t.Errorf("%s: HTTP %d %s", name, x.Status(), x.Body())
		}
		if c.ok {
			ran++
		}
		calls := up.Requests("tools/call")
		if len(calls) != ran {
			t.Fatalf("%s: %d calls reached the server, not %d", name, len(calls), ran)
		}
		if want := c.more["Mcp-Param-Other"]; c.ok && calls[ran-1].Header.Get("Mcp-Param-Other") != want {
			t.Errorf("%s: the server got %q, not %q", name, calls[ran-1].Header.Get("Mcp-Param-Other"), want)
		}
	}
}

// what an agent shows longcall to be let in reaches no tool server: not its
// headers, not its messages, not its process.
func TestX12TokenPassthrough(t *testing.T) {
	t.Parallel()
	const canary = "canary-7f3a91c2d4e5b6a798"
	for _, w := range ways {
		for _, agent := range []string{wire.Legacy, wire.Modern} {
			t.Run(w.name+"/"+agent, func(t *testing.T) {
				t.Parallel()
				s := newServer(t, w, "environ")
				g := s.startWith(t, fmt.Sprintf("auth: {tokens: {ann: %s}}", canary))
				dn := wire.NewClient(t, g.app.URL()+"/mcp/up", agent)
				dn.Header = map[string]string{"Authorization": "Bearer " + canary, "Cookie": "k=" + canary, "X-Api-Key": canary, "Mcp-Session": canary}
				dn.Initialize()
				m := dn.Start(wire.Call{Token: "1"}).Response(0)
				if m.ToolText() == "" || strings.Contains(m.JSON, canary) {
					t.Errorf("the tool answered %s", m.JSON)
				}
				dn.Request("tools/list", "")
				if s.up != nil {
					if s.up.Count("tools/call") != 1 {
						t.Error("the call did not arrive")
					}
					for _, r := range s.up.Requests("") {
						if all := fmt.Sprint(r.Path, r.Header, r.Body); strings.Contains(all, canary) {
							t.Errorf("%s has the agent's token: %s", r.Key(), all)
						}
					}
					return
				}
				for _, n := range s.cmd.Notes("line") {
					if strings.Contains(n.Text, canary) {
						t.Errorf("the child was sent %s", n.Text)
					}
				}
			})
		}
	}
}

// the probe finds what each kind of server speaks, uses no call for it, and
// keeps nothing that says nothing about the era (SPEC §5.4, R-70).
func TestX13Probe(t *testing.T) {
	t.Parallel()
	html := func(status int) wire.Handler {
		return func(c *wire.Conn, _ *wire.Request) {
			c.Head(status, "Content-Type: text/html")
			c.Body("<h1>" + fmt.Sprint(status) + "</h1>")
			c.End()
		}
	}
	for name, c := range map[string]struct {
		opt      wire.Options
		discover wire.Handler
		spoken   string
	}{
		"modern":           {wire.Options{Version: wire.Modern}, nil, wire.Modern},
		"both":             {wire.Options{Both: true}, nil, wire.Modern},
		"legacy":           {wire.Options{}, nil, wire.Legacy},
		"2024 over http":   {wire.Options{Version: "2024-11-05"}, nil, ""},
		"2024 sse":         {wire.Options{Version: "2024-11-05", Old: true}, nil, ""},
		"no session":       {wire.Options{NoSession: true}, nil, wire.Legacy},
		"html 404":         {wire.Options{}, html(404), wire.Legacy},
		"html 502":         {wire.Options{}, html(502), wire.Legacy},
		"html 200":         {wire.Options{}, html(200), wire.Legacy},
		"200 and -32601":   {wire.Options{}, func(c *wire.Conn, r *wire.Request) { c.JSON(200, r.Fail("-32601", "no")) }, wire.Legacy},
		"404 and -32601":   {wire.Options{}, func(c *wire.Conn, r *wire.Request) { c.JSON(404, r.Fail("-32601", "no")) }, wire.Legacy},
		"answers anything": {wire.Options{}, func(c *wire.Conn, r *wire.Request) { c.JSON(200, r.Result(`{}`)) }, wire.Legacy},
		"strict Accept": {wire.Options{Version: wire.Modern}, func(c *wire.Conn, r *wire.Request) {
			if a := r.Header.Get("Accept"); !strings.Contains(a, "application/json") || !strings.Contains(a, "text/event-stream") {
				c.Status(406)
				return
			}
			c.JSON(200, r.Result(`{"supportedVersions":["`+wire.Modern+`"],"capabilities":{"tools":{}}}`))
		}, wire.Modern},
		"202":               {wire.Options{}, wire.Refuse(202), wire.Legacy},
		"modern, no method": {wire.Options{Version: wire.Modern}, func(c *wire.Conn, r *wire.Request) { c.JSON(400, r.Fail("-32020", "Mcp-Method")) }, wire.Modern},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.opt.On = map[string]wire.Handler{}
			if c.discover != nil {
				c.opt.On["server/discover"] = c.discover
			}
			up := wire.NewUpstream(t, c.opt)
			dn := before(t, up).client(wire.Legacy, "up")
			for range 2 {
				if m := dn.Start(wire.Call{}).Response(0); m.ToolText() != "worked" {
					t.Fatalf("%s", m.JSON)
				}
			}
			calls := up.Requests("tools/call")
			if len(calls) != 2 || calls[1].Version != c.spoken {
				t.Errorf("%d calls, the last in %q", len(calls), calls[1].Version)
			}
			if n := up.Count("server/discover"); n != 1 {
				t.Errorf("it was asked %d times what it speaks", n)
			}
		})
	}
	for _, status := range []int{401, 403, 406, 415, 429, 503} {
		t.Run(fmt.Sprint(status, " is no verdict"), func(t *testing.T) {
			t.Parallel()
			refusing := make(chan struct{}) // closed: it has come to its senses
			var up *wire.Upstream
			answer := func(c *wire.Conn, r *wire.Request) {
				select {
				case <-refusing:
					up.Usual(c, r)
				default:
					c.Status(status)
				}
			}
			up = wire.NewUpstream(t, wire.Options{Version: wire.Modern, On: map[string]wire.Handler{"server/discover": answer, "initialize": answer, "tools/list": answer}})
			dn := before(t, up).client(wire.Legacy, "up")
			if m := dn.Start(wire.Call{}).Response(0); !strings.Contains(m.ToolText(), "Nothing was sent") {
				t.Errorf("while it refuses: %s", m.JSON)
			}
			close(refusing)
			if m := dn.Start(wire.Call{}).Response(0); m.ToolText() != "worked" {
				t.Errorf("after that: %s", m.JSON)
			}
			if calls := up.Requests("tools/call"); len(calls) != 1 || !calls[0].Modern() {
				t.Errorf("%d calls", len(calls))
			}
		})
	}
}

// batches belong to sessions of 2025-03-26, and to nothing else; there
// each member has its due, also a response and a notification.
func TestX16Batch(t *testing.T) {
	t.Parallel()
	up := wire.NewUpstream(t, wire.Options{})
	g := before(t, up)
	dn := g.client("2025-03-26", "up")
	send := func(body string) *wire.Exchange {
		x := dn.Do(wire.HTTP{Body: body, Header: map[string]string{"Mcp-Session-Id": dn.Session}})
		x.End(0)
		return x
	}
	call1 := dn.Message("1", "tools/call", `"name":"work","arguments":{}`, "")
	const ping, note, response = `{"jsonrpc":"2.0","id":"p","method":"ping"}`, `{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`, `{"jsonrpc":"2.0","id":"nobody asked","result":{}}`
	x := send("[" + strings.Join([]string{call1, note, ping, response, `{"jsonrpc":"2.0","id":3,"method":"initialize","params":{}}`, `7`}, ",") + "]")
	for _, want := range []string{`"id":1,"result":{"content":[{"type":"text","text":"worked"}]`, `{"jsonrpc":"2.0","id":"p","result":{}}`, `"id":3,"error":{"code":-32600`} {
		if !strings.Contains(x.Body(), want) {
			t.Errorf("HTTP %d without %s: %s", x.Status(), want, x.Body())
		}
	}
	if n := strings.Count(x.Body(), `"jsonrpc"`); n != 4 {
		t.Errorf("%d answers: %s", n, x.Body())
	}
	for _, body := range []string{"[" + note + "]", "[" + response + "]", "[" + note + "," + response + "," + note + "]"} {
		if x := send(body); x.Status() != 202 || x.Body() != "" {
			t.Errorf("%s: HTTP %d %s", body, x.Status(), x.Body())
		}
	}
	if x := send("[]"); x.Status() != 400 {
		t.Errorf("an empty batch: HTTP %d %s", x.Status(), x.Body())
	}
	if n := up.Count("tools/call"); n != 1 {
		t.Errorf("%d calls reached the server", n)
	}
}

// what a server says about how longcall sent a request is between the two.
func TestX18Repaired(t *testing.T) {
	t.Parallel()
	bothEras(t, func(t *testing.T, agent string) {
		var up *wire.Upstream
		up = wire.NewUpstream(t, wire.Options{Version: wire.Modern, Tools: mirrorTool, On: map[string]wire.Handler{
			"tools/list": func(c *wire.Conn, r *wire.Request) {
				tools := mirrorTool
				if up.Count("tools/list") > 1 {
					tools = strings.ReplaceAll(tools, `"Region"`, `"Area"`)
				}
				c.JSON(200, r.Result(`{"tools":`+tools+`,"ttlMs":3600000,"cacheScope":"public"}`))
			},
			"tools/call": func(c *wire.Conn, r *wire.Request) {
				if r.Header.Get("Mcp-Param-Area") != "eu" {
					c.JSON(400, r.Fail("-32020", "the header Mcp-Param-Area is missing"))
					return
				}
				c.Answer(r.Progress("1", "", ""), r.Text("worked"))
			},
		}})
		g := before(t, up)
		up.WaitRequest("tools/list", 1, 0)
		dn := g.client(agent, "up")
		x := dn.Start(wire.Call{Args: `{"region":"eu"}`, Token: "1", Header: map[string]string{"Mcp-Param-Region": "eu"}})
		if m := x.Response(0); m.ToolText() != "worked" || strings.Contains(x.Body(), "32020") || len(x.Progress()) == 0 {
			t.Errorf("the agent got %s", x.Body())
		}
		if n := up.Count("tools/call"); n != 2 {
			t.Errorf("sent %d times", n)
		}
		g.ended(call.Completed)
	})
}

// Clients that send no initialize are served if the operator says so, as ones of
// 2025-03-26 or of the revision in their header (SPEC §5.3, §8.2).
func TestSessionless(t *testing.T) {
	t.Parallel()
	up := wire.NewUpstream(t, wire.Options{})
	for _, allowed := range []bool{false, true} {
		g := start(t, fmt.Sprintf("shutdown: {drain: 1s}\nallow_sessionless_legacy: %v\nmcpServers: {up: {url: %q}}\n", allowed, up.URL))
		for _, header := range []map[string]string{{}, {"Mcp-Protocol-Version": "2025-06-18"}, {"Accept": "application/json"}} {
			dn := wire.NewClient(t, g.app.URL()+"/mcp/up", wire.Legacy)
			for method, c := range map[string]struct{ params, want string }{
				"tools/list": {"", `"name":"work"`},
				"tools/call": {`"name":"work","arguments":{},"_meta":{"progressToken":1}`, `"worked"`},
				"ping":       {"", `"result":{}`},
			} {
				x := dn.Do(wire.HTTP{Body: `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{` + c.params + `}}`, Header: header})
				x.End(0)
				switch {
				case allowed && (x.Status() != 200 || !strings.Contains(x.Body(), c.want)):
					t.Errorf("%s %v: HTTP %d %s", method, header, x.Status(), x.Body())
				case !allowed && (x.Status() != 400 || !strings.Contains(x.Body(), "send initialize first")):
					t.Errorf("%s %v: HTTP %d %s", method, header, x.Status(), x.Body())
				}
				if strings.Contains(x.Body(), "\nid:") || strings.HasPrefix(x.Body(), "id:") {
					t.Errorf("%s: an event id without a session: %s", method, x.Body())
				}
			}
			for _, verb := range []string{"GET", "DELETE"} {
				x := dn.Do(wire.HTTP{Verb: verb, Header: header})
				x.End(0)
				if x.Status() != 405 {
					t.Errorf("%s: HTTP %d", verb, x.Status())
				}
			}
		}
	}
}

// a request whose headers or body are too large is refused with the status
// that says so, a body of another type too, in both eras and in the transport of
// 2024; what is just small enough is served.
func TestRequestLimits(t *testing.T) {
	t.Parallel()
	up := wire.NewUpstream(t, wire.Options{})
	g := start(t, fmt.Sprintf("shutdown: {drain: 1s}\nrequest: {headers: 8KiB, body: 64KiB}\nmcpServers: {up: {url: %q}}\n", up.URL))
	agents := map[string]*wire.Client{
		wire.Legacy: g.client(wire.Legacy, "up"), wire.Modern: g.client(wire.Modern, "up"),
		"2024-11-05": wire.NewOldClient(t, g.app.URL()+"/sse/up", "{}").Client,
	}
	for name, dn := range agents {
		for _, c := range []struct {
			what   string
			header map[string]string
			pad    int
			status int
		}{
			{"small", map[string]string{"X-A": strings.Repeat("a", 7<<10)}, 63 << 10, 0},
			{"headers", map[string]string{"X-A": strings.Repeat("a", 16<<10)}, 0, 431},
			{"many headers", map[string]string{"X-A": strings.Repeat("a", 6<<10), "X-B": strings.Repeat("b", 6<<10)}, 0, 431},
			{"body", nil, 64 << 10, 413},
			{"type", map[string]string{"Content-Type": "text/json"}, 0, 415},
			{"no type", map[string]string{"Content-Type": ""}, 0, 415},
		} {
			x := dn.Start(wire.Call{Args: `{"pad":"` + strings.Repeat("p", c.pad) + `"}`, Header: c.header})
			x.End(0)
			want := c.status
			if want == 0 {
				want = map[bool]int{true: 202, false: 200}[name == "2024-11-05"]
			}
			if x.Status() != want {
				t.Errorf("%s, %s: HTTP %d %.200s", name, c.what, x.Status(), x.Body())
			}
		}
	}
	up.WaitRequest("tools/call", len(agents), 0)
	up.Quiet("tools/call", len(agents), 100*time.Millisecond)
}

// Hosts look for OAuth's documents first, and some take whatever comes for one: there is
// none, and that is said at once and not as a page.
func TestNoWellKnown(t *testing.T) {
	t.Parallel()
	g := start(t, "mcpServers: {}\n"+tokens+"\n")
	for _, path := range []string{"/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, g.app.URL()+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		tr := &http.Transport{DisableKeepAlives: true}
		resp, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != 404 || strings.Contains(resp.Header.Get("Content-Type"), "html") {
			t.Errorf("%s: %d %v %.100s", path, resp.StatusCode, resp.Header, body)
		}
	}
}
