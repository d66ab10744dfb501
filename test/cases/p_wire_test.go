package cases_test

import (
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/test/wire"
)

const (
	big = "9007199254740993" // 2^53 + 1
	// odd are arguments and results whose digits a float would lose.
	odd = `{"a":9007199254740993,"b":1.0,"c":1e2,"d":-0,"e":0.1000000000000000055511151231257827,"f":18446744073709551617,"é🙂\u2028":[1.5,"\u00e9"],"zz":1,"aa":2}`
)

func init() {
	// odd: progress with odd numbers, and a result with odd members.
	addTool("odd", func(w *worker, r *wire.Request) {
		w.send(wire.Progress(string(r.Token), big, "9007199254740995", "odd"))
		w.send(r.Result(`{"content":[{"type":"text","text":"worked"}],"structuredContent":` + odd + `}`))
	})
	// hold until cancelled or told, then answer.
	addTool("slow", func(w *worker, r *wire.Request) {
		w.send(r.Progress("1", "", "begun"))
		w.pause(time.Duration(number(r.Msg, "ms")) * time.Millisecond)
		w.send(r.Text("worked"))
	})
}

// TestP10 passes numbers on that a float cannot hold.
func TestP10(t *testing.T) {
	t.Parallel()
	bothEras(t, func(t *testing.T, version string) {
		each(t, "odd", func(t *testing.T, s *server) {
			g := s.start(t)
			dn := g.client(version, "up")
			for n, c := range []struct{ id, token string }{
				{big, big},
				{"1.5", "1.5"},
				{"-" + big, `"` + big + `"`},
				{`"1.5"`, "1.0"},
				{"1.0", "1e2"},
				{`"\u00e9"`, `"\u00e9"`},
			} {
				x := dn.Start(wire.Call{ID: c.id, Token: c.token, Args: odd})
				m := x.Response(0)
				if string(m.ID) != c.id {
					t.Errorf("the id %s came back as %s", c.id, m.ID)
				}
				if got := string(m.At("result.structuredContent")); got != odd {
					t.Errorf("the result came as %s", got)
				}
				p := x.Progress()
				if len(p) != 1 || string(p[0].At("params.progressToken")) != c.token {
					t.Fatalf("the token %s came back in %v", c.token, x.Body())
				}
				if a, b := string(p[0].At("params.progress")), string(p[0].At("params.total")); a != big || b != "9007199254740995" {
					t.Errorf("progress %s of %s", a, b)
				}
				up := s.wait(t, "tools/call", n+1)[n]
				if got := string(up.At("params.arguments")); got != odd {
					t.Errorf("the arguments reached the server as %s", got)
				}
				for _, path := range []string{"id", "params._meta.progressToken"} {
					if got := string(up.At(path)); got == c.id || got == c.token || got == "" {
						t.Errorf("%s at the server: %s", path, got)
					}
				}
			}
		})
	})
}

