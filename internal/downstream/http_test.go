package downstream

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// gate is a tool that says when it runs and waits until it may end.
type gate struct {
	running chan call.ID
	end     chan struct{}
}

func newGate() *gate { return &gate{running: make(chan call.ID, 100), end: make(chan struct{})} }

func (g *gate) run(ctx context.Context, x *call.Exec) call.Answer {
	_ = x.Dispatched()
	g.running <- x.ID
	select {
	case <-g.end:
		return reply(x, okResult)
	case <-ctx.Done():
		return call.Answer{}
	}
}

// stream opens a request whose answer is read line by line.
func (c *client) stream(ctx context.Context, method, path, body string, header ...string) (*http.Response, *bufio.Reader) {
	c.t.Helper()
	resp, err := c.http.Do(c.request(ctx, method, path, body, header...))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = resp.Body.Close() })
	return resp, bufio.NewReader(resp.Body)
}

func expectLine(t *testing.T, r *bufio.Reader, want string) {
	t.Helper()
	l, err := r.ReadString('\n')
	if err != nil || !strings.Contains(l, want) {
		t.Fatalf("got %q, %v; want %q", l, err, want)
	}
}

// TestSessionStream: the GET stream opens at once, tells of changes of the list
// that the agent was offered, once, and gives way to a newer one (R-25, O24).
func TestSessionStream(t *testing.T) {
	r := newRig(t)
	c := r.serve()
	c.open("/mcp", mcp.V20251125)
	c.post("/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	resp, first := c.stream(t.Context(), "GET", "/mcp", "")
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("GET: %d %v", resp.StatusCode, resp.Header)
	}
	expectLine(t, first, ": open")
	r.change("up")
	for _, l := range []string{"\n", "event: message", `data: {"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`, "\n"} {
		expectLine(t, first, l)
	}
	_, second := c.stream(t.Context(), "GET", "/mcp", "")
	expectLine(t, second, ": open")
	if rest, err := io.ReadAll(first); err != nil || len(rest) != 0 {
		t.Errorf("the old stream: %q, %v", rest, err)
	}
	r.change("up")
	for _, l := range []string{"\n", "event: message", "list_changed"} {
		expectLine(t, second, l)
	}
	if status, _, _ := c.do("DELETE", "/mcp", ""); status != 204 {
		t.Errorf("DELETE: %d", status)
	}
	if rest, err := io.ReadAll(second); err != nil || strings.Contains(string(rest), "data") {
		t.Errorf("after DELETE: %q, %v", rest, err)
	}
}

