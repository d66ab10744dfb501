package app

import (
	"net"
	"testing"
	"time"
)

// A paused gate lets connections wait, and has them when it is resumed.
func TestGate(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := newGate(ln.(*net.TCPListener))
	accepted := make(chan error)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := g.Accept()
			if err == nil {
				c.Close()
			}
			accepted <- err
			if err != nil {
				return
			}
		}
	}()
	dial := func() {
		t.Helper()
		c, err := net.DialTimeout("tcp", ln.Addr().String(), 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
	}
	dial()
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	if err := g.pause(); err != nil {
		t.Fatal(err)
	}
	dial() // not refused
	select {
	case err := <-accepted:
		t.Fatalf("accepted while paused: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	g.resume()
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	if err := g.pause(); err != nil {
		t.Fatal(err)
	}
	g.Close()
	if err := <-accepted; err == nil {
		t.Error("a closed gate accepts")
	}
	<-ended
}

func TestSameAddress(t *testing.T) {
	ln, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	for listen, want := range map[string]bool{
		"127.0.0.1:" + port: true, "localhost:" + port: true, "127.0.0.1:0": true,
		"127.0.0.1:1": false, ":" + port: false, "0.0.0.0:" + port: false, "no:such:thing": false,
	} {
		if got := sameAddress(listen, ln); got != want {
			t.Errorf("%s: %v", listen, got)
		}
	}
}

// What entered before the switch is waited for; what comes after it is passed on.
func TestFrontSettles(t *testing.T) {
	var f front
	if !f.enter() {
		t.Fatal("there is no successor yet")
	}
	f.successor.Store(passing(""))
	if f.enter() {
		t.Error("it belongs to the successor")
	}
	settled := make(chan bool)
	go func() { settled <- f.settled() }()
	select {
	case <-settled:
		t.Error("one has not come to its call")
	case <-time.After(20 * time.Millisecond):
	}
	f.observed.Add(1)
	if !<-settled {
		t.Error("it waits in vain")
	}
}
