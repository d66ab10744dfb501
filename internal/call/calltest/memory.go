package calltest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/longcall/longcall/internal/call"
)

var _ call.Log = (*Memory)(nil)

// Memory is a Log that lives in memory, for tests: it can fail on demand, and
// forget what would not have survived a crash.
type Memory struct {
	mu    sync.Mutex
	fail  func(op string) error
	calls map[call.ID]*memoryCall
	order []call.ID
	alive map[uint64]bool
}

type memoryCall struct {
	rec        call.Record
	events     []call.Event
	deliveries []call.Delivery
	// How many of them survive a crash.
	durable, durableDeliveries int
}

// NewMemory makes an empty log.
func NewMemory() *Memory { return &Memory{calls: map[call.ID]*memoryCall{}} }

// Fail sets a function that every method asks first, with its own name in
// lower case ("create", "append", "finish", "deliver", "read", "get",
// "running", "adopt", "undelivered", "owned"). An error of it is what the method returns,
// and nothing is stored. It is called without locks, so it may block: that is a slow log.
// nil heals the log.
func (m *Memory) Fail(f func(op string) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail = f
}

// Crash forgets what a crash of the process could lose at its worst: every
// event and delivery since the last Create, Finish, Read or Sync.
func (m *Memory) Crash() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.calls {
		clear(c.events[c.durable:])
		c.events = c.events[:c.durable]
		c.deliveries = c.deliveries[:c.durableDeliveries]
	}
}

// Sync makes all that was appended survive a crash, as the log's own delay
// does after milliseconds.
func (m *Memory) Sync() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.syncLocked()
}

func (m *Memory) syncLocked() {
	for _, c := range m.calls {
		c.durable, c.durableDeliveries = len(c.events), len(c.deliveries)
	}
}

func (m *Memory) ask(ctx context.Context, op string) error {
	if err := m.asked(op); err != nil {
		return err
	}
	return context.Cause(ctx)
}

func (m *Memory) asked(op string) error {
	m.mu.Lock()
	fail := m.fail
	m.mu.Unlock()
	if fail == nil {
		return nil
	}
	return fail(op)
}

// Create implements call.Log.
func (m *Memory) Create(ctx context.Context, r *call.Record, events ...call.Event) error {
	if err := m.ask(ctx, "create"); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.calls[r.ID] != nil {
		return fmt.Errorf("create call %s: there is such a call", r.ID)
	}
	for i, e := range events {
		if e.Seq != uint64(i+1) {
			return fmt.Errorf("create call %s: its event %d has seq %d", r.ID, i+1, e.Seq)
		}
	}
	c := &memoryCall{rec: *r, events: slices.Clone(events)}
	c.rec.Request, c.rec.Denied, c.rec.Attach = nil, nil, 0
	c.rec.Address, c.rec.Cursor, c.rec.Alive, c.rec.Delivered, c.rec.HandedOff, c.rec.Told = nil, nil, false, false, false, false
	c.rec.End, c.rec.Missing = call.End{}, 0
	m.calls[r.ID] = c
	m.order = append(m.order, r.ID)
	if n := len(events); n > 0 && events[n-1].Kind == call.KindEnd {
		c.end(r, events[n-1])
	}
	m.syncLocked()
	return nil
}

func (c *memoryCall) end(r *call.Record, e call.Event) {
	c.rec.End = r.End
	if e.End != nil {
		c.rec.End = *e.End
	}
	if c.rec.End.Outcome == call.Denied {
		c.rec.Denied = new(c.rec.End)
	}
	c.rec.Ended, c.rec.Dispatched, c.rec.FirstByte = r.Ended, r.Dispatched, r.FirstByte
	if c.rec.Ended.IsZero() {
		c.rec.Ended = e.Time
	}
	c.rec.Seq, c.rec.Bytes = e.Seq, r.Bytes
	c.rec.Missing = e.Seq - uint64(len(c.events))
}

// Append implements call.Log.
func (m *Memory) Append(id call.ID, epoch uint64, e call.Event) error {
	if err := m.asked("append"); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.calls[id]
	if c == nil || c.rec.Epoch != epoch || c.rec.End.Outcome != call.Running {
		return call.ErrNotRunning
	}
	if last := c.last(); e.Seq <= last {
		return fmt.Errorf("append to call %s: seq %d follows %d", id, e.Seq, last)
	}
	c.events = append(c.events, e)
	return nil
}

func (c *memoryCall) last() uint64 {
	if n := len(c.events); n > 0 {
		return c.events[n-1].Seq
	}
	return 0
}

// Finish implements call.Log.
func (m *Memory) Finish(ctx context.Context, r *call.Record, e call.Event) error {
	if err := m.ask(ctx, "finish"); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.calls[r.ID]
	if c == nil || c.rec.Epoch != r.Epoch || c.rec.End.Outcome != call.Running {
		return call.ErrNotRunning
	}
	if last := c.last(); e.Seq <= last {
		return fmt.Errorf("finish call %s: seq %d follows %d", r.ID, e.Seq, last)
	}
	c.events = append(c.events, e)
	c.end(r, e)
	m.syncLocked()
	return nil
}

// Flush implements call.Log.
func (m *Memory) Flush(ctx context.Context) error {
	if err := m.ask(ctx, "flush"); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.syncLocked()
	return nil
}

// Deliver implements call.Log.
func (m *Memory) Deliver(d call.Delivery) {
	if m.asked("deliver") != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.calls[d.Call]; c != nil {
		c.deliveries = append(c.deliveries, d)
	}
}

// Deliveries gives the call's deliveries, oldest first.
func (m *Memory) Deliveries(ctx context.Context, id call.ID) ([]call.Delivery, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.calls[id]
	if c == nil {
		return nil, call.ErrUnknown
	}
	return slices.Clone(c.deliveries), nil
}

