package cases_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"runtime"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
	"github.com/longcall/longcall/test/wire"
)

const mib = 1 << 20

// memory watches how far the heap and the stacks of this process, which holds
// gateway, agents and servers, grow above where they were.
type memory struct {
	base uint64
	stop chan struct{}
	done chan struct{}

	peak uint64 // with garbage
	live uint64 // found in use by a collection
}

func inUse() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

func watchMemory() *memory {
	runtime.GC()
	m := &memory{base: inUse(), stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(m.done)
		sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				m.peak = max(m.peak, inUse())
				metrics.Read(sample)
				m.live = max(m.live, sample[0].Value.Uint64())
			case <-m.stop:
				return
			}
		}
	}()
	return m
}

// grew is the largest growth so far, garbage included. It ends the watch.
func (m *memory) grew() uint64 {
	close(m.stop)
	<-m.done
	return max(m.peak, m.base) - m.base
}

// now is the growth that is left after a collection.
func (m *memory) now() uint64 {
	runtime.GC()
	return max(inUse(), m.base) - m.base
}

// huge is 200 MiB in pieces.
const hugeSize = 200 * mib

var piece = strings.Repeat("x", mib)

func init() {
	for _, v := range []string{wire.Legacy, wire.Modern} {
		scripts["huge/"+v] = func(c *wire.Child) {
			c.Serve(wire.Options{Version: v}, func(c *wire.Child, r *wire.Request) {
				if arg(r.Msg, "tag") != "huge" {
					c.Send(r.Text("small"))
					return
				}
				c.Write(hugeHead(r))
				for range hugeSize / mib {
					c.Write(piece)
				}
				c.Write(hugeTail + "\n")
			})
		}
	}
}

func hugeHead(r *wire.Request) string {
	extra := ""
	if r.Modern() {
		extra = `"resultType":"complete",`
	}
	return `{"jsonrpc":"2.0","id":` + string(r.ID) + `,"result":{` + extra + `"content":[{"type":"text","text":"`
}

const hugeTail = `"}]}}`

// TestP18HugeMessage answers a call with 200 MiB.
func TestP18HugeMessage(t *testing.T) {
	onHuge := func(send func(c *wire.Conn, r *wire.Request)) wire.Handler {
		return func(c *wire.Conn, r *wire.Request) {
			if arg(r.Msg, "tag") == "huge" {
				send(c, r)
			} else {
				c.JSON(200, r.Text("small"))
			}
		}
	}
	asJSON := onHuge(func(c *wire.Conn, r *wire.Request) {
		head := hugeHead(r)
		c.Head(200, "Content-Type: application/json", "Content-Length: "+strconv.Itoa(len(head)+hugeSize+len(hugeTail)))
		c.Write(head)
		for range hugeSize / mib {
			c.Write(piece)
		}
		c.Write(hugeTail)
	})
	asChunks := onHuge(func(c *wire.Conn, r *wire.Request) {
		c.Head(200, "Content-Type: application/json")
		c.Body(hugeHead(r))
		for range hugeSize / mib {
			c.Body(piece)
		}
		c.Body(hugeTail)
		c.End()
	})
	asEvent := onHuge(func(c *wire.Conn, r *wire.Request) {
		c.SSE()
		c.Body("event: message\ndata: " + hugeHead(r))
		for range hugeSize / mib {
			c.Body(piece)
		}
		c.Body(hugeTail + "\n\n")
		c.End()
	})
	asLines := onHuge(func(c *wire.Conn, r *wire.Request) {
		c.SSE()
		c.Body("data: " + hugeHead(r) + "\n")
		for range hugeSize / mib {
			c.Body("data: " + piece + "\n")
		}
		c.Body("data: " + hugeTail + "\n\n")
		c.End()
	})
	run := func(name string, s func(t *testing.T) *server) {
		t.Run(name, func(t *testing.T) {
			srv := s(t)
			g := srv.start(t)
			dn := g.client(wire.Legacy, "up")
			if m := dn.Start(wire.Call{}).Response(0); m.ToolText() != "small" {
				t.Fatal(m.JSON)
			}
			mem := watchMemory()
			m := dn.Start(wire.Call{Token: "1", Args: `{"tag":"huge"}`}).TimedResponse(60 * time.Second)
			grew := mem.grew()
			// One message may have 16 MiB, the limit. The buffer that holds it
			// doubles: 16 MiB and 32 MiB are there while it moves. The harness
			// throws away some 400 MiB, so only what is live counts.
			if mem.live > 96*mib {
				t.Errorf("%d MiB of memory were in use", mem.live/mib)
			}
			t.Logf("%d MiB were in use, with garbage %d MiB; answered after %v", mem.live/mib, grew/mib, m.Came)
			if outcome(m.Msg) != "failed" || m.Str("result._meta.dev/longcall/outcome.limit") != "message_bytes" || !strings.Contains(m.ToolText(), "limits.message") {
				t.Errorf("the answer does not name the limit: %s", m.JSON[:min(len(m.JSON), 500)])
			}
			if m := dn.Start(wire.Call{}).Response(0); m.ToolText() != "small" {
				t.Errorf("the next call: %s", m.JSON)
			}
			for _, r := range g.allEnded(3) {
				if r.End.Outcome == call.Failed && r.End.Limit != "message_bytes" {
					t.Errorf("the record says %+v", r.End)
				}
			}
		})
	}
	for name, h := range map[string]wire.Handler{"json": asJSON, "chunked json": asChunks, "event": asEvent, "event of many lines": asLines} {
		run(name, func(t *testing.T) *server {
			return &server{up: wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"tools/call": h}})}
		})
	}
	run("event, modern", func(t *testing.T) *server {
		return &server{up: wire.NewUpstream(t, wire.Options{Version: wire.Modern, On: map[string]wire.Handler{"tools/call": asEvent}})}
	})
	for _, w := range ways[3:5] {
		run(w.name, func(t *testing.T) *server {
			return &server{cmd: wire.NewCommand(t, "huge/"+w.version)}
		})
	}
}

