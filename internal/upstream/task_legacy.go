package upstream

import (
	"context"
	"strconv"
	"time"

	"github.com/longcall/longcall/internal/mcp"
)

// What a server of 2025-11-25 says about calling one of its tools as a task.
const (
	taskRequired = "required"
	taskOptional = "optional"
)

// What a server of 2025-11-25 says of calls as tasks. The numbers are stored.
const (
	tasksCalled    = 1 // calls can be sent as tasks
	tasksCancelled = 2 // and such a task can be cancelled
)

// taskCapability reads an initialize result; 0 if calls cannot be sent as tasks.
// Only the revision 2025-11-25 has such tasks.
func taskCapability(result []byte) int {
	version, _ := mcp.String(mcp.Value(result, "protocolVersion"))
	tasks := mcp.Value(mcp.Value(result, "capabilities"), "tasks")
	is := func(raw []byte) bool { return raw != nil && string(raw) != "null" && string(raw) != "false" }
	switch {
	case version != mcp.V20251125, !is(mcp.Value(mcp.Value(mcp.Value(tasks, "requests"), "tools"), "call")):
		return 0
	case is(mcp.Value(tasks, "cancel")):
		return tasksCancelled
	}
	return tasksCalled
}

// legacyTask is the task support of a tool, if the call is to be sent as a task:
// where the tool must have it so, and where it may and we gain by it, because a
// later process can take the call up again. A task that cannot be
// cancelled is no gain.
func (h *Hooks) legacyTask(ctx context.Context, tool string, gain bool) string {
	if h.TaskSupport == nil {
		return ""
	}
	switch s := h.TaskSupport(ctx, tool); {
	case s == taskRequired, s == taskOptional && gain:
		return s
	}
	return ""
}

// taskTTL is how long the server is to keep a task: longer than the call may
// take, so that a restart of ours in between finds it. 0 means no task.
func taskTTL(support string, total time.Duration) time.Duration {
	switch {
	case support == "":
		return 0
	case total > 0:
		return total + time.Hour
	}
	return 7 * 24 * time.Hour
}

// reached is the highest value of progress so far.
func reached(so float64, m *mcp.Message) float64 {
	v, err := strconv.ParseFloat(string(m.Progress.Of(m.Raw)), 64)
	if err != nil {
		return so
	}
	return max(so, v)
}
