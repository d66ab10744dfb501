//go:build unix

package upstream

import (
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
)

// P15: a result waits for what has arrived on the other connection, however far its
// reader is behind, and not for what comes after.
func TestSettle(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	nc, err := quietDialer(Server{Limits: call.Limits{Connect: time.Second}})(t.Context(), "tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	conn := nc.(*quietConn)
	server, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	var handled atomic.Int64
	work := make(chan time.Duration, 1000) // of one byte
	begun, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 1)
		for {
			if _, err := conn.Read(b); err != nil {
				return
			}
			if handled.Load() == 0 {
				close(begun)
			}
			<-time.After(<-work)
			handled.Add(1)
		}
	}()
	defer func() {
		server.Close()
		conn.Close()
		close(work)
		<-done
	}()
	const behind = 30
	if _, err := server.Write([]byte(strings.Repeat("x", behind))); err != nil {
		t.Fatal(err)
	}
	for range behind {
		work <- 20 * time.Millisecond
	}
	<-begun
	conn.settle(t.Context(), time.Minute)
	if n := handled.Load(); n != behind {
		t.Errorf("%d of %d bytes were handled", n, behind)
	}
	conn.settle(t.Context(), time.Minute) // at once
	// A stream on which something is under way at any time is settled, too.
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case work <- 0:
				if _, err := server.Write([]byte("y")); err != nil {
					return
				}
			}
		}
	}()
	for range 100 {
		conn.settle(t.Context(), time.Minute)
	}
	close(stop)
	<-stopped
	if n := handled.Load(); n < behind {
		t.Errorf("%d bytes were handled", n)
	}
}
