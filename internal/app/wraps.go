package app

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/longcall/longcall/internal/auth"
	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/config"
	"github.com/longcall/longcall/internal/downstream"
	"github.com/longcall/longcall/internal/mcp"
	"github.com/longcall/longcall/internal/shell/tools"
	"github.com/longcall/longcall/internal/upstream"
)

// Wrap is a tool server that a relay brings along (longcall wrap): it has an
// endpoint of its own beside the configured ones, is not listed at /mcp, and is
// there as long as its relay. Its environment is the host's, with all secrets in
// it: it stays in memory, and is in no log, record or file.
type Wrap struct {
	Name    string            `json:"name"` // as a person would call it
	Command string            `json:"command"`
	Args    []string          `json:"args"`
	Env     map[string]string `json:"env"`
	Cwd     string            `json:"cwd"`
	// Lease, if it is still held, gives a relay the same place again.
	Lease string `json:"lease,omitempty"`
}

// Wrapped is the answer to a Wrap: its endpoint is /mcp/Server.
type Wrapped struct {
	Server string `json:"server"`
	Lease  string `json:"lease"`
}

const (
	maxWraps = 256
	maxWrap  = 4 << 20 // bytes of a Wrap
	// wrapSilence is how long a wrap stays after its relay was lost without a
	// word: the relay may come back.
	wrapSilence = 15 * time.Minute
	sweepEvery  = 10 * time.Second
)

// wraps are the wrapped servers by name. A name belongs to one relay at a time,
// so that each host has a process of its own, as without longcall; the next host
// that brings the same command line gets the same name, and finds its calls.
type wraps struct {
	mu sync.Mutex
	m  map[string]*wrap
	n  atomic.Int64 // of m, for those who only need to know that there are none
}

type wrap struct {
	spec    Wrap
	lease   string // of the relay that holds it; empty if that has left
	present int    // open presences of that relay
	since   time.Time
	running int // calls
}

// free says whether another relay may take the place.
func (w *wrap) free(now time.Time) bool {
	return w.lease == "" || w.present == 0 && now.Sub(w.since) > wrapSilence
}

var wrapDigits = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// wrapName is what a command line in a folder is called, whatever its
// environment: hosts put the number of their window in there.
func wrapName(spec *Wrap) string {
	h := sha256.New()
	for _, s := range append([]string{spec.Name, spec.Command, spec.Cwd}, spec.Args...) {
		fmt.Fprintf(h, "%d:%s", len(s), s)
	}
	name := notName.ReplaceAllString(spec.Name, "-")
	for strings.Contains(name, "__") {
		name = strings.ReplaceAll(name, "__", "_")
	}
	if name = strings.Trim(name[:min(len(name), 20)], "-_"); name == "" {
		name = "wrap"
	}
	return name + "-" + wrapDigits.EncodeToString(h.Sum(nil))[:6]
}

var notName = regexp.MustCompile(`[^A-Za-z0-9_-]+`)

// hold gives a relay its place; taken are names that are not to be had. It is
// nil if there are too many.
func (ws *wraps) hold(spec Wrap, taken func(name string) bool) *Wrapped {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	now := time.Now()
	base := wrapName(&spec)
	if ws.m == nil {
		ws.m = map[string]*wrap{}
	}
	name, w := ws.find(spec.Lease)
	spec.Lease = ""
	if w != nil && !taken(name) { // also if a place with a lower number is free now
		w.spec, w.since = spec, now
		return &Wrapped{Server: name, Lease: w.lease}
	}
	for n := 1; n <= maxWraps; n++ {
		name := base
		if n > 1 {
			name = fmt.Sprintf("%s-%d", base, n)
		}
		if taken(name) {
			continue
		}
		w := ws.m[name]
		switch {
		case w == nil && len(ws.m) >= maxWraps:
			return nil
		case w == nil:
			w = &wrap{}
			ws.m[name] = w
			ws.n.Store(int64(len(ws.m)))
		case !w.free(now):
			continue
		}
		var b [16]byte
		rand.Read(b[:])
		w.lease = "w_" + wrapDigits.EncodeToString(b[:])
		w.present = 0
		w.spec, w.since = spec, now
		return &Wrapped{Server: name, Lease: w.lease}
	}
	return nil
}

// find is the wrap with that lease; ws.mu is held.
func (ws *wraps) find(lease string) (name string, w *wrap) {
	if lease == "" {
		return "", nil
	}
	for name, w := range ws.m {
		if w.lease == lease {
			return name, w
		}
	}
	return "", nil
}

// enter counts a presence of the relay with that lease until leave is called.
func (ws *wraps) enter(lease string) (leave func(), ok bool) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	_, w := ws.find(lease)
	if w == nil {
		return nil, false
	}
	w.present++
	return func() {
		ws.mu.Lock()
		defer ws.mu.Unlock()
		if w.lease == lease {
			w.present--
			w.since = time.Now()
		}
	}, true
}

