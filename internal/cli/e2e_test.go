package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// serve starts "longcall serve" in front of the tool server, and stops it with
// the test.
func serve(t *testing.T, w *world, u *upstreamServer, args ...string) *world {
	t.Helper()
	file := filepath.Join(t.TempDir(), "longcall.yaml")
	text := "disconnect_grace: 0s\nmcpServers:\n  srv: {url: \"" + u.url + "\"}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	v := w.again()
	done := make(chan int, 1)
	go func() {
		done <- v.run(append([]string{"serve", "--config", file, "--listen", "127.0.0.1:0"}, args...)...)
	}()
	v.err.await(t, "msg=serving")
	t.Cleanup(func() {
		v.signal(syscall.SIGTERM)
		if code := <-done; code != exitOK {
			t.Errorf("serve: exit code %d\n%s", code, v.err)
		}
		if _, err := os.Stat(filepath.Join(w.state, "serve.json")); !os.IsNotExist(err) {
			t.Errorf("serve.json is left behind: %v", err)
		}
	})
	return v
}

func TestCallThroughServe(t *testing.T) {
	w, u := newWorld(t), newUpstream(t)
	s := serve(t, w, u)
	wantContains(t, "banner", s.err.String(), "config   /", "servers  srv  http://127.0.0.1:", "token    in "+w.state+"/token", "claude mcp add")

	v := w.expect(t, exitOK, "call", "srv", "add", "a=123456789012345678901", "b=-2", "text=7", "--json")
	wantContains(t, "raw result", v.out.String(), `"structuredContent":{"a":123456789012345678901,"b":-2,"text":"7"}`)
	for _, args := range [][]string{{"srv", "add"}, {"srv__add"}, {"add"}} {
		v = w.expect(t, exitOK, append(append([]string{"call"}, args...), `{"a":1,"b":2}`)...)
		if v.out.String() != "added\n" {
			t.Errorf("%v: %q", args, v.out)
		}
	}
	v = w.expect(t, exitOK, "call", "steps", "n=3")
	if v.out.String() != "all steps done\n" {
		t.Errorf("stdout: %q", v.out)
	}
	wantContains(t, "progress", v.err.String(), "srv/steps  3/3 (100%)  step 3\n")
	if v = w.expect(t, exitOK, "call", "steps", "n=3", "-q"); v.err.String() != "" {
		t.Errorf("quiet, but: %s", v.err)
	}

	v = w.expect(t, exitToolError, "call", "fail")
	wantContains(t, "tool error", v.out.String()+v.err.String(), "the disk is full\n", "longcall: the tool says that it failed, after ")
	v = w.expect(t, exitRPC, "call", "refuse")
	wantContains(t, "RPC error", v.err.String(), "not today (JSON-RPC error -32099)")
	v = w.expect(t, exitTimedOut, "call", "hang", "--timeout", "50ms")
	wantContains(t, "timeout", v.err.String(), "gave up after")
	<-u.gone
	v = w.expect(t, exitUsage, "call", "sub", "a=1")
	wantContains(t, "unknown tool", v.err.String(), `there is no tool "sub"; there is srv__add, srv__evil,`)
	v = w.expect(t, exitUsage, "call", "nowhere", "add")
	wantContains(t, "unknown server", v.err.String(), `there is no tool server "nowhere"; those with tools are srv`)
	v = w.expect(t, exitUsage, "call", "add", "a=one")
	wantContains(t, "typed", v.err.String(), `argument "a": "one" is no integer`)
	v = w.expect(t, exitDenied, "call", "add", "--url", address(t, w), "--token", "wrong")
	wantContains(t, "denied", v.err.String(), "longcall refused")
	v = w.expect(t, exitUnreachable, "call", "add", "--url", "http://127.0.0.1:1")
	wantContains(t, "unreachable", v.err.String(), "cannot reach http://127.0.0.1:1/mcp")
	v = w.expect(t, exitOK, "call", "image")
	if want := "[image image/png, 6 B; --json has it]\n[link file:///x]\ninside\n"; v.out.String() != want {
		t.Errorf("image: %q, want %q", v.out, want)
	}
}

// address is where the world's longcall serves.
func address(t *testing.T, w *world) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(w.state, "serve.json"))
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		URL string `json:"url"`
		PID int    `json:"pid"`
	}
	if err := json.Unmarshal(b, &v); err != nil || v.PID != os.Getpid() {
		t.Fatalf("serve.json: %s, %v", b, err)
	}
	return v.URL
}

