package shell

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"syscall"
	"time"
)

// How the shim is looked for when its connection broke: from redialFirst on,
// twice as long each time, up to redialMost. A shim that says nothing for
// silentFor after it was asked does not answer: it is stopped, or cannot be
// reached, and its process counts as unsupervised until it answers.
const (
	redialFirst = 2 * time.Millisecond
	redialMost  = time.Second
	silentFor   = 3 * time.Second
)

// follow keeps p up to date until nothing of it can change any more, or the
// Manager is closed. conn is a subscription; nil: the process is of an earlier
// Manager.
func (m *Manager) follow(p *Process, conn net.Conn) {
	seen := conn != nil // its shim was there in our time
	quiet := time.Now()
	for m.ctx.Err() == nil {
		if conn != nil {
			got := m.listen(p, conn)
			if p.treeGone() {
				p.reapShim()
				m.finished(p)
				return
			}
			switch {
			case got:
				quiet = time.Now()
			case time.Since(quiet) >= silentFor: // else it may be just about to go
				m.unanswered(p)
			}
			seen = seen || got
		}
		var gone bool
		if conn, gone = m.redial(p); gone {
			p.reapShim()
			m.orphaned(p, seen)
			return
		}
	}
}

// listen reads a subscription to its end, and says whether anything came.
func (m *Manager) listen(p *Process, conn net.Conn) (got bool) {
	defer conn.Close()
	stop := context.AfterFunc(m.ctx, func() { conn.Close() })
	defer stop()
	_ = conn.SetReadDeadline(time.Now().Add(silentFor))
	snapshots(conn, func(s snapshot) {
		if !got {
			_ = conn.SetReadDeadline(time.Time{})
			p.setUnsupervised(false)
		}
		got = true
		p.take(s)
	})
	return got
}

// redial finds the shim again. gone: it has ended, for certain. Neither: the
// Manager is closed.
func (m *Manager) redial(p *Process) (conn net.Conn, gone bool) {
	wait, since := redialFirst, time.Now()
	for m.ctx.Err() == nil {
		lock, err := lockFolder(p.dir)
		if lock != nil {
			lock.Close()
			return nil, true
		}
		if err != nil {
			m.log.Warn("a process folder cannot be used", "process_id", p.id, "error", err)
		}
		if conn, err := subscribe(m.ctx, p.dir); err == nil {
			return conn, false
		}
		if time.Since(since) > silentFor {
			m.unanswered(p)
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-m.ctx.Done():
			t.Stop()
		}
		wait = min(2*wait, redialMost)
	}
	return nil, false
}

// unanswered is for a shim that is there and does not answer.
func (m *Manager) unanswered(p *Process) {
	var mt meta
	if ok, _ := load(p.dir, metaFile, &mt); ok && mt.Leader.PID > 0 && !p.Status().State.Final() {
		p.setUnsupervised(true) // before anybody takes it for known
		p.take(snapshot{State: Running, PID: mt.Leader.PID, ExitCode: -1, Started: mt.Started, Total: p.size()})
	}
}

// orphaned is for a process whose shim is gone before its tree was: what it
// wrote last counts, else the leader, if it lives and we have not seen the shim
// go, else the process is Lost. Whoever waited for a process whose shim went
// has to know at once: no output, and no exit code, can come any more.
func (m *Manager) orphaned(p *Process, seen bool) {
	defer m.finished(p)
	var s snapshot
	if ok, err := load(p.dir, exitFile, &s); ok {
		p.take(p.settled(s))
		return
	} else if err != nil {
		m.log.Warn("how a process ended cannot be read", "process_id", p.id, "error", err)
	}
	var mt meta
	if ok, err := load(p.dir, metaFile, &mt); !ok && err == nil {
		p.end(snapshot{State: StartFailed, ExitCode: -1, Ended: time.Now(), Error: "longcall was ended before it could start the command; nothing was started"})
		return
	}
	s = snapshot{State: Lost, PID: mt.Leader.PID, ExitCode: -1, Started: mt.Started, Total: p.size()}
	if alive(mt.Leader) && !seen {
		s.State = Running
		p.setUnsupervised(true) // before anybody takes it for known
		p.take(s)
		if awaitGone(m.ctx, mt.Leader) != nil {
			return
		}
		s.State, s.Total = Lost, p.size()
	}
	rest, _ := left(mt)
	if s.Survivors = pids(rest); len(s.Survivors) > 0 {
		s.Error = fmt.Sprintf("the supervisor of the command was ended; the command still ran then (process %d), what it writes is lost, and how it ends will not be known; it can be cancelled", s.Survivors[0])
	} else {
		s.Error = "the supervisor of the command was ended; how the command ended is not known"
	}
	s.Ended = time.Now()
	p.end(s)
}

