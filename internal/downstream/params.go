package downstream

import (
	"bytes"
	"context"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/longcall/longcall/internal/mcp"
)

const (
	paramPrefix = "Mcp-Param-"
	paramKey    = "x-mcp-header"
	// paramWait bounds how long a call waits for a list that nobody has seen:
	// what was never shown was not annotated for this agent either.
	paramWait = 100 * time.Millisecond
	maxDepth  = 32 // of properties
)

// param is an argument that a modern client mirrors into a header.
type param struct {
	header  string // canonical, with prefix
	path    []string
	numeric bool
}

// facts are what a tool's entry says that matters when it is called. Nothing of
// it is proved: a hint only picks between defaults that are both safe.
type facts struct {
	params      []param
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
		if !p.matches(x.r.Header, m.Arguments.Of(m.Raw)) {
			return "The " + p.header + " header must be there once and equal the argument that it mirrors."
		}
	}
	return ""
}

func newFactIndex(tools []mcp.Entry) *factIndex {
	ix := &factIndex{first: &tools[0], n: len(tools), tools: map[string]facts{}}
	for _, t := range tools {
		var f facts
		if bytes.Contains(t.Raw, []byte(paramKey)) {
			if schema := find(t.Raw, 0, "inputSchema"); schema.ok() {
				f.params = schemaParams(nil, t.Raw[schema.val:], nil)
			}
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

// schemaParams collects annotations that are reachable through properties only.
func schemaParams(ps []param, schema []byte, path []string) []param {
	props := find(schema, 0, "properties")
	if !props.ok() || len(path) >= maxDepth {
		return ps
	}
	obj := schema[props.val:]
	members, err := mcp.Members(obj[:skipValue(obj, 0)])
	if err != nil {
		return ps
	}
	for _, p := range members {
		here := append(path[:len(path):len(path)], p.Name)
		kind, _ := text(p.Value, "type")
		if name, ok := text(p.Value, paramKey); ok && isToken(name) {
			switch kind {
			case "string", "boolean":
				ps = append(ps, param{header: http.CanonicalHeaderKey(paramPrefix + name), path: here})
			case "integer":
				ps = append(ps, param{header: http.CanonicalHeaderKey(paramPrefix + name), path: here, numeric: true})
			}
		}
		ps = schemaParams(ps, p.Value, here)
	}
	return ps
}

// matches says whether header and argument agree; an argument that is absent or
// null has no header.
func (p *param) matches(h http.Header, args []byte) bool {
	raw := args
	for _, name := range p.path {
		f := find(raw, 0, name)
		if !f.ok() {
			raw = nil
			break
		}
		raw = raw[f.val:f.end]
	}
	v, present, ok := only(h, p.header)
	if raw == nil || string(raw) == "null" {
		return !present
	}
	if !present || !ok {
		return false
	}
	if v, ok = mcp.DecodeHeader(v); !ok {
		return false
	}
	if s, isString := mcp.String(raw); isString {
		return v == s
	}
	if p.numeric {
		a, errA := strconv.ParseFloat(string(raw), 64)
		b, errB := strconv.ParseFloat(strings.TrimSpace(v), 64)
		return errA == nil && errB == nil && a == b && !math.IsInf(a, 0)
	}
	return v == string(raw)
}
