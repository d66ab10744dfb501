package upstream_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
	"github.com/longcall/longcall/test/wire"
)

const (
	bigResult   = `{"content":[{"type":"text","text":"worked"}],"big":9007199254740993}`
	taskTool    = `[{"name":"work","inputSchema":{"type":"object"},"execution":{"taskSupport":"required"}}]`
	taskCaps    = `{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}`
	taskMembers = `"taskId":"task 1/ü","createdAt":"2026-11-30T10:00:00Z","lastUpdatedAt":"2026-11-30T10:00:00Z"`
)

// taskScript is a scripted server that makes a task of every call.
type taskScript struct {
	version string             // wire.Legacy or wire.Modern
	create  string             // more members of the new task; empty means that it works, and is asked every 100 ms
	get     func(n int) string // more members of what the nth tasks/get gives
	result  string             // of tasks/result: the whole result; "" for the usual
	caps    string             // legacy: capabilities.tasks
	tools   string             // legacy: the list
	on      map[string]wire.Handler
}

const everyBit = `"status":"working","pollIntervalMs":100,"pollInterval":100,"ttlMs":60000,"ttl":60000`

func (s taskScript) start(t *testing.T) *wire.Upstream {
	t.Helper()
	if s.create == "" {
		s.create = everyBit
	}
	if s.caps == "" {
		s.caps = taskCaps
	}
	if s.tools == "" {
		s.tools = taskTool
	}
	if s.result == "" {
		s.result = bigResult[:len(bigResult)-1] + `,"_meta":{"kept":1,"io.modelcontextprotocol/related-task":{"taskId":"task 1/ü"}}}`
	}
	var gets atomic.Int32
	opt := wire.Options{Version: s.version, NoSession: true, Tools: s.tools, On: map[string]wire.Handler{
		"tools/call": func(c *wire.Conn, r *wire.Request) {
			if r.Modern() {
				c.Answer(r.Result(`{"resultType":"task",` + taskMembers + `,` + s.create + `}`))
			} else {
				c.Answer(r.Result(`{"task":{` + taskMembers + `,` + s.create + `}}`))
			}
		},
		"tasks/get": func(c *wire.Conn, r *wire.Request) {
			c.JSON(200, r.Result(`{`+taskMembers+`,`+s.get(int(gets.Add(1)))+`}`))
		},
		"tasks/result": func(c *wire.Conn, r *wire.Request) { c.Answer(r.Result(s.result)) },
		"tasks/cancel": func(c *wire.Conn, r *wire.Request) {
			c.JSON(200, r.Result(`{`+taskMembers+`,"status":"cancelled"}`))
		},
		"tasks/update": func(c *wire.Conn, r *wire.Request) { c.JSON(200, r.Result(`{}`)) },
	}}
	if s.version == wire.Legacy {
		opt.On["initialize"] = func(c *wire.Conn, r *wire.Request) {
			c.JSON(200, r.Result(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"tasks":`+s.caps+`},"serverInfo":{"name":"up","version":"1"}}`),
				"Mcp-Session-Id: session-"+strconv.Itoa(int(gets.Load())))
		}
	}
	for k, h := range s.on {
		opt.On[k] = h
	}
	return wire.NewUpstream(t, opt)
}

// steps gives one answer after the other, and the last one for ever.
func steps(list ...string) func(int) string {
	return func(n int) string { return list[min(n, len(list))-1] }
}

// ended is how a task of the version that completed says so.
func ended(version string) string {
	if version == wire.Modern {
		return `"status":"completed","result":` + bigResult
	}
	return `"status":"completed"`
}

var generations = []string{wire.Legacy, wire.Modern}

func each(t *testing.T, f func(t *testing.T, version string)) {
	for _, v := range generations {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			f(t, v)
		})
	}
}

// addressed waits until the call's task is followed.
func addressed(t *testing.T, c *call.Call) {
	t.Helper()
	over := time.After(10 * time.Second)
	for c.Record().Address == nil {
		select {
		case <-over:
			t.Fatal("the call has no address")
		case <-time.After(time.Millisecond):
		}
	}
}

// messages are those of the progress that the record has, and its values.
func messages(t *testing.T, c *call.Call) (texts []string, values []float64, kinds []call.Kind) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for ev, err := range c.Follow(ctx, 0, 0) {
		if err != nil {
			t.Fatal(err)
		}
		kinds = append(kinds, ev.Kind)
		if ev.Kind != call.KindProgress {
			continue
		}
		if ev.Hole < 0 || ev.Body[ev.Hole] != '0' {
			t.Errorf("no hole at the token: %s", ev.Body)
		}
		m, err := mcp.Parse(ev.Body)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := mcp.String(m.Text.Of(m.Raw))
		v, err := strconv.ParseFloat(string(m.Progress.Of(m.Raw)), 64)
		if err != nil {
			t.Fatal(err)
		}
		texts, values = append(texts, text), append(values, v)
	}
	for i := 1; i < len(values); i++ {
		if values[i] <= values[i-1] {
			t.Errorf("progress %v does not increase", values)
		}
	}
	return texts, values, kinds
}

func TestTaskIsAbsorbed(t *testing.T) {
	each(t, func(t *testing.T, version string) {
		up := taskScript{version: version, create: everyBit + `,"statusMessage":"created"`, get: steps(
			`"status":"working","pollIntervalMs":100,"pollInterval":100,"statusMessage":"half \ud83d\n\"done\" é\u0000"`,
			`"status":"working","pollIntervalMs":100,"pollInterval":100,"statusMessage":"half \ud83d\n\"done\" é\u0000"`,
			ended(version)+`,"statusMessage":"all done"`,
		)}.start(t)
		g := newGateway(t, up.URL)
		c := g.start(call.Limits{})
		g.follow(c).want(t, call.Completed, bigResult[1:len(bigResult)-1])
		texts, _, kinds := messages(t, c)
		if want := []string{"created", "half \ufffd\n\"done\" é\x00", "all done"}; !slices.Equal(texts, want) {
			t.Errorf("progress %q, not %q", texts, want)
		}
		if n := slices.Index(kinds, call.KindAddress); n < 0 || n > slices.Index(kinds, call.KindProgress) || !c.ServerTask() {
			t.Errorf("events %v, a task of the server: %v", kinds, c.ServerTask())
		}
		ev, _ := c.Latest(call.KindEnd)
		if ev.Hole < 0 || ev.Body[ev.Hole] != '0' || strings.Contains(string(ev.Body), "task 1") || strings.Contains(string(ev.Body), "resultType") {
			t.Errorf("the answer is %s", ev.Body)
		}
		if version == wire.Legacy && !strings.Contains(string(ev.Body), `"kept":1`) {
			t.Errorf("_meta was lost: %s", ev.Body)
		}
		r := up.Requests("tools/call")[0]
		declared := wire.At(r.Body, "params._meta.io.modelcontextprotocol/clientCapabilities.extensions.io.modelcontextprotocol/tasks")
		asked := strings.Contains(r.Body, `"task":{"ttl":604800000}`)
		if modern := version == wire.Modern; strings.Contains(r.Body, `"io.modelcontextprotocol/tasks":{}`) != modern || asked == modern {
			t.Errorf("the call was %s (%s)", r.Body, declared)
		}
		for _, r := range up.Requests("tasks/get") {
			name, want := r.Header.Get("Mcp-Name"), ""
			if version == wire.Modern {
				want = mcp.EncodeHeader("task 1/ü")
			}
			if name != want || !strings.Contains(r.Body, `"taskId":"task 1/ü"`) || r.Version != version && version == wire.Modern {
				t.Errorf("asked with Mcp-Name %q: %s", name, r.Body)
			}
		}
		if n := up.Count("tools/call"); n != 1 {
			t.Errorf("%d calls", n)
		}
		if n := up.Count("tasks/result"); (n == 1) != (version == wire.Legacy) {
			t.Errorf("%d tasks/result", n)
		}
	})
}

func TestTaskEnds(t *testing.T) {
	for name, c := range map[string]struct {
		version string
		get     string
		result  string
		on      map[string]wire.Handler
		outcome call.Outcome
		part    string
		check   func(call.End) bool
	}{
		"modern tool error": {
			version: wire.Modern, get: `"status":"completed","result":{"content":[],"isError":true}`,
			outcome: call.Completed, part: `"isError":true`, check: func(e call.End) bool { return e.ToolError },
		},
		"modern error": {
			version: wire.Modern, get: `"status":"failed","error":{"code":-32050,"message":"out of paper","data":{"x":1}}`,
			outcome: call.Failed, part: `"data":{"x":1}`, check: func(e call.End) bool { return e.Code == -32050 },
		},
		"modern failed without a word":   {version: wire.Modern, get: `"status":"failed","statusMessage":"it broke"`, outcome: call.Failed, part: "it broke"},
		"modern failed with an odd word": {version: wire.Modern, get: `"status":"failed","error":{"code":"x"}`, outcome: call.Failed, part: "no error"},
		"modern completed with nothing":  {version: wire.Modern, get: `"status":"completed"`, outcome: call.Interrupted, part: "no result"},
		"modern completed with no end":   {version: wire.Modern, get: `"status":"completed","result":{"resultType":"input_required"}`, outcome: call.Interrupted, part: "input_required"},
		"modern cancelled by the server": {
			version: wire.Modern, get: `"status":"cancelled","statusMessage":"the operator did it"`, outcome: call.Cancelled, part: "the operator did it",
			check: func(e call.End) bool { return e.By == "tool server" },
		},
		"legacy cancelled by the server": {version: wire.Legacy, get: `"status":"cancelled"`, outcome: call.Cancelled, part: "by the tool server itself"},
		"legacy tool error": {
			version: wire.Legacy, get: `"status":"failed"`, result: `{"content":[],"isError":true}`,
			outcome: call.Completed, part: `"isError":true`, check: func(e call.End) bool { return e.ToolError },
		},
		"legacy failed without isError": {
			version: wire.Legacy, get: `"status":"failed"`, result: `{"content":[]}`,
			outcome: call.Completed, part: `"isError":true`, check: func(e call.End) bool { return e.ToolError },
		},
		"legacy error": {
			version: wire.Legacy, get: `"status":"failed"`,
			on:      map[string]wire.Handler{"tasks/result": func(c *wire.Conn, r *wire.Request) { c.JSON(200, r.Fail("-32602", "bad topic")) }},
			outcome: call.Failed, part: "bad topic", check: func(e call.End) bool { return e.Code == -32602 },
		},
		"legacy result is gone": {
			version: wire.Legacy, get: `"status":"completed"`,
			on:      map[string]wire.Handler{"tasks/result": func(c *wire.Conn, r *wire.Request) { c.JSON(200, r.Fail("-32602", "unknown")) }},
			outcome: call.Interrupted, part: "does not give its result",
		},
		"modern unknown task": {
			version: wire.Modern,
			on:      map[string]wire.Handler{"tasks/get": func(c *wire.Conn, r *wire.Request) { c.JSON(400, r.Fail("-32602", "unknown")) }},
			outcome: call.Interrupted, part: "does not know it any more",
		},
		"legacy unknown task": {
			version: wire.Legacy,
			on:      map[string]wire.Handler{"tasks/get": func(c *wire.Conn, r *wire.Request) { c.JSON(200, r.Fail("-32602", "unknown")) }},
			outcome: call.Interrupted, part: "does not know it any more",
		},
		"modern no such method": {
			version: wire.Modern,
			on:      map[string]wire.Handler{"tasks/get": func(c *wire.Conn, r *wire.Request) { c.JSON(404, r.Fail("-32601", "no")) }},
			outcome: call.Interrupted, part: "refused to say",
		},
		"modern no credentials": {
			version: wire.Modern, on: map[string]wire.Handler{"tasks/get": wire.Refuse(401)}, outcome: call.Interrupted, part: "credentials",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := taskScript{version: c.version, get: steps(c.get), result: c.result, on: c.on}.start(t)
			g := newGateway(t, up.URL)
			s := g.follow(g.start(call.Limits{}))
			s.want(t, c.outcome, c.part)
			if c.check != nil && !c.check(*s.end.End) {
				t.Errorf("ended as %+v", s.end.End)
			}
			if up.Count("tools/call") != 1 || up.Count("tasks/cancel") != 0 {
				t.Error("the task was called or cancelled again")
			}
		})
	}
}

// A task that is over when it is made is asked for at once, and is none that an
// agent would have to wait for.
func TestTaskOverAtOnce(t *testing.T) {
	each(t, func(t *testing.T, version string) {
		up := taskScript{version: version, create: `"status":"completed","pollIntervalMs":60000,"pollInterval":60000`, get: steps(ended(version))}.start(t)
		g := newGateway(t, up.URL)
		c := g.start(call.Limits{Total: 10 * time.Second})
		g.follow(c).want(t, call.Completed, "worked")
		if c.ServerTask() {
			t.Error("it counts as a task of the server")
		}
	})
}

// A server that is busy, answers nonsense or breaks connections is asked again.
func TestTaskThroughTrouble(t *testing.T) {
	each(t, func(t *testing.T, version string) {
		var n atomic.Int32
		up := taskScript{version: version, on: map[string]wire.Handler{
			"tasks/get": func(c *wire.Conn, r *wire.Request) {
				switch n.Add(1) {
				case 1:
					c.Status(503, "Retry-After: 0")
				case 2:
					c.Reset()
				case 3:
					c.JSON(200, r.Fail("-32603", "internal"))
				case 4:
					c.JSON(200, r.Result(`{"taskId":"another","status":"completed"}`))
				case 5:
					c.JSON(200, r.Result(`{}`))
				default:
					c.Answer(r.Result(`{` + taskMembers + `,` + ended(version) + `}`))
				}
			},
		}}.start(t)
		g := newGateway(t, up.URL)
		g.follow(g.start(call.Limits{Idle: 30 * time.Second})).want(t, call.Completed, "worked")
		if n.Load() != 6 {
			t.Errorf("%d questions", n.Load())
		}
	})
}

// A server that falls silent ends the call by the limit for silence; one that
// answers and never completes does not, and is told to cancel in the end.
func TestTaskLimits(t *testing.T) {
	each(t, func(t *testing.T, version string) {
		t.Run("silent", func(t *testing.T) {
			t.Parallel()
			up := taskScript{version: version, on: map[string]wire.Handler{"tasks/get": wire.Hold}}.start(t)
			g := newGateway(t, up.URL)
			g.follow(g.start(call.Limits{Idle: time.Second})).want(t, call.Interrupted, "has not said how it stands for 1s")
			up.WaitRequest("tasks/cancel", 1, 0)
		})
		t.Run("without end", func(t *testing.T) {
			t.Parallel()
			up := taskScript{version: version, get: steps(everyBit + `,"statusMessage":"x"`)}.start(t)
			g := newGateway(t, up.URL)
			g.follow(g.start(call.Limits{Idle: 400 * time.Millisecond, Total: 1500 * time.Millisecond})).want(t, call.TimedOut, "limits.total")
			if up.Count("tasks/cancel") != 1 || up.Count("tasks/get") < 5 || up.Count("notifications/cancelled") != 0 {
				t.Errorf("%d tasks/cancel, %d tasks/get, %d cancelled", up.Count("tasks/cancel"), up.Count("tasks/get"), up.Count("notifications/cancelled"))
			}
		})
		t.Run("bytes", func(t *testing.T) {
			t.Parallel()
			up := taskScript{version: version, get: func(n int) string {
				return everyBit + `,"statusMessage":"` + strconv.Itoa(n) + strings.Repeat("é", 5000) + `"`
			}}.start(t)
			g := newGateway(t, up.URL)
			s := g.follow(g.start(call.Limits{Call: 10000}))
			s.want(t, call.Failed, "limits.call")
			if up.Count("tasks/cancel") != 1 || len(s.progress) != 2 { // each was cut to 4 KiB
				t.Errorf("%d tasks/cancel after %d messages", up.Count("tasks/cancel"), len(s.progress))
			}
		})
		t.Run("too large", func(t *testing.T) {
			t.Parallel()
			big := `{"content":[{"type":"text","text":"` + strings.Repeat("x", 100000) + `"}]}`
			up := taskScript{version: version, get: steps(strings.Replace(ended(version), bigResult, big, 1)), result: big}.start(t)
			g := newGateway(t, up.URL)
			g.follow(g.start(call.Limits{Message: 10000})).want(t, call.Failed, "limits.message")
		})
	})
}

func TestTaskCancel(t *testing.T) {
	each(t, func(t *testing.T, version string) {
		t.Run("obeyed", func(t *testing.T) {
			t.Parallel()
			var cancelled atomic.Bool
			up := taskScript{version: version, get: func(int) string {
				if cancelled.Load() {
					return `"status":"cancelled"`
				}
				return everyBit
			}, on: map[string]wire.Handler{"tasks/cancel": func(c *wire.Conn, r *wire.Request) {
				cancelled.Store(true)
				c.JSON(200, r.Result(`{`+taskMembers+`,"status":"cancelled"}`))
			}}}.start(t)
			g := newGateway(t, up.URL)
			c := g.start(call.Limits{})
			up.WaitRequest("tasks/get", 2, 0)
			began := time.Now()
			if err := c.Cancel(call.End{By: "agent", Text: "asked"}); err != nil {
				t.Fatal(err)
			}
			s := g.follow(c)
			s.want(t, call.Cancelled, "asked")
			if s.end.End.By != "agent" || time.Since(began) > 800*time.Millisecond {
				t.Errorf("%+v after %v", s.end.End, time.Since(began))
			}
			r := up.Requests("tasks/cancel")
			if len(r) != 1 || !strings.Contains(r[0].Body, `"taskId":"task 1/ü"`) || up.Count("notifications/cancelled") != 0 {
				t.Errorf("%d tasks/cancel, %d cancelled", len(r), up.Count("notifications/cancelled"))
			}
			if want := version == wire.Modern; (r[0].Header.Get("Mcp-Name") == mcp.EncodeHeader("task 1/ü")) != want {
				t.Errorf("Mcp-Name %q", r[0].Header.Get("Mcp-Name"))
			}
		})
		t.Run("too late", func(t *testing.T) { // O22
			t.Parallel()
			var over atomic.Bool
			up := taskScript{version: version, get: func(int) string {
				if over.Load() {
					return ended(version)
				}
				return everyBit
			}, on: map[string]wire.Handler{"tasks/cancel": func(c *wire.Conn, r *wire.Request) {
				over.Store(true)
				c.JSON(200, r.Fail("-32602", "it is over"))
			}}}.start(t)
			g := newGateway(t, up.URL)
			c := g.start(call.Limits{})
			up.WaitRequest("tasks/get", 1, 0)
			if err := c.Cancel(call.End{By: "agent"}); err != nil {
				t.Fatal(err)
			}
			g.follow(c).want(t, call.Cancelled, "")
			if _, _, kinds := messages(t, c); !slices.Contains(kinds, call.KindLateResult) {
				t.Errorf("the record has %v, without the late result", kinds)
			}
		})
		t.Run("unheard", func(t *testing.T) {
			t.Parallel()
			up := taskScript{version: version, get: steps(everyBit), on: map[string]wire.Handler{"tasks/cancel": wire.Hold}}.start(t)
			g := newGateway(t, up.URL)
			c := g.start(call.Limits{})
			up.WaitRequest("tasks/get", 1, 0)
			began := time.Now()
			if err := c.Cancel(call.End{By: "agent"}); err != nil {
				t.Fatal(err)
			}
			g.follow(c).want(t, call.Cancelled, "")
			if d := time.Since(began); d < 900*time.Millisecond || d > 3*time.Second {
				t.Errorf("it took %v", d)
			}
		})
	})
}

// A server that makes a task of a call that was cancelled meanwhile is told to
// cancel the task.
func TestTaskMadeAfterTheCancel(t *testing.T) {
	cancelled := make(chan struct{})
	up := taskScript{version: wire.Legacy, get: steps(`"status":"cancelled"`), on: map[string]wire.Handler{
		"notifications/cancelled": func(c *wire.Conn, r *wire.Request) {
			c.Status(202)
			close(cancelled)
		},
		"tools/call": func(c *wire.Conn, r *wire.Request) {
			<-cancelled
			c.Answer(r.Result(`{"task":{` + taskMembers + `,` + everyBit + `}}`))
		},
	}}.start(t)
	g := newGateway(t, up.URL)
	c := g.start(call.Limits{})
	up.WaitRequest("tools/call", 1, 0)
	if err := c.Cancel(call.End{By: "agent"}); err != nil {
		t.Fatal(err)
	}
	g.follow(c).want(t, call.Cancelled, "")
	if n := up.Count("tasks/cancel"); n != 1 {
		t.Errorf("%d tasks/cancel", n)
	}
}

// A server that wants to be asked later is.
func TestTaskRetryAfter(t *testing.T) {
	var n atomic.Int32
	up := taskScript{version: wire.Modern, on: map[string]wire.Handler{"tasks/get": func(c *wire.Conn, r *wire.Request) {
		if n.Add(1) == 1 {
			c.Status(429, "Retry-After: 1")
			return
		}
		c.JSON(200, r.Result(`{`+taskMembers+`,`+ended(wire.Modern)+`}`))
	}}}.start(t)
	g := newGateway(t, up.URL)
	g.follow(g.start(call.Limits{})).want(t, call.Completed, "worked")
	if r := up.Requests("tasks/get"); len(r) != 2 || r[1].Time.Sub(r[0].Time) < 950*time.Millisecond {
		t.Errorf("%d questions, the last after %v", len(r), r[len(r)-1].Time.Sub(r[0].Time))
	}
}
