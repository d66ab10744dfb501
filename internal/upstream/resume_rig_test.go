package upstream_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/call/calltest"
	"github.com/longcall/longcall/internal/mcp"
	"github.com/longcall/longcall/internal/upstream"
	"github.com/longcall/longcall/test/wire"
)

// world is a log and a scripted server, and the processes of longcall that come
// and go between them.
type world struct {
	t     *testing.T
	log   *calltest.Memory
	up    *wire.Upstream
	edit  func(*upstream.Server)
	prime bool // a call's stream begins with an event that only has an id
	epoch uint64

	mu    sync.Mutex
	calls map[string]*told
	rest  func(c *wire.Conn, r *wire.Request) bool // see onResume
}

// told is one call as the server knows it.
type told struct {
	*wire.EventLog
	*wire.Request
}

func newWorld(t *testing.T, opt wire.Options) *world {
	w := &world{t: t, log: calltest.NewMemory(), calls: map[string]*told{}}
	if opt.On == nil {
		opt.On = map[string]wire.Handler{}
	}
	opt.On["tools/call"] = func(c *wire.Conn, r *wire.Request) {
		tag := strings.Trim(string(wire.At(string(r.Args), "tag")), `"`)
		if tag == "" {
			c.Answer(r.Text("worked"))
			return
		}
		log := w.up.NewLog(tag)
		if w.prime {
			log.Append("")
		}
		w.mu.Lock()
		w.calls[tag] = &told{log, r}
		w.mu.Unlock()
		c.SSE()
		log.Serve(c, 0, 0)
		c.End()
	}
	opt.On["GET"] = func(c *wire.Conn, r *wire.Request) {
		w.mu.Lock()
		f := w.rest
		w.mu.Unlock()
		if f == nil || r.Header.Get("Last-Event-ID") == "" || !f(c, r) {
			w.up.Usual(c, r)
		}
	}
	w.up = wire.NewUpstream(t, opt)
	return w
}

// onResume lets f answer a request for the rest of a stream instead of the
// server, if it wants to.
func (w *world) onResume(f func(c *wire.Conn, r *wire.Request) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rest = f
}

// told waits until the server has the call.
func (w *world) told(tag string) *told {
	w.t.Helper()
	var c *told
	w.until("the server has call "+tag, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		c = w.calls[tag]
		return c != nil
	})
	return c
}

func (c *told) step(n int) { c.Append(c.Progress(strconv.Itoa(n), "", "")) }

func (c *told) end() { c.Append(c.Text("worked")); c.Finish() }

func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	over := time.After(10 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-over:
			w.t.Fatalf("not within 10 s: %s", what)
		}
	}
}

// life is one process of longcall.
type life struct {
	*world
	pool   *upstream.Pool
	engine *call.Engine
	epoch  uint64
	over   bool
}

