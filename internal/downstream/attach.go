package downstream

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/command"
	"github.com/longcall/longcall/internal/mcp"
)

// attachment is one agent's request that waits for a call and shows it: a
// cursor on the call's events and what is needed to render them.
type attachment struct {
	x        *exchange
	ctx      context.Context
	call     *call.Call
	id       []byte // the agent's, raw
	token    []byte // the agent's, raw; nil if it wants no progress
	modern   bool
	logs     int  // lowest level of log messages that it wants
	wantLogs bool // whether it wants any
	policy   Decision
	shell    bool          // the call is one of the shell
	plan     *command.Plan // of the request that made such a call; nil for other readers
	read     *reading      // not nil: the request is no tools/call
	refusal  int           // the HTTP status of the answer, if it is not 200

	session *session // legacy only
	key     string   // of the request in its session
	entry   *inCall

	handing          func() // ends Call.HandingOff; nil if the call was not handed off
	join             call.Join
	from             string                  // not empty: the event id that a GET goes on from
	prefix           []byte                  // of event ids; nil if the stream cannot be resumed
	task             bool                    // the request can be answered with a task
	asTask           bool                    // it asked for one, as 2025-11-25 has it: see createTask
	result, original bool                    // see showsResult
	stop             context.CancelCauseFunc // of a call of the shell in a session, see letGo
	back             bool                    // the request comes back to its own call, and joins nothing
	ready            bool                    // the command is what its ready_pattern waits for
	due              time.Time               // when the call is handed off; zero if never
	ends             time.Time               // when the connection is closed as planned; zero if never

	asks *[32]byte       // digest of the request, if it can be answered with a question: see inputState
	put  map[string]bool // keys of the questions that the agent was sent as requests; see askAgent
	seen uint64          // with from: the seq that it was at

	after    uint64
	line     line
	quiet    bool      // a cancel was asked for: no more progress of ours
	unwanted bool      // by the agent itself: it has forgotten the call and its token (O22)
	since    time.Time // the call's start, as beats tell it; zero if it is this request's
	lastData time.Time // when a message was written last
	buf      *[]byte   // from buffers, while there is something in it
	d        call.Delivery
	batched  bool   // the answer is a part of another: see collect
	kept     []byte // it, if the call was handed off
	own      owner  // not nil: it does all this instead
}

// buffers are lent to attachments while they have something to write: a parked
// call holds none.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 1<<10); return &b }}

const (
	keepBuffer = 64 << 10 // a buffer that grew beyond is not kept
	flushAt    = 32 << 10 // of pending events
	bigBody    = 64 << 10 // a result that is not copied
)

func (a *attachment) take() *[]byte {
	if a.buf == nil {
		a.buf = buffers.Get().(*[]byte)
	}
	return a.buf
}

func (a *attachment) give() {
	if a.buf != nil {
		if cap(*a.buf) <= keepBuffer {
			*a.buf = (*a.buf)[:0]
			buffers.Put(a.buf)
		}
		a.buf = nil
	}
}

// flush writes what is pending and gives the buffer back.
func (a *attachment) flush() bool {
	if a.buf != nil {
		a.x.out.write(*a.buf)
		a.give()
	}
	return a.x.out.flush()
}

// run serves the attachment to its end, which it records.
func (a *attachment) run() {
	switch {
	case a.from != "":
		a.begin("resume")
		a.stream()
		a.x.q.MaxGap = a.x.out.gap
	case !a.policy.Buffered && a.x.sse:
		a.begin("sse")
		a.stream()
		a.x.q.MaxGap = a.x.out.gap
	case a.x.json:
		a.begin("json")
		a.wait()
	default:
		a.begin("sse")
		a.wait()
	}
	a.finish()
	if a.session != nil {
		a.session.done()
	}
}

func (a *attachment) begin(kind string) {
	a.lastData = time.Now()
	if a.read == nil { // nobody asks for another later
		a.x.out.w.Header()[HeaderCall] = []string{string(a.call.ID())}
	}
	a.d = call.Delivery{Call: a.call.ID(), Kind: kind, Era: a.x.version, Attached: a.lastData}
}

