package call

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Resume is where a call that an earlier process left at its tool server goes on.
type Resume struct {
	Address []byte // of the last KindAddress; nil if there was none
	Cursor  []byte // of the last event that has one; nil if none does
	Seq     uint64 // of the last event that was kept
}

// ErrLeft is the cause that ends a call's context when this process stops and
// the next one can take the call up again.
var ErrLeft = errors.New("longcall stops; the call stays with its tool server")

// leaveNow leaves a call that a stop need not wait for.
func (c *Call) leaveNow() {
	l, ok := c.e.runner.(Leaver)
	if !ok {
		return
	}
	c.mu.Lock()
	leaves := l.Leaves(&c.rec)
	c.mu.Unlock()
	if leaves && c.canStay() {
		c.end(ErrLeft)
	}
}

// canStay says whether a call can be taken up again by the next process.
func (c *Call) canStay() bool {
	r, ok := c.e.runner.(Resumer)
	c.mu.Lock()
	defer c.mu.Unlock()
	return ok && c.stored && !c.cancelled && r.Resumable(&c.rec)
}

// stopCause is ErrLeft for a call that can be taken up again, else the shutdown.
func (c *Call) stopCause(shutdown *Cause) error {
	if c.canStay() {
		return ErrLeft
	}
	return shutdown
}

// leave shows readers that nothing more comes from this process.
func (c *Call) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ending, c.left = true, true
	c.wake()
}

