package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/longcall/longcall/internal/mcp"
)

// An event stream that broke is opened again with a back-off between these two.
const (
	reopenMin = 100 * time.Millisecond
	reopenMax = 2 * time.Second
)

// old is the way to a tool server of the 2024-11-05 transport (SPEC §1.5): one
// GET stream on which everything comes, and an address to post to that its first
// event announces. A stream that ends is a session that ends: calls on it are
// interrupted and never sent again.
type old struct {
	c      *stdioConn
	client *http.Client
	refuse func() // may be nil: the server does not speak this transport
}

// newSSE makes a connection of the 2024-11-05 transport. refuse, if not nil, is
// called when the server's answer says that it does not speak it.
func newSSE(s Server, hooks Hooks, refuse func()) *stdioConn {
	s = withCredentials(s)
	if s.Limits.Connect == 0 {
		s.Limits.Connect = defaultConnect
	}
	if s.RestartMin <= 0 {
		s.RestartMin = reopenMin
	}
	if s.RestartMax <= 0 {
		s.RestartMax = reopenMax
	}
	c := newStdio(s, hooks)
	o := &old{c: c, refuse: refuse, client: &http.Client{
		Transport:     newTransport(s, netDialer(s).DialContext),
		CheckRedirect: sameOriginGet,
	}}
	c.begin = o.open
	c.late = "longcall goes on trying, so try again shortly"
	c.renews = func() { hooks.Reconnected("session") }
	return c
}

// sameOriginGet follows redirects of the stream only: a message that was sent is
// not sent again.
func sameOriginGet(req *http.Request, via []*http.Request) error {
	if req.Method != http.MethodGet {
		return http.ErrUseLastResponse
	}
	return sameOrigin(req, via)
}

