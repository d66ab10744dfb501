//go:build unix

package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
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
	Said   string // what the suite printed, if it ran this scenario alone
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

// Scenario runs one scenario for servers against an endpoint; more are arguments of
// the suite.
func Scenario(t testing.TB, dir, name, url string, more ...string) Outcome {
	t.Helper()
	return one(t, dir, nil, append([]string{"server", "--url", url, "--scenario", name, "--timeout", "40000"}, more...)...)
}

// suite are the first arguments of Node.js for the suite that is installed in a folder.
func suite(dir string) []string {
	return []string{"--import", filepath.Join(source(), "hook.mjs"), filepath.Join(dir, "node_modules", "@modelcontextprotocol", "conformance", "dist", "index.js")}
}

// one runs the suite for one scenario.
func one(t testing.TB, dir string, env []string, args ...string) Outcome {
	t.Helper()
	all, said := run(t, dir, env, args...)
	for _, o := range all {
		if len(all) == 1 {
			o.Said = said
			return o
		}
	}
	t.Fatalf("the suite noted %d scenarios, not one\n%s", len(all), said)
	return Outcome{}
}

// run runs the suite and returns what it noted, by scenario, and what it printed.
func run(t testing.TB, dir string, env []string, args ...string) (all map[string]Outcome, said string) {
	t.Helper()
	out := t.TempDir()
	args = slices.Concat(suite(dir), args, []string{"--output-dir", out})
	stdout, stderr, _ := peers.Output(t, 3*time.Minute, peers.Command{Path: "node", Args: args, Env: env})
	found, err := filepath.Glob(filepath.Join(out, "*", "checks.json"))
	if err != nil || len(found) == 0 {
		t.Fatalf("the suite noted nothing\n%s%s", stdout, stderr)
	}
	all = map[string]Outcome{}
	for _, file := range found {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		o := Outcome{Raw: string(raw)}
		if err := json.Unmarshal(raw, &o.Checks); err != nil {
			t.Fatalf("the suite wrote %q: %v", strings.TrimSpace(o.Raw), err)
		}
		all[named.ReplaceAllString(filepath.Base(filepath.Dir(file)), "$1")] = o
	}
	return all, stdout + stderr
}

// named is how the suite names a scenario's folder.
var named = regexp.MustCompile(`^(?:server-)?(.*)-\d{4}-\d\d-\d\dT[-\dZ]*$`)
