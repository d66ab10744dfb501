package upstream_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/test/wire"
)

// A server of 2025-11-25 asks on the stream of tasks/result, and may report
// progress there; a status notification brings the next question forward.
func TestTaskLegacyStreams(t *testing.T) {
	var state atomic.Value
	state.Store(`"status":"input_required","pollInterval":60000`)
	var token atomic.Value
	answered := make(chan string, 1)
	up := taskScript{
		version: wire.Legacy, create: `"status":"working","pollInterval":60000`,
		get: func(int) string { return state.Load().(string) },
		on: map[string]wire.Handler{
			"tools/call": func(c *wire.Conn, r *wire.Request) {
				token.Store(r)
				c.Answer(r.Progress("7", "", "first"), r.Result(`{"task":{`+taskMembers+`,"status":"working","pollInterval":60000}}`))
			},
			"tasks/result": func(c *wire.Conn, r *wire.Request) {
				call := token.Load().(*wire.Request)
				c.SSE()
				c.Event(`{"jsonrpc":"2.0","id":"ask-1","method":"elicitation/create","params":{"message":"?","_meta":{"io.modelcontextprotocol/related-task":{"taskId":"task 1/ü"}}}}`)
				if a := <-answered; !strings.Contains(a, "-32601") {
					t.Errorf("the server was answered %s", a)
				}
				c.Event(call.Progress("8", "9", "by tasks/result"))
				c.Event(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"someone's","progress":1}}`)
				state.Store(`"status":"completed"`)
				c.Event(r.Result(bigResult))
				c.End()
			},
			"POST": func(c *wire.Conn, r *wire.Request) { // a response has no method
				c.Status(202)
				if strings.Contains(r.Body, "ask-1") {
					answered <- r.Body
				}
			},
		},
	}.start(t)
	g := newGateway(t, up.URL)
	c := g.start(call.Limits{})
	addressed(t, c)
	up.Stream().Event(`{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{` + taskMembers + `,"status":"input_required"}}`)
	s := g.follow(c)
	s.want(t, call.Completed, "worked")
	if want := []string{"7", "8"}; !slices.Equal(s.progress, want) {
		t.Errorf("progress %v, not %v", s.progress, want)
	}
	if len(s.notes) != 1 || !strings.Contains(s.notes[0], "elicitation/create") {
		t.Errorf("notes %q", s.notes)
	}
}

// A result that a server gives while its task still runs is none.
func TestTaskHastyResult(t *testing.T) {
	for _, over := range []bool{false, true} {
		t.Run(fmt.Sprint(over), func(t *testing.T) {
			t.Parallel()
			var fetched atomic.Int32
			up := taskScript{version: wire.Legacy, get: func(int) string {
				if n := fetched.Load(); n > 1 || over && n == 1 {
					return `"status":"failed"`
				}
				return `"status":"input_required","pollInterval":100`
			}, on: map[string]wire.Handler{"tasks/result": func(c *wire.Conn, r *wire.Request) {
				c.Answer(r.Result(`{"content":[],"n":` + strconv.Itoa(int(fetched.Add(1))) + `}`))
			}}}.start(t)
			g := newGateway(t, up.URL)
			c := g.start(call.Limits{})
			if !over {
				up.WaitRequest("tasks/get", 4, 0) // no other fetch while the task is not over
				if n := fetched.Add(1); n != 2 {
					t.Errorf("fetched %d times", n-1)
				}
			}
			s := g.follow(c)
			s.want(t, call.Completed, `"n":`+map[bool]string{true: "1", false: "3"}[over]+`,"isError":true`)
			if !s.end.End.ToolError || len(s.notes) != map[bool]int{false: 1}[over] {
				t.Errorf("ended as %+v with notes %q", s.end.End, s.notes)
			}
		})
	}
}

// What is sent as a task of 2025-11-25, and that the agent's own wish for one
// ends here.
func TestTaskParameter(t *testing.T) {
	tool := func(support string) string {
		return `[{"name":"other"},{"name":"work","inputSchema":{"type":"object"},"execution":{"taskSupport":"` + support + `"}}]`
	}
	for name, c := range map[string]struct {
		version, caps, tools string
		want                 bool
	}{
		"required":                {wire.Legacy, `{"requests":{"tools":{"call":{}}}}`, tool("required"), true},
		"optional":                {wire.Legacy, taskCaps, tool("optional"), true},
		"optional without cancel": {wire.Legacy, `{"requests":{"tools":{"call":{}}}}`, tool("optional"), false},
		"forbidden":               {wire.Legacy, taskCaps, tool("forbidden"), false},
		"no hint":                 {wire.Legacy, taskCaps, `[{"name":"work"}]`, false},
		"not for tools":           {wire.Legacy, `{"cancel":{},"requests":{}}`, tool("required"), false},
		"modern":                  {wire.Modern, "", tool("required"), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := taskScript{version: c.version, caps: c.caps, tools: c.tools, on: map[string]wire.Handler{
				"tools/call": func(c *wire.Conn, r *wire.Request) { c.Answer(r.Text("worked")) }, // it may leave it be
			}}.start(t)
			g := newGateway(t, up.URL)
			for _, wish := range []string{"", `,"task":{"ttl":1}`, `,"t\u0061sk":{"ttl":1},"x":1`} {
				cl, err := g.engine.Start(t.Context(), call.Spec{
					Principal: "p", Server: "up", Tool: "work", Limits: call.Limits{Total: time.Minute},
					Request: []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"up__work","arguments":{"task":"\\"}` + wish + `}}`),
				})
				if err != nil {
					t.Fatal(err)
				}
				g.follow(cl).want(t, call.Completed, "worked")
			}
			for _, r := range up.Requests("tools/call") {
				var p map[string]json.RawMessage
				if err := json.Unmarshal(r.Params, &p); err != nil {
					t.Fatal(err)
				}
				if want := map[bool]string{true: `{"ttl":3660000}`}[c.want]; string(p["task"]) != want || string(p["arguments"]) != `{"task":"\\"}` {
					t.Errorf("sent %s", r.Body)
				}
			}
		})
	}
}
