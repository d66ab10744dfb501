// Package tools is the shell as agents see it: its tools' arguments, schemas and words, and the runner of their calls.
//
// A command is a call of the server "shell" (DESIGN §3, SHELL §3): its id is the
// call's, its output and exit code are in the process's folder, and what a model
// reads of it is made whenever it is shown.
package tools

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/longcall/longcall/internal/argument"
	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/command"
	"github.com/longcall/longcall/internal/mcp"
	"github.com/longcall/longcall/internal/shell"
	"github.com/longcall/longcall/internal/shell/spool"
)

// Settings are what the operator says of commands; they change with a reload.
type Settings struct {
	Roots   []string // folders that commands may run in, absolute; the first is the default
	Shell   []string // what runs a command text, which is appended; nil is /bin/sh -c
	Sandbox []string // what is run before that, such as bwrap and its arguments
	// Env are names of variables that are passed on from longcall's own
	// environment and that callers may set; Set are variables of every command.
	Env []string
	Set map[string]string
	// MaxRuntime ends every command that runs longer; 0 means none does.
	MaxRuntime time.Duration
	// NonzeroIsError makes a non-zero exit code a tool error.
	NonzeroIsError bool
	// Yield is the default yield of an agent that names none; nil, or 0 from it,
	// is DefaultYield.
	Yield func(principal, client string) time.Duration
	// Off refuses new commands, and reading and typing: a reload has turned the
	// shell off.
	Off bool
	// Allowed says who may use the shell; nil is everybody.
	Allowed func(principal string) bool

	list []mcp.Entry // of the tools, as of Configure
}

// Tools are the shell's tools and the runner of their calls. Bind comes before the
// first call.
type Tools struct {
	manager *shell.Manager
	batches *batches
	log     *slog.Logger
	own     []string // longcall's environment
	set     atomic.Pointer[Settings]
	engine  *call.Engine

	mu    sync.Mutex
	stops map[call.ID]command.Stop // how a call is to be stopped that is being cancelled
	typed map[string]int64         // where the output was at an idempotent write: see write
}

// New makes the tools over a manager of processes. In dir, which is made, batches
// are kept for as long as keep says after their last change; own is longcall's
// environment, as os.Environ gives it.
func New(m *shell.Manager, dir string, keep time.Duration, own []string, s Settings, log *slog.Logger) (*Tools, error) {
	b, err := openBatches(dir, keep)
	if err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	t := &Tools{manager: m, batches: b, log: log, own: own, stops: map[call.ID]command.Stop{}, typed: map[string]int64{}}
	t.Configure(s)
	return t, nil
}

// Configure puts settings in force, for commands that start from now on.
func (t *Tools) Configure(s Settings) {
	if len(s.Shell) == 0 {
		s.Shell = []string{"/bin/sh", "-c"}
	}
	s.list = s.entries()
	t.set.Store(&s)
}

// Bind names the engine that runs the calls: batches start theirs there.
func (t *Tools) Bind(e *call.Engine) { t.engine = e }

// OwnNames are the tools' own names.
var OwnNames = command.Names{Exec: Exec, Parallel: Parallel, Read: Read, Write: Write, Await: "await_call", List: "list_calls", Cancel: "cancel_call"}

// Tools are the entries of the shell's tools for a principal; none if it may not
// use the shell.
func (t *Tools) Tools(principal string) []mcp.Entry {
	s := t.set.Load()
	if s.refused(principal) != "" {
		return nil
	}
	return s.list
}

// refused says why a principal may not use the shell; empty if it may.
func (s *Settings) refused(principal string) string {
	if s.Off {
		return "The operator has turned the shell off. Nothing was started or stopped: commands that run go on. Do not try again; ask the operator."
	}
	if s.Allowed != nil && !s.Allowed(principal) {
		return "You may not run commands here: your token has no scope \"shell\". Nothing was started. Ask the operator for it."
	}
	return ""
}

// Plan checks the arguments of an exec_command or run_commands_parallel and says
// how it is to be called; nothing is started. wrong, if it is not empty, tells the
// model what to mend (SPEC §8.1 A20).
func (t *Tools) Plan(_ context.Context, ask *command.Ask) (plan *command.Plan, wrong string) {
	s := t.set.Load()
	if wrong := s.refused(ask.Principal); wrong != "" {
		return nil, wrong
	}
	yield := DefaultYield
	if s.Yield != nil {
		if d := s.Yield(ask.Principal, ask.Client); d > 0 {
			yield = min(d, MaxYield)
		}
	}
	r, wrong := s.parse(ask.Tool, ask.Arguments, &ask.Names, yield)
	if wrong != "" {
		return nil, wrong
	}
	plan = &command.Plan{Digest: r.digest(), Attach: call.AttachAlways, ErrorIfRunning: r.ifRunning == "error", Key: r.key, Yield: r.yield, MaxBytes: r.maxBytes, Job: true}
	if r.ifRunning == "new" {
		plan.Attach = call.AttachFresh
	}
	if c := &r.commands[0]; !r.batch && (c.service || c.tty || c.pipe) {
		plan.Job = false
	}
	return plan, ""
}

