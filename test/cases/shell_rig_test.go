//go:build unix

package cases_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/cli"
	"github.com/longcall/longcall/internal/shell"
	"github.com/longcall/longcall/test/wire"
)

func init() {
	// A serve of ours starts its shims from its own binary, with no environment.
	if len(os.Args) > 1 && os.Args[1] == shell.ShimCommand {
		os.Exit(cli.Main(context.Background(), cli.OS(), os.Args[1:]))
	}
}

// machine is a home whose serve, a process, has the shell.
type machine struct {
	*home
	root string // where commands run
	log  *lines
	end  <-chan error
}

// newMachine starts one; more are further lines of its config.
func newMachine(t *testing.T, more ...string) *machine {
	t.Helper()
	return newMachineOf(t, "", more...)
}

// newMachineOf has the serve be a binary, such as that of product.
func newMachineOf(t *testing.T, binary string, more ...string) *machine {
	t.Helper()
	if !shell.Supported {
		t.Skip("there is no shell on this system")
	}
	m := &machine{home: newHome(t)}
	m.binary = binary
	m.root = filepath.Join(m.dir, "work")
	if err := os.Mkdir(m.root, 0o700); err != nil {
		t.Fatal(err)
	}
	text := "shutdown: {drain: 1s}\nshell: {enabled: true, roots: [" + strconv.Quote(m.root) + "]}\n" + strings.Join(more, "\n") + "\n"
	if err := os.WriteFile(m.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.endCommands) // after the serve has ended, before the folder goes
	m.start()
	return m
}

// product builds longcall as users have it: the race detector makes the journal
// several times slower, and what is measured then is not longcall.
func product(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "longcall")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "github.com/longcall/longcall/cmd/longcall")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return bin
}

// start starts the serve.
func (m *machine) start(args ...string) {
	m.t.Helper()
	_, m.end, m.log = m.serveProcess(append([]string{"--log-level", "debug"}, args...)...)
}

// restart starts it anew after it was killed.
func (m *machine) restart() {
	m.t.Helper()
	m.kill()
	<-m.end
	m.start()
}

// folder is a command's.
func (m *machine) folder(id string) string { return filepath.Join(m.state, "shell", id) }

// meta is what a command's folder says of its processes.
type meta struct {
	Shim, Leader struct{ PID int }
}

func (m *machine) meta(id string) (v meta) {
	if b, err := os.ReadFile(filepath.Join(m.folder(id), "meta.json")); err == nil {
		_ = json.Unmarshal(b, &v) // half of it is none
	}
	return v
}

// endCommands kills what the test has left running: shims kill their trees when
// they are asked to, and here nobody is left to ask.
func (m *machine) endCommands() {
	folders, _ := filepath.Glob(filepath.Join(m.state, "shell", "c_*"))
	for _, f := range folders {
		v := m.meta(filepath.Base(f))
		for _, pid := range []int{v.Leader.PID, v.Shim.PID} {
			if pid > 1 && syscall.Kill(pid, 0) == nil && strings.HasPrefix(started(pid), m.dir) {
				if err := syscall.Kill(-pid, syscall.SIGKILL); err != nil {
					_ = syscall.Kill(pid, syscall.SIGKILL) // no leader of a group; or it has just ended
				}
				m.until("a command's process has ended", func() bool { return syscall.Kill(pid, 0) != nil || zombie(pid) })
			}
		}
	}
}

// started is the folder that a process works in, so that no other's is killed.
func started(pid int) string {
	dir, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
	if err != nil {
		return ""
	}
	return dir
}

// agent is one at an endpoint, initialized.
func (m *machine) agent(version, path string) *wire.Client {
	m.t.Helper()
	c := wire.NewClient(m.t, m.serving().URL+path, version)
	c.Header = map[string]string{"Authorization": "Bearer " + m.token()}
	c.Initialize()
	return c
}

// ran is what a result says of a command.
type ran struct {
	wire.Msg
	CallID      string `json:"call_id"`
	State       string
	Outcome     string
	ExitCode    *int `json:"exit_code"`
	Output      string
	NextCursor  int64 `json:"next_cursor"`
	TotalBytes  int64 `json:"total_bytes"`
	Omitted     int64 `json:"omitted_bytes"`
	Joined      bool
	Replayed    bool
	Descendants int
	Waiting     bool `json:"waiting_for_input"`
	Next        string
	Calls       []struct {
		CallID string `json:"call_id"`
		State  string
		Result json.RawMessage
	}
	WaitedOut bool `json:"waited_out"`
	IsError   bool
}

func read(t *testing.T, m wire.Msg) (r ran) {
	t.Helper()
	r.Msg = m
	if s := m.At("result.structuredContent"); s != nil {
		if err := json.Unmarshal(s, &r); err != nil {
			t.Fatalf("%v: %s", err, m.JSON)
		}
	}
	r.IsError = string(m.At("result.isError")) == "true"
	return r
}

// inner is the result of one call that an await_call shows.
func (r *ran) inner(t *testing.T, i int) (v ran) {
	t.Helper()
	if len(r.Calls) <= i {
		t.Fatalf("nothing is shown: %s", r.JSON)
	}
	if err := json.Unmarshal(r.Calls[i].Result, &v); err != nil {
		t.Fatalf("%v: %s", err, r.JSON)
	}
	v.Msg = r.Msg
	return v
}

func (r *ran) exit() int {
	if r.ExitCode == nil {
		return -1
	}
	return *r.ExitCode
}

// text is all that is said in text.
func (r *ran) text() string {
	var blocks []struct{ Text string }
	_ = json.Unmarshal(r.At("result.content"), &blocks) // an error has none
	var all []string
	for _, b := range blocks {
		all = append(all, b.Text)
	}
	return strings.Join(all, "\n")
}

// ask makes a call and waits for its answer; more are further arguments.
func ask(t *testing.T, c *wire.Client, tool, args string) ran {
	t.Helper()
	return read(t, c.Start(wire.Call{Tool: tool, Args: args}).Response(90*time.Second))
}

// command makes an exec_command's arguments.
func command(text, more string) string { return `{"command":` + wire.Quote(text) + more + `}` }

// await waits for the end of a call.
func await(t *testing.T, c *wire.Client, id string) ran {
	t.Helper()
	r := ask(t, c, "await_call", `{"ids":["`+id+`"],"wait_ms":45000}`)
	return r.inner(t, 0)
}

// lines counts the lines of a file in the root; none if there is no file.
func (m *machine) lines(name string) int {
	b, err := os.ReadFile(filepath.Join(m.root, name))
	if err != nil {
		return 0
	}
	return strings.Count(string(b), "\n")
}

// eras are the agents of SHELL §7's "both eras".
var eras = []string{wire.Legacy, wire.Modern}

func eachEra(t *testing.T, f func(t *testing.T, m *machine, c *wire.Client)) {
	t.Helper()
	for _, version := range eras {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			f(t, m, m.agent(version, "/mcp/shell"))
		})
	}
}
