//go:build unix

package peers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// readyLimit bounds how long a server may take to listen.
const readyLimit = 60 * time.Second

// Command is a program to run. Its environment is empty but for PATH, LANG,
// TMPDIR, an own HOME and what Env says.
type Command struct {
	Path string
	Args []string
	Dir  string
	Env  []string
}

// tail keeps the last bytes written to it.
type tail struct {
	mu sync.Mutex
	b  []byte
}

const tailBytes = 64 << 10

func (w *tail) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.b = append(w.b, p...)
	if n := len(w.b) - tailBytes; n > 0 {
		w.b = w.b[n:]
	}
	return len(p), nil
}

func (w *tail) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.b)
}

// Process is a running program in a process group of its own.
type Process struct {
	cmd  *exec.Cmd
	out  tail // what it printed last
	done chan struct{}
	err  error // of Wait; set before done is closed
}

// Start runs a program until the test's cleanup, which ends its whole process
// group and shows what it printed if the test failed.
func Start(t testing.TB, c Command) *Process {
	t.Helper()
	p := &Process{cmd: exec.Command(c.Path, c.Args...), done: make(chan struct{})}
	p.cmd.Dir = c.Dir
	p.cmd.Env = environment(t.TempDir(), c.Env)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.WaitDelay = 5 * time.Second
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", c.Path, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.Stop()
		if out := p.Output(); t.Failed() && out != "" {
			t.Logf("%s %v printed last:\n%s", c.Path, c.Args, out[max(0, len(out)-4<<10):])
		}
	})
	return p
}

func environment(home string, more []string) []string {
	env := []string{"HOME=" + home, "LANG=C.UTF-8"}
	for _, k := range []string{"PATH", "TMPDIR"} {
		if v := os.Getenv(k); v != "" {
			env = append(env, k+"="+v)
		}
	}
	return append(env, more...)
}

// Output is what the program printed last, at most 64 KiB.
func (p *Process) Output() string { return p.out.String() }

// PID is the id of the process, which is that of its group.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Signal sends a signal to the process group.
func (p *Process) Signal(s syscall.Signal) { _ = syscall.Kill(-p.PID(), s) } // a group that is gone is what we want

// Stop ends the process group: with SIGTERM, and 5 s later with SIGKILL.
func (p *Process) Stop() {
	p.Signal(syscall.SIGTERM)
	timer := time.NewTimer(5 * time.Second)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
	}
	p.Signal(syscall.SIGKILL)
	<-p.done
}

// FreePort is a port on 127.0.0.1 that was free a moment ago.
func FreePort(t testing.TB) int {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port
}

// Listening waits until the process listens on a port of 127.0.0.1.
func (p *Process) Listening(t testing.TB, port int) {
	t.Helper()
	p.Until(t, "listens on port "+strconv.Itoa(port), func(ctx context.Context) bool {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", "127.0.0.1:"+strconv.Itoa(port))
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

// Until polls until the condition holds. It fails the test if the process ends
// or the time does.
func (p *Process) Until(t testing.TB, what string, holds func(context.Context) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), readyLimit)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !holds(ctx) {
		select {
		case <-tick.C:
		case <-p.done:
			t.Fatalf("%s ended before it %s: %v\n%s", p.cmd.Path, what, p.err, p.Output())
		case <-ctx.Done():
			t.Fatalf("%s: not after %v: it %s\n%s", p.cmd.Path, readyLimit, what, p.Output())
		}
	}
}

// Output runs a program to its end, and returns its standard output and exit
// code. It fails the test if the program cannot be run or takes too long.
func Output(t testing.TB, limit time.Duration, c Command) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.Path, c.Args...)
	cmd.Dir = c.Dir
	cmd.Env = environment(t.TempDir(), c.Env)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		t.Fatalf("%s %v: %v\n%s%s", c.Path, c.Args, errors.Join(err, ctx.Err()), out.String(), errs.String())
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

func loopback(port int) string { return fmt.Sprintf("http://127.0.0.1:%d/mcp", port) }