// maxStops bounds the stops that wait for the cancel of their call, which follows
// at once.
const maxStops = 1000

// signals are those that a caller may name for a stop.
var signals = []string{"TERM", "INT", "HUP", "QUIT", "KILL", "USR1", "USR2"}

// Stop says, before the call is cancelled, how its whole tree is to be stopped; for
// a call that has ended it stops what is left of the tree, and left says that there
// was something. The error is one sentence for the model; then nothing was done.
func (t *Tools) Stop(ctx context.Context, rec *call.Record, how command.Stop) (left bool, err error) {
	how.Signal = strings.TrimPrefix(strings.ToUpper(how.Signal), "SIG")
	if how.Signal != "" && !slices.Contains(signals, how.Signal) {
		return false, sentence("There is no such signal to stop a command with; use one of " + strings.Join(signals, ", ") + ". Nothing was stopped.")
	}
	if rec.End.Outcome == call.Running {
		t.mu.Lock()
		if len(t.stops) >= maxStops { // of calls that ended before they were cancelled
			clear(t.stops)
		}
		t.stops[rec.ID] = how
		t.mu.Unlock()
		return false, nil
	}
	for _, id := range t.members(rec) {
		p := t.manager.Find(string(id))
		if p == nil {
			continue
		}
		if s := p.Status(); !s.TreeEnded.IsZero() || s.State.Final() && s.Descendants == 0 && len(s.Survivors) == 0 {
			continue
		}
		left = true
		if _, err := p.Stop(ctx, how.Signal, graceOf(&how), how.By); err != nil {
			return true, sentence("What is left of it could not be stopped: " + err.Error() + ".")
		}
	}
	return left, nil
}

// graceOf is the time until KILL as the shell takes it: 0 is its default.
func graceOf(h *command.Stop) time.Duration {
	switch {
	case h.Grace < 0:
		return 0
	case h.Grace == 0:
		return 1
	}
	return h.Grace
}

// takeStop gives how a call is to be stopped that was cancelled.
func (t *Tools) takeStop(id call.ID) command.Stop {
	t.mu.Lock()
	defer t.mu.Unlock()
	how, ok := t.stops[id]
	delete(t.stops, id)
	if !ok {
		how.Grace = -1
	}
	return how
}

// sentence is an error that a model reads as it is.
type sentence string

func (s sentence) Error() string { return string(s) }

// members are the commands of a call: itself, or those of a batch.
func (t *Tools) members(rec *call.Record) []call.ID {
	if rec.Tool != Parallel {
		return []call.ID{rec.ID}
	}
	b, err := t.batches.load(rec.ID)
	if err != nil {
		return nil
	}
	var ids []call.ID
	for _, c := range b.Commands {
		if c.ID != "" {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// Watch sends on wake, without waiting, when output of the call's process arrives
// or its state changes, until stop was called. With room for one, wake serves any
// number of calls. A call without a process wakes nobody.
func (t *Tools) Watch(id call.ID, wake chan struct{}) (stop func()) {
	if p := t.manager.Find(string(id)); p != nil {
		return p.Notify(wake)
	}
	return func() {}
}

// Total is how many bytes of output there are so far; 0 without a process.
func (t *Tools) Total(id call.ID) int64 {
	if p := t.manager.Find(string(id)); p != nil {
		return p.Status().Total
	}
	return 0
}

// search is one in a growing output.
type search struct {
	reader *spool.Reader
	scan   *spool.Scan
}

// Scan searches the output from a cursor on for an RE2 pattern, also what is still
// to come. The error is one sentence for the model.
func (t *Tools) Scan(id call.ID, from int64, pattern string) (command.Scan, error) {
	re, wrong := compile("pattern", pattern)
	if wrong != "" {
		return nil, sentence(wrong)
	}
	p := t.manager.Find(string(id))
	if p == nil {
		return nil, sentence("There is no output to search: this call is no command, or has not begun.")
	}
	if from < 0 {
		from = max(p.Status().Total+from, 0)
	}
	r, err := p.Output()
	if err != nil {
		return nil, err
	}
	return &search{reader: r, scan: spool.NewScan(re, from)}, nil
}

// Next goes on searching. found says that the pattern matched, ending at end; else
// there is no match so far.
func (s *search) Next(ctx context.Context) (end int64, found bool, err error) {
	return s.scan.Next(ctx, s.reader)
}

// compile reads an RE2 pattern of a parameter.
func compile(name, pattern string) (re *regexp.Regexp, wrong string) {
	if len(pattern) > maxPattern {
		return nil, fmt.Sprintf("%s has %s bytes, at most %s are allowed. Nothing was done. Use a shorter one.", name, thousands(int64(len(pattern))), thousands(maxPattern))
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, name + " is no regular expression that RE2 knows: " + argument.Plain(strings.TrimPrefix(err.Error(), "error parsing regexp: "), 200) + ". Nothing was done. RE2 has neither backreferences nor lookaround."
	}
	return re, ""
}
