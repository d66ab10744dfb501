package downstream

import (
	"bytes"
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// Roots of agents with sessions, for tool servers that ask outside of any call.
// The agent is asked on the session's own stream, once, and again when it says that
// they have changed.

const (
	// rootsWait is how long a tool server waits for an agent's roots. What comes later
	// it hears of by a change.
	rootsWait = 5 * time.Second
	// maxRoots bounds the roots that are kept of one session, in bytes; larger ones
	// count as none.
	maxRoots = 16 << 10
)

// agentRoots are those of one session.
type agentRoots struct {
	mu      sync.Mutex
	known   bool
	list    []mcp.Member // of the last answer: raw roots by their raw uri
	serial  int
	asked   string        // id of the request that waits; empty if none does
	settled chan struct{} // closed when it has its answer, or is of no use any more; nil as asked
	late    bool          // a server was answered without them
}

// ask gives the request to be put to the agent, nil if one waits, and when it is over.
func (r *agentRoots) ask() (request []byte, settled <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asked != "" {
		return nil, r.settled
	}
	r.serial++
	r.asked, r.settled = "roots-"+strconv.Itoa(r.serial), make(chan struct{})
	return r.request(), r.settled
}

// request is the one that waits; r.mu is held.
func (r *agentRoots) request() []byte {
	return []byte(`{"jsonrpc":"2.0","id":"` + r.asked + `","method":"` + mcp.MethodRoots + `","params":{}}`)
}

// again is the request that waits, for a new stream: the agent may have lost the one
// before with its request. nil if none does.
func (r *agentRoots) again() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asked == "" {
		return nil
	}
	return r.request()
}

// answer takes a response of the agent; ok is false if it is to another request. late
// says that a tool server does not know of these roots.
func (r *agentRoots) answer(id, result []byte) (ok, late bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s, is := mcp.String(id); !is || r.asked == "" || s != r.asked {
		return false, false
	}
	late = r.late
	r.take(result)
	return true, late
}

// learn takes an answer that the agent gave within a call: it says the same. late says
// that a tool server does not know of these roots.
func (r *agentRoots) learn(result []byte) (late bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if mcp.Value(result, "roots") == nil {
		return false
	}
	late = r.late
	r.take(result)
	return late
}

// take notes a result of roots/list. r.mu is held.
func (r *agentRoots) take(result []byte) {
	r.known, r.list, r.late = true, nil, false
	if roots := mcp.Value(result, "roots"); len(roots) <= maxRoots {
		list, _ := mcp.Elements(roots)
		for _, raw := range list {
			if uri := mcp.Value(raw, "uri"); uri != nil {
				r.list = append(r.list, mcp.Member{Name: string(uri), Value: bytes.Clone(raw)})
			}
		}
	}
	r.settle()
}

// settle ends the request that waits. r.mu is held.
func (r *agentRoots) settle() {
	if r.asked != "" {
		close(r.settled)
		r.asked, r.settled = "", nil
	}
}

// changed forgets what is known, and what was asked before.
func (r *agentRoots) changed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known, r.list = false, nil
	r.settle()
}

// now is what is known; with over, a tool server is answered with it.
func (r *agentRoots) now(over bool) (list []mcp.Member, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.late = r.late || over && !r.known
	return r.list, r.known
}

// rooted says whether the session's agent can be asked for roots.
func (s *session) rooted() bool { return mcp.Askable([]byte(s.asks), mcp.MethodRoots, nil) }

// rooted are the sessions of a principal at a server, or one of them, whose agent can
// be asked for roots.
func (ss *sessions) rooted(who call.Caller, server string, same func(caps string) bool) (list []*session) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for _, s := range ss.m {
		if s.principal == who.Principal && (who.Session == "" || s.id == who.Session) && (s.server == "" || s.server == server) && s.rooted() && same(s.asks) {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b *session) int { return strings.Compare(a.id, b.id) }) // the same order each time
	return list
}

func (s *session) hasStream() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stream != nil
}

// roots is the result of roots/list for a server that asks outside of any call: those of
// all sessions that its connection serves, each once. It waits for agents that have not
// been asked yet, as far as they have a stream.
func (h *Handler) roots(ctx context.Context, who call.Caller, server string, same func(caps string) bool) []byte {
	ctx, cancel := context.WithTimeout(ctx, rootsWait)
	defer cancel()
	sessions := h.sessions.rooted(who, server, same)
	var waits []<-chan struct{}
	for _, s := range sessions {
		if _, known := s.roots.now(false); known || !s.hasStream() {
			continue
		}
		request, settled := s.roots.ask()
		if request != nil {
			s.news.message(request)
		}
		waits = append(waits, settled)
	}
	for _, settled := range waits {
		select {
		case <-settled:
		case <-ctx.Done():
		case <-h.lasting.Done():
		}
	}
	b := []byte(`{"roots":[`)
	seen := map[string]bool{}
	for _, s := range sessions {
		list, _ := s.roots.now(true)
		for _, root := range list {
			if seen[root.Name] {
				continue
			}
			if len(seen) > 0 {
				b = append(b, ',')
			}
			seen[root.Name] = true
			b = append(b, root.Value...)
		}
	}
	return append(b, `]}`...)
}

// rootsAnswered takes a response of the agent to a request for its roots; ok is false
// if it is to another.
func (x *exchange) rootsAnswered(s *session, m *mcp.Message) (ok bool) {
	ok, late := s.roots.answer(m.ID.Of(m.Raw), m.Result.Of(m.Raw))
	if late {
		x.h.opt.Catalog.RootsJoined(x.caller())
	}
	return ok
}

// rootsOnStream is called when a session's stream has begun: its agent can be asked.
func (x *exchange) rootsOnStream(s *session) {
	if !s.rooted() {
		return
	}
	if request := s.roots.again(); request != nil {
		s.news.message(request)
	} else if _, known := s.roots.now(false); !known {
		x.h.opt.Catalog.RootsJoined(x.caller())
	}
}
