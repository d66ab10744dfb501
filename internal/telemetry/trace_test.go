package telemetry

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/hex"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/longcall/longcall/internal/call"
)

// backend is an OTLP/HTTP collector on loopback.
type backend struct {
	*httptest.Server
	mu    sync.Mutex
	spans map[string]*otlp.Span // by name
	raw   bytes.Buffer
	auth  string
	path  string
	hang  chan struct{} // not nil: answer only when it is closed
	asked chan struct{}
}

func newBackend(t *testing.T) *backend {
	t.Helper()
	b := &backend{spans: map[string]*otlp.Span{}, asked: make(chan struct{}, 100)}
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := io.Reader(r.Body)
		if r.Header.Get("Content-Encoding") == "gzip" {
			z, err := gzip.NewReader(r.Body)
			if err != nil {
				t.Error(err)
				return
			}
			body = z
		}
		raw, err := io.ReadAll(body)
		var req collector.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(raw, &req)
		}
		if err != nil {
			t.Error(err)
			return
		}
		b.asked <- struct{}{}
		if b.hang != nil {
			select {
			case <-b.hang:
			case <-r.Context().Done():
			}
			return
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.raw.Write(raw)
		b.auth, b.path = r.Header.Get("Authorization"), r.URL.Path
		for _, rs := range req.ResourceSpans {
			for _, ss := range rs.ScopeSpans {
				for _, s := range ss.Spans {
					b.spans[s.Name] = s
				}
			}
		}
	}))
	t.Cleanup(b.Close)
	return b
}

func attributes(s *otlp.Span) map[string]string {
	out := map[string]string{}
	for _, kv := range s.GetAttributes() {
		out[kv.Key] = kv.Value.GetStringValue()
	}
	return out
}

const (
	traceID = "0af7651916cd43dd8448eb211c80319c"
	spanID  = "b7ad6b7169203331"
	caller  = "00-" + traceID + "-" + spanID + "-01"
)

func TestValidTraceparent(t *testing.T) {
	for s, want := range map[string]bool{
		caller:                                                              true,
		"00-" + traceID + "-" + spanID + "-00":                              true,
		"cc-" + traceID + "-" + spanID + "-01":                              true,
		"cc-" + traceID + "-" + spanID + "-01-what-comes":                   true,
		"cc-" + traceID + "-" + spanID + "-01what-comes":                    false,
		"cc-" + traceID + "-" + spanID + "-01-\r\nx: y":                     false,
		"00-" + traceID + "-" + spanID + "-01-more":                         false,
		"ff-" + traceID + "-" + spanID + "-01":                              false,
		"00-" + strings.ToUpper(traceID) + "-" + spanID + "-01":             false,
		"00-" + strings.Repeat("0", 32) + "-" + spanID + "-01":              false,
		"00-" + traceID + "-" + strings.Repeat("0", 16) + "-01":             false,
		"00-" + traceID + "-" + spanID + "-0":                               false,
		"00-" + traceID + "-" + spanID + "-0g":                              false,
		"00_" + traceID + "-" + spanID + "-01":                              false,
		"00-" + traceID + "-" + spanID:                                      false,
		"":                                                                  false,
		"cc-" + traceID + "-" + spanID + "-01-" + strings.Repeat("x", 5000): false,
	} {
		if got := ValidTraceparent(s); got != want {
			t.Errorf("%q: %v", s, got)
		}
		if c := remote; want && !c(s, "").IsValid() {
			t.Errorf("%q is valid, but not to the library", s)
		}
	}
}

func TestIncoming(t *testing.T) {
	other := strings.Replace(caller, "b7", "c8", 1)
	for _, tt := range []struct{ metaParent, metaState, parent, state, wantParent, wantState string }{
		{caller, "a=1", other, "b=2", caller, "a=1"},
		{"", "a=1", other, "b=2", other, "b=2"},
		{"nonsense", "a=1", other, "b=2", other, "b=2"},
		{caller, "a=1\r\nevil: yes", other, "b=2", caller, ""},
		{"nonsense", "a=1", "nonsense", "b=2", "", ""},
	} {
		if p, s := Incoming(tt.metaParent, tt.metaState, tt.parent, tt.state); p != tt.wantParent || s != tt.wantState {
			t.Errorf("%+v: %q %q", tt, p, s)
		}
	}
}

