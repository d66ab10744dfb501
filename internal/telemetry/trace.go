package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/longcall/longcall/internal/call"
)

// TraceOptions of a Tracing.
type TraceOptions struct {
	Endpoint string            // URL of an OTLP/HTTP collector; empty turns tracing off
	Headers  map[string]string // for the collector, such as a credential there
	Sample   float64           // share of traces kept that start here, 0 to 1; callers decide about theirs
	Version  string            // of longcall
	Log      *slog.Logger      // hears about a collector that does not work
}

const (
	// spanQueue is how many ended spans wait for the collector. What comes on
	// top is dropped.
	spanQueue     = 2048
	spanBatch     = 512
	exportTimeout = 10 * time.Second
	keepEnded     = 1024
)

// Tracing makes spans of calls. A nil Tracing is off: it makes none, and passes
// on a valid traceparent as it came, so that a hop that does not trace does not
// break the trace.
type Tracing struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
	exporter *exporter

	mu    sync.Mutex
	open  map[call.ID]*callSpan
	ended []call.ID // the last calls whose request had not ended yet
}

// callSpan is the span of a call. It ends when both the call and the request
// that started it have ended: only then its delivery is known, too. It does not
// wait for a request longer than keepEnded further calls.
type callSpan struct {
	span      Span
	ended     time.Time // of the call; zero while it runs
	requested bool      // the request has ended
}

// NewTracing sets up spans, or returns nil if there is no endpoint.
func NewTracing(opt TraceOptions) (*Tracing, error) {
	if opt.Endpoint == "" {
		return nil, nil
	}
	u, err := url.Parse(opt.Endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		// The URL itself may hold a credential.
		return nil, errors.New("otel.endpoint is not the URL of an OTLP/HTTP collector: write one such as http://127.0.0.1:4318")
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/v1/traces"
	}
	transport := &http.Transport{
		Proxy:       http.ProxyFromEnvironment,
		DialContext: (&net.Dialer{Timeout: exportTimeout}).DialContext, TLSHandshakeTimeout: exportTimeout,
		MaxIdleConns: 2, IdleConnTimeout: 30 * time.Second, ForceAttemptHTTP2: true,
	}
	options := []otlptracehttp.Option{
		otlptracehttp.WithEndpointURL(u.String()),
		otlptracehttp.WithHeaders(maps.Clone(opt.Headers)),
		otlptracehttp.WithHTTPClient(&http.Client{Transport: transport, Timeout: exportTimeout}),
		otlptracehttp.WithTimeout(exportTimeout),
		otlptracehttp.WithCompression(otlptracehttp.GzipCompression),
		otlptracehttp.WithRetry(otlptracehttp.RetryConfig{
			Enabled: true, InitialInterval: time.Second, MaxInterval: 5 * time.Second, MaxElapsedTime: exportTimeout,
		}),
	}
	otlp, err := otlptrace.New(context.Background(), otlptracehttp.NewClient(options...))
	if err != nil {
		return nil, fmt.Errorf("set up the span exporter: %w", err)
	}
	ex := &exporter{next: otlp, idle: transport.CloseIdleConnections}
	ex.life, ex.abort = context.WithCancel(context.Background())
	if opt.Log != nil {
		// The library has no other place to say that a collector does not work.
		otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
			opt.Log.Warn("spans were not delivered to the collector", "error", err)
		}))
	}
	t := &Tracing{exporter: ex, open: map[call.ID]*callSpan{}}
	t.provider = sdk.NewTracerProvider(
		sdk.WithBatcher(ex,
			sdk.WithMaxQueueSize(spanQueue), sdk.WithMaxExportBatchSize(spanBatch),
			sdk.WithBatchTimeout(5*time.Second), sdk.WithExportTimeout(exportTimeout)),
		sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(opt.Sample))),
		sdk.WithResource(resource.NewSchemaless(
			attribute.String("service.name", "longcall"), attribute.String("service.version", opt.Version))),
	)
	t.tracer = t.provider.Tracer("github.com/longcall/longcall")
	return t, nil
}

// Shutdown sends the spans that wait. When ctx is done it gives up on them, and
// returns when nothing runs any more (I8).
func (t *Tracing) Shutdown(ctx context.Context) error {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	for id, c := range t.open {
		if !c.ended.IsZero() {
			c.span.end(c.ended)
		}
		delete(t.open, id)
	}
	t.mu.Unlock()
	stop := context.AfterFunc(ctx, t.exporter.abort)
	defer stop()
	err := t.provider.Shutdown(context.WithoutCancel(ctx))
	t.exporter.abort()
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return err
}

// exporter makes exports end with its own life too, so that Shutdown is bounded
// and leaves nothing behind.
type exporter struct {
	next  sdk.SpanExporter
	life  context.Context
	abort context.CancelFunc
	idle  func()
}

func (e *exporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(e.life, func() { cancel(errors.New("longcall stops")) })
	defer stop()
	return e.next.ExportSpans(ctx, spans)
}

func (e *exporter) Shutdown(ctx context.Context) error {
	err := e.next.Shutdown(ctx)
	e.idle()
	return err
}

// Span is the span of one call, or just its place in the caller's trace. The
// zero value is a call without either.
type Span struct {
	span          trace.Span // nil if tracing is off
	parent, state string
}

// StartCall starts a span for a call to the named tool as a child of the
// caller's trace context, which Incoming picks; anything invalid is ignored.
// End must follow.
func (t *Tracing) StartCall(ctx context.Context, name, traceparent, tracestate string) Span {
	return t.startCall(ctx, "tools/call", name, traceparent, tracestate, time.Now())
}

