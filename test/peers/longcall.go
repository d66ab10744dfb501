//go:build unix

package peers

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var build = sync.OnceValues(func() (string, error) {
	if bin := os.Getenv("LONGCALL_BIN"); bin != "" {
		return filepath.Abs(bin)
	}
	root, err := Cache()
	if err != nil {
		return "", err
	}
	// One binary per test process, so that none replaces another's.
	bin := filepath.Join(root, "build", fmt.Sprintf("longcall-%d", os.Getpid()))
	ctx, cancel := context.WithTimeout(context.Background(), installLimit)
	defer cancel()
	return bin, run(ctx, filepath.Join(Source(), "..", ".."), "go", "build", "-o", bin, "./cmd/longcall")
})

// Main runs a package's tests and then removes the binary that they built. For
// TestMain of packages that use Longcall: os.Exit(peers.Main(m)).
func Main(m *testing.M) int {
	defer func() {
		if root, err := Cache(); err == nil && os.Getenv("LONGCALL_BIN") == "" {
			os.Remove(filepath.Join(root, "build", fmt.Sprintf("longcall-%d", os.Getpid())))
		}
	}()
	return m.Run()
}

// Binary builds the product, or takes $LONGCALL_BIN.
func Binary(t testing.TB) string {
	t.Helper()
	bin, err := build()
	if err != nil {
		t.Fatalf("build longcall: %v", err)
	}
	return bin
}

// Longcall is the product's own binary, running.
type Longcall struct {
	*Process
	Base  string // such as http://127.0.0.1:1234
	State string // its state folder
}

// URL is the endpoint of one configured server, or of all for an empty name.
func (l *Longcall) URL(server string) string {
	if server == "" {
		return l.Base + "/mcp"
	}
	return l.Base + "/mcp/" + server
}

// At is URL for clients of an era.
func (l *Longcall) At(server, era string) string {
	url := l.URL(server)
	if era == Old {
		url = strings.Replace(url, "/mcp", "/sse", 1)
	}
	return url
}

// StartLongcall runs the binary until the test's cleanup. The config is YAML
// without the keys listen and state.
func StartLongcall(t testing.TB, config string) *Longcall {
	t.Helper()
	dir, port := t.TempDir(), FreePort(t)
	l := &Longcall{Base: fmt.Sprintf("http://127.0.0.1:%d", port), State: filepath.Join(dir, "state")}
	file := filepath.Join(dir, "longcall.yaml")
	config = fmt.Sprintf("listen: 127.0.0.1:%d\nstate: %q\n%s", port, l.State, config)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	l.Process = Start(t, Command{Path: Binary(t), Args: []string{"serve", "--config", file, "--no-auth"}})
	l.Until(t, "is ready", func(ctx context.Context) bool {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, l.Base+"/readyz", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return l
}

// Stdio is the relay between a pipe and the running gateway, at the endpoint of one
// configured server.
func (l *Longcall) Stdio(t testing.TB, server string) *Command {
	t.Helper()
	config := filepath.Join(filepath.Dir(l.State), "longcall.yaml")
	return &Command{Path: Binary(t), Args: []string{"stdio", "--config", config, "--server", server}}
}

// Record is a call as `longcall calls list --json` tells it.
type Record struct {
	ID         string
	Server     string
	Tool       string
	Client     string
	Outcome    string
	Text       string
	ToolError  bool `json:"tool_error"`
	Deliveries []struct{ How string }
}

// Calls lists the calls in the journal of the running gateway, newest first.
func (l *Longcall) Calls(t testing.TB) (all []Record) {
	t.Helper()
	out, errs, code := Output(t, time.Minute, Command{Path: Binary(t), Args: []string{"calls", "list", "--json", "--limit", "0", "--state", l.State}})
	if code != 0 {
		t.Fatalf("longcall calls list: exit code %d\n%s", code, errs)
	}
	for dec := json.NewDecoder(strings.NewReader(out)); dec.More(); {
		var r Record
		if err := dec.Decode(&r); err != nil {
			t.Fatalf("longcall calls list printed %q: %v", out, err)
		}
		all = append(all, r)
	}
	return all
}

// Delivered waits until all calls in the journal have ended and their
// deliveries are noted, and says of each that did not end completed and
// delivered. It returns how many calls there are.
func (l *Longcall) Delivered(t testing.TB) int {
	t.Helper()
	var all []Record
	l.Until(t, "has noted all deliveries", func(context.Context) bool {
		all = l.Calls(t)
		return !slices.ContainsFunc(all, func(r Record) bool { return r.Outcome == "running" || len(r.Deliveries) == 0 })
	})
	for _, r := range all {
		if r.Outcome != "completed" || len(r.Deliveries) != 1 || r.Deliveries[0].How != "delivered" {
			t.Errorf("the journal says of a call: %+v", r)
		}
	}
	return len(all)
}
