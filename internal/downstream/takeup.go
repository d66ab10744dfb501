package downstream

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/longcall/longcall/internal/mcp"
)

// What a session has asked for outlives longcall as the session does: its log level
// and its subscriptions. They are asked for again at the tool servers
// when the session is used for the first time after a restart.

const (
	// maxKept bounds the URIs that are kept of one session's subscriptions, in
	// bytes; what is more is forgotten with the process.
	maxKept = 16 << 10
	// retakeFirst and retakeMax bound the pause before a tool server is asked again
	// that could not be reached.
	retakeFirst = time.Second
	retakeMax   = 30 * time.Second
)

// keep stores what the session has asked for by now. It does not wait.
func (ss *sessions) keep(s *session) {
	if s.store == nil {
		return
	}
	ss.mu.Lock() // so that the last one stored is the last one asked for, and no ended session comes back
	defer ss.mu.Unlock()
	if ss.m[s.id] == s {
		s.store.PutSession(s.stored())
	}
}

// stored is the session as the next process finds it.
func (s *session) stored() StoredSession {
	v := StoredSession{
		Hash: sessionHash(s.id), Principal: s.principal, Server: s.server, Version: s.version, Client: s.client,
		Used: time.Now(), Data: s.caps, Resources: s.held.list(maxKept),
	}
	if s.leveled.Load() {
		v.Level = levels[s.level.Load()]
	}
	return v
}

// revive gives a session back what it has asked for in an earlier process. Its
// resources may have changed since, so that it is told of each.
func (s *session) revive(v *StoredSession) {
	if rank, ok := level(v.Level); ok {
		s.level.Store(int32(rank))
		s.leveled.Store(true)
		s.again = true
	}
	for _, uri := range v.Resources {
		if o, _ := s.held.begin(uri); o != nil {
			s.news.resource(uri, uri)
			o.again, s.again = true, true
		}
	}
}

// takeUp asks the tool servers for what a session wants that has outlived a restart.
// It does not wait.
func (h *Handler) takeUp(s *session) {
	s.mu.Lock()
	again := s.again
	s.again = false
	s.mu.Unlock()
	if !again || h.isStopping() {
		return
	}
	x := &exchange{h: h, set: h.opt.Settings(), server: s.server, version: s.version, asks: s.asks}
	x.q.Principal, x.q.Session = s.principal, s.id
	if s.leveled.Load() {
		h.opt.Catalog.SetLevel(x.caller(), levels[s.level.Load()])
	}
	if len(s.held.pending()) > 0 {
		h.spawn(func() { x.retake(s) })
	}
}

// retake subscribes again. A tool server that cannot be reached is asked again, until
// the session ends; one that refuses is not.
func (x *exchange) retake(s *session) {
	pause := retakeFirst
	for {
		for uri, o := range s.held.pending() {
			ctx, cancel := context.WithTimeout(x.h.lasting, holdWait)
			err := x.hold(ctx, &s.held, uri, o)
			cancel()
			if errors.Is(err, errNoResource) || errors.As(err, new(*mcp.RPCError)) {
				x.h.log.Warn("a subscription of before the restart is not taken any more", "session", s.client, "error", err)
				s.held.drop(uri)
			}
		}
		if len(s.held.pending()) == 0 {
			x.h.sessions.keep(s)
			return
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-x.h.lasting.Done():
			t.Stop()
			return
		}
		pause = min(2*pause, retakeMax)
	}
}

// pending are the subscriptions of before that no tool server has taken yet.
func (h *held) pending() map[string]*hold {
	h.mu.Lock()
	defer h.mu.Unlock()
	var m map[string]*hold
	for uri, o := range h.m {
		if o.again {
			if m == nil {
				m = map[string]*hold{}
			}
			m[uri] = o
		}
	}
	return m
}

// list are the URIs in order, as many as have so many bytes.
func (h *held) list(bytes int) (uris []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for uri := range h.m {
		uris = append(uris, uri)
	}
	slices.Sort(uris)
	for i, uri := range uris {
		if bytes -= len(uri); bytes < 0 {
			return uris[:i]
		}
	}
	return uris
}
