package upstream

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// Observer is told about connections, for metrics. Its methods must not block.
type Observer interface {
	UpstreamReconnected(server, result string)
	UpstreamRestarted(server string)
}

// Options of a Pool.
type Options struct {
	Dir      string   // where catalogs are kept over restarts; empty means nowhere
	Key      [32]byte // seals what is kept of calls; it has to be the same after a restart
	Log      *slog.Logger
	Observer Observer
}

// Pool holds the connections to all tool servers, each for one principal
// unless the operator shares it (DESIGN §5). It is the engine's Runner.
type Pool struct {
	opt    Options
	ctx    context.Context // of background work
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.Mutex
	servers  map[string]Server
	names    []string // of servers, sorted; never changed in place
	links    map[linkKey]*link
	known    map[string]*offer // of each configured server
	wanted   map[linkKey]*wants
	levels   map[who]said // of sessions that have set one
	watchers map[int]func(server string, change mcp.Change)
	watchSeq int
	roots    Roots // nil if nobody has any
	stopped  bool
	sparing  *time.Timer // until links are looked through for those that nobody needs; nil if there is nothing to look for

	saving sync.Mutex // one file is written at a time
}

// linkKey says whose connection it is, and what was declared to a server with
// sessions that its callers can be asked.
type linkKey struct{ server, principal, session, asks string }

// link is one connection and what the pool knows about it.
type link struct {
	p        *Pool
	key      linkKey
	conn     conn
	hooks    Hooks
	wants    *wants
	tending  tending
	pages    pageBoard
	server   Server
	ctx      context.Context // of its background work
	cancel   context.CancelFunc
	catalogs [len(mcp.ListKinds)]catalog

	// Under Pool.mu.
	said    intro
	needs   [len(levelNames)]int // running calls by the level of log messages that they want
	running int                  // calls and requests under way
	retired bool                 // closed when the last of them ends
	modern  bool                 // the server is known to be stateless: the link is for every set of capabilities
	called  bool                 // it has carried a call
	used    time.Time

	askedRoots  bool // outside of a call
	askingRoots int  // such requests that wait
}

func (l *link) isRetired() bool {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	return l.retired
}

// change is a change that came on the link, with whose connection it is.
func (l *link) change(c mcp.Change) mcp.Change {
	c.Principal, c.Session = l.key.principal, l.key.session
	return c
}

// NewPool makes a pool; nothing connects before it is needed.
func NewPool(opt Options) *Pool {
	p := &Pool{
		opt: opt, servers: map[string]Server{}, links: map[linkKey]*link{},
		known: map[string]*offer{}, wanted: map[linkKey]*wants{}, levels: map[who]said{}, watchers: map[int]func(string, mcp.Change){},
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// SetServers replaces the configured servers. A connection whose configuration
// changed takes no new call and closes when its last one has ended.
func (p *Pool) SetServers(servers map[string]Server) {
	p.mu.Lock()
	for k, l := range p.links {
		if s, ok := servers[k.server]; !ok || !reflect.DeepEqual(s, l.server) {
			p.retire(l)
		}
	}
	var changed []string
	for name := range p.servers {
		if s, ok := servers[name]; !ok || !reflect.DeepEqual(s, p.servers[name]) {
			changed = append(changed, name)
		}
	}
	for name := range servers {
		if _, ok := p.servers[name]; !ok {
			changed = append(changed, name)
			p.known[name] = p.load(name)
		}
	}
	for name := range p.known {
		if _, ok := servers[name]; !ok {
			delete(p.known, name)
		}
	}
	p.narrow(servers)
	var again []linkKey // subscriptions that a new connection has to take over
	for k, w := range p.wanted {
		if _, ok := servers[k.server]; !ok {
			delete(p.wanted, k)
		} else if p.links[k] == nil && w.any() {
			again = append(again, k)
		}
	}
	p.servers = maps.Clone(servers)
	p.names = slices.Sorted(maps.Keys(servers))
	p.mu.Unlock()
	for _, k := range again {
		if l, err := p.take(k.server, call.Caller{Principal: k.principal, Session: k.session, Capabilities: k.asks}); err == nil {
			l.tend()
			p.done(l)
		}
	}
	for _, name := range changed {
		for _, kind := range mcp.ListKinds {
			p.changed(name, mcp.Change{List: kind})
		}
	}
}

// Servers are the configured names, sorted. The slice must not be changed.
func (p *Pool) Servers() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.names
}

// take gets the connection for a caller, making it if needed.
// The caller gives it back with done.
func (p *Pool) take(server string, who call.Caller) (*link, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok := p.servers[server]
	if !ok {
		return nil, fmt.Errorf("no tool server is configured as %q", server)
	}
	if p.stopped {
		return nil, call.ErrStopping
	}
	k := p.key(server, who)
	l := p.links[k]
	if l == nil {
		if l = p.kin(k); l == nil {
			l = p.newLink(k, s)
		}
		p.links[k] = l
	}
	l.running++
	return l, nil
}

// key says which connection to a server is the caller's. p.mu is held.
func (p *Pool) key(server string, who call.Caller) linkKey {
	s := p.servers[server]
	k := linkKey{server: server, asks: s.permitted(who.Capabilities)}
	switch s.Share {
	case "server":
	case "session":
		k.principal, k.session = who.Principal, who.Session
	default:
		k.principal = who.Principal
	}
	return k
}

func (p *Pool) newLink(k linkKey, s Server) *link {
	l := &link{p: p, key: k, server: s}
	l.ctx, l.cancel = context.WithCancel(p.ctx)
	for _, kind := range mcp.ListKinds {
		c := &l.catalogs[kind]
		c.p, c.l, c.kind = p, l, kind
	}
	l.tending.wake = make(chan struct{}, 1)
	if l.wants = p.wanted[k]; l.wants == nil {
		l.wants = &wants{uris: map[string]*subscription{}}
		p.wanted[k] = l.wants
	}
	l.wants.forget()
	l.hooks = Hooks{
		Log: p.opt.Log.With("server", s.Name),

		Key:          p.opt.Key,
		Capabilities: k.asks,
		Introduced:   l.introduced,
		ListChanged:  l.listChanged,
		Updated:      l.updated,
		Apart:        l.apart,
		pages:        &l.pages,
		Roots:        l.answerRoots,
		Parted:       l.parted,
		Renewed:      l.renewed,
		LogLevel:     p.logLevel,
		TaskSupport:  l.catalogs[mcp.ListTools].taskSupport,
		Params:       l.catalogs[mcp.ListTools].headerParams,
		Reconnected: func(result string) {
			if o := p.opt.Observer; o != nil {
				o.UpstreamReconnected(s.Name, result)
			}
		},
		Restarted: func() {
			if o := p.opt.Observer; o != nil {
				o.UpstreamRestarted(s.Name)
			}
		},
	}
	switch {
	case s.URL == "":
		l.conn = newStdio(s, l.hooks)
	case s.Era == "sse":
		l.conn = newSSE(s, l.hooks, nil)
	default:
		l.conn = newHTTP(s, l.hooks)
	}
	return l
}

// listChanged takes a notification of the server.
func (l *link) listChanged(kinds []mcp.ListKind) {
	for _, kind := range kinds {
		l.catalogs[kind].invalidate()
	}
}

// renewed is called when the server may have changed without telling us.
func (l *link) renewed() {
	for i := range l.catalogs {
		l.catalogs[i].outdated()
	}
}

// spawn runs f in the background, unless the pool has stopped.
func (p *Pool) spawn(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return false
	}
	p.wg.Go(f)
	return true
}

