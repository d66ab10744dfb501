package upstream_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
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
	gets  func(c *wire.Conn, r *wire.Request) bool // may answer a GET instead of the server
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
		f := w.gets
		w.mu.Unlock()
		if f == nil || !f(c, r) {
			w.up.Usual(c, r)
		}
	}
	w.up = wire.NewUpstream(t, opt)
	return w
}

func (w *world) onGet(f func(c *wire.Conn, r *wire.Request) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gets = f
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

func (l *life) get(id call.ID) *call.Call {
	l.t.Helper()
	c, err := l.engine.Get(l.t.Context(), "p", id)
	if err != nil {
		l.t.Fatal(err)
	}
	return c
}

// addressed waits until the call's address was kept.
func (l *life) addressed(c *call.Call) {
	l.t.Helper()
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

// I1, I5: what an agent had seen of a call does not come again, and all else
// comes once, however much of it was stored when the process was killed.
func TestKilledBetweenShownAndStored(t *testing.T) {
	for _, prime := range []bool{false, true} {
		for stored := range 6 {
			if stored == 0 && !prime {
				continue // then nothing says where the call is: see TestKilledBeforeTheAddress
			}
			t.Run(fmt.Sprintf("prime=%v stored=%d", prime, stored), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, wire.Options{})
				w.prime = prime
				l := w.begin()
				c := l.start("a", call.Limits{})
				f := &follower{t: t, id: c.ID(), epoch: 1}
				s := w.told("a")
				for n := range 6 {
					if n > 0 {
						s.step(n)
						f.readStep(l, n)
					}
					if n == stored {
						l.addressed(c)
						w.log.Sync()
					}
				}
				l.kill()
				l = w.next(1, 0)
				s.step(6)
				f.readStep(l, 6)
				s.step(7)
				s.end()
				f.readEnd(l)
				f.whole(w, 7)
				w.undisturbed(1)
				want := stored
				if prime {
					want++
				}
				r := l.resumes()
				if len(r) != 1 || r[0].Header.Get("Last-Event-ID") != fmt.Sprintf("a_%d", want) || r[0].Header.Get("Mcp-Session-Id") != "session-1" || r[0].Header.Get("Mcp-Protocol-Version") != wire.Legacy {
					t.Errorf("resumed with %v", r[0].Header)
				}
				// The next call lives in the same session, once that is proven.
				f = &follower{t: t, id: l.start("", call.Limits{}).ID()}
				f.readEnd(l)
				f.whole(w, 0)
				if i, p := w.up.Count("initialize"), w.up.Count("ping"); i != 1 || p == 0 {
					t.Errorf("%d initialize, %d pings", i, p)
				}
			})
		}
	}
}

// A call that was lost before anything said where it is ends as interrupted.
func TestKilledBeforeTheAddress(t *testing.T) {
	w := newWorld(t, wire.Options{})
	l := w.begin()
	c := l.start("a", call.Limits{})
	w.told("a")
	w.until("the request was noted as sent", func() bool { return !c.Record().Dispatched.IsZero() })
	w.log.Sync()
	f := &follower{t: t, id: c.ID(), epoch: 1}
	l.kill()
	l = w.next(0, 1)
	if e := f.readEnd(l); e.Outcome != call.Interrupted {
		t.Errorf("%+v", e)
	}
	if w.up.Count("tools/call") != 1 {
		t.Error("sent again")
	}
}

// A stop that cannot wait leaves calls where they are: the server hears neither
// a cancel nor the end of the session.
func TestStopLeavesCalls(t *testing.T) {
	w := newWorld(t, wire.Options{})
	l := w.begin()
	c := l.start("a", call.Limits{})
	f := &follower{t: t, id: c.ID(), epoch: 1}
	s := w.told("a")
	s.step(1)
	f.readStep(l, 1)
	l.addressed(c)
	began := time.Now()
	l.end()
	if d := time.Since(began); d > 500*time.Millisecond {
		t.Errorf("stopping took %v", d)
	}
	var left error
	for _, err := range c.Follow(t.Context(), 1, 0) {
		left = err
	}
	if !errors.Is(left, call.ErrLeft) {
		t.Errorf("readers are told %v", left)
	}
	s.step(2)
	w.undisturbed(1)
	w.log.Sync()
	l = w.next(1, 0)
	f.readStep(l, 2)
	s.end()
	f.readEnd(l)
	f.whole(w, 2)
	w.undisturbed(1)
	note := f.events[len(f.events)-2]
	if note.Kind != call.KindNote || !strings.Contains(string(note.Body), "restarted") {
		t.Errorf("before the end: %s %s", note.Kind, note.Body)
	}
	if r := l.get(f.id).Record(); r.Dispatched.IsZero() || r.FirstByte.IsZero() {
		t.Errorf("recorded with %+v", r)
	}
}