// settled completes what a shim left that went before the tree did: whether
// anything of it can still be found.
func (p *Process) settled(s snapshot) snapshot {
	if !s.TreeEnded.IsZero() {
		return s
	}
	var mt meta
	if ok, err := load(p.dir, metaFile, &mt); !ok && err != nil {
		return s
	}
	rest, err := left(mt)
	if err != nil || len(rest) > 0 {
		return s
	}
	s.TreeEnded, s.Survivors = time.Now(), nil
	if err := store(p.dir, exitFile, s, false); err != nil {
		p.m.log.Error("the end of a process cannot be stored", "process_id", p.id, "error", err)
	}
	return s
}

// left is what can still be found of a process without a shim: the leader, its
// session, and what is below them. Who made a session of his own and lost his
// parent cannot be found any more.
func left(mt meta) ([]entry, error) {
	if mt.Leader.PID == 0 || mt.Leader.Boot != bootID() {
		return nil, nil
	}
	table, err := readTable()
	if err != nil {
		return nil, err
	}
	return tree(table, mt.Leader), nil
}

// end records the end of a process that has no shim to do so.
func (p *Process) end(s snapshot) {
	p.mu.Lock()
	stopped := p.stopping
	p.mu.Unlock()
	if stopped != "" && s.State == Lost && len(s.Survivors) == 0 {
		s.State, s.StoppedBy = Stopped, stopped
		s.Error = "the supervisor of the command was gone when it was stopped; its exit code is not known"
	}
	if len(s.Survivors) == 0 {
		s.TreeEnded = s.Ended
	}
	if err := store(p.dir, exitFile, s, true); err != nil {
		p.m.log.Error("the end of a process cannot be stored", "process_id", p.id, "error", err)
	}
	p.m.log.Warn("a process ended without supervision", "process_id", p.id, "state", string(s.State))
	p.take(s)
}

// stopOrphan stops what is left of a process whose shim is gone.
func (p *Process) stopOrphan(ctx context.Context, sig syscall.Signal, grace time.Duration, by string) (Status, error) {
	var mt meta
	if ok, err := load(p.dir, metaFile, &mt); !ok {
		return p.Status(), err
	}
	p.mu.Lock()
	p.stopping = by
	p.mu.Unlock()
	rest, err := stopAll(sig, grace, stopper{
		list: func() ([]entry, error) { return left(mt) },
		signal: func(list []entry, sig syscall.Signal) {
			for i := range list {
				_ = signalExact(list[i].identity(), sig)
			}
		},
		gone:  ctx.Done(),
		blind: true,
	})
	p.mu.Lock()
	p.snap.Survivors = pids(rest)
	s := p.snap
	p.wake()
	p.mu.Unlock()
	if s.State.Final() {
		p.take(p.settled(s))
	}
	return p.Status(), cmp.Or(err, ctx.Err())
}

// reapShim gives back the process id of the shim, which has ended.
func (p *Process) reapShim() {
	var mt meta
	if ok, _ := load(p.dir, metaFile, &mt); ok {
		reapShim(mt.Shim)
	}
}

func (p *Process) treeGone() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.snap.TreeEnded.IsZero()
}
