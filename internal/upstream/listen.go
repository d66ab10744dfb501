package upstream

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/longcall/longcall/internal/mcp"
)

// acknowledgeWait is how long a server may take to acknowledge a
// subscriptions/listen.
const acknowledgeWait = 10 * time.Second

// errEnded says that a server ended a subscriptions/listen in the orderly way.
var errEnded = errors.New("the tool server has ended the subscription")

// listening is one subscriptions/listen of a stateless server (SPEC §5.1). Its
// filter is changed by opening the next before this one is closed, so that nothing
// is missed between them.
type listening struct {
	l      *link
	filter string
	stop   context.CancelFunc
	acked  chan struct{} // closed when the server has said what it tells
	done   chan struct{} // closed when it is over, as err says
	err    error

	mu       sync.Mutex
	honoured map[string]bool // URIs; valid after acked
	silent   bool            // another one has taken over
}

// filter is what a server shall tell: of the lists that it says can change, and
// of the resources that somebody wants. It is empty if there is nothing.
func filter(said intro, uris []string) string {
	b := []byte(`{"notifications":{`)
	n := len(b)
	sep := func() {
		if len(b) > n {
			b = append(b, ',')
		}
	}
	for _, capability := range []string{"tools", "prompts", "resources"} {
		if said.says(capability, "listChanged") {
			sep()
			b = append(append(append(b, '"'), capability...), `ListChanged":true`...)
		}
	}
	if len(uris) > 0 {
		sep()
		b = append(b, `"resourceSubscriptions":[`...)
		for i, uri := range uris {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(b, mcp.Quote(uri)...)
		}
		b = append(b, ']')
	}
	if len(b) == n {
		return ""
	}
	return string(append(b, "}}"...))
}

// whole names the one stream of a server over HTTP, which is all that is wanted;
// lists that of a process which tells of its lists.
const (
	whole = "*"
	lists = ""
)

// streams are what has to be open: a filter for each, by its name. Over HTTP it is
// one, for each costs a connection. With a process each resource has its own, by
// its URI: that costs nothing, no stream ever has to be exchanged for another, and
// servers that keep one account for all of a process's streams (the Go SDK does)
// lose nothing of one when another ends.
func (l *link) streams(said intro, all map[string]*subscription) map[string]string {
	out := map[string]string{}
	add := func(name, filter string) {
		if filter != "" {
			out[name] = filter
		}
	}
	if l.server.URL != "" {
		add(whole, filter(said, slices.Sorted(maps.Keys(all))))
		return out
	}
	add(lists, filter(said, nil))
	for uri := range all {
		add(uri, filter(intro{}, []string{uri}))
	}
	return out
}

// maxSpare bounds the streams of resources that nobody wants to hear of any more but
// that stay open, with a process. Servers that keep one account for all of a process's
// streams (the Go SDK does) forget its lists, too, when any of them ends; what they go
// on to tell nobody hears. Beyond it they are closed: then such a server's lists are
// read again when they are old only.
const maxSpare = 100

// alignListening opens the streams that the wants need and that are not open, and
// closes the others.
func (l *link) alignListening(said intro) (failed error) {
	all := l.wants.subscribed()
	want := l.streams(said, all)
	t := &l.tending
	t.mu.Lock()
	gen := t.gen
	spare := 0
	for name, s := range t.streams {
		if want[name] != "" {
			continue
		}
		if spare++; name == whole || name == lists || spare > maxSpare || s.isDone() {
			s.stop()
			delete(t.streams, name)
		}
	}
	t.mu.Unlock()
	for name, filter := range want {
		if err := l.alignStream(name, filter, gen, all); err != nil {
			failed = err
		}
	}
	return failed
}

