package downstream

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/longcall/longcall/internal/mcp"
)

// paramWait bounds how long a call waits for a list that nobody has seen:
// what was never shown was not annotated for this agent either.
const paramWait = 100 * time.Millisecond

// facts are what a tool's entry says that matters when it is called. Nothing of
// it is proved: a hint only picks between defaults that are both safe.
type facts struct {
	params      []mcp.HeaderParam
	idempotent  bool // idempotentHint: once or twice is the same
	destructive bool // destructiveHint, said and not only left out
}

// factIndex holds the facts of one list, which it is compared with by identity:
// the catalog gives the same slice as long as nothing has changed.
type factIndex struct {
	first *mcp.Entry
	n     int
	tools map[string]facts // only tools of which there are any
}

// facts gives those of a tool, from the list as last known, as far as it is
// within ctx.
func (x *exchange) facts(ctx context.Context, t target) (f facts) {
	list, _ := x.h.opt.Catalog.List(ctx, x.caller(), t.server, mcp.ListTools)
	tools := list.Entries
	if len(tools) == 0 {
		return f
	}
	key := t.server + "\x00" + x.q.Principal
	ix, _ := x.h.params.Load(key)
	index, _ := ix.(*factIndex)
	if index == nil || index.first != &tools[0] || index.n != len(tools) {
		index = newFactIndex(tools)
		x.h.params.Store(key, index)
	}
	return index.tools[t.tool]
}

// paramHeaders checks the Mcp-Param headers of a call against its arguments,
// as the tool's schema says (SPEC §1.3); it returns what is wrong. Headers that
// the schema does not know are ignored.
func (x *exchange) paramHeaders(m *mcp.Message, t target) string {
	ctx := x.r.Context()
	if _, known := x.h.params.Load(t.server + "\x00" + x.q.Principal); !known {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, paramWait)
		defer cancel()
	}
	for _, p := range x.facts(ctx, t).params {
		if !p.Matches(x.r.Header, m.Arguments.Of(m.Raw)) {
			return "The " + p.Header + " header must be there once and equal the argument that it mirrors."
		}
	}
	return ""
}

// Bounds of the Mcp-Param headers that are passed on without being known.
const (
	maxUnknown      = 16
	maxUnknownValue = 1 << 10 // bytes
)

// unknownParams are the Mcp-Param headers that mirror no argument as far as the
// list says: whoever stands between agent and tool server passes them on and
// otherwise ignores them. What comes twice, or is too much, is left out.
func (x *exchange) unknownParams(t target) (unknown map[string]string) {
	if !x.modern {
		return nil
	}
	var known []mcp.HeaderParam
	for name, values := range x.r.Header {
		if !strings.HasPrefix(name, mcp.HeaderParamPrefix) || len(values) != 1 || len(values[0]) > maxUnknownValue || len(unknown) >= maxUnknown {
			continue
		}
		if known == nil {
			known = x.facts(x.h.spent, t).params
		}
		if !slices.ContainsFunc(known, func(p mcp.HeaderParam) bool { return p.Header == name }) {
			if unknown == nil {
				unknown = map[string]string{}
			}
			unknown[name] = values[0]
		}
	}
	return unknown
}

func newFactIndex(tools []mcp.Entry) *factIndex {
	ix := &factIndex{first: &tools[0], n: len(tools), tools: map[string]facts{}}
	for _, t := range tools {
		var f facts
		if schema := find(t.Raw, 0, "inputSchema"); schema.ok() {
			// With an annotation that is invalid a client must not use the tool
			// over HTTP, so that none of them is sent.
			f.params, _ = mcp.HeaderParams(t.Raw[schema.val:schema.end])
		}
		if hints := find(t.Raw, 0, "annotations"); hints.ok() {
			f.idempotent = isTrue(t.Raw, hints.val, "idempotentHint")
			f.destructive = isTrue(t.Raw, hints.val, "destructiveHint")
		}
		if f.params != nil || f.idempotent || f.destructive {
			ix.tools[t.Name] = f
		}
	}
	return ix
}

// isTrue says whether a member of the object at raw[obj] is true.
func isTrue(raw []byte, obj int, name string) bool {
	f := find(raw, obj, name)
	return f.ok() && string(raw[f.val:f.end]) == "true"
}
