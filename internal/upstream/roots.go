package upstream

import (
	"context"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// A server with sessions that asks for roots outside of any call gets those of the
// sessions that its connection serves (R-42, SPEC §4.2): all of one principal, and all
// with the capabilities that the server was told. Within a call it gets those of that
// call's agent.

// maxRoots is how many such requests of a connection wait at a time. What is more is
// answered as if there were no roots.
const maxRoots = 16

// noRoots is the result where nobody has any.
var noRoots = []byte(`{"roots":[]}`)

// Roots gives the roots of a principal's sessions at a server, or of one session, as a
// raw result; of those whose capabilities are told to the server as the same. It waits
// for agents, within reason.
type Roots = func(ctx context.Context, who call.Caller, server string, same func(capabilities string) bool) []byte

// AnswerRoots has f answer from now on.
func (p *Pool) AnswerRoots(f Roots) {
	p.mu.Lock()
	p.roots = f
	p.mu.Unlock()
}

// answerRoots gives the server roots, in the background.
func (l *link) answerRoots(reply func(result []byte)) {
	p := l.p
	p.mu.Lock()
	f := p.roots
	l.askedRoots = true
	many := l.askingRoots >= maxRoots
	ok := f != nil && l.key.principal != "" && !many // roots of one principal are nothing to another
	if ok {
		l.askingRoots++
	}
	p.mu.Unlock()
	if !ok || !p.spawn(func() {
		who := call.Caller{Principal: l.key.principal, Session: l.key.session}
		result := f(l.ctx, who, l.server.Name, func(caps string) bool { return l.server.permitted(caps) == l.key.asks })
		p.mu.Lock()
		l.askingRoots--
		p.mu.Unlock()
		reply(result)
	}) {
		reply(noRoots)
	}
}

// RootsJoined tells the servers that have asked for roots outside of a call that there
// may be more of them now, since the caller's agent can be asked.
func (p *Pool) RootsJoined(who call.Caller) { p.rootsChanged(who, true) }

// RootsChanged tells the servers that were told that the caller's agent says when
// its roots change that they did. Stateless servers ask when they want to know.
func (p *Pool) RootsChanged(who call.Caller) { p.rootsChanged(who, false) }

func (p *Pool) rootsChanged(who call.Caller, askedOnly bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for server := range p.servers {
		k := p.key(server, who)
		told := string(mcp.Value(mcp.Value([]byte(k.asks), "roots"), "listChanged")) == "true"
		if l := p.links[k]; told && l != nil && l.key == k && (l.askedRoots || !askedOnly) {
			l.conn.notify(&note{method: mcp.MethodRootsChanged})
		}
	}
}
