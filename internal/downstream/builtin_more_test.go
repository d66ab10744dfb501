package downstream

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// cancel_call says truthfully what became of the call, and the request that still
// reads it gets an answer that says the same.
func TestCancelCall(t *testing.T) {
	eras(t, func(t *testing.T, o asker) {
		hears := true
		o.r.tools["work"] = func(ctx context.Context, x *call.Exec) call.Answer {
			_ = x.Dispatched()
			<-ctx.Done()
			if !hears {
				time.Sleep(5 * time.Second)
			}
			return call.Answer{}
		}
		reader := make(chan string, 1)
		go func() { reader <- o.request(context.Background(), "9", "up__work", `{"n":1}`).body() }()
		synctest.Wait()
		c := o.r.eng.Open("ann")[0]
		id := string(c.ID())
		r := o.ask(toolCancel, `{"id":"`+id+`","reason":"not\nneeded"}`)
		if s := r.Result.Structured; !s.Cancelled || s.State != "cancelled" || r.Result.IsError || !strings.Contains(r.text(), id+" (up__work) was cancelled after 0.0 s by the agent, with cancel_call.") || s.Next != r.text() {
			t.Errorf("%+v", r)
		}
		synctest.Wait()
		select {
		case got := <-reader:
			if !strings.Contains(got, "The agent cancelled the call with cancel_call: not needed") || !strings.Contains(got, `"outcome":"cancelled"`) || !strings.Contains(got, `"id":9`) {
				t.Errorf("its own request got %s", got)
			}
		default:
			t.Error("its own request has no answer")
		}
		if r = o.ask(toolCancel, `{"id":"`+id+`"}`); !r.Result.Structured.Cancelled || !strings.HasPrefix(r.text(), "Nothing was done: ") {
			t.Errorf("again: %+v", r)
		}
		if r = o.ask(toolAwait, idList([]string{id})); !r.Result.IsError || r.Result.Structured.Calls[0].State != "cancelled" || !strings.Contains(r.text(), "by the agent, with cancel_call. ") {
			t.Errorf("awaited: %+v", r)
		}

		hears = false
		slow := o.r.start(t, "work")
		start := time.Now()
		r = o.ask(toolCancel, `{"id":"`+string(slow.ID())+`"}`)
		if s := r.Result.Structured; s.Cancelled || s.State != "running" || r.Result.IsError || time.Since(start) != 2*time.Second || !strings.Contains(r.text(), "has not confirmed it yet") {
			t.Errorf("unconfirmed: %+v after %v", r, time.Since(start))
		}
		time.Sleep(5 * time.Second)

		o.r.tools["quick"] = takes(0, "", okResult)
		done := o.r.start(t, "quick")
		synctest.Wait()
		r = o.ask(toolCancel, `{"id":"`+string(done.ID())+`"}`)
		if s := r.Result.Structured; s.Cancelled || s.State != "completed" || !strings.Contains(r.text(), "had ended before: "+string(done.ID())+" (up__quick) completed") || !strings.Contains(r.text(), "await_call") {
			t.Errorf("ended: %+v", r)
		}
	})
}

// list_calls shows what runs and what has ended, endings that nobody read first,
// and never an argument or a result.
func TestListCalls(t *testing.T) {
	eras(t, func(t *testing.T, o asker) {
		o.r.tools["quick"] = takes(1500*time.Millisecond, "", strings.Replace(okResult, "done", "hidden result", 1))
		o.r.tools["slow"] = takes(time.Hour, "at it", okResult)
		read, unread := o.r.start(t, "quick"), (*call.Call)(nil)
		time.Sleep(2 * time.Second)
		o.ask(toolAwait, awaitIDs(read))
		unread = o.r.start(t, "quick")
		time.Sleep(2 * time.Second)
		slow := o.r.start(t, "slow")
		o.r.startAs(t, "bob", "slow")
		synctest.Wait()
		states := func(args string) (out []string) {
			r := o.ask(toolList, args)
			if strings.Contains(fmt.Sprintf("%+v", r), "hidden") {
				t.Errorf("a result is shown: %+v", r)
			}
			for _, c := range r.Result.Structured.Calls {
				s := c.CallID + " " + c.State
				if c.Unread {
					s += " unread"
				}
				out = append(out, s)
			}
			if r.Result.Structured.More {
				out = append(out, "more")
			}
			return out
		}
		a, b, c := string(unread.ID())+" completed unread", string(slow.ID())+" running", string(read.ID())+" completed"
		for args, want := range map[string][]string{
			`{}`: {a, b, c}, `{"state":"all","limit":2}`: {a, b, "more"}, `{"state":"running"}`: {b}, `{"state":"ended"}`: {a, c}, `{"state":"unread","limit":1.0}`: {a},
		} {
			if got := states(args); !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", args, got, want)
			}
		}
		listed := o.ask(toolList, `{}`)
		text := listed.text()
		want := "call | tool | state | started (UTC) | took | last progress\n" +
			string(unread.ID()) + " | up__quick | completed, not read | 2000-01-01 00:00:02 | 1.5 s\n" +
			string(slow.ID()) + " | up__slow | running | 2000-01-01 00:00:04 | 0.0 s | at it\n" +
			string(read.ID()) + " | up__quick | completed | 2000-01-01 00:00:00 | 1.5 s\n" +
			`1 ended without anybody reading the result. Call await_call with {"ids":["` + string(unread.ID()) + `"]} to read them.`
		if text != want {
			t.Errorf("got:\n%s\nwant:\n%s", text, want)
		}
	})
}

