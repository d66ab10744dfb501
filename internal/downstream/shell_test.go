package downstream

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/command"
	"github.com/longcall/longcall/internal/mcp"
)

// onShell runs f on fake time with a shell, as an agent of each era.
func onShell(t *testing.T, f func(t *testing.T, r *rig, s *scripted, o asker)) {
	t.Helper()
	for _, version := range []string{mcp.V20250326, mcp.V20250618, mcp.V20251125, mcp.V20260728} {
		t.Run(version, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				s := withShell(r)
				o := asker{t: t, r: r}
				if version != mcp.V20260728 {
					o.session = r.sessionAtAll(version)
				}
				f(t, r, s, o)
				r.stop()
			})
		})
	}
}

// SHELL §7, D1, D4, D5, D8: a silent command is answered with SSE at once, and at
// 3 s with a running handle that is no error and no success.
func TestShellYield(t *testing.T) {
	onShell(t, func(t *testing.T, r *rig, s *scripted, o asker) {
		w, c := o.exec(t.Context(), "1", `{"command":"sleep 20s; exit 0"}`)
		text := w.text()
		if !strings.HasPrefix(text, "0 : open") {
			t.Errorf("the first byte:\n%s", text)
		}
		if w.lastAt() != "3" || w.header.Get("Content-Type") != "text/event-stream" {
			t.Errorf("not at 3 s as SSE:\n%s", text)
		}
		res := c.Result
		if res.IsError || res.Structured.State != "running" || res.Structured.ExitCode != nil || c.Error != nil {
			t.Errorf("%+v", c)
		}
		if string(res.Meta[metaKeyHandOff]) == "" || res.Meta[mcp.MetaKeyOutcome] != nil {
			t.Errorf("_meta %s", res.Meta)
		}
		links := slices.ContainsFunc(res.Content, func(b struct{ Type, Text, URI string }) bool {
			return b.Type == "resource_link" && b.URI == "longcall://calls/"+res.Structured.CallID
		})
		if had := !strings.HasSuffix(t.Name(), mcp.V20250326); links != had {
			t.Errorf("resource_link: %v", links)
		}
		if hows := fmt.Sprint(r.log.hows()); hows != "[handed_off]" {
			t.Errorf("deliveries %s", hows)
		}
		if s.shown[0].Why != command.ShowYield || s.shown[0].MaxBytes != 77 || s.shown[0].Names.Exec != "shell__exec_command" || s.shown[0].Names.Await != "await_call" {
			t.Errorf("shown as %+v", s.shown[0])
		}
		if r.eng.InFlight() != 1 {
			t.Error("it does not run on")
		}
	})
}

// D2, D6: yields up to 12 s are kept, with life every 5 s: as progress for who
// asked for it.
func TestShellBeats(t *testing.T) {
	onShell(t, func(t *testing.T, r *rig, s *scripted, o asker) {
		o.token = `"p"`
		w, c := o.exec(t.Context(), "1", `{"command":"sleep 20s","yield_ms":12000}`)
		text := w.text()
		if c.Result.Structured.State != "running" || w.lastAt() != "12" {
			t.Errorf("not at 12 s:\n%s", text)
		}
		if n := strings.Count(text, "still running"); n != 2 {
			t.Errorf("%d beats:\n%s", n, text)
		}
		o.token = ""
		w, _ = o.exec(t.Context(), "2", `{"command":"sleep 21s","yield_ms":12000}`)
		if text = w.text(); strings.Count(text, ": ka") != 2 {
			t.Errorf("comments:\n%s", text)
		}
	})
}

// O3: a client that takes no stream gets one JSON body, at the yield.
func TestShellJSON(t *testing.T) {
	onShell(t, func(t *testing.T, r *rig, s *scripted, o asker) {
		o.accept = "application/json"
		w, c := o.exec(t.Context(), "1", `{"command":"say hi; sleep 20s"}`)
		if text := w.text(); !strings.HasPrefix(text, "3 {") || strings.Contains(text, "\n") || c.Result.Structured.State != "running" || c.Result.Structured.Output != "hi\n" {
			t.Errorf("%s", text)
		}
	})
}

