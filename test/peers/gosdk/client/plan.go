package main

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// step is one thing to do.
type step struct {
	Do      string          `json:"do"`
	Tool    string          `json:"tool"`
	Args    json.RawMessage `json:"args"`
	URI     string          `json:"uri"`
	What    string          `json:"what"`     // prompts, tools or resources
	AfterMS int             `json:"after_ms"` // of a cancel; 0 is at the first progress
	WaitMS  int             `json:"wait_ms"`
}

// did is what came of it.
type did map[string]any

// plan carries out steps one after the other on one connection.
type plan struct {
	*hearing
	s      *mcp.ClientSession
	modern bool
}

func (p *plan) run(ctx context.Context, steps string) error {
	var all []step
	if err := json.Unmarshal([]byte(steps), &all); err != nil {
		return fmt.Errorf("the plan: %w", err)
	}
	do := map[string]func(context.Context, step, string, did) error{
		"progress": p.called, "elicit": p.called, "sample": p.called, "call": p.called,
		"subscribe": p.subscribe, "cancel": p.cancel, "change": p.change,
	}
	for i, st := range all {
		p.forget()
		x := did{"do": st.Do}
		f := do[st.Do]
		if f == nil {
			return fmt.Errorf("the plan: no step %q", st.Do)
		}
		if st.WaitMS == 0 {
			st.WaitMS = 5000
		}
		if err := f(ctx, st, fmt.Sprintf("go-token-%d", i), x); err != nil {
			x["error"] = err.Error()
		}
		p.say("did", x)
	}
	return nil
}

// waiting bounds what a step waits for.
func (st step) waiting(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, time.Duration(st.WaitMS)*time.Millisecond)
}

// called calls the tool, and says what was asked and what progress there was.
func (p *plan) called(ctx context.Context, st step, token string, x did) error {
	r, err := call(ctx, p.s, st.Tool, st.Args, token)
	if err != nil {
		return err
	}
	x["text"], x["isError"] = textOf(r), r.IsError
	switch st.Do {
	case "progress": // of which the SDK tells beside the call
		ctx, cancel := st.waiting(ctx)
		defer cancel()
		p.until(ctx, func() bool { return p.last(token) })
		x["progress"] = p.of(token)
	case "elicit", "sample":
		p.mu.Lock()
		x["asked"] = slices.Clone(p.asked)
		p.mu.Unlock()
	}
	return nil
}

func (p *plan) subscribe(ctx context.Context, st step, token string, x did) error {
	waiting, cancel := st.waiting(ctx)
	defer cancel()
	p.mu.Lock()
	before := p.acked
	p.mu.Unlock()
	if err := p.s.Subscribe(ctx, &mcp.SubscribeParams{URI: st.URI}); err != nil {
		return err
	}
	if p.modern && !p.until(waiting, func() bool { return p.acked > before }) {
		return fmt.Errorf("nobody acknowledged the subscription")
	}
	if st.Tool != "" {
		if _, err := call(ctx, p.s, st.Tool, st.Args, token); err != nil {
			return err
		}
	}
	if p.until(waiting, func() bool { return slices.Contains(p.updated, st.URI) }) {
		x["updated"] = st.URI
	}
	return p.s.Unsubscribe(ctx, &mcp.UnsubscribeParams{URI: st.URI})
}

// cancel cancels the call after a time, or when its first progress has come.
func (p *plan) cancel(ctx context.Context, st step, token string, _ did) error {
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer cancel()
		if st.AfterMS > 0 {
			select {
			case <-time.After(time.Duration(st.AfterMS) * time.Millisecond):
			case <-running.Done():
			}
			return
		}
		p.until(running, func() bool { return len(p.progress) > 0 })
	}()
	_, err := call(running, p.s, st.Tool, st.Args, token)
	cancel()
	<-done
	return err
}

func (p *plan) change(ctx context.Context, st step, token string, x did) error {
	waiting, cancel := st.waiting(ctx)
	defer cancel()
	// The SDK began to listen when it connected.
	if p.modern && !p.until(waiting, func() bool { return p.acked > 0 }) {
		return fmt.Errorf("nobody acknowledged that the client listens")
	}
	if st.Tool != "" {
		if _, err := call(ctx, p.s, st.Tool, st.Args, token); err != nil {
			return err
		}
	}
	x["changed"] = p.until(waiting, func() bool { return slices.Contains(p.changed, st.What) })
	names, err := p.names(ctx, st.What)
	x["names"] = names
	return err
}

func (p *plan) names(ctx context.Context, what string) ([]string, error) {
	switch what {
	case "tools":
		return namesOf(p.s.Tools(ctx, nil), func(t *mcp.Tool) string { return t.Name })
	case "resources":
		return namesOf(p.s.Resources(ctx, nil), func(r *mcp.Resource) string { return r.Name })
	}
	return namesOf(p.s.Prompts(ctx, nil), func(t *mcp.Prompt) string { return t.Name })
}

func namesOf[T any](all iter.Seq2[T, error], name func(T) string) (names []string, err error) {
	for x, err := range all {
		if err != nil {
			return nil, err
		}
		names = append(names, name(x))
	}
	return names, nil
}
