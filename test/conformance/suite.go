package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/test/peers"
)

// Scenarios are the suite's scenarios for the tasks extension.
var Scenarios = []string{
	"tasks-lifecycle", "tasks-capability-negotiation", "tasks-wire-fields", "tasks-request-state-removal", "tasks-mrtr-input",
	"tasks-request-headers", "tasks-dispatch-and-envelope", "tasks-status-notifications", "tasks-required-task-error", "tasks-mrtr-composition",
}

// Check is one check of a scenario.
type Check struct {
	ID      string
	Status  string // SUCCESS, FAILURE, SKIPPED, WARNING or INFO
	Error   string `json:"errorMessage"`
	Details json.RawMessage
}

// Outcome is how a scenario went.
type Outcome struct {
	Checks []Check
	Raw    string // the suite's record of it
}

// Passed says whether a scenario passed: it has checks, and none failed. The
// check that our messages fit the schema also passes when nothing was reached,
// so it counts only when it fails.
func (o Outcome) Passed() bool { return len(o.Failures()) == 0 }

// Failures lists what did not pass.
func (o Outcome) Failures() (out []string) {
	seen := false
	for _, c := range o.Checks {
		seen = seen || c.ID != "wire-schema-valid"
		if c.Status == "FAILURE" || c.Status == "WARNING" {
			out = append(out, fmt.Sprintf("%s: %s: %s", c.Status, c.ID, c.Error))
		}
	}
	if !seen {
		out = append(out, "nothing was checked")
	}
	return out
}

func source() string {
	_, file, _, ok := runtime.Caller(0)
	if !ok || !filepath.IsAbs(file) {
		panic("the tests must be built without -trimpath")
	}
	return filepath.Join(filepath.Dir(file), "node")
}

// Install installs the suite, unless that was done before, and returns its folder.
func Install(t testing.TB) string {
	t.Helper()
	peers.NeedNode(t)
	src := source()
	files := []string{filepath.Join(src, "package.json"), filepath.Join(src, "package-lock.json")}
	return peers.Install(t, "conformance", files, func(ctx context.Context, dir string) error { return peers.NPM(ctx, dir, src) })
}

// Scenario runs one scenario for servers against an endpoint; more are arguments of the suite.
func Scenario(t testing.TB, dir, name, url string, more ...string) Outcome {
	t.Helper()
	o, _ := scenario(t, dir, nil, append([]string{"server", "--url", url, "--scenario", name, "--timeout", "40000"}, more...)...)
	return o
}

// suite are the first arguments of Node.js for the suite that is installed in a folder.
func suite(dir string) []string {
	return []string{"--import", filepath.Join(source(), "hook.mjs"), filepath.Join(dir, "node_modules", "@modelcontextprotocol", "conformance", "dist", "index.js")}
}

// scenario runs the suite and returns what it noted of its only scenario, and what it printed.
func scenario(t testing.TB, dir string, env []string, args ...string) (Outcome, string) {
	t.Helper()
	out := t.TempDir()
	args = slices.Concat(suite(dir), args, []string{"--output-dir", out})
	stdout, stderr, _ := peers.Output(t, 3*time.Minute, peers.Command{Path: "node", Args: args, Env: env})
	found, err := filepath.Glob(filepath.Join(out, "*", "checks.json"))
	if err != nil || len(found) != 1 {
		t.Fatalf("the suite left %v\n%s%s", found, stdout, stderr)
	}
	raw, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	o := Outcome{Raw: string(raw)}
	if err := json.Unmarshal(raw, &o.Checks); err != nil {
		t.Fatalf("the suite wrote %q: %v", strings.TrimSpace(o.Raw), err)
	}
	return o, stdout + stderr
}