// A command that ends inside the yield is answered with its end, which is a plain
// result whatever its exit code; background at once is answered at once.
func TestShellEnds(t *testing.T) {
	onShell(t, func(t *testing.T, r *rig, s *scripted, o asker) {
		w, c := o.exec(t.Context(), "1", `{"command":"say hi; sleep 2s; exit 3"}`)
		text := w.text()
		if code := c.Result.Structured.ExitCode; code == nil || *code != 3 || c.Result.IsError || w.lastAt() != "2" {
			t.Errorf("%s", text)
		}
		if hows := fmt.Sprint(r.log.hows()); hows != "[delivered]" {
			t.Errorf("deliveries %s", hows)
		}
		start := time.Now()
		_, c = o.exec(t.Context(), "2", `{"command":"sleep 9s","yield_ms":0}`)
		if took := time.Since(start); took > 10*time.Millisecond || c.Result.Structured.State != "running" {
			t.Errorf("after %s: %+v", took, c)
		}
		start = time.Now()
		_, c = o.exec(t.Context(), "3", `{"command":"say up; sleep 1s; ready; sleep 60s","yield_ms":12000}`)
		if took := time.Since(start); took > 1100*time.Millisecond || c.Result.Structured.State != "running" || s.shown[len(s.shown)-1].Why != command.ShowReady {
			t.Errorf("ready after %s: %+v", took, c)
		}
		_, c = o.exec(t.Context(), "4", `{"command":"sleep 1s; lost"}`)
		if !c.Result.IsError || c.Result.Structured.State != "lost" || !strings.Contains(string(c.Result.Meta[mcp.MetaKeyOutcome]), "interrupted") {
			t.Errorf("lost: %+v", c)
		}
	})
}

