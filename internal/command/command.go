// Package command is what the agents' side and the shell tell each other about commands, as plain values.
package command

import (
	"context"
	"time"

	"github.com/longcall/longcall/internal/call"
)

// Ask is a request for a tool of the shell.
type Ask struct {
	Principal string
	Client    string // the agent's name and version as it says
	Tool      string // its own name, such as exec_command
	Arguments []byte // a JSON object, as the agent wrote it
	Names     Names
}

// Names are the names that tools have at the endpoint of a request: strings
// for the model speak of them by these.
type Names struct{ Exec, Parallel, Read, Write, Await, List, Cancel string }

// Plan says how a call of the shell is started and shown.
type Plan struct {
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
	// MaxBytes is how much output a result shows; 0 means the default.
	MaxBytes int
}

// Why is the occasion at which a call is shown.
type Why uint8

// The occasions.
const (
	ShowNow    Why = iota // somebody asks how it stands
	ShowYield             // its time in the foreground is over
	ShowReady             // its ready_pattern matched, before that
	ShowWaited            // an await_call's time is over
	ShowOutput            // an await_call found new output
	ShowMatch             // an await_call found its pattern, at ShowOptions.Match
	ShowLeft              // longcall is restarting; the command goes on
)

// ShowOptions say what of a call is shown, and why.
type ShowOptions struct {
	Why      Why
	From     int64 // the first byte of output; less than 0 counts from the end
	Match    int64 // the byte after a match
	MaxBytes int   // of output; 0 means the default
	Joined   bool  // the request took over a running call: nothing was started
	Replayed bool  // the request is shown the end of an earlier run
	Names    Names
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

// Brief is a call of the shell in a few words. None of it is output.
type Brief struct {
	State    string // of SHELL §3, or of a batch
	Label    string // the caller's own
	Exited   bool   // it has an exit code
	ExitCode int
	Line     string // such as "exit 1 after 41.2 s", or "running"
}

// Stop is how a tree of processes is stopped.
type Stop struct {
	Signal string        // the first signal, such as TERM or INT; empty means TERM
	Grace  time.Duration // until KILL; less than 0 means the default
	By     string        // who asked, as in call.End.By
}

// Scan is one search in a growing output.
type Scan interface {
	// Next goes on searching. found says that the pattern matched, ending at
	// end; else there is no match so far.
	Next(ctx context.Context) (end int64, found bool, err error)
}
