package downstream

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"sync"
	"sync/atomic"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

const (
	maxSessions = 10_000
	maxIdle     = 24 * time.Hour // without traffic
	maxCaps     = 4 << 10        // bytes of a client's capabilities that are kept; larger ones are not
	sweepCalls  = 64             // entries of ended calls that a session may hold before it looks
)

// session is one legacy agent's. Its id opens nothing by itself: principal and
// endpoint are compared at every use (SPEC §6.4).
type session struct {
	id        string
	principal string
	server    string // of the endpoint; "" for all
	version   string // negotiated
	client    string // name and version, as it says
	asks      string // what it can be asked; see call.Caller

	mu      sync.Mutex
	touched time.Time // the time of use that is stored
	used    time.Time
	posts   int                // requests being served
	calls   map[string]*inCall // by request id with its JSON type
	sweepAt int                // size of calls at which ended ones are looked for
	stream  chan struct{}      // closed to end the GET stream; nil if there is none
	seen    listSet            // lists that it was offered or has read, so that a change concerns it
	news    changes            // what the GET stream has to tell

	put map[string]bool // requests of ours that the agent has and has not answered, by id; under mu

	held    held         // resources that it has subscribed to
	level   atomic.Int32 // lowest of log messages that it wants
	leveled atomic.Bool  // whether it has said so

	pages pages      // that it was sent to
	roots agentRoots // of its agent

	store SessionStore // nil if nobody keeps it
	caps  []byte       // StoredSession.Data
	again bool         // of an earlier process: what it has asked for is still to be asked for; under mu
}

// inCall is a tools/call of the session. It holds the call's id only: an ended
// call's events must not stay in memory because nobody looked.
type inCall struct {
	id     call.ID   // empty while it is being started
	cancel *call.End // asked for while it was being started
	over   bool      // the request has had its answer, while its call goes on
	stop   func()    // of a request that only waits for calls: ends its wait, and does not block
}

// sessions is the bounded set of all sessions. When it is full the one that is
// idle longest goes, but none with a stream or a running call.
type sessions struct {
	running func(principal string, id call.ID) bool
	ended   func(s *session) // does not block
	store   SessionStore     // may be nil

	mu sync.Mutex // taken before a session's own
	m  map[string]*session
	// before are sessions of an earlier process that nobody has used since, by
	// the hash of their id.
	before map[string]StoredSession
}

// StoredSession is what is kept of a session. Its id is kept as a hash only: it
// has to be shown to be used.
type StoredSession struct {
	Hash                               string // SHA-256 of the id, hex
	Principal, Server, Version, Client string
	Used                               time.Time
	Level                              string   // of log messages that it wants; empty if it never said
	Resources                          []string // that it has subscribed to; at most 16 KiB of them
	Data                               []byte   // what its initialize said of the client's capabilities, raw; nil if that was more than 4 KiB
}

// SessionStore keeps sessions over restarts. Put, Touch and Drop do not wait.
type SessionStore interface {
	Sessions(ctx context.Context) ([]StoredSession, error)
	PutSession(s StoredSession)
	TouchSession(hash string, used time.Time)
	DropSession(hash string)
}

// touchEvery is how old the stored time of a session's last use may be.
const touchEvery = time.Hour

func newSessions(running func(string, call.ID) bool, ended func(s *session), store SessionStore) *sessions {
	if ended == nil {
		ended = func(*session) {}
	}
	return &sessions{running: running, ended: ended, store: store, m: map[string]*session{}, before: map[string]StoredSession{}}
}

// load reads the sessions of earlier processes.
func (ss *sessions) load(ctx context.Context) error {
	if ss.store == nil {
		return nil
	}
	list, err := ss.store.Sessions(ctx)
	if err != nil {
		return err
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for _, s := range list {
		if len(ss.before) < maxSessions && time.Since(s.Used) < maxIdle {
			ss.before[s.Hash] = s
		}
	}
	return nil
}

func sessionHash(id string) string {
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:])
}

