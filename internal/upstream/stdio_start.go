package upstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/longcall/longcall/internal/mcp"
)

const (
	// probeWait is how long a process may leave server/discover unanswered
	// after its first output, before initialize is tried as well (SPEC §5.4).
	probeWait = 5 * time.Second
	// silentWait is the same for a process that has written nothing at all: it
	// may still be downloading, or be one that ignores what it does not know.
	silentWait = 15 * time.Second
)

// life is one conversation and what carries it: a process, or an event stream
// of the 2024-11-05 transport.
type life struct {
	process *process // nil if it is an event stream
	wire    *wire
	end     func(ctx context.Context, eof, term time.Duration) // makes the carrier end, and waits
	dead    <-chan struct{}                                    // closed when the carrier has ended; nil if the wire tells it
	closing atomic.Bool                                        // we want it to end
	over    chan struct{}                                      // closed when nothing of it is left
	noted   chan struct{}                                      // closed when stdioConn knows
}

// dying says whether it takes no new call any more.
func (l *life) dying() bool {
	select {
	case <-l.wire.broken:
		return true
	case <-l.dead:
		return true
	default:
		return l.closing.Load() || l.wire.out.over()
	}
}

// spawn starts a process. Its supervisor belongs to c and ends with it.
func (c *stdioConn) spawn(st *starting) (*life, error) {
	p, err := startProcess(c.s)
	if err != nil {
		return nil, err
	}
	l := &life{
		process: p, wire: newPipes(c.s, c.hooks, p, p.stdin), end: p.stop, dead: p.exited,
		over: make(chan struct{}), noted: make(chan struct{}),
	}
	l.wire.start()
	c.wg.Go(func() { c.supervise(l) })
	c.mu.Lock()
	st.tail = p.said
	c.mu.Unlock()
	return l, nil
}

// supervise waits for the end of a process, reads what it still has written,
// and then tells the calls that nothing more will come.
func (c *stdioConn) supervise(l *life) {
	p, w := l.process, l.wire
	hung := false
	select {
	case <-p.exited:
	case <-w.broken:
		// It closed its stdin or stdout: nothing can be said any more.
		if hung = !p.wait(context.Background(), time.Second); hung {
			w.out.finish()
			p.stop(context.Background(), time.Second, time.Second)
		}
	}
	running := w.running()
	w.out.finish()
	t := time.NewTimer(drainWait)
	select {
	case <-w.read:
	case <-t.C:
	}
	t.Stop()
	p.close()
	w.wg.Wait()

	cause, tail := fmt.Sprintf("the tool server %q ended (%s)", w.name, p.state), ""
	switch {
	case l.closing.Load():
		cause = fmt.Sprintf("longcall stopped the tool server %q", w.name)
	case hung:
		cause = fmt.Sprintf("the tool server %q closed its input or output, so longcall ended it", w.name)
	}
	if w.single { // others than the caller may have made a shared process write it (P5)
		tail = p.said()
	}
	log := c.hooks.Log.Warn
	if l.closing.Load() {
		log = c.hooks.Log.Info
	}
	log("tool server ended", "pid", p.pid, "state", p.state, "asked", l.closing.Load(), "calls_lost", running,
		"junk_lines", w.junk.Load(), "unattributed", w.loose.Load(), "stderr_bytes", p.stderr.written())
	w.end(cause, tail)
	close(l.over)
}

// stop ends the carrier in an orderly way and waits.
func (l *life) stop(ctx context.Context, eof, term time.Duration) {
	l.closing.Store(true)
	l.wire.out.finish()
	l.end(ctx, eof, term)
	<-l.over
}

// pause waits for the back-off.
func (c *stdioConn) pause() error {
	c.mu.Lock()
	pause := time.Until(c.notUntil)
	c.mu.Unlock()
	if pause <= 0 {
		return nil
	}
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-c.ctx.Done():
		return errClosed
	}
}