// raw is an agent's connection that the case reads itself.
type raw struct {
	*net.TCPConn
	br *bufio.Reader
}

// dial connects to the gateway with a small receive buffer.
func (g *gateway) dial() *raw {
	g.t.Helper()
	u, err := url.Parse(g.app.URL())
	if err != nil {
		g.t.Fatal(err)
	}
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 8<<10) })
	}}
	nc, err := d.DialContext(g.t.Context(), "tcp", u.Host)
	if err != nil {
		g.t.Fatal(err)
	}
	r := &raw{nc.(*net.TCPConn), bufio.NewReaderSize(nc, 4<<10)}
	g.t.Cleanup(func() { r.Close() })
	return r
}

// post sends a request of an initialized agent.
func (r *raw) post(dn *wire.Client, server, accept, body string) error {
	head := "POST /mcp/" + server + " HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nAccept: " + accept +
		"\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\nMcp-Protocol-Version: " + dn.Version + "\r\n"
	if dn.Session != "" {
		head += "Mcp-Session-Id: " + dn.Session + "\r\n"
	} else {
		head += "Mcp-Method: tools/call\r\nMcp-Name: work\r\n"
	}
	_, err := io.WriteString(r, head+"\r\n"+body)
	return err
}

// result reads an event stream to its end and returns the result's text, and
// how many progress messages came before it, all of them in order.
func (r *raw) result() (text string, progress int, err error) {
	resp, err := http.ReadResponse(r.br, nil)
	if err != nil {
		return "", 0, err
	}
	defer resp.Body.Close()
	in := mcp.NewSSEReader(resp.Body, 0)
	last := -1.0
	for {
		ev, err := in.Next()
		if err == io.EOF {
			return text, progress, nil
		}
		if err != nil {
			return text, progress, err
		}
		m, ok := wire.ParseMsg(string(ev.Data))
		switch {
		case !ok:
		case m.Method == progressMethod:
			v, err := strconv.ParseFloat(string(m.At("params.progress")), 64)
			if err != nil || v <= last {
				return text, progress, fmt.Errorf("progress %s after %v", m.At("params.progress"), last)
			}
			last = v
			progress++
		case m.Response():
			text = m.ToolText()
		}
	}
}