// TestChangeWithoutStream: a change while no stream is open is told on the next
// one, unless the agent has read the list since; also if it never did before, as
// without longcall.
func TestChangeWithoutStream(t *testing.T) {
	r := newRig(t)
	c := r.serve()
	list := `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
	for _, tt := range []struct {
		before, after bool
		want          string
	}{{true, false, "event: message"}, {true, true, ""}, {false, false, "event: message"}, {false, true, ""}} {
		c.session = ""
		c.open("/mcp", mcp.V20251125)
		if tt.before {
			c.post("/mcp", list)
		}
		r.change("up")
		r.change("other") // concerns /mcp as well, and is told together
		if tt.after {
			c.post("/mcp", list)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*changePause)
		_, s := c.stream(ctx, "GET", "/mcp", "")
		b, _ := io.ReadAll(s)
		cancel()
		if n := strings.Count(string(b), "list_changed"); (n == 1) != (tt.want != "") {
			t.Errorf("%+v: %q", tt, b)
		}
	}
}

// TestStop: streams end, sessions are gone, and new calls are refused in words.
func TestStop(t *testing.T) {
	r := newRig(t)
	c := r.serve()
	c.open("/mcp", mcp.V20251125)
	_, s := c.stream(t.Context(), "GET", "/mcp", "")
	expectLine(t, s, ": open")
	r.stop()
	if _, err := io.ReadAll(s); err != nil {
		t.Errorf("the stream did not end well: %v", err)
	}
	if status, _ := c.post("/mcp", `{"jsonrpc":"2.0","id":1,"method":"ping"}`); status != 404 {
		t.Errorf("old session: %d", status)
	}
	_, body := c.post("/mcp/up", modernCall("1", "work", ""), modern("tools/call", "work")...)
	if !strings.Contains(body, `"isError":true`) || !strings.Contains(body, `"outcome":"denied","by":"shutdown"`) {
		t.Errorf("call: %s", body)
	}
	r.h.Stop() // again
}

// TestShutdownReachesStreams: the engine's words arrive on the call's stream.
func TestShutdownReachesStreams(t *testing.T) {
	r := newRig(t)
	g := newGate()
	r.tools["work"] = g.run
	c := r.serve()
	_, s := c.stream(t.Context(), "POST", "/mcp/up", modernCall("1", "work", ""), modern("tools/call", "work")...)
	<-g.running
	r.stop()
	b, err := io.ReadAll(s)
	if err != nil || !strings.Contains(string(b), `"outcome":"interrupted","by":"shutdown"`) {
		t.Errorf("%q, %v", b, err)
	}
}

// TestBuffered is the kill switch: one body at the end, in the form that the
// client can take.
func TestBuffered(t *testing.T) {
	r := newRig(t)
	r.decide = func(string, string, string, bool) Decision { return Decision{Buffered: true} }
	r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer {
		_ = progress(x, `"progress":1`)
		return reply(x, okResult)
	}
	c := r.serve()
	c.open("/mcp/up", mcp.V20251125)
	status, h, body := c.do("POST", "/mcp/up", legacyCall("1", "work", "1"))
	if want := strings.Replace(okResult, `"id":0`, `"id":1`, 1); status != 200 || body != want || h.Get("Content-Type") != "application/json" || h.Get("Content-Length") != strconv.Itoa(len(want)) {
		t.Errorf("%d %v %s", status, h, body)
	}
	_, h, body = c.do("POST", "/mcp/up", legacyCall("1", "work", "1"), "Accept", "text/event-stream")
	if d := data(body); h.Get("Content-Type") != "text/event-stream" || len(d) != 1 || strings.Contains(body, ":") && strings.HasPrefix(body, ": ") {
		t.Errorf("%v %s", h, body)
	}
	// The client may have the answer before its delivery is recorded.
	until(t, "both are delivered", func() bool {
		return slices.Equal(r.log.hows(), []call.How{call.Delivered, call.Delivered})
	})
}

// TestManyCallsInOneSession is P22, O5, O7: every message on its own call's
// stream, in order, also with equal tokens.
func TestManyCallsInOneSession(t *testing.T) {
	r := newRig(t)
	r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer {
		var id string
		if m, err := mcp.Parse(x.Spec.Request); err == nil {
			id = string(m.ID.Of(m.Raw))
		}
		for i := range 10 {
			if err := progress(x, fmt.Sprintf(`"progress":%d,"message":"of %s"`, i, strings.Trim(id, `"`))); err != nil {
				t.Error(err)
			}
		}
		return reply(x, `{"jsonrpc":"2.0","id":0,"result":{"of":`+id+`}}`)
	}
	c := r.serve()
	c.open("/mcp/up", mcp.V20251125)
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			id, token := strconv.Itoa(i), "0"
			if i%2 == 1 {
				id, token = `"`+id+`"`, `"0"`
			}
			_, body := c.post("/mcp/up", legacyCall(id, "work", token))
			got := data(body)
			for k := range 10 {
				want := fmt.Sprintf(`"params":{"progressToken":%s,"progress":%d,"message":"of %d"}`, token, k, i)
				if len(got) != 11 || !strings.Contains(got[k], want) {
					t.Errorf("call %s: message %d of %d: %s", id, k, len(got), body)
					return
				}
			}
			if want := `{"jsonrpc":"2.0","id":` + id + `,"result":{"of":` + id + `}}`; got[10] != want {
				t.Errorf("result %s, want %s", got[10], want)
			}
		})
	}
	wg.Wait()
}

// TestLargeBodies is A7 and O25: 1 MiB in and out, a hundred times, unchanged.
func TestLargeBodies(t *testing.T) {
	r := newRig(t)
	text := strings.Repeat("é€🙂\\\"}", 1<<20/12)
	r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer {
		m, err := mcp.Parse(x.Spec.Request)
		if err != nil {
			t.Error(err)
		}
		return reply(x, `{"jsonrpc":"2.0","id":0,"result":{"echo":`+string(m.Arguments.Of(m.Raw))+`}}`)
	}
	c := r.serve()
	args := `{"text":"` + text + `"}`
	for i := range 100 {
		id := strconv.Itoa(i)
		body := `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"work","arguments":` + args + `,"_meta":{` + modernMeta + `}}}`
		header := modern("tools/call", "work")
		json := i%2 == 0
		if json {
			header = append(header, "Accept", "application/json")
		}
		_, got := c.post("/mcp/up", body, header...)
		want := `{"jsonrpc":"2.0","id":` + id + `,"result":{"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"longcall","version":"0"}},"echo":` + args + `}}`
		if !json {
			want = ": open\n\nevent: message\ndata: " + want + "\n\n"
		}
		if got != want {
			t.Fatalf("answer %d differs: %d bytes, want %d: %.200s", i, len(got), len(want), got)
		}
	}
}