// A stop tells a server to cancel what nobody can take up again.
func TestStopCancelsWhatCannotBeResumed(t *testing.T) {
	up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{
		"tools/call": func(c *wire.Conn, r *wire.Request) { c.SSE(); c.Event(r.Progress("1", "", "")); c.Hold() },
	}})
	w := &world{t: t, log: calltest.NewMemory(), up: up}
	l := w.begin()
	f := &follower{t: t, id: l.start("a", call.Limits{}).ID()}
	f.readStep(l, 1)
	l.end()
	if up.Count("notifications/cancelled") != 1 || up.Count("DELETE") != 1 {
		t.Errorf("%d cancels, %d DELETEs", up.Count("notifications/cancelled"), up.Count("DELETE"))
	}
	if e := f.readEnd(l); e.Outcome != call.Interrupted || e.By != "shutdown" {
		t.Errorf("%+v", e)
	}
}

// The call ended while nobody was there.
func TestServerFinishedMeanwhile(t *testing.T) {
	w := newWorld(t, wire.Options{})
	w.prime = true
	l := w.begin()
	c := l.start("a", call.Limits{})
	f := &follower{t: t, id: c.ID(), epoch: 1}
	s := w.told("a")
	l.addressed(c)
	w.log.Sync()
	l.kill()
	s.step(1)
	s.step(2)
	s.end()
	l = w.next(1, 0)
	f.readEnd(l)
	f.whole(w, 2)
	w.undisturbed(1)
}

// The server was restarted, too: the outcome is unknown, and the next call gets
// a new session.
func TestSessionIsGoneAtResume(t *testing.T) {
	w := newWorld(t, wire.Options{})
	l := w.begin()
	c := l.start("a", call.Limits{})
	f := &follower{t: t, id: c.ID(), epoch: 1}
	w.told("a").step(1)
	f.readStep(l, 1)
	l.addressed(c)
	w.log.Sync()
	l.kill()
	w.up.Forget()
	l = w.next(1, 0)
	if e := f.readEnd(l); e.Outcome != call.Interrupted || !strings.Contains(e.Text, "Outcome unknown") || !strings.Contains(e.Text, "restarted") {
		t.Errorf("%+v", e)
	}
	w.undisturbed(1)
	f = &follower{t: t, id: l.start("", call.Limits{}).ID()}
	f.readEnd(l)
	f.whole(w, 0)
	if n := w.up.Count("initialize"); n != 2 {
		t.Errorf("%d initialize", n)
	}
}

