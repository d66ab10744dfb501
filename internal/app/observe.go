package app

import (
	"context"
	"fmt"

	"github.com/longcall/longcall/internal/config"
	"github.com/longcall/longcall/internal/downstream"
	"github.com/longcall/longcall/internal/telemetry"
)

// openTelemetry sets up log lines, metrics and, if there is an endpoint, spans.
func (a *App) openTelemetry(c *config.Config) (err error) {
	headers := map[string]string{}
	for k, v := range c.OTel.Headers {
		headers[k] = v.Reveal()
	}
	a.tel, err = telemetry.New(telemetry.Options{
		Log: a.log, Version: a.opt.Version,
		Traces: telemetry.TraceOptions{Endpoint: c.OTel.Endpoint, Headers: headers, Sample: c.OTel.Sample},
	})
	if err != nil {
		return fmt.Errorf("start telemetry: %w", err)
	}
	a.onStop("telemetry", func(ctx context.Context) error { return a.tel.Shutdown(ctx) })
	a.tel.SetServers(c.Enabled())
	if a.opt.LogDrops != nil {
		a.tel.SetLogDrops(a.opt.LogDrops)
	}
	return nil
}

// journalStats are the journal's figures for metrics.
func (a *App) journalStats() telemetry.JournalStats {
	s := a.journal.Stats()
	return telemetry.JournalStats{
		QueueBytes: s.QueueBytes, Lag: s.Lag, Commits: s.Commits, Operations: s.Ops, Dropped: s.Dropped, Failing: s.Failing != nil,
	}
}

// requests shows the agents' side to telemetry.
type requests struct{ *telemetry.Telemetry }

func (o requests) RequestStarted(q *downstream.Request) { o.Telemetry.RequestStarted(seen(q)) }
func (o requests) FirstByte(q *downstream.Request)      { o.Telemetry.FirstByte(seen(q)) }
func (o requests) RequestEnded(q *downstream.Request)   { o.Telemetry.RequestEnded(seen(q)) }

func seen(q *downstream.Request) *telemetry.Request {
	return &telemetry.Request{
		ID: q.ID, Call: q.Call, Principal: q.Principal, Server: q.Server, Tool: q.Tool,
		Era: q.Era, Method: q.Method, Kind: q.Kind,
		Start: q.Start, Status: q.Status, FirstByte: q.FirstByte,
		BytesIn: q.BytesIn, BytesOut: q.BytesOut, Events: q.Events, Dropped: q.Dropped, Beats: q.Beats, MaxGap: q.MaxGap,
		How: q.How, End: q.End,
	}
}
