package downstream

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// ownResult is the answer of one of our tools.
type ownResult struct {
	ID     json.RawMessage
	Error  *struct{ Code int }
	Result struct {
		ResultType string
		IsError    bool
		Content    []struct{ Type, Text, Data string }
		Structured *struct {
			Calls []struct {
				CallID    string `json:"call_id"`
				Tool      string
				State     string
				Unread    bool
				StartedAt string `json:"started_at"`
				EndedAt   string `json:"ended_at"`
				WallMS    int64  `json:"wall_ms"`
				Progress  string
				Text      string
				Result    json.RawMessage
			}
			CallID    string `json:"call_id"`
			State     string
			Cancelled bool
			WaitedOut bool `json:"waited_out"`
			More      bool
			Unknown   []string
			Next      string
		} `json:"structuredContent"`
	}
}

func (r *ownResult) texts() (out []string) {
	for _, c := range r.Result.Content {
		out = append(out, c.Text)
	}
	return out
}

func (r *ownResult) text() string { return strings.Join(r.texts(), "\n") }

// readOwn reads the last message of an answer, and holds it to the tool's own
// output schema.
func readOwn(t testing.TB, tool, answer string) (r ownResult) {
	t.Helper()
	raw := answer
	if d := data(answer); len(d) > 0 {
		raw = d[len(d)-1]
	}
	if err := json.Unmarshal([]byte(raw), &r); err != nil {
		t.Fatalf("%v in %s", err, answer)
	}
	if r.Result.Structured != nil {
		var whole struct {
			Result struct {
				Structured any `json:"structuredContent"`
			}
		}
		if err := json.Unmarshal([]byte(raw), &whole); err != nil {
			t.Fatal(err)
		}
		if err := conforms(ownSchema(t, tool, "outputSchema"), whole.Result.Structured); err != "" {
			t.Errorf("the structured content of %s: %s\n%s", tool, err, raw)
		}
	} else if !r.Result.IsError && r.Error == nil {
		t.Errorf("%s without structured content: %s", tool, raw)
	}
	return r
}

func ownSchema(t testing.TB, tool, name string) map[string]any {
	t.Helper()
	var e map[string]any
	if err := json.Unmarshal(append([]byte(`{"name":"x"`), shellSchemas[tool]...), &e); err != nil {
		t.Fatal(err)
	}
	s, ok := e[name].(map[string]any)
	if !ok {
		t.Fatalf("%s has no %s", tool, name)
	}
	return s
}

// conforms checks a value against a flat schema, and says what is wrong; what the
// schema does not name is wrong too.
func conforms(schema map[string]any, v any) string {
	switch schema["type"] {
	case "object":
		o, ok := v.(map[string]any)
		if !ok {
			return fmt.Sprintf("%v is no object", v)
		}
		props, closed := schema["properties"].(map[string]any)
		for k, m := range o {
			p, known := props[k].(map[string]any)
			if !known {
				if closed {
					return "the schema has no " + k
				}
				continue
			}
			if wrong := conforms(p, m); wrong != "" {
				return k + ": " + wrong
			}
		}
		required, _ := schema["required"].([]any)
		for _, k := range required {
			if _, ok := o[k.(string)]; !ok {
				return fmt.Sprint(k, " is missing")
			}
		}
	case "array":
		a, ok := v.([]any)
		if !ok {
			return fmt.Sprintf("%v is no array", v)
		}
		for _, m := range a {
			if wrong := conforms(schema["items"].(map[string]any), m); wrong != "" {
				return wrong
			}
		}
	case "string":
		s, ok := v.(string)
		if !ok {
			return fmt.Sprintf("%v is no string", v)
		}
		if enum, ok := schema["enum"].([]any); ok && !slices.Contains(enum, any(s)) {
			return s + " is not allowed"
		}
	case "integer":
		if f, ok := v.(float64); !ok || f != float64(int64(f)) {
			return fmt.Sprintf("%v is no integer", v)
		}
	case "boolean":
		if _, ok := v.(bool); !ok {
			return fmt.Sprintf("%v is no boolean", v)
		}
	default:
		return fmt.Sprintf("the schema has the type %v", schema["type"])
	}
	return ""
}

