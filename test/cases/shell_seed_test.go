//go:build unix

package cases_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/test/peers"
	"github.com/longcall/longcall/test/wire"
)

// sdkAgent is an agent on the official Go SDK, with an idle limit: a process that
// makes one call after another.
type sdkAgent struct {
	t   *testing.T
	in  io.WriteCloser
	out *bufio.Scanner
}

// sdkSaid is what became of a call of it.
type sdkSaid struct {
	Seconds    float64
	Cancelled  string
	Error      string
	IsError    bool `json:"is_error"`
	Text       string
	Structured json.RawMessage
	Heard      int
	Silence    float64
}

func (m *machine) sdkAgent(version string, idle time.Duration) *sdkAgent {
	m.t.Helper()
	bin := filepath.Join(peers.Ensure(m.t, peers.Go), "agent")
	cmd := m.command(nil)
	cmd.Path, cmd.Args = bin, []string{bin, "--url", m.serving().URL + "/mcp/shell", "--version", version, "--idle", idle.String(), "--bearer", m.token()}
	a := &sdkAgent{t: m.t}
	var err error
	if a.in, err = cmd.StdinPipe(); err != nil {
		m.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	errs := &lines{}
	cmd.Stderr = errs
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	a.out = bufio.NewScanner(out)
	a.out.Buffer(nil, 1<<20)
	m.t.Cleanup(func() {
		a.in.Close()
		if err := cmd.Wait(); err != nil {
			m.t.Errorf("the agent ended with %v: %s", err, errs)
		}
	})
	return a
}

// call makes a call and says what became of it; giveUp is when the agent's user
// cancels it, or 0.
func (a *sdkAgent) call(tool, args string, giveUp time.Duration) (s sdkSaid, r ran) {
	a.t.Helper()
	fmt.Fprintf(a.in, `{"tool":%q,"args":%s,"give_up_ms":%d}`+"\n", tool, args, giveUp.Milliseconds())
	if !a.out.Scan() {
		a.t.Fatalf("the agent ended: %v", a.out.Err())
	}
	if err := json.Unmarshal(a.out.Bytes(), &s); err != nil {
		a.t.Fatalf("%v: %s", err, a.out.Text())
	}
	if s.Structured != nil {
		if err := json.Unmarshal(s.Structured, &r); err != nil {
			a.t.Fatalf("%v: %s", err, s.Structured)
		}
	}
	r.Msg = wire.Msg{JSON: a.out.Text()}
	return s, r
}

// suite is a test suite that must not run twice at once: it holds a lock, works
// without a word, and leaves a line for each run.
const suite = `if ! mkdir lock 2>/dev/null; then echo "error: another run holds the lock" >&2; exit 75; fi
trap 'rmdir lock' EXIT
echo run >> runs
sleep 12
echo "41 passed, 1 failed"
exit 3`

// The seed incident: a host with an idle limit (60 s; here all is at a tenth), and
// a silent suite that takes four times as long. The agent cancels and calls again:
// there is one process, both answers agree, nobody meets the lock. Later waits are
// never cancelled for silence (O1, O7).
func TestShellSeedIncident(t *testing.T) {
	t.Parallel()
	for _, version := range eras {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			a := m.sdkAgent(version, 6*time.Second)
			args := command(suite, `,"yield_ms":12000`)
			first, _ := a.call("exec_command", args, 1500*time.Millisecond)
			if first.Cancelled == "" {
				t.Fatalf("it was not cancelled: %+v", first)
			}
			again, r := a.call("exec_command", command(suite, ""), 0)
			if again.Cancelled != "" || again.IsError || r.State != "running" || !r.Joined || strings.Contains(again.Text, "lock") {
				t.Fatalf("called again: %+v", again)
			}
			one, waited := a.call("await_call", `{"ids":["`+r.CallID+`"]}`, 0)
			if one.Cancelled != "" || one.IsError {
				t.Fatalf("the wait: %+v", one)
			}
			end := waited.inner(t, 0)
			// The same suite again, now that its end was told, is a new run: the other answer.
			other := m.agent(wire.Modern, "/mcp/shell")
			two := await(t, other, r.CallID)
			if end.exit() != 3 || two.exit() != 3 || end.Output != "41 passed, 1 failed\n" || two.Output != end.Output || two.CallID != end.CallID {
				t.Errorf("the answers: %s\n%s", waited.JSON, two.JSON)
			}
			if n := m.lines("runs"); n != 1 {
				t.Errorf("it ran %d times", n)
			}
			if _, err := os.Stat(filepath.Join(m.root, "lock")); err == nil {
				t.Error("the lock is still held")
			}
			if one.Silence > 6 || one.Heard == 0 {
				t.Errorf("the longest silence was %.1f s, %d signs of life", one.Silence, one.Heard)
			}
		})
	}
}

// The other incident: an agent that would have slept. Whatever it is told, there is
// something better to call than a sleep, named in the answer; followed to the
// letter, that is two calls for a suite of any length, and none of them polls (O8,
// O9).
func TestShellNothingToPoll(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	a := m.sdkAgent(wire.Legacy, 6*time.Second)
	start := time.Now()
	calls := 0
	said, r := a.call("exec_command", command(suite, ""), 0)
	for calls = 1; r.State == "running" || r.WaitedOut; calls++ {
		if calls > 5 {
			t.Fatalf("it polls: %s", said.Text)
		}
		if !strings.Contains(r.Next, "await_call") || !strings.Contains(said.Text, "sleep") || !strings.Contains(said.Text, "not") {
			t.Fatalf("what to do next is not said: %q\n%s", r.Next, said.Text)
		}
		// What the answer names is called as it stands there.
		_, rest, ok := strings.Cut(r.Next, `{"ids":`)
		ids, _, found := strings.Cut(rest, "}")
		if !ok || !found {
			ids = `["` + r.CallID + `"]`
		}
		said, r = a.call("await_call", `{"ids":`+ids+"}", 0)
		if said.Cancelled != "" || said.IsError || said.Error != "" {
			t.Fatalf("%+v", said)
		}
	}
	end := r.inner(t, 0)
	if end.exit() != 3 || calls != 2 || m.lines("runs") != 1 {
		t.Errorf("%d calls; %s; it ran %d times", calls, r.JSON, m.lines("runs"))
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("the end was known after %s; the suite takes 12", took)
	}
}
