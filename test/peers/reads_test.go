//go:build unix

package peers_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/test/peers"
	"github.com/longcall/longcall/test/wire"
)

// TestEverythingButTools uses what a server on the official Go SDK has besides
// tools, in each era and on each transport, from agents of both eras (R-05, R-07 to
//
func TestEverythingButTools(t *testing.T) {
	s := peers.Find("go-sdk")
	stdio := s.Stdio(t)
	entry, err := json.Marshal(map[string]any{"command": stdio.Path, "args": stdio.Args})
	if err != nil {
		t.Fatal(err)
	}
	gw := peers.StartLongcall(t, fmt.Sprintf("mcpServers:\n  sessions: {url: %q}\n  stateless: {url: %q}\n  stdio: %s\n",
		s.Start(t, peers.Legacy), s.Start(t, peers.Modern), entry))
	for _, server := range []string{"sessions", "stateless", "stdio"} {
		for _, version := range []string{wire.Legacy, wire.Modern} {
			t.Run(server+"/"+version, func(t *testing.T) { reads(t, gw.URL(server), version) })
		}
	}
}

func reads(t *testing.T, url, version string) {
	c := wire.NewClient(t, url, version)
	var hello wire.Msg
	if version == wire.Legacy {
		hello = c.Initialize()
	} else {
		hello = c.Request("server/discover", "")
	}
	eventually(t, "the server is known", func() bool {
		if version == wire.Modern {
			hello = c.Request("server/discover", "")
		} else {
			c = wire.NewClient(t, url, version)
			hello = c.Initialize()
		}
		return strings.Contains(hello.Str("result.instructions"), "Say something.")
	})
	if string(hello.At("result.capabilities.resources.subscribe")) != "true" {
		t.Errorf("introduced as %s", hello.JSON)
	}
	ask := func(method, params, want string) {
		t.Helper()
		if m := send(c, method, params); !strings.Contains(m.JSON, want) {
			t.Errorf("%s %s: %s, without %s", method, params, m.JSON, want)
		}
	}
	ask("prompts/list", ``, `"name":"greet"`)
	ask("resources/list", ``, `"uri":"note:///1"`)
	ask("resources/templates/list", ``, `"uriTemplate":"note:///{id}"`)
	ask("prompts/get", `"name":"greet"`, `hello from greet`)
	ask("resources/read", `"uri":"note:///7"`, `this is note:///7`)
	ask("completion/complete", `"ref":{"type":"ref/prompt","name":"greet"},"argument":{"name":"a","value":"b"}`, `greet b`)
	code := map[string]string{wire.Legacy: `-32002`, wire.Modern: `-32602`}[version]
	if m := send(c, "resources/read", `"uri":"note:///none"`); string(m.At("error.code")) != code && string(m.At("error.code")) != "-32602" {
		t.Errorf("not found: %s", m.JSON)
	}

	// What changes.
	var heard *wire.Exchange
	if version == wire.Legacy {
		heard = c.Listen("")
		ask("resources/subscribe", `"uri":"note:///1"`, `"result":{}`)
	} else {
		heard = c.Do(wire.HTTP{Body: c.Message("5", "subscriptions/listen", `"notifications":{"promptsListChanged":true,"resourceSubscriptions":["note:///1"]}`, ""), Header: map[string]string{
			"Mcp-Method": "subscriptions/listen", "Mcp-Protocol-Version": wire.Modern,
		}})
		if m := heard.WaitMessages("notifications/subscriptions/acknowledged", 1, 10*time.Second)[0]; !strings.Contains(m.JSON, "note:///1") {
			t.Errorf("acknowledged %s", m.JSON)
		}
	}
	call := func(tool, text string) *wire.Exchange {
		t.Helper()
		x := c.Start(wire.Call{Tool: tool, Args: `{"text":` + wire.Quote(text) + `}`, Meta: map[string]string{wire.Modern: `"io.modelcontextprotocol/logLevel":"error"`}[version]})
		if m := x.Response(10 * time.Second); strings.Contains(m.JSON, `"error"`) && m.At("error") != nil {
			t.Errorf("%s: %s", tool, m.JSON)
		}
		return x
	}
	call("touch", "note:///1")
	if m := heard.WaitMessages("notifications/resources/updated", 1, 10*time.Second)[0]; !strings.Contains(m.JSON, "note:///1") {
		t.Errorf("updated %s", m.JSON)
	}
	call("grow", "new "+t.Name())
	heard.WaitMessages("notifications/prompts/list_changed", 1, 10*time.Second)
	ask("prompts/list", ``, "new "+t.Name())

	// What a tool logs.
	if version == wire.Legacy {
		ask("logging/setLevel", `"level":"error"`, `"result":{}`)
	}
	x := call("say", "careful")
	logs := x.Method("notifications/message")
	if len(logs) != 1 || !strings.Contains(logs[0].JSON, `"level":"error"`) || !strings.Contains(logs[0].JSON, "careful") {
		t.Errorf("logged %v", logs)
	}
}

// send sends a request with the headers of its era.
func send(c *wire.Client, method, params string) wire.Msg {
	body, header := c.Message("5", method, params, ""), map[string]string{}
	if c.Version == wire.Modern {
		header["Mcp-Protocol-Version"], header["Mcp-Method"] = c.Version, method
		for _, name := range []string{"params.name", "params.uri"} {
			if s := wire.At(body, name); s != nil {
				header["Mcp-Name"] = strings.Trim(string(s), `"`)
			}
		}
	}
	return c.Do(wire.HTTP{Body: body, Header: header}).Response(10 * time.Second)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); <-time.After(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}
