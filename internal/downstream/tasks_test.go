package downstream

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/call/calltest"
	"github.com/longcall/longcall/internal/mcp"
)

const tasksMeta = `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}`

// tasked is a request of 2026-07-28 that declares the tasks extension.
func tasked(method, params string) string {
	if params != "" {
		params += ","
	}
	return `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{` + params + `"_meta":{` + tasksMeta + `}}}`
}

func aboutTask(method, id, more string) string { return tasked(method, `"taskId":"`+id+`"`+more) }

// tasksRig hands modern calls off after 8 s, and every call that may be.
func tasksRig(t testing.TB) *rig {
	r := newRig(t)
	r.h.opt.Profile = func(_, _, _ string) Profile { return Profile{Tasks: true, TaskBudget: 8 * time.Second} }
	r.decide = func(_, _, _ string, modern bool) Decision {
		return Decision{CancelOnDisconnect: modern, HandOff: true, Grace: time.Second}
	}
	return r
}

// on gives the rig another log, as a process with that epoch would have it.
func (r *rig) on(log call.Log, epoch uint64) {
	r.eng = call.NewEngine(log, r, call.Options{Epoch: epoch})
	r.h.opt.Engine = r.eng
}

// request makes one for ServeHTTP, of ann.
func request(ctx context.Context, httpMethod, body string, header ...string) *http.Request {
	req := httptest.NewRequest(httpMethod, "/mcp/up", strings.NewReader(body)).WithContext(ctx)
	req.Header.Set("Authorization", "Bearer ann")
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return req
}

// ask serves a request of 2026-07-28 about a task, and gives the answer.
func (r *rig) ask(method, id, more string) string {
	w := httptest.NewRecorder()
	h := append(modern(method, id), "Accept", "application/json")
	r.h.ServeHTTP(w, request(context.Background(), "POST", aboutTask(method, id, more), h...))
	return w.Body.String()
}

// detail is a task as an agent sees it.
type detail struct {
	TaskID, Status, StatusMessage, LastUpdatedAt string
	TTLMs, PollIntervalMs                        int64
	Result, InputRequests                        json.RawMessage
	Error                                        *struct {
		Code    int
		Message string
		Data    map[string]any
	}
}

func (r *rig) get(id string) (d detail) {
	r.t.Helper()
	body := r.ask(methodTasksGet, id, "")
	var m struct{ Result detail }
	if err := json.Unmarshal([]byte(body), &m); err != nil || m.Result.TaskID != id {
		r.t.Fatalf("tasks/get: %s (%v)", body, err)
	}
	return m.Result
}

// watchedWriter calls a function before the first write that holds a text.
type watchedWriter struct {
	*httptest.ResponseRecorder
	text string
	call func(body string)
}

func (w *watchedWriter) Write(b []byte) (int, error) {
	if f := w.call; f != nil && strings.Contains(string(b), w.text) {
		w.call = nil
		f(string(b))
	}
	return w.ResponseRecorder.Write(b)
}

// TestTaskResolvesFirst is X-6: the task can be asked for before its id is
// written, and after a kill right then it is still there, with an end.
func TestTaskResolvesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := calltest.NewMemory()
		r := tasksRig(t)
		r.on(log, 1)
		r.tools["work"] = func(ctx context.Context, x *call.Exec) call.Answer {
			_ = x.Dispatched()
			<-ctx.Done()
			return call.Answer{}
		}
		var id string
		w := &watchedWriter{ResponseRecorder: httptest.NewRecorder(), text: `"resultType":"task"`}
		w.call = func(body string) {
			id = taskIDs.FindStringSubmatch(body)[1]
			if d := r.get(id); d.Status != taskWorking {
				t.Errorf("before the answer is written: %+v", d)
			}
			log.Crash() // what is not safe by now is lost
		}
		r.h.ServeHTTP(w, request(t.Context(), "POST", tasked("tools/call", `"name":"work"`), modern("tools/call", "work")...))
		if id == "" {
			t.Fatalf("no task: %s", w.Body)
		}

		after := tasksRig(t)
		after.on(log, 2)
		if _, lost, err := after.eng.Recover(t.Context()); lost != 1 || err != nil {
			t.Fatalf("recovered: %d lost, %v", lost, err)
		}
		d := after.get(id)
		if d.Status != taskFailed || d.Error == nil || d.Error.Code != mcp.CodeInternal || d.Error.Data["outcome"] != "unknown" || d.Result != nil {
			t.Errorf("after the restart: %+v", d)
		}
		after.stop()
		r.stop()
	})
}

