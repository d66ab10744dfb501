package tools

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/longcall/longcall/internal/argument"
	"github.com/longcall/longcall/internal/command"
)

// The bounds of SHELL §4.
const (
	// DefaultYield is how long a request waits for its command before that goes on
	// in the background: the one default, of exec_command and of
	// run_commands_parallel (D5, D7).
	DefaultYield = 3000 * time.Millisecond
	// MaxYield is the longest one; more is refused, never cut down (D6).
	MaxYield = 12_000 * time.Millisecond
	// DefaultOutput is how many bytes of output a result shows.
	DefaultOutput = 30_000

	maxCommand  = 32 << 10 // bytes
	maxOutput   = 256 << 10
	maxCommands = 8
	maxLabel    = 80
	maxKey      = 256
	maxPattern  = 1 << 10
	maxEnv      = 32 << 10 // bytes of a value
	maxTimeout  = 7 * 24 * time.Hour
)

// commandArgs is the checked arguments of an exec_command, or one command of a
// run_commands_parallel.
type commandArgs struct {
	text      string
	dir       string // resolved
	service   bool
	ready     *regexp.Regexp // nil if there is none
	tty, pipe bool
	cols      int
	rows      int
	timeout   time.Duration // 0 if none is named
	env       map[string]string
	label     string
}

// request is the checked arguments of either tool.
type request struct {
	batch     bool
	commands  []commandArgs // one, if it is no batch
	sequence  bool
	yield     time.Duration
	ifRunning string // join, new or error
	key       string
	maxBytes  int
	label     string
}

var (
	execParameters = []string{
		"command", "cwd", "yield_ms", "kind", "ready_pattern", "tty", "stdin", "cols", "rows", "timeout_s", "env",
		"if_running", "idempotency_key", "max_output_bytes", "label",
	}
	batchParameters   = []string{"commands", "cwd", "mode", "yield_ms", "env", "if_running", "idempotency_key", "max_output_bytes", "label"}
	commandParameters = []string{"command", "cwd", "timeout_s", "label"}
)

// parse checks the arguments of an exec_command or run_commands_parallel. names
// are those that the agent uses, yield is what applies if none is given. wrong is
// one sentence for the model; nothing was started then.
func (s *Settings) parse(tool string, raw []byte, names *command.Names, yield time.Duration) (r *request, wrong string) {
	if tool == Parallel {
		return s.parseBatch(raw, names, yield)
	}
	a := argument.Read(names.Exec, raw, execParameters...)
	r = s.parseCommon(a, yield)
	c := s.parseCommand(a, a.Text("cwd", false, 4<<10, "the path of a folder"), "")
	c.service = a.Choice("kind", "job", "service") == "service"
	c.tty = a.Bool("tty")
	c.pipe = a.Choice("stdin", "none", "pipe") == "pipe"
	c.cols, c.rows = int(a.Int("cols", 1, 1000, 120, "")), int(a.Int("rows", 1, 1000, 40, ""))
	c.env = s.parseEnv(a)
	if p := a.Text("ready_pattern", false, maxPattern, fmt.Sprintf("a regular expression of at most %d bytes", maxPattern)); p != "" {
		re, wrong := compile("ready_pattern", p)
		if wrong != "" {
			a.Fail(wrong)
		}
		c.ready = re
	}
	c.label = r.label
	r.commands = []commandArgs{c}
	return r, a.Wrong()
}

// parseBatch checks the arguments of a run_commands_parallel.
func (s *Settings) parseBatch(raw []byte, names *command.Names, yield time.Duration) (*request, string) {
	a := argument.Read(names.Parallel, raw, batchParameters...)
	r := s.parseCommon(a, yield)
	r.batch = true
	r.sequence = a.Choice("mode", "parallel", "sequence") == "sequence"
	env := s.parseEnv(a)
	cwd := a.Text("cwd", false, 4<<10, "the path of a folder")
	for i, item := range a.List("commands", 1, maxCommands, fmt.Sprintf(`an array of 1 to %d commands, such as [{"command":"make test"}]`, maxCommands)) {
		of := "command " + strconv.Itoa(i+1)
		o := a.Object(of, item, commandParameters...)
		dir := o.Text("cwd", false, 4<<10, "the path of a folder")
		if dir == "" {
			dir = cwd
		}
		c := s.parseCommand(o, dir, of+": ")
		c.label = label(o)
		c.env = env
		r.commands = append(r.commands, c)
	}
	return r, a.Wrong()
}

