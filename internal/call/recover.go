package call

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// Resume is where a call that an earlier process left at its tool server goes on.
type Resume struct {
	Address []byte // of the last KindAddress
	Cursor  []byte // of the last event that has one; nil if none does
	Seq     uint64 // of the last event that was kept
}

// ErrLeft is the cause that ends a call's context when this process stops and
// the next one can take the call up again.
var ErrLeft = errors.New("longcall stops; the call stays with its tool server")

// stopCause is ErrLeft for a call that can be taken up again, else the shutdown.
func (c *Call) stopCause(shutdown *Cause) error {
	r, ok := c.e.runner.(Resumer)
	c.mu.Lock()
	defer c.mu.Unlock()
	if ok && c.address && c.stored && !c.cancelled && r.Resumable(&c.rec) {
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
func (e *Engine) Recover(ctx context.Context) (adopted, interrupted int, err error) {
	left, err := e.log.Running(ctx, e.opt.Epoch)
	if err != nil {
		return 0, 0, err
	}
	var resumed []*Record
	for i := range left {
		r := &left[i]
		switch {
		case r.Alive: // its owner carries it to its end
			c := e.ended(r)
			c.ending, c.ended, c.foreign, c.cancelled = false, false, true, false
			e.mu.Lock()
			e.settle(c)
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
	for _, c := range calls {
		go e.run(c)
	}
	if adopted = len(calls); err != nil {
		return adopted, interrupted, err
	}
	owed, err := e.log.Undelivered(ctx, time.Now().Add(-e.opt.Window), maxOwed)
	if err != nil {
		return adopted, interrupted, fmt.Errorf("find results that nobody got: %w", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := len(owed) - 1; i >= 0; i-- {
		if r := &owed[i]; e.kept[r.ID] == nil {
			e.settle(e.ended(r))
		}
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

func (e *Engine) resumable(r *Record) bool {
	resumer, ok := e.runner.(Resumer)
	return ok && r.Address != nil && !r.Dispatched.IsZero() && resumer.Resumable(r)
}

// giveUp ends a call that nobody can go on with.
func (e *Engine) giveUp(ctx context.Context, r *Record) error {
	end := End{Outcome: Interrupted, By: byRestart, Text: "Outcome unknown: longcall stopped while the call ran. It may have taken effect: check before you call it again."}
	if r.Dispatched.IsZero() {
		end.Text = "Outcome unknown: longcall stopped before it noted that the request had left. It may have taken effect: check before you call it again."
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
	c := &Call{e: e, rec: *r, stored: true, address: true, resume: &Resume{Address: r.Address, Cursor: r.Cursor, Seq: r.Seq}}
	c.rec.Cursor, c.rec.Cancel = nil, nil
	c.ctx, c.cancel = context.WithCancelCause(e.root)
	if r.Cancel != nil { // it was asked for, and the tool server may not have heard of it
		by, text, _ := strings.Cut(string(r.Cancel), ": ")
		c.cancelled = true
		c.cancel(&Cause{End{Outcome: Cancelled, By: by, Text: text}})
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls[r.ID] = c
	e.perServer[r.Server]++
	e.perPrincipal[r.Principal]++
	e.wg.Add(1)
	e.settle(c)
	if f := e.opt.Orphan; f != nil && !r.HandedOff {
		if after := f(&c.rec); after >= 0 {
			c.mu.Lock()
			c.leaveAlone(after)
			c.mu.Unlock()
		}
	}
	if o := e.opt.Observer; o != nil {
		rec := c.rec
		o.CallResumed(&rec)
	}
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
		c = e.ended(r)
		if r.End.Outcome == Running {
			c.ending, c.ended, c.foreign, c.cancelled = false, false, true, false
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
	defer c.mu.Unlock()
	r.Delivered = r.Delivered || c.rec.Delivered
	r.HandedOff = r.HandedOff || c.rec.HandedOff
	c.rec = *r
	if r.End.Outcome != Running {
		c.ending, c.ended = true, true
	}
	return nil
}

// Position turns a place that a reader was at, as the process with that epoch
// showed it, into one for Follow. A process that was lost may have shown events
// that it had not stored, so that what follows is numbered like them: an end
// that nobody has seen is never taken for seen.
func (c *Call) Position(epoch, seq uint64) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch r := c.resume; {
	case c.ended && (epoch < c.rec.Epoch || c.rec.End.By == byRestart && epoch == c.rec.Epoch):
		return min(seq, c.rec.Seq-1) // a later process ended it
	case r != nil && epoch < c.rec.Epoch && r.Cursor == nil:
		return min(seq, r.Seq) // nothing of what was lost comes again
	}
	return seq
}
