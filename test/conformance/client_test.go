package conformance_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/test/conformance"
	"github.com/longcall/longcall/test/peers"
)

// behind, if set, makes TestBehind the command that the suite runs as its client.
const behind = "LONGCALL_SUITE_CLIENT"

// TestBehind is no test: the suite runs it as its client, with the URL of the
// suite's tool server as argument. It starts longcall before that server, and the
// client that the environment names behind longcall.
func TestBehind(t *testing.T) {
	client := os.Getenv(behind)
	if client == "" {
		t.Skip("the suite runs it, in TestClient")
	}
	gw := peers.StartLongcall(t, fmt.Sprintf("mcpServers: {suite: {url: %q}}\n", flag.Arg(0)))
	var env []string
	for _, v := range os.Environ() {
		if strings.HasPrefix(v, "MCP_CONFORMANCE_") {
			env = append(env, v)
		}
	}
	stdout, stderr, code := peers.Output(t, time.Minute, peers.Command{Path: client, Args: []string{gw.URL("suite")}, Env: env})
	if code != 0 {
		t.Errorf("the client's exit code is %d\n%s%s", code, stdout, stderr)
	}
}

// TestClient runs the suite's scenarios for clients with longcall as the client:
// the suite's tool server, longcall, and behind it the Go SDK's client.
func TestClient(t *testing.T) {
	dir := conformance.Install(t)
	client := filepath.Join(conformance.InstallEverything(t), "everything-client")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	env := []string{behind + "=" + client, "LONGCALL_BIN=" + peers.Binary(t)}
	for revision, scenarios := range conformance.Client {
		t.Run(revision, func(t *testing.T) {
			for _, name := range scenarios {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					through, said := conformance.ClientScenario(t, dir, name, revision, []string{self, "-test.run=^TestBehind$"}, env)
					if through.Passed() {
						return
					}
					for _, f := range through.Failures() {
						t.Errorf("through longcall: %s", f)
					}
					t.Log(said)
					if o, _ := conformance.ClientScenario(t, dir, name, revision, []string{client}, nil); !o.Passed() {
						t.Errorf("it does not pass directly either: %v", o.Failures())
					}
				})
			}
		})
	}
}

// TestAll: every scenario of the suite is run, or left out with a reason.
func TestAll(t *testing.T) {
	offers := conformance.Offers(t, conformance.Install(t))
	if len(offers) < 100 {
		t.Fatalf("the suite lists only %v", offers)
	}
	used := map[string]bool{}
	for _, o := range offers {
		out := ""
		for begin := range conformance.LeftOut {
			if strings.HasPrefix(o.Name, begin) {
				out = begin
				used[begin] = true
			}
		}
		in := slices.Contains(conformance.Scenarios, o.Name)
		for _, revision := range []string{conformance.Legacy, conformance.Modern} {
			run := conformance.Core
			if o.Client {
				run = conformance.Client
			}
			listed := slices.Contains(run[revision], o.Name)
			if listed != strings.Contains(o.Of, revision) && out == "" {
				t.Errorf("%s is for %s, and for %s it is run: %v", o.Name, o.Of, revision, listed)
			}
			in = in || listed
		}
		if in == (out != "") {
			t.Errorf("%s: is run: %v, is left out: %v", o.Name, in, out != "")
		}
	}
	if len(used) != len(conformance.LeftOut) {
		t.Errorf("of %v the suite has %v only", conformance.LeftOut, used)
	}
}
