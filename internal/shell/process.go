package shell

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/longcall/longcall/internal/shell/spool"
)

// specification is spec.json.
type specification struct {
	Command
	Caps spool.Caps `json:"caps"`
}

// Process is a command that runs or ran.
type Process struct {
	m     *Manager
	id    string
	dir   string
	spec  Command       // without arguments and environment; not changed once others see it
	done  chan struct{} // closed when the state is final
	known chan struct{} // closed when the state is not Starting
	child atomic.Int64  // pid of the shim, if this Manager started it

	mu           sync.Mutex
	snap         snapshot
	unsupervised bool
	ended        bool   // nothing will change any more
	stopping     string // who asked for a stop that no shim knows of
	wakes        map[chan struct{}]int
}

func (m *Manager) newProcess(id string) *Process {
	return &Process{
		m: m, id: id, dir: filepath.Join(m.opts.Dir, id),
		done: make(chan struct{}), known: make(chan struct{}),
		snap: snapshot{State: Starting, ExitCode: -1}, wakes: map[chan struct{}]int{},
	}
}

// size is how much output there is on disk.
func (p *Process) size() int64 {
	r, err := spool.Open(p.dir)
	if err != nil {
		return 0
	}
	n, _ := r.Total()
	return n
}

// forgetSecrets keeps in memory only what is needed there.
func (p *Process) forgetSecrets() { p.spec.Argv, p.spec.Env = nil, nil }

// loadSpec reads what the process was started with; false if there is none.
func (p *Process) loadSpec() (bool, error) {
	ok, err := load(p.dir, specFile, &p.spec)
	p.forgetSecrets()
	return ok, err
}

// ID is the process's id, which is its call's, too.
func (p *Process) ID() string { return p.id }

// Status is the process as it is known now. It does not wait for anything.
func (p *Process) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.snap
	return Status{
		ID: p.id, Owner: p.spec.Owner, Label: p.spec.Label, Parent: p.spec.Parent, Index: p.spec.Index,
		TTY: p.spec.TTY, Stdin: p.spec.Stdin, Service: p.spec.Service,
		State: s.State, PID: s.PID, ExitCode: s.ExitCode, Signal: s.Signal, Started: s.Started, Ended: s.Ended,
		Total: s.Total, Descendants: s.Descendants, TreeEnded: s.TreeEnded, Survivors: slices.Clone(s.Survivors),
		StoppedBy: s.StoppedBy, Error: s.Error, Unsupervised: p.unsupervised,
	}
}

// Done is closed when the state is final. Descendants may still run then, and
// Notify tells when they have ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Notify has wake sent to, without waiting for room, at each change: output
// came, the state changed, the tree ended. Room for one serves any number of
// processes. A change before Notify is not told. stop ends it.
func (p *Process) Notify(wake chan struct{}) (stop func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wakes[wake]++
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.wakes[wake]--; p.wakes[wake] == 0 {
			delete(p.wakes, wake)
		}
	})
}

// Output opens the output, also while more is written. ErrOutputGone if it was
// removed to make room, ErrNoOutput if the command never ran.
func (p *Process) Output() (*spool.Reader, error) {
	r, err := spool.Open(p.dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return r, err
	}
	if p.Status().Total == 0 {
		return nil, ErrNoOutput
	}
	return nil, ErrOutputGone
}

