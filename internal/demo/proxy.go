package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// proxy is what stands between agents and servers in the world: a layer that
// takes a connection without bytes for dead, and cuts it.
type proxy struct {
	target string
	cut    time.Duration
	onCut  func() // must not block

	ln     net.Listener
	dialer net.Dialer
	ctx    context.Context // of dialling; done at close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool

	silence atomic.Int64 // longest so far, in ns
	last    atomic.Int64 // when the last byte passed, in ns since start
	start   time.Time
}

func newProxy(ctx context.Context, target string, cut time.Duration, onCut func()) (*proxy, error) {
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start the demo's proxy: %w", err)
	}
	p := &proxy{
		target: target, cut: cut, onCut: onCut, ln: ln, dialer: net.Dialer{Timeout: 5 * time.Second},
		conns: map[net.Conn]struct{}{}, start: time.Now(),
	}
	p.ctx, p.cancel = context.WithCancel(context.WithoutCancel(ctx))
	p.wg.Go(p.accept)
	return p, nil
}

func (p *proxy) url() string { return "http://" + p.ln.Addr().String() }

func (p *proxy) close() {
	p.cancel()
	p.ln.Close()
	p.mu.Lock()
	p.closed = true
	for c := range p.conns {
		c.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

// quiet is how long no byte has passed.
func (p *proxy) quiet() time.Duration { return time.Since(p.start) - time.Duration(p.last.Load()) }

// longest is the longest silence of a connection that ended by itself, or was cut.
func (p *proxy) longest() time.Duration { return time.Duration(p.silence.Load()) }

// hold keeps a connection so that close can end it; false if it is too late.
func (p *proxy) hold(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		c.Close()
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *proxy) drop(c net.Conn) {
	c.Close()
	p.mu.Lock()
	delete(p.conns, c)
	p.mu.Unlock()
}

func (p *proxy) accept() {
	for {
		c, err := p.ln.Accept()
		if err != nil {
			return
		}
		if !p.hold(c) {
			return
		}
		p.wg.Go(func() {
			defer p.drop(c)
			p.serve(c)
		})
	}
}

// serve joins two connections until one ends or both are silent for too long.
func (p *proxy) serve(agent net.Conn) {
	server, err := p.dialer.DialContext(p.ctx, "tcp", p.target)
	if err != nil || !p.hold(server) {
		return
	}
	defer p.drop(server)
	var last atomic.Int64 // of this connection
	touch := func() {
		now := int64(time.Since(p.start))
		if s := now - last.Swap(now); s > p.silence.Load() {
			p.silence.Store(s)
		}
		p.last.Store(now)
	}
	last.Store(int64(time.Since(p.start)))
	touch()
	var wg sync.WaitGroup
	var once sync.Once
	pass := func(to, from net.Conn) {
		defer to.Close()
		defer from.Close()
		buf := make([]byte, 16<<10)
		for {
			// Silence counts over both directions, so that one that waits for
			// the other is woken to look.
			idle := p.cut - (time.Since(p.start) - time.Duration(last.Load()))
			_ = from.SetReadDeadline(time.Now().Add(max(idle, time.Millisecond)))
			n, err := from.Read(buf)
			if n > 0 {
				touch()
				if _, werr := to.Write(buf[:n]); werr != nil {
					return
				}
			}
			var ne net.Error
			if errors.As(err, &ne) && ne.Timeout() {
				if time.Since(p.start)-time.Duration(last.Load()) < p.cut {
					continue
				}
				once.Do(func() { // not for each direction
					p.silence.Store(max(p.silence.Load(), int64(p.cut)))
					p.onCut()
				})
				return
			}
			if err != nil && !errors.Is(err, io.ErrNoProgress) {
				return
			}
		}
	}
	wg.Go(func() { pass(server, agent) })
	pass(agent, server)
	wg.Wait()
}