// parseCommon reads what both tools have.
func (s *Settings) parseCommon(a *argument.Set, yield time.Duration) *request {
	return &request{
		yield:     time.Duration(a.Int("yield_ms", 0, MaxYield.Milliseconds(), yield.Milliseconds(), " (milliseconds): longer commands go on in the background by themselves")) * time.Millisecond,
		ifRunning: a.Choice("if_running", "join", "new", "error"),
		key:       a.Text("idempotency_key", false, maxKey, "a string of 1 to "+strconv.Itoa(maxKey)+" bytes"),
		maxBytes:  int(a.Int("max_output_bytes", 1, maxOutput, DefaultOutput, " (bytes)")),
		label:     label(a),
	}
}

// parseCommand reads the command itself, to be run in a folder; of begins what is
// said of that.
func (s *Settings) parseCommand(a *argument.Set, cwd, of string) (c commandArgs) {
	c.text = a.Text("command", true, 1<<30, "the shell command to run")
	switch {
	case a.Wrong() != "":
	case len(c.text) > maxCommand:
		a.Fail(fmt.Sprintf("command has %s bytes, at most %s are allowed. Nothing was started. Write it to a script file and run that.", thousands(int64(len(c.text))), thousands(maxCommand)))
	case strings.TrimSpace(c.text) == "":
		a.Fail("command is blank. Nothing was started. Give the shell command to run.")
	case strings.ContainsRune(c.text, 0):
		a.Fail("command has a NUL byte, which no command line can have. Nothing was started. Write what has it to a file.")
	}
	most, unit := maxTimeout, " (seconds)"
	if s.MaxRuntime > 0 {
		most, unit = min(s.MaxRuntime, maxTimeout), " (seconds; the operator allows no more, shell.max_runtime)"
	}
	c.timeout = time.Duration(a.Int("timeout_s", 1, max(int64(most/time.Second), 1), 0, unit)) * time.Second
	if a.Wrong() == "" {
		var wrong string
		if c.dir, wrong = s.folder(cwd); wrong != "" {
			a.Fail(of + wrong)
		}
	}
	return c
}

func (s *Settings) parseEnv(a *argument.Set) map[string]string {
	env := a.Map("env", maxEnv)
	if wrong := s.checkEnv(env); wrong != "" {
		a.Fail(wrong)
	}
	return env
}

func label(a *argument.Set) string {
	return argument.Plain(a.Text("label", false, maxLabel, "a string of at most "+strconv.Itoa(maxLabel)+" bytes"), maxLabel)
}

// digest is what makes two commands the same: the command, the folder that it runs
// in, and all that changes what it does there. How long somebody waits for it, and
// how much of it is shown, is no part of that.
func (c *commandArgs) digest() string {
	h := sha256.New()
	put := func(parts ...string) {
		for _, p := range parts {
			fmt.Fprintf(h, "%d:%s", len(p), p)
		}
	}
	put("command", c.text, c.dir, strconv.FormatBool(c.service), strconv.FormatBool(c.tty), strconv.FormatBool(c.pipe))
	for _, name := range slices.Sorted(maps.Keys(c.env)) {
		put(name, c.env[name])
	}
	return hex.EncodeToString(h.Sum(nil))
}

// digest of a batch: of its commands in their order, and of the mode.
func (r *request) digest() string {
	if !r.batch {
		return r.commands[0].digest()
	}
	h := sha256.New()
	fmt.Fprintf(h, "batch %v", r.sequence)
	for i := range r.commands {
		fmt.Fprint(h, " ", r.commands[i].digest())
	}
	return hex.EncodeToString(h.Sum(nil))
}
