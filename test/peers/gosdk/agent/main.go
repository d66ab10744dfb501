// Command agent makes tool calls one after another with the official Go SDK, as a
// host with an idle limit does: it cancels a call of which it has heard nothing for
// that long. It reads a step per line from its input, and prints a line per step.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// step is one call.
type step struct {
	Tool     string          `json:"tool"`
	Args     json.RawMessage `json:"args"`
	GiveUpMS int             `json:"give_up_ms"` // cancels after that time, whatever comes
}

// said is what became of it.
type said struct {
	Seconds    float64         `json:"seconds"`
	Cancelled  string          `json:"cancelled,omitempty"` // why the agent gave up
	Error      string          `json:"error,omitempty"`
	IsError    bool            `json:"is_error,omitempty"`
	Text       string          `json:"text,omitempty"`
	Structured json.RawMessage `json:"structured,omitempty"`
	Heard      int             `json:"heard"` // progress notifications
	Silence    float64         `json:"silence"`
}

// hearing notes life of the call that is being made.
type hearing struct {
	mu      sync.Mutex
	n       int
	last    time.Time
	longest time.Duration
	reset   func()
}

func (h *hearing) begin(reset func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.n, h.last, h.longest, h.reset = 0, time.Now(), 0, reset
}

func (h *hearing) heard() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.longest, h.last = max(h.longest, time.Since(h.last)), time.Now()
	h.n++
	if h.reset != nil {
		h.reset()
	}
}

func (h *hearing) end() (int, time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.n, max(h.longest, time.Since(h.last))
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
	version := flag.String("version", "2025-11-25", "protocol version")
	idle := flag.Duration("idle", time.Minute, "idle limit of a call")
	token := flag.String("bearer", "", "bearer token")
	flag.Parse()
	if err := run(*url, *version, *idle, bearer(*token)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(url, version string, idle time.Duration, token bearer) error {
	ctx := context.Background()
	h := &hearing{}
	client := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1.0.0"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(context.Context, *mcp.ProgressNotificationClientRequest) { h.heard() },
	})
	transport := &mcp.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: token}}
	s, err := client.Connect(ctx, transport, &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		return err
	}
	defer s.Close()
	out := json.NewEncoder(os.Stdout)
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	for n := 1; in.Scan(); n++ {
		var st step
		if err := json.Unmarshal(in.Bytes(), &st); err != nil {
			return err
		}
		if err := out.Encode(call(ctx, s, h, &st, idle, n)); err != nil {
			return err
		}
	}
	return in.Err()
}

var (
	errIdle   = errors.New("idle limit")
	errGaveUp = errors.New("gave up")
)

func call(ctx context.Context, s *mcp.ClientSession, h *hearing, st *step, idle time.Duration, n int) said {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	silence := time.AfterFunc(idle, func() { stop(errIdle) })
	defer silence.Stop()
	if st.GiveUpMS > 0 {
		t := time.AfterFunc(time.Duration(st.GiveUpMS)*time.Millisecond, func() { stop(errGaveUp) })
		defer t.Stop()
	}
	h.begin(func() { silence.Reset(idle) })
	start := time.Now()
	p := &mcp.CallToolParams{Name: st.Tool, Arguments: st.Args}
	p.SetProgressToken(fmt.Sprintf("agent-%d", n))
	r, err := s.CallTool(ctx, p)
	o := said{Seconds: time.Since(start).Seconds()}
	heard, longest := h.end()
	o.Heard, o.Silence = heard, longest.Seconds()
	switch {
	case context.Cause(ctx) != nil:
		o.Cancelled = context.Cause(ctx).Error()
		return o
	case err != nil:
		o.Error = err.Error()
		return o
	}
	o.IsError = r.IsError
	var texts []string
	for _, c := range r.Content {
		if c, ok := c.(*mcp.TextContent); ok {
			texts = append(texts, c.Text)
		}
	}
	o.Text = strings.Join(texts, "\n")
	if r.StructuredContent != nil {
		o.Structured, _ = json.Marshal(r.StructuredContent)
	}
	return o
}
