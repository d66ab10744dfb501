//go:build unix

package cases_test

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/app"
	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/journal/sqlite"
	"github.com/longcall/longcall/test/wire"
)

// What the scripted tools of these cases ask, by method; a page by "url".
var asksOf = map[string]string{
	"form":  `{"message":"Name?","requestedSchema":{"type":"object","properties":{"name":{"type":"string"}}}}`,
	"url":   `{"mode":"url","message":"Sign in","url":"https://x.example/"`,
	"mind":  `{"messages":[],"maxTokens":5}`,
	"roots": `{}`,
}

var askMethod = map[string]string{
	"form": "elicitation/create", "url": "elicitation/create", "mind": "sampling/createMessage", "roots": "roots/list",
}

// askKeys is what they ask, in order.
var askKeys = []string{"form", "url", "mind", "roots"}

// agentSays is what an agent answers to a request, by what it is asked.
func agentSays(t testing.TB, request wire.Msg) string {
	switch request.Method {
	case "elicitation/create":
		if request.Str("params.mode") == "url" {
			return `{"action":"accept"}`
		}
		return `{"action":"accept","content":{"name":"Ada"}}`
	case "sampling/createMessage":
		return `{"role":"assistant","model":"m","content":{"type":"text","text":"42"}}`
	case "roots/list":
		return `{"roots":[{"uri":"file:///w"}]}`
	}
	t.Fatalf("asked %s", request.JSON)
	return ""
}

// wasAnswered is what all the answers together say to the tool.
const wasAnswered = "accept Ada, accept, 42, file:///w"

func answersText(by map[string]wire.Raw) string {
	at := func(key, path string) string {
		var s string
		_ = json.Unmarshal(wire.At(string(by[key]), path), &s) // "" is seen by whoever compares
		return s
	}
	return strings.Join([]string{at("form", "action") + " " + at("form", "content.name"), at("url", "action"), at("mind", "content.text"), at("roots", "roots.0.uri")}, ", ")
}

// questionOf is a question as a request of a server with sessions, under its key as
// its id.
func questionOf(key string) string {
	params := asksOf[key]
	if key == "url" {
		params += `,"elicitationId":"e1"}`
	}
	return wire.ServerRequest(wire.Quote(key), askMethod[key], params)
}

// inputRequired is what a stateless server answers that asks all of it, and says
// what it goes on from.
func inputRequired(state string) string {
	var list []string
	for _, key := range askKeys {
		params := asksOf[key]
		if key == "url" {
			params += "}"
		}
		list = append(list, wire.Quote(key)+`:{"method":`+wire.Quote(askMethod[key])+`,"params":`+params+`}`)
	}
	return `{"resultType":"input_required","inputRequests":{` + strings.Join(list, ",") + `},"requestState":` + wire.Quote(state) + `}`
}

// inputResponses are the answers that a request brings; nil if it brings none.
func inputResponses(r *wire.Request) (by map[string]wire.Raw) {
	_ = json.Unmarshal(r.At("params.inputResponses"), &by) // what is none is nil
	return by
}

// asker is a scripted server over HTTP whose tool asks all that there is.
func asker(t *testing.T, version string) *wire.Upstream {
	t.Helper()
	var up *wire.Upstream
	up = wire.NewUpstream(t, wire.Options{Version: version, On: map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) {
		if version == wire.Modern {
			if by := inputResponses(r); by == nil {
				c.Answer(r.Result(inputRequired("kept")))
			} else if state := r.Msg.Str("params.requestState"); state != "kept" {
				c.Answer(r.Text("the state is " + state))
			} else {
				c.Answer(r.Text(answersText(by)))
			}
			return
		}
		c.SSE()
		for _, key := range askKeys {
			c.Event(questionOf(key))
		}
		by := map[string]wire.Raw{}
		for len(by) < len(askKeys) {
			for _, a := range up.Requests("") {
				if a.Response() {
					by[strings.Trim(string(a.ID), `"`)] = a.Msg.Result
				}
			}
			if !c.Pause(pollEvery) {
				return
			}
		}
		c.Event(r.Text(answersText(by)))
		c.End()
	}}})
	return up
}