// A hop that does not trace does not break the trace, and spends nothing on it.
func TestTracingOff(t *testing.T) {
	off, err := NewTracing(TraceOptions{})
	if err != nil || off != nil {
		t.Fatalf("%v %v", off, err)
	}
	s := off.StartCall(t.Context(), "x", caller, "a=1")
	if s.Traceparent() != caller || s.Tracestate() != "a=1" {
		t.Errorf("passed on %q %q", s.Traceparent(), s.Tracestate())
	}
	s.End(call.End{})
	if s := off.StartCall(t.Context(), "x", "bad", "a=1"); s.Traceparent() != "" || s.Tracestate() != "" {
		t.Errorf("passed on %q %q", s.Traceparent(), s.Tracestate())
	}
	if n := testing.AllocsPerRun(100, func() {
		s := off.StartCall(context.Background(), "x", caller, "a=1")
		s.End(call.End{})
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	next := runner{}
	if got := off.Runner(next); got != call.Runner(next) {
		t.Error("the runner is wrapped for nothing")
	}
	if err := off.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

// A call under an engine gets a span that is a child of the caller's, and the
// tool server gets a traceparent that is a child of that.
func TestTraceOfCalls(t *testing.T) {
	b := newBackend(t)
	tel := newTelemetry(t, Options{Version: "1.2.3", Traces: TraceOptions{
		Endpoint: b.URL, Headers: map[string]string{"Authorization": "Bearer " + canary}, Sample: 1,
	}})
	upstream := map[string]string{}
	var mu sync.Mutex
	e := call.NewEngine(memory{}, tel.Runner(runFunc(func(_ context.Context, x *call.Exec) call.Answer {
		mu.Lock()
		upstream[x.Spec.Tool] = x.Spec.Traceparent
		mu.Unlock()
		if err := x.Dispatched(); err != nil {
			t.Error(err)
		}
		if x.Spec.Request != nil {
			t.Error("the request stays in memory after it was sent")
		}
		switch x.Spec.Tool {
		case "good":
			return call.Answer{End: call.End{Outcome: call.Completed}, Body: []byte(`{}`), Hole: -1}
		case "tool_error":
			return call.Answer{End: call.End{Outcome: call.Completed, ToolError: true}}
		case "failed":
			return call.Answer{End: call.End{Outcome: call.Failed, Code: -32000, Text: canary}}
		case "timed_out":
			return call.Answer{End: call.End{Outcome: call.TimedOut, Limit: "idle"}}
		case "cancelled":
			return call.Answer{End: call.End{Outcome: call.Cancelled, By: "agent"}}
		}
		return call.Answer{End: call.End{Outcome: call.Interrupted}}
	})), call.Options{Observer: tel})

	parents := map[string]string{"good": caller, "failed": "nonsense", "interrupted": caller, "timed_out": strings.TrimSuffix(caller, "1") + "0"}
	for _, tool := range []string{"good", "tool_error", "failed", "timed_out", "cancelled", "interrupted", "denied"} {
		spec := call.Spec{
			Principal: "local", Server: "files", Tool: tool, PublicTool: tool, Era: "2025-11-25", Traceparent: parents[tool],
			Request: []byte(canary), Arguments: []byte(canary), Session: canary, Client: canary,
		}
		if tool == "denied" {
			spec.Denied = &call.End{By: "policy", Text: canary}
		}
		c, err := e.Start(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		for _, err := range c.Follow(t.Context(), 0, 0) {
			if err != nil {
				t.Error(err)
			}
		}
		if tool == "good" && c.Record().Traceparent != caller {
			t.Error("the record does not keep what the agent sent")
		}
		tel.RequestEnded(&Request{Call: c.ID(), How: call.Delivered})
	}
	e.Stop(t.Context())
	if err := tel.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}

	b.mu.Lock()
	defer b.mu.Unlock()
	if b.path != "/v1/traces" || b.auth != "Bearer "+canary {
		t.Errorf("path %q, authorization %q", b.path, b.auth)
	}
	if bytes.Contains(b.raw.Bytes(), []byte(canary)) {
		t.Error("I10: a secret is in a span")
	}
	if b.spans["tools/call timed_out"] != nil {
		t.Error("a trace that its caller does not sample is exported")
	}
	if !strings.HasPrefix(upstream["timed_out"], "00-"+traceID) || !strings.HasSuffix(upstream["timed_out"], "-00") {
		t.Errorf("an unsampled trace is passed on as %q", upstream["timed_out"])
	}
	for tool, want := range map[string]otlp.Status_StatusCode{
		"good": otlp.Status_STATUS_CODE_UNSET, "cancelled": otlp.Status_STATUS_CODE_UNSET,
		"tool_error": otlp.Status_STATUS_CODE_ERROR, "failed": otlp.Status_STATUS_CODE_ERROR,
		"interrupted": otlp.Status_STATUS_CODE_ERROR, "denied": otlp.Status_STATUS_CODE_ERROR,
	} {
		s := b.spans["tools/call "+tool]
		if s == nil {
			t.Errorf("%s: no span", tool)
			continue
		}
		if s.GetStatus().GetCode() != want {
			t.Errorf("%s: status %v", tool, s.GetStatus())
		}
		a := attributes(s)
		outcome := tool
		if tool == "good" || tool == "tool_error" {
			outcome = "completed"
		}
		if a["longcall.outcome"] != outcome || a["gen_ai.tool.name"] != tool || a["longcall.server"] != "files" || a["longcall.delivery"] != "delivered" ||
			a["mcp.protocol.version"] != "2025-11-25" || !strings.HasPrefix(a["longcall.call.id"], "c_") {
			t.Errorf("%s: attributes %v", tool, a)
		}
		id, trace := hex.EncodeToString(s.SpanId), hex.EncodeToString(s.TraceId)
		if up := upstream[tool]; tool != "denied" && up != "00-"+trace+"-"+id+"-01" {
			t.Errorf("%s: upstream got %q, the span is %s in %s", tool, up, id, trace)
		}
		if parents[tool] == caller {
			if trace != traceID || hex.EncodeToString(s.ParentSpanId) != spanID {
				t.Errorf("%s: not a child of the caller's span", tool)
			}
		} else if len(s.ParentSpanId) != 0 {
			t.Errorf("%s: a child of nobody knows what", tool)
		}
	}
	if len(tel.tracing.open) != 0 {
		t.Errorf("%d spans are left", len(tel.tracing.open))
	}
}

// A span tells how its call's reader fared, whichever of the two ends first;
// one that runs is never fine.
func TestSpanOfAbortedCall(t *testing.T) {
	b := newBackend(t)
	tr, err := NewTracing(TraceOptions{Endpoint: b.URL, Sample: 1})
	if err != nil {
		t.Fatal(err)
	}
	r := &call.Record{ID: "c_1", Spec: call.Spec{PublicTool: "left"}, Started: time.Now()}
	tr.callStarted(r)
	tr.requestEnded(&Request{Call: "c_1", How: call.AbortedDownstream})
	r.End, r.Ended = call.End{Outcome: call.Completed}, time.Now()
	tr.callEnded(r)
	tr.requestEnded(&Request{Call: "c_1", How: call.Replayed})
	s := tr.StartCall(t.Context(), "running", "", "")
	s.End(call.End{})
	// Calls whose requests are never heard of do not pile up.
	for range 2 * keepEnded {
		r := &call.Record{ID: call.NewID(), Started: time.Now(), Ended: time.Now(), End: call.End{Outcome: call.Completed}}
		tr.callStarted(r)
		tr.callEnded(r)
	}
	if n := len(tr.open); n > keepEnded {
		t.Errorf("%d spans are open", n)
	}
	if err := tr.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if a := attributes(b.spans["tools/call left"]); a["longcall.delivery"] != "aborted_downstream" || a["longcall.outcome"] != "completed" {
		t.Errorf("%v", a)
	}
	if s := b.spans["tools/call running"]; s.GetStatus().GetCode() != otlp.Status_STATUS_CODE_ERROR || attributes(s)["longcall.outcome"] != "running" {
		t.Errorf("a running call: %v", s)
	}
}

// I8: Shutdown is bounded by its context even if the collector never answers,
// and leaves nothing behind (goleak).
func TestShutdownWithDeadCollector(t *testing.T) {
	b := newBackend(t)
	b.hang = make(chan struct{})
	defer close(b.hang)
	var log bytes.Buffer
	tr, err := NewTracing(TraceOptions{Endpoint: b.URL, Sample: 1, Log: Logger(&log, slog.LevelInfo, "text")})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for range 3 * spanQueue { // more than fit: none of this waits
		tr.StartCall(t.Context(), "x", "", "").End(call.End{Outcome: call.Completed})
	}
	<-b.asked
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := tr.Shutdown(ctx); err == nil {
		t.Error("nothing was said about the spans that are lost")
	}
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("took %s", d)
	}
	if !strings.Contains(log.String(), "spans were not delivered") {
		t.Errorf("the log says %q", log.String())
	}
}

// Shutdown leaves no idle connection to the collector open.
func TestShutdownClosesConnections(t *testing.T) {
	closed := make(chan struct{}, 10)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
	}))
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateClosed {
			closed <- struct{}{}
		}
	}
	srv.Start()
	defer srv.Close()
	tr, err := NewTracing(TraceOptions{Endpoint: srv.URL, Sample: 1})
	if err != nil {
		t.Fatal(err)
	}
	tr.StartCall(t.Context(), "x", "", "").End(call.End{Outcome: call.Completed})
	if err := tr.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-closed:
	case <-time.After(10 * time.Second):
		t.Error("the connection stays open")
	}
}

