package downstream

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// tape is a ResponseWriter on fake time. It writes down what was flushed when.
type tape struct {
	start    time.Time
	header   http.Header
	status   int
	pending  []byte
	entries  []string // "seconds text", of each flush
	deadline time.Time
	stuck    bool          // as if the reader took nothing: writes end at the deadline
	after    chan struct{} // the reader takes something only when it is closed; may be nil
	mu       sync.Mutex
}

func newTape() *tape { return &tape{start: time.Now(), header: http.Header{}} }

func (w *tape) Header() http.Header { return w.header }

func (w *tape) WriteHeader(status int) { w.status = status }

func (w *tape) Write(b []byte) (int, error) {
	w.pending = append(w.pending, b...)
	return len(b), nil
}

func (w *tape) FlushError() error {
	if w.stuck {
		time.Sleep(time.Until(w.deadline))
		return fmt.Errorf("write: %w", os.ErrDeadlineExceeded)
	}
	if w.after != nil {
		<-w.after
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s := strings.ReplaceAll(strings.TrimSpace(string(w.pending)), "event: message\ndata: ", "")
	s = strings.ReplaceAll(s, "\n\n", " | ")
	w.entries = append(w.entries, fmt.Sprintf("%g %s", time.Since(w.start).Seconds(), s))
	w.pending = nil
	return nil
}

func (w *tape) SetWriteDeadline(t time.Time) error { w.deadline = t; return nil }
func (w *tape) SetReadDeadline(time.Time) error    { return nil }

func (w *tape) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.entries, "\n")
}

// bubble runs f on fake time, with a modern agent's call of "work" at /mcp/up.
func bubble(t *testing.T, meta string, f func(r *rig, w *tape, ask func(ctx context.Context))) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		w := newTape()
		f(r, w, func(ctx context.Context) {
			r.h.ServeHTTP(w, postCall(ctx, modernCall("1", "work", meta)))
		})
		r.stop()
	})
}

// postCall is a modern agent's call of "work" at /mcp/up.
func postCall(ctx context.Context, body string) *http.Request {
	req := httptest.NewRequest("POST", "/mcp/up", strings.NewReader(body)).WithContext(ctx)
	for k, v := range map[string]string{"Authorization": "Bearer ann", "Content-Type": "application/json"} {
		req.Header.Set(k, v)
	}
	h := modern(mcp.MethodToolsCall, "work")
	for i := 0; i < len(h); i += 2 {
		req.Header.Set(h[i], h[i+1])
	}
	return req
}

const token = `,"progressToken":7`

func beatAt(v, total string, elapsed string) string {
	if total != "" {
		total = `,"total":` + total
	}
	return `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":7,"progress":` + v + total + `,"message":"still running, ` + elapsed + `"}}`
}

const doneModern = `{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"longcall","version":"0"}},"content":[{"type":"text","text":"done"}]}}`

// TestBeatsWithoutToken is O1, O2: the first byte at once, then comments only.
func TestBeatsWithoutToken(t *testing.T) {
	bubble(t, "", func(r *rig, w *tape, ask func(context.Context)) {
		r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer {
			_ = x.Dispatched()
			time.Sleep(12 * time.Second)
			return reply(x, okResult)
		}
		ask(context.Background())
		want := "0 : open\n5 : ka\n10 : ka\n12 " + doneModern
		if got := w.text(); got != want {
			t.Errorf("got:\n%s\nwant:\n%s", got, want)
		}
		if h := w.header; w.status != 200 || h.Get("Content-Type") != "text/event-stream" || h.Get("X-Accel-Buffering") != "no" || h.Get("Cache-Control") != "no-cache, no-transform" {
			t.Errorf("status %d, headers %v", w.status, h)
		}
		q := r.seen.ended[0]
		if q.MaxGap != 5*time.Second || q.How != call.Delivered || q.Beats != 2 || q.Events != 1 || q.FirstByte != 1 {
			t.Errorf("observed %+v", q)
		}
	})
}

