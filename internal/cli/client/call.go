package client

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/longcall/longcall/internal/mcp"
)

// Call is one tools/call to make.
type Call struct {
	Tool        string
	Arguments   []byte // a JSON object; nil means {}
	Schema      []byte // the tool's inputSchema, if it is known: it may want arguments as headers
	Traceparent string // W3C trace context to pass on; may be empty

	// What comes before the result. All may be nil, and must not block for long.
	Beat     func()
	Progress func(Progress)
	Message  func(level, text string)
}

// Progress is one progress message.
type Progress struct {
	Value float64
	Total float64 // 0 if it is not known
	Text  string
}

// Result is what a call brought back.
type Result struct {
	Raw        []byte // the result object as it came
	IsError    bool   // the tool, or longcall in its place, says that it failed
	Structured []byte // structuredContent, raw; nil if there is none
	Content    []Content

	// What longcall itself has to say; empty if the tool answered.
	Outcome string
	Limit   string
	By      string
	CallID  string
}

// Content is one block of a result.
type Content struct {
	Type     string `json:"type"`
	Text     string `json:"text"`
	MimeType string `json:"mimeType"`
	Data     string `json:"data"`
	URI      string `json:"uri"`
	Resource *struct {
		URI      string `json:"uri"`
		MimeType string `json:"mimeType"`
		Text     string `json:"text"`
		Blob     string `json:"blob"`
	} `json:"resource"`
}

const token = "1"

// Do makes the call and waits for its result. When ctx ends, the stream is
// closed, which in this revision is how an agent cancels; the error is then
// the context's cause.
func (c *Client) Do(ctx context.Context, k Call) (*Result, error) {
	args := k.Arguments
	if len(args) == 0 {
		args = []byte("{}")
	}
	extra := []mcp.Member{{Name: mcp.MetaKeyProgressToken, Value: []byte(token)}}
	if k.Message != nil {
		extra = append(extra, mcp.Member{Name: mcp.MetaKeyLogLevel, Value: []byte(`"info"`)})
	}
	if k.Traceparent != "" {
		extra = append(extra, mcp.Member{Name: "traceparent", Value: mcp.Quote(k.Traceparent)})
	}
	params := object([]mcp.Member{
		{Name: "name", Value: mcp.Quote(k.Tool)},
		{Name: "arguments", Value: args},
		{Name: "_meta", Value: c.meta(extra...)},
	})
	var raw []byte
	err := c.post(ctx, mcp.MethodToolsCall, k.Tool, params, paramHeaders(k.Schema, args), k.Beat, func(m *mcp.Message) bool {
		switch {
		case m.Kind == mcp.Response:
			raw = m.Result.Of(m.Raw)
			return true
		case m.Method == mcp.MethodProgress && k.Progress != nil && string(m.ProgressToken.Of(m.Raw)) == token:
			k.Progress(progress(m))
		case m.Method == mcp.MethodMessage && k.Message != nil:
			k.Message(logMessage(m.Params.Of(m.Raw)))
		}
		return false
	})
	if err != nil {
		return nil, err
	}
	return parseResult(raw)
}

func progress(m *mcp.Message) (p Progress) {
	// Parse has checked that these are what they should be, if they are there.
	_ = json.Unmarshal(m.Progress.Of(m.Raw), &p.Value)
	if m.Total.Ok() {
		_ = json.Unmarshal(m.Total.Of(m.Raw), &p.Total)
	}
	p.Text, _ = mcp.String(m.Text.Of(m.Raw))
	return p
}

func logMessage(params []byte) (level, text string) {
	var p struct {
		Level string          `json:"level"`
		Data  json.RawMessage `json:"data"`
	}
	if json.Unmarshal(params, &p) != nil {
		return "", ""
	}
	if s, ok := mcp.String(p.Data); ok {
		return p.Level, s
	}
	return p.Level, string(p.Data)
}

func parseResult(raw []byte) (*Result, error) {
	var v struct {
		Content    []Content                  `json:"content"`
		Structured json.RawMessage            `json:"structuredContent"`
		IsError    bool                       `json:"isError"`
		Meta       map[string]json.RawMessage `json:"_meta"`
	}
	if len(raw) == 0 {
		return nil, errors.New("the answer has no result")
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		return nil, errors.New("the result is not one of a tool call")
	}
	r := &Result{Raw: raw, IsError: v.IsError, Content: v.Content, Structured: v.Structured}
	if own := v.Meta[mcp.MetaKeyOutcome]; own != nil {
		var o struct {
			Outcome string `json:"outcome"`
			Limit   string `json:"limit"`
			By      string `json:"by"`
			Call    string `json:"call"`
		}
		if json.Unmarshal(own, &o) == nil {
			r.Outcome, r.Limit, r.By, r.CallID = o.Outcome, o.Limit, o.By, o.Call
		}
	}
	return r, nil
}

// paramHeaders are the Mcp-Param-* headers that a tool's schema asks for with
// x-mcp-header: arguments that layers in the path may want to see (SPEC §1.3).
func paramHeaders(schema, args []byte) http.Header {
	params, err := mcp.HeaderParams(schema)
	if err != nil || params == nil {
		return nil
	}
	h := http.Header{}
	mcp.Mirror(h, params, args)
	return h
}
