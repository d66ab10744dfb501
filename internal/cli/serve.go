package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/longcall/longcall/internal/app"
	"github.com/longcall/longcall/internal/config"
	"github.com/longcall/longcall/internal/telemetry"
)

type serveCmd struct {
	stateFlags
	Listen     string        `short:"l" placeholder:"ADDR" help:"Address to listen on, host:port. Default: 127.0.0.1:8722; with --background, a free port of 127.0.0.1."`
	NoAuth     bool          `help:"Ask agents for no token. Only on a loopback address: then every program of this machine may call."`
	LogFormat  string        `enum:",text,json" default:"" placeholder:"FORMAT" help:"How log lines are written to stderr: text or json."`
	Replace    bool          `help:"Take over from the longcall that runs on the state folder, without losing an answer; not on Windows."`
	IdleExit   time.Duration `placeholder:"TIME" help:"End when nobody has needed longcall for that long. Default: never; 10m in the background."`
	Background bool          `help:"Start it detached from the terminal, with its log in serve.log of the state folder, and return when it serves."`
	Detached   bool          `hidden:"" help:"This is the process that --background or a relay has started."`
	LogLevel   string        `enum:",debug,info,warn,error" default:"" placeholder:"LEVEL" help:"From which level on: debug, info, warn or error."`
}

// Help has the details and examples.
func (serveCmd) Help() string {
	return `Without any config it listens on 127.0.0.1:8722, keeps its journal in your
state folder, and makes a token that agents must send.

Examples:
  longcall serve                                 no tool server yet; shows how to connect
  longcall serve --config ~/.cursor/mcp.json     the servers of a file you have already
  longcall serve -c longcall.yaml --listen 127.0.0.1:9000
  longcall serve --no-auth --log-format json
  longcall serve --replace                       take over from the one that runs
  longcall serve --background                    until nobody has needed it for 10 minutes

Signals:
  HUP         read the config again; running calls go on
  INT, TERM   stop: no new calls, running ones may end (shutdown.drain)
  a second    stop at once`
}

// Run is the command.
func (c *serveCmd) Run(r *runner) error {
	sys := r.sys
	cfg, err := c.load(sys)
	if err != nil {
		return err
	}
	if c.Listen != "" {
		cfg.Listen = c.Listen
	}
	if c.LogFormat != "" {
		cfg.Log.Format = config.Format(c.LogFormat)
	}
	if c.LogLevel != "" {
		cfg.Log.Level = config.Level(c.LogLevel)
	}
	if err := cfg.Check(); err != nil {
		return err
	}
	if c.NoAuth && !loopback(cfg.Listen) {
		return usage("--no-auth on %s would let everybody who can reach this machine call your tools. Leave it out, or listen on 127.0.0.1", cfg.Listen)
	}
	if c.Background {
		return c.background(r, cfg)
	}
	log, level, sink, closeLog := openLog(sys, cfg.Log)
	defer closeLog()
	for _, w := range cfg.Warnings {
		if c.Detached && c.Listen != "" && w.Key == "listen" {
			continue // a relay has chosen it, and finds us
		}
		log.Warn("config has something without effect", "where", w.Error())
	}
	old, err := c.predecessor(r, cfg, log)
	if err != nil {
		return err
	}
	_, err = os.Stat(tokenPath(cfg.State))
	first := errors.Is(err, fs.ErrNotExist)
	a, err := app.New(app.Options{
		Config: cfg, ConfigPath: cfg.File, NoAuth: c.NoAuth,
		Log: log, Level: level, LogDrops: sink.Dropped, Version: buildVersion().Version,
		IdleExit: c.IdleExit, Background: c.Detached, Predecessor: old,
	})
	if err != nil {
		return err
	}
	jsonOnly := cfg.Log.Format == config.FormatJSON && !sys.ErrTerminal || c.Detached
	if jsonOnly { // whoever reads JSON lines there gets nothing else
		log.Info("longcall serves", "url", a.URL()+"/mcp", "config", cfg.File, "state", cfg.State, "servers", cfg.Enabled(), "shell", cfg.Shell.Enabled, "auth", !c.NoAuth)
	} else {
		banner(sys, cfg, a.URL(), a.Token(), first && sys.ErrTerminal)
	}
	say := func(format string, args ...any) {
		if !jsonOnly {
			fmt.Fprintf(sys.Err, "longcall: "+format+"\n", args...)
		}
	}
	return supervise(r.ctx, sys, a, func() {
		say("stopping; running calls have %s to end. Once more to stop at once", cfg.Shutdown.Drain)
	})
}

