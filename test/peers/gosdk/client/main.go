// Command client makes one tool call with the official Go SDK, and prints a
// JSON line per event: exit 0 result, 3 tool error, 4 other error. With -plan it
// carries out the steps of a plan instead, and its exit code is 0 whatever comes of them.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
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

// options are what the command line says.
type options struct {
	url, era, tool, args, plan string
	token                      bearer
	stdio                      bool
}

func main() {
	var o options
	flag.StringVar(&o.url, "url", "", "endpoint")
	flag.StringVar(&o.era, "era", "legacy", "legacy, modern or sse")
	flag.StringVar(&o.tool, "tool", "", "name of the tool")
	flag.StringVar(&o.args, "args", "{}", "its arguments")
	flag.StringVar(&o.plan, "plan", "", "steps to do instead, a JSON array")
	flag.BoolVar(&o.stdio, "stdio", false, "talk to the command that follows instead of an endpoint")
	flag.StringVar((*string)(&o.token), "bearer", "", "bearer token")
	flag.Parse()
	e := &events{start: time.Now()}
	code, err := run(e, o)
	if err != nil {
		e.say("error", map[string]any{"msg": err.Error()})
		code = 4
	}
	os.Exit(code)
}

func run(e *events, o options) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	h := newHearing(e)
	client := mcp.NewClient(&mcp.Implementation{Name: "go", Version: "1.0.0"}, h.options(o.plan != ""))
	client.AddReceivingMiddleware(h.acknowledgements)
	version := "2025-11-25"
	if o.era == "modern" {
		version = "2026-07-28"
	}
	var transport mcp.Transport = &mcp.StreamableClientTransport{Endpoint: o.url, HTTPClient: &http.Client{Transport: o.token}}
	if o.era == "sse" {
		transport = &mcp.SSEClientTransport{Endpoint: o.url, HTTPClient: &http.Client{Transport: o.token}}
	}
	if o.stdio {
		transport = &mcp.CommandTransport{Command: exec.CommandContext(ctx, flag.Arg(0), flag.Args()[1:]...)}
	}
	s, err := client.Connect(ctx, transport, &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		return 0, err
	}
	defer s.Close()
	e.say("connected", map[string]any{"protocol": s.InitializeResult().ProtocolVersion})
	var names []string
	for t, err := range s.Tools(ctx, nil) {
		if err != nil {
			return 0, err
		}
		names = append(names, t.Name)
	}
	e.say("tools", map[string]any{"names": names})
	e.begin()
	if o.plan != "" {
		p := plan{hearing: h, s: s, modern: o.era == "modern"}
		return 0, p.run(ctx, o.plan)
	}
	r, err := call(ctx, s, o.tool, json.RawMessage(o.args), "go-token")
	if err != nil {
		return 0, err
	}
	e.say("result", map[string]any{"isError": r.IsError, "text": textOf(r)})
	if r.IsError {
		return 3, nil
	}
	return 0, nil
}

func call(ctx context.Context, s *mcp.ClientSession, tool string, args json.RawMessage, token string) (*mcp.CallToolResult, error) {
	if args == nil {
		args = json.RawMessage("{}")
	}
	p := &mcp.CallToolParams{Name: tool, Arguments: args}
	p.SetProgressToken(token)
	return s.CallTool(ctx, p)
}

func textOf(r *mcp.CallToolResult) string {
	var texts []string
	for _, c := range r.Content {
		if c, ok := c.(*mcp.TextContent); ok {
			texts = append(texts, c.Text)
		}
	}
	return strings.Join(texts, "\n")
}