// A cancel reaches the server also while it does not let us resume.
func TestCancelWhileResuming(t *testing.T) {
	const calls = 20
	w := newWorld(t, wire.Options{})
	l := w.begin()
	var ids []call.ID
	for i := range calls {
		tag := fmt.Sprint("c", i)
		c := l.start(tag, call.Limits{})
		w.told(tag).step(1)
		l.addressed(c)
		ids = append(ids, c.ID())
	}
	w.log.Sync()
	l.kill()
	w.onGet(func(c *wire.Conn, r *wire.Request) bool {
		if r.Header.Get("Last-Event-ID") != "" {
			c.Status(503)
			return true
		}
		return false
	})
	l = w.next(calls, 0)
	for _, id := range ids {
		if err := l.get(id).Cancel(call.End{By: "agent"}); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range ids {
		if e := (&follower{t: t, id: id}).readEnd(l); e.Outcome != call.Cancelled {
			t.Errorf("%+v", e)
		}
	}
	w.up.WaitRequest("notifications/cancelled", calls, 10*time.Second)
}

// A process that is stopped before the server has said again what readers had
// seen leaves their seqs alone.
func TestStoppedBeforeItComesAgain(t *testing.T) {
	w := newWorld(t, wire.Options{})
	l := w.begin()
	c := l.start("a", call.Limits{})
	f := &follower{t: t, id: c.ID(), epoch: 1}
	s := w.told("a")
	s.step(1)
	f.readStep(l, 1)
	l.addressed(c)
	w.log.Sync()
	s.step(2)
	f.readStep(l, 2)
	l.kill()
	w.onGet(func(c *wire.Conn, r *wire.Request) bool {
		if r.Header.Get("Last-Event-ID") == "" || r.Header.Get("X-Life") != "2" {
			return false
		}
		c.SSE()
		c.Hold()
		return true
	})
	l = w.next(1, 0)
	w.until("the stream is resumed", func() bool { return !l.get(f.id).Record().FirstByte.IsZero() })
	l.end()
	w.log.Sync()
	l = w.next(1, 0)
	s.step(3)
	s.end()
	f.readEnd(l)
	f.whole(w, 3)
	w.undisturbed(1)
}

// Many calls at once find a session that may be gone: all wait for the one
// question, and none is sent into it.
func TestManyCallsNeedAProof(t *testing.T) {
	const calls = 20
	asked := make(chan struct{}, 1)
	w := newWorld(t, wire.Options{})
	l := w.begin()
	c := l.start("a", call.Limits{})
	w.told("a").step(1)
	l.addressed(c)
	w.log.Sync()
	l.kill()
	w.onGet(func(c *wire.Conn, r *wire.Request) bool {
		if r.Header.Get("Last-Event-ID") == "" {
			return false
		}
		asked <- struct{}{}
		c.Hold()
		return true
	})
	l = w.next(1, 0)
	<-asked
	w.up.Forget()
	var fs []*follower
	for range calls {
		fs = append(fs, &follower{t: t, id: l.start("", call.Limits{}).ID()})
	}
	for _, f := range fs {
		f.readEnd(l)
		f.whole(w, 0)
	}
	if n := w.up.Count("tools/call"); n != 1+calls {
		t.Errorf("%d calls", n)
	}
}

// A cancel reaches the server under the id that the first process gave.
func TestCancelAfterRestart(t *testing.T) {
	w := newWorld(t, wire.Options{})
	l := w.begin()
	c := l.start("a", call.Limits{})
	f := &follower{t: t, id: c.ID(), epoch: 1}
	s := w.told("a")
	s.step(1)
	f.readStep(l, 1)
	l.addressed(c)
	w.log.Sync()
	l.kill()
	l = w.next(1, 0)
	s.step(2)
	f.readStep(l, 2)
	if err := l.get(f.id).Cancel(call.End{By: "agent"}); err != nil {
		t.Fatal(err)
	}
	if e := f.readEnd(l); e.Outcome != call.Cancelled || e.By != "agent" {
		t.Errorf("%+v", e)
	}
	r := w.up.WaitRequest("notifications/cancelled", 1, 0)
	if id := wire.At(r.Body, "params.requestId"); string(id) != string(s.ID) || r.Header.Get("Mcp-Session-Id") != "session-1" {
		t.Errorf("cancelled %s in %s, not %s", id, r.Header.Get("Mcp-Session-Id"), s.ID)
	}
	if w.up.Count("tools/call") != 1 || w.up.Count("notifications/cancelled") != 1 {
		t.Error("sent twice")
	}
}

func TestManyCallsOfOneSession(t *testing.T) {
	const calls = 50
	w := newWorld(t, wire.Options{})
	l := w.begin()
	fs := make([]*follower, calls)
	for i := range fs {
		fs[i] = &follower{t: t, id: l.start(fmt.Sprint("c", i), call.Limits{}).ID(), epoch: 1}
	}
	for i, f := range fs {
		s := w.told(fmt.Sprint("c", i))
		for n := range 5 {
			s.step(n + 1)
		}
		f.readStep(l, 1+i%4)
		l.addressed(l.get(f.id))
	}
	w.log.Sync()
	for i, f := range fs {
		f.readStep(l, 5)
		w.told(fmt.Sprint("c", i)).step(6)
		f.readStep(l, 6)
	}
	l.kill()
	l = w.next(calls, 0)
	for i := range fs {
		w.told(fmt.Sprint("c", i)).step(7)
		w.told(fmt.Sprint("c", i)).end()
	}
	for _, f := range fs {
		f.readEnd(l)
		f.whole(w, 7)
	}
	w.undisturbed(calls)
	if n := w.up.Count("initialize"); n != 1 {
		t.Errorf("%d initialize", n)
	}
}

// A call is not taken up at a server that is not the one it was sent to.
func TestServerIsAnother(t *testing.T) {
	for name, edit := range map[string]func(*upstream.Server){
		"removed":     func(s *upstream.Server) { s.Name = "other" },
		"another url": func(s *upstream.Server) { s.URL += "?x=1" },
		"a command":   func(s *upstream.Server) { s.URL, s.Command = "", "true" },
		"modern only": func(s *upstream.Server) { s.Era = "modern" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, wire.Options{})
			l := w.begin()
			c := l.start("a", call.Limits{})
			f := &follower{t: t, id: c.ID(), epoch: 1}
			w.told("a").step(1)
			f.readStep(l, 1)
			l.addressed(c)
			w.log.Sync()
			l.kill()
			w.edit = edit
			l = w.next(0, 1)
			if e := f.readEnd(l); e.Outcome != call.Interrupted || !strings.Contains(e.Text, "Outcome unknown") {
				t.Errorf("%+v", e)
			}
			w.undisturbed(1)
			if len(l.resumes()) != 0 {
				t.Error("the server was asked")
			}
		})
	}
}