// Recover takes up the calls that earlier owners left running: those that their
// runner can go on with run again, without being sent again; the others end as
// interrupted, because what became of them is unknown, and no record may say
// "running" for ever. Ended calls that nobody got the end of are owed to those
// who ask again. It is to be called before the first Attach, and again when an
// owner has gone whose calls this one did not take over.
//
// An engine that stops leaves them to the next one, and Stop waits for a Recover
// under way.
func (e *Engine) Recover(ctx context.Context) (adopted, interrupted int, err error) {
	e.mu.Lock()
	if e.stopping {
		e.mu.Unlock()
		return 0, 0, nil
	}
	e.wg.Add(1)
	e.mu.Unlock()
	defer e.wg.Done()
	left, err := e.log.Running(ctx, e.opt.Epoch)
	if err != nil {
		return 0, 0, err
	}
	var resumed []*Record
	alive := map[ID]bool{}
	for i := range left {
		r := &left[i]
		switch {
		case r.Alive: // its owner carries it to its end
			alive[r.ID] = true
			e.mu.Lock()
			e.settle(e.elsewhere(r))
			e.mu.Unlock()
		case e.resumable(r):
			resumed = append(resumed, r)
		default:
			if err := e.giveUp(ctx, r); err != nil {
				return 0, interrupted, err
			}
			interrupted++
		}
	}
	calls, err := e.adopt(ctx, resumed)
	e.wg.Go(func() { e.runOn(calls) })
	if adopted = len(calls); err != nil {
		return adopted, interrupted, err
	}
	owed, err := e.log.Undelivered(ctx, time.Now().Add(-e.opt.Window), maxOwed)
	if err != nil {
		return adopted, interrupted, fmt.Errorf("find results that nobody got: %w", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	defer maps.DeleteFunc(e.foreign, func(id ID, _ *Call) bool { return !alive[id] })
	slices.SortStableFunc(owed, func(a, b Record) int { return a.Ended.Compare(b.Ended) })
	for i := range owed {
		r := &owed[i]
		if e.kept[r.ID] != nil {
			continue
		}
		c := e.foreign[r.ID] // with its readers
		if c == nil {
			c = e.ended(r)
		}
		c.mu.Lock()
		c.update(r)
		c.mu.Unlock()
		e.settle(c)
	}
	return adopted, interrupted, nil
}

// byRestart marks the end of calls that were lost with their owner: a reader may
// have seen events of them that were not stored.
const byRestart = "restart"

// ended is a call that the log has the end of.
func (e *Engine) ended(r *Record) *Call {
	return &Call{e: e, rec: *r, stored: true, cancelled: true, ending: true, ended: true}
}

// elsewhere is a running call that another process carries to its end. It is one
// and the same for all readers here: they are its own should it be taken up.
// e.mu is held.
func (e *Engine) elsewhere(r *Record) *Call {
	c := e.foreign[r.ID]
	if c == nil {
		c = &Call{e: e, rec: *r, stored: true, foreign: true}
		e.foreign[r.ID] = c
	}
	return c
}

// runOn runs adopted calls, not all at the same moment: each comes to its tool
// server with a request, and whoever starts has other things to do as well.
func (e *Engine) runOn(calls []*Call) {
	for i, c := range calls {
		if i > 0 && i%100 == 0 {
			select {
			case <-time.After(20 * time.Millisecond):
			case <-e.stopped.Done():
			}
		}
		go e.run(c)
	}
}

func (e *Engine) resumable(r *Record) bool {
	resumer, ok := e.runner.(Resumer)
	return ok && resumer.Resumable(r)
}

// giveUp ends a call that nobody can go on with.
func (e *Engine) giveUp(ctx context.Context, r *Record) error {
	end := End{Outcome: Interrupted, By: byRestart, Text: "Outcome unknown: longcall stopped while the call ran. It may have taken effect: check before you call it again."}
	switch {
	case r.Dispatched.IsZero():
		end.Text = "Outcome unknown: longcall stopped before it noted that the request had left. It may have taken effect: check before you call it again."
	case r.Asked != nil:
		end.Text = "Outcome unknown: longcall stopped while the tool waited for an answer to its question. The question is lost, and your answer was not delivered. What the tool had done by then may have taken effect: check before you call it again. A new call, made without requestState, is asked anew."
	}
	r.Seq++
	r.End, r.Ended = end, time.Now()
	ev := Event{Seq: r.Seq, Kind: KindEnd, Time: r.Ended, Hole: -1, End: &end}
	if err := e.log.Finish(ctx, r, ev); err != nil && !errors.Is(err, ErrNotRunning) {
		return fmt.Errorf("close call %s: %w", r.ID, err)
	}
	return nil
}

// adopters is how many calls are adopted at once, so that they share commits.
const adopters = 64

// adopt makes this engine the owner of running calls. None runs before all are
// stored: what they bring would hold the others up.
func (e *Engine) adopt(ctx context.Context, records []*Record) (calls []*Call, err error) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	next := 0
	for range min(adopters, len(records)) {
		wg.Go(func() {
			mu.Lock()
			defer mu.Unlock()
			for next < len(records) && err == nil {
				r := records[next]
				next++
				mu.Unlock()
				from := r.Epoch
				r.Epoch = e.opt.Epoch
				failed := e.log.Adopt(ctx, r, from)
				mu.Lock()
				switch {
				case failed == nil:
					calls = append(calls, e.adopted(r))
				case !errors.Is(failed, ErrNotRunning):
					err = fmt.Errorf("take up call %s: %w", r.ID, failed)
				}
			}
		})
	}
	wg.Wait()
	return calls, err
}

// adopted is a call that runs on here.
func (e *Engine) adopted(r *Record) *Call {
	c := e.takeOver(r)
	if o := e.opt.Observer; o != nil {
		rec := c.Record()
		o.CallResumed(&rec)
	}
	return c
}

func (e *Engine) takeOver(r *Record) *Call {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.foreign[r.ID] // with its readers
	if c == nil {
		c = &Call{e: e, rec: *r, stored: true}
	}
	delete(e.foreign, r.ID)
	c.mu.Lock()
	c.update(r)
	c.foreign, c.resume = false, &Resume{Address: r.Address, Cursor: r.Cursor, Seq: r.Seq}
	c.rec.Attach, c.rec.Address, c.rec.Cursor, c.rec.Cancel, c.rec.Asked = r.Attach, r.Address, nil, nil, nil
	c.ctx, c.cancel = context.WithCancelCause(e.root)
	if r.Cancel != nil { // it was asked for, and the tool server may not have heard of it
		by, text, _ := strings.Cut(string(r.Cancel), ": ")
		c.cancelled = true
		c.cancel(&Cause{End{Outcome: Cancelled, By: by, Text: text}})
	}
	if r.Asked != nil {
		c.waited = time.Since(r.Asked.Time) // its time stood still (SPEC §2.4)
		c.askedSeq = nil
		c.noteAsked(r.Asked.Body, r.Asked.Seq)
	}
	// Who was told a question comes back with the answer.
	if f := e.opt.Orphan; f != nil && !c.rec.HandedOff && r.Asked == nil && c.readers == 0 {
		if after := f(&c.rec); after >= 0 {
			c.leaveAlone(after)
		}
	}
	c.mu.Unlock()
	if e.shutdown != nil { // Stop came meanwhile
		c.cancel(ErrLeft)
	}
	e.calls[r.ID] = c
	e.perServer[r.Server]++
	e.perPrincipal[r.Principal]++
	e.wg.Add(1)
	e.settle(c)
	return c
}

// Get gives a call of the principal, running or ended, in this process or an
// earlier one. A foreign id and one that never was are both ErrUnknown (I6).
func (e *Engine) Get(ctx context.Context, principal string, id ID) (*Call, error) {
	e.mu.Lock()
	c := e.calls[id]
	if c == nil {
		c = e.late[id]
	}
	if c == nil {
		c = e.kept[id]
	}
	e.mu.Unlock()
	if c == nil {
		r, err := e.log.Get(ctx, id)
		if err != nil {
			return nil, err
		}
		if r.End.Outcome == Running {
			e.mu.Lock()
			if c = e.calls[id]; c == nil { // not taken up meanwhile
				c = e.elsewhere(r)
			}
			e.mu.Unlock()
		} else {
			c = e.ended(r)
		}
	}
	if c.rec.Principal != principal {
		return nil, ErrUnknown
	}
	if c.elsewhere() { // what became of it is in the log only
		if err := c.refresh(ctx); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Runs says whether a call of the principal has not ended in this process.
func (e *Engine) Runs(principal string, id ID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.calls[id]
	return c != nil && c.rec.Principal == principal
}

// Find gives the running call that an agent's request of a session started; nil
// if there is none.
func (e *Engine) Find(principal, session, agentRequest string) *Call {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.calls {
		if r := &c.rec; r.Session == session && r.AgentRequest == agentRequest && r.Principal == principal {
			return c
		}
	}
	return nil
}

// Tell cancels a running call of the principal; see Call.Cancel.
func (e *Engine) Tell(principal string, id ID, cancel End) error {
	e.mu.Lock()
	c := e.calls[id]
	e.mu.Unlock()
	if c == nil || c.rec.Principal != principal {
		return ErrUnknown
	}
	return c.Cancel(cancel)
}

// List gives the principal's calls, newest first: those before the one with id
// before, at most max. What the log does not know yet is left out.
func (e *Engine) List(ctx context.Context, principal string, before ID, max int) ([]Record, error) {
	list, err := e.log.Owned(ctx, principal, before, max)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range list {
		if c := e.calls[list[i].ID]; c != nil {
			list[i] = c.Record()
		}
	}
	return list, nil
}

// refresh reads what became of a call that another process carries to its end.
func (c *Call) refresh(ctx context.Context) error {
	r, err := c.e.log.Get(ctx, c.rec.ID)
	if err != nil {
		return err
	}
	c.mu.Lock()
	news := c.foreign && !c.ended // not taken up meanwhile
	if news {
		c.update(r)
	}
	over := news && c.ended
	c.mu.Unlock()
	if over { // as if it had ended here
		c.e.mu.Lock()
		delete(c.e.foreign, c.rec.ID)
		c.e.settle(c)
		c.e.mu.Unlock()
	}
	return nil
}

// update takes over what changes in a call's record; c.mu is held.
func (c *Call) update(r *Record) {
	n := &c.rec
	n.Epoch, n.Seq, n.Missing, n.Bytes = r.Epoch, r.Seq, r.Missing, r.Bytes
	n.Dispatched, n.FirstByte, n.Ended, n.End = r.Dispatched, r.FirstByte, r.Ended, r.End
	n.Delivered, n.HandedOff = n.Delivered || r.Delivered, n.HandedOff || r.HandedOff
	if r.End.Outcome != Running {
		c.ending, c.ended = true, true
	}
}

// Position turns a place that a reader was at, as the process with that epoch
// showed it, into one for Follow. A process that was lost may have shown events
// that it had not stored, so that what follows is numbered like them: an end
// that nobody has seen is never taken for seen.
func (c *Call) Position(epoch, seq uint64) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.resume; r != nil && epoch < c.rec.Epoch && r.Cursor == nil {
		seq = min(seq, r.Seq) // nothing of what was lost comes again
	}
	if c.ended && (epoch < c.rec.Epoch || c.rec.End.By == byRestart && epoch == c.rec.Epoch) {
		seq = min(seq, c.rec.Seq-1) // a later process ended it
	}
	return seq
}