func (p *Pool) done(l *link) {
	modern := l.conn.modern()
	p.mu.Lock()
	defer p.mu.Unlock()
	l.running--
	l.modern, l.used = modern, time.Now()
	switch {
	case l.running > 0 || p.stopped:
	case l.retired:
		p.closeLater(l)
	default:
		p.spareLater()
	}
}

// closeLater closes a retired link in the background. p.mu is held.
func (p *Pool) closeLater(l *link) {
	l.cancel()
	p.wg.Go(func() { l.conn.close(p.ctx) })
}

// Run carries a call; see call.Runner.
func (p *Pool) Run(ctx context.Context, x *call.Exec) call.Answer {
	who := x.Spec.Caller()
	if x.Resume != nil {
		who.Capabilities = declaredThere(x.Resume.Address)
	}
	l, err := p.take(x.Spec.Server, who)
	switch {
	case err != nil && x.Resume != nil:
		return interrupted("longcall was restarted and cannot go on with the call: %v.", err)
	case err != nil:
		return failed("Not started: %v. Nothing was sent.", err)
	}
	defer p.done(l)
	if caps := l.server.permitted(x.Spec.Capabilities); caps != x.Spec.Capabilities {
		spec := *x.Spec
		spec.Capabilities = caps
		x.Spec = &spec
	}
	p.mu.Lock()
	l.called = true
	p.mu.Unlock()
	if v := p.level(x.Spec); v != 0 {
		l.raise(ctx, v)
		defer l.hush(v)
	}
	if x.Spec.Method == "" {
		return l.conn.call(ctx, x)
	}
	return inWords(x.Spec, l.conn.call(ctx, x))
}

// EndSession closes the connections that belonged to one agent session only.
// Calls that still run on them go on.
func (p *Pool) EndSession(principal, session string) {
	if session == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.levels, who{principal, session})
	for k := range p.wanted {
		if k.session == session && k.principal == principal {
			delete(p.wanted, k)
		}
	}
	for k, l := range p.links {
		if k.session == session && k.principal == principal {
			p.retire(l)
		}
	}
}

// Warm connects every server for a principal and reads its lists, in the
// background, so that the first agent finds them.
func (p *Pool) Warm(principal string) {
	for _, name := range p.Servers() {
		p.mu.Lock()
		perSession := p.servers[name].Share == "session"
		p.mu.Unlock()
		if perSession {
			continue // such a connection belongs to an agent's session
		}
		if l, err := p.take(name, call.Caller{Principal: principal}); err == nil {
			for i := range l.catalogs {
				l.catalogs[i].refresh()
			}
			p.done(l)
		}
	}
}

// Watch calls f whenever one of a server's lists or a resource that somebody has
// subscribed to has changed, until stop is called. f must not block.
func (p *Pool) Watch(f func(server string, change mcp.Change)) (stop func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watchSeq++
	n := p.watchSeq
	p.watchers[n] = f
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.watchers, n)
	}
}

func (p *Pool) changed(server string, change mcp.Change) {
	p.mu.Lock()
	fs := slices.Collect(maps.Values(p.watchers))
	p.mu.Unlock()
	for _, f := range fs {
		f(server, change)
	}
}

// Stop closes all connections and waits, bounded by ctx. No call may run any more.
func (p *Pool) Stop(ctx context.Context) {
	p.mu.Lock()
	p.stopped = true
	links := make(map[*link]bool, len(p.links))
	for _, l := range p.links {
		links[l] = true
	}
	clear(p.links)
	if p.sparing != nil {
		p.sparing.Stop()
	}
	p.mu.Unlock()
	p.cancel()
	var wg sync.WaitGroup
	for l := range links {
		wg.Go(func() { l.conn.close(ctx) })
	}
	wg.Wait()
	p.wg.Wait()
}
