package upstream

import (
	"context"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// level is a level of log messages, 1 for the most verbose; 0 is none.
type level int8

var levelNames = [...]string{1: "debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

func levelOf(name string) level {
	for i, n := range levelNames {
		if n == name && n != "" {
			return level(i)
		}
	}
	return 0
}

// wordier is the more verbose of two levels.
func (v level) wordier(o level) level {
	switch {
	case v == 0:
		return o
	case o == 0:
		return v
	}
	return min(v, o)
}

// who is whose level one is.
type who struct{ principal, session string }

// SetLevel says from which level on an agent's session wants log messages of all
// servers. A server with sessions is set to the most verbose of what the
// agents of its connection want; who wants less has to leave out what it gets
// too much. A stateless server is told with each request. It does not wait. An
// unknown level, or none, takes back what was said.
func (p *Pool) SetLevel(caller call.Caller, name string) {
	v := levelOf(name)
	k := who{caller.Principal, caller.Session}
	p.mu.Lock()
	if v == 0 {
		delete(p.levels, k)
	} else {
		p.levels[k] = said{v, caller}
	}
	var links []*link
	for server := range p.servers {
		if l := p.links[p.key(server, caller)]; l != nil {
			links = append(links, l)
		}
	}
	p.mu.Unlock()
	for _, l := range links {
		l.tend()
	}
}

// said is a level and who wants it.
type said struct {
	level  level
	caller call.Caller
}

// level is the one that a request wants, or its session; 0 if none.
func (p *Pool) level(s *call.Spec) level {
	if s.LogLevel != "" {
		return levelOf(s.LogLevel)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.levels[who{s.Principal, s.Session}].level
}

// logLevel is the level that goes with a request to a stateless server: the
// request's own, or its session's. It is empty if there is none.
func (p *Pool) logLevel(s *call.Spec) string { return levelNames[p.level(s)] }

// raiseWait bounds how long a call waits until its server has been told the level
// that it wants.
const raiseWait = 2 * time.Second

// raise has a server with sessions send what one call wants to hear, until hush.
func (l *link) raise(ctx context.Context, v level) {
	p := l.p
	p.mu.Lock()
	l.needs[v]++
	p.mu.Unlock()
	if l.tending.isSet(v) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, raiseWait)
	defer cancel()
	if s, err := l.conn.meet(ctx); err == nil && !l.conn.modern() {
		_ = l.alignLevel(ctx, s) // the call says itself what is wrong with its server
	}
}

func (l *link) hush(v level) {
	l.p.mu.Lock()
	l.needs[v]--
	l.p.mu.Unlock()
}

// isSet says whether the session is at least that verbose.
func (t *tending) isSet(v level) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.level != 0 && t.level <= v
}

// wantedLevel is the most verbose level of those who use the link.
func (l *link) wantedLevel() (v level) {
	p := l.p
	p.mu.Lock()
	defer p.mu.Unlock()
	for n, calls := range l.needs {
		if calls > 0 {
			v = v.wordier(level(n))
		}
	}
	for _, s := range p.levels {
		if p.links[p.key(l.server.Name, s.caller)] == l {
			v = v.wordier(s.level)
		}
	}
	return v
}

// alignLevel sets the level of a session. What nobody wants any more is left as
// it is: whoever never said a level gets what the server chose, or was told last.
func (l *link) alignLevel(ctx context.Context, said intro) error {
	t := &l.tending
	t.setting.Lock()
	defer t.setting.Unlock()
	want := l.wantedLevel()
	t.mu.Lock()
	has, gen := t.level, t.gen
	t.mu.Unlock()
	if want == 0 || want == has || !said.offers("logging") {
		return nil
	}
	_, err := l.conn.request(ctx, mcp.MethodSetLevel, []byte(`{"level":"`+levelNames[want]+`"}`))
	if err != nil && !isRPC(err) {
		return err
	}
	t.mu.Lock()
	if t.gen == gen { // not in a session that is gone by now
		t.level = want
	}
	t.mu.Unlock()
	return nil
}