// background starts a serve that stays when this command has ended.
func (c *serveCmd) background(r *runner, cfg *config.Config) error {
	if c.Replace {
		return usage("--replace takes over in this process, and --background starts another one: leave out one of them")
	}
	path, _, err := c.configPath(r.sys)
	if err != nil {
		return err
	}
	if s, there := ready(r.ctx, cfg.State); there {
		return exit(exitToolError, "the state folder %s is used by another longcall already (process %d, %s)", cfg.State, s.PID, s.URL)
	}
	b := &background{state: cfg.State, config: path, listen: c.Listen, idle: c.IdleExit}
	if c.NoAuth {
		b.flags = append(b.flags, "--no-auth")
	}
	for flag, value := range map[string]string{"--log-format": c.LogFormat, "--log-level": c.LogLevel} {
		if value != "" {
			b.flags = append(b.flags, flag, value)
		}
	}
	s, err := b.find(r.ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(r.sys.Err, "longcall: process %d serves at %s/mcp; its log is %s\n", s.PID, s.URL, clean(logPath(cfg.State)))
	return nil
}

// predecessor is the serve to take over from, ready to hand over; nil if none
// runs. One that a relay has started in the background gives way to any that a
// person starts; another one only if it is said so.
func (c *serveCmd) predecessor(r *runner, cfg *config.Config, log *slog.Logger) (*app.Predecessor, error) {
	s, there := ready(r.ctx, cfg.State)
	switch {
	case !there || c.Detached:
		return nil, nil
	case !c.Replace && !s.Background:
		return nil, exit(exitToolError, "the state folder %s is used by another longcall (process %d, %s). Stop that one, choose another folder with --state, or take over from it without losing an answer: longcall serve --replace", cfg.State, s.PID, s.URL)
	}
	if s.Background {
		log.Info("taking over from the longcall that was started in the background", "pid", s.PID)
	} else {
		log.Info("taking over", "pid", s.PID)
	}
	p, err := app.TakeOver(r.ctx, s.URL, readToken(cfg.State))
	if err != nil {
		return nil, exit(exitToolError, "cannot take over from process %d, which goes on: %w", s.PID, err)
	}
	return p, nil
}

// supervise runs a until it ends or a signal says so.
func supervise(ctx context.Context, sys *System, a *app.App, stopped func()) error {
	sigs := make(chan os.Signal, 8)
	defer sys.Notify(sigs, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	stopping := false
	for {
		select {
		case err := <-done:
			return err
		case s := <-sigs:
			switch {
			case s == syscall.SIGHUP:
				// What is wrong with the new config is in the log; the old one goes on.
				_ = a.Reload()
			case stopping:
				return &exitError{code: signalCode(s)}
			default:
				stopping = true
				stopped()
				cancel()
			}
		}
	}
}

// signalCode is the exit code of a process that a signal ended.
func signalCode(s os.Signal) int {
	if n, ok := s.(syscall.Signal); ok {
		return 128 + int(n)
	}
	return exitToolError
}

// openLog makes the log: no line waits for a terminal that is paused, and no
// secret gets into one. close writes what is left.
func openLog(sys *System, l config.Log) (log *slog.Logger, level *slog.LevelVar, sink *telemetry.Sink, closeLog func()) {
	level = new(slog.LevelVar)
	level.Set(l.Level.Slog())
	sink = telemetry.NewSink(sys.Err, 0)
	go sink.Run() // Close waits for it
	return telemetry.Logger(sink, level, string(l.Format)), level, sink, func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = sink.Close(ctx) // whoever does not read stderr loses its last lines
	}
}

// loopback says whether an address to listen on can be reached from this
// machine only.
func loopback(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return false
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap().IsLoopback()
}

// banner says where longcall is and how to connect to it. reveal shows the
// token itself: never where stderr may be kept.
func banner(sys *System, cfg *config.Config, url, token string, reveal bool) {
	w := sys.Err
	bold := func(s string) string {
		if !sys.ErrTerminal {
			return s
		}
		return sys.style("1", s)
	}
	fmt.Fprintf(w, "longcall %s serves at %s\n\n", buildVersion().Version, bold(url+"/mcp"))
	if cfg.File != "" {
		fmt.Fprintf(w, "  config   %s\n", clean(cfg.File))
	} else {
		fmt.Fprintf(w, "  config   none: name one with --config FILE; longcall config defaults prints a start\n")
	}
	fmt.Fprintf(w, "  state    %s\n", clean(cfg.State))
	names := cfg.Enabled()
	if len(names) == 0 {
		fmt.Fprintf(w, "  servers  none yet: put some under mcpServers in the config\n")
	}
	for i, name := range names {
		label := "         "
		if i == 0 {
			label = "  servers"
		}
		fmt.Fprintf(w, "%s  %s  %s\n", label, clean(name), clean(cfg.Servers[name].Where()))
	}
	if cfg.Shell.Enabled {
		fmt.Fprintf(w, "  shell    agents run commands in %s\n", clean(strings.Join(cfg.Shell.Roots, ", ")))
	}
	switch {
	case token == "":
		fmt.Fprintf(w, "  token    none is asked for (--no-auth)\n")
	case reveal:
		fmt.Fprintf(w, "  token    %s\n           also in %s\n", bold(token), clean(tokenPath(cfg.State)))
	default:
		fmt.Fprintf(w, "  token    in %s\n", clean(tokenPath(cfg.State)))
	}
	e := entry{url: url + "/mcp", name: "longcall", auth: token != ""}
	if reveal {
		e.token = token
	} else if e.auth {
		e.tokenFile = tokenPath(cfg.State)
	}
	fmt.Fprintf(w, "\nConnect a client (again at any time: longcall clients):\n\n")
	for _, c := range clients {
		printEntry(w, c, e, bold)
	}
}
