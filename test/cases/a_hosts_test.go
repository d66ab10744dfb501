package cases_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/test/wire"
)

func init() {
	// instant: answers at once.
	addTool("instant", func(w *worker, r *wire.Request) { w.send(r.Text("worked")) })
	// never: is a server that does not get ready.
	scripts["never"] = func(c *wire.Child) {
		for c.Next() != nil {
		}
	}
}

// TestA1: opencode cancels calls that have succeeded.
func TestA1(t *testing.T) {
	t.Parallel()
	for _, late := range []time.Duration{0, 100 * time.Millisecond, 800 * time.Millisecond} {
		t.Run(late.String(), func(t *testing.T) {
			t.Parallel()
			each(t, "instant", func(t *testing.T, s *server) {
				g := s.start(t)
				for _, version := range []string{wire.Legacy, wire.Modern} {
					dn := g.client(version, "up")
					x := dn.Start(wire.Call{ID: "3", Token: "3"})
					shows(t, x, "3", "worked")
					pause(late)
					if status := dn.Cancel("3"); status != 202 {
						t.Errorf("HTTP %d", status)
					}
					shows(t, dn.Start(wire.Call{ID: "4", Token: "4"}), "4", "worked")
				}
				pause(200 * time.Millisecond)
				for _, r := range g.allEnded(4) {
					if r.End.Outcome != call.Completed {
						t.Errorf("the call ended as %s", r.End.Outcome)
					}
					if d := g.delivery(r.ID); d.How != call.Delivered {
						t.Errorf("the result was %s", d.How)
					}
					if e := g.events(r.ID); slices.ContainsFunc(e, func(e call.Event) bool { return e.Kind == call.KindCancelRequested }) {
						t.Error("the record has a cancel")
					}
				}
				if got := s.got(cancelledMethod); len(got) > 0 {
					t.Errorf("the server was told %s", got[0].JSON)
				}
			})
		})
	}
}

// TestA2: Gemini CLI resumes streams that are over.
func TestA2(t *testing.T) {
	t.Parallel()
	each(t, "steps", func(t *testing.T, s *server) {
		g := s.start(t)
		dn := g.client("2025-06-18", "up")
		get := dn.Listen("")
		get.Head(0)
		other := dn.Start(wire.Call{Token: "1", Args: stepArgs("x", 20, 3*time.Second)})
		other.WaitMessages(progressMethod, 1, 0)
		done := dn.Start(wire.Call{Token: "2", Args: stepArgs("y", 2, 100*time.Millisecond)})
		shows(t, done, "2", "y done", steps("y", 2)...)
		ids := []string{"0", "a_1", "00000000-0000-0000-0000-000000000000"} // of nobody
		theirs := ""
		for _, i := range done.Items() {
			if i.HasID {
				theirs = i.ID
			}
		}
		if theirs != "" {
			ids = append(ids, theirs)
		}
		pause(time.Second)
		for _, id := range ids {
			x := dn.Listen(id)
			if err := x.End(2 * time.Second); err != nil {
				t.Errorf("after %q: %v", id, err)
			}
			if x.EndAt() > time.Second {
				t.Errorf("after %q: the stream ended at %v", id, x.EndAt())
			}
			for _, m := range x.Messages() {
				if m.Method != "" || m.Result != nil {
					t.Errorf("after %q came %s", id, m.JSON)
				}
			}
			switch {
			case id == theirs && (x.Status() != 200 || len(x.Messages()) > 0):
				t.Errorf("after the last event: HTTP %d %s", x.Status(), x.Body())
			case id != theirs && x.Status() != 200 && x.Status() != 400:
				t.Errorf("after an id of nobody: HTTP %d", x.Status())
			}
		}
		shows(t, other, "1", "x done", steps("x", 20)...)
		if len(get.Messages()) > 0 {
			t.Errorf("the session's stream got %s", get.Body())
		}
	})
}