// The shell's tools are listed with its name before theirs at /mcp, where both are
// known, and with their own at /mcp/shell, beside the three that go with them.
func TestShellNames(t *testing.T) {
	r := newRig(t)
	s := withShell(r)
	c := r.serve()
	names := func(path string) (all []string) {
		for _, tool := range c.list(path, "").Result.Tools {
			all = append(all, tool.Name)
		}
		return all
	}
	if got := fmt.Sprint(names("/mcp")); got != "[shell__exec_command shell__read_output shell__run_commands_parallel shell__write_stdin up__work]" {
		t.Errorf("at /mcp: %s", got)
	}
	if got := fmt.Sprint(names("/mcp/shell")); got != "[exec_command read_output run_commands_parallel write_stdin await_call cancel_call list_calls]" {
		t.Errorf("at /mcp/shell: %s", got)
	}
	for path, tools := range map[string][]string{"/mcp": {"exec_command", "shell__exec_command"}, "/mcp/shell": {"exec_command"}} {
		for _, tool := range tools {
			status, body := c.post(path, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"`+tool+`","arguments":{"command":"say `+tool+path+`"},"_meta":{`+modernMeta+`}}}`, modern("tools/call", tool)...)
			if status != 200 || !strings.Contains(body, `"exit_code":0`) {
				t.Errorf("%s at %s: %d %s", tool, path, status, body)
			}
		}
	}
	names0 := s.shown[len(s.shown)-1].Names
	if names0.Exec != "shell__exec_command" && names0.Exec != "exec_command" {
		t.Errorf("names %+v", names0)
	}
	if _, body := c.post("/mcp/shell", modernCall("1", "nothing", ""), modern("tools/call", "nothing")...); !strings.Contains(body, "Unknown tool") {
		t.Errorf("unknown: %s", body)
	}
	r.h.opt.Shell, r.h.opt.Catalog = nil, r
	if status, _ := c.post("/mcp/shell", modernCall("1", "exec_command", ""), modern("tools/call", "exec_command")...); status != 404 {
		t.Errorf("without a shell: %d", status)
	}
}

// D6, A20: what is wrong with the arguments is a result that the model can read,
// and nothing is started or recorded.
func TestShellArguments(t *testing.T) {
	onShell(t, func(t *testing.T, r *rig, s *scripted, o asker) {
		for _, args := range []string{`{}`, `{"command":"x","yield_ms":12001}`} {
			_, c := o.exec(t.Context(), "1", args)
			if !c.Result.IsError || c.Error != nil || len(c.Result.Content) != 1 {
				t.Errorf("%s: %+v", args, c)
			}
		}
		r.decide = func(_, server, tool string, _ bool) Decision {
			return Decision{Denied: &call.End{Outcome: call.Denied, By: "policy", Text: "Not allowed: you lack the scope shell."}}
		}
		if _, c := o.exec(t.Context(), "1", `{"command":"x"}`); !c.Result.IsError || !strings.Contains(c.text(), "lack the scope") {
			t.Errorf("denied: %+v", c)
		}
		w := o.request(t.Context(), "1", toolRead, `{"id":"x"}`)
		if c := readCommand(t, w.body()); !c.Result.IsError || !strings.Contains(c.text(), "lack the scope") {
			t.Errorf("denied: %+v", c)
		}
		if len(s.started) != 0 || len(r.log.recs) != 1 { // the denied call is on the record
			t.Errorf("started %v, recorded %d", s.started, len(r.log.recs))
		}
	})
}

// O7, SHELL §4: an identical command that runs is joined, from the first moment on
// and by any number; new starts another, error says which runs.
func TestShellJoins(t *testing.T) {
	onShell(t, func(t *testing.T, r *rig, s *scripted, o asker) {
		const args = `{"command":"say hi; sleep 10s; exit 7"}`
		var wg sync.WaitGroup
		var mu sync.Mutex
		ids, joined := map[string]int{}, 0
		for i := range 8 {
			wg.Go(func() {
				_, c := o.exec(t.Context(), fmt.Sprint(i+1), args)
				mu.Lock()
				defer mu.Unlock()
				ids[c.Result.Structured.CallID]++
				if c.Result.Structured.Joined {
					joined++
				}
			})
		}
		wg.Wait()
		if len(ids) != 1 || joined != 7 || s.started["say hi; sleep 10s; exit 7"] != 1 {
			t.Fatalf("ids %v, %d joined, started %v", ids, joined, s.started)
		}
		_, c := o.exec(t.Context(), "20", strings.Replace(args, "}", `,"if_running":"error"}`, 1))
		if !c.Result.IsError || !strings.Contains(c.text(), "Already running since") || !strings.Contains(c.text(), "await_call") {
			t.Errorf("error: %+v", c)
		}
		for id := range ids {
			if !strings.Contains(c.text(), id) {
				t.Errorf("which runs is not said: %s", c.text())
			}
		}
		_, c = o.exec(t.Context(), "21", strings.Replace(args, "}", `,"if_running":"new"}`, 1))
		if ids[c.Result.Structured.CallID] != 0 || c.Result.Structured.Joined {
			t.Errorf("new: %+v", c)
		}
		time.Sleep(15 * time.Second)
		// Ended, and nobody got it: it is shown once more, then never again.
		_, c = o.exec(t.Context(), "22", args)
		if !c.Result.Structured.Replayed || *c.Result.Structured.ExitCode != 7 || c.Result.Meta[metaKeyReplayed] == nil {
			t.Errorf("replay: %+v", c)
		}
		_, c = o.exec(t.Context(), "23", args) // the one of "new"
		if !c.Result.Structured.Replayed {
			t.Errorf("replay of the other: %+v", c)
		}
		_, c = o.exec(t.Context(), "24", args)
		if c.Result.Structured.State != "running" || c.Result.Structured.Joined || s.started["say hi; sleep 10s; exit 7"] != 3 {
			t.Errorf("anew: %+v, started %v", c, s.started)
		}
	})
}

// D10, D14, O6: a cancel of the request, a closed connection: the command goes on,
// what happened is on the record as an abort, and the same command joins it.
func TestShellLetsGo(t *testing.T) {
	onShell(t, func(t *testing.T, r *rig, s *scripted, o asker) {
		const args = `{"command":"sleep 30s; exit 0","yield_ms":12000}`
		ctx, hangUp := context.WithCancel(t.Context())
		done := make(chan *tape)
		go func() {
			w, _ := o.exec(ctx, "1", args)
			done <- w
		}()
		synctest.Wait()
		time.Sleep(time.Second)
		if o.session == "" {
			hangUp()
		} else {
			r.h.ServeHTTP(httptest.NewRecorder(), toAll(t.Context(), "POST", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"reason":"timeout"}}`, mcp.HeaderSession, o.session))
		}
		w := <-done
		hangUp()
		if text := w.text(); strings.Contains(text, "result") {
			t.Errorf("answered all the same:\n%s", text)
		}
		if hows := fmt.Sprint(r.log.hows()); hows != "[aborted_downstream]" {
			t.Errorf("deliveries %s", hows)
		}
		q := r.seen.ended[len(r.seen.ended)-1]
		if q.How != call.AbortedDownstream || q.End != nil {
			t.Errorf("the request's record: how %q, end %v", q.How, q.End)
		}
		if o.session != "" { // and once more, when the request is long over
			r.h.ServeHTTP(httptest.NewRecorder(), toAll(t.Context(), "POST", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, mcp.HeaderSession, o.session))
		}
		_, c := o.exec(t.Context(), "2", args)
		if !c.Result.Structured.Joined || c.Result.Structured.State != "running" || s.started["sleep 30s; exit 0"] != 1 {
			t.Errorf("again: %+v, started %v", c, s.started)
		}
		time.Sleep(time.Minute)
		if r.eng.InFlight() != 0 || s.proc(call.ID(c.Result.Structured.CallID)).code != 0 {
			t.Error("it was stopped")
		}
	})
}

