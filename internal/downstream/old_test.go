package downstream

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// oldClient is an agent of the 2024-11-05 transport: what its stream brought, and
// the address to post to.
type oldClient struct {
	*client
	resp *http.Response
	at   string
	end  context.CancelFunc

	mu      sync.Mutex
	changed chan struct{}
	text    string
	over    bool
}

// dialOld opens a stream and reads it until it ends.
func (c *client) dialOld(path string, header ...string) *oldClient {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	resp, err := c.http.Do(c.request(ctx, "GET", path, "", header...))
	if err != nil {
		c.t.Fatal(err)
	}
	o := &oldClient{client: c, resp: resp, end: cancel, changed: make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		r := bufio.NewReader(resp.Body)
		for {
			line, err := r.ReadString('\n')
			o.mu.Lock()
			o.text += line
			o.over = err != nil
			close(o.changed)
			o.changed = make(chan struct{})
			o.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	c.t.Cleanup(func() {
		cancel()
		<-done
		resp.Body.Close()
	})
	if resp.StatusCode == http.StatusOK {
		o.await("data: ")
		o.at = regexp.MustCompile(`(?m)^event: endpoint\ndata: (\S+)\n\n`).FindStringSubmatch(o.await("\n\n"))[1]
	}
	return o
}

// await waits until the stream has brought a text, and returns all of it.
func (o *oldClient) await(want string) string {
	o.t.Helper()
	limit := time.After(10 * time.Second)
	for {
		o.mu.Lock()
		text, changed, over := o.text, o.changed, o.over
		o.mu.Unlock()
		if strings.Contains(text, want) {
			return text
		}
		if over {
			o.t.Fatalf("the stream ended without %q:\n%s", want, text)
		}
		select {
		case <-changed:
		case <-limit:
			o.t.Fatalf("the stream has not brought %q:\n%s", want, text)
		}
	}
}

func (o *oldClient) ended() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.over
}

func (o *oldClient) send(body string) int {
	o.t.Helper()
	status, text := o.post(o.at, body)
	if status == http.StatusAccepted && text != "" {
		o.t.Errorf("202 with %q", text)
	}
	return status
}

func (o *oldClient) hello(version string) {
	o.t.Helper()
	if s := o.send(hello(version)); s != http.StatusAccepted {
		o.t.Fatalf("initialize: %d", s)
	}
	o.await(`"id":"i"`)
	o.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
}

func hello(version string) string {
	return `{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"` + version + `","capabilities":{},"clientInfo":{"name":"old","version":"1"}}}`
}

const oldCall = `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"work","arguments":{},"_meta":{"progressToken":"t"}}}`

// request waits for the end of a request that the observer is told of.
func (r *rig) request(is func(q *Request) bool) (found Request) {
	r.t.Helper()
	until(r.t, "a request's end", func() bool {
		r.seen.mu.Lock()
		defer r.seen.mu.Unlock()
		for i := range r.seen.ended {
			if is(&r.seen.ended[i]) {
				found = r.seen.ended[i]
				return true
			}
		}
		return false
	})
	return found
}

// TestOldGolden plays the conversation of testdata/old/2024-11-05.txtar: messages
// that are posted, and all that their stream brings (SPEC §1.5).
func TestOldGolden(t *testing.T) {
	const file = "testdata/old/2024-11-05.txtar"
	ar, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	o := goldenRig(t).serve().dialOld("/sse/build")
	var out []txtar.File
	for _, f := range ar.Files {
		then, ok := strings.CutPrefix(f.Name, "post ")
		if !ok {
			continue
		}
		before := len(o.await(""))
		status := o.send(strings.TrimSpace(string(f.Data)))
		if word, ok := strings.CutPrefix(then, "then "); ok {
			o.await(word)
		}
		got := o.await("")[before:]
		got = strings.ReplaceAll(got, ": open\n\n", "") // when it comes is nobody's business
		got = regexp.MustCompile(`c_[a-z2-7]{26}`).ReplaceAllString(got, "$$CALL")
		out = append(out, f, txtar.File{Name: fmt.Sprintf("recv %d", status), Data: []byte(got)})
	}
	text := txtar.Format(&txtar.Archive{Comment: ar.Comment, Files: out})
	if *update {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	} else if want, err := os.ReadFile(file); err != nil || string(want) != string(text) {
		t.Errorf("%v; got:\n%s", err, text)
	}
}

// A call has its progress, its beats and its answer on the one stream; several at
// a time keep their tokens apart.
func TestOldCallsShareTheStream(t *testing.T) {
	r := newRig(t)
	r.settings.Progress = 50 * time.Millisecond
	go1 := make(chan struct{})
	r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer {
		_ = progress(x, `"progress":1`)
		<-go1
		return reply(x, okResult)
	}
	o := r.serve().dialOld("/sse/up")
	o.hello(mcp.V20241105)
	for i := range 3 {
		if s := o.send(strings.NewReplacer(`"id":7`, fmt.Sprintf(`"id":%d`, i), `"t"`, fmt.Sprintf(`"t%d"`, i), `{}`, fmt.Sprintf(`{"i":%d}`, i)).Replace(oldCall)); s != http.StatusAccepted {
			t.Fatal(s)
		}
	}
	for i := range 3 {
		o.await(fmt.Sprintf(`"progressToken":"t%d","progress":1}`, i))
		o.await(fmt.Sprintf(`"progressToken":"t%d","progress":1.`, i)) // a beat of ours
	}
	close(go1)
	for i := range 3 {
		o.await(fmt.Sprintf(`"id":%d,"result"`, i))
	}
	for m := range strings.SplitSeq(o.await(""), "\n\n") {
		if strings.Contains(m, "\nid:") || strings.HasPrefix(m, "id:") {
			t.Errorf("an event id, though nothing can be resumed: %q", m)
		}
		if d, ok := strings.CutPrefix(m, "event: message\ndata: "); ok {
			if _, err := mcp.Parse([]byte(d)); err != nil {
				t.Errorf("%v: %q", err, d)
			}
		}
	}
	if q := r.request(func(q *Request) bool { return q.Method == "tools/call" }); q.How != call.Delivered || q.Era != mcp.V20241105 || q.Session == "" {
		t.Errorf("observed %+v", q)
	}
}

// A client that leaves detaches its calls: they go on, and who makes the same call
// again gets the result of the first (R-55, SPEC §1.5, §3.7).
func TestOldStreamDropped(t *testing.T) {
	r := newRig(t)
	began, release := make(chan struct{}, 2), make(chan struct{})
	r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer {
		began <- struct{}{}
		<-release
		return reply(x, okResult)
	}
	r.settings.Digest = func(b []byte) string { return string(b) }
	r.decide = func(_, _, _ string, _ bool) Decision { return Decision{Attach: call.AttachUndelivered} }
	c := r.serve()
	o := c.dialOld("/sse/up")
	o.hello(mcp.V20241105)
	o.send(oldCall)
	<-began
	o.end()
	until(t, "the stream's end", func() bool {
		s, _ := c.post(o.at, `{"jsonrpc":"2.0","id":8,"method":"ping"}`)
		return s == http.StatusNotFound
	})
	if q := r.request(func(q *Request) bool { return q.How == call.AbortedDownstream }); q.Method != "tools/call" {
		t.Errorf("the first was observed as %+v", q)
	}
	again := c.dialOld("/sse/up")
	again.hello(mcp.V20241105)
	again.send(oldCall)
	close(release)
	again.await(`"id":7,"result"`)
	if len(began) != 0 {
		t.Error("the call ran twice")
	}
}

// A cancel finds its call as soon as the call's POST is answered, and gets no
// answer (R-23, O22).
func TestOldCancelled(t *testing.T) {
	r := newRig(t)
	r.tools["work"] = func(ctx context.Context, x *call.Exec) call.Answer {
		_ = x.Dispatched()
		<-ctx.Done()
		return call.Answer{}
	}
	o := r.serve().dialOld("/sse/up")
	o.hello(mcp.V20241105)
	o.send(oldCall)
	o.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`)
	q := r.request(func(q *Request) bool { return q.Method == "tools/call" })
	if q.End != nil || q.How != "" {
		t.Errorf("observed %+v", q)
	}
	o.send(`{"jsonrpc":"2.0","id":8,"method":"ping"}`)
	if text := o.await(`"id":8`); strings.Contains(text, `"id":7`) {
		t.Errorf("an answer to a cancelled call:\n%s", text)
	}
}

// The stream and its address are for their principal alone, need the same guard as
// /mcp, and refuse what they are not for.
func TestOldRefused(t *testing.T) {
	c := newRig(t).serve()
	o := c.dialOld("/sse/up")
	for name, s := range map[string]struct {
		method, path, body string
		header             []string
		status             int
		text               string
	}{
		"post to the stream": {"POST", "/sse", hello("2025-11-25"), nil, 405, "Streamable HTTP is served at /mcp"},
		"get the address":    {"GET", o.at, "", nil, 405, "POST messages here"},
		"delete":             {"DELETE", "/sse", "", nil, 405, ""},
		"no such server":     {"GET", "/sse/nothing", "", nil, 404, ""},
		"no such session":    {"POST", "/messages?session=x", oldCall, nil, 404, "not known any more"},
		"no session":         {"POST", "/messages", oldCall, nil, 404, "not known any more"},
		"somebody else's":    {"POST", o.at, oldCall, []string{"Authorization", "Bearer bob"}, 404, "not known any more"},
		"no token":           {"GET", "/sse", "", []string{"Authorization", ""}, 401, ""},
		"bad token":          {"POST", o.at, oldCall, []string{"Authorization", "Bearer x"}, 401, ""},
		"a page's":           {"GET", "/sse", "", []string{"Origin", "https://evil.example"}, 403, ""},
		"a page's post":      {"POST", o.at, oldCall, []string{"Origin", "https://evil.example"}, 403, ""},
		"batch":              {"POST", o.at, "[" + oldCall + "]", nil, 400, "Batches"},
		"no json":            {"POST", o.at, "{", nil, 400, "-32700"},
		"no json type":       {"POST", o.at, oldCall, []string{"Content-Type", "text/plain"}, 415, ""},
	} {
		t.Run(name, func(t *testing.T) {
			status, h, body := c.do(s.method, s.path, s.body, s.header...)
			if status != s.status || !strings.Contains(body, s.text) {
				t.Errorf("%d %s", status, body)
			}
			if status == 405 && h.Get("Allow") == "" {
				t.Error("405 without Allow")
			}
		})
	}
	o.send(oldCall)
	o.await("send initialize first")
	o.hello(mcp.V20250618)
	if text := o.await(""); !strings.Contains(text, `"protocolVersion":"2025-06-18"`) {
		t.Errorf("negotiated:\n%s", text)
	}
	o.send(hello(mcp.V20241105))
	o.await("has begun already")
}

// A longcall that hands over ends idle streams at once, and others when their calls
// have ended.
func TestOldRetire(t *testing.T) {
	r := newRig(t)
	began, release := make(chan struct{}), make(chan struct{})
	r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer {
		close(began)
		<-release
		return reply(x, okResult)
	}
	c := r.serve()
	idle, busy := c.dialOld("/sse/up"), c.dialOld("/sse/up")
	idle.hello(mcp.V20241105)
	busy.hello(mcp.V20241105)
	busy.send(oldCall)
	<-began
	r.h.Retire()
	until(t, "the idle stream's end", idle.ended)
	close(release)
	busy.await(`"id":7,"result"`)
	until(t, "the busy stream's end", busy.ended)
}
