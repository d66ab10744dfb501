package telemetry

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/longcall/longcall/internal/call"
)

// Request is one request of an agent, as far as it is known by then.
type Request struct {
	ID        string  // ours, the same in every line of the request
	Call      call.ID // once a call has started
	Principal string
	Server    string
	Tool      string // the name that the agent used
	Era       string // protocol revision
	Method    string // JSON-RPC method, or the HTTP method if there is none
	Kind      string // of the attachment to a call: "sse", "json" or "resume"

	Start     time.Time
	Status    int           // HTTP
	FirstByte time.Duration // from Start; 0 if nothing was written
	BytesIn   int64
	BytesOut  int64
	Events    int64         // messages written to the stream
	Dropped   int64         // progress that the agent got merged or not at all
	Beats     int64         // comments and progress of ours
	MaxGap    time.Duration // longest silence on a call's stream

	// How the attachment to a call ended; empty for other requests, and if the
	// agent cancelled the call: then nothing is delivered.
	How call.How
	// End of the call, as the agent was shown it. Nil says that it was shown
	// none: the call goes on, or nobody saw its end.
	End *call.End
}

// RequestStarted writes the first line of a request.
func (t *Telemetry) RequestStarted(q *Request) {
	level := slog.LevelDebug
	if q.Method == "tools/call" {
		level = slog.LevelInfo
	}
	if !t.log.Enabled(context.Background(), level) {
		return
	}
	l := line{time: q.Start, level: level, text: "request started"}
	l.str("event", "start")
	l.request(q)
	l.num("bytes_in", q.BytesIn)
	l.write(t.log)
}

// FirstByte says that the agent has the first byte of a call's answer.
func (t *Telemetry) FirstByte(q *Request) {
	if !t.log.Enabled(context.Background(), slog.LevelInfo) {
		return
	}
	l := line{time: q.Start.Add(q.FirstByte), level: slog.LevelInfo, text: "request first byte"}
	l.str("event", "first_byte")
	l.str("request", q.ID) // the line before has the rest
	l.str("call", string(q.Call))
	l.ms("ms", q.FirstByte)
	l.write(t.log)
}

// RequestEnded writes the last line of a request: its completion, or that the
// agent went away before. Only a call that completed and was delivered is
// called completed.
func (t *Telemetry) RequestEnded(q *Request) {
	now := time.Now()
	t.metrics.requestEnded(q, now)
	t.tracing.requestEnded(q)
	if q.Call != "" && q.End == nil && q.How != call.Delivered && q.How != call.Replayed {
		t.leave(q.Call)
	}
	level, event, text := ending(q)
	if !t.log.Enabled(context.Background(), level) {
		return
	}
	l := line{time: now, level: level, text: text}
	l.str("event", event)
	l.request(q)
	l.num("status", int64(q.Status))
	switch {
	case q.End != nil:
		l.end(q.End)
	case q.How == call.HandedOff, q.How == call.Asked:
		l.str("outcome", "running")
	}
	l.str("delivery", string(q.How))
	l.ms("ms", now.Sub(q.Start))
	if q.FirstByte > 0 {
		l.ms("first_byte_ms", q.FirstByte)
	}
	if q.Call != "" {
		l.ms("gap_ms", q.MaxGap)
		l.num("events", q.Events)
		l.num("beats", q.Beats)
		if q.Dropped > 0 {
			l.num("dropped", q.Dropped)
		}
	}
	l.num("bytes_in", q.BytesIn)
	l.num("bytes_out", q.BytesOut)
	l.write(t.log)
}

