package upstream_test

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/upstream"
	"github.com/longcall/longcall/test/wire"
)

// The test binary runs itself as a scripted tool server over stdio.
func init() {
	wire.Main(map[string]wire.Script{
		"methods legacy": func(c *wire.Child) { serveMethods(c, wire.Legacy) },
		"methods modern": func(c *wire.Child) { serveMethods(c, wire.Modern) },
		"fading":         fading,
		"listener":       listener,
	})
}

// methods is what the scripted servers answer, before the last message with progress.
func methods(r *wire.Request) []string {
	switch r.Method {
	case "resources/read":
		return []string{r.Progress("1", "2", "half"), r.Result(`{"contents":[{"uri":` + string(wire.At(string(r.Params), "uri")) + `,"text":"9007199254740993"}]}`)}
	case "prompts/get":
		return []string{r.Result(`{"messages":[],"description":` + wire.Quote(r.Tool) + `}`)}
	case "completion/complete":
		return []string{r.Result(`{"completion":{"values":["a"],"isError":true}}`)}
	case "vendor/nothing":
		return []string{r.Fail("-32050", "nothing here")}
	case "vendor/cancelled":
		return []string{r.Fail("-32800", "cancelled")}
	}
	return nil
}

func serveMethods(c *wire.Child, version string) {
	opt := wire.Options{Version: version, Capabilities: everything}
	for {
		r := c.Next()
		if r == nil {
			return
		}
		if out := methods(r); out != nil {
			c.Send(out...)
		} else {
			c.Usual(opt, r)
		}
	}
}

// request starts a request that is no tool call.
func (g *gateway) request(method, tool, params string) *call.Call {
	g.t.Helper()
	message := `{"jsonrpc":"2.0","id":1,"method":"` + method + `"`
	if params != "" {
		message += `,"params":` + params
	}
	c, err := g.engine.Start(g.t.Context(), call.Spec{
		Principal: "ann", Server: "up", Tool: tool, Method: method, Volatile: true, Request: []byte(message + "}"),
	})
	if err != nil {
		g.t.Fatal(err)
	}
	return c
}

// quadrants runs a test before a scripted server of each kind; sent gives what it
// was sent.
func quadrants(t *testing.T, f func(t *testing.T, g *gateway, modern, http bool, sent func(method string) *wire.Request)) {
	for _, version := range []string{wire.Legacy, wire.Modern} {
		modern := version == wire.Modern
		t.Run("http "+version, func(t *testing.T) {
			on := map[string]wire.Handler{}
			for _, m := range []string{"resources/read", "prompts/get", "completion/complete", "vendor/nothing", "vendor/cancelled"} {
				on[m] = func(c *wire.Conn, r *wire.Request) { c.Answer(methods(r)...) }
			}
			up := wire.NewUpstream(t, wire.Options{Version: version, Capabilities: everything, On: on})
			f(t, newGateway(t, up.URL), modern, true, func(method string) *wire.Request { return up.WaitRequest(method, 1, 0) })
		})
		t.Run("stdio "+version, func(t *testing.T) {
			script := map[bool]string{false: "methods legacy", true: "methods modern"}[modern]
			cmd := wire.NewCommand(t, script)
			g := newGateway(t, "", stdioOf(cmd))
			f(t, g, modern, false, func(method string) *wire.Request {
				for _, n := range cmd.Notes("line") {
					if r := wire.ParseRequest(n.Text); r.Method == method {
						return r
					}
				}
				t.Fatalf("%s did not come", method)
				return nil
			})
		})
	}
}

// other requests go to a server of either era as tool calls do.
func TestMethods_R07(t *testing.T) {
	quadrants(t, func(t *testing.T, g *gateway, modern, http bool, sent func(string) *wire.Request) {
		const uri = "file:///ü/1"
		s := g.follow(g.request("resources/read", "", `{"uri":"`+uri+`","x":9007199254740993,"_meta":{"progressToken":7,"kept":true}}`))
		s.want(t, call.Completed, `"text":"9007199254740993"`)
		if strings.Join(s.progress, " ") != "1" {
			t.Errorf("progress %v", s.progress)
		}
		r := sent("resources/read")
		if !strings.Contains(string(r.Params), `"x":9007199254740993`) || !strings.Contains(string(r.Params), `"kept":true`) || string(r.Token) == "7" || r.Token == nil {
			t.Errorf("sent %s", r.Params)
		}
		if r.Modern() != modern {
			t.Errorf("sent as %q", r.Version)
		}
		if http && modern && (r.Header.Get("Mcp-Method") != "resources/read" || r.Header.Get("Mcp-Name") != "=?base64?ZmlsZTovLy/DvC8x?=") {
			t.Errorf("headers %v", r.Header)
		}
		if http && !modern && r.Header.Get("Mcp-Method") != "" {
			t.Errorf("headers %v", r.Header)
		}

		g.follow(g.request("prompts/get", "own", `{"name":"up__own"}`)).want(t, call.Completed, `"description":"own"`)
		if r = sent("prompts/get"); http && modern && r.Header.Get("Mcp-Name") != "own" {
			t.Errorf("headers %v", r.Header)
		}

		s = g.follow(g.request("completion/complete", "", `{"ref":{"type":"ref/prompt","name":"own"},"argument":{"name":"a","value":""}}`))
		s.want(t, call.Completed, `"values":["a"]`)
		if s.end.End.ToolError {
			t.Error("only tools have errors of their own")
		}
		if r = sent("completion/complete"); http && r.Header.Get("Mcp-Name") != "" {
			t.Errorf("headers %v", r.Header)
		}

		for _, params := range []string{"", "{}", "null"} {
			s = g.follow(g.request("vendor/nothing", "", params))
			s.want(t, call.Failed, "nothing here")
			if s.end.End.Code != -32050 {
				t.Errorf("code %d", s.end.End.Code)
			}
		}
		if r = sent("vendor/nothing"); r.Bad != nil || r.Token == nil {
			t.Errorf("sent %s: %v", r.Body, r.Bad)
		}
	})
}

