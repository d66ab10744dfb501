package downstream

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"

	"github.com/longcall/longcall/internal/mcp"
)

// maxHeld bounds the resources that one session or one listen subscribes to.
const maxHeld = 1000

// held are the resources that a session or a listen has subscribed to, each once.
type held struct {
	news *changes // what has to be told of them

	mu     sync.Mutex
	m      map[string]*hold // by URI
	closed bool
}

// hold is one of them.
type hold struct {
	server string // its owner; empty while it is not known, and for one of ours
	stop   func() // ends it; nil while it begins
	again  bool   // it is of an earlier process, and still to be asked for
}

var errHeld = errors.New("you have " + strconv.Itoa(maxHeld) + " subscriptions, which is the limit; unsubscribe from some first")

// begin makes room for a subscription; nil says that there is one already.
func (h *held) begin(uri string) (*hold, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.m[uri] != nil || h.closed {
		return nil, nil
	}
	if len(h.m) >= maxHeld {
		return nil, errHeld
	}
	if h.m == nil {
		h.m = map[string]*hold{}
	}
	o := &hold{}
	h.m[uri] = o
	return o, nil
}

// owner says which server is asked now: it may tell of a change at once.
func (h *held) owner(o *hold, server string) {
	h.mu.Lock()
	o.server = server
	h.mu.Unlock()
}

// begun keeps what ends the subscription, or ends it if it was dropped meanwhile.
func (h *held) begun(uri string, o *hold, stop func()) {
	h.mu.Lock()
	dropped := h.m[uri] != o
	if !dropped {
		o.stop, o.again = stop, false
	}
	h.mu.Unlock()
	if dropped {
		stop()
	}
}

// drop ends a subscription; one that is not there is none.
func (h *held) drop(uri string) {
	h.mu.Lock()
	o := h.m[uri]
	delete(h.m, uri)
	var stop func()
	if o != nil {
		stop = o.stop
	}
	h.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// close ends all, for good.
func (h *held) close() {
	h.mu.Lock()
	all := h.m
	h.m, h.closed = nil, true
	h.mu.Unlock()
	for _, o := range all {
		if o.stop != nil { // set before it was taken out, or not at all: see begun
			o.stop()
		}
	}
}

// changed notes that a resource of a server has changed, if one of those held
// covers it.
func (h *held) changed(server, uri string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for subscribed, o := range h.m {
		if o.server == server && server != "" && covers(subscribed, uri) {
			h.news.resource(uri, subscribed)
			return
		}
	}
}

// subscribe subscribes to a resource at whoever has it. The error is for
// the agent.
func (x *exchange) subscribeTo(ctx context.Context, h *held, uri string) error {
	o, err := h.begin(uri)
	if o == nil {
		return err
	}
	if err = x.hold(ctx, h, uri, o); err != nil {
		h.drop(uri)
	}
	return err
}

// hold has a resource that room was made for told of by whoever has it.
func (x *exchange) hold(ctx context.Context, h *held, uri string, o *hold) error {
	if own := x.h.own; own != nil {
		if stop, ok := own.watch(x, uri, func() { h.news.resource(uri, uri) }); ok {
			h.begun(uri, o, stop)
			return nil
		}
	}
	who := x.caller()
	err := errNoResource
	owners, rest := x.owners(uri)
	sure := len(owners) > 0
	if !sure {
		owners = rest // many servers take a subscription to whatever it is
	}
	for _, server := range owners {
		if !x.subscribable(server, sure) {
			continue
		}
		h.owner(o, server)
		if err = x.h.opt.Catalog.Subscribe(ctx, who, server, uri); err == nil {
			h.begun(uri, o, func() { x.h.opt.Catalog.Unsubscribe(who, server, uri) })
			return nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return err
}

// subscribable says whether a server may tell of changes of its resources: it says
// that it does, or has not said anything yet. One whose resource it surely is, is asked
// whatever it says, as its clients do: servers on version 1 of the Python SDK have no
// way to declare it.
func (x *exchange) subscribable(server string, sure bool) bool {
	caps, known := x.h.opt.Catalog.Capabilities(x.caller(), server)
	if !known {
		return true
	}
	r := find(caps, 0, "resources")
	return r.ok() && (sure || isTrue(caps, r.val, "subscribe"))
}

// subscribeLegacy answers resources/subscribe and unsubscribe.
func (x *exchange) subscribeLegacy(m *mcp.Message, s *session) []byte {
	id := m.ID.Of(m.Raw)
	if wrong := badRead(m); wrong != "" {
		return mcp.ErrorResponse(id, mcp.CodeInvalidParams, wrong, nil)
	}
	uri, _ := mcp.String(m.URI.Of(m.Raw))
	if m.Method == mcp.MethodUnsubscribe {
		s.held.drop(uri)
		x.h.sessions.keep(s)
		return mcp.ResultResponse(id, []byte("{}"))
	}
	if s.id == "" {
		return mcp.ErrorResponse(id, mcp.CodeInvalidRequest, "Not subscribed: there is no session to tell of changes. Send initialize first.", nil)
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), holdWait)
	defer cancel()
	err := x.subscribeTo(ctx, &s.held, uri)
	var rpc *mcp.RPCError
	switch {
	case err == nil:
		x.h.sessions.keep(s)
		return mcp.ResultResponse(id, []byte("{}"))
	case errors.Is(err, errHeld):
		return mcp.ErrorResponse(id, mcp.CodeInvalidParams, "Not subscribed: "+err.Error()+".", nil)
	case errors.As(err, &rpc):
		return mcp.ErrorResponse(id, rpc.Code, rpc.Text, rpc.Data)
	case errors.Is(err, errNoResource):
		return x.noResource(id, uri)
	}
	return mcp.ErrorResponse(id, mcp.CodeInternal, "Not subscribed: "+err.Error()+". Try again later, or read the resource when you need it.", nil)
}

// setLevel answers logging/setLevel: log messages below are not shown in this
// session from now on, and tool servers need not send them.
func (x *exchange) setLevel(m *mcp.Message, s *session) []byte {
	id := m.ID.Of(m.Raw)
	name, _ := text(m.Params.Of(m.Raw), "level")
	rank, ok := level(name)
	if !ok {
		return mcp.ErrorResponse(id, mcp.CodeInvalidParams, "params.level must be one of "+strings.Join(levels[:], ", ")+".", nil)
	}
	if s.id != "" { // else there is no later
		s.level.Store(int32(rank))
		s.leveled.Store(true)
		x.h.sessions.keep(s)
		x.h.opt.Catalog.SetLevel(x.caller(), name)
	}
	return mcp.ResultResponse(id, []byte("{}"))
}

var errNoResource = errors.New("no tool server here has resources to subscribe to")

// ownResources are resources of longcall itself, beside those of the tool servers:
// the way in for what calls show of themselves. An implementation checks that what
// a URI names is the caller's; what is not looks unknown (I6).
type ownResources interface {
	// templates are entries of resources/templates/list.
	templates(x *exchange) []mcp.Entry
	// read gives the contents of a resource, a raw JSON array; ok is false if the
	// URI is none of ours, or unknown.
	read(x *exchange, uri string) (contents []byte, ok bool)
	// watch calls changed, which does not block, when the resource has changed,
	// until stop was called and returned; ok is false as of read.
	watch(x *exchange, uri string, changed func()) (stop func(), ok bool)
	// owns says whether URIs of this form are ours, so that no tool server is
	// asked for them.
	owns(uri string) bool
}