// TestP10Cancel cancels one of two calls whose ids a float would take for one.
func TestP10Cancel(t *testing.T) {
	t.Parallel()
	each(t, "slow", func(t *testing.T, s *server) {
		g := s.start(t)
		dn := g.client(wire.Legacy, "up")
		x := dn.Start(wire.Call{ID: "9007199254740992", Token: "1", Args: `{"ms":1500}`})
		y := dn.Start(wire.Call{ID: big, Token: "2", Args: `{"ms":1500}`})
		z := dn.Start(wire.Call{ID: `"` + big + `"`, Token: "3", Args: `{"ms":1500}`})
		for _, e := range []*wire.Exchange{x, y, z} {
			e.WaitMessages(progressMethod, 1, 0)
		}
		dn.Cancel(big)
		shows(t, x, "1", "worked", "begun")
		shows(t, z, "3", "worked", "begun")
		if y.End(0); len(y.Messages()) != 1 {
			t.Errorf("the cancelled call was answered: %s", y.Body())
		}
		n := 0
		for _, r := range g.allEnded(3) {
			if r.End.Outcome == call.Cancelled {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%d calls were cancelled", n)
		}
	})
}

// TestP11 calls an instant tool. It runs alone, because it looks at the clock.
func TestP11(t *testing.T) {
	json := func(c *wire.Conn, r *wire.Request) { c.JSON(200, r.Text("worked")) }
	sse := func(c *wire.Conn, r *wire.Request) { c.Answer(r.Text("worked")) }
	for name, opt := range map[string]wire.Options{
		"json":             {On: map[string]wire.Handler{"tools/call": json}},
		"sse":              {On: map[string]wire.Handler{"tools/call": sse}},
		"json, no stream":  {NoStream: true, On: map[string]wire.Handler{"tools/call": json}},
		"sse, no session":  {NoSession: true, On: map[string]wire.Handler{"tools/call": sse}},
		"json, no session": {NoSession: true, NoStream: true, On: map[string]wire.Handler{"tools/call": json}},
		"json, modern":     {Version: wire.Modern, On: map[string]wire.Handler{"tools/call": json}},
		"sse, modern":      {Version: wire.Modern, On: map[string]wire.Handler{"tools/call": sse}},
	} {
		t.Run(name, func(t *testing.T) {
			up := wire.NewUpstream(t, opt)
			g := before(t, up)
			a, b := g.client(wire.Legacy, "up"), g.client(wire.Modern, "up")
			a.Start(wire.Call{}).Response(0)
			up.WaitRequest("tools/list", 1, 0) // the catalog is read once, in the background
			if opt.Version == "" {
				up.WaitRequest("GET", 1, 0) // the standalone stream is asked for once, too
			}
			before := len(up.Requests(""))
			const calls = 60
			fastest := time.Hour
			for i := range calls {
				m := []*wire.Client{a, b}[i%2].Start(wire.Call{Token: strconv.Itoa(i)}).TimedResponse(0)
				if m.ToolText() != "worked" {
					t.Fatal(m.JSON)
				}
				fastest = min(fastest, m.Came)
			}
			if n := len(up.Requests("")) - before; n != calls {
				for _, r := range up.Requests("")[before:] {
					if r.Method != "tools/call" {
						t.Logf("%s %s", r.Verb, r.Method)
					}
				}
				t.Errorf("%d requests for %d calls", n, calls)
			}
			// A fixed delay would be in the fastest, too.
			if fastest > 10*time.Millisecond {
				t.Errorf("the fastest call took %v", fastest)
			}
		})
	}
}

// TestP12 has servers without sessions, and with.
func TestP12(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		opt  wire.Options
		init int
	}{
		"no session":            {wire.Options{NoSession: true}, 1},
		"no session, no stream": {wire.Options{NoSession: true, NoStream: true}, 1},
		"session":               {wire.Options{}, 1},
		"modern":                {wire.Options{Version: wire.Modern}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := wire.NewUpstream(t, c.opt)
			g := before(t, up)
			agents := []*wire.Client{g.client(wire.Legacy, "up"), g.client(wire.Modern, "up"), g.client("2025-06-18", "up")}
			var xs []*wire.Exchange
			for i := range 12 { // at once, on a cold connection
				xs = append(xs, agents[i%3].Start(wire.Call{}))
			}
			for range 12 { // and one after another
				xs = append(xs, agents[0].Start(wire.Call{}))
				xs[len(xs)-1].Response(0)
			}
			for _, x := range xs {
				if m := x.Response(0); m.ToolText() != "worked" {
					t.Error(m.JSON)
				}
			}
			for method, want := range map[string]int{"initialize": c.init, "notifications/initialized": c.init, "server/discover": 1, "tools/call": len(xs)} {
				if n := up.Count(method); n != want {
					t.Errorf("%d %s, want %d", n, method, want)
				}
			}
			for _, r := range up.Requests("tools/call") {
				if id := r.Header.Get("Mcp-Session-Id"); (id != "") != (name == "session") {
					t.Errorf("a call with the session %q", id)
				}
			}
		})
	}
}

