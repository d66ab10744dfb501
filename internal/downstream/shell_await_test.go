package downstream

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/command"
)

// background starts a command that yields at once, and gives its id.
func (o asker) background(command, more string) string {
	o.t.Helper()
	_, c := o.exec(o.t.Context(), `"b"`, `{"command":"`+command+`","yield_ms":0`+more+`}`)
	synctest.Wait()
	if c.Result.Structured.CallID == "" {
		o.t.Fatalf("%+v", c)
	}
	return c.Result.Structured.CallID
}

func idArgs(id, more string) string { return `{"ids":["` + id + `"]` + more + `}` }

// The whole of a command's structured content in an await_call's.
func shownCommand(t *testing.T, r *ownResult, i int) (v struct {
	State    string
	Output   string
	ExitCode *int `json:"exit_code"`
},
) {
	t.Helper()
	if r.Result.Structured == nil || len(r.Result.Structured.Calls) <= i {
		t.Fatalf("nothing shown: %+v", r)
	}
	if err := json.Unmarshal(r.Result.Structured.Calls[i].Result, &v); err != nil {
		t.Fatalf("%v: %+v", err, r)
	}
	return v
}

// SHELL §4: await_call of a command returns at its exit, with its result, which is
// then delivered; its time over is no error, and other tools answer meanwhile.
func TestShellAwaitExit(t *testing.T) {
	onShell(t, func(t *testing.T, r *rig, s *scripted, o asker) {
		id := o.background("say one; sleep 20s; say two; exit 3", `,"label":"suite"`)
		start := time.Now()
		res := o.ask(toolAwait, idArgs(id, `,"wait_ms":2000`))
		if c := shownCommand(t, &res, 0); !res.Result.Structured.WaitedOut || res.Result.IsError || c.State != "running" || c.ExitCode != nil || time.Since(start) != 2*time.Second {
			t.Errorf("after %s: %+v", time.Since(start), res)
		}
		if why := s.shown[len(s.shown)-1]; why.Why != command.ShowWaited || why.From >= 0 {
			t.Errorf("shown as %+v", why)
		}
		if !strings.Contains(res.text(), "To wait again, call await_call with") || !strings.Contains(res.Result.Structured.Next, `"attempt":2`) {
			t.Errorf("what to do next: %s", res.text())
		}
		beats := o
		beats.token = `"p"`
		if w := beats.request(t.Context(), "9", toolAwait, idArgs(id, `,"wait_ms":5500`)); strings.Count(w.text(), "still running") != 1 {
			t.Errorf("life every 5 s:\n%s", w.text())
		}
		answered := make(chan ownResult)
		go func() { answered <- o.ask(toolAwait, idArgs(id, `,"wait_ms":40000`)) }()
		time.Sleep(time.Second)
		list := o.ask(toolList, `{"state":"running"}`)
		if c := list.Result.Structured.Calls; len(c) != 1 || !strings.Contains(list.text(), `"suite" | running`) {
			t.Errorf("list while a wait is open: %+v", list)
		}
		res = <-answered
		if c := shownCommand(t, &res, 0); res.Result.Structured.WaitedOut || c.ExitCode == nil || *c.ExitCode != 3 || c.Output != "one\ntwo\n" || time.Since(start) != 20*time.Second || res.Result.IsError {
			t.Errorf("after %s: %+v", time.Since(start), res)
		}
		list = o.ask(toolList, `{}`)
		if c := list.Result.Structured.Calls; len(c) != 1 || c[0].Unread || !strings.Contains(list.text(), "| exit 3 |") {
			t.Errorf("list after it: %+v", list)
		}
		if res = o.ask(toolAwait, idArgs(id, `,"cursor":4`)); shownCommand(t, &res, 0).Output != "two\n" {
			t.Errorf("from a cursor: %+v", res)
		}
	})
}

// SHELL §4, until output and pattern: the wait returns with what it waits for, and
// with the end, whatever comes first.
func TestShellAwaitOutput(t *testing.T) {
	onShell(t, func(t *testing.T, r *rig, s *scripted, o asker) {
		id := o.background("say one; sleep 5s; say two; sleep 5s; say Listening on 80; sleep 50s", "")
		synctest.Wait()
		start := time.Now()
		res := o.ask(toolAwait, idArgs(id, `,"until":"output","wait_ms":40000`))
		if c := shownCommand(t, &res, 0); time.Since(start) != 5*time.Second || c.Output != "two\n" || c.State != "running" || res.Result.Structured.WaitedOut || res.Result.IsError {
			t.Errorf("output after %s: %+v", time.Since(start), res)
		}
		if res = o.ask(toolAwait, idArgs(id, `,"until":"output","cursor":0`)); shownCommand(t, &res, 0).Output != "one\ntwo\n" || time.Since(start) != 5*time.Second {
			t.Errorf("what is there already, after %s: %+v", time.Since(start), res)
		}
		res = o.ask(toolAwait, idArgs(id, `,"pattern":"Listening on [0-9]+","wait_ms":40000`))
		if time.Since(start) != 10*time.Second || s.shown[len(s.shown)-1].Why != command.ShowMatch || s.shown[len(s.shown)-1].Match != int64(len("one\ntwo\nListening on 80")) {
			t.Errorf("pattern after %s: %+v", time.Since(start), res)
		}
		res = o.ask(toolAwait, idArgs(id, `,"pattern":"never","wait_ms":3000`))
		if !res.Result.Structured.WaitedOut || time.Since(start) != 13*time.Second {
			t.Errorf("no match after %s: %+v", time.Since(start), res)
		}
		gone := o.background("sleep 2s; exit 9", "")
		start = time.Now()
		res = o.ask(toolAwait, idArgs(gone, `,"pattern":"never","wait_ms":40000`))
		if c := shownCommand(t, &res, 0); time.Since(start) != 2*time.Second || *c.ExitCode != 9 {
			t.Errorf("its end after %s: %+v", time.Since(start), res)
		}
		res = o.ask(toolAwait, `{"ids":["`+id+`","`+gone+`"],"mode":"all","pattern":"two"}`)
		if res.Result.Structured.WaitedOut || len(res.Result.Structured.Calls) != 2 {
			t.Errorf("all: %+v", res)
		}
	})
}

