package cases_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/test/wire"
)

const (
	asksForInput = `{"resultType":"input_required","inputRequests":{"a":{"method":"elicitation/create","params":{}}},"requestState":"s"}`
	unheardOf    = `{"resultType":"draft","x":1}`
)

func init() {
	for script, result := range map[string]string{"asks for input": asksForInput, "unheard of": unheardOf} {
		scripts[script] = func(c *wire.Child) {
			c.Serve(wire.Options{Version: wire.Modern, Capabilities: hasAll}, func(c *wire.Child, r *wire.Request) { c.Send(r.Result(result)) })
		}
	}
}

// unfinished starts a gateway before a stateless server, on both transports,
// whose calls all end with result.
func unfinished(t *testing.T, script, result string) *gateway {
	on := map[string]wire.Handler{}
	for _, method := range append(wire.Reads, "tools/call") {
		on[method] = func(c *wire.Conn, r *wire.Request) { c.Answer(r.Result(result)) }
	}
	up := wire.NewUpstream(t, wire.Options{Version: wire.Modern, Capabilities: hasAll, On: on})
	cmd := wire.NewCommand(t, script)
	return start(t, fmt.Sprintf("mcpServers: {http: {url: %q}, stdio: %s}\n", up.URL, cmd.Config()))
}

// A result that nobody knows the meaning of is no end: it is never shown or
// recorded as a success, to agents of neither era, whatever the server is on.
func TestUnfinishedResultIsNoSuccess(t *testing.T) {
	t.Parallel()
	g := unfinished(t, "unheard of", unheardOf)
	for _, server := range []string{"http", "stdio"} {
		for _, version := range []string{wire.Legacy, wire.Modern} {
			m := g.client(version, server).Start(wire.Call{}).Response(0)
			if string(m.At("result.isError")) != "true" || !strings.Contains(m.ToolText(), "Outcome unknown") {
				t.Errorf("%s to %s: %s", server, version, m.JSON)
			}
			g.ended(call.Interrupted)
		}
	}
}

// A question that the agent has not said it can be asked is no success either: it is
// told so in plain words, in both eras.
func TestQuestionIsNoSuccess(t *testing.T) {
	t.Parallel()
	g := unfinished(t, "asks for input", asksForInput)
	for _, server := range []string{"http", "stdio"} {
		for _, version := range []string{wire.Legacy, wire.Modern} {
			m := g.client(version, server).Start(wire.Call{}).Response(0)
			if string(m.At("result.isError")) != "true" || !strings.Contains(m.ToolText(), "has not said it can give: elicitation/create") {
				t.Errorf("%s to %s: %s", server, version, m.JSON)
			}
			g.ended(call.Failed)
		}
	}
}

// A completion cannot ask: what a server asks in place of one reaches no
// agent, also none that could be asked, and the completion is no success.
func TestCompletionAsksNobody(t *testing.T) {
	t.Parallel()
	g := unfinished(t, "asks for input", asksForInput)
	for _, server := range []string{"http", "stdio"} {
		for _, version := range []string{wire.Legacy, wire.Modern} {
			dn := wire.NewClient(t, g.app.URL()+"/mcp/"+server, version)
			dn.Caps = `{"elicitation":{}}`
			dn.Initialize()
			x := dn.Read("completion/complete", wire.Call{})
			if m := x.Response(5 * time.Second); string(m.At("error.code")) != "-32603" || !strings.Contains(m.Str("error.message"), "did not finish") || len(x.Messages()) != 1 {
				t.Errorf("%s to %s: %s", server, version, x.Body())
			}
		}
	}
}

// And a server with sessions that asks within a completion of an agent that could be
// asked elsewhere is refused at once: there the answer cannot be a question.
func TestCompletionOfStatelessAgentAsksNobody(t *testing.T) {
	t.Parallel()
	var up *wire.Upstream
	up = wire.NewUpstream(t, wire.Options{Capabilities: hasAll, On: map[string]wire.Handler{"completion/complete": func(c *wire.Conn, r *wire.Request) {
		c.SSE()
		c.Event(wire.ServerRequest(`"q"`, "elicitation/create", `{"message":"Sure?","requestedSchema":{"type":"object","properties":{}}}`))
		for c.Pause(5 * time.Millisecond) {
			for _, a := range up.Requests("POST") { // answers have no method
				if string(a.ID) == `"q"` {
					c.Event(r.Result(`{"completion":{"values":[` + wire.Quote(string(a.At("error.code"))) + `]}}`))
					c.End()
					return
				}
			}
		}
	}}})
	dn := before(t, up).client(wire.Modern, "up")
	dn.Caps = `{"elicitation":{}}`
	if m := dn.Read("completion/complete", wire.Call{}).Response(5 * time.Second); m.Str("result.completion.values.0") != "-32601" {
		t.Errorf("%s", m.JSON)
	}
}
