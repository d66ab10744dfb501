package config

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// watched runs Watch for a test and gives a channel of its calls, each with
// what the file held then.
func watched(t *testing.T, path string) <-chan string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	told, done := make(chan string, 100), make(chan error, 1)
	go func() {
		done <- Watch(ctx, path, func() {
			data, _ := os.ReadFile(path)
			told <- string(data)
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Watch: %v", err)
		}
	})
	return told
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// until reads calls until one saw want.
func until(t *testing.T, told <-chan string, want string) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for {
		select {
		case got := <-told:
			if got == want {
				return
			}
		case <-deadline:
			t.Fatalf("nobody said that the file holds %q", want)
		}
	}
}

// started makes sure that the watch is up: changes before that may be its
// beginning.
func started(t *testing.T, told <-chan string, path string) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for i := 0; ; i++ {
		put(t, path, "start"+string(rune('a'+i%26)))
		select {
		case <-told:
			return
		case <-time.After(3 * settle):
		case <-deadline:
			t.Fatal("the watch does not start")
		}
	}
}

// TestWatch: the ways in which editors and tools write a file.
func TestWatch(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "c.yaml")
	put(t, path, "first")
	told := watched(t, path)
	started(t, told, path)

	put(t, path, "in place")
	until(t, told, "in place")

	put(t, path+"~", "renamed over")
	if err := os.Rename(path+"~", path); err != nil {
		t.Fatal(err)
	}
	until(t, told, "renamed over")

	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	put(t, path, "made again")
	until(t, told, "made again")

	// Half a file, which may be valid, must not be told: only what stays.
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("slowly "); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("written"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	until(t, told, "slowly written")
}

// TestWatchSameContent: what changes no content is no change.
func TestWatchSameContent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "c.yaml")
	told := watched(t, path)
	started(t, told, path)
	put(t, path, "same")
	until(t, told, "same")

	put(t, path, "same")
	put(t, filepath.Join(dir, "other"), "x")
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	put(t, path, "next")
	if got := <-told; got != "next" {
		t.Errorf("told of %q", got)
	}
}

// TestWatchLinks: a configuration map of Kubernetes is a link to a link that is
// replaced; other people keep the real file elsewhere.
func TestWatchLinks(t *testing.T) {
	t.Parallel()
	dir, elsewhere := t.TempDir(), t.TempDir()
	for _, v := range []string{"v1", "v2"} {
		if err := os.Mkdir(filepath.Join(dir, v), 0o700); err != nil {
			t.Fatal(err)
		}
		put(t, filepath.Join(dir, v, "c.yaml"), v)
	}
	link := func(target, name string) {
		t.Helper()
		if err := os.Symlink(target, filepath.Join(dir, "tmp")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "tmp"), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	link("v1", "..data")
	link("..data/c.yaml", "c.yaml")
	path := filepath.Join(dir, "c.yaml")
	told := watched(t, path)
	started(t, told, path)

	link("v2", "..data")
	until(t, told, "v2")

	put(t, filepath.Join(elsewhere, "real"), "r1")
	link(filepath.Join(elsewhere, "real"), "c.yaml")
	until(t, told, "r1")
	put(t, filepath.Join(elsewhere, "real"), "r2")
	until(t, told, "r2")
}

func TestWatchNoFolder(t *testing.T) {
	if err := Watch(t.Context(), filepath.Join(t.TempDir(), "no", "c.yaml"), func() {}); err == nil {
		t.Error("a folder that is not there is watched")
	}
}
