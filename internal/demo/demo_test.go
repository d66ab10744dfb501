package demo

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/longcall/longcall/internal/cli/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo is a server that sends back each line that it gets.
func echo(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(c, c)
			c.Close()
		}
	}()
	t.Cleanup(func() {
		ln.Close()
		<-done
	})
	return ln.Addr().String()
}

func TestProxyCutsSilenceOnly(t *testing.T) {
	const cut = time.Second
	var cuts atomic.Int32
	p, err := newProxy(t.Context(), echo(t), cut, func() { cuts.Add(1) })
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	c, err := net.Dial("tcp", strings.TrimPrefix(p.url(), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r := bufio.NewReader(c)
	tick := time.NewTicker(cut / 10)
	defer tick.Stop()
	begin := time.Now()
	var sent time.Time                  // the last byte left then or later
	for time.Since(begin) < cut+cut/2 { // bytes now and then: it lives longer than the cut
		sent = time.Now()
		if _, err := fmt.Fprintln(c, "beat"); err != nil {
			t.Fatal(err)
		}
		if line, err := r.ReadString('\n'); err != nil || line != "beat\n" {
			t.Fatalf("%q, %v, after %v", line, err, time.Since(begin))
		}
		<-tick.C
	}
	if cuts.Load() != 0 {
		t.Fatal("cut while there were bytes")
	}
	if _, err := r.ReadByte(); err == nil {
		t.Fatal("not cut")
	}
	if after := time.Since(sent); after < cut {
		t.Errorf("cut after %v of silence", after)
	}
	if cuts.Load() != 1 || p.longest() < cut {
		t.Errorf("%d cuts, longest silence %v", cuts.Load(), p.longest())
	}
}

// The tool server serves both eras: longcall's probe decides, and so may others.
func TestToolServerServesBothEras(t *testing.T) {
	s, err := newToolServer(t.Context(), 10*time.Millisecond, func(string, string) {})
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	url := "http://" + s.addr() + "/mcp"
	c := &client.Client{URL: url, Name: "test", Version: "1"}
	tools, err := c.Tools(t.Context())
	if err != nil || len(tools) != 1 || tools[0].Name != ToolName {
		t.Fatalf("tools: %v, %v", tools, err)
	}
	n := 0
	res, err := c.Do(t.Context(), client.Call{Tool: ToolName, Progress: func(client.Progress) { n++ }})
	if err != nil || res.Content[0].Text != "Indexed 48213 files." || n != 2 {
		t.Fatalf("stateless call: %+v, %v, %d progress", res, err, n)
	}
	post := func(body string) (http.Header, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		h := client.NewHTTP()
		resp, err := h.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.Header, string(b)
	}
	h, body := post(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
	if h.Get("Mcp-Session-Id") == "" || !strings.Contains(body, `"protocolVersion":"2025-11-25"`) {
		t.Errorf("initialize: %v %s", h, body)
	}
	_, body = post(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"build_index"}}`)
	if !strings.Contains(body, "Indexed 48213 files.") || strings.Contains(body, "resultType") || strings.Contains(body, "progress") {
		t.Errorf("call in a session: %s", body)
	}
}

// Without longcall between, both calls die: the demo says so and proves nothing.
func TestDemoTellsIfItProvesNothing(t *testing.T) {
	var out bytes.Buffer
	d, err := New(t.Context(), Options{Tool: 1800 * time.Millisecond, Cut: 600 * time.Millisecond, Out: &out})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	r, err := d.Run(t.Context(), strings.TrimSuffix(d.ToolURL(), "/mcp"), "")
	if err != nil {
		t.Fatal(err)
	}
	if r.Proved() || r.Direct.Err == nil || !r.Direct.Cut || r.Longcall.Err == nil || !r.Longcall.Cut {
		t.Errorf("%+v", r)
	}
	if !strings.Contains(out.String(), "This did not go as it should.") {
		t.Error(out.String())
	}
}

func TestDemoEndsWithItsContext(t *testing.T) {
	d, err := New(t.Context(), Options{Out: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := d.Run(ctx, strings.TrimSuffix(d.ToolURL(), "/mcp"), ""); !errors.Is(err, cause) {
		t.Errorf("%v", err)
	}
}

func TestScreenSideBySide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s := newScreen(&Options{Out: &out, Terminal: true, Width: 76})
		s.start = time.Now()
		time.Sleep(1500 * time.Millisecond)
		s.add(left, badMark, "proxy: no byte for 3 s, \x1b[31mconnection cut")
		s.add(right, plainMark, "agent: 40%")
		s.beat(right, 4)
		quiet := &proxy{cut: 3 * time.Second, start: time.Now().Add(-time.Second)}
		s.draw([]*proxy{quiet, quiet})
		time.Sleep(time.Second)
		s.draw(nil)
		want := "\r\x1b[2KDIRECT                               │ THROUGH LONGCALL\n" +
			"\r\x1b[2Kagent - proxy - tool                 │ agent - proxy - longcall - tool\n" +
			"\r\x1b[2K  1.5s  proxy: no byte for 3 s,      │   1.5s  agent: 40%\n" +
			"\r\x1b[2K        [31mconnection cut           │   1.5s  [##......] 1.0/3 s, 4 beats\n" +
			"\x1b[4A" +
			"\r\x1b[2KDIRECT                               │ THROUGH LONGCALL\n" +
			"\r\x1b[2Kagent - proxy - tool                 │ agent - proxy - longcall - tool\n" +
			"\r\x1b[2K  1.5s  proxy: no byte for 3 s,      │   1.5s  agent: 40%\n" +
			"\r\x1b[2K        [31mconnection cut           │ \n"
		if got := out.String(); got != want {
			t.Errorf("got\n%q\nwant\n%q", got, want)
		}
	})
}

func TestScreenPlain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s := newScreen(&Options{Out: &out, Terminal: true, Width: 60}) // too narrow for two columns
		s.begin(3*time.Second, 12*time.Second)
		time.Sleep(3 * time.Second)
		s.add(left, badMark, "agent: lost it")
		s.beat(right, 2)
		s.beat(right, 3)
		s.end([]string{"That was it."})
		want := `A tool works for 12 s and seldom says a word. Before it stands a proxy that cuts a connection
without bytes for 3 s: the 60 s of real ones, scaled down. The same call, twice:

  3.0s  direct            agent: lost it
  3.0s  through longcall  agent: 3 beats so far: alive

That was it.
`
		if got := out.String(); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	})
}

func TestWrap(t *testing.T) {
	for _, tt := range []struct {
		text string
		n    int
		want string
	}{
		{"short", 10, "short"},
		{"two words", 5, "two|words"},
		{"onelongwordwithoutblank", 10, "onelongwor|dwithoutbl|ank"},
		{"a bb ccc dddd", 6, "a bb|ccc|dddd"},
	} {
		if got := strings.Join(wrap(tt.text, tt.n), "|"); got != tt.want {
			t.Errorf("%q in %d: %q, want %q", tt.text, tt.n, got, tt.want)
		}
	}
}