// revive brings back a session of an earlier process; nil if there is none.
// ss.mu is held.
func (ss *sessions) revive(id string) *session {
	if len(ss.before) == 0 {
		return nil
	}
	hash := sessionHash(id)
	b, ok := ss.before[hash]
	if !ok || time.Since(b.Used) > maxIdle {
		return nil
	}
	if len(ss.m) >= maxSessions && !ss.evict() {
		return nil
	}
	delete(ss.before, hash)
	s := &session{
		id: id, principal: b.Principal, server: b.Server, version: b.Version, client: b.Client, asks: askable(b.Data, b.Version),
		used: b.Used, touched: b.Used, sweepAt: sweepCalls, seen: allLists, news: newChanges(),
		store: ss.store, caps: b.Data,
	}
	s.held.news = &s.news
	s.revive(&b)
	s.news.list(allLists) // what it has read may be old
	ss.m[id] = s
	return s
}

// remove forgets a session. ss.mu is held.
func (ss *sessions) remove(s *session) {
	if ss.m[s.id] == s { // not twice, when two requests end it
		delete(ss.m, s.id)
		ss.ended(s)
		if ss.store != nil {
			ss.store.DropSession(sessionHash(s.id))
		}
	}
}

var sessionIDs = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// open makes a session; ok is false if there are too many busy ones.
func (ss *sessions) open(principal, server, version, client string, caps []byte) (s *session, ok bool) {
	return ss.openIn(ss.store, principal, server, version, client, caps)
}

// openIn is open for a session that store keeps for the next process; nil for one
// that ends with its stream.
func (ss *sessions) openIn(store SessionStore, principal, server, version, client string, caps []byte) (s *session, ok bool) {
	var b [16]byte
	rand.Read(b[:])
	s = &session{
		id: "s_" + sessionIDs.EncodeToString(b[:]), principal: principal, server: server,
		version: version, client: client, asks: askable(caps, version), used: time.Now(), sweepAt: sweepCalls, news: newChanges(),
	}
	s.held.news = &s.news
	s.touched = s.used
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if len(ss.m) >= maxSessions && !ss.evict() {
		return nil, false
	}
	ss.m[s.id] = s
	if s.store = store; store != nil {
		if len(caps) <= maxCaps {
			s.caps = caps
		}
		store.PutSession(s.stored())
	}
	return s, true
}

// evict drops the session that is idle longest, and all that are expired.
func (ss *sessions) evict() bool {
	var oldest *session
	var since time.Time
	before := len(ss.m)
	for _, s := range ss.m {
		used, busy := s.idle(ss.running)
		switch {
		case busy:
		case time.Since(used) > maxIdle:
			ss.remove(s)
		case oldest == nil || used.Before(since):
			oldest, since = s, used
		}
	}
	if len(ss.m) == before && oldest != nil {
		ss.remove(oldest)
	}
	return len(ss.m) < before
}

// use finds a session of the principal and endpoint, and counts a request that
// it serves until done. A foreign id looks unknown.
func (ss *sessions) use(id, principal, server string) *session {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	s := ss.m[id]
	if s == nil {
		s = ss.revive(id)
	}
	if s == nil || s.principal != principal || s.server != server {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.posts == 0 && s.stream == nil && now.Sub(s.used) > maxIdle && !s.anyCall(ss.running) {
		ss.remove(s)
		return nil
	}
	s.used = now
	s.posts++
	if ss.store != nil && now.Sub(s.touched) > touchEvery {
		s.touched = now
		ss.store.TouchSession(sessionHash(id), now)
	}
	return s
}

// has says whether there is such a session.
func (ss *sessions) has(id string) bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return ss.m[id] != nil
}

// inUse says whether a session was used within a time.
func (ss *sessions) inUse(id string, within time.Duration) bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	s := ss.m[id]
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.posts > 0 || s.stream != nil || time.Since(s.used) < within
}

// drop forgets a session and ends its stream. Its running calls go on.
func (ss *sessions) drop(s *session) {
	ss.mu.Lock()
	ss.remove(s)
	ss.mu.Unlock()
	s.endStream(nil)
}

// clear forgets all sessions here; their clients find them with the next process.
func (ss *sessions) clear() {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for _, s := range ss.m {
		ss.ended(s)
	}
	clear(ss.m)
	clear(ss.before)
}

// changed notes that something of a server has changed.
func (ss *sessions) changed(server string, c mcp.Change) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for _, s := range ss.m {
		if (s.server == "" || s.server == server) && concerns(c, s.principal, s.id) {
			s.noteChange(server, c)
		}
	}
}