// Read implements call.Log.
func (m *Memory) Read(ctx context.Context, id call.ID, after uint64, max int) ([]call.Event, error) {
	if err := m.ask(ctx, "read"); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.calls[id]
	if c == nil {
		return nil, call.ErrUnknown
	}
	m.syncLocked()
	i, _ := slices.BinarySearchFunc(c.events, after+1, func(e call.Event, seq uint64) int {
		return int(int64(e.Seq) - int64(seq))
	})
	var events []call.Event
	for size := 0; i < len(c.events) && (size < max || len(events) == 0); i++ {
		e := c.events[i]
		if e.Seq != after+1+uint64(len(events)) {
			break
		}
		size += len(e.Body) + 64
		events = append(events, e)
	}
	if len(events) == 0 && after < c.last() {
		return nil, call.ErrGap
	}
	return events, nil
}

// Get implements call.Log.
func (m *Memory) Get(ctx context.Context, id call.ID) (*call.Record, error) {
	if err := m.ask(ctx, "get"); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.calls[id]
	if c == nil {
		return nil, call.ErrUnknown
	}
	r := c.record()
	return &r, nil
}

// record is the call's record; what it does not say while the call runs is
// taken from the events.
func (c *memoryCall) record() call.Record {
	r := c.rec
	for _, d := range c.deliveries {
		r.Delivered = r.Delivered || d.How == call.Delivered || d.How == call.Replayed
		r.HandedOff = r.HandedOff || d.How == call.HandedOff
		r.Told = r.Told || d.How == call.Told
	}
	if r.End.Outcome != call.Running {
		return r
	}
	r.Seq, r.Bytes = c.last(), 0
	r.Missing = r.Seq - uint64(len(c.events))
	for _, e := range c.events {
		r.Bytes += uint64(len(e.Body))
		if e.Kind == call.KindDispatched {
			r.Dispatched = e.Time
		}
	}
	return r
}

// Running implements call.Log.
func (m *Memory) Running(ctx context.Context, epoch uint64) ([]call.Record, error) {
	if err := m.ask(ctx, "running"); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var records []call.Record
	for _, id := range m.order {
		if c := m.calls[id]; c.rec.End.Outcome == call.Running && c.rec.Epoch < epoch {
			r := c.record()
			r.Alive = m.alive[r.Epoch]
			for _, e := range c.events {
				if e.Kind == call.KindAddress {
					r.Address = e.Body
				}
				if e.Cursor != nil {
					r.Cursor = e.Cursor
				}
				switch {
				case e.Kind == call.KindCancelRequested:
					r.Cancel = e.Body
				case e.Kind == call.KindAsk && string(e.Body) != "{}":
					r.Asked = &e
				case e.Kind == call.KindAsk, e.Kind == call.KindAnswer:
					r.Asked = nil
				}
			}
			records = append(records, r)
		}
	}
	return records, nil
}

// SetAlive says whether the owner with that epoch is another process that lives.
func (m *Memory) SetAlive(epoch uint64, alive bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.alive == nil {
		m.alive = map[uint64]bool{}
	}
	m.alive[epoch] = alive
}

// Adopt implements call.Log.
func (m *Memory) Adopt(ctx context.Context, r *call.Record, from uint64) error {
	if err := m.ask(ctx, "adopt"); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.calls[r.ID]
	if c == nil || c.rec.Epoch != from || c.rec.End.Outcome != call.Running {
		return call.ErrNotRunning
	}
	c.rec.Epoch = r.Epoch
	m.syncLocked()
	return nil
}

// undeliveredAmong is how many of the last calls Undelivered looks at.
const undeliveredAmong = 100_000

// Undelivered implements call.Log.
func (m *Memory) Undelivered(ctx context.Context, since time.Time, max int) ([]call.Record, error) {
	if err := m.ask(ctx, "undelivered"); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var records []call.Record
	for i := len(m.order) - 1; i >= 0 && len(m.order)-i <= undeliveredAmong && len(records) < max; i-- {
		r := m.calls[m.order[i]].record()
		switch {
		case r.End.Outcome == call.Running || r.Ended.Before(since):
			continue
		case r.Idempotency != "":
		case r.Delivered || r.Dispatched.IsZero() && r.End.Outcome != call.Interrupted || r.End.Outcome == call.Cancelled || r.End.Outcome == call.Denied:
			continue
		}
		records = append(records, r)
	}
	return records, nil
}

// Owned implements call.Log.
func (m *Memory) Owned(ctx context.Context, principal string, before call.ID, max int) ([]call.Record, error) {
	if err := m.ask(ctx, "owned"); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	end := len(m.order)
	if before != "" {
		if c := m.calls[before]; c == nil || c.rec.Principal != principal {
			return nil, call.ErrUnknown
		}
		end = slices.Index(m.order, before)
	}
	var records []call.Record
	for i := end - 1; i >= 0 && len(records) < max; i-- {
		if c := m.calls[m.order[i]]; c.rec.Principal == principal {
			records = append(records, c.record())
		}
	}
	return records, nil
}

// CopyTo makes other hold what would be left of this log if the process were
// killed now, but for what Crash would take besides.
func (m *Memory) CopyTo(other *Memory) {
	m.mu.Lock()
	defer m.mu.Unlock()
	other.mu.Lock()
	defer other.mu.Unlock()
	for id, c := range m.calls {
		other.calls[id] = &memoryCall{
			rec: c.rec, events: slices.Clone(c.events), deliveries: slices.Clone(c.deliveries),
			durable: len(c.events), durableDeliveries: len(c.deliveries),
		}
	}
	other.order = slices.Clone(m.order)
}
