package downstream

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

var update = flag.Bool("update", false, "rewrite the golden conversations")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memLog is a call.Log that keeps everything in memory.
type memLog struct {
	call.Log
	mu         sync.Mutex
	recs       map[call.ID]*call.Record
	events     map[call.ID][]call.Event
	deliveries []call.Delivery
	delivered  chan struct{} // told of each delivery
	createErr  error
	appendErr  error
	readErr    error
}

func newMemLog() *memLog {
	return &memLog{recs: map[call.ID]*call.Record{}, events: map[call.ID][]call.Event{}, delivered: make(chan struct{}, 1000)}
}

func (l *memLog) Create(_ context.Context, r *call.Record, events ...call.Event) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.createErr != nil {
		return l.createErr
	}
	c := *r
	l.recs[r.ID], l.events[r.ID] = &c, slices.Clone(events)
	return nil
}

func (l *memLog) Append(id call.ID, _ uint64, e call.Event) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.appendErr != nil {
		return l.appendErr
	}
	l.events[id] = append(l.events[id], e)
	return nil
}

func (l *memLog) Finish(_ context.Context, r *call.Record, e call.Event) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := *r
	l.recs[r.ID] = &c
	l.events[r.ID] = append(l.events[r.ID], e)
	return nil
}

func (l *memLog) Deliver(d call.Delivery) {
	l.mu.Lock()
	l.deliveries = append(l.deliveries, d)
	l.mu.Unlock()
	l.delivered <- struct{}{}
}

func (l *memLog) Read(_ context.Context, id call.ID, after uint64, size int) ([]call.Event, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.readErr != nil {
		return nil, l.readErr
	}
	var out []call.Event
	for _, e := range l.events[id] {
		if e.Seq > after {
			if size -= len(e.Body); size < 0 && len(out) > 0 {
				break
			}
			out = append(out, e)
		}
	}
	return out, nil
}

func (l *memLog) Get(_ context.Context, id call.ID) (*call.Record, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.recs[id]; r != nil {
		c := *r
		return &c, nil
	}
	return nil, call.ErrUnknown
}

func (l *memLog) Owned(_ context.Context, principal string, before call.ID, size int) (list []call.Record, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.recs {
		if r.Principal == principal {
			c := *r
			list = append(list, c)
			for _, d := range l.deliveries {
				if d.Call == r.ID && d.How == call.HandedOff {
					list[len(list)-1].HandedOff = true
				}
				if d.Call == r.ID && (d.How == call.Delivered || d.How == call.Replayed) {
					list[len(list)-1].Delivered = true
				}
			}
		}
	}
	slices.SortFunc(list, func(a, b call.Record) int { return b.Started.Compare(a.Started) })
	if i := slices.IndexFunc(list, func(r call.Record) bool { return r.ID == before }); i >= 0 {
		list = list[i+1:]
	}
	return list[:min(size, len(list))], nil
}

func (l *memLog) Running(context.Context, uint64) ([]call.Record, error) { return nil, nil }

func (l *memLog) record(t *testing.T, tool string) call.Record {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.recs {
		if r.PublicTool == tool || r.Tool == tool {
			return *r
		}
	}
	t.Fatalf("no call of %s was recorded", tool)
	return call.Record{}
}

func (l *memLog) hows() (out []call.How) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range l.deliveries {
		out = append(out, d.How)
	}
	return out
}

// script is what a tool does.
type script func(ctx context.Context, x *call.Exec) call.Answer

// rig is a handler over a real engine, with tools made of functions.
type rig struct {
	t     testing.TB
	h     *Handler
	eng   *call.Engine
	log   *memLog
	tools map[string]script // by own name
	reads map[string]script // of other methods than tools/call: "server method"
	lists map[string][]mcp.Entry
	more  map[mcp.ListKind]map[string][]mcp.Entry // the lists that are no tools, by server
	caps  map[string]string                       // what servers said of themselves, if not just tools; empty is not yet
	said  map[string]string                       // their instructions
	ttl   map[string]time.Duration
	fresh map[string]bool

	subscribed   []string // what was asked of Subscribe and Unsubscribe, in order
	subscribeErr map[string]error
	levels       []string // what was asked of SetLevel
	notes        []string // what was asked of Notify
	joined       int      // how often RootsJoined was called
	askRoots     func(context.Context, call.Caller, string, func(string) bool) []byte
	roots        int // how often RootsChanged was called

	listErr  map[string]error
	settings Settings
	decide   func(principal, server, tool string, modern bool) Decision
	seen     observed
	mu       sync.Mutex
	watch    func(string, mcp.Change)
}

