//go:build unix

package peers

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The eras in which peers speak.
const (
	Legacy = "legacy" // initialize and sessions
	Modern = "modern" // 2026-07-28
	Old    = "sse"    // HTTP with SSE of 2024-11-05
)

// Server is a tool server that nobody here wrote, or whose protocol nobody
// here wrote: the tools of those on an SDK are ours.
type Server struct {
	Name string
	Eras []string
	// Ours says that the server has our tools: echo(text), fail(text) and
	// slow(duration_ms, steps), which reports a step before it works on it.
	Ours bool
	// Once says that the server has one client in its life, and ends with it.
	Once bool
	// PathB says that progress comes on the standalone stream.
	PathB bool
	// Both says that the server speaks both eras, in whichever it is started.
	Both bool

	ecosystem Ecosystem
	command   func(dir string, port int, era string) Command
	stdio     func(dir string) Command // nil if it has none
	slow      string                   // name of the slow tool, if it is not ours
}

// Servers are all tool servers.
var Servers = []Server{
	{
		Name: "go-sdk", Eras: []string{Legacy, Modern}, Ours: true, ecosystem: Go,
		command: func(dir string, port int, era string) Command {
			return Command{Path: filepath.Join(dir, "server"), Args: []string{"-port", strconv.Itoa(port), "-era", era}}
		},
		stdio: func(dir string) Command { return Command{Path: filepath.Join(dir, "server")} },
	},
	{
		Name: "typescript-v1", Eras: []string{Legacy}, Ours: true, ecosystem: Node,
		command: func(dir string, port int, _ string) Command { return node(dir, "server-v1.mjs", port) },
		stdio:   func(dir string) Command { return node(dir, "server-v1.mjs", 0) },
	},
	{
		Name: "typescript-v2", Eras: []string{Legacy, Modern}, Ours: true, ecosystem: Node,
		command: func(dir string, port int, era string) Command {
			return node(dir, "server-v2.mjs", port, "--era", era)
		},
		stdio: func(dir string) Command { return node(dir, "server-v2.mjs", 0, "--era", "both") },
	},
	{
		Name: "python-v1", Eras: []string{Legacy}, Ours: true, PathB: true, ecosystem: PythonV1,
		command: func(dir string, port int, _ string) Command { return python(dir, "server_v1.py", port) },
		stdio:   func(dir string) Command { return python(dir, "server_v1.py", 0) },
	},
	{
		Name: "python-v2", Eras: []string{Legacy, Modern}, Ours: true, Both: true, ecosystem: PythonV2,
		command: func(dir string, port int, _ string) Command { return python(dir, "server_v2.py", port) },
		stdio:   func(dir string) Command { return python(dir, "server_v2.py", 0) },
	},
	{
		Name: "everything", Eras: []string{Legacy}, ecosystem: Node, slow: "trigger-long-running-operation",
		command: func(dir string, port int, _ string) Command {
			return everything(dir, "@modelcontextprotocol/server-everything", port)
		},
		stdio: func(dir string) Command {
			return Command{Path: "node", Args: []string{filepath.Join(dir, "node_modules", "@modelcontextprotocol", "server-everything", "dist", "index.js"), "stdio"}}
		},
	},
	{
		Name: "everything-path-b", Eras: []string{Legacy}, PathB: true, ecosystem: Node, slow: "longRunningOperation",
		command: func(dir string, port int, _ string) Command { return everything(dir, "everything-path-b", port) },
	},
	{
		Name: "everything-2024", Eras: []string{Old}, Once: true, ecosystem: Node, slow: "longRunningOperation",
		command: func(dir string, port int, _ string) Command {
			c := everything(dir, "everything-sse", port)
			return Command{Path: c.Path, Args: []string{strings.Replace(c.Args[0], "index.js", "sse.js", 1)}, Env: c.Env}
		},
	},
}

func nodeEnv(dir string) []string {
	return []string{`NODE_OPTIONS=--require "` + filepath.Join(dir, "loopback.cjs") + `"`}
}

func node(dir, script string, port int, args ...string) Command {
	return Command{Path: "node", Args: slices.Concat([]string{filepath.Join(dir, script)}, at(port), args), Env: nodeEnv(dir)}
}

// at is the port as scripts want it; 0 means standard input and output.
func at(port int) []string {
	if port == 0 {
		return nil
	}
	return []string{"--port", strconv.Itoa(port)}
}

func everything(dir, module string, port int) Command {
	return Command{
		Path: "node", Args: []string{filepath.Join(dir, "node_modules", filepath.FromSlash(module), "dist", "index.js"), "streamableHttp"},
		Env: append(nodeEnv(dir), "PORT="+strconv.Itoa(port)),
	}
}

func python(dir, script string, port int) Command {
	return Command{
		Path: filepath.Join(dir, "bin", "python"), Args: append([]string{filepath.Join(Source(), "python", script)}, at(port)...),
		Env: []string{"PYTHONDONTWRITEBYTECODE=1", "PYTHONWARNINGS=ignore"},
	}
}

// Find returns the server of a name.
func Find(name string) Server {
	for _, s := range Servers {
		if s.Name == name {
			return s
		}
	}
	panic("no server " + name)
}

// Speaks says whether the server speaks an era.
func (s Server) Speaks(era string) bool { return slices.Contains(s.Eras, era) }

// Start runs the server until the test's cleanup and returns its endpoint.
// It speaks one era, or with "both" all that it can.
func (s Server) Start(t testing.TB, era string) (url string) {
	t.Helper()
	url, ready := s.Launch(t, era)
	ready()
	return url
}

