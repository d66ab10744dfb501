package chaos_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// faults say how often a proxy's connections break, in percent, and how.
type faults struct {
	cut   int // closed in the orderly way (FIN) after some bytes
	reset int // by force (RST)
	half  int // nothing passes any more, and neither end is told
	slow  int // latency before every piece
	split int // pieces of a few bytes
}

// plan is what becomes of one connection.
type plan struct {
	how    string // "", "cut", "reset" or "half"
	up     int    // bytes towards the server after which it happens; -1 if never
	down   int    // bytes towards the client after which it happens; -1 if never
	marked int    // bytes after the mark in what comes down; -1 if never
	delay  time.Duration
	piece  int // largest piece that is written at once; 0 for what was read
}

// mark stands in every result of our tool server, so that a cut can be aimed at
// the terminal frame.
const mark = "result-of:"

func (f faults) plan(rng *rand.Rand) plan {
	p := plan{up: -1, down: -1, marked: -1}
	n := rng.IntN(100)
	switch {
	case n < f.cut:
		p.how = "cut"
	case n < f.cut+f.reset:
		p.how = "reset"
	case n < f.cut+f.reset+f.half:
		p.how = "half"
	}
	if p.how != "" {
		switch rng.IntN(10) {
		case 0, 1: // in the request
			p.up = rng.IntN(900)
		case 2, 3, 4, 5: // in the terminal frame, or what stands after it
			p.marked = rng.IntN(160)
		case 6: // in the headers
			p.down = rng.IntN(250)
		default: // in what comes first
			p.down = rng.IntN(4000)
		}
	}
	if rng.IntN(100) < f.slow {
		p.delay = time.Duration(1+rng.IntN(20)) * time.Millisecond
	}
	if rng.IntN(100) < f.split {
		p.piece = 1 + rng.IntN(40)
	}
	return p
}

// proxy passes TCP connections on, and breaks them as their plans say. What
// breaks is drawn from the seed and the connection's number.
type proxy struct {
	addr string
	to   string
	seed uint64
	salt uint64
	ln   *net.TCPListener
	wg   sync.WaitGroup

	mu     sync.Mutex
	faults faults
	n      uint64
	lines  map[*line]struct{}
	fates  map[string]string // by the client's address: how a connection broke
	broke  []time.Time
	calm   bool
	closed bool
}

// line is one connection on its way.
type line struct {
	a, b   *net.TCPConn // of the client, to the server
	client string

	mu    sync.Mutex
	plan  plan
	up    int
	down  int
	since int // bytes down since the mark; -1 before it
	tail  []byte
	dead  bool // half-open: what is read is thrown away
	done  bool
}

func newProxy(to string, seed, salt uint64, f faults) (*proxy, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{
		addr: ln.Addr().String(), to: to, seed: seed, salt: salt, faults: f, ln: ln.(*net.TCPListener),
		lines: map[*line]struct{}{}, fates: map[string]string{},
	}
	p.wg.Go(p.accept)
	return p, nil
}

func (p *proxy) accept() {
	for {
		a, err := p.ln.AcceptTCP()
		if err != nil {
			return // closed
		}
		p.mu.Lock()
		p.n++
		l := &line{a: a, client: a.RemoteAddr().String(), since: -1, plan: plan{up: -1, down: -1, marked: -1}}
		if !p.calm {
			l.plan = p.faults.plan(rand.New(rand.NewPCG(p.seed, p.salt<<32+p.n)))
		}
		closed := p.closed
		p.lines[l] = struct{}{}
		delete(p.fates, l.client) // the port had another connection before
		p.mu.Unlock()
		if closed {
			a.Close()
			return
		}
		p.wg.Go(func() { p.carry(l) })
	}
}

// carry copies both ways until both ends have closed.
func (p *proxy) carry(l *line) {
	defer func() {
		l.end()
		p.mu.Lock()
		delete(p.lines, l)
		p.mu.Unlock()
	}()
	b, err := net.DialTimeout("tcp", p.to, 5*time.Second)
	if err != nil {
		p.note(l, "refused")
		l.a.SetLinger(0)
		return
	}
	l.mu.Lock()
	l.b = b.(*net.TCPConn)
	done := l.done
	l.mu.Unlock()
	if done {
		b.Close()
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() { p.pipe(l, l.b, l.a, true) })
	wg.Go(func() { p.pipe(l, l.a, l.b, false) })
	wg.Wait()
}

