package wire

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// Client is an agent that writes raw HTTP/1.1 over TCP on loopback. Every
// exchange has a connection of its own. Its methods may be called from several
// goroutines, but for those that fail the test, which belong to the test's own.
type Client struct {
	Version string            // of the protocol; Initialize keeps it
	Accept  string            // AcceptBoth if empty
	Header  map[string]string // sent with every request; an empty value leaves a usual header out
	Session string            // Mcp-Session-Id, from Initialize
	Caps    string            // raw JSON of the client's capabilities; {} if empty
	Name    string            // clientInfo name; "dn" if empty

	t    testing.TB
	addr string
	path string
	next atomic.Int64
}

// NewClient makes an agent of an MCP endpoint, which must be on loopback.
func NewClient(t testing.TB, endpoint, version string) *Client {
	t.Helper()
	u, err := url.Parse(endpoint)
	fatalIf(t, err != nil || u.Scheme != "http" || u.Port() == "", "endpoint %q must be http with a port", endpoint)
	return &Client{t: t, Version: version, addr: u.Host, path: u.RequestURI()}
}

// HTTP is one request to send.
type HTTP struct {
	Verb   string // POST if empty
	Path   string // the endpoint's if empty
	Body   string
	Header map[string]string // over the client's own; an empty value leaves a header out
	Raw    string            // if not empty, these bytes are sent instead of all of the above

	// Pieces, if not nil, are the body's parts, each sent as a segment of its
	// own with Pause before the next.
	Pieces []string
	Pause  time.Duration
}

// bytes builds the request's segments.
func (c *Client) bytes(h HTTP) []string {
	if h.Raw != "" {
		return []string{h.Raw}
	}
	if h.Verb == "" {
		h.Verb = http.MethodPost
	}
	if h.Path == "" {
		h.Path = c.path
	}
	if h.Pieces != nil {
		h.Body = strings.Join(h.Pieces, "")
	}
	header := map[string]string{"Host": c.addr, "Accept": c.Accept}
	if c.Accept == "" {
		header["Accept"] = AcceptBoth
	}
	if h.Body != "" || h.Verb == http.MethodPost {
		header["Content-Type"] = "application/json"
		header["Content-Length"] = strconv.Itoa(len(h.Body))
	}
	if c.Session != "" {
		header["Mcp-Session-Id"] = c.Session
		header["Mcp-Protocol-Version"] = c.Version
	}
	maps.Copy(header, c.Header)
	maps.Copy(header, h.Header)
	var b strings.Builder
	b.WriteString(h.Verb + " " + h.Path + " HTTP/1.1\r\nHost: " + header["Host"] + "\r\n")
	delete(header, "Host")
	for k, v := range header {
		if v != "" {
			b.WriteString(k + ": " + v + "\r\n")
		}
	}
	b.WriteString("\r\n")
	if h.Pieces != nil {
		return append([]string{b.String()}, h.Pieces...)
	}
	return []string{b.String() + h.Body}
}

// Do sends a request on a connection of its own and returns at once.
func (c *Client) Do(h HTTP) *Exchange {
	x := &Exchange{t: c.t, sent: time.Now(), changed: make(chan struct{}), ended: make(chan struct{})}
	ctx, cancel := context.WithTimeout(c.t.Context(), 10*time.Second)
	defer cancel()
	nc, err := (&net.Dialer{}).DialContext(ctx, "tcp", c.addr)
	if err != nil {
		x.end(fmt.Errorf("connect: %w", err))
		return x
	}
	x.conn = nc.(*net.TCPConn)
	c.t.Cleanup(x.stop)
	segments := c.bytes(h)
	x.sent = time.Now()
	go x.run(segments, h.Pause)
	return x
}

// Call is one tools/call to make.
type Call struct {
	Tool   string // "work" if empty
	Args   string // raw JSON object; {} if empty
	ID     string // raw JSON; the next number if empty
	Token  string // raw JSON of a progress token; none if empty
	Meta   string // further raw members of _meta, without braces
	Header map[string]string
	Pieces []string // see HTTP: instead of the body that is made from the above
	Pause  time.Duration
}

// id is the next request id.
func (c *Client) id() string { return strconv.FormatInt(c.next.Add(1), 10) }

// Message builds a request in the client's era. Params are members of an
// object, without braces; meta likewise.
func (c *Client) Message(id, method, params, meta string) string {
	if modern(c.Version) {
		name := c.Name
		if name == "" {
			name = "dn"
		}
		caps := c.Caps
		if caps == "" {
			caps = "{}"
		}
		meta = join(meta, `"io.modelcontextprotocol/protocolVersion":"`+c.Version+`","io.modelcontextprotocol/clientInfo":{"name":"`+name+
			`","version":"1"},"io.modelcontextprotocol/clientCapabilities":`+caps)
	}
	if meta != "" {
		params = join(params, `"_meta":{`+meta+`}`)
	}
	if id != "" {
		id = `"id":` + id + `,`
	}
	return `{"jsonrpc":"2.0",` + id + `"method":"` + method + `","params":{` + params + `}}`
}