// SHELL §5: a task is only for who declared tasks in this request, and only of a
// job without a terminal; it resolves before its id is shown, with the result that
// the request would have got.
func TestShellTasks(t *testing.T) {
	const tasksMeta = `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}`
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		withShell(r)
		exec := func(meta, args string) commandResult {
			w := newTape()
			r.h.ServeHTTP(w, toAll(t.Context(), "POST", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"exec_command","arguments":`+args+`,"_meta":{`+meta+`}}}`, modern("tools/call", toolExec)...))
			return readCommand(t, w.body())
		}
		for _, args := range []string{`{"command":"sleep 9s","kind":"service"}`, `{"command":"sleep 8s","tty":true}`} {
			if c := exec(tasksMeta, args); c.Result.ResultType != "complete" || c.Result.Structured.State != "running" {
				t.Errorf("%s: %+v", args, c)
			}
		}
		if c := exec(modernMeta, `{"command":"sleep 7s"}`); c.Result.ResultType != "complete" {
			t.Errorf("without the capability: %+v", c)
		}
		c := exec(tasksMeta, `{"command":"say done; sleep 6s; exit 4"}`)
		if c.Result.ResultType != "task" || c.Result.TaskID == "" {
			t.Fatalf("%+v", c)
		}
		get := func() (d struct {
			Result struct {
				Status string
				Result json.RawMessage
			}
		},
		) {
			w := newTape()
			r.h.ServeHTTP(w, toAll(t.Context(), "POST", `{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"taskId":"`+c.Result.TaskID+`","_meta":{`+tasksMeta+`}}}`, modern("tasks/get", c.Result.TaskID)...))
			raw := w.body()
			if err := json.Unmarshal([]byte(raw[strings.IndexByte(raw, '{'):]), &d); err != nil {
				t.Fatalf("%v: %s", err, raw)
			}
			return d
		}
		if d := get(); d.Result.Status != taskWorking || d.Result.Result != nil {
			t.Errorf("running: %+v", d)
		}
		time.Sleep(10 * time.Second)
		d := get()
		got := readCommand(t, `{"jsonrpc":"2.0","id":1,"result":`+string(d.Result.Result)+`}`)
		if d.Result.Status != taskCompleted || got.Result.Structured.ExitCode == nil || *got.Result.Structured.ExitCode != 4 || got.Result.Structured.Output != "done\n" {
			t.Errorf("ended: %s %+v", d.Result.Status, got)
		}
		if rec := r.log.hows(); rec[len(rec)-1] != call.Delivered {
			t.Errorf("deliveries %v", rec)
		}
		r.stop()
	})
}

// SHELL §5, ≤ 2025-11-25: a client that sends task gets one at once; tasks/result
// is the command's end. A service is none.
func TestShellLegacyTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := withShell(r)
		session := r.sessionAtAll(mcp.V20251125)
		ask := func(body string) commandResult {
			w := newTape()
			r.h.ServeHTTP(w, toAll(t.Context(), "POST", body, mcp.HeaderSession, session))
			return readCommand(t, w.body())
		}
		if c := ask(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`); c.Error != nil {
			t.Errorf("list: %+v", c)
		}
		c := ask(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"exec_command","arguments":{"command":"say a; sleep 9s; exit 2"},"task":{}}}`)
		if c.Result.Task.TaskID == "" {
			t.Fatalf("%+v", c)
		}
		id := c.Result.Task.TaskID
		if c = ask(`{"jsonrpc":"2.0","id":3,"method":"tasks/result","params":{"taskId":"` + id + `"}}`); c.Result.Structured.ExitCode == nil || *c.Result.Structured.ExitCode != 2 || c.Result.IsError {
			t.Errorf("%+v", c)
		}
		c = ask(`{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"exec_command","arguments":{"command":"sleep 9s","kind":"service"},"task":{}}}`)
		if c.Result.Task.TaskID != "" || c.Result.Structured.State != "running" {
			t.Errorf("service: %+v", c)
		}
		if c = ask(`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"read_output","arguments":{"id":"x"},"task":{}}}`); c.Error == nil || c.Error.Code != mcp.CodeMethodNotFound {
			t.Errorf("read_output as a task: %+v", c)
		}
		if s.started["say a; sleep 9s; exit 2"] != 1 {
			t.Errorf("started %v", s.started)
		}
		r.stop()
	})
}

// Descriptions name the other tools as they are called at the endpoint: a model can
// call only what is in its list.
func TestShellDescriptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		withShell(r)
		for path, want := range map[string]string{
			"/mcp":       `{"name":"shell__exec_command","description":"See also shell__read_output."`,
			"/mcp/shell": `{"name":"exec_command","description":"See also read_output."`,
		} {
			req := httptest.NewRequest("POST", path, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{`+modernMeta+`}}}`))
			h := modern("tools/list", "")
			for i := 0; i < len(h); i += 2 {
				req.Header.Set(h[i], h[i+1])
			}
			req.Header.Set("Authorization", "Bearer ann")
			req.Header.Set("Content-Type", "application/json")
			w := newTape()
			r.h.ServeHTTP(w, req)
			if !strings.Contains(w.body(), want) {
				t.Errorf("%s: %s", path, w.body())
			}
		}
		r.stop()
	})
}

