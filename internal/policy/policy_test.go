package policy

import (
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
)

func ptr[T any](v T) *T { return &v }

func TestAdmit(t *testing.T) {
	rules := &Rules{
		Limits: call.Limits{Connect: 10, FirstByte: 20, Idle: 30, Total: 40, Message: 50, Call: 60, PerServer: 70, PerPrincipal: 80},
		Grace:  15 * time.Second,
		Attach: AttachAlways,
		Servers: map[string]Server{
			"s": {
				Overrides: Overrides{Idle: ptr(time.Duration(31)), Total: ptr(time.Duration(0)), Message: ptr(int64(51)), Concurrent: ptr(71), Relay: Buffered, OnDisconnect: Detach, HandOff: HandOffOff, Attach: AttachNever},
				Tools: map[string]Tool{
					"t": {Overrides: Overrides{Total: ptr(time.Duration(42)), Message: ptr(int64(0)), Concurrent: ptr(1), Relay: Live, OnDisconnect: Cancel, Grace: ptr(time.Duration(0)), HandOff: HandOffAuto, Attach: AttachUndelivered}},
					"d": {Overrides: Overrides{OnDisconnect: Auto, Attach: AttachAlways}, Deny: true},
				},
			},
			"shell": {Key: "shell", Tools: map[string]Tool{"d": {Deny: true}}},
			"p":     {PerSession: true, Overrides: Overrides{Attach: AttachAuto}},
		},
	}
	base := rules.Limits
	server := base
	server.Idle, server.Total, server.Message, server.PerServer = 31, 0, 51, 71
	tool := server
	tool.Total, tool.Message = 42, 0
	tests := []struct {
		name, server, tool string
		modern             bool
		want               Decision
	}{
		{"unknown server, legacy", "x", "t", false, Decision{Limits: base, Relay: Live, OnDisconnect: Detach, Grace: 15 * time.Second, HandOff: true, Attach: call.AttachAlways}},
		{"unknown server, modern", "x", "t", true, Decision{Limits: base, Relay: Live, OnDisconnect: Cancel, AutoDisconnect: true, Grace: 15 * time.Second, HandOff: true, Attach: call.AttachAlways}},
		{"a connection for each session", "p", "t", false, Decision{Limits: base, Relay: Live, OnDisconnect: Detach, Grace: 15 * time.Second, HandOff: true, AutoAttach: true, PerSession: true}},
		{"server", "s", "x", true, Decision{Limits: server, Relay: Buffered, OnDisconnect: Detach, Grace: 15 * time.Second, Attach: call.AttachNever}},
		{"tool over server", "s", "t", false, Decision{Limits: tool, Relay: Live, OnDisconnect: Cancel, HandOff: true}},
		{"auto of a tool over its server", "s", "d", true, Decision{Limits: server, Relay: Buffered, OnDisconnect: Cancel, AutoDisconnect: true, Grace: 15 * time.Second, Attach: call.AttachAlways}},
		{"auto of a tool over its server, legacy", "s", "d", false, Decision{Limits: server, Relay: Buffered, OnDisconnect: Detach, Grace: 15 * time.Second, Attach: call.AttachAlways}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := rules.Admit("p", tt.server, tt.tool, tt.modern)
			if denied := tt.tool == "d"; (got.Denied != nil) != denied {
				t.Fatalf("denied: %+v", got.Denied)
			}
			if d := got.Denied; d != nil {
				if d.Outcome != call.Denied || d.By != "policy" || !strings.Contains(d.Text, "Not started") || !strings.Contains(d.Text, "mcpServers.s.tools.d.deny") {
					t.Errorf("denied: %+v", d)
				}
				got.Denied = nil
			}
			if got != tt.want {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
	if d := rules.Admit("p", "shell", "d", true).Denied; d == nil || !strings.Contains(d.Text, "(shell.tools.d.deny)") {
		t.Errorf("a tool of the shell: %+v", d)
	}
	if got := (&Rules{}).Admit("p", "s", "t", false); got != (Decision{Relay: Live, OnDisconnect: Detach, HandOff: true}) {
		t.Errorf("zero rules: %+v", got)
	}
}

func BenchmarkAdmit(b *testing.B) {
	r := &Rules{Servers: map[string]Server{"s": {Tools: map[string]Tool{"t": {}}}}}
	b.ReportAllocs()
	for b.Loop() {
		r.Admit("p", "s", "t", true)
	}
}