// A tool's text cannot move the cursor of a terminal, but reaches a pipe as it is.
func TestResultsAreTextOnATerminal(t *testing.T) {
	w, u := newWorld(t), newUpstream(t)
	serve(t, w, u)
	v := w.expect(t, exitOK, "call", "evil")
	if want := "\x1b[31mred\u202e\nsecond line\n"; v.out.String() != want {
		t.Errorf("pipe: %q, want %q", v.out, want)
	}
	v = w.again()
	v.sys.OutTerminal = true
	if code := v.run("call", "evil"); code != exitOK || v.out.String() != "[31mred\nsecond line\n" {
		t.Errorf("terminal: %d, %q", code, v.out)
	}
	v = w.again()
	v.sys.OutTerminal = true
	if code := v.run("call", "evil", "--json"); code != exitOK || strings.ContainsAny(v.out.String(), "\x1b\u202e") {
		t.Errorf("terminal, raw: %d, %q", code, v.out)
	}
	v = w.expect(t, exitOK, "tools")
	wantContains(t, "tools", v.out.String(), "srv__evil()                                 Says [31mred things.\n", "srv__add(a, b, text?)                       Add two numbers.\n", "await_call(ids, attempt?, mode?, wait_ms?)  Waits for")
	v = w.expect(t, exitOK, "tools", "srv", "--json")
	var tools []struct{ Name string }
	if err := json.Unmarshal([]byte(v.out.String()), &tools); err != nil || len(tools) != 10 || tools[0].Name != "add" || tools[7].Name != "await_call" {
		t.Errorf("tools --json: %v, %s", err, v.out)
	}
}

func TestCtrlCCancelsTheCall(t *testing.T) {
	w, u := newWorld(t), newUpstream(t)
	serve(t, w, u)
	v := w.again()
	done := make(chan int, 1)
	go func() { done <- v.run("call", "srv", "hang") }()
	<-v.waiting
	id := runningCall(t, w)
	v.signal(os.Interrupt)
	if code := <-done; code != exitCancelled {
		t.Errorf("exit code %d\n%s", code, v.err)
	}
	<-u.gone
	wantContains(t, "the cancelled call", v.err.String(), "longcall: cancelled", id[:12])
	v = w.expect(t, exitOK, "calls", "show", id)
	wantContains(t, "timeline", v.out.String(), "cancelled by operator", "Ctrl-C on the command line", "cancel_requested")
	if n := u.count("hang"); n != 1 {
		t.Errorf("the tool ran %d times", n)
	}
}

var idPattern = regexp.MustCompile(`c_[a-z2-7]{26}`)

// runningCall waits for a call that runs and returns its id.
func runningCall(t *testing.T, w *world) string {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		v := w.again()
		if code := v.run("calls", "--running"); code == exitOK {
			if id := idPattern.FindString(v.out.String()); id != "" {
				return id
			}
		}
	}
	t.Fatal("no call runs")
	return ""
}

// delivered waits until the journal has so many deliveries, and returns the
// list of calls: they are stored a moment after the calls' ends.
func delivered(t *testing.T, w *world, n int) *world {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; {
		v := w.expect(t, exitOK, "calls")
		if strings.Count(v.out.String(), "delivered") == n {
			return v
		}
		if time.Now().After(deadline) {
			t.Fatalf("no %d deliveries:\n%s", n, v.out)
		}
	}
}