// No address tells the url, which may hold a secret (I10).
func TestAddressHoldsNoURL(t *testing.T) {
	w := newWorld(t, wire.Options{})
	w.edit = func(s *upstream.Server) { s.URL += "?key=s3cret" }
	l := w.begin()
	c := l.start("a", call.Limits{})
	w.told("a").step(1)
	l.addressed(c)
	if a := string(c.Record().Address); strings.Contains(a, "s3cret") || strings.Contains(a, "127.0.0.1") {
		t.Errorf("the address is %s", a)
	}
	w.log.Sync()
	l.kill()
	l = w.next(1, 0)
	w.told("a").end()
	f := &follower{t: t, id: c.ID()}
	f.readEnd(l)
	f.whole(w, 1)
}

// The server is still down, or has not noticed that we were gone: it is asked
// again, within the limits.
func TestResumeIsTriedAgain(t *testing.T) {
	for _, status := range []int{409, 429, 503, 0} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, wire.Options{})
			l := w.begin()
			c := l.start("a", call.Limits{})
			f := &follower{t: t, id: c.ID(), epoch: 1}
			s := w.told("a")
			s.step(1)
			f.readStep(l, 1)
			l.addressed(c)
			w.log.Sync()
			l.kill()
			var tries int
			w.onGet(func(c *wire.Conn, r *wire.Request) bool {
				if r.Header.Get("Last-Event-ID") == "" {
					return false
				}
				w.mu.Lock()
				tries++
				n := tries
				w.mu.Unlock()
				switch {
				case n > 2:
					return false
				case status == 0:
					c.Reset()
				default:
					c.Status(status)
				}
				return true
			})
			l = w.next(1, 0)
			s.step(2)
			s.end()
			f.readEnd(l)
			f.whole(w, 2)
			w.undisturbed(1)
		})
	}
}

