// Package telemetry tells the operator what longcall does: in log lines, metrics and spans.
//
// Nothing here waits for anybody: a reader of the log that stalls, a collector
// that is gone, cost lines and spans, which are counted, and never a call.
// No credential, argument, command or output is given to it, and what looks
// like one is kept out once more on the way (I10).
package telemetry

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/longcall/longcall/internal/call"
)

// Options of a Telemetry. The zero value logs nothing and traces nothing.
type Options struct {
	Log      *slog.Logger // from Logger; nil means no lines
	Version  string       // of longcall
	Revision string       // of the source, if known
	Traces   TraceOptions
}

// Telemetry is told about requests, calls and upstream connections as they
// pass. Its methods do not block and are safe for concurrent use.
type Telemetry struct {
	log     *slog.Logger
	metrics *metrics
	tracing *Tracing

	mu   sync.Mutex
	left map[call.ID]struct{} // running calls that lost a reader, up to keepLeft
}

// keepLeft bounds the calls whose end gets a line of its own because the agent
// was not there any more.
const keepLeft = 4096

var _ call.Observer = (*Telemetry)(nil)

// New makes a Telemetry. Shutdown must be called when it is not needed any
// more. An error says that the span exporter cannot be set up.
func New(opt Options) (*Telemetry, error) {
	t := &Telemetry{log: opt.Log, left: map[call.ID]struct{}{}}
	if t.log == nil {
		t.log = slog.New(slog.DiscardHandler)
	}
	opt.Traces.Version = opt.Version
	if opt.Traces.Log == nil {
		opt.Traces.Log = t.log
	}
	tracing, err := NewTracing(opt.Traces)
	if err != nil {
		return nil, err
	}
	t.tracing = tracing
	t.metrics = newMetrics(opt.Version, opt.Revision)
	return t, nil
}

// Handler serves /metrics.
func (t *Telemetry) Handler() http.Handler { return t.metrics.handler() }

// Runner makes the calls that next carries part of the caller's trace. Without
// tracing it is next itself.
func (t *Telemetry) Runner(next call.Runner) call.Runner { return t.tracing.Runner(next) }

// Shutdown sends the spans that wait, bounded by ctx, and returns when nothing
// of the Telemetry runs any more (I8).
func (t *Telemetry) Shutdown(ctx context.Context) error { return t.tracing.Shutdown(ctx) }

// CallStarted implements call.Observer.
func (t *Telemetry) CallStarted(r *call.Record) {
	t.metrics.callStarted(r)
	t.tracing.callStarted(r)
	level := ofCall(r)
	if r.Denied == nil && t.log.Enabled(context.Background(), level) {
		l := line{time: r.Started, level: level, text: "call started"}
		if r.Volatile {
			l.text = "request to the tool server started"
		}
		l.str("event", "call_start")
		l.call(r)
		l.write(t.log)
	}
}

// CallResumed implements call.Observer.
func (t *Telemetry) CallResumed(r *call.Record) {
	t.metrics.callStarted(r)
	t.tracing.callStarted(r)
	if !t.log.Enabled(context.Background(), slog.LevelInfo) {
		return
	}
	l := line{time: time.Now(), level: slog.LevelInfo, text: "call resumed: it was left running by an earlier process"}
	l.str("event", "call_resumed")
	l.call(r)
	l.write(t.log)
}

// ofCall is the level of a call's own lines. What an agent was shown is in its
// request's lines; a child has no request of its own (D12).
func ofCall(r *call.Record) slog.Level {
	if r.Parent != "" {
		return slog.LevelInfo
	}
	return slog.LevelDebug
}

// CallAnswered implements call.Observer.
func (t *Telemetry) CallAnswered(r *call.Record) {
	level := ofCall(r)
	if !t.log.Enabled(context.Background(), level) {
		return
	}
	l := line{time: r.FirstByte, level: level, text: "call first byte"}
	if r.Volatile {
		l.text = "request to the tool server first byte"
	}
	l.str("event", "call_first_byte")
	l.call(r)
	l.ms("ms", r.FirstByte.Sub(r.Started))
	l.write(t.log)
}

