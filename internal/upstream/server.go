// Package upstream is the tool servers' side: it carries calls to them and brings back what they say.
package upstream

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// Server is one configured tool server. Exactly one of URL and Command is set.
type Server struct {
	Name    string
	URL     string      // over HTTP
	Headers http.Header // sent with every request, such as our credentials there
	Command string      // stdio
	Args    []string
	Env     map[string]string // added to the allow-listed part of our own environment
	Cwd     string

	Era   string // "auto", "modern", "legacy", or "sse": HTTP with SSE of 2024-11-05
	Share string // who shares a connection: "principal", "server" or "session"

	// Unasked are client capabilities that the server is not told of, whatever an
	// agent declares: elicitation, sampling, roots. Extensions are those of the
	// protocol whose settings it is told, if an agent has any.
	Unasked    []string
	Extensions map[string][]string // by name, the methods that are passed on: see mcp.Allows

	// Limits are those of requests that are no calls. Message is the largest
	// that any call of the server has; 0 means 16 MiB, less than 0 none.
	Limits call.Limits
	// PingEvery is the silence after which a server with a running call must
	// prove that it lives. 0 means 30 s.
	PingEvery time.Duration
	// RestartMin and RestartMax bound the back-off between two starts of a
	// process. 0 means 500 ms and 30 s.
	RestartMin, RestartMax time.Duration
}

// Hooks tell the outside about a connection. They must not block.
type Hooks struct {
	Introduced  func(s intro)              // a session was opened, a process started, or a stateless server asked
	ListChanged func(kinds []mcp.ListKind) // the server says that these lists changed
	Updated     func(uri string)           // it says that a resource changed
	Apart       func(m *mcp.Message)       // another notification came that is of no call
	pages       *pageBoard
	Roots       func(reply func([]byte)) // it asks for roots outside of a call: reply gets the raw result, at once or later
	Parted      func()                   // it is gone, or may be, and comes back at the next use
	Renewed     func()                   // the connection was lost for a time: what changed meanwhile was not heard
	Reconnected func(result string)      // "session", "resumed", "lost": an upstream connection was renewed
	Restarted   func()                   // a process was started again
	Log         *slog.Logger
	// Capabilities are what the agents can be asked whose calls come here, as a
	// raw object: it is declared to a server with sessions when one begins; empty
	// for nothing.
	Capabilities string
	// Key seals what is kept of a call over a restart; it has to be the same after it.
	Key [32]byte
	// LogLevel is the level of log messages that goes with a request; empty if
	// none does.
	LogLevel func(s *call.Spec) string
	// TaskSupport is what the server's list says of a tool's execution as a
	// task: "required", "optional", or anything else. It may wait for the list.
	TaskSupport func(ctx context.Context, tool string) string
	// Params is which arguments of a tool are mirrored into headers, as the
	// server's list says. It may wait for the list; with again, for a new one.
	Params func(ctx context.Context, tool string, again bool) []mcp.HeaderParam
}

func (h *Hooks) params(ctx context.Context, tool string, again bool) []mcp.HeaderParam {
	if h.Params == nil {
		return nil
	}
	return h.Params(ctx, tool, again)
}

func (h *Hooks) introduced(s intro) {
	if h.Introduced != nil {
		h.Introduced(s)
	}
}

func (h *Hooks) parted() {
	if h.Parted != nil {
		h.Parted()
	}
}

func (h *Hooks) logLevel(s *call.Spec) string {
	if h.LogLevel == nil {
		return ""
	}
	return h.LogLevel(s)
}

func (h *Hooks) renewed() {
	if h.Renewed != nil {
		h.Renewed()
	}
}

// told passes on a notification that belongs to the connection and to no call;
// false if it is none.
func (h *Hooks) told(m *mcp.Message) bool {
	if kinds := mcp.ListsChanged(m.Method); kinds != nil {
		if h.ListChanged != nil {
			h.ListChanged(kinds)
		}
		return true
	}
	if m.Method != mcp.MethodUpdated {
		return false
	}
	if uri, ok := mcp.String(m.URI.Of(m.Raw)); ok && h.Updated != nil {
		h.Updated(uri)
	}
	return true
}