// SPEC §5.6: -32800 is how some servers end what was cancelled.
func TestCancelledThere(t *testing.T) {
	quadrants(t, func(t *testing.T, g *gateway, _, _ bool, _ func(string) *wire.Request) {
		s := g.follow(g.request("vendor/cancelled", "", ""))
		s.want(t, call.Cancelled, "cancelled there")
		if s.end.End.By != "server" {
			t.Errorf("by %q", s.end.End.By)
		}
	})
}

// SPEC §1.4, R-72, R-75: what only reads is sent again under a new id when it was
// lost, once; anything else is not.
func TestReadsAreSentAgain_R75(t *testing.T) {
	for _, version := range []string{wire.Legacy, wire.Modern} {
		t.Run(version, func(t *testing.T) {
			cut := 0
			var up *wire.Upstream
			answer := func(c *wire.Conn, r *wire.Request) {
				if up.Count(r.Method) <= cut {
					c.SSE()
					c.Close()
					return
				}
				c.Answer(r.Result(`{"contents":[]}`))
			}
			up = wire.NewUpstream(t, wire.Options{Version: version, On: map[string]wire.Handler{"resources/read": answer, "vendor/write": answer}})
			g := newGateway(t, up.URL)
			cut = 1
			s := g.follow(g.request("resources/read", "", `{"uri":"r://1"}`))
			s.want(t, call.Completed, "contents")
			all := up.Requests("resources/read")
			if len(all) != 2 || string(all[0].ID) == string(all[1].ID) {
				t.Fatalf("%d requests", len(all))
			}
			if !strings.Contains(strings.Join(s.notes, "\n"), "sent once more") {
				t.Errorf("notes %q", s.notes)
			}
			cut = 4
			s = g.follow(g.request("resources/read", "", `{"uri":"r://1"}`))
			s.want(t, call.Interrupted, "may send it again")
			if strings.Contains(s.end.End.Text, "effect") || up.Count("resources/read") != 4 {
				t.Errorf("%d requests: %s", up.Count("resources/read"), s.end.End.Text)
			}
			s = g.follow(g.request("vendor/write", "", `{}`))
			s.want(t, call.Interrupted, "may have taken effect")
			if n := up.Count("vendor/write"); n != 1 {
				t.Errorf("sent %d times", n)
			}
		})
	}
}

// A session that the server has forgotten is renewed for what only reads.
func TestReadsInForgottenSession(t *testing.T) {
	up := wire.NewUpstream(t, wire.Options{NoStream: true, On: map[string]wire.Handler{
		"resources/read": func(c *wire.Conn, r *wire.Request) { c.Answer(r.Result(`{"contents":[]}`)) },
	}})
	g := newGateway(t, up.URL)
	g.follow(g.request("resources/read", "", `{"uri":"r://1"}`)).want(t, call.Completed, "contents")
	up.Forget()
	g.follow(g.request("resources/read", "", `{"uri":"r://1"}`)).want(t, call.Completed, "contents")
	if n := up.Count("initialize"); n != 2 {
		t.Errorf("%d sessions", n)
	}
}

// fading is a child that ends at its first resources/read.
func fading(c *wire.Child) {
	for {
		r := c.Next()
		switch {
		case r == nil:
			return
		case r.Method == "resources/read" && len(c.Notes("start")) == 1:
			return
		case r.Method == "resources/read":
			c.Send(r.Result(`{"contents":[]}`))
		case r.Method == "vendor/write":
			return
		default:
			c.Usual(wire.Options{}, r)
		}
	}
}

func TestReadsInNextProcess(t *testing.T) {
	cmd := wire.NewCommand(t, "fading")
	g := newGateway(t, "", stdioOf(cmd), func(s *upstream.Server) { s.RestartMin = time.Millisecond })
	g.follow(g.request("resources/read", "", `{"uri":"r://1"}`)).want(t, call.Completed, "contents")
	g.follow(g.request("vendor/write", "", "")).want(t, call.Interrupted, "may have taken effect")
	if n := len(cmd.Notes("start")); n != 2 {
		t.Errorf("%d processes", n)
	}
}

// A request whose reader is gone is cancelled at its server.
func TestMethodCancel(t *testing.T) {
	up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"resources/read": wire.Hold}})
	g := newGateway(t, up.URL)
	c := g.request("resources/read", "", `{"uri":"r://1"}`)
	r := up.WaitRequest("resources/read", 1, 0)
	if err := c.Cancel(call.End{By: "disconnect"}); err != nil {
		t.Fatal(err)
	}
	n := up.WaitRequest("notifications/cancelled", 1, 0)
	if string(wire.At(string(n.Params), "requestId")) != string(r.ID) {
		t.Errorf("cancelled %s, not %s", n.Params, r.ID)
	}
	if s := g.follow(c); s.end.End.Outcome != call.Cancelled {
		t.Errorf("%+v", s.end.End)
	}
}

// stdioOf makes the server the command's child.
func stdioOf(cmd *wire.Command) func(*upstream.Server) {
	return func(s *upstream.Server) {
		s.URL, s.Command, s.Args, s.Env = "", cmd.Path, cmd.Args, maps.Clone(cmd.Env)
		s.Env["GORACE"] = "atexit_sleep_ms=0"
	}
}
