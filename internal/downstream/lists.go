package downstream

import (
	"bytes"
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/longcall/longcall/internal/mcp"
)

const (
	pageSize = 200 // entries of one page
	// listTTL is how long a modern agent may keep a complete list; less if a
	// server says less of its own (SPEC §5.5).
	listTTL = time.Minute
)

// listOf is the kind of list that a method asks for; ok is false for others.
func listOf(method string) (kind mcp.ListKind, ok bool) {
	for _, k := range mcp.ListKinds {
		if k.Method() == method {
			return k, true
		}
	}
	return 0, false
}

// listed is an entry of a list and its place in the order: by server, then by
// name.
type listed struct {
	name string // as the agent sees it
	sort string // server, NUL, name
	raw  []byte
}

// gathered is a whole list of the endpoint.
type gathered struct {
	entries []listed
	fresh   bool          // nothing is missing or out of date
	ttl     time.Duration // at most listTTL
}

// add puts the list of one more server behind.
func (g *gathered) add(part gathered) {
	g.entries = append(g.entries, part.entries...)
	g.fresh = g.fresh && part.fresh
	g.ttl = min(g.ttl, part.ttl)
}

// list answers the request for a list with one page. Servers whose list is
// unknown or failing are left out, and the answer says that it must not be kept
// (SPEC §8.1 A22).
func (x *exchange) list(m *mcp.Message, kind mcp.ListKind) []byte {
	id := m.ID.Of(m.Raw)
	after := ""
	if m.Cursor.Ok() {
		c, ok := mcp.String(m.Cursor.Of(m.Raw))
		if ok {
			after, ok = x.h.cursors.open(c, kind.Method(), x.q.Principal, x.server)
		}
		if !ok {
			return mcp.ErrorResponse(id, mcp.CodeInvalidParams, "This cursor is not known. Read the list from its start.", nil)
		}
	}
	all := x.gather(kind)
	start := 0
	if after != "" {
		start, _ = slices.BinarySearchFunc(all.entries, after, func(l listed, s string) int { return strings.Compare(l.sort, s) })
		if start < len(all.entries) && all.entries[start].sort == after {
			start++
		}
	}
	page, next := all.entries[start:], ""
	if len(page) > pageSize {
		page = page[:pageSize]
		next = x.h.cursors.seal(page[pageSize-1].sort, kind.Method(), x.q.Principal, x.server)
	}
	b := []byte(`{`)
	if x.modern {
		b = append(b, completeC...)
	}
	b = append(append(append(b, '"'), kind.Member()...), `":[`...)
	for i, l := range page {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, l.raw...)
	}
	b = append(b, ']')
	if next != "" {
		b = append(b, `,"nextCursor":`...)
		b = append(b, mcp.Quote(next)...)
	}
	if x.modern {
		ttl := all.ttl
		if !all.fresh {
			ttl = 0
		}
		b = append(b, `,"ttlMs":`...)
		b = strconv.AppendInt(b, ttl.Milliseconds(), 10)
		b = append(b, `,"cacheScope":"private",`...) // it is what this caller may see
		b = append(b, x.h.metaInfo()...)
	}
	return mcp.ResultResponse(id, append(b, '}'))
}

// gather collects a list of the endpoint's servers, in order. Servers are asked at
// the same time: one that was never seen may take a while.
func (x *exchange) gather(kind mcp.ListKind) (all gathered) {
	servers := x.servers()
	parts := make([]gathered, len(servers))
	read := func(i int) { parts[i] = x.serverList(x.r.Context(), servers[i], kind) }
	if len(servers) == 1 {
		read(0)
	} else {
		var wg sync.WaitGroup
		for i := range servers {
			wg.Go(func() { read(i) })
		}
		wg.Wait()
	}
	all.fresh, all.ttl = true, listTTL
	for _, p := range parts {
		all.add(p)
	}
	switch kind {
	case mcp.ListTools:
		all.entries = append(all.entries, x.ownEntries()...)
	case mcp.ListResources, mcp.ListTemplates:
		if kind == mcp.ListTemplates {
			all.entries = append(all.entries, x.ownTemplates()...)
		}
		all.entries = unique(all.entries)
	}
	return all
}

