//go:build unix

package cases_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/cli"
	"github.com/longcall/longcall/test/wire"
)

// asLongcall makes the test binary longcall itself, so that what runs is a real
// process, with all that it starts.
const asLongcall = "LONGCALL_CASES_AS_MAIN"

func init() {
	// A wrapped server gets the whole environment of its host, this too.
	if os.Getenv(asLongcall) != "" && len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-test.") {
		os.Exit(cli.Main(context.Background(), cli.OS(), os.Args[1:]))
	}
}

const sLimit = 20 * time.Second

// home is one user's machine: a state folder, and what runs on it.
type home struct {
	binary string // longcall; empty for this one, which may have the race detector
	t      *testing.T
	dir    string
	state  string
	config string
}

// newHome makes a home whose config has these servers (YAML flow members).
func newHome(t *testing.T, servers ...string) *home {
	t.Helper()
	dir := t.TempDir()
	h := &home{t: t, dir: dir, state: filepath.Join(dir, "state"), config: filepath.Join(dir, "longcall.yaml")}
	h.write(h.config, servers...)
	t.Cleanup(func() {
		for range 3 { // a relay may have started another one meanwhile
			pid := h.pid()
			if pid == 0 || syscall.Kill(pid, syscall.SIGKILL) != nil {
				break
			}
			h.until("the serve is gone", func() bool { return syscall.Kill(pid, 0) != nil || h.pid() != pid || zombie(pid) })
		}
		if t.Failed() {
			b, _ := os.ReadFile(filepath.Join(h.state, "serve.log"))
			t.Logf("serve.log:\n%s", b)
		}
	})
	return h
}

// zombie says whether a process has ended and only its parent has not noticed.
func zombie(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(b), ") Z ")
}

func (h *home) write(path string, servers ...string) {
	h.t.Helper()
	text := "shutdown: {drain: 20s}\nmcpServers: {" + strings.Join(servers, ", ") + "}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

// serving is what the serve says about itself; pid is 0 if there is none.
func (h *home) serving() (s struct {
	PID        int    `json:"pid"`
	URL        string `json:"url"`
	Background bool   `json:"background"`
},
) {
	if b, err := os.ReadFile(filepath.Join(h.state, "serve.json")); err == nil {
		_ = json.Unmarshal(b, &s) // half of it is none
	}
	return s
}

func (h *home) pid() int { return h.serving().PID }

func (h *home) token() string {
	b, _ := os.ReadFile(filepath.Join(h.state, "token"))
	return strings.TrimSpace(string(b))
}

// kill ends the serve as a crash does.
func (h *home) kill() (pid int) {
	h.t.Helper()
	pid = h.pid()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		h.t.Fatalf("kill the serve %d: %v", pid, err)
	}
	return pid
}

func (h *home) until(what string, ok func() bool) {
	h.t.Helper()
	deadline := time.Now().Add(sLimit)
	for !ok() {
		if time.Now().After(deadline) {
			h.t.Fatalf("never: %s", what)
		}
		<-time.After(10 * time.Millisecond) // another process: there is nothing to wait on
	}
}