func (a *attachment) finish() {
	a.give()
	a.released()
	if a.session != nil {
		a.session.detach(a.key, a.entry, a.d.How != "" && a.d.How != call.Delivered && a.stop == nil)
	}
	out := &a.x.out
	a.d.Ended, a.d.Bytes = time.Now(), out.bytes
	if out.first > 0 {
		a.d.FirstByte = max(1, out.start.Add(out.first).Sub(a.d.Attached))
	}
	q := &a.x.q
	q.Kind, q.How = a.d.Kind, a.d.How
	q.Events += a.d.Events
	q.Dropped += a.d.Dropped
	a.forgetPut()
	a.comesLater()
	a.call.Leave(a.d, a.cancelAfter()) // an agent that cancelled is owed nothing, and gets nothing
	if a.handing != nil {
		a.handing()
	}
}

// cancelAfter is how long the call may run on without a reader; less than 0 is
// to its end. Only in the modern era is a closed stream a cancel (SPEC §2.3).
func (a *attachment) cancelAfter() time.Duration {
	gone := a.d.How == call.AbortedDownstream || a.d.How == call.Slow
	if !a.modern || !a.policy.CancelOnDisconnect || !gone {
		return -1
	}
	return a.policy.Grace
}

// stream answers with events as they come. The first byte leaves at once,
// whatever the tool server does (O1).
func (a *attachment) stream() {
	out := &a.x.out
	if a.together() {
		return
	}
	if a.session != nil && a.session.id != "" && a.prefix == nil && a.read == nil && !a.x.old {
		// Not before: an answer that leaves in one piece has no event ids.
		place := place{call: a.call.ID(), epoch: a.x.h.opt.Epoch, id: a.id, token: a.token}
		a.prefix = place.seal(&a.x.h.opt.Key, a.session.principal, a.session.id)
	}
	streamHead(out.w.Header())
	out.head(http.StatusOK)
	a.prime()
	if !a.flush() {
		a.gone()
		return
	}
	a.first()
	if a.asksAlready() {
		return
	}
	a.follow(a.beat(), a.show)
}

// prime writes the first byte: where the revision has it, an event without data
// from which the stream can be resumed before it has brought anything.
// Clients of older ones fail on empty data.
func (a *attachment) prime() {
	b := a.take()
	*b = append(*b, commentOpen...)
	if a.prefix == nil || a.x.version < mcp.V20251125 {
		return
	}
	if age := a.x.set.StreamAge; age > 0 {
		a.ends = time.Now().Add(age)
	}
	if a.from != "" { // nothing was shown since, and what it counts is its own process's
		*b = append(append(append(*b, "id: "...), a.from...), '\n')
	} else {
		*b = a.appendID(*b, a.after)
	}
	*b = append(*b, primed...)
}

// together waits for the moment of Settings.Together: an answer that is there by
// then leaves with the headers, in one write instead of three. It returns true
// if nothing is left to do.
func (a *attachment) together() bool {
	if a.x.set.Together <= 0 || a.join == call.Joined {
		return false // one that has run for a while does not end this very moment
	}
	wait := a.x.set.Together
	if a.modern && a.token == nil {
		// It may miss a capability, which HTTP has a status for while nothing was
		// written, and nothing else is due to it for a long time.
		wait *= 10
	}
	done := false
	a.follow(wait, func(ev call.Event) bool {
		switch ev.Kind {
		case call.KindProgress, call.KindMessage, call.KindCancelRequested:
			a.after-- // to be shown on the stream
			return false
		case call.KindAsk:
			if a.modern {
				if done = a.inputRequired(); done {
					a.first()
				}
				return !done
			}
			a.after--
			return false
		case call.KindBeat:
			return false
		case call.KindEnd:
			a.end(&ev)
			a.first()
			done = true
			return false
		}
		return true
	})
	return done || a.d.How != ""
}

// first says that the first byte is out.
func (a *attachment) first() {
	if o := a.x.h.opt.Observer; o != nil && a.x.out.first > 0 {
		a.x.q.FirstByte = a.x.out.first
		o.FirstByte(&a.x.q)
	}
}

var (
	commentOpen = []byte(": open\n\n")
	commentBeat = []byte(": ka\n\n")
	primed      = []byte("retry: 1000\ndata: \n\n")
	comeBack    = []byte("retry: 1000\n\n")
	eventHead   = []byte("event: message\ndata: ")
	eventTail   = []byte("\n\n")
)

// beat is the silence after which the call's events are interrupted.
func (a *attachment) beat() time.Duration {
	set, progress := a.x.set, a.progressEvery()
	if a.token != nil && progress > 0 && (set.Comment <= 0 || progress < set.Comment) {
		return progress
	}
	return max(set.Comment, 0)
}

// progressEvery is the silence before a progress message of ours.
func (a *attachment) progressEvery() time.Duration {
	if p := a.x.set.Progress; !a.shell || p < shellProgress {
		return p
	}
	return shellProgress
}

