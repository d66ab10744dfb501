package downstream

import (
	"context"
	"slices"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// shellCatalog is the catalog of the tool servers with the shell among them.
type shellCatalog struct {
	Catalog
	shell Shell
}

func (c shellCatalog) Servers() []string { return append(c.Catalog.Servers(), serverShell) }

func (c shellCatalog) Tools(ctx context.Context, caller call.Caller, server string) ([]mcp.Entry, bool, error) {
	if server == serverShell {
		return c.shell.Tools(caller.Principal), true, nil
	}
	return c.Catalog.Tools(ctx, caller, server)
}

// Private passes on which servers only those hear of who know their name.
func (c shellCatalog) Private(server string) bool {
	p, is := c.Catalog.(interface{ Private(server string) bool })
	return is && server != serverShell && p.Private(server)
}

var (
	shellCalls   = []string{toolExec, toolParallel}
	shellAnswers = []string{toolRead, toolWrite}
)

// shellTool is the shell's tool that a name at /mcp means without its server's
// name before it; empty if it is none.
func (x *exchange) shellTool(public string) string {
	if x.server == "" && x.h.opt.Shell != nil && (slices.Contains(shellCalls, public) || slices.Contains(shellAnswers, public)) {
		return public
	}
	return ""
}

// shellNames are the names of the shell's tools and of ours at the endpoint.
func (x *exchange) shellNames() ShellNames {
	own, prefix := x.ownNames(), ""
	if x.server == "" {
		prefix = serverShell + separator
	}
	return ShellNames{
		Exec: prefix + toolExec, Parallel: prefix + toolParallel, Read: prefix + toolRead, Write: prefix + toolWrite,
		Await: own.await, List: own.list, Cancel: own.cancel,
	}
}
