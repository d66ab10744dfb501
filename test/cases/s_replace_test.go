//go:build unix

package cases_test

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/longcall/longcall/test/wire"
)

// serveProcess starts "longcall serve" and waits until it serves.
func (h *home) serveProcess(args ...string) (pid int, ended <-chan error, log *lines) {
	h.t.Helper()
	cmd := h.command(nil, append([]string{"serve", "--config", h.config, "--listen", "127.0.0.1:0", "--log-format", "json"}, args...)...)
	log = &lines{}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	done := make(chan error, 1)
	var over atomic.Bool
	go func() {
		done <- cmd.Wait()
		over.Store(true)
	}()
	h.t.Cleanup(func() {
		_ = cmd.Process.Kill() // it has ended, or it ends now
		h.until("the process has ended", over.Load)
		if h.t.Failed() {
			h.t.Logf("%v:\n%s", args, log)
		}
	})
	h.until("it serves", func() bool { return h.pid() == cmd.Process.Pid || over.Load() })
	return cmd.Process.Pid, done, log
}

// Nothing is lost or refused while one serve takes over from another: 200 calls
// in flight, and instant ones all the time, on new and on kept connections.
func TestReplaceUnderLoad(t *testing.T) {
	t.Parallel()
	up, release := held(t)
	h := newHome(t, upServer(up))
	_, first, _ := h.serveProcess("--log-level", "warn")
	client := func() *wire.Client {
		c := wire.NewClient(t, h.serving().URL+"/mcp", wire.Modern)
		c.Header = map[string]string{"Authorization": "Bearer " + h.token()}
		return c
	}
	const flight = 200
	dn := client()
	calls := make([]*wire.Exchange, flight)
	for i := range calls {
		calls[i] = dn.Start(wire.Call{Tool: "up__work", Args: fmt.Sprintf(`{"n":%d}`, i), Token: "1"})
	}
	for _, x := range calls {
		x.WaitMessages(progressMethod, 1, sLimit)
	}

	stop := make(chan struct{})
	var answered, wrong atomic.Int64
	var first5 sync.Map
	var wg sync.WaitGroup
	url, token := h.serving().URL, h.token()
	for k, keep := range []bool{true, true, false} {
		wg.Go(func() {
			tr := &http.Transport{DisableKeepAlives: !keep}
			defer tr.CloseIdleConnections()
			c := &http.Client{Transport: tr, Timeout: sLimit}
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
				}
				if text := instant(c, url, token, fmt.Sprintf("%d-%d", k, i)); text != "" {
					wrong.Add(1)
					first5.Store(text, true)
				}
				answered.Add(1)
			}
		})
	}
	h.until("instant calls are answered", func() bool { return answered.Load() > 100 })
	before := answered.Load()
	pid, second, log := h.serveProcess("--replace", "--log-level", "warn")
	h.until("instant calls are answered by the new one", func() bool { return answered.Load() > before+200 })
	release()
	for i, x := range calls {
		if m := x.Response(sLimit); m.ToolText() != "released" {
			t.Errorf("call %d: %s", i, m.JSON)
		}
	}
	close(stop)
	wg.Wait()
	if n := wrong.Load(); n > 0 {
		first5.Range(func(k, _ any) bool { t.Errorf("%d of %d instant calls failed: %s", n, answered.Load(), k); return true })
	}
	select {
	case err := <-first:
		if err != nil {
			t.Errorf("the old one ended with %v", err)
		}
	case <-time.After(sLimit):
		t.Error("the old one does not end, though its calls have")
	}
	if n := up.Count("tools/call"); n != flight+int(answered.Load()) {
		t.Errorf("%d calls reached the server, %d were made", n, flight+int(answered.Load()))
	}
	if h.serving().URL != url || h.pid() != pid {
		t.Errorf("serve.json says %+v", h.serving())
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-second; err != nil {
		t.Errorf("the new one ended with %v\n%s", err, log)
	}
}

// instant makes one call; it returns what is wrong with the answer.
func instant(c *http.Client, url, token, n string) string {
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"up__work","arguments":{"now":"` + n + `"},"_meta":{"x":1` + eraMeta(wire.Modern) + `}}}`
	q, err := http.NewRequest(http.MethodPost, url+"/mcp", strings.NewReader(body))
	if err != nil {
		return err.Error()
	}
	for k, v := range map[string]string{
		"Authorization": "Bearer " + token, "Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"Mcp-Protocol-Version": wire.Modern, "Mcp-Method": "tools/call", "Mcp-Name": "up__work",
	} {
		q.Header.Set(k, v)
	}
	resp, err := c.Do(q)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	var b lines
	if _, err := b.b.ReadFrom(resp.Body); err != nil {
		return err.Error()
	}
	if !strings.Contains(b.String(), `"text":"now"`) {
		return fmt.Sprintf("HTTP %d: %s", resp.StatusCode, b.String())
	}
	return ""
}

// A second serve says how to take over; one that a relay has started gives way
// to a person's, and the relay follows, in the middle of a call.
func TestReplaceBackground(t *testing.T) {
	t.Parallel()
	up, release := held(t)
	h := newHome(t, upServer(up))
	p := h.host(nil, "stdio", "--config", h.config)
	p.open()
	p.call(wire.Legacy, "7", "up__work", "{}")
	p.progressed("7", 1)
	back := h.pid()
	pid, _, log := h.serveProcess()
	if h.pid() != pid || h.serving().Background {
		t.Fatalf("the background serve stays: %+v\n%s", h.serving(), log)
	}
	soon(t, "it says so", func() bool { return strings.Contains(log.String(), "started in the background") })
	p.call(wire.Legacy, "8", "up__work", `{"now":1}`)
	if m := p.response("8"); m.ToolText() != "now" {
		t.Errorf("%s", m.JSON)
	}
	release()
	if m := p.response("7"); m.ToolText() != "released" {
		t.Errorf("%s", m.JSON)
	}
	if n := up.Count("tools/call"); n != 2 {
		t.Errorf("%d calls", n)
	}
	h.until("the background serve has ended", func() bool { return syscall.Kill(back, 0) != nil || zombie(back) })
	p.close()

	out, err := h.command(nil, "serve", "--config", h.config, "--listen", "127.0.0.1:0").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "longcall serve --replace") || !strings.Contains(string(out), fmt.Sprint(pid)) {
		t.Errorf("%v\n%s", err, out)
	}
}

// A config that is wrong leaves the old serve as it was.
func TestReplaceWithWrongConfig(t *testing.T) {
	t.Parallel()
	up, _ := held(t)
	h := newHome(t, upServer(up))
	pid, _, _ := h.serveProcess()
	if err := os.WriteFile(h.config, []byte("listne: x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := h.command(nil, "serve", "--config", h.config, "--replace").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "listne") {
		t.Errorf("%v\n%s", err, out)
	}
	h.write(h.config, upServer(up))
	// A port that is taken, too: it is found before the old one gives anything away.
	addr := strings.TrimPrefix(strings.TrimSuffix(up.URL, "/mcp"), "http://")
	out, err = h.command(nil, "serve", "--config", h.config, "--replace", "--listen", addr).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "port is in use") {
		t.Errorf("%v\n%s", err, out)
	}
	if h.pid() != pid {
		t.Fatalf("serve.json names %d", h.pid())
	}
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	if text := instant(c, h.serving().URL, h.token(), "1"); text != "" {
		t.Errorf("the old one: %s", text)
	}
}