// concerns says whether a change was seen on a connection that may be the
// caller's.
func concerns(c mcp.Change, principal, session string) bool {
	return (c.Principal == "" || c.Principal == principal) && (c.Session == "" || c.Session == session)
}

// done ends a use.
func (s *session) done() {
	s.mu.Lock()
	s.used = time.Now()
	s.posts--
	s.mu.Unlock()
}

// idle says since when the session has been unused, and whether it is in use now.
func (s *session) idle(running func(string, call.ID) bool) (used time.Time, busy bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used, s.posts > 0 || s.stream != nil || s.anyCall(running)
}

// anyCall forgets ended calls and says whether one is left; s.mu is held.
func (s *session) anyCall(running func(string, call.ID) bool) bool {
	for k, c := range s.calls {
		if c.id != "" && !running(s.principal, c.id) {
			delete(s.calls, k)
		}
	}
	return len(s.calls) > 0
}

// begin notes a tools/call before it starts, so that a cancel that comes
// meanwhile finds it.
func (s *session) begin(key string, running func(string, call.ID) bool) *inCall {
	c := &inCall{}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls == nil {
		s.calls = map[string]*inCall{}
	}
	if len(s.calls) >= s.sweepAt {
		s.anyCall(running)
		s.sweepAt = max(sweepCalls, 2*len(s.calls))
	}
	s.calls[key] = c
	return c
}

// waits says that the request only waits for calls: stop is called when it is
// cancelled, or was.
func (s *session) waits(c *inCall, stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.stop = stop; c.cancel != nil {
		stop()
	}
}

// started gives the call its id, and returns a cancel that came before.
func (s *session) started(c *inCall, id call.ID) *call.End {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.id = id
	return c.cancel
}

// detach ends the attachment of the request to its call. With running, the call
// may go on and can still be cancelled by its request's id.
func (s *session) detach(key string, c *inCall, running bool) {
	if running {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls[key] == c { // and not a later one, of a client that uses an id twice
		delete(s.calls, key)
	}
}

// answered says whether the request has had its answer, though its call goes on:
// a cancel that comes later is not one of the call. opencode sends one after each
// result, also after a hand-off (A1, A9).
func (s *session) answered(c *inCall, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.over = over
}

// cancel finds the call to cancel. ok is false if it is still being started,
// and then cancelled by who starts it, or if the request was answered; found is
// false if the id is unknown.
func (s *session) cancel(key string, end call.End) (id call.ID, found, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.calls[key]
	switch {
	case c == nil:
		return "", false, false
	case c.over:
		return "", true, false
	case c.id == "":
		if c.cancel = &end; c.stop != nil {
			c.stop()
		}
		return "", true, false
	}
	return c.id, true, true
}

// takeStream makes the caller the session's stream, ending the one before.
func (s *session) takeStream() (kick chan struct{}) {
	kick = make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stream != nil {
		close(s.stream)
	}
	s.stream = kick
	return kick
}

// endStream ends the session's stream if it is kick, or any if kick is nil.
func (s *session) endStream(kick chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stream == nil || kick != nil && s.stream != kick {
		return
	}
	close(s.stream)
	s.stream = nil
}

// concern says that the client knows of lists, so that it is told when they change.
func (s *session) concern(set listSet) {
	s.mu.Lock()
	s.seen |= set
	s.mu.Unlock()
}

// noteChange notes a change, if the client knows of what has changed.
func (s *session) noteChange(server string, c mcp.Change) {
	if c.Message != "" {
		s.noteMessage(server, []byte(c.Message))
		return
	}
	if c.URI != "" {
		s.held.changed(server, c.URI)
		return
	}
	set := listsOf(c.List)
	s.mu.Lock()
	seen := s.seen&set != 0
	s.mu.Unlock()
	if seen {
		s.news.list(set)
	}
}

// noteList says that the client reads a list now: changes before do not concern it
// any more.
func (s *session) noteList(kind mcp.ListKind) {
	set := listsOf(kind)
	s.concern(set)
	s.news.read(set)
}

// idKey makes ids comparable: 1 and "1" are two, and however a string is
// escaped it is one.
func idKey(raw []byte) string {
	if len(raw) > 0 && raw[0] == '"' {
		if s, ok := mcp.String(raw); ok {
			return `"` + s
		}
	}
	return string(raw)
}