// Launch is Start without waiting for the server: ready does that.
func (s Server) Launch(t testing.TB, era string) (url string, ready func()) {
	t.Helper()
	dir, port := Ensure(t, s.ecosystem), FreePort(t)
	p := Start(t, s.command(dir, port, era))
	url = loopback(port)
	if era == Old {
		url = strings.TrimSuffix(url, "mcp") + "sse"
	}
	return url, func() { t.Helper(); p.Listening(t, port) }
}

// Entry is the server at a URL in longcall's mcpServers, as JSON: the era is said only
// if longcall would find another one.
func (s Server) Entry(url, era string) string {
	if s.Both {
		return fmt.Sprintf(`{"url": %q, "era": %q}`, url, era)
	}
	return fmt.Sprintf(`{"url": %q}`, url)
}

// HasStdio says whether the server can run on its standard input and output.
func (s Server) HasStdio() bool { return s.stdio != nil }

// Stdio is the command of the server on its standard input and output.
func (s Server) Stdio(t testing.TB) Command {
	t.Helper()
	return s.stdio(Ensure(t, s.ecosystem))
}

// Slow is a call of the server's slow tool, and the text that it must give.
// Tools that are not ours take whole seconds.
func (s Server) Slow(d time.Duration, steps int) (tool, args, want string) {
	if s.Ours {
		return "slow", fmt.Sprintf(`{"duration_ms":%d,"steps":%d}`, d.Milliseconds(), steps), fmt.Sprintf("slow finished %d steps", steps)
	}
	seconds := max(1, int(d.Seconds()))
	return s.slow, fmt.Sprintf(`{"duration":%d,"steps":%d}`, seconds, steps),
		fmt.Sprintf("Long running operation completed. Duration: %d seconds, Steps: %d.", seconds, steps)
}

// Client is a program that makes one tool call with an official SDK.
type Client struct {
	Name string
	Eras []string
	// LastLost says that the SDK drops a progress message that comes in one
	// read with the result, or shows it after the result.
	LastLost bool

	ecosystem Ecosystem
	command   func(dir string) Command
	dashes    string // before a flag
}

// Clients are all client programs.
var Clients = []Client{
	{
		Name: "go-sdk", Eras: []string{Legacy, Modern, Old}, LastLost: true, ecosystem: Go, dashes: "-",
		command: func(dir string) Command { return Command{Path: filepath.Join(dir, "client")} },
	},
	{
		Name: "typescript-v1", Eras: []string{Legacy, Old}, LastLost: true, ecosystem: Node, dashes: "--",
		command: func(dir string) Command {
			return Command{Path: "node", Args: []string{filepath.Join(dir, "client-v1.mjs")}}
		},
	},
	{
		Name: "typescript-v2", Eras: []string{Legacy, Modern}, LastLost: true, ecosystem: Node, dashes: "--",
		command: func(dir string) Command {
			return Command{Path: "node", Args: []string{filepath.Join(dir, "client-v2.mjs")}}
		},
	},
	{
		Name: "python-v1", Eras: []string{Legacy, Old}, ecosystem: PythonV1, dashes: "--",
		command: func(dir string) Command { return pythonClient(dir, "client_v1.py") },
	},
	{
		Name: "python-v2", Eras: []string{Legacy, Modern}, ecosystem: PythonV2, dashes: "--",
		command: func(dir string) Command { return pythonClient(dir, "client_v2.py") },
	},
}

func pythonClient(dir, script string) Command {
	return python(dir, script, 0)
}

// Speaks says whether the client speaks an era.
func (c Client) Speaks(era string) bool { return slices.Contains(c.Eras, era) }

// Request is one tool call to make.
type Request struct {
	URL, Era, Tool, Args, Bearer string
	// Plan is what to do instead of a call of Tool.
	Plan []Step
	// Patience is how long the client waits for its answer; 0 leaves that to its
	// SDK. Go's knows no such limit.
	Patience time.Duration
	// Command is what the client talks to on its pipe instead of a URL. Only that of
	// the Go SDK can.
	Command *Command
}

// Event is one line that a client printed.
type Event struct {
	T        float64 // seconds since the call began, but for connected and tools
	Ev       string  // connected, tools, progress, asked, result, did, error, onerror
	Protocol string
	Names    []string
	Progress float64
	Total    float64
	Message  string
	Token    any // go-sdk only
	IsError  bool
	Text     string
	Msg      string // of an error
	Did      Did    `json:"-"` // of did
}

// Call runs the client to its end.
func (c Client) Call(t testing.TB, r Request) Run {
	t.Helper()
	cmd := c.command(Ensure(t, c.ecosystem))
	cmd.Args = append([]string{}, cmd.Args...)
	patience := ""
	if r.Patience > 0 {
		patience = strconv.FormatInt(r.Patience.Milliseconds(), 10)
	}
	plan := ""
	if r.Plan != nil {
		b, err := json.Marshal(r.Plan)
		if err != nil {
			t.Fatal(err)
		}
		plan = string(b)
	}
	for _, f := range [][2]string{{"plan", plan}, {"timeout", patience}, {"url", r.URL}, {"era", r.Era}, {"tool", r.Tool}, {"args", r.Args}, {"bearer", r.Bearer}} {
		if f[1] != "" {
			cmd.Args = append(cmd.Args, c.dashes+f[0], f[1])
		}
	}
	if r.Command != nil {
		cmd.Args = append(append(cmd.Args, "-stdio", r.Command.Path), r.Command.Args...)
	}
	out, errs, code := Output(t, 2*time.Minute, cmd)
	run := Run{Code: code, Stdout: out, Stderr: errs}
	for line := range strings.SplitSeq(strings.TrimSpace(out), "\n") {
		run.Events = append(run.Events, parse(t, line))
	}
	return run
}
