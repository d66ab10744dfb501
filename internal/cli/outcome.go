package cli

import (
	"strconv"

	"github.com/longcall/longcall/internal/call"
)

// outcomeCode is the exit code of a command whose call ended so.
func outcomeCode(e call.End) int {
	switch e.Outcome {
	case call.Completed:
		if e.ToolError {
			return exitToolError
		}
		return exitOK
	case call.Failed:
		switch {
		case e.Code != 0:
			return exitRPC
		case e.Limit == "message_bytes", e.Limit == "call_bytes":
			return exitToolError
		}
		return exitUnreachable
	case call.Denied:
		return exitDenied
	case call.Cancelled:
		return exitCancelled
	case call.TimedOut:
		return exitTimedOut
	}
	return exitInterrupted
}

// outcomeWords says how a call ended. What has not ended is running, and what
// nobody knows is not called a success.
func outcomeWords(e call.End) string {
	switch e.Outcome {
	case call.Running:
		return "running"
	case call.Completed:
		if e.ToolError {
			return "completed, tool error"
		}
		return "completed"
	case call.Failed:
		switch {
		case e.Code != 0:
			return "failed, error " + strconv.Itoa(e.Code)
		case e.Limit != "":
			return "failed, limit " + e.Limit
		}
		return "failed"
	case call.Cancelled, call.Denied:
		s := string(e.Outcome)
		switch {
		case e.Limit != "":
			s += ", limit " + e.Limit
		case e.By != "":
			s += " by " + e.By
		}
		return s
	case call.TimedOut:
		return "timed out, limit " + e.Limit
	case call.Interrupted:
		return "interrupted, outcome unknown"
	}
	return clean(string(e.Outcome))
}

// outcomeColor is the colour of an outcome on a terminal.
func outcomeColor(e call.End) string {
	switch {
	case e.Outcome == call.Running:
		return "36"
	case e.Outcome == call.Completed && !e.ToolError:
		return "32"
	case e.Outcome == call.Cancelled:
		return "33"
	}
	return "31"
}

// shortID is enough of an id to find its call by.
func shortID(id call.ID) string { return string(id[:min(len(id), 12)]) }
