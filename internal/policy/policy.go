// Package policy decides what a call may do and what is kept of it, as pure values.
package policy

import (
	"cmp"
	"fmt"
	"time"

	"github.com/longcall/longcall/internal/call"
)

// Relay is how events reach an agent.
type Relay string

// Live sends them as they come; Buffered is the kill switch, one JSON body at
// the end.
const (
	Live     Relay = "live"
	Buffered Relay = "buffered"
)

// OnDisconnect says what a gone agent means for its call (I7).
type OnDisconnect string

// Auto is what the agent's era says: Detach with sessions, Cancel without
// (SPEC §2.3). Cancel comes after the grace.
const (
	Auto   OnDisconnect = "auto"
	Cancel OnDisconnect = "cancel"
	Detach OnDisconnect = "detach"
)

// HandOff says whether a call that takes longer than its agent's patience is
// handed off, as a task or as a handle; HandOffOff keeps the agent waiting, and
// HandOffTask refuses an agent that knows no tasks.
type HandOff string

// The ways.
const (
	HandOffAuto HandOff = "auto"
	HandOffOff  HandOff = "off"
	HandOffTask HandOff = "task"
)

// Attach says when a request takes over an equal call (SPEC §3.7); see
// call.Attach.
type Attach string

// The rules.
const (
	AttachAuto        Attach = "auto" // by the tool's own annotation, see Decision.AutoAttach
	AttachUndelivered Attach = "undelivered"
	AttachAlways      Attach = "always"
	AttachNever       Attach = "never"
)

// Rules are what the operator said. The zero value allows everything without
// limits. Nobody may change rules that are in use: a reload makes new ones.
type Rules struct {
	Limits       call.Limits
	Relay        Relay        // empty means Live
	OnDisconnect OnDisconnect // empty means Auto
	Grace        time.Duration
	HandOff      HandOff           // empty means HandOffAuto
	Attach       Attach            // empty means AttachUndelivered
	Servers      map[string]Server // by configured name
}

// Server is what is said about one server, and about its tools by their own
// names there.
type Server struct {
	Overrides
	Key        string // where the operator says it; empty means mcpServers.NAME
	PerSession bool   // see Decision
	Tools      map[string]Tool
}

// Tool is what is said about one tool.
type Tool struct {
	Overrides
	Deny bool
}

// Overrides replace what the level above says, field by field; nil and empty
// leave it. Zero behind a pointer means no limit.
type Overrides struct {
	Connect, FirstByte, Idle, Total, Answer *time.Duration
	Message, Call                           *int64
	Concurrent                              *int // of a server; a tool's is ignored

	Relay        Relay
	OnDisconnect OnDisconnect
	Grace        *time.Duration
	HandOff      HandOff
	Attach       Attach
}

// Decision is what holds for one call.
type Decision struct {
	// Denied, if not nil, says why the call must not run.
	Denied       *call.End
	Limits       call.Limits
	Relay        Relay
	OnDisconnect OnDisconnect // Cancel or Detach
	Grace        time.Duration
	HandOff      bool // it may be handed off
	TaskOnly     bool // only as a task: an agent without tasks is refused (SPEC §3.3)
	Attach       call.Attach
	// AutoAttach says that the operator trusts the tool's annotations: one that
	// says it is idempotent may be joined by all (call.AttachAlways).
	AutoAttach bool
	// AutoDisconnect says that nobody has said what OnDisconnect should be: it is
	// the stateless era's default, which a tool's annotations may change.
	AutoDisconnect bool
	// PerSession says that each agent's session has a connection of its own to
	// the server, so that equal calls of two sessions are not the same call.
	PerSession bool
}

// Admit decides about one call. tool is the server's own name of the tool;
// modern is the era of the agent's request.
func (r *Rules) Admit(principal, server, tool string, modern bool) Decision {
	d := Decision{
		Limits: r.Limits, Relay: r.Relay, OnDisconnect: r.OnDisconnect, Grace: r.Grace,
		HandOff: r.HandOff != HandOffOff, TaskOnly: r.HandOff == HandOffTask, Attach: r.Attach.rule(), AutoAttach: r.Attach.auto(),
	}
	if s, ok := r.Servers[server]; ok {
		d.apply(&s.Overrides)
		d.PerSession = s.PerSession
		if s.Concurrent != nil {
			d.Limits.PerServer = *s.Concurrent
		}
		if t, ok := s.Tools[tool]; ok {
			d.apply(&t.Overrides)
			if t.Deny {
				key := cmp.Or(s.Key, "mcpServers."+server)
				d.Denied = &call.End{Outcome: call.Denied, By: "policy", Text: fmt.Sprintf(
					"Not started: the operator of this gateway does not allow %q of %q (%s.tools.%[1]s.deny). Nothing was sent. Do not call it again; use another tool, or ask the operator.", tool, server, key)}
			}
		}
	}
	if d.Relay == "" {
		d.Relay = Live
	}
	if d.OnDisconnect == "" || d.OnDisconnect == Auto {
		d.OnDisconnect, d.AutoDisconnect = Detach, modern
		if modern {
			d.OnDisconnect = Cancel
		}
	}
	return d
}

func (d *Decision) apply(o *Overrides) {
	set(&d.Limits.Connect, o.Connect)
	set(&d.Limits.FirstByte, o.FirstByte)
	set(&d.Limits.Idle, o.Idle)
	set(&d.Limits.Total, o.Total)
	set(&d.Limits.Answer, o.Answer)
	set(&d.Limits.Message, o.Message)
	set(&d.Limits.Call, o.Call)
	set(&d.Grace, o.Grace)
	if o.Relay != "" {
		d.Relay = o.Relay
	}
	if o.OnDisconnect != "" {
		d.OnDisconnect = o.OnDisconnect
	}
	if o.HandOff != "" {
		d.HandOff, d.TaskOnly = o.HandOff != HandOffOff, o.HandOff == HandOffTask
	}
	if o.Attach != "" {
		d.Attach, d.AutoAttach = o.Attach.rule(), o.Attach.auto()
	}
}

func (a Attach) auto() bool { return a == AttachAuto }

func (a Attach) rule() call.Attach {
	switch a {
	case AttachAlways:
		return call.AttachAlways
	case AttachNever:
		return call.AttachNever
	}
	return call.AttachUndelivered
}

func set[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}
