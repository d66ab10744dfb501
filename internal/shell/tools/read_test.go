//go:build linux || darwin

package tools

import (
	"fmt"
	"strings"
	"testing"

	"github.com/longcall/longcall/internal/command"
)

// A large output: its beginning and end, a marker with a cursor, pages, matches, and
// the raw bytes. Nothing that was read is gone.
func TestReadOutput(t *testing.T) {
	r := newRig(t)
	p := r.call(Exec, args("command", `i=0; while [ $i -lt 5000 ]; do i=$((i+1)); echo "line $i"; done; printf '\033[31mred\033[0m\n'`, "yield_ms", 12000, "max_output_bytes", 2000))
	if p.Omitted == 0 || len(p.Output) > 2300 || !strings.HasPrefix(p.Output, "line 1\n") || !strings.HasSuffix(p.Output, "line 5000\nred\n") ||
		!strings.Contains(p.Output, " bytes omitted — read_output cursor=") || !strings.Contains(p.Next, "B are not shown: read_output with {\"id\":\""+p.CallID+"\"} and a cursor or grep shows them") {
		t.Errorf("%q %q", p.Next, p.Output)
	}
	var all strings.Builder
	cursor := int64(0)
	for pages := 0; ; pages++ {
		q := r.do("ann", Read, args("id", p.CallID, "cursor", cursor, "max_bytes", 20000))
		if q.shown.IsError || *q.NextCursor <= cursor && cursor < *q.Total {
			t.Fatalf("%q", q.shown.Text)
		}
		all.WriteString(q.Output)
		cursor = *q.NextCursor
		if cursor == *q.Total {
			break
		}
		if !strings.Contains(q.Next, fmt.Sprintf(`There is more: call read_output again with "cursor":%d.`, cursor)) {
			t.Errorf("%q", q.Next)
		}
	}
	if got := all.String(); strings.Count(got, "\n") != 5001 || !strings.HasSuffix(got, "line 5000\nred\n") {
		t.Errorf("%d lines", strings.Count(got, "\n"))
	}
	q := r.do("ann", Read, args("id", p.CallID, "grep", "^line 49{3}$", "context", 1))
	if !strings.Contains(q.Output, "line 4999") || !strings.Contains(q.Output, "line 5000") || !strings.Contains(q.Output, "line 4998") || strings.Contains(q.Output, "line 4997\n") {
		t.Errorf("%q", q.Output)
	}
	if q = r.do("ann", Read, args("id", p.CallID, "grep", "nothing like it")); !strings.Contains(q.Next, "No line matches.") {
		t.Errorf("%q %q", q.Next, q.Output)
	}
	if q = r.do("ann", Read, args("id", p.CallID, "cursor", -14, "raw", true)); q.Output != "\x1b[31mred\x1b[0m\n" {
		t.Errorf("%q", q.Output)
	}
	if again := r.do("ann", Read, args("id", p.CallID, "max_bytes", 2000)); !strings.HasPrefix(again.Output, "line 1\n") {
		t.Errorf("%q", again.Output)
	}
}

// An await's windows: from a cursor, and from the end; a search of what comes.
func TestShowFromAndScan(t *testing.T) {
	r := newRig(t)
	p := r.call(Exec, args("command", "echo one; echo two; while [ ! -e go ]; do sleep 0.02; done; echo three ready", "yield_ms", 200))
	r.until("output", func() bool { return r.tools.Total(p.call.ID()) == 8 })
	p.read(r)
	for from, want := range map[int64]string{4: "two\n", -4: "two\n", 8: "", 100: ""} {
		rec := p.call.Record()
		p.shown = r.tools.Show(t.Context(), &rec, &command.ShowOptions{Names: OwnNames, From: from, Why: command.ShowOutput})
		p.read(r)
		if p.Output != want || !strings.HasPrefix(p.shown.Text[0], "new output; running ") {
			t.Errorf("from %d: %q %q", from, p.Output, p.shown.Text)
		}
	}
	if _, err := r.tools.Scan(p.call.ID(), 0, "("); err == nil || !strings.HasPrefix(err.Error(), "pattern is no regular expression that RE2 knows: ") {
		t.Error(err)
	}
	scan, err := r.tools.Scan(p.call.ID(), 0, "three r.*y")
	r.must(err)
	wake := make(chan struct{}, 1)
	defer r.tools.Watch(p.call.ID(), wake)()
	if _, found, err := scan.Next(t.Context()); found || err != nil {
		t.Error(found, err)
	}
	r.must(writeFile(r.path("go")))
	r.until("the match", func() bool {
		end, found, err := scan.Next(t.Context())
		if err != nil || found && end != 20 {
			t.Fatal(end, found, err)
		}
		return found
	})
	<-wake
}