// Schemas are flat: no unions, no nulls, nothing that a host cannot translate.
func TestOwnSchemas(t *testing.T) {
	var flat func(where string, v any)
	flat = func(where string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, m := range v {
				if slices.Contains([]string{"anyOf", "oneOf", "allOf", "not", "if", "$ref", "$defs", "nullable"}, k) {
					t.Errorf("%s has %s", where, k)
				}
				if _, list := m.([]any); list && k == "type" {
					t.Errorf("%s has several types", where)
				}
				flat(where+"."+k, m)
			}
		case []any:
			for _, m := range v {
				flat(where, m)
			}
		case nil:
			t.Errorf("%s is null", where)
		}
	}
	for _, tool := range ownTools {
		for _, name := range []string{"inputSchema", "outputSchema"} {
			flat(tool+"."+name, ownSchema(t, tool, name))
		}
		a := ownSchema(t, tool, "annotations")
		if a["readOnlyHint"] != (tool != toolCancel) || a["openWorldHint"] != false || (tool == toolCancel) != (a["destructiveHint"] == true && a["idempotentHint"] == true) {
			t.Errorf("%s: %v", tool, a)
		}
		for _, entry := range [][]byte{ownSchemas[tool], shellSchemas[tool]} {
			if !json.Valid(append([]byte(`{"name":"x"`), entry...)) || strings.ContainsAny(string(entry), "\n\r") {
				t.Errorf("%s is not one line of JSON: %s", tool, entry)
			}
		}
	}
}

// asker asks one of our tools, as an agent of an era, on fake time or real.
type asker struct {
	t       testing.TB
	r       *rig
	path    string // /mcp if empty
	bearer  string // ann if empty
	session string // legacy if not empty
	token   string
	accept  string
}

func (o asker) request(ctx context.Context, id, tool, args string) *tape {
	o.t.Helper()
	if o.path == "" {
		o.path = "/mcp"
	}
	if o.bearer == "" {
		o.bearer = "ann"
	}
	meta := ""
	if o.session == "" {
		meta = modernMeta
	}
	if o.token != "" {
		if meta != "" {
			meta += ","
		}
		meta += `"progressToken":` + o.token
	}
	body := `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"` + tool + `","arguments":` + args + `,"_meta":{` + meta + `}}}`
	req := httptest.NewRequest("POST", o.path, strings.NewReader(body)).WithContext(ctx)
	req.Header.Set("Authorization", "Bearer "+o.bearer)
	req.Header.Set("Content-Type", "application/json")
	if o.accept != "" {
		req.Header.Set("Accept", o.accept)
	}
	if o.session != "" {
		req.Header.Set(mcp.HeaderSession, o.session)
	} else {
		h := modern(mcp.MethodToolsCall, tool)
		for i := 0; i < len(h); i += 2 {
			req.Header.Set(h[i], h[i+1])
		}
	}
	w := newTape()
	o.r.h.ServeHTTP(w, req)
	return w
}

func (o asker) ask(tool, args string) ownResult {
	o.t.Helper()
	w := o.request(o.t.Context(), "1", tool, args)
	return readOwn(o.t, strings.TrimPrefix(tool, ownPrefix), w.body())
}

// body is all that was written, as it was.
func (w *tape) body() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var b strings.Builder
	for _, e := range w.entries {
		text := strings.Replace(e, " ", " | ", 1)
		b.WriteString(strings.ReplaceAll(text, ` | {"jsonrpc"`, "\ndata: {\"jsonrpc\"") + "\n")
	}
	return b.String()
}

// start starts a call in the engine, as if a request had left it: it was handed
// off.
func (r *rig) start(t testing.TB, tool string) *call.Call {
	t.Helper()
	return r.startAs(t, "ann", tool)
}