// apart passes on a notification that is of no call, and that told knows nothing of.
func (h *Hooks) apart(m *mcp.Message) {
	if h.Apart != nil {
		h.Apart(m)
	}
}

// conn is one connection to a tool server: a session, a process, or nothing
// but an address where the server is stateless.
type conn interface {
	// call carries one call; see call.Runner.Run.
	call(ctx context.Context, x *call.Exec) call.Answer
	// meet connects, if need be, and says how the server introduced itself.
	meet(ctx context.Context) (intro, error)
	// request sends a short request and returns the raw result. A JSON-RPC
	// error is an *mcp.RPCError.
	request(ctx context.Context, method string, params []byte) (result []byte, err error)
	// listen opens a subscriptions/listen of the stateless era and gives hear the
	// notifications that come on it, until it ends: with ctx, or with a reason,
	// which is an *mcp.RPCError if the server refused it.
	listen(ctx context.Context, params []byte, hear func(m *mcp.Message)) error
	// notify sends a notification to the session or process that there is, in the
	// background. A stateless server gets only what is not of a session.
	notify(m *note)
	// modern says which era the server speaks, after a request or call worked.
	modern() bool
	// mirrors says whether arguments are mirrored into headers (SPEC §1.3), after
	// a request or call worked.
	mirrors() bool
	// close ends the connection in an orderly way and waits, bounded by ctx.
	close(ctx context.Context)
}

// The functions that make answers are not inlined: their parts would lie on the
// stack of every parked call.

// failed is the answer for a call that is known not to have run.
//
//go:noinline
func failed(format string, args ...any) call.Answer {
	return call.Answer{End: call.End{Outcome: call.Failed, Text: fmt.Sprintf(format, args...)}}
}

// interrupted is the answer for a call whose outcome nobody knows.
//
//go:noinline
func interrupted(format string, args ...any) call.Answer {
	return call.Answer{End: call.End{
		Outcome: call.Interrupted,
		Text:    unknownOutcome + fmt.Sprintf(format, args...) + checkFirst,
	}}
}

const (
	unknownOutcome = "Outcome unknown: "
	checkFirst     = " The call may have taken effect and was not sent again: check before you call it again."
)

// timedOut is the answer for a call that hit one of our time limits.
func timedOut(limit string, after time.Duration, what string) call.Answer {
	return call.Answer{End: *limitEnd(limit, after, what)}
}

func limitEnd(limit string, after time.Duration, what string) *call.End {
	return &call.End{
		Outcome: call.TimedOut, Limit: limit,
		Text: fmt.Sprintf("Stopped after %s: %s (limits.%s).", after, what, limit),
	}
}

// codeCancelled ends a request that was cancelled; some servers of the era with
// sessions send it (SPEC §5.6).
const codeCancelled = -32800

// cancelledThere is the answer for a request that the server says was cancelled.
//
//go:noinline
func cancelledThere() call.Answer {
	return call.Answer{End: call.End{
		Outcome: call.Cancelled, By: "server",
		Text: "The tool server says that the call was cancelled there. It may have taken effect in part: check before you call it again.",
	}}
}

// tooLarge is the answer for a message over limits.message.
//
//go:noinline
func tooLarge(limit int64) call.Answer {
	return call.Answer{End: call.End{Outcome: call.Failed, Limit: "message_bytes", Text: fmt.Sprintf(
		"The tool server's answer is larger than %d bytes (limits.message), so longcall did not pass it on. The tool did run. Ask for less at once, or raise the limit.", limit)}}
}

// skipped is the note about a message over limits.message that is no answer.
func skipped(limit int64) string {
	return fmt.Sprintf("The tool server sent a message of more than %d bytes (limits.message) during the call. It was skipped; the call goes on.", limit)
}

// unfinished is the answer for a result that is none, of a kind that nobody here
// knows or that has no place where it came. It must never pass as an end.
func unfinished(kind string) call.Answer {
	return interrupted("the tool server did not finish but wants to go on with %q, which cannot be passed on here.", printable([]byte(kind)))
}
