// Package client calls tools over HTTP like an agent of the stateless revision does.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/longcall/longcall/internal/mcp"
)

// maxMessage bounds one message of the server, in bytes.
const maxMessage = 256 << 20

// endWait is how long the end of a stream may take after its last message.
const endWait = time.Second

// maxPages bounds a tool list whose cursor never ends.
const maxPages = 1000

// Client speaks to one endpoint. Its zero HTTP is a client without time limits:
// how long a call may take is its context's to say.
type Client struct {
	URL     string // of the endpoint, such as http://127.0.0.1:8722/mcp
	Token   string // bearer token; empty for none
	Name    string // how it introduces itself
	Version string
	HTTP    *http.Client
}

// NewHTTP is an HTTP client that opens a connection per request, as a command
// that makes two of them does, and has no time limit but that of dialling.
func NewHTTP() *http.Client {
	return &http.Client{Transport: &http.Transport{
		Proxy:              http.ProxyFromEnvironment,
		DialContext:        (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		DisableKeepAlives:  true,
		DisableCompression: true,
	}}
}

// UnreachableError says that no connection came about: nothing was sent.
type UnreachableError struct {
	URL string
	Err error
}

func (e *UnreachableError) Error() string {
	if op, ok := errors.AsType[*net.OpError](e.Err); ok {
		return fmt.Sprintf("cannot reach %s: %v", e.URL, op)
	}
	return fmt.Sprintf("cannot reach %s: %v", e.URL, e.Err)
}

func (e *UnreachableError) Unwrap() error { return e.Err }

// LostError says that the connection ended after the request was sent and
// before its answer was there: the outcome is unknown.
type LostError struct {
	Err    error
	Stream bool // the answer had begun
}

func (e *LostError) Error() string {
	if e.Stream {
		return "the connection was lost before the result came: " + e.Err.Error()
	}
	return "the connection was lost before an answer came: " + e.Err.Error()
}

func (e *LostError) Unwrap() error { return e.Err }

// RPCError is a JSON-RPC error response.
type RPCError struct {
	Status int // of HTTP
	Code   int
	Text   string
}

func (e *RPCError) Error() string { return fmt.Sprintf("%s (JSON-RPC error %d)", e.Text, e.Code) }

// StatusError is an answer that is no MCP message.
type StatusError struct {
	Status int
	Text   string // what the body said, if it was short text
}

func (e *StatusError) Error() string {
	s := "the server answered " + strconv.Itoa(e.Status) + " " + http.StatusText(e.Status)
	if e.Text != "" {
		s += ": " + e.Text
	}
	return s
}

// meta is the _meta that every request of the stateless revision carries.
func (c *Client) meta(extra ...mcp.Member) []byte {
	info, _ := json.Marshal(map[string]string{"name": c.Name, "version": c.Version})
	members := append([]mcp.Member{
		{Name: mcp.MetaKeyVersion, Value: mcp.Quote(mcp.LatestModern)},
		{Name: mcp.MetaKeyClientInfo, Value: info},
		{Name: mcp.MetaKeyCapabilities, Value: []byte("{}")},
	}, extra...)
	return object(members)
}

// object writes members as a JSON object, in their order.
func object(members []mcp.Member) []byte {
	b := []byte{'{'}
	for i, m := range members {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, mcp.Quote(m.Name)...), ':'), m.Value...)
	}
	return append(b, '}')
}

const requestID = "1" // every request has a connection to itself

