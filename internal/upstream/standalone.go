package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"sync"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

const (
	// settleTime bounds how long a result waits for bytes of the standalone
	// stream that have arrived but are not handled yet: on a machine with too much
	// to do, or a stream that brings more than anybody can read.
	settleTime = 2 * time.Second
	// lastStep bounds how long a result waits for the last step of a call whose
	// progress came on the standalone stream and says that one is missing:
	// server-everything 2025.8 sends it at the same moment as the result.
	lastStep = 50 * time.Millisecond
	// firstWord bounds how long a new session of agents that can be asked waits
	// for the stream to open, once: servers on the TypeScript SDK put questions on
	// it, and drop them while it is not there.
	firstWord = 500 * time.Millisecond
)

// standalone is the session's own stream, on which some servers send the
// progress of calls (Path B) or their questions, and all send list changes. It is
// opened in the background, and no call on a session that is in use waits for it (P9).
type standalone struct {
	c    *httpConn
	sess *session
	ctx  context.Context
	stop context.CancelFunc

	answered chan struct{} // closed when the server has answered the first GET, or was not reached
	first    sync.Once     // closes it

	mu     sync.Mutex
	isOpen bool
	conn   *quietConn // of the open stream; nil if it cannot tell
}

func newStandalone(c *httpConn, sess *session) *standalone {
	s := &standalone{c: c, sess: sess, answered: make(chan struct{})}
	s.ctx, s.stop = context.WithCancel(c.ctx)
	return s
}

// await waits until the server has said whether it offers the stream, at most
// firstWord.
func (s *standalone) await(ctx context.Context) {
	wait := time.NewTimer(firstWord)
	defer wait.Stop()
	select {
	case <-s.answered:
	case <-wait.C:
	case <-ctx.Done():
	}
}

// open says whether the stream is up: its end would tell of the session's.
func (s *standalone) open() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.isOpen
}

func (s *standalone) set(open bool, conn *quietConn) {
	s.mu.Lock()
	s.isOpen, s.conn = open, conn
	s.mu.Unlock()
}

// settle lets what arrived on the stream be handled before a result is shown.
func (s *standalone) settle(ctx context.Context) {
	s.mu.Lock()
	conn := s.conn
	s.mu.Unlock()
	if conn != nil {
		conn.settle(ctx, settleTime)
	}
}

// run keeps the stream open until the session is gone or the server says that
// it offers none.
func (s *standalone) run() {
	defer s.stop()
	ctx := s.ctx
	pause, lastID := time.Second, ""
	for ctx.Err() == nil {
		began := time.Now()
		again, retry := s.read(ctx, &lastID)
		s.set(false, nil)
		if !again || ctx.Err() != nil {
			return
		}
		// A stream that broke may mean a restart: the session must be proven.
		s.sess.suspect.Store(true)
		if time.Since(began) > time.Minute {
			pause = time.Second
		}
		if retry > 0 {
			pause = min(retry, time.Minute)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, 30*time.Second)
	}
}

// read opens the stream once and reads it to its end. again says whether to
// come back.
func (s *standalone) read(ctx context.Context, lastID *string) (again bool, retry time.Duration) {
	// From here on what the server sends on the connection counts, also before
	// its headers were read.
	trace := &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
		nc := i.Conn
		if t, ok := nc.(*tls.Conn); ok {
			nc = t.NetConn()
		}
		conn, _ := nc.(*quietConn)
		s.set(false, conn)
	}}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace), http.MethodGet, s.c.s.URL, http.NoBody)
	if err != nil {
		return false, 0
	}
	s.c.header(req, s.sess)
	req.Header.Set("Accept", "text/event-stream")
	if *lastID != "" {
		req.Header[mcp.HeaderLastEvent] = []string{*lastID}
	}
	resp, err := s.c.listener.Do(req)
	s.first.Do(func() { close(s.answered) })
	if err != nil {
		return true, 0
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusOK && mediaType(resp) == "text/event-stream":
	case resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests,
		resp.StatusCode == http.StatusConflict: // it has not noticed that the last one is gone, perhaps with an earlier process
		return true, 0
	case resp.StatusCode == http.StatusNotFound && s.sess.id != "":
		s.sess.suspect.Store(true)
		s.c.hooks.parted()
		return false, 0
	case *lastID != "":
		*lastID = "" // the cursor is not known any more
		return true, 0
	default:
		return false, 0 // 405: it offers none
	}
	s.mu.Lock()
	s.isOpen = true
	s.mu.Unlock()
	s.sess.alive()
	r := mcp.NewSSEReader(resp.Body, int(s.c.s.Limits.Message))
	for {
		ev, err := r.Next()
		if errors.Is(err, mcp.ErrTooLarge) {
			s.c.hooks.Log.Warn("a message on the tool server's standalone stream was over limits.message and was skipped")
			continue
		}
		*lastID = r.LastID()
		if err != nil {
			return true, retry
		}
		s.sess.alive()
		if ev.Retry > 0 {
			retry = ev.Retry
		}
		if len(ev.Data) > 0 {
			s.handle(ev.Data)
		}
	}
}

