package main

import (
	"context"
	"slices"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// hearing is what the server has said of itself.
type hearing struct {
	*events
	mu       sync.Mutex
	progress []mcp.ProgressNotificationParams
	asked    []string
	updated  []string
	changed  []string // prompts, tools or resources
	acked    int
	more     chan struct{} // closed, and made anew, with each thing that is heard
}

func newHearing(e *events) *hearing { return &hearing{events: e, more: make(chan struct{})} }

// hear notes something.
func (h *hearing) hear(note func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	note()
	close(h.more)
	h.more = make(chan struct{})
}

// forget begins anew, before a step.
func (h *hearing) forget() {
	h.hear(func() { h.progress, h.asked, h.updated, h.changed = nil, nil, nil, nil })
}

// until waits until something has been heard, or the context's end; it says which.
func (h *hearing) until(ctx context.Context, heard func() bool) bool {
	for {
		h.mu.Lock()
		ok, more := heard(), h.more
		h.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-more:
		case <-ctx.Done():
			return false
		}
	}
}

// options are the handlers of the SDK's client. One with a plan listens for changes
// of lists from its beginning, and has no roots.
func (h *hearing) options(planned bool) *mcp.ClientOptions {
	o := &mcp.ClientOptions{
		ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			h.ask(r.Params.Message)
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": "Ada"}}, nil
		},
		CreateMessageHandler: func(_ context.Context, r *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
			for _, m := range r.Params.Messages {
				if c, ok := m.Content.(*mcp.TextContent); ok {
					h.ask(c.Text)
				}
			}
			return &mcp.CreateMessageResult{Role: "assistant", Model: "m", Content: &mcp.TextContent{Text: "42"}}, nil
		},
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			p := r.Params
			h.say("progress", map[string]any{"progress": p.Progress, "total": p.Total, "message": p.Message, "token": p.ProgressToken})
			h.hear(func() { h.progress = append(h.progress, *p) })
		},
		ResourceUpdatedHandler: func(_ context.Context, r *mcp.ResourceUpdatedNotificationRequest) {
			h.hear(func() { h.updated = append(h.updated, r.Params.URI) })
		},
	}
	if planned {
		o.Capabilities = &mcp.ClientCapabilities{}
		o.PromptListChangedHandler = func(context.Context, *mcp.PromptListChangedRequest) {
			h.hear(func() { h.changed = append(h.changed, "prompts") })
		}
		o.ToolListChangedHandler = func(context.Context, *mcp.ToolListChangedRequest) {
			h.hear(func() { h.changed = append(h.changed, "tools") })
		}
		o.ResourceListChangedHandler = func(context.Context, *mcp.ResourceListChangedRequest) {
			h.hear(func() { h.changed = append(h.changed, "resources") })
		}
	}
	return o
}

func (h *hearing) ask(message string) {
	h.say("asked", map[string]any{"message": message})
	h.hear(func() { h.asked = append(h.asked, message) })
}

// acknowledgements notes those of subscriptions/listen, of which the SDK says
// nothing to its caller.
func (h *hearing) acknowledgements(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if method == "notifications/subscriptions/acknowledged" {
			h.hear(func() { h.acked++ })
		}
		return next(ctx, method, req)
	}
}

// of lists the progress of one call in the order in which it came.
func (h *hearing) of(token string) (values []float64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.progress {
		if p.ProgressToken == token {
			values = append(values, p.Progress)
		}
	}
	return values
}

// last says whether a call's last progress was all that there is.
func (h *hearing) last(token string) bool {
	return slices.ContainsFunc(h.progress, func(p mcp.ProgressNotificationParams) bool {
		return p.ProgressToken == token && p.Progress == p.Total
	})
}
