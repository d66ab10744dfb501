package upstream_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/call/calltest"
	"github.com/longcall/longcall/internal/upstream"
	"github.com/longcall/longcall/test/wire"
)

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
				l, f, s := w.run(call.Limits{})
				for n := range 6 {
					if n > 0 {
						s.step(n)
						f.readStep(l, n)
					}
					if n == stored {
						l.addressed(f.id)
						w.log.Sync()
					}
				}
				l.kill()
				l = w.next(1, 0)
				s.step(6)
				f.readStep(l, 6)
				s.step(7)
				l.finish(f, s, 7)
				want := stored
				if prime {
					want++
				}
				r := l.resumes()
				if len(r) != 1 || r[0].Header.Get("Last-Event-ID") != fmt.Sprintf("a_%d", want) || r[0].Header.Get("Mcp-Session-Id") != "session-1" || r[0].Header.Get("Mcp-Protocol-Version") != wire.Legacy {
					t.Errorf("resumed with %v", r[0].Header)
				}
				// The next call lives in the same session, once that is proven.
				l.another()
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
	l, f, s := w.stepped(call.Limits{})
	c := l.get(f.id)
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
	l.finish(f, s, 2)
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
	l, f, s := w.run(call.Limits{})
	l.addressed(f.id)
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
	l, f, _ := w.stepped(call.Limits{})
	w.log.Sync()
	l.kill()
	w.up.Forget()
	l = w.next(1, 0)
	if e := f.readEnd(l); e.Outcome != call.Interrupted || !strings.Contains(e.Text, "Outcome unknown") || !strings.Contains(e.Text, "restarted") {
		t.Errorf("%+v", e)
	}
	w.undisturbed(1)
	l.another()
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
		l.addressed(c.ID())
		ids = append(ids, c.ID())
	}
	w.log.Sync()
	l.kill()
	w.onResume(func(c *wire.Conn, _ *wire.Request) bool {
		c.Status(503)
		return true
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
	l, f, s := w.stepped(call.Limits{})
	w.log.Sync()
	s.step(2)
	f.readStep(l, 2)
	l.kill()
	w.onResume(func(c *wire.Conn, r *wire.Request) bool {
		if r.Header.Get("X-Life") != "2" {
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
	l.finish(f, s, 3)
}

// Many calls at once find a session that may be gone: all wait for the one
// question, and none is sent into it.
func TestManyCallsNeedAProof(t *testing.T) {
	const calls = 20
	asked := make(chan struct{}, 1)
	w := newWorld(t, wire.Options{})
	l, _, _ := w.stepped(call.Limits{})
	w.log.Sync()
	l.kill()
	w.onResume(func(c *wire.Conn, _ *wire.Request) bool {
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
	l, f, s := w.stepped(call.Limits{})
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
		l.addressed(f.id)
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
			l, f, _ := w.stepped(call.Limits{})
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
	l, f, s := w.run(call.Limits{})
	s.step(1)
	l.addressed(f.id)
	if a := string(l.get(f.id).Record().Address); strings.Contains(a, "s3cret") || strings.Contains(a, "127.0.0.1") {
		t.Errorf("the address is %s", a)
	}
	w.log.Sync()
	l.kill()
	l = w.next(1, 0)
	s.end()
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
			l, f, s := w.stepped(call.Limits{})
			w.log.Sync()
			l.kill()
			var tries int
			w.onResume(func(c *wire.Conn, _ *wire.Request) bool {
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
			l.finish(f, s, 2)
		})
	}
}

// Limits hold over a restart: total counts from the call's start, idle anew.
func TestLimitsAfterRestart(t *testing.T) {
	hold := func(c *wire.Conn, _ *wire.Request) bool {
		c.SSE()
		c.Hold()
		return true
	}
	refuse := func(c *wire.Conn, _ *wire.Request) bool {
		c.Status(503)
		return true
	}
	for name, tc := range map[string]struct {
		limits  call.Limits
		resume  func(c *wire.Conn, r *wire.Request) bool
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
			l, f, _ := w.stepped(tc.limits)
			w.log.Sync()
			l.kill()
			w.onResume(tc.resume)
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