func TestBadEndpoint(t *testing.T) {
	for _, e := range []string{"127.0.0.1:4318", "ftp://h", "http://", "http://user:" + canary + "@:%zz"} {
		if _, err := NewTracing(TraceOptions{Endpoint: e}); err == nil || strings.Contains(err.Error(), canary) {
			t.Errorf("%s: %v", e, err)
		}
	}
}

// I10: whatever a call holds, nothing of it but its names comes out.
func TestNothingSecretComesOut(t *testing.T) {
	b := newBackend(t)
	var log bytes.Buffer
	tel := newTelemetry(t, Options{
		Log:    Logger(&log, slog.LevelDebug, "json"),
		Traces: TraceOptions{Endpoint: b.URL, Sample: 1, Headers: map[string]string{"X-Key": canary}},
	})
	end := call.End{Outcome: call.Failed, Text: canary}
	r := &call.Record{
		ID: "c_1", Started: time.Now(), Ended: time.Now(), End: end,
		Spec: call.Spec{
			RequestID: "r_1", Principal: "local", Server: "files", Tool: "t", PublicTool: "t", Era: "e", Session: canary, Client: canary,
			Request: []byte(canary), Arguments: []byte(canary), Digest: canary, Traceparent: canary, Denied: &call.End{Text: canary},
		},
	}
	q := &Request{ID: "r_1", Method: "tools/call", Start: time.Now(), Status: 200, FirstByte: 1, How: call.Delivered, End: &end}
	tel.RequestStarted(q)
	tel.CallStarted(r)
	q.Call = r.ID
	tel.FirstByte(q)
	tel.CallEnded(r, false)
	tel.RequestEnded(q)
	metrics := scrape(t, tel)
	if err := tel.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	for where, text := range map[string]string{"log": log.String(), "metrics": metrics, "spans": b.raw.String()} {
		if text == "" || strings.Contains(text, canary) {
			t.Errorf("I10: %s: %q", where, text)
		}
	}
}

type runFunc func(ctx context.Context, x *call.Exec) call.Answer

func (f runFunc) Run(ctx context.Context, x *call.Exec) call.Answer { return f(ctx, x) }

// memory is a call.Log that takes all and keeps nothing.
type memory struct{ call.Log }

func (memory) Create(context.Context, *call.Record, ...call.Event) error { return nil }
func (memory) Append(call.ID, uint64, call.Event) error                  { return nil }
func (memory) Finish(context.Context, *call.Record, call.Event) error    { return nil }
func (memory) Deliver(call.Delivery)                                     {}
func (memory) Get(context.Context, call.ID) (*call.Record, error)        { return nil, call.ErrUnknown }
func (memory) Running(context.Context, uint64) ([]call.Record, error)    { return nil, nil }
func (memory) Read(context.Context, call.ID, uint64, int) ([]call.Event, error) {
	return nil, call.ErrGap
}