func (r *rig) startAs(t testing.TB, principal, tool string) *call.Call {
	t.Helper()
	c, _, err := r.eng.Attach(t.Context(), call.Spec{Principal: principal, Server: "up", Tool: tool, PublicTool: "up__" + tool, Digest: tool})
	if err != nil {
		t.Fatal(err)
	}
	c.Leave(call.Delivery{Call: c.ID(), Kind: "sse", How: call.HandedOff}, -1)
	return c
}

// takes makes a tool that takes a time and says progress before, at once.
func takes(d time.Duration, said string, answer string) script {
	return func(ctx context.Context, x *call.Exec) call.Answer {
		_ = x.Dispatched()
		if said != "" {
			_ = progress(x, `"progress":1,"message":"`+said+`"`)
		}
		select {
		case <-time.After(d):
		case <-ctx.Done():
			return call.Answer{}
		}
		return reply(x, answer)
	}
}

func awaitIDs(calls ...*call.Call) string {
	var ids []string
	for _, c := range calls {
		ids = append(ids, string(c.ID()))
	}
	return idList(ids)
}

// eras runs a test on fake time as an agent of each era.
func eras(t *testing.T, f func(t *testing.T, o asker)) {
	for _, version := range []string{mcp.V20250618, mcp.V20260728} {
		t.Run(version, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				o := asker{t: t, r: r}
				if version != mcp.V20260728 {
					s, _ := r.h.sessions.open("ann", "", version, "test", nil)
					o.session = s.id
				}
				f(t, o)
				r.stop()
			})
		})
	}
}

// await_call gives the result when it is there, with the tool's own blocks byte
// for byte, and shows life until then.
func TestAwait(t *testing.T) {
	eras(t, func(t *testing.T, o asker) {
		o.token = "7"
		o.r.tools["work"] = func(ctx context.Context, x *call.Exec) call.Answer {
			_ = x.Dispatched()
			_ = progress(x, `"progress":5,"message":"before"`)
			time.Sleep(3 * time.Second)
			_ = progress(x, `"progress":6,"message":"linking"`)
			_ = progress(x, `"progress":7,"total":9`)
			time.Sleep(18 * time.Second)
			_ = progress(x, `"progress":1,"message":"late"`)
			time.Sleep(500 * time.Millisecond)
			return reply(x, `{"jsonrpc":"2.0","result":{"structuredContent":{"n":9007199254740993,"a" : [1]},"content":[{"type":"text","text":"b\u00fcilt"}, {"type":"image","data":"AAAA","mimeType":"image/png"}]},"id":0}`)
		}
		c := o.r.start(t, "work")
		time.Sleep(time.Second)
		w := o.request(t.Context(), `"a"`, toolAwait, awaitIDs(c))
		id := string(c.ID())
		p := `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":7,"progress":`
		want := []string{"0 : open", "2 " + p + `0.000002,"message":"` + id + `: Progress: 7 of 9"}}`, "7 : ka"}
		if got := strings.Split(w.text(), "\n"); len(got) < 4 || !slices.Equal(got[:3], want) {
			t.Fatalf("got:\n%s\nwant:\n%s", w.text(), strings.Join(want, "\n"))
		}
		if !strings.Contains(w.text(), "\n20 "+p+`0.00002,"message":"`+id+`: late"}}`) || !strings.Contains(w.text(), "still running, 12 s") {
			t.Errorf("no progress: %s", w.text())
		}
		last := w.entries[len(w.entries)-1]
		complete := ""
		if o.session == "" {
			complete = `"resultType":"complete",`
		}
		wantEnd := `20.5 {"jsonrpc":"2.0","id":"a","result":{` + complete + `"content":[{"type":"text","text":"` + id + ` (up__work) completed after 21.5 s."},` +
			`{"type":"text","text":"b\u00fcilt"}, {"type":"image","data":"AAAA","mimeType":"image/png"}],"structuredContent":{"calls":[{"call_id":"` + id + `","tool":"up__work","state":"completed","started_at":"2000-01-01T00:00:00.000Z","ended_at":"2000-01-01T00:00:21.500Z","wall_ms":21500,` +
			`"result":{"n":9007199254740993,"a" : [1]}}],"waited_out":false}}}`
		if last != wantEnd {
			t.Errorf("got:\n%s\nwant:\n%s", last, wantEnd)
		}
		r := readOwn(t, toolAwait, w.body())
		if r.Result.IsError || len(r.Result.Content) != 3 {
			t.Errorf("%+v", r)
		}
		if got := o.r.log.hows(); !slices.Equal(got, []call.How{call.HandedOff, call.Delivered}) {
			t.Errorf("deliveries: %v", got)
		}
		d := o.r.log.deliveries[1]
		if d.Kind != "await" || d.Call != c.ID() || d.FirstByte <= 0 || d.Ended.Sub(d.Attached) != 20500*time.Millisecond {
			t.Errorf("%+v", d)
		}
		q := o.r.seen.ended[0]
		if q.Tool != toolAwait || q.Kind != "await" || q.How != call.Delivered || q.End == nil || q.Call != c.ID() || q.MaxGap > 5*time.Second {
			t.Errorf("observed %+v", q)
		}
		// It can be read again, hours later, at once.
		time.Sleep(5 * time.Hour)
		for range 2 {
			start := time.Now()
			if r := o.ask(toolAwait, awaitIDs(c)); r.Result.Structured.Calls[0].State != "completed" || time.Since(start) != 0 {
				t.Errorf("%+v after %v", r, time.Since(start))
			}
		}
	})
}

