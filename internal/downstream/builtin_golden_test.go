package downstream

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// TestOwnToolsGolden writes down, on fake time, what an agent of each era sees of
// our tools: the list, a call that is handed off, and the way back to it.
func TestOwnToolsGolden(t *testing.T) {
	for _, version := range []string{mcp.V20250618, mcp.V20260728} {
		t.Run(version, func(t *testing.T) {
			var got strings.Builder
			synctest.Test(t, func(t *testing.T) { ownConversation(t, version, &got) })
			file := "testdata/own-tools-" + version + ".txt"
			if *update {
				if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(string(want), "\n")
			for i, l := range strings.Split(got.String(), "\n") {
				if i >= len(lines) || l != lines[i] {
					t.Fatalf("line %d is\n%s\nwant\n%s", i+1, l, lines[min(i, len(lines)-1)])
				}
			}
		})
	}
}

func ownConversation(t *testing.T, version string, out *strings.Builder) {
	r := newRig(t)
	defer r.stop()
	r.settings.OwnTools = true
	r.decide = func(string, string, string, bool) Decision { return Decision{HandOff: true} }
	r.h.opt.Profile = func(string, string, string) Profile {
		return Profile{Budget: 25 * time.Second, BudgetToken: 50 * time.Second, Await: 8 * time.Second, AwaitToken: 45 * time.Second}
	}
	r.lists["up"] = append(r.lists["up"], mcp.Entry{Name: "typed", Raw: []byte(`{"name":"typed","inputSchema":{"type":"object"},"outputSchema":{"type":"object"}}`)})
	r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer {
		_ = x.Dispatched()
		time.Sleep(20 * time.Second)
		_ = progress(x, `"progress":1,"total":3,"message":"compiling"`)
		time.Sleep(25 * time.Second)
		_ = progress(x, `"progress":2,"total":3,"message":"linking"`)
		time.Sleep(4500 * time.Millisecond)
		return reply(x, `{"jsonrpc":"2.0","id":0,"result":{"content":[{"type":"text","text":"built"}],"structuredContent":{"size":9007199254740993}}}`)
	}
	r.tools["typed"] = func(ctx context.Context, x *call.Exec) call.Answer {
		_ = x.Dispatched()
		<-ctx.Done()
		time.Sleep(100 * time.Millisecond)
		return call.Answer{}
	}
	o := asker{t: t, r: r}
	if version != mcp.V20260728 {
		s, _ := r.h.sessions.open("ann", "", version, "test", nil)
		o.session = s.id
	}
	var ids []string
	pattern := regexp.MustCompile(`c_[a-z2-7]{26}`)
	note := func(what string, w *tape) {
		text := pattern.ReplaceAllStringFunc(w.text(), func(id string) string {
			for i, known := range ids {
				if known == id {
					return fmt.Sprintf("$CALL%d", i+1)
				}
			}
			ids = append(ids, id)
			return fmt.Sprintf("$CALL%d", len(ids))
		})
		text = regexp.MustCompile(`id: [A-Za-z0-9_-]+\.`).ReplaceAllString(text, "id: $$STREAM.")
		fmt.Fprintf(out, "== %s\n%s\n", what, text)
	}
	say := func(tool, args string) {
		full := args
		for i, id := range ids {
			full = strings.ReplaceAll(full, fmt.Sprintf("$CALL%d", i+1), id)
		}
		note(tool+" "+args, o.request(context.Background(), "1", tool, full))
	}

	w := newTape()
	req := httptest.NewRequest("POST", "/mcp", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{`+modernMeta+`}}}`))
	req.Header.Set("Authorization", "Bearer ann")
	req.Header.Set("Content-Type", "application/json")
	if o.session != "" {
		req.Body = httptest.NewRequest("POST", "/", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)).Body
		req.ContentLength = -1
		req.Header.Set(mcp.HeaderSession, o.session)
	} else {
		req.Header.Set(mcp.HeaderVersion, version)
		req.Header.Set(mcp.HeaderMethod, mcp.MethodToolsList)
	}
	r.h.ServeHTTP(w, req)
	note("tools/list", w)
	say(toolList, `{}`)
	say("up__work", `{}`)
	say(toolAwait, `{"ids":["$CALL1"]}`)
	o.token = "5"
	say(toolAwait, `{"ids":["$CALL1"]}`)
	o.token = ""
	say(toolAwait, `{"ids":["$CALL1"]}`)
	say("up__typed", `{}`)
	say(toolList, `{"state":"running"}`)
	say(toolAwait, `{"ids":["$CALL2","$CALL1","c_nobody"],"mode":"all","wait_ms":1000}`)
	say(toolCancel, `{"id":"$CALL2","reason":"not needed"}`)
	say(toolCancel, `{"id":"$CALL1"}`)
	say(toolAwait, `{"ids":["$CALL2"]}`)
	say(toolAwait, `{"ids":["c_nobody"]}`)
	say(toolAwait, `{"ids":["$CALL1"],"wait_ms":90000,"attempt":7}`)
	say(toolList, `{}`)
}

// A call that another process carries to its end is awaited too, and cannot be
// cancelled from here.
func TestOwnToolsElsewhere(t *testing.T) {
	eras(t, func(t *testing.T, o asker) {
		id := call.NewID()
		rec := &call.Record{ID: id, Spec: call.Spec{Principal: "ann", Server: "up", Tool: "work", PublicTool: "up__work"}, Started: time.Now(), Dispatched: time.Now(), Seq: 2}
		o.r.log.recs[id] = rec
		start := time.Now()
		r := o.ask(toolCancel, `{"id":"`+string(id)+`"}`)
		if !r.Result.IsError || r.Result.Structured.Cancelled || !strings.Contains(r.text(), "cannot be cancelled right now") || time.Since(start) != 0 {
			t.Errorf("%+v", r)
		}
		if l := o.ask(toolList, `{"state":"running"}`); len(l.Result.Structured.Calls) != 1 {
			t.Errorf("%+v", l)
		}
		time.AfterFunc(3*time.Second, func() {
			end := call.End{Outcome: call.Completed}
			ended := *rec
			ended.End, ended.Ended, ended.Seq = end, time.Now(), 3
			ev := call.Event{Seq: 3, Kind: call.KindEnd, Time: time.Now(), Body: []byte(okResult), Hole: strings.Index(okResult, `"id":0`) + 5, End: &end}
			o.r.log.mu.Lock()
			defer o.r.log.mu.Unlock()
			o.r.log.recs[id] = &ended
			o.r.log.events[id] = []call.Event{ev}
		})
		r = o.ask(toolAwait, idList([]string{string(id)}))
		if took := time.Since(start); took < 3*time.Second || took > 3*time.Second+call.LookEvery || r.Result.Structured.Calls[0].State != "completed" || r.texts()[1] != "done" {
			t.Errorf("after %v: %+v", took, r)
		}
		if got := o.r.log.hows(); len(got) != 1 || got[0] != call.Delivered {
			t.Errorf("deliveries %v", got)
		}
	})
}

// A call that could still be a plain answer is never handed off: one that ends
// just before its budget, 100 times of 100, and in the moment of it whatever
// timer is first.
func TestNoHandOffOfAPlainAnswer(t *testing.T) {
	const budget = 25 * time.Second
	for _, early := range []time.Duration{time.Microsecond, 0} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			defer r.stop()
			r.log.delivered = make(chan struct{}, 1000)
			r.decide = func(string, string, string, bool) Decision { return Decision{HandOff: true} }
			r.h.opt.Profile = func(string, string, string) Profile { return Profile{Budget: budget} }
			plain := 0
			for i := range 100 {
				start := time.Now()
				r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer {
					_ = x.Dispatched()
					time.Sleep(time.Until(start.Add(budget - early)))
					return reply(x, okResult)
				}
				r.settings.Digest = func([]byte) string { return fmt.Sprint(i) }
				w := asker{t: t, r: r}.request(context.Background(), "1", "up__work", "{}")
				if strings.Contains(w.text(), `"text":"done"`) {
					plain++
				}
			}
			if early > 0 && plain != 100 {
				t.Errorf("%d of 100 that end %v before the budget are plain answers", plain, early)
			}
			t.Logf("%v before the budget: %d plain", early, plain)
		})
	}
}