// ending finds the words for the end of a request.
func ending(q *Request) (level slog.Level, event, text string) {
	if q.Call == "" {
		switch {
		case q.Status >= http.StatusBadRequest:
			return slog.LevelInfo, "refused", "request refused"
		case q.Method == "tools/call":
			return slog.LevelInfo, "completion", "request ended without a call"
		}
		return slog.LevelDebug, "completion", "request served"
	}
	switch q.How {
	case call.AbortedDownstream:
		return slog.LevelWarn, "abort", "request aborted: the client went away"
	case call.Slow:
		return slog.LevelWarn, "abort", "request aborted: the client reads too slowly"
	case call.ShutDown:
		return slog.LevelInfo, "abort", "request aborted: longcall is stopping"
	case call.HandedOff:
		return slog.LevelInfo, "completion", "request handed off: the call goes on"
	case call.Asked:
		return slog.LevelInfo, "completion", "request answered with a question of the tool: the call waits for input"
	case "":
		return slog.LevelInfo, "completion", "request ended: the client cancelled the call"
	}
	if q.End == nil {
		return slog.LevelInfo, "completion", "request ended"
	}
	level = slog.LevelInfo
	switch q.End.Outcome {
	case call.Failed, call.TimedOut, call.Interrupted:
		level = slog.LevelWarn
	}
	return level, "completion", requestEnds[q.End.Outcome]
}

// Each outcome has a text of its own, so that none can be read as another.
var (
	callEnds    = endTexts("call")
	requestEnds = endTexts("request")
	// upstreamEnds are of requests to tool servers that are no tool calls.
	upstreamEnds = endTexts("request to the tool server")
)

func endTexts(what string) map[call.Outcome]string {
	return map[call.Outcome]string{
		call.Running:     what + " ended while the call runs",
		call.Completed:   what + " completed",
		call.Failed:      what + " failed",
		call.Cancelled:   what + " cancelled",
		call.TimedOut:    what + " timed out",
		call.Denied:      what + " denied",
		call.Interrupted: what + " interrupted: outcome unknown",
	}
}

// line is a log line that is built without going through slog's variadic API:
// one call writes three of them.
type line struct {
	time  time.Time
	level slog.Level
	text  string
	n     int
	attrs [24]slog.Attr
}

func (l *line) add(a slog.Attr) {
	if l.n < len(l.attrs) {
		l.attrs[l.n] = a
		l.n++
	}
}

// str adds a text unless it is empty. Names that agents send keep to one line.
func (l *line) str(key, v string) {
	if v == "" {
		return
	}
	if len(v) > 200 {
		v = strings.ToValidUTF8(v[:200], "") + "…"
	}
	l.add(slog.String(key, v))
}

func (l *line) num(key string, v int64) { l.add(slog.Int64(key, v)) }

// ms adds a time in milliseconds, exact to the microsecond.
func (l *line) ms(key string, d time.Duration) {
	l.add(slog.Float64(key, float64(d.Microseconds())/1000))
}

func (l *line) request(q *Request) {
	l.str("request", q.ID)
	l.str("call", string(q.Call))
	l.str("method", q.Method)
	l.str("server", q.Server)
	l.str("tool", q.Tool)
	l.str("principal", q.Principal)
	l.str("era", q.Era)
	l.str("kind", q.Kind)
}

func (l *line) call(r *call.Record) {
	l.str("request", r.RequestID)
	l.str("call", string(r.ID))
	l.str("method", r.Method)
	l.str("parent", string(r.Parent))
	if r.Index > 0 {
		l.num("child", int64(r.Index))
	}
	l.str("server", r.Server)
	l.str("tool", r.PublicTool)
	l.str("principal", r.Principal)
	l.str("era", r.Era)
}

// end adds how a call ended: transport, JSON-RPC and tool are three columns.
// The end's text stays out, because a tool server may have written it.
func (l *line) end(e *call.End) {
	o := string(e.Outcome)
	if e.Outcome == call.Running {
		o = "running"
	}
	l.str("outcome", o)
	if e.ToolError {
		l.add(slog.Bool("tool_error", true))
	}
	if e.Code != 0 {
		l.num("code", int64(e.Code))
	}
	l.str("limit", e.Limit)
	l.str("by", e.By)
}

func (l *line) write(log *slog.Logger) {
	r := slog.NewRecord(l.time, l.level, l.text, 0)
	r.AddAttrs(l.attrs[:l.n]...)
	// Where an error could be told is just what failed.
	_ = log.Handler().Handle(context.Background(), r)
}
