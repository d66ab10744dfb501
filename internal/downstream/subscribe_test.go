package downstream

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// heard are the messages of a listen stream, with the seconds they came at.
func heard(t *testing.T, w *tape) (at []float64, messages []map[string]any) {
	t.Helper()
	for line := range strings.SplitSeq(w.text(), "\n") {
		when, rest, _ := strings.Cut(line, " ")
		for part := range strings.SplitSeq(rest, " | ") {
			if !strings.HasPrefix(part, "{") {
				continue
			}
			var m map[string]any
			if err := json.Unmarshal([]byte(part), &m); err != nil {
				t.Fatalf("%s: %v", part, err)
			}
			seconds, _ := strconv.ParseFloat(when, 64)
			at, messages = append(at, seconds), append(messages, m)
		}
	}
	return at, messages
}

// subscriptionOf is the subscription that a message names.
func subscriptionOf(m map[string]any) any {
	for _, part := range []string{"params", "result"} {
		if p, ok := m[part].(map[string]any); ok {
			meta, _ := p["_meta"].(map[string]any)
			return meta[mcp.MetaKeySubscription]
		}
	}
	return nil
}

// listen serves a subscriptions/listen with that id and filter until ctx is done.
func (r *rig) listen(ctx context.Context, w *tape, id, filter string) {
	body := strings.Replace(tasked(mcp.MethodListen, `"notifications":{`+filter+`}`), `"id":1`, `"id":`+id, 1)
	r.h.ServeHTTP(w, request(ctx, "POST", body, modern(mcp.MethodListen, "")...))
}

// TestListen is: an acknowledgement of what is honoured, then changes,
// a comment at 15 s of silence, and a result when longcall stops. All name the
// subscription, with the JSON type of its id.
func TestListen(t *testing.T) {
	for id, want := range map[string]any{"7": 7.0, `"7"`: "7"} {
		synctest.Test(t, func(t *testing.T) {
			r := tasksRig(t)
			g := newGate()
			r.tools["work"] = g.run
			foreign, err := r.eng.Start(t.Context(), call.Spec{Principal: "bob", Server: "up", Tool: "work"})
			if err != nil {
				t.Fatal(err)
			}
			w := newTape()
			go r.listen(t.Context(), w, id, `"toolsListChanged":true,"promptsListChanged":true,"resourceSubscriptions":["x:"],"taskIds":["`+string(foreign.ID())+`","`+string(call.NewID())+`","x"]`)
			time.Sleep(20 * time.Second)
			r.change("other")
			r.change("up")
			r.change("up")
			time.Sleep(time.Second)
			r.stop()
			synctest.Wait()
			at, got := heard(t, w)
			if fmt.Sprint(at) != "[0 20.25 21]" || len(got) != 3 || got[0]["method"] != mcp.MethodAcknowledged || got[1]["method"] != mcp.MethodToolsChanged || got[2]["result"] == nil {
				t.Fatalf("heard at %v: %v", at, got)
			}
			honoured, _ := json.Marshal(got[0]["params"].(map[string]any)["notifications"])
			if string(honoured) != `{"taskIds":[],"toolsListChanged":true}` {
				t.Errorf("honoured %s", honoured)
			}
			for _, m := range got {
				if subscriptionOf(m) != want {
					t.Errorf("no subscription %v in %v", want, m)
				}
			}
			if !strings.Contains(w.text(), "15 : ka") {
				t.Errorf("no comment: %s", w.text())
			}
			if len(r.h.subs.all) != 0 || len(r.h.subs.count) != 0 {
				t.Errorf("left over: %v", r.h.subs.count)
			}
		})
	}
}

// TestListenNotAsked: what was not asked for does not come.
func TestListenNotAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := tasksRig(t)
		w := newTape()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { r.listen(ctx, w, "1", ``); close(done) }()
		synctest.Wait()
		r.change("up")
		time.Sleep(time.Second)
		cancel()
		<-done
		if _, got := heard(t, w); len(got) != 1 {
			t.Errorf("heard %v", got)
		}
		r.stop()
	})
}

