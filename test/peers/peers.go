//go:build unix

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
	"io/fs"
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
	switch e {
	case Go:
		need(t, "go", "go", "version")
		sdk := filepath.Join(src, "gosdk")
		files, err := filepath.Glob(filepath.Join(sdk, "*", "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		return Install(t, string(e), append(files, in(sdk, "go.mod", "go.sum")...), func(ctx context.Context, dir string) error {
			return run(ctx, sdk, "go", "build", "-o", dir+string(filepath.Separator), "./...")
		})
	case Node:
		NeedNode(t)
		node := filepath.Join(src, "node")
		dir := Install(t, string(e), in(node, "package.json", "package-lock.json"), func(ctx context.Context, dir string) error {
			return NPM(ctx, dir, node)
		})
		refresh(t, dir, node, ".mjs", ".cjs")
		return dir
	case PythonV1, PythonV2:
		need(t, "python3 (3.11 or later, with venv)", "python3", "-c", "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))")
		list := in(src, "python/requirements-"+strings.TrimPrefix(string(e), "python-")+".txt")
		return Install(t, string(e), list, func(ctx context.Context, dir string) error {
			if err := run(ctx, dir, "python3", "-m", "venv", dir); err != nil {
				return err
			}
			return run(ctx, dir, filepath.Join(dir, "bin", "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", list[0])
		})
	}
	t.Fatalf("no ecosystem %q", e)
	return ""
}

// in makes paths of files in a folder.
func in(dir string, files ...string) (out []string) {
	for _, f := range files {
		out = append(out, filepath.Join(dir, filepath.FromSlash(f)))
	}
	return out
}

// Source is the folder of this package's source.
func Source() string {
	_, file, _, ok := runtime.Caller(0)
	if !ok || !filepath.IsAbs(file) {
		panic("the tests must be built without -trimpath")
	}
	return filepath.Dir(file)
}

// NPM installs into dir what the package file in the folder src names: exactly
// what its lock file pins, if it has one.
func NPM(ctx context.Context, dir, src string) error {
	if err := copyFile(filepath.Join(dir, "package.json"), filepath.Join(src, "package.json")); err != nil {
		return err
	}
	args := []string{"--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"}
	switch err := copyFile(filepath.Join(dir, "package-lock.json"), filepath.Join(src, "package-lock.json")); {
	case errors.Is(err, fs.ErrNotExist):
		return run(ctx, dir, "npm", append([]string{"install", "--no-package-lock"}, args...)...)
	case err != nil:
		return err
	}
	return run(ctx, dir, "npm", append([]string{"ci"}, args...)...)
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

// Install fills a folder of the cache, whose key is the name and the contents
// of the files, unless that was done before; it returns the folder. It is safe
// from several processes at once.
func Install(t testing.TB, name string, files []string, fill func(ctx context.Context, dir string) error) string {
	t.Helper()
	h := sha256.New()
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(h, "%s %d\n%s", filepath.Base(f), len(b), b)
	}
	dir, err := installOnce(name+"-"+hex.EncodeToString(h.Sum(nil))[:12], fill)
	if err != nil {
		t.Fatalf("install %s: %v", name, err)
	}
	return dir
}

func installOnce(name string, fill func(ctx context.Context, dir string) error) (string, error) {
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
