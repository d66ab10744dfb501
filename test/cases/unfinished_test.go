package cases_test

import (
	"fmt"
	"strings"
	"testing"

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
			c.Serve(wire.Options{Version: wire.Modern}, func(c *wire.Child, r *wire.Request) { c.Send(r.Result(result)) })
		}
	}
}

// unfinished starts a gateway before a stateless server, on both transports,
// whose calls all end with result.
func unfinished(t *testing.T, script, result string) *gateway {
	up := wire.NewUpstream(t, wire.Options{Version: wire.Modern, On: map[string]wire.Handler{
		"tools/call": func(c *wire.Conn, r *wire.Request) { c.Answer(r.Result(result)) },
	}})
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