// flood sends 1 KiB progress messages for a time, at most n in all, and the result.
func flood(send func(...string), r *wire.Request, d time.Duration) {
	text := strings.Repeat("y", mib/1024)
	end, i := time.Now().Add(d), 0
	for time.Now().Before(end) {
		for range floodBurst {
			i++
			send(r.Progress(strconv.Itoa(i), "", text))
		}
		<-time.After(5 * time.Millisecond)
	}
	send(r.Text("sent " + strconv.Itoa(i)))
}

var floodBurst = map[bool]int{false: 50, true: 10}[raceEnabled]

func init() {
	// gate: many calls that all wait for a signal.
	scripts["gate/"+wire.Legacy] = func(c *wire.Child) {
		open := make(chan os.Signal, 1)
		signal.Notify(open, syscall.SIGUSR1)
		release := make(chan struct{})
		go func() { <-open; close(release) }()
		c.Serve(wire.Options{}, func(c *wire.Child, r *wire.Request) {
			c.Send(r.Progress("1", "2", "begun"))
			c.Note("here", "")
			<-release
			c.Send(r.Progress("2", "2", "worked"), r.Text("worked"))
		})
	}
	addTool("flood", func(w *worker, r *wire.Request) {
		if arg(r.Msg, "tag") != "flood" {
			w.send(r.Text("small"))
			return
		}
		flood(w.send, r, 6*time.Second)
	})
}

