//go:build unix

package cases_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/test/wire"
)

// SHELL §7: a late subscriber is told of the end, in both eras; and so is one that
// was there (O4, O10).
func TestShellSubscribers(t *testing.T) {
	t.Parallel()
	eachEra(t, func(t *testing.T, m *machine, c *wire.Client) {
		r := ask(t, c, "exec_command", command("sleep 2; exit 3", `,"yield_ms":0`))
		uri := "longcall://calls/" + r.CallID
		subscribe := func() *wire.Exchange {
			t.Helper()
			if c.Version == wire.Modern {
				return c.Do(wire.HTTP{
					Body:   c.Message(`"l"`, "subscriptions/listen", `"notifications":{"resourceSubscriptions":["`+uri+`"]}`, ""),
					Header: map[string]string{"Mcp-Protocol-Version": c.Version, "Mcp-Method": "subscriptions/listen"},
				})
			}
			if a := c.Request("resources/subscribe", `"uri":"`+uri+`"`); a.Result == nil {
				t.Errorf("subscribe: %s", a.JSON)
			}
			return c.Listen("")
		}
		x := subscribe()
		told := x.WaitMessages("notifications/resources/updated", 1, 10*time.Second)
		if string(told[0].At("params.uri")) != `"`+uri+`"` || told[0].Came < time.Second {
			t.Errorf("told after %s: %s", told[0].Came, told[0].JSON)
		}
		if c.Version == wire.Modern && x.Messages()[0].Method != "notifications/subscriptions/acknowledged" {
			t.Errorf("not acknowledged first:\n%s", x.Body())
		}
		x.Close()
		if c.Version == wire.Legacy {
			c.Request("resources/unsubscribe", `"uri":"`+uri+`"`)
		}
		late := subscribe()
		late.WaitMessages("notifications/resources/updated", 1, 5*time.Second)
		late.Close()
		if a := c.Request("resources/read", `"uri":"`+uri+`"`); c.Version == wire.Legacy && !strings.Contains(a.Str("result.contents.0.text"), `"exit_code":3`) {
			t.Errorf("read: %s", a.JSON)
		}
	})
}

// SHELL §7: no task without the capability; tasks/get resolves before the response
// that creates it is on the wire, and after a restart.
func TestShellTaskOutlives(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.agent(wire.Modern, "/mcp/shell")
	if r := ask(t, c, "exec_command", command("sleep 9", `,"yield_ms":1000`)); r.Str("result.resultType") != "complete" || r.State != "running" {
		t.Errorf("without the capability: %s", r.JSON)
	}
	const caps = `{"extensions":{"io.modelcontextprotocol/tasks":{}}}`
	c.Caps = caps
	start := func(text, more string) wire.Msg {
		return c.Start(wire.Call{Tool: "exec_command", Args: command(text, more)}).Response(0)
	}
	if a := start("sleep 8", `,"yield_ms":0,"kind":"service"`); a.Str("result.resultType") != "complete" {
		t.Errorf("a service: %s", a.JSON)
	}
	a := start("echo once >> side; sleep 4; echo done; exit 6", `,"yield_ms":1000`)
	id := a.Str("result.taskId")
	if a.Str("result.resultType") != "task" || id == "" {
		t.Fatalf("%s", a.JSON)
	}
	get := func() wire.Msg {
		x := c.Do(wire.HTTP{
			Body:   c.Message(`"g"`, "tasks/get", `"taskId":"`+id+`"`, ""),
			Header: map[string]string{"Mcp-Protocol-Version": c.Version, "Mcp-Method": "tasks/get", "Mcp-Name": id},
		})
		return x.Response(0)
	}
	if g := get(); g.Str("result.status") != "working" || g.At("result.result") != nil {
		t.Errorf("running: %s", g.JSON)
	}
	m.restart()
	c = m.agent(wire.Modern, "/mcp/shell")
	c.Caps = caps
	var g wire.Msg
	m.until("the task is over", func() bool { g = get(); return g.Str("result.status") != "working" })
	if g.Str("result.status") != "completed" || string(g.At("result.result.structuredContent.exit_code")) != "6" || g.Str("result.result.structuredContent.output") != "done\n" || m.lines("side") != 1 {
		t.Errorf("after a restart: %s", g.JSON)
	}
}

