package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptrace"
	"slices"
	"sync"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// postTurn is how long a message that answers or cancels something waits for
// what was posted before it. A server may answer a POST only when its call has
// ended, so that no order can be kept for longer.
const postTurn = time.Second

// posts is the outlet of a conversation of the 2024-11-05 transport: each message
// is a POST of its own to the address that the server announced. Requests do not
// wait for each other; a notification or a response comes after what was put
// before it, as far as that is taken at once.
type posts struct {
	server string
	client *http.Client
	to     func(ctx context.Context, body []byte) (*http.Request, error)
	// lost is told of a request that was not taken. sure is false if the server
	// may have taken it all the same, and its answer may yet come.
	lost func(id string, u *unsent, sure bool)
	gone func() // the server does not know the session any more

	ctx    context.Context
	cancel context.CancelFunc
	ended  chan struct{} // closed by finish
	idle   chan struct{} // closed when run returns

	mu       sync.Mutex
	open     map[*posting]bool
	bytes    int
	finished bool
	wg       sync.WaitGroup
}

// posting is one message on its way.
type posting struct {
	id     string // of a request, else empty
	body   []byte
	ctx    context.Context
	cancel context.CancelFunc
	left   bool          // its first byte may have left; under posts.mu
	back   bool          // it was taken back; under posts.mu
	over   chan struct{} // closed when the server has taken it, or will not
}

var errTakenBack = errors.New("the request was taken back")

func (p *posts) put(id string, message []byte, before func() error) error {
	message = mcp.OneLine(message)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.finished:
		return errOver
	case p.bytes > 0 && p.bytes+len(message) > outboxSize:
		return fmt.Errorf("the tool server does not take what is sent to it (%d bytes are waiting for it)", p.bytes)
	}
	if before != nil {
		if err := before(); err != nil {
			return err
		}
	}
	m := &posting{id: id, body: message, over: make(chan struct{})}
	m.ctx, m.cancel = context.WithCancel(p.ctx)
	var first []*posting
	if id == "" {
		first = slices.Collect(maps.Keys(p.open))
	}
	p.open[m] = true
	p.bytes += len(message)
	p.wg.Go(func() {
		p.turn(first)
		p.carry(m)
		m.cancel()
		p.mu.Lock()
		delete(p.open, m)
		p.bytes -= len(message)
		p.mu.Unlock()
		close(m.over)
	})
	return nil
}

// turn waits until the messages before one are taken, within reason.
func (p *posts) turn(first []*posting) {
	if len(first) == 0 {
		return
	}
	t := time.NewTimer(postTurn)
	defer t.Stop()
	for _, m := range first {
		select {
		case <-m.over:
		case <-t.C:
			return
		case <-p.ctx.Done():
			return
		}
	}
}

// settle waits until all that was put is taken, within reason.
func (p *posts) settle() {
	p.mu.Lock()
	all := slices.Collect(maps.Keys(p.open))
	p.mu.Unlock()
	p.turn(all)
}

// carry posts one message.
func (p *posts) carry(m *posting) {
	var refused error
	ctx := httptrace.WithClientTrace(m.ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if m.back {
			refused = errTakenBack
		}
		m.left = m.left || !m.back
	}})
	req, err := p.to(ctx, m.body)
	if err == nil {
		req.GetBody = func() (io.ReadCloser, error) {
			return &gatedBody{Reader: bytes.NewReader(m.body), refused: &refused}, nil
		}
		req.Body, _ = req.GetBody()
		var resp *http.Response
		if resp, err = p.client.Do(req); err == nil {
			p.answered(m, resp)
			return
		}
	}
	p.mu.Lock()
	left, back := m.left, m.back
	p.mu.Unlock()
	switch {
	case m.id == "" || back || p.ctx.Err() != nil:
		// Nobody waits for it, or what ended the conversation says why.
	case !left:
		p.lost(m.id, &unsent{
			failed("Not started: the tool server %q cannot be reached: %v. Nothing was sent, so calling again is safe.", p.server, rootCause(err)),
			fmt.Errorf("the tool server cannot be reached: %w", rootCause(err)),
		}, true)
	default:
		p.lost(m.id, &unsent{
			interrupted("the connection to the tool server broke while the call was sent (%v).", rootCause(err)),
			fmt.Errorf("the connection to the tool server broke: %w", rootCause(err)),
		}, false)
	}
}

// answered takes the response to a POST, which only says whether the message was
// taken: what answers it comes on the stream.
func (p *posts) answered(m *posting, resp *http.Response) {
	status := resp.StatusCode
	body, _ := readLimited(resp.Body, 64<<10) // what is more, or breaks off, says no more
	resp.Body.Close()
	if status/100 == 2 {
		return
	}
	err := &statusError{Status: status, Body: printable(body)}
	answer := refusedCall(p.server, resp, unnamed(err.Body, m.id))
	if status == http.StatusNotFound {
		answer = forgotten()
	}
	if m.id != "" {
		p.lost(m.id, &unsent{answer, err}, true)
	}
	if status == http.StatusNotFound {
		p.gone()
	}
}

func (p *posts) takeBack(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for m := range p.open {
		if m.id == id && !m.left {
			m.back = true
			m.cancel()
			return true
		}
	}
	return false
}

func (p *posts) finish() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.finished {
		p.finished = true
		close(p.ended)
	}
}

func (p *posts) over() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.finished
}

// run gives what is on its way at the end a moment more.
func (p *posts) run() error {
	defer close(p.idle)
	<-p.ended
	t := time.AfterFunc(postTurn, p.cancel)
	p.wg.Wait()
	t.Stop()
	p.cancel()
	return nil
}

// forgotten is the answer for a call that met a session which is no more.
func forgotten() call.Answer {
	return interrupted("the tool server had forgotten our session (HTTP 404) when the call reached it. The next call gets a new session.")
}
