//go:build unix

package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// unkept is a log that keeps nothing: events are read from memory.
type unkept struct{ call.Log }

func (unkept) Create(context.Context, *call.Record, ...call.Event) error { return nil }
func (unkept) Append(call.ID, uint64, call.Event) error                  { return nil }
func (unkept) Finish(context.Context, *call.Record, call.Event) error    { return nil }
func (unkept) Flush(context.Context) error                               { return nil }
func (unkept) Deliver(call.Delivery)                                     {}
func (unkept) Get(context.Context, call.ID) (*call.Record, error)        { return nil, call.ErrUnknown }
func (unkept) Running(context.Context, uint64) ([]call.Record, error)    { return nil, nil }
func (unkept) Read(context.Context, call.ID, uint64, int) ([]call.Event, error) {
	return nil, call.ErrGap
}

type runner func(ctx context.Context, x *call.Exec) call.Answer

func (f runner) Run(ctx context.Context, x *call.Exec) call.Answer { return f(ctx, x) }

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is an engine before one child process.
type rig struct {
	t       testing.TB
	conn    *stdioConn
	engine  *call.Engine
	changed atomic.Int32
	again   atomic.Int32
	logs    lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func childServer(flags string) Server {
	return Server{
		Name: "child", Command: os.Args[0], Env: map[string]string{childFlags: flags, "GORACE": "atexit_sleep_ms=0"},
		Era: "auto", Share: "principal", RestartMin: time.Millisecond, RestartMax: 10 * time.Millisecond,
	}
}

func newRig(t testing.TB, s Server) *rig {
	r := &rig{t: t}
	r.conn = newStdio(s, Hooks{
		ListChanged: func([]mcp.ListKind) { r.changed.Add(1) },
		Restarted:   func() { r.again.Add(1) },
		Log:         slog.New(slog.NewTextHandler(&r.logs, nil)),
	})
	r.engine = call.NewEngine(unkept{}, runner(r.conn.call), call.Options{Epoch: 1, Tail: 64 << 20})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		r.conn.close(ctx)
		r.engine.Stop(ctx)
	})
	return r
}

func (r *rig) start(arguments string, limits call.Limits) *call.Call {
	r.t.Helper()
	c, err := r.engine.Start(context.Background(), call.Spec{
		Principal: "p", Server: "child", Tool: "work", Limits: limits,
		Request: []byte("{\"jsonrpc\":\"2.0\",\n \"id\":9007199254740993,\"method\":\"tools/call\",\r\n\"params\":{\"name\":\"child__work\",\"arguments\":" +
			arguments + ",\"_meta\":{\"progressToken\":1.5,\"kept\":true}}}"),
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// story is all that became of a call.
type story struct {
	events []call.Event
	end    call.End
	body   string
	text   string // of the tool's result
}

func (r *rig) follow(c *call.Call) story {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	var s story
	for ev, err := range c.Follow(ctx, 0, 0) {
		if err != nil {
			r.t.Fatalf("follow: %v", err)
		}
		s.events = append(s.events, ev)
		if ev.Kind == call.KindEnd {
			s.end, s.body = *ev.End, string(ev.Body)
			if ev.Body != nil && (ev.Hole < 0 || ev.Body[ev.Hole] != '0') {
				r.t.Errorf("no hole at the id: %s", ev.Body)
			}
			s.text = resultText(ev.Body)
		}
	}
	return s
}

func resultText(body []byte) string {
	var m struct {
		Result struct{ Content []struct{ Text string } }
	}
	if json.Unmarshal(body, &m) == nil && len(m.Result.Content) > 0 {
		return m.Result.Content[0].Text
	}
	return ""
}

// call runs one call to its end.
func (r *rig) call(arguments string) story {
	r.t.Helper()
	return r.follow(r.start(arguments, call.Limits{}))
}

// do runs a call that must complete, and returns its text.
func (r *rig) do(format string, args ...any) string {
	r.t.Helper()
	s := r.call(fmt.Sprintf(format, args...))
	if s.end.Outcome != call.Completed {
		r.t.Fatalf("call ended as %+v: %s\nlog: %s", s.end, s.body, r.logs.String())
	}
	return s.text
}

// until waits for the first event of a kind.
func (r *rig) until(c *call.Call, kind call.Kind) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for ev, err := range c.Follow(ctx, 0, 0) {
		if err != nil {
			r.t.Fatalf("no event of kind %v: %v", kind, err)
		}
		if ev.Kind == kind {
			return
		}
	}
	r.t.Fatalf("the call ended before an event of kind %v", kind)
}

func (s story) of(kind call.Kind) (bodies []string) {
	for _, ev := range s.events {
		if ev.Kind == kind {
			bodies = append(bodies, string(ev.Body))
		}
	}
	return bodies
}

type trace struct{ Methods, Cancels []string }

func (r *rig) trace() (t trace) {
	r.t.Helper()
	if err := json.Unmarshal([]byte(r.do(`{"do":"trace"}`)), &t); err != nil {
		r.t.Fatal(err)
	}
	return t
}

func (r *rig) wants(what, got string, want ...string) {
	r.t.Helper()
	for _, w := range want {
		if !strings.Contains(got, w) {
			r.t.Errorf("%s: %q is not in:\n%s", what, w, got)
		}
	}
}

// eventually polls what only the kernel knows.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); <-time.After(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		_, err := os.Stat("/proc/self")
		return err != nil && syscall.Kill(pid, 0) == nil
	}
	_, state, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(state, "Z")
}

// One call and ten progress messages through a process of the test binary.
func BenchmarkStdio(b *testing.B) {
	for _, bm := range []struct{ name, arguments string }{
		{"instant", `{"do":"count"}`},
		{"progress", `{"do":"progress","n":10}`},
		{"1MiB", `{"do":"big","n":1048576}`},
	} {
		b.Run(bm.name, func(b *testing.B) {
			r := newRig(b, childServer("legacy"))
			r.do("%s", bm.arguments)
			b.ReportAllocs()
			for b.Loop() {
				r.do("%s", bm.arguments)
			}
		})
	}
}
