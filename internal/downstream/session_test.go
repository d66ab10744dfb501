package downstream

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// TestSessionsAreBounded: the one that is idle longest goes, never a busy one.
func TestSessionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ss := newSessions(func(_ string, id call.ID) bool { return id == "c_runs" }, nil, nil)
		open := func() *session {
			t.Helper()
			time.Sleep(time.Millisecond)
			s, ok := ss.open("ann", "", mcp.V20251125, "", nil)
			if !ok {
				t.Fatal("no session")
			}
			if !strings.HasPrefix(s.id, "s_") || len(s.id) != 28 {
				t.Fatalf("id %q", s.id)
			}
			return s
		}
		posting, streaming, calling, ended, idle := open(), open(), open(), open(), open()
		ss.use(posting.id, "ann", "")
		streaming.takeStream()
		calling.started(calling.begin("1", ss.running), "c_runs")
		ended.started(ended.begin("1", ss.running), "c_gone")
		for len(ss.m) < maxSessions {
			open()
		}
		open()
		open()
		for name, s := range map[string]*session{"posting": posting, "streaming": streaming, "calling": calling} {
			if ss.m[s.id] == nil {
				t.Errorf("the session that is %s was dropped", name)
			}
		}
		if ss.m[ended.id] != nil || ss.m[idle.id] != nil || len(ss.m) != maxSessions {
			t.Errorf("%d sessions; the oldest idle ones are still there: %v %v", len(ss.m), ss.m[ended.id] != nil, ss.m[idle.id] != nil)
		}
		for _, s := range ss.m {
			s.posts++
		}
		if _, ok := ss.open("ann", "", mcp.V20251125, "", nil); ok {
			t.Error("a session over the bound")
		}
	})
}

// TestSessionExpires is R-57.
func TestSessionExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ss := newSessions(func(string, call.ID) bool { return false }, nil, nil)
		s, _ := ss.open("ann", "", mcp.V20251125, "", nil)
		time.Sleep(maxIdle - time.Second)
		if ss.use(s.id, "ann", "") == nil {
			t.Fatal("gone too early")
		}
		s.done()
		time.Sleep(maxIdle + time.Second)
		if ss.use(s.id, "ann", "") != nil || len(ss.m) != 0 {
			t.Error("still there")
		}
	})
}

// TestSessionForgetsCalls: calls whose reader is gone do not pile up.
func TestSessionForgetsCalls(t *testing.T) {
	s, _ := newSessions(nil, nil, nil).open("ann", "", mcp.V20251125, "", nil)
	for i := range 10 * sweepCalls {
		key := fmt.Sprint(i)
		c := s.begin(key, func(string, call.ID) bool { return false })
		s.started(c, call.ID("c_"+key))
		s.detach(key, c, true)
	}
	if n := len(s.calls); n > sweepCalls {
		t.Errorf("%d entries", n)
	}
}

// TestIDReuse: a client that uses an id twice cancels the newer call, and the
// older one's end does not hide it.
func TestIDReuse(t *testing.T) {
	s, _ := newSessions(nil, nil, nil).open("ann", "", mcp.V20251125, "", nil)
	a, b := s.begin("1", nil), s.begin("1", nil)
	s.started(a, "c_a")
	s.started(b, "c_b")
	s.detach("1", a, false)
	if id, _, ok := s.cancel("1", call.End{}); !ok || id != "c_b" {
		t.Errorf("%q %v", id, ok)
	}
}

func TestIDKey(t *testing.T) {
	if idKey([]byte(`"a\u0062"`)) != idKey([]byte(`"ab"`)) || idKey([]byte("1")) == idKey([]byte(`"1"`)) {
		t.Error("ids are compared wrongly")
	}
}

// TestSessionHash: the same id has the same hash in every version.
func TestSessionHash(t *testing.T) {
	if h := sessionHash("abc"); h != "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" {
		t.Errorf("hash is %s", h)
	}
}

// TestCapsAreBounded: capabilities that are larger than any client has are not
// kept, but the session is.
func TestCapsAreBounded(t *testing.T) {
	for size, want := range map[int]int{maxCaps: maxCaps, maxCaps + 1: 0} {
		store := &kept{m: map[string]StoredSession{}}
		ss := newSessions(func(string, call.ID) bool { return false }, nil, store)
		s, ok := ss.open("ann", "", mcp.V20251125, "", make([]byte, size))
		if !ok || len(store.m) != 1 {
			t.Fatalf("%d bytes: %v, %d kept", size, ok, len(store.m))
		}
		if got := store.m[sessionHash(s.id)].Data; len(got) != want {
			t.Errorf("of %d bytes %d are kept", size, len(got))
		}
	}
}