// TestListenTask is R-30: every change of a task comes, at least taskPause apart,
// without progress messages or what its tool server logs; the end comes at once,
// and is a delivery. Closing the stream cancels nothing.
func TestListenTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := tasksRig(t)
		r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer {
			_ = x.Dispatched()
			for i := range 30 {
				time.Sleep(100 * time.Millisecond)
				_ = progress(x, fmt.Sprintf(`"progress":%d,"message":"step %[1]d"`, i))
				_ = x.Emit(call.Event{Kind: call.KindMessage, Hole: -1, Body: []byte(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":"x"}}`)})
			}
			time.Sleep(10 * time.Second)
			x.Ask([]byte(`{"k":{"method":"elicitation/create"}}`), nil)
			<-x.Answers()
			x.Ask(nil, nil)
			time.Sleep(150 * time.Millisecond)
			return reply(x, okResult)
		}
		c, err := r.eng.Start(t.Context(), call.Spec{Principal: "ann", Server: "up", Tool: "work"})
		if err != nil {
			t.Fatal(err)
		}
		id := string(c.ID())
		w, gone := newTape(), newTape()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{}, 2)
		go func() { r.listen(t.Context(), w, "1", `"taskIds":["`+id+`","`+id+`"]`); done <- struct{}{} }()
		go func() { r.listen(ctx, gone, "2", `"taskIds":["`+id+`"]`); done <- struct{}{} }()
		time.Sleep(time.Second)
		cancel()
		<-done
		time.Sleep(14 * time.Second)
		r.ask(methodTasksUpdate, id, `,"inputResponses":{"k":{"action":"accept"}}`)
		time.Sleep(time.Minute)

		at, got := heard(t, w)
		var last map[string]any
		statuses := map[any]int{}
		for i, m := range got[1:] {
			p := m["params"].(map[string]any)
			if m["method"] != methodTaskChanged || p["taskId"] != id || subscriptionOf(m) != 1.0 {
				t.Errorf("heard %v", m)
			}
			statuses[p["status"]]++
			if i > 0 && at[i+1]-at[i] < taskPause.Seconds()-1e-6 && p["status"] != taskCompleted {
				t.Errorf("%v s after the one before: %v", at[i+1]-at[i], m)
			}
			if s := p["statusMessage"]; p["status"] == taskWorking && at[i+1] > 3.5 && at[i+1] < 10 && s != "step 29" {
				t.Errorf("the last step was not told last: %v", m)
			}
			if (p["status"] == taskInput) != (p["inputRequests"] != nil) {
				t.Errorf("heard %v", m)
			}
			last = p
		}
		if statuses[taskWorking] < 6 || statuses[taskWorking] > 9 || statuses[taskInput] != 1 || statuses[taskCompleted] != 1 || last["result"] == nil {
			t.Errorf("%v; at %v: %v", statuses, at, last)
		}
		if hows := fmt.Sprint(r.log.hows()); hows != "[delivered]" {
			t.Errorf("deliveries %s", hows)
		}

		// A late subscriber is told.
		late := newTape()
		go func() { r.listen(t.Context(), late, "3", `"taskIds":["`+id+`"]`); done <- struct{}{} }()
		time.Sleep(time.Second)
		if _, got := heard(t, late); len(got) != 2 || got[0]["method"] != mcp.MethodAcknowledged || !strings.Contains(late.text(), `"status":"completed"`) {
			t.Errorf("late: %v", got)
		}
		r.stop()
		<-done
		<-done
	})
}

// TestListenLimits: no principal opens too many, and nobody else has less for it.
func TestListenLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := tasksRig(t)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{}, maxListens)
		for range maxListens {
			go func() { r.listen(ctx, newTape(), "1", ``); done <- struct{}{} }()
		}
		synctest.Wait()
		w := newTape()
		r.listen(ctx, w, "1", ``)
		if !strings.Contains(w.text()+string(w.pending), "which is the limit") || w.status != 429 {
			t.Errorf("one too many: %d %s", w.status, w.text())
		}
		other := newTape()
		go func() {
			req := request(ctx, "POST", tasked(mcp.MethodListen, `"notifications":{}`), append(modern(mcp.MethodListen, ""), "Authorization", "Bearer bob")...)
			r.h.ServeHTTP(other, req)
			done <- struct{}{}
		}()
		synctest.Wait()
		if _, got := heard(t, other); len(got) != 1 {
			t.Errorf("somebody else: %d %s", other.status, other.text())
		}
		cancel()
		for range maxListens + 1 {
			<-done
		}
		rec := httptest.NewRecorder()
		ids := strings.TrimSuffix(strings.Repeat(`"x",`, maxListenTasks+1), ",")
		r.h.ServeHTTP(rec, request(t.Context(), "POST", tasked(mcp.MethodListen, `"notifications":{"taskIds":[`+ids+`]}`), modern(mcp.MethodListen, "")...))
		if !strings.Contains(rec.Body.String(), "at most 1000") {
			t.Errorf("too many tasks: %s", rec.Body)
		}
		r.stop()
	})
}