// pipe copies one way.
func (p *proxy) pipe(l *line, to, from *net.TCPConn, up bool) {
	buf := make([]byte, 16<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && !p.pass(l, to, buf[:n], up) {
			return
		}
		if err != nil {
			if l.isDead() {
				return // the other end is not told
			}
			if errors.Is(err, io.EOF) {
				to.CloseWrite()
				return
			}
			to.SetLinger(0)
			l.end() // a reset goes on as a reset
			return
		}
	}
}

// pass writes b in pieces, until the plan says to break.
func (p *proxy) pass(l *line, to *net.TCPConn, b []byte, up bool) bool {
	l.mu.Lock()
	piece, delay := l.plan.piece, l.plan.delay
	l.mu.Unlock()
	if delay > 0 {
		pause(delay)
	}
	for len(b) > 0 {
		n := len(b)
		if piece > 0 && n > piece && len(b) < 4<<10 { // what is large would take for ever
			n = piece
		}
		n, how := l.count(b[:n], up)
		if l.isDead() {
			return true
		}
		if n > 0 {
			if _, err := to.Write(b[:n]); err != nil {
				// The other end has gone: who reads finds out.
				return false
			}
		}
		switch how {
		case "cut":
			p.note(l, how)
			l.end()
			return false
		case "reset":
			p.note(l, how)
			l.a.SetLinger(0)
			l.b.SetLinger(0)
			l.end()
			return false
		case "half":
			p.note(l, how)
			p.mu.Lock()
			calm := p.calm
			l.mu.Lock()
			l.dead = !calm
			l.mu.Unlock()
			p.mu.Unlock()
			if calm { // nobody would wake it any more
				l.end()
			}
			return true
		}
		b = b[n:]
	}
	return true
}

// count says how much of b passes, and what happens then.
func (l *line) count(b []byte, up bool) (n int, how string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n = len(b)
	at := func(limit int) {
		if limit >= 0 && limit < n {
			n, how = max(0, limit), l.plan.how
		}
	}
	if up {
		if l.plan.up >= 0 {
			at(l.plan.up - l.up)
		}
		l.up += n
		return n, how
	}
	if l.plan.down >= 0 {
		at(l.plan.down - l.down)
	}
	if l.plan.marked >= 0 && l.since >= 0 {
		at(l.plan.marked - l.since)
		l.since += n
	} else if l.plan.marked >= 0 {
		had := len(l.tail)
		l.tail = append(l.tail, b[:n]...)
		if i := bytes.Index(l.tail, []byte(mark)); i >= 0 {
			start := i - had // in b; the mark may have begun before it
			at(start + l.plan.marked)
			l.since, l.tail = n-start, nil
		} else {
			l.tail = bytes.Clone(l.tail[max(0, len(l.tail)-len(mark)):])
		}
	}
	l.down += n
	return n, how
}

func (l *line) isDead() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dead
}

// end closes both sides.
func (l *line) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done = true
	l.a.Close()
	if l.b != nil {
		l.b.Close()
	}
}

// note remembers how a connection broke.
func (p *proxy) note(l *line, how string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fates[l.client] = how
	if how != "refused" {
		p.broke = append(p.broke, time.Now())
	}
}

// fate says how the connection of a client broke; "" if it did not.
func (p *proxy) fate(client string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fates[client]
}

// brokeIn says whether any connection broke between two times.
func (p *proxy) brokeIn(from, to time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.broke {
		if t.After(from) && t.Before(to) {
			return true
		}
	}
	return false
}

// soothe ends all faults: connections that hang are reset, as the kernel does in
// the end, and nothing else breaks any more.
func (p *proxy) soothe() {
	p.mu.Lock()
	p.calm = true
	var hang []*line
	for l := range p.lines {
		l.mu.Lock()
		l.plan = plan{up: -1, down: -1, marked: -1}
		if l.dead {
			hang = append(hang, l)
		}
		l.mu.Unlock()
	}
	p.mu.Unlock()
	for _, l := range hang {
		l.a.SetLinger(0)
		if l.b != nil {
			l.b.SetLinger(0)
		}
		l.end()
	}
}

func (p *proxy) close() {
	p.mu.Lock()
	p.closed = true
	var all []*line
	for l := range p.lines {
		all = append(all, l)
	}
	p.mu.Unlock()
	p.ln.Close()
	for _, l := range all {
		l.end()
	}
	p.wg.Wait()
}

func (p *proxy) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	how := map[string]int{}
	for _, f := range p.fates {
		how[f]++
	}
	return fmt.Sprintf("%d connections, broken: %v", p.n, how)
}

// pause waits for d.
func pause(d time.Duration) {
	t := time.NewTimer(d)
	<-t.C
}
