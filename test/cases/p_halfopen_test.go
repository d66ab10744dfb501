package cases_test

import (
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/test/wire"
)

// cable is a line to a server that can be cut without either end being told.
type cable struct {
	url  string
	to   string
	ln   net.Listener
	wg   sync.WaitGroup
	done chan struct{}

	mu    sync.Mutex
	cuts  chan struct{} // closed by the next cut
	isCut bool
}

func newCable(t *testing.T, up *wire.Upstream) *cable {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	host := strings.TrimSuffix(strings.TrimPrefix(up.URL, "http://"), "/mcp")
	c := &cable{url: "http://" + ln.Addr().String() + "/mcp", to: host, ln: ln, done: make(chan struct{}), cuts: make(chan struct{})}
	c.wg.Go(func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			c.mu.Lock()
			cut, dead := c.cuts, c.isCut
			c.mu.Unlock()
			c.wg.Go(func() { c.carry(nc, cut, dead) })
		}
	})
	t.Cleanup(func() {
		ln.Close()
		close(c.done)
		c.wg.Wait()
	})
	return c
}

// carry copies both ways until the cable is cut; then nothing passes on this
// connection any more, and it stays open.
func (c *cable) carry(a net.Conn, cut <-chan struct{}, dead bool) {
	defer a.Close()
	if dead {
		<-c.done
		return
	}
	b, err := net.Dial("tcp", c.to)
	if err != nil {
		return
	}
	defer b.Close()
	ended := make(chan struct{}, 2)
	pipe := func(to, from net.Conn) {
		buf := make([]byte, 32<<10)
		for {
			n, err := from.Read(buf)
			select {
			case <-cut:
				n = 0 // it vanishes
			default:
			}
			if _, werr := to.Write(buf[:n]); err != nil || werr != nil {
				ended <- struct{}{}
				return
			}
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() { pipe(a, b) })
	wg.Go(func() { pipe(b, a) })
	select {
	case <-ended:
		select {
		case <-cut:
			<-c.done // nobody is told
		default:
		}
	case <-cut:
		<-c.done
	case <-c.done:
	}
	a.Close()
	b.Close()
	wg.Wait()
}

// cut makes all connections, and those to come, half-open.
func (c *cable) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.isCut = true
	close(c.cuts)
	c.cuts = make(chan struct{})
}

// mend lets new connections through; the old ones stay dead.
func (c *cable) mend() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.isCut = false
}

// begun is a call that has shown three steps, with ids or without, and holds.
func begun(ids bool) wire.Handler {
	return func(c *wire.Conn, r *wire.Request) {
		c.SSE()
		for i, text := range steps(resumeTag, 3) {
			m := r.Progress(strconv.Itoa(i+1), strconv.Itoa(resumeSteps), text)
			if ids {
				c.EventID("a_"+strconv.Itoa(i+1), m)
			} else {
				c.Event(m)
			}
		}
		c.Hold()
	}
}

// lost checks an answer that says that the server was lost, and when.
func (g *gateway) lost(x *wire.Exchange, reason string, least, most time.Duration) {
	g.t.Helper()
	m := x.TimedResponse(0)
	saysUnknown(g.t, m.Msg)
	if !strings.Contains(m.ToolText(), reason) {
		g.t.Errorf("the answer does not say %q: %s", reason, m.ToolText())
	}
	if m.Came < least || m.Came > most {
		g.t.Errorf("the loss was noticed after %v", m.Came)
	}
	g.ended(call.Interrupted)
}

// TestP21 freezes the server in mid-call: no FIN, no bytes, writes vanish.
func TestP21(t *testing.T) {
	t.Parallel()
	const limits = "limits: {idle: 3s, first_byte: 3s, total: 10m}"
	for name, opt := range map[string]wire.Options{
		"no ids": {On: map[string]wire.Handler{"tools/call": begun(false)}},
		"ids":    {On: map[string]wire.Handler{"tools/call": begun(true)}},
		"GET": {On: map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) {
			c.Stream().Event(r.Progress("1", "", "one"))
			c.Hold()
		}}},
		"before the headers": {On: map[string]wire.Handler{"tools/call": wire.Hold}},
		"half a JSON body": {On: map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) {
			c.Write("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")
			c.Hold()
		}}},
		"modern":     {Version: wire.Modern, On: map[string]wire.Handler{"tools/call": begun(false)}},
		"no session": {NoSession: true, NoStream: true, On: map[string]wire.Handler{"tools/call": begun(false)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := wire.NewUpstream(t, opt)
			g := before(t, up, limits, pingFast)
			var xs []*wire.Exchange
			for _, v := range []string{wire.Legacy, wire.Modern} {
				dn := g.client(v, "up")
				for range 4 {
					xs = append(xs, dn.Start(wire.Call{Token: "5"}))
				}
			}
			up.WaitRequest("tools/call", len(xs), 0)
			<-time.After(100 * time.Millisecond)
			up.Freeze()
			for _, x := range xs {
				g.lost(x, "no ping", 2*time.Second, 20*time.Second)
			}
			if n := len(g.allEnded(len(xs))); n != up.Count("tools/call") {
				t.Errorf("%d calls were sent %d times", n, up.Count("tools/call"))
			}
		})
	}
}

