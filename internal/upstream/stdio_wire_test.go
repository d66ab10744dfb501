//go:build unix

package upstream

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longcall/longcall/internal/call"
)

// peer is a tool server at the other end of a wire, in fake time.
type peer struct {
	t      *testing.T
	wire   *wire
	engine *call.Engine
	in     *bufio.Scanner
	stdin  *io.PipeReader
	stdout *io.PipeWriter
	every  time.Duration // of pings
}

func newPeer(t *testing.T) *peer {
	p := &peer{t: t, every: 30 * time.Second}
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	p.stdin, p.stdout = inR, outW
	p.in = bufio.NewScanner(inR)
	p.in.Buffer(nil, 8<<20)
	p.wire = newPipes(Server{Name: "peer"}, Hooks{Log: slog.New(slog.DiscardHandler)}, outR, inW)
	p.wire.start()
	p.engine = call.NewEngine(unkept{}, runner(func(ctx context.Context, x *call.Exec) call.Answer {
		a, ok := p.wire.call(ctx, x, p.every)
		if !ok {
			return failed("over")
		}
		return a
	}), call.Options{Epoch: 1})
	return p
}

func (p *peer) done() {
	p.over()
	p.engine.Stop(context.Background())
}

// over ends the wire like a process that ended.
func (p *peer) over() {
	p.stdin.CloseWithError(io.EOF)
	p.stdout.Close()
	p.wire.out.finish()
	p.wire.wg.Wait()
	p.wire.end("it is over", "")
}

type peerMessage struct {
	ID     string
	Method string
	Params struct {
		RequestID string
		Reason    string
		Meta      struct{ ProgressToken string } `json:"_meta"`
	}
}

// next is the next message that the server reads.
func (p *peer) next() (m peerMessage) {
	p.t.Helper()
	if !p.in.Scan() {
		p.t.Fatalf("nothing more to read: %v", p.in.Err())
	}
	if err := json.Unmarshal(p.in.Bytes(), &m); err != nil {
		p.t.Fatal(err)
	}
	return m
}

func (p *peer) write(s string) { io.WriteString(p.stdout, s+"\n") }

func (p *peer) answer(id string) { p.write(`{"jsonrpc":"2.0","id":"` + id + `","result":{}}`) }

func (p *peer) start(l call.Limits) *call.Call {
	c, err := p.engine.Start(context.Background(), call.Spec{
		Principal: "p", Server: "peer", Tool: "work", Limits: l,
		Request: []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"work","arguments":{}}}`),
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return c
}

func (p *peer) end(c *call.Call) call.End {
	var end call.End
	for ev, err := range c.Follow(context.Background(), 0, 0) {
		if err != nil {
			p.t.Fatal(err)
		}
		if ev.End != nil {
			end = *ev.End
		}
	}
	return end
}

// A server that neither answers nor answers pings hits the limit, to the
// second, and hears of it.
func TestWireIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t)
		defer p.done()
		began := time.Now()
		c := p.start(call.Limits{FirstByte: 10 * time.Minute, Idle: 5 * time.Minute})
		m := p.next()
		var end call.End
		var took time.Duration
		var wg sync.WaitGroup
		wg.Go(func() { end = p.end(c); took = time.Since(began) })
		if ping := p.next(); ping.Method != "ping" || time.Since(began) != 30*time.Second {
			t.Errorf("got %+v after %s, want a ping", ping, time.Since(began))
		}
		<-time.After(30 * time.Second)
		p.write(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"` + m.Params.Meta.ProgressToken + `","progress":1}}`)
		cancel := p.next() // one ping and no more
		if cancel.Method != "notifications/cancelled" || cancel.Params.RequestID != m.ID || cancel.Params.Reason != "limits.idle of longcall was reached" {
			t.Errorf("got %+v", cancel)
		}
		wg.Wait()
		if end.Outcome != call.TimedOut || end.Limit != "idle" || took != 6*time.Minute {
			t.Errorf("ended as %+v after %s", end, took)
		}
		for _, want := range []string{"5m0s", "limits.idle", `"peer"`, "may have taken effect"} {
			if !strings.Contains(end.Text, want) {
				t.Errorf("%q is not in %q", want, end.Text)
			}
		}
	})
}

