// Command client makes one tool call with the official Go SDK, and prints a
// JSON line per event: exit 0 result, 3 tool error, 4 other error.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

type events struct {
	mu    sync.Mutex
	start time.Time
}

func (e *events) begin() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.start = time.Now()
}

func (e *events) say(ev string, x map[string]any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	x["t"], x["ev"] = time.Since(e.start).Seconds(), ev
	b, err := json.Marshal(x)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(b))
}

// bearer adds a token to every request.
type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	if b != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+string(b))
	}
	return http.DefaultTransport.RoundTrip(r)
}

func main() {
	url := flag.String("url", "", "endpoint")
	era := flag.String("era", "legacy", "legacy, modern or sse")
	tool := flag.String("tool", "", "name of the tool")
	args := flag.String("args", "{}", "its arguments")
	token := flag.String("bearer", "", "bearer token")
	flag.Parse()
	e := &events{start: time.Now()}
	code, err := run(e, *url, *era, *tool, *args, bearer(*token))
	if err != nil {
		e.say("error", map[string]any{"msg": err.Error()})
		code = 4
	}
	os.Exit(code)
}

func run(e *events, url, era, tool, args string, token bearer) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	client := mcp.NewClient(&mcp.Implementation{Name: "go", Version: "1.0.0"}, &mcp.ClientOptions{
		ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			e.say("asked", map[string]any{"message": r.Params.Message})
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": "Ada"}}, nil
		},
		CreateMessageHandler: func(context.Context, *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
			e.say("asked", map[string]any{"message": "a model"})
			return &mcp.CreateMessageResult{Role: "assistant", Model: "m", Content: &mcp.TextContent{Text: "42"}}, nil
		},
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			p := r.Params
			e.say("progress", map[string]any{"progress": p.Progress, "total": p.Total, "message": p.Message, "token": p.ProgressToken})
		},
	})
	version := "2025-11-25"
	if era == "modern" {
		version = "2026-07-28"
	}
	var transport mcp.Transport = &mcp.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: token}}
	if era == "sse" {
		transport = &mcp.SSEClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: token}}
	}
	s, err := client.Connect(ctx, transport, &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		return 0, err
	}
	defer s.Close()
	e.say("connected", map[string]any{"protocol": s.InitializeResult().ProtocolVersion})
	list, err := s.ListTools(ctx, nil)
	if err != nil {
		return 0, err
	}
	var names []string
	for _, t := range list.Tools {
		names = append(names, t.Name)
	}
	e.say("tools", map[string]any{"names": names})
	e.begin()
	p := &mcp.CallToolParams{Name: tool, Arguments: json.RawMessage(args)}
	p.SetProgressToken("go-token")
	r, err := s.CallTool(ctx, p)
	if err != nil {
		return 0, err
	}
	var texts []string
	for _, c := range r.Content {
		if c, ok := c.(*mcp.TextContent); ok {
			texts = append(texts, c.Text)
		}
	}
	e.say("result", map[string]any{"isError": r.IsError, "text": strings.Join(texts, "\n")})
	if r.IsError {
		return 3, nil
	}
	return 0, nil
}
