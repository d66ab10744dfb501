package wire

import (
	"net/url"
	"strings"
	"testing"
	"time"
)

// A server with Options.Old has its stream at URL, which announces an address to
// post to. A POST is answered with 202, and what answers its message goes to the
// stream of its session; Conn.Stream is that stream for handlers in Options.On,
// which answer the POST themselves, with Took as a rule.

// oldPath is where messages are posted to.
const oldPath = "/post"

func (u *Upstream) oldHandler(r *Request) Handler {
	at, err := url.Parse(r.Path)
	if err != nil || at.Path != oldPath {
		if h := u.options().On[r.Verb]; h != nil && r.Verb == "GET" {
			return h
		}
		return u.OldStream
	}
	u.mu.Lock()
	known := u.sessions[at.Query().Get("session")]
	u.mu.Unlock()
	if !known {
		return Refuse(404)
	}
	if h := u.options().On[r.Key()]; h != nil {
		return h
	}
	return u.oldUsual
}

// OldStream opens the stream of a new session: the answer of a server with
// Options.Old to a GET, and 405 to all else.
func (u *Upstream) OldStream(c *Conn, r *Request) { u.oldStream(c, r, "") }

// OldStreamAbsolute announces an address with scheme and host.
func (u *Upstream) OldStreamAbsolute(c *Conn, r *Request) {
	u.oldStream(c, r, strings.TrimSuffix(u.URL, "/mcp"))
}

func (u *Upstream) oldStream(c *Conn, r *Request, base string) {
	if r.Verb != "GET" {
		c.Status(405, "Allow: GET")
		return
	}
	id := u.newSession()
	c.session = id
	c.SSE()
	u.change(func() { u.streams = append(u.streams, c) })
	c.Body("event: endpoint\ndata: " + base + oldPath + "?session=" + id + "\n\n")
	c.Hold()
	u.change(func() {
		delete(u.sessions, id)
		for i, s := range u.streams {
			if s == c {
				u.streams = append(u.streams[:i:i], u.streams[i+1:]...)
				break
			}
		}
	})
	c.Close()
}

// Took answers a POST with 202 and returns the stream of its session. The agent
// sends nothing more on the POST's connection, so that the handler may go on.
func (c *Conn) Took() *Conn {
	c.Status(202, "Connection: close")
	_, id, _ := strings.Cut(c.req.Path, "session=")
	c.u.mu.Lock()
	defer c.u.mu.Unlock()
	for _, s := range c.u.streams {
		if s.session == id {
			return s
		}
	}
	return c // the stream has ended: what is written here goes nowhere that matters
}

func (u *Upstream) oldUsual(c *Conn, r *Request) {
	s := c.Took()
	if r.ID != nil && !r.Response() {
		s.Event(u.reply(r))
	}
}

// OldClient is an agent of the 2024-11-05 transport: it posts messages to where
// its one stream says, and gets all answers on that stream.
type OldClient struct {
	*Client
	Stream *Exchange
}

// NewOldClient opens the stream at the endpoint, and a session on it, with raw JSON
// of the client's capabilities.
func NewOldClient(t testing.TB, endpoint, caps string) *OldClient {
	t.Helper()
	c := &OldClient{Client: NewClient(t, endpoint, "2024-11-05")}
	c.Stream = c.Do(HTTP{Verb: "GET", Header: map[string]string{"Accept": "text/event-stream"}})
	first := c.Stream.WaitItems(1, 0)[0]
	fatalIf(t, first.Type != "endpoint" || first.HasID, "the stream begins with %+v", first)
	c.path = first.Data
	c.Post(c.Message(`"hello"`, "initialize", `"protocolVersion":"2024-11-05","capabilities":`+caps+`,"clientInfo":{"name":"old","version":"1"}`, ""))
	m := c.Answer(`"hello"`)
	fatalIf(t, m.Result == nil, "initialize: %s", m.JSON)
	c.Post(c.Message("", "notifications/initialized", "", ""))
	return c
}

// Post sends a message, and fails the test if it is not accepted.
func (c *OldClient) Post(body string) *Exchange {
	c.t.Helper()
	x := c.Do(HTTP{Body: body})
	x.Head(0)
	fatalIf(c.t, x.Status() != 202, "posted %s, got HTTP %d: %s", body, x.Status(), x.Body())
	return x
}

// Call posts a tools/call, of which it takes the ID, Tool, Args and Token.
func (c *OldClient) Call(call Call) *Exchange {
	c.t.Helper()
	if call.Tool == "" {
		call.Tool = "work"
	}
	if call.Args == "" {
		call.Args = "{}"
	}
	meta := ""
	if call.Token != "" {
		meta = `"progressToken":` + call.Token
	}
	return c.Post(c.Message(call.ID, "tools/call", `"name":`+Quote(call.Tool)+`,"arguments":`+call.Args, meta))
}

// Answer waits for the response with a raw id.
func (c *OldClient) Answer(id string) TimedMsg {
	c.t.Helper()
	m, ok := c.answer(id, Timeout)
	fatalIf(c.t, !ok, "no answer with the id %s; so far:\n%s", id, c.Stream.Body())
	return m
}

// Silent waits for the whole time, and fails the test if a response with a raw
// id comes in it.
func (c *OldClient) Silent(id string, during time.Duration) {
	c.t.Helper()
	m, ok := c.answer(id, during)
	fatalIf(c.t, ok, "answered: %s", m.JSON)
}

func (c *OldClient) answer(id string, limit time.Duration) (m TimedMsg, ok bool) {
	c.Stream.until(limit, func() bool {
		for _, m = range c.Stream.messagesLocked() {
			if ok = m.Response() && string(m.ID) == id; ok {
				return true
			}
		}
		return c.Stream.over
	})
	return m, ok
}