// TestA3: Claude Code and the Go SDK discover first, while servers still start.
// It runs alone, because it looks at the clock.
func TestA3(t *testing.T) {
	dead, err := net.Listen("tcp", "127.0.0.1:0") // takes connections, and answers nothing
	if err != nil {
		t.Fatal(err)
	}
	defer dead.Close()
	held := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"initialize": wire.Hold, "server/discover": wire.Hold}})
	cmd := wire.NewCommand(t, "never")
	g := start(t, fmt.Sprintf("shutdown: {drain: 1s}\nmcpServers: {dead: {url: %q}, held: {url: %q}, never: %s}\n",
		"http://"+dead.Addr().String()+"/mcp", held.URL, strings.Trim((&server{cmd: cmd}).member(), "")))
	for _, path := range []string{"", "dead", "held", "never"} {
		t.Run("at "+path, func(t *testing.T) {
			url := g.app.URL() + "/mcp"
			if path != "" {
				url += "/" + path
			}
			var took []time.Duration
			for range 10 {
				dn := wire.NewClient(t, url, wire.Modern)
				began := time.Now()
				m := dn.Request("server/discover", "")
				took = append(took, time.Since(began))
				if m.Str("result.supportedVersions.0") != wire.Modern || m.Str("result.resultType") != "complete" || m.At("result.capabilities.tools") == nil {
					t.Errorf("discover: %s", m.JSON)
				}
				// A host that finds the modern era may still open a session.
				old := wire.NewClient(t, url, wire.Legacy)
				began = time.Now()
				old.Initialize()
				took = append(took, time.Since(began))
			}
			// To wait for a server would take seconds, each time.
			if m := median(took); m > 300*time.Millisecond || slices.Max(took) > 3*time.Second {
				t.Errorf("the answers took %v", took)
			}
		})
	}
	// One that does not claim the modern era in its probe is told at once, too.
	dn := wire.NewClient(t, g.app.URL()+"/mcp", wire.Legacy)
	x := dn.Do(wire.HTTP{Body: `{"jsonrpc":"2.0","id":0,"method":"server/discover","params":{}}`})
	if m := x.TimedResponse(0); m.Error == nil || m.Came > 3*time.Second || x.Status() != 400 {
		t.Errorf("HTTP %d after %v: %s", x.Status(), m.Came, m.JSON)
	}
}

// TestA4: Codex.
func TestA4(t *testing.T) {
	t.Parallel()
	each(t, "steps", func(t *testing.T, s *server) {
		g := s.start(t)
		dn := wire.NewClient(t, g.app.URL()+"/mcp/up", "2025-06-18")
		dn.Accept, dn.Name = "text/event-stream, application/json", "codex-mcp-client"
		dn.Initialize()
		list := dn.Do(wire.HTTP{Body: `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"progressToken":0}}}`})
		if m := list.Response(0); m.Str("result.tools.0.name") != "work" || string(m.ID) != "1" {
			t.Errorf("tools/list: %s", m.JSON)
		}
		if n := len(list.Messages()); n != 1 {
			t.Errorf("tools/list brought %d messages", n)
		}
		shows(t, dn.Start(wire.Call{ID: "2", Token: "1", Args: stepArgs("a", 3, 200*time.Millisecond)}), "1", "a done", steps("a", 3)...)
		// It leaves at once, also while the server is at work and a stream is open.
		x := dn.Start(wire.Call{ID: "3", Token: "2", Args: stepArgs("b", 3, 3*time.Second)})
		x.WaitMessages(progressMethod, 1, 0)
		get := dn.Listen("")
		get.Head(0)
		began := time.Now()
		if status := dn.Delete(); status/100 != 2 {
			t.Errorf("DELETE: HTTP %d", status)
		}
		if d := time.Since(began); d > 2*time.Second { // the server's work takes longer
			t.Errorf("DELETE took %v", d)
		}
		if get.End(2*time.Second) != nil || get.EndAt() > get.Since() {
			t.Error("the session's stream was cut")
		}
		// DELETE says that the agent leaves, not that its work is to be undone.
		shows(t, x, "2", "b done", steps("b", 3)...)
		if again := dn.Start(wire.Call{}); again.End(0) != nil || again.Status() != 404 {
			t.Errorf("the session after its end: HTTP %d", again.Status())
		}
		for _, r := range g.allEnded(2) {
			if r.End.Outcome != call.Completed || r.Client != "codex-mcp-client/1" {
				t.Errorf("%s of %s", r.End.Outcome, r.Client)
			}
		}
	})
}