// wait answers in one piece, at the end: for clients that take no stream (O3),
// and under the kill switch.
func (a *attachment) wait() {
	if a.asksAlready() {
		return
	}
	a.follow(0, func(ev call.Event) bool {
		switch ev.Kind {
		case call.KindAsk:
			return !a.asked(&ev)
		case call.KindEnd:
			a.end(&ev)
			return false
		}
		return true
	})
}

// follow shows the call's events until show says no or the agent is gone. Events
// that are not kept any more are counted as dropped: the result must reach the
// agent even if the journal cannot give back what a slow reader missed.
func (a *attachment) follow(beat time.Duration, show func(call.Event) bool) {
	for {
		var failed error
		step := a.step(beat)
		for ev, err := range a.call.Follow(a.ctx, a.after, step) {
			if err != nil {
				failed = err
				break
			}
			if ev.Seq > 0 {
				a.after = ev.Seq
			}
			if ev.Kind == call.KindEnd && a.read.next(a, &ev) {
				break
			}
			if !show(ev) {
				return
			}
			if a.planned(&ev) {
				return
			}
			if left := a.step(beat); left < step && left > 0 {
				break // to wake up in time for what is planned
			}
		}
		switch {
		case a.ctx.Err() != nil:
			a.gone()
			return
		case failed == nil:
		case errors.Is(failed, call.ErrLeft):
			a.left()
			return
		case !a.missed():
			return
		}
	}
}

// step is after which silence follow looks up: for a beat, or for what is
// planned.
func (a *attachment) step(beat time.Duration) time.Duration {
	for _, t := range [...]time.Time{a.due, a.ends} {
		if t.IsZero() {
			continue
		}
		if left := max(time.Until(t), time.Millisecond); beat <= 0 || left < beat {
			beat = left
		}
	}
	return beat
}

// planned does what is due now; it returns true if the attachment is over.
func (a *attachment) planned(ev *call.Event) bool {
	a.ready = a.ready || a.plan != nil && ev.Kind == call.KindReady
	asks := a.ready || a.task && ev.Kind != call.KindBeat && a.call.ServerTask()
	if a.due.IsZero() && a.ends.IsZero() && !asks {
		return false
	}
	now := time.Now()
	if asks || !a.due.IsZero() && !now.Before(a.due) {
		a.due = time.Time{}
		if a.handOff() {
			return true
		}
	}
	if !a.ends.IsZero() && !now.Before(a.ends) {
		a.ends = time.Time{}
		a.comesBack("")
		return true
	}
	return false
}

// comesBack closes the connection of a stream that its client resumes (R-53,
//
func (a *attachment) comesBack(how call.How) {
	b := a.take()
	*b = append(*b, comeBack...)
	if !a.flush() {
		a.gone()
		return
	}
	a.d.How = how
}

// left answers for a call that the next process takes up: with what leads the
// agent back to it.
func (a *attachment) left() {
	if a.d.Kind != "json" && a.prefix != nil && a.x.out.status != 0 {
		a.comesBack(call.ShutDown)
		return
	}
	if a.handOff() {
		return
	}
	if a.result {
		a.answer(a.resultLater(), nil, "")
		if a.d.How = call.ShutDown; !a.x.out.flush() {
			a.gone()
		}
		return
	}
	again := "make the same call again in a moment, and you get that result instead of a second run."
	if rec := a.call.Record(); rec.Attach == call.AttachNever && rec.Idempotency == "" { // that would be a second run
		again = "do not call the tool again, which would run it a second time. The operator can see how it ends with longcall calls show " + string(rec.ID) + "."
	}
	end := call.End{Outcome: call.Interrupted, By: "shutdown", Text: "Outcome unknown: longcall is restarting. The call goes on, and its result is kept: " + again}
	a.answer(a.words(&end, a.call.ID()), nil, "")
	if a.x.out.flush() {
		a.d.How = call.ShutDown
	} else {
		a.gone()
	}
}

// missed goes past events that are not kept any more, and says whether more
// come. It keeps follow's frame small: that one is on the stack of every parked
// call.
//
//go:noinline
func (a *attachment) missed() bool {
	rec := a.call.Record()
	if rec.Seq < a.after+2 {
		end := call.End{Outcome: call.Interrupted}
		a.end(&call.Event{Kind: call.KindEnd, Hole: -1, End: &end})
		return false
	}
	a.d.Dropped += int64(rec.Seq - 1 - a.after)
	a.after = rec.Seq - 1 // what comes next is kept in memory in any case
	return true
}

