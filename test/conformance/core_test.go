package conformance_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/longcall/longcall/test/conformance"
	"github.com/longcall/longcall/test/peers"
)

// bridged are the scenarios that an agent of one era cannot pass with a tool server
// of the other, each with its reason. One that passes must not be here.
var bridged = map[string]map[string]string{
	conformance.Modern + " to legacy": {},
	conformance.Legacy + " to modern": {
		"tools-call-sampling":          asksBySession,
		"tools-call-elicitation":       asksBySession,
		"elicitation-sep1034-defaults": asksBySession,
		"elicitation-sep1330-enums":    asksBySession,
	},
}

const asksBySession = "these tools of the SDK's server ask by a request, which its stateless mode does not have: they fail there for every client"

// TestCore runs the suite's scenarios of both revisions against the Go SDK's own
// server directly, and through longcall in all four quadrants: what passes directly
// passes through longcall, and what does not cross the eras has a reason.
func TestCore(t *testing.T) {
	dir := conformance.Install(t)
	servers := map[string]string{
		"legacy": conformance.StartEverything(t, false),
		"modern": conformance.StartEverything(t, true),
	}
	gw := peers.StartLongcall(t, fmt.Sprintf("attach: never\nmcpServers: {legacy: {url: %q}, modern: {url: %q}}\n", servers["legacy"], servers["modern"]))
	for _, q := range []struct{ revision, era string }{
		{conformance.Legacy, "legacy"}, {conformance.Modern, "modern"}, {conformance.Modern, "legacy"}, {conformance.Legacy, "modern"},
	} {
		name := q.revision + " to " + q.era
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			direct := servers[map[string]string{conformance.Legacy: "legacy", conformance.Modern: "modern"}[q.revision]]
			var mu sync.Mutex
			passed, lost := 0, 0
			t.Run("scenarios", func(t *testing.T) {
				for _, scenario := range conformance.Core[q.revision] {
					t.Run(scenario, func(t *testing.T) {
						t.Parallel()
						through := conformance.Scenario(t, dir, scenario, gw.URL(q.era), "--spec-version", q.revision)
						reason, listed := bridged[name][scenario]
						mu.Lock()
						defer mu.Unlock()
						switch {
						case through.Passed() && listed:
							t.Errorf("it passes: take it off the list (%s)", reason)
						case through.Passed():
							passed++
						case listed:
							lost++
							t.Logf("lost: %s", reason)
						default:
							for _, f := range through.Failures() {
								t.Errorf("through longcall: %s", f)
							}
							if o := conformance.Scenario(t, dir, scenario, direct, "--spec-version", q.revision); !o.Passed() {
								t.Errorf("it does not pass directly either: %v", o.Failures())
							}
						}
					})
				}
			})
			t.Logf("%s: %d of %d scenarios pass, %d lost with a reason", name, passed, len(conformance.Core[q.revision]), lost)
		})
	}
}
