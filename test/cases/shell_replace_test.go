//go:build unix

package cases_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/longcall/longcall/test/wire"
)

// serve --replace hands commands over: they go on, an agent that waited for one in
// the old process is told so, and the new process has its end, can stop what runs,
// and joins the same command.
func TestShellReplace(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.agent(wire.Modern, "/mcp/shell")
	const script = "echo begun; touch $0.runs; while [ ! -e go ]; do sleep 0.02; done; echo done; exit 5"
	kept := ask(t, c, "exec_command", command("sh -c '"+script+"' a", `,"yield_ms":0`))
	stuck := ask(t, c, "exec_command", command("sh -c 'touch b.runs; exec sleep 600'", `,"yield_ms":0`))
	m.until("both run", func() bool { return there(m, "a.runs") && there(m, "b.runs") })
	waits := c.Start(wire.Call{Tool: "exec_command", Args: command("sh -c 'touch c.runs; sleep 600'", `,"yield_ms":12000`)})
	m.until("the third runs", func() bool { return there(m, "c.runs") })

	old := m.end
	m.start("--replace")
	if left := read(t, waits.Response(sLimit)); left.IsError || left.State != "running" || left.CallID == "" {
		t.Errorf("whoever waited in the old process was told: %s", left.JSON)
	}
	select {
	case err := <-old:
		if err != nil {
			t.Errorf("the old one ended with %v", err)
		}
	case <-time.After(sLimit):
		t.Fatal("the old one does not end, though nothing but commands ran")
	}
	c = m.agent(wire.Modern, "/mcp/shell")
	if again := ask(t, c, "exec_command", command("sh -c '"+script+"' a", `,"yield_ms":0`)); again.CallID != kept.CallID || !again.Joined {
		t.Errorf("the same command: %s", again.JSON)
	}
	if err := os.WriteFile(filepath.Join(m.root, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	end := await(t, c, kept.CallID)
	if end.exit() != 5 || end.Output != "begun\ndone\n" {
		t.Errorf("its end: %s", end.JSON)
	}
	if stopped := ask(t, c, "cancel_call", `{"id":"`+stuck.CallID+`"}`); stopped.IsError {
		t.Errorf("cancel: %s", stopped.JSON)
	}
	if end := await(t, c, stuck.CallID); end.State != "stopped" || end.Outcome != "cancelled" {
		t.Errorf("the end of what was cancelled: %s", end.JSON)
	}
}

func there(m *machine, name string) bool {
	_, err := os.Stat(filepath.Join(m.root, name))
	return err == nil
}