// servers are those of the endpoint, in order.
func (x *exchange) servers() []string {
	if x.server != "" {
		return []string{x.server}
	}
	return slices.Sorted(slices.Values(x.h.opt.Catalog.Servers()))
}

// unique leaves out entries of a name that an earlier server has: a resource is
// read at the first of its owners.
func unique(all []listed) []listed {
	seen := make(map[string]bool, len(all))
	return slices.DeleteFunc(all, func(l listed) bool {
		if seen[l.name] {
			return true
		}
		seen[l.name] = true
		return false
	})
}

// serverList is one server's part of a list. An entry stays byte for byte but for
// what editEntry changes.
func (x *exchange) serverList(ctx context.Context, server string, kind mcp.ListKind) gathered {
	list, err := x.h.opt.Catalog.List(ctx, x.caller(), server, kind)
	out := gathered{entries: make([]listed, 0, len(list.Entries)), fresh: list.Fresh && err == nil, ttl: listTTL}
	if list.TTL >= 0 {
		out.ttl = min(listTTL, list.TTL)
	}
	if err != nil {
		x.h.log.Warn("list is incomplete", "list", kind.Method(), "server", server, "request", x.q.ID, "error", err)
	}
	var names []string
	if x.server == "" && kind.Key() == "name" {
		names = publicNames(server, list.Entries, x.h.opt.Catalog.Servers())
	}
	for i, e := range list.Entries {
		if x.server == "" && server == ServerShell {
			e.Raw = []byte(shellWords.Replace(string(e.Raw)))
		}
		l := listed{name: e.Name, raw: e.Raw}
		if names != nil {
			l.name = names[i]
		}
		if l.name == "" || kind == mcp.ListTools && x.h.opt.Admit(x.q.Principal, server, e.Name, x.modern).Denied != nil {
			continue
		}
		if edited, err := x.editEntry(kind, server, e, l.name); err != nil {
			x.h.log.Warn("entry left out of the list: it is not an object", "list", kind.Method(), "server", server, "request", x.q.ID)
			out.fresh = false
			continue
		} else if edited != nil {
			l.raw = mcp.OneLine(edited)
		} else if bytes.IndexByte(l.raw, '\n') >= 0 || bytes.IndexByte(l.raw, '\r') >= 0 {
			l.raw = mcp.OneLine(bytes.Clone(l.raw))
		}
		l.sort = server + "\x00" + l.name
		out.entries = append(out.entries, l)
	}
	slices.SortStableFunc(out.entries, func(a, b listed) int { return strings.Compare(a.sort, b.sort) })
	out.entries = slices.CompactFunc(out.entries, func(a, b listed) bool { return a.sort == b.sort })
	return out
}

// editEntry changes what an entry says where it has to: its name at /mcp, and of a
// tool execution, which says what tasks longcall serves, not what the tool server
// does, and for agents with sessions an output schema that they do not know (SPEC
// §7.6). nil means that it stays as it is.
func (x *exchange) editEntry(kind mcp.ListKind, server string, e mcp.Entry, name string) ([]byte, error) {
	var set []mcp.Member
	if name != e.Name {
		set = append(set, mcp.Member{Name: "name", Value: mcp.Quote(name)})
	}
	execution, output := false, false // to be left out
	if kind == mcp.ListTools {
		if support := x.taskSupport(server, e.Name); support != nil {
			set = append(set, mcp.Member{Name: "execution", Value: support})
		}
		execution = bytes.Contains(e.Raw, []byte(`"execution"`))
		output = !x.modern && !objectOutput(e.Raw)
	}
	if set == nil && !execution && !output {
		return nil, nil
	}
	return mcp.EditObject(e.Raw, func(n string) bool {
		return execution && n == "execution" || output && n == "outputSchema"
	}, set...)
}

// objectOutput says whether a tool's structured content, if it has any, is an
// object: up to 2025-11-25 it has to be.
func objectOutput(tool []byte) bool {
	if !bytes.Contains(tool, []byte(`"outputSchema"`)) {
		return true
	}
	schema := find(tool, 0, "outputSchema")
	if !schema.ok() {
		return true
	}
	kind := find(tool, schema.val, "type")
	return kind.ok() && string(tool[kind.val:kind.end]) == `"object"`
}