func (r *rig) Run(ctx context.Context, x *call.Exec) call.Answer {
	if x.Spec.Method != "" {
		if s := r.reads[x.Spec.Server+" "+x.Spec.Method]; s != nil {
			return s(ctx, x)
		}
		return reply(x, `{"jsonrpc":"2.0","id":0,"error":{"code":-32601,"message":"Method not found"}}`)
	}
	if s := r.tools[x.Spec.Tool]; s != nil {
		return s(ctx, x)
	}
	return reply(x, `{"jsonrpc":"2.0","id":0,"error":{"code":-32602,"message":"Unknown tool"}}`)
}

func (r *rig) Servers() []string {
	var out []string
	for s := range r.lists {
		out = append(out, s)
	}
	return out
}

func (r *rig) List(_ context.Context, _ call.Caller, server string, kind mcp.ListKind) (mcp.Listing, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	entries := r.lists[server]
	if kind != mcp.ListTools {
		entries = r.more[kind][server]
	}
	ttl, ok := r.ttl[server]
	if !ok {
		ttl = -1
	}
	return mcp.Listing{Entries: entries, Fresh: r.fresh[server], TTL: ttl}, r.listErr[server]
}

func (r *rig) Capabilities(_ call.Caller, server string) ([]byte, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	caps, ok := r.caps[server]
	if !ok {
		caps = `{"tools":{}}`
	}
	return []byte(caps), caps != ""
}

func (r *rig) Subscribe(_ context.Context, who call.Caller, server, uri string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.subscribeErr[server]; err != nil {
		return err
	}
	r.subscribed = append(r.subscribed, "+"+who.Principal+" "+server+" "+uri)
	return nil
}

func (r *rig) Unsubscribe(who call.Caller, server, uri string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.subscribed = append(r.subscribed, "-"+who.Principal+" "+server+" "+uri)
}

func (r *rig) RootsChanged(call.Caller) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.roots++
}

func (r *rig) RootsJoined(call.Caller) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.joined++
}

func (r *rig) AnswerRoots(f func(context.Context, call.Caller, string, func(string) bool) []byte) {
	r.askRoots = f
}

func (r *rig) Notify(who call.Caller, server, method string, params []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notes = append(r.notes, who.Session+" "+server+" "+method+" "+string(params))
}

func (r *rig) SetLevel(who call.Caller, level string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.levels = append(r.levels, who.Session+" "+level)
}

func (r *rig) Instructions(_ call.Caller, server string) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.said[server]; s != "" {
		return mcp.Quote(s)
	}
	return nil
}

func (r *rig) Watch(f func(string, mcp.Change)) func() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watch = f
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.watch = nil
	}
}

func (r *rig) change(server string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watch(server, mcp.Change{List: mcp.ListTools})
}

// Check knows two principals.
func (r *rig) Check(authorization string) (string, error) {
	switch authorization {
	case "Bearer ann":
		return "ann", nil
	case "Bearer local":
		return "local", nil
	case "Bearer bob":
		return "bob", nil
	}
	return "", errors.New("send the bearer token that longcall printed at its start")
}

// observed is an Observer that remembers.
type observed struct {
	mu    sync.Mutex
	start int
	first int
	ended []Request
}

func (o *observed) RequestStarted(*Request) { o.mu.Lock(); o.start++; o.mu.Unlock() }
func (o *observed) FirstByte(*Request)      { o.mu.Lock(); o.first++; o.mu.Unlock() }
func (o *observed) RequestEnded(q *Request) {
	o.mu.Lock()
	o.ended = append(o.ended, *q)
	o.mu.Unlock()
}

func newRig(t testing.TB) *rig {
	r := &rig{
		t: t, log: newMemLog(), tools: map[string]script{}, reads: map[string]script{},
		lists:   map[string][]mcp.Entry{"up": {{Name: "work", Raw: []byte(`{"name":"work","inputSchema":{"type":"object"}}`)}}},
		fresh:   map[string]bool{"up": true},
		more:    map[mcp.ListKind]map[string][]mcp.Entry{},
		caps:    map[string]string{},
		said:    map[string]string{},
		ttl:     map[string]time.Duration{},
		listErr: map[string]error{},
		settings: Settings{
			Comment: 5 * time.Second, Progress: 10 * time.Second,
			KeepArguments: func(raw []byte) []byte { return bytes.Clone(raw) },
			Digest:        func([]byte) string { return "digest" },
		},
		decide: func(_, _, _ string, modern bool) Decision { return Decision{CancelOnDisconnect: modern} },
	}
	r.eng = call.NewEngine(r.log, r, call.Options{Epoch: 1})
	r.h = New(Options{
		Engine: r.eng, Catalog: r, Auth: r, Observer: &r.seen,
		Admit:    func(p, s, tool string, modern bool) Decision { return r.decide(p, s, tool, modern) },
		Settings: func() *Settings { return &r.settings },
		Info:     ServerInfo{Name: "longcall", Version: "0", Instructions: "Long calls hold."},
		Log:      slog.New(slog.DiscardHandler),
	})
	t.Cleanup(r.stop)
	return r
}