func init() {
	// The same tool on a pipe of the era with sessions.
	scripts["asker"] = func(c *wire.Child) {
		var call *wire.Request
		by := map[string]wire.Raw{}
		for {
			r := c.Next()
			switch {
			case r == nil:
				return
			case r.Method == "tools/call":
				call = r
				for _, key := range askKeys {
					c.Send(questionOf(key))
				}
			case r.Response():
				by[strings.Trim(string(r.ID), `"`)] = r.Msg.Result
				if len(by) == len(askKeys) {
					c.Send(call.Text(answersText(by)))
				}
			default:
				c.Usual(wire.Options{}, r)
			}
		}
	}
}

// numberedAsker is an asker with sessions whose stream can be resumed.
func numberedAsker(t *testing.T) *wire.Upstream {
	t.Helper()
	var up *wire.Upstream
	up = wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) {
		log := up.NewLog("k")
		for _, key := range askKeys {
			log.Append(questionOf(key))
		}
		go func() {
			by := map[string]wire.Raw{}
			for len(by) < len(askKeys) {
				select {
				case <-time.After(pollEvery):
				case <-t.Context().Done():
					return
				}
				for _, a := range up.Requests("") {
					if a.Response() {
						by[strings.Trim(string(a.ID), `"`)] = a.Msg.Result
					}
				}
			}
			log.Append(r.Text(answersText(by)))
			log.Finish()
		}()
		c.SSE()
		log.Serve(c, 0, 0)
	}}})
	return up
}

// askers are the servers that ask, as members of mcpServers, by what they are. Each
// test needs its own: they count what they were answered.
var askers = map[string]func(t *testing.T) string{
	"session":   func(t *testing.T) string { return upServer(asker(t, wire.Legacy)) },
	"stateless": func(t *testing.T) string { return upServer(asker(t, wire.Modern)) },
	"stdio":     func(t *testing.T) string { return "up: " + wire.NewCommand(t, "asker").Config() },
}

// pollEvery is the pause between two looks at what came to a scripted server.
const pollEvery = 5 * time.Millisecond

const everyCap = `{"elicitation":{"form":{},"url":{}},"sampling":{},"roots":{}}`

// openAble is open for a host that can be asked all of it.
func (p *pipe) openAble() {
	p.h.t.Helper()
	p.send(`{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":` + everyCap + `,"clientInfo":{"name":"pipe","version":"1"}}}`)
	p.response(`"init"`)
	p.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
}

// question waits for a request of longcall's on the pipe, and notes it as found.
func (p *pipe) questions(n int) (list []wire.Msg) {
	p.h.t.Helper()
	for i := range n {
		list = append(list, p.find(i+1, "question", func(m *wire.Msg) bool { return m.Method != "" && m.ID != nil }))
	}
	return list
}

