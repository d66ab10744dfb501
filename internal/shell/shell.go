// Package shell runs commands that outlive the process that started them.
//
// Each command has a shim, a small supervisor of its own, and a folder. The
// shim is the command's direct parent, reads its output, and writes down how it
// ended; a Manager starts shims, and finds those that an earlier process left
// running (SHELL §3, docs/decisions/0010-shim-per-process.md).
package shell

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/longcall/longcall/internal/shell/spool"
)

// ShimCommand is the hidden subcommand of longcall whose main is Shim.
const ShimCommand = "__shim"

// Limits of SHELL §6, used where Options has zero.
const (
	DefaultPerOwner   = 16
	DefaultTotal      = 64
	DefaultSpoolTotal = 2 << 30 // bytes
	DefaultKeep       = 7 * 24 * time.Hour
	DefaultGrace      = 5 * time.Second
)

// Options are what a Manager needs to know.
type Options struct {
	Dir         string        // holds one folder per process; made if it is missing, mode 0700
	Exe         []string      // starts a shim when the process folder is appended: Self() and nothing else outside of tests
	MaxPerOwner int           // processes of one owner that may run at once; DefaultPerOwner if 0
	MaxTotal    int           // processes that may run at once; DefaultTotal if 0
	Caps        spool.Caps    // of each process's output; zero: spool's own
	SpoolTotal  int64         // bytes of output kept of all processes; DefaultSpoolTotal if 0
	Keep        time.Duration // how long an ended process is kept; DefaultKeep if 0
	Log         *slog.Logger  // gets ids and pids, never a command or output; nil: none
}

// Command is one command to run. It is stored as spec.json, readable by the
// user alone, because its arguments and environment may hold secrets.
type Command struct {
	ID      string        `json:"id"`    // names the folder: letters, digits, '-' and '_', at most 128
	Owner   string        `json:"owner"` // who may see it; checked by the caller
	Label   string        `json:"label,omitempty"`
	Argv    []string      `json:"argv"`              // a program without a slash is looked up on Env's PATH
	Dir     string        `json:"dir"`               // absolute; the caller has checked it
	Env     []string      `json:"env"`               // all that the command gets, but for the settings of SHELL §6 that it does not name
	TTY     bool          `json:"tty,omitempty"`     // a terminal for all three streams, instead of pipes
	Stdin   bool          `json:"stdin,omitempty"`   // a pipe as stdin, instead of /dev/null; a terminal always has input
	Cols    int           `json:"cols,omitempty"`    // of the terminal; 80 if 0
	Rows    int           `json:"rows,omitempty"`    // of the terminal; 24 if 0
	Timeout time.Duration `json:"timeout,omitempty"` // after which it is stopped as timed_out; 0: never
	Grace   time.Duration `json:"grace,omitempty"`   // between TERM and KILL; DefaultGrace if 0
	Parent  string        `json:"parent,omitempty"`  // id of the batch that it belongs to
	Index   int           `json:"index,omitempty"`   // of a batch's child, from 1
	Service bool          `json:"service,omitempty"` // it is not expected to end; for those who look only
}

// State is where a process is in its life (SHELL §3). All but Starting and
// Running are final.
type State string

// The states.
const (
	Starting    State = "starting"
	Running     State = "running"
	Exited      State = "exited"       // by itself, with ExitCode
	Signaled    State = "signaled"     // ended by Signal, which nobody asked for here
	TimedOut    State = "timed_out"    // its Timeout was over, and it was stopped
	Stopped     State = "stopped"      // StoppedBy asked for it
	StartFailed State = "start_failed" // it never ran; Error says why
	Lost        State = "lost"         // supervision ended: whether and how the command ended is unknown
)

// Final says whether a process in this state has ended, or will never be known to.
func (s State) Final() bool { return s != Starting && s != Running }

// Status is a process at one moment.
type Status struct {
	ID, Owner, Label string
	Parent           string
	Index            int
	TTY, Stdin       bool
	Service          bool

	State       State
	PID         int    // of the leader; 0 if it never ran
	ExitCode    int    // -1 if there is none
	Signal      string // "SIGKILL"; empty if no signal ended it
	Started     time.Time
	Ended       time.Time // of the leader; when Lost, the time at which that was noticed; zero while it runs
	Total       int64     // bytes of output so far
	Descendants int       // processes that it started and that lived on when the leader ended
	TreeEnded   time.Time // when none of those could be found any more; zero while any may live
	Survivors   []int     // pids that a stop could not end; when Lost, those that were still there
	StoppedBy   string    // who asked for the stop
	Error       string    // why it was not started, lost, or not fully recorded: one sentence
	// Unsupervised: the command runs, but its shim is gone or does not answer.
	// Its further output and its exit code are lost; it can be stopped.
	Unsupervised bool
}

// TooMany is the refusal of Start at a limit. Nothing was started, nothing
// ended.
type TooMany struct {
	Limit   int
	Own     bool     // it is the owner's limit, not the machine's
	Running []Status // of this owner only, oldest first
}

func (e *TooMany) Error() string {
	var b strings.Builder
	if e.Own {
		fmt.Fprintf(&b, "You have %d commands running, which is the limit; nothing was started, and nothing was stopped.", e.Limit)
	} else {
		fmt.Fprintf(&b, "%d commands of all users are running here, which is the limit; nothing was started, and nothing was stopped.", e.Limit)
	}
	if len(e.Running) == 0 {
		b.WriteString(" None of them is yours: try again later.")
		return b.String()
	}
	b.WriteString(" Wait for one of yours to end, or cancel one:")
	for _, s := range e.Running {
		fmt.Fprintf(&b, "\n- %s, since %s", s.ID, s.Started.Format(time.TimeOnly))
		if s.State.Final() {
			b.WriteString(", ended, but processes that it left behind still run")
		}
		if s.Label != "" {
			fmt.Fprintf(&b, ": %q", s.Label)
		}
	}
	return b.String()
}

// Errors that callers tell apart. Their texts are for a model to read.
var (
	ErrUnsupported = errors.New("longcall cannot run commands on this system: it needs Linux or macOS")
	ErrClosed      = errors.New("longcall is stopping: nothing was started; try again in some seconds")
	ErrOutputGone  = errors.New("the output was removed to make room for that of later commands; how the command ended is still known")
	ErrNoOutput    = errors.New("the command never ran, and so there is no output")
	ErrEnded       = errors.New("the command has ended: nothing was typed")
)
