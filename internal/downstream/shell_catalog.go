package downstream

import (
	"context"
	"slices"
	"strings"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/command"
	"github.com/longcall/longcall/internal/mcp"
)

// shellCatalog is the catalog of the tool servers with the shell among them.
type shellCatalog struct {
	Catalog
	shell Shell
}

// Servers are the tool servers' names and the shell's. The catalog's own slice must
// not be changed.
func (c shellCatalog) Servers() []string {
	return slices.Concat(c.Catalog.Servers(), []string{ServerShell})
}

func (c shellCatalog) List(ctx context.Context, caller call.Caller, server string, kind mcp.ListKind) (mcp.Listing, error) {
	if server != ServerShell {
		return c.Catalog.List(ctx, caller, server, kind)
	}
	l := mcp.Listing{Fresh: true, TTL: -1}
	if kind == mcp.ListTools {
		l.Entries = c.shell.Tools(caller.Principal)
	}
	return l, nil
}

func (c shellCatalog) Capabilities(caller call.Caller, server string) (caps []byte, known bool) {
	if server == ServerShell {
		return []byte(`{"tools":{}}`), true
	}
	return c.Catalog.Capabilities(caller, server)
}

func (c shellCatalog) Instructions(caller call.Caller, server string) []byte {
	if server == ServerShell {
		return nil
	}
	return c.Catalog.Instructions(caller, server)
}

// Private passes on which servers only those hear of who know their name.
func (c shellCatalog) Private(server string) bool {
	p, is := c.Catalog.(interface{ Private(server string) bool })
	return is && server != ServerShell && p.Private(server)
}

var (
	shellCalls   = []string{toolExec, toolParallel}
	shellAnswers = []string{toolRead, toolWrite}
)

// shellWords makes the descriptions of the shell's tools speak of each other by the
// names that they have at /mcp.
var shellWords = strings.NewReplacer(
	toolExec, ServerShell+separator+toolExec, toolParallel, ServerShell+separator+toolParallel,
	toolRead, ServerShell+separator+toolRead, toolWrite, ServerShell+separator+toolWrite)

// shellTool is the shell's tool that a name at /mcp means without its server's
// name before it; empty if it is none.
func (x *exchange) shellTool(public string) string {
	if x.server == "" && x.h.opt.Shell != nil && (slices.Contains(shellCalls, public) || slices.Contains(shellAnswers, public)) {
		return public
	}
	return ""
}

// shellNames are the names of the shell's tools and of ours at the endpoint.
func (x *exchange) shellNames() command.Names {
	own, prefix := x.ownNames(), ""
	if x.server == "" {
		prefix = ServerShell + separator
	}
	return command.Names{
		Exec: prefix + toolExec, Parallel: prefix + toolParallel, Read: prefix + toolRead, Write: prefix + toolWrite,
		Await: own.await, List: own.list, Cancel: own.cancel,
	}
}