// TestTaskEnds: a task ends as its call would have been answered, and a
// tasks/get that tells of the end delivers it.
func TestTaskEnds(t *testing.T) {
	own := func(e call.End) script {
		return func(_ context.Context, x *call.Exec) call.Answer { _ = x.Dispatched(); return call.Answer{End: e} }
	}
	raw := func(s string) script {
		return func(_ context.Context, x *call.Exec) call.Answer { return reply(x, s) }
	}
	for _, test := range []struct {
		name   string
		run    script
		status string
		want   string // of result or error
	}{
		{"result", raw(okResult), taskCompleted, `{"resultType":"complete","content":[{"type":"text","text":"done"}]}`},
		{"empty result", raw(`{"result":{},"jsonrpc":"2.0","id":0}`), taskCompleted, `{"resultType":"complete"}`},
		{"modern result", raw(`{"jsonrpc":"2.0","id":0,"result":{"content":[],"resultType":"complete","n":9007199254740993}}`), taskCompleted, `{"content":[],"resultType":"complete","n":9007199254740993}`},
		{"large result", raw(`{"jsonrpc":"2.0","result":{"a":"` + strings.Repeat("x", 10_000) + `"},"id":0}`), taskCompleted, `{"resultType":"complete","a":"` + strings.Repeat("x", 10_000) + `"}`},
		{"error", raw(`{"jsonrpc":"2.0","id":0,"error":{"code":-32002,"message":"no","data":{"x":1}}}`), taskFailed, `{"code":-32602,"message":"no","data":{"x":1}}`},
		{"limit", own(call.End{Outcome: call.TimedOut, Limit: "idle", Text: "Stopped."}), taskCompleted, `{"resultType":"complete","content":[{"type":"text","text":"Stopped."}],"isError":true,"_meta":{"dev.longcall/outcome":{"outcome":"timed_out","limit":"idle","call":"$ID"}}}`},
		{"unreachable", own(call.End{Outcome: call.Failed, Limit: "connect", Text: "Not reached."}), taskCompleted, `{"resultType":"complete","content":[{"type":"text","text":"Not reached."}],"isError":true,"_meta":{"dev.longcall/outcome":{"outcome":"failed","limit":"connect","call":"$ID"}}}`},
		{"lost", own(call.End{Outcome: call.Interrupted, Text: "Lost."}), taskFailed, `{"code":-32603,"message":"Lost.","data":{"outcome":"unknown","call":"$ID"}}`},
		{"asks for input (A17)", func(_ context.Context, x *call.Exec) call.Answer {
			a := reply(x, `{"jsonrpc":"2.0","id":0,"result":{"resultType":"input_required","inputRequests":{}}}`)
			a.Text = "It asked."
			return a
		}, taskCompleted, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := tasksRig(t)
			r.tools["work"] = test.run
			c, _, err := r.eng.Attach(t.Context(), call.Spec{Principal: "ann", Server: "up", Tool: "work", Digest: "digest"})
			if err != nil {
				t.Fatal(err)
			}
			c.Leave(call.Delivery{Call: c.ID(), How: call.HandedOff}, -1)
			until(t, "end", func() bool { return r.eng.InFlight() == 0 })
			id := string(c.ID())
			d := r.get(id)
			got := string(d.Result)
			var m struct {
				Result struct{ Error json.RawMessage }
			}
			if d.Error != nil {
				_ = json.Unmarshal([]byte(r.ask(methodTasksGet, id, "")), &m)
				got = string(m.Result.Error)
			}
			if want := strings.ReplaceAll(test.want, "$ID", id); d.Status != test.status || want != "" && got != want {
				t.Errorf("%s\n%s\nwant %s\n%s", d.Status, got, test.status, want)
			}
			if strings.Contains(got, taskInput) || got == "" {
				t.Errorf("result %q", got)
			}
			if rec := c.Record(); !rec.Delivered {
				t.Error("not delivered")
			}
			if hows := fmt.Sprint(r.log.hows()[:2]); hows != "[handed_off delivered]" {
				t.Errorf("deliveries %s", hows)
			}
			again, join, err := r.eng.Attach(t.Context(), call.Spec{Principal: "ann", Server: "up", Tool: "work", Digest: "digest"})
			if err != nil || join != call.Started {
				t.Errorf("an equal call after that: join %v, %v", join, err)
			}
			again.Leave(call.Delivery{}, -1)
		})
	}
}