// show renders one event to the stream. It returns false when nothing may follow.
func (a *attachment) show(ev call.Event) bool {
	switch ev.Kind {
	case call.KindProgress:
		a.progress(&ev)
	case call.KindMessage:
		a.message(&ev)
	case call.KindBeat:
		a.beatAt(ev.Time)
	case call.KindEnd:
		a.end(&ev)
		return false
	case call.KindAsk:
		if a.asked(&ev) {
			return false
		}
	case call.KindAnswer:
		a.answeredKeys(&ev)
	case call.KindCancelRequested:
		a.quiet = true
		a.unwanted = !a.modern && bytes.HasPrefix(ev.Body, askedByAgent)
	}
	switch {
	case a.buf == nil:
		// Nothing to show, but it made the next beat later: life is shown now,
		// unless it was just before.
		if ev.Kind != call.KindBeat {
			a.comment(time.Now(), a.x.set.Comment/20)
		}
	case len(*a.buf) < flushAt && ev.Seq > 0 && a.call.More(ev.Seq):
		return true // more is there: one write for all
	}
	if a.buf != nil && !a.flush() {
		a.gone()
		return false
	}
	return true
}

// beatAt shows life after a silence: as progress if the client asked for it and
// has got none for long enough, else as a comment. Times have some slack, because
// timers and writes do not meet exactly.
func (a *attachment) beatAt(now time.Time) {
	if p := a.progressEvery(); p > 0 && a.token != nil && !a.quiet && !a.original && now.Sub(a.lastData) >= p-slack(p) {
		b := a.take()
		mark := len(*b)
		since := a.since
		if since.IsZero() {
			since = a.x.out.start
		}
		frame, ok := a.line.appendBeat(append(*b, eventHead...), a.token, now.Sub(since))
		if ok {
			*b = append(frame, eventTail...)
			a.lastData = now
			a.x.q.Beats++
			return
		}
		if *b = frame[:mark]; mark == 0 {
			a.give()
		}
	}
	a.comment(now, a.x.set.Comment-slack(a.x.set.Comment))
}

// slack is by how much a beat may be early: engine and timers have a grid of
// 100 ms for silences from a second on.
func slack(d time.Duration) time.Duration {
	if d >= time.Second {
		return max(d/20, 110*time.Millisecond)
	}
	return d / 20
}

// comment writes a comment if nothing was written for silence.
func (a *attachment) comment(now time.Time, silence time.Duration) {
	if a.x.set.Comment > 0 && now.Sub(a.x.out.last) >= silence {
		b := a.take()
		*b = append(*b, commentBeat...)
		a.x.q.Beats++
	}
}

// askedByAgent is how the body of a KindCancelRequested begins that came from
// the agent.
var askedByAgent = []byte("agent:")

func (a *attachment) progress(ev *call.Event) {
	if a.token == nil || a.unwanted {
		a.d.Dropped++ // nobody asked for it (O6)
		return
	}
	if a.original {
		ev = a.relate(ev)
	}
	b := a.take()
	mark := len(*b)
	frame, ok := a.line.appendProgress(append(*b, eventHead...), ev.Body, ev.Hole, a.token)
	a.wrote(b, frame, mark, ok, ev.Seq)
}

func (a *attachment) message(ev *call.Event) {
	if !a.unwanted && a.passes(ev.Body) { // also without a level
		b := a.take()
		a.wrote(b, append(append(*b, eventHead...), ev.Body...), len(*b), true, ev.Seq)
		return
	}
	rank, ok := logRank(ev.Body)
	lowest := a.logs
	if a.session != nil {
		lowest = int(a.session.level.Load())
	}
	if !ok || !a.wantLogs || rank < lowest || a.unwanted {
		return
	}
	if a.result {
		ev = a.relate(ev)
	}
	b := a.take()
	mark := len(*b)
	frame := append(append(*b, eventHead...), ev.Body...)
	a.wrote(b, frame, mark, true, ev.Seq)
}

// wrote ends a frame that was begun at mark, or takes it back.
func (a *attachment) wrote(b *[]byte, frame []byte, mark int, ok bool, seq uint64) {
	if ok {
		*b = append(a.appendID(append(frame, '\n'), seq), '\n')
		a.lastData = time.Now()
		a.d.Events++
		return
	}
	a.d.Dropped++
	if *b = frame[:mark]; mark == 0 {
		a.give()
	}
}