func init() {
	// burst: all progress and the result in one write.
	addTool("burst", func(w *worker, r *wire.Request) {
		w.send(r.Progress("1", "3", "a 1")+"\n"+r.Progress("2", "3", "a 2")+"\n"+r.Progress("3", "3", "a 3"), r.Text("worked"))
	})
}

// TestP15 has the last progress and the result in one segment, 100 times.
func TestP15(t *testing.T) {
	t.Parallel()
	all := func(r *wire.Request) []string {
		return []string{r.Progress("1", "3", "a 1"), r.Progress("2", "3", "a 2"), r.Progress("3", "3", "a 3")}
	}
	chunk := func(b string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(b), b) }
	for name, c := range map[string]struct {
		version string
		h       wire.Handler
	}{
		"one segment": {wire.Legacy, func(c *wire.Conn, r *wire.Request) {
			c.SSE()
			c.Pause(5 * time.Millisecond)
			body := ""
			for _, m := range append(all(r), r.Text("worked")) {
				body += wire.Event("", m)
			}
			c.Write(chunk(body) + "0\r\n\r\n")
		}},
		"head and all in one segment": {wire.Legacy, func(c *wire.Conn, r *wire.Request) {
			body := ""
			for _, m := range append(all(r), r.Text("worked")) {
				body += wire.Event("", m)
			}
			c.Write("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(body) + "0\r\n\r\n")
		}},
		"one segment, modern": {wire.Modern, func(c *wire.Conn, r *wire.Request) {
			c.SSE()
			body := ""
			for _, m := range append(all(r), r.Text("worked")) {
				body += wire.Event("", m)
			}
			c.Write(chunk(body) + "0\r\n\r\n")
		}},
		"GET and POST": {wire.Legacy, func(c *wire.Conn, r *wire.Request) {
			c.Stream().Event(all(r)...)
			c.JSON(200, r.Text("worked"))
		}},
		"GET in one segment, POST as a stream": {wire.Legacy, func(c *wire.Conn, r *wire.Request) {
			body := ""
			for _, m := range all(r) {
				body += wire.Event("", m)
			}
			c.Stream().Body(body)
			c.Answer(r.Text("worked"))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := wire.NewUpstream(t, wire.Options{Version: c.version, On: map[string]wire.Handler{"tools/call": c.h}})
			g := before(t, up)
			hundred(t, g)
		})
	}
	for _, w := range ways[3:5] {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			hundred(t, newServer(t, w, "burst").start(t))
		})
	}
}

// hundred makes 100 calls, some of them at once.
func hundred(t *testing.T, g *gateway) {
	t.Helper()
	agents := []*wire.Client{g.client(wire.Legacy, "up"), g.client(wire.Modern, "up")}
	for i := range 25 {
		var xs []*wire.Exchange
		for j := range 4 {
			xs = append(xs, agents[j%2].Start(wire.Call{Token: strconv.Itoa(4*i + j)}))
		}
		for j, x := range xs {
			shows(t, x, strconv.Itoa(4*i+j), "worked", steps("a", 3)...)
		}
	}
}

