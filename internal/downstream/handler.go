// Package downstream is the agents' side: it serves every era of the protocol over HTTP and shows calls to those who asked for them.
package downstream

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// Catalog knows the tool servers and what they offer.
type Catalog interface {
	// Servers are the configured names.
	Servers() []string
	// List is one of a server's lists as the caller sees it, from the last known
	// catalog: only the very first may wait. An error comes with what is known
	// all the same. A server without such a list has an empty one.
	List(ctx context.Context, who call.Caller, server string, kind mcp.ListKind) (mcp.Listing, error)
	// Capabilities is what a server said that it can do, a raw JSON object; known
	// is false if it has not said so yet. It never waits.
	Capabilities(who call.Caller, server string) (caps []byte, known bool)
	// Instructions are what a server tells models, a raw JSON string; nil if it
	// tells nothing that is known. It never waits.
	Instructions(who call.Caller, server string) []byte
	// Subscribe asks a server to tell of a resource; each is undone by one
	// Unsubscribe, which does not wait.
	Subscribe(ctx context.Context, who call.Caller, server, uri string) error
	Unsubscribe(who call.Caller, server, uri string)
	// SetLevel says from which level on a session wants log messages; it does
	// not wait.
	SetLevel(who call.Caller, level string)
	// RootsChanged says that a session's roots are others now; it does not wait.
	RootsChanged(who call.Caller)
	// RootsJoined says that a session can be asked for its roots now; it does not wait.
	RootsJoined(who call.Caller)
	// AnswerRoots has f answer servers that ask for roots outside of any call. It
	// gives the raw result, of all sessions of a principal, or one, whose
	// capabilities are the same to the server.
	AnswerRoots(f func(ctx context.Context, who call.Caller, server string, same func(caps string) bool) []byte)
	// Notify passes a notification on to a server, if there is a connection to it;
	// params is a raw object or nil. It does not wait.
	Notify(who call.Caller, server, method string, params []byte)
	// Watch calls f, which does not block, whenever a list or a resource of a
	// server has changed, until stop was called and returned.
	Watch(f func(server string, c mcp.Change)) (stop func())
}

// Auth says who is calling. The error text is shown to the caller.
type Auth interface {
	Check(authorization string) (principal string, err error)
}

// Decision is what policy says about one call.
type Decision struct {
	Denied   *call.End // not nil: the call must not run, and why
	Limits   call.Limits
	Buffered bool // relay: buffered, the kill switch: one answer at the end, no stream
	// CancelOnDisconnect cancels the call Grace after its agent's connection
	// was lost, in the modern era only: there a closed stream is a cancel of
	// the request (SPEC §2.3). Legacy calls always go on (O20).
	CancelOnDisconnect bool
	Grace              time.Duration
	HandOff            bool        // the call may be handed off when the agent's patience ends
	TaskOnly           bool        // only as a task: a request that declares none is refused
	Attach             call.Attach // when the request takes over an equal call
	AutoAttach         bool        // a tool that says it is idempotent is joined by all
	AutoDisconnect     bool        // CancelOnDisconnect is the era's default, which annotations may change
	PerSession         bool        // equal calls of two sessions are not the same call
}

// Settings may change while the handler serves. Zero durations turn beats off.
type Settings struct {
	// AllowedOrigins are browser origins, such as https://app.example, that may
	// call, and that get CORS headers; "*" allows any. Loopback origins always
	// may call over a loopback connection.
	AllowedOrigins []string
	// AllowedHosts are values of the Host header, with or without a port, that
	// are accepted besides loopback names on a loopback connection. On another
	// connection an empty list, or "*", accepts any.
	AllowedHosts []string
	BodyLimit    int64         // bytes of a request body; 0 means 4 MiB
	Comment      time.Duration // of silence, before an SSE comment
	Progress     time.Duration // without progress, before one of ours
	WriteTimeout time.Duration // of a single write; 0 means 30 s
	// Together is how long the first byte waits for an answer that may leave
	// with it, in one write: a few milliseconds, or 0 for not at all.
	Together time.Duration
	// StreamAge ends a call's stream of a session that can resume it, when it is
	// that old: the agent then comes back for the rest. 0 means never.
	StreamAge time.Duration
	// OwnTools lists await_call, cancel_call and list_calls beside the tool
	// servers' tools. Who knows them is served in any case.
	OwnTools bool
	// Sessionless serves legacy requests that name no session, as ones of
	// 2025-03-26, instead of refusing them (SPEC §5.3).
	Sessionless bool
	// TellEnds says where ends of calls that were handed off are told.
	TellEnds TellEnds
	// Extensions are what the operator lets through of what longcall does not
	// know: by server, then by the extension's name, its methods, of requests and
	// of notifications; see mcp.Allows.
	Extensions map[string]map[string][]string
	// KeepArguments is what the journal may keep of raw arguments, and Digest
	// the digest of their canonical form. Either may be nil.
	KeepArguments func(raw []byte) []byte
	Digest        func(raw []byte) string
}