// TestA5: Gemini CLI sends no version header after initialize.
func TestA5(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"2025-03-26", "2025-06-18", "2025-11-25"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			each(t, "instant", func(t *testing.T, s *server) {
				g := s.start(t)
				dn := wire.NewClient(t, g.app.URL()+"/mcp/up", version)
				dn.Header = map[string]string{"Mcp-Protocol-Version": ""}
				if m := dn.Initialize(); m.Str("result.protocolVersion") != version {
					t.Errorf("initialize: %s", m.JSON)
				}
				if m := dn.Request("tools/list", ""); m.Str("result.tools.0.name") != "work" {
					t.Errorf("tools/list: %s", m.JSON)
				}
				x := dn.Start(wire.Call{ID: `"0b5c"`, Token: `"a-uuid"`})
				shows(t, x, `"a-uuid"`, "worked")
				if get := dn.Listen(""); get.Head(0) == nil || get.Status() != 200 {
					t.Errorf("GET: HTTP %d", get.Status())
				}
				if r, _ := g.ended(call.Completed); r.Era != version {
					t.Errorf("the call counts as %s", r.Era)
				}
				if dn.Delete()/100 != 2 {
					t.Error("DELETE")
				}
			})
		})
	}
}

// TestA6: Claude Code in the stateless era closes the stream, whatever the reason.
func TestA6(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(*wire.Exchange){"close": (*wire.Exchange).Close, "reset": (*wire.Exchange).Reset} {
		for policy, want := range map[string]struct {
			outcome call.Outcome
			by      string
		}{
			"on_disconnect: auto":   {call.Cancelled, "disconnect"},
			"on_disconnect: cancel": {call.Cancelled, "disconnect"},
			"on_disconnect: detach": {call.Completed, ""},
		} {
			t.Run(name+"/"+policy, func(t *testing.T) {
				t.Parallel()
				each(t, "steps", func(t *testing.T, s *server) {
					g := s.start(t, policy, "disconnect_grace: 300ms")
					x := g.client(wire.Modern, "up").Start(wire.Call{Token: "1", Args: stepArgs("x", 10, 2*time.Second)})
					x.WaitMessages(progressMethod, 1, 0)
					leave(x)
					r, d := g.audited("aborted", func(_ *call.Record, d []call.Delivery) bool { return len(d) > 0 })
					if d[0].How != call.AbortedDownstream || r.End.By == "agent" {
						t.Errorf("at once the record says %s, and that the call was ended by %q", d[0].How, r.End.By)
					}
					r, d = g.ended(want.outcome)
					if len(d) != 1 || d[0].How != call.AbortedDownstream {
						t.Errorf("in the end the record says %+v", d)
					}
					if r.End.By != want.by {
						t.Errorf("cancelled by %q", r.End.By)
					}
					for _, e := range g.events(r.ID) {
						if e.Kind == call.KindCancelRequested && (!strings.HasPrefix(string(e.Body), "disconnect") || strings.Contains(string(e.Body), "agent cancelled")) {
							t.Errorf("the record says %s", e.Body)
						}
					}
				})
			})
		}
	}
}

// hundreds is how often A7 sends a MiB; the race detector reads each byte slowly.
var hundreds = map[bool]int{false: 100, true: 20}[raceEnabled]

