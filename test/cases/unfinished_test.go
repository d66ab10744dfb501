package cases_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/test/wire"
)

const asksForInput = `{"resultType":"input_required","requestState":"s"}`

func init() {
	scripts["asks for input"] = func(c *wire.Child) {
		c.Serve(wire.Options{Version: wire.Modern}, func(c *wire.Child, r *wire.Request) { c.Send(r.Result(asksForInput)) })
	}
}

// A result that only asks to go on is no end: it is never shown or recorded as
// a success, to agents of neither era, whatever the server is on.
func TestUnfinishedResultIsNoSuccess(t *testing.T) {
	t.Parallel()
	up := wire.NewUpstream(t, wire.Options{Version: wire.Modern, On: map[string]wire.Handler{
		"tools/call": func(c *wire.Conn, r *wire.Request) { c.Answer(r.Result(asksForInput)) },
	}})
	cmd := wire.NewCommand(t, "asks for input")
	g := start(t, fmt.Sprintf("mcpServers: {http: {url: %q}, stdio: %s}\n", up.URL, cmd.Config()))
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