// stop ends everything, at once.
func (r *rig) stop() {
	r.h.Stop()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	r.eng.Stop(ctx)
}

// serve starts a real server.
func (r *rig) serve() *client {
	s := httptest.NewServer(r.h)
	tr := &http.Transport{}
	r.t.Cleanup(func() {
		r.h.Stop()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		r.eng.Stop(ctx)
		tr.CloseIdleConnections()
		s.CloseClientConnections()
		s.Close()
	})
	return &client{t: r.t, url: s.URL, http: &http.Client{Transport: tr}, header: http.Header{
		"Authorization": {"Bearer ann"}, "Content-Type": {"application/json"},
		"Accept": {"application/json, text/event-stream"},
	}}
}

// reply makes an Answer of a raw response whose id is the only 0 after "id":.
func reply(x *call.Exec, raw string) call.Answer {
	_ = x.Dispatched()
	x.FirstByte()
	a := call.Answer{Body: []byte(raw), Hole: strings.Index(raw, `"id":0`) + 5}
	a.Outcome = call.Completed
	if m, err := mcp.Parse([]byte(raw)); err == nil && m.Error.Ok() {
		a.Outcome, a.Code = call.Failed, m.Code
	}
	return a
}

const okResult = `{"jsonrpc":"2.0","id":0,"result":{"content":[{"type":"text","text":"done"}]}}`

// progress emits a notifications/progress with members after the token.
func progress(x *call.Exec, members string) error {
	raw := `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":0,` + members + `}}`
	return x.Emit(call.Event{Kind: call.KindProgress, Body: []byte(raw), Hole: strings.Index(raw, `:0,`) + 1})
}

// client is one agent over a real socket.
type client struct {
	t       testing.TB
	url     string
	http    *http.Client
	header  http.Header
	session string
}

func (c *client) request(ctx context.Context, method, path, body string, header ...string) *http.Request {
	c.t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header = c.header.Clone()
	if c.session != "" {
		req.Header.Set(mcp.HeaderSession, c.session)
	}
	for i := 0; i < len(header); i += 2 {
		if header[i+1] == "" {
			req.Header.Del(header[i])
		} else {
			req.Header.Set(header[i], header[i+1])
		}
	}
	return req
}

// do sends a request and reads the whole answer.
func (c *client) do(method, path, body string, header ...string) (int, http.Header, string) {
	c.t.Helper()
	resp, err := c.http.Do(c.request(context.Background(), method, path, body, header...))
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(b)
}

func (c *client) post(path, body string, header ...string) (int, string) {
	c.t.Helper()
	status, _, b := c.do("POST", path, body, header...)
	return status, b
}

// open makes a session.
func (c *client) open(path, version string) {
	c.t.Helper()
	status, h, b := c.do("POST", path, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"`+version+`","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`)
	if c.session = h.Get(mcp.HeaderSession); status != 200 || c.session == "" {
		c.t.Fatalf("initialize: %d %s", status, b)
	}
}

// modern are the headers of a 2026-07-28 request.
func modern(method, name string) []string {
	return []string{mcp.HeaderVersion, mcp.V20260728, mcp.HeaderMethod, method, mcp.HeaderName, name}
}

const modernMeta = `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}`

func modernCall(id, name, more string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"` + name + `","_meta":{` + modernMeta + more + `}}}`
}

func legacyCall(id, name, token string) string {
	meta := ""
	if token != "" {
		meta = `,"_meta":{"progressToken":` + token + `}`
	}
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"` + name + `"` + meta + `}}`
}

// data are the messages of an event stream.
func data(stream string) (out []string) {
	for line := range strings.SplitSeq(stream, "\n") {
		if d, ok := strings.CutPrefix(line, "data: "); ok && d != "" {
			out = append(out, d)
		}
	}
	return out
}

func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
		<-time.After(2 * time.Millisecond)
	}
}
