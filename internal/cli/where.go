package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/longcall/longcall/internal/app"
	"github.com/longcall/longcall/internal/cli/client"
	"github.com/longcall/longcall/internal/config"
	"github.com/longcall/longcall/internal/journal/sqlite"
)

// stateFlags say which config and which state folder a command is about.
type stateFlags struct {
	Config string `short:"c" placeholder:"FILE" env:"LONGCALL_CONFIG" help:"Config file: longcall's YAML, or any host's mcpServers JSON. Without it, ~/.config/longcall/config.yaml is used if it is there."`
	State  string `placeholder:"DIR" env:"LONGCALL_STATE" help:"State folder: journal, token, tool lists."`
}

// file is the config to read; empty if there is none.
func (f *stateFlags) file(sys *System) string {
	if f.Config != "" {
		return f.Config
	}
	dir, _ := sys.LookupEnv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(dir) {
		home, _ := sys.LookupEnv("HOME")
		if home == "" {
			return ""
		}
		dir = filepath.Join(home, ".config")
	}
	for _, name := range []string{"config.yaml", "config.yml", "config.json"} {
		path := filepath.Join(dir, "longcall", name)
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return ""
}

// load reads the config, and puts the flags over it.
func (f *stateFlags) load(sys *System) (*config.Config, error) {
	c, err := config.Load(f.file(sys), sys.LookupEnv)
	if err != nil {
		return nil, err
	}
	if f.State != "" {
		if c.State, err = filepath.Abs(f.State); err != nil {
			return nil, usage("--state: %v", err)
		}
	}
	return c, nil
}

// journal opens the journal of the state folder, to read.
func (f *stateFlags) journal(sys *System) (*sqlite.Reader, error) {
	c, err := f.load(sys)
	if err != nil {
		return nil, err
	}
	return openJournal(c.State)
}

// whereFlags say which running longcall a command talks to.
type whereFlags struct {
	stateFlags
	URL   string `name:"url" group:"where" placeholder:"URL" env:"LONGCALL_URL" help:"Its address, such as http://127.0.0.1:8722. Default: the one that uses the state folder."`
	Token string `group:"where" placeholder:"TOKEN" env:"LONGCALL_TOKEN" help:"Its bearer token. Default: the one in the state folder."`
}

// gateway is a longcall to talk to.
type gateway struct {
	url   string // without /mcp
	token string
	state string // its state folder, if it is on this machine; else empty
	stop  func() // ends what runs in this process for it; may be called twice
}

// endpoint is the client for all servers, or for one.
func (g *gateway) endpoint(server string) *client.Client {
	u := g.url + "/mcp"
	if server != "" {
		u += "/" + url.PathEscape(server)
	}
	return &client.Client{URL: u, Token: g.token, Name: clientName, Version: buildVersion().Version}
}

// clientName is how the command line introduces itself to longcall.
const clientName = "longcall-cli"

func tokenPath(state string) string { return filepath.Join(state, "token") }

func readToken(state string) string {
	b, err := os.ReadFile(tokenPath(state))
	if err != nil {
		return "" // without authentication there is none
	}
	return strings.TrimSpace(string(b))
}

// baseURL takes the address of a longcall with or without its path.
func baseURL(s string) (string, error) {
	if !strings.Contains(s, "://") {
		s = "http://" + s
	}
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", usage("--url: %q is no address. Write it like http://127.0.0.1:8722", s)
	}
	u.RawQuery, u.Fragment = "", ""
	u.Path = strings.TrimSuffix(strings.TrimSuffix(u.Path, "/"), "/mcp")
	return u.String(), nil
}

// running finds a longcall that is there: the one that --url names, or the one
// that serves the state folder. It is nil if nothing serves it.
func (f *whereFlags) running(ctx context.Context, sys *System) (*gateway, error) {
	state := f.State
	c, err := f.load(sys)
	if err == nil {
		state = c.State
	} else if f.URL == "" {
		return nil, err
	}
	if f.URL != "" {
		base, err := baseURL(f.URL)
		if err != nil {
			return nil, err
		}
		g := &gateway{url: base, token: f.Token, stop: func() {}}
		if u, err := app.Running(state); err == nil && u == base {
			g.state = state
			if g.token == "" {
				g.token = readToken(state)
			}
		}
		return g, nil
	}
	u, err := app.Running(state)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !answers(ctx, u) {
		return nil, nil // a crash left its file behind
	}
	g := &gateway{url: u, token: f.Token, state: state, stop: func() {}}
	if g.token == "" {
		g.token = readToken(state)
	}
	return g, nil
}

// answers says whether something listens at the address.
func answers(ctx context.Context, base string) bool {
	u, err := url.Parse(base)
	if err != nil {
		return false
	}
	d := net.Dialer{Timeout: 2 * time.Second}
	c, err := d.DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return false
	}
	c.Close()
	return true
}

func noneRunning(state string) error {
	return exit(exitUnreachable, "no longcall is running on the state folder %s. Start one with: longcall serve --config FILE. Or name one with --url, or a config with --config", state)
}

// connect is running, or a longcall of this process for the one command if
// nothing serves the state folder and there is a config to serve.
func (f *whereFlags) connect(ctx context.Context, sys *System) (*gateway, error) {
	g, err := f.running(ctx, sys)
	if g != nil || err != nil {
		return g, err
	}
	c, err := f.load(sys)
	if err != nil {
		return nil, err
	}
	if c.File == "" || len(c.Enabled()) == 0 {
		return nil, noneRunning(c.State)
	}
	return startHere(ctx, c)
}

// startHere serves a config in this process, on a free port of the loopback
// interface, until stop.
func startHere(ctx context.Context, c *config.Config) (*gateway, error) {
	c.Listen = "127.0.0.1:0"
	c.Reload.Watch = false
	c.Shutdown.Drain = min(c.Shutdown.Drain, 3*time.Second) // nobody else's calls run here
	a, err := app.New(app.Options{Config: c, Log: slog.New(slog.DiscardHandler), Version: buildVersion().Version})
	if err != nil {
		return nil, fmt.Errorf("start longcall for this command: %w", err)
	}
	// It outlives a cancelled command by its graceful stop.
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = a.Run(run) // how it stops matters to nobody any more
	}()
	return &gateway{url: a.URL(), token: a.Token(), state: c.State, stop: sync.OnceFunc(func() {
		cancel()
		<-done
	})}, nil
}
