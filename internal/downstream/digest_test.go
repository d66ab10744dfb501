package downstream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

const endedMeanwhile = "Ended meanwhile: "

// SHELL §5: what ended while its agent was away is told once, on the next result of
// any tool, without any output; then it still is there to be read.
func TestDigest(t *testing.T) {
	onShell(t, func(t *testing.T, r *rig, s *scripted, o asker) {
		r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer {
			return reply(x, `{"jsonrpc":"2.0","id":0,"result":{"content":[ {"type":"text","text":"done"} ],"x":1.50}}`)
		}
		id := o.background("say secret output; sleep 5s; exit 4", `,"label":"unit\ntests"`)
		if w := o.request(t.Context(), "1", "up__work", "{}"); strings.Contains(w.body(), endedMeanwhile) {
			t.Errorf("it still runs: %s", w.body())
		}
		time.Sleep(6 * time.Second)
		if w := (asker{t: t, r: r, bearer: "bob"}).request(t.Context(), "1", "up__work", "{}"); strings.Contains(w.body(), endedMeanwhile) {
			t.Errorf("somebody else is told: %s", w.body())
		}
		w := o.request(t.Context(), "2", "up__work", "{}")
		got := w.body()
		if !strings.Contains(got, `[ {"type":"text","text":"done"} ,{"type":"text","text":"`+endedMeanwhile+id+` (exec_command \"unit tests\"): exit 4.`) || !strings.Contains(got, `],"x":1.50}}`) {
			t.Errorf("%s", got)
		}
		if strings.Contains(got, "secret output") {
			t.Error("output in a digest")
		}
		if w = o.request(t.Context(), "3", "up__work", "{}"); strings.Contains(w.body(), endedMeanwhile) {
			t.Errorf("told twice: %s", w.body())
		}
		if hows := fmt.Sprint(r.log.hows()); !strings.Contains(hows, string(call.Told)) {
			t.Errorf("deliveries %s", hows)
		}
		if list := o.ask(toolList, `{"state":"unread"}`); len(list.Result.Structured.Calls) != 1 {
			t.Errorf("it is not there to be read: %+v", list)
		}
		if res := o.ask(toolAwait, idArgs(id, "")); shownCommand(t, &res, 0).Output != "secret output\n" {
			t.Errorf("%+v", res)
		}
	})
}

// Where digests may stand is the operator's to say.
func TestDigestWhere(t *testing.T) {
	for set, want := range map[TellEnds][2]bool{TellWithAll: {true, true}, TellWithOwn: {false, true}, TellNever: {false, false}} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			withShell(r)
			r.settings.TellEnds = set
			r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer { return reply(x, okResult) }
			o := asker{t: t, r: r}
			for i, ask := range []func() string{
				func() string { return o.request(t.Context(), "1", "up__work", "{}").body() },
				func() string { w, _ := o.exec(t.Context(), "2", `{"command":"say x"}`); return w.body() },
			} {
				id := o.background(fmt.Sprint("sleep 1s; exit ", i), "")
				time.Sleep(2 * time.Second)
				if got := strings.Contains(ask(), endedMeanwhile); got != want[i] {
					t.Errorf("setting %d, result %d: told %v", set, i, got)
				}
				o.ask(toolAwait, idArgs(id, "")) // read in any case
			}
			r.stop()
		})
	}
}

// What the answer itself shows, or somebody is reading, is not told beside it, and
// what did not get out is told again.
func TestDigestOnce(t *testing.T) {
	onShell(t, func(t *testing.T, r *rig, s *scripted, o asker) {
		one, two := o.background("sleep 1s; exit 1", ""), o.background("sleep 2s; exit 2", "")
		waits := make(chan ownResult)
		go func() { waits <- o.ask(toolAwait, `{"ids":["`+one+`","`+two+`"],"mode":"all","wait_ms":30000}`) }()
		if res := <-waits; strings.Contains(res.text(), endedMeanwhile) || len(res.Result.Structured.Calls) != 2 {
			t.Errorf("what it shows itself: %+v", res)
		}
		if w, _ := o.exec(t.Context(), "1", `{"command":"say y"}`); strings.Contains(w.body(), endedMeanwhile) {
			t.Errorf("what was shown: %s", w.body())
		}
		three := o.background("sleep 1s; exit 3", "")
		time.Sleep(2 * time.Second)
		gone, hangUp := context.WithCancel(t.Context())
		hangUp()
		o.request(gone, "2", toolRead, `{"id":"`+one+`"}`)
		w := newTape()
		w.stuck = true
		req := toAll(t.Context(), "POST", modernCall("3", toolRead, ""), modern(mcp.MethodToolsCall, toolRead)...)
		if o.session != "" {
			req = toAll(t.Context(), "POST", legacyCall("3", toolRead, ""), mcp.HeaderSession, o.session)
		}
		r.h.ServeHTTP(w, req)
		res := o.ask(toolCancel, `{"id":"`+one+`"}`)
		told := strings.Count(res.text(), endedMeanwhile+three)
		if w, _ := o.exec(t.Context(), "4", `{"command":"say z"}`); strings.Contains(w.body(), endedMeanwhile+three) {
			told++
		}
		if told != 1 {
			t.Errorf("told %d times", told)
		}
	})
}

// A digest is on the record: the next process does not tell it again, but what
// the last one left untold.
func TestDigestAfterRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		withShell(r)
		o := asker{t: t, r: r}
		told := o.background("sleep 1s; exit 1", "")
		time.Sleep(2 * time.Second)
		o.exec(t.Context(), "1", `{"command":"say x"}`)
		untold := o.background("sleep 1s; exit 2", "")
		time.Sleep(2 * time.Second)
		next := New(r.h.opt)
		next.opt.Catalog = r.h.opt.Catalog
		r.h.Stop()
		r.h = next
		w, _ := o.exec(t.Context(), "2", `{"command":"say y"}`)
		if strings.Contains(w.body(), endedMeanwhile+told) || !strings.Contains(w.body(), endedMeanwhile+untold) {
			t.Errorf("%s", w.body())
		}
		r.stop()
	})
}

// Two agents of one principal are told of their own calls only, as long as both
// are there.
func TestDigestOfSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		withShell(r)
		a := asker{t: t, r: r, session: r.sessionAtAll(mcp.V20251125)}
		b := asker{t: t, r: r, session: r.sessionAtAll(mcp.V20251125)}
		id := a.background("sleep 1s; exit 1", "")
		time.Sleep(2 * time.Second)
		if w, _ := b.exec(t.Context(), "1", `{"command":"say x"}`); strings.Contains(w.body(), endedMeanwhile) {
			t.Errorf("the other agent is told: %s", w.body())
		}
		time.Sleep(awayAfter) // the first has gone
		if w, _ := b.exec(t.Context(), "2", `{"command":"say y"}`); !strings.Contains(w.body(), endedMeanwhile+id) {
			t.Errorf("nobody is told: %s", w.body())
		}
		r.stop()
	})
}

// Whatever the log says, an answer goes out.
func TestDigestWithoutLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		withShell(r)
		r.log.readErr = errors.New("disk on fire")
		o := asker{t: t, r: r}
		o.background("sleep 1s; exit 1", "")
		time.Sleep(2 * time.Second)
		if w, c := o.exec(t.Context(), "1", `{"command":"say x"}`); c.Result.Structured.State != "exited" {
			t.Errorf("%s", w.body())
		}
		r.stop()
	})
}
