//go:build unix

package upstream

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// The test binary runs itself as a tool server that makes tasks: taskChildFlags
// says how it behaves.
const taskChildFlags = "TEST_TASK_CHILD"

func init() {
	flags, ok := os.LookupEnv(taskChildFlags)
	if !ok {
		return
	}
	c := &taskChild{flags: strings.Fields(flags)}
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			os.Exit(0)
		}
		var m taskChildMessage
		if err := json.Unmarshal(line, &m); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(9)
		}
		c.take(m)
	}
}

type taskChildMessage struct {
	ID     json.RawMessage
	Method string
	Params struct {
		TaskID         string
		Task           json.RawMessage
		InputResponses json.RawMessage
		Meta           struct {
			ProgressToken json.RawMessage
			Capabilities  json.RawMessage `json:"io.modelcontextprotocol/clientCapabilities"`
		} `json:"_meta"`
	}
	Error json.RawMessage
}

type taskChild struct {
	flags     []string
	token     string
	gets      int
	cancelled bool
	answer    string          // to our question
	result    json.RawMessage // id of a tasks/result that waits
	update    string
}

func (c *taskChild) is(flag string) bool { return slices.Contains(c.flags, flag) }

func (c *taskChild) write(s string) { fmt.Println(s) }

func (c *taskChild) reply(id json.RawMessage, result string) {
	if c.is("modern") && !strings.Contains(result, "resultType") {
		result = strings.Replace(`{"resultType":"complete",`+result[1:], ",}", "}", 1)
	}
	c.write(`{"jsonrpc":"2.0","id":` + string(id) + `,"result":` + result + `}`)
}

