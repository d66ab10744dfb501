package upstream

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/longcall/longcall/internal/call"
)

var _ call.Resumer = (*Pool)(nil)

// addressStream is the kind of an address whose call is found again by the ids
// of its events.
const addressStream = "stream"

// address is where a call can be found again at its tool server, by a process
// after ours. It is kept with the call and shown to nobody.
//
// The calls of a server that is a process of ours have none: it dies with us.
type address struct {
	Kind    string `json:"kind"`
	URL     string `json:"url"`               // see urlDigest
	Session string `json:"session,omitempty"` // Mcp-Session-Id
	Version string `json:"version"`
	Tasks   int    `json:"tasks,omitempty"` // of the session: see session.tasks
	Request string `json:"request"`         // our request id, and the progress token
	// Apart says that progress comes on the session's standalone stream: what
	// was not stored does not come again.
	Apart  bool   `json:"apart,omitempty"`
	AsTask string `json:"as_task,omitempty"` // see exchange.asTask
	Asks   string `json:"asks,omitempty"`    // what the agent can be asked; see call.Caller
	// Open is what the server has asked and waits for: its stream brings nothing
	// again that came before what was stored.
	Open  []openAsk `json:"open,omitempty"`
	After string    `json:"after,omitempty"` // see Resumable; never stored
}

// urlDigest stands for a configured url, which may hold a secret.
func urlDigest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:16])
}

// Resumable says whether Run can go on with a call that has this address; see
// call.Resumer. The server must be the same, and must not have been told to
// speak an era that knows no resuming.
func (p *Pool) Resumable(r *call.Record) bool {
	var a address
	if r.Dispatched.IsZero() || json.Unmarshal(r.Address, &a) != nil {
		return false
	}
	p.mu.Lock()
	s, ok := p.servers[r.Server]
	p.mu.Unlock()
	if !ok || s.URL == "" || urlDigest(s.URL) != a.URL {
		return false
	}
	switch a.Kind {
	case addressStream:
		if s.Era == "modern" || a.Request == "" {
			return false
		}
		if a.Apart && r.Cursor != nil {
			a.After = string(r.Cursor)
			b, err := json.Marshal(a)
			if err != nil {
				return false
			}
			r.Address, r.Cursor = b, nil
		}
		return true
	case addressTask, addressQuestion:
		r.Cursor = nil // what a stream brought before it does not come again
		return s.Era != a.otherEra()
	}
	return false
}

// Leaves says whether a call loses nothing if it is left at any time; see call.Leaver:
// one whose server keeps nothing open, and waits for nobody.
func (p *Pool) Leaves(r *call.Record) bool {
	var a address
	return json.Unmarshal(r.Address, &a) == nil && a.Kind == addressQuestion
}

// declaredThere is what a call could be asked whose address this is.
func declaredThere(body []byte) string {
	var a address
	if json.Unmarshal(body, &a) != nil {
		return ""
	}
	return a.Asks
}

// errRestart is why a stream broke that an earlier process read.
var errRestart = errors.New("longcall was restarted")

// takeUp goes on with a call that an earlier process left at the server. Nothing
// is sent for it but the question for what came after the last event that was
// kept.
func (c *httpConn) takeUp(ctx context.Context, x *call.Exec) call.Answer {
	var a address
	err := json.Unmarshal(x.Resume.Address, &a)
	switch a.Kind {
	case addressTask:
		return c.resumeTask(ctx, x)
	case addressQuestion:
		return c.askAgain(ctx, x)
	}
	after := a.After
	if x.Resume.Cursor != nil {
		after = string(x.Resume.Cursor)
	}
	if err != nil || a.Kind != addressStream || after == "" {
		return interrupted("longcall was restarted, and what it kept does not say where the call goes on.")
	}
	sess := c.adopt(a.Session, a.Version, a.Tasks)
	defer c.release(sess)
	e := &exchange{
		c: c, exec: x, sess: sess, id: a.Request, caps: a.Asks, done: make(chan struct{}),
		left: true, lastID: after, addressed: true, apart: a.Apart, asTask: a.AsTask,
		got: true, broken: true, sent: time.Now(), last: time.Now(),
	}
	e.numbered.Store(true)
	return e.carry(ctx, func(e *exchange, ctx context.Context) call.Answer {
		e.mu.Lock()
		e.timer = time.AfterFunc(e.nextTick(e.last), func() { c.spawn(e.tick) })
		e.mu.Unlock()
		e.questions().takeUp(a.Open)
		pause := resumeFirst
		resp := e.resume(ctx, errRestart, &pause) //nolint:bodyclose // stream closes it
		if resp == nil {
			return e.ended
		}
		e.firstByte()
		a := e.stream(ctx, resp.Body)
		if e.made != nil {
			return e.absorb(ctx, e.made)
		}
		return a
	})
}

// adopted is a session that an earlier process opened.
type adopted struct {
	*session
	calls  int  // of that process that still run
	opened bool // the standalone stream runs, or ran
}