// CallEnded implements call.Observer.
func (t *Telemetry) CallEnded(r *call.Record, stored bool) {
	t.metrics.callEnded(r, stored)
	t.tracing.callEnded(r)

	// What the agent was shown is in its request's line. Here is what became
	// of the call if nobody was there to see it.
	level := ofCall(r)
	if t.wasLeft(r.ID) {
		level = slog.LevelInfo
	}
	stored = stored || r.Volatile // there is nothing to store
	if !stored {
		level = slog.LevelWarn
	}
	if !t.log.Enabled(context.Background(), level) {
		return
	}
	l := line{time: r.Ended, level: level, text: callEnds[r.End.Outcome]}
	if r.Volatile {
		l.text = upstreamEnds[r.End.Outcome]
	}
	l.str("event", "call_end")
	l.call(r)
	l.end(&r.End)
	l.ms("ms", r.Ended.Sub(r.Started))
	if !r.Dispatched.IsZero() && r.FirstByte.After(r.Dispatched) {
		l.ms("upstream_first_byte_ms", r.FirstByte.Sub(r.Dispatched))
	}
	l.num("bytes", int64(r.Bytes))
	l.num("events", int64(r.Seq))
	if r.Missing > 0 {
		l.num("missing", int64(r.Missing))
	}
	if !stored {
		l.add(slog.Bool("stored", false))
	}
	l.write(t.log)
}

// leave remembers a call whose reader is gone before its end.
func (t *Telemetry) leave(id call.ID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.left) >= keepLeft {
		clear(t.left) // some lines are at the debug level then
	}
	t.left[id] = struct{}{}
}

func (t *Telemetry) wasLeft(id call.ID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, ok := t.left[id]
	delete(t.left, id)
	return ok
}

// EventLost implements call.Observer.
func (t *Telemetry) EventLost(call.ID) { t.metrics.lost.Inc() }

// UpstreamReconnected counts a connection to a tool server that was renewed:
// result is "session", "resumed" or "lost".
func (t *Telemetry) UpstreamReconnected(server, result string) {
	t.metrics.reconnects.WithLabelValues(t.metrics.server(server), oneOf(result, "session", "resumed", "lost")).Inc()
}

// UpstreamRestarted counts a tool server's process that was started again.
func (t *Telemetry) UpstreamRestarted(server string) {
	t.metrics.restarts.WithLabelValues(t.metrics.server(server)).Inc()
}

// ProgressCoalesced counts progress of a tool server that was merged into a
// later one before anybody saw it.
func (t *Telemetry) ProgressCoalesced(n int) { t.metrics.coalesced.Add(float64(n)) }

// SetServers says which tool servers are configured: only they are label
// values, so that nobody can make new series. Series of others are removed.
func (t *Telemetry) SetServers(names []string) { t.metrics.setServers(names) }

// JournalStats are a journal's numbers as of now.
type JournalStats struct {
	QueueBytes int64         // waiting to be stored
	Lag        time.Duration // age of the oldest of them
	Commits    uint64
	Operations uint64 // stored in those commits
	Dropped    uint64 // of operations that were not stored, because the queue was full or the store failed
	Failing    bool   // the last commit failed
}

// SetJournal says where the journal's numbers come from. It is asked at each
// scrape.
func (t *Telemetry) SetJournal(stats func() JournalStats) { t.metrics.journal.Store(&stats) }

// ShellStats are the shell's own numbers.
type ShellStats struct {
	Running     int   // commands of which something still runs
	OutputBytes int64 // of output that is kept of all commands
}

// SetShell says where the shell's numbers come from. It is asked at each scrape.
func (t *Telemetry) SetShell(stats func() ShellStats) { t.metrics.shell.Store(&stats) }

// SetLogDrops says where the number of log lines that were dropped comes from,
// such as Sink.Dropped.
func (t *Telemetry) SetLogDrops(drops func() uint64) { t.metrics.logDrops.Store(&drops) }