// TestTaskStatus: what changes moves the time of the last change, nothing else
// does; the interval grows, the ttl never shrinks (A23).
func TestTaskStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := tasksRig(t)
		step := make(chan string)
		r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer {
			_ = x.Dispatched()
			for s := range step {
				_ = progress(x, s)
			}
			return reply(x, okResult)
		}
		c, err := r.eng.Start(t.Context(), call.Spec{Principal: "ann", Server: "up", Tool: "work"})
		if err != nil {
			t.Fatal(err)
		}
		id := string(c.ID())
		first := r.get(id)
		time.Sleep(5 * time.Second)
		if d := r.get(id); d.LastUpdatedAt != first.LastUpdatedAt || d.StatusMessage != first.StatusMessage || d.PollIntervalMs != 1000 {
			t.Errorf("nothing happened: %+v, then %+v", first, d)
		}
		step <- `"progress":1,"total":4`
		synctest.Wait()
		second := r.get(id)
		if second.StatusMessage != "Progress: 1 of 4" || second.LastUpdatedAt == first.LastUpdatedAt {
			t.Errorf("after progress: %+v", second)
		}
		step <- `"progress":2,"message":"two\nlines"`
		synctest.Wait()
		if d := r.get(id); d.StatusMessage != "two lines" {
			t.Errorf("after a message: %+v", d)
		}
		time.Sleep(time.Hour)
		third := r.get(id)
		if third.PollIntervalMs != 15000 || third.TTLMs < second.TTLMs {
			t.Errorf("after an hour: %+v", third)
		}
		close(step)
		synctest.Wait()
		time.Sleep(time.Hour)
		last := r.get(id)
		if last.Status != taskCompleted || last.TTLMs < third.TTLMs || last.Result == nil {
			t.Errorf("at its end: %+v", last)
		}
		time.Sleep(time.Hour)
		if d := r.get(id); d.LastUpdatedAt != last.LastUpdatedAt || d.TTLMs != last.TTLMs {
			t.Errorf("after its end: %+v, then %+v", last, d)
		}
		r.stop()
	})
}

// TestTaskOwner is X-11: another principal's task, one that never was and what is
// no id look the same, to every method of both generations.
func TestTaskOwner(t *testing.T) {
	r := tasksRig(t)
	g := newGate()
	r.tools["work"] = g.run
	mine, err := r.eng.Start(t.Context(), call.Spec{Principal: "bob", Server: "up", Tool: "work"})
	if err != nil {
		t.Fatal(err)
	}
	c := r.serve()
	for _, method := range []string{methodTasksGet, methodTasksUpdate, methodTasksCancel} {
		answers := map[string]bool{}
		for _, id := range []string{string(mine.ID()), string(call.NewID()), "x", "c_" + strings.Repeat("é", 13)} {
			h := modern(method, mcp.EncodeHeader(id))
			status, body := c.post("/mcp", aboutTask(method, id, `,"inputResponses":{}`), h...)
			answers[fmt.Sprint(status, body)] = true
			if !strings.Contains(body, "-32602") {
				t.Errorf("%s: %s", method, body)
			}
		}
		if len(answers) != 1 {
			t.Errorf("%s: %v", method, answers)
		}
	}
	c.open("/mcp", mcp.V20251125)
	for _, method := range []string{methodTasksGet, methodTasksResult, methodTasksCancel} {
		answers := map[string]bool{}
		for _, id := range []string{string(mine.ID()), string(call.NewID()), "x"} {
			_, body := c.post("/mcp", `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":{"taskId":"`+id+`"}}`)
			answers[body] = true
			if !strings.Contains(body, "-32602") {
				t.Errorf("%s: %s", method, body)
			}
		}
		if len(answers) != 1 {
			t.Errorf("%s: %v", method, answers)
		}
	}
	if r.eng.InFlight() != 1 || mine.Record().End.Outcome != call.Running {
		t.Error("somebody else's cancel ended the call")
	}
}