// SHELL §5: the end is told once, on the next result of any tool of the same
// agent, and not again after a restart.
func TestShellDigest(t *testing.T) {
	t.Parallel()
	eachEra(t, func(t *testing.T, m *machine, c *wire.Client) {
		r := ask(t, c, "exec_command", command("echo secret; exit 3", `,"yield_ms":0,"label":"unit tests"`))
		m.until("it has ended", func() bool {
			return len(ask(t, c, "list_calls", `{"state":"unread"}`).Calls) == 1
		})
		const ended = "Ended meanwhile: "
		next := ask(t, c, "exec_command", command("true", ""))
		if !strings.Contains(next.text(), ended+r.CallID) || !strings.Contains(next.text(), `"unit tests"`) || !strings.Contains(next.text(), "exit 3") || strings.Contains(next.text(), "secret") {
			t.Errorf("%s", next.JSON)
		}
		if next = ask(t, c, "exec_command", command("true; true", "")); strings.Contains(next.text(), ended) {
			t.Errorf("told twice: %s", next.JSON)
		}
		ask(t, c, "list_calls", `{}`) // it reads what is stored, so all is
		m.restart()
		c = m.agent(c.Version, "/mcp/shell")
		if next = ask(t, c, "exec_command", command("true; true; true", "")); strings.Contains(next.text(), ended) {
			t.Errorf("told again: %s", next.JSON)
		}
		if end := await(t, c, r.CallID); end.exit() != 3 || end.Output != "secret\n" {
			t.Errorf("and read: %s", end.JSON)
		}
	})
}

// The shell is a server like the others: its names at /mcp, its schemas, its
// descriptions; and bare names that models know are taken there too.
func TestShellIsListed(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	for path, want := range map[string]string{
		"/mcp":       "shell__exec_command shell__read_output shell__run_commands_parallel shell__write_stdin await_call cancel_call list_calls",
		"/mcp/shell": "exec_command read_output run_commands_parallel write_stdin await_call cancel_call list_calls",
	} {
		for _, version := range append([]string{"2025-03-26", "2025-06-18"}, eras...) {
			c := m.agent(version, path)
			list := c.Request("tools/list", "")
			var tools []struct {
				Name, Description         string
				InputSchema, OutputSchema struct{ Type string }
				Annotations               map[string]any
			}
			if err := json.Unmarshal(list.At("result.tools"), &tools); err != nil {
				t.Fatalf("%v: %s", err, list.JSON)
			}
			var names []string
			for _, tool := range tools {
				names = append(names, tool.Name)
				if tool.Description == "" || tool.InputSchema.Type != "object" || tool.OutputSchema.Type != "object" || len(tool.Annotations) == 0 {
					t.Errorf("%s: %+v", tool.Name, tool)
				}
			}
			if got := strings.Join(names, " "); got != want {
				t.Errorf("%s at %s: %s", version, path, got)
			}
			if r := ask(t, c, "exec_command", command("echo "+version+path, "")); r.exit() != 0 {
				t.Errorf("%s at %s: %s", version, path, r.JSON)
			}
		}
	}
}

// Bad input gets one clear sentence that says what to do, as a result that the
// model can read; nothing is started, nothing is lost.
func TestShellBadInput(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.agent(wire.Modern, "/mcp/shell")
	r := ask(t, c, "exec_command", command("exit 0", ""))
	for _, bad := range []struct{ tool, args, says string }{
		{"exec_command", `{}`, "command"},
		{"exec_command", command("true", `,"cwd":"nowhere"`), "nowhere"},
		{"exec_command", command("true", `,"cwd":"/etc"`), m.root},
		{"exec_command", command(strings.Repeat("x", 40<<10), ""), "32"},
		{"exec_command", command("true", `,"env":{"LD_PRELOAD":"x"}`), "LD_PRELOAD"},
		{"exec_command", command("true", `,"ready_pattern":"["`), "ready_pattern"},
		{"exec_command", command("true", `,"yield":5`), "yield_ms"},
		{"read_output", `{"id":"c_aaaaaaaaaaaaaaaaaaaaaaaaaa"}`, "list_calls"},
		{"await_call", `{"ids":["nonsense"]}`, "list_calls"},
		{"write_stdin", `{"id":"` + r.CallID + `","text":"x"}`, "nothing was typed"},
		{"run_commands_parallel", `{"commands":[]}`, "commands"},
		{"cancel_call", `{"id":"` + r.CallID + `","signal":"SIGNONSENSE"}`, "no such signal"},
	} {
		got := ask(t, c, bad.tool, bad.args)
		if !got.IsError || !strings.Contains(got.text(), bad.says) || len(got.text()) > 600 {
			t.Errorf("%s %.80s: %.700s", bad.tool, bad.args, got.JSON)
		}
	}
}
