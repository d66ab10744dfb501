//go:build unix

package conformance_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/longcall/longcall/test/conformance"
	"github.com/longcall/longcall/test/peers"
)

func TestMain(m *testing.M) { os.Exit(peers.Main(m)) }

// results are the outcomes of all scenarios against an endpoint.
func results(t *testing.T, dir, url string) map[string]conformance.Outcome {
	t.Helper()
	var mu sync.Mutex
	all := map[string]conformance.Outcome{}
	t.Run("scenarios", func(t *testing.T) {
		for _, name := range conformance.Scenarios {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				o := conformance.Scenario(t, dir, name, url)
				for _, f := range o.Failures() {
					t.Error(f)
				}
				mu.Lock()
				defer mu.Unlock()
				all[name] = o
			})
		}
	})
	return all
}

// passed counts the scenarios that passed.
func passed(all map[string]conformance.Outcome) (n int) {
	for _, o := range all {
		if o.Passed() {
			n++
		}
	}
	return n
}

// verdicts are a scenario's checks and how each went.
func verdicts(o conformance.Outcome) (out []string) {
	for _, c := range o.Checks {
		out = append(out, c.ID+" "+c.Status)
	}
	return out
}

// TestTasks runs the scenarios against the server itself, which proves the
// fixture, and then through longcall: none may be lost, no check may differ, no
// tool may run once more, and no id of the server's tasks may get through.
func TestTasks(t *testing.T) {
	dir := conformance.Install(t)
	var direct map[string]conformance.Outcome
	var runs map[string]int
	t.Run("direct", func(t *testing.T) {
		up := conformance.NewServer(t)
		direct, runs = results(t, dir, up.URL), up.Runs()
		if n := len(conformance.Scenarios); passed(direct) != n {
			t.Fatalf("%d of %d scenarios pass against the fixture: mend it first", passed(direct), n)
		}
	})
	t.Run("longcall", func(t *testing.T) {
		up := conformance.NewServer(t)
		// Agents without the extension get what a task gives, unless the operator says
		// that the tool is one only: the suite wants one to be.
		// attach: never, since the suite makes the same call in several scenarios,
		// leaves its task unread, and wants a run for each.
		gw := peers.StartLongcall(t, fmt.Sprintf("mcpServers: {tasks: {url: %q, attach: never, tools: {failing_job: {hand_off: task}}}}\n", up.URL))
		through := results(t, dir, gw.URL("tasks"))
		t.Logf("scenarios passed: %d direct, %d through longcall", passed(direct), passed(through))
		for name, o := range through {
			if d, l := verdicts(direct[name]), verdicts(o); !slices.Equal(d, l) {
				t.Errorf("%s: the checks differ:\ndirect   %s\nlongcall %s", name, d, l)
			}
			if strings.Contains(o.Raw, conformance.TaskPrefix) {
				t.Errorf("%s: an id of the server's own tasks got through: %s", name, o.Raw)
			}
		}
		if got := up.Runs(); !maps.Equal(got, runs) {
			t.Errorf("the tools ran %v times, and without longcall %v", got, runs)
		}
		gw.Until(t, "has cancelled all tasks", func(context.Context) bool { return up.Open() == 0 })
	})
}
