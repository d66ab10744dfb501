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

// The revisions that the core scenarios run in.
const (
	Legacy = "2025-11-25"
	Modern = "2026-07-28"
)

// Core are the suite's scenarios for servers, by revision, but for those of
// extensions, and server-sse-polling, which the Go SDK's server does not pass.
var Core = map[string][]string{
	Legacy: append([]string{
		"server-initialize", "server-session-lifecycle", "logging-set-level", "ping", "tools-call-with-logging", "tools-call-sampling", "tools-call-elicitation",
		"elicitation-sep1034-defaults", "elicitation-sep1330-enums", "resources-subscribe", "resources-unsubscribe",
	}, both...),
	Modern: append([]string{
		"server-stateless", "caching", "http-header-validation", "http-custom-header-server-validation", "sep-2164-resource-not-found",
		"input-required-result-basic-elicitation", "input-required-result-basic-sampling", "input-required-result-basic-list-roots",
		"input-required-result-request-state", "input-required-result-multiple-input-requests", "input-required-result-multi-round",
		"input-required-result-missing-input-response", "input-required-result-non-tool-request", "input-required-result-result-type",
		"input-required-result-unsupported-methods", "input-required-result-tampered-state", "input-required-result-capability-check",
		"input-required-result-ignore-extra-params", "input-required-result-validate-input",
	}, both...),
}

// both are those of both revisions.
var both = []string{
	"completion-complete", "tools-list", "tools-call-simple-text", "tools-call-image", "tools-call-audio", "tools-call-embedded-resource",
	"tools-call-mixed-content", "tools-call-error", "tools-call-with-progress", "json-schema-2020-12", "server-sse-multiple-streams",
	"resources-list", "resources-read-text", "resources-read-binary", "resources-templates-read",
	"prompts-list", "prompts-get-simple", "prompts-get-with-args", "prompts-get-embedded-resource", "prompts-get-with-image", "dns-rebinding-protection",
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
