package chaos_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/journal/sqlite"
)

// slack is how long after it was shown something may be missing from the
// journal if the process is killed: 40 ms by design, more on a busy machine.
const slack = 300 * time.Millisecond

// book is what the journal has about one call.
type book struct {
	call.Record
	events     []call.Event
	deliveries []call.Delivery
}

func (b *book) has(k call.Kind) bool {
	for _, e := range b.events {
		if e.Kind == k {
			return true
		}
	}
	return false
}

// got says whether the journal has it that a reader got the end.
func (b *book) got() bool {
	for _, d := range b.deliveries {
		if d.How == call.Delivered || d.How == call.Replayed {
			return true
		}
	}
	return false
}

func (b *book) String() string {
	s := fmt.Sprintf("    %s epoch %d %s %s by=%q isError=%v seq=%d missing=%d dispatched=%v", b.ID, b.Epoch, b.Server, b.End.Outcome, b.End.By, b.End.ToolError, b.Seq, b.Missing, !b.Dispatched.IsZero())
	if b.End.Text != "" {
		s += fmt.Sprintf(" %q", clip(b.End.Text, 160))
	}
	s += "\n      events:"
	n := 0
	for _, e := range b.events {
		if e.Kind == call.KindProgress {
			n++
			continue
		}
		s += fmt.Sprintf(" %d:%v", e.Seq, e.Kind)
		if e.Kind == call.KindNote || e.Kind == call.KindCancelRequested {
			s += fmt.Sprintf("(%s)", clip(string(e.Body), 100))
		}
	}
	s += fmt.Sprintf(" and %d steps; started %s ended %s", n, b.Started.Format("05.000"), b.Ended.Format("05.000"))
	for _, d := range b.deliveries {
		s += fmt.Sprintf("\n      delivery %s %s, %d bytes, %s to %s", d.Kind, d.How, d.Bytes, d.Attached.Format("05.000"), d.Ended.Format("05.000"))
	}
	return s + "\n"
}

// check looks at everything once all is calm.
func (r *round) check(ctx context.Context) {
	r.settle(ctx)
	if err := r.gw.stop(); err != nil {
		r.wrong("%v", err)
	}
	books, err := r.read(ctx)
	if err != nil {
		r.wrong("the journal cannot be read: %v", err)
		return
	}
	for _, a := range r.agents {
		r.stats.calls++
		if wrong := r.checkAgent(a, books[a.args.Nonce]); len(wrong) > 0 {
			r.wrong("%s\n%s%s%s", strings.Join(wrong, "\n"), a.history(), r.served(a), fmt.Sprint(books[a.args.Nonce]))
		}
		delete(books, a.args.Nonce)
	}
	for nonce := range books {
		r.wrong("the journal has a call of %q, which nobody made", nonce)
	}
	r.front.mu.Lock()
	r.stats.cuts += len(r.front.broke)
	r.front.mu.Unlock()
	r.back.mu.Lock()
	r.stats.cuts += len(r.back.broke)
	r.back.mu.Unlock()
}

// settle waits until no call runs any more.
func (r *round) settle(ctx context.Context) {
	late := time.NewTimer(25 * time.Second)
	defer late.Stop()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		running := -1
		j, err := sqlite.OpenReadOnly(r.gw.journal())
		if err == nil {
			list, err := j.List(ctx, sqlite.Filter{RunningOnly: true, Limit: 1000})
			if err == nil {
				running = len(list)
			}
			j.Close()
		}
		if running == 0 {
			return
		}
		select {
		case <-look.C:
		case <-late.C:
			r.wrong("%d calls still run 25 s after all is calm", running)
			return
		}
	}
}