// Limits hold over a restart: total counts from the call's start, idle anew.
func TestLimitsAfterRestart(t *testing.T) {
	hold := func(c *wire.Conn, r *wire.Request) bool {
		if r.Header.Get("Last-Event-ID") == "" {
			return false
		}
		c.SSE()
		c.Hold()
		return true
	}
	refuse := func(c *wire.Conn, r *wire.Request) bool {
		if r.Header.Get("Last-Event-ID") == "" {
			return false
		}
		c.Status(503)
		return true
	}
	for name, tc := range map[string]struct {
		limits  call.Limits
		get     func(c *wire.Conn, r *wire.Request) bool
		outcome call.Outcome
		part    string
	}{
		"total":           {call.Limits{Total: 1500 * time.Millisecond}, hold, call.TimedOut, "limits.total"},
		"silent":          {call.Limits{Idle: 600 * time.Millisecond}, hold, call.Interrupted, "stayed silent"},
		"never came back": {call.Limits{Idle: 600 * time.Millisecond}, refuse, call.Interrupted, "could not be resumed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, wire.Options{})
			w.edit = func(s *upstream.Server) { s.PingEvery = 100 * time.Millisecond }
			l := w.begin()
			c := l.start("a", tc.limits)
			f := &follower{t: t, id: c.ID(), epoch: 1}
			w.told("a").step(1)
			f.readStep(l, 1)
			l.addressed(c)
			w.log.Sync()
			l.kill()
			w.onGet(tc.get)
			l = w.next(1, 0)
			if e := f.readEnd(l); e.Outcome != tc.outcome || !strings.Contains(e.Text, tc.part) {
				t.Errorf("%+v", e)
			}
			r := l.get(f.id).Record()
			if d := r.Ended.Sub(r.Started); tc.limits.Total > 0 && (d < tc.limits.Total || d > tc.limits.Total+3*time.Second) {
				t.Errorf("ended after %v", d)
			}
			if w.up.Count("tools/call") != 1 {
				t.Error("sent again")
			}
			w.up.WaitRequest("notifications/cancelled", 1, 0) // nobody waits for it any more
		})
	}
}

// Progress of a call may come on the session's standalone stream, which a new
// process opens, too.
func TestApartProgressAfterRestart(t *testing.T) {
	w := newWorld(t, wire.Options{})
	w.prime = true
	l := w.begin()
	c := l.start("a", call.Limits{})
	f := &follower{t: t, id: c.ID(), epoch: 1}
	s := w.told("a")
	l.addressed(c)
	first := w.up.Stream()
	first.Event(s.Progress("1", "", ""))
	f.readStep(l, 1)
	first.Event(s.Progress("2", "", ""))
	f.readStep(l, 2)
	w.log.Sync()
	l.kill()
	l = w.next(1, 0)
	w.stream(first).Event(s.Progress("3", "", ""))
	f.readStep(l, 3)
	s.end()
	f.readEnd(l)
	f.whole(w, 3)
	w.undisturbed(1)
}

// stream waits for a standalone stream other than that of an earlier process.
func (w *world) stream(old *wire.Conn) (c *wire.Conn) {
	w.t.Helper()
	w.until("the standalone stream is open again", func() bool { c = w.up.Stream(); return c != old })
	return c
}

// What came on the standalone stream and was lost does not come again, so that
// what is new must not be taken for it.
func TestApartProgressIsNotTakenForSeen(t *testing.T) {
	w := newWorld(t, wire.Options{})
	w.prime = true
	l := w.begin()
	c := l.start("a", call.Limits{})
	s := w.told("a")
	l.addressed(c)
	first := w.up.Stream()
	first.Event(s.Progress("1", "", ""))
	f := &follower{t: t, id: c.ID(), epoch: 1}
	f.readStep(l, 1)
	w.until("the address says so", func() bool { return strings.Contains(string(c.Record().Address), "apart") })
	w.log.Sync()
	first.Event(s.Progress("2", "", ""))
	first.Event(s.Progress("3", "", ""))
	f.readStep(l, 3)
	l.kill()
	l = w.next(1, 0)
	w.stream(first).Event(s.Progress("4", "", ""))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	got := l.get(c.ID())
	for ev, err := range got.Follow(ctx, got.Position(1, f.seq()), 0) {
		if err != nil {
			t.Fatal(err)
		}
		if v := step(t, ev); v != "4" {
			t.Errorf("step %s", v)
		}
		break
	}
	s.end()
}