func (c *taskChild) progress(v string) {
	c.write(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":` + c.token + `,"progress":` + v + `}}`)
}

const taskChildMembers = `"taskId":"t","createdAt":"2026-11-30T10:00:00Z","lastUpdatedAt":"2026-11-30T10:00:00Z","ttl":1000,"pollInterval":100`

// state is how the task stands after n questions.
func (c *taskChild) state() string {
	s := `"status":"working","statusMessage":"step ` + strconv.Itoa(min(c.gets, 2)) + `"`
	switch {
	case c.cancelled && c.is("late"):
		s = `"status":"completed","result":{"content":[{"type":"text","text":"late"}]}`
	case c.cancelled:
		s = `"status":"cancelled"`
	case c.is("forever"):
	case c.is("input") && c.update == "":
		s = `"status":"input_required","inputRequests":{"k":{"method":"roots/list"}}`
	case c.is("asks") && c.answer == "":
		s = `"status":"input_required"`
	case c.gets > 3:
		s = `"status":"completed","result":{"content":[{"type":"text","text":"worked ` + c.update + `"}]}`
	}
	return "{" + taskChildMembers + "," + s + "}"
}

func (c *taskChild) take(m taskChildMessage) {
	if c.is("modern") && m.ID != nil && m.Method != "" && !strings.Contains(string(m.Params.Meta.Capabilities), `"io.modelcontextprotocol/tasks":{}`) {
		c.write(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"error":{"code":-32021,"message":"no tasks declared"}}`)
		return
	}
	switch m.Method {
	case "server/discover":
		if c.is("modern") {
			c.reply(m.ID, `{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"ttlMs":0,"cacheScope":"private"}`)
			return
		}
		c.write(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"error":{"code":-32601,"message":"no"}}`)
	case "initialize":
		c.reply(m.ID, `{"protocolVersion":"2025-11-25","capabilities":{"tasks":{"cancel":{},"requests":{"tools":{"call":{}}}}},"serverInfo":{"name":"c","version":"1"}}`)
	case "tools/call":
		c.token = string(m.Params.Meta.ProgressToken)
		switch {
		case c.is("question"):
			c.reply(m.ID, `{"resultType":"input_required","requestState":"s"}`)
		case c.is("odd"):
			c.reply(m.ID, `{"resultType":"draft"}`)
		case c.is("modern"):
			c.reply(m.ID, `{"resultType":"task",`+taskChildMembers+`,"status":"working"}`)
			c.progress("5") // it is right behind: no moment may be lost
		case m.Params.Task == nil:
			c.reply(m.ID, `{"content":[{"type":"text","text":"no task"}]}`)
		default:
			c.reply(m.ID, `{"task":{`+taskChildMembers+`,"status":"working"}}`)
			c.progress("5")
		}
	case "tasks/get":
		c.gets++
		switch {
		case c.is("dies") && c.gets == 2:
			fmt.Fprintln(os.Stderr, "no more")
			os.Exit(3)
		case c.is("silent"):
			return
		case c.is("lost"):
			c.write(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"error":{"code":-32602,"message":"unknown task"}}`)
			return
		case c.is("quick") && c.gets == 2:
			c.gets = 4
		}
		c.reply(m.ID, c.state())
	case "tasks/result":
		c.result = m.ID
		if c.is("asks") {
			c.write(`{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"}}}}`)
			return
		}
		c.finish()
	case "tasks/cancel":
		c.cancelled = true
		c.reply(m.ID, c.state())
	case "tasks/update":
		c.update = string(m.Params.InputResponses)
		c.update = strings.ReplaceAll(c.update, `"`, "'")
		c.reply(m.ID, `{}`)
	case "":
		c.answer = string(m.Error)
		c.progress("6")
		c.gets = 9
		c.finish()
	}
}

func (c *taskChild) finish() {
	c.reply(c.result, `{"content":[{"type":"text","text":"fetched"}],"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"}}}`)
}

func taskRig(t *testing.T, flags, support string) *rig {
	r := newRig(t, Server{
		Name: "child", Command: os.Args[0], Env: map[string]string{taskChildFlags: flags, "GORACE": "atexit_sleep_ms=0"},
		Era: "auto", Share: "principal", RestartMin: time.Millisecond, RestartMax: 10 * time.Millisecond,
	})
	r.conn.hooks.TaskSupport = func(_ context.Context, tool string) string {
		if tool != "work" {
			t.Errorf("asked about %q", tool)
		}
		return support
	}
	return r
}

func (s *story) progress(t *testing.T) (values, texts []string) {
	for _, ev := range s.events {
		if ev.Kind != call.KindProgress {
			continue
		}
		m, err := mcp.Parse(ev.Body)
		if err != nil || ev.Hole < 0 || ev.Body[ev.Hole] != '0' {
			t.Errorf("%s: %v, hole %d", ev.Body, err, ev.Hole)
			continue
		}
		text, _ := mcp.String(m.Text.Of(m.Raw))
		values, texts = append(values, string(m.Progress.Of(m.Raw))), append(texts, text)
	}
	return values, texts
}

func (s *story) notes() (out []string) {
	for _, ev := range s.events {
		if ev.Kind == call.KindNote {
			out = append(out, string(ev.Body))
		}
	}
	return out
}

func TestTaskOverStdio(t *testing.T) {
	for _, flags := range []string{"modern", "legacy"} {
		t.Run(flags, func(t *testing.T) {
			t.Parallel()
			r := taskRig(t, flags, taskRequired)
			c := r.start("{}", call.Limits{})
			s := r.follow(c)
			want := "worked "
			if flags == "legacy" {
				want = "fetched"
			}
			if s.end.Outcome != call.Completed || s.text != want || strings.Contains(s.body, `"t"`) {
				t.Fatalf("ended as %+v %s", s.end, s.body)
			}
			values, texts := s.progress(t)
			if !slices.Equal(values, []string{"5", "5.000001", "5.000002"}) || !slices.Equal(texts, []string{"", "step 1", "step 2"}) {
				t.Errorf("progress %v %q", values, texts)
			}
			if !c.ServerTask() || slices.ContainsFunc(s.events, func(ev call.Event) bool { return ev.Kind == call.KindAddress }) {
				t.Error("it counts as no task, or has an address")
			}
			// The next call is none the worse for it.
			if s := r.call("{}"); s.end.Outcome != call.Completed {
				t.Errorf("the next call ended as %+v", s.end)
			}
		})
	}
	t.Run("optional", func(t *testing.T) {
		t.Parallel()
		if s := taskRig(t, "legacy", taskOptional).call("{}"); s.text != "no task" {
			t.Errorf("ended as %+v %s", s.end, s.body)
		}
	})
}

func TestTaskOverStdioEnds(t *testing.T) {
	for name, c := range map[string]struct {
		flags   string
		limits  call.Limits
		outcome call.Outcome
		part    string
	}{
		"dies":     {"modern dies", call.Limits{}, call.Interrupted, "exit status 3"},
		"lost":     {"legacy lost", call.Limits{}, call.Interrupted, "does not know it any more"},
		"silent":   {"modern silent", call.Limits{Idle: time.Second}, call.Interrupted, "has not said how it stands"},
		"total":    {"legacy forever", call.Limits{Total: time.Second}, call.TimedOut, "limits.total"},
		"late":     {"modern forever late", call.Limits{Total: time.Second}, call.Completed, "late"},
		"question": {"modern question", call.Limits{Total: time.Second}, call.TimedOut, "limits.total"},
		"odd":      {"modern odd", call.Limits{}, call.Interrupted, `"draft"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := taskRig(t, c.flags, taskRequired).callWithin(t, c.limits)
			if s.end.Outcome != c.outcome || !strings.Contains(s.end.Text+s.body, c.part) {
				t.Errorf("ended as %+v %s", s.end, s.body)
			}
		})
	}
}

func (r *rig) callWithin(t *testing.T, l call.Limits) story {
	t.Helper()
	return r.follow(r.start("{}", l))
}

func TestTaskOverStdioCancel(t *testing.T) {
	for _, flags := range []string{"modern forever", "legacy forever"} {
		t.Run(flags, func(t *testing.T) {
			t.Parallel()
			r := taskRig(t, flags, taskRequired)
			c := r.start("{}", call.Limits{})
			for ev, err := range c.Follow(t.Context(), 0, 0) {
				if err != nil {
					t.Fatal(err)
				}
				if m, _ := mcp.Parse(ev.Body); strings.Contains(string(m.Text.Of(m.Raw)), "step 1") {
					break
				}
			}
			began := time.Now()
			if err := c.Cancel(call.End{By: "agent"}); err != nil {
				t.Fatal(err)
			}
			if s := r.follow(c); s.end.Outcome != call.Cancelled || s.end.By != "agent" || time.Since(began) > 800*time.Millisecond {
				t.Errorf("ended as %+v after %v", s.end, time.Since(began))
			}
			if n := r.conn.life.wire.running(); n != 0 {
				t.Errorf("%d calls are still waited for", n)
			}
		})
	}
}

func TestTaskOverStdioInput(t *testing.T) {
	t.Run("modern", func(t *testing.T) {
		t.Parallel()
		r := taskRig(t, "modern input", "")
		c := r.start("{}", call.Limits{Idle: 900 * time.Millisecond})
		for ev, err := range c.Follow(t.Context(), 0, 0) {
			if err != nil {
				t.Fatal(err)
			}
			if ev.Kind == call.KindAsk {
				break
			}
		}
		over := time.After(2 * time.Second) // much longer than the limit for silence, which does not count now
		<-over
		if string(c.Asked()) != `{"k":{"method":"roots/list"}}` {
			t.Errorf("asked %s", c.Asked())
		}
		if err := c.Answer([]byte(`{"k":{"roots":[]}}`), []byte(`["k"]`)); err != nil {
			t.Fatal(err)
		}
		if s := r.follow(c); s.text != "worked {'k':{'roots':[]}}" {
			t.Errorf("ended as %+v %s", s.end, s.body)
		}
	})
	t.Run("legacy", func(t *testing.T) {
		t.Parallel()
		r := taskRig(t, "legacy asks", taskRequired)
		s := r.call("{}")
		values, _ := s.progress(t)
		if s.text != "fetched" || len(s.notes()) != 2 || !slices.Contains(values, "6") {
			t.Errorf("ended as %+v %s, notes %q, progress %v", s.end, s.body, s.notes(), values)
		}
	})
}
