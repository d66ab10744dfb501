package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/downstream"
)

// A new process takes over from one that serves a state folder, in steps of
// which each can only follow the one before:
//
//	new  has a config that is right; asks the old one (POST /api/replace)
//	old  hands its listening socket over; nothing has changed yet
//	new  says "go"
//	old  accepts no connection any more: they wait in the socket. What comes on
//	     open connections goes to the new one. What was there before has started;
//	     then it takes no new call, stores what it has, and says "free"
//	new  opens the journal, takes up what it may, accepts: says "serving"
//	old  ends the streams that can be resumed elsewhere, carries its calls to
//	     their ends, at most for shutdown.drain, and exits
//	new  takes up what the old one has left
//
// No connection is refused, and no request meets a process that does not want
// it any more. An error before "go" leaves the old one as it was. The two talk
// over a unix socket of the new one; that the new one is gone ends it.

const (
	// settleTime bounds the wait for requests that came before the switch and
	// have not started their call yet: only a body that comes slowly takes that
	// long, and its agent is told to call again.
	settleTime = 5 * time.Second
	// replacedLinger is how long connections stay open after the switch on which
	// nothing comes: each ends with an answer that says so, and no agent meets a
	// connection that closes under its request.
	replacedLinger = 5 * time.Second
	handOverTime   = time.Minute // from "go" to "serving"
)

// maxPassed bounds a request that is passed on, in bytes; a longer one is cut, and
// its agent told so by the successor.
const maxPassed = 64 << 20

// front is what all requests pass: it counts those that have not come to their
// call yet, and gives them to the successor if there is one.
type front struct {
	entered   atomic.Uint64 // requests to agents' endpoints
	observed  atomic.Uint64 // those of them whose call has started, or that need none
	conns     atomic.Int64  // open connections
	passed    atomic.Int64  // requests that the successor answers through us, now
	successor atomic.Pointer[httputil.ReverseProxy]
}

// enter counts a request; it is false if that belongs to the successor.
func (f *front) enter() bool {
	f.entered.Add(1)
	if f.successor.Load() == nil {
		return true
	}
	f.observed.Add(1)
	return false
}

// settled waits until all that entered has come to its call, or for settleTime.
func (f *front) settled() bool {
	deadline := time.Now().Add(settleTime)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	// In this order: what enters later is not counted as if it was there before.
	for observed := f.observed.Load(); observed < f.entered.Load(); observed = f.observed.Load() {
		if time.Now().After(deadline) {
			return false
		}
		<-tick.C
	}
	return true
}

// pass has the successor answer, and the connection end with that.
func (f *front) pass(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet && strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
		// A stream that waits, or goes on where another one has ended: through us
		// it would hold us. One that ends at once is opened again, on a new connection.
		h := w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-cache, no-transform")
		h.Set("Connection", "close")
		_, _ = io.WriteString(w, "retry: 100\n\n") // whoever is gone needs no answer
		return
	}
	f.passed.Add(1)
	defer f.passed.Add(-1)
	// Whole, before any byte of an answer: the server would throw away what is
	// unread then (A7). The successor has its own limit and says so.
	body, err := io.ReadAll(io.LimitReader(r.Body, maxPassed))
	if err != nil {
		w.Header().Set("Connection", "close")
		http.Error(w, "the request ended before its body was complete", http.StatusBadRequest)
		return
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	f.successor.Load().ServeHTTP(w, r)
}

// connState counts connections.
func (f *front) connState(_ net.Conn, s http.ConnState) {
	switch s {
	case http.StateNew:
		f.conns.Add(1)
	case http.StateClosed, http.StateHijacked:
		f.conns.Add(-1)
	}
}