func TestCallsListShowFollowCancel(t *testing.T) {
	w, u := newWorld(t), newUpstream(t)
	serve(t, w, u)
	w.expect(t, exitOK, "call", "steps", "n=3")
	w.expect(t, exitToolError, "call", "fail")
	w.expect(t, exitRPC, "call", "refuse")

	v := delivered(t, w, 3)
	lines := strings.Split(strings.TrimSpace(v.out.String()), "\n")
	if len(lines) != 4 {
		t.Fatalf("calls:\n%s", v.out)
	}
	for i, want := range []string{`^ID +STARTED +TOOK +TOOL +OUTCOME +DELIVERY$`, `srv/refuse +failed, error -32099 +delivered$`, `srv/fail +completed, tool error +delivered$`, `srv/steps +completed +delivered$`} {
		if !regexp.MustCompile(want).MatchString(lines[i]) {
			t.Errorf("line %d is %q, want %s", i, lines[i], want)
		}
	}
	for args, want := range map[string]int{
		"--outcome completed": 2, "--tool st*": 1, "--server srv": 3, "--server other": 0, "--since 1h": 3, "--limit 1": 1, "--running": 0, "--outcome failed --tool refuse": 1,
	} {
		v := w.expect(t, exitOK, append([]string{"calls", "--json"}, strings.Fields(args)...)...)
		if got := strings.Count(v.out.String(), "\n"); got != want {
			t.Errorf("calls %s: %d, want %d\n%s", args, got, want, v.out)
		}
	}

	id := idPattern.FindString(lines[3])
	v = w.expect(t, exitOK, "calls", "show", id[:12])
	shown := v.out.String()
	wantContains(t, "show", shown, id, "srv/steps", "completed after", "local, longcall-cli", "MCP 2026-07-28", `arguments  {"n":3}`, "accepted", "dispatched", "1/3  step 1", "3/3  step 3", "completed: all steps done", "delivered  by sse")
	v = w.expect(t, exitOK, "calls", "show", id, "--json")
	var c callJSON
	if err := json.Unmarshal([]byte(v.out.String()), &c); err != nil {
		t.Fatal(err)
	}
	if len(c.Timeline) != 6 || c.Timeline[0].Kind != "accepted" || c.Timeline[5].Outcome != "completed" || len(c.Deliveries) != 1 || string(c.Arguments) == "" {
		t.Errorf("show --json: %s", v.out)
	}
	v = w.expect(t, exitUsage, "calls", "show", "c_nope")
	wantContains(t, "no such call", v.err.String(), "there is no call c_nope")
	v = w.expect(t, exitUsage, "calls", "show", "c_")
	wantContains(t, "ambiguous", v.err.String(), "several calls begin with c_")
	v = w.expect(t, exitOK, "calls", "follow", id)
	wantContains(t, "follow of what has ended", v.out.String(), "2/3  step 2", "completed: all steps done")
	v = w.expect(t, exitRPC, "calls", "follow", idPattern.FindString(lines[1]))
	wantContains(t, "follow of a failure", v.out.String(), "failed, error -32099: not today")
	v = w.expect(t, exitToolError, "calls", "cancel", id)
	wantContains(t, "cancel of what has ended", v.err.String(), "has ended already")

	agent, done := w.again(), make(chan int, 2)
	go func() { done <- agent.run("call", "srv", "hang") }()
	<-agent.waiting
	running := runningCall(t, w)
	follower := w.again()
	followed := make(chan int, 1)
	go func() { followed <- follower.run("calls", "follow", running) }()
	follower.out.await(t, "dispatched")
	v = w.expect(t, exitOK, "calls", "cancel", running, "--reason", "wrong branch")
	wantContains(t, "cancel", v.out.String(), "was asked for")
	if code := <-done; code != exitCancelled {
		t.Errorf("the agent's exit code is %d\n%s", code, agent.err)
	}
	wantContains(t, "what the agent reads", agent.err.String(), "cancelled by operator after", "wrong branch")
	if code := <-followed; code != exitCancelled {
		t.Errorf("follow: exit code %d\n%s", code, follower.err)
	}
	wantContains(t, "follow", follower.out.String(), "running for", "cancel_requested", "cancelled by operator")
}

