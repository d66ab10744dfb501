//go:build linux || darwin

package shell

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func withTTY(c *Command)  { c.TTY, c.Cols, c.Rows = true, 100, 30 }
func withPipe(c *Command) { c.Stdin = true }

func (r *rig) typeIn(p *Process, in Input) Typed {
	r.Helper()
	t, err := p.Input(r.Context(), in)
	if err != nil {
		r.Fatalf("%+v: %v", in, err)
	}
	return t
}

// SHELL §2, §7: a prompt that reads stdin gets EOF, and there is no terminal to
// ask on instead.
func TestPromptGetsEOF(t *testing.T) {
	r := newRig(t)
	p := r.start(`read x || echo at the end; (exec < /dev/tty) 2>/dev/null || echo no terminal; test -t 1 || echo no tty`)
	r.end(p)
	if out := r.output(p); out != "at the end\nno terminal\nno tty\n" {
		t.Errorf("output %q", out)
	}
	q := r.start("exec sleep 600")
	for _, in := range []Input{{Text: "x"}, {EOF: true}, {Keys: []string{"enter"}}} {
		if _, err := q.Input(t.Context(), in); err == nil || !strings.Contains(err.Error(), "/dev/null") {
			t.Errorf("%+v: %v", in, err)
		}
	}
	r.typeIn(q, Input{Keys: []string{"ctrl-c"}})
	if s := r.end(q); s.State != Signaled || s.Signal != "SIGINT" {
		t.Errorf("after ctrl-c %+v", s)
	}
}

func TestPipe(t *testing.T) {
	r := newRig(t)
	p := r.start("while read x; do echo got $x; done; echo end", withPipe)
	r.typeIn(p, Input{Text: "a\nb"})
	r.says(p, "got a")
	r.typeIn(p, Input{Keys: []string{"Enter"}})
	r.says(p, "got b")
	if _, err := p.Input(t.Context(), Input{Keys: []string{"up"}}); err == nil || !strings.Contains(err.Error(), "terminal") {
		t.Errorf("up: %v", err)
	}
	if _, err := p.Input(t.Context(), Input{Cols: 10, Rows: 10}); err == nil || !strings.Contains(err.Error(), "tty: true") {
		t.Errorf("resize: %v", err)
	}
	r.typeIn(p, Input{Text: "c\n", EOF: true})
	if s := r.end(p); s.State != Exited || r.output(p) != "got a\ngot b\ngot c\nend\n" {
		t.Errorf("%+v, output %q", s, r.output(p))
	}
	if _, err := p.Input(t.Context(), Input{Text: "d"}); !errors.Is(err, ErrEnded) {
		t.Errorf("after the end: %v", err)
	}
}

// SHELL §4: an input that is tried again is typed once, also after a restart
// and after the end.
func TestInputOnce(t *testing.T) {
	r := newRig(t)
	p := r.start("while read x && [ $x != bye ]; do echo got $x; done", withPipe)
	in := Input{Text: "a\n", Key: "k1"}
	if got := r.typeIn(p, in); got.Repeated {
		t.Errorf("%+v", got)
	}
	if got := r.typeIn(p, in); !got.Repeated {
		t.Errorf("again: %+v", got)
	}
	r.reopen()
	p = r.m.Find(p.ID())
	if got := r.typeIn(p, in); !got.Repeated {
		t.Errorf("after a restart: %+v", got)
	}
	if _, err := p.Input(t.Context(), Input{Text: "other\n", Key: "k1"}); err == nil || err.Error() != errKeyReused.Error() {
		t.Errorf("another text: %v", err)
	}
	bye := Input{Text: "bye\n", Key: "k2"}
	r.typeIn(p, bye)
	r.end(p)
	if got := r.typeIn(p, bye); !got.Repeated {
		t.Errorf("after the end: %+v", got)
	}
	if _, err := p.Input(t.Context(), Input{Text: "c\n", Key: "k3"}); !errors.Is(err, ErrEnded) {
		t.Errorf("after the end: %v", err)
	}
	if out := r.output(p); out != "got a\n" {
		t.Errorf("output %q", out)
	}
	if b, err := os.ReadFile(p.dir + "/" + typedFile); err != nil || strings.Contains(string(b), "k1") {
		t.Errorf("the keys are readable: %s, %v", b, err)
	}
}