// TestBeatsWithToken: progress of ours at 10 s of silence, below the next real
// value and the total; a real value starts the count anew.
func TestBeatsWithToken(t *testing.T) {
	bubble(t, token, func(r *rig, w *tape, ask func(context.Context)) {
		r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer {
			_ = x.Dispatched()
			time.Sleep(22 * time.Second)
			_ = progress(x, `"progress":1,"total":4`)
			time.Sleep(13 * time.Second)
			_ = progress(x, `"progress":1,"total":4,"message":"m"`)
			time.Sleep(3 * time.Second)
			return reply(x, okResult)
		}
		ask(context.Background())
		p := `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":7,`
		want := strings.Join([]string{
			"0 : open", "5 : ka", "10 " + beatAt("0.00001", "", "10 s"), "15 : ka", "20 " + beatAt("0.00002", "", "20 s"),
			`22 ` + p + `"progress":1,"total":4}}`,
			"27 : ka", "32 " + beatAt("1.000032", "4", "32 s"),
			`35 ` + p + `"progress":1.000033,"total":4,"message":"m"}}`,
			"38 " + doneModern,
		}, "\n")
		if got := w.text(); got != want {
			t.Errorf("got:\n%s\nwant:\n%s", got, want)
		}
	})
}

// TestSilentEventsAreNoSilence: events that an agent does not get must not make
// the stream look dead: no gap is longer than the comment's time and a twentieth.
func TestSilentEventsAreNoSilence(t *testing.T) {
	bubble(t, "", func(r *rig, w *tape, ask func(context.Context)) {
		r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer {
			for range 40 {
				time.Sleep(1100 * time.Millisecond)
				_ = progress(x, `"progress":1`)
			}
			time.Sleep(4900 * time.Millisecond)
			x.Note("resumed")
			time.Sleep(4900 * time.Millisecond)
			return reply(x, okResult)
		}
		ask(context.Background())
		if q := r.seen.ended[0]; q.MaxGap > 5250*time.Millisecond || q.Dropped != 40 || q.Events != 1 {
			t.Errorf("observed %+v\n%s", q, w.text())
		}
		if strings.Contains(w.text(), "progress") {
			t.Errorf("progress without a token (O6):\n%s", w.text())
		}
	})
}

// TestBurstIsOneWrite: what is there already goes out together, in order.
func TestBurstIsOneWrite(t *testing.T) {
	bubble(t, token, func(r *rig, w *tape, ask func(context.Context)) {
		r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer {
			time.Sleep(time.Second)
			for i := range 50 {
				_ = progress(x, fmt.Sprintf(`"progress":%d`, i))
			}
			time.Sleep(time.Second)
			return reply(x, okResult)
		}
		ask(context.Background())
		if len(w.entries) > 25 || strings.Count(w.text(), `"progress":`) != 50 {
			t.Errorf("%d writes:\n%s", len(w.entries), w.text())
		}
	})
}

// TestSlowReader is P19's other half: a reader that takes nothing trips its own
// deadline; it is recorded as slow, and its modern call is cancelled by policy.
func TestSlowReader(t *testing.T) {
	bubble(t, "", func(r *rig, w *tape, ask func(context.Context)) {
		r.settings.WriteTimeout = 7 * time.Second
		w.stuck = true
		r.tools["work"] = func(ctx context.Context, x *call.Exec) call.Answer {
			_ = x.Dispatched()
			<-ctx.Done()
			return call.Answer{}
		}
		ask(context.Background())
		synctest.Wait()
		if got := time.Since(w.start); got != 7*time.Second {
			t.Errorf("gave up after %v", got)
		}
		if hows := r.log.hows(); !slices.Equal(hows, []call.How{call.Slow}) {
			t.Errorf("deliveries %v", hows)
		}
		if e := r.log.record(t, "work").End; e.Outcome != call.Cancelled || e.By != "disconnect" {
			t.Errorf("end %+v", e)
		}
	})
}

// TestDisconnectGrace: in the modern era a lost reader cancels the call, but
// only after the grace, also if the handler has stopped by then.
func TestDisconnectGrace(t *testing.T) {
	for _, stop := range []bool{false, true} {
		t.Run(fmt.Sprint("stop ", stop), func(t *testing.T) {
			bubble(t, "", func(r *rig, w *tape, ask func(context.Context)) {
				r.decide = func(_, _, _ string, modern bool) Decision {
					return Decision{CancelOnDisconnect: modern, Grace: 15 * time.Second}
				}
				r.tools["work"] = func(ctx context.Context, x *call.Exec) call.Answer {
					_ = x.Dispatched()
					<-ctx.Done()
					return call.Answer{}
				}
				ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
				defer cancel()
				ask(ctx)
				if r.eng.InFlight() != 1 {
					t.Error("the call ended with its reader")
				}
				if stop {
					r.h.Stop()
				}
				time.Sleep(14 * time.Second)
				synctest.Wait()
				if r.eng.InFlight() != 1 {
					t.Error("the call ended within the grace")
				}
				time.Sleep(2 * time.Second)
				synctest.Wait()
				if r.eng.InFlight() != 0 {
					t.Error("the call outlives the grace")
				}
				if hows := r.log.hows(); !slices.Equal(hows, []call.How{call.AbortedDownstream}) {
					t.Errorf("deliveries %v (A6: recorded as seen)", hows)
				}
			})
		})
	}
}