// What is wrong with arguments is said as a tool error that names the parameter,
// what it was and what is allowed (SPEC §8.1 A20).
func TestOwnToolsArguments(t *testing.T) {
	long := `"` + strings.Repeat("x", 201) + `"`
	seventeen := "[" + strings.Repeat(`"c",`, 16) + `"c"]`
	cases := []struct{ tool, args, want string }{
		{toolAwait, `{}`, "ids of await_call is missing; it must be an array of 1 to 16 call ids"},
		{toolAwait, `{"ids":null}`, "ids of await_call is missing"},
		{toolAwait, `{"ids":"c_x"}`, "ids of await_call is a string; it must be an array"},
		{toolAwait, `{"ids":[]}`, "ids of await_call is an array of 0; it must be an array of 1 to 16"},
		{toolAwait, `{"ids":` + seventeen + `}`, "ids of await_call is an array of 17; "},
		{toolAwait, `{"ids":["a",{}]}`, "a member of ids of await_call is an object; it must be a string"},
		{toolAwait, `{"ids":["a"],"mode":"some"}`, `mode of await_call is a string; it must be one of "any", "all"`},
		{toolAwait, `{"ids":["a"],"wait_ms":45001}`, "wait_ms of await_call is 45001; it must be an integer from 0 to 45000 (milliseconds; up to 600000 only for a request with a progress token)"},
		{toolAwait, `{"ids":["a"],"wait_ms":1.5}`, "wait_ms of await_call is 1.5; it must be an integer from 0 to"},
		{toolAwait, `{"ids":["a"],"wait_ms":-1}`, "wait_ms of await_call is -1;"},
		{toolAwait, `{"ids":["a"],"wait_ms":"9"}`, "wait_ms of await_call is a string; it must be an integer"},
		{toolAwait, `{"ids":["a"],"wait_ms":1e999}`, "wait_ms of await_call is 1e999; it must be"},
		{toolAwait, `{"ids":["a"],"until":"exit"}`, `await_call has no parameter "until". It has ids, mode, wait_ms, attempt.`},
		{toolAwait, `{"ids":["a"],"attempt":0}`, "attempt of await_call is 0; it must be an integer from 1 to 10000."},
		{toolCancel, `{}`, "id of cancel_call is missing; it must be one call id"},
		{toolCancel, `{"id":""}`, "id of cancel_call is an empty string;"},
		{toolCancel, `{"id":7}`, "id of cancel_call is 7; it must be one call id"},
		{toolCancel, `{"id":"c","reason":` + long + `}`, "reason of cancel_call is a string of 201 bytes; it must be a string of at most 200 bytes"},
		{toolCancel, `{"ids":["c"]}`, `cancel_call has no parameter "ids". It has id, reason.`},
		{toolList, `{"limit":0}`, "limit of list_calls is 0; it must be an integer from 1 to 100."},
		{toolList, `{"limit":true}`, "limit of list_calls is a boolean;"},
		{toolList, `{"state":[]}`, `state of list_calls is an array of 0; it must be one of "all", "running", "ended", "unread".`},
	}
	eras(t, func(t *testing.T, o asker) {
		for _, k := range cases {
			r := o.ask(k.tool, k.args)
			if !r.Result.IsError || r.Error != nil || !strings.HasPrefix(r.text(), k.want) {
				t.Errorf("%s %s: %+v", k.tool, k.args, r)
			}
		}
		o.token = "1"
		if r := o.ask(toolAwait, `{"ids":["a"],"wait_ms":600001}`); !strings.Contains(r.text(), "from 0 to 600000 (milliseconds).") {
			t.Errorf("with a token: %+v", r)
		}
	})
}

