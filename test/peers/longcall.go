package peers

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
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