// A silent server that answers pings may take as long as the total limit lets
// it, in either era.
func TestWirePings(t *testing.T) {
	for _, modern := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p := newPeer(t)
			defer p.done()
			p.wire.modern = modern
			began := time.Now()
			c := p.start(call.Limits{FirstByte: time.Minute, Idle: 5 * time.Minute, Total: 24 * time.Hour})
			m := p.next()
			pings := 0
			for time.Since(began) < 3*time.Hour {
				ping := p.next()
				if want := map[bool]string{false: "ping", true: "server/discover"}[modern]; ping.Method != want {
					t.Fatalf("got %+v, want %s", ping, want)
				}
				pings++
				p.answer(ping.ID)
			}
			p.answer(m.ID)
			if end := p.end(c); end.Outcome != call.Completed {
				t.Errorf("ended as %+v", end)
			}
			if pings < 3*60*3-1 || pings > 3*60*3+1 { // every third of the shortest limit
				t.Errorf("%d pings", pings)
			}
			if r := c.Record(); r.FirstByte.Sub(r.Started) < 3*time.Hour {
				t.Error("a ping was noted as the first byte of the answer")
			}
		})
	}
}

// Until a server gives a sign of life, silence alone ends no call: it may be
// busy with it.
func TestWireFirstByte(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t)
		defer p.done()
		began := time.Now()
		c := p.start(call.Limits{FirstByte: 10 * time.Minute, Idle: 5 * time.Minute})
		m := p.next()
		if ping := p.next(); ping.Method != "ping" {
			t.Errorf("got %+v", ping)
		}
		if cancel := p.next(); cancel.Params.RequestID != m.ID {
			t.Errorf("got %+v", cancel)
		}
		if end := p.end(c); end.Outcome != call.TimedOut || end.Limit != "first_byte" || time.Since(began) != 10*time.Minute {
			t.Errorf("ended as %+v after %s", end, time.Since(began))
		}
		p.answer(m.ID) // nobody waits for it any more
		p.every = -1   // no pings
		c = p.start(call.Limits{})
		m = p.next()
		<-time.After(100 * 24 * time.Hour) // no limit, no end
		p.answer(m.ID)
		if end := p.end(c); end.Outcome != call.Completed {
			t.Errorf("ended as %+v", end)
		}
	})
}

// A cancel waits a second for a late answer, and no longer (O22).
func TestWireLingers_O22(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t)
		defer p.done()
		c := p.start(call.Limits{})
		p.next()
		began := time.Now()
		c.Cancel(call.End{By: "agent"})
		if cancel := p.next(); cancel.Params.Reason != "cancelled by agent" || time.Since(began) != 0 {
			t.Errorf("got %+v after %s", cancel, time.Since(began))
		}
		if end := p.end(c); end.Outcome != call.Cancelled || time.Since(began) != linger {
			t.Errorf("ended as %+v after %s", end, time.Since(began))
		}
	})
}

// The end of a process reaches all of its calls, after what it said before.
func TestWireEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t)
		answered, lost := p.start(call.Limits{}), p.start(call.Limits{})
		p.next()
		p.next()
		p.answer(p.idOf(answered))
		p.over()
		defer p.engine.Stop(context.Background())
		if end := p.end(answered); end.Outcome != call.Completed {
			t.Errorf("ended as %+v", end)
		}
		if end := p.end(lost); end.Outcome != call.Interrupted || !strings.Contains(end.Text, "it is over") {
			t.Errorf("ended as %+v", end)
		}
		if end := p.end(p.start(call.Limits{})); end.Outcome != call.Failed {
			t.Errorf("a call after the end ended as %+v", end)
		}
	})
}

// idOf finds the id under which a call waits.
func (p *peer) idOf(c *call.Call) string {
	p.wire.mu.Lock()
	defer p.wire.mu.Unlock()
	for id, w := range p.wire.waiting {
		if w.x != nil && w.x.ID == c.ID() {
			return id
		}
	}
	p.t.Fatal("the call does not wait")
	return ""
}

