package downstream

import (
	"context"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// ServerShell is the server of the shell's calls. It is served at /mcp/shell,
// where its tools have their own names, and at /mcp.
const ServerShell = "shell"

// The tools of the shell by their own names (SHELL §4). The first two are calls,
// the others are answered in their own short time.
const (
	toolExec     = "exec_command"
	toolParallel = "run_commands_parallel"
	toolRead     = "read_output"
	toolWrite    = "write_stdin"
)

// Shell runs commands for agents (SHELL §4). Each command is a call of the server
// "shell", run by the engine's runner like any other; what it prints, its exit
// code and its process are the shell's, and are looked at through this interface
// whenever the call is shown, so none of that is in the journal. Its methods are
// safe for concurrent use. Where one is given a call, the caller has checked that
// it is the principal's.
type Shell interface {
	// Tools are the entries of the shell's tools for a principal, by their own
	// names, with schemas and annotations; none if it may not use the shell.
	Tools(principal string) []mcp.Entry
	// Plan checks the arguments of an exec_command or run_commands_parallel and
	// says how it is to be called; nothing is started. wrong, if it is not
	// empty, tells the model what to mend (SPEC §8.1 A20).
	Plan(ctx context.Context, ask *ShellAsk) (plan *ShellPlan, wrong string)
	// Do answers a read_output or write_stdin, whose ids it checks against
	// ask.Principal: a foreign one looks unknown (I6).
	Do(ctx context.Context, ask *ShellAsk) Shown
	// Show renders a call of the shell as it is now: what a yield, an await, a
	// task, a replay and the end itself say. It says that the call has ended
	// only if rec does (I4), and is never a success before.
	Show(ctx context.Context, rec *call.Record, o *ShowOptions) Shown
	// Brief is the same in a few words, for lists and digests: never output.
	Brief(rec *call.Record) ShellBrief
	// Watch sends on wake, without waiting, when output of the call's process
	// arrives or its state changes, until stop was called. With room for one,
	// wake serves any number of calls. A call without a process wakes nobody.
	Watch(id call.ID, wake chan struct{}) (stop func())
	// Total is how many bytes of output there are so far; 0 without a process.
	Total(id call.ID) int64
	// Scan searches the output from a cursor on for an RE2 pattern, also what
	// is still to come. The error is one sentence for the model.
	Scan(id call.ID, from int64, pattern string) (ShellScan, error)
	// Stop says, before the call is cancelled, how its whole tree is to be
	// stopped; for a call that has ended it stops what is left of the tree, and
	// left says that there was something. The error is one sentence for the
	// model, such as that there is no signal of this name; then nothing was
	// done.
	Stop(ctx context.Context, rec *call.Record, how ShellStop) (left bool, err error)
}

// ShellAsk is a request for a tool of the shell.
type ShellAsk struct {
	Principal string
	Client    string // the agent's name and version as it says
	Tool      string // its own name, such as exec_command
	Arguments []byte // a JSON object, as the agent wrote it
	Names     ShellNames
}

// ShellNames are the names that tools have at the endpoint of a request: strings
// for the model speak of them by these.
type ShellNames struct{ Exec, Parallel, Read, Write, Await, List, Cancel string }

// ShellPlan says how a call of the shell is started and shown.
type ShellPlan struct {
	// Digest is what makes two commands the same: hex, of the command, the
	// resolved folder, tty, stdin, environment and kind.
	Digest string
	// Attach is AttachAlways for if_running join and error, AttachFresh for new.
	Attach call.Attach
	// ErrorIfRunning refuses the request if the same command runs.
	ErrorIfRunning bool
	// Key is the caller's idempotency key, or empty.
	Key string
	// Yield is how long the request waits before the call goes on in the
	// background; 0 means not at all.
	Yield time.Duration
	// Job says that the command is expected to end and wants no input: only
	// then may the call become a task.
	Job bool
	// Total bounds the command's run, if it is not 0 and less than policy's.
	Total time.Duration
	// MaxBytes is how much output a result shows; 0 means the default.
	MaxBytes int
	// Raw says that results show output as it was written.
	Raw bool
}

// ShowWhy is the occasion at which a call is shown.
type ShowWhy uint8

// The occasions.
const (
	ShowNow    ShowWhy = iota // somebody asks how it stands
	ShowYield                 // its time in the foreground is over
	ShowReady                 // its ready_pattern matched, before that
	ShowWaited                // an await_call's time is over
	ShowOutput                // an await_call found new output
	ShowMatch                 // an await_call found its pattern, at ShowOptions.Match
	ShowLeft                  // longcall is restarting; the command goes on
)

// ShowOptions say what of a call is shown, and why.
type ShowOptions struct {
	Why      ShowWhy
	From     int64 // the first byte of output; less than 0 counts from the end
	Match    int64 // the byte after a match
	MaxBytes int   // of output; 0 means the default
	Raw      bool
	Joined   bool // the request took over a running call: nothing was started
	Replayed bool // the request is shown the end of an earlier run
	Names    ShellNames
}

// Shown is what a model gets to see: Text and Structured say the same.
type Shown struct {
	Text       []string // blocks of content, what happened first
	Structured []byte   // one JSON object; nil for an error about the arguments
	IsError    bool
	Link       bool // add a resource_link to the call
	// Told are other calls of the principal whose end this tells, such as the
	// commands of a batch.
	Told []call.ID
}

// ShellBrief is a call of the shell in a few words. None of it is output.
type ShellBrief struct {
	State    string // of SHELL §3, or of a batch
	Label    string // the caller's own
	Exited   bool   // it has an exit code
	ExitCode int
	Line     string // such as "exit 1 after 41.2 s", or "running"
}

// ShellStop is how a tree of processes is stopped.
type ShellStop struct {
	Signal string        // the first signal, such as TERM or INT; empty means TERM
	Grace  time.Duration // until KILL; less than 0 means the default
	By     string        // who asked, as in call.End.By
}

// ShellScan is one search in a growing output.
type ShellScan interface {
	// Next goes on searching. found says that the pattern matched, ending at
	// end; else there is no match so far.
	Next(ctx context.Context) (end int64, found bool, err error)
	// Close gives back what the search holds.
	Close()
}
