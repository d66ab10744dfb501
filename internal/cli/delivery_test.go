package cli

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/app"
	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/journal/sqlite"
)

func TestDeliveryWords(t *testing.T) {
	long, now := time.Now().Add(-time.Minute), time.Now()
	record := func(o call.Outcome, ended, dispatched time.Time) *call.Record {
		r := &call.Record{Ended: ended, Dispatched: dispatched}
		r.End.Outcome = o
		return r
	}
	list := func(words ...string) (out []call.Delivery) {
		for _, w := range words {
			how, kind, _ := strings.Cut(w, " ")
			out = append(out, call.Delivery{How: call.How(how), Kind: kind})
		}
		return out
	}
	for _, tt := range []struct {
		name  string
		r     *call.Record
		list  []call.Delivery
		want  string
		owing bool
	}{
		{"no reader yet", record(call.Running, time.Time{}, long), nil, "-", false},
		{"reader gone while it runs", record(call.Running, time.Time{}, long), list("aborted_downstream sse"), "aborted_downstream", false},
		{"handed off while it runs", record(call.Running, time.Time{}, long), list("handed_off sse"), "handed off", false},
		{"reader gone after a hand-off", record(call.Running, time.Time{}, long), list("handed_off sse", "aborted_downstream await"), "aborted_downstream, handed off (2 readers)", false},
		{"delivered", record(call.Completed, long, long), list("delivered sse"), "delivered", false},
		{"delivered later", record(call.Completed, long, long), list("handed_off sse", "delivered await"), "delivered, handed off (2 readers)", false},
		{"delivered, then left", record(call.Completed, long, long), list("delivered sse", "aborted_downstream sse"), "delivered (2 readers)", false},
		{"resumed", record(call.Completed, long, long), list("aborted_downstream sse", "delivered resume"), "delivered, resumed (2 readers)", false},
		{"replayed", record(call.Completed, long, long), list("aborted_downstream sse", "replayed json"), "replayed (2 readers)", false},
		{"owed", record(call.Completed, long, long), list("aborted_downstream sse"), "owed", true},
		{"owed after a hand-off", record(call.TimedOut, long, long), list("handed_off sse"), "owed, handed off", true},
		{"owed, never read", record(call.Interrupted, long, long), nil, "owed", true},
		{"too early to say", record(call.Completed, now, long), list("aborted_downstream sse"), "aborted_downstream", false},
		{"what never left is not owed", record(call.Failed, long, time.Time{}), list("slow sse"), "slow", false},
		{"cancelled", record(call.Cancelled, long, long), nil, "-", false},
		{"denied", record(call.Denied, long, time.Time{}), nil, "-", false},
	} {
		if got := deliveryWords(tt.r, tt.list); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
		if got := owed(tt.r, tt.list); got != tt.owing {
			t.Errorf("%s: owed %v", tt.name, got)
		}
	}
}

// A call that was handed off and asked for input is shown in plain words; where
// it lives at the tool server, and what the tool asked, are not (I10, I12).
func TestCallsShowWhatOutlivesAReader(t *testing.T) {
	w := newWorld(t)
	j, err := sqlite.Open(t.Context(), app.JournalPath(w.state), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now().Add(-time.Minute)
	r := &call.Record{ID: call.NewID(), Epoch: j.Epoch(), Started: begin, Dispatched: begin}
	r.Principal, r.Server, r.Tool, r.Era = "local", "s", "t", "2025-11-25"
	r.Parent, r.Index = call.NewID(), 2
	if err := j.Create(t.Context(), r, call.Event{Seq: 1, Kind: call.KindAccepted, Time: begin, Hole: -1}); err != nil {
		t.Fatal(err)
	}
	for i, e := range []call.Event{
		{Kind: call.KindDispatched},
		{Kind: call.KindAddress, Body: []byte(`{"session":"hunter2"}`), Cursor: []byte("hunter2")},
		{Kind: call.KindAsk, Body: []byte(`{"u:1":{"method":"elicitation/create","params":{"message":"hunter2"}},"a\u001b[2J":{}}`)},
		{Kind: call.KindAnswer, Body: []byte(`["u:1"]`)},
		{Kind: call.KindReady, Body: []byte("the output matched ready_pattern")},
	} {
		e.Seq, e.Hole, e.Time = uint64(i+2), -1, begin.Add(time.Duration(i)*time.Second)
		if err := j.Append(r.ID, r.Epoch, e); err != nil {
			t.Fatal(err)
		}
	}
	r.Ended, r.Seq, r.End = begin.Add(5*time.Second), 7, call.End{Outcome: call.Completed}
	if err := j.Finish(t.Context(), r, call.Event{Seq: 7, Kind: call.KindEnd, Time: r.Ended, Hole: -1, End: &r.End}); err != nil {
		t.Fatal(err)
	}
	j.Deliver(call.Delivery{Call: r.ID, Kind: "sse", How: call.HandedOff, Attached: begin, Ended: begin.Add(time.Second)})
	j.Deliver(call.Delivery{Call: r.ID, Kind: "await", How: call.AbortedDownstream, Attached: begin, Ended: begin.Add(2 * time.Second)})
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}

	var all strings.Builder
	run := func(args ...string) string {
		v := w.expect(t, exitOK, args...)
		all.WriteString(v.out.String())
		return v.out.String()
	}
	if got := run("calls"); !regexp.MustCompile(`s/t \(2 of c_[a-z2-7]{10}\) +completed +owed, handed off \(2 readers\)`).MatchString(got) {
		t.Errorf("calls:\n%s", got)
	}
	wantContains(t, "show", run("calls", "show", string(r.ID)),
		"it can be found again at the tool server", "the tool waits for input: a[2J, u:1", "input came: u:1",
		"part of    "+string(r.Parent)+", command 2", "ready             the output matched ready_pattern", "owed: nobody took the result", "handed off  by sse", "the agent was told to ask later", "aborted_downstream  by await_call")
	run("calls", "show", string(r.ID), "--full")
	wantContains(t, "show --json", run("calls", "show", string(r.ID), "--json"), `"owed": true`, `"handed_off": true`, `"kind": "address"`, `"u:1"`, `"parent": "`+string(r.Parent)+`"`, `"child": 2`)
	run("calls", "--json")
	run("calls", "follow", string(r.ID))
	run("calls", "follow", string(r.ID), "--json")
	if s := all.String(); strings.Contains(s, "hunter2") || strings.Contains(s, "\x1b") {
		t.Errorf("it shows what it must not:\n%q", s)
	}
}
