package wire_test

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/longcall/longcall/test/wire"
)

func TestMain(m *testing.M) {
	wire.Main(map[string]wire.Script{
		"echo": func(c *wire.Child) {
			c.Serve(wire.Options{}, func(c *wire.Child, r *wire.Request) {
				c.Write(wire.Bytewise(r.Progress("1", "2", "é🙂") + "\n")...)
				c.Send(r.Text("worked on " + string(r.Args)))
			})
		},
	})
	goleak.VerifyTestMain(m)
}

func both(t *testing.T, f func(t *testing.T, version string)) {
	for _, v := range []string{wire.Legacy, wire.Modern} {
		t.Run(v, func(t *testing.T) { t.Parallel(); f(t, v) })
	}
}

func TestUsualAnswers(t *testing.T) {
	both(t, func(t *testing.T, version string) {
		up := wire.NewUpstream(t, wire.Options{Version: version})
		dn := wire.NewClient(t, up.URL, version)
		dn.Initialize()
		if version == wire.Modern {
			m := dn.Request("server/discover", "")
			if m.Str("result.supportedVersions.0") != wire.Modern {
				t.Errorf("discover: %s", m.JSON)
			}
		} else if dn.Session == "" {
			t.Error("no session")
		}
		list := dn.Request("tools/list", "")
		if list.Str("result.tools.0.name") != "work" {
			t.Errorf("tools/list: %s", list.JSON)
		}
		x := dn.Start(wire.Call{ID: `"a"`, Args: `{"b":1}`, Token: `0`})
		if m := x.Response(0); m.ToolText() != "worked" || string(m.ID) != `"a"` {
			t.Errorf("call: %s", m.JSON)
		}
		r := up.WaitRequest("tools/call", 1, 0)
		if r.Tool != "work" || string(r.Args) != `{"b":1}` || string(r.Token) != "0" || r.Version != version {
			t.Errorf("the request was read as %+v", r)
		}
		if m := dn.Request("no/such", ""); string(m.At("error.code")) != "-32601" {
			t.Errorf("unknown method: %s", m.JSON)
		}
		if up.Count("tools/call") != 1 {
			t.Errorf("%d calls", up.Count("tools/call"))
		}
	})
}

func TestChunkBordersAndDelaysAreExact(t *testing.T) {
	t.Parallel()
	event := wire.Event("7", `{"jsonrpc":"2.0","id":1,"result":{"text":"é🙂"}}`)
	up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{
		"tools/call": func(c *wire.Conn, _ *wire.Request) {
			c.SSE()
			c.Body(": hello\n\n")
			c.Pause(200 * time.Millisecond)
			c.Body(wire.Bytewise(strings.ReplaceAll(event, "\n", "\r\n"))...)
			c.End()
		},
	}})
	dn := wire.NewClient(t, up.URL, wire.Legacy)
	dn.Initialize()
	x := dn.Start(wire.Call{})
	if err := x.End(0); err != nil {
		t.Fatal(err)
	}
	items := x.Items()
	if len(items) != 2 || !items[0].Comment || items[1].ID != "7" || items[1].Type != "message" || !strings.Contains(items[1].Data, "é🙂") {
		t.Fatalf("%+v", items)
	}
	if gap := items[1].At - items[0].At; gap < 150*time.Millisecond {
		t.Errorf("the delay was lost: %v", gap)
	}
	if x.HeadAt() > x.FirstAt() || x.FirstAt() > x.EndAt() || len(x.Reads()) < 3 {
		t.Errorf("times: %v %v %v, %d reads", x.HeadAt(), x.FirstAt(), x.EndAt(), len(x.Reads()))
	}
}

func TestSplitterTakesAllLineEnds(t *testing.T) {
	t.Parallel()
	stream := "id: 1\ndata: {\ndata:\"a\":1}\n\n: c\n\nevent: x\nretry: 50\ndata:\n\n"
	for _, end := range []string{"\n", "\r\n", "\r"} {
		var whole, bytewise wire.Splitter
		text := strings.ReplaceAll(stream, "\n", end)
		a := whole.Feed([]byte(text), 0)
		var b []wire.Item
		for _, c := range []byte(text) {
			b = append(b, bytewise.Feed([]byte{c}, 0)...)
		}
		if !slices.Equal(a, b) || len(a) != 3 {
			t.Fatalf("%q: whole %+v, bytewise %+v", end, a, b)
		}
		if a[0].Data != "{\n\"a\":1}" || a[1].Data != "c" || a[2].Retry != "50" || !a[2].HasData || a[2].Data != "" {
			t.Errorf("%q: %+v", end, a)
		}
		if whole.Broken {
			t.Errorf("%q: nothing is left over", end)
		}
	}
}

func TestCloseAndReset(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]func(*wire.Conn){"close": (*wire.Conn).Close, "reset": (*wire.Conn).Reset} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{
				"tools/call": func(c *wire.Conn, r *wire.Request) { c.SSE(); c.Body("data: half"); cut(c) },
			}})
			dn := wire.NewClient(t, up.URL, wire.Legacy)
			dn.Initialize()
			x := dn.Start(wire.Call{})
			if err := x.End(0); err == nil {
				t.Error("a cut response counts as whole")
			}
			if len(x.Items()) != 0 {
				t.Errorf("half an event counts: %+v", x.Items())
			}
		})
	}
}