// read gives all that the journal has, by nonce.
func (r *round) read(ctx context.Context) (map[string][]*book, error) {
	j, err := sqlite.OpenReadOnly(r.gw.journal())
	if err != nil {
		return nil, err
	}
	defer j.Close()
	list, err := j.List(ctx, sqlite.Filter{Limit: 10_000})
	if err != nil {
		return nil, err
	}
	books := map[string][]*book{}
	for i := len(list) - 1; i >= 0; i-- {
		b := &book{Record: list[i]}
		var a args
		if err := json.Unmarshal(b.Arguments, &a); err != nil {
			r.wrong("call %s has the arguments %q", b.ID, clip(string(b.Arguments), 200))
		}
		for after := uint64(0); ; {
			page, err := j.Read(ctx, b.ID, after, 1<<20)
			if err != nil {
				r.wrong("call %s cannot be read after %d: %v\n%v", b.ID, after, err, b)
				break
			}
			if len(page) == 0 {
				break
			}
			b.events = append(b.events, page...)
			after = page[len(page)-1].Seq
		}
		if b.deliveries, err = j.Deliveries(ctx, b.ID); err != nil {
			return nil, err
		}
		books[a.Nonce] = append(books[a.Nonce], b)
	}
	return books, nil
}

// served says what the tool server did for an agent.
func (r *round) served(a *agent) string {
	var b strings.Builder
	at := func(t time.Time) string {
		if t.IsZero() {
			return "-"
		}
		return fmt.Sprintf("%dms", t.Sub(r.begun).Milliseconds())
	}
	for _, x := range r.up.of(a.args.Nonce) {
		x.mu.Lock()
		fmt.Fprintf(&b, "    executed: started %s, ended %s, stopped %s %s, %d messages, task %v\n", at(x.started), at(x.ended), at(x.stopped), x.how, len(x.log), x.task)
		x.mu.Unlock()
	}
	r.gw.mu.Lock()
	defer r.gw.mu.Unlock()
	for i, k := range r.gw.kills {
		fmt.Fprintf(&b, "    kill -9 at %s", at(k))
		if i+1 < len(r.gw.starts) {
			fmt.Fprintf(&b, ", up again at %s", at(r.gw.starts[i+1]))
		}
		fmt.Fprintln(&b)
	}
	return b.String()
}

// checkAgent compares what an agent saw with what the tool server did and with
// what the journal says.
func (r *round) checkAgent(a *agent, books []*book) (wrong []string) {
	fail := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	wrong = append(wrong, a.faults...)
	runs := r.up.of(a.args.Nonce)
	r.count(a, books)

	// (2) What was accepted is on record.
	saw := false
	for _, t := range a.attempts {
		saw = saw || t.what == "call" && t.status == 200 && t.bytes > 0
	}
	if saw && len(books) == 0 {
		fail("(2) longcall has begun an answer, and has no record of the call")
	}
	// (1) Nothing runs twice.
	may := 0
	for _, b := range books {
		if !b.Dispatched.IsZero() || b.End.By == "restart" {
			may++
		}
	}
	if len(runs) > may {
		fail("(1) the tool server executed it %d times, %d calls may have been sent", len(runs), may)
	}
	if len(runs) > 1 && a.key != "" {
		fail("(1) executed %d times under one idempotency key", len(runs))
	}
	for i, b := range books {
		if i > 0 {
			r.checkAgain(a, books[i-1], b, fail)
		}
		r.checkBook(b, fail)
	}
	r.checkTruth(a, books, runs, fail)
	r.checkDelivery(a, books, fail)
	r.checkCancel(a, books, runs, fail)
	return wrong
}

// (3) Each record is whole: one end, and it is the last; nothing missing.
func (r *round) checkBook(b *book, fail func(string, ...any)) {
	if b.End.Outcome == call.Running {
		fail("(3) call %s runs for ever", b.ID)
		return
	}
	ends := 0
	for i, e := range b.events {
		if e.Seq != uint64(i+1) {
			fail("(3) call %s: event %d where %d was next", b.ID, e.Seq, i+1)
			return
		}
		if e.Kind == call.KindEnd {
			ends++
		}
	}
	if n := len(b.events); ends != 1 || b.events[n-1].Kind != call.KindEnd || b.Seq != uint64(n) || b.Missing != 0 {
		fail("(3) call %s: %d events, %d ends, seq %d, %d missing", b.ID, len(b.events), ends, b.Seq, b.Missing)
	}
	dispatched := 0
	for _, e := range b.events {
		if e.Kind == call.KindDispatched {
			dispatched++
		}
	}
	if dispatched > 1 {
		fail("(1) call %s was dispatched %d times", b.ID, dispatched)
	}
}

