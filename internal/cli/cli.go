// Package cli is longcall's command line.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/longcall/longcall/internal/config"
	"github.com/longcall/longcall/internal/shell"
)

// Exit codes that scripts can rely on. Help of "longcall call" lists them.
const (
	exitOK          = 0
	exitToolError   = 1 // the tool says that it failed; also any failure of other commands
	exitUsage       = 2 // command line or config
	exitUnreachable = 3 // no longcall there, or the tool server cannot be used
	exitDenied      = 4
	exitCancelled   = 5
	exitTimedOut    = 6
	exitInterrupted = 7 // outcome unknown
	exitRPC         = 8 // JSON-RPC error
)

// exitError is an error with the exit code that it means.
type exitError struct {
	code int
	err  error // nil: what there is to say was said
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func exit(code int, format string, args ...any) error {
	return &exitError{code, fmt.Errorf(format, args...)}
}

func usage(format string, args ...any) error { return exit(exitUsage, format, args...) }

// System is what a command line needs of the world.
type System struct {
	In  io.Reader
	Out io.Writer
	Err io.Writer

	InTerminal  bool
	OutTerminal bool
	ErrTerminal bool
	Width       func() int // columns of the terminal; 0 if there is none
	Color       bool

	LookupEnv func(string) (string, bool)
	// Notify hands signals to c until stop is called.
	Notify func(c chan<- os.Signal, sig ...os.Signal) (stop func())
}

func (s *System) width() int {
	if s.Width != nil {
		if w := s.Width(); w > 0 {
			return w
		}
	}
	return 80
}

// grammar is the whole command line.
type grammar struct {
	Serve serveCmd `cmd:"" group:"run" help:"Run the gateway: agents connect here, tool servers stand behind."`

	Stdio stdioCmd `cmd:"" group:"run" help:"Be an MCP server on standard input and output, for hosts that only start commands."`

	Wrap wrapCmd `cmd:"" group:"run" help:"Be one stdio server in front of which it is put, so that its calls outlive the host."`

	Demo demoCmd `cmd:"" group:"run" help:"See the problem and the cure in under a minute, with no set-up."`

	Call  callCmd  `cmd:"" group:"use" help:"Call a tool like an agent would, and watch its progress."`
	Tools toolsCmd `cmd:"" group:"use" help:"List the tools of all servers, or of one."`
	Calls callsCmd `cmd:"" group:"use" help:"List calls, show what happened to one, follow it, cancel it."`

	Clients    clientsCmd    `cmd:"" group:"set" help:"Print the entry that connects a client: Claude Code, Codex, VS Code, Cursor."`
	Config     configCmd     `cmd:"" group:"set" help:"Check a config file, or print every default."`
	Completion completionCmd `cmd:"" group:"set" help:"Print the script that completes commands in your shell."`
	Version    versionCmd    `cmd:"" group:"set" help:"Print the version."`
}

// runner is what a command is given.
type runner struct {
	ctx context.Context
	sys *System
	app *kong.Kong
}

const description = `longcall keeps long MCP tool calls alive: a gateway between agents and tool servers that shows life while a tool works, keeps a record of every call, and runs nothing twice.

Examples:

    longcall demo
    longcall serve --config ~/.mcp.json
    longcall call files list_directory path=.
    longcall calls --running`

func newParser(sys *System, g *grammar) (*kong.Kong, error) {
	return kong.New(
		g,
		kong.Name("longcall"),
		kong.Description(description),
		kong.Writers(sys.Out, sys.Err),
		kong.ExplicitGroups([]kong.Group{
			{Key: "run", Title: "Run it:"},
			{Key: "use", Title: "Use it:"},
			{Key: "set", Title: "Set it up:"},
			{Key: "where", Title: "Where the running longcall is:"},
		}),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
		kong.Exit(func(code int) { panic(exited(code)) }),
		kong.Help(helpPrinter),
	)
}

// exited carries the code of kong's own exit, after --help, out of the parser.
type exited int

// Main runs one command line and returns its exit code. ctx is the life of the
// process; signals come through sys.
func Main(ctx context.Context, sys *System, args []string) (code int) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case exited:
			code = int(v)
		default:
			panic(v)
		}
	}()
	if len(args) > 0 && args[0] == shell.ShimCommand {
		return shell.Shim(args[1:]) // small and quick: before anything else is set up
	}
	if len(args) > 0 && args[0] == "__complete" {
		complete(ctx, sys, args[1:])
		return exitOK
	}
	var g grammar
	k, err := newParser(sys, &g)
	if err != nil {
		return fail(sys, err)
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	kctx, err := k.Parse(args)
	if err != nil {
		return fail(sys, parseFailure(err))
	}
	if err := kctx.Run(&runner{ctx, sys, k}); err != nil {
		return fail(sys, err)
	}
	return exitOK
}

// parseFailure says what is wrong with the command line, in one line.
func parseFailure(err error) error {
	hint := "longcall --help"
	var pe *kong.ParseError
	if errors.As(err, &pe) && pe.Context != nil {
		if n := pe.Context.Selected(); n != nil {
			hint = n.FullPath() + " --help"
		} else if p := pe.Context.Path; len(p) > 1 && p[len(p)-1].Command != nil {
			hint = p[len(p)-1].Command.FullPath() + " --help"
		}
	}
	return usage("%s; see %s", err, hint)
}

// fail prints an error and returns the exit code that it means.
func fail(sys *System, err error) int {
	code := exitToolError
	var e *exitError
	var ce config.Errors
	switch {
	case errors.As(err, &e):
		code = e.code
		if e.err == nil {
			return code
		}
	case errors.As(err, &ce):
		code = exitUsage
	}
	for line := range strings.SplitSeq(err.Error(), "\n") {
		fmt.Fprintln(sys.Err, "longcall: "+clean(line))
	}
	return code
}
