package upstream_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/call/calltest"
	"github.com/longcall/longcall/internal/mcp"
	"github.com/longcall/longcall/internal/upstream"
	"github.com/longcall/longcall/test/wire"
)

// A call that was made a task goes on after a restart, in the session that it
// lives in, and is left alone by a process that stops.
func TestTaskOutlivesTheProcess(t *testing.T) {
	for _, kill := range []bool{true, false} {
		t.Run(fmt.Sprintf("kill=%v", kill), func(t *testing.T) {
			t.Parallel()
			each(t, func(t *testing.T, version string) {
				var state atomic.Value
				state.Store(everyBit + `,"statusMessage":"one"`)
				var request atomic.Value
				w := &world{t: t, log: calltest.NewMemory()}
				w.up = taskScript{
					version: version, get: func(int) string { return state.Load().(string) },
					on: map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) {
						request.Store(r)
						if version == wire.Modern {
							c.Answer(r.Result(`{"resultType":"task",` + taskMembers + `,` + everyBit + `}`))
							return
						}
						// A stream with ids: they do not count any more once there is a task.
						c.SSE()
						c.EventID("a", r.Progress("0.5", "", "first"))
						c.EventID("b", r.Result(`{"task":{`+taskMembers+`,`+everyBit+`}}`))
						c.End()
					}},
				}.start(t)
				l := w.begin()
				c := l.start("a", call.Limits{})
				f := &follower{t: t, id: c.ID(), epoch: 1}
				l.addressed(c.ID())
				f.read(l, func(ev call.Event) bool {
					m, _ := mcp.Parse(ev.Body)
					return ev.Kind == call.KindProgress && string(m.Text.Of(m.Raw)) == `"one"`
				})
				w.log.Sync()
				if kill {
					l.kill()
				} else {
					l.end()
				}
				state.Store(everyBit + `,"statusMessage":"two"`)
				polls := w.up.Count("tasks/get")
				l = w.next(1, 0)
				w.up.WaitRequest("tasks/get", polls+2, 0)
				if version == wire.Legacy { // its token holds to the end
					w.up.Stream().Event(request.Load().(*wire.Request).Progress("3", "4", "by the token"))
					f.readStep(l, 3)
				}
				state.Store(ended(version))
				if e := f.readEnd(l); e.Outcome != call.Completed {
					t.Errorf("ended as %+v", e)
				}
				if body := string(f.events[len(f.events)-1].Body); !strings.Contains(body, "worked") {
					t.Errorf("the result is %s", body)
				}
				for key, n := range map[string]int{"tools/call": 1, "tasks/cancel": 0, "notifications/cancelled": 0, "DELETE": 0} {
					if got := w.up.Count(key); got != n {
						t.Errorf("%d requests %s, not %d", got, key, n)
					}
				}
				for _, r := range w.up.Requests("tasks/get") {
					if got := r.Header.Get("Mcp-Session-Id"); got != "session-0" && version == wire.Legacy {
						t.Errorf("asked in session %q", got)
					}
				}
				if version == wire.Legacy { // the session still knows what it can do
					next := l.start("b", call.Limits{})
					w.up.WaitRequest("tools/call", 2, 0)
					if body := w.up.Requests("tools/call")[1].Body; !strings.Contains(body, `"task":{`) {
						t.Errorf("the next call was %s", body)
					}
					f := &follower{t: t, id: next.ID(), epoch: 2}
					f.readEnd(l)
				}
			})
		})
	}
}

// A server that has another address now is not asked about a task.
func TestTaskOfAnotherServer(t *testing.T) {
	w := &world{t: t, log: calltest.NewMemory()}
	w.up = taskScript{version: wire.Modern, get: steps(everyBit)}.start(t)
	l := w.begin()
	c := l.start("a", call.Limits{})
	l.addressed(c.ID())
	w.log.Sync()
	l.kill()
	w.edit = func(s *upstream.Server) { s.URL += "?moved" }
	polls := w.up.Count("tasks/get")
	l = w.next(0, 1)
	f := &follower{t: t, id: c.ID(), epoch: 1}
	if e := f.readEnd(l); e.Outcome != call.Interrupted || w.up.Count("tasks/get") != polls {
		t.Errorf("%+v after %d questions", e, w.up.Count("tasks/get")-polls)
	}
}