// FuzzOwnArguments: whatever an agent sends, it gets words or values within bounds.
func FuzzOwnArguments(f *testing.F) {
	for _, s := range []string{`{}`, `{"ids":["c_x","c_x"],"mode":"all","wait_ms":5}`, `{"id":"c","reason":"\u0000"}`, `{"state":"unread","limit":100}`, `{"ids":[[[]]],"wait_ms":1e-9}`, `null`, `{"ids":["\ud800"]}`, `{"ids":["c"],"pattern":"x","cursor":9}`, `{"id":"c","signal":"INT","grace_ms":-1}`} {
		f.Add([]byte(s), true)
	}
	f.Fuzz(func(t *testing.T, raw []byte, token bool) {
		if !isObject(raw) || !json.Valid(raw) { // what package mcp has refused
			return
		}
		most := maxWaitSilent
		if token {
			most = maxWait
		}
		for _, shell := range []bool{false, true} {
			v, wrong := parseAwait(raw, token, shell, time.Second, plainNames)
			if wrong == "" && (len(v.ids) < 1 || len(v.ids) > maxAwaited || v.wait < 0 || v.wait > most || len(v.pattern) > maxPattern || (v.pattern != "") != (v.until == untilPattern)) {
				t.Errorf("%+v of %s", v, raw)
			}
			c, wrong := parseCancel(raw, shell, plainNames)
			if wrong == "" && (c.id == "" || len(c.reason) > maxReason || c.grace > maxGrace || len(c.signal) > maxSignal) {
				t.Errorf("%+v of %s", c, raw)
			}
		}
		if v, wrong := parseList(raw, plainNames); wrong == "" && (v.limit < 1 || v.limit > maxListed || v.state == "") {
			t.Errorf("%+v of %s", v, raw)
		}
	})
}

// Our tools are listed last at every endpoint, in a fixed order, under names that
// no tool server's tool has; not if nothing is ever handed off.
func TestOwnToolsListed(t *testing.T) {
	r := newRig(t)
	up := []mcp.Entry{}
	for _, n := range []string{"await_call", "work", "longcall_await_call", "a"} {
		up = append(up, mcp.Entry{Name: n, Raw: []byte(`{"name":"` + n + `","inputSchema":{"type":"object"}}`)})
	}
	for i := range 400 {
		n := fmt.Sprintf("t%03d", i)
		up = append(up, mcp.Entry{Name: n, Raw: []byte(`{"name":"` + n + `"}`)})
	}
	r.lists["up"] = up
	r.lists["plain"], r.fresh["plain"] = []mcp.Entry{{Name: "x", Raw: []byte(`{"name":"x"}`)}}, true
	r.tools["await_call"] = func(_ context.Context, x *call.Exec) call.Answer {
		return reply(x, strings.Replace(okResult, "done", "the server's own", 1))
	}
	c := r.serve()
	list := func(path string) (names []string) {
		cursor := ""
		for range 10 {
			_, b := c.post(path, `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{`+cursor+`"_meta":{`+modernMeta+`}}}`, modern(mcp.MethodToolsList, "")[:4]...)
			if path == "/mcp/up" && strings.Contains(b, "; await_call gives") {
				t.Error("a description names the server's own await_call as ours")
			}
			var m struct {
				Result struct {
					Tools      []struct{ Name string }
					NextCursor string
				}
			}
			if err := json.Unmarshal([]byte(b), &m); err != nil {
				t.Fatal(err, b)
			}
			for _, l := range m.Result.Tools {
				names = append(names, l.Name)
			}
			if m.Result.NextCursor == "" {
				break
			}
			cursor = `"cursor":"` + m.Result.NextCursor + `",`
		}
		if s := slices.Sorted(slices.Values(names)); len(slices.Compact(s)) != len(names) {
			t.Errorf("%s: a name twice", path)
		}
		return names
	}
	if all := list("/mcp/up"); len(all) != 404 || slices.Contains(all, toolList) {
		t.Errorf("%d tools: %q", len(all), all[:5])
	}
	r.settings.OwnTools = true
	if all := list("/mcp/up"); len(all) != 407 || !slices.Equal(all[404:], []string{"cancel_call", "list_calls", "longcall_longcall_await_call"}) || all[1] != "await_call" {
		t.Errorf("%d tools: %q", len(all), all[400:])
	}
	if all := list("/mcp/plain"); !slices.Equal(all, []string{"x", "await_call", "cancel_call", "list_calls"}) {
		t.Errorf("%q", all)
	}
	if all := list("/mcp"); len(all) != 408 || all[0] != "plain__x" || !slices.Equal(all[405:], []string{"await_call", "cancel_call", "list_calls"}) {
		t.Errorf("%d tools: %q", len(all), all[400:])
	}
	at := func(path, name string) string {
		_, b := c.post(path, modernCall("1", name, ""), modern(mcp.MethodToolsCall, name)...)
		return b
	}
	if b := at("/mcp/up", "await_call"); !strings.Contains(b, "the server's own") {
		t.Errorf("its own await_call: %s", b)
	}
	for path, name := range map[string]string{"/mcp": "await_call", "/mcp/plain": "await_call", "/mcp/up": "longcall_longcall_await_call"} {
		if b := at(path, name); !strings.Contains(b, "ids of "+name+" is missing") {
			t.Errorf("%s: %s", path, b)
		}
	}
	if b := at("/mcp/up", "cancel_call"); !strings.Contains(b, "id of cancel_call is missing") {
		t.Errorf("%s", b)
	}
	_, b := c.post("/mcp", modernCall("1", "await_call", ""), modern(mcp.MethodToolsCall, "other")...)
	if !strings.Contains(b, "Mcp-Name") {
		t.Errorf("a wrong Mcp-Name: %s", b)
	}
}

