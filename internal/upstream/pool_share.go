package upstream

import (
	"bytes"
	"maps"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// A server with sessions is told once, when a session begins, what the agents can be
// asked whose calls it carries. So there is one connection for each set of such
// capabilities that a principal's agents have declared (SPEC §4.2), made when the
// first call or list needs it. Most principals have one or two: the empty one of
// longcall's own questions, and that of their agents. A stateless server hears it
// with each request, and has one connection.

const (
	// maxSets bounds the sets of capabilities of one principal's connections to one
	// server. A caller with one more is served as if it could be asked nothing.
	maxSets = 16
	// spareAfter is how long a connection stays that has carried no call, and
	// unusedAfter one that has, once nobody uses it any more while another
	// connection of the same owner to the same server is there. The server may keep
	// state for the second kind, for as long as an agent's session lives.
	spareAfter  = time.Minute
	unusedAfter = 24 * time.Hour
)

// kin is a connection that serves the key's owner as well as one of its own would;
// nil if there is none. p.mu is held.
func (p *Pool) kin(k linkKey) *link {
	n := 0
	for other, l := range p.links {
		if other.server != k.server || other.principal != k.principal || other.session != k.session {
			continue
		}
		if l.modern {
			return l
		}
		n++
	}
	if n < maxSets || k.asks == "" {
		return nil
	}
	k.asks = ""
	l := p.links[k]
	if l == nil {
		l = p.newLink(k, p.servers[k.server])
		p.links[k] = l
	}
	return l
}

// Notify passes a notification of an agent on that longcall knows nothing of,
// to the connection that there is; none is made for it. params is a raw object or nil.
// It does not wait.
func (p *Pool) Notify(who call.Caller, server, method string, params []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.links[p.key(server, who)]; l != nil {
		l.conn.notify(&note{method: method, params: params, any: true})
	}
}

// apart tells those who watch of a notification that is of no call: one of an
// extension that the operator lets through, unless others than its principal
// may hear it, or that what a page was for is done.
func (l *link) apart(m *mcp.Message) {
	if m.Method == mcp.MethodElicited {
		l.pages.done(m)
	}
	if m.Method == mcp.MethodElicited || l.key.principal != "" && mcp.Allows(l.server.Extensions, m.Method) {
		l.p.changed(l.server.Name, l.change(mcp.Change{Message: string(mcp.OneLine(bytes.Clone(m.Raw)))}))
	}
}

// retire lets a connection take nothing new, and closes it when its last call has
// ended. p.mu is held.
func (p *Pool) retire(l *link) {
	if !l.wants.any() {
		delete(p.wanted, l.key)
	}
	maps.DeleteFunc(p.links, func(_ linkKey, o *link) bool { return o == l })
	if l.retired {
		return
	}
	l.retired = true
	if l.running == 0 && !p.stopped {
		p.closeLater(l)
	}
}

// spareLater has the connections looked through in a while. p.mu is held.
func (p *Pool) spareLater() {
	if p.sparing == nil && len(p.links) > 1 && !p.stopped {
		p.sparing = time.AfterFunc(spareAfter, p.spare)
	}
}

// spare closes connections that nobody needs.
func (p *Pool) spare() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sparing = nil
	if p.stopped {
		return
	}
	type owner struct{ server, principal, session string }
	several := map[owner]map[*link]bool{}
	for k, l := range p.links {
		o := owner{k.server, k.principal, k.session}
		if several[o] == nil {
			several[o] = map[*link]bool{}
		}
		several[o][l] = true
	}
	again := false
	for k, l := range p.links {
		links := several[owner{k.server, k.principal, k.session}]
		if len(links) < 2 || l.running > 0 || l.wants.any() {
			continue
		}
		after := spareAfter
		if l.called {
			after = unusedAfter
		}
		if time.Since(l.used) < after {
			again = again || !l.called
			continue
		}
		delete(links, l)
		p.retire(l)
	}
	if again {
		p.spareLater()
	}
}
