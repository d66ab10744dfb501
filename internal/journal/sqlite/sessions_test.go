package sqlite

import (
	"crypto/sha256"
	"fmt"
	"testing"
	"time"
)

// hashOf is what the agents' side gives for a session's id.
func hashOf(id string) string {
	return fmt.Sprintf("%x", sha256.Sum256([]byte(id)))
}

func session(id string, used time.Time) Session {
	return Session{
		Hash: hashOf(id), Principal: "alice", Server: "files", Version: "2025-11-25", Client: "test 1.0",
		Created: used.Add(-time.Hour).Truncate(time.Microsecond), Used: used.Truncate(time.Microsecond), Data: []byte("data of " + id),
	}
}

func sameSession(a, b Session) bool {
	if !a.Created.Equal(b.Created) || !a.Used.Equal(b.Used) {
		return false
	}
	a.Created, a.Used = b.Created, b.Used
	return fmt.Sprintf("%+v", a) == fmt.Sprintf("%+v", b)
}

func sessions(t testing.TB, j *Journal) []Session {
	t.Helper()
	list, err := j.Sessions(t.Context())
	must(t, err)
	return list
}

// TestSessions: what was put is there, also after a restart, and as it was last.
func TestSessions(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{})
	now := time.Now()
	a, b, bare := session("a", now.Add(-time.Hour)), session("b", now.Add(-2*time.Hour)), Session{Hash: hashOf("c"), Used: now.Add(-3 * time.Hour).Truncate(time.Microsecond)}
	for _, s := range []Session{b, a, bare, session("gone", now), session("old", now.Add(-25*time.Hour))} {
		j.PutSession(s)
	}
	j.DropSession(hashOf("gone"))
	j.DropSession(hashOf("never was"))
	want := []Session{a, b, bare}
	check := func(when string) {
		t.Helper()
		got := sessions(t, j)
		if len(got) != len(want) {
			t.Fatalf("%s: %d sessions, want %d", when, len(got), len(want))
		}
		for i := range got {
			if !sameSession(got[i], want[i]) {
				t.Errorf("%s: session %d is %+v,\nwant %+v", when, i, got[i], want[i])
			}
		}
	}
	check("at once")
	must(t, j.Close())
	j = open(t, dir, Options{})
	check("after a restart")

	b.Used, b.Data = now.Truncate(time.Microsecond), nil
	j.PutSession(b)
	want = []Session{b, a, bare}
	check("put again")
	bare.Used = now.Add(time.Minute).Truncate(time.Microsecond)
	j.TouchSession(bare.Hash, bare.Used)
	j.TouchSession(hashOf("gone"), now)
	want = []Session{bare, b, a}
	check("touched")
	j.TouchSession(bare.Hash, bare.Used.Add(touchEvery/2))
	j.TouchSession(a.Hash, a.Used.Add(-time.Minute))
	check("touched again at once, and by a late one")
}

// TestTouchIsCheap: a session that is used all the time is written once a minute.
func TestTouchIsCheap(t *testing.T) {
	j := open(t, t.TempDir(), Options{})
	s := session("a", time.Now())
	j.PutSession(s)
	sessions(t, j)
	before := j.Stats().Ops
	for i := range 1000 {
		j.TouchSession(s.Hash, s.Used.Add(time.Duration(i)*time.Second))
	}
	list := sessions(t, j)
	if n := j.Stats().Ops - before; n > 20 {
		t.Errorf("1000 uses in 1000 seconds were written as %d ops", n)
	}
	if age := s.Used.Add(999 * time.Second).Sub(list[0].Used); age > touchEvery {
		t.Errorf("the last use is noted %s too early", age)
	}
}

// TestSessionsAreBounded: the newest 10 000 stay, and no old ones.
func TestSessionsAreBounded(t *testing.T) {
	j := open(t, t.TempDir(), Options{})
	now := time.Now()
	for i := range maxSessions + 3*trimSessions {
		j.PutSession(session(fmt.Sprint(i), now.Add(time.Duration(i)*time.Microsecond)))
	}
	list := sessions(t, j)
	if len(list) != maxSessions || string(list[0].Data) != fmt.Sprint("data of ", maxSessions+3*trimSessions-1) {
		t.Errorf("%d sessions, the last used is %q", len(list), list[0].Data)
	}
	if n := number1(t, j, "SELECT count(*) FROM sessions"); n > maxSessions+trimSessions {
		t.Errorf("%d sessions are stored", n)
	}
	m, err := newMaintainer(j)
	must(t, err)
	defer m.close()
	must(t, m.retainSessions(t.Context(), now.Add(sessionAge-time.Hour)))
	if n := number1(t, j, "SELECT count(*) FROM sessions"); n < maxSessions {
		t.Errorf("%d sessions are left, and none is old", n)
	}
	must(t, m.retainSessions(t.Context(), now.Add(sessionAge+time.Hour)))
	if n := number1(t, j, "SELECT count(*) FROM sessions"); n != 0 {
		t.Errorf("%d old sessions are kept", n)
	}
}

// TestSessionsWhileFull: nobody waits, and what is lost is counted.
func TestSessionsWhileFull(t *testing.T) {
	j := open(t, t.TempDir(), Options{Queue: 1000, Delay: time.Hour})
	for i := range 10 {
		j.PutSession(session(fmt.Sprint(i), time.Now()))
	}
	if j.Stats().Dropped == 0 {
		t.Error("nothing was dropped")
	}
	if list := sessions(t, j); len(list) == 0 || len(list) == 10 {
		t.Errorf("%d of 10 sessions were kept", len(list))
	}
}