func join(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "," + b
}

// headers are those that the modern era asks for, under those given.
func (c *Client) headers(method, name string, over map[string]string) map[string]string {
	h := map[string]string{}
	if modern(c.Version) {
		h["Mcp-Protocol-Version"], h["Mcp-Method"], h["Mcp-Name"] = c.Version, method, name
	}
	maps.Copy(h, over)
	return h
}

// Start sends a tools/call and returns at once.
func (c *Client) Start(call Call) *Exchange {
	if call.Tool == "" {
		call.Tool = "work"
	}
	if call.Args == "" {
		call.Args = "{}"
	}
	if call.ID == "" {
		call.ID = c.id()
	}
	meta := call.Meta
	if call.Token != "" {
		meta = join(`"progressToken":`+call.Token, meta)
	}
	body := c.Message(call.ID, "tools/call", `"name":`+Quote(call.Tool)+`,"arguments":`+call.Args, meta)
	x := c.Do(HTTP{Body: body, Header: c.headers("tools/call", call.Tool, call.Header), Pieces: call.Pieces, Pause: call.Pause})
	x.ID = call.ID
	return x
}

// Read sends a request of one of the kinds in Reads and returns at once. Its params
// have the call's arguments, as those of a prompt or as a member that nobody knows.
func (c *Client) Read(method string, call Call) *Exchange {
	name, params := "p", `"name":"p"`
	switch method {
	case "resources/read":
		name, params = "play:it", `"uri":"play:it"`
	case "completion/complete":
		name, params = "", `"ref":{"type":"ref/prompt","name":"p"},"argument":{"name":"a","value":""}`
	}
	if call.ID == "" {
		call.ID = c.id()
	}
	meta := call.Meta
	if call.Token != "" {
		meta = join(`"progressToken":`+call.Token, meta)
	}
	if call.Args != "" {
		params += `,"arguments":` + call.Args
	}
	x := c.Do(HTTP{Body: c.Message(call.ID, method, params, meta), Header: c.headers(method, name, call.Header), Pieces: call.Pieces, Pause: call.Pause})
	x.ID = call.ID
	return x
}

// Request sends a request other than a call and waits for its response.
// Params are members of an object, without braces.
func (c *Client) Request(method, params string) Msg {
	c.t.Helper()
	x := c.Do(HTTP{Body: c.Message(c.id(), method, params, ""), Header: c.headers(method, "", nil)})
	m := x.Response(Timeout)
	if method == "initialize" {
		c.Session = x.Head(0).Get("Mcp-Session-Id")
	}
	return m
}

// Notify sends a notification and waits for its status, which it returns.
func (c *Client) Notify(method, params string) int {
	c.t.Helper()
	x := c.Do(HTTP{Body: c.Message("", method, params, ""), Header: c.headers(method, "", nil)})
	x.Head(Timeout)
	return x.Status()
}

// Initialize opens a session, or does nothing in the stateless era. It returns
// the result of initialize.
func (c *Client) Initialize() Msg {
	c.t.Helper()
	if modern(c.Version) {
		return Msg{}
	}
	caps := c.Caps
	if caps == "" {
		caps = "{}"
	}
	name := c.Name
	if name == "" {
		name = "dn"
	}
	m := c.Request("initialize", `"protocolVersion":"`+c.Version+`","capabilities":`+caps+`,"clientInfo":{"name":"`+name+`","version":"1"}`)
	fatalIf(c.t, m.Result == nil, "initialize: %s", m.JSON)
	status := c.Notify("notifications/initialized", "")
	fatalIf(c.t, status != 202, "notifications/initialized: HTTP %d", status)
	return m
}

// Cancel sends a notifications/cancelled for a raw JSON request id.
func (c *Client) Cancel(id string) int {
	c.t.Helper()
	return c.Notify("notifications/cancelled", `"requestId":`+id+`,"reason":"the test asks"`)
}

// Listen opens the standalone stream, or resumes one after an event id.
func (c *Client) Listen(lastEventID string) *Exchange {
	return c.Do(HTTP{Verb: http.MethodGet, Header: map[string]string{"Accept": "text/event-stream", "Last-Event-ID": lastEventID}})
}

// Delete ends the session and returns the status.
func (c *Client) Delete() int {
	c.t.Helper()
	x := c.Do(HTTP{Verb: http.MethodDelete})
	x.Head(Timeout)
	return x.Status()
}