// TestBeatsTurnedOff: zero durations mean none.
func TestBeatsTurnedOff(t *testing.T) {
	bubble(t, token, func(r *rig, w *tape, ask func(context.Context)) {
		r.settings.Comment, r.settings.Progress = 0, 0
		r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer {
			time.Sleep(time.Hour)
			return reply(x, okResult)
		}
		ask(context.Background())
		if want := "0 : open\n3600 " + doneModern; w.text() != want {
			t.Errorf("got:\n%s", w.text())
		}
	})
}

// TestOnlyProgressBeats: with comments off, progress still comes.
func TestOnlyProgressBeats(t *testing.T) {
	bubble(t, token, func(r *rig, w *tape, ask func(context.Context)) {
		r.settings.Comment = 0
		r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer {
			_ = x.Dispatched()
			time.Sleep(25 * time.Second)
			return reply(x, okResult)
		}
		ask(context.Background())
		if want := "0 : open\n10 " + beatAt("0.00001", "", "10 s") + "\n20 " + beatAt("0.00002", "", "20 s") + "\n25 " + doneModern; w.text() != want {
			t.Errorf("got:\n%s", w.text())
		}
	})
}

// TestNoBeatsAfterCancel: once a cancel was asked for, the stream is kept alive
// but shows no progress of ours.
func TestNoBeatsAfterCancel(t *testing.T) {
	bubble(t, token, func(r *rig, w *tape, ask func(context.Context)) {
		r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer {
			_ = x.Dispatched()
			time.Sleep(time.Second)
			if err := r.eng.Tell("ann", x.ID, call.End{By: "operator", Text: "Cancelled by the operator."}); err != nil {
				t.Error(err)
			}
			time.Sleep(21 * time.Second)
			return call.Answer{}
		}
		ask(context.Background())
		lines := strings.Split(w.text(), "\n")
		if got := lines[len(lines)-1]; !strings.Contains(got, `"isError":true`) || !strings.Contains(got, `"outcome":"cancelled","by":"operator"`) {
			t.Errorf("end: %s", got)
		}
		if strings.Contains(w.text(), "progress") {
			t.Errorf("beats after the cancel:\n%s", w.text())
		}
	})
}

// TestLostEvents: with a journal that keeps nothing, a reader that fell behind
// the tail misses progress, which is counted, but gets its result.
func TestLostEvents(t *testing.T) {
	bubble(t, token, func(r *rig, w *tape, ask func(context.Context)) {
		r.log.createErr = errors.New("disk full")
		w.after = make(chan struct{})
		r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer {
			for i := range 5000 {
				_ = progress(x, fmt.Sprintf(`"progress":%d,"message":"%0100d"`, i, i))
			}
			close(w.after)
			return reply(x, okResult)
		}
		ask(context.Background())
		if !strings.HasSuffix(w.text(), doneModern) {
			t.Errorf("no result: %.300s", w.text())
		}
		if q := r.seen.ended[0]; q.Events+q.Dropped < 5001 || q.Dropped < 2000 || q.How != call.Delivered {
			t.Errorf("observed %+v", q)
		}
	})
}

// TestSessionStreamComments is R-52: every 15 s on a session's stream.
func TestSessionStreamComments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s, _ := r.h.sessions.open("ann", "", mcp.V20250618, "", nil)
		w := newTape()
		ctx, cancel := context.WithTimeout(context.Background(), 35*time.Second)
		defer cancel()
		req := httptest.NewRequest("GET", "/mcp", nil).WithContext(ctx)
		req.Header.Set("Authorization", "Bearer ann")
		req.Header.Set(mcp.HeaderSession, s.id)
		r.h.ServeHTTP(w, req)
		if want := "0 : open\n15 : ka\n30 : ka"; w.text() != want {
			t.Errorf("got:\n%s", w.text())
		}
		if s.stream != nil || s.posts != 0 {
			t.Error("the session is still in use")
		}
	})
}
