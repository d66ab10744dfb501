package cli

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"syscall"

	"github.com/longcall/longcall/internal/app"
	"github.com/longcall/longcall/internal/relay"
)

type stdioCmd struct {
	stateFlags
	Server string `placeholder:"NAME" help:"Only the tools of this server, under their own names."`
}

// Help has the details and examples.
func (stdioCmd) Help() string {
	return `For hosts that only start commands: an MCP server on standard input and output.
It is a relay to the "longcall serve" that uses the state folder. If there is
none, it starts one in the background, which stays for 10 minutes after it was
last needed. So calls go on when the host closes the pipe, crashes or restarts,
and the next host finds them (list_calls, await_call).

Several hosts share one serve. Its log is serve.log in the state folder.

Examples:
  {"command": "longcall", "args": ["stdio", "--config", "/home/me/longcall.yaml"]}
  longcall stdio --server files`
}

// Run is the command.
func (c *stdioCmd) Run(r *runner) error {
	cfg, err := c.load(r.sys)
	if err != nil {
		return err
	}
	path, asked, err := c.configPath(r.sys)
	if err != nil {
		return err
	}
	endpoint := "/mcp"
	if c.Server != "" {
		endpoint += "/" + url.PathEscape(c.Server)
	}
	b := &background{state: cfg.State, config: path, asked: asked}
	return relayStdio(r, func(ctx context.Context) (relay.Target, error) {
		s, err := b.find(ctx)
		if err != nil {
			return relay.Target{}, err
		}
		return relay.Target{Base: s.URL, Path: endpoint, Token: readToken(cfg.State), Presence: "/api/presence"}, nil
	})
}

// otherConfig says why a relay does not use the serve that is there: its tool
// servers would be others than those that were asked for.
func otherConfig(state, asked string, s *app.Serving) error {
	has := "without a config"
	if s.Config != "" {
		has = "with the config " + s.Config
	}
	return exit(exitUsage, "this asks for the config %s, but the longcall that uses the state folder %s (process %d) runs %s. Use the same config in both places, or give this one a state folder of its own with --state", asked, state, s.PID, has)
}

// relayStdio relays between the standard input and output and what find finds,
// until the host closes its end or a signal says stop.
func relayStdio(r *runner, find func(ctx context.Context) (relay.Target, error)) error {
	sys := r.sys
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	sigs := make(chan os.Signal, 4)
	// Without a handler for SIGPIPE, a host that is gone would end us before we
	// have said goodbye to the serve.
	defer sys.Notify(sigs, os.Interrupt, syscall.SIGTERM, syscall.SIGPIPE)()
	wg.Go(func() {
		for {
			select {
			case s := <-sigs:
				if s != syscall.SIGPIPE {
					cancel()
				}
			case <-ctx.Done():
				return
			}
		}
	})
	return relay.Run(ctx, relay.Options{
		In: sys.In, Out: sys.Out, Find: find,
		Say: func(format string, args ...any) {
			for line := range strings.SplitSeq(fmt.Sprintf(format, args...), "\n") {
				fmt.Fprintln(sys.Err, "longcall: "+clean(line))
			}
		},
	})
}