// TestP21Resumed cuts the cable for a while: the server stays alive and goes on.
func TestP21Resumed(t *testing.T) {
	t.Parallel()
	var up *wire.Upstream
	var log *wire.EventLog
	up = wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{
		"tools/call": func(c *wire.Conn, r *wire.Request) {
			log = up.NewLog("a")
			for i, text := range steps(resumeTag, 3) {
				log.Append(r.Progress(strconv.Itoa(i+1), strconv.Itoa(resumeSteps), text))
			}
			c.SSE()
			log.Serve(c, 0, 0)
		},
	}})
	line := newCable(t, up)
	g := start(t, "shutdown: {drain: 1s}\nmcpServers: {up: {url: \""+line.url+"\", "+pingFast+"}}\n")
	x := g.client(wire.Legacy, "up").Start(wire.Call{Token: "5"})
	x.WaitMessages(progressMethod, 3, 0)
	line.cut()
	r := up.Requests("tools/call")[0]
	for i, text := range steps(resumeTag, resumeSteps)[3:] {
		log.Append(r.Progress(strconv.Itoa(4+i), strconv.Itoa(resumeSteps), text))
	}
	log.Append(r.Text("worked"))
	log.Finish()
	<-time.After(time.Second)
	line.mend()
	g.whole(up, x)
	if d := x.TimedResponse(0).Came; d > 25*time.Second {
		t.Errorf("noticed after %v", d)
	}
	if got := resumes(up); len(got) == 0 || got[0].Header.Get("Last-Event-ID") != "a_3" {
		t.Errorf("%d resumes", len(got))
	}
}

// TestP21Unreachable: the call's connection is half-open, and new ones are refused.
func TestP21Unreachable(t *testing.T) {
	t.Parallel()
	for _, ids := range []bool{false, true} {
		t.Run("ids="+strconv.FormatBool(ids), func(t *testing.T) {
			t.Parallel()
			up := wire.NewUpstream(t, wire.Options{NoStream: true, On: map[string]wire.Handler{"tools/call": begun(ids)}})
			line := newCable(t, up)
			g := start(t, "shutdown: {drain: 1s}\nmcpServers: {up: {url: \""+line.url+"\", limits: {idle: 4s, total: 10m}, "+pingFast+"}}\n")
			x := g.client(wire.Legacy, "up").Start(wire.Call{Token: "5"})
			x.WaitMessages(progressMethod, 3, 0)
			line.cut()
			line.ln.Close()
			// The ping may have gone to a connection that was open, and is
			// half-open now like all of them.
			reason, least := "no ping", 300*time.Millisecond
			if ids {
				reason, least = "", 3500*time.Millisecond
			}
			g.lost(x, reason, least, 20*time.Second)
			if text := x.Response(0).ToolText(); ids && !strings.Contains(text, "could not be resumed") && !strings.Contains(text, "no ping") {
				t.Errorf("the answer does not say why: %s", text)
			}
		})
	}
}

// TestP21Busy: a server that works in its only thread answers no ping, and is
// not lost.
func TestP21Busy(t *testing.T) {
	t.Parallel()
	for _, ids := range []bool{false, true} {
		t.Run("ids="+strconv.FormatBool(ids), func(t *testing.T) {
			t.Parallel()
			up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{
				"ping": wire.Hold,
				"tools/call": func(c *wire.Conn, r *wire.Request) {
					c.SSE()
					if ids {
						c.EventID("a_1", r.Progress("1", "2", "step 1"))
					} else {
						c.Event(r.Progress("1", "2", "step 1"))
					}
					if c.Pause(13 * time.Second) { // longer than a ping may take
						c.Event(r.Progress("2", "2", "step 2"), r.Text("worked"))
						c.End()
					}
				},
			}})
			g := before(t, up, pingFast)
			x := g.client(wire.Legacy, "up").Start(wire.Call{Token: "5"})
			shows(t, x, "5", "worked", steps("step", 2)...)
			if up.Count("ping") == 0 || len(resumes(up)) > 0 {
				t.Errorf("%d pings, %d resumes", up.Count("ping"), len(resumes(up)))
			}
		})
	}
}

func init() {
	addTool("begun", func(w *worker, r *wire.Request) {
		w.send(r.Progress("1", "", "step 1"))
		w.pause(time.Hour)
	})
}

// TestP21Stdio stops a process without ending it.
func TestP21Stdio(t *testing.T) {
	t.Parallel()
	for _, w := range ways[3:5] {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, w, "begun")
			g := s.start(t, "limits: {idle: 3s, total: 10m}", pingFast)
			x := g.client(wire.Legacy, "up").Start(wire.Call{Token: "5"})
			x.WaitMessages(progressMethod, 1, 0)
			pid := s.cmd.Notes("start")
			stopped := pid[len(pid)-1].PID
			if err := syscall.Kill(stopped, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			defer syscall.Kill(stopped, syscall.SIGCONT)
			m := x.TimedResponse(0)
			if outcome(m.Msg) != "timed_out" || !strings.Contains(m.ToolText(), "no answer to a ping") || !strings.Contains(m.ToolText(), "may have taken effect") {
				t.Errorf("the answer: %s", m.JSON)
			}
			if m.Came < 2*time.Second || m.Came > 20*time.Second {
				t.Errorf("noticed after %v", m.Came)
			}
			if r, _ := g.ended(call.TimedOut); r.End.Limit != "idle" {
				t.Errorf("the limit is %q", r.End.Limit)
			}
		})
	}
}
