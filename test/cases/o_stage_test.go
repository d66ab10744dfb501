package cases_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/journal/sqlite"
	"github.com/longcall/longcall/test/wire"
)

func init() {
	scripts["play"] = func(c *wire.Child) { playChild(c, wire.Legacy) }
	scripts["play modern"] = func(c *wire.Child) { playChild(c, wire.Modern) }
}

// step is one thing that the scripted tool does during a call. A call brings
// its steps in its arguments, so that one script plays on every transport.
type step struct {
	Turn     int    `json:"turn,omitempty"`     // wait until all lower turns, of all calls at the server, are done
	Told     bool   `json:"told,omitempty"`     // and until the server was told to cancel the call
	Pause    int    `json:"pause,omitempty"`    // then wait for so many milliseconds
	Progress string `json:"progress,omitempty"` // then send progress of this raw value,
	Total    string `json:"total,omitempty"`    // this raw total,
	Message  string `json:"message,omitempty"`  // this message,
	Token    string `json:"token,omitempty"`    // and this raw token instead of the call's own;
	Raw      string `json:"raw,omitempty"`      // or send this message;
	Text     string `json:"text,omitempty"`     // or answer with this text,
	Size     int    `json:"size,omitempty"`     // or with a text that makes the message so many bytes long
	Slow     bool   `json:"slow,omitempty"`     // byte by byte
}

// script is the arguments of a call that does these steps.
func script(steps ...step) string {
	b, err := json.Marshal(map[string]any{"steps": steps})
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	return string(b)
}

// turns is the order of steps over all calls at one server.
type turns struct {
	mu        sync.Mutex
	done      int             // the highest turn that is over
	cancelled map[string]bool // ids, raw
	next      chan struct{}   // closed and replaced when anything above changes
}

func newTurns() *turns { return &turns{cancelled: map[string]bool{}, next: make(chan struct{})} }

// wait waits until a step of the call with the id is due; false if stop came first.
func (o *turns) wait(s step, id string, stop <-chan struct{}) bool {
	for {
		o.mu.Lock()
		due := o.done >= s.Turn-1 && (!s.Told || o.cancelled[id])
		next := o.next
		o.mu.Unlock()
		if due {
			return true
		}
		select {
		case <-next:
		case <-stop:
			return false
		}
	}
}

func (o *turns) change(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f()
	close(o.next)
	o.next = make(chan struct{})
}

// over ends a turn.
func (o *turns) over(n int) {
	if n != 0 {
		o.change(func() { o.done = n })
	}
}

// hear takes in a notification.
func (o *turns) hear(r *wire.Request) {
	if r.Method == "notifications/cancelled" {
		o.change(func() { o.cancelled[string(r.At("params.requestId"))] = true })
	}
}

// play does the steps of a call.
func play(r *wire.Request, o *turns, stop <-chan struct{}, say func(message string, slow bool)) {
	var a struct{ Steps []step }
	if json.Unmarshal(r.Args, &a) != nil || len(a.Steps) == 0 {
		a.Steps = []step{{Text: "worked"}}
	}
	for _, s := range a.Steps {
		if !o.wait(s, string(r.ID), stop) {
			return
		}
		if s.Pause > 0 {
			select {
			case <-time.After(time.Duration(s.Pause) * time.Millisecond):
			case <-stop:
				return
			}
		}
		switch {
		case s.Progress != "" && s.Token != "":
			say(wire.Progress(s.Token, s.Progress, s.Total, s.Message), s.Slow)
		case s.Progress != "":
			say(r.Progress(s.Progress, s.Total, s.Message), s.Slow)
		case s.Raw != "":
			say(s.Raw, s.Slow)
		case s.Size > 0:
			say(r.Text(strings.Repeat("x", s.Size-len(r.Text("")))), s.Slow)
		case s.Text != "":
			say(r.Text(s.Text), s.Slow)
		}
		o.over(s.Turn)
	}
}

func playChild(c *wire.Child, version string) {
	o := newTurns()
	c.Serve(wire.Options{Version: version, Capabilities: hasAll, Notified: o.hear}, func(c *wire.Child, r *wire.Request) {
		play(r, o, nil, func(m string, slow bool) {
			if slow {
				c.Write(wire.Bytewise(m + "\n")...)
				return
			}
			c.Send(m)
		})
	})
}

// hasAll is what a server says of itself that reads can be asked of.
const hasAll = `{"tools":{"listChanged":true},"prompts":{},"resources":{},"completions":{}}`

