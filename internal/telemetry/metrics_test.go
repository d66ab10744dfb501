package telemetry

import (
	"bytes"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/longcall/longcall/internal/call"
)

func scrape(t testing.TB, tel *Telemetry) string {
	t.Helper()
	w := httptest.NewRecorder()
	tel.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tel := newTelemetry(t, Options{Version: "1.2.3"})
		tel.SetServers([]string{"files"})
		tel.SetJournal(func() JournalStats {
			return JournalStats{QueueBytes: 10, Lag: 3 * time.Millisecond, Commits: 4, Operations: 9, Dropped: 2, Failing: true}
		})
		tel.SetLogDrops(func() uint64 { return 6 })
		tel.ProgressCoalesced(5)
		conversation(tel)
		got := scrape(t, tel)
		for _, want := range []string{
			`longcall_first_byte_seconds_count 12`,
			`longcall_keepalive_gap_seconds_bucket{le="1"} 12`,
			`longcall_call_duration_seconds_count{outcome="completed",server="files"} 6`,
			`longcall_call_duration_seconds_sum{outcome="timed_out",server="files"} 2`,
			`longcall_deliveries_total{how="delivered",kind="sse"} 7`,
			`longcall_deliveries_total{how="aborted_downstream",kind="sse"} 1`,
			`longcall_deliveries_total{how="cancelled",kind="sse"} 1`,
			`longcall_attachment_duration_seconds_count{how="handed_off"} 1`,
			`longcall_calls_in_flight 0`,
			`longcall_calls_total{outcome="completed",server="files",tool_error="true"} 1`,
			`longcall_calls_total{outcome="interrupted",server="files",tool_error="false"} 1`,
			`longcall_requests_refused_total{status="401"} 1`,
			`longcall_journal_lost_events_total 1`,
			`longcall_journal_unstored_ends_total 1`,
			`longcall_journal_queue_bytes 10`,
			`longcall_journal_lag_seconds 0.003`,
			`longcall_journal_commits_total 4`,
			`longcall_journal_dropped_operations_total 2`,
			`longcall_journal_failing 1`,
			`longcall_log_dropped_lines_total 6`,
			`longcall_progress_coalesced_total 5`,
			`longcall_upstream_reconnects_total{result="resumed",server="files"} 1`,
			`longcall_upstream_restarts_total{server="files"} 1`,
			`longcall_build_info{goversion="`,
		} {
			if !strings.Contains(got, want) {
				t.Errorf("missing: %s", want)
			}
		}
	})
}

// The exposition follows the conventions, and has help for every name.
func TestMetricsLint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tel := newTelemetry(t, Options{})
		tel.SetJournal(func() JournalStats { return JournalStats{} })
		tel.SetLogDrops(func() uint64 { return 0 })
		conversation(tel)
		problems, err := promlint.New(bytes.NewBufferString(scrape(t, tel))).Lint()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			if strings.HasPrefix(p.Metric, "longcall_") {
				t.Errorf("%s: %s", p.Metric, p.Text)
			}
		}
	})
}

// Nobody but the operator can make series: not by names of tools, servers or
// anything else that comes over the wire.
func TestMetricsAreBounded(t *testing.T) {
	tel := newTelemetry(t, Options{})
	tel.SetServers([]string{"files", "search"})
	var sizes []int
	for i := range 50 {
		name := strings.Repeat("x", i)
		r := &call.Record{ID: call.NewID(), Spec: call.Spec{Server: name, Tool: name, PublicTool: name, Principal: name, Era: name}, End: call.End{Outcome: call.Completed, By: name, Limit: name}}
		tel.CallStarted(r)
		tel.CallEnded(r, true)
		tel.RequestEnded(&Request{ID: name, Call: r.ID, Principal: name, Server: name, Tool: name, Era: name, Method: name, Kind: name, How: call.Delivered})
		tel.RequestEnded(&Request{Status: 600 + i})
		tel.UpstreamReconnected(name, name)
		tel.UpstreamRestarted(name)
		sizes = append(sizes, strings.Count(scrape(t, tel), "\nlongcall_"))
	}
	if first, last := sizes[1], sizes[len(sizes)-1]; first != last {
		t.Errorf("%d series grew to %d", first, last)
	}

	tel.UpstreamRestarted("search")
	if !strings.Contains(scrape(t, tel), `server="search"`) {
		t.Error("a configured server is not shown")
	}
	tel.SetServers([]string{"files"})
	if got := regexp.MustCompile(`server="search"`).FindString(scrape(t, tel)); got != "" {
		t.Error("a server that was removed keeps its series")
	}
}

func TestMetricsInFlight(t *testing.T) {
	tel := newTelemetry(t, Options{})
	r := &call.Record{ID: "c_1"}
	tel.CallStarted(r)
	if !strings.Contains(scrape(t, tel), "longcall_calls_in_flight 1") {
		t.Error("the call is not counted")
	}
	if strings.Contains(scrape(t, tel), "longcall_calls_total{") {
		t.Error("a running call is counted as one that ended")
	}
	tel.CallEnded(r, true)
}

// Other requests than tool calls are counted apart, by a method of a fixed set.
func TestVolatileCallsAreRequests(t *testing.T) {
	tel := newTelemetry(t, Options{})
	for _, method := range []string{"resources/read", "vendor/secret"} {
		r := &call.Record{ID: call.NewID(), Started: time.Now(), Ended: time.Now(), Spec: call.Spec{Server: "up", Method: method, Volatile: true}, End: call.End{Outcome: call.Completed}}
		tel.CallStarted(r)
		tel.CallEnded(r, false)
	}
	got := scrape(t, tel)
	for _, want := range []string{
		`longcall_requests_total{method="resources/read",outcome="completed",server="up"} 1`,
		`longcall_requests_total{method="other",outcome="completed",server="up"} 1`,
		"longcall_calls_in_flight 0", "longcall_journal_unstored_ends_total 0",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s", want)
		}
	}
	if strings.Contains(got, "longcall_calls_total{") {
		t.Error("they are counted as calls")
	}
}
