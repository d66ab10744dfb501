package cases_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/test/wire"
)

// replayer is a tool server whose calls go on without anybody who reads them, and
// can be resumed by their event ids: n steps, then more once let is closed.
func replayer(t *testing.T, n int, let chan struct{}) *wire.Upstream {
	var up *wire.Upstream
	up = wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) {
		log := up.NewLog("call " + string(r.Msg.ID))
		all := steps("s", 2*n)
		for i, text := range all[:n] {
			log.Append(r.Progress(fmt.Sprint(i+1), fmt.Sprint(2*n), text))
		}
		go func() {
			<-let
			for i, text := range all[n:] {
				log.Append(r.Progress(fmt.Sprint(n+i+1), fmt.Sprint(2*n), text))
			}
			log.Append(r.Text("worked"))
			log.Finish()
		}()
		c.SSE()
		log.Serve(c, 0, 0)
	}}})
	return up
}

// longcall stops while agents of every kind wait. Each gets what its era
// can go on with; no task is lost, and after the restart all are answered by the
// one run of each.
func TestX14GracefulShutdown(t *testing.T) {
	t.Parallel()
	let := make(chan struct{})
	up := replayer(t, 2, let)
	dir := t.TempDir()
	config := fmt.Sprintf("shutdown: {drain: 300ms}\nclients: {x: {match: {client: \"tasker\"}, task_budget: 1s}}\nmcpServers: {up: {url: %q}}\n", up.URL)
	g := startIn(t, dir, config)

	legacy := g.client(wire.Legacy, "up")
	stream := legacy.Start(wire.Call{Token: "1", Args: `{"n":1}`})
	jsonOnly := g.client(wire.Legacy, "up")
	jsonOnly.Accept = wire.AcceptJSON
	piece := jsonOnly.Start(wire.Call{Args: `{"n":2}`})
	plain := g.client(wire.Modern, "up").Start(wire.Call{Token: "1", Args: `{"n":3}`})
	tasker := g.client(wire.Modern, "up")
	tasker.Caps, tasker.Name = withTasks, "tasker"
	task := tasker.Start(wire.Call{Token: "1", Args: `{"n":4}`}).Response(0).Str("result.taskId")
	if task == "" {
		t.Fatal("no task")
	}
	later := g.client(wire.Modern, "up")
	later.Caps = withTasks
	declared := later.Start(wire.Call{Token: "1", Args: `{"n":5}`})
	get := legacy.Listen("")
	listen := tasker.Do(wire.HTTP{
		Body:   tasker.Message(`"sub"`, "subscriptions/listen", `"notifications":{"taskIds":["`+task+`"],"toolsListChanged":true}`, ""),
		Header: map[string]string{"Mcp-Protocol-Version": wire.Modern, "Mcp-Method": "subscriptions/listen"},
	})
	listen.WaitItems(1, 0)
	for _, x := range []*wire.Exchange{stream, plain, declared} {
		x.WaitMessages(progressMethod, 2, 0)
	}
	up.WaitRequest("tools/call", 5, 0)

	began := time.Now()
	g.stop()
	if d := time.Since(began); d > 10*time.Second {
		t.Errorf("it took %v to stop", d)
	}
	// A session's streams end with a hint when to come back, without a response.
	if err := stream.End(0); err != nil {
		t.Errorf("the stream was cut: %v", err)
	}
	items := stream.Items()
	if items[len(items)-1].Retry == "" {
		t.Errorf("no retry (R-64): %q", stream.Body())
	}
	if _, ok := stream.WaitResponse(time.Millisecond); ok {
		t.Errorf("a response came: %q", stream.Body())
	}
	if err := get.End(0); err != nil {
		t.Errorf("the session's stream was cut: %v", err)
	}
	// One without a stream, and modern ones, are handed off.
	for name, x := range map[string]*wire.Exchange{"JSON": piece, "modern": plain} {
		if m := x.Response(0); !strings.Contains(m.ToolText(), "await_call") || !strings.Contains(m.ToolText(), "has not finished") {
			t.Errorf("%s: %s", name, m.JSON)
		}
	}
	made := declared.Response(0).Str("result.taskId")
	if made == "" {
		t.Errorf("no task for one who takes tasks: %s", declared.Response(0).JSON)
	}
	// A listener gets a result, which names the subscription.
	if m := listen.Response(0); string(m.ID) != `"sub"` || m.Result == nil || !strings.Contains(m.JSON, "subscriptionId") {
		t.Errorf("the listener got %s", m.JSON)
	}
	if n := up.Count(cancelledMethod); n != 0 {
		t.Errorf("%d cancels", n)
	}

	g = startIn(t, dir, config)
	ask := func(dn *wire.Client, id string) wire.Msg {
		return dn.Do(wire.HTTP{
			Body:   dn.Message("9", "tasks/get", `"taskId":"`+id+`"`, ""),
			Header: map[string]string{"Mcp-Protocol-Version": wire.Modern, "Mcp-Method": "tasks/get", "Mcp-Name": id},
		}).Response(0)
	}
	moved := func(dn *wire.Client) *wire.Client {
		c := wire.NewClient(t, g.app.URL()+"/mcp/up", dn.Version)
		c.Session, c.Caps, c.Name, c.Accept = dn.Session, dn.Caps, dn.Name, dn.Accept
		return c
	}
	legacy, jsonOnly, tasker, later = moved(legacy), moved(jsonOnly), moved(tasker), moved(later)
	for _, id := range []string{task, made} {
		if m := ask(tasker, id); m.Str("result.status") != "working" {
			t.Errorf("the task is %s", m.JSON)
		}
	}
	resumed := legacy.Listen(lastID(stream))
	again := jsonOnly.Start(wire.Call{Args: `{"n":2}`}) // was handed off: the same call
	reissued := later.Start(wire.Call{Args: `{"n":3}`}) // another agent of the same principal
	resumed.WaitItems(1, 0)
	close(let)
	answeredAs(t, resumed, stream.ID, "worked")
	if got, want := strings.Join(append(texts(stream), texts(resumed)...), ","), strings.Join(steps("s", 4), ","); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	answered(t, again, "worked")
	if m := reissued.Response(0); m.ToolText() != "worked" {
		t.Errorf("the re-issued call got %s", m.JSON)
	}
	for _, id := range []string{task, made} {
		soon(t, "the end of the task", func() bool { return ask(tasker, id).Str("result.status") == "completed" })
		if m := ask(tasker, id); m.Str("result.result.content.0.text") != "worked" {
			t.Errorf("the task ended as %s", m.JSON)
		}
	}
	if n := up.Count("tools/call"); n != 5 {
		t.Errorf("sent %d times, not 5", n)
	}
	for _, r := range g.allEnded(5) {
		if r.End.Outcome != call.Completed {
			t.Errorf("call %s ended as %+v", r.ID, r.End)
		}
	}
}
