package downstream

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

const (
	// defaultAwait is how long await_call waits if neither its arguments nor a
	// profile say, defaultAwaitToken with a progress token.
	defaultAwait, defaultAwaitToken = 8 * time.Second, 45 * time.Second
	// kindAwait is the kind of the delivery to who waits for a call by its id.
	kindAwait = "await"
	// byCancelTool is who cancelled. It is not "agent": the request that the
	// call belongs to did not cancel it, and still gets an answer.
	byCancelTool = "agent (cancel_call)"
)

// waiter is an await_call or a cancel_call: it shows life, and the progress of
// the calls that it waits for, until they have ended or its time is over. Nothing
// it does changes a call, but for the cancel it was made for. It parks without a
// goroutine per call: all of them wake it.
type waiter struct {
	attachment
	calls   []waited
	unknown []string // ids that are no calls of the principal
	all     bool
	attempt int64 // see awaitArgs
	until   time.Time
	wake    chan struct{}
	stop    context.CancelCauseFunc // ends the wait
	show    bool                    // life and progress can be shown now
	away    bool                    // nothing more comes from this process

	cursor   int64 // in the output of a command; less than 0 if none was named
	output   bool  // it waits for new output
	searches bool  // it waits for a pattern

	asker *waited // the call whose questions are the answer; nil if none's are

	cancel    bool  // it is a cancel_call
	cancelErr error // what Call.Cancel said
	left      bool  // there was something to stop of a command that had ended
}

// waited is one call that is waited for.
type waited struct {
	call  *call.Call
	state call.State
	seen  uint64          // of the last progress that was taken
	quiet func()          // ends its wakes
	put   map[string]bool // ids of the requests of ours that the agent has of it; see waiter.put
	end   *call.Event
	d     call.Delivery
	shellWait
}

var errWaitCancelled = errors.New("the agent cancelled the wait")

// owner is what runs instead of an attachment that is a part of it.
type owner interface {
	run()
	collect() []byte
	collected(gone bool)
}

// serve runs the attachment, or what owns it.
func (a *attachment) serve() {
	if a.own != nil {
		a.own.run()
		return
	}
	a.run()
}

// newWaiter makes a waiter for a request, with nothing to wait for yet.
func (x *exchange) newWaiter(m *mcp.Message, s *session) *waiter {
	w := &waiter{wake: make(chan struct{}, 1)}
	w.x, w.modern, w.id = x, x.modern, append([]byte(nil), m.ID.Of(m.Raw)...)
	if t := m.MetaToken.Of(m.Raw); t != nil && isProgressToken(t) {
		w.token = append([]byte(nil), t...)
	}
	w.ctx, w.stop = context.WithCancelCause(x.r.Context())
	w.policy.Buffered = x.h.opt.Admit(x.q.Principal, x.server, "", x.modern).Buffered
	w.own = w
	return w
}

// release lets go of a wait that is over.
func (w *waiter) release() {
	for i := range w.calls {
		w.calls[i].release()
	}
	w.stop(nil)
}

// begun makes the waiter known to its session, so that a cancel finds it.
func (w *waiter) begun(s *session) {
	if s == nil {
		return
	}
	w.session, w.key = s, idKey(w.id)
	w.entry = s.begin(w.key, w.x.h.running)
	s.waits(w.entry, func() { w.stop(errWaitCancelled) })
}

// client is how the sender of the request calls itself.
func (x *exchange) client(m *mcp.Message, s *session) string {
	if s != nil {
		return s.client
	}
	return clientName(m.MetaClientInfo.Of(m.Raw))
}