// TestTasksOff: a client whose profile has tasks off is offered none, of either
// generation, and its task param means nothing.
func TestTasksOff(t *testing.T) {
	r := tasksRig(t)
	r.h.opt.Profile = func(_, _, _ string) Profile { return Profile{TaskBudget: 1} }
	r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer { return reply(x, okResult) }
	c := r.serve()
	if _, body := c.post("/mcp", tasked(mcp.MethodDiscover, ""), modern(mcp.MethodDiscover, "")...); strings.Contains(body, extensionTasks) {
		t.Errorf("discover: %s", body)
	}
	status, h, body := c.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`)
	c.session = h.Get(mcp.HeaderSession)
	if status != 200 || strings.Contains(body, `"tasks"`) {
		t.Errorf("initialize: %d %s", status, body)
	}
	for _, method := range []string{methodTasksGet, methodTasksResult, methodTasksCancel, methodTasksList} {
		if _, body := c.post("/mcp", `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":{"taskId":"x"}}`); !strings.Contains(body, "-32601") {
			t.Errorf("%s: %s", method, body)
		}
	}
	if _, body := c.post("/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`); strings.Contains(body, "execution") {
		t.Errorf("tools: %s", body)
	}
	if _, body := c.post("/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"up__work","task":{}}}`); !strings.Contains(body, "done") {
		t.Errorf("call: %s", body)
	}
}

// TestNoListWithoutOwners: where nobody says who they are, tasks are not listed.
func TestNoListWithoutOwners(t *testing.T) {
	r := tasksRig(t)
	r.h.opt.Anonymous = true
	c := r.serve()
	c.open("/mcp", mcp.V20251125)
	if _, body := c.post("/mcp", `{"jsonrpc":"2.0","id":1,"method":"tasks/list"}`); !strings.Contains(body, "-32601") {
		t.Errorf("list: %s", body)
	}
}

// TestTaskNotKept: a call that could not be found again is never made a task.
func TestTaskNotKept(t *testing.T) {
	r := tasksRig(t)
	r.log.createErr = io.ErrShortWrite
	r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer { return reply(x, okResult) }
	c := r.serve()
	c.open("/mcp", mcp.V20251125)
	if _, body := c.post("/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"up__work","task":{}}}`); !strings.Contains(body, "done") {
		t.Errorf("call: %s", body)
	}
}

