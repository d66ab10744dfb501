//go:build unix

package conformance

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/longcall/longcall/test/peers"
)

// The revisions that the suite runs in.
const (
	Legacy = "2025-11-25"
	Modern = "2026-07-28"
)

// Core runs all of the suite's scenarios for servers of a revision, but for those of
// extensions, against an endpoint.
func Core(t testing.TB, dir, url, revision string) map[string]Outcome {
	t.Helper()
	all, _ := run(t, dir, nil, "server", "--url", url, "--suite", "all", "--spec-version", revision)
	return all
}

// InstallEverything builds what the official Go SDK has for the suite, everything-server
// and everything-client, unless that was done before, and returns their folder.
func InstallEverything(t testing.TB) string {
	t.Helper()
	sdk := filepath.Join(peers.Source(), "gosdk")
	files := []string{filepath.Join(sdk, "go.mod"), filepath.Join(sdk, "go.sum")}
	return peers.Install(t, "go-suite", files, func(ctx context.Context, dir string) error {
		const commands = "github.com/modelcontextprotocol/go-sdk/conformance/everything-"
		build := exec.CommandContext(ctx, "go", "build", "-o", dir+string(filepath.Separator), commands+"server", commands+"client")
		build.Dir = sdk
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build the SDK's server and client: %w\n%s", err, out)
		}
		return nil
	})
}

// StartEverything starts the official Go SDK's server for the suite, with sessions
// up to 2025-11-25 or stateless, until the test's cleanup.
func StartEverything(t testing.TB, stateless bool) (url string) {
	t.Helper()
	port := peers.FreePort(t)
	address := "127.0.0.1:" + strconv.Itoa(port)
	p := peers.Start(t, peers.Command{
		Path: filepath.Join(InstallEverything(t), "everything-server"),
		Args: []string{"-http", address, "-stateless=" + strconv.FormatBool(stateless)},
	})
	p.Listening(t, port)
	return "http://" + address
}

// StartTypeScript starts a server on version 2 of the official TypeScript SDK with
// what the suite asks for, which serves both eras at one address, until the test's
// cleanup.
func StartTypeScript(t testing.TB) (url string) {
	t.Helper()
	dir, port := peers.Ensure(t, peers.Node), peers.FreePort(t)
	p := peers.Start(t, peers.Command{Path: "node", Args: []string{filepath.Join(dir, "suite-v2.mjs"), "--port", strconv.Itoa(port)}})
	p.Listening(t, port)
	return "http://127.0.0.1:" + strconv.Itoa(port) + "/mcp"
}
