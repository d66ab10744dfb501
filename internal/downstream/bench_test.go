package downstream

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// plain is the least that an agents' side can do: read the body, answer with
// two flushed events. What BenchmarkCall takes beyond it is ours.
var plain = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	_, _ = io.ReadAll(r.Body)
	streamHead(w.Header())
	w.WriteHeader(200)
	rc := http.NewResponseController(w)
	_, _ = w.Write(commentOpen)
	_ = rc.Flush()
	_, _ = io.WriteString(w, "event: message\ndata: "+okResult+"\n\n")
	_ = rc.Flush()
})

func BenchmarkCall(b *testing.B) {
	r := newRig(b)
	r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer { return reply(x, okResult) }
	stop := drain(r.log)
	defer stop()
	s, _ := r.h.sessions.open("ann", "up", mcp.V20251125, "bench", nil)
	b.Run("plain", func(b *testing.B) { benchCalls(b, plain, "") })
	b.Run("legacy", func(b *testing.B) { benchCalls(b, r.h, s.id) })
	b.Run("modern", func(b *testing.B) { benchCalls(b, r.h, "") })
}

// drain forgets what the log is told, as a journal does.
func drain(l *memLog) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-l.delivered:
				l.mu.Lock()
				l.deliveries = nil
				clear(l.recs)
				clear(l.events)
				l.mu.Unlock()
			case <-done:
				return
			}
		}
	})
	return func() { close(done); wg.Wait() }
}

func benchCalls(b *testing.B, h http.Handler, session string) {
	s := httptest.NewServer(h)
	defer s.Close()
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	c := &client{t: b, url: s.URL, http: &http.Client{Transport: tr}, session: session, header: http.Header{
		"Authorization": {"Bearer ann"}, "Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"},
	}}
	body, header := legacyCall("1", "work", "1"), []string(nil)
	if session == "" {
		body, header = modernCall("1", "work", token), modern(mcp.MethodToolsCall, "work")
	}
	b.ReportAllocs()
	for b.Loop() {
		if status, _ := c.post("/mcp/up", body, header...); status != 200 {
			b.Fatal(status)
		}
	}
}

// BenchmarkProgress renders one progress event.
func BenchmarkProgress(b *testing.B) {
	var l line
	var buf []byte
	body, hole := note(`"progress":5,"total":10,"message":"step 5 of 10"`)
	tok := []byte(`"token-1"`)
	b.ReportAllocs()
	for b.Loop() {
		l.any, l.v = true, 4
		buf, _ = l.appendProgress(buf[:0], body, hole, tok)
	}
}

// BenchmarkResult renders a 1 MiB result up to what is written as it is.
func BenchmarkResult(b *testing.B) {
	body := []byte(`{"jsonrpc":"2.0","id":0,"result":{"content":[{"type":"text","text":"` + strings.Repeat("lorem ipsum\\n", 1<<20/13) + `"}]}}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	var buf []byte
	for b.Loop() {
		cuts := convert(body, view{modern: true}, []cut{{24, 25, []byte("1")}})
		buf, _ = spliceHead(buf[:0], body, cuts)
	}
}

// BenchmarkParked reports the memory of one silent call: its connection, this
// package's part and the engine's, with a fake tool server; and the same of a
// plain handler that waits.
func BenchmarkParked(b *testing.B) {
	const n = 1000
	r := newRig(b)
	g := &gate{running: make(chan call.ID, n), end: make(chan struct{})}
	r.tools["work"] = g.run
	stop := drain(r.log)
	defer stop()
	waiting, release := make(chan struct{}, n), make(chan struct{})
	wait := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		streamHead(w.Header())
		w.WriteHeader(200)
		_, _ = w.Write(commentOpen)
		_ = http.NewResponseController(w).Flush()
		waiting <- struct{}{}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	for range b.N {
		b.ReportMetric(parked(b, wait, n, func() { <-waiting }), "plain-B/call")
		b.ReportMetric(parked(b, r.h, n, func() { <-g.running }), "B/call")
	}
	close(release)
	close(g.end)
}

// parked opens n calls over raw connections, which cost next to nothing here.
func parked(b *testing.B, h http.Handler, n int, started func()) float64 {
	s := httptest.NewServer(h)
	defer s.Close()
	body := modernCall("1", "work", token)
	req := "POST /mcp/up HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer ann\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n" +
		"Mcp-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: work\r\n" + fmt.Sprintf("Content-Length: %d\r\n\r\n", len(body)) + body
	before := inUse()
	conns := make([]net.Conn, n)
	for i := range conns {
		c, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		conns[i] = c
		if _, err := io.WriteString(c, req); err != nil {
			b.Fatal(err)
		}
		started()
	}
	<-time.After(100 * time.Millisecond)
	size := float64(inUse()-before) / float64(n)
	for _, c := range conns {
		_ = c.Close()
	}
	return size
}

// inUse is heap and stacks in use.
func inUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