// TestP18NobodyReads has 6 s of progress for an agent that reads nothing.
func TestP18NobodyReads(t *testing.T) {
	servers := []way{ways[0], ways[3]}
	type one struct {
		g    *gateway
		dn   *wire.Client
		conn *raw
	}
	var all []one
	for i, w := range servers {
		s := newServer(t, w, "flood")
		g := s.startWith(t, "limits: {call: 0}")
		dn := g.client([]string{wire.Legacy, wire.Modern}[i], "up")
		if m := dn.Start(wire.Call{}).Response(0); m.ToolText() != "small" {
			t.Fatal(m.JSON)
		}
		all = append(all, one{g, dn, g.dial()})
	}
	mem := watchMemory()
	for _, o := range all {
		if err := o.conn.post(o.dn, "up", wire.AcceptBoth, o.dn.Message("9", "tools/call", `"name":"work","arguments":{"tag":"flood"}`, `"progressToken":1`)); err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range all {
		// The record ends when the result is there, and only then somebody reads.
		soon(t, "the end of the flood", func() bool {
			r := o.g.records()
			return len(r) == 2 && r[0].End.Outcome == call.Completed
		})
		if m := o.dn.Start(wire.Call{}).Response(0); m.ToolText() != "small" {
			t.Errorf("another call meanwhile: %s", m.JSON)
		}
	}
	grew := mem.grew()
	for i, o := range all {
		text, progress, err := o.conn.result()
		if err != nil || !strings.HasPrefix(text, "sent ") {
			t.Fatalf("%s: %q, %v", servers[i].name, text, err)
		}
		r := o.g.records()[1]
		n, _ := strconv.Atoi(strings.TrimPrefix(text, "sent "))
		d := o.g.delivery(r.ID)
		t.Logf("%s: %d messages of 1 KiB sent, %d read, %d dropped, %d not kept", servers[i].name, n, progress, d.Dropped, r.Missing)
		if d.How != call.Delivered || progress+int(d.Dropped) < n {
			t.Errorf("%s: delivery %+v, %d read of %d", servers[i].name, d, progress, n)
		}
	}
	// Per call a tail of 256 KiB, and what waits for the journal; garbage
	// doubles it.
	if grew > 96*mib {
		t.Errorf("memory grew by %d MiB", grew/mib)
	}
	t.Logf("memory grew by %d MiB", grew/mib)
}

// TestP18Streams holds 1000 streams at once, and refuses one more.
func TestP18Streams(t *testing.T) {
	streams, most := 1000, uint64(128<<10)
	if raceEnabled {
		streams, most = 200, 256<<10 // and its own bookkeeping
	}
	for i, w := range []way{ways[0], ways[2], ways[3]} {
		t.Run(w.name, func(t *testing.T) {
			version := []string{wire.Legacy, wire.Modern, wire.Legacy}[i]
			release := make(chan struct{})
			var s *server
			if w.handler != nil {
				s = &server{up: wire.NewUpstream(t, wire.Options{Version: w.version, On: map[string]wire.Handler{
					"tools/call": func(c *wire.Conn, r *wire.Request) {
						c.SSE()
						c.Event(r.Progress("1", "2", "begun"))
						select {
						case <-release:
						case <-c.Gone():
						}
						c.Event(r.Progress("2", "2", "worked"), r.Text("worked"))
						c.End()
					},
				}})}
			} else {
				s = newServer(t, w, "gate")
			}
			g := s.startWith(t, fmt.Sprintf("limits: {concurrent: %d, connect: 1m}", streams))
			dn := g.client(version, "up")
			mem := watchMemory()
			conns := make([]*raw, streams)
			for i := range conns {
				conns[i] = g.dial()
				if err := conns[i].post(dn, "up", wire.AcceptBoth, dn.Message(strconv.Itoa(i), "tools/call", `"name":"work","arguments":{}`, `"progressToken":1`)); err != nil {
					t.Fatal(err)
				}
			}
			soon(t, "all calls at the server", func() bool {
				if s.cmd != nil {
					return len(s.cmd.Notes("here")) == streams
				}
				return s.up.Count("tools/call") == streams
			})
			each := mem.now() / uint64(streams)
			grew := mem.grew()
			// Both ends of the harness are in it, with a buffer of 4 KiB each.
			if each > most || grew > 2*most*uint64(streams) {
				t.Errorf("a stream takes %d KiB, memory grew by %d MiB for %d of them", each>>10, grew/mib, streams)
			}
			t.Logf("a stream takes %d KiB, memory grew by %d MiB", each>>10, grew/mib)
			m := dn.Start(wire.Call{}).Response(0)
			if outcome(m) != "denied" || m.Str("result._meta.dev/longcall/outcome.limit") != "concurrency" {
				t.Errorf("one call too many: %s", m.JSON)
			}
			if s.cmd != nil {
				if err := syscall.Kill(s.cmd.Notes("start")[0].PID, syscall.SIGUSR1); err != nil {
					t.Fatal(err)
				}
			}
			close(release)
			var wg sync.WaitGroup
			bad := make(chan string, streams)
			for _, c := range conns {
				wg.Go(func() {
					if text, n, err := c.result(); text != "worked" || n != 2 || err != nil {
						bad <- fmt.Sprintf("%q after %d progress messages, %v", text, n, err)
					}
				})
			}
			wg.Wait()
			close(bad)
			for b := range bad {
				t.Error(b)
				break
			}
			if n := len(bad); n > 0 {
				t.Errorf("%d more streams like that", n)
			}
		})
	}
}

// TestP18HugeRequest sends 200 MiB as a request.
func TestP18HugeRequest(t *testing.T) {
	up := wire.NewUpstream(t, wire.Options{})
	g := before(t, up)
	dn := g.client(wire.Legacy, "up")
	for name, length := range map[string]string{"length": "Content-Length: " + strconv.Itoa(hugeSize), "chunked": "Transfer-Encoding: chunked"} {
		t.Run(name, func(t *testing.T) {
			c := g.dial()
			mem := watchMemory()
			head := "POST /mcp/up HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n" + length + "\r\nMcp-Session-Id: " + dn.Session + "\r\n\r\n"
			_, err := io.WriteString(c, head)
			for i := 0; i < hugeSize/mib && err == nil; i++ {
				if name == "chunked" {
					_, err = fmt.Fprintf(c, "%x\r\n%s\r\n", len(piece), piece)
				} else {
					_, err = io.WriteString(c, piece)
				}
			}
			resp, err := http.ReadResponse(c.br, nil)
			if err != nil {
				t.Fatal(err) // the reset must not overtake the answer
			}
			defer resp.Body.Close()
			b, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != 413 || !strings.Contains(string(b), "4194304 bytes") {
				t.Errorf("HTTP %d: %s", resp.StatusCode, b)
			}
			if grew := mem.grew(); grew > 32*mib {
				t.Errorf("memory grew by %d MiB", grew/mib)
			}
		})
	}
	if m := dn.Start(wire.Call{}).Response(0); m.ToolText() != "worked" || up.Count("tools/call") != 1 {
		t.Errorf("the next call: %s", m.JSON)
	}
}
