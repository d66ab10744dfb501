package downstream

import (
	"slices"
	"strings"

	"github.com/longcall/longcall/internal/mcp"
)

// The tools that longcall adds to those of the tool servers (DESIGN §4). They are
// attachments to calls, not calls: policy does not deny them, and the journal has
// what they delivered.
const (
	toolAwait  = "await_call"
	toolList   = "list_calls"
	toolCancel = "cancel_call"
)

var ownTools = [...]string{toolAwait, toolCancel, toolList}

// ownPrefix is set before the name of a tool of ours where a tool server has one
// of that name.
const ownPrefix = "longcall_"

// ownToolNames are the names that longcall's own tools have at an endpoint.
type ownToolNames struct{ await, list, cancel string }

// ownNames gives them.
func (x *exchange) ownNames() ownToolNames {
	return ownToolNames{x.ownName(toolAwait), x.ownName(toolList), x.ownName(toolCancel)}
}

// ownName is the name that a tool of ours has at the endpoint. At /mcp no tool
// server's can be the same; at /mcp/<server> its list is taken as it is known,
// without waiting.
func (x *exchange) ownName(tool string) string {
	if x.server == "" {
		return tool
	}
	tools, _ := x.h.opt.Catalog.List(x.h.spent, x.caller(), x.server, mcp.ListTools)
	for slices.ContainsFunc(tools.Entries, func(t mcp.Entry) bool { return t.Name == tool }) {
		tool = ownPrefix + tool
	}
	return tool
}

// ownTool says which of our tools a name means; empty if it is none of them.
func (x *exchange) ownTool(public string) string {
	for _, tool := range ownTools {
		if strings.HasSuffix(public, tool) && public == x.ownName(tool) {
			return tool
		}
	}
	return ""
}

// callOwn serves a checked tools/call of one of our own tools: own is false if it
// is not one. It returns what waits, still to be run, or the answer itself.
func (x *exchange) callOwn(m *mcp.Message, s *session) (a *attachment, answer []byte, own bool) {
	public, _ := mcp.String(m.Name.Of(m.Raw))
	x.who = x.client(m, s)
	tool := x.ownTool(public)
	if tool == "" {
		return nil, nil, false
	}
	x.q.Tool, x.q.Traceparent = public, x.traceparent(m)
	args := m.Arguments.Of(m.Raw)
	if !isObject(args) {
		args = []byte("{}")
	}
	id := m.ID.Of(m.Raw)
	if s != nil {
		if asks, _ := x.asksTask(m, s); asks {
			return nil, mcp.ErrorResponse(id, mcp.CodeMethodNotFound, public+" does not run as a task: it answers itself, in time. Call it without params.task.", nil), true
		}
	}
	var wrong string
	if tool == toolAwait && x.modern {
		if refused := x.answersAwait(m); refused != "" {
			x.observe()
			return nil, mcp.ErrorResponse(id, mcp.CodeInvalidParams, refused, nil), true
		}
	}
	switch tool {
	case toolAwait:
		a, wrong = x.awaitCall(m, s, args)
	case toolCancel:
		a, wrong = x.cancelCall(m, s, args)
	case toolList:
		answer, wrong = x.listCalls(id, s, args)
	}
	x.observe()
	if wrong != "" {
		return nil, x.ownError(id, wrong), true
	}
	return a, answer, true
}

// ownError answers a call of one of our tools that could not be done with a tool
// execution error, which the model can read and mend (SPEC §8.1 A20).
func (x *exchange) ownError(id []byte, text string) []byte {
	var p pieces
	x.openResult(&p, id)
	p.text(text)
	p.raw(`],"isError":true}}`)
	return p.join()
}

// openResult begins the answer to a call of one of our tools, up to its first
// block of content.
func (x *exchange) openResult(p *pieces, id []byte) {
	p.raw(`{"jsonrpc":"2.0","id":`)
	p.bytes(id)
	p.raw(`,"result":{`)
	if x.modern {
		p.bytes(completeC)
	}
	p.raw(`"content":[`)
}

// pieces is a message that is put together of parts, of which the large ones are
// not copied.
type pieces struct {
	list [][]byte
	own  []byte // the part that is being written
	size int
}

// bigPart is the size from which a part is not copied, in bytes.
const bigPart = 4 << 10

func (p *pieces) raw(s string) {
	p.own = append(p.own, s...)
	p.size += len(s)
}

func (p *pieces) bytes(b []byte) {
	p.size += len(b)
	if len(b) < bigPart {
		p.own = append(p.own, b...)
		return
	}
	p.close()
	p.list = append(p.list, b)
}

// quote adds a JSON string.
func (p *pieces) quote(s string) { p.bytes(mcp.Quote(s)) }

// text adds a block of text.
func (p *pieces) text(s string) {
	p.raw(`{"type":"text","text":`)
	p.quote(s)
	p.raw(`}`)
}

func (p *pieces) close() {
	if len(p.own) > 0 {
		p.list, p.own = append(p.list, p.own), nil
	}
}

// join is the whole message in one piece.
func (p *pieces) join() []byte {
	p.close()
	return slices.Concat(p.list...)
}

// ownEntries are our tools as a list shows them. Their place is after every tool
// server's, whose names are all of smaller bytes.
func (x *exchange) ownEntries() []listed {
	if !x.set.OwnTools && (x.h.opt.Shell == nil || x.server != ServerShell) {
		return nil
	}
	var names []string // each tool and its name here
	for _, tool := range ownTools {
		names = append(names, tool, x.ownName(tool))
	}
	here := strings.NewReplacer(names...) // their descriptions speak of each other
	all := make([]listed, 0, len(ownTools))
	for _, tool := range ownTools {
		l := listed{name: here.Replace(tool)}
		l.sort = "\xff\x00" + l.name
		l.raw = append(append([]byte(`{"name":`), mcp.Quote(l.name)...), here.Replace(string(x.ownSchema(tool)))...)
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b listed) int { return strings.Compare(a.sort, b.sort) })
	return all
}