// plainNames are the names of our tools where no tool server has one of them.
var plainNames = ownToolNames{toolAwait, toolList, toolCancel}

// The end of a wait is never later than 50 ms after the call's, on a real socket.
func TestAwaitReturnsAtOnce(t *testing.T) {
	r := newRig(t)
	ended := make(chan time.Time, 1)
	r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer {
		_ = x.Dispatched()
		<-time.After(20 * time.Millisecond)
		ended <- time.Now()
		return reply(x, okResult)
	}
	c := r.serve()
	for range 20 {
		w := r.start(t, "work")
		body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"await_call","arguments":` + awaitIDs(w) + `,"_meta":{` + modernMeta + `}}}`
		_, b := c.post("/mcp", body, modern(mcp.MethodToolsCall, toolAwait)...)
		late := time.Since(<-ended)
		if r := readOwn(t, toolAwait, b); r.Result.Structured.Calls[0].State != "completed" || late > 50*time.Millisecond {
			t.Errorf("after %v: %s", late, b)
		}
	}
}

// A client that takes no stream gets one JSON body, and a batch one array.
func TestAwaitWithoutStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.stop()
		r.tools["work"] = takes(3*time.Second, "said", okResult)
		c := r.start(t, "work")
		o := asker{t: t, r: r, accept: "application/json", token: "1"}
		w := o.request(t.Context(), "1", toolAwait, awaitIDs(c))
		if got := w.text(); !strings.HasPrefix(got, "3 {") || w.header.Get("Content-Type") != "application/json" {
			t.Errorf("%v %s", w.header, got)
		}
		r.decide = func(string, string, string, bool) Decision { return Decision{Buffered: true} }
		c = r.start(t, "work")
		w = asker{t: t, r: r, token: "1"}.request(t.Context(), "1", toolAwait, awaitIDs(c))
		if got := w.text(); !strings.HasPrefix(got, "3 {") {
			t.Errorf("the kill switch: %s", got)
		}
		r.decide = func(string, string, string, bool) Decision { return Decision{} }

		s, _ := r.h.sessions.open("ann", "", mcp.V20250326, "test", nil)
		c = r.start(t, "work")
		one := func(id, tool, args string) string {
			return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"` + tool + `","arguments":` + args + `}}`
		}
		body := "[" + one("1", toolAwait, awaitIDs(c)) + "," + one("2", toolAwait, `{"wait_ms":1000,"ids":["`+string(c.ID())+`"]}`) + "," + one("3", toolList, "{}") + "," +
			one("4", toolAwait, awaitIDs(c)) + `,{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":4}}` + "," + one("5", "up__work", "{}") + "]"
		req := httptest.NewRequest("POST", "/mcp", strings.NewReader(body))
		req.Header.Set("Authorization", "Bearer ann")
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json")
		req.Header.Set(mcp.HeaderSession, s.id)
		w = newTape()
		r.h.ServeHTTP(w, req)
		_, raw, _ := strings.Cut(w.text(), " ")
		var got []ownResult
		if err := json.Unmarshal([]byte(raw), &got); err != nil || len(got) != 4 {
			t.Fatalf("%v: %s", err, raw)
		}
		if s := got[0].Result.Structured; s.Calls[0].State != "completed" || got[1].Result.Structured.Calls[0].State != "completed" && !got[1].Result.Structured.WaitedOut || string(got[3].ID) != "5" {
			t.Errorf("%s", raw)
		}
		if s.posts != 0 || len(s.calls) != 0 {
			t.Errorf("the session still holds %d, %v", s.posts, s.calls)
		}
	})
}

