// Command server is a tool server on the official Go SDK, in both eras.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const modern = "2026-07-28"

type textArgs struct {
	Text string `json:"text"`
}

type slowArgs struct {
	Duration float64 `json:"duration_ms"`
	Steps    int     `json:"steps"`
}

func main() {
	port := flag.Int("port", 0, "port on 127.0.0.1; 0 means standard input and output")
	era := flag.String("era", "both", "legacy, modern or both")
	flag.Parse()
	agree := func(context.Context, *mcp.SubscribeRequest) error { return nil }
	server := mcp.NewServer(&mcp.Implementation{Name: "go", Version: "1.0.0"}, &mcp.ServerOptions{
		Instructions:       "Say something.",
		SubscribeHandler:   agree,
		UnsubscribeHandler: func(context.Context, *mcp.UnsubscribeRequest) error { return nil },
		CompletionHandler: func(_ context.Context, r *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
			return &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{Values: []string{r.Params.Ref.Name + " " + r.Params.Argument.Value}}}, nil
		},
	})
	server.AddResource(&mcp.Resource{Name: "first", URI: "note:///1"}, read)
	server.AddResourceTemplate(&mcp.ResourceTemplate{Name: "any", URITemplate: "note:///{id}"}, read)
	server.AddPrompt(&mcp.Prompt{Name: "greet"}, greet)
	mcp.AddTool(server, &mcp.Tool{Name: "touch", Description: "Says that a resource changed."}, func(ctx context.Context, _ *mcp.CallToolRequest, a textArgs) (*mcp.CallToolResult, any, error) {
		return text("touched"), nil, server.ResourceUpdated(ctx, &mcp.ResourceUpdatedNotificationParams{URI: a.Text})
	})
	mcp.AddTool(server, &mcp.Tool{Name: "grow", Description: "Adds a prompt."}, func(_ context.Context, _ *mcp.CallToolRequest, a textArgs) (*mcp.CallToolResult, any, error) {
		server.AddPrompt(&mcp.Prompt{Name: a.Text}, greet)
		return text("grown"), nil, nil
	})
	mcp.AddTool(server, &mcp.Tool{Name: "say", Description: "Logs at the levels info and error."}, say)
	mcp.AddTool(server, &mcp.Tool{Name: "echo", Description: "Says it back."}, echo)
	mcp.AddTool(server, &mcp.Tool{Name: "fail", Description: "Fails."}, fail)
	mcp.AddTool(server, &mcp.Tool{Name: "slow", Description: "Takes its time."}, slow)
	mcp.AddTool(server, &mcp.Tool{Name: "ask", Description: "Asks for a name, and a model for a number."}, ask)
	mcp.AddTool(server, &mcp.Tool{Name: "elicit", Description: "Asks for a name."}, elicit)
	mcp.AddTool(server, &mcp.Tool{Name: "sample", Description: "Asks a model."}, sample)
	mcp.AddTool(server, &mcp.Tool{Name: "wait", Description: "Waits until it is cancelled."}, wait)
	mcp.AddTool(server, &mcp.Tool{Name: "waited", Description: "Says what became of a wait."}, waited)
	if *port == 0 {
		log.Fatal(server.Run(context.Background(), &mcp.StdioTransport{}))
	}
	get := func(*http.Request) *mcp.Server { return server }
	sessions := mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{EventStore: mcp.NewMemoryEventStore(nil)})
	stateless := mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{Stateless: true, PropagateRequestCancellation: true})
	log.Fatal(http.ListenAndServe(fmt.Sprintf("127.0.0.1:%d", *port), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// One handler of the SDK serves one era.
		if *era == "modern" || *era == "both" && r.Header.Get("Mcp-Protocol-Version") >= modern {
			stateless.ServeHTTP(w, r)
			return
		}
		sessions.ServeHTTP(w, r)
	})))
}

func text(s string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}
}

func echo(_ context.Context, _ *mcp.CallToolRequest, a textArgs) (*mcp.CallToolResult, any, error) {
	return text(a.Text), nil, nil
}

func read(_ context.Context, r *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	if r.Params.URI == "note:///none" {
		return nil, mcp.ResourceNotFoundError(r.Params.URI)
	}
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: r.Params.URI, Text: "this is " + r.Params.URI}}}, nil
}

func greet(_ context.Context, r *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
	return &mcp.GetPromptResult{Description: "hello from " + r.Params.Name}, nil
}

func say(ctx context.Context, r *mcp.CallToolRequest, a textArgs) (*mcp.CallToolResult, any, error) {
	for _, level := range []mcp.LoggingLevel{"info", "error"} {
		if err := r.Session.Log(ctx, &mcp.LoggingMessageParams{Level: level, Data: a.Text}); err != nil {
			return nil, nil, err
		}
	}
	return text("said"), nil, nil
}

func fail(_ context.Context, _ *mcp.CallToolRequest, a textArgs) (*mcp.CallToolResult, any, error) {
	r := text(a.Text)
	r.IsError = true
	return r, nil, nil
}

func slow(ctx context.Context, r *mcp.CallToolRequest, a slowArgs) (*mcp.CallToolResult, any, error) {
	for i := 1; i <= a.Steps; i++ {
		if err := report(ctx, r, i, a.Steps, fmt.Sprintf("step %d", i)); err != nil {
			return nil, nil, err
		}
		select {
		case <-time.After(time.Duration(a.Duration / float64(a.Steps) * float64(time.Millisecond))):
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
	return text(fmt.Sprintf("slow finished %d steps", a.Steps)), nil, nil
}

// report reports progress, if the call has a token.
func report(ctx context.Context, r *mcp.CallToolRequest, i, of int, message string) error {
	token := r.Params.GetProgressToken()
	if token == nil {
		return nil
	}
	return r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: float64(i), Total: float64(of), Message: message})
}