// place is where the scripted tool server is, and how it says things.
type place struct {
	name    string
	version string
	stdio   bool
	json    bool // the result comes as JSON, not SSE
	get     bool // all but the result comes on the standalone stream
	old     bool // everything comes on the one stream of the 2024-11-05 transport
}

var (
	overSSE         = place{name: "SSE", version: wire.Legacy}
	overJSON        = place{name: "JSON and GET", version: wire.Legacy, json: true, get: true}
	overGET         = place{name: "SSE and GET", version: wire.Legacy, get: true}
	overSSEModern   = place{name: "modern SSE", version: wire.Modern}
	overJSONModern  = place{name: "modern JSON", version: wire.Modern, json: true}
	overOld         = place{name: "SSE of 2024", version: "2024-11-05", old: true}
	overStdio       = place{name: "stdio", version: wire.Legacy, stdio: true}
	overStdioModern = place{name: "modern stdio", version: wire.Modern, stdio: true}
)

// everywhere runs a case for agents of both eras at each kind of tool server
// that can do what it needs, all behind one longcall. more are YAML members of
// each server's config.
func everywhere(t *testing.T, at []place, f func(t *testing.T, s *scene), more ...string) {
	t.Helper()
	h := newHouse(t)
	for _, p := range at {
		h.add(p.name, wire.Legacy, p.open(t), f, more...).place = p
		if p == overSSE || p == overSSEModern || p == overStdio {
			h.add(p.name+" for a modern agent", wire.Modern, p.open(t), f, more...).place = p
		}
	}
	h.run("")
}

// speaking are the places that can send progress.
var speaking = []place{overSSE, overJSON, overGET, overOld, overSSEModern, overStdio, overStdioModern}

// handler plays the steps of calls over HTTP.
func (p place) handler(o *turns, stop <-chan struct{}) wire.Handler {
	return func(c *wire.Conn, r *wire.Request) {
		open := false
		if p.old {
			c, open = c.Took(), true
		}
		play(r, o, stop, func(m string, slow bool) {
			msg, _ := wire.ParseMsg(m)
			pieces := []string{wire.Event("", m)}
			switch {
			case p.get && !msg.Response():
				if s := c.Stream(); s != nil {
					s.Event(m)
				}
				return
			case p.json && msg.Response():
				c.Head(200, "Content-Type: application/json", "Content-Length: "+strconv.Itoa(len(m)))
				pieces = []string{m}
			case !open:
				open = true
				c.SSE()
			}
			if slow {
				pieces = wire.Bytewise(strings.Join(pieces, ""))
			}
			c.Body(pieces...)
		})
		if open && !p.old {
			c.End()
		}
	}
}

// tool is the scripted tool server of a scene.
type tool struct {
	http *wire.Upstream
	cmd  *wire.Command
}

// open starts the server.
func (p place) open(t *testing.T) tool {
	t.Helper()
	if p.stdio {
		name := "play"
		if p.version == wire.Modern {
			name += " modern"
		}
		return tool{cmd: wire.NewCommand(t, name)}
	}
	o := newTurns()
	on := map[string]wire.Handler{"notifications/cancelled": func(c *wire.Conn, r *wire.Request) { o.hear(r); c.Status(202) }}
	for _, method := range append(wire.Reads, "tools/call") {
		on[method] = p.handler(o, t.Context().Done())
	}
	return tool{http: wire.NewUpstream(t, wire.Options{Version: p.version, JSON: p.json, Old: p.old, Capabilities: hasAll, On: on})}
}

// config is the server as an entry of mcpServers.
func (u tool) config(more ...string) string {
	entry := ""
	if u.cmd != nil {
		entry = strings.TrimSuffix(u.cmd.Config(), "}")
	} else {
		entry = fmt.Sprintf("{url: %q", u.http.URL)
	}
	for _, m := range more {
		entry += ", " + m
	}
	return entry + "}"
}

// isFor says whose test fails when something is waited for in vain.
func (u tool) isFor(t *testing.T) {
	if u.http != nil {
		u.http.For(t)
	}
	if u.cmd != nil {
		u.cmd.For(t)
	}
}

// seen is a message that a tool server got.
type seen struct {
	wire.Msg
	Time time.Time
}

// seen lists the messages of a method that came, oldest first.
func (u tool) seen(method string) (out []seen) {
	if u.http != nil {
		for _, r := range u.http.Requests(method) {
			out = append(out, seen{r.Msg, r.Time})
		}
		return out
	}
	for _, n := range u.cmd.Notes("line") {
		if m, ok := wire.ParseMsg(n.Text); ok && m.Method == method {
			out = append(out, seen{m, n.Time})
		}
	}
	return out
}