// Who cancels a wait, or goes away, ends the wait and nothing else.
func TestAwaitCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.stop()
		r.decide = func(string, string, string, bool) Decision {
			return Decision{CancelOnDisconnect: true, Grace: time.Second}
		}
		r.tools["work"] = takes(time.Hour, "", okResult)
		c := r.start(t, "work")
		for _, version := range mcp.LegacyVersions {
			s, _ := r.h.sessions.open("ann", "", version, "test", nil)
			o := asker{t: t, r: r, session: s.id}
			out := make(chan *tape, 1)
			go func() { out <- o.request(context.Background(), `"x"`, toolAwait, awaitIDs(c)) }()
			time.Sleep(time.Second)
			start := time.Now()
			req := httptest.NewRequest("POST", "/mcp", strings.NewReader(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"x"}}`))
			req.Header.Set("Authorization", "Bearer ann")
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set(mcp.HeaderSession, s.id)
			r.h.ServeHTTP(httptest.NewRecorder(), req)
			w := <-out
			if time.Since(start) != 0 || w.text() != "0 : open" {
				t.Errorf("%s: after %v: %s", version, time.Since(start), w.text())
			}
			if s.posts != 0 || len(s.calls) != 0 {
				t.Errorf("the session still holds %d, %v", s.posts, s.calls)
			}
		}
		if got := r.log.hows(); !slices.Equal(got, []call.How{call.HandedOff}) {
			t.Errorf("deliveries %v", got)
		}
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(time.Second, cancel)
		w := asker{t: t, r: r}.request(ctx, "1", toolAwait, awaitIDs(c))
		if got := r.log.hows(); w.text() != "0 : open" || !slices.Equal(got, []call.How{call.HandedOff, call.AbortedDownstream}) {
			t.Errorf("deliveries %v", got)
		}
		time.Sleep(time.Minute)
		if c.Record().End.Outcome != call.Running {
			t.Error("the call has ended")
		}
	})
}

// stuckLater is a tape whose reader takes nothing from some time on.
type stuckLater struct {
	*tape
	from time.Time
}

func (w *stuckLater) FlushError() error {
	w.stuck = time.Now().After(w.from)
	return w.tape.FlushError()
}

// A result is delivered when it was written; one that was not can still be read.
func TestAwaitDeliveryTruth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.tools["work"] = takes(time.Second, "", okResult)
		c := r.start(t, "work")
		defer r.stop()
		body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"await_call","arguments":` + awaitIDs(c) + `,"_meta":{` + modernMeta + `}}}`
		req := httptest.NewRequest("POST", "/mcp", strings.NewReader(body))
		req.Header.Set("Authorization", "Bearer ann")
		req.Header.Set("Content-Type", "application/json")
		h := modern(mcp.MethodToolsCall, toolAwait)
		for i := 0; i < len(h); i += 2 {
			req.Header.Set(h[i], h[i+1])
		}
		r.h.ServeHTTP(&stuckLater{newTape(), time.Now().Add(500 * time.Millisecond)}, req)
		if got := r.log.hows(); !slices.Equal(got, []call.How{call.HandedOff, call.Slow}) {
			t.Fatalf("deliveries %v", got)
		}
		o := asker{t: t, r: r}
		if l := o.ask(toolList, `{"state":"unread"}`); len(l.Result.Structured.Calls) != 1 {
			t.Errorf("%+v", l)
		}
		if a := o.ask(toolAwait, awaitIDs(c)); a.Result.Structured.Calls[0].State != "completed" {
			t.Errorf("%+v", a)
		}
		if l := o.ask(toolList, `{"state":"unread"}`); len(l.Result.Structured.Calls) != 0 {
			t.Errorf("%+v", l)
		}
	})
}

