package telemetry

import (
	"bytes"
	"flag"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longcall/longcall/internal/call"
)

var update = flag.Bool("update", false, "write the golden files anew")

func newTelemetry(t testing.TB, opt Options) *Telemetry {
	t.Helper()
	tel, err := New(opt)
	if err != nil {
		t.Fatal(err)
	}
	return tel
}

// conversation drives a Telemetry through the life of requests of every kind.
func conversation(tel *Telemetry) {
	q := func(id string, c call.ID) Request {
		return Request{
			ID: id, Principal: "local", Server: "files", Tool: "files__slow", Era: "2025-11-25",
			Method: "tools/call", Kind: "sse", Start: time.Now(), BytesIn: 120,
		}
	}
	record := func(q Request, c call.ID, end call.End) *call.Record {
		return &call.Record{
			ID:      c,
			Spec:    call.Spec{RequestID: q.ID, Principal: q.Principal, Server: q.Server, Tool: "slow", PublicTool: q.Tool, Era: q.Era},
			Started: q.Start, Dispatched: q.Start.Add(time.Millisecond), FirstByte: q.Start.Add(21 * time.Millisecond),
			Ended: time.Now(), End: end, Seq: 5, Bytes: 300,
		}
	}
	for _, c := range []struct {
		id   string
		end  call.End
		how  call.How
		runs bool // the request ends, the call does not
	}{
		{"completed", call.End{Outcome: call.Completed}, call.Delivered, false},
		{"tool_error", call.End{Outcome: call.Completed, ToolError: true}, call.Delivered, false},
		{"failed", call.End{Outcome: call.Failed, Code: -32602, Text: "the server's own words"}, call.Delivered, false},
		{"timed_out", call.End{Outcome: call.TimedOut, Limit: "idle"}, call.Delivered, false},
		{"interrupted", call.End{Outcome: call.Interrupted}, call.Delivered, false},
		{"denied", call.End{Outcome: call.Denied, By: "policy"}, call.Delivered, false},
		{"operator", call.End{Outcome: call.Cancelled, By: "operator"}, call.Delivered, false},
		{"cancelled", call.End{Outcome: call.Cancelled, By: "agent"}, "", false},
		{"aborted", call.End{}, call.AbortedDownstream, true},
		{"slow", call.End{}, call.Slow, true},
		{"stopping", call.End{}, call.ShutDown, true},
		{"handed_off", call.End{}, call.HandedOff, true},
	} {
		r := q("r_"+c.id, call.ID("c_"+c.id))
		tel.RequestStarted(&r)
		r.Call = call.ID("c_" + c.id)
		tel.CallStarted(record(r, r.Call, call.End{}))
		r.Status, r.FirstByte = 200, 1500*time.Microsecond
		tel.FirstByte(&r)
		time.Sleep(2 * time.Second)
		r.BytesOut, r.Events, r.Beats, r.MaxGap, r.How = 450, 3, 1, time.Second, c.how
		if !c.runs {
			tel.CallEnded(record(r, r.Call, c.end), true)
			r.End = &c.end
		}
		tel.RequestEnded(&r)
		if c.runs {
			time.Sleep(time.Minute)
			tel.CallEnded(record(r, r.Call, call.End{Outcome: call.Completed}), c.id != "slow")
		}
	}
	list := Request{ID: "r_list", Principal: "local", Era: "2026-07-28", Method: "tools/list", Start: time.Now()}
	tel.RequestStarted(&list)
	list.Status, list.BytesOut = 200, 4000
	tel.RequestEnded(&list)
	tel.RequestEnded(&Request{ID: "r_stranger", Method: "POST", Start: time.Now(), Status: 401, BytesOut: 80})
	tel.EventLost("c_slow")
	tel.UpstreamReconnected("files", "resumed")
	tel.UpstreamRestarted("files")
}

func TestLifecycleLines(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		t.Run(format, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var buf bytes.Buffer
				tel := newTelemetry(t, Options{Log: Logger(&buf, slog.LevelDebug, format)})
				conversation(tel)
				golden(t, "lifecycle."+format, buf.Bytes())
			})
		})
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (run with -update to accept):\n%s", path, got)
	}
}