func (w *world) begin() *life {
	w.t.Helper()
	w.epoch++
	s := upstream.Server{
		Name: "up", URL: w.up.URL, Era: "auto", Share: "principal",
		Headers: http.Header{"X-Life": {strconv.FormatUint(w.epoch, 10)}},
	}
	if w.edit != nil {
		w.edit(&s)
	}
	l := &life{world: w, epoch: w.epoch}
	l.pool = upstream.NewPool(upstream.Options{Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	l.pool.SetServers(map[string]upstream.Server{s.Name: s})
	l.engine = call.NewEngine(w.log, l.pool, call.Options{Epoch: w.epoch})
	w.t.Cleanup(l.end)
	return l
}

func (l *life) end() {
	if l.over {
		return
	}
	l.over = true
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	l.engine.Stop(ctx)
	l.pool.Stop(ctx)
}

// kill ends the process as kill -9 does: what was not stored is lost, nothing
// more is written, and the server hears nothing but closed connections.
func (l *life) kill() {
	l.log.Fail(func(string) error { return errors.New("killed") })
	l.log.Crash()
	l.end()
	l.log.Fail(nil)
}

// next is the process after this one, which takes its calls up.
func (w *world) next(adopted, interrupted int) *life {
	w.t.Helper()
	l := w.begin()
	a, i, err := l.engine.Recover(w.t.Context())
	if err != nil || a != adopted || i != interrupted {
		w.t.Fatalf("%d taken up, %d interrupted, %v; not %d and %d", a, i, err, adopted, interrupted)
	}
	return l
}

func (l *life) start(tag string, limits call.Limits) *call.Call {
	l.t.Helper()
	c, err := l.engine.Start(l.t.Context(), call.Spec{
		Principal: "p", Server: "up", Tool: "work", Limits: limits,
		Request: []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"up__work","arguments":{"tag":"` + tag + `"},"_meta":{"progressToken":7}}}`),
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return c
}

// run begins a process and starts call a in it. The server has the call then.
func (w *world) run(limits call.Limits) (l *life, f *follower, s *told) {
	w.t.Helper()
	l = w.begin()
	f = &follower{t: w.t, id: l.start("a", limits).ID(), epoch: l.epoch}
	return l, f, w.told("a")
}

// stepped is run to where the agent has seen step 1 and the call's address was
// kept.
func (w *world) stepped(limits call.Limits) (l *life, f *follower, s *told) {
	w.t.Helper()
	l, f, s = w.run(limits)
	s.step(1)
	f.readStep(l, 1)
	l.addressed(f.id)
	return l, f, s
}

// finish lets the server end call a, the only one, and checks that its agent saw
// all n steps of it, and that the server noticed nothing.
func (l *life) finish(f *follower, s *told, n int) {
	l.t.Helper()
	s.end()
	f.readEnd(l)
	f.whole(l.world, n)
	l.undisturbed(1)
}

// another makes a call that the server answers at once.
func (l *life) another() {
	l.t.Helper()
	f := &follower{t: l.t, id: l.start("", call.Limits{}).ID()}
	f.readEnd(l)
	f.whole(l.world, 0)
}

func (l *life) get(id call.ID) *call.Call {
	l.t.Helper()
	c, err := l.engine.Get(l.t.Context(), "p", id)
	if err != nil {
		l.t.Fatal(err)
	}
	return c
}

// addressed waits until the call's address was kept.
func (l *life) addressed(id call.ID) {
	l.t.Helper()
	c := l.get(id)
	l.until("the call has an address", func() bool { return c.Record().Address != nil })
}

// follower is an agent's place in a call, over all processes.
type follower struct {
	t      *testing.T
	id     call.ID
	epoch  uint64
	events []call.Event
}

func (f *follower) seq() uint64 {
	if n := len(f.events); n > 0 {
		return f.events[n-1].Seq
	}
	return 0
}

// read follows the call until an event that is enough, or its end.
func (f *follower) read(l *life, enough func(ev call.Event) bool) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 20*time.Second)
	defer cancel()
	c := l.get(f.id)
	after := c.Position(f.epoch, f.seq())
	f.epoch = l.epoch
	for ev, err := range c.Follow(ctx, after, 0) {
		if err != nil {
			f.t.Fatalf("call %s after %d: %v", f.id, f.seq(), err)
		}
		if ev.Seq != f.seq()+1 {
			f.t.Errorf("call %s: seq %d after %d", f.id, ev.Seq, f.seq())
		}
		f.events = append(f.events, ev)
		if enough(ev) {
			return
		}
	}
}

func (f *follower) readStep(l *life, n int) {
	f.t.Helper()
	want := strconv.Itoa(n)
	f.read(l, func(ev call.Event) bool { return ev.Kind == call.KindProgress && step(f.t, ev) == want })
	if f.t.Failed() {
		f.t.FailNow()
	}
}

func (f *follower) readEnd(l *life) *call.End {
	f.t.Helper()
	f.read(l, func(ev call.Event) bool { return ev.End != nil })
	end := f.events[len(f.events)-1].End
	if end == nil {
		f.t.Fatalf("call %s has no end: %v", f.id, f.kinds())
	}
	return end
}

func (f *follower) kinds() (out []string) {
	for _, ev := range f.events {
		out = append(out, ev.Kind.String())
	}
	return out
}

func (f *follower) steps() (out []string) {
	for _, ev := range f.events {
		if ev.Kind == call.KindProgress {
			out = append(out, step(f.t, ev))
		}
	}
	return out
}

func step(t *testing.T, ev call.Event) string {
	m, err := mcp.Parse(ev.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(m.Progress.Of(m.Raw))
}

// whole checks that the agent saw every step once, in order, and the result,
// and that the record says the same.
func (f *follower) whole(w *world, n int) {
	f.t.Helper()
	var want []string
	for i := range n {
		want = append(want, strconv.Itoa(i+1))
	}
	if got := f.steps(); !slices.Equal(got, want) {
		f.t.Errorf("call %s: steps %v, not %v", f.id, got, want)
	}
	last := f.events[len(f.events)-1]
	if last.End == nil || last.End.Outcome != call.Completed || !strings.Contains(string(last.Body), "worked") {
		f.t.Errorf("call %s ended as %+v %s", f.id, last.End, last.Body)
	}
	stored, err := w.log.Read(f.t.Context(), f.id, 0, 1<<30)
	if err != nil || len(stored) != len(f.events) {
		f.t.Fatalf("call %s: %d events stored, %d seen, %v", f.id, len(stored), len(f.events), err)
	}
	for i, ev := range stored {
		if seen := f.events[i]; ev.Seq != uint64(i+1) || ev.Seq != seen.Seq || ev.Kind != seen.Kind || string(ev.Body) != string(seen.Body) {
			f.t.Errorf("call %s: event %d stored as %d %s %s, seen as %d %s %s", f.id, i+1, ev.Seq, ev.Kind, ev.Body, seen.Seq, seen.Kind, seen.Body)
		}
	}
}

// undisturbed checks that the server got each call once, and no word of a crash.
func (w *world) undisturbed(calls int) {
	w.t.Helper()
	for key, n := range map[string]int{"tools/call": calls, "notifications/cancelled": 0, "DELETE": 0} {
		if got := w.up.Count(key); got != n {
			w.t.Errorf("the server got %d requests %s, not %d", got, key, n)
		}
	}
}

// resumes lists the requests of one process for the rest of a stream.
func (l *life) resumes() (out []*wire.Request) {
	for _, r := range l.up.Requests("GET") {
		if r.Header.Get("Last-Event-ID") != "" && r.Header.Get("X-Life") == strconv.FormatUint(l.epoch, 10) {
			out = append(out, r)
		}
	}
	return out
}