// awaitCall begins an await_call.
func (x *exchange) awaitCall(m *mcp.Message, s *session, args []byte) (*attachment, string) {
	w := x.newWaiter(m, s)
	p := x.profile(x.client(m, s))
	live := w.token != nil && x.sse && !w.policy.Buffered
	otherwise, budget := p.Await, p.Budget
	if live {
		otherwise, budget = p.AwaitToken, p.BudgetToken
	}
	if otherwise <= 0 {
		otherwise = defaultAwait
		if live {
			otherwise = defaultAwaitToken
		}
	}
	v, wrong := parseAwait(args, w.token != nil, x.h.opt.Shell != nil, otherwise, x.ownNames())
	if wrong == "" {
		w.all, w.attempt = v.all, v.attempt
		wrong = w.find(v.ids)
	}
	if wrong == "" {
		wrong = w.forCommands(&v)
	}
	if wrong != "" {
		w.release()
		return nil, wrong
	}
	wait := v.wait
	if budget > 0 {
		wait = min(wait, budget) // past it the host hears nothing any more
	}
	w.until = x.out.start.Add(wait)
	x.q.Call = w.calls[0].call.ID()
	if x.modern && x.asks != "" {
		if sum, ok := requestDigest(m); ok {
			w.asks = &sum
		}
	}
	for i := range w.calls {
		w.calls[i].call.Watch()
	}
	w.begun(s)
	return &w.attachment, ""
}

// cancelCall begins a cancel_call: the cancel is asked for here.
func (x *exchange) cancelCall(m *mcp.Message, s *session, args []byte) (*attachment, string) {
	v, wrong := parseCancel(args, x.h.opt.Shell != nil, x.ownNames())
	if wrong != "" {
		return nil, wrong
	}
	w := x.newWaiter(m, s)
	w.cancel, w.all, w.cursor = true, true, -1
	w.until = x.out.start.Add(cancelWait)
	if wrong = w.find([]string{v.id}); wrong == "" {
		wrong = w.stopCommand(&v)
	}
	if wrong != "" {
		w.release()
		return nil, wrong
	}
	end := call.End{By: byCancelTool, Text: "The agent cancelled the call with cancel_call."}
	if reason := oneLine(v.reason, maxReason); reason != "" {
		end.Text = "The agent cancelled the call with cancel_call: " + reason
	}
	w.cancelErr = w.calls[0].call.Cancel(end)
	if errors.Is(w.cancelErr, call.ErrElsewhere) {
		w.until = x.out.start
	}
	w.begun(s)
	return &w.attachment, ""
}

// find looks the calls up. What one principal has looks unknown to another (I6),
// and so does what is no id at all.
func (w *waiter) find(ids []string) (wrong string) {
	for _, text := range ids {
		c, err := w.x.findCall(text)
		switch {
		case errors.Is(err, call.ErrUnknown):
			w.unknown = append(w.unknown, text)
		case err != nil:
			return "The record of the calls cannot be read right now, so nothing is known about them. They go on all the same. Call again in a moment."
		default:
			w.calls = append(w.calls, waited{call: c})
		}
	}
	if len(w.calls) == 0 {
		return w.unknownText()
	}
	return ""
}

// run serves the request to its end.
func (w *waiter) run() {
	kind, stream := "sse", !w.policy.Buffered && w.x.sse
	if !stream && w.x.json {
		kind = "json"
	}
	w.begin(kind)
	// A search of much output takes a while: life first.
	if stream && (w.searches || !w.over()) {
		streamHead(w.x.out.w.Header())
		w.x.out.head(http.StatusOK)
		*w.take() = append(*w.take(), commentOpen...)
		if w.show = w.flush(); w.show {
			w.first()
		} else {
			w.gone()
		}
	}
	w.wait()
	w.answer()
	if !w.show {
		w.first()
	}
	w.x.q.MaxGap = w.x.out.gap
	w.finish()
	if w.session != nil {
		w.session.done()
	}
}

func (w *waiter) begin(kind string) {
	w.lastData = time.Now()
	w.d = call.Delivery{Kind: kind, Era: w.x.version, Attached: w.lastData}
	for i := range w.calls {
		c := &w.calls[i]
		c.quiet = c.call.Notify(w.wake)
		s, _ := c.call.Look(w.ctx, math.MaxUint64) // what it said before was not said to this waiter
		c.seen = s.Seq
	}
}

