package cli

import (
	"testing"

	"github.com/longcall/longcall/internal/call"
)

func TestCommandWords(t *testing.T) {
	for _, c := range []struct {
		server, tool string
		end          call.End
		words, color string
		code         int
	}{
		{"shell", "exec_command", call.End{Outcome: call.Completed, Text: "exit 0"}, "completed, exit 0", "32", 0},
		{"shell", "exec_command", call.End{Outcome: call.Completed, Text: "exit 7"}, "completed, exit 7", "33", 7},
		{"shell", "exec_command", call.End{Outcome: call.Completed, Text: "exit 7", ToolError: true}, "completed, exit 7", "31", 7},
		{"shell", "exec_command", call.End{Outcome: call.Completed, Text: "ended by SIGKILL", ToolError: true}, "completed, ended by SIGKILL", "31", -1},
		{"shell", "run_commands_parallel", call.End{Outcome: call.Completed, Text: "partial: 1 of 2 commands exited 0", ToolError: true}, "completed, partial", "31", -1},
		{"shell", "exec_command", call.End{}, "running", "36", -1},
		{"shell", "exec_command", call.End{Outcome: call.Interrupted, Text: "exit 0"}, "interrupted, outcome unknown", "31", -1},
		{"shell", "exec_command", call.End{Outcome: call.Cancelled, By: "agent"}, "cancelled by agent", "33", -1},
		{"other", "t", call.End{Outcome: call.Completed, Text: "exit 7"}, "completed", "32", -1},
	} {
		r := &call.Record{End: c.end}
		r.Server, r.Tool = c.server, c.tool
		code, ok := exitCode(r)
		if !ok {
			code = -1
		}
		if words, color := recordWords(r), recordColor(r); words != c.words || color != c.color || code != c.code {
			t.Errorf("%+v: %q in %s, exit code %d", c.end, words, color, code)
		}
	}
	r := &call.Record{}
	r.Server, r.Tool, r.Parent, r.Index = "shell", "exec_command", "c_abcdefghijklmnop", 2
	if got := toolWords(r); got != "shell/exec_command (2 of c_abcdefghij)" {
		t.Error(got)
	}
	if v := newCallJSON(&call.Record{Spec: call.Spec{Server: "shell"}, End: call.End{Outcome: call.Completed, Text: "exit 0"}}, nil); v.ExitCode == nil || *v.ExitCode != 0 {
		t.Errorf("%+v", v)
	}
}