// Waiting says whether the command seems to wait for input: one of its
// processes is blocked reading what Input writes to. It asks the shim, for at
// most 200 ms. It is a hint: false also when the system does not tell (macOS),
// or the command watches its input and something else at once.
func (p *Process) Waiting(ctx context.Context) bool {
	if st := p.Status(); st.State != Running || !st.TTY && !st.Stdin {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	r, err := ask(ctx, p.dir, request{Op: opStatus})
	return err == nil && r.Waiting
}

// Input types into the command. An error is a sentence for a model, and
// nothing was typed, unless ctx was done: then it may have been, and the same
// Input with the same Key can be tried again safely.
func (p *Process) Input(ctx context.Context, in Input) (Typed, error) {
	if _, err := in.encode(p.spec.TTY, p.spec.Stdin); err != nil {
		return Typed{}, err
	}
	p.awaitStart(ctx)
	if p.Status().State.Final() {
		return p.typedBefore(in)
	}
	patience := time.NewTimer(time.Second)
	defer patience.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for over := false; !over; {
		r, err := ask(ctx, p.dir, request{Op: opStdin, Input: &in})
		if err == nil || r.Error != "" || ctx.Err() != nil {
			return r.Typed, err
		}
		again := tick.C // it has just started and does not listen yet, or has just ended
		if !errors.Is(err, errNotListening) {
			again = nil
		}
		select {
		case <-p.done:
			return p.typedBefore(in)
		case <-ctx.Done():
			return Typed{}, ctx.Err()
		case <-patience.C:
			over = true
		case <-again:
		}
	}
	return Typed{}, errors.New("the command's supervisor does not answer; whether something was typed is not known: look at the output")
}

// awaitStart waits until the shim of a process that is just being started can be
// spoken to.
func (p *Process) awaitStart(ctx context.Context) {
	t := time.NewTimer(startWait)
	defer t.Stop()
	select {
	case <-p.known:
	case <-t.C:
	case <-ctx.Done():
	case <-p.m.ctx.Done():
	}
}

// typedBefore answers for a process that takes no input any more.
func (p *Process) typedBefore(in Input) (Typed, error) {
	typed, err := readTyped(p.dir)
	if err != nil {
		return Typed{}, err
	}
	if again, err := repeated(&in, typed); again || err != nil {
		return Typed{Repeated: again}, err
	}
	return Typed{}, ErrEnded
}

// Stop ends the command and all that it started: signal to the group and all
// descendants ("" is TERM), then KILL after grace (0: the command's own), then
// a look at the process table (SHELL §3). It returns when that is over, with
// the Survivors, if any; when ctx is done the stop goes on. What ended before
// is left as it was, and its descendants are stopped.
func (p *Process) Stop(ctx context.Context, signal string, grace time.Duration, by string) (Status, error) {
	if signal == "" {
		signal = "TERM"
	}
	sig, err := signalByName(signal)
	if err != nil {
		return p.Status(), err
	}
	if grace <= 0 {
		grace = p.spec.Grace
	}
	by = cmp.Or(by, "longcall") // that it was stopped must not get lost
	p.awaitStart(ctx)
	if st := p.Status(); p.over() && (!st.TreeEnded.IsZero() || st.State == StartFailed) {
		return st, nil
	}
	r, err := ask(ctx, p.dir, request{Op: opStop, Signal: signal, Grace: grace, By: by})
	switch {
	case err == nil:
		p.take(r.Snapshot)
		return p.Status(), nil
	case r.Error != "" || ctx.Err() != nil:
		return p.Status(), err
	}
	return p.stopOrphan(ctx, sig, grace, by)
}

// over says that nothing of the process can change any more.
func (p *Process) over() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended
}

// take makes a newer snapshot the current one. A final state stays.
func (p *Process) take(s snapshot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.snap
	if old.State.Final() && s.State != old.State || s.Total < old.Total && s.State == old.State {
		return
	}
	p.snap = s
	if old.State == Starting && s.State != Starting {
		close(p.known)
	}
	if !old.State.Final() && s.State.Final() {
		close(p.done)
	}
	p.wake()
}

// finish says that nothing of the process can change any more.
func (p *Process) finish() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended, p.unsupervised = true, false
	p.wake()
}

func (p *Process) setUnsupervised(yes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.unsupervised != yes {
		p.unsupervised = yes
		p.wake()
	}
}

// wake tells those who asked; p.mu is held.
func (p *Process) wake() {
	for c := range p.wakes {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}
