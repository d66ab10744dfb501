// Package peers runs MCP servers and clients that nobody here wrote: the official SDKs for Go, TypeScript and Python, and the reference server, pinned and installed on first use.
//
// What npm, pip and the Go command fetch goes into a cache folder, keyed by
// the contents of the lock files: $LONGCALL_PEERS, or longcall-peers-v1 in the
// user's cache folder. Everything listens on 127.0.0.1.
package peers

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Ecosystem is one family of peers that is installed together.
type Ecosystem string

// The ecosystems.
const (
	Go       Ecosystem = "go"
	Node     Ecosystem = "node"
	PythonV1 Ecosystem = "python-v1"
	PythonV2 Ecosystem = "python-v2"
)

const installLimit = 10 * time.Minute

var installed sync.Map // name of a folder to func() (string, error), so that a process installs once

// Ensure installs an ecosystem if need be and returns its folder. If a tool
// that it needs is missing, the test is skipped, or fails if $CI is set.
func Ensure(t testing.TB, e Ecosystem) string {
	t.Helper()
	src := Source()
	var dir string
	switch e {
	case Go:
		need(t, "go", "go", "version")
		dir = install(t, e, []string{"gosdk/go.mod", "gosdk/go.sum", "gosdk/server/main.go", "gosdk/client/main.go"}, func(ctx context.Context, dir string) error {
			return run(ctx, filepath.Join(src, "gosdk"), "go", "build", "-o", dir+string(filepath.Separator), "./...")
		})
	case Node:
		NeedNode(t)
		dir = install(t, e, []string{"node/package.json", "node/package-lock.json"}, func(ctx context.Context, dir string) error {
			return NPM(ctx, dir, filepath.Join(src, "node"))
		})
		refresh(t, dir, filepath.Join(src, "node"), ".mjs", ".cjs")
	case PythonV1, PythonV2:
		need(t, "python3", "python3", "-c", "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))")
		list := "python/requirements-" + strings.TrimPrefix(string(e), "python-") + ".txt"
		dir = install(t, e, []string{list}, func(ctx context.Context, dir string) error {
			if err := run(ctx, dir, "python3", "-m", "venv", dir); err != nil {
				return err
			}
			return run(ctx, dir, filepath.Join(dir, "bin", "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", filepath.Join(src, list))
		})
	default:
		t.Fatalf("no ecosystem %q", e)
	}
	return dir
}

// Source is the folder of this package's source.
func Source() string {
	_, file, _, ok := runtime.Caller(0)
	if !ok || !filepath.IsAbs(file) {
		panic("the tests must be built without -trimpath")
	}
	return filepath.Dir(file)
}

// NPM installs what the lock file in the folder src pins into dir.
func NPM(ctx context.Context, dir, src string) error {
	for _, f := range []string{"package.json", "package-lock.json"} {
		if err := copyFile(filepath.Join(dir, f), filepath.Join(src, f)); err != nil {
			return err
		}
	}
	return run(ctx, dir, "npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")
}

// NeedNode skips the test if there is no npm or no Node.js of version 20 or later.
func NeedNode(t testing.TB) {
	t.Helper()
	need(t, "npm", "npm", "--version")
	need(t, "node 20 or later", "node", "-e", "process.exit(+(process.versions.node.split('.')[0] < 20))")
}

// need skips the test if a command does not work.
func need(t testing.TB, what, command string, args ...string) {
	t.Helper()
	if err := run(t.Context(), "", command, args...); err != nil {
		Missing(t, what)
	}
}

// CI says whether a missing tool must fail the tests.
func CI() bool { return os.Getenv("CI") != "" }

// Missing skips the test because a tool is missing, and notes that in the file
// $LONGCALL_SKIPS, whose lines `make test` shows at its end. If $CI is set it
// fails the test instead.
func Missing(t testing.TB, what string) {
	t.Helper()
	if CI() {
		t.Fatalf("%s is missing, and CI must not skip this test: install it", what)
	}
	if path := os.Getenv("LONGCALL_SKIPS"); path != "" {
		if f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
			fmt.Fprintf(f, "%s: SKIPPED, %s is missing\n", t.Name(), what)
			f.Close()
		}
	}
	t.Skipf("SKIPPED: %s is missing; install it to run this test", what)
}

// Cache is the folder that installs go into.
func Cache() (string, error) {
	if dir := os.Getenv("LONGCALL_PEERS"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no folder for peers: set LONGCALL_PEERS: %w", err)
	}
	return filepath.Join(dir, "longcall-peers-v1"), nil
}

// install makes the folder of an ecosystem, keyed by the files named.
func install(t testing.TB, e Ecosystem, files []string, fill func(ctx context.Context, dir string) error) string {
	t.Helper()
	h := sha256.New()
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join(Source(), f))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(h, "%s %d\n%s", f, len(b), b)
	}
	dir, err := Install(string(e)+"-"+hex.EncodeToString(h.Sum(nil))[:12], fill)
	if err != nil {
		t.Fatalf("install %s: %v", e, err)
	}
	return dir
}

// Install fills the named folder of the cache, unless that was done before. It
// is safe from several processes at once.
func Install(name string, fill func(ctx context.Context, dir string) error) (string, error) {
	once, _ := installed.LoadOrStore(name, sync.OnceValues(func() (string, error) {
		root, err := Cache()
		if err != nil {
			return "", err
		}
		dir, done := filepath.Join(root, name), filepath.Join(root, name+".done")
		if err := os.MkdirAll(root, 0o755); err != nil {
			return "", err
		}
		lock, err := os.OpenFile(filepath.Join(root, name+".lock"), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return "", err
		}
		defer lock.Close() // which unlocks
		if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
			return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
		}
		if _, err := os.Stat(done); err == nil {
			return dir, nil
		}
		if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
			return "", err
		}
		ctx, cancel := context.WithTimeout(context.Background(), installLimit)
		defer cancel()
		if err := fill(ctx, dir); err != nil {
			return "", err
		}
		return dir, os.WriteFile(done, nil, 0o600)
	}))
	return once.(func() (string, error))()
}

// refresh copies scripts beside their installed modules, where they resolve.
func refresh(t testing.TB, dir, src string, suffixes ...string) {
	t.Helper()
	entries, err := os.ReadDir(src)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !slices.Contains(suffixes, filepath.Ext(e.Name())) {
			continue
		}
		if err := copyFile(filepath.Join(dir, e.Name()), filepath.Join(src, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
}

// copyFile replaces dst at once, since other processes may be reading it.
func copyFile(dst, src string) error {
	b, err := os.ReadFile(src)
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(dst), ".new-*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(b)
	return errors.Join(err, tmp.Close(), os.Rename(tmp.Name(), dst))
}

// run runs a command to its end; an error has what it printed.
func run(ctx context.Context, dir, command string, args ...string) error {
	cmd := exec.CommandContext(ctx, command, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w\n%s", command, strings.Join(args, " "), err, out)
	}
	return nil
}
