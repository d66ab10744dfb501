package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/longcall/longcall/internal/mcp"
)

const (
	// legacyVerdictAge is when a server that spoke the legacy era is asked
	// again: servers get upgraded. A modern verdict has no age (SPEC §5.4).
	legacyVerdictAge = 24 * time.Hour
	// provenFor is how long a session needs no proof after a sign of life.
	provenFor = 30 * time.Second
)

// session returns a usable session, connecting if there is none. Callers that
// come at the same time share one attempt.
func (c *httpConn) session(ctx context.Context) (*session, error) {
	for {
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return nil, errors.New("the connection is closed")
		}
		if s := c.sess; s != nil {
			c.mu.Unlock()
			return s, nil
		}
		if old := c.oldLocked(); old != nil {
			c.mu.Unlock()
			return nil, &oldError{old}
		}
		if c.dialing == nil {
			done := make(chan struct{})
			c.dialing = done
			c.wg.Go(func() {
				// The attempt outlives the caller that happened to come first.
				ctx, cancel := context.WithTimeout(c.ctx, c.s.Limits.Connect)
				defer cancel()
				s, err := c.connect(ctx)
				if s != nil && s.stream != nil {
					c.wg.Go(s.stream.run)
					if c.hooks.Capabilities != "" {
						s.stream.await(ctx)
					}
				}
				c.mu.Lock()
				c.sess, c.err, c.dialing = s, err, nil
				c.mu.Unlock()
				close(done)
			})
		}
		dialing := c.dialing
		c.mu.Unlock()
		select {
		case <-dialing:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		c.mu.Lock()
		s, err := c.sess, c.err
		c.mu.Unlock()
		if s != nil {
			return s, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// proven returns a session that the server is known to hold. One that may be
// gone, because the server closed a connection or said nothing for long, is
// asked with a ping first: a call must not find out, for it could not be sent
// again (P20).
func (c *httpConn) proven(ctx context.Context) (*session, error) {
	for range 3 {
		s, err := c.session(ctx)
		if err != nil {
			return nil, err
		}
		if c.holds(s) {
			return s, nil
		}
		if err = c.prove(ctx, s); err == nil {
			return s, nil
		}
		var status *statusError
		if !errors.As(err, &status) || !status.lost(s) {
			return nil, fmt.Errorf("the tool server does not answer: %w", err)
		}
		c.forget(s)
	}
	return nil, errors.New("the tool server forgets every new session at once")
}

// holds says whether the server is known to hold the session. While somebody
// asks, it is not: a call that goes along must not be the one that finds out.
func (c *httpConn) holds(s *session) bool {
	if s.isModern || s.id == "" {
		return true
	}
	c.mu.Lock()
	asking := s.proof != nil
	c.mu.Unlock()
	return !asking && !s.suspect.Load() && (s.quietFor() < provenFor || s.stream.open())
}

// proof is one ping for all calls that need a session proven.
type proof struct {
	done chan struct{}
	err  error // valid after done
}

// prove asks the server whether it holds the session.
func (c *httpConn) prove(ctx context.Context, s *session) error {
	c.mu.Lock()
	p := s.proof
	if p == nil {
		if c.closed {
			c.mu.Unlock()
			return errors.New("the connection is closed")
		}
		p = &proof{done: make(chan struct{})}
		s.proof = p
		c.wg.Go(func() {
			s.suspect.Store(false) // before the question: what comes meanwhile counts
			if p.err = c.ping(c.ctx, s); p.err != nil {
				s.suspect.Store(true)
			}
			c.mu.Lock()
			s.proof = nil
			c.mu.Unlock()
			close(p.done)
		})
	}
	c.mu.Unlock()
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// forget drops a session that the server does not know any more.
func (c *httpConn) forget(s *session) {
	if s.gone.Swap(true) {
		return
	}
	c.mu.Lock()
	if c.sess == s {
		c.sess = nil
	}
	if s.isModern {
		c.verdict = "" // ask again what it speaks
	}
	c.mu.Unlock()
	if s.stream != nil {
		s.stream.stop()
	}
	c.hooks.Reconnected("session")
	c.spawn(func() { // the next call finds the new one
		if _, err := c.session(c.ctx); err == nil {
			c.hooks.renewed() // a server that restarted may have other tools
		}
	})
}

// connect decides the era and opens a session (SPEC §5.4).
func (c *httpConn) connect(ctx context.Context) (*session, error) {
	c.mu.Lock()
	verdict, said, since := c.verdict, c.said, c.verdictT
	if verdict == "legacy" && time.Since(since) > legacyVerdictAge {
		verdict = ""
	}
	c.mu.Unlock()
	if c.s.Era == "modern" || c.s.Era == "legacy" {
		verdict = c.s.Era
	}
	switch {
	case verdict == "":
		var err error
		if verdict, said, err = c.probe(ctx); err != nil {
			return nil, err
		}
		since = time.Now() // not when a cached one is used: it would never get old
	case verdict == "modern" && said.caps == nil:
		// The operator has settled the era; what the server has it must still say.
		_, said, _ = c.probe(ctx)
	}
	var s *session
	if verdict == "modern" {
		s = &session{isModern: true, version: mcp.LatestModern, said: said}
	} else {
		var err error
		if s, err = c.initialize(ctx); err != nil {
			var status *statusError
			if c.s.Era == "auto" && errors.As(err, &status) && status.noPost() {
				if old := c.tryOld(ctx); old != nil {
					return nil, &oldError{old}
				}
			}
			return nil, err
		}
	}
	s.alive()
	c.mu.Lock()
	c.verdict, c.verdictT, c.said = verdict, since, said
	c.mu.Unlock()
	c.hooks.introduced(s.said)
	return s, nil
}

// probe asks with server/discover which era the server speaks. It never uses a
// call: a lenient legacy server might run it.
func (c *httpConn) probe(ctx context.Context) (verdict string, said intro, err error) {
	id := c.nextID()
	resp, err := c.post(ctx, nil, mcp.MethodDiscover, "", outgoingRequest(id, mcp.MethodDiscover, nil, true))
	if err != nil {
		return "", said, err
	}
	defer resp.Body.Close()
	switch s := resp.StatusCode; {
	case s == http.StatusUnauthorized, s == http.StatusForbidden, s == http.StatusTooManyRequests,
		s == http.StatusNotAcceptable, s == http.StatusUnsupportedMediaType:
		return "", said, &statusError{Status: s}
	case s >= 500:
		// Some servers break on what they do not know. If this one is really
		// down, initialize says so.
		return "legacy", said, nil
	}
	m, err := c.readAnswer(resp, id, c.s.Limits.Message)
	if err != nil {
		return "legacy", said, nil
	}
	if m.Error.Ok() {
		switch m.Code {
		case mcp.CodeUnsupportedVersion:
			// Only a modern server knows this code, but it may be one that serves
			// sessions only here (Go SDK): it lists what it speaks.
			if hasModern(supported(m.Error.Of(m.Raw))) {
				return "modern", said, nil
			}
			return "legacy", said, nil
		case mcp.CodeHeaderMismatch, mcp.CodeMissingCapability:
			return "modern", said, nil
		}
		return "legacy", said, nil // a modern server must implement it, so this is none
	}
	result := m.Result.Of(m.Raw)
	if verdict = eraOf(result); verdict == "modern" {
		said = readIntro(result)
	}
	return verdict, said, nil
}

// eraOf reads a discover result. Only a modern revision in it makes a server a
// modern one: one with sessions only lists those (Go SDK), and a lenient one
// answers whatever it does not know with an empty result.
func eraOf(result []byte) string {
	var d struct {
		Versions []string `json:"supportedVersions"`
	}
	if json.Unmarshal(result, &d) == nil && hasModern(d.Versions) {
		return "modern"
	}
	return "legacy"
}

func hasModern(versions []string) bool {
	return slices.ContainsFunc(versions, func(v string) bool { return slices.Contains(mcp.ModernVersions, v) })
}

// supported reads data.supported of an error.
func supported(rpcErr []byte) []string {
	var e struct {
		Data struct {
			Supported []string `json:"supported"`
		} `json:"data"`
	}
	if json.Unmarshal(rpcErr, &e) != nil {
		return nil
	}
	return e.Data.Supported
}

// initialize opens a legacy session.
func (c *httpConn) initialize(ctx context.Context) (*session, error) {
	id := c.nextID()
	params := []byte(`{"protocolVersion":"` + mcp.LatestLegacy + `","capabilities":` + declared(c.hooks.Capabilities) + `,"clientInfo":` + clientInfo + `}`)
	resp, err := c.post(ctx, nil, mcp.MethodInitialize, "", outgoingRequest(id, mcp.MethodInitialize, params, false))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	result, err := c.answer(resp, nil, id)
	if err != nil {
		return nil, fmt.Errorf("initialize: %w", err)
	}
	s := &session{id: resp.Header.Get(mcp.HeaderSession)}
	members, err := mcp.Members(result)
	if err != nil {
		return nil, fmt.Errorf("initialize: %w", err)
	}
	for _, m := range members {
		if m.Name == "protocolVersion" {
			s.version, _ = mcp.String(m.Value)
		}
	}
	s.tasks, s.said = taskCapability(result), readIntro(result)
	if s.version != mcp.V20241105 && !slices.Contains(mcp.LegacyVersions, s.version) {
		return nil, fmt.Errorf("the tool server speaks protocol version %q, which longcall does not", printable([]byte(s.version)))
	}
	s.stream = newStandalone(c, s)
	c.send(ctx, s, []byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`))
	return s, nil
}

// oldError says that the server speaks the transport of 2024-11-05, so that conn
// does what was asked for.
type oldError struct{ conn *stdioConn }

func (e *oldError) Error() string {
	return "the tool server speaks HTTP with SSE of 2024-11-05"
}

// noPost says whether the status is how a server of the 2024-11-05 transport, or a
// proxy before it, takes a POST at the address of its stream.
func (e *statusError) noPost() bool {
	switch e.Status {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed:
		return true
	}
	return false
}

// tryOld is the last resort of the probe: a GET that expects an endpoint event
// . It returns nil if the server does not speak that either.
func (c *httpConn) tryOld(ctx context.Context) *stdioConn {
	var old *stdioConn
	old = newSSE(c.s, c.hooks, func() { c.dropOld(old) })
	if _, err := old.ready(ctx); err != nil {
		old.close(ctx)
		return nil
	}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		old.close(ctx)
		return nil
	}
	c.old, c.oldT = old, time.Now()
	c.mu.Unlock()
	return old
}

// dropOld is called when the server does not speak the old transport any more, so
// that the next use asks again what it speaks.
func (c *httpConn) dropOld(old *stdioConn) {
	c.mu.Lock()
	mine := c.old == old
	if mine {
		c.old = nil
	}
	c.mu.Unlock()
	if mine {
		c.spawn(func() { old.close(c.ctx) })
	}
}

// oldLocked is the connection of the old transport, if the server is known to
// speak nothing else. That is dated: servers get upgraded. c.mu is held.
func (c *httpConn) oldLocked() *stdioConn {
	old := c.old
	if old != nil && time.Since(c.oldT) > legacyVerdictAge && !old.busy() {
		c.old = nil
		c.wg.Go(func() { old.close(c.ctx) })
	}
	return c.old
}

// busy says whether a call is under way.
func (c *stdioConn) busy() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.life != nil && c.life.wire.running() > 0
}