// Request is what an Observer hears about one HTTP request. It must not keep it.
type Request struct {
	ID          string  // ours, "r_…"; also Spec.RequestID of the call
	Call        call.ID // once a call has started
	Principal   string
	Session     string
	Server      string // of the endpoint, or of the tool that is called; empty for all
	Tool        string // the name that the agent used
	Era         string // protocol revision, once known
	Method      string // JSON-RPC method, or the HTTP method if there is none
	Traceparent string // as the agent sent it, if it is well-formed

	Start     time.Time
	Status    int
	FirstByte time.Duration // from Start; 0 if nothing was written
	BytesIn   int64
	BytesOut  int64
	Events    int64         // messages written to the stream
	Dropped   int64         // progress that the agent did not get
	Beats     int64         // comments and progress of ours
	MaxGap    time.Duration // longest silence on a call's stream; 0 for other answers
	Kind      string        // of the attachment to a call: "sse" or "json"
	// How the attachment to a call ended; empty for other requests, and if the
	// agent cancelled: then nothing is delivered.
	How call.How
	End *call.End // of the call, as the agent was shown it; nil if it was shown none
}

// Observer is told about requests as they pass, for log lines, metrics and
// spans. Its methods must not block.
type Observer interface {
	// RequestStarted comes when principal, era and method are known: for a
	// tools/call right after the call has started, for a request that is
	// refused when it ends.
	RequestStarted(q *Request)
	// FirstByte comes when the first byte of a call's answer was written.
	FirstByte(q *Request)
	// RequestEnded comes once for each RequestStarted.
	RequestEnded(q *Request)
}

// ServerInfo is how longcall introduces itself.
type ServerInfo struct {
	Name         string
	Version      string
	Instructions string // for the model; may be empty
}

// Options of a Handler. All but Profile, Observer, Log, Shell and SessionEnded are needed.
type Options struct {
	Engine  *call.Engine
	Catalog Catalog
	Auth    Auth
	Admit   func(principal, server, tool string, modern bool) Decision
	// Profile is how patient a client is: server is that of the endpoint, empty
	// for all, and client what the agent said of itself. nil means no bounds and
	// tasks for who declares them.
	Profile  func(principal, server, client string) Profile
	Settings func() *Settings
	Info     ServerInfo
	Observer Observer
	Log      *slog.Logger
	// Anonymous says that nobody is asked who they are, so that owners of tasks
	// cannot be told apart: then no tasks are listed (SPEC §6.4).
	Anonymous bool
	// Key seals event ids; it has to be the same after a restart. Epoch is of
	// this process.
	Key   [32]byte
	Epoch uint64
	// Sessions keeps legacy sessions over restarts; nil means that nobody does.
	Sessions SessionStore
	// Shell runs commands for agents; nil if it is off.
	Shell Shell
	// SessionEnded is called when a legacy session is no more; it must not
	// block. May be nil.
	SessionEnded func(principal, session string)
}

// Handler serves /mcp for all servers, with tools named server__tool, and
// /mcp/{server} for one, with its own names.
type Handler struct {
	opt       Options
	log       *slog.Logger
	sessions  *sessions
	cursors   cursorKey
	info      []byte          // raw serverInfo
	stamps    *stamps         // of it
	params    sync.Map        // server NUL principal to *factIndex
	spent     context.Context // is over: for looking without waiting
	unwatch   func()
	subs      subscriptions
	old       oldStreams
	asked     sessionTasks
	comebacks comebacks
	own       ownResources // nil if there are none

	lasting  context.Context // of what goes on beside requests
	over     context.CancelFunc
	spawning sync.Mutex // while something begins, or nothing may any more
	wg       sync.WaitGroup
	stopped  atomic.Bool
	retire   sync.Once
	stopping chan struct{} // closed when streams that are not a call's are to end
}