// A second call for the same nonce is right only if the first one was not to be
// taken over: it was delivered, or cancelled, or never left, or it still had a
// reader as far as longcall could know.
func (r *round) checkAgain(a *agent, old, b *book, fail func(string, ...any)) {
	switch o := old.End.Outcome; {
	case old.got() && old.Ended.Before(b.Started):
		if a.key != "" && (!old.Dispatched.IsZero() || old.End.By == "restart") { // else nothing was sent, and the agent was told to ask again
			fail("(1) call %s was started again as %s under one idempotency key", old.ID, b.ID)
		}
		return
	case o == call.Cancelled && a.key == "":
		return
	case o == call.Denied, old.Dispatched.IsZero() && old.End.By != "restart" && !old.Ended.IsZero() && old.Ended.Before(b.Started):
		return // it never left
	}
	if a.key == "" {
		for _, d := range old.deliveries {
			if !d.Attached.After(b.Started) && d.Ended.After(b.Started) {
				return // both were connected: that is two calls
			}
		}
		r.gw.mu.Lock()
		defer r.gw.mu.Unlock()
		for _, k := range r.gw.kills {
			if k.After(b.Started) && k.After(old.Started) {
				// What the old one's reader was at is lost with the process, if none
				// was killed in between.
				between := false
				for _, o := range r.gw.kills {
					between = between || o.After(old.Started) && o.Before(b.Started)
				}
				if !between {
					return
				}
			}
		}
	}
	fail("(1) call %s was to be taken over, and was started again as %s", old.ID, b.ID)
}

// (4) What the record says is what happened, and what the agent was told.
func (r *round) checkTruth(a *agent, books []*book, runs []*run, fail func(string, ...any)) {
	completed, ended := 0, 0
	told := false // to cancel, which was lost with the process: such a call gets no answer any more
	for _, x := range runs {
		x.mu.Lock()
		told = told || !x.stopped.IsZero() && r.gw.killedIn(x.stopped, x.stopped.Add(slack))
		if !x.ended.IsZero() {
			ended++
		}
		x.mu.Unlock()
	}
	for _, b := range books {
		end := b.events
		if b.End.Outcome == call.Completed {
			completed++
			if n := len(end); n > 0 && !strings.Contains(string(end[n-1].Body), `"`+a.args.text()+`"`) {
				fail("(4) call %s: its result is not that of the tool: %q", b.ID, clip(string(end[n-1].Body), 200))
			}
			if b.End.ToolError != a.args.Bad {
				fail("(4) call %s: isError is %v", b.ID, b.End.ToolError)
			}
		}
		// A resumed stream that the proxy swallows, while pings come through on
		// another connection, is given up: nobody can tell it from a server that
		// has forgotten the call (P16).
		silent := strings.Contains(b.End.Text, "then stayed silent")
		if b.End.Outcome == call.Interrupted && r.resumable(b) && !told && !silent {
			fail("(4) call %s could be taken up again, and ended as interrupted: %s", b.ID, b.End.Text)
		}
	}
	if completed > ended {
		fail("(4) %d calls are recorded as completed, the tool server completed %d", completed, ended)
	}
	switch {
	case a.final == nil:
		if a.cancelled.IsZero() {
			fail("(4) the agent never knew the end")
		}
	case a.final.kind == "result" && completed == 0:
		fail("(4) the agent got a result, and no call is recorded as completed")
	case a.final.kind == "outcome" && a.final.outcome != "handed off":
		ok := false
		for _, b := range books {
			ok = ok || string(b.End.Outcome) == a.final.outcome
			// A task that ends in longcall's own words has failed, whatever they are.
			ok = ok || a.isTask && a.final.outcome == "failed" && b.End.Outcome != call.Completed && b.End.Outcome != call.Cancelled
		}
		if !ok {
			fail("(4) the agent was told %q, which no record says", a.final.outcome)
		}
	}
}

