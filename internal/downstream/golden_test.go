package downstream

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// TestGolden plays the conversations of testdata. Each file holds pairs of a
// request ("send": method and path, headers, blank line, body) and its answer
// ("recv"); -update writes the answers anew. $SESSION is the last session's id,
// $TASK the last task's, $STATE the last requestState, $CHANGED one that was changed on
// the way, and $EXPIRED one that is too old. A send whose name ends in "until WORD" is sent again
// until its answer holds the word.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no conversations", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) { converse(t, file) })
	}
}

var (
	taskIDs      = regexp.MustCompile(`"taskId":"(c_[a-z2-7]{26})"`)
	taskTimes    = regexp.MustCompile(`"(createdAt|lastUpdatedAt)":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"`)
	runningSince = regexp.MustCompile(`Running since \d\d:\d\d:\d\d UTC`)
	inputStates  = regexp.MustCompile(`"requestState":"([A-Za-z0-9_-]{40,})"`)
	ttls         = regexp.MustCompile(`"(ttl|ttlMs)":864\d\d000`)
)

func converse(t *testing.T, file string) {
	ar, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	r := goldenRig(t)
	if strings.HasPrefix(filepath.Base(file), "reads-") {
		readsRig(r)
	}
	c := r.serve()
	session, task, state := "", "", ""
	expired := r.h.sealState(&inputState{call: call.NewID(), expires: time.Now().Add(-time.Hour)}, "ann", "")
	var out []txtar.File
	for i, f := range ar.Files {
		if !strings.HasPrefix(f.Name, "send") {
			continue
		}
		send := strings.NewReplacer("$TASK", task, "$STATE", state, "$CHANGED", "A"+state, "$EXPIRED", expired).Replace(string(f.Data))
		_, word, _ := strings.Cut(f.Name, " until ")
		var got, newSession string
		until(t, f.Name, func() bool {
			got, newSession = play(t, c, send, session)
			return strings.Contains(got, word)
		})
		if m := taskIDs.FindStringSubmatch(got); m != nil {
			task = m[1]
		}
		if m := inputStates.FindStringSubmatch(got); m != nil {
			state = m[1]
			got = strings.ReplaceAll(got, state, "$STATE")
		}
		if newSession != "" {
			session = newSession
		}
		if session != "" {
			got = strings.ReplaceAll(got, session, "$SESSION")
		}
		got = regexp.MustCompile(`c_[a-z2-7]{26}`).ReplaceAllString(got, "$$CALL")
		got = regexp.MustCompile(`(?m)^id: [A-Za-z0-9_-]+\.`).ReplaceAllString(got, "id: $$STREAM.")
		got = taskTimes.ReplaceAllString(got, `"$1":"$$TIME"`)
		got = runningSince.ReplaceAllString(got, "Running since $$TIME")
		got = ttls.ReplaceAllString(got, `"$1":$$TTL`)
		out = append(out, f, txtar.File{Name: "recv", Data: []byte(got)})
		if *update {
			continue
		}
		if i+1 >= len(ar.Files) || ar.Files[i+1].Name != "recv" {
			t.Fatalf("%s has no recv: run with -update", f.Name)
		}
		if want := string(ar.Files[i+1].Data); got != want {
			t.Errorf("%s\n%s\ngot:\n%s\nwant:\n%s", f.Name, f.Data, got, want)
		}
	}
	if *update {
		ar.Files = out
		if err := os.WriteFile(file, txtar.Format(ar), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// play sends one request, and writes down the answer.
func play(t *testing.T, c *client, send, session string) (recv, newSession string) {
	t.Helper()
	head, body, _ := strings.Cut(send, "\n\n")
	lines := strings.Split(head, "\n")
	method, path, _ := strings.Cut(lines[0], " ")
	made := strings.NewReplacer("odd-name-_$ODD", hashedName("", "odd name!", 0)[2:], "up__write-a-poem_$POEM", hashedName("up", "write a poem", 0))
	body = made.Replace(strings.TrimSuffix(body, "\n"))
	req := c.request(context.Background(), method, path, body)
	for _, l := range lines[1:] {
		k, v, ok := strings.Cut(l, ": ")
		switch {
		case !ok:
			req.Header.Del(strings.TrimSuffix(k, ":"))
		case k == "Host":
			req.Host = v
		default:
			req.Header.Set(k, made.Replace(strings.ReplaceAll(v, "$SESSION", session)))
		}
	}
	resp, err := c.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var w strings.Builder
	fmt.Fprintln(&w, resp.StatusCode)
	for _, k := range slices.Sorted(mapKeys(resp.Header)) {
		if k != "Date" && k != "Content-Length" {
			fmt.Fprintf(&w, "%s: %s\n", k, strings.Join(resp.Header[k], " | "))
		}
	}
	if len(b) > 0 {
		fmt.Fprintf(&w, "\n%s\n", b)
	}
	return w.String(), resp.Header.Get(mcp.HeaderSession)
}

func mapKeys(h http.Header) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range h {
			if !yield(k) {
				return
			}
		}
	}
}

// goldenRig has two servers with tools for all that an agent can meet.
func goldenRig(t *testing.T) *rig {
	r := newRig(t)
	r.lists = map[string][]mcp.Entry{
		"files": {
			{Name: "write", Raw: []byte(`{"name":"write","description":"Writes.","x":9007199254740993,"inputSchema":{"type":"object"},"execution":{"taskSupport":"optional"}}`)},
			{Name: "read", Raw: []byte(`{"inputSchema":{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"},"n":{"type":"integer","x-mcp-header":"Count"}}},"name":"read"}`)},
		},
		"build": {
			{Name: "run", Raw: []byte(`{"name":"run","inputSchema":{"type":"object"}}`)},
			{Name: "odd name!", Raw: []byte(`{"name":"odd name!","inputSchema":{"type":"object"}}`)},
		},
	}
	r.fresh = map[string]bool{"files": true, "build": true}
	r.h.opt.Profile = func(_, _, _ string) Profile { return Profile{Tasks: true, TaskBudget: 50 * time.Millisecond} }
	r.settings.AllowedOrigins = []string{"https://app.example"}
	r.settings.AllowedHosts = []string{"tools.example"}
	r.settings.BodyLimit = 4096
	r.tools["run"] = func(_ context.Context, x *call.Exec) call.Answer {
		for _, m := range []string{`"progress":1,"total":3,"message":"one"`, `"progress":2.50,"total":3`, `"progress":3,"total":3`} {
			if err := progress(x, m); err != nil {
				t.Error(err)
			}
		}
		body := `{"method":"notifications/message","params":{"level":"info","data":"linking"},"jsonrpc":"2.0"}`
		if err := x.Emit(call.Event{Kind: call.KindMessage, Body: []byte(body), Hole: -1}); err != nil {
			t.Error(err)
		}
		return reply(x, `{"result":{"content":[{"type":"text","text":"built"}],"big":9007199254740993,"unknown":{"b":1,"a":2}},"id":0,"jsonrpc":"2.0"}`)
	}
	r.tools["write"] = func(_ context.Context, x *call.Exec) call.Answer {
		return reply(x, `{"jsonrpc":"2.0","id":0,"result":{"resultType":"complete","content":[],"isError":true}}`)
	}
	r.tools["read"] = func(_ context.Context, x *call.Exec) call.Answer {
		return reply(x, `{"jsonrpc":"2.0","id":0,"error":{"code":-32002,"message":"not there","data":{"uri":"x:-32002"}}}`)
	}
	r.tools["odd name!"] = func(_ context.Context, x *call.Exec) call.Answer {
		_ = x.Dispatched()
		return call.Answer{End: call.End{Outcome: call.TimedOut, Limit: "idle", Text: "Stopped: silent for 5m0s."}}
	}
	r.tools["hold"] = func(ctx context.Context, x *call.Exec) call.Answer {
		_ = x.Dispatched()
		<-ctx.Done()
		return call.Answer{}
	}
	r.tools["ask"] = func(ctx context.Context, x *call.Exec) call.Answer {
		_ = x.Dispatched()
		_ = progress(x, `"progress":1,"total":2`)
		x.Ask([]byte(`{"sure":{"method":"elicitation/create","params":{"message":"Sure?"}},"why":{"method":"elicitation/create","params":{"message":"Why?"}}}`), nil)
		for range 2 {
			select {
			case <-x.Answers():
			case <-ctx.Done():
				return call.Answer{}
			}
		}
		return reply(x, `{"jsonrpc":"2.0","id":0,"result":{"content":[{"type":"text","text":"done"}],"isError":true}}`)
	}
	r.decide = func(_, _, tool string, modern bool) Decision {
		d := Decision{CancelOnDisconnect: modern, HandOff: tool == "hold" || tool == "ask" || tool == "odd name!"}
		if tool == "forbidden" {
			d.Denied = &call.End{Outcome: call.Denied, By: "policy", Text: "Not allowed here."}
		}
		return d
	}
	return r
}