// ableCall is a call of a stateless host that can be asked all of it; more are
// further members of its params.
func ableCall(id, more string) string {
	meta := strings.Replace(strings.TrimPrefix(eraMeta(wire.Modern), ","), `clientCapabilities":{}`, `clientCapabilities":`+everyCap, 1)
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"up__work","arguments":{}` + more + `,"_meta":{` + meta + `}}}`
}

// answersTo makes the members of params of the request that is made again after an
// InputRequiredResult.
func answersTo(t testing.TB, asked wire.Msg) string {
	t.Helper()
	var requests map[string]json.RawMessage
	if err := json.Unmarshal(asked.At("result.inputRequests"), &requests); err != nil || len(requests) == 0 {
		t.Fatalf("no question: %s", asked.JSON)
	}
	var list []string
	for key, raw := range requests {
		m, ok := wire.ParseMsg(string(raw))
		if !ok {
			t.Fatalf("asked %s", raw)
		}
		list = append(list, wire.Quote(key)+":"+agentSays(t, m))
	}
	slices.Sort(list)
	return `,"requestState":` + string(asked.At("result.requestState")) + `,"inputResponses":{` + strings.Join(list, ",") + `}`
}

// A host on a pipe is asked what a tool asks, in the way of its own era, whatever
// the tool server's is: requests on the pipe, or an InputRequiredResult (SPEC §4.2).
func TestX8AskOnPipe(t *testing.T) {
	t.Parallel()
	for kind, server := range askers {
		t.Run(kind+"/session", func(t *testing.T) {
			h := newHome(t, server(t))
			p := h.host(nil, "stdio", "--config", h.config)
			p.openAble()
			p.call(wire.Legacy, "7", "up__work", "{}")
			for _, q := range p.questions(len(askKeys)) {
				if q.Str("params.mode") == "url" && q.Str("params.elicitationId") == "" {
					t.Errorf("a page without an elicitationId: %s", q.JSON)
				}
				p.send(`{"jsonrpc":"2.0","id":` + string(q.ID) + `,"result":` + agentSays(t, q) + `}`)
			}
			if m := p.response("7"); m.ToolText() != wasAnswered {
				t.Errorf("%s", m.JSON)
			}
			p.close()
		})
		t.Run(kind+"/stateless", func(t *testing.T) {
			h := newHome(t, server(t))
			p := h.host(nil, "stdio", "--config", h.config)
			p.send(ableCall("7", ""))
			asked := p.response("7")
			more := answersTo(t, asked)
			for n := 8; asked.Str("result.resultType") == "input_required"; n++ {
				p.send(ableCall(fmt.Sprint(n), more))
				asked = p.response(fmt.Sprint(n))
				if asked.Str("result.resultType") == "input_required" {
					more = answersTo(t, asked)
				}
			}
			if asked.ToolText() != wasAnswered {
				t.Errorf("%s", asked.JSON)
			}
			p.close()
		})
	}
}

// kill -9 of longcall while a stateless agent holds a question: what the retry gets
// depends on who still has the question (SPEC §4.2).
func TestX8KilledWhileParked(t *testing.T) {
	t.Parallel()
	// A stateless server keeps nothing: the answer simply goes on.
	t.Run("stateless server", func(t *testing.T) {
		t.Parallel()
		up := asker(t, wire.Modern)
		h := newHome(t, upServer(up))
		p := h.host(nil, "stdio", "--config", h.config)
		p.send(ableCall("7", ""))
		more := answersTo(t, p.response("7"))
		h.stored(false)
		h.kill()
		p.send(ableCall("8", more))
		if m := p.response("8"); m.ToolText() != wasAnswered {
			t.Errorf("%s", m.JSON)
		}
		// And once: the state has done its work.
		p.send(ableCall("9", more))
		if m := p.response("9"); m.Str("error.message") == "" || !strings.Contains(m.JSON, "has its answer") {
			t.Errorf("used again: %s", m.JSON)
		}
		if n := up.Count("tools/call"); n != 2 {
			t.Errorf("%d requests reached the server, want the first and the one with the answers", n)
		}
		p.close()
	})

	// A server with sessions waits on a stream that died with longcall: nobody can
	// know what became of the call, and the tool does not run again by itself.
	t.Run("session", func(t *testing.T) {
		t.Parallel()
		up := asker(t, wire.Legacy)
		h := newHome(t, upServer(up))
		p := h.host(nil, "stdio", "--config", h.config)
		p.send(ableCall("7", ""))
		more := answersTo(t, p.response("7"))
		h.stored(false)
		h.kill()
		p.send(ableCall("8", more))
		m := p.response("8")
		for _, part := range []string{"Outcome unknown", "your answer was not delivered", "check before you call it again", "without requestState"} {
			if !strings.Contains(m.JSON, part) {
				t.Errorf("it does not say %q: %s", part, m.JSON)
			}
		}
		if n := up.Count("tools/call"); n != 1 {
			t.Errorf("%d calls reached the server", n)
		}
		p.close()
	})

	// One that numbers its stream brings the question again, and the answer fits.
	t.Run("session, numbered", func(t *testing.T) {
		t.Parallel()
		up := numberedAsker(t)
		h := newHome(t, upServer(up, "disconnect_grace: 0s"))
		p := h.host(nil, "stdio", "--config", h.config)
		p.send(ableCall("7", ""))
		asked := p.response("7")
		for n := 8; strings.Count(string(asked.At("result.inputRequests")), `"method"`) < len(askKeys); n++ {
			p.send(ableCall(fmt.Sprint(n), `,"requestState":`+string(asked.At("result.requestState")))) // the rest of them
			asked = p.response(fmt.Sprint(n))
		}
		more := answersTo(t, asked)
		h.stored(true)
		h.kill()
		p.send(ableCall("90", more))
		m := p.response("90")
		if m.Str("result.resultType") == "input_required" { // the retry came before the questions did
			p.send(ableCall("91", answersTo(t, m)))
			m = p.response("91")
		}
		if m.ToolText() != wasAnswered {
			t.Errorf("%s", m.JSON)
		}
		if n := up.Count("tools/call"); n != 1 {
			t.Errorf("%d calls reached the server", n)
		}
		p.close()
	})
	t.Run("session, numbered, session", func(t *testing.T) {
		t.Parallel()
		up := numberedAsker(t)
		h := newHome(t, upServer(up))
		p := h.host(nil, "stdio", "--config", h.config)
		p.openAble()
		p.call(wire.Legacy, "7", "up__work", "{}")
		list := p.questions(len(askKeys))
		first := list[0]
		p.send(`{"jsonrpc":"2.0","id":` + string(first.ID) + `,"result":` + agentSays(t, first) + `}`)
		h.until("the server has one answer", func() bool {
			return slices.ContainsFunc(up.Requests(""), func(r *wire.Request) bool { return r.Response() })
		})
		h.stored(true)
		old := h.kill()
		h.until("another serve", func() bool { return h.pid() != old && h.pid() != 0 })
		for _, q := range list[1:] {
			p.send(`{"jsonrpc":"2.0","id":` + string(q.ID) + `,"result":` + agentSays(t, q) + `}`)
		}
		if m := p.response("7"); m.ToolText() != wasAnswered {
			t.Errorf("%s", m.JSON)
		}
		for _, q := range list {
			if n := p.count(`"id":` + string(q.ID) + `,"method"`); n != 1 {
				t.Errorf("asked %d times: %s", n, p.text())
			}
		}
		if n := up.Count("tools/call"); n != 1 {
			t.Errorf("%d calls reached the server", n)
		}
		p.close()
	})

	// A page to be visited first (-32042) is a question of the same kind: the server
	// waits for nobody.
	t.Run("session, page first", func(t *testing.T) {
		t.Parallel()
		var up *wire.Upstream
		up = wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) {
			if up.Count("tools/call") == 1 {
				c.Answer(`{"jsonrpc":"2.0","id":` + string(r.ID) + `,"error":{"code":-32042,"message":"Sign in","data":{"elicitations":[` + asksOf["url"] + `,"elicitationId":"e1"}]}}}`)
				return
			}
			c.Answer(r.Text("worked"))
		}}})
		h := newHome(t, upServer(up))
		p := h.host(nil, "stdio", "--config", h.config)
		p.send(ableCall("7", ""))
		more := answersTo(t, p.response("7"))
		h.stored(false)
		h.kill()
		p.send(ableCall("8", more))
		if m := p.response("8"); m.ToolText() != "worked" {
			t.Errorf("%s", m.JSON)
		}
		if n := up.Count("tools/call"); n != 2 {
			t.Errorf("%d calls reached the server", n)
		}
		p.close()
	})

	// In a task, too.
	t.Run("stateless server, as a task", func(t *testing.T) {
		t.Parallel()
		asks := make(chan struct{})
		up := wire.NewUpstream(t, wire.Options{Version: wire.Modern, On: map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) {
			by := inputResponses(r)
			if by == nil {
				select {
				case <-asks:
				case <-c.Gone():
					return
				}
				c.Answer(r.Result(inputRequired("kept")))
				return
			}
			c.Answer(r.Text(answersText(by)))
		}}})
		h := newHome(t, upServer(up))
		h.addLines(impatient)
		p := h.host(nil, "stdio", "--config", h.config)
		p.send(taskCall("7", "tools/call", `"name":"up__work","arguments":{}`))
		id := p.response("7").Str("result.taskId")
		if id == "" {
			t.Fatalf("no task: %s", p.text())
		}
		close(asks)
		n := 100
		get := func() wire.Msg {
			n++
			p.send(taskCall(fmt.Sprint(n), "tasks/get", `"taskId":`+wire.Quote(id)))
			return p.response(fmt.Sprint(n))
		}
		var m wire.Msg
		waits := func() bool { m = get(); return m.Str("result.status") == "input_required" }
		h.until("the task asks", waits)
		h.stored(false)
		h.kill()
		h.until("the task asks again", waits)
		_, responses, _ := strings.Cut(answersTo(t, m), `"inputResponses":`)
		p.send(taskCall("8", "tasks/update", `"taskId":`+wire.Quote(id)+`,"inputResponses":`+responses))
		p.response("8")
		h.until("the task is done", func() bool {
			m = get()
			return m.Str("result.status") != "input_required" && m.Str("result.status") != "working"
		})
		if got := m.Str("result.result.content.0.text"); got != wasAnswered {
			t.Errorf("%s", m.JSON)
		}
		if n := up.Count("tools/call"); n != 2 {
			t.Errorf("%d requests reached the server", n)
		}
		p.close()
	})

	// An agent of a session at a stateless server: what it was asked before, it can
	// answer after, and is not asked twice.
	t.Run("stateless server, session", func(t *testing.T) {
		t.Parallel()
		up := asker(t, wire.Modern)
		h := newHome(t, upServer(up))
		p := h.host(nil, "stdio", "--config", h.config)
		p.openAble()
		p.call(wire.Legacy, "7", "up__work", "{}")
		list := p.questions(len(askKeys))
		h.stored(false)
		old := h.kill()
		h.until("another serve", func() bool { return h.pid() != old && h.pid() != 0 })
		for _, q := range list {
			p.send(`{"jsonrpc":"2.0","id":` + string(q.ID) + `,"result":` + agentSays(t, q) + `}`)
		}
		if m := p.response("7"); m.ToolText() != wasAnswered {
			t.Errorf("%s", m.JSON)
		}
		for _, q := range list {
			if n := p.count(`"id":` + string(q.ID) + `,"method"`); n != 1 {
				t.Errorf("asked %d times: %s", n, p.text())
			}
		}
		if n := up.Count("tools/call"); n != 2 {
			t.Errorf("%d requests reached the server", n)
		}
		p.close()
	})
}

// taskCall is a request of a stateless host that can be asked all of it, and takes
// tasks.
func taskCall(id, method, params string) string {
	meta := strings.Replace(strings.TrimPrefix(eraMeta(wire.Modern), ","), `clientCapabilities":{}`,
		`clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}},`+everyCap[1:], 1)
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `","params":{` + params + `,"_meta":{` + meta + `}}}`
}

