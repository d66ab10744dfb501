package cases_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/journal/sqlite"
	"github.com/longcall/longcall/test/wire"
)

const (
	progressMethod  = "notifications/progress"
	cancelledMethod = "notifications/cancelled"
	pingFast        = "ping: 400ms"
)

// worker is the side of a scripted tool that its server shows it, on any
// transport: send gives messages to the gateway, the answer last.
type worker struct {
	send  func(messages ...string)
	pause func(time.Duration) bool // false: nobody waits any more
}

// work is what a tool does with one call.
type work func(w *worker, r *wire.Request)

// works are the tools of all cases, by name; each is a stdio script in both eras.
var works = map[string]work{}

// addTool adds a tool for server and each. Call it in init.
func addTool(name string, f work) {
	works[name] = f
	for _, v := range []string{wire.Legacy, wire.Modern} {
		scripts[name+"/"+v] = func(c *wire.Child) {
			c.Serve(wire.Options{Version: v}, func(c *wire.Child, r *wire.Request) {
				f(&worker{c.Send, func(d time.Duration) bool { <-time.After(d); return true }}, r)
			})
		}
	}
}

// onPost answers a call with an event stream on its POST (Path A).
func onPost(f work) wire.Handler {
	return func(c *wire.Conn, r *wire.Request) {
		c.SSE()
		f(&worker{c.Event, c.Pause}, r)
		c.End()
	}
}

// onGet answers a call with JSON, and sends all else on the standalone stream
// (Path B).
func onGet(f work) wire.Handler {
	return func(c *wire.Conn, r *wire.Request) {
		f(&worker{func(messages ...string) {
			for _, m := range messages {
				if msg, _ := wire.ParseMsg(m); msg.Response() {
					c.JSON(200, m)
				} else if s := c.Stream(); s != nil {
					s.Event(m)
				}
			}
		}, c.Pause}, r)
	}
}

// onOld answers a call on the one stream of the 2024-11-05 transport.
func onOld(f work) wire.Handler {
	return func(c *wire.Conn, r *wire.Request) {
		s := c.Took()
		f(&worker{s.Event, s.Pause}, r)
	}
}

// server is a scripted tool server on some transport and in some era.
type server struct {
	name    string // of the way, such as "http GET"
	version string
	up      *wire.Upstream // nil on stdio
	cmd     *wire.Command  // nil on HTTP
}

// member is the server as a YAML value of mcpServers, with further members.
func (s *server) member(more ...string) string {
	var m string
	if s.up != nil {
		m = fmt.Sprintf("url: %q", s.up.URL)
	} else {
		m = strings.Trim(s.cmd.Config(), "{}") + "}" // env closes too
		m = "restart: {min: 10ms, max: 50ms}, " + m
	}
	return "{" + strings.Join(append([]string{m}, more...), ", ") + "}"
}

// start runs longcall before the server, named "up".
func (s *server) start(t *testing.T, more ...string) *gateway {
	t.Helper()
	return s.startWith(t, "", more...)
}

// startWith is start with further lines of config.
func (s *server) startWith(t *testing.T, lines string, more ...string) *gateway {
	t.Helper()
	return start(t, "shutdown: {drain: 1s}\n"+lines+"\nmcpServers: {up: "+s.member(more...)+"}\n")
}

// got lists the messages of a method that reached the server, oldest first.
func (s *server) got(method string) (out []wire.Msg) {
	if s.up != nil {
		for _, r := range s.up.Requests(method) {
			out = append(out, r.Msg)
		}
		return out
	}
	for _, n := range s.cmd.Notes("line") {
		if m, ok := wire.ParseMsg(n.Text); ok && m.Method == method {
			out = append(out, m)
		}
	}
	return out
}

// wait waits for n messages of a method.
func (s *server) wait(t *testing.T, method string, n int) []wire.Msg {
	t.Helper()
	var got []wire.Msg
	soon(t, fmt.Sprintf("%d messages %s", n, method), func() bool {
		got = s.got(method)
		return len(got) >= n
	})
	return got
}

// way is one transport, era and stream.
type way struct {
	name, version string
	handler       func(work) wire.Handler // nil on stdio
	old           bool                    // the transport of 2024-11-05
}

var ways = []way{
	{name: "http", version: wire.Legacy, handler: onPost},
	{name: "http GET", version: wire.Legacy, handler: onGet},
	{name: "http modern", version: wire.Modern, handler: onPost},
	{name: "stdio", version: wire.Legacy},
	{name: "stdio modern", version: wire.Modern},
	{name: "sse", version: "2024-11-05", handler: onOld, old: true},
}

// newServer starts a server whose tool does the named work.
func newServer(t *testing.T, w way, name string) *server {
	t.Helper()
	s := &server{name: w.name, version: w.version}
	if w.handler == nil {
		s.cmd = wire.NewCommand(t, name+"/"+w.version)
		return s
	}
	s.up = wire.NewUpstream(t, wire.Options{Version: w.version, Old: w.old, On: map[string]wire.Handler{"tools/call": w.handler(works[name])}})
	return s
}

// each runs a case against the named tool on every transport and in each era.
func each(t *testing.T, name string, f func(t *testing.T, s *server)) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			f(t, newServer(t, w, name))
		})
	}
}

