package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/longcall/longcall/internal/app"
	"github.com/longcall/longcall/internal/relay"
)

type wrapCmd struct {
	stateFlags
	Name    string   `placeholder:"NAME" help:"What records call the server. Default: from the command."`
	Command []string `arg:"" passthrough:"" name:"command" help:"The server's command and its arguments, after --."`
}

// Help has the details and examples.
func (wrapCmd) Help() string {
	return `Put it in front of one stdio server in a host's config; that is the whole set-up.
The server runs in the "longcall serve" that uses the state folder, with the
command, environment and folder that the host gave, and its tools keep their
names. If there is no serve, one is started in the background. Calls go on when
the host closes the pipe or crashes, and the same line finds them again.

The environment is handed to the serve over loopback and kept in memory only.

Examples:
  before: {"command": "npx", "args": ["-y", "server-files", "."]}
  after:  {"command": "longcall", "args": ["wrap", "--", "npx", "-y", "server-files", "."]}`
}

// Run is the command.
func (c *wrapCmd) Run(r *runner) error {
	command := c.Command
	if len(command) > 0 && command[0] == "--" {
		command = command[1:]
	}
	if len(command) == 0 {
		return usage("there is no command to wrap. Write it after --: longcall wrap -- npx -y server-files")
	}
	cfg, err := c.load(r.sys)
	if err != nil {
		return err
	}
	path, asked, err := c.configPath(r.sys)
	if err != nil {
		return err
	}
	cwd, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("find the folder that this command runs in: %w", err)
	}
	if c.Name == "" {
		c.Name = nameOf(command)
	}
	w := &wrapping{state: cfg.State, spec: app.Wrap{Name: c.Name, Command: command[0], Args: command[1:], Env: environment(), Cwd: cwd}}
	b := &background{state: cfg.State, config: path, asked: asked}
	err = relayStdio(r, func(ctx context.Context) (relay.Target, error) {
		for tries := 1; ; tries++ {
			s, err := b.find(ctx)
			if err != nil {
				return relay.Target{}, err
			}
			t, err := w.register(ctx, s.URL)
			var lost *url.Error // it was there a moment ago
			if err == nil || !errors.As(err, &lost) || tries == startTries || ctx.Err() != nil {
				return t, err
			}
		}
	})
	w.leave(context.WithoutCancel(r.ctx))
	return err
}

// environment is that of this process: the host's.
func environment() map[string]string {
	env := map[string]string{}
	for _, kv := range os.Environ() {
		if name, value, ok := strings.Cut(kv, "="); ok && name != "" {
			env[name] = value
		}
	}
	return env
}

// launchers run a package or script that says more than their own name.
var launchers = map[string]bool{
	"npx": true, "bunx": true, "uvx": true, "pipx": true, "uv": true, "node": true, "bun": true, "deno": true,
	"python": true, "python3": true, "docker": true, "podman": true, "sh": true, "bash": true, "env": true,
}

// nameOf makes a name of a command line. It is in logs and records: what may be
// a script or a setting is no part of it.
func nameOf(command []string) string {
	name := base(command[0])
	if !launchers[name] {
		return name
	}
	for _, a := range command[1:] {
		if !strings.HasPrefix(a, "-") && a != "run" && a != "exec" && a != "tool" && !strings.ContainsAny(a, "= \t\n") && base(a) != "" {
			return base(a)
		}
	}
	return name
}

// base is the last part of a path or package, without version and extension.
func base(s string) string {
	s = filepath.Base(filepath.ToSlash(s))
	if i := strings.LastIndexByte(s, '@'); i > 0 {
		s = s[:i]
	}
	for _, ext := range []string{".exe", ".cmd", ".py", ".js", ".mjs", ".cjs", ".ts", ".sh"} {
		s = strings.TrimSuffix(s, ext)
	}
	return strings.Trim(s, "./")
}

// wrapping is the place of our server at the serve.
type wrapping struct {
	state string
	spec  app.Wrap

	mu  sync.Mutex
	url string // of the serve that knows the lease
}

const registerTime = 10 * time.Second

// register brings our server to a serve, again if need be.
func (w *wrapping) register(ctx context.Context, base string) (relay.Target, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	body, err := json.Marshal(w.spec)
	if err != nil {
		return relay.Target{}, fmt.Errorf("tell longcall about the server: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, registerTime)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/api/wraps", bytes.NewReader(body))
	if err != nil {
		return relay.Target{}, fmt.Errorf("tell longcall about the server: %w", err)
	}
	token := readToken(w.state)
	q.Header.Set("Authorization", "Bearer "+token)
	q.Header.Set("Content-Type", "application/json")
	resp, err := direct.Do(q)
	if err != nil {
		return relay.Target{}, exit(exitUnreachable, "tell longcall about the server: %w", err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return relay.Target{}, exit(exitUnreachable, "tell longcall about the server: %w", err)
	}
	if resp.StatusCode == http.StatusNotFound {
		return relay.Target{}, exit(exitUnreachable, "the longcall at %s is too old to wrap a server: stop it, and this command starts a new one", base)
	}
	var got app.Wrapped
	if resp.StatusCode != http.StatusOK || json.Unmarshal(b, &got) != nil {
		return relay.Target{}, exit(exitUnreachable, "longcall does not take the server: %s", strings.TrimSpace(string(b)))
	}
	w.url, w.spec.Lease = base, got.Lease
	return relay.Target{
		Base: base, Path: "/mcp/" + url.PathEscape(got.Server), Token: token,
		Presence: "/api/presence?lease=" + url.QueryEscape(got.Lease),
	}, nil
}

// leave says that the host is gone: the server ends when none of its calls runs.
func (w *wrapping) leave(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.url == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodDelete, w.url+"/api/wraps/"+url.PathEscape(w.spec.Lease), nil)
	if err != nil {
		return
	}
	q.Header.Set("Authorization", "Bearer "+readToken(w.state))
	if resp, err := direct.Do(q); err == nil {
		resp.Body.Close()
	}
}