// TestP17 sends messages that two parsers could read in two ways.
func TestP17(t *testing.T) {
	t.Parallel()
	up := wire.NewUpstream(t, wire.Options{})
	g := start(t, fmt.Sprintf("shutdown: {drain: 1s}\nmcpServers: {up: {url: %q, tools: {secret: {deny: true}}}}\n", up.URL))
	for _, version := range []string{wire.Legacy, wire.Modern} {
		dn := g.client(version, "up")
		meta := ""
		if version == wire.Modern {
			meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}},`
		}
		for name, body := range map[string]string{
			"method twice":         `{"jsonrpc":"2.0","id":1,"method":"tools/list","method":"tools/call","params":{` + meta + `"name":"work","arguments":{}}}`,
			"method and Method":    `{"jsonrpc":"2.0","id":1,"method":"tools/list","Method":"tools/call","params":{` + meta + `"name":"work","arguments":{}}}`,
			"Method and method":    `{"jsonrpc":"2.0","id":1,"Method":"tools/list","method":"tools/call","params":{` + meta + `"name":"work","arguments":{}}}`,
			"escaped method":       `{"jsonrpc":"2.0","id":1,"method":"tools/list","meth\u006fd":"tools/call","params":{` + meta + `"name":"work","arguments":{}}}`,
			"METHOD alone":         `{"jsonrpc":"2.0","id":1,"METHOD":"tools/call","params":{` + meta + `"name":"work","arguments":{}}}`,
			"id twice":             `{"jsonrpc":"2.0","id":1,"id":2,"method":"tools/call","params":{` + meta + `"name":"work","arguments":{}}}`,
			"id and ID":            `{"jsonrpc":"2.0","id":1,"ID":2,"method":"tools/call","params":{` + meta + `"name":"work","arguments":{}}}`,
			"params twice":         `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{` + meta + `"name":"work"},"params":{` + meta + `"name":"secret"}}`,
			"params and Params":    `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{` + meta + `"name":"work"},"Params":{"name":"secret"}}`,
			"name twice":           `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{` + meta + `"name":"work","name":"secret","arguments":{}}}`,
			"name and Name":        `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{` + meta + `"name":"work","Name":"secret","arguments":{}}}`,
			"long s":               `{"jsonrpc":"2.0","id":1,"method":"tools/call","param\u017f":{"name":"secret"},"params":{` + meta + `"name":"work"}}`,
			"arguments twice":      `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{` + meta + `"name":"work","arguments":{},"arguments":{"a":1}}}`,
			"arguments, Arguments": `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{` + meta + `"name":"work","arguments":{},"Arguments":{"a":1}}}`,
			"argument twice":       `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{` + meta + `"name":"work","arguments":{"a":1,"a":2}}}`,
			"argument twice, deep": `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{` + meta + `"name":"work","arguments":{"x":[{"a":1,"\u0061":2}]}}}`,
			"a second message":     `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}} {"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"work"}}`,
		} {
			t.Run(version+"/"+name, func(t *testing.T) {
				header := map[string]string{}
				if version == wire.Modern {
					header = map[string]string{"Mcp-Protocol-Version": version, "Mcp-Method": "tools/call", "Mcp-Name": "work"}
				}
				before := len(up.Requests("tools/call"))
				x := dn.Do(wire.HTTP{Body: body, Header: header})
				if err := x.End(0); err != nil {
					t.Fatal(err)
				}
				m := x.Messages()
				if x.Status() != 400 || len(m) != 1 || m[0].Error == nil {
					t.Errorf("HTTP %d: %s", x.Status(), x.Body())
				}
				if up.Count("tools/call") != before {
					t.Errorf("the server got %s", up.Requests("tools/call")[before].Body)
				}
			})
		}
		// Arguments whose names differ by case only are two, and nothing is wrong with that.
		if m := dn.Start(wire.Call{Args: `{"a":1,"A":2}`}).Response(0); m.ToolText() != "worked" {
			t.Errorf("%s: %s", version, m.JSON)
		}
		if r := up.Requests("tools/call"); string(r[len(r)-1].Args) != `{"a":1,"A":2}` {
			t.Errorf("the arguments reached the server as %s", r[len(r)-1].Args)
		}
	}
	if n := len(g.allEnded(2)); n != 2 {
		t.Errorf("%d records", n)
	}
}

