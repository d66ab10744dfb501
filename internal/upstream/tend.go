package upstream

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

const (
	// tendFirst and tendMax bound the pause before what a connection should be
	// told is tried again.
	tendFirst = time.Second
	tendMax   = 30 * time.Second
	// tendSteady is how long a subscription has to hold before its loss counts
	// as a new one, with a short pause again.
	tendSteady = time.Minute
	// maxSubscribed bounds the resources that are subscribed to on one
	// connection, and maxURI the length of one's URI, in bytes.
	maxSubscribed = 1000
	maxURI        = 8 << 10
)

// wants is what the agents of one connection want to hear of its server besides
// answers. It outlives the connection: the next one is told the same.
type wants struct {
	mu   sync.Mutex
	uris map[string]*subscription
}

// subscription is a resource that somebody wants to hear of.
type subscription struct {
	refs    int
	settled chan struct{} // closed when the server has taken or refused it
	gen     int           // of the session that took or refused it last; 0 if none has, -1 if one of an earlier connection
	err     error         // why it was refused; valid after settled
}

// tending is the state of what a link tells its server in the background: one
// goroutine at a time brings what the server knows in line with what is wanted.
type tending struct {
	mu      sync.Mutex
	running bool
	news    bool                  // something may have to be said
	wake    chan struct{}         // holds one
	gen     int                   // of the session or process; 0 if none was opened yet
	parted  bool                  // it may be gone: find out, if anybody wants to hear of it
	short   int                   // stateless: streams in a row that did not hold
	leaving []string              // legacy: subscriptions to be ended
	streams map[string]*listening // stateless: what was opened, by its name; see link.streams
	refused map[string]*listening // stateless: what the server did not take
	level   level                 // legacy: that the session was set to; 0 if none
	setting sync.Mutex            // while it is set
}

// Subscribe has the server tell of changes of a resource, until Unsubscribe. It
// returns when the server has agreed. A refusal is an *mcp.RPCError. Watch then
// tells of each change, as it does of changes of lists.
func (p *Pool) Subscribe(ctx context.Context, who call.Caller, server, uri string) error {
	if uri == "" || len(uri) > maxURI {
		return &mcp.RPCError{Code: mcp.CodeInvalidParams, Text: "uri must be a string of 1 to 8192 bytes"}
	}
	l, err := p.take(server, who)
	if err != nil {
		return err
	}
	defer p.done(l)
	w := l.wants
	w.mu.Lock()
	s := w.uris[uri]
	if s == nil {
		if len(w.uris) >= maxSubscribed {
			w.mu.Unlock()
			return &mcp.RPCError{Code: mcp.CodeInvalidParams, Text: "1000 resources of this server are subscribed to, which is the limit. Unsubscribe from one first."}
		}
		s = &subscription{settled: make(chan struct{})}
		w.uris[uri] = s
	}
	s.refs++
	settled := s.settled
	w.mu.Unlock()
	l.tend()
	select {
	case <-settled:
		w.mu.Lock()
		err = s.err
		w.mu.Unlock()
		if err == nil && l.isRetired() {
			err = errClosed // its configuration has changed meanwhile
		}
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-l.ctx.Done():
		err = errClosed
	}
	if err != nil {
		l.unsubscribe(uri, s)
	}
	return err
}

// Unsubscribe takes back one Subscribe. The server is told when it was the last,
// in the background.
func (p *Pool) Unsubscribe(who call.Caller, server, uri string) {
	p.mu.Lock()
	k := p.key(server, who)
	l, left := p.links[k], p.left(k, uri)
	p.mu.Unlock()
	switch {
	case l != nil:
		l.unsubscribe(uri, nil)
	case left != nil:
		left.drop(uri, nil)
	}
}

// left is what the agents of a connection that is no more still want, if the
// resource is among it. p.mu is held.
func (p *Pool) left(k linkKey, uri string) *wants {
	for o, w := range p.wanted {
		if o.server == k.server && o.principal == k.principal && o.session == k.session && w.has(uri) {
			return w
		}
	}
	return nil
}

// drop takes one reference away, if the subscription still is the given one or
// that is nil; held says whether it was the last of one that a server holds.
func (w *wants) drop(uri string, only *subscription) (held bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.uris[uri]
	if s == nil || only != nil && s != only {
		return false
	}
	if s.refs--; s.refs > 0 {
		return false
	}
	delete(w.uris, uri)
	return s.gen > 0 && s.err == nil
}

func (l *link) unsubscribe(uri string, only *subscription) {
	if !l.wants.drop(uri, only) {
		return
	}
	l.tending.mu.Lock()
	l.tending.leaving = append(l.tending.leaving, uri)
	l.tending.mu.Unlock()
	l.tend()
}

// subscribed are the resources that are wanted now.
func (w *wants) subscribed() map[string]*subscription {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.uris)
}

func (w *wants) has(uri string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.uris[uri] != nil
}

func (w *wants) any() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.uris) > 0
}

// settle notes what became of a subscription in a session, or with gen 0 that it
// could not be asked for; err is nil if it holds.
func (w *wants) settle(s *subscription, gen int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s.err = err; gen > 0 {
		s.gen = gen
	}
	select {
	case <-s.settled:
	default:
		close(s.settled)
	}
}

