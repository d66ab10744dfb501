//go:build linux || darwin

package shell

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// tellEvery is how long more output is collected before it is told; a
	// change of the state is told at once.
	tellEvery = 20 * time.Millisecond
	// maxCallers bounds the connections at once; more are refused.
	maxCallers = 32
	askWait    = 5 * time.Second // for a request to arrive
)

// serve answers on ctl.sock.
func (s *shim) serve(l net.Listener) {
	room := make(chan struct{}, maxCallers)
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(tellEvery) // out of files, for a while
			continue
		}
		select {
		case room <- struct{}{}:
			s.served.Go(func() {
				s.answer(c)
				<-room
			})
		default:
			c.Close()
		}
	}
}

func (s *shim) answer(c net.Conn) {
	defer c.Close()
	var req request
	_ = c.SetReadDeadline(time.Now().Add(askWait))
	if json.NewDecoder(io.LimitReader(c, maxRequest)).Decode(&req) != nil {
		return
	}
	var r reply
	fail := func(err error) {
		if err != nil {
			r.Error = err.Error()
		}
	}
	switch req.Op {
	case opSubscribe:
		s.tell(c)
		return
	case opStatus:
		r.Waiting = s.waiting()
	case opStdin:
		var err error
		if req.Input == nil {
			err = errors.New("there is no input in the request")
		} else {
			r.Typed, err = s.typeIn(req.Input)
		}
		fail(err)
	case opStop:
		sig, err := signalByName(req.Signal)
		if err == nil {
			s.stop(sig, req.Grace, req.By)
		}
		fail(err)
	default:
		fail(errors.New("this command was started by another version of longcall, which cannot do that"))
	}
	r.Snapshot, _, _ = s.look()
	_ = json.NewEncoder(c).Encode(r) // who asked may have gone
}

// tell writes the state now, and again whenever it has changed, until nothing
// can change any more or nobody listens. A slow listener misses what was in
// between, and costs nothing.
func (s *shim) tell(c net.Conn) {
	defer c.Close()
	gone := make(chan struct{})
	go func() {
		_ = c.SetReadDeadline(time.Time{})
		io.Copy(io.Discard, c) // nothing comes: it ends when the listener does
		close(gone)
	}()
	to := json.NewEncoder(c)
	for {
		now, news, state := s.look()
		if to.Encode(now) != nil || !now.TreeEnded.IsZero() {
			return
		}
		t := time.NewTimer(tellEvery)
		select {
		case <-state:
			t.Stop()
			continue
		case <-gone:
			t.Stop()
			return
		case <-t.C:
		}
		select {
		case <-news:
		case <-gone:
			return
		}
	}
}

// typeIn types for somebody else.
func (s *shim) typeIn(in *Input) (Typed, error) {
	if now, _, _ := s.look(); now.State.Final() {
		s.input.mu.Lock()
		again, err := repeated(in, s.input.typed)
		s.input.mu.Unlock()
		if again || err != nil {
			return Typed{Repeated: again}, err
		}
		return Typed{}, ErrEnded
	}
	return s.input.put(in, func(name string) {
		s.kids.Lock()
		defer s.kids.Unlock()
		if !s.reaped {
			unix.Kill(-s.leader.PID, unix.SignalNum("SIG"+name))
		}
	})
}
