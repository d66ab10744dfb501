package wire

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	childScript = "WIRE_CHILD_SCRIPT"
	childLog    = "WIRE_CHILD_LOG"
)

// Script is what a scripted child does; when it returns, the child exits.
type Script func(*Child)

// Main runs a script instead of the tests if the process is a scripted child,
// and then exits. Call it first in TestMain with all scripts of the package.
func Main(scripts map[string]Script) {
	name := os.Getenv(childScript)
	if name == "" {
		return
	}
	run := scripts[name]
	if run == nil {
		fmt.Fprintf(os.Stderr, "no script %q\n", name)
		os.Exit(2)
	}
	c := &Child{in: bufio.NewReaderSize(os.Stdin, 64<<10), out: os.Stdout, note: os.Getenv(childLog)}
	c.Note("start", fmt.Sprint(os.Getpid()))
	run(c)
	c.Note("exit", "")
	os.Exit(0)
}

// Command is how a gateway starts the test's own binary as a scripted child.
type Command struct {
	Path string
	Args []string
	Env  map[string]string

	t   testing.TB
	log string
}

// NewCommand makes the command of a script that TestMain has given to Main.
func NewCommand(t testing.TB, script string) *Command {
	t.Helper()
	exe, err := os.Executable()
	fatalIf(t, err != nil, "scripted child: %v", err)
	log := t.TempDir() + "/child.jsonl"
	return &Command{
		Path: exe, Args: []string{"-test.run=^$"}, t: t, log: log,
		Env: map[string]string{childScript: script, childLog: log},
	}
}

// For says whose test fails from now on when something is waited for in vain.
func (c *Command) For(t testing.TB) { c.t = t }

// Config is the command as an entry of mcpServers.
func (c *Command) Config() string {
	b, err := json.Marshal(map[string]any{"command": c.Path, "args": c.Args, "env": c.Env})
	fatalIf(c.t, err != nil, "%v", err)
	return string(b)
}

// Note is one thing that a child wrote down.
type Note struct {
	Time time.Time
	PID  int
	What string // "start", "exit", "line" for what was read, or the script's own word
	Text string
}

// Notes lists what all children of this command wrote down, oldest first; an
// empty word lists all.
func (c *Command) Notes(what string) []Note { return readNotes(c.log, what) }

func readNotes(log, what string) (out []Note) {
	b, err := os.ReadFile(log)
	if err != nil {
		return nil // no child has started yet
	}
	for line := range strings.SplitSeq(string(b), "\n") {
		var n Note
		if json.Unmarshal([]byte(line), &n) == nil && (what == "" || n.What == what) {
			out = append(out, n)
		}
	}
	return out
}

// WaitNote waits for the nth note of a word.
func (c *Command) WaitNote(what string, n int, limit time.Duration) Note {
	c.t.Helper()
	tick, over := time.NewTicker(10*time.Millisecond), time.After(limit)
	defer tick.Stop()
	for {
		notes := c.Notes(what)
		if len(notes) >= n {
			return notes[n-1]
		}
		select {
		case <-tick.C:
		case <-over:
			c.t.Fatalf("%d of %d notes %q of the scripted child within %v", len(notes), n, what, limit)
		}
	}
}

// Child is the inside of a scripted child: its standard input and output.
type Child struct {
	in   *bufio.Reader
	note string

	mu  sync.Mutex
	out io.Writer
}

// Note writes something down for the test.
func (c *Child) Note(what, text string) {
	b, err := json.Marshal(Note{Time: time.Now(), PID: os.Getpid(), What: what, Text: text})
	if err != nil {
		panic(err) // times and strings always marshal
	}
	f, err := os.OpenFile(c.note, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		fmt.Fprintln(os.Stderr, "scripted child:", err)
		os.Exit(2)
	}
	defer f.Close()
	if _, err := f.Write(append(b, '\n')); err != nil {
		fmt.Fprintln(os.Stderr, "scripted child:", err)
		os.Exit(2)
	}
}

// Next reads one line; nil means that the input has ended.
func (c *Child) Next() *Request {
	line, err := c.in.ReadString('\n')
	if err != nil {
		return nil
	}
	r := ParseRequest(strings.TrimSuffix(line, "\n"))
	r.Time = time.Now()
	c.Note("line", r.Body)
	return r
}

// ParseRequest reads a line that came to a child.
func ParseRequest(line string) *Request {
	r := &Request{Header: http.Header{}, Body: line}
	r.parse()
	return r
}

// Write sends raw bytes, one write per piece. An error means that the other
// side is gone, and ends the child.
func (c *Child) Write(pieces ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range pieces {
		if _, err := io.WriteString(c.out, p); err != nil {
			os.Exit(3)
		}
	}
}

// Send sends messages, one line each.
func (c *Child) Send(messages ...string) {
	for _, m := range messages {
		c.Write(m + "\n")
	}
}

// Serve answers requests until the input ends. Calls run side by side, each in
// a goroutine, with the handler given; nil means that "work" answers at once. So
// do requests of the kinds in Reads, if there is a handler. All else gets the
// usual answer.
func (c *Child) Serve(opt Options, call func(*Child, *Request)) {
	if opt.Version == "" {
		opt.Version = Legacy
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		r := c.Next()
		switch {
		case r == nil:
			return
		case r.Bad == nil && r.ID == nil && opt.Notified != nil:
			opt.Notified(r)
		case r.Bad != nil, r.ID == nil, r.Response():
		case (r.Method == "tools/call" || slices.Contains(Reads, r.Method)) && call != nil && (r.Modern() == modern(opt.Version) || opt.Both):
			wg.Go(func() { call(c, r) })
		default:
			c.Usual(opt, r)
		}
	}
}

// Reads are the requests beside tools/call that may take long.
var Reads = []string{"prompts/get", "resources/read", "completion/complete"}

// Usual answers a request as Serve does where nothing else is said of it; other
// messages get no answer.
func (c *Child) Usual(opt Options, r *Request) {
	if opt.Version == "" {
		opt.Version = Legacy
	}
	switch {
	case r.Bad != nil, r.ID == nil, r.Response():
	case r.Modern() != modern(opt.Version) && !opt.Both:
		c.Send(r.Fail("-32601", "method not found"))
	default:
		c.Send(usualReply(r, opt))
	}
}

// Notes lists what all children of the command wrote down, as Command.Notes.
func (c *Child) Notes(what string) []Note { return readNotes(c.note, what) }
