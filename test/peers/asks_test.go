//go:build unix

package peers_test

import (
	"fmt"
	"testing"

	"github.com/longcall/longcall/test/peers"
)

// TestAsks: what a tool of the official Go SDK asks reaches a client of it, and the
// answers the tool, in all four combinations of eras, over HTTP and on pipes, on both
// sides (SPEC §4.2).
func TestAsks(t *testing.T) {
	server, client := peers.Find("go-sdk"), peers.Clients[0]
	for _, c := range peers.Clients {
		if c.Name == "go-sdk" {
			client = c
		}
	}
	for _, serverEra := range []string{peers.Legacy, peers.Modern, "stdio"} {
		t.Run("server "+serverEra, func(t *testing.T) {
			var config string
			if serverEra == "stdio" {
				cmd := server.Stdio(t)
				config = fmt.Sprintf("mcpServers: {up: {command: %q, args: %s}}\n", cmd.Path, quoted(cmd.Args))
			} else {
				config = fmt.Sprintf("mcpServers: {up: {url: %q, era: %s}}\n", server.Start(t, serverEra), serverEra)
			}
			gw := peers.StartLongcall(t, config)
			for _, era := range []string{peers.Legacy, peers.Modern} {
				t.Run("client "+era, func(t *testing.T) {
					r := client.Call(t, peers.Request{URL: gw.URL("up"), Era: era, Tool: "ask", Args: "{}"})
					const want = "accept Ada, 42, the server's own"
					if got := r.First("result").Text; got != want {
						t.Errorf("the tool ended with %q\n%s%s", got, r.Stdout, r.Stderr)
					}
					r = client.Call(t, peers.Request{Command: gw.Stdio(t, "up"), Era: era, Tool: "ask", Args: "{}"})
					if got := r.First("connected").Protocol; (got == "2026-07-28") != (era == peers.Modern) {
						t.Errorf("on a pipe, it speaks %s", got)
					}
					if got := r.First("result").Text; got != want {
						t.Errorf("on a pipe, the tool ended with %q\n%s%s", got, r.Stdout, r.Stderr)
					}
				})
			}
		})
	}
}

func quoted(args []string) string {
	out := "["
	for i, a := range args {
		if i > 0 {
			out += ", "
		}
		out += fmt.Sprintf("%q", a)
	}
	return out + "]"
}
