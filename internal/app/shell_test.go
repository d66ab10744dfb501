//go:build linux || darwin

package app

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/config"
	"github.com/longcall/longcall/internal/journal/sqlite"
)

const patience = 20 * time.Second

// served is a whole longcall with the shell, in this process and a folder of its own.
type served struct {
	*testing.T
	dir, root string
	drain     string
	app       *App
	log       *lines
	stop      func() // as by SIGTERM, and waits
}

// lines is the log.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// serve starts one; shell are further members of the shell's section, and more
// are further lines of the config.
func serve(t *testing.T, shell string, more ...string) *served {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := &served{T: t, dir: dir, root: filepath.Join(dir, "work"), drain: "10s", log: &lines{}}
	if err := os.Mkdir(s.root, 0o700); err != nil {
		t.Fatal(err)
	}
	s.write(shell, more...)
	s.start()
	t.Cleanup(func() {
		if s.app.manager != nil {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			s.app.manager.StopAll(ctx, "the test")
		}
		s.stop()
		if t.Failed() {
			t.Logf("log:\n%s", s.log)
		}
	})
	return s
}

func (s *served) write(shell string, more ...string) {
	s.Helper()
	text := fmt.Sprintf("listen: 127.0.0.1:0\nstate: %q\nshutdown: {drain: %s}\nshell: {enabled: true, roots: [%q]%s}\n%s\n",
		filepath.Join(s.dir, "state"), s.drain, s.root, shell, strings.Join(more, "\n"))
	if err := os.WriteFile(filepath.Join(s.dir, "longcall.yaml"), []byte(text), 0o600); err != nil {
		s.Fatal(err)
	}
}

func (s *served) start() {
	s.Helper()
	path := filepath.Join(s.dir, "longcall.yaml")
	c, err := config.Load(path, nil)
	if err != nil {
		s.Fatal(err)
	}
	s.app, err = New(Options{Config: c, ConfigPath: path, Version: "test", Log: slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := s.app.Run(ctx); err != nil {
			s.Errorf("run: %v", err)
		}
	}()
	s.stop = func() { cancel(); <-ended }
}

// result is what an agent reads of a tool's result.
type result struct {
	Content []struct{ Text string }
	IsError bool
	Shown   struct {
		CallID   string `json:"call_id"`
		State    string
		Outcome  string
		Output   string
		ExitCode *int `json:"exit_code"`
		Calls    []struct {
			Result struct {
				State, Outcome, Output string
				ExitCode               *int `json:"exit_code"`
			}
		}
	} `json:"structuredContent"`
	Tools []struct{ Name string }
}

func (r *result) text() (all string) {
	for _, c := range r.Content {
		all += c.Text + "\n"
	}
	return all
}

// ask sends one stateless request and reads its answer.
func (s *served) ask(token, path, method, params string) (r result) {
	s.Helper()
	sep := ","
	if params == "" {
		sep = ""
	}
	body := `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{` + params + sep +
		`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`
	req, err := http.NewRequestWithContext(s.Context(), http.MethodPost, s.app.URL()+path, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	for k, v := range map[string]string{
		"Authorization": "Bearer " + token, "Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": method,
	} {
		req.Header.Set(k, v)
	}
	if method == "tools/call" {
		var p struct{ Name string }
		_ = json.Unmarshal([]byte("{"+params+"}"), &p) // ours
		req.Header.Set("Mcp-Name", p.Name)
	}
	tr := &http.Transport{DisableKeepAlives: true}
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr, Timeout: patience}).Do(req)
	if err != nil {
		s.Fatal(err)
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		s.Fatal(err)
	}
	answer := all
	for l := range strings.Lines(string(all)) {
		if data, ok := strings.CutPrefix(l, "data: "); ok && strings.Contains(data, `"result"`) {
			answer = []byte(data)
		}
	}
	var m struct {
		Result result
		Error  *struct{ Message string }
	}
	if err := json.Unmarshal(answer, &m); err != nil {
		s.Fatalf("%d %s: %v", resp.StatusCode, all, err)
	}
	if m.Error != nil {
		m.Result.IsError = true
		m.Result.Content = []struct{ Text string }{{m.Error.Message}}
	}
	return m.Result
}

// call calls a tool at an endpoint as the state folder's principal.
func (s *served) call(path, tool, arguments string) result {
	s.Helper()
	return s.ask(s.app.Token(), path, "tools/call", `"name":"`+tool+`","arguments":`+arguments)
}

func (s *served) exec(command, more string) result {
	s.Helper()
	return s.call("/mcp/shell", "exec_command", `{"command":`+strconv.Quote(command)+more+`}`)
}

// await waits for the end of a command.
func (s *served) await(id string) result {
	s.Helper()
	return s.call("/mcp/shell", "await_call", `{"ids":["`+id+`"],"wait_ms":8000}`)
}

// record is a call's, as the command line reads it.
func (s *served) record(id string) *call.Record {
	s.Helper()
	j, err := sqlite.OpenReadOnly(JournalPath(filepath.Join(s.dir, "state")))
	if err != nil {
		s.Fatal(err)
	}
	defer j.Close()
	rec, err := j.Get(s.Context(), call.ID(id))
	if err != nil {
		s.Fatal(err)
	}
	return rec
}

func (s *served) until(what string, ok func() bool) {
	s.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			s.Fatalf("waited too long: %s", what)
		}
	}
}

func (s *served) there(name string) bool {
	_, err := os.Stat(filepath.Join(s.root, name))
	return err == nil
}

func (s *served) touch(name string) {
	s.Helper()
	if err := os.WriteFile(filepath.Join(s.root, name), nil, 0o600); err != nil {
		s.Fatal(err)
	}
}

// waits is a command that says that it runs, and ends with 7 once a file is there.
const waits = `echo begun; touch runs; while [ ! -e go ]; do sleep 0.02; done; echo done; exit 7`

// The shell's tools are there under their own names at its endpoint, and under its
// name at /mcp, and a command's result is its output and exit code.
func TestShellServed(t *testing.T) {
	s := serve(t, "")
	names := func(path string) (list []string) {
		for _, tool := range s.ask(s.app.Token(), path, "tools/list", "").Tools {
			list = append(list, tool.Name)
		}
		return list
	}
	if got := strings.Join(names("/mcp/shell"), " "); !strings.Contains(got, "exec_command") || strings.Contains(got, "shell__") {
		t.Errorf("tools: %s", got)
	}
	if got := strings.Join(names("/mcp"), " "); !strings.Contains(got, "shell__exec_command") || !strings.Contains(got, "shell__read_output") {
		t.Errorf("tools: %s", got)
	}
	for path, tool := range map[string]string{"/mcp/shell": "exec_command", "/mcp": "shell__exec_command"} {
		r := s.call(path, tool, `{"command":"echo $0; pwd; exit 3","if_running":"new"}`)
		if r.IsError || r.Shown.State != "exited" || r.Shown.ExitCode == nil || *r.Shown.ExitCode != 3 || !strings.HasSuffix(r.Shown.Output, s.root+"\n") || !strings.Contains(r.text(), "exit 3") {
			t.Errorf("at %s: %+v", path, r)
		}
	}
}