// waitSeen waits for the nth message of a method.
func (u tool) waitSeen(t *testing.T, method string, n int) seen {
	t.Helper()
	tick, over := time.NewTicker(5*time.Millisecond), time.After(wire.Timeout)
	defer tick.Stop()
	for {
		if all := u.seen(method); len(all) >= n {
			return all[n-1]
		}
		select {
		case <-tick.C: // a child has no event to wait for
		case <-over:
			t.Fatalf("the tool server got %d of %d messages %q", len(u.seen(method)), n, method)
		}
	}
}

// scene is one agent before longcall before one tool server.
type scene struct {
	t     *testing.T
	g     *gateway
	dn    *wire.Client
	up    tool
	name  string // of the server in the config
	agent string // era of the agent
	place place  // of the server, if everywhere chose it
}

// house is one longcall before the tool servers of many scenes: its start is
// most of what a scene costs.
type house struct {
	t       *testing.T
	entries []string
	parts   []part
	timed   bool // its times count: it does not wait for others, and works little
}

// slots bounds how many parts work at once that are not timed, so that those
// that are find a machine with some room.
var slots = make(chan struct{}, 4)

type part struct {
	name string
	s    *scene
	f    func(t *testing.T, s *scene)
}

func newHouse(t *testing.T) *house { return &house{t: t} }

func timedHouse(t *testing.T) *house { return &house{t: t, timed: true} }

// server adds a tool server to the config and returns its name there.
func (h *house) server(up tool, more ...string) string {
	name := fmt.Sprintf("s%d", len(h.entries)+1)
	h.entries = append(h.entries, name+": "+up.config(more...))
	return name
}

// add adds a part of the case, with a tool server of its own.
func (h *house) add(name, agent string, up tool, f func(t *testing.T, s *scene), more ...string) *scene {
	s := &scene{up: up, name: h.server(up, more...), agent: agent}
	h.parts = append(h.parts, part{name, s, f})
	return s
}

// http adds a part whose tool server is a scripted one over HTTP.
func (h *house) http(name, agent string, up *wire.Upstream, f func(t *testing.T, s *scene), more ...string) *scene {
	return h.add(name, agent, tool{http: up}, f, more...)
}

// run starts longcall, with further lines of config, and runs the parts side by side.
func (h *house) run(lines string) {
	h.t.Helper()
	if lines != "" {
		lines += "\n"
	}
	g := start(h.t, "shutdown: {drain: 1s}\n"+lines+"mcpServers: {"+strings.Join(h.entries, ", ")+"}\n")
	for _, p := range h.parts {
		h.t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			if !h.timed {
				slots <- struct{}{}
				defer func() { <-slots }()
			}
			s := p.s
			s.t, s.g = t, g
			s.up.isFor(t)
			s.dn = s.client(s.agent)
			p.f(t, s)
		})
	}
}

// client is another agent at the scene's server.
func (s *scene) client(version string) *wire.Client {
	s.t.Helper()
	c := wire.NewClient(s.t, s.g.app.URL()+"/mcp/"+s.name, version)
	c.Initialize()
	return c
}

// audited waits until the record of the newest call at the scene's server is
// as want says, and returns it.
func (s *scene) audited(what string, want func(r *call.Record, d []call.Delivery) bool) (call.Record, []call.Delivery) {
	s.t.Helper()
	j := s.g.journal()
	tick, over := time.NewTicker(10*time.Millisecond), time.After(wire.Timeout)
	defer tick.Stop()
	for {
		records, err := j.List(s.t.Context(), sqlite.Filter{Server: s.name, Limit: 1})
		if err != nil {
			s.t.Fatal(err)
		}
		var r call.Record
		var d []call.Delivery
		if len(records) > 0 {
			r = records[0]
			if d, err = j.Deliveries(s.t.Context(), r.ID); err != nil {
				s.t.Fatal(err)
			}
			if want(&r, d) {
				return r, d
			}
		}
		select {
		case <-tick.C: // the journal is another process's view: it has no event to wait for
		case <-over:
			s.t.Fatalf("the record never became %s: %+v, deliveries %+v", what, r, d)
		}
	}
}

// ended waits for the end of the newest call at the scene's server, and checks
// its outcome.
func (s *scene) ended(want call.Outcome) call.Record {
	s.t.Helper()
	r, _ := s.audited("ended", func(r *call.Record, _ []call.Delivery) bool { return r.End.Outcome != call.Running })
	if r.End.Outcome != want {
		s.t.Fatalf("the record says %+v, not %s", r.End, want)
	}
	return r
}