// maxSpanName bounds a span's name, in bytes.
const maxSpanName = 112

func (t *Tracing) startCall(ctx context.Context, method, name, traceparent, tracestate string, at time.Time) Span {
	valid := ValidTraceparent(traceparent)
	if t == nil {
		if !valid {
			return Span{}
		}
		return Span{parent: traceparent, state: validState(tracestate)}
	}
	if valid {
		ctx = trace.ContextWithRemoteSpanContext(ctx, remote(traceparent, validState(tracestate)))
	}
	name = strings.TrimSuffix(method+" "+name, " ")
	if len(name) > maxSpanName {
		name = strings.ToValidUTF8(name[:maxSpanName], "")
	}
	_, span := t.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(at))
	c := span.SpanContext()
	return Span{span: span, parent: formatParent(c), state: c.TraceState().String()}
}

// Traceparent is what goes upstream: it names this span, or without tracing
// the caller's. Empty if there is neither.
func (s Span) Traceparent() string { return s.parent }

// Tracestate goes with Traceparent.
func (s Span) Tracestate() string { return s.state }

// End says how the call ended and ends the span. A call that failed, hit a
// limit, was interrupted or still runs is an error; only one that completed
// without an error of the tool, or that somebody cancelled, is none.
func (s Span) End(end call.End) {
	if s.span == nil {
		return
	}
	s.outcome(end)
	s.end(time.Now())
}

func (s Span) outcome(end call.End) {
	if !s.span.IsRecording() {
		return
	}
	o := string(end.Outcome)
	if end.Outcome == call.Running {
		o = "running"
	}
	s.span.SetAttributes(attribute.String("longcall.outcome", o))
	if end.Limit != "" {
		s.span.SetAttributes(attribute.String("longcall.limit", end.Limit))
	}
	if end.By != "" {
		s.span.SetAttributes(attribute.String("longcall.by", end.By))
	}
	if end.Code != 0 {
		s.span.SetAttributes(attribute.Int("rpc.jsonrpc.error_code", end.Code))
	}
	switch {
	case end.Outcome == call.Completed && end.ToolError:
		s.fail("tool_error")
	case end.Outcome != call.Completed && end.Outcome != call.Cancelled:
		s.fail(o)
	}
}

func (s Span) fail(what string) {
	s.span.SetStatus(codes.Error, what)
	s.span.SetAttributes(attribute.String("error.type", what))
}

func (s Span) end(at time.Time) { s.span.End(trace.WithTimestamp(at)) }

func (s Span) describe(r *call.Record) {
	if !s.span.IsRecording() {
		return
	}
	s.span.SetAttributes(
		attribute.String("mcp.method.name", methodOf(r)),
		attribute.String("mcp.protocol.version", r.Era),
		attribute.String("longcall.server", r.Server),
		attribute.String("longcall.call.id", string(r.ID)),
	)
	if r.Method == "" {
		s.span.SetAttributes(attribute.String("gen_ai.tool.name", r.Tool))
	}
}

// methodOf is the method of the request.
func methodOf(r *call.Record) string {
	if r.Method == "" {
		return "tools/call"
	}
	return r.Method
}

// runner makes spans of the calls that it passes on.
type runner struct {
	t    *Tracing
	next call.Runner
}

// Runner makes a span of each call that next carries, and the traceparent that
// goes upstream its child.
func (t *Tracing) Runner(next call.Runner) call.Runner {
	if t == nil {
		return next
	}
	return runner{t, next}
}

func (r runner) Run(ctx context.Context, x *call.Exec) call.Answer {
	r.t.mu.Lock()
	c := r.t.open[x.ID]
	r.t.mu.Unlock()
	if c != nil {
		// The record keeps what the agent sent.
		spec := *x.Spec
		spec.Traceparent = c.span.Traceparent()
		x.Spec = &spec
	}
	return r.next.Run(ctx, x)
}

func (t *Tracing) callStarted(r *call.Record) {
	if t == nil {
		return
	}
	s := t.startCall(context.Background(), methodOf(r), r.PublicTool, r.Traceparent, "", r.Started)
	s.describe(r)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open[r.ID] = &callSpan{span: s}
}

func (t *Tracing) callEnded(r *call.Record) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.open[r.ID]
	if c == nil {
		return
	}
	c.span.outcome(r.End)
	c.ended = r.Ended
	if c.requested || !c.span.span.IsRecording() {
		t.close(r.ID, c)
		return
	}
	t.ended = append(t.ended, r.ID)
	if len(t.ended) > keepEnded {
		if old := t.open[t.ended[0]]; old != nil {
			t.close(t.ended[0], old)
		}
		t.ended = t.ended[1:]
	}
}

func (t *Tracing) requestEnded(q *Request) {
	if t == nil || q.Call == "" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.open[q.Call]
	if c == nil {
		return
	}
	if q.How != "" {
		c.span.span.SetAttributes(attribute.String("longcall.delivery", string(q.How)))
	}
	if c.requested = true; !c.ended.IsZero() {
		t.close(q.Call, c)
	}
}

func (t *Tracing) close(id call.ID, c *callSpan) {
	delete(t.open, id)
	c.span.end(c.ended)
}

// Leaves implements call.Leaver for those that next leaves.
func (r runner) Leaves(rec *call.Record) bool {
	next, ok := r.next.(call.Leaver)
	return ok && next.Leaves(rec)
}

// Resumable implements call.Resumer for those that next can take up.
func (r runner) Resumable(rec *call.Record) bool {
	next, ok := r.next.(call.Resumer)
	return ok && next.Resumable(rec)
}