// TestTaskList: pages of handed-off calls, newest first, each once.
func TestTaskList(t *testing.T) {
	r := tasksRig(t)
	r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer { return reply(x, okResult) }
	want := map[string]bool{}
	for i := range 2*listPage + 20 {
		c, _, err := r.eng.Attach(t.Context(), call.Spec{Principal: "ann", Server: "up", Tool: "work", Attach: call.AttachNever})
		if err != nil {
			t.Fatal(err)
		}
		d := call.Delivery{Call: c.ID(), How: call.Delivered}
		if i%2 == 0 {
			d.How = call.HandedOff
			want[string(c.ID())] = true
		}
		c.Leave(d, -1)
	}
	c := r.serve()
	c.open("/mcp", mcp.V20251125)
	cursor, pages := "", 0
	for ; pages == 0 || cursor != ""; pages++ {
		params := ""
		if cursor != "" {
			params = `,"params":{"cursor":"` + cursor + `"}`
		}
		_, body := c.post("/mcp", `{"jsonrpc":"2.0","id":1,"method":"tasks/list"`+params+`}`)
		var m struct {
			Result struct {
				Tasks      []struct{ TaskID string }
				NextCursor string
			}
		}
		if err := json.Unmarshal([]byte(body), &m); err != nil || len(m.Result.Tasks) == 0 || len(m.Result.Tasks) > listPage {
			t.Fatalf("page %d: %s (%v)", pages, body, err)
		}
		for _, task := range m.Result.Tasks {
			if !want[task.TaskID] {
				t.Errorf("page %d has %s", pages, task.TaskID)
			}
			delete(want, task.TaskID)
		}
		if cursor = m.Result.NextCursor; cursor != "" {
			if _, body := c.post("/mcp", `{"jsonrpc":"2.0","id":1,"method":"tasks/list","params":{"cursor":"`+cursor+`"}}`, "Authorization", "Bearer bob"); !strings.Contains(body, "not known") {
				t.Errorf("of somebody else: %s", body)
			}
		}
	}
	if len(want) != 0 || pages != 2 {
		t.Errorf("%d pages, %d tasks not listed", pages, len(want))
	}
}

// TestTaskCancelStays: the reply to tasks/cancel of 2025-11-25 says cancelled also
// while the tool server does not stop, and so it stays.
func TestTaskCancelStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := tasksRig(t)
		r.tools["work"] = func(ctx context.Context, x *call.Exec) call.Answer {
			_ = x.Dispatched()
			<-ctx.Done()
			time.Sleep(10 * time.Second)
			return reply(x, okResult)
		}
		c, err := r.eng.Start(t.Context(), call.Spec{Principal: "ann", Server: "up", Tool: "work"})
		if err != nil {
			t.Fatal(err)
		}
		session := r.session(mcp.V20251125)
		ask := func(method string) string {
			w := httptest.NewRecorder()
			r.h.ServeHTTP(w, request(t.Context(), "POST", `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":{"taskId":"`+string(c.ID())+`"}}`, mcp.HeaderSession, session, "Accept", "application/json"))
			return w.Body.String()
		}
		start := time.Now()
		if body := ask(methodTasksCancel); !strings.Contains(body, `"status":"cancelled"`) || time.Since(start) != cancelWait {
			t.Errorf("after %s: %s", time.Since(start), body)
		}
		if body := ask(methodTasksCancel); !strings.Contains(body, "-32602") {
			t.Errorf("again: %s", body)
		}
		if body := ask(methodTasksGet); !strings.Contains(body, `"status":"cancelled"`) {
			t.Errorf("get: %s", body)
		}
		if body := ask(methodTasksResult); !strings.Contains(body, "-32603") || !strings.Contains(body, "was cancelled") {
			t.Errorf("result: %s", body)
		}
		r.stop()
	})
}