// resumable says whether longcall knew how to take the call up again: a tool
// server's event id or task.
func (r *round) resumable(b *book) bool {
	if b.Server == "plain" || b.Server != "ids" && !b.has(call.KindAddress) {
		return false
	}
	return b.has(call.KindAddress)
}

// (5) What the journal says about deliveries. Bytes that left longcall may still
// be lost on the way, so:
//   - a whole answer at the agent is delivered in the journal, unless the process
//     was killed between the call's end and slack after it, or the connection
//     broke around it (then longcall saw a failed write after the frame);
//   - without a whole answer at any agent, delivered or replayed stands in the
//     journal only if a connection of the call was broken by the proxy or left by
//     the agent.
func (r *round) checkDelivery(a *agent, books []*book, fail func(string, ...any)) {
	got, broken := false, false
	var at time.Time
	for _, t := range a.attempts {
		fate := r.front.fate(t.port)
		broken = broken || fate != "" || t.abandoned || t.err != nil
		if t.answer == nil || t.what != "call" && t.what != "resume" || t.answer.kind != "result" && t.answer.kind != "outcome" {
			continue
		}
		got = true
		from := t.answered
		for _, b := range books {
			if b.Ended.Before(from) {
				from = b.Ended
			}
		}
		if fate == "" && !r.gw.killedIn(from.Add(-slack), t.answered.Add(slack)) {
			at = t.answered
		}
	}
	noted := false
	for _, b := range books {
		noted = noted || b.got() || b.End.Outcome == call.Denied && b.Dispatched.IsZero() && len(b.deliveries) > 0
	}
	if !at.IsZero() && !noted {
		fail("(5) the agent got the whole answer at %dms, and the journal has no delivery", at.Sub(r.begun).Milliseconds())
	}
	if noted && !got && !broken && a.handle == "" {
		fail("(5) the journal says delivered, and the agent got no answer on connections that did not break")
	}
}

// (7) What an agent cancelled, the tool server was told to stop, unless it had
// ended. Where connections to the tool server break, or the process is killed
// around the cancel, it may get lost.
func (r *round) checkCancel(a *agent, books []*book, runs []*run, fail func(string, ...any)) {
	if a.cancelled.IsZero() {
		return
	}
	must := 0 // cancelled calls of which the tool server had to hear
	for _, b := range books {
		if b.End.Outcome != call.Cancelled {
			continue
		}
		if r.back.brokeIn(b.Started, b.Ended.Add(3*time.Second)) || r.gw.killedIn(a.cancelled.Add(-slack), b.Ended.Add(3*time.Second)) {
			continue
		}
		if a.args.Task && !b.has(call.KindAddress) {
			continue // cancelled before the server had named its task: closing the request is all that can be done
		}
		must++
	}
	over := 0
	for _, x := range runs {
		x.mu.Lock()
		if !x.ended.IsZero() || !x.stopped.IsZero() {
			over++
		}
		x.mu.Unlock()
	}
	if over < min(must, len(runs)) {
		fail("(7) %d records say cancelled, and the tool server was told of %d", must, over)
	}
}

// count adds to the round's stats.
func (r *round) count(a *agent, books []*book) {
	s := &r.stats
	calls := 0
	for _, t := range a.attempts {
		switch t.what {
		case "call":
			calls++
		case "resume":
			s.resumed++
		}
	}
	s.reissued += max(0, calls-1)
	switch {
	case !a.cancelled.IsZero():
		s.cancelled++
	case a.final == nil:
		s.lost++
	case a.final.kind == "result":
		s.results++
	default:
		s.told++
	}
	if a.handle != "" && a.isTask {
		s.tasks++
	} else if a.handle != "" {
		s.handles++
	}
	for _, b := range books {
		if b.End.Outcome == call.Interrupted {
			s.interrupted++
		}
		if len(b.events) > 0 && b.Epoch > 0 && r.gw.killedIn(b.Started, b.Ended) && b.End.By != "restart" {
			s.adopted++
		}
		for _, d := range b.deliveries {
			if d.How == call.Replayed {
				s.replayed++
			}
		}
	}
}
