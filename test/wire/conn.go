package wire

import (
	"strconv"
	"strings"
	"sync"
	"time"
)

// Conn is the answering side of one request. All writes go out at once, as a
// segment of their own; errors of a connection that is gone are swallowed,
// since scripts cut connections on purpose.
type Conn struct {
	u    *Upstream
	tcp  *tcp
	req  *Request
	gone chan struct{}

	session string // of a stream of a server with Options.Old

	mu      sync.Mutex
	chunked bool
	shut    bool
}

// Write sends raw bytes.
func (c *Conn) Write(b string) {
	if c.u.isFrozen() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = c.tcp.Write([]byte(b)) // see Conn
}

// Head sends a response's status line and headers. Each header is "Name:
// value". Unless one gives a length, a body in chunks follows.
func (c *Conn) Head(status int, headers ...string) {
	c.chunked = true
	var b strings.Builder
	b.WriteString("HTTP/1.1 " + strconv.Itoa(status) + " status\r\n")
	for _, h := range headers {
		if strings.HasPrefix(strings.ToLower(h), "content-length:") {
			c.chunked = false
		}
		b.WriteString(h + "\r\n")
	}
	if c.chunked {
		b.WriteString("Transfer-Encoding: chunked\r\n")
	}
	c.Write(b.String() + "\r\n")
}

// SSE sends the head of an event stream.
func (c *Conn) SSE(headers ...string) {
	c.Head(200, append([]string{"Content-Type: text/event-stream", "Cache-Control: no-cache"}, headers...)...)
}

// Body sends pieces of the body, one chunk and one segment each.
func (c *Conn) Body(pieces ...string) {
	for _, b := range pieces {
		if c.chunked {
			b = strconv.FormatInt(int64(len(b)), 16) + "\r\n" + b + "\r\n"
		}
		c.Write(b)
	}
}

// Event sends messages as events without ids, one segment each.
func (c *Conn) Event(messages ...string) {
	for _, m := range messages {
		c.Body(Event("", m))
	}
}

// EventID sends one message as an event with an id.
func (c *Conn) EventID(id, message string) { c.Body(Event(id, message)) }

// End ends a body in chunks; the connection stays.
func (c *Conn) End() {
	if c.chunked {
		c.Write("0\r\n\r\n")
	}
}

// Answer sends messages as an event stream of their own, which ends after them.
func (c *Conn) Answer(messages ...string) {
	c.SSE()
	c.Event(messages...)
	c.End()
}

// JSON sends a whole JSON response. Further headers are "Name: value".
func (c *Conn) JSON(status int, body string, headers ...string) {
	c.Head(status, append([]string{"Content-Type: application/json", "Content-Length: " + strconv.Itoa(len(body))}, headers...)...)
	if body != "" {
		c.Write(body)
	}
}

// Status sends a response without a body.
func (c *Conn) Status(status int, headers ...string) {
	c.Head(status, append([]string{"Content-Length: 0"}, headers...)...)
}

// Close closes the connection in the orderly way (FIN).
func (c *Conn) Close() {
	if c.u.isFrozen() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shut = true
	c.tcp.Close()
}

// Reset kills the connection (RST).
func (c *Conn) Reset() {
	if c.u.isFrozen() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shut = true
	_ = c.tcp.SetLinger(0) // a connection that is gone needs no reset
	c.tcp.Close()
}

func (c *Conn) closed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.shut
}

// Gone is closed when the agent has closed the connection, or the script has.
func (c *Conn) Gone() <-chan struct{} { return c.gone }

// Pause waits for d. It returns false, and early, if the agent has left or the
// test is over.
func (c *Conn) Pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-c.gone:
	case <-c.u.done:
	}
	return false
}

// Hold waits until the agent has left or the test is over.
func (c *Conn) Hold() {
	select {
	case <-c.gone:
	case <-c.u.done:
	}
}

// Stream waits for the standalone stream of an agent and returns it. Nil means
// that none was opened before the test ended.
func (c *Conn) Stream() *Conn {
	s, err := c.u.stream(Timeout)
	if err != nil {
		return nil
	}
	return s
}

// Hold is a handler that gives no answer, not even headers, and keeps the
// connection until the agent leaves.
func Hold(c *Conn, _ *Request) { c.Hold() }

// Silent is a handler for a tool that sends the given message after a silence
// in which not even headers come.
func Silent(d time.Duration, text string) Handler {
	return func(c *Conn, r *Request) {
		if c.Pause(d) {
			c.JSON(200, r.Text(text))
		}
	}
}

// Refuse is a handler that answers with a status and no body.
func Refuse(status int) Handler { return func(c *Conn, _ *Request) { c.Status(status) } }