// Without a serve, a call with a config is served by this process.
func TestCallInProcess(t *testing.T) {
	w, u := newWorld(t), newUpstream(t)
	file := filepath.Join(t.TempDir(), "mcp.json")
	if err := os.WriteFile(file, []byte(`{"mcpServers":{"srv":{"url":"`+u.url+`"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	v := w.expect(t, exitOK, "call", "--config", file, "steps", "n=2")
	if v.out.String() != "all steps done\n" {
		t.Errorf("stdout: %q", v.out)
	}
	v = w.expect(t, exitOK, "tools", "--config", file, "srv")
	wantContains(t, "tools", v.out.String(), "steps(n?)")
	v = w.expect(t, exitOK, "calls", "--config", file)
	wantContains(t, "calls", v.out.String(), "srv/steps", "delivered")
	dir := filepath.Join(os.Getenv("HOME"), ".config", "longcall")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file, filepath.Join(dir, "config.json")); err != nil {
		t.Fatal(err)
	}
	w.expect(t, exitOK, "call", "add", "a=1", "b=2") // the config of the user's own folder
}

func TestServeSaysWhatIsWrong(t *testing.T) {
	w, u := newWorld(t), newUpstream(t)
	serve(t, w, u)
	at := strings.TrimPrefix(address(t, w), "http://")
	other := filepath.Join(t.TempDir(), "state")
	v := w.expect(t, exitToolError, "serve", "--state", other, "--listen", at)
	wantContains(t, "port in use", v.err.String(), "longcall: cannot listen on "+at+": the port is in use.")
	v = w.expect(t, exitToolError, "serve", "--listen", "127.0.0.1:0")
	wantContains(t, "journal in use", v.err.String(), "longcall: ")
	if strings.Count(v.err.String(), "longcall: ") != 1 {
		t.Errorf("more than one line: %s", v.err)
	}
	file := filepath.Join(t.TempDir(), "no-dir")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	v = w.expect(t, exitToolError, "serve", "--state", filepath.Join(file, "x"))
	wantContains(t, "unwritable state", v.err.String(), "cannot write to the state folder")
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("lisen: 127.0.0.1:1\nlimits: {idle: 5 minuts}\nmcpServers: {a: {url: \"${LONGCALL_NO_SUCH}\"}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"serve", "--config", bad}, {"config", "check", bad}} {
		v = w.expect(t, exitUsage, args...)
		got := strings.Split(strings.TrimSpace(v.err.String()), "\n")
		if len(got) != 3 {
			t.Errorf("%v: want three lines: %s", args, v.err)
		}
		for i, line := range got {
			if !strings.HasPrefix(line, "longcall: "+bad+":"+string(rune('1'+i))+":") {
				t.Errorf("%v: line %d is %q", args, i+1, line)
			}
		}
	}
}

func TestServeOnATerminal(t *testing.T) {
	w, u := newWorld(t), newUpstream(t)
	w.sys.ErrTerminal = true
	s := serve(t, w, u)
	token, err := os.ReadFile(filepath.Join(w.state, "token"))
	if err != nil {
		t.Fatal(err)
	}
	tok := strings.TrimSpace(string(token))
	s.err.await(t, "any other client")
	wantContains(t, "banner at the first start", s.err.String(), "token    "+tok, "Bearer "+tok)
	v := w.expect(t, exitOK, "clients", "codex")
	wantContains(t, "clients", v.out.String(), `http_headers = { Authorization = "Bearer `+tok+`" }`, `url = "`+address(t, w)+`/mcp"`)
	if v = w.expect(t, exitOK, "clients", "--env"); strings.Contains(v.out.String(), tok) {
		t.Errorf("clients --env shows the token:\n%s", v.out)
	}
	s.signal(syscall.SIGHUP)
	s.err.await(t, "config read again")
}

func TestServeWithoutAuth(t *testing.T) {
	w, u := newWorld(t), newUpstream(t)
	s := serve(t, w, u, "--no-auth")
	wantContains(t, "banner", s.err.String(), "token    none is asked for (--no-auth)")
	if strings.Contains(s.err.String(), "Authorization") {
		t.Errorf("the banner has a token:\n%s", s.err)
	}
	w.expect(t, exitOK, "call", "add", "a=1", "b=2")
	if v := w.expect(t, exitOK, "clients"); strings.Contains(v.out.String(), "Authorization") {
		t.Errorf("clients has a token:\n%s", v.out)
	}
}

// Where stderr may be kept, the token is not in it, at the first start neither.
func TestServeKeepsTheTokenOutOfLogs(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		w, u := newWorld(t), newUpstream(t)
		file := filepath.Join(t.TempDir(), "c.yaml")
		if err := os.WriteFile(file, []byte("mcpServers: {srv: {url: \""+u.url+"\"}}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		v, done := w.again(), make(chan int, 1)
		go func() {
			done <- v.run("serve", "--config", file, "--listen", "127.0.0.1:0", "--log-format", format)
		}()
		v.err.await(t, "serving")
		<-v.waiting
		v.signal(os.Interrupt)
		if code := <-done; code != exitOK {
			t.Errorf("exit code %d", code)
		}
		token, err := os.ReadFile(filepath.Join(w.state, "token"))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(v.err.String(), strings.TrimSpace(string(token))) {
			t.Errorf("%s: the token is in the log:\n%s", format, v.err)
		}
		if format == "json" {
			for line := range strings.SplitSeq(strings.TrimSpace(v.err.String()), "\n") {
				if !json.Valid([]byte(line)) {
					t.Errorf("not JSON: %s", line)
				}
			}
		}
	}
}
