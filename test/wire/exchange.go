package wire

import (
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Read is what one read of the socket gave.
type Read struct {
	At    time.Duration // since the request was sent
	Bytes []byte
}

// Exchange is one request and what comes back on its connection. Limits of 0
// mean Timeout.
type Exchange struct {
	ID string // raw JSON id of a call

	t     testing.TB
	conn  *net.TCPConn
	sent  time.Time
	ended chan struct{}
	wg    sync.WaitGroup

	mu      sync.Mutex
	changed chan struct{}
	reads   []Read
	dec     decoder
	headAt  time.Duration
	firstAt time.Duration
	body    []byte
	split   Splitter
	items   []Item
	endAt   time.Duration
	err     error // why the connection ended before the response did
	over    bool
	closed  bool
}

func (x *Exchange) run(segments []string, pause time.Duration) {
	x.wg.Go(func() {
		for i, s := range segments {
			if i > 0 && pause > 0 && !x.pause(pause) {
				return
			}
			if _, err := x.conn.Write([]byte(s)); err != nil {
				return // the reader tells what became of the connection
			}
		}
	})
	buf := make([]byte, 64<<10)
	for {
		n, err := x.conn.Read(buf)
		if n > 0 {
			x.took(buf[:n])
		}
		x.mu.Lock()
		done := x.dec.done || x.err != nil
		x.mu.Unlock()
		if done {
			err = nil
		} else if err == nil {
			continue
		}
		x.end(err)
		return
	}
}

// pause waits for d; false if the exchange ended before.
func (x *Exchange) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-x.ended:
		return false
	}
}

// took takes in the bytes of one read.
func (x *Exchange) took(b []byte) {
	at := time.Since(x.sent)
	b = slices.Clone(b)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.reads = append(x.reads, Read{at, b})
	had := x.dec.head != nil
	body, err := x.dec.feed(b)
	if err != nil && x.err == nil {
		x.err = err
	}
	if !had && x.dec.head != nil {
		x.headAt = at
	}
	if len(body) > 0 {
		if len(x.body) == 0 {
			x.firstAt = at
		}
		x.body = append(x.body, body...)
		if x.sse() {
			x.items = append(x.items, x.split.Feed(body, at)...)
		}
	}
	x.wakeLocked()
}

func (x *Exchange) sse() bool {
	return x.dec.head != nil && strings.HasPrefix(strings.ToLower(x.dec.head.header.Get("Content-Type")), "text/event-stream")
}

func (x *Exchange) wakeLocked() {
	close(x.changed)
	x.changed = make(chan struct{})
}

func (x *Exchange) end(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.endAt = time.Since(x.sent)
	if err != nil && x.err == nil {
		x.err = err
		if errors.Is(err, io.EOF) && x.dec.head != nil && !x.dec.head.chunked && x.dec.head.length < 0 {
			x.err = nil // a body without a length ends with the connection
		}
	}
	x.over = true
	if x.conn != nil {
		x.conn.Close()
	}
	close(x.ended)
	x.wakeLocked()
}

func (x *Exchange) stop() {
	x.Close()
	<-x.ended
	x.wg.Wait()
}

func (x *Exchange) wake() <-chan struct{} {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.changed
}

// until waits for a condition, which is called under the lock.
func (x *Exchange) until(limit time.Duration, cond func() bool) bool {
	if limit == 0 {
		limit = Timeout
	}
	return waitFor(limit, x.wake, func() bool {
		x.mu.Lock()
		defer x.mu.Unlock()
		return cond()
	})
}

// Close hangs up in the orderly way (FIN).
func (x *Exchange) Close() { x.hangUp(false) }

// Reset hangs up by force (RST).
func (x *Exchange) Reset() { x.hangUp(true) }

func (x *Exchange) hangUp(hard bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.conn == nil || x.closed {
		return
	}
	x.closed = true
	if hard {
		_ = x.conn.SetLinger(0) // a connection that is gone needs no reset
	}
	x.conn.Close()
}

// Since is the time since the request was sent.
func (x *Exchange) Since() time.Duration { return time.Since(x.sent) }

// Head waits for the response's headers and returns them.
func (x *Exchange) Head(limit time.Duration) http.Header {
	x.t.Helper()
	x.until(limit, func() bool { return x.dec.head != nil || x.over })
	x.mu.Lock()
	defer x.mu.Unlock()
	fatalIf(x.t, x.dec.head == nil, "no response headers after %v: %v", time.Since(x.sent), x.err)
	return x.dec.head.header
}

// Status is the HTTP status, 0 if none has come.
func (x *Exchange) Status() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.dec.head == nil {
		return 0
	}
	return x.dec.head.status
}

