package cli

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// output is a buffer that many may write to, and that can be waited on.
type output struct {
	mu   sync.Mutex
	b    bytes.Buffer
	grew chan struct{}
}

func newOutput() *output { return &output{grew: make(chan struct{}, 1)} }

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.b.Write(p)
	select {
	case o.grew <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// await returns the output as soon as it contains text.
func (o *output) await(t *testing.T, text string) string {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		if s := o.String(); strings.Contains(s, text) {
			return s
		}
		select {
		case <-o.grew:
		case <-deadline:
			t.Fatalf("no %q in:\n%s", text, o)
		}
	}
}

// world is the System of one test, with its own home and state folder.
type world struct {
	sys      *System
	out, err *output
	state    string

	mu      sync.Mutex
	signals []chan<- os.Signal
	waiting chan struct{} // gets one for each Notify
}

func newWorld(t *testing.T) *world {
	t.Helper()
	home := t.TempDir()
	for _, name := range []string{"LONGCALL_CONFIG", "LONGCALL_STATE", "LONGCALL_URL", "LONGCALL_TOKEN", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "COLUMNS"} {
		t.Setenv(name, "")
		_ = os.Unsetenv(name)
	}
	t.Setenv("HOME", home)
	state := filepath.Join(home, "state")
	t.Setenv("LONGCALL_STATE", state)
	w := &world{out: newOutput(), err: newOutput(), state: state, waiting: make(chan struct{}, 16)}
	w.sys = &System{
		In: strings.NewReader(""), Out: w.out, Err: w.err,
		Width: func() int { return 80 }, LookupEnv: os.LookupEnv,
		Notify: func(c chan<- os.Signal, _ ...os.Signal) func() {
			w.mu.Lock()
			w.signals = append(w.signals, c)
			w.mu.Unlock()
			w.waiting <- struct{}{}
			return func() {}
		},
	}
	return w
}

// signal sends to whoever listens last.
func (w *world) signal(s os.Signal) {
	w.mu.Lock()
	c := w.signals[len(w.signals)-1]
	w.mu.Unlock()
	c <- s
}

// again is a second command line in the same world.
func (w *world) again() *world {
	v := &world{out: newOutput(), err: newOutput(), state: w.state, waiting: make(chan struct{}, 16)}
	sys := *w.sys
	sys.Out, sys.Err, sys.In = v.out, v.err, strings.NewReader("")
	sys.Notify = func(c chan<- os.Signal, _ ...os.Signal) func() {
		v.mu.Lock()
		v.signals = append(v.signals, c)
		v.mu.Unlock()
		v.waiting <- struct{}{}
		return func() {}
	}
	v.sys = &sys
	return v
}

func (w *world) run(args ...string) int { return Main(context.Background(), w.sys, args) }

// expect runs a command line in a world of its own and checks how it exits.
func (w *world) expect(t *testing.T, code int, args ...string) *world {
	t.Helper()
	v := w.again()
	if got := v.run(args...); got != code {
		t.Errorf("%v: exit code %d, want %d\nstdout:\n%s\nstderr:\n%s", args, got, code, v.out, v.err)
	}
	return v
}

func wantContains(t *testing.T, what, got string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(got, p) {
			t.Errorf("%s has no %q:\n%s", what, p, got)
		}
	}
}

// golden compares with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		t.Fatalf("no golden file %s: run with -update", path)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
	}
}
