package downstream

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/call/calltest"
	"github.com/longcall/longcall/internal/mcp"
)

// TestRootsOutsideOfCalls is: a tool server that asks outside of any call gets
// the roots of all sessions that its connection serves. Each agent is asked once, on its
// own stream, and again when it says that they have changed. Who answers late, or had no
// stream, is told of by a change.
func TestRootsOutsideOfCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := lasting(t, calltest.NewMemory(), &kept{m: map[string]StoredSession{}}, 1)
		const caps = `{"roots":{"listChanged":true}}`
		open := func(principal, caps string) string {
			w := httptest.NewRecorder()
			r.h.ServeHTTP(w, request(t.Context(), "POST", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":`+caps+`,"clientInfo":{"name":"test","version":"1"}}}`, "Authorization", "Bearer "+principal))
			return w.Header().Get(mcp.HeaderSession)
		}
		say := func(session, message string) {
			w := httptest.NewRecorder()
			if r.serveTo(t.Context(), w, "POST", session, message); w.Code != 202 {
				t.Errorf("%s: %d %s", message, w.Code, w.Body)
			}
		}
		answer := func(session string, id int, roots string) {
			say(session, fmt.Sprintf(`{"jsonrpc":"2.0","id":"roots-%d","result":{"roots":[%s]}}`, id, roots))
		}
		asked := func() (result func() string) {
			got := make(chan string, 1)
			go func() {
				got <- string(r.askRoots(t.Context(), call.Caller{Principal: "ann"}, "up", func(c string) bool { return c == caps }))
			}()
			synctest.Wait()
			return func() string { return <-got }
		}
		one, two, silent := open("ann", caps), open("ann", caps), open("ann", caps)
		open("bob", caps)
		newStream(t, r, open("ann", `{"roots":{}}`)) // told to the server as another set
		first := newStream(t, r, one)
		newStream(t, r, two)
		synctest.Wait()

		result := asked()
		const q = `{"jsonrpc":"2.0","id":"roots-1","method":"roots/list","params":{}}`
		if n := strings.Count(first.String(), q); n != 1 {
			t.Fatalf("asked %d times: %s", n, first.String())
		}
		answer(one, 7, `{"uri":"file:///wrong"}`)
		answer(one, 1, `{"uri":"file:///a","name":"A"},{"uri":"file:///both"}`)
		answer(two, 1, `{"uri":"file:///both"},{"uri":"file:///b"}`)
		if got := result(); got != `{"roots":[{"uri":"file:///a","name":"A"},{"uri":"file:///both"},{"uri":"file:///b"}]}` && got != `{"roots":[{"uri":"file:///both"},{"uri":"file:///b"},{"uri":"file:///a","name":"A"}]}` {
			t.Errorf("got %s", got)
		}
		if got := asked()(); strings.Count(got, "file:///") != 3 || strings.Count(first.String(), `"roots/list"`) != 1 {
			t.Errorf("the second time: %s, %s", got, first.String())
		}
		joined := r.joined
		newStream(t, r, silent) // had none when it was asked
		synctest.Wait()
		if r.joined != joined+1 {
			t.Errorf("told of a new stream %d times", r.joined-joined)
		}
		say(one, `{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`)
		if r.roots != 1 {
			t.Errorf("%d changes were told", r.roots)
		}
		began := time.Now()
		result = asked()
		answer(one, 1, `{"uri":"file:///old"}`)
		answer(one, 2, `{"uri":"file:///new"}`)
		got := result()
		if time.Since(began) != rootsWait || !strings.Contains(got, "file:///new") || strings.Contains(got, "file:///a") || strings.Contains(got, "old") {
			t.Errorf("after %s: %s", time.Since(began), got)
		}
		joined = r.joined
		answer(silent, 1, `{"uri":"file:///late"}`)
		if got := asked()(); r.joined != joined+1 || !strings.Contains(got, "file:///late") {
			t.Errorf("told of a late answer %d times: %s", r.joined-joined, got)
		}
		again := newStream(t, r, two)
		synctest.Wait()
		say(two, `{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`)
		result = asked()
		newer := newStream(t, r, two) // the stream with the request was lost
		synctest.Wait()
		for _, s := range []*openStream{again, newer} {
			if strings.Count(s.String(), `"id":"roots-2"`) != 1 {
				t.Errorf("asked on %s", s.String())
			}
		}
		answer(two, 2, strings.Repeat(" ", maxRoots)+`{"uri":"file:///big"}`)
		if got := result(); strings.Contains(got, "big") || !strings.Contains(got, "file:///new") {
			t.Errorf("got %s", got)
		}
		r.stop()
		synctest.Wait()
	})
}