// handle takes one message of the stream.
func (s *standalone) handle(data []byte) {
	m, err := mcp.Parse(data)
	if err != nil {
		return
	}
	switch {
	case m.Kind == mcp.Request:
		s.c.askedApart(s.sess, &m)
	case m.Kind == mcp.Notification && m.Method == mcp.MethodCancelled:
		s.c.pending.Range(func(_, x any) bool {
			x.(*exchange).withdrawn(&m)
			return true
		})
	case m.Kind != mcp.Notification:
		// A response belongs to its call's own stream or to its resumed one.
	case m.Method == mcp.MethodProgress:
		token, _ := mcp.String(m.ProgressToken.Of(m.Raw))
		if x, ok := s.c.pending.Load(token); ok {
			x.(*exchange).progressB(&m)
		}
	case s.c.hooks.told(&m):
	case m.Method == methodTaskStatus:
		s.c.tasks.word(&m)
	case m.Method == mcp.MethodMessage:
		s.c.unattributed(&m)
	default:
		s.c.hooks.apart(&m)
	}
}

// unattributed takes a log message that names no call: it is that of the only one
// that runs, if the connection is of one principal (SPEC §2.5, P5). Not if that
// call's own stream can be resumed: after a kill of ours the message would not come
// again, and what follows it would not have the seq that readers know it by (I5).
func (c *httpConn) unattributed(m *mcp.Message) {
	var running []bystander
	c.pending.Range(func(_, x any) bool {
		running = append(running, x.(*exchange))
		return true
	})
	if x, only := soleOf(running); only && c.s.Share != "server" && !x.numbered.Load() {
		x.message(m, nil)
		x.mu.Lock()
		x.comesApart()
		x.mu.Unlock()
		return
	}
	keepUnattributed(m, running)
}

func soleOf(running []bystander) (x *exchange, ok bool) {
	if len(running) != 1 {
		return nil, false
	}
	x, ok = running[0].(*exchange)
	return x, ok
}

func (x *exchange) spec() *call.Spec { return x.exec.Spec }

// progressB is progress that came on the standalone stream.
func (x *exchange) progressB(m *mcp.Message) {
	x.progress(m, nil)
	done, err1 := strconv.ParseFloat(string(m.Progress.Of(m.Raw)), 64)
	total, err2 := strconv.ParseFloat(string(m.Total.Of(m.Raw)), 64)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.comesApart()
	switch missing := err1 == nil && err2 == nil && done < total; {
	case missing && x.complete == nil:
		x.complete = make(chan struct{})
	case !missing && x.complete != nil:
		close(x.complete)
		x.complete = nil
	}
}

// settled waits, before a result is shown, for progress that was sent before it
// on the standalone stream (P15).
func (x *exchange) settled(ctx context.Context) {
	if x.sess.stream == nil {
		return
	}
	x.sess.stream.settle(ctx)
	x.mu.Lock()
	complete := x.complete
	x.mu.Unlock()
	if complete == nil {
		return
	}
	wait := time.NewTimer(lastStep)
	defer wait.Stop()
	select {
	case <-complete:
	case <-wait.C:
	case <-ctx.Done():
	}
}

// progress hands one progress message to the call, from whichever stream it
// came (Path A and Path B), unless the call has its result (O8). cursor is nil
// if it was not the call's own.
func (x *exchange) progress(m *mcp.Message, cursor []byte) {
	body, hole := m.WithHole(m.ProgressToken)
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.over {
		return
	}
	x.touch()
	x.reached = reached(x.reached, m)
	if l := x.limit(); l > 0 && int64(len(m.Raw)) > l { // the standalone stream has the limit of the server
		x.exec.Note("%s", skipped(l))
		return
	}
	if err := x.exec.Emit(call.Event{Kind: call.KindProgress, Body: body, Hole: hole, Cursor: cursor}); err != nil {
		x.abort(err)
	}
}