// forget is called for a new connection, whose server has heard of nothing.
func (w *wants) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.uris {
		if s.gen > 0 {
			s.gen = -1
		}
	}
}

// fail tells those who still wait that their subscription cannot be had now.
func (w *wants) fail(err error) {
	for _, s := range w.subscribed() {
		select {
		case <-s.settled:
		default:
			w.settle(s, 0, err)
		}
	}
}

// introduced is called when a session was opened or a process started: all that
// the last one was told has to be said again.
func (l *link) introduced(said intro) {
	l.p.introduced(l, said)
	t := &l.tending
	t.mu.Lock()
	t.gen++
	t.parted, t.refused, t.level = false, nil, 0
	t.leaving = nil
	t.mu.Unlock()
	l.tend()
}

// parted is called when the session or process is gone, or may be, and comes back
// at the next use only: to hear of what somebody wants to hear of is one.
func (l *link) parted() {
	l.tending.mu.Lock()
	l.tending.parted = true
	l.tending.mu.Unlock()
	if l.wants.any() {
		l.tend()
	}
}

// tend brings what the server knows in line with what is wanted, in the background.
func (l *link) tend() {
	t := &l.tending
	t.mu.Lock()
	defer t.mu.Unlock()
	t.news = true
	if !t.running {
		t.running = l.p.spawn(l.tendNow)
		return
	}
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

func (l *link) tendNow() {
	t := &l.tending
	pause, began := tendFirst, time.Now()
	for {
		t.mu.Lock()
		if !t.news || l.ctx.Err() != nil {
			t.running = false
			t.mu.Unlock()
			return
		}
		t.news = false
		t.mu.Unlock()
		err := l.align()
		if err == nil {
			continue
		}
		if time.Since(began) > tendSteady {
			pause = tendFirst
		}
		began = time.Now()
		l.wants.fail(err)
		if pause == tendFirst && l.ctx.Err() == nil {
			l.p.opt.Log.Warn("the tool server cannot be asked to tell of changes; it is tried again", "server", l.server.Name, "error", err)
		}
		wait := time.NewTimer(pause + rand.N(pause/4))
		select {
		case <-wait.C:
			pause = min(2*pause, tendMax)
		case <-t.wake:
		case <-l.ctx.Done():
		}
		wait.Stop()
		t.mu.Lock()
		t.news = true
		t.mu.Unlock()
	}
}

// align says to the server what it does not know yet. It connects only if there
// is something that an agent wants.
func (l *link) align() error {
	t := &l.tending
	t.mu.Lock()
	gen, parted := t.gen, t.parted
	t.mu.Unlock()
	if (gen == 0 || parted) && !l.wants.any() {
		return nil
	}
	ctx, cancel := context.WithTimeout(l.ctx, requestTime)
	defer cancel()
	said, err := l.conn.meet(ctx)
	if err != nil {
		return err
	}
	if l.conn.modern() {
		return l.alignListening(said)
	}
	if parted { // if the server does not know the session any more, this opens a new one
		if _, err := l.conn.request(ctx, mcp.MethodPing, nil); err != nil && !isRPC(err) {
			return err
		}
		t.mu.Lock()
		t.parted = false
		t.mu.Unlock()
	}
	return errors.Join(l.alignSubscriptions(ctx), l.alignLevel(ctx, said))
}

// alignSubscriptions is R-09 for a server with sessions.
func (l *link) alignSubscriptions(ctx context.Context) (failed error) {
	t := &l.tending
	t.mu.Lock()
	gen, leaving := t.gen, t.leaving
	t.leaving = nil
	t.mu.Unlock()
	all := l.wants.subscribed()
	for uri, s := range all {
		l.wants.mu.Lock()
		held, again := s.gen == gen, s.gen != 0
		l.wants.mu.Unlock()
		if held {
			continue
		}
		_, err := l.conn.request(ctx, mcp.MethodSubscribe, uriParams(uri))
		if err != nil && !isRPC(err) {
			failed = err
			continue
		}
		l.wants.settle(s, gen, err)
		switch {
		case err == nil && !l.wants.has(uri): // it was given up meanwhile
			_, _ = l.conn.request(ctx, mcp.MethodUnsubscribe, uriParams(uri))
		case err != nil && again:
			l.p.opt.Log.Warn("the tool server does not tell of a resource any more, to which agents have subscribed", "server", l.server.Name, "error", err)
		case again: // what was changed meanwhile was not heard
			l.updated(uri)
		}
	}
	for _, uri := range leaving {
		if all[uri] == nil {
			_, _ = l.conn.request(ctx, mcp.MethodUnsubscribe, uriParams(uri)) // at worst it tells what nobody listens to
		}
	}
	return failed
}

func isRPC(err error) bool { return errors.As(err, new(*mcp.RPCError)) }

func uriParams(uri string) []byte {
	return append(append([]byte(`{"uri":`), mcp.Quote(uri)...), '}')
}

// updated tells who watches that a resource has changed.
func (l *link) updated(uri string) {
	l.p.changed(l.server.Name, l.change(mcp.Change{URI: uri}))
}