// TestHTTP2 serves streams over h2c, and takes a reset for the disconnect.
func TestHTTP2(t *testing.T) {
	r := newRig(t)
	g := newGate()
	r.tools["work"] = g.run
	s := httptest.NewUnstartedServer(r.h)
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(func() { tr.CloseIdleConnections(); s.CloseClientConnections(); s.Close() })
	c := &client{t: t, url: s.URL, http: &http.Client{Transport: tr}, header: http.Header{
		"Authorization": {"Bearer ann"}, "Content-Type": {"application/json"},
	}}
	ctx, reset := context.WithCancel(t.Context())
	resp, body := c.stream(ctx, "POST", "/mcp/up", modernCall("1", "work", ""), modern("tools/call", "work")...)
	if resp.ProtoMajor != 2 || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%s %v", resp.Proto, resp.Header)
	}
	expectLine(t, body, ": open")
	<-g.running
	reset()
	until(t, "cancel", func() bool { return r.eng.InFlight() == 0 })
	if hows := r.log.hows(); !slices.Equal(hows, []call.How{call.AbortedDownstream}) {
		t.Errorf("deliveries %v", hows)
	}
	close(g.end)
	if _, got := c.post("/mcp/up", modernCall("1", "work", ""), modern("tools/call", "work")...); len(data(got)) != 1 {
		t.Errorf("next call: %s", got)
	}
}

// TestNotStarted: without a place in the journal no call runs, and the agent
// reads why.
func TestNotStarted(t *testing.T) {
	r := newRig(t)
	r.eng = call.NewEngine(r.log, r, call.Options{Epoch: 1, Refuse: true})
	r.h.opt.Engine = r.eng
	r.log.createErr = errors.New("disk full")
	c := r.serve()
	c.open("/mcp/up", mcp.V20251125)
	_, _, body := c.do("POST", "/mcp/up", legacyCall("1", "work", ""))
	if !strings.Contains(body, `"isError":true`) || !strings.Contains(body, `"by":"journal"`) || strings.Contains(body, "disk") {
		t.Errorf("%s", body)
	}
}

// TestSlowSocket is P19: a client that does not read a large result trips its own
// deadline, while others are served, and nothing but its stream ends.
func TestSlowSocket(t *testing.T) {
	r := newRig(t)
	r.settings.WriteTimeout = 300 * time.Millisecond
	big := `{"jsonrpc":"2.0","id":0,"result":{"text":"` + strings.Repeat("x", 16<<20) + `"}}`
	r.tools["big"] = func(_ context.Context, x *call.Exec) call.Answer { return reply(x, big) }
	r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer { return reply(x, okResult) }
	c := r.serve()
	c.open("/mcp/up", mcp.V20251125)
	_, _ = c.stream(t.Context(), "POST", "/mcp/up", legacyCall("1", "big", ""))
	if _, body := c.post("/mcp/up", legacyCall("2", "work", "")); len(data(body)) != 1 {
		t.Errorf("another call: %s", body)
	}
	until(t, "the slow one is given up", func() bool { return slices.Contains(r.log.hows(), call.Slow) })
	if e := r.log.record(t, "big").End; e.Outcome != call.Completed {
		t.Errorf("end %+v", e)
	}
}

// TestShortBody: a body that stops in the middle is given up.
func TestShortBody(t *testing.T) {
	r := newRig(t)
	req := httptest.NewRequest("POST", "/mcp", io.MultiReader(bytes.NewReader([]byte(`{"a"`))))
	req.ContentLength = 100
	req.Header.Set("Authorization", "Bearer ann")
	req.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	r.h.ServeHTTP(w, req)
	if w.Code != 400 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestChunkedBody: without a length, the limit holds as well.
func TestChunkedBody(t *testing.T) {
	r := newRig(t)
	r.settings.BodyLimit = 100
	c := r.serve()
	for n, want := range map[int]int{50: 400, 200: 413} {
		req := c.request(t.Context(), "POST", "/mcp", "")
		req.Body = io.NopCloser(io.MultiReader(strings.NewReader(strings.Repeat("x", n))))
		req.ContentLength = -1
		resp, err := c.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%d bytes: %d", n, resp.StatusCode)
		}
	}
}