// post sends one request and hands each message of the answer to f, until f
// says that it has seen the response.
func (c *Client) post(ctx context.Context, method, name string, params []byte, header http.Header, beat func(), f func(*mcp.Message) bool) error {
	body := object([]mcp.Member{
		{Name: "jsonrpc", Value: []byte(`"2.0"`)},
		{Name: "id", Value: []byte(requestID)},
		{Name: "method", Value: mcp.Quote(method)},
		{Name: "params", Value: params},
	})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("the address %q is not one: %w", c.URL, err)
	}
	req.GetBody = nil // a call is never sent twice, also not by the transport
	maps.Copy(req.Header, header)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set(mcp.HeaderVersion, mcp.LatestModern)
	req.Header.Set(mcp.HeaderMethod, method)
	req.Header.Set("User-Agent", c.Name+"/"+c.Version)
	if name != "" {
		req.Header.Set(mcp.HeaderName, mcp.EncodeHeader(name))
	}
	if c.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
	h := c.HTTP
	if h == nil {
		h = NewHTTP()
	}
	resp, err := h.Do(req)
	if err != nil {
		return sendError(ctx, c.URL, err)
	}
	defer resp.Body.Close()
	typ, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if typ == "text/event-stream" && resp.StatusCode == http.StatusOK {
		if err := readStream(ctx, resp.Body, beat, f); err != nil {
			return err
		}
		// The server ends the stream. Who hangs up before that looks like an
		// agent that did not wait for its result.
		t := time.AfterFunc(endWait, func() { resp.Body.Close() })
		defer t.Stop()
		_, _ = io.Copy(io.Discard, resp.Body)
		return nil
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxMessage))
	if err != nil {
		return lost(ctx, err, true)
	}
	m, err := mcp.Parse(raw)
	if err != nil || m.Kind != mcp.Response {
		return &StatusError{resp.StatusCode, shortText(typ, raw)}
	}
	if m.Error.Ok() {
		return &RPCError{resp.StatusCode, m.Code, m.ErrText}
	}
	f(&m)
	return nil
}

// sendError tells whether anything can have been sent.
func sendError(ctx context.Context, url string, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return &UnreachableError{url, op}
	}
	return lost(ctx, unwrapURL(err), false)
}

// unwrapURL drops the method and address that net/http puts before an error.
func unwrapURL(err error) error {
	if u := errors.Unwrap(err); u != nil {
		return u
	}
	return err
}

func lost(ctx context.Context, err error, stream bool) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return &LostError{err, stream}
}

func readStream(ctx context.Context, r io.Reader, beat func(), f func(*mcp.Message) bool) error {
	events := mcp.NewSSEReader(r, maxMessage)
	for {
		ev, err := events.Next()
		if err != nil {
			if errors.Is(err, mcp.ErrTooLarge) {
				err = errors.New("a message was larger than 256 MiB")
			} else if errors.Is(err, io.EOF) {
				err = errors.New("the stream ended")
			}
			return lost(ctx, err, true)
		}
		if ev.Comment {
			if beat != nil {
				beat()
			}
			continue
		}
		if len(ev.Data) == 0 || ev.Name != "" && ev.Name != "message" {
			continue
		}
		m, err := mcp.Parse(bytes.Clone(ev.Data))
		if err != nil {
			continue // junk between messages is not ours to judge
		}
		if m.Kind == mcp.Response && m.Error.Ok() {
			return &RPCError{http.StatusOK, m.Code, m.ErrText}
		}
		if f(&m) {
			return nil
		}
	}
}

func shortText(typ string, raw []byte) string {
	if len(raw) > 300 || strings.Contains(typ, "html") {
		return ""
	}
	return strings.TrimSpace(strings.ToValidUTF8(string(raw), "?"))
}

// Tool is one entry of the tool list.
type Tool struct {
	Name        string          `json:"name"`
	Title       string          `json:"title"`
	Description string          `json:"description"`
	InputSchema json.RawMessage `json:"inputSchema"`
	Raw         json.RawMessage `json:"-"` // the whole entry as it came
}

// Tools reads the whole list of the endpoint, in its order.
func (c *Client) Tools(ctx context.Context) ([]Tool, error) {
	var all []Tool
	cursor := ""
	for range maxPages {
		params := []mcp.Member{{Name: "_meta", Value: c.meta()}}
		if cursor != "" {
			params = append(params, mcp.Member{Name: "cursor", Value: mcp.Quote(cursor)})
		}
		var result []byte
		err := c.post(ctx, mcp.MethodToolsList, "", object(params), nil, nil, func(m *mcp.Message) bool {
			if m.Kind == mcp.Response {
				result = m.Result.Of(m.Raw)
			}
			return m.Kind == mcp.Response
		})
		if err != nil {
			return nil, err
		}
		page, err := mcp.ReadPage(mcp.ListTools, result)
		if err != nil {
			return nil, err
		}
		for _, t := range page.Entries {
			tool := Tool{Raw: t.Raw}
			if err := json.Unmarshal(t.Raw, &tool); err != nil {
				tool = Tool{Name: t.Name, Raw: t.Raw} // odd, but callable
			}
			all = append(all, tool)
		}
		if page.Next == "" {
			return all, nil
		}
		cursor = page.Next
	}
	return nil, fmt.Errorf("the tool list has more than %d pages", maxPages)
}