// open opens a stream and a session on it.
func (o *old) open(st *starting) (*life, error) {
	c := o.c
	if err := c.pause(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(c.ctx, c.s.Limits.Connect, fmt.Errorf("it was not ready after %s", c.s.Limits.Connect))
	defer cancel()
	hello := &hello{c: c, st: st}
	hello.phase("has not opened its event stream yet")
	l, err := o.connect(ctx)
	if err == nil {
		hello.life = l
		if err = hello.initialize(ctx); err == nil {
			l.wire.out.(*posts).settle() // no call may overtake what ends the handshake
			c.hooks.Log.Info("tool server connected", "transport", "sse")
			return l, nil
		}
		if errors.Is(err, errOver) {
			<-l.over
			err = errors.New(l.wire.cause)
		}
		l.stop(c.ctx, 0, 0)
	}
	switch {
	case c.ctx.Err() != nil:
		return nil, errClosed
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	var status *statusError
	if errors.As(err, &status) && status.Status/100 == 4 && o.refuse != nil {
		o.refuse()
	}
	return nil, &goneError{text: fmt.Sprintf("the tool server %q cannot be used now: %v", c.s.Name, rootCause(err))}
}

// connect opens the stream, to its first event. The stream goes on when ctx ends.
func (o *old) connect(ctx context.Context) (*life, error) {
	c := o.c
	read, stop := context.WithCancel(context.WithoutCancel(c.ctx))
	late := context.AfterFunc(ctx, stop)
	fail := func(err error) (*life, error) {
		stop()
		return nil, err
	}
	req, err := http.NewRequestWithContext(read, http.MethodGet, c.s.URL, http.NoBody)
	if err != nil {
		return fail(err)
	}
	c.s.stamp(req)
	req.Header["Accept"] = []string{"text/event-stream"}
	resp, err := o.client.Do(req)
	if err != nil {
		return fail(err)
	}
	if resp.StatusCode != http.StatusOK || mediaType(resp) != "text/event-stream" {
		resp.Body.Close()
		return fail(&statusError{Status: resp.StatusCode})
	}
	in := &events{r: mcp.NewSSEReader(resp.Body, int(c.s.maxMessage()))}
	address, err := in.address(resp.Request.URL)
	if err == nil && !late() {
		err = context.Cause(ctx)
	}
	if err != nil {
		resp.Body.Close()
		return fail(err)
	}
	out := &posts{
		server: c.s.Name, client: o.client, gone: func() { in.gone.Store(true); stop() },
		ended: make(chan struct{}), idle: make(chan struct{}), open: map[*posting]bool{},
		to: func(ctx context.Context, body []byte) (*http.Request, error) {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
			if err == nil {
				c.s.stamp(req)
				req.Header["Accept"] = bothTypes
				req.Header["Content-Type"] = jsonType
			}
			return req, err
		},
	}
	out.ctx, out.cancel = context.WithCancel(context.WithoutCancel(c.ctx))
	w := newWire(c.s, c.hooks, in, out)
	out.lost = w.notTaken
	l := &life{wire: w, over: make(chan struct{}), noted: make(chan struct{})}
	l.end = func(ctx context.Context, _, _ time.Duration) {
		select { // what is on its way may be a cancel
		case <-out.idle:
		case <-ctx.Done():
		}
		stop()
	}
	w.start()
	c.wg.Go(func() {
		<-w.broken
		running := w.running()
		out.finish()
		stop()
		resp.Body.Close()
		w.wg.Wait()
		cause := fmt.Sprintf("the event stream of the tool server %q ended", c.s.Name)
		switch {
		case l.closing.Load():
			cause = fmt.Sprintf("longcall closed the connection to the tool server %q", c.s.Name)
		case in.gone.Load():
			cause = fmt.Sprintf("the tool server %q forgot its session", c.s.Name)
		}
		if running > 0 && !l.closing.Load() {
			c.hooks.Reconnected("lost")
		}
		c.hooks.Log.Info("tool server disconnected", "asked", l.closing.Load(), "calls_lost", running, "junk", w.junk.Load(), "unattributed", w.loose.Load())
		w.end(cause, "")
		o.client.CloseIdleConnections()
		close(l.over)
	})
	return l, nil
}

// events is the inlet of a conversation of the 2024-11-05 transport.
type events struct {
	r    *mcp.SSEReader
	gone atomic.Bool // the server said that it does not know the session
}

// Next is the data of the next message event.
func (e *events) Next() ([]byte, error) {
	for {
		ev, err := e.r.Next()
		var long *mcp.LongEvent
		switch {
		case errors.As(err, &long):
			return nil, &mcp.LongLine{Head: long.Head, Tail: long.Tail, Size: long.Size}
		case err != nil:
			return nil, err
		case len(ev.Data) > 0 && (ev.Name == "" || ev.Name == "message"):
			return ev.Data, nil
		}
	}
}

// address reads the first event, which must announce where messages are posted
// to: at the origin of the stream, for our credentials are for it alone.
func (e *events) address(stream *url.URL) (string, error) {
	for {
		ev, err := e.r.Next()
		switch {
		case err != nil:
			return "", fmt.Errorf("its event stream ended before it said where to post: %w", err)
		case ev.Comment || len(ev.Data) == 0:
			continue
		case ev.Name != "endpoint":
			return "", errors.New("the first event of its stream is no endpoint event, so it does not speak HTTP with SSE of 2024-11-05")
		}
		at, err := stream.Parse(string(bytes.TrimSpace(ev.Data)))
		switch {
		case err != nil:
			return "", fmt.Errorf("its endpoint event holds no address: %q", printable(ev.Data))
		case at.Scheme != stream.Scheme || at.Host != stream.Host || at.User != nil:
			return "", fmt.Errorf("its endpoint event names another origin (%s://%s), which longcall does not follow", at.Scheme, at.Host)
		}
		at.Fragment = ""
		return at.String(), nil
	}
}

// notTaken ends the wait for a request that did not reach the server.
func (w *wire) notTaken(id string, u *unsent, sure bool) {
	w.mu.Lock()
	p := w.waiting[id]
	w.mu.Unlock()
	if p == nil || !sure && p.last.Load() != 0 { // it has shown signs of work
		return
	}
	if p = w.claim(id); p != nil {
		w.settle(p, &response{unsent: u})
	}
}