// The probe of a server that leaves server/discover unanswered (SPEC §5.4).
func TestHello(t *testing.T) {
	initialized := `"result":{"protocolVersion":"2025-11-25","capabilities":{}}`
	discovered := `"result":{"supportedVersions":["2026-07-28"],"capabilities":{}}`
	refused := `"error":{"code":-32601,"message":"no"}`
	for _, tt := range []struct {
		name    string
		output  time.Duration // when the process first writes something that is no message; 0 for never
		script  []string      // a message to wait for, or an answer, "method answer"
		modern  bool
		want    string // in the error
		after   time.Duration
		methods []string
	}{
		{
			name: "ignores discover, after a first output", output: 20 * time.Second,
			script: []string{"server/discover", "initialize", "initialize " + initialized, "notifications/initialized"},
			after:  silentWait,
		},
		{
			name: "ignores discover, and wrote early", output: time.Second,
			script: []string{"server/discover", "initialize", "initialize " + initialized, "notifications/initialized"},
			after:  time.Second + probeWait,
		},
		{
			name:   "is a slow modern server",
			script: []string{"server/discover", "initialize", "server/discover " + discovered, "initialize " + refused},
			modern: true, after: silentWait,
		},
		{
			name:   "is a slow modern server that ignores initialize",
			script: []string{"server/discover", "initialize", "server/discover " + discovered},
			modern: true, after: silentWait + probeWait,
		},
		{
			name:   "takes both",
			script: []string{"server/discover", "initialize", "server/discover " + discovered, "initialize " + initialized, "notifications/initialized"},
			after:  silentWait,
		},
		{
			name:   "refuses both",
			script: []string{"server/discover", "initialize", "initialize " + refused, "server/discover " + refused},
			want:   "refused initialize", after: silentWait,
		},
		{
			name:   "refuses both, the other way round",
			script: []string{"server/discover", "initialize", "server/discover " + refused, "initialize " + refused},
			want:   "refused initialize", after: silentWait,
		},
		{
			name:   "says nothing at all",
			script: []string{"server/discover", "initialize"},
			want:   "not ready", after: coldStart,
		},
		{
			name:   "is known to be modern by its error",
			script: []string{"server/discover", `server/discover "error":{"code":-32021,"message":"no","data":{}}`},
			modern: true,
		},
		{
			name: "lists the modern version with its error",
			script: []string{
				"server/discover", `server/discover "error":{"code":-32022,"message":"no","data":{"supported":["2026-07-28","2025-11-25"]}}`,
			},
			modern: true,
		},
		{
			name: "lists legacy versions only",
			script: []string{
				"server/discover", `server/discover "error":{"code":-32022,"message":"no","data":{"supported":["2025-06-18"]}}`,
				"initialize", "initialize " + initialized, "notifications/initialized",
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPeer(t)
				defer p.done()
				l := &life{process: &process{output: make(chan struct{})}, wire: p.wire}
				if tt.output > 0 {
					timer := time.AfterFunc(tt.output, func() { close(l.process.output) })
					defer timer.Stop()
				}
				h := &hello{c: &stdioConn{}, st: &starting{}, life: l}
				ctx, cancel := context.WithTimeoutCause(t.Context(), coldStart, errors.New("not ready"))
				defer cancel()
				began := time.Now()
				result := make(chan error, 1)
				go func() { result <- h.discover(ctx, false) }()
				ids := map[string]string{}
				for _, step := range tt.script {
					method, answer, reply := strings.Cut(step, " ")
					if reply {
						p.write(`{"jsonrpc":"2.0","id":"` + ids[method] + `",` + answer + `}`)
						continue
					}
					m := p.next()
					if m.Method != method {
						t.Fatalf("got %s, want %s", m.Method, method)
					}
					ids[method] = m.ID
				}
				err := <-result
				if d := time.Since(began); d != tt.after {
					t.Errorf("took %s, want %s", d, tt.after)
				}
				if tt.want != "" {
					if err == nil || !strings.Contains(err.Error(), tt.want) {
						t.Errorf("got %v, want %q", err, tt.want)
					}
					return
				}
				if err != nil || p.wire.modern != tt.modern {
					t.Errorf("modern is %v, error is %v", p.wire.modern, err)
				}
			})
		})
	}
}

func TestOutbox(t *testing.T) {
	r, w := io.Pipe()
	o := newOutbox(w)
	first := strings.Repeat("a", outboxSize+1)
	if err := o.put("a", []byte(first), nil); err != nil { // an empty outbox takes all
		t.Fatal(err)
	}
	if err := o.put("b", []byte("b"), func() error { t.Error("promised too much"); return nil }); err == nil {
		t.Error("a full outbox took a message")
	}
	if !o.takeBack("a") || o.takeBack("a") {
		t.Error("a message could not be taken back once")
	}
	if err := o.put("b", []byte("b\r\nb"), func() error { return errClosed }); !errors.Is(err, errClosed) {
		t.Errorf("got %v", err)
	}
	for _, s := range []string{"c", "d\nd", "e"} {
		if err := o.put(s, []byte(s), nil); err != nil {
			t.Error(err)
		}
	}
	if !o.takeBack("c") {
		t.Error("c could not be taken back")
	}
	o.finish()
	if err := o.put("f", []byte("f"), nil); !errors.Is(err, errOver) {
		t.Errorf("got %v", err)
	}
	done := make(chan error, 1)
	go func() { done <- o.run() }()
	got, err := io.ReadAll(r)
	if lines := strings.Split(string(got), "\n"); err != nil || !slices.Equal(lines, []string{"d d", "e", ""}) {
		t.Errorf("wrote %q, %v", lines, err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}

	r, w = io.Pipe()
	r.Close()
	o = newOutbox(w)
	o.put("", []byte("x"), nil)
	if err := o.run(); err == nil || !o.over() {
		t.Error("a broken pipe was not noticed")
	}
}