// bothEras runs a case with agents of each era.
func bothEras(t *testing.T, f func(t *testing.T, version string)) {
	for _, v := range []string{wire.Legacy, wire.Modern} {
		t.Run(v, func(t *testing.T) { t.Parallel(); f(t, v) })
	}
}

// tokens is config with two principals besides the usual one.
const tokens = "auth: {tokens: {ann: ann-has-this-token-of-32-bytes-00, bob: bob-has-this-token-of-32-bytes-00}}"

// agent is a client of a principal of tokens, initialized.
func (g *gateway) agent(version, server, principal string) *wire.Client {
	g.t.Helper()
	c := wire.NewClient(g.t, g.app.URL()+"/mcp/"+server, version)
	c.Header = map[string]string{"Authorization": "Bearer " + principal + "-has-this-token-of-32-bytes-00"}
	c.Initialize()
	return c
}

// text is a plain argument of a call.
func arg(m wire.Msg, name string) string { return m.Str("params.arguments." + name) }

func number(m wire.Msg, name string) int {
	n, _ := strconv.Atoi(string(m.At("params.arguments." + name)))
	return n
}

// shows checks that a call's stream had these texts as progress, in order, once
// each, with its own token, strictly increasing, all before its result, and
// nothing else but beats of longcall.
func shows(t testing.TB, x *wire.Exchange, token, result string, texts ...string) {
	t.Helper()
	m := x.TimedResponse(0)
	if err := x.End(0); err != nil {
		t.Errorf("call %s: the stream was cut: %v", x.ID, err)
	}
	if m.ToolText() != result || string(m.ID) != x.ID {
		t.Errorf("call %s got %s, want the result %q", x.ID, m.JSON, result)
	}
	var got []string
	last, over := -1.0, false
	for _, p := range x.Messages() {
		switch {
		case p.Response():
			if over {
				t.Errorf("call %s has two responses", x.ID)
			}
			over = true
			continue
		case over:
			t.Errorf("call %s got after its result: %s", x.ID, p.JSON)
		case p.Method != progressMethod:
			t.Errorf("call %s got %s", x.ID, p.JSON)
			continue
		}
		if k := string(p.At("params.progressToken")); k != token {
			t.Errorf("call %s got the token %s, its own is %s", x.ID, k, token)
		}
		v, err := strconv.ParseFloat(string(p.At("params.progress")), 64)
		if err != nil || v <= last {
			t.Errorf("call %s: progress %s after %v", x.ID, p.At("params.progress"), last)
		}
		last = v
		if text := p.Str("params.message"); !strings.HasPrefix(text, "still running") {
			got = append(got, text)
		}
	}
	if !slices.Equal(got, texts) {
		t.Errorf("call %s got the progress %q, want %q", x.ID, got, texts)
	}
}

// steps are n texts of a call.
func steps(tag string, n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("%s %d", tag, i+1))
	}
	return out
}

// soon polls until a thing holds that has no event to wait for.
func soon(t testing.TB, what string, holds func() bool) {
	t.Helper()
	poll(t, wire.Timeout, what, holds)
}

func poll(t testing.TB, limit time.Duration, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", limit, what)
		}
		<-time.After(25 * time.Millisecond)
	}
}

// records lists all calls, newest first.
func (g *gateway) records() []call.Record {
	g.t.Helper()
	records, err := g.journal().List(g.t.Context(), sqlite.Filter{Limit: 10000})
	if err != nil {
		g.t.Fatal(err)
	}
	return records
}

// allEnded waits until n calls are stored and have ended.
func (g *gateway) allEnded(n int) []call.Record {
	g.t.Helper()
	for deadline := time.Now().Add(wire.Timeout); ; pause(50 * time.Millisecond) {
		all := g.records()
		running := slices.DeleteFunc(slices.Clone(all), func(r call.Record) bool { return r.End.Outcome != call.Running })
		if len(all) == n && len(running) == 0 {
			return all
		}
		if time.Now().After(deadline) {
			g.t.Fatalf("the record has %d calls, want %d; %d of them run: %v", len(all), n, len(running), running)
		}
	}
}

// delivery waits for the record of how a call's one attachment ended.
func (g *gateway) delivery(id call.ID) call.Delivery {
	g.t.Helper()
	var d []call.Delivery
	j := g.journal()
	soon(g.t, "a delivery of "+string(id), func() bool {
		var err error
		if d, err = j.Deliveries(g.t.Context(), id); err != nil {
			g.t.Fatal(err)
		}
		return len(d) > 0
	})
	if len(d) != 1 {
		g.t.Fatalf("%d deliveries of call %s", len(d), id)
	}
	return d[0]
}

// notes are the texts that a call's record has besides its messages.
func (g *gateway) notes(id call.ID) string {
	g.t.Helper()
	var b strings.Builder
	for _, e := range g.events(id) {
		if e.Kind == call.KindNote {
			b.Write(e.Body)
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// outcome is the word that longcall's own answer has in _meta.
func outcome(m wire.Msg) string { return m.Str("result._meta.dev/longcall/outcome.outcome") }

// saysUnknown checks an answer that says that nobody knows what became of the call.
func saysUnknown(t testing.TB, m wire.Msg) {
	t.Helper()
	if outcome(m) != "interrupted" || string(m.At("result.isError")) != "true" || !strings.Contains(m.ToolText(), "Outcome unknown") {
		t.Errorf("the answer does not say that the outcome is unknown: %s", m.JSON)
	}
}