// HeadAt is when the headers came, since the request was sent; 0 if they have not.
func (x *Exchange) HeadAt() time.Duration { return x.get(func() time.Duration { return x.headAt }) }

// FirstAt is when the first byte of the body came, since the request was sent;
// 0 if it has not.
func (x *Exchange) FirstAt() time.Duration { return x.get(func() time.Duration { return x.firstAt }) }

// EndAt is when the response or its connection ended, since the request was
// sent; 0 if it has not.
func (x *Exchange) EndAt() time.Duration { return x.get(func() time.Duration { return x.endAt }) }

func (x *Exchange) get(f func() time.Duration) time.Duration {
	x.mu.Lock()
	defer x.mu.Unlock()
	return f()
}

// End waits for the response to end, whole or not, and says how: nil if it was
// whole. It fails the test if that does not happen in time.
func (x *Exchange) End(limit time.Duration) error {
	x.t.Helper()
	ok := x.until(limit, func() bool { return x.over })
	fatalIf(x.t, !ok, "the response has not ended after %v", time.Since(x.sent))
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.err
}

// Over says whether the response or its connection has ended.
func (x *Exchange) Over() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.over
}

// Reads lists all reads of the socket so far.
func (x *Exchange) Reads() []Read {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.reads)
}

// Body is the body so far.
func (x *Exchange) Body() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return string(x.body)
}

// Items lists the events and comments so far.
func (x *Exchange) Items() []Item {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.items)
}

// Comments lists the comments so far.
func (x *Exchange) Comments() []Item {
	return slices.DeleteFunc(x.Items(), func(i Item) bool { return !i.Comment })
}

// TimedMsg is a message and when it came.
type TimedMsg struct {
	Msg
	Came time.Duration // since the request was sent
}

// Messages lists the JSON-RPC messages so far, from events or a JSON body.
func (x *Exchange) Messages() (out []TimedMsg) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.messagesLocked()
}

func (x *Exchange) messagesLocked() (out []TimedMsg) {
	for _, i := range x.items {
		if m, ok := i.Msg(); ok {
			out = append(out, TimedMsg{m, i.At})
		}
	}
	if x.over && x.dec.head != nil && !x.sse() {
		if m, ok := ParseMsg(string(x.body)); ok {
			out = append(out, TimedMsg{m, x.endAt})
		}
	}
	return out
}

// Method lists the messages of one method so far.
func (x *Exchange) Method(method string) []TimedMsg {
	return slices.DeleteFunc(x.Messages(), func(m TimedMsg) bool { return m.Method != method })
}

// Progress lists the progress messages so far.
func (x *Exchange) Progress() []TimedMsg { return x.Method("notifications/progress") }

// WaitMessages waits for n messages of a method.
func (x *Exchange) WaitMessages(method string, n int, limit time.Duration) []TimedMsg {
	x.t.Helper()
	x.until(limit, func() bool {
		k := 0
		for _, m := range x.messagesLocked() {
			if m.Method == method {
				k++
			}
		}
		return k >= n || x.over
	})
	got := x.Method(method)
	fatalIf(x.t, len(got) < n, "%d of %d messages %q after %v; so far:\n%s", len(got), n, method, time.Since(x.sent), x.Body())
	return got
}

// WaitItems waits for n events and comments.
func (x *Exchange) WaitItems(n int, limit time.Duration) []Item {
	x.t.Helper()
	x.until(limit, func() bool { return len(x.items) >= n || x.over })
	got := x.Items()
	fatalIf(x.t, len(got) < n, "%d of %d events and comments after %v; so far:\n%s", len(got), n, time.Since(x.sent), x.Body())
	return got
}

// WaitResponse waits for the response, without failing the test.
func (x *Exchange) WaitResponse(limit time.Duration) (m TimedMsg, ok bool) {
	x.until(limit, func() bool {
		for _, k := range x.messagesLocked() {
			if k.Response() {
				m, ok = k, true
				return true
			}
		}
		return x.over
	})
	return m, ok
}

// Response waits for the JSON-RPC response and fails the test if there is none.
func (x *Exchange) Response(limit time.Duration) Msg {
	x.t.Helper()
	return x.TimedResponse(limit).Msg
}

// TimedResponse is like Response, with the time when it came.
func (x *Exchange) TimedResponse(limit time.Duration) TimedMsg {
	x.t.Helper()
	m, ok := x.WaitResponse(limit)
	if !ok {
		x.mu.Lock()
		err, body := x.err, string(x.body)
		x.mu.Unlock()
		x.t.Fatalf("no response after %v: HTTP %d, %v; so far:\n%s", time.Since(x.sent), x.Status(), err, body)
	}
	return m
}