// A server that keeps tasks longer than sessions is asked in a new session.
func TestTaskSurvivesItsSession(t *testing.T) {
	var gone atomic.Bool
	up := taskScript{version: wire.Legacy, on: map[string]wire.Handler{
		"tasks/get": func(c *wire.Conn, r *wire.Request) {
			switch {
			case r.Header.Get("Mcp-Session-Id") == "old" && gone.Load():
				c.JSON(404, `{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}`)
			case gone.Load():
				c.JSON(200, r.Result(`{`+taskMembers+`,"status":"completed"}`))
			default:
				gone.Store(true)
				c.JSON(200, r.Result(`{`+taskMembers+`,`+everyBit+`}`))
			}
		},
		"initialize": func(c *wire.Conn, r *wire.Request) {
			id := map[bool]string{false: "old", true: "new"}[gone.Load()]
			c.JSON(200, r.Result(`{"protocolVersion":"2025-11-25","capabilities":{"tasks":`+taskCaps+`},"serverInfo":{"name":"up","version":"1"}}`), "Mcp-Session-Id: "+id)
		},
	}}.start(t)
	g := newGateway(t, up.URL)
	c := g.start(call.Limits{})
	g.follow(c).want(t, call.Completed, "worked")
	if n := up.Count("initialize"); n != 2 || !strings.Contains(string(c.Record().Address), `"session":"new"`) {
		t.Errorf("%d sessions; the address is %s", n, c.Record().Address)
	}
}

// What a stateless server asks for is asked, and its answers go back to it, each
// key once.
func TestTaskInput(t *testing.T) {
	var mu sync.Mutex
	open := map[string]bool{"a": true, "b": true}
	refuse := true
	up := taskScript{version: wire.Modern, create: `"status":"input_required","pollIntervalMs":60000`, get: func(n int) string {
		mu.Lock()
		defer mu.Unlock()
		if !open["b"] {
			return ended(wire.Modern)
		}
		// An answered key may still be listed for a while.
		return `"status":"input_required","pollIntervalMs":60000,"inputRequests":{"a":{"method":"elicitation/create","params":{"n":9007199254740993}},
			"b":{"method":"roots/list"}}`
	}, on: map[string]wire.Handler{"tasks/update": func(c *wire.Conn, r *wire.Request) {
		mu.Lock()
		defer mu.Unlock()
		var p struct {
			TaskID         string
			InputResponses map[string]json.RawMessage
		}
		if err := json.Unmarshal(r.Params, &p); err != nil || p.TaskID != "task 1/ü" || r.Header.Get("Mcp-Name") != mcp.EncodeHeader(p.TaskID) {
			c.JSON(200, r.Fail("-32602", "bad"))
			return
		}
		if refuse {
			refuse = false
			c.JSON(200, r.Fail("-32602", "not like that"))
			return
		}
		for k, v := range p.InputResponses {
			if string(v) != `{"action":"accept","n":9007199254740993}` {
				t.Errorf("the answer %s became %s", k, v)
			}
			delete(open, k)
		}
		c.JSON(200, r.Result(`{}`))
	}}}.start(t)
	g := newGateway(t, up.URL)
	c := g.start(call.Limits{})
	asked := func(want string) {
		t.Helper()
		over := time.After(10 * time.Second)
		for string(c.Asked()) != want {
			select {
			case <-over:
				t.Fatalf("asked %s, not %s", c.Asked(), want)
			case <-time.After(time.Millisecond):
			}
		}
	}
	a := `"a":{"method":"elicitation/create","params":{"n":9007199254740993}}`
	b := `"b":{"method":"roots/list"}`
	asked("{" + a + "," + b + "}")
	answer := func(key string) {
		t.Helper()
		if err := c.Answer([]byte(`{"`+key+`":{"action":"accept","n":9007199254740993}}`), []byte(`["`+key+`"]`)); err != nil {
			t.Fatal(err)
		}
	}
	answer("a")
	up.WaitRequest("tasks/get", 2, 0)
	asked("{" + a + "," + b + "}") // it was refused
	answer("a")
	asked("{" + b + "}")
	answer("b")
	s := g.follow(c)
	s.want(t, call.Completed, "worked")
	if len(s.notes) != 1 || !strings.Contains(s.notes[0], "not like that") {
		t.Errorf("notes %q", s.notes)
	}
	if n := up.Count("tasks/update"); n != 3 {
		t.Errorf("%d tasks/update", n)
	}
}