// Whatever else the server says on the way, and wherever the process is killed,
// the seqs are those that readers know.
func TestRemarksComeAgain(t *testing.T) {
	big := strings.Repeat("x", 3000)
	said := []struct{ message, kind string }{
		{"no JSON", "note"},
		{wire.ServerRequest(`"q1"`, "ping", "{}"), ""},
		{wire.ServerRequest(`"q2"`, "elicitation/create", "{}"), "note"},
		{`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"m"}}`, "message"},
		{`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"` + big + `"}}`, "note"},
		{`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"nobody's","progress":1}}`, ""},
		{`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"n"}}`, "message"},
	}
	for stored := range len(said) {
		t.Run(fmt.Sprint("stored=", stored), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, wire.Options{})
			w.edit = func(s *upstream.Server) { s.Limits.Message = 2000 }
			l := w.begin()
			c := l.start("a", call.Limits{})
			f := &follower{t: t, id: c.ID(), epoch: 1}
			s := w.told("a")
			s.step(1)
			f.readStep(l, 1)
			l.addressed(c)
			want := []string{"accepted", "dispatched", "progress", "address"}
			f.read(l, func(ev call.Event) bool { return ev.Kind == call.KindAddress })
			for i, m := range said {
				if i == stored {
					w.log.Sync()
				}
				s.Append(m.message)
				if m.kind != "" {
					want = append(want, m.kind)
					f.read(l, func(ev call.Event) bool { return ev.Kind.String() == m.kind })
				}
			}
			// A message that names no call must not shift what follows it.
			w.up.Stream().Event(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"loose"}}`)
			s.step(2)
			f.readStep(l, 2)
			if want = append(want, "progress"); !slices.Equal(f.kinds(), want) {
				t.Errorf("shown %v, not %v", f.kinds(), want)
			}
			l.kill()
			l = w.next(1, 0)
			s.step(3)
			s.end()
			f.readEnd(l)
			f.whole(w, 3)
			w.undisturbed(1)
		})
	}
}

// A session that was forgotten between two requests of ours is noticed when a
// stream is resumed: the next call does not meet it.
func TestSessionIsGoneAtResumeInOneLife(t *testing.T) {
	var up *wire.Upstream
	first := true
	up = wire.NewUpstream(t, wire.Options{NoStream: true, On: map[string]wire.Handler{
		"tools/call": func(c *wire.Conn, r *wire.Request) {
			c.SSE()
			if !first {
				c.Event(r.Text("worked"))
				c.End()
				return
			}
			first = false
			c.EventID("a_1", r.Progress("1", "", ""))
			up.Forget()
			c.End() // the connection stays, and tells nothing
		},
	}})
	g := newGateway(t, up.URL)
	g.follow(g.start(call.Limits{})).want(t, call.Interrupted, "refused to resume")
	g.follow(g.start(call.Limits{})).want(t, call.Completed, "worked")
	if up.Count("tools/call") != 2 || up.Count("initialize") != 2 {
		t.Errorf("%d calls, %d initialize", up.Count("tools/call"), up.Count("initialize"))
	}
}

// A call that was sent as a task may be told of its task only after a restart.
func TestTaskIsMadeAfterRestart(t *testing.T) {
	w := &world{t: t, log: calltest.NewMemory(), calls: map[string]*told{}}
	w.up = taskScript{version: wire.Legacy, get: steps(everyBit, ended(wire.Legacy)), on: map[string]wire.Handler{
		"tools/call": func(c *wire.Conn, r *wire.Request) {
			log := w.up.NewLog("a")
			log.Append("")
			w.mu.Lock()
			w.calls["a"] = &told{log, r}
			w.mu.Unlock()
			c.SSE()
			log.Serve(c, 0, 0)
			c.End()
		},
	}}.start(t)
	l := w.begin()
	c := l.start("a", call.Limits{})
	f := &follower{t: t, id: c.ID(), epoch: 1}
	s := w.told("a")
	l.addressed(c)
	w.log.Sync()
	l.kill()
	s.Append(s.Result(`{"task":{` + taskMembers + `,` + everyBit + `}}`))
	s.Finish()
	l = w.next(1, 0)
	if e := f.readEnd(l); e.Outcome != call.Completed || !strings.Contains(string(f.events[len(f.events)-1].Body), "worked") {
		t.Errorf("%+v", e)
	}
	w.undisturbed(1)
	var last string
	for _, ev := range f.events {
		if ev.Kind == call.KindAddress {
			last = string(ev.Body)
		}
	}
	if !strings.Contains(last, `"kind":"task"`) {
		t.Errorf("the last address is %s", last)
	}
}

// A message that names no call is in the record in the end.
func TestLooseMessagesWaitForTheEnd(t *testing.T) {
	w := newWorld(t, wire.Options{})
	l := w.begin()
	c := l.start("a", call.Limits{})
	f := &follower{t: t, id: c.ID()}
	s := w.told("a")
	s.step(1)
	l.addressed(c)
	w.up.Stream().Event(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"loose"}}`)
	s.end()
	f.readEnd(l)
	if ev := f.events[len(f.events)-2]; ev.Kind != call.KindNote || !strings.Contains(string(ev.Body), "loose") {
		t.Errorf("%v: %s", f.kinds(), ev.Body)
	}
}

