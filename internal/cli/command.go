package cli

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/config"
)

// exitCode is the exit code of a command of the shell; none if it is no command or
// has none.
func exitCode(r *call.Record) (code int, ok bool) {
	text, is := strings.CutPrefix(r.End.Text, "exit ")
	if !is || r.Server != config.ShellServer || r.End.Outcome != call.Completed {
		return 0, false
	}
	code, err := strconv.Atoi(text)
	return code, err == nil
}

// recordWords is outcomeWords with what the shell says of how a command or a batch
// ended: an exit code, a signal, or whether all commands succeeded (D13).
func recordWords(r *call.Record) string {
	if r.Server != config.ShellServer || r.End.Outcome != call.Completed {
		return outcomeWords(r.End)
	}
	state, _, _ := strings.Cut(r.End.Text, ":")
	if state = clean(state); state == "" {
		return outcomeWords(r.End)
	}
	return "completed, " + state
}

// recordColor is outcomeColor, but that a command which exited with another code
// than 0 is not shown as a success.
func recordColor(r *call.Record) string {
	if code, ok := exitCode(r); ok && code != 0 && !r.End.ToolError {
		return "33"
	}
	return outcomeColor(r.End)
}

// toolWords is the tool of a call, and of a batch's command the batch.
func toolWords(r *call.Record) string {
	s := clean(r.Server + "/" + r.Tool)
	if r.Parent != "" {
		s += fmt.Sprintf(" (%d of %s)", r.Index, shortID(r.Parent))
	}
	return s
}