// At the deadline nothing is wrong: the call runs on, and the text says so.
func TestAwaitWaitsOut(t *testing.T) {
	eras(t, func(t *testing.T, o asker) {
		o.r.tools["work"] = takes(time.Hour, "step 3", okResult)
		c := o.r.start(t, "work")
		synctest.Wait()
		for _, k := range []struct {
			args  string
			token string
			want  time.Duration
		}{
			{`{"ids":["` + string(c.ID()) + `"]}`, "", defaultAwait},
			{`{"ids":["` + string(c.ID()) + `"]}`, "1", defaultAwaitToken},
			{`{"ids":["` + string(c.ID()) + `"],"wait_ms":0}`, "1", 0},
			{`{"ids":["` + string(c.ID()) + `"],"wait_ms":1.2e2,"mode":null}`, "", 120 * time.Millisecond},
			{`{"ids":["` + string(c.ID()) + `"],"wait_ms":600000}`, "1", 10 * time.Minute},
		} {
			o.token = k.token
			start := time.Now()
			r := o.ask(toolAwait, k.args)
			if got := time.Since(start); got != k.want {
				t.Errorf("%s took %v", k.args, got)
			}
			s := r.Result.Structured
			if r.Result.IsError || !s.WaitedOut || s.Calls[0].State != "running" || s.Calls[0].Progress != "step 3" || s.Calls[0].EndedAt != "" || s.Next != r.text() {
				t.Errorf("%+v", r)
			}
			for _, want := range []string{"Still running: " + string(c.ID()) + " (up__work), since 00:00:00 UTC", `it last said: "step 3"`, "do not run it again", `Call await_call again with {"ids":["` + string(c.ID()) + `"],"attempt":2}`, "go on with other work"} {
				if !strings.Contains(r.text(), want) {
					t.Errorf("%q is not in %q", want, r.text())
				}
			}
		}
		if got := o.r.log.hows(); !slices.Equal(got, slices.Repeat([]call.How{call.HandedOff}, 6)) {
			t.Errorf("deliveries: %v", got)
		}
	})
}

