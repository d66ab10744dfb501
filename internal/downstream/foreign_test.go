package downstream

import (
	"context"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/call/calltest"
	"github.com/longcall/longcall/internal/mcp"
)

// notifications that longcall does not know are passed on, in both directions, if
// the operator lets them through: within a call to agents of both eras, else to sessions.
// They are never answered.
func TestForeignNotifications_R31(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := lasting(t, calltest.NewMemory(), &kept{m: map[string]StoredSession{}}, 1)
		everything(r)
		r.settings.Extensions = map[string]map[string][]string{"up": {"com.example/x": {"x/*", "notifications/x/*"}}}
		message := func(x *call.Exec, body string) {
			_ = x.Emit(call.Event{Kind: call.KindMessage, Body: []byte(body), Hole: -1})
		}
		const part, other = `{"jsonrpc":"2.0","method":"notifications/x/part","params":{"n":9007199254740993}}`, `{"jsonrpc":"2.0","method":"notifications/y"}`
		r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer {
			_ = x.Dispatched()
			message(x, other)
			message(x, part)
			return reply(x, okResult)
		}
		id := r.begin(mcp.V20250618)
		post := func(body string, header ...string) string {
			w := httptest.NewRecorder()
			r.h.ServeHTTP(w, request(t.Context(), "POST", body, header...))
			return fmt.Sprint(w.Code, " ", w.Body)
		}
		for what, got := range map[string]string{
			"a session":       post(legacyCall("1", "work", ""), mcp.HeaderSession, id),
			"stateless agent": post(modernCall("1", "work", ""), modern("tools/call", "work")...),
		} {
			if !strings.Contains(got, "data: "+part+"\n") || strings.Contains(got, "notifications/y") {
				t.Errorf("%s got %s", what, got)
			}
		}
		for _, method := range []string{"x/open", "notifications/x/open", "notifications/y", "resources/none", "notifications/message"} {
			if got := post(`{"jsonrpc":"2.0","method":"`+method+`","params":{"v":1}}`, mcp.HeaderSession, id); got != "202 " {
				t.Errorf("%s: %s", method, got)
			}
		}
		post(`{"jsonrpc":"2.0","method":"x/open","params":{"_meta":{`+modernMeta+`}}}`, modern("x/open", "")...)
		if got, want := fmt.Sprint(r.notes), "["+id+` up x/open {"v":1} `+id+` up notifications/x/open {"v":1}]`; got != want {
			t.Errorf("passed on %s, want %s", got, want)
		}
		r.watch("up", mcp.Change{Message: part, Principal: "bob"})
		r.watch("up2", mcp.Change{Message: `{"jsonrpc":"2.0","method":"notifications/x/up2"}`, Principal: "ann"}) // not at this endpoint
		for range 3 {
			r.watch("up", mcp.Change{Message: part, Principal: "ann"})
		}
		stream := newStream(t, r, id)
		synctest.Wait()
		if got := stream.String(); strings.Count(got, "data: "+part) != 3 || strings.Contains(got, "up2") {
			t.Errorf("the session's stream has %s", got)
		}
		r.stop()
		synctest.Wait()
	})
}

// that what a page was for is done is told to the session that was sent there, by
// a question or by an error, also when its call has ended; to nobody else, and once.
func TestPageDoneAfterTheCall_R28(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := lasting(t, calltest.NewMemory(), &kept{m: map[string]StoredSession{}}, 1)
		r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer {
			_ = x.Dispatched()
			x.Ask([]byte(`{"k":{"method":"elicitation/create","params":{"mode":"url","url":"https://a.example","elicitationId":"asked","message":"Go."}}}`), nil)
			<-x.Answers()
			return reply(x, `{"jsonrpc":"2.0","id":0,"error":{"code":-32042,"message":"go","data":{"elicitations":[{"mode":"url","elicitationId":"refused","url":"https://b.example","message":"Go."}]}}}`)
		}
		const caps = `{"elicitation":{"url":{}}}`
		open := func() string {
			w := httptest.NewRecorder()
			r.h.ServeHTTP(w, request(t.Context(), "POST", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":`+caps+`,"clientInfo":{"name":"test","version":"1"}}}`))
			return w.Header().Get(mcp.HeaderSession)
		}
		id, neighbour := open(), open()
		w := &openStream{ResponseRecorder: httptest.NewRecorder()}
		go r.serveTo(t.Context(), w, "POST", id, legacyCall("1", "work", ""), "Accept", "text/event-stream")
		synctest.Wait()
		_, rest, _ := strings.Cut(w.String(), `{"jsonrpc":"2.0","id":"`)
		question, _, _ := strings.Cut(rest, `"`)
		r.serveTo(t.Context(), httptest.NewRecorder(), "POST", id, `{"jsonrpc":"2.0","id":"`+question+`","result":{"action":"accept"}}`)
		synctest.Wait()
		if !strings.Contains(w.String(), "-32042") {
			t.Fatalf("the call has not ended: %s", w.String())
		}
		mine, others := newStream(t, r, id), newStream(t, r, neighbour)
		done := func(page string) string {
			return `{"jsonrpc":"2.0","method":"notifications/elicitation/complete","params":{"elicitationId":"` + page + `"}}`
		}
		for _, page := range []string{"asked", "refused", "unknown", "asked"} {
			r.watch("up", mcp.Change{Message: done(page)})
			r.watch("up2", mcp.Change{Message: done(page)})
		}
		synctest.Wait()
		if got := mine.String(); strings.Count(got, done("asked")) != 1 || strings.Count(got, done("refused")) != 1 || strings.Contains(got, "unknown") {
			t.Errorf("told %s", got)
		}
		if got := others.String(); strings.Contains(got, "elicitation") {
			t.Errorf("another session was told %s", got)
		}
		r.stop()
		synctest.Wait()
	})
}

// TestNewsAreBounded: of notifications that nobody fetches the newest are kept.
func TestNewsAreBounded(t *testing.T) {
	c := newChanges()
	big := strings.Repeat("x", maxMore/4)
	for i := range 100 {
		c.message(fmt.Appendf(nil, "%02d%s", i, big))
	}
	c.message([]byte(big + big + big + big + big))
	for i := range 10 * maxUpdates {
		c.message(fmt.Append(nil, i))
	}
	told := c.take()
	if len(told.more) > maxUpdates || string(told.more[len(told.more)-1]) != fmt.Sprint(10*maxUpdates-1) {
		t.Errorf("%d are kept", len(told.more))
	}
}
