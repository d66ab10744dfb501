package main

import (
	"context"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// waits is what became of each wait, by its text.
var waits sync.Map

// wait waits until its client cancels it, a minute at most.
func wait(ctx context.Context, r *mcp.CallToolRequest, a textArgs) (*mcp.CallToolResult, any, error) {
	waits.Store(a.Text, "waiting")
	if err := report(ctx, r, 1, 2, "waiting"); err != nil {
		return nil, nil, err
	}
	select {
	case <-ctx.Done():
		waits.Store(a.Text, "cancelled")
		return nil, nil, ctx.Err()
	case <-time.After(time.Minute):
		waits.Store(a.Text, "ended")
		return text("waited"), nil, nil
	}
}

// waited says what became of a wait.
func waited(_ context.Context, _ *mcp.CallToolRequest, a textArgs) (*mcp.CallToolResult, any, error) {
	if state, ok := waits.Load(a.Text); ok {
		return text(state.(string)), nil, nil
	}
	return text("none"), nil, nil
}
