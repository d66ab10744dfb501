package downstream

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// answer is the body of a request of ann or somebody else, at /mcp.
func (o asker) answer(method, params string) string {
	o.t.Helper()
	bearer := o.bearer
	if bearer == "" {
		bearer = "ann"
	}
	w := httptest.NewRecorder()
	header := []string{"Authorization", "Bearer " + bearer, "Accept", "application/json"}
	if o.session != "" {
		header = append(header, mcp.HeaderSession, o.session)
	} else {
		var p struct{ URI string }
		_ = json.Unmarshal([]byte("{"+params+"}"), &p)
		header = append(header, modern(method, mcp.EncodeHeader(p.URI))...)
		params += `,"_meta":{` + modernMeta + `}`
	}
	o.r.h.ServeHTTP(w, toAll(o.t.Context(), "POST", `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":{`+strings.TrimPrefix(params, ",")+`}}`, header...))
	return w.Body.String()
}

// listen opens the stream that carries updates of a resource, in either era, and
// gives what is written to it.
func (o asker) listen(ctx context.Context, uri string) *tape {
	o.t.Helper()
	w := newTape()
	if o.session != "" {
		if got := o.answer(mcp.MethodSubscribe, `"uri":"`+uri+`"`); !strings.Contains(got, `"result":{}`) {
			o.t.Errorf("subscribe: %s", got)
		}
		go o.r.h.ServeHTTP(w, toAll(ctx, "GET", "", mcp.HeaderSession, o.session))
	} else {
		go o.r.h.ServeHTTP(w, toAll(ctx, "POST", `{"jsonrpc":"2.0","id":"l","method":"subscriptions/listen","params":{"notifications":{"resourceSubscriptions":["`+uri+`"]},"_meta":{`+modernMeta+`}}}`,
			modern(mcp.MethodListen, "")...))
	}
	synctest.Wait()
	return w
}

const updated = `"method":"notifications/resources/updated"`

// SHELL §5: a subscriber is told of a command's end, once, after its
// acknowledgement; one that comes late too; nobody who did not ask.
func TestCallResourceUpdates(t *testing.T) {
	onShell(t, func(t *testing.T, r *rig, s *scripted, o asker) {
		id := o.background("say one; sleep 5s; say two; exit 3", "")
		uri := "longcall://calls/" + id
		ctx, hangUp := context.WithCancel(t.Context())
		early := o.listen(ctx, uri)
		time.Sleep(4 * time.Second)
		if strings.Contains(early.text(), updated) {
			t.Errorf("told before the end:\n%s", early.text())
		}
		time.Sleep(3 * time.Second)
		if text := early.text(); strings.Count(text, updated) != 1 || !strings.Contains(text, `"uri":"`+uri+`"`) {
			t.Errorf("told of the end:\n%s", text)
		}
		hangUp()
		synctest.Wait()
		if o.session != "" {
			o.answer(mcp.MethodUnsubscribe, `"uri":"`+uri+`"`)
		}
		ctx, hangUp = context.WithCancel(t.Context())
		late := o.listen(ctx, uri)
		time.Sleep(2 * time.Second)
		text := late.text()
		if strings.Count(text, updated) != 1 {
			t.Errorf("who comes late:\n%s", text)
		}
		if ack := strings.Index(text, mcp.MethodAcknowledged); o.session == "" && (ack < 0 || ack > strings.Index(text, updated)) {
			t.Errorf("not acknowledged first:\n%s", text)
		}
		if strings.Contains(text+early.text(), "one") {
			t.Errorf("output in a notification:\n%s", text)
		}
		hangUp()
		synctest.Wait()
	})
}

// New output is told to who subscribed to it.
func TestCallOutputUpdates(t *testing.T) {
	onShell(t, func(t *testing.T, r *rig, s *scripted, o asker) {
		id := o.background("sleep 3s; say two; sleep 300s", "")
		ctx, hangUp := context.WithCancel(t.Context())
		w := o.listen(ctx, "longcall://calls/"+id+"/output")
		time.Sleep(2 * time.Second)
		if strings.Contains(w.text(), updated) {
			t.Errorf("told before there is any:\n%s", w.text())
		}
		time.Sleep(3 * time.Second)
		if strings.Count(w.text(), updated) != 1 {
			t.Errorf("%s", w.text())
		}
		hangUp()
		synctest.Wait()
	})
}

// resources/read of a call gives how it stands; an end that is read is delivered.
// Somebody else's call and one that never was look the same (I6).
func TestCallResourceRead(t *testing.T) {
	onShell(t, func(t *testing.T, r *rig, s *scripted, o asker) {
		r.tools["work"] = takes(time.Second, "half", `{"jsonrpc":"2.0","id":0,"result":{"content":[{"type":"text","text":"worked"}]}}`)
		id := o.background("say one; sleep 5s; say two; exit 3", "")
		work := string(r.start(t, "work").ID())
		uri := func(id string) string { return `"uri":"longcall://calls/` + id + `"` }
		if got := o.answer(mcp.MethodResourcesRead, uri(id)); !strings.Contains(got, `\"state\":\"running\"`) || !strings.Contains(got, `"mimeType":"application/json"`) {
			t.Errorf("running: %s", got)
		}
		if got := o.answer(mcp.MethodResourcesRead, uri(work)); !strings.Contains(got, `\"state\":\"running\"`) {
			t.Errorf("a tool server's call: %s", got)
		}
		time.Sleep(6 * time.Second)
		if list := o.ask(toolList, `{"state":"unread"}`); len(list.Result.Structured.Calls) != 2 {
			t.Errorf("unread: %+v", list)
		}
		if got := o.answer(mcp.MethodResourcesRead, uri(id)); !strings.Contains(got, `\"exit_code\":3`) {
			t.Errorf("ended: %s", got)
		}
		if got := o.answer(mcp.MethodResourcesRead, uri(id+"/output")); !strings.Contains(got, `"mimeType":"text/plain","text":"one\ntwo\n"`) {
			t.Errorf("output: %s", got)
		}
		if got := o.answer(mcp.MethodResourcesRead, uri(work)); !strings.Contains(got, `\"text\":\"worked\"`) {
			t.Errorf("a tool server's call: %s", got)
		}
		if list := o.ask(toolList, `{"state":"unread"}`); len(list.Result.Structured.Calls) != 0 {
			t.Errorf("still unread: %+v", list)
		}
		bob := asker{t: t, r: r, bearer: "bob"}
		foreign := bob.answer(mcp.MethodResourcesRead, uri(id))
		if never := bob.answer(mcp.MethodResourcesRead, uri(string(call.NewID()))); !strings.Contains(foreign, "Resource not found") || len(never) != len(foreign) {
			t.Errorf("foreign: %s\nnever: %s", foreign, never)
		}
		for _, wrong := range []string{"x", id + "/", work + "/output", ""} {
			if got := o.answer(mcp.MethodResourcesRead, uri(wrong)); !strings.Contains(got, "Resource not found") {
				t.Errorf("%q: %s", wrong, got)
			}
		}
		if got := o.answer(mcp.MethodTemplatesList, ""); strings.Count(got, `"uriTemplate":"longcall://calls/{id}`) != 2 {
			t.Errorf("templates: %s", got)
		}
	})
}