// open starts a process and brings it to the point where it takes calls.
func (c *stdioConn) open(st *starting) (*life, error) {
	if err := c.pause(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	era := c.s.Era
	if era != "modern" && era != "legacy" {
		era = c.era
		if era == "legacy" && time.Since(c.eraTime) > legacyAge {
			era = ""
		}
	}
	c.mu.Unlock()
	limit := max(coldStart, c.s.Limits.Connect)
	ctx, cancel := context.WithTimeoutCause(c.ctx, limit, fmt.Errorf("it was not ready after %s", limit))
	defer cancel()

	l, err := c.spawn(st)
	if err != nil {
		return nil, c.unstarted(err, "")
	}
	hello := &hello{c: c, st: st, life: l}
	switch {
	case era == "legacy":
		err = hello.initialize(ctx)
	default:
		err = hello.discover(ctx, c.s.Era == "modern")
		if errors.Is(err, errOver) && era == "" && ctx.Err() == nil {
			// Some servers end at any request before initialize: the next one
			// gets no other.
			<-l.over
			if l, err = c.spawn(st); err != nil {
				return nil, c.unstarted(err, "")
			}
			hello.life = l
			err = hello.initialize(ctx)
		}
	}
	if err == nil {
		c.mu.Lock()
		c.era = "legacy"
		if l.wire.modern {
			c.era = "modern"
		}
		if era == "" { // else nobody asked, and the answer is as old as it was
			c.eraTime = time.Now()
		}
		closed := c.closed
		c.mu.Unlock()
		if !closed {
			c.hooks.Log.Info("tool server started", "pid", l.process.pid, "modern", l.wire.modern)
			return l, nil
		}
		err = errClosed
	}
	gone := errors.Is(err, errOver)
	if gone {
		<-l.over
	} else {
		l.stop(context.Background(), 0, time.Second)
	}
	if c.ctx.Err() != nil {
		return nil, errClosed
	}
	c.mu.Lock()
	c.era = "" // what was known may not hold any more
	c.mu.Unlock()
	if gone {
		err = fmt.Errorf("it ended (%s) before it was ready", l.process.state)
	}
	// No call of anybody has reached this process: its words are its own.
	return nil, c.unstarted(err, l.process.said())
}

func (c *stdioConn) unstarted(err error, tail string) error {
	return &goneError{fmt.Sprintf("the tool server %q could not be started: %v", c.s.Name, err), tail}
}

// hello is the opening of a conversation.
type hello struct {
	c    *stdioConn
	st   *starting
	life *life
}

func (h *hello) phase(s string) {
	h.c.mu.Lock()
	h.st.phase = s
	h.c.mu.Unlock()
}

// initializeParams declare what the agents can be asked whose calls come here.
func (h *hello) initializeParams() []byte {
	return []byte(`{"protocolVersion":"` + mcp.LatestLegacy + `","capabilities":` + declared(h.c.hooks.Capabilities) + `,"clientInfo":` + clientInfo + `}`)
}

// initialize opens a legacy session.
func (h *hello) initialize(ctx context.Context) error {
	h.phase("has not answered initialize yet")
	r, err := h.life.wire.ask(ctx, mcp.MethodInitialize, h.initializeParams(), false)
	if err != nil {
		return err
	}
	return h.initialized(r)
}

// initialized checks the answer and ends the handshake.
func (h *hello) initialized(r *response) error {
	result, err := r.result()
	if err != nil {
		return fmt.Errorf("it refused initialize: %w", err)
	}
	version, _ := mcp.String(mcp.Value(result, "protocolVersion"))
	if version != mcp.V20241105 && !slices.Contains(mcp.LegacyVersions, version) {
		return fmt.Errorf("it speaks protocol version %q, which longcall does not", printable([]byte(version)))
	}
	h.life.wire.modern = false
	h.life.wire.canTask = taskCapability(result) > 0
	h.life.wire.said = readIntro(result)
	h.life.wire.send([]byte(`{"jsonrpc":"2.0","method":"` + mcp.MethodInitialized + `"}`))
	return nil
}

// discover asks for the modern era, and opens a legacy session if the answer,
// or no answer, says that the server is a legacy one. A server that was silent
// gets both questions: once it has taken initialize it is a legacy one; if it
// refuses that, its answer to discover holds.
func (h *hello) discover(ctx context.Context, modernOnly bool) error {
	w := h.life.wire
	h.phase("has not answered server/discover yet")
	d := w.expect(nil)
	defer w.forget(d)
	if err := w.out.put(d.id, outgoingRequest(d.id, mcp.MethodDiscover, nil, true), nil); err != nil {
		return err
	}
	var patience <-chan time.Time
	output := h.life.process.output
	if modernOnly {
		output = nil
	} else {
		t := time.NewTimer(silentWait)
		defer t.Stop()
		patience = t.C
	}
	for {
		select {
		case <-d.wake:
			r, _ := d.got()
			modern, err := verdict(r)
			switch {
			case err != nil:
				return err
			case modern:
				h.opened(r)
				return nil
			case modernOnly:
				return errors.New(`it answered server/discover like a server of the legacy era; set "era" to auto`)
			}
			return h.initialize(ctx)
		case <-output:
			output = nil
			t := time.NewTimer(probeWait)
			defer t.Stop()
			patience = t.C
		case <-patience:
			return h.both(ctx, d)
		case <-w.ended:
			return errOver
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// opened begins the modern era, with the answer to discover.
func (h *hello) opened(r *response) {
	w := h.life.wire
	w.modern = true
	result, err := r.result()
	if err != nil {
		return
	}
	w.said = readIntro(result)
}

// both asks for initialize while discover is not answered.
func (h *hello) both(ctx context.Context, d *waiter) error {
	w := h.life.wire
	h.phase("has answered neither server/discover nor initialize yet")
	i := w.expect(nil)
	defer w.forget(i)
	if err := w.out.put(i.id, outgoingRequest(i.id, mcp.MethodInitialize, h.initializeParams(), false), nil); err != nil {
		return err
	}
	var refused error         // by initialize
	var answered, modern bool // discover
	var r *response
	var settle <-chan time.Time // after it, a modern answer need not wait for initialize
	for {
		select {
		case <-i.wake:
			r, _ := i.got()
			if refused = h.initialized(r); refused == nil {
				return nil
			}
		case <-d.wake:
			r, _ = d.got()
			answered = true
			modern, _ = verdict(r)
			t := time.NewTimer(probeWait)
			defer t.Stop()
			settle = t.C
		case <-settle:
			if modern {
				h.opened(r)
				return nil
			}
		case <-w.ended:
			return errOver
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		switch {
		case refused == nil || !answered:
		case modern:
			h.opened(r)
			return nil
		default:
			return refused
		}
	}
}

// verdict reads the answer to server/discover. No single error code decides
// for the legacy era (SPEC §5.4).
func verdict(r *response) (modern bool, err error) {
	if r.trouble != "" || r.tooLarge {
		return false, nil
	}
	m, err := mcp.Parse(r.body)
	if err != nil {
		return false, nil
	}
	var supported []byte
	switch {
	case !r.failed:
		supported = mcp.Value(m.Result.Of(m.Raw), "supportedVersions")
	case r.code == mcp.CodeHeaderMismatch, r.code == mcp.CodeMissingCapability:
		return true, nil
	case r.code == mcp.CodeUnsupportedVersion:
		supported = mcp.Value(mcp.Value(m.Error.Of(m.Raw), "data"), "supported")
	default:
		return false, nil
	}
	list := string(supported)
	switch {
	case strings.Contains(list, `"`+mcp.LatestModern+`"`):
		return true, nil
	case supported == nil, slices.ContainsFunc(mcp.LegacyVersions, func(v string) bool { return strings.Contains(list, `"`+v+`"`) }):
		return false, nil
	}
	return false, fmt.Errorf("it speaks only the protocol versions %s, which longcall does not", printable(supported))
}