// New makes a handler. Stop must be called when it is not needed any more.
func New(opt Options) *Handler {
	h := &Handler{
		opt: opt, log: opt.Log, cursors: newCursorKey(), info: serverInfo(opt.Info),
		stopping: make(chan struct{}),
	}
	h.stamps = newStamps(h.info)
	h.lasting, h.over = context.WithCancel(context.Background())
	var over context.CancelFunc
	h.spent, over = context.WithCancel(context.Background())
	over()
	if h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	h.sessions = newSessions(h.running, func(s *session) {
		h.asked.forget(s.id)
		s.held.close()
		if f := opt.SessionEnded; f != nil {
			f(s.principal, s.id)
		}
	}, opt.Sessions)
	if opt.Shell != nil {
		h.opt.Catalog = shellCatalog{opt.Catalog, opt.Shell}
		h.own = callResources{}
	}
	opt.Catalog.AnswerRoots(h.roots)
	h.unwatch = opt.Catalog.Watch(func(server string, c mcp.Change) {
		h.sessions.changed(server, c)
		h.subs.changed(server, c)
	})
	return h
}

// LoadSessions makes the sessions of earlier processes known. It is to be called
// before the first request.
func (h *Handler) LoadSessions(ctx context.Context) error { return h.sessions.load(ctx) }

// Stop ends the streams that are not a call's, and leaves all sessions to the
// next process: what becomes of running calls is the engine's to say, and reaches
// their streams from there. It does not wait for requests; http.Server.Shutdown
// does.
func (h *Handler) Stop() {
	h.Retire()
	if h.stopped.Swap(true) {
		return
	}
	h.unwatch()
	h.spawning.Lock()
	h.over()
	h.spawning.Unlock()
	h.sessions.clear()
	h.wg.Wait()
}

// spawn runs f beside requests, unless the handler is stopped; f ends with lasting.
func (h *Handler) spawn(f func()) {
	h.spawning.Lock()
	defer h.spawning.Unlock()
	if h.lasting.Err() == nil {
		h.wg.Go(f)
	}
}

// Retire ends the streams that are not a call's: their clients open them again
// with the process that takes over. The streams of running calls go on, since
// this process carries those calls to their end.
func (h *Handler) Retire() {
	h.retire.Do(func() { close(h.stopping) })
}

func (h *Handler) isStopping() bool { return h.stopped.Load() }

// running says whether a call of the principal has not ended.
func (h *Handler) running(principal string, id call.ID) bool {
	return h.opt.Engine.Runs(principal, id)
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := &exchange{h: h, r: r, set: h.opt.Settings()}
	x.out.init(w, r, x.set.WriteTimeout)
	x.q.Start, x.q.Method = x.out.start, r.Method
	if !x.guard() {
		x.done()
		return
	}
	if x.at == atMessages {
		x.postOld() // it, or what answers it, says how it went
		return
	}
	defer x.done()
	if x.at == atStream {
		x.openOld()
		return
	}
	switch r.Method {
	case http.MethodPost:
		if a := x.post(); a != nil {
			a.serve() // with nothing of the request left on the stack: a call may be parked here for hours
		}
	case http.MethodGet:
		if a := x.get(); a != nil {
			a.run()
		}
	case http.MethodDelete:
		x.delete()
	default:
		x.notAllowed("Use POST.")
	}
}

// place of an endpoint.
type endpointKind uint8

const (
	atMCP      endpointKind = iota // /mcp, /mcp/{server}: Streamable HTTP
	atStream                       // /sse, /sse/{server}: the stream of 2024-11-05
	atMessages                     // where that one's messages are posted to
)

// Serves says whether a path is one of the agents' endpoints.
func Serves(path string) bool {
	_, _, ok := cutEndpoint(path)
	return ok
}

// cutEndpoint takes a path apart; server is empty for all.
func cutEndpoint(path string) (at endpointKind, server string, ok bool) {
	for kind, root := range [...]string{atMCP: "/mcp", atStream: "/sse", atMessages: pathMessages} {
		rest, found := strings.CutPrefix(path, root)
		if !found {
			continue
		}
		switch server, sub := strings.CutPrefix(strings.TrimSuffix(rest, "/"), "/"); {
		case sub:
			return endpointKind(kind), server, kind != int(atMessages)
		case server == "":
			return endpointKind(kind), "", true
		}
	}
	return 0, "", false
}

// endpoint finds what a path names; server is empty for all.
func (h *Handler) endpoint(path string) (at endpointKind, server string, ok bool) {
	at, server, ok = cutEndpoint(path)
	if !ok || server == "" {
		return at, server, ok
	}
	// A catalog may know servers that only those hear of who know their name.
	if p, is := h.opt.Catalog.(interface{ Private(server string) bool }); is && p.Private(server) {
		return at, server, true
	}
	return at, server, slices.Contains(h.opt.Catalog.Servers(), server)
}
