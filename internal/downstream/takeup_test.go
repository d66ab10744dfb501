package downstream

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longcall/longcall/internal/call/calltest"
	"github.com/longcall/longcall/internal/mcp"
)

// What a session has asked for outlives a restart: subscriptions and the log
// level are asked for again when it is used, and what was subscribed to counts
// as changed. What was taken back stays so.
func TestWantsOverRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, store := calltest.NewMemory(), &kept{m: map[string]StoredSession{}}
		r := lasting(t, log, store, 1)
		everything(r)
		id := r.begin(mcp.V20251125)
		say := func(method, params string) {
			t.Helper()
			w := httptest.NewRecorder()
			r.serveTo(t.Context(), w, "POST", id, `{"jsonrpc":"2.0","id":7,"method":"`+method+`","params":`+params+`}`)
			if !strings.Contains(w.Body.String(), `"result":{}`) {
				t.Fatalf("%s: %s", method, w.Body)
			}
		}
		say("resources/subscribe", `{"uri":"file:///a"}`)
		say("resources/subscribe", `{"uri":"file:///b"}`)
		say("resources/unsubscribe", `{"uri":"file:///a"}`)
		say("logging/setLevel", `{"level":"error"}`)
		r.stop()

		r = lasting(t, log, store, 2)
		everything(r)
		r.subscribeErr = map[string]error{"up": errors.New("it is not there yet")}
		synctest.Wait()
		if len(r.subscribed) != 0 || len(r.levels) != 0 {
			t.Errorf("asked before the session was used: %v %v", r.subscribed, r.levels)
		}
		stream := newStream(t, r, id)
		synctest.Wait()
		time.Sleep(retakeFirst + time.Second)
		r.mu.Lock()
		r.subscribeErr = nil
		r.mu.Unlock()
		time.Sleep(retakeMax)
		synctest.Wait()
		if got, want := fmt.Sprint(r.subscribed, r.levels), "[+ann up file:///b] ["+id+" error]"; got != want {
			t.Errorf("asked again for %s, want %s", got, want)
		}
		if !strings.Contains(stream.String(), `"notifications/resources/updated","params":{"uri":"file:///b"}`) {
			t.Errorf("not told that it may have changed: %s", stream.String())
		}
		say("resources/subscribe", `{"uri":"file:///b"}`)
		if len(r.subscribed) != 1 {
			t.Errorf("subscribed twice: %v", r.subscribed)
		}
		r.stop()
		synctest.Wait()

		r = lasting(t, log, store, 3)
		everything(r)
		r.subscribeErr = map[string]error{"up": &mcp.RPCError{Code: -32602, Text: "no"}, "up2": &mcp.RPCError{Code: -32602, Text: "no"}}
		say("ping", `{}`)
		synctest.Wait()
		if v := store.m[sessionHash(id)]; v.Resources != nil || v.Level != "error" {
			t.Errorf("a subscription that was refused is kept: %+v", v)
		}
		r.stop()
		synctest.Wait()
	})
}

// What is kept of subscriptions is bounded in bytes, and a session that was ended is
// not stored again.
func TestKeptIsBounded(t *testing.T) {
	store := &kept{m: map[string]StoredSession{}}
	ss := newSessions(nil, nil, store)
	s, _ := ss.open("ann", "", mcp.V20251125, "", nil)
	for i := range 100 {
		if o, err := s.held.begin(fmt.Sprintf("x:%02d%s", i, strings.Repeat("y", 996))); o == nil {
			t.Fatal(err)
		}
	}
	ss.keep(s)
	if got := store.m[sessionHash(s.id)].Resources; len(got) != maxKept/1000 || !slices.IsSorted(got) {
		t.Errorf("%d are kept", len(got))
	}
	ss.drop(s)
	ss.keep(s)
	if len(store.m) != 0 {
		t.Error("a session that has ended is stored")
	}
}

// openStream is a session's GET stream, read while it is open.
type openStream struct {
	*httptest.ResponseRecorder
	mu sync.Mutex
}

func newStream(t *testing.T, r *rig, session string) *openStream {
	s := &openStream{ResponseRecorder: httptest.NewRecorder()}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { r.serveTo(ctx, s, "GET", session, "", "Accept", "text/event-stream") })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return s
}

func (s *openStream) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ResponseRecorder.Write(b)
}

func (s *openStream) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Body.String()
}