// A stream that was cut is resumed as one of a command: it yields too.
func TestShellResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		withShell(r)
		session := r.sessionAtAll(mcp.V20251125)
		ctx, cut := context.WithCancel(t.Context())
		w, done := newTape(), make(chan struct{})
		go func() {
			r.h.ServeHTTP(w, toAll(ctx, "POST", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"exec_command","arguments":{"command":"say a; sleep 20s","yield_ms":12000}}}`, mcp.HeaderSession, session))
			close(done)
		}()
		time.Sleep(time.Second)
		cut()
		<-done
		_, event, ok := strings.Cut(w.text(), "id: ")
		if !ok {
			t.Fatalf("no event id: %s", w.text())
		}
		event, _, _ = strings.Cut(event, "\n")
		w = newTape()
		r.h.ServeHTTP(w, toAll(t.Context(), "GET", "", mcp.HeaderSession, session, mcp.HeaderLastEvent, event))
		if c := readCommand(t, w.body()); c.Result.Structured.State != "running" || time.Since(w.start) > 4*time.Second {
			t.Errorf("after %s: %s", time.Since(w.start), w.text())
		}
		r.stop()
	})
}

// A batch of 2025-03-26 is answered when its last command has ended or yielded.
func TestShellBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		withShell(r)
		session := r.sessionAtAll(mcp.V20250326)
		w := httptest.NewRecorder()
		start := time.Now()
		one := func(id, command string) string {
			return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"exec_command","arguments":{"command":"` + command + `"}}}`
		}
		r.h.ServeHTTP(w, toAll(t.Context(), "POST", "["+one("1", "sleep 1s; exit 5")+","+one("2", "sleep 50s")+","+one("3", "sleep 51s")+"]", mcp.HeaderSession, session, "Accept", "application/json"))
		var all []commandResult
		if err := json.Unmarshal(w.Body.Bytes(), &all); err != nil || len(all) != 3 {
			t.Fatalf("%v: %s", err, w.Body)
		}
		if *all[0].Result.Structured.ExitCode != 5 || all[1].Result.Structured.State != "running" || all[2].Result.Structured.State != "running" || time.Since(start) != 3*time.Second {
			t.Errorf("after %s: %s", time.Since(start), w.Body)
		}
		if hows := fmt.Sprint(r.log.hows()); hows != "[delivered handed_off handed_off]" {
			t.Errorf("deliveries %s", hows)
		}
		r.stop()
	})
}

