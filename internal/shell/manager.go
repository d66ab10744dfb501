package shell

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/longcall/longcall/internal/shell/spool"
)

// startWait bounds how long Start waits for a shim to report; a shim that takes
// longer is not given up, and its process stays in Starting.
const startWait = 10 * time.Second

// openWait bounds how long Open waits for the shims that it finds, all
// together: longer than one may be silent before it counts as not answering.
const openWait = silentFor + time.Second

// Manager starts processes, and knows those that run, whoever started them.
type Manager struct {
	opts   Options
	log    *slog.Logger
	ctx    context.Context // ends the following, never the commands
	cancel context.CancelFunc
	wg     sync.WaitGroup
	swept  chan struct{} // wakes the sweeper; room for one

	mu     sync.Mutex
	closed bool
	procs  map[string]*Process // all of which something may still run, and those that were asked for
	kept   int64               // bytes of output of ended processes, about
}

// Open finds out what became of the processes in o.Dir, and follows those that
// run: by their shim's socket, else by what they left, else by the identity of
// the leader, else they are Lost (SHELL §3). It returns when the state of each
// is known, or after some seconds, with those that are not in Starting; with
// ctx's error when that is done. The caller calls Close.
func Open(ctx context.Context, o Options) (*Manager, error) {
	if !Supported {
		return nil, ErrUnsupported
	}
	if len(o.Exe) == 0 {
		return nil, errors.New("open the shell: it is not said how to start a shim")
	}
	dir, err := filepath.Abs(o.Dir)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("open the shell: %w", err)
	}
	o.Dir = dir
	o.MaxPerOwner = cmp.Or(o.MaxPerOwner, DefaultPerOwner)
	o.MaxTotal = cmp.Or(o.MaxTotal, DefaultTotal)
	o.SpoolTotal = cmp.Or(o.SpoolTotal, DefaultSpoolTotal)
	o.Keep = cmp.Or(o.Keep, DefaultKeep)
	m := &Manager{opts: o, log: o.Log, procs: map[string]*Process{}, swept: make(chan struct{}, 1)}
	if m.log == nil {
		m.log = slog.New(slog.DiscardHandler)
	}
	m.ctx, m.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if err := m.reconcile(ctx); err != nil {
		m.Close()
		return nil, fmt.Errorf("open the shell: %w", err)
	}
	m.wg.Go(m.sweepLoop)
	return m, nil
}