// TestP17FromTheServer: and a server cannot do it either.
func TestP17FromTheServer(t *testing.T) {
	t.Parallel()
	for name, result := range map[string]string{
		"result twice":      `"result":{"content":[]},"result":{"content":[],"isError":true}`,
		"result and Result": `"result":{"content":[]},"Result":{"content":[],"isError":true}`,
		"isError twice":     `"result":{"content":[],"isError":false,"isError":true}`,
	} {
		for _, sse := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/sse=%v", name, sse), func(t *testing.T) {
				t.Parallel()
				up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{
					"tools/call": func(c *wire.Conn, r *wire.Request) {
						m := `{"jsonrpc":"2.0","id":` + string(r.ID) + `,` + result + `}`
						if sse {
							c.Answer(m)
						} else {
							c.JSON(200, m)
						}
					},
				}})
				g := before(t, up)
				m := g.client(wire.Legacy, "up").Start(wire.Call{}).Response(5 * time.Second)
				if string(m.At("result.isError")) != "true" || outcome(m) == "" || outcome(m) == "completed" {
					t.Errorf("the answer: %s", m.JSON)
				}
				if up.Count("tools/call") != 1 {
					t.Error("the call was sent again")
				}
			})
		}
	}
}

// TestP20 restarts the server between two calls.
func TestP20(t *testing.T) {
	t.Parallel()
	for _, stream := range []bool{true, false} {
		for how, cut := range map[string]func(u *wire.Upstream){
			"close": func(u *wire.Upstream) { u.Cut(false) },
			"reset": func(u *wire.Upstream) { u.Cut(true) },
			// The gateway has closed its idle connections by itself by then.
			"later": func(u *wire.Upstream) { <-time.After(6 * time.Second); u.Cut(false) },
		} {
			for _, status := range []int{404, 400} {
				t.Run(fmt.Sprintf("stream=%v/%s/%d", stream, how, status), func(t *testing.T) {
					t.Parallel()
					f := &forgetful{status: status}
					up := wire.NewUpstream(t, wire.Options{NoSession: true, NoStream: !stream, On: map[string]wire.Handler{
						"initialize": f.initialize, "ping": f.known, "tools/list": f.known, "tools/call": f.known,
					}})
					g := before(t, up)
					a, b := g.client(wire.Legacy, "up"), g.client(wire.Modern, "up")
					for _, dn := range []*wire.Client{a, b} {
						shows(t, dn.Start(wire.Call{Token: "5"}), "5", "worked")
					}
					for range 3 {
						if stream {
							up.Stream()
						}
						f.forget()
						cut(up)
						<-time.After(100 * time.Millisecond) // no server restarts faster
						for _, dn := range []*wire.Client{a, b} {
							shows(t, dn.Start(wire.Call{Token: "5"}), "5", "worked")
						}
					}
					if n := up.Count("initialize"); n != 4 {
						t.Errorf("%d sessions, want 4", n)
					}
					if n := up.Count("tools/call"); n != 8 {
						t.Errorf("%d calls reached the server, want 8", n)
					}
					for _, r := range g.allEnded(8) {
						if r.End.Outcome != call.Completed {
							t.Errorf("a call ended as %s", r.End.Outcome)
						}
					}
				})
			}
		}
	}
}

// forgetful is a server with one session, which a restart makes unknown.
type forgetful struct {
	status int // of requests on an unknown session
	serial atomic.Int64
}

func (f *forgetful) session() string { return fmt.Sprintf("session-%d", f.serial.Load()) }

func (f *forgetful) forget() { f.serial.Add(1) }

func (f *forgetful) initialize(c *wire.Conn, r *wire.Request) {
	f.serial.Add(1)
	c.JSON(200, r.Result(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"up","version":"1"}}`), "Mcp-Session-Id: "+f.session())
}

func (f *forgetful) known(c *wire.Conn, r *wire.Request) {
	switch {
	case r.Header.Get("Mcp-Session-Id") != f.session():
		c.JSON(f.status, `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: No valid session ID provided"}}`)
	case r.Method == "tools/list":
		c.JSON(200, r.Result(`{"tools":[`+wire.WorkTool+`]}`))
	case r.Method == "ping":
		c.JSON(200, r.Result(`{}`))
	default:
		c.Answer(r.Text("worked"))
	}
}