// The transport of 2024-11-05 has the shell too: the same yield, on its stream.
func TestShellOldTransport(t *testing.T) {
	r := newRig(t)
	s := withShell(r)
	c := r.serve()
	o := c.dialOld("/sse/shell")
	o.hello(mcp.V20241105)
	o.send(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"exec_command","arguments":{"command":"say hi; sleep 300s","yield_ms":100}}}`)
	got := readCommand(t, o.await(`"id":7,"result"`)+"\n")
	if got.Result.Structured.State != "running" || got.Result.Structured.Output != "hi\n" || got.Result.IsError {
		t.Errorf("%+v", got)
	}
	for _, b := range got.Result.Content {
		if b.Type != "text" {
			t.Errorf("a block of type %s", b.Type) // that revision knows no links
		}
	}
	if s.started["say hi; sleep 300s"] != 1 || r.eng.InFlight() != 1 {
		t.Errorf("started %v", s.started)
	}
	o.end()
}

// A command that could not be recorded is no task, and yields all the same.
func TestShellNotStored(t *testing.T) {
	onShell(t, func(t *testing.T, r *rig, s *scripted, o asker) {
		r.log.createErr = io.ErrShortWrite
		start := time.Now()
		_, c := o.exec(t.Context(), "1", `{"command":"sleep 20s"}`)
		if c.Result.Structured.State != "running" || time.Since(start) != 3*time.Second {
			t.Errorf("after %s: %+v", time.Since(start), c)
		}
		if res := o.ask(toolAwait, idArgs(c.Result.Structured.CallID, `,"wait_ms":40000`)); shownCommand(t, &res, 0).State != "exited" {
			t.Errorf("%+v", res)
		}
		if o.session == "" {
			w := newTape()
			r.h.ServeHTTP(w, toAll(t.Context(), "POST", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"exec_command","arguments":{"command":"sleep 21s"},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}}}`, modern("tools/call", toolExec)...))
			if c := readCommand(t, w.body()); c.Result.ResultType != "complete" || c.Result.Structured.State != "running" || w.lastAt() != "3" {
				t.Errorf("with tasks: %s", w.text())
			}
		}
	})
}