// drop says that the relay with that lease has left.
func (ws *wraps) drop(lease string) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	_, w := ws.find(lease)
	if w == nil {
		return false
	}
	w.lease, w.present, w.since = "", 0, time.Now()
	return true
}

// sweep forgets wraps that nobody holds and on which nothing runs; it says
// whether there were any.
func (ws *wraps) sweep() bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	before := len(ws.m)
	now := time.Now()
	maps.DeleteFunc(ws.m, func(_ string, w *wrap) bool { return w.free(now) && w.running == 0 })
	ws.n.Store(int64(len(ws.m)))
	return len(ws.m) < before
}

func (ws *wraps) has(name string) bool {
	if ws.n.Load() == 0 {
		return false
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return ws.m[name] != nil
}

// over is a config with the wraps in it.
func (ws *wraps) over(c *config.Config) *config.Config {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if len(ws.m) == 0 {
		return c
	}
	merged := *c
	merged.Servers = maps.Clone(c.Servers)
	if merged.Servers == nil {
		merged.Servers = map[string]config.Server{}
	}
	for name, w := range ws.m {
		if _, ok := merged.Servers[name]; ok {
			continue // a later config has taken the name
		}
		s := config.DefaultServer()
		s.Type, s.Command, s.Args, s.Cwd = "stdio", w.spec.Command, w.spec.Args, w.spec.Cwd
		s.Env = make(map[string]config.Secret, len(w.spec.Env))
		for k, v := range w.spec.Env {
			s.Env[k] = config.Secret(v)
		}
		merged.Servers[name] = s
	}
	return &merged
}

// count counts a call on a server until done is called, if it is a wrapped one.
func (ws *wraps) count(server string) (done func()) {
	if ws.n.Load() == 0 {
		return func() {}
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := ws.m[server]
	if w == nil {
		return func() {}
	}
	w.running++
	return func() {
		ws.mu.Lock()
		defer ws.mu.Unlock()
		w.running--
	}
}

// runner gives calls to the shell or to the pool. It counts those that run on
// wrapped servers: those stay as long.
type runner struct {
	pool     *upstream.Pool
	wraps    *wraps
	shell    *tools.Tools // nil: off
	stopping atomic.Bool  // commands end with this process
}

var _ call.Resumer = (*runner)(nil)

// Run carries a call; see call.Runner.
func (r *runner) Run(ctx context.Context, x *call.Exec) call.Answer {
	if r.isCommand(x.Spec.Server) {
		return r.runCommand(ctx, x)
	}
	defer r.wraps.count(x.Spec.Server)()
	return r.pool.Run(ctx, x)
}

// Resumable implements call.Resumer.
func (r *runner) Resumable(rec *call.Record) bool {
	if r.isCommand(rec.Server) {
		return !r.stopping.Load() && r.shell.Resumable(rec)
	}
	return r.pool.Resumable(rec)
}

// Leaves says that a command loses nothing if it is left at once, and what of the
// pool's does.
func (r *runner) Leaves(rec *call.Record) bool {
	return r.isCommand(rec.Server) || r.pool.Leaves(rec)
}

// use puts a config in force, with the wraps over it. a.reload is held.
func (a *App) use(c *config.Config) {
	a.base = c
	c = a.wraps.over(c)
	snap := newSnapshot(c)
	a.snap.Store(snap)
	a.tel.SetServers(c.Enabled())
	a.pool.SetServers(servers(c, snap.rules))
	if a.shell != nil {
		a.shell.Configure(a.commands(c))
	}
}

// rewrap puts the wraps as they are now in force.
func (a *App) rewrap() {
	a.reload.Lock()
	defer a.reload.Unlock()
	a.use(a.base)
}

// sweepWraps forgets wraps whose relay has left, until ctx is done.
func (a *App) sweepWraps(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if a.wraps.sweep() {
			a.rewrap()
		}
	}
}

// owner authenticates a request that only the owner of the state folder may
// make, on this machine; ok is false if it was answered.
func (a *App) owner(w http.ResponseWriter, r *http.Request) (ok bool) {
	name, ok := a.principal(w, r)
	switch {
	case !ok:
		return false
	case name != auth.Local:
		http.Error(w, "only for the token of the state folder", http.StatusForbidden)
		return false
	case !fromHere(r):
		http.Error(w, "only from this machine", http.StatusForbidden)
		return false
	}
	return true
}

// fromHere says whether a connection came from this machine.
func fromHere(r *http.Request) bool {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	to, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return err == nil && ok && to.IP.IsLoopback() && net.ParseIP(host).IsLoopback()
}

// addWrap serves POST /api/wraps.
func (a *App) addWrap(w http.ResponseWriter, r *http.Request) {
	if !a.owner(w, r) {
		return
	}
	if a.opt.NoAuth {
		http.Error(w, "This longcall runs with --no-auth: every program of this machine could use what the host passes on to the wrapped server. Run it with a token.", http.StatusForbidden)
		return
	}
	var spec Wrap
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxWrap))
	if err != nil || json.Unmarshal(b, &spec) != nil || spec.Command == "" || !filepath.IsAbs(spec.Cwd) {
		// Nothing of the body is quoted: it holds secrets.
		http.Error(w, `the body must be {"name", "command", "args", "env", "cwd"} with a command and an absolute cwd`, http.StatusBadRequest)
		return
	}
	a.reload.Lock()
	held := a.wraps.hold(spec, func(name string) bool {
		_, configured := a.base.Servers[name]
		return configured
	})
	if held != nil {
		a.use(a.base)
	}
	a.reload.Unlock()
	if held == nil {
		http.Error(w, fmt.Sprintf("%d wrapped servers are there already, which is the limit", maxWraps), http.StatusTooManyRequests)
		return
	}
	a.log.Info("a relay brings a tool server", "server", held.Server)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(held) // whoever does not read it asks again
}

