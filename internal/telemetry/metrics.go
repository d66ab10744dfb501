package telemetry

import (
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/longcall/longcall/internal/call"
)

// metrics are in a registry of their own. Label values come from small fixed
// sets and from the config: no name that an agent or a tool server chooses is
// one.
type metrics struct {
	reg *prometheus.Registry

	firstByte  prometheus.Histogram
	gap        prometheus.Histogram
	duration   *prometheus.HistogramVec // outcome, server
	attachment *prometheus.HistogramVec // how
	deliveries *prometheus.CounterVec   // how, kind
	calls      *prometheus.CounterVec   // server, outcome, tool_error
	requests   *prometheus.CounterVec   // server, method, outcome
	inFlight   prometheus.Gauge
	refused    *prometheus.CounterVec // status
	coalesced  prometheus.Counter
	dropped    prometheus.Counter
	lost       prometheus.Counter
	unstored   prometheus.Counter
	reconnects *prometheus.CounterVec // server, result
	restarts   *prometheus.CounterVec // server

	servers  atomic.Pointer[[]string] // nil: not told yet
	journal  atomic.Pointer[func() JournalStats]
	shell    atomic.Pointer[func() ShellStats] // nil: it is off
	logDrops atomic.Pointer[func() uint64]
}

// other stands for a label value that is not in its set.
const other = "other"

var (
	quick = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
	long  = []float64{.005, .025, .1, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200}
	gaps  = []float64{.1, .5, 1, 2.5, 5, 5.5, 6, 8, 10, 15, 20, 30, 60, 120, 300}
)

func newMetrics(version, revision string) *metrics {
	m := &metrics{
		reg: prometheus.NewRegistry(),
		firstByte: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "longcall_first_byte_seconds", Buckets: quick,
			Help: "Time from a request that started a call to the first byte of its answer.",
		}),
		gap: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "longcall_keepalive_gap_seconds", Buckets: gaps,
			Help: "Longest silence on the stream of one reader of a call.",
		}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "longcall_call_duration_seconds", Buckets: long,
			Help: "Time from a call's acceptance to its end.",
		}, []string{"outcome", "server"}),
		attachment: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "longcall_attachment_duration_seconds", Buckets: long,
			Help: "Time that one reader was attached to a call, by how it ended for the reader.",
		}, []string{"how"}),
		deliveries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "longcall_deliveries_total",
			Help: "Readers of calls, by how it ended for them and by the kind of their answer.",
		}, []string{"how", "kind"}),
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "longcall_calls_total",
			Help: "Calls that ended, by outcome and by the tool's own isError.",
		}, []string{"server", "outcome", "tool_error"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "longcall_requests_total",
			Help: "Requests to tool servers that are no tool calls, such as resources/read, by method and by how they ended.",
		}, []string{"server", "method", "outcome"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "longcall_calls_in_flight", Help: "Calls that run now.",
		}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "longcall_requests_refused_total",
			Help: "Requests that were answered with an HTTP error, by status.",
		}, []string{"status"}),
		coalesced: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "longcall_progress_coalesced_total",
			Help: "Progress of tool servers that was merged into a later one.",
		}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "longcall_progress_dropped_total",
			Help: "Progress that a reader got merged or not at all.",
		}),
		lost: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "longcall_journal_lost_events_total",
			Help: "Events of calls that the journal did not take. They were shown live all the same.",
		}),
		unstored: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "longcall_journal_unstored_ends_total",
			Help: "Calls whose end was shown before it was stored, or whose record could not be made.",
		}),
		reconnects: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "longcall_upstream_reconnects_total",
			Help: "Connections to tool servers that were renewed: a new session, a stream that was resumed, or one that was lost.",
		}, []string{"server", "result"}),
		restarts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "longcall_upstream_restarts_total",
			Help: "Processes of tool servers that were started again.",
		}, []string{"server"}),
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "longcall_build_info", Help: "Always 1; the labels say what was built.",
		ConstLabels: prometheus.Labels{"version": version, "revision": revision, "goversion": runtime.Version()},
	})
	build.Set(1)
	m.reg.MustRegister(
		m.firstByte, m.gap, m.duration, m.attachment, m.deliveries, m.calls, m.requests, m.inFlight, m.refused,
		m.coalesced, m.dropped, m.lost, m.unstored, m.reconnects, m.restarts, build,
		pulled{m}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return m
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.reg, promhttp.HandlerOpts{
		MaxRequestsInFlight: 4, Timeout: 10 * time.Second,
		ErrorHandling: promhttp.ContinueOnError,
	})
}

func (m *metrics) callStarted(r *call.Record) {
	if !r.Volatile {
		m.inFlight.Inc()
	}
}