// TestA7 has the answer begin before the last byte of a large request.
func TestA7(t *testing.T) {
	t.Parallel()
	args := `{"tag":"` + strings.Repeat("q", mib) + `"}`
	bothEras(t, func(t *testing.T, version string) {
		up := wire.NewUpstream(t, wire.Options{})
		g := before(t, up)
		dn := g.client(version, "up")
		body := dn.Message("7", "tools/call", `"name":"work","arguments":`+args, "")
		for range hundreds / 5 {
			var xs []*wire.Exchange
			for range 5 {
				// The gateway has all but the last byte for a while.
				xs = append(xs, dn.Start(wire.Call{ID: "7", Args: args, Token: "1", Pieces: []string{body[:len(body)-1], body[len(body)-1:]}, Pause: 20 * time.Millisecond}))
			}
			for _, x := range xs {
				if m, ok := x.WaitResponse(0); !ok || m.ToolText() != "worked" || x.End(0) != nil {
					t.Fatalf("HTTP %d: %.300s", x.Status(), x.Body())
				}
			}
		}
		if n := up.Count("tools/call"); n != hundreds {
			t.Errorf("%d of %d calls reached the server", n, hundreds)
		}
		for _, r := range up.Requests("tools/call") {
			if string(r.Args) != args {
				t.Fatalf("the arguments reached the server with %d bytes", len(r.Args))
			}
		}
	})
}