// dropWrap serves DELETE /api/wraps/{lease}.
func (a *App) dropWrap(w http.ResponseWriter, r *http.Request) {
	if !a.owner(w, r) {
		return
	}
	if !a.wraps.drop(r.PathValue("lease")) {
		http.Error(w, "no such lease", http.StatusNotFound)
		return
	}
	if a.wraps.sweep() {
		a.rewrap()
	}
	w.WriteHeader(http.StatusNoContent)
}

const (
	presenceBeat  = 15 * time.Second
	presenceWrite = 30 * time.Second
)

// presence serves GET /api/presence, which a relay reads as long as it is there.
// It ends when this process stops or is replaced.
func (a *App) presence(w http.ResponseWriter, r *http.Request) {
	if !a.owner(w, r) {
		return
	}
	if lease := r.URL.Query().Get("lease"); lease != "" {
		leave, ok := a.wraps.enter(lease)
		if !ok {
			http.Error(w, "no such lease", http.StatusNotFound)
			return
		}
		defer leave()
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache, no-transform")
	rc := http.NewResponseController(w)
	tick := time.NewTicker(presenceBeat)
	defer tick.Stop()
	for {
		_ = rc.SetWriteDeadline(time.Now().Add(presenceWrite))
		if _, err := io.WriteString(w, ":\n\n"); err != nil || rc.Flush() != nil {
			return
		}
		select {
		case <-tick.C:
		case <-a.leaving:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// catalog shows the pool to the agents' side: a wrapped server is there for its
// host only, not for those who list all servers, and for no other principal.
type catalog struct {
	*upstream.Pool
	wraps *wraps
}

var _ downstream.Catalog = catalog{}

// Servers are the configured names, sorted.
func (c catalog) Servers() []string {
	names := c.Pool.Servers()
	if !slices.ContainsFunc(names, c.wraps.has) {
		return names
	}
	return slices.DeleteFunc(slices.Clone(names), c.wraps.has)
}

// Private says whether a server has an endpoint though it is not among Servers.
func (c catalog) Private(server string) bool { return c.wraps.has(server) }

// foreign says whether a server is somebody else's.
func (c catalog) foreign(who call.Caller, server string) bool {
	return who.Principal != auth.Local && c.wraps.has(server)
}

// List is one of a server's lists as the caller sees it.
func (c catalog) List(ctx context.Context, who call.Caller, server string, kind mcp.ListKind) (mcp.Listing, error) {
	if c.foreign(who, server) {
		return mcp.Listing{Fresh: true, TTL: -1}, nil
	}
	return c.Pool.List(ctx, who, server, kind)
}

// Capabilities are a server's as the caller sees it.
func (c catalog) Capabilities(who call.Caller, server string) (caps []byte, known bool) {
	if c.foreign(who, server) {
		return []byte("{}"), true
	}
	return c.Pool.Capabilities(who, server)
}

// Instructions are a server's as the caller sees it.
func (c catalog) Instructions(who call.Caller, server string) []byte {
	if c.foreign(who, server) {
		return nil
	}
	return c.Pool.Instructions(who, server)
}

// Subscribe has a server tell of changes of a resource. A foreign one looks as if
// it had none.
func (c catalog) Subscribe(ctx context.Context, who call.Caller, server, uri string) error {
	if c.foreign(who, server) {
		return &mcp.RPCError{Code: mcp.CodeInvalidParams, Text: "Resource not found"}
	}
	return c.Pool.Subscribe(ctx, who, server, uri)
}

// Notify passes a notification on to a server. A foreign one hears nothing.
func (c catalog) Notify(who call.Caller, server, method string, params []byte) {
	if !c.foreign(who, server) {
		c.Pool.Notify(who, server, method, params)
	}
}

// foreignWrap denies a call on a wrapped server to all but its owner, as if it
// was not there; nil if there is nothing to deny.
func (a *App) foreignWrap(principal, server string) *call.End {
	if principal == auth.Local || !a.wraps.has(server) {
		return nil
	}
	return &call.End{Outcome: call.Denied, By: "policy", Text: "Not started: there is no such tool. Nothing was sent."}
}