type adoptedKey struct{ id, version string }

// adopt gives the session of an earlier process. It becomes the connection's if
// there is none yet; a new call then first proves that the server still holds
// it. Its caller gives it back with release.
func (c *httpConn) adopt(id, version string, tasks int) *session {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := adoptedKey{id, version}
	a := c.adopted[k]
	if a == nil {
		a = &adopted{session: &session{id: id, version: version, tasks: tasks}}
		a.suspect.Store(true)
		c.adopted[k] = a
		if id != "" && !c.closed {
			a.stream = newStandalone(c, a.session)
			if c.sess == nil && c.dialing == nil && c.s.Era != "modern" {
				c.sess = a.session
				c.verdict, c.verdictT = "legacy", time.Time{} // nobody knows how long it is since it was asked
			}
		}
	}
	a.calls++
	return a.session
}

// listenTo opens the standalone stream of an adopted session, once a call is
// there that its messages are for.
func (c *httpConn) listenTo(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.adopted[adoptedKey{s.id, s.version}]
	if a == nil || a.session != s || a.opened || s.stream == nil || c.closed {
		return
	}
	a.opened = true
	c.wg.Go(s.stream.run)
}

// release gives back what adopt gave. A session that no call needs any more and
// that is not the connection's is ended.
func (c *httpConn) release(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := adoptedKey{s.id, s.version}
	a := c.adopted[k]
	if a.calls--; a.calls > 0 || c.sess == s {
		return
	}
	delete(c.adopted, k)
	if s.stream == nil || c.closed {
		return
	}
	s.stream.stop()
	c.wg.Go(func() {
		ctx, cancel := context.WithTimeout(c.ctx, endSession)
		defer cancel()
		c.delete(ctx, s)
	})
}

// endSession bounds how long the end of a session may take.
const endSession = 2 * time.Second

// delete tells the server that a session is not needed any more (R-56; a 405 is
// fine), unless a call was left in it for the next process: the server would
// drop the call with it.
func (c *httpConn) delete(ctx context.Context, s *session) {
	if s == nil || s.id == "" || s.gone.Load() || s.left.Load() {
		return
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, c.s.URL, http.NoBody)
	if err != nil {
		return
	}
	c.header(req, s)
	if resp, err := c.client.Do(req); err == nil {
		resp.Body.Close()
	}
}

// address keeps where the call can be found again, once its stream has an id
// and after what came with that id was kept. The stateless era has no
// resuming.
func (x *exchange) address(cursor []byte) {
	if x.addressed || x.sess.isModern || cursor == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.addressed = true
	x.keepAddress(cursor)
}

// keepAddress stores the address as it is now. x.mu is held.
func (x *exchange) keepAddress(cursor []byte) {
	body, err := json.Marshal(address{
		Kind: addressStream, URL: x.c.digest, Session: x.sess.id, Version: x.sess.version, Tasks: x.sess.tasks,
		Request: x.id, Apart: x.apart, AsTask: x.asTask, Asks: x.caps, Open: x.asks.kept(),
	})
	if err != nil {
		return // strings always marshal
	}
	if err := x.exec.Emit(call.Event{Kind: call.KindAddress, Body: body, Hole: -1, Cursor: cursor}); err != nil {
		x.abort(err)
	}
}

// comesApart notes that messages of the call come on the standalone stream.
// x.mu is held.
func (x *exchange) comesApart() {
	if x.apart || x.over {
		return
	}
	x.apart = true
	if x.addressed && !x.tasked { // a task has an address of its own
		x.keepAddress(nil)
	}
}

// remark tells the record what one event of the stream was. cursor is the id of
// that event: should the event come again, so does the remark, and all that
// follows has the seq that readers know it by.
func (x *exchange) remark(cursor []byte, format string, args ...any) {
	if err := x.exec.Emit(call.Event{Kind: call.KindNote, Body: fmt.Appendf(nil, format, args...), Hole: -1, Cursor: cursor}); err != nil {
		x.abortNow(err)
	}
}

// maxLater is how many notes wait for a call's end.
const maxLater = 32

// note adds a line to the call's record, unless the call has ended. If the
// call's stream is numbered, it waits for the call's end: a process after ours
// gives what it asks for again the seqs from the last stored event on, and a
// note of ours between them would shift them.
func (x *exchange) note(format string, args ...any) {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.over:
	case !x.addressed:
		x.exec.Note(format, args...)
	case len(x.later) < maxLater:
		x.later = append(x.later, fmt.Sprintf(format, args...))
	}
}

// resumedNote says in the record that the stream was resumed.
func resumedNote(why error) string {
	if errors.Is(why, errRestart) {
		return "longcall was restarted; the stream was resumed after the last event that was kept."
	}
	return "The tool server's stream broke (" + rootCause(why).Error() + ") and was resumed after the last event."
}