// wait waits until it is over, the agent is gone, or it has cancelled.
func (w *waiter) wait() {
	if w.d.How != "" {
		return
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	stopping := w.x.h.stopping
	for !w.over() {
		if w.buf != nil && !w.flush() {
			w.gone()
			return
		}
		timer.Reset(w.pause())
		select {
		case <-w.wake:
		case <-timer.C:
			if w.show {
				w.beatAt(time.Now())
			}
		case <-stopping:
			w.away, stopping = true, nil
		case <-w.ctx.Done():
			return
		}
	}
}

// pause is how long there is nothing to do unless something happens.
func (w *waiter) pause() time.Duration {
	now := time.Now()
	d := w.until.Sub(now)
	if w.show {
		d = min(d, w.nextBeat(now))
	}
	for i := range w.calls {
		if w.calls[i].state.Elsewhere {
			d = min(d, call.LookEvery)
		}
	}
	return max(d, 0)
}

// nextBeat is when life has to be shown, a little early, so that the beats of
// many waits fall on the same tenths of a second.
func (w *waiter) nextBeat(now time.Time) time.Duration {
	const grid, least = 100 * time.Millisecond, 10 * time.Millisecond
	d := time.Hour
	if p := w.x.set.Comment; p > 0 {
		d = w.x.out.last.Add(p).Sub(now)
	}
	if p := w.progressEvery(); p > 0 && w.token != nil {
		d = min(d, w.lastData.Add(p).Sub(now))
	}
	if d > time.Second {
		d -= time.Duration(now.Add(d).UnixNano() % int64(grid))
	}
	return max(d, least)
}

// over looks at the calls, takes their progress, and says whether the wait is
// over.
func (w *waiter) over() bool {
	running := 0
	for i := range w.calls {
		c := &w.calls[i]
		if c.state.Outcome != call.Running {
			continue
		}
		s, err := c.call.Look(w.ctx, c.seen)
		if err != nil { // of a call that runs elsewhere: it is not lost, but cannot be seen
			w.away = true
		} else {
			c.state = s
		}
		if s.Progress.Seq > 0 {
			c.seen = s.Progress.Seq
			w.tell(c)
		}
		w.away = w.away || s.Left
		w.ask(c)
		if c.state.Outcome == call.Running && !w.look(c) {
			running++
		}
	}
	done := running == 0 || !w.all && running < len(w.calls)
	if done {
		w.asker = nil // what has come goes before what is asked
	}
	return done || w.asker != nil || w.away || !time.Now().Before(w.until)
}

// tell relays a call's progress on the caller's own token.
func (w *waiter) tell(c *waited) {
	if !w.show || w.token == nil {
		return
	}
	message := progressText(c.state.Progress.Body)
	if message == "" {
		return
	}
	b := w.take()
	mark := len(*b)
	frame, ok := w.line.appendSaid(append(*b, eventHead...), w.token, time.Since(w.x.out.start), oneLine(string(c.call.ID())+": "+message, maxStatus))
	w.wrote(b, frame, mark, ok, 0)
}

// appendSaid appends a progress message with a text of ours.
func (l *line) appendSaid(dst, token []byte, elapsed time.Duration, said string) (out []byte, ok bool) {
	v, ok := l.above(0, false)
	if !ok {
		return dst, false
	}
	l.any, l.v = true, max(v, elapsed.Seconds()/beatsPerUnit)
	dst = append(dst, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":`...)
	dst = append(append(dst, token...), `,"progress":`...)
	dst = append(appendNumber(dst, l.v), `,"message":`...)
	return append(append(dst, mcp.Quote(said)...), `}}`...), true
}

// answer writes the answer, if it is owed one, and notes how that went.
func (w *waiter) answer() {
	switch {
	case w.d.How != "":
		return
	case errors.Is(context.Cause(w.ctx), errWaitCancelled):
		if w.x.out.status == 0 {
			w.x.out.head(http.StatusNoContent)
			w.x.out.flush()
		}
		return
	case w.ctx.Err() != nil:
		w.gone()
		return
	}
	p, ok := w.question()
	if !ok {
		p, ok = w.render()
	}
	if !ok {
		w.gone()
		return
	}
	w.write(p)
	if !w.x.out.flush() {
		w.gone()
		return
	}
	w.answered()
}

// write sends a message, as an event or as the whole reply.
func (w *waiter) write(p *pieces) {
	p.close()
	out := &w.x.out
	sse := w.d.Kind == "sse"
	w.flushed()
	if out.status == 0 {
		h, size := out.w.Header(), p.size
		if sse {
			streamHead(h)
			size += len(eventHead) + len(eventTail)
		} else {
			h["Content-Type"], h["Cache-Control"] = valueJSON, valueNoStore
		}
		h["Content-Length"] = []string{strconv.Itoa(size)}
		out.head(http.StatusOK)
	}
	if sse {
		out.write(eventHead)
	}
	for _, b := range p.list {
		out.write(b)
	}
	if sse {
		out.write(eventTail)
	}
}

// flushed writes what is pending, without sending it yet.
func (w *waiter) flushed() {
	if w.buf != nil {
		w.x.out.write(*w.buf)
		w.give()
	}
}

// answered notes that the answer got out: for each call, that its end did, or
// that the agent was told to come back for it.
func (w *waiter) answered() {
	w.d.Events++
	if w.cancel {
		w.d.How = call.Delivered
		return
	}
	w.d.How = call.HandedOff
	if w.asker != nil {
		w.d.How = call.Asked
	}
	for i := range w.calls {
		c := &w.calls[i]
		if c == w.asker {
			c.d.How = call.Asked
			continue
		}
		if c.end != nil {
			c.d.How, w.d.How = call.Delivered, call.Delivered
		} else {
			c.d.How = call.HandedOff
		}
	}
	if end := w.calls[0].end; end != nil && len(w.calls) == 1 {
		w.x.q.End = end.End
	}
}

// finish records how it went for each call, and leaves them.
func (w *waiter) finish() {
	w.give()
	w.release()
	if w.session != nil {
		w.session.detach(w.key, w.entry, false)
	}
	out, q := &w.x.out, &w.x.q
	q.Kind, q.How = kindAwait, w.d.How
	q.Events += w.d.Events
	q.Dropped += w.d.Dropped
	for i := range w.calls {
		c := &w.calls[i]
		c.quiet()
		if w.cancel {
			continue // it reads nothing
		}
		d := w.d
		d.Call, d.Kind = c.call.ID(), kindAwait
		if c.d.How != "" {
			d.How = c.d.How
		}
		if d.How == call.AbortedDownstream || d.How == call.Slow {
			w.forgetPut(c)
		}
		d.Ended, d.Bytes = time.Now(), out.bytes
		if out.first > 0 {
			d.FirstByte = max(1, out.start.Add(out.first).Sub(d.Attached))
		}
		c.call.Unwatch(d)
	}
}

// collect waits, and returns the answer for a batch; nil if the agent cancelled
// it or is gone.
func (w *waiter) collect() []byte {
	w.begin("json")
	w.wait()
	if w.ctx.Err() != nil {
		return nil
	}
	p, ok := w.render()
	if !ok {
		w.gone()
		return nil
	}
	return p.join()
}

// collected records how the answer of collect was delivered.
func (w *waiter) collected(gone bool) {
	switch {
	case w.d.How != "", errors.Is(context.Cause(w.ctx), errWaitCancelled):
	case gone || w.x.out.err != nil || w.ctx.Err() != nil:
		w.gone()
	default:
		w.answered()
	}
	w.finish()
}