// Input that is not read is bounded, and delays nobody.
func TestInputIsNotRead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.start("exec sleep 600", withPipe)
	start := time.Now()
	got := r.typeIn(p, Input{Text: strings.Repeat("x", MaxInput)})
	if d := time.Since(start); got.Unread < MaxInput/2 || d > 5*time.Second {
		t.Errorf("%+v after %s", got, d)
	}
	if _, err := p.Input(t.Context(), Input{Text: strings.Repeat("x", MaxInput/2)}); err == nil || !strings.Contains(err.Error(), "does not read") {
		t.Errorf("more: %v", err)
	}
	if _, err := p.Input(t.Context(), Input{Text: strings.Repeat("x", MaxInput+1)}); err == nil || !strings.Contains(err.Error(), "in parts") {
		t.Errorf("too much: %v", err)
	}
	q := r.start("exec <&-; echo closed; exec sleep 600", withPipe)
	r.says(q, "closed")
	if _, err := q.Input(t.Context(), Input{Text: "x"}); err == nil || !strings.Contains(err.Error(), "closed its input") {
		t.Errorf("closed: %v", err)
	}
	if _, err := q.Input(t.Context(), Input{Text: "x"}); err == nil || !strings.Contains(err.Error(), "closed its input; nothing") {
		t.Errorf("closed: %v", err)
	}
	s := r.start("cat; exec sleep 600", withPipe)
	r.typeIn(s, Input{EOF: true})
	if _, err := s.Input(t.Context(), Input{Text: "x"}); err == nil || !strings.Contains(err.Error(), "ended before") {
		t.Errorf("after the end of the input: %v", err)
	}
}

func init() { programs["terminal"] = onTerminal }

// onTerminal says what it sees of its terminal.
func onTerminal([]string) int {
	size := func() {
		if w, err := unix.IoctlGetWinsize(1, unix.TIOCGWINSZ); err == nil {
			fmt.Printf("%dx%d\n", w.Col, w.Row)
		}
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGWINCH, unix.SIGINT)
	lines := make(chan string)
	go func() {
		defer close(lines)
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			lines <- in.Text()
		}
	}()
	fmt.Println(os.Getenv("TERM"))
	size()
	fmt.Println("ready")
	for {
		select {
		case sig := <-signals:
			if sig == unix.SIGWINCH {
				size()
			} else {
				fmt.Println("int")
			}
		case l, ok := <-lines:
			if !ok {
				fmt.Println("end")
				return 0
			}
			fmt.Println("got", l)
		}
	}
}

// SHELL §7: a terminal, its size, ctrl-c and ctrl-d.
func TestTerminal(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.start("", withTTY, func(c *Command) { c.Argv = []string{os.Args[0], "terminal"} })
	r.says(p, "ready")
	if out := r.output(p); out != "xterm-256color\r\n100x30\r\nready\r\n" {
		t.Errorf("output %q", out)
	}
	r.typeIn(p, Input{Cols: 132, Rows: 50})
	r.says(p, "132x50")
	r.typeIn(p, Input{Text: "hello", Keys: []string{"enter"}})
	r.says(p, "got hello")
	if _, err := p.Input(t.Context(), Input{Text: "short\n" + strings.Repeat("x", maxLine+1)}); err == nil || !strings.Contains(err.Error(), "shorter lines") {
		t.Errorf("a long line: %v", err)
	}
	r.typeIn(p, Input{Text: strings.Repeat("x", maxLine) + "\n"})
	r.says(p, "got "+strings.Repeat("x", maxLine)+"\r\n")
	r.typeIn(p, Input{Keys: []string{"ctrl-c"}})
	r.says(p, "int\r\n")
	r.typeIn(p, Input{Keys: []string{"ctrl-d"}})
	if s := r.end(p); s.State != Exited || !strings.HasSuffix(r.output(p), "end\r\n") {
		t.Errorf("%+v, output %q", s, r.output(p))
	}

	q := r.start("exec sleep 600", withTTY)
	r.typeIn(q, Input{Keys: []string{"ctrl-c"}})
	if s := r.end(q); s.State != Signaled || s.Signal != "SIGINT" {
		t.Errorf("after ctrl-c %+v", s)
	}
}