// passing makes what forwards requests to the process that listens now where a
// connection came in: so it sees what that connection was for. elsewhere is its
// address if it is another one; then only what came over loopback is passed on
// to a loopback address, and the rest is asked to come again.
func passing(elsewhere string) *httputil.ReverseProxy {
	dialer := &net.Dialer{Timeout: handOverTime}
	to := func(ctx context.Context) (string, bool) {
		here, ok := ctx.Value(http.LocalAddrContextKey).(*net.TCPAddr)
		if elsewhere == "" {
			if !ok {
				return "", false
			}
			return here.String(), true
		}
		there, err := net.ResolveTCPAddr("tcp", elsewhere)
		return elsewhere, err == nil && ok && here.IP.IsLoopback() && there.IP.IsLoopback()
	}
	return &httputil.ReverseProxy{
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0), // its lines may quote what clients sent
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host = "http", p.In.Host // the dialer knows better
			p.Out.Host = p.In.Host
			if p.Out.URL.Host == "" {
				p.Out.URL.Host = "localhost"
			}
		},
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				addr, ok := to(ctx)
				if !ok {
					return nil, errors.New("longcall listens on another address now")
				}
				return dialer.DialContext(ctx, network, addr)
			},
			DisableKeepAlives:  true, // a connection may be for another address than the next request
			DisableCompression: true,
		},
		ModifyResponse: func(resp *http.Response) error {
			resp.Header.Set("Connection", "close")
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) {
			w.Header().Set("Connection", "close")
			w.Header().Set("Retry-After", "1")
			http.Error(w, "longcall is being replaced: send the request again, on a new connection", http.StatusServiceUnavailable)
		},
	}
}

// gate is a listener that can stop to accept without closing: connections wait
// in the socket then, for whoever else has it.
type gate struct {
	*net.TCPListener
	mu     sync.Mutex
	paused bool
	opened chan struct{} // closed by resume and Close
}

func newGate(ln *net.TCPListener) *gate { return &gate{TCPListener: ln} }

// Accept waits for the next connection.
func (g *gate) Accept() (net.Conn, error) {
	for {
		c, err := g.TCPListener.Accept()
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			return c, err
		}
		g.mu.Lock()
		paused, opened := g.paused, g.opened
		g.mu.Unlock()
		if paused {
			<-opened
		}
	}
}

func (g *gate) pause() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.paused, g.opened = true, make(chan struct{})
	return g.SetDeadline(time.Unix(1, 0))
}

func (g *gate) resume() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.paused {
		g.paused = false
		_ = g.SetDeadline(time.Time{}) // it is closed, or it works
		close(g.opened)
	}
}

// Close ends Accept, paused or not.
func (g *gate) Close() error {
	err := g.TCPListener.Close()
	g.resume()
	return err
}

// sameAddress says whether what is to be listened on is what ln listens on.
func sameAddress(listen string, ln *net.TCPListener) bool {
	want, err := net.ResolveTCPAddr("tcp", listen)
	has, ok := ln.Addr().(*net.TCPAddr)
	if err != nil || !ok || want.Port != 0 && want.Port != has.Port {
		return false
	}
	return want.IP.Equal(has.IP) || (want.IP == nil || want.IP.IsUnspecified()) && has.IP.IsUnspecified()
}

// lingerReplaced waits until the connections that were open at the switch have
// ended, each with an answer that says so, or long enough.
func (a *App) lingerReplaced(since time.Time, drain time.Duration) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for a.front.conns.Load() > 0 {
		idle := a.front.passed.Load() == 0
		if spent := time.Since(since); idle && spent >= replacedLinger || spent >= max(drain, replacedLinger) {
			return
		}
		<-tick.C
	}
}

// observed tells the front, beside telemetry, that a request has come to its call.
type observed struct {
	requests
	front *front
}

func (o observed) RequestStarted(q *downstream.Request) {
	o.front.observed.Add(1)
	o.requests.RequestStarted(q)
}

// takeUp takes up what the process before us leaves when it is gone.
func (a *App) takeUp(ctx context.Context, epoch uint64) {
	if err := a.journal.WaitOwner(ctx, epoch); err != nil {
		return // we stop ourselves
	}
	adopted, lost, err := a.engine.Recover(ctx)
	switch {
	case err != nil && ctx.Err() == nil:
		a.log.Error("the calls that the replaced longcall has left are not taken up before the next start", "error", err)
	case adopted > 0 || lost > 0:
		a.log.Info("took up what the replaced longcall has left", "adopted", adopted, "lost", lost)
	}
}

// cancelElsewhere passes a cancel on to the process that still carries a call of
// the principal; it is ErrUnknown if there is none.
func (a *App) cancelElsewhere(ctx context.Context, principal string, id call.ID, end call.End) error {
	rec, err := a.journal.Get(ctx, id)
	switch {
	case err != nil && !errors.Is(err, call.ErrUnknown):
		return fmt.Errorf("look the call up: %w", err)
	case err != nil || rec.Principal != principal:
		return call.ErrUnknown
	case rec.End.Outcome != call.Running:
		return call.ErrNotRunning
	case a.opt.Predecessor == nil:
		return call.ErrUnknown
	}
	return a.opt.Predecessor.cancel(principal, id, end)
}