func (m *metrics) callEnded(r *call.Record, stored bool) {
	server := m.server(r.Server)
	outcome := string(r.End.Outcome)
	if r.Volatile {
		m.requests.WithLabelValues(server, oneOf(r.Method, "prompts/get", "resources/read", "completion/complete"), outcome).Inc()
		return
	}
	m.inFlight.Dec()
	m.calls.WithLabelValues(server, outcome, strconv.FormatBool(r.End.ToolError)).Inc()
	m.duration.WithLabelValues(outcome, server).Observe(r.Ended.Sub(r.Started).Seconds())
	if !stored {
		m.unstored.Inc()
	}
}

func (m *metrics) requestEnded(q *Request, now time.Time) {
	if q.Call == "" {
		if q.Status >= http.StatusBadRequest && q.Status < 600 {
			m.refused.WithLabelValues(strconv.Itoa(q.Status)).Inc()
		}
		return
	}
	if q.FirstByte > 0 {
		m.firstByte.Observe(q.FirstByte.Seconds())
		if q.Kind != "json" {
			m.gap.Observe(q.MaxGap.Seconds())
		}
	}
	how := string(q.How)
	if how == "" {
		how = "cancelled" // by the agent, which expects no answer
	}
	m.deliveries.WithLabelValues(how, oneOf(q.Kind, "sse", "json", "resume", "task", "await")).Inc()
	m.attachment.WithLabelValues(how).Observe(now.Sub(q.Start).Seconds())
	m.dropped.Add(float64(max(q.Dropped, 0)))
}

// server is the name as a label value.
func (m *metrics) server(name string) string {
	if s := m.servers.Load(); s != nil && !slices.Contains(*s, name) {
		return other
	}
	return name
}

func (m *metrics) setServers(names []string) {
	names = slices.Clone(names)
	old := m.servers.Swap(&names)
	if old == nil {
		return
	}
	for _, name := range *old {
		if slices.Contains(names, name) {
			continue
		}
		gone := prometheus.Labels{"server": name}
		m.duration.DeletePartialMatch(gone)
		m.calls.DeletePartialMatch(gone)
		m.requests.DeletePartialMatch(gone)
		m.reconnects.DeletePartialMatch(gone)
		m.restarts.DeletePartialMatch(gone)
	}
}

func oneOf(v string, set ...string) string {
	if slices.Contains(set, v) {
		return v
	}
	return other
}

// pulled are the metrics whose numbers somebody else keeps.
type pulled struct{ m *metrics }

var (
	queueBytes = prometheus.NewDesc("longcall_journal_queue_bytes", "Bytes that wait to be stored.", nil, nil)
	journalLag = prometheus.NewDesc("longcall_journal_lag_seconds", "Age of the oldest event that waits to be stored.", nil, nil)
	commits    = prometheus.NewDesc("longcall_journal_commits_total", "Transactions of the journal.", nil, nil)
	operations = prometheus.NewDesc("longcall_journal_operations_total", "Operations that were stored in those transactions.", nil, nil)
	unkept     = prometheus.NewDesc("longcall_journal_dropped_operations_total", "Operations that the journal dropped, because its queue was full or it could not store them.", nil, nil)
	failing    = prometheus.NewDesc("longcall_journal_failing", "1 if the last transaction failed.", nil, nil)
	commands   = prometheus.NewDesc("longcall_shell_commands_running", "Commands of the shell of which something still runs.", nil, nil)
	output     = prometheus.NewDesc("longcall_shell_output_bytes", "Bytes of output that is kept of the shell's commands.", nil, nil)
	logDrops   = prometheus.NewDesc("longcall_log_dropped_lines_total", "Log lines that were dropped, because nobody read them fast enough.", nil, nil)
)

func (pulled) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{queueBytes, journalLag, commits, operations, unkept, failing, commands, output, logDrops} {
		ch <- d
	}
}

func (p pulled) Collect(ch chan<- prometheus.Metric) {
	if f := p.m.journal.Load(); f != nil {
		s := (*f)()
		ch <- prometheus.MustNewConstMetric(queueBytes, prometheus.GaugeValue, float64(s.QueueBytes))
		ch <- prometheus.MustNewConstMetric(journalLag, prometheus.GaugeValue, s.Lag.Seconds())
		ch <- prometheus.MustNewConstMetric(commits, prometheus.CounterValue, float64(s.Commits))
		ch <- prometheus.MustNewConstMetric(operations, prometheus.CounterValue, float64(s.Operations))
		ch <- prometheus.MustNewConstMetric(unkept, prometheus.CounterValue, float64(s.Dropped))
		bad := 0.0
		if s.Failing {
			bad = 1
		}
		ch <- prometheus.MustNewConstMetric(failing, prometheus.GaugeValue, bad)
	}
	if f := p.m.shell.Load(); f != nil {
		s := (*f)()
		ch <- prometheus.MustNewConstMetric(commands, prometheus.GaugeValue, float64(s.Running))
		ch <- prometheus.MustNewConstMetric(output, prometheus.GaugeValue, float64(s.OutputBytes))
	}
	if f := p.m.logDrops.Load(); f != nil {
		ch <- prometheus.MustNewConstMetric(logDrops, prometheus.CounterValue, float64((*f)()))
	}
}
