//go:build linux || darwin

package app

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/config"
)

// SHELL §3: a command outlives a stop of longcall, which does not wait for it; the
// next start has it, its output from byte one and its exit code.
func TestShellOutlivesAStop(t *testing.T) {
	s := serve(t, "")
	id := s.exec(waits, `,"yield_ms":0`).Shown.CallID
	s.until("it runs", func() bool { return s.there("runs") })
	start := time.Now()
	s.stop()
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("the stop took %s, though nothing had to be waited for", d)
	}
	if rec := s.record(id); rec.End.Outcome != call.Running {
		t.Errorf("recorded as %+v", rec.End)
	}
	s.start()
	if again := s.exec(waits, `,"yield_ms":0`); again.Shown.CallID != id || !strings.Contains(again.text(), "Already running") {
		t.Errorf("the same command after the restart: %+v", again)
	}
	s.touch("go")
	r := s.await(id)
	if c := r.Shown.Calls; len(c) != 1 || c[0].Result.State != "exited" || c[0].Result.ExitCode == nil || *c[0].Result.ExitCode != 7 || c[0].Result.Output != "begun\ndone\n" {
		t.Errorf("after the restart: %+v", r)
	}
	if rec := s.record(id); rec.End.Outcome != call.Completed || rec.End.Text != "exit 7" {
		t.Errorf("recorded as %+v", rec.End)
	}
}

// A command that ended while no longcall was there has its exit code all the same.
func TestShellEndsWhileAway(t *testing.T) {
	s := serve(t, "")
	id := s.exec(waits, `,"yield_ms":0`).Shown.CallID
	s.until("it runs", func() bool { return s.there("runs") })
	s.stop()
	s.touch("go")
	s.until("its end is written down", func() bool {
		_, err := os.Stat(filepath.Join(s.dir, "state", "shell", id, "exit.json"))
		return err == nil
	})
	s.start()
	if c := s.await(id).Shown.Calls; len(c) != 1 || c[0].Result.ExitCode == nil || *c[0].Result.ExitCode != 7 {
		t.Errorf("%+v", c)
	}
}

// shell.lifetime: serve ends what runs with longcall, also what lives on of a
// command that has ended, and the record says who did it.
func TestShellLifetimeServe(t *testing.T) {
	s := serve(t, `, lifetime: serve`)
	s.stop()
	s.drain = "300ms"
	s.write(`, lifetime: serve`)
	s.start()
	left := s.exec("sleep 600 > /dev/null & echo $!", "").Shown
	id := s.exec(waits, `,"yield_ms":0`).Shown.CallID
	batch := s.call("/mcp/shell", "run_commands_parallel", `{"commands":[{"command":"touch batch; sleep 600"}],"yield_ms":0}`).Shown.CallID
	s.until("they run", func() bool { return s.there("runs") && s.there("batch") })
	s.stop()
	for _, id := range []string{id, batch} {
		if rec := s.record(id); rec.End.Outcome != call.Cancelled || rec.End.By != "shutdown" {
			t.Errorf("recorded as %+v", rec.End)
		}
	}
	pid, err := strconv.Atoi(strings.TrimSpace(left.Output))
	if err != nil {
		t.Fatal(err)
	}
	s.until("what a command left is gone", func() bool { return syscall.Kill(pid, 0) != nil })
	s.start()
	if c := s.await(id).Shown.Calls; len(c) != 1 || c[0].Result.State != "stopped" || c[0].Result.Outcome != "cancelled" {
		t.Errorf("%+v", c)
	}
}