// command is longcall as a process.
func (h *home) command(env []string, args ...string) *exec.Cmd {
	h.t.Helper()
	self := h.binary
	if self == "" {
		var err error
		if self, err = os.Executable(); err != nil {
			h.t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(context.WithoutCancel(h.t.Context()), self, args...)
	cmd.Dir = h.dir
	cmd.Env = append([]string{asLongcall + "=1", "HOME=" + h.dir, "PATH=" + os.Getenv("PATH"), "LONGCALL_STATE=" + h.state}, env...)
	return cmd
}

// pipe is a host that has started longcall and talks to it by lines.
type pipe struct {
	h     *home
	cmd   *exec.Cmd
	in    io.WriteCloser
	err   lines
	ended chan error

	mu   sync.Mutex
	all  []wire.Msg
	grew chan struct{}
}

// host starts "longcall stdio" or "longcall wrap".
func (h *home) host(env []string, args ...string) *pipe {
	h.t.Helper()
	p := &pipe{h: h, cmd: h.command(env, args...), ended: make(chan error, 1), grew: make(chan struct{}, 1)}
	p.cmd.Stderr = &p.err
	in, err := p.cmd.StdinPipe()
	if err != nil {
		h.t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		h.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	p.in = in
	read := make(chan struct{})
	go func() {
		defer close(read)
		sc := bufio.NewScanner(out)
		sc.Buffer(nil, 64<<20)
		for sc.Scan() {
			m := wire.Msg{JSON: sc.Text()}
			if err := json.Unmarshal(sc.Bytes(), &m); err != nil {
				m.Method = "not a message"
			}
			p.mu.Lock()
			p.all = append(p.all, m)
			p.mu.Unlock()
			select {
			case p.grew <- struct{}{}:
			default:
			}
		}
	}()
	go func() {
		<-read
		p.ended <- p.cmd.Wait()
	}()
	h.t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it has ended, or it ends now
		<-read
		if h.t.Failed() {
			h.t.Logf("%v: stderr:\n%s", args, p.err.String())
		}
	})
	return p
}

func (p *pipe) send(lines ...string) {
	p.h.t.Helper()
	for _, l := range lines {
		if _, err := io.WriteString(p.in, l+"\n"); err != nil {
			p.h.t.Fatalf("write to longcall: %v\n%s", err, p.err.String())
		}
	}
}

// find waits for the nth message, from 1, that is as match says.
func (p *pipe) find(n int, what string, match func(m *wire.Msg) bool) wire.Msg {
	p.h.t.Helper()
	deadline := time.After(sLimit)
	for {
		k := 0
		p.mu.Lock()
		for i := range p.all {
			if match(&p.all[i]) {
				if k++; k == n {
					m := p.all[i]
					p.mu.Unlock()
					return m
				}
			}
		}
		p.mu.Unlock()
		select {
		case <-p.grew:
		case <-deadline:
			p.h.t.Fatalf("no %s (%d) on the pipe; there is %s", what, n, p.text())
		}
	}
}

func (p *pipe) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var b strings.Builder
	for _, m := range p.all {
		b.WriteString("\n" + m.JSON)
	}
	return b.String()
}

func (p *pipe) count(part string) int { return strings.Count(p.text(), part) }

// response waits for the answer to a request.
func (p *pipe) response(id string) wire.Msg {
	p.h.t.Helper()
	return p.find(1, "response "+id, func(m *wire.Msg) bool { return m.Method == "" && string(m.ID) == id })
}

// progressed waits for the nth progress with that token.
func (p *pipe) progressed(token string, n int) {
	p.h.t.Helper()
	p.find(n, "progress", func(m *wire.Msg) bool {
		return m.Method == progressMethod && strings.Contains(m.JSON, `"progressToken":`+token)
	})
}

// close closes the pipe and waits for the process.
func (p *pipe) close() {
	p.h.t.Helper()
	p.in.Close()
	p.wait()
}

func (p *pipe) wait() {
	p.h.t.Helper()
	select {
	case err := <-p.ended:
		p.ended <- err
		if err != nil {
			p.h.t.Errorf("longcall ended with %v\n%s", err, p.err.String())
		}
	case <-time.After(sLimit):
		p.h.t.Fatal("longcall does not end with its pipe")
	}
}

// open initializes the session of a legacy host.
func (p *pipe) open() {
	p.h.t.Helper()
	p.send(`{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"pipe","version":"1"}}}`)
	p.response(`"init"`)
	p.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
}

// eraMeta are the members of _meta that make a request modern, or nothing.
func eraMeta(version string) string {
	if version != wire.Modern {
		return ""
	}
	return `,"io.modelcontextprotocol/protocolVersion":"` + version + `","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"pipe","version":"1"}`
}

// call sends a tools/call with the id as its progress token.
func (p *pipe) call(version, id, tool, args string) {
	p.h.t.Helper()
	p.send(`{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"` + tool + `","arguments":` + args + `,"_meta":{"progressToken":` + id + eraMeta(version) + `}}}`)
}

func (p *pipe) cancel(id string) {
	p.h.t.Helper()
	p.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `,"reason":"the test asks"}}`)
}
