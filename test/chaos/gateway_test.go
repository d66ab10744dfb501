package chaos_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// binary is the product, built once with -tags chaos: that adds nothing but the
// hook of LONGCALL_CRASH_AT.
var binary = sync.OnceValues(func() (string, error) {
	if bin := os.Getenv("LONGCALL_BIN"); bin != "" {
		return bin, nil
	}
	dir, err := os.MkdirTemp("", "longcall-chaos-*")
	if err != nil {
		return "", err
	}
	builtIn = dir
	bin := filepath.Join(dir, "longcall")
	cmd := exec.Command("go", "build", "-tags", "chaos", "-o", bin, "github.com/longcall/longcall/cmd/longcall")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the product: %w\n%s", err, out)
	}
	return bin, nil
})

var builtIn string // removed by TestMain

// ports below the range of ephemeral ones, so that no connection takes a port
// while its process is down.
var nextPort atomic.Int32

func init() { nextPort.Store(int32(12000 + rand.IntN(15000))) }

func freePort() (string, error) {
	for range 1000 {
		n := 12000 + (nextPort.Add(1)-12000)%18000
		addr := fmt.Sprintf("127.0.0.1:%d", n)
		if ln, err := net.Listen("tcp", addr); err == nil {
			ln.Close()
			return addr, nil
		}
	}
	return "", errors.New("no free port")
}

// gateway is the real binary on one state folder and one port, started again
// after every kill.
type gateway struct {
	bin, dir, addr string

	mu     sync.Mutex
	cmd    *exec.Cmd
	exited chan struct{}
	log    bytes.Buffer
	kills  []time.Time
	starts []time.Time
	armed  bool // its crash point is still to come
}

// Tokens of the two principals.
const (
	tokenAnn = "ann-0123456789abcdef0123456789abcdef"
	tokenBob = "bob-0123456789abcdef0123456789abcdef"
)

// newGateway writes the config. Servers is the YAML of mcpServers.
func newGateway(bin, dir, servers string) (*gateway, error) {
	addr, err := freePort()
	if err != nil {
		return nil, err
	}
	yaml := fmt.Sprintf(`listen: %s
state: %s
log: {level: warn}
auth: {tokens: {ann: %q, bob: %q}}
beats: {comment: 200ms, progress: 150ms}
disconnect_grace: 300ms
journal: {arguments: full}
limits: {connect: 10s, first_byte: 30s, idle: 15s, total: 60s}
shutdown: {drain: 5s}
reload: {watch: false}
clients:
  hasty: {budget: 350ms, budget_token: 350ms, task_budget: 100ms}
  chaos: {task_budget: 250ms}
mcpServers:
%s`, addr, filepath.Join(dir, "state"), tokenAnn, tokenBob, servers)
	if err := os.WriteFile(filepath.Join(dir, "longcall.yaml"), []byte(yaml), 0o600); err != nil {
		return nil, err
	}
	return &gateway{bin: bin, dir: dir, addr: addr}, nil
}

func (g *gateway) journal() string { return filepath.Join(g.dir, "state", "journal.db") }

// Write takes the log of all its processes.
func (g *gateway) Write(b []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.log.Len() < 1<<20 {
		g.log.Write(b)
	}
	return len(b), nil
}

// start starts a process, and waits until it is ready or has ended.
func (g *gateway) start(ctx context.Context, env ...string) error {
	if err := g.launch(env...); err != nil {
		return err
	}
	return g.ready(ctx)
}

// launch starts a process.
func (g *gateway) launch(env ...string) error {
	cmd := exec.Command(g.bin, "serve", "--config", filepath.Join(g.dir, "longcall.yaml"))
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr, cmd.Stdout = g, g
	if err := cmd.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	go func() {
		cmd.Wait()
		close(exited)
	}()
	g.mu.Lock()
	g.cmd, g.exited = cmd, exited
	g.mu.Unlock()
	return nil
}

// ready waits until the process that was launched serves.
func (g *gateway) ready(ctx context.Context) error {
	exited := g.over()
	tr := &http.Transport{DisableKeepAlives: true}
	late := time.NewTimer(20 * time.Second)
	defer late.Stop()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for {
		if g.serves(ctx, tr) {
			g.mu.Lock()
			g.starts = append(g.starts, time.Now())
			g.mu.Unlock()
			return nil
		}
		select {
		case <-look.C:
		case <-exited:
			return errors.New("longcall ended at its start")
		case <-late.C:
			return errors.New("longcall is not ready 20 s after its start")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (g *gateway) serves(ctx context.Context, tr *http.Transport) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+g.addr+"/readyz", http.NoBody)
	if err != nil {
		return false
	}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// kill is kill -9, and waits until the process is gone.
func (g *gateway) kill() {
	g.mu.Lock()
	cmd, exited := g.cmd, g.exited
	g.mu.Unlock()
	if cmd == nil {
		return
	}
	now := time.Now()
	cmd.Process.Kill() // it may have ended by itself
	<-exited
	g.mu.Lock()
	defer g.mu.Unlock()
	g.kills = append(g.kills, now)
	g.cmd = nil
}

// stop asks the process to end, and says whether it did so cleanly in time.
func (g *gateway) stop() error {
	g.mu.Lock()
	cmd, exited := g.cmd, g.exited
	g.mu.Unlock()
	if cmd == nil {
		return nil
	}
	cmd.Process.Signal(syscall.SIGTERM)
	late := time.NewTimer(15 * time.Second)
	defer late.Stop()
	select {
	case <-exited:
	case <-late.C:
		cmd.Process.Signal(syscall.SIGQUIT) // its stacks go to the log
		<-exited
		return errors.New("longcall did not end within 15 s of SIGTERM, with nothing to wait for")
	}
	g.mu.Lock()
	g.cmd = nil
	armed := g.armed
	g.mu.Unlock()
	if s, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && armed && s.Signal() == syscall.SIGKILL {
		g.mu.Lock()
		g.kills = append(g.kills, time.Now())
		g.mu.Unlock()
		return nil
	}
	if code := cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("longcall ended with %v after SIGTERM", cmd.ProcessState)
	}
	return nil
}

// over is closed when the process has ended.
func (g *gateway) over() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.exited
}

// wait waits for the process to end by itself, and says whether it did.
func (g *gateway) wait(limit time.Duration) bool {
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-g.over():
		g.crashed()
		return true
	case <-t.C:
		return false
	}
}

// crashed notes that the process has ended by itself.
func (g *gateway) crashed() {
	<-g.over()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.kills = append(g.kills, time.Now())
	g.cmd = nil
}

// killedIn says whether a process was killed between two times.
func (g *gateway) killedIn(from, to time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, t := range g.kills {
		if !t.Before(from) && !t.After(to) {
			return true
		}
	}
	return false
}

// lastLog is the end of the log.
func (g *gateway) lastLog(n int) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	b := g.log.Bytes()
	return string(b[max(0, len(b)-n):])
}