// alignStream opens one stream, unless it is open.
func (l *link) alignStream(name, filter string, gen int, all map[string]*subscription) error {
	t := &l.tending
	t.mu.Lock()
	old, refused := t.streams[name], t.refused[name]
	t.mu.Unlock()
	broken := old != nil && old.isDone()
	of := all
	if name != whole {
		of = map[string]*subscription{}
		if s := all[name]; s != nil {
			of[name] = s
		}
	}
	switch {
	case old != nil && !broken && old.filter == filter:
		old.settle(of, gen)
		return nil
	case refused != nil && refused.filter == filter:
		refused.refuse(of, gen)
		return nil
	}
	s := &listening{l: l, filter: filter, acked: make(chan struct{}), done: make(chan struct{})}
	ctx, stop := context.WithCancel(l.ctx)
	s.stop = stop
	if !l.p.spawn(func() { s.run(ctx) }) {
		stop()
		return errClosed
	}
	late := time.NewTimer(acknowledgeWait)
	defer late.Stop()
	select {
	case <-s.acked:
	case <-s.done:
		if !isRPC(s.err) {
			return s.err
		}
		t.mu.Lock()
		if t.refused == nil {
			t.refused = map[string]*listening{}
		}
		t.refused[name] = s
		t.mu.Unlock()
		s.refuse(of, gen)
		l.p.opt.Log.Warn("the tool server refuses to tell of changes; lists are read again when they are old", "server", l.server.Name, "error", s.err)
		return nil
	case <-late.C:
		stop()
		return errors.New("the tool server did not acknowledge a subscription within 10 s")
	}
	t.mu.Lock()
	if t.streams == nil {
		t.streams = map[string]*listening{}
	}
	t.streams[name] = s
	t.mu.Unlock()
	if old != nil {
		old.mute()
		old.stop()
	}
	s.settle(of, gen)
	if broken { // nothing is replayed (SPEC §5.1)
		if name == whole || name == lists {
			l.renewed()
		}
		for uri := range of {
			l.updated(uri)
		}
	}
	return nil
}

// refuse tells who waits that the server tells nothing.
func (s *listening) refuse(of map[string]*subscription, gen int) {
	for _, sub := range of {
		s.l.wants.settle(sub, gen, s.err)
	}
}

// run carries the stream from its request to its end.
func (s *listening) run(ctx context.Context) {
	defer s.stop()
	began := time.Now()
	s.err = s.l.conn.listen(ctx, []byte(s.filter), s.hear)
	close(s.done)
	if ctx.Err() != nil || errors.Is(s.err, errOver) {
		return // it was meant, or waits for the next process
	}
	select {
	case <-s.acked:
	default:
		return // who opened it goes on
	}
	t := &s.l.tending
	t.mu.Lock()
	if t.short++; time.Since(began) > tendSteady {
		t.short = 0
	}
	pause := min(tendFirst<<min(t.short, 8), tendMax)
	t.mu.Unlock()
	wait := time.NewTimer(pause + rand.N(pause/4))
	defer wait.Stop()
	select {
	case <-wait.C:
		s.l.tend()
	case <-s.l.ctx.Done():
	}
}

// hear takes a message of the stream.
func (s *listening) hear(m *mcp.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case m.Method == mcp.MethodAcknowledged:
		if s.honoured != nil {
			return
		}
		s.honoured = map[string]bool{}
		for _, uri := range elementsOf(mcp.Value(mcp.Value(m.Params.Of(m.Raw), "notifications"), "resourceSubscriptions")) {
			s.honoured[uri] = true
		}
		close(s.acked)
	case !s.silent && !s.l.hooks.told(m):
		s.l.hooks.apart(m)
	}
}

// elementsOf are the strings of a raw JSON array.
func elementsOf(list []byte) (out []string) {
	values, err := mcp.Elements(list)
	if err != nil {
		return nil
	}
	for _, v := range values {
		if s, ok := mcp.String(v); ok {
			out = append(out, s)
		}
	}
	return out
}

// mute ends what this stream tells: the next one tells it.
func (s *listening) mute() {
	s.mu.Lock()
	s.silent = true
	s.mu.Unlock()
}