// A wait never goes past what the host waits for.
func TestAwaitKeepsToTheBudget(t *testing.T) {
	eras(t, func(t *testing.T, o asker) {
		o.r.h.opt.Profile = func(_, _, client string) Profile {
			return Profile{Budget: 20 * time.Second, BudgetToken: time.Minute, Await: 3 * time.Second, AwaitToken: 50 * time.Second, Tasks: true}
		}
		o.r.tools["work"] = takes(time.Hour, "", okResult)
		c := o.r.start(t, "work")
		for _, k := range []struct {
			wait, token, accept string
			want                time.Duration
		}{
			{"", "", "", 3 * time.Second},
			{"", "1", "", 50 * time.Second},
			{"", "1", "application/json", 3 * time.Second}, // it sees no progress
			{`,"wait_ms":45000`, "", "", 20 * time.Second},
			{`,"wait_ms":600000`, "1", "", time.Minute},
		} {
			o.token, o.accept = k.token, k.accept
			start := time.Now()
			if r := o.ask(toolAwait, `{"ids":["`+string(c.ID())+`"]`+k.wait+`}`); !r.Result.Structured.WaitedOut || time.Since(start) != k.want {
				t.Errorf("%+v: %v, %+v", k, time.Since(start), r)
			}
		}
	})
}

// Every end is told for what it is, and one alone that is no success is an error.
func TestAwaitEnds(t *testing.T) {
	ends := map[string]struct {
		script script
		state  string
		first  string
		want   []string
	}{
		"tool error": {takes(time.Second, "", `{"jsonrpc":"2.0","id":0,"result":{"content":[ {"type":"text","text":"no \"disk\""}],"isError":true}}`), "tool_error", "ended with a tool error after 1.0 s.", []string{`no "disk"`}},
		"error":      {takes(time.Second, "", `{"jsonrpc":"2.0","id":0,"error":{"code":-32602,"message":"bad\npath"}}`), "failed", "failed after 1.0 s. The tool server answered with the error -32602: bad path", nil},
		"no blocks":  {takes(time.Second, "", `{"jsonrpc":"2.0","id":0,"result":{"content":[ ]}}`), "completed", "completed after 1.0 s.", nil},
		"limit": {func(_ context.Context, x *call.Exec) call.Answer {
			_ = x.Dispatched()
			return call.Answer{End: call.End{Outcome: call.TimedOut, Limit: "idle", Text: "Stopped: silent."}}
		}, "timed_out", "was stopped at a time limit after 0.0 s. Stopped: silent.", nil},
		"lost": {func(_ context.Context, x *call.Exec) call.Answer {
			_ = x.Dispatched()
			return call.Answer{}
		}, "interrupted", "has an unknown outcome after 0.0 s. Outcome unknown: longcall lost the call.", nil},
		"input": {takes(time.Second, "", `{"jsonrpc":"2.0","id":0,"result":{"resultType":"input_required","inputRequests":{}}}`), "interrupted", "The tool asks for input", nil},
	}
	for name, k := range ends {
		t.Run(name, func(t *testing.T) {
			eras(t, func(t *testing.T, o asker) {
				o.r.tools["work"] = func(ctx context.Context, x *call.Exec) call.Answer {
					a := k.script(ctx, x)
					if a.Outcome == call.Failed {
						a.Code = -32602
					}
					a.ToolError = name == "tool error"
					return a
				}
				c := o.r.start(t, "work")
				r := o.ask(toolAwait, awaitIDs(c))
				s := r.Result.Structured
				if s.Calls[0].State != k.state || r.Result.IsError != (k.state != "completed") || !strings.Contains(r.texts()[0], k.first) || !slices.Equal(r.texts()[1:], k.want) && len(k.want)+len(r.texts()[1:]) > 0 {
					t.Errorf("%+v", r)
				}
				if name == "tool error" && s.Calls[0].Text != k.want[0] {
					t.Errorf("text %q", s.Calls[0].Text)
				}
				other := o.r.start(t, "work")
				if r := o.ask(toolAwait, `{"mode":"all","ids":["`+string(c.ID())+`","`+string(other.ID())+`"]}`); r.Result.IsError || len(r.Result.Structured.Calls) != 2 {
					t.Errorf("two: %+v", r)
				}
			})
		})
	}
}

