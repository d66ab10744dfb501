//go:build unix

package conformance

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/test/peers"
)

// Client are the suite's scenarios for clients, by revision.
var Client = map[string][]string{
	Legacy: {"initialize", "tools_call", "elicitation-sep1034-client-defaults", "sse-retry", "json-schema-2020-12-preservation"},
	Modern: {
		"tools_call", "request-metadata", "sep-2322-client-request-state", "http-standard-headers", "http-custom-headers",
		"http-invalid-tool-headers", "json-schema-ref-no-deref", "json-schema-2020-12-preservation",
	},
}

// LeftOut are the scenarios that no test runs, by how their names begin, and why.
var LeftOut = map[string]string{
	"auth/":          "the client's own OAuth: longcall sends tool servers the headers of its config, and the suite's addresses would have to be its own",
	"sep-2640-":      "skills: neither the Go SDK's client nor a server here has that extension, so there is nothing to compare with",
	"authorization-": "for authorization servers: longcall is none",
}

// ClientScenario runs one scenario for clients: the suite starts a tool server and
// then the command, with the server's URL as last argument. The command's words
// must have no spaces.
func ClientScenario(t testing.TB, dir, name, revision string, command, env []string) Outcome {
	t.Helper()
	env = append(env, "NODE_OPTIONS=--require "+filepath.Join(peers.Source(), "node", "loopback.cjs"))
	o := one(t, dir, env, "client", "--command", strings.Join(command, " "), "--scenario", name, "--spec-version", revision, "--timeout", "40000")
	for _, failed := range []string{"Client exited with code", "Client timed out"} {
		if strings.Contains(o.Said, failed) {
			o.Checks = append(o.Checks, Check{ID: "client", Status: "FAILURE", Error: failed})
		}
	}
	return o
}

// Offer is a scenario that the suite has.
type Offer struct {
	Side string // Server, Client or Authorization
	Name string // such as tools-list
	Of   string // the revisions that it is for, with commas, or "extension"
}

// Offers lists the scenarios that the suite has.
func Offers(t testing.TB, dir string) (all []Offer) {
	t.Helper()
	out, _, _ := peers.Output(t, time.Minute, peers.Command{Path: "node", Args: append(suite(dir), "list")})
	side := ""
	for line := range strings.Lines(out) {
		if strings.Contains(line, "scenarios (") {
			side, _, _ = strings.Cut(line, " ")
		}
		if name, of, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "- "), " ["); ok {
			all = append(all, Offer{side, name, strings.TrimSuffix(of, "]")})
		}
	}
	return all
}
