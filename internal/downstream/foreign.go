package downstream

import (
	"slices"
	"sync"

	"github.com/longcall/longcall/internal/mcp"
)

// Notifications of tool servers that longcall knows nothing to do with but to pass
// them on: those of extensions that the operator lets through, and that what a
// person was sent to a page for is done. Within a call they come on its stream.
// Else they are told to the sessions that they may be for, on the session's own stream;
// a stateless agent has none that it could be on.

// passes says whether a notification within the call is passed on to its agent.
func (a *attachment) passes(body []byte) bool {
	method, ok := text(body, "method")
	if !ok || method == mcp.MethodMessage {
		return false
	}
	if method == mcp.MethodElicited {
		return a.session != nil && a.x.version >= mcp.V20251125
	}
	return len(a.x.set.Extensions) > 0 && mcp.Allows(a.x.set.Extensions[a.call.Record().Server], method)
}

// noteMessage notes a notification of a server that is of no call, if the session may
// hear it. That the operator lets it through was seen where it came in.
func (s *session) noteMessage(server string, raw []byte) {
	if method, _ := text(raw, "method"); method == mcp.MethodElicited && !s.pages.done(server, elicitationOf(raw)) {
		return
	}
	s.news.message(raw)
}

func elicitationOf(notification []byte) string {
	params := find(notification, 0, "params")
	if !params.ok() {
		return ""
	}
	f := find(notification, params.val, memberElicitation)
	if !f.ok() {
		return ""
	}
	id, _ := mcp.String(notification[f.val:f.end])
	return id
}

// maxPages is how many pages of a session are remembered; the oldest are forgotten.
const maxPages = 256

// pages are those that a session of 2025-11-25 was sent to: only who was sent to one is
// told that it is done.
type pages struct {
	mu   sync.Mutex
	list []sentTo
}

type sentTo struct{ server, id string }

func (p *pages) add(server, id string) {
	if id == "" || len(id) > maxAskable {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if v := (sentTo{server, id}); !slices.Contains(p.list, v) {
		p.list = append(p.list, v)
	}
	if n := len(p.list) - maxPages; n > 0 {
		p.list = p.list[n:]
	}
}

// done forgets a page; ok is false if the session was not sent there.
func (p *pages) done(server, id string) (ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.list, sentTo{server, id})
	if i < 0 {
		return false
	}
	p.list = slices.Delete(p.list, i, i+1)
	return true
}

// sent notes the pages that an error sends the agent's person to.
func (a *attachment) sent(body []byte) {
	if a.session == nil || a.x.version < mcp.V20251125 {
		return
	}
	for _, u := range pagesOf(body) {
		a.session.pages.add(a.call.Record().Server, u.id)
	}
}