func TestAgentHangsUp(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]func(*wire.Exchange){"close": (*wire.Exchange).Close, "reset": (*wire.Exchange).Reset} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			gone := make(chan struct{})
			up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{
				"tools/call": func(c *wire.Conn, _ *wire.Request) { c.SSE(); <-c.Gone(); close(gone) },
			}})
			dn := wire.NewClient(t, up.URL, wire.Legacy)
			dn.Initialize()
			x := dn.Start(wire.Call{})
			x.Head(0)
			cut(x)
			select {
			case <-gone:
			case <-time.After(wire.Timeout):
				t.Fatal("the server did not notice")
			}
		})
	}
}

func TestResumeFromLog(t *testing.T) {
	t.Parallel()
	var up *wire.Upstream
	up = wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{
		"tools/call": func(c *wire.Conn, r *wire.Request) {
			log := up.NewLog("a")
			log.Append(r.Progress("1", "", ""), r.Progress("2", "", ""), r.Progress("3", "", ""), r.Text("worked"))
			log.Finish()
			c.SSE()
			log.Serve(c, 0, 2)
			c.Reset()
		},
	}})
	dn := wire.NewClient(t, up.URL, wire.Legacy)
	dn.Initialize()
	x := dn.Start(wire.Call{Token: `"t"`})
	if err := x.End(0); err == nil {
		t.Fatal("not cut")
	}
	items := x.Items()
	again := dn.Listen(items[len(items)-1].ID)
	if m := again.Response(0); m.ToolText() != "worked" {
		t.Error(m.JSON)
	}
	if n := len(x.Progress()) + len(again.Progress()); n != 3 {
		t.Errorf("%d progress messages", n)
	}
	if r := up.WaitRequest("GET", 1, 0); r.Header.Get("Last-Event-ID") != "a_2" {
		t.Errorf("resumed after %q", r.Header.Get("Last-Event-ID"))
	}
}

func TestStandaloneStreamSessionsAndFreeze(t *testing.T) {
	t.Parallel()
	up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{
		"tools/call": func(c *wire.Conn, r *wire.Request) {
			c.Stream().Event(r.Progress("1", "", "by the other stream"))
			c.JSON(200, r.Text("worked"))
		},
	}})
	dn := wire.NewClient(t, up.URL, wire.Legacy)
	dn.Initialize()
	get := dn.Listen("")
	up.Stream()
	x := dn.Start(wire.Call{Token: "5"})
	if m := x.Response(0); m.ToolText() != "worked" {
		t.Error(m.JSON)
	}
	if p := get.WaitMessages("notifications/progress", 1, 0); string(p[0].At("params.progressToken")) != "5" {
		t.Error(p[0].JSON)
	}
	get.Close()
	if status := dn.Cancel("1"); status != 202 {
		t.Errorf("cancel: HTTP %d", status)
	}
	up.Forget()
	if x := dn.Start(wire.Call{}); x.End(0) != nil || x.Status() != 404 {
		t.Errorf("old session: HTTP %d", x.Status())
	}
	dn.Session = ""
	dn.Initialize()
	up.Freeze()
	x = dn.Start(wire.Call{})
	if m, ok := x.WaitResponse(200 * time.Millisecond); ok || x.Over() {
		t.Errorf("a frozen server answered: %s", m.JSON)
	}
}

func TestMalformedAndSplitRequests(t *testing.T) {
	t.Parallel()
	up := wire.NewUpstream(t, wire.Options{})
	dn := wire.NewClient(t, up.URL, wire.Legacy)
	dn.Initialize()
	body := dn.Message("9", "tools/call", `"name":"work"`, "")
	x := dn.Do(wire.HTTP{Pieces: []string{body[:10], body[10:]}, Pause: 100 * time.Millisecond})
	if m := x.TimedResponse(0); m.ToolText() != "worked" || m.Came < 100*time.Millisecond {
		t.Errorf("%s after %v", m.JSON, m.Came)
	}
	x = dn.Do(wire.HTTP{Body: "[1"})
	if x.Head(0); x.Status() != 400 {
		t.Errorf("HTTP %d", x.Status())
	}
	if r := up.WaitRequest("POST", 1, 0); r.Bad == nil {
		t.Error("a broken body was taken for a message")
	}
	x = dn.Do(wire.HTTP{Raw: "nonsense\r\n\r\n"})
	if err := x.End(0); err == nil || x.Status() != 0 {
		t.Errorf("HTTP %d, %v", x.Status(), err)
	}
}

func TestChild(t *testing.T) {
	t.Parallel()
	cmd := wire.NewCommand(t, "echo")
	ctx, cancel := context.WithTimeout(t.Context(), wire.Timeout)
	defer cancel()
	p := exec.CommandContext(ctx, cmd.Path, cmd.Args...)
	p.Env = os.Environ()
	for k, v := range cmd.Env {
		p.Env = append(p.Env, k+"="+v)
	}
	in, err := p.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	cmd.WaitNote("start", 1, wire.Timeout)
	dn := &wire.Client{Version: wire.Legacy}
	for _, m := range []string{
		dn.Message("1", "initialize", `"protocolVersion":"2025-11-25"`, ""),
		dn.Message("2", "tools/call", `"name":"work","arguments":{"a":1}`, `"progressToken":"x"`),
	} {
		if _, err := io.WriteString(in, m+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	lines := bufio.NewScanner(out)
	var got []string
	for len(got) < 3 && lines.Scan() {
		got = append(got, lines.Text())
	}
	in.Close()
	if err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	if len(got) != 3 || !strings.Contains(got[1], "é🙂") || !strings.Contains(got[2], `worked on {\"a\":1}`) {
		t.Errorf("%q", got)
	}
	if n := cmd.Notes("line"); len(n) != 2 {
		t.Errorf("%d lines noted", len(n))
	}
	cmd.WaitNote("exit", 1, wire.Timeout)
}
