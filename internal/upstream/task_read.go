package upstream

import (
	"bytes"
	"errors"
	"strconv"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// taskState is what a server says about a task, in either generation.
type taskState struct {
	id      string
	status  string
	message string
	every   time.Duration // between two questions, bounded; 0 if the server leaves it to us
	// Raw JSON, of the extension only.
	result, failure, requests []byte
}

// over says whether the status is one that never changes.
func (s *taskState) over() bool {
	return s.status == taskCompleted || s.status == taskFailed || s.status == taskCancelled
}

var errNoStatus = errors.New("the answer does not say how the task stands")

// readTask reads a Task or DetailedTask. The two generations name the times
// differently, and the published text of both is at odds about whether the task
// stands in a member "task" (SPEC §3.2), so all of these are taken. The raw parts
// point into object.
func readTask(object []byte) (s taskState, err error) {
	members, err := mcp.Members(object)
	if err != nil {
		return s, err
	}
	var inner []byte
	for _, m := range members {
		switch m.Name {
		case "taskId":
			s.id, _ = mcp.String(m.Value)
		case "status":
			s.status, _ = mcp.String(m.Value)
		case "statusMessage":
			s.message, _ = mcp.String(m.Value)
		case "pollIntervalMs":
			s.every = pollInterval(m.Value)
		case "pollInterval":
			if s.every == 0 {
				s.every = pollInterval(m.Value)
			}
		case "result":
			s.result = m.Value
		case "error":
			s.failure = m.Value
		case "inputRequests":
			s.requests = m.Value
		case "task":
			inner = m.Value
		}
	}
	if s.status == "" && len(inner) > 0 && inner[0] == '{' {
		if mcp.Value(inner, "task") != nil {
			return s, errNoStatus
		}
		return readTask(inner)
	}
	if s.status == "" {
		return s, errNoStatus
	}
	return s, nil
}

// pollInterval reads milliseconds, and bounds them; 0 if they are none.
func pollInterval(raw []byte) time.Duration {
	ms, err := strconv.ParseFloat(string(raw), 64)
	switch {
	case err != nil && !errors.Is(err, strconv.ErrRange), ms < 0:
		return 0
	case ms >= float64(pollMax/time.Millisecond):
		return pollMax
	}
	return max(time.Duration(ms*float64(time.Millisecond)), pollMin)
}

// pollEvery is how long to wait before the next question: as the server asked,
// or else ever longer with the task's age, from 1 s on once it is clear that it
// is no matter of moments; but always often enough that a server which lives
// shows it within the limit for silence.
func pollEvery(said, age, idle time.Duration) time.Duration {
	d := said
	switch {
	case d > 0:
	case age < 2*time.Second:
		d = age / 2
	case age < 10*time.Second:
		d = time.Second
	case age < time.Minute:
		d = 2 * time.Second
	case age < 10*time.Minute:
		d = 5 * time.Second
	default:
		d = 15 * time.Second
	}
	if idle > 0 {
		d = min(d, idle/3)
	}
	return max(d, pollMin)
}

// createdTask reads a response that may have made a task of the call; nil if it
// has not. A task that cannot be asked about is an error.
func createdTask(m *mcp.Message, modern bool) (*taskState, error) {
	if !m.Result.Ok() {
		return nil, nil
	}
	if kind, _ := mcp.String(m.ResultType.Of(m.Raw)); modern && kind != "task" {
		return nil, nil
	}
	result := m.Result.Of(m.Raw)
	if !modern {
		inner := mcp.Value(result, "task")
		if inner == nil || mcp.Value(inner, "taskId") == nil {
			return nil, nil // it did not make one, which it may
		}
		result = inner
	}
	s, err := readTask(bytes.Clone(result))
	if err == nil && (s.id == "" || len(s.id) > 1<<10) {
		err = errors.New("it has no usable taskId")
	}
	return &s, err
}

// unusableTask is the answer for a task that cannot be asked about.
func unusableTask(err error) call.Answer {
	return interrupted("the tool server made a task of the call that cannot be followed: %v.", err)
}