// A wait that longcall's stop ends says that the call goes on.
func TestAwaitAtStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.tools["work"] = takes(time.Hour, "", okResult)
		c := r.start(t, "work")
		time.AfterFunc(time.Second, r.h.Stop)
		start := time.Now()
		got := asker{t: t, r: r}.ask(toolAwait, awaitIDs(c))
		if time.Since(start) != time.Second || got.Result.IsError || !got.Result.Structured.WaitedOut || !strings.HasPrefix(got.text(), "longcall is restarting") {
			t.Errorf("%+v", got)
		}
		r.stop()
	})
}

// A large result is given whole and is not held twice; several that are larger
// together than the limit are given one by one.
func TestAwaitLarge(t *testing.T) {
	r := newRig(t)
	big := strings.Repeat("x", 9<<20)
	r.tools["a"] = takes(0, "", strings.Replace(okResult, "done", big, 1))
	r.tools["b"] = r.tools["a"]
	a, b := r.start(t, "a"), r.start(t, "b")
	c := r.serve()
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"await_call","arguments":{"mode":"all","ids":["` + string(a.ID()) + `","` + string(b.ID()) + `"]},"_meta":{` + modernMeta + `}}}`
	_, got := c.post("/mcp", body, modern(mcp.MethodToolsCall, toolAwait)...)
	res := readOwn(t, toolAwait, got)
	if s := res.Result.Structured; len(res.Result.Content) != 3 || len(res.Result.Content[1].Text) != len(big) || s.Calls[0].Text != big || !strings.Contains(s.Calls[1].Text, "ask for it alone") {
		t.Errorf("%d blocks of %d bytes", len(res.Result.Content), len(got))
	}
	if hows := r.log.hows(); hows[2] != call.Delivered || hows[3] != call.HandedOff {
		t.Errorf("deliveries %v", hows)
	}
}

// A thousand waits on 64 calls cost little memory, no goroutines of ours, and no
// processor time while nothing happens.
func TestAwaitMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waits, calls = 1000, 64
		r := newRig(t)
		r.settings.Comment, r.settings.Progress = 0, 0
		r.log.delivered = make(chan struct{}, 3*waits)
		end := make(chan struct{})
		r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer {
			_ = x.Dispatched()
			<-end
			return reply(x, okResult)
		}
		var list []*call.Call
		for i := range calls {
			c, _, err := r.eng.Attach(t.Context(), call.Spec{Principal: "ann", Server: "up", Tool: "work", PublicTool: "up__work", Digest: fmt.Sprint(i)})
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, c)
		}
		synctest.Wait()
		var before, during runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		threads := runtime.NumGoroutine()
		var wg sync.WaitGroup
		tapes := make([]*tape, waits)
		for i := range waits {
			wg.Go(func() {
				o := asker{t: t, r: r, token: "1"}
				tapes[i] = o.request(context.Background(), "1", toolAwait, `{"wait_ms":600000,"mode":"all","ids":["`+string(list[i%calls].ID())+`","`+string(list[(i*7+1)%calls].ID())+`"]}`)
			})
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		runtime.GC()
		runtime.ReadMemStats(&during)
		each := (int64(during.HeapAlloc+during.StackInuse) - int64(before.HeapAlloc+before.StackInuse)) / waits
		t.Logf("%d bytes a wait", each)
		if each > 32<<10 {
			t.Errorf("%d bytes a wait", each)
		}
		if n := runtime.NumGoroutine() - threads; n > waits+8 {
			t.Errorf("%d goroutines for %d waits", n, waits)
		}
		close(end)
		wg.Wait()
		for _, w := range tapes {
			if n := len(w.entries); n != 2 {
				t.Fatalf("a wait wrote %d times:\n%s", n, w.text())
			}
		}
		r.stop()
	})
}
