package wire

import (
	"net/url"
	"strings"
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
