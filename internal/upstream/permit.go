package upstream

import (
	"maps"
	"slices"
	"strings"

	"github.com/longcall/longcall/internal/mcp"
)

// permitted is what a server is told of an agent's capabilities, and so what it may
// ask: what the agent has declared and the operator lets through (SPEC §4.3). It is
// canonical if caps is, and empty if nothing is left.
func (s *Server) permitted(caps string) string {
	if caps == "" || len(s.Unasked) == 0 && !strings.Contains(caps, `"extensions"`) {
		return caps
	}
	members, err := mcp.Members([]byte(caps))
	if err != nil {
		return ""
	}
	kept := members[:0]
	for _, m := range members {
		if slices.Contains(s.Unasked, m.Name) {
			continue
		}
		if m.Name == "extensions" {
			if m.Value = s.permittedExtensions(m.Value); m.Value == nil {
				continue
			}
		}
		kept = append(kept, m)
	}
	if len(kept) == 0 {
		return ""
	}
	b, err := mcp.EditObject(nil, nil, kept...) // which makes one of nothing
	if err != nil {
		return ""
	}
	return string(b)
}

// permittedExtensions are the settings of those that the operator lets through; nil
// if there are none. The settings stay as they are.
func (s *Server) permittedExtensions(raw []byte) []byte {
	if len(s.Extensions) == 0 {
		return nil
	}
	members, err := mcp.Members(raw)
	if err != nil {
		return nil
	}
	members = slices.DeleteFunc(members, func(m mcp.Member) bool { _, ok := s.Extensions[m.Name]; return !ok })
	if len(members) == 0 {
		return nil
	}
	b, err := mcp.EditObject(nil, nil, members...)
	if err != nil {
		return nil
	}
	return b
}

// narrow moves what the agents of a connection want to hear of to the connection that
// they have from now on, should the operator let less through than before. p.mu is held.
func (p *Pool) narrow(servers map[string]Server) {
	for k, w := range maps.Clone(p.wanted) {
		s := servers[k.server]
		now := k
		if now.asks = s.permitted(k.asks); now == k {
			continue
		}
		delete(p.wanted, k)
		if p.wanted[now] == nil {
			p.wanted[now] = w
			continue
		}
		for uri, sub := range w.subscribed() {
			p.wanted[now].join(uri, sub)
		}
	}
}

// join adds what is wanted elsewhere.
func (w *wants) join(uri string, sub *subscription) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if has := w.uris[uri]; has != nil {
		has.refs += sub.refs
		return
	}
	w.uris[uri] = sub
}
