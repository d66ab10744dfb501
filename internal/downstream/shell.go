package downstream

import (
	"context"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/command"
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
	Plan(ctx context.Context, ask *command.Ask) (plan *command.Plan, wrong string)
	// Do answers a read_output or write_stdin, whose ids it checks against
	// ask.Principal: a foreign one looks unknown (I6).
	Do(ctx context.Context, ask *command.Ask) command.Shown
	// Show renders a call of the shell as it is now: what a yield, an await, a
	// task, a replay and the end itself say. It says that the call has ended
	// only if rec does (I4), and is never a success before.
	Show(ctx context.Context, rec *call.Record, o *command.ShowOptions) command.Shown
	// Brief is the same in a few words, for lists and digests: never output.
	Brief(rec *call.Record) command.Brief
	// Watch sends on wake, without waiting, when output of the call's process
	// arrives or its state changes, until stop was called. With room for one,
	// wake serves any number of calls. A call without a process wakes nobody.
	Watch(id call.ID, wake chan struct{}) (stop func())
	// Total is how many bytes of output there are so far; 0 without a process.
	Total(id call.ID) int64
	// Scan searches the output from a cursor on for an RE2 pattern, also what
	// is still to come. The error is one sentence for the model.
	Scan(id call.ID, from int64, pattern string) (command.Scan, error)
	// Stop says, before the call is cancelled, how its whole tree is to be
	// stopped; for a call that has ended it stops what is left of the tree, and
	// left says that there was something. The error is one sentence for the
	// model, such as that there is no signal of this name; then nothing was
	// done.
	Stop(ctx context.Context, rec *call.Record, how command.Stop) (left bool, err error)
}