// A process that came up and called before it took the old calls up has two
// sessions; the old one is ended with its last call.
func TestTwoSessions(t *testing.T) {
	w := newWorld(t, wire.Options{})
	l := w.begin()
	c := l.start("a", call.Limits{})
	f := &follower{t: t, id: c.ID(), epoch: 1}
	s := w.told("a")
	s.step(1)
	f.readStep(l, 1)
	l.addressed(c)
	w.log.Sync()
	l.kill()
	l = w.begin()
	(&follower{t: t, id: l.start("", call.Limits{}).ID()}).readEnd(l)
	if a, i, err := l.engine.Recover(t.Context()); a != 1 || i != 0 || err != nil {
		t.Fatal(a, i, err)
	}
	s.step(2)
	f.readStep(l, 2)
	if w.up.Count("DELETE") != 0 {
		t.Error("the session was ended under its call")
	}
	s.end()
	f.readEnd(l)
	f.whole(w, 2)
	if r := w.up.WaitRequest("DELETE", 1, 0); r.Header.Get("Mcp-Session-Id") != "session-1" {
		t.Errorf("ended %s", r.Header.Get("Mcp-Session-Id"))
	}
	(&follower{t: t, id: l.start("", call.Limits{}).ID()}).readEnd(l)
	if n := w.up.Count("initialize"); n != 2 {
		t.Errorf("%d initialize", n)
	}
}

// A process that was believed dead writes nothing more into its calls (I3).
func TestZombie(t *testing.T) {
	w := newWorld(t, wire.Options{})
	l := w.begin()
	c := l.start("a", call.Limits{})
	f := &follower{t: t, id: c.ID(), epoch: 1}
	s := w.told("a")
	s.step(1)
	f.readStep(l, 1)
	l.addressed(c)
	w.log.Sync()
	l = w.next(1, 0)
	s.step(2)
	s.step(3)
	s.end()
	f.readEnd(l)
	f.whole(w, 3)
	w.undisturbed(1)
}

// Any number of crashes at any time: every event once, in order, one dispatch.
func TestCrashesAtRandom(t *testing.T) {
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 1))
	defer func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	}()
	const calls, steps = 4, 12
	w := newWorld(t, wire.Options{})
	w.prime = rnd.IntN(2) == 0
	l := w.begin()
	fs := map[string]*follower{}
	for i := range calls {
		tag := fmt.Sprint("c", i)
		fs[tag] = &follower{t: t, id: l.start(tag, call.Limits{}).ID(), epoch: 1}
		w.told(tag).step(1)
		fs[tag].readStep(l, 1)
		l.addressed(l.get(fs[tag].id))
	}
	w.log.Sync()
	for n := 2; n <= steps; n++ {
		for _, tag := range slices.Sorted(maps.Keys(fs)) {
			w.told(tag).step(n)
			if rnd.IntN(3) > 0 {
				fs[tag].readStep(l, n)
			}
			if rnd.IntN(3) == 0 {
				w.log.Sync()
			}
		}
		switch rnd.IntN(4) {
		case 0:
			l.kill()
			l = w.next(calls, 0)
		case 1:
			l.end()
			l = w.next(calls, 0)
		case 2:
			w.up.Cut(rnd.IntN(2) == 0)
		}
	}
	for tag := range fs {
		w.told(tag).end()
	}
	for _, f := range fs {
		f.readEnd(l)
		f.whole(w, steps)
	}
	w.undisturbed(calls)
}
