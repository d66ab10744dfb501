package upstream

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

// newTransport is tuned for many long calls to one server: no cap on idle
// connections below that of the calls, small buffers because most connections
// sit silent, no compression because it delays small events. Idle connections
// are closed before common servers do it (Node closes at 5 s): a request must
// not meet a connection that is just being closed, for it could not be sent
// again.
func newTransport(s Server, dial dialFunc) *http.Transport {
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         dial,
		MaxIdleConns:        20000,
		MaxIdleConnsPerHost: 20000,
		IdleConnTimeout:     2 * time.Second,
		TLSHandshakeTimeout: s.Limits.Connect,
		DisableCompression:  true,
		// Of every parked call: what is larger goes past them.
		ReadBufferSize:  1 << 10,
		WriteBufferSize: 1 << 10,
	}
}

// netDialer notices a peer that vanished without a word (P21): some 30 s after
// its last sign of life the kernel gives up, and the read fails.
func netDialer(s Server) *net.Dialer {
	return &net.Dialer{
		Timeout:         s.Limits.Connect,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3},
	}
}

// watchedDialer makes connections that report when the server closes them, and
// when the last of them is closed: then nothing is left that would tell of a
// restart of the server.
func watchedDialer(s Server, closed, none func()) dialFunc {
	d := netDialer(s)
	var open atomic.Int64
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		nc, err := d.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		open.Add(1)
		return &watchedConn{Conn: nc, closed: closed, gone: sync.OnceFunc(func() {
			if open.Add(-1) == 0 {
				none()
			}
		})}, nil
	}
}

type watchedConn struct {
	net.Conn
	closed, gone func()
}

func (c *watchedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)) {
		c.closed()
	}
	return n, err
}

func (c *watchedConn) Close() error {
	c.gone()
	return c.Conn.Close()
}

// quietConn knows when all bytes that have arrived were read and handled: the
// reader, which handles what it reads before it reads again, waits in Read,
// and the kernel holds nothing for it. A result that came on another
// connection waits for that, so that progress sent before it is not overtaken
// (P15), and for nothing else (P11).
type quietConn struct {
	net.Conn
	raw  syscall.RawConn
	idle atomic.Uint64 // odd while the reader has found the socket empty
}

func quietDialer(s Server) dialFunc {
	d := netDialer(s)
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		nc, err := d.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		if sc, ok := nc.(syscall.Conn); ok {
			if raw, err := sc.SyscallConn(); err == nil {
				return &quietConn{Conn: nc, raw: raw}, nil
			}
		}
		return nc, nil
	}
}

// settle waits until all bytes that have arrived by now were handled, at most for
// d. They were if the connection is quiet, or if the reader has found the socket
// empty once: it need not stay so, on a stream that other calls keep busy.
func (c *quietConn) settle(ctx context.Context, d time.Duration) {
	mark := c.idle.Load()
	if c.quiet() {
		return
	}
	emptied := mark + 1 + mark%2 // the mark of the next time
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	pause := time.NewTimer(50 * time.Microsecond)
	defer pause.Stop()
	for c.idle.Load() < emptied && !c.quiet() {
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
			pause.Reset(200 * time.Microsecond)
		}
	}
}
