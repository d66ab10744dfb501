package sqlite

import (
	"context"
	"time"
)

// Session is an agent's session, kept so that it outlives a restart.
type Session struct {
	// Hash stands for the session's id, which is a secret and never kept: its
	// SHA-256 in hex.
	Hash      string
	Principal string // whose it is; a session of another one is unknown (I6)
	Server    string // the endpoint's tool server; empty for all of them
	Version   string // protocol revision that was agreed on
	Client    string // the agent's name and version as it says
	Created   time.Time
	Used      time.Time // last, to about a minute
	Data      []byte    // the caller's own
}

const (
	// sessionAge is how long a session is kept after it was used last.
	sessionAge = 24 * time.Hour
	// maxSessions is how many are kept; those that were used last.
	maxSessions = 10_000
	// trimSessions is after how many new ones that is looked after.
	trimSessions = 64
	// touchEvery is the least time between two notes that a session is used.
	touchEvery = time.Minute
)

// sessionOp is a change of the sessions.
type sessionOp struct {
	s    Session // Used only, if it is touched
	what sessionChange
}

type sessionChange uint8

const (
	sessionPut sessionChange = iota
	sessionTouch
	sessionDrop
)

// PutSession keeps a session, or what it is now. It does not wait: the session
// is stored within milliseconds. When the queue is full it is dropped, and
// counted in Stats.Dropped.
func (j *Journal) PutSession(s Session) { j.changeSession(&sessionOp{s, sessionPut}) }

// TouchSession notes that a session was used. It does not wait, and costs
// nothing when the last note is less than a minute old.
func (j *Journal) TouchSession(hash string, used time.Time) {
	j.changeSession(&sessionOp{Session{Hash: hash, Used: used}, sessionTouch})
}

// DropSession forgets a session. It does not wait.
func (j *Journal) DropSession(hash string) {
	j.changeSession(&sessionOp{Session{Hash: hash}, sessionDrop})
}

func (j *Journal) changeSession(c *sessionOp) {
	o := op{kind: opSession, session: c, cost: int64(opCost + len(c.s.Data))}
	j.mu.Lock()
	defer j.mu.Unlock()
	switch noted, ok := j.touched[c.s.Hash]; {
	case c.what == sessionDrop:
		delete(j.touched, c.s.Hash)
	case c.what == sessionTouch && ok && c.s.Used.Sub(noted) < touchEvery:
		return
	default:
		if len(j.touched) >= 2*maxSessions {
			clear(j.touched) // at worst, some are noted sooner than they need be
		}
		j.touched[c.s.Hash] = c.s.Used
	}
	if j.closed || j.queued+o.cost > j.opt.Queue {
		j.stats.Dropped++
		return
	}
	j.enqueueLocked(o)
}

// Sessions gives the sessions that were used within the last 24 hours, at most
// 10 000, the last used first, with all that was put so far.
func (j *Journal) Sessions(ctx context.Context) (list []Session, err error) {
	if err := j.Flush(ctx); err != nil {
		return nil, err
	}
	err = j.pool.with(ctx, func(r *reader) error {
		s, err := r.c.prepare("SELECT hash, principal, server, version, client, created, used, data FROM sessions WHERE used >= ?1 ORDER BY used DESC LIMIT ?2")
		if err != nil {
			return err
		}
		defer r.c.drop(s)
		s.int(1, stamp(time.Now().Add(-sessionAge)))
		s.int(2, maxSessions)
		for {
			ok, err := s.step()
			if err != nil || !ok {
				return err
			}
			list = append(list, Session{
				Hash: s.colText(0), Principal: s.colText(1), Server: s.colText(2), Version: s.colText(3), Client: s.colText(4),
				Created: unstamp(s.colInt(5)), Used: unstamp(s.colInt(6)), Data: s.colBlob(7),
			})
		}
	})
	return list, err
}

func (w *writer) applySession(o *op) error {
	c := &o.session.s
	switch o.session.what {
	case sessionDrop:
		w.dropSession.text(1, c.Hash)
		return w.dropSession.run()
	case sessionTouch:
		w.touchSession.text(1, c.Hash)
		w.touchSession.int(2, stamp(c.Used))
		return w.touchSession.run()
	}
	s := w.putSession
	s.text(1, c.Hash)
	s.text(2, c.Principal)
	s.text(3, c.Server)
	s.text(4, c.Version)
	s.text(5, c.Client)
	s.int(6, stamp(c.Created))
	s.int(7, stamp(c.Used))
	s.blob(8, c.Data)
	if err := s.run(); err != nil {
		return err
	}
	if w.puts++; w.puts%trimSessions != 0 {
		return nil
	}
	w.trimSessions.int(1, maxSessions)
	return w.trimSessions.run()
}

// retainSessions deletes the sessions that nobody uses any more.
func (m *maintainer) retainSessions(ctx context.Context, now time.Time) error {
	cutoff := stamp(now.Add(-sessionAge))
	old := "FROM sessions WHERE used < ?1"
	s, err := m.c.prepare("SELECT count(*) " + old)
	if err != nil {
		return err
	}
	defer m.c.drop(s)
	s.int(1, cutoff)
	if _, err := s.step(); err != nil {
		return err
	}
	n := s.colInt(0)
	s.reset()
	if n == 0 {
		return nil
	}
	return m.j.do(ctx, opTask, func(w *writer) error {
		s, err := w.c.prepare("DELETE " + old)
		if err != nil {
			return err
		}
		defer w.c.drop(s)
		s.int(1, cutoff)
		return s.run()
	})
}