// hasty is a server that begins its answer when it has read the head of a call.
func hasty(t *testing.T, mode string) (url string, count func() int) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	calls, open := 0, map[net.Conn]bool{}
	serve := func(nc net.Conn) {
		defer nc.Close()
		br := bufio.NewReader(nc)
		for {
			r, err := http.ReadRequest(br)
			if err != nil {
				return
			}
			head := make([]byte, min(r.ContentLength, 200))
			if _, err := io.ReadFull(r.Body, head); err != nil {
				return
			}
			m := string(head)
			_, id, request := strings.Cut(m, `"id":`)
			id, _, _ = strings.Cut(id, ",")
			reply := func(result string) string { return `{"jsonrpc":"2.0","id":` + id + `,"result":` + result + `}` }
			switch {
			case r.Method != http.MethodPost:
				io.WriteString(nc, "HTTP/1.1 405 no\r\nContent-Length: 0\r\n\r\n")
			case !request:
				io.Copy(io.Discard, r.Body)
				io.WriteString(nc, "HTTP/1.1 202 ok\r\nContent-Length: 0\r\n\r\n")
			case strings.Contains(m, `"tools/call"`):
				mu.Lock()
				calls++
				mu.Unlock()
				if mode == "sse" {
					io.WriteString(nc, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n: early\n\r\n")
				} else {
					fmt.Fprintf(nc, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", len(reply(resultWorked)))
				}
				if _, err := io.Copy(io.Discard, r.Body); err != nil {
					return
				}
				if mode == "sse" {
					e := "\n" + wire.Event("", reply(resultWorked))
					fmt.Fprintf(nc, "%x\r\n%s\r\n0\r\n\r\n", len(e), e)
				} else {
					io.WriteString(nc, reply(resultWorked))
				}
			default:
				io.Copy(io.Discard, r.Body)
				b := reply(`{}`)
				switch {
				case strings.Contains(m, `"initialize"`):
					b = reply(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"up","version":"1"}}`)
				case strings.Contains(m, `"server/discover"`):
					b = `{"jsonrpc":"2.0","id":` + id + `,"error":{"code":-32601,"message":"no"}}`
				case strings.Contains(m, `"tools/list"`):
					b = reply(`{"tools":[` + wire.WorkTool + `]}`)
				}
				fmt.Fprintf(nc, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(b), b)
			}
		}
	}
	wg.Go(func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open[nc] = true
			mu.Unlock()
			wg.Go(func() { serve(nc) })
		}
	})
	t.Cleanup(func() {
		ln.Close()
		mu.Lock()
		for nc := range open {
			nc.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return "http://" + ln.Addr().String() + "/mcp", func() int {
		mu.Lock()
		defer mu.Unlock()
		return calls
	}
}

const resultWorked = `{"content":[{"type":"text","text":"worked"}]}`

// TestA7Server: and a server may do the same to the gateway.
func TestA7Server(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"sse", "json"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			url, count := hasty(t, mode)
			g := start(t, fmt.Sprintf("shutdown: {drain: 1s}\nmcpServers: {up: {url: %q}}\n", url))
			dn := g.client(wire.Legacy, "up")
			args := `{"tag":"` + strings.Repeat("q", mib) + `"}`
			for i := range hundreds {
				if m := dn.Start(wire.Call{ID: strconv.Itoa(i), Args: args}).Response(0); m.ToolText() != "worked" {
					t.Fatalf("call %d: %s", i, m.JSON)
				}
			}
			if n := count(); n != hundreds {
				t.Errorf("%d of %d calls reached the server", n, hundreds)
			}
		})
	}
}

// TestA8: Playwright MCP takes only localhost as Host.
func TestA8(t *testing.T) {
	t.Parallel()
	for _, version := range []string{wire.Legacy, wire.Modern} {
		for name, c := range map[string]struct{ url, more, want string }{
			"localhost":     {"http://localhost:%s/mcp", "era: auto", "localhost:%s"},
			"upper case":    {"http://LocalHost:%s/mcp", "era: auto", "LocalHost:%s"},
			"Host header":   {"http://127.0.0.1:%s/mcp", `headers: {Host: "localhost:%s"}`, "localhost:%s"},
			"own name":      {"http://127.0.0.1:%s/mcp", `headers: {host: playwright.internal}`, "playwright.internal"},
			"as it is, IP":  {"http://127.0.0.1:%s/mcp", "era: auto", "127.0.0.1:%s"},
			"other headers": {"http://localhost:%s/mcp", `headers: {X-Forwarded-Host: elsewhere}`, "localhost:%s"},
		} {
			t.Run(version+"/"+name, func(t *testing.T) {
				t.Parallel()
				var up *wire.Upstream
				var want string
				up = wire.NewUpstream(t, wire.Options{Version: version, On: map[string]wire.Handler{
					"tools/call": func(c *wire.Conn, r *wire.Request) {
						if r.Header.Get("Host") != want {
							c.Status(403)
							return
						}
						log := resumable(up, r)
						c.SSE()
						if version == wire.Modern {
							log.Serve(c, 0, 0)
							c.End()
							return
						}
						log.Serve(c, 0, 3)
						c.Pause(20 * time.Millisecond)
						c.Reset() // so that a resume is seen, too
					},
				}})
				_, port, _ := net.SplitHostPort(strings.TrimSuffix(strings.TrimPrefix(up.URL, "http://"), "/mcp"))
				fill := func(s string) string { return strings.ReplaceAll(s, "%s", port) }
				want = fill(c.want)
				g := start(t, fmt.Sprintf("shutdown: {drain: 1s}\nmcpServers: {up: {url: %q, %s}}\n", fill(c.url), fill(c.more)))
				x := g.client(wire.Legacy, "up").Start(wire.Call{Token: "5"})
				shows(t, x, "5", "worked", steps(resumeTag, resumeSteps)...)
				g.stop() // DELETE belongs to it
				seen := map[string]bool{}
				for _, r := range up.Requests("") {
					seen[r.Key()] = true
					if r.Header.Get("Host") != want {
						t.Errorf("%s with the Host %q, want %q", r.Key(), r.Header.Get("Host"), want)
					}
				}
				if version == wire.Legacy && (!seen["initialize"] || !seen["GET"] || !seen["DELETE"] || !seen["tools/list"]) {
					t.Errorf("the server saw %v", seen)
				}
			})
		}
	}
}