func (s *listening) isDone() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// settle tells who waits what the server has agreed to tell.
func (s *listening) settle(all map[string]*subscription, gen int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for uri, sub := range all {
		if s.honoured[uri] {
			s.l.wants.settle(sub, gen, nil)
		} else {
			s.l.wants.settle(sub, gen, &mcp.RPCError{Code: mcp.CodeInvalidParams, Text: "the server does not tell of changes of this resource"})
		}
	}
}

// listen opens a subscriptions/listen and reads it to its end.
func (c *httpConn) listen(ctx context.Context, params []byte, hear func(*mcp.Message)) error {
	sess, err := c.session(ctx)
	if err != nil {
		return err
	}
	id := c.nextID()
	req, err := c.newPost(ctx, sess, mcp.MethodListen, "", outgoingRequest(id, mcp.MethodListen, params, sess.isModern))
	if err != nil {
		return err
	}
	resp, err := c.listener.Do(req)
	if err != nil {
		return rootCause(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 || mediaType(resp) != "text/event-stream" {
		m, err := c.readAnswer(resp, id, c.s.Limits.Message)
		if err == nil && m.Error.Ok() {
			return m.RPC()
		}
		return errors.Join(err, errEnded)
	}
	sess.alive()
	r := mcp.NewSSEReader(resp.Body, int(c.s.Limits.Message))
	for {
		ev, err := r.Next()
		if errors.Is(err, mcp.ErrTooLarge) {
			continue
		}
		if err != nil {
			return err
		}
		sess.alive()
		m, err := mcp.Parse(ev.Data)
		switch {
		case len(ev.Data) == 0, err != nil:
		case m.Kind == mcp.Response && sameID(&m, id):
			if m.Error.Ok() {
				return m.RPC()
			}
			return errEnded
		case m.Kind != mcp.Notification:
		case m.Method == mcp.MethodCancelled: // see wire.heard
			if of, _ := mcp.String(m.RequestID.Of(m.Raw)); of == id {
				return errEnded
			}
		default:
			hear(&m)
		}
	}
}

// listen opens a subscriptions/listen at the process that runs now, and waits for
// its end.
func (c *stdioConn) listen(ctx context.Context, params []byte, hear func(*mcp.Message)) error {
	l, err := c.ready(ctx)
	if err != nil {
		return err
	}
	return l.wire.listen(ctx, params, hear)
}

// listen is one subscriptions/listen with the process. hear is called by who
// reads, and must not block.
func (w *wire) listen(ctx context.Context, params []byte, hear func(*mcp.Message)) error {
	p := w.expect(nil)
	w.mu.Lock()
	w.listens[p.id] = hear
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		delete(w.listens, p.id)
		w.mu.Unlock()
		w.forget(p)
	}()
	if err := w.out.put(p.id, outgoingRequest(p.id, mcp.MethodListen, params, w.modern), nil); err != nil {
		return err
	}
	select {
	case <-p.wake:
	case <-w.ended:
		return errOver
	case <-ctx.Done():
		if !w.out.takeBack(p.id) {
			w.send(outgoingCancel(p.id, "not needed any more"))
		}
		return context.Cause(ctx)
	}
	r, _ := p.got()
	if r.failed {
		_, err := r.result()
		return err
	}
	return errEnded
}

// heard gives a notification to the subscriptions/listen that it names; false if
// it names none. How a server ends one of its own accord is not settled: with the
// result, with notifications/cancelled, or with both (SPEC §8.1 A6).
func (w *wire) heard(m *mcp.Message) bool {
	if m.Method == mcp.MethodCancelled {
		id, _ := mcp.String(m.RequestID.Of(m.Raw))
		w.mu.Lock()
		_, ok := w.listens[id]
		w.mu.Unlock()
		if ok {
			if p := w.claim(id); p != nil {
				w.settle(p, &response{})
			}
		}
		return ok
	}
	if !m.Subscription.Ok() {
		return false
	}
	id, _ := mcp.String(m.Subscription.Of(m.Raw))
	w.mu.Lock()
	hear := w.listens[id]
	w.mu.Unlock()
	if hear != nil {
		own := *m // else every message of the process would be on the heap
		hear(&own)
	}
	return hear != nil
}
