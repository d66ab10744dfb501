package main

import (
	"context"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// ask asks in the way of the client's era: the SDK makes requests of the questions
// where there are sessions.
func ask(_ context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
	name, ok := r.Params.InputResponses["name"].(*mcp.ElicitResult)
	if number, also := said(r); ok && also {
		return text(fmt.Sprintf("%s %v, %s, %s", name.Action, name.Content["name"], number, r.Params.RequestState)), nil, nil
	}
	return &mcp.CallToolResult{RequestState: "the server's own", InputRequests: mcp.InputRequestMap{
		"name":   aName("Who?"),
		"number": aNumber("A number?"),
	}}, nil, nil
}

// elicit asks for a name, and says what came of it.
func elicit(_ context.Context, r *mcp.CallToolRequest, a textArgs) (*mcp.CallToolResult, any, error) {
	if name, ok := r.Params.InputResponses["name"].(*mcp.ElicitResult); ok {
		return text(fmt.Sprintf("%s %v", name.Action, name.Content["name"])), nil, nil
	}
	return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"name": aName(a.Text)}}, nil, nil
}

// sample asks the client's model, and says what it answered.
func sample(_ context.Context, r *mcp.CallToolRequest, a textArgs) (*mcp.CallToolResult, any, error) {
	if answer, ok := said(r); ok {
		return text("sampled " + answer), nil, nil
	}
	return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"number": aNumber(a.Text)}}, nil, nil
}

func aName(message string) *mcp.ElicitParams {
	return &mcp.ElicitParams{Mode: "form", Message: message, RequestedSchema: map[string]any{
		"type": "object", "properties": map[string]any{"name": map[string]any{"type": "string"}}, "required": []string{"name"},
	}}
}

func aNumber(message string) *mcp.CreateMessageParams {
	return &mcp.CreateMessageParams{MaxTokens: 10, Messages: []*mcp.SamplingMessage{{Role: "user", Content: &mcp.TextContent{Text: message}}}}
}

// said is what the client's model said.
func said(r *mcp.CallToolRequest) (string, bool) {
	number, ok := r.Params.InputResponses["number"].(*mcp.CreateMessageWithToolsResult)
	if !ok || len(number.Content) != 1 {
		return "", false
	}
	c, ok := number.Content[0].(*mcp.TextContent)
	if !ok {
		return "", false
	}
	return c.Text, true
}