// D12: a child of a call has no request of its own, so its start, first byte and
// end have lines at the info level, with the aggregate's id and its index.
func TestChildLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var buf bytes.Buffer
		tel := newTelemetry(t, Options{Log: Logger(&buf, slog.LevelInfo, "text")})
		for _, k := range []struct {
			id, parent call.ID
			index      int
			end        call.End
		}{
			{"c_all", "", 0, call.End{Outcome: call.Completed}}, // its request's lines tell of it
			{"c_one", "c_all", 1, call.End{Outcome: call.Completed, ToolError: true}},
			{"c_two", "c_all", 2, call.End{Outcome: call.Interrupted}},
		} {
			r := &call.Record{
				ID: k.id, Started: time.Now(), Dispatched: time.Now(), Seq: 3,
				Spec: call.Spec{RequestID: "r1", Principal: "local", Server: "shell", PublicTool: "shell__exec_command", Era: "2026-07-28", Parent: k.parent, Index: k.index},
			}
			tel.CallStarted(r)
			time.Sleep(20 * time.Millisecond)
			r.FirstByte = time.Now()
			tel.CallAnswered(r)
			time.Sleep(time.Second)
			r.Ended, r.End = time.Now(), k.end
			tel.CallEnded(r, true)
		}
		golden(t, "children.text", buf.Bytes())
	})
}

// What did not complete, or did not arrive, is never called completed; and no
// two outcomes share their words.
func TestOnlyCompletedIsCompleted(t *testing.T) {
	outcomes := []call.Outcome{call.Running, call.Completed, call.Failed, call.Cancelled, call.TimedOut, call.Denied, call.Interrupted}
	hows := []call.How{"", call.Delivered, call.AbortedDownstream, call.HandedOff, call.Replayed, call.Slow, call.ShutDown}
	good := func(s string) bool { return strings.Contains(s, "complet") || strings.Contains(s, "succe") }
	var texts []string
	for _, o := range outcomes {
		text := callEnds[o]
		if slices.Contains(texts, text) {
			t.Errorf("two outcomes are %q", text)
		}
		texts = append(texts, text)
		if good(text) != (o == call.Completed) {
			t.Errorf("outcome %q is %q", o, text)
		}
		for _, how := range hows {
			for _, end := range []*call.End{{Outcome: o}, nil} {
				_, _, text := ending(&Request{Call: "c_1", Method: "tools/call", How: how, End: end})
				want := end != nil && o == call.Completed && (how == call.Delivered || how == call.Replayed)
				if good(text) != want {
					t.Errorf("outcome %q, delivery %q: %q", o, how, text)
				}
			}
		}
	}
}

// The three lines of a call, its numbers and its end cost less than 10 µs.
func BenchmarkCall(b *testing.B) {
	for _, format := range []string{"text", "json", "off"} {
		b.Run(format, func(b *testing.B) {
			var log *slog.Logger
			if format != "off" {
				log = Logger(io.Discard, slog.LevelInfo, format)
			}
			tel := newTelemetry(b, Options{Log: log})
			end := call.End{Outcome: call.Completed}
			r := call.Record{
				ID: call.NewID(), Spec: call.Spec{RequestID: "r_abcdefghijklm", Principal: "local", Server: "files", Tool: "slow", PublicTool: "files__slow", Era: "2025-11-25"},
				Started: time.Now(), Ended: time.Now(), End: end, Seq: 5,
			}
			b.ReportAllocs()
			for b.Loop() {
				q := Request{
					ID: "r_abcdefghijklm", Principal: "local", Server: "files", Tool: "files__slow", Era: "2025-11-25",
					Method: "tools/call", Kind: "sse", Start: r.Started, BytesIn: 120,
				}
				tel.RequestStarted(&q)
				q.Call = r.ID
				tel.CallStarted(&r)
				q.Status, q.FirstByte = 200, time.Millisecond
				tel.FirstByte(&q)
				tel.CallEnded(&r, true)
				q.End, q.How, q.Events = &end, call.Delivered, 3
				tel.RequestEnded(&q)
			}
		})
	}
}
