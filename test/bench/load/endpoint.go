package load

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	legacyVersion = "2025-11-25"
	modernVersion = "2026-07-28"
)

// Endpoint is one way to the upstream: the floor's or the gateway's.
type Endpoint struct {
	name   string
	url    string
	modern bool
	proc   process
	client *http.Client
	why    string // how most of the calls failed that did

	mu   sync.Mutex
	tool string // the name under which the gateway shows the tool "work"
}

// NewEndpoint makes an endpoint whose process is pid, or is not measured if 0.
func NewEndpoint(name, url string, modern bool, pid int) *Endpoint {
	var n atomic.Uint32
	dialer := net.Dialer{Timeout: 30 * time.Second}
	return &Endpoint{name: name, url: url, modern: modern, proc: process(pid), client: &http.Client{
		Transport: &http.Transport{
			MaxIdleConns:        20000,
			MaxIdleConnsPerHost: 20000,
			DisableCompression:  true,
			DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
				d := dialer
				// One loopback address has some 28,000 ports; use several.
				if k := n.Add(1); k > 2000 {
					d.LocalAddr = &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+k%8))}
				}
				return d.DialContext(ctx, network, addr)
			},
		},
	}}
}

// session is one agent.
type session struct {
	*Endpoint
	id   string
	next atomic.Int64
}

func (e *Endpoint) request(ctx context.Context, method, session, name, lastEvent, body string) (*http.Response, error) {
	httpMethod := http.MethodPost
	if body == "" {
		httpMethod = method
	}
	req, err := http.NewRequestWithContext(ctx, httpMethod, e.url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	h := req.Header
	h.Set("Accept", "application/json, text/event-stream")
	if body != "" {
		h.Set("Content-Type", "application/json")
	}
	switch {
	case e.modern:
		h.Set("Mcp-Protocol-Version", modernVersion)
		h.Set("Mcp-Method", method)
		if name != "" {
			h.Set("Mcp-Name", name)
		}
	case method != "initialize":
		h.Set("Mcp-Protocol-Version", legacyVersion)
	}
	if session != "" {
		h.Set("Mcp-Session-Id", session)
	}
	if lastEvent != "" {
		h.Set("Last-Event-ID", lastEvent)
	}
	return e.client.Do(req)
}

// rpc sends a short request and returns the result. Params are the members of
// a JSON object.
func (e *Endpoint) rpc(ctx context.Context, method, session, params string) (json.RawMessage, http.Header, error) {
	resp, err := e.request(ctx, method, session, "", "", `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":{`+params+`}}`)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	r := bufio.NewReader(resp.Body)
	for {
		line, err := r.ReadBytes('\n')
		data := bytes.TrimSpace(bytes.TrimPrefix(line, []byte("data:")))
		var m struct {
			ID     json.RawMessage `json:"id"`
			Result json.RawMessage `json:"result"`
			Error  json.RawMessage `json:"error"`
		}
		if json.Unmarshal(data, &m) == nil && (m.Result != nil || m.Error != nil) {
			if m.Error != nil {
				return nil, nil, fmt.Errorf("%s: %s", method, m.Error)
			}
			return m.Result, resp.Header, nil
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%s: HTTP %d without an answer", method, resp.StatusCode)
		}
	}
}

const modernMeta = `"io.modelcontextprotocol/protocolVersion":"` + modernVersion + `",` +
	`"io.modelcontextprotocol/clientInfo":{"name":"loadgen","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}`

// open makes n agents, and finds the tool.
func (e *Endpoint) open(ctx context.Context, n int) ([]*session, error) {
	out := make([]*session, n)
	errs := make([]error, n)
	sem := make(chan struct{}, 8)
	var wg sync.WaitGroup
	for i := range out {
		wg.Go(func() {
			sem <- struct{}{}
			defer func() { <-sem }()
			out[i], errs[i] = e.openOne(ctx)
		})
	}
	wg.Wait()
	return out, errors.Join(errs...)
}

func (e *Endpoint) openOne(ctx context.Context) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	s := &session{Endpoint: e}
	if !e.modern {
		_, h, err := e.rpc(ctx, "initialize", "", `"protocolVersion":"`+legacyVersion+`","capabilities":{},"clientInfo":{"name":"loadgen","version":"1"}`)
		if err != nil {
			return nil, err
		}
		s.id = h.Get("Mcp-Session-Id")
		resp, err := e.request(ctx, "notifications/initialized", s.id, "", "", `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
		if err != nil {
			return nil, err
		}
		resp.Body.Close()
	}
	e.mu.Lock()
	known := e.tool != ""
	e.mu.Unlock()
	if known {
		return s, nil
	}
	params := ""
	if e.modern {
		params = `"_meta":{` + modernMeta + `}`
	}
	res, _, err := e.rpc(ctx, "tools/list", s.id, params)
	if err != nil {
		return nil, err
	}
	var list struct{ Tools []struct{ Name string } }
	if err := json.Unmarshal(res, &list); err != nil {
		return nil, fmt.Errorf("tools/list: %w", err)
	}
	for _, t := range list.Tools {
		if strings.HasSuffix(t.Name, "work") || len(list.Tools) == 1 {
			e.mu.Lock()
			e.tool = t.Name
			e.mu.Unlock()
			return s, nil
		}
	}
	return nil, errors.New("the gateway does not show the tool")
}

// close ends the agents' sessions.
func (e *Endpoint) close(sessions []*session) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	sem := make(chan struct{}, 8)
	var wg sync.WaitGroup
	for _, s := range sessions {
		if s == nil || s.id == "" {
			continue
		}
		wg.Go(func() {
			sem <- struct{}{}
			defer func() { <-sem }()
			if resp, err := e.request(ctx, http.MethodDelete, s.id, "", "", ""); err == nil {
				resp.Body.Close()
			}
		})
	}
	wg.Wait()
	e.client.CloseIdleConnections()
}