// SHELL §6, I10, I12: no secret of longcall reaches a command, and nothing of a
// command or its output a log line or a figure.
func TestShellSecrets(t *testing.T) {
	const canary = "hunter2-canary-0123456789"
	for _, name := range []string{"SHELL_TEST_HEADER", "SHELL_TEST_TOKEN", "LONGCALL_TOKEN", "SHELL_TEST_OTHER", "SHELL_TEST_OWN"} {
		t.Setenv(name, canary+name)
	}
	t.Setenv("SHELL_TEST_PASSED", "yes")
	var spans lines
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body := io.Reader(r.Body)
		if r.Header.Get("Content-Encoding") == "gzip" {
			zip, err := gzip.NewReader(r.Body)
			if err != nil {
				t.Error(err)
				return
			}
			body = zip
		}
		if _, err := io.Copy(&spans, body); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(collector.Close) // after the spans are sent
	s := serve(t, `, env: [SHELL_TEST_PASSED], set: {ADDED: "${SHELL_TEST_OWN}"}`, "auth: {tokens: {ci: \"${SHELL_TEST_TOKEN}\"}}",
		"mcpServers: {a: {url: \"http://127.0.0.1:9/mcp\", headers: {X: \"${SHELL_TEST_HEADER}\"}}}", "otel: {endpoint: "+strconv.Quote(collector.URL)+"}")
	r := s.exec("env; tr '\\0' '\\n' < /proc/$PPID/environ", `,"env":{"SHELL_TEST_PASSED":"changed"}`)
	out := r.Shown.Output
	for name, want := range map[string]bool{
		"PATH=": true, "HOME=": true, "SHELL_TEST_PASSED=changed": true, "ADDED=" + canary + "SHELL_TEST_OWN\n": true, "CI=1\n": true, "GIT_TERMINAL_PROMPT=0": true,
		"SHELL_TEST_HEADER": false, "SHELL_TEST_TOKEN": false, "LONGCALL_TOKEN": false, "SHELL_TEST_OTHER": false, s.app.Token(): false,
	} {
		if strings.Contains(out, name) != want {
			t.Errorf("%q among the variables: %v\n%s", name, !want, out)
		}
	}
	if r := s.exec("true", `,"env":{"SHELL_TEST_OTHER":"x"}`); !r.IsError || !strings.Contains(r.text(), "SHELL_TEST_PASSED") {
		t.Errorf("a variable that is not allowed: %+v", r)
	}

	words := []string{canary, "told", "labelled", "typed"}
	s.exec("echo "+canary+"told; echo "+canary+" >&2; exit 1", `,"label":"`+canary+`labelled"`)
	id := s.exec("read x; echo $x; exit 1 # "+canary, `,"stdin":"pipe","yield_ms":0`).Shown.CallID
	if r := s.call("/mcp/shell", "write_stdin", `{"id":"`+id+`","text":"`+canary+`typed\n"}`); r.IsError {
		t.Errorf("%+v", r)
	}
	s.await(id)
	s.call("/mcp/shell", "read_output", `{"id":"`+id+`","grep":"`+canary+`"}`)
	s.exec("sleep 0 "+strings.Repeat(canary, 3000), "")
	s.call("/mcp/shell", "run_commands_parallel", `{"commands":[{"command":"echo `+canary+`"},{"command":"exit 3 # `+canary+`"}]}`)
	resp, err := http.Get(s.app.URL() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	figures, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	http.DefaultClient.CloseIdleConnections()
	s.stop() // sends the spans
	for _, w := range words {
		for what, text := range map[string]string{"log": s.log.String(), "figures": string(figures), "spans": spans.String()} {
			if strings.Contains(text, w) {
				t.Errorf("%q is in the %s", w, what)
			}
		}
	}
	if !strings.Contains(spans.String(), "exec_command") {
		t.Error("there are no spans")
	}
	if !strings.Contains(s.log.String(), id) {
		t.Error("the log does not name the call")
	}
	// The record has no output: bodies of shell calls are in their folders alone.
	journal, err := os.ReadFile(JournalPath(filepath.Join(s.dir, "state")))
	wal, _ := os.ReadFile(JournalPath(filepath.Join(s.dir, "state")) + "-wal")
	if err != nil || strings.Contains(string(journal)+string(wal), canary+"told\n") {
		t.Errorf("the journal has output, %v", err)
	}
}

func TestShellFigures(t *testing.T) {
	s := serve(t, "")
	figure := func(name string) float64 {
		resp, err := http.Get(s.app.URL() + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		defer http.DefaultClient.CloseIdleConnections()
		b, _ := io.ReadAll(resp.Body)
		for l := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(l, name+" "); ok {
				f, err := strconv.ParseFloat(strings.TrimSpace(v), 64)
				if err != nil {
					t.Fatal(err)
				}
				return f
			}
		}
		return -1
	}
	id := s.exec(waits, `,"yield_ms":0`).Shown.CallID
	s.until("it runs", func() bool { return s.there("runs") })
	if n := figure("longcall_shell_commands_running"); n != 1 {
		t.Errorf("%v run", n)
	}
	s.touch("go")
	s.await(id)
	s.until("none runs", func() bool { return figure("longcall_shell_commands_running") == 0 })
	if n := figure("longcall_shell_output_bytes"); n < 11 {
		t.Errorf("%v bytes of output", n)
	}
}

// A reload changes what the next command gets: folders, variables, denied tools,
// and whether there is a shell; what needs a new start is said.
func TestShellReload(t *testing.T) {
	s := serve(t, "")
	reload := func(shell string, more ...string) {
		t.Helper()
		s.write(shell, more...)
		if err := s.app.Reload(); err != nil {
			t.Fatal(err)
		}
	}
	running := s.exec(waits, `,"yield_ms":0`).Shown.CallID
	s.until("it runs", func() bool { return s.there("runs") })

	reload(`, sandbox: [/usr/bin/env, GREETING=from outside], interpreter: [/bin/sh, -ec]`)
	if r := s.exec("echo $GREETING; false; echo not here", ""); r.Shown.Output != "from outside\n" || r.Shown.ExitCode == nil || *r.Shown.ExitCode != 1 {
		t.Errorf("in a sandbox: %+v", r)
	}
	reload(`, set: {GREETING: hello}, nonzero_is_error: true, tools: {read_output: {deny: true}, run_commands_parallel: {deny: true}}, spool: {keep: 3d}`)
	if r := s.exec("echo $GREETING; exit 1", ""); r.Shown.Output != "hello\n" || !r.IsError {
		t.Errorf("after the reload: %+v", r)
	}
	for tool, args := range map[string]string{"read_output": `{"id":"` + running + `"}`, "run_commands_parallel": `{"commands":[{"command":"true"}]}`} {
		if r := s.call("/mcp/shell", tool, args); !r.IsError || !strings.Contains(r.text(), "shell.tools."+tool+".deny") {
			t.Errorf("%s: %+v", tool, r)
		}
	}
	if log := s.log.String(); !strings.Contains(log, "takes effect at the next start only") || !strings.Contains(log, "key=shell") {
		t.Error("nothing is said about what needs a new start")
	}
	other := filepath.Join(s.dir, "other")
	if err := os.Mkdir(other, 0o700); err != nil {
		t.Fatal(err)
	}
	was := s.root
	s.root = other
	reload("")
	if r := s.exec("pwd", ""); r.Shown.Output != other+"\n" {
		t.Errorf("in another folder: %+v", r)
	}
	if r := s.exec("pwd", `,"cwd":`+strconv.Quote(was)); !r.IsError || !strings.Contains(r.text(), "outside") {
		t.Errorf("in the folder of before: %+v", r)
	}
	s.root = was

	text := strings.Replace(string(s.file()), "enabled: true", "enabled: false", 1)
	if err := os.WriteFile(filepath.Join(s.dir, "longcall.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.app.Reload(); err != nil {
		t.Fatal(err)
	}
	if r := s.exec("true", ""); !r.IsError || !strings.Contains(r.text(), "turned the shell off") || len(s.ask(s.app.Token(), "/mcp", "tools/list", "").Tools) > 3 {
		t.Errorf("turned off: %+v", r)
	}
	s.touch("go")
	if r := s.await(running); len(r.Shown.Calls) != 1 || r.Shown.Calls[0].Result.State != "exited" {
		t.Errorf("what ran: %+v", r)
	}
}

func (s *served) file() []byte {
	s.Helper()
	b, err := os.ReadFile(filepath.Join(s.dir, "longcall.yaml"))
	if err != nil {
		s.Fatal(err)
	}
	return b
}

// SHELL §6: on loopback everybody who is known may run commands, elsewhere only
// who has the scope; a reload gives and takes it.
func TestShellScope(t *testing.T) {
	token := strings.Repeat("k", 30)
	parse := func(listen string) *config.Config {
		t.Helper()
		c, err := config.Parse(fmt.Appendf(nil, "listen: %q\nhosts: [a.example]\nshell: {enabled: true, roots: [/]}\n"+
			"auth: {tokens: {ann: {token: %q, scopes: [shell]}, bob: %q}}", listen, token+"1", token+"2"), "c.yaml", nil)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for listen, want := range map[string][]string{"127.0.0.1:1": {"ann", "bob", "local"}, "10.0.0.1:1": {"ann"}} {
		c := parse(listen)
		a := &App{opt: Options{Config: c}}
		a.snap.Store(newSnapshot(c))
		may := a.commands(c).Allowed
		var got []string
		for _, p := range []string{"ann", "bob", "local", "nobody"} {
			if may(p) && (p != "nobody" || listen[0] != '1' || listen[1] != '2') {
				got = append(got, p)
			}
		}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("on %s: %v", listen, got)
		}
	}
	c := parse("10.0.0.1:1")
	a := &App{opt: Options{Config: c}}
	later := parse("127.0.0.1:1") // an address takes effect at the next start
	delete(later.Auth.Tokens, "ann")
	later.Auth.Tokens["local"] = config.Token{Scopes: []config.Scope{config.ScopeShell}}
	if may := a.commands(later).Allowed; may("ann") || !may("local") {
		t.Error("after a reload")
	}
}

// Without shell.enabled there is no shell: no tools, no endpoint, no folder.
func TestShellOff(t *testing.T) {
	s := serve(t, "")
	s.stop()
	text := strings.Replace(string(s.file()), "enabled: true", "enabled: false", 1)
	if err := os.WriteFile(filepath.Join(s.dir, "longcall.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(s.dir, "state")); err != nil {
		t.Fatal(err)
	}
	s.start()
	for _, tool := range s.ask(s.app.Token(), "/mcp", "tools/list", "").Tools {
		if strings.Contains(tool.Name, "exec") || strings.HasPrefix(tool.Name, "shell") {
			t.Errorf("%s is listed", tool.Name)
		}
	}
	if r := s.call("/mcp", "shell__exec_command", `{"command":"true"}`); !r.IsError {
		t.Errorf("%+v", r)
	}
	if _, err := os.Stat(filepath.Join(s.dir, "state", "shell")); err == nil {
		t.Error("a folder for commands")
	}
}

// The limits of the config hold: they refuse, and name what runs.
func TestShellLimits(t *testing.T) {
	s := serve(t, ", per_owner: 1, max_runtime: 1s")
	id := s.exec("exec sleep 600", `,"yield_ms":0`).Shown.CallID
	if r := s.exec("true", ""); !r.IsError || !strings.Contains(r.text(), id) || !strings.Contains(r.text(), "nothing was started") {
		t.Errorf("over the limit: %+v", r)
	}
	if c := s.await(id).Shown.Calls; len(c) != 1 || c[0].Result.State != "timed_out" {
		t.Errorf("after max_runtime: %+v", c)
	}
}

// A client profile has its own yield.
func TestShellYieldOfAClient(t *testing.T) {
	s := serve(t, "", `clients: {t: {yield: 300ms}}`)
	start := time.Now()
	r := s.exec("exec sleep 600", "")
	if d := time.Since(start); r.Shown.State != "running" || d < 300*time.Millisecond || d > 2*time.Second {
		t.Errorf("after %s: %+v", d, r)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s.app.manager.StopAll(ctx, "the test")
}