// reconcile looks at every folder that may be of a process that has not ended,
// and waits until each is known.
func (m *Manager) reconcile(ctx context.Context) error {
	names, err := os.ReadDir(m.opts.Dir)
	if err != nil {
		return err
	}
	var found []*Process
	for _, e := range names {
		if !e.IsDir() || !validID(e.Name()) {
			continue
		}
		if ended, err := m.endedAlone(e.Name()); ended || err != nil {
			if err != nil {
				m.log.Warn("a process folder cannot be used", "process_id", e.Name(), "error", err)
			}
			continue
		}
		p := m.newProcess(e.Name())
		if ok, err := p.loadSpec(); !ok {
			if err != nil { // else it is just being made, or nothing came of it
				m.log.Warn("a process folder cannot be used", "process_id", p.id, "error", err)
			}
			continue
		}
		found = append(found, p)
		m.procs[p.id] = p
		m.wg.Go(func() { m.follow(p, nil) })
	}
	patience := time.After(openWait)
	for _, p := range found {
		select {
		case <-p.known:
		case <-patience:
			m.log.Warn("what became of a process is not known yet", "process_id", p.id)
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// endedAlone says that nobody supervises the process and that its end is
// recorded: there is nothing to follow, and it is read when it is asked for.
func (m *Manager) endedAlone(id string) (bool, error) {
	dir := filepath.Join(m.opts.Dir, id)
	lock, err := lockFolder(dir)
	if lock == nil {
		return false, err
	}
	defer lock.Close()
	_, err = os.Stat(filepath.Join(dir, exitFile))
	return err == nil, nil
}

// Start runs a command and returns when it runs or could not be run
// (StartFailed); in Starting if ctx is done or the machine is very slow. After
// an error nothing was started: *TooMany at a limit, ErrClosed, or a sentence
// that says what is wrong.
func (m *Manager) Start(ctx context.Context, c Command) (*Process, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if c.Grace <= 0 {
		c.Grace = DefaultGrace
	}
	p := m.newProcess(c.ID)
	p.spec = c
	p.snap.Started = time.Now()
	p.forgetSecrets()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := m.reserve(p); err != nil {
		return nil, err
	}
	conn, err := m.spawn(p, &c)
	if err != nil {
		m.mu.Lock()
		delete(m.procs, p.id)
		m.mu.Unlock()
		m.wg.Done()
		return nil, err
	}
	go func() {
		defer m.wg.Done()
		m.follow(p, conn)
	}()
	p.awaitStart(ctx)
	return p, nil
}

func (c *Command) check() error {
	size := 0
	for _, s := range slices.Concat(c.Argv, c.Env, []string{c.Dir}) {
		if size += len(s); slices.Contains([]byte(s), 0) {
			return errors.New("a command cannot hold a zero byte; nothing was started")
		}
	}
	switch {
	case !validID(c.ID):
		return fmt.Errorf("%s is not an id of a process; nothing was started", quote(c.ID))
	case len(c.Argv) == 0 || c.Argv[0] == "":
		return errors.New("the command is empty; nothing was started")
	case !filepath.IsAbs(c.Dir):
		return fmt.Errorf("the folder %q is not an absolute path; nothing was started", c.Dir)
	case size > 1<<20:
		return errors.New("the command and its environment are over 1 MiB; nothing was started")
	}
	return nil
}

// reserve takes one of the places that there are, or refuses (SHELL §6).
func (m *Manager) reserve(p *Process) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	if m.procs[p.id] != nil {
		return fmt.Errorf("there is a process %s already; nothing was started", p.id)
	}
	own, all, bytes := []Status{}, 0, int64(0)
	for _, o := range m.procs {
		if o.over() {
			continue
		}
		all++
		s := o.Status()
		bytes += min(s.Total, cmp.Or(m.opts.Caps, spool.DefaultCaps).Total)
		if o.spec.Owner == p.spec.Owner {
			own = append(own, s)
		}
	}
	slices.SortFunc(own, func(a, b Status) int { return a.Started.Compare(b.Started) })
	switch {
	case len(own) >= m.opts.MaxPerOwner:
		return &TooMany{Limit: m.opts.MaxPerOwner, Own: true, Running: own}
	case all >= m.opts.MaxTotal:
		return &TooMany{Limit: m.opts.MaxTotal, Running: own}
	case bytes >= m.opts.SpoolTotal:
		return fmt.Errorf("the output of the running commands has %d bytes, which is all the room that there is; nothing was started, and nothing was stopped: cancel one that writes much, or wait for it to end", bytes)
	}
	m.procs[p.id] = p
	m.wg.Add(1)
	return nil
}

// spawn makes the folder and starts the shim in it. The connection that it
// returns is a subscription. From the first moment on the shim holds the
// folder's lock, so that nobody takes it for gone.
func (m *Manager) spawn(p *Process, c *Command) (net.Conn, error) {
	cannot := func(err error) error {
		os.RemoveAll(p.dir)
		m.log.Error("a shim cannot be started", "process_id", p.id, "error", err)
		return fmt.Errorf("longcall could not set up the command: %w; nothing was started", err)
	}
	if err := os.Mkdir(p.dir, 0o700); err != nil {
		if errors.Is(err, os.ErrExist) {
			return nil, fmt.Errorf("there is a process %s already; nothing was started", p.id)
		}
		return nil, cannot(err)
	}
	// From now on the folder is in use, for everybody who looks.
	lock, err := lockSoon(p.dir)
	if err != nil {
		return nil, cannot(err)
	}
	defer lock.Close()
	if err := store(p.dir, specFile, specification{Command: *c, Caps: m.opts.Caps}, false); err != nil {
		return nil, cannot(err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, cannot(err)
	}
	defer null.Close()
	said, err := os.OpenFile(filepath.Join(p.dir, shimFile), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, cannot(err)
	}
	defer said.Close()
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, cannot(err)
	}
	defer theirs.Close()
	pid, err := startDetached(append(slices.Clone(m.opts.Exe), p.dir), p.dir, []*os.File{null, null, said, theirs, lock})
	if err != nil {
		ours.Close()
		return nil, cannot(err)
	}
	p.child.Store(int64(pid))
	return ours, nil
}

// Find is the process of that id, running or ended; nil if there is none. Who
// may see it is for the caller to decide, by Status.Owner.
func (m *Manager) Find(id string) *Process {
	if !validID(id) {
		return nil
	}
	m.mu.Lock()
	p := m.procs[id]
	m.mu.Unlock()
	if p != nil {
		return p
	}
	p = m.newProcess(id)
	alone, err := m.endedAlone(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	ok := false
	if err == nil {
		ok, err = p.loadSpec()
	}
	var s snapshot
	ended := false
	if ok {
		ended, err = load(p.dir, exitFile, &s)
	}
	if !ok || err != nil {
		if err != nil {
			m.log.Warn("a process folder cannot be used", "process_id", id, "error", err)
		}
		return nil
	}
	if ended {
		p.take(s) // whoever looks at the folder at this moment
	}
	if alone {
		p.take(p.settled(s))
		p.finish()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if first := m.procs[id]; first != nil {
		return first
	}
	if !alone && m.closed {
		return nil
	}
	m.procs[id] = p
	if !alone { // another longcall started it meanwhile
		m.wg.Go(func() { m.follow(p, nil) })
	}
	return p
}

// Owned is what of the owner's runs, also what lived on when its leader ended;
// oldest first.
func (m *Manager) Owned(owner string) []*Process {
	var list []*Process
	for _, p := range m.running() {
		if p.spec.Owner == owner {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b *Process) int { return a.Status().Started.Compare(b.Status().Started) })
	return list
}

func (m *Manager) running() []*Process {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []*Process
	for _, p := range m.procs {
		if !p.over() {
			list = append(list, p)
		}
	}
	return list
}

// Stats are how many commands run, or left something running, and about how
// many bytes of output of all are kept.
func (m *Manager) Stats() (running int, output int64) {
	list := m.running()
	m.mu.Lock()
	output = m.kept
	m.mu.Unlock()
	most := m.opts.Caps.Total
	if most <= 0 {
		most = spool.DefaultCaps.Total
	}
	for _, p := range list {
		output += min(p.Status().Total, most)
	}
	return len(list), output
}

// StopAll stops what runs, each with its own grace, and returns when that is
// done or ctx is: for commands that are not to outlive the server.
func (m *Manager) StopAll(ctx context.Context, by string) {
	var wg sync.WaitGroup
	for _, p := range m.running() {
		wg.Go(func() {
			if _, err := p.Stop(ctx, "", 0, by); err != nil {
				m.log.Warn("a process could not be stopped", "process_id", p.id, "error", err)
			}
		})
	}
	wg.Wait()
}

// Close ends the following of processes, and waits for that. The commands go
// on; channels of Done that are open stay so.
func (m *Manager) Close() error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.cancel()
	m.wg.Wait()
	return nil
}
