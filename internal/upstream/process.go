package upstream

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/longcall/longcall/internal/exit"
)

// drainWait is how long the pipes of a process that has ended may stay open:
// a descendant that left the group can hold them for ever.
const drainWait = time.Second

// process is a tool server's process with its three pipes, leader of a process
// group of its own, so that a Ctrl-C at longcall's terminal does not reach it
// and a kill reaches all of its children that stayed in the group.
type process struct {
	name    string // configured name of the server
	pid     int
	stdin   *os.File
	stdout  *os.File
	errPipe *os.File
	stderr  ring
	secrets []string // values of the configured environment: never shown

	output chan struct{} // closed at the first byte of output on either pipe
	once   sync.Once
	exited chan struct{} // closed when the process and its group have ended
	state  string        // how it ended: "exit status 3"; valid after exited

	mu     sync.Mutex
	proc   *os.Process
	reaped bool // the process id may belong to somebody else by now
	wg     sync.WaitGroup
}

// startProcess runs the server's command. The caller reads stdout to its end,
// and calls stop and close.
func startProcess(s Server) (*process, error) {
	env := childEnv(os.Environ(), s.Env)
	path, err := lookCommand(s.Command, env)
	if err != nil {
		return nil, fmt.Errorf("the command %q cannot be run: %w", s.Command, err)
	}
	p := &process{name: s.Name, output: make(chan struct{}), exited: make(chan struct{})}
	for _, v := range s.Env {
		if len(v) >= 8 {
			p.secrets = append(p.secrets, v)
		}
	}
	slices.SortFunc(p.secrets, func(a, b string) int { return len(b) - len(a) })

	cmd := &exec.Cmd{Path: path, Args: append([]string{s.Command}, s.Args...), Env: env, Dir: s.Cwd, SysProcAttr: groupAttr()}
	theirs, err := p.pipes(cmd)
	if err != nil {
		return nil, fmt.Errorf("make pipes: %w", err)
	}
	started := make(chan error, 1)
	p.wg.Go(func() {
		// The kernel tells a child that its parent died when the thread that
		// started it is gone: keep that thread.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		for _, f := range theirs {
			f.Close()
		}
		if err == nil {
			p.proc, p.pid = cmd.Process, cmd.Process.Pid
		}
		started <- err
		if err == nil {
			p.reap(cmd)
		}
	})
	if err := <-started; err != nil {
		p.wg.Wait()
		p.closePipes()
		return nil, fmt.Errorf("the command %q cannot be run: %w", s.Command, err)
	}
	p.wg.Go(p.drain)
	return p, nil
}

// pipes are our own and not exec's, which Wait would close with the last
// output unread.
func (p *process) pipes(cmd *exec.Cmd) (theirs []*os.File, err error) {
	var all []*os.File
	for range 3 {
		r, w, err := os.Pipe()
		if err != nil {
			for _, f := range all {
				f.Close()
			}
			return nil, err
		}
		all = append(all, r, w)
	}
	in, out, errs := all[0:2], all[2:4], all[4:6]
	p.stdin, p.stdout, p.errPipe = in[1], out[0], errs[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in[0], out[1], errs[1]
	return []*os.File{in[0], out[1], errs[1]}, nil
}

// reap waits for the process, ends what is left of its group, and only then
// gives the process id back, so that no signal can ever hit a stranger.
func (p *process) reap(cmd *exec.Cmd) {
	if err := exit.Await(p.pid); err == nil || errors.Is(err, exit.ErrGone) { // it is ours, and only we reap it
		p.mu.Lock()
		signalGroup(p.proc, kill)
		cmd.Wait()
	} else {
		cmd.Wait()
		p.mu.Lock()
	}
	p.reaped = true
	p.mu.Unlock()
	p.state = cmd.ProcessState.String()
	close(p.exited)
}

func (p *process) signal(sig groupSignal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		signalGroup(p.proc, sig)
	}
}

// stop ends the process, whose stdin the caller has closed: it gets eof to
// leave by itself and term after SIGTERM, then its group is killed (SPEC §5.9).
// When ctx is done it is killed at once. stop returns when it is gone.
func (p *process) stop(ctx context.Context, eof, term time.Duration) {
	if p.wait(ctx, eof) {
		return
	}
	if ctx.Err() == nil {
		p.signal(terminate)
		if p.wait(ctx, term) {
			return
		}
	}
	p.signal(kill)
	<-p.exited
}

// wait says whether the process ended within d and before ctx.
func (p *process) wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-p.exited:
		return true
	case <-t.C:
	case <-ctx.Done():
	}
	return false
}

// close ends reading and writing, after exited, and waits.
func (p *process) close() {
	t := time.AfterFunc(drainWait, p.closePipes)
	p.wg.Wait()
	t.Stop()
	p.closePipes()
}

func (p *process) closePipes() {
	p.stdin.Close()
	p.stdout.Close()
	p.errPipe.Close()
}

// Read reads stdout.
func (p *process) Read(b []byte) (int, error) {
	n, err := p.stdout.Read(b)
	if n > 0 {
		p.once.Do(func() { close(p.output) })
	}
	return n, err
}

