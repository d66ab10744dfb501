package downstream

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/call/calltest"
	"github.com/longcall/longcall/internal/mcp"
)

// The rest of a stream cannot be read for now: that is not said to be for good.
func TestResumeWithBrokenJournal(t *testing.T) {
	log, store := calltest.NewMemory(), &kept{m: map[string]StoredSession{}}
	r := lasting(t, log, store, 1)
	end := make(chan struct{})
	close(end)
	r.tools["work"] = progressTool(1, end)
	session := r.begin(mcp.V20251125)
	w := httptest.NewRecorder()
	r.serveTo(t.Context(), w, "POST", session, legacyCall("1", "work", "1"))
	until(t, "end", func() bool { return r.eng.InFlight() == 0 })
	from := ids(w.Body.String())[0][0]
	r.stop()
	r = lasting(t, log, store, 2)
	log.Fail(func(op string) error {
		if op == "get" {
			return errors.New("disk")
		}
		return nil
	})
	if status, text := r.resumeAt(session, from); status != 503 || !strings.Contains(text, "in a moment") || strings.Contains(text, "disk") {
		t.Errorf("%d %s", status, text)
	}
	log.Fail(nil)
	if status, text := r.resumeAt(session, from); status != 200 || !strings.Contains(text, "done") {
		t.Errorf("healed: %d %s", status, text)
	}
}

// What a stream's agent was at stays what it was, if it comes back and is shown
// nothing: the event without data that begins the stream says no more.
func TestPrimedAsItCame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := lasting(t, calltest.NewMemory(), &kept{m: map[string]StoredSession{}}, 1)
		r.tools["work"] = progressTool(2, nil)
		session := r.begin(mcp.V20251125)
		ctx, hangUp := context.WithCancel(t.Context())
		w := newTape()
		go r.serveTo(ctx, w, "POST", session, legacyCall("1", "work", "1"))
		synctest.Wait()
		all := ids(w.text())
		hangUp()
		from := all[0][0]
		ctx, hangUp = context.WithCancel(t.Context())
		defer hangUp()
		w = newTape()
		go r.serveTo(ctx, w, "GET", session, "", mcp.HeaderLastEvent, from)
		synctest.Wait()
		if !strings.Contains(w.text(), "id: "+from+"\nretry: 1000") {
			t.Errorf("resumed at %s with %q", from, w.text())
		}
		hangUp()
		synctest.Wait()
		r.stop()
	})
}

// An answer at a restart that cannot hand off says to make the same call again
// only where that is shown the result, and not where it would run once more.
func TestRestartWithoutHandOff(t *testing.T) {
	for attach, want := range map[call.Attach]string{call.AttachUndelivered: "make the same call again", call.AttachNever: "longcall calls show c_"} {
		synctest.Test(t, func(t *testing.T) {
			r := lasting(t, calltest.NewMemory(), &kept{m: map[string]StoredSession{}}, 1)
			r.decide = func(string, string, string, bool) Decision { return Decision{Attach: attach} }
			r.tools["work"] = progressTool(1, nil)
			session := r.begin(mcp.V20251125)
			w := httptest.NewRecorder()
			go r.serveTo(t.Context(), w, "POST", session, legacyCall("1", "work", ""), "Accept", "application/json")
			synctest.Wait()
			r.stop()
			synctest.Wait()
			if got := w.Body.String(); !strings.Contains(got, "The call goes on") || !strings.Contains(got, want) {
				t.Errorf("%v: %s", attach, got)
			}
		})
	}
}