// What does not fit a call is said in one sentence, and nothing is waited for.
func TestShellAwaitArguments(t *testing.T) {
	onShell(t, func(t *testing.T, r *rig, s *scripted, o asker) {
		id := o.background("sleep 50s", "")
		other := string(r.start(t, "work").ID())
		synctest.Wait()
		start := time.Now()
		for args, want := range map[string]string{
			idArgs(other, `,"until":"output"`):                       "is no command: only commands have output",
			idArgs(id, `,"until":"pattern"`):                         "needs pattern",
			idArgs(id, `,"until":"exit","pattern":"x"`):              `is for until: "pattern"`,
			idArgs(id, `,"pattern":"["`):                             "no regular expression",
			`{"ids":["` + id + `","` + other + `"],"cursor":5}`:      "name one id with it",
			idArgs(id, `,"cursor":-1`):                               "cursor of await_call is -1",
			idArgs(id, `,"until":"smoke"`):                           "one of",
			idArgs(string(call.NewID()), `,"until":"output"`):        "No such call of yours",
			idArgs(id, `,"pattern":"`+strings.Repeat("x", 1025)+`"`): "at most 1024 bytes",
		} {
			if res := o.ask(toolAwait, args); !res.Result.IsError || !strings.Contains(res.text(), want) {
				t.Errorf("%.100s: %+v", args, res)
			}
		}
		for args, want := range map[string]string{
			`{"id":"` + other + `","signal":"INT"}`:     "signal and grace_ms are for commands only",
			`{"id":"` + id + `","signal":"NONE"}`:       "There is no signal NONE",
			`{"id":"` + id + `","grace_ms":60001}`:      "from 0 to 60000",
			`{"id":"` + id + `","signal":"` + id + `"}`: "the name of a signal",
		} {
			if res := o.ask(toolCancel, args); !res.Result.IsError || !strings.Contains(res.text(), want) {
				t.Errorf("%s: %+v", args, res)
			}
		}
		if time.Since(start) != 0 || r.eng.InFlight() != 1 {
			t.Errorf("after %s, %d run", time.Since(start), r.eng.InFlight())
		}
		if res := (asker{t: t, r: r, bearer: "bob"}).ask(toolAwait, idArgs(id, `,"until":"output"`)); !strings.Contains(res.text(), "No such call of yours") {
			t.Errorf("somebody else: %+v", res)
		}
	})
}

// cancel_call stops a command as it says, and what is left of one that has ended.
func TestShellCancel(t *testing.T) {
	onShell(t, func(t *testing.T, r *rig, s *scripted, o asker) {
		id := o.background("say hi; sleep 50s", "")
		res := o.ask(toolCancel, `{"id":"`+id+`","signal":"INT","grace_ms":100,"reason":"not needed"}`)
		if st := res.Result.Structured; st == nil || !st.Cancelled || st.State != "cancelled" || !strings.Contains(res.text(), "was cancelled") || !strings.Contains(res.text(), "hi\n") {
			t.Errorf("%+v", res)
		}
		if len(s.stops) != 1 || s.stops[0] != (command.Stop{Signal: "INT", Grace: 100 * time.Millisecond, By: byCancelTool}) {
			t.Errorf("stops %+v", s.stops)
		}
		id = o.background("leave; sleep 1s; exit 0", "")
		time.Sleep(2 * time.Second)
		res = o.ask(toolCancel, `{"id":"`+id+`"}`)
		if res.Result.Structured.Cancelled || !strings.Contains(res.text(), "what was left of its processes") || s.stops[1].Grace >= 0 {
			t.Errorf("what is left: %+v, %+v", res, s.stops)
		}
		if res = o.ask(toolCancel, `{"id":"`+id+`"}`); !strings.Contains(res.text(), "Nothing was cancelled") {
			t.Errorf("nothing left: %+v", res)
		}
	})
}

// What another result tells of an end is not unread any more.
func TestShellTold(t *testing.T) {
	onShell(t, func(t *testing.T, r *rig, s *scripted, o asker) {
		id := o.background("say hi; sleep 1s; exit 0", "")
		time.Sleep(2 * time.Second)
		if list := o.ask(toolList, `{"state":"unread"}`); len(list.Result.Structured.Calls) != 1 {
			t.Fatalf("%+v", list)
		}
		o.request(t.Context(), "1", toolRead, `{"id":"`+id+`"}`)
		if list := o.ask(toolList, `{"state":"unread"}`); len(list.Result.Structured.Calls) != 0 {
			t.Errorf("%+v", list)
		}
		if hows := fmt.Sprint(r.log.hows()); hows != "[handed_off delivered]" {
			t.Errorf("deliveries %s", hows)
		}
	})
}