// Several calls: any is the first that ends, all are all of them; what is nobody's
// counts for nothing.
func TestAwaitSeveral(t *testing.T) {
	eras(t, func(t *testing.T, o asker) {
		o.r.tools["a"] = takes(time.Second, "", okResult)
		o.r.tools["b"] = takes(3*time.Second, "", strings.Replace(okResult, "done", "b is done", 1))
		o.r.tools["c"] = takes(time.Hour, "", okResult)
		a, b, c := o.r.start(t, "a"), o.r.start(t, "b"), o.r.start(t, "c")
		foreign := o.r.startAs(t, "bob", "a")
		start := time.Now()
		r := o.ask(toolAwait, awaitIDs(c, b, a, a))
		s := r.Result.Structured
		if time.Since(start) != time.Second || len(s.Calls) != 3 || s.WaitedOut || s.Calls[2].State != "completed" || s.Calls[0].State != "running" || s.Calls[1].State != "running" {
			t.Errorf("any: %+v after %v", r, time.Since(start))
		}
		if texts := r.texts(); len(texts) != 3 || !strings.HasPrefix(texts[0], string(a.ID())+" (up__a) completed") || texts[1] != "done" || !strings.Contains(texts[2], `await_call again with {"ids":["`+string(c.ID())+`","`+string(b.ID())+`"],"attempt":2}`) || s.Next != texts[2] {
			t.Errorf("any: %q", r.texts())
		}
		r = o.ask(toolAwait, `{"mode":"all","ids":["`+string(b.ID())+`","`+string(foreign.ID())+`","`+string(a.ID())+`","nonsense"]}`)
		s = r.Result.Structured
		if time.Since(start) != 3*time.Second || len(s.Calls) != 2 || s.WaitedOut || r.Result.IsError || !slices.Equal(s.Unknown, []string{string(foreign.ID()), "nonsense"}) {
			t.Errorf("all: %+v after %v", r, time.Since(start))
		}
		if texts := r.texts(); len(texts) != 5 || texts[1] != "b is done" || texts[3] != "done" || !strings.HasPrefix(texts[4], "No such call of yours: ") {
			t.Errorf("all: %q", r.texts())
		}
		r = o.ask(toolAwait, `{"mode":"all","wait_ms":1000,"ids":["`+string(b.ID())+`","`+string(c.ID())+`"]}`)
		if s = r.Result.Structured; time.Since(start) != 4*time.Second || !s.WaitedOut || s.Calls[0].State != "completed" || s.Calls[1].State != "running" || r.texts()[1] != "b is done" {
			t.Errorf("all, waited out: %+v", r)
		}
	})
}

// of an id that is another principal's, or none, nothing is told, and
// nothing differs.
func TestOwnToolsUnknownIDs(t *testing.T) {
	eras(t, func(t *testing.T, o asker) {
		o.r.tools["work"] = takes(time.Hour, "secret", okResult)
		theirs := o.r.startAs(t, "bob", "work")
		never := call.NewID()
		for _, tool := range []string{toolAwait, toolCancel} {
			var said []string
			for _, id := range []string{string(theirs.ID()), string(never), strings.ToUpper(string(never)), "", "c_", "x"} {
				args := `{"id":"` + id + `"}`
				if tool == toolAwait {
					args = idList([]string{id})
				} else if id == "" {
					continue
				}
				r := o.ask(tool, args)
				if !r.Result.IsError || r.Result.Structured != nil || !strings.Contains(r.text(), "list_calls") {
					t.Errorf("%s of %q: %+v", tool, id, r)
				}
				said = append(said, strings.ReplaceAll(r.text(), fmt.Sprintf("%q", id), "ID"))
			}
			for _, s := range said {
				if s != said[0] {
					t.Errorf("%s: %q differs from %q", tool, s, said[0])
				}
			}
		}
		if theirs.Record().End.Outcome != call.Running || len(theirs.Record().End.By) > 0 {
			t.Error("another principal's call was cancelled")
		}
		if r := o.ask(toolList, `{}`); len(r.Result.Structured.Calls) != 0 || r.text() != "You have no calls." {
			t.Errorf("%+v", r)
		}
	})
}