// delivered waits for the one delivery of the newest call.
func (s *scene) delivered() call.Delivery {
	s.t.Helper()
	_, d := s.audited("delivered", func(_ *call.Record, d []call.Delivery) bool { return len(d) == 1 })
	return d[0]
}

// events are a call's stored events; those of one kind, if it is not 0.
func (s *scene) events(id call.ID, kind call.Kind) (out []call.Event) {
	s.t.Helper()
	for after := uint64(0); ; {
		page, err := s.g.journal().Read(s.t.Context(), id, after, 1<<20)
		if err != nil {
			s.t.Fatal(err)
		}
		if len(page) == 0 {
			return out
		}
		for _, e := range page {
			if after = e.Seq; kind == 0 || e.Kind == kind {
				out = append(out, e)
			}
		}
	}
}

// about checks a time with a fifth of slack either way.
func about(t *testing.T, what string, got, want time.Duration) {
	t.Helper()
	if got < want-want/5 || got > want+want/5 {
		t.Errorf("%s after %v, not %v (±20 %%)", what, got.Round(time.Millisecond), want)
	}
}

// within checks a time that has no slack.
func within(t *testing.T, what string, got, limit time.Duration) {
	t.Helper()
	if got > limit {
		t.Errorf("%s after %v, more than %v", what, got.Round(time.Millisecond), limit)
	}
}

// wait lets a time pass that is part of a case.
func wait(d time.Duration) { <-time.After(d) }

// answered checks that the response carries the call's own id and a tool's text.
func answered(t *testing.T, x *wire.Exchange, text string) wire.TimedMsg {
	t.Helper()
	m := x.TimedResponse(0)
	if string(m.ID) != x.ID || m.ToolText() != text || string(m.At("result.isError")) == "true" {
		t.Errorf("the response is not the text %.80q for id %s:\n%.400s", text, x.ID, m.JSON)
	}
	return m
}

// whole checks that the response to a call ended in the orderly way with its
// result, and returns all messages of it.
func whole(t *testing.T, x *wire.Exchange) []wire.TimedMsg {
	t.Helper()
	if err := x.End(0); err != nil {
		t.Errorf("the response broke off: %v", err)
	}
	all := x.Messages()
	n := 0
	for _, m := range all {
		if m.Response() {
			n++
		}
	}
	if n != 1 || !all[len(all)-1].Response() {
		t.Errorf("%d responses among the messages, or something after it:\n%s", n, x.Body())
	}
	if items := x.Items(); len(items) > 0 && items[len(items)-1].Comment {
		t.Errorf("a comment after the result:\n%s", x.Body())
	}
	return all
}

// told is what progress messages say, as "token value message".
func told(all []wire.TimedMsg) (out []string) {
	for _, m := range all {
		if m.Method == "notifications/progress" {
			out = append(out, fmt.Sprintf("%s %s %s", m.At("params.progressToken"), m.At("params.progress"), m.Str("params.message")))
		}
	}
	return out
}

// tells checks what progress messages a call's stream had.
func tells(t *testing.T, x *wire.Exchange, want ...string) {
	t.Helper()
	if got := told(whole(t, x)); !slices.Equal(got, want) {
		t.Errorf("progress was\n  %s\nnot\n  %s\nbody:\n%s", strings.Join(got, "\n  "), strings.Join(want, "\n  "), x.Body())
	}
}

// unknown checks that the answer to a call says in words and in _meta that
// nobody knows its outcome, and that the record says so too, and does not call
// it a success or running.
func (s *scene) unknown(x *wire.Exchange) wire.TimedMsg {
	s.t.Helper()
	m := x.TimedResponse(0)
	text := m.ToolText()
	if string(m.ID) != x.ID || string(m.At("result.isError")) != "true" || !strings.Contains(text, "Outcome unknown") {
		s.t.Errorf("the answer does not say that the outcome is unknown: %s", m.JSON)
	}
	if o := m.Outcome(); string(wire.At(string(o), "outcome")) != `"interrupted"` || wire.At(string(o), "call") == nil {
		s.t.Errorf("the answer's _meta says %s", o)
	}
	whole(s.t, x)
	r := s.ended(call.Interrupted)
	if !strings.Contains(r.End.Text, "Outcome unknown") || r.Dispatched.IsZero() {
		s.t.Errorf("the record does not say that the outcome is unknown: %+v", r.End)
	}
	return m
}