// All that a command prints before it ends on a terminal is there, too.
func TestTerminalIsDrained(t *testing.T) {
	r := newRig(t)
	p := r.start("seq 1 20000; exit 3", withTTY)
	s := r.end(p)
	out := r.output(p)
	if s.ExitCode != 3 || !strings.HasSuffix(out, "20000\r\n") || s.Total != 108894+20000 {
		t.Errorf("%+v, ends in %q", s, out[max(0, len(out)-20):])
	}
}

// SHELL §2: the hint that a command waits for input.
func TestWaiting(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("this system does not tell")
	}
	r := newRig(t)
	waits := func(p *Process) bool { return p.Waiting(t.Context()) }
	for name, p := range map[string]*Process{
		"read from a pipe":       r.start("printf 'name? '; read x; echo hi $x; sleep 600", withPipe),
		"read from a terminal":   r.start("printf 'name? '; read x; echo hi $x; sleep 600", withTTY),
		"read from /dev/tty":     r.start("printf 'name? '; read x < /dev/tty; echo hi $x; sleep 600", withTTY),
		"a child reads":          r.start("cat | head -n 1; sleep 600", withPipe),
		"a line editor on a tty": r.start("exec bash --norc -i", withTTY),
	} {
		eventually(t, name+" is waiting", func() bool { return waits(p) })
		if name != "a line editor on a tty" {
			r.typeIn(p, Input{Text: "bo\n"})
			if name == "a child reads" {
				continue // cat goes on reading
			}
			r.says(p, "hi bo")
			eventually(t, name+" is not waiting any more", func() bool { return !waits(p) })
		}
	}
	for name, p := range map[string]*Process{
		"works":         r.start("echo x; while :; do sleep 0.01; done", withTTY),
		"has no input":  r.start("read x; echo x; sleep 600"),
		"reads another": r.start("echo x; sleep 600 | cat", withPipe),
	} {
		r.says(p, "x")
		for range 5 {
			if waits(p) {
				t.Errorf("%s: is said to wait", name)
			}
		}
	}
}

func TestKeys(t *testing.T) {
	for name, want := range map[string]string{"ctrl-a": "\x01", "Ctrl-Z": "\x1a", "enter": "\r", " UP ": "\x1b[A", "f5": "\x1b[15~", `ctrl-\`: "\x1c"} {
		if got, err := key(name); got != want || err != nil {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	for _, name := range []string{"", "ctrl-", "ctrl-ä", "ctrl-1", "return key", strings.Repeat("x", 1000)} {
		if got, err := key(name); err == nil || len(err.Error()) > 500 || !strings.Contains(err.Error(), "enter") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// A wait that is given up gives up nothing else.
func TestInputIsCancelled(t *testing.T) {
	r := newRig(t)
	p := r.start("cat", withPipe)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Input(ctx, Input{Text: "a\n", Key: "k"}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	r.typeIn(p, Input{Text: "a\n", Key: "k"})
	r.typeIn(p, Input{EOF: true})
	r.end(p)
	if out := r.output(p); out != "a\n" {
		t.Errorf("output %q", out)
	}
}

// SHELL §4: what is typed right after the start reaches the command, though its
// shim does not listen yet.
func TestInputRightAfterStart(t *testing.T) {
	r := newRig(t)
	c := testCommand("read x; echo got $x")
	c.Stdin = true
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	p, err := r.m.Start(ctx, c)
	if err != nil {
		t.Skip(err) // the machine is too slow for what is tested
	}
	if _, err := p.Input(t.Context(), Input{Text: "it\n"}); err != nil {
		t.Fatal(err)
	}
	r.await(p, "its end", func(s Status) bool { return s.State == Exited })
	out, err := p.Output()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 100)
	if n, _, err := out.Raw(b, 0); string(b[:n]) != "got it\n" {
		t.Errorf("%q, %v", b[:n], err)
	}
}