// session opens one of ann.
func (r *rig) session(version string) string {
	r.t.Helper()
	w := httptest.NewRecorder()
	r.h.ServeHTTP(w, request(context.Background(), "POST", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"`+version+`","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`))
	s := w.Header().Get(mcp.HeaderSession)
	if s == "" {
		r.t.Fatalf("initialize: %s", w.Body)
	}
	return s
}

// TestTaskResult: tasks/result waits with beats, shows progress on the token of
// the request that made the task, and names the task in all of it.
func TestTaskResult(t *testing.T) {
	const call1 = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"work","task":{},"_meta":{"progressToken":"p"}}}`
	for name, token := range map[string]string{"original": "", "own": `,"_meta":{"progressToken":5}`} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := tasksRig(t)
				r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer {
					_ = x.Dispatched()
					time.Sleep(12 * time.Second)
					_ = progress(x, `"progress":1`)
					time.Sleep(11 * time.Second)
					return reply(x, `{"jsonrpc":"2.0","id":0,"result":{"resultType":"complete"}}`)
				}
				session := r.session(mcp.V20251125)
				w := httptest.NewRecorder()
				r.h.ServeHTTP(w, request(t.Context(), "POST", call1, mcp.HeaderSession, session))
				id := taskIDs.FindStringSubmatch(w.Body.String())[1]
				tape := newTape()
				r.h.ServeHTTP(tape, request(t.Context(), "POST", `{"jsonrpc":"2.0","id":"r","method":"tasks/result","params":{"taskId":"`+id+`"`+token+`}}`, mcp.HeaderSession, session))
				got := strings.ReplaceAll(tape.text(), id, "$ID")
				const related = `"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"$ID"}}`
				shown, beats := `"params":{`+related+`,"progressToken":"p","progress":1}`, 0
				if name == "own" {
					shown, beats = `"params":{"progressToken":5,"progress":1}`, 2
				}
				for _, want := range []string{shown, "\n5 : ka\n", `{"jsonrpc":"2.0","id":"r","result":{` + related + `}}`} {
					if !strings.Contains(got, want) {
						t.Errorf("no %s", want)
					}
				}
				if strings.Count(got, "still running") != beats || t.Failed() {
					t.Errorf("got\n%s", got)
				}
				r.stop()
			})
		})
	}
}

// TestTaskResultResumes: the stream of a tasks/result is resumed as one.
func TestTaskResultResumes(t *testing.T) {
	r := tasksRig(t)
	g := newGate()
	r.tools["work"] = g.run
	c := r.serve()
	c.open("/mcp", mcp.V20251125)
	_, body := c.post("/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"up__work","task":{}}}`)
	id := taskIDs.FindStringSubmatch(body)[1]
	ctx, cancel := context.WithCancel(t.Context())
	_, stream := c.stream(ctx, "POST", "/mcp", `{"jsonrpc":"2.0","id":2,"method":"tasks/result","params":{"taskId":"`+id+`"}}`)
	event := ""
	for event == "" {
		line, err := stream.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if place, ok := strings.CutPrefix(line, "id: "); ok {
			event = strings.TrimSpace(place)
		}
	}
	cancel()
	close(g.end)
	until(t, "end", func() bool { return r.eng.InFlight() == 0 })
	status, _, rest := c.do("GET", "/mcp", "", mcp.HeaderLastEvent, event)
	want := `"id":2,"result":{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"` + id + `"}},"content"`
	if status != 200 || !strings.Contains(rest, want) {
		t.Errorf("resumed: %d %s", status, rest)
	}
}

// TestTaskStatusNotifications: the session's stream tells of its tasks.
func TestTaskStatusNotifications(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := tasksRig(t)
		r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer {
			_ = x.Dispatched()
			for i := range 20 {
				time.Sleep(100 * time.Millisecond)
				_ = progress(x, fmt.Sprintf(`"progress":%d`, i))
			}
			return reply(x, okResult)
		}
		session, other := r.session(mcp.V20251125), r.session(mcp.V20251125)
		told, quiet := newTape(), newTape()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{}, 2)
		for s, w := range map[string]*tape{session: told, other: quiet} {
			go func() {
				r.h.ServeHTTP(w, request(ctx, "GET", "", mcp.HeaderSession, s))
				done <- struct{}{}
			}()
		}
		synctest.Wait()
		r.h.ServeHTTP(httptest.NewRecorder(), request(t.Context(), "POST", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"work","task":{}}}`, mcp.HeaderSession, session))
		time.Sleep(10 * time.Second)
		cancel()
		<-done
		<-done
		text := told.text()
		n := strings.Count(text, methodTaskStatus)
		if n < 3 || n > 6 || !strings.Contains(text, `"status":"completed"`) || strings.Contains(text, `"result"`) {
			t.Errorf("%d notifications:\n%s", n, text)
		}
		if q := quiet.text(); strings.Contains(q, "task") {
			t.Errorf("another session heard: %s", q)
		}
		r.stop()
	})
}