// drain reads stderr always, so that a server that writes much of it never
// stands still (O26).
func (p *process) drain() {
	b := make([]byte, 4<<10)
	for {
		n, err := p.errPipe.Read(b)
		if n > 0 {
			p.once.Do(func() { close(p.output) })
			p.stderr.write(b[:n])
		}
		if err != nil {
			return
		}
	}
}

// said is a sentence with the last lines of stderr, for the text of a failure;
// empty if there are none. At most 2 KiB, without control characters and
// without the values of the configured environment.
func (p *process) said() string {
	text := p.stderr.text()
	for _, s := range p.secrets {
		text = strings.ReplaceAll(text, s, "***")
	}
	text = lastLines(plainText(text), 2<<10)
	if text == "" {
		return ""
	}
	return "\nThe tool server wrote to stderr:\n" + text
}

// plainText drops terminal sequences and control characters but line ends.
func plainText(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == 0x1b && i+1 < len(s) && s[i+1] == '[':
			for i += 2; i < len(s) && (s[i] < 0x40 || s[i] > 0x7e); i++ {
			}
		case c == '\n' || c >= ' ' && c != 0x7f:
			b.WriteByte(c)
		case c == '\t':
			b.WriteByte(' ')
		}
	}
	return strings.ToValidUTF8(b.String(), "")
}

// lastLines is the end of s in at most max bytes, from the start of a line
// where it can be.
func lastLines(s string, limit int) string {
	s = strings.TrimSpace(s)
	if len(s) <= limit {
		return s
	}
	s = s[len(s)-limit:]
	if i := strings.IndexByte(s, '\n'); i >= 0 && i < limit/2 {
		return strings.TrimSpace(s[i+1:])
	}
	return "…" + strings.ToValidUTF8(s[len("…"):], "")
}

// ring keeps the last 64 KiB written to it; older bytes are dropped.
type ring struct {
	mu   sync.Mutex
	buf  []byte
	pos  int // where the oldest byte is, once buf is full
	size int64
}

const ringSize = 64 << 10

func (r *ring) write(b []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.size += int64(len(b))
	if free := ringSize - len(r.buf); free > 0 {
		n := min(free, len(b))
		r.buf = append(r.buf, b[:n]...)
		b = b[n:]
	}
	for len(b) > 0 {
		n := copy(r.buf[r.pos:], b)
		r.pos = (r.pos + n) % ringSize
		b = b[n:]
	}
}

func (r *ring) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return string(r.buf[r.pos:]) + string(r.buf[:r.pos])
}

func (r *ring) written() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.size
}

// inherited are the variables that a child gets from our own environment, by
// name or by prefix. All others may hold secrets of longcall's or of its
// user's, and stay here; a server that needs one has it in its config.
var (
	inherited = []string{
		"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TERM", "TMPDIR", "TMP", "TEMP", "TZ",
		"SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
		"APPDATA", "LOCALAPPDATA", "HOMEDRIVE", "HOMEPATH", "USERPROFILE", "USERNAME", "PATHEXT", "COMSPEC",
		"SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "PROGRAMDATA", "PROGRAMFILES", "PROGRAMFILES(X86)", "PROGRAMW6432",
		"PROCESSOR_ARCHITECTURE", "NUMBER_OF_PROCESSORS",
	}
	inheritedPrefixes = []string{"LC_", "XDG_"}
	inheritedProxies  = []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"}
)

// childEnv is the allow-listed part of environ, and add over it.
func childEnv(environ []string, add map[string]string) []string {
	var env []string
	for _, kv := range environ {
		name, value, ok := strings.Cut(kv, "=")
		if _, own := add[name]; ok && !own && inherits(name, value) {
			env = append(env, kv)
		}
	}
	for name, value := range add {
		env = append(env, name+"="+value)
	}
	slices.Sort(env)
	return env
}

func inherits(name, value string) bool {
	upper := strings.ToUpper(name)
	if runtime.GOOS != "windows" && name != upper && !slices.Contains(inheritedProxies, upper) {
		return false
	}
	switch {
	case slices.Contains(inherited, upper):
		return true
	case slices.Contains(inheritedProxies, upper):
		// A proxy's address may carry a password.
		if !strings.Contains(value, "@") {
			return true
		}
		u, err := url.Parse(value)
		return err == nil && u.Host != "" && u.User == nil
	}
	return slices.ContainsFunc(inheritedPrefixes, func(p string) bool { return strings.HasPrefix(upper, p) })
}

// lookCommand finds a bare command name on the child's PATH, which the config
// may have set, and not on ours. A name with a slash is taken as it is,
// relative to the child's directory.
func lookCommand(name string, env []string) (string, error) {
	if name == "" {
		return "", errors.New("it is empty")
	}
	if strings.ContainsRune(name, '/') || runtime.GOOS == "windows" {
		return lookNative(name)
	}
	for _, kv := range env {
		list, ok := strings.CutPrefix(kv, "PATH=")
		if !ok {
			continue
		}
		for _, dir := range filepath.SplitList(list) {
			if !filepath.IsAbs(dir) {
				continue // never run what happens to lie in a working directory
			}
			if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
				return path, nil
			}
		}
	}
	return "", errors.New("it is not on the PATH that the server gets; give its full path, or set PATH in the server's env")
}

func lookNative(name string) (string, error) {
	if runtime.GOOS != "windows" {
		return name, nil
	}
	return exec.LookPath(name)
}
