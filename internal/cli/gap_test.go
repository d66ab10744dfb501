package cli

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/app"
	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/journal/sqlite"
)

// A call of which not all events are kept is shown with its gap, counted.
func TestTimelineSaysWhatIsMissing(t *testing.T) {
	for _, n := range []int{30, 500} { // a gap that is searched step by step, and a long one
		w := newWorld(t)
		j, err := sqlite.Open(t.Context(), app.JournalPath(w.state), sqlite.Options{MaxEvents: 16})
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now().Add(-time.Minute)
		r := &call.Record{ID: call.NewID(), Epoch: j.Epoch(), Started: begin}
		r.Principal, r.Server, r.Tool, r.Era, r.Arguments = "local", "s\x1b[1m", "t", "2025-11-25", []byte(`{"text":"\u202eevil"}`)
		if err := j.Create(t.Context(), r, call.Event{Seq: 1, Kind: call.KindAccepted, Time: begin, Hole: -1}); err != nil {
			t.Fatal(err)
		}
		for i := 2; i < n; i++ {
			body := fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":0,"progress":%d,"message":"a\u001b[2J\u202eb"}}`, i)
			if err := j.Append(r.ID, r.Epoch, call.Event{Seq: uint64(i), Kind: call.KindProgress, Time: begin.Add(time.Duration(i) * time.Millisecond), Hole: 77, Body: body}); err != nil {
				t.Fatal(err)
			}
		}
		r.Ended, r.Seq, r.End = begin.Add(time.Second), uint64(n), call.End{Outcome: call.TimedOut, Limit: "idle", Text: "Too\nquiet."}
		if err := j.Finish(t.Context(), r, call.Event{Seq: uint64(n), Kind: call.KindEnd, Time: r.Ended, Hole: -1, End: &r.End}); err != nil {
			t.Fatal(err)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		v := w.expect(t, exitOK, "calls", "show", string(r.ID))
		got := v.out.String()
		shown := strings.Count(got, "\n    +") // events
		wantContains(t, "timeline", got, fmt.Sprintf("%d events are not kept here", n-shown), fmt.Sprintf("not kept   %d events", n-shown),
			"s[1m/t", "timed out, limit idle after 1.0s", "Too quiet.", "a[2Jb", "nobody took the result", `arguments  {"text":"\u202eevil"}`)
		if strings.ContainsAny(got, "\x1b\u202e") {
			t.Errorf("escapes in:\n%q", got)
		}
		v = w.expect(t, exitTimedOut, "calls", "follow", string(r.ID))
		wantContains(t, "follow", v.out.String(), fmt.Sprintf("%d events are not kept here", n-shown), "timed out, limit idle: Too quiet.")
		v = w.expect(t, exitOK, "calls", "show", string(r.ID), "--json")
		wantContains(t, "show --json", v.out.String(), fmt.Sprintf(`"missing": %d`, n-shown), `"kind": "gap"`, `"limit": "idle"`)
		v = w.expect(t, exitTimedOut, "calls", "follow", string(r.ID), "--json")
		if got := strings.Count(v.out.String(), "\n"); got != shown+1 {
			t.Errorf("follow --json has %d lines, want %d", got, shown+1)
		}
	}
}