// TestSpec: what the engine is told about a call.
func TestSpec(t *testing.T) {
	r := newRig(t)
	specs := make(chan call.Spec, 2)
	r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer {
		s := *x.Spec
		rec, err := r.log.Get(t.Context(), x.ID) // arguments are kept there only
		if err != nil {
			t.Error(err)
			return reply(x, okResult)
		}
		s.Arguments = rec.Arguments
		specs <- s
		return reply(x, okResult)
	}
	c := r.serve()
	const tp = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	c.post("/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"up__work","arguments":{"a":1},"_meta":{`+modernMeta+`,"traceparent":"`+tp+`","io.modelcontextprotocol/clientInfo":{"name":"host\n","version":"2"}}}}`,
		modern("tools/call", "up__work")...)
	s := <-specs
	if s.Principal != "ann" || s.Session != "" || s.Client != "host /2" || s.Server != "up" || s.Tool != "work" || s.PublicTool != "up__work" ||
		s.Era != mcp.V20260728 || !strings.HasPrefix(s.RequestID, "r_") || s.Traceparent != tp || string(s.Arguments) != `{"a":1}` || s.Digest != "digest" {
		t.Errorf("modern: %+v", s)
	}
	c.open("/mcp", mcp.V20250618)
	c.post("/mcp", legacyCall("1", "up__work", ""), "Traceparent", tp)
	s = <-specs
	if s.Session != c.session || s.Client != "test/1" || s.Era != mcp.V20250618 || s.Traceparent != tp || string(s.Arguments) != "{}" {
		t.Errorf("legacy: %+v", s)
	}
}

func TestTraceparent(t *testing.T) {
	const good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for v, want := range map[string]bool{
		good: true, good + "-x": false, "01" + good[2:] + "-x": true, "01" + good[2:] + "x": false, "ff" + good[2:]: false, strings.ToUpper(good): false,
		good[:54]: false, "": false, "00-00000000000000000000000000000000-b7ad6b7169203331-01": false, "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01": false,
	} {
		if isTraceparent(v) != want {
			t.Errorf("%q: %v", v, !want)
		}
	}
}

func TestAccepts(t *testing.T) {
	for v, want := range map[string][2]bool{
		"":                                    {true, true},
		"*/*":                                 {true, true},
		"application/json":                    {false, true},
		"text/event-stream":                   {true, false},
		"Application/JSON, Text/Event-Stream": {true, true},
		"application/json;q=0.5, text/event-stream; q=0": {false, true},
		"text/html":                         {false, true},
		"text/*":                            {true, false},
		"application/json, text/plain, */*": {true, true},
	} {
		if sse, json := accepts([]string{v}); sse != want[0] || json != want[1] {
			t.Errorf("%q: sse %v, json %v", v, sse, json)
		}
	}
}

// TestHostsAndOrigins: what a loopback connection takes for granted, another
// does not (SPEC §1.6).
func TestHostsAndOrigins(t *testing.T) {
	lo, out := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, &net.TCPAddr{IP: net.IPv4(10, 1, 2, 3)}
	tests := []struct {
		local        net.Addr
		hosts        []string
		origins      []string
		host, origin string
		want         bool
	}{
		{lo, nil, nil, "127.0.0.1:8722", "", true},
		{lo, nil, nil, "[::1]:8722", "http://[::1]:5173", true},
		{lo, nil, nil, "[::1]", "", true},
		{lo, nil, nil, "localhost", "https://localhost", true},
		{lo, nil, nil, "localhost.evil.example", "", false},
		{lo, nil, nil, "10.1.2.3:8722", "", false},
		{lo, nil, nil, "", "", true},
		{lo, nil, nil, "localhost", "http://localhost.evil.example", false},
		{lo, nil, nil, "localhost", "file://localhost", false},
		{lo, nil, nil, "localhost", "null", false},
		{lo, []string{"mcp.example"}, nil, "MCP.example:443", "", true},
		{lo, []string{"mcp.example:443"}, nil, "mcp.example:80", "", false},
		{out, nil, nil, "anything.example", "", true},
		{out, nil, nil, "anything.example", "http://localhost", false},
		{out, nil, []string{"https://app.example/"}, "anything.example", "https://app.example", true},
		{out, nil, []string{"https://app.example"}, "anything.example", "http://app.example", false},
		{out, nil, []string{"*"}, "anything.example", "http://app.example", true},
		{out, nil, []string{"*"}, "anything.example", "null", false},
		{out, []string{"mcp.example"}, nil, "mcp.example", "", true},
		{out, []string{"mcp.example"}, nil, "localhost", "", false},
		{out, []string{"*"}, nil, "x", "", true},
	}
	for _, tt := range tests {
		req := httptest.NewRequest("POST", "/mcp", nil)
		req = req.WithContext(context.WithValue(req.Context(), http.LocalAddrContextKey, tt.local))
		req.Host = tt.host
		if tt.origin != "" {
			req.Header.Set("Origin", tt.origin)
		}
		x := &exchange{r: req, set: &Settings{AllowedHosts: tt.hosts, AllowedOrigins: tt.origins}}
		_, _, origin := x.originAllowed()
		if got := x.hostAllowed() && origin; got != tt.want {
			t.Errorf("%+v: %v", tt, got)
		}
	}
}