// stored waits until the journal has what the newest call asks, which is a group commit
// after the agent has it; with an address, also where the call is found again with it.
func (h *home) stored(address bool) {
	h.t.Helper()
	j, err := sqlite.OpenReadOnly(app.JournalPath(h.state))
	if err != nil {
		h.t.Fatal(err)
	}
	defer j.Close()
	h.until("the question is stored", func() bool {
		list, err := j.List(h.t.Context(), sqlite.Filter{Limit: 1})
		if err != nil || len(list) == 0 {
			return false
		}
		events, err := j.Read(h.t.Context(), list[0].ID, 0, 1<<20)
		if err != nil {
			return false
		}
		var asked, placed uint64
		for _, e := range events {
			switch e.Kind {
			case call.KindAsk:
				asked = e.Seq
			case call.KindAddress:
				placed = e.Seq
			}
		}
		return asked > 0 && (!address || placed > asked)
	})
}

// addLines adds lines to the home's config.
func (h *home) addLines(lines string) {
	h.t.Helper()
	b, err := os.ReadFile(h.config)
	if err == nil {
		err = os.WriteFile(h.config, append([]byte(lines), b...), 0o600)
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

// A planned stop does not wait for a person either, if the server keeps nothing: the
// next process asks on, and the same state fits.
func TestX8StoppedWhileParked(t *testing.T) {
	t.Parallel()
	up, dir := asker(t, wire.Modern), t.TempDir()
	config := fmt.Sprintf("shutdown: {drain: 1m}\nmcpServers: {up: {url: %q}}\n", up.URL)
	agent := func(g *gateway) *wire.Client {
		dn := wire.NewClient(t, g.app.URL()+"/mcp/up", wire.Modern)
		dn.Caps = everyCap
		return dn
	}
	ask := func(dn *wire.Client, id, more string) wire.Msg {
		return dn.Do(wire.HTTP{
			Body:   dn.Message(id, "tools/call", `"name":"work","arguments":{}`+more, ""),
			Header: map[string]string{"Mcp-Protocol-Version": dn.Version, "Mcp-Method": "tools/call", "Mcp-Name": "work"},
		}).Response(0)
	}
	g := startIn(t, dir, config)
	more := answersTo(t, ask(agent(g), "7", ""))
	began := time.Now()
	g.stop()
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("the stop took %s", took)
	}
	g = startIn(t, dir, config)
	if m := ask(agent(g), "8", more); m.ToolText() != wasAnswered {
		t.Errorf("%s", m.JSON)
	}
	g.ended(call.Completed)
	if n := up.Count("tools/call"); n != 2 {
		t.Errorf("%d requests reached the server", n)
	}
}
