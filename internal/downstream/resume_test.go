package downstream

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/call/calltest"
	"github.com/longcall/longcall/internal/mcp"
)

// kept is a SessionStore that outlives processes.
type kept struct {
	mu sync.Mutex
	m  map[string]StoredSession
}

func (k *kept) Sessions(context.Context) (all []StoredSession, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, s := range k.m {
		all = append(all, s)
	}
	return all, nil
}

func (k *kept) PutSession(s StoredSession) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.m[s.Hash] = s
}

func (k *kept) TouchSession(hash string, used time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.m[hash]
	s.Used = used
	k.m[hash] = s
}

func (k *kept) DropSession(hash string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.m, hash)
}

// leaving is a rig whose calls can be taken up by the next process.
type leaving struct{ *rig }

func (leaving) Resumable(r *call.Record) bool { return r.Address != nil }

// lasting is a rig over a log and sessions that outlive it, as the process with
// that epoch.
func lasting(t *testing.T, log *calltest.Memory, store *kept, epoch uint64) *rig {
	t.Helper()
	r := newRig(t)
	r.eng = call.NewEngine(log, leaving{r}, call.Options{Epoch: epoch})
	r.h.opt.Engine, r.h.opt.Epoch, r.h.opt.Key = r.eng, epoch, [32]byte{9}
	r.h.opt.Sessions, r.h.sessions.store = store, store
	if err := r.h.LoadSessions(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r
}

// begin opens a session without a socket, and gives its id.
func (r *rig) begin(version string) string {
	w := httptest.NewRecorder()
	r.h.ServeHTTP(w, request(context.Background(), "POST", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"`+version+`","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`))
	return w.Header().Get(mcp.HeaderSession)
}

// serveTo serves a request of a session to w.
func (r *rig) serveTo(ctx context.Context, w http.ResponseWriter, method, session, body string, header ...string) {
	r.h.ServeHTTP(w, request(ctx, method, body, append([]string{mcp.HeaderSession, session}, header...)...))
}

// resumeAt reads the rest of a stream.
func (r *rig) resumeAt(session, id string) (int, string) {
	w := httptest.NewRecorder()
	r.serveTo(context.Background(), w, "GET", session, "", mcp.HeaderLastEvent, id)
	return w.Code, w.Body.String()
}

// ids are the event ids of a stream, and the message of each; "" if it has none.
func ids(stream string) (list [][2]string) {
	for part := range strings.SplitSeq(stream, "\n\n") {
		var id, msg string
		for line := range strings.SplitSeq(part, "\n") {
			if v, ok := strings.CutPrefix(line, "id: "); ok {
				id = v
			}
			if v, ok := strings.CutPrefix(line, "data: "); ok {
				msg = v
			}
		}
		if id != "" {
			list = append(list, [2]string{id, msg})
		}
	}
	return list
}

// progressTool shows n steps, and waits before the answer until end is closed.
func progressTool(n int, end chan struct{}) script {
	return func(ctx context.Context, x *call.Exec) call.Answer {
		_ = x.Dispatched()
		x.Address([]byte("{}"))
		for i := range n {
			_ = progress(x, fmt.Sprintf(`"progress":%d`, i+1))
		}
		select {
		case <-end:
			return reply(x, okResult)
		case <-ctx.Done():
			return call.Answer{}
		}
	}
}

// from every event that a stream had, what follows comes once, the answer
// too: while the call runs, after its end, and in the process after a restart.
func TestResumeEverySeq(t *testing.T) {
	for _, version := range []string{mcp.V20250326, mcp.V20250618, mcp.V20251125} {
		t.Run(version, func(t *testing.T) {
			const n = 12
			log, store := calltest.NewMemory(), &kept{m: map[string]StoredSession{}}
			r := lasting(t, log, store, 1)
			session := r.begin(version)
			end := make(chan struct{})
			r.tools["work"] = progressTool(n, end)
			c := r.serve()
			c.session = session
			_, body := c.stream(t.Context(), "POST", "/mcp/up", legacyCall("5", "work", `"tok"`))
			var live strings.Builder
			for len(data(live.String())) < n {
				line, err := body.ReadString('\n')
				if err != nil {
					t.Fatal(err)
				}
				live.WriteString(line)
			}
			// Live, from each event so far, while the POST goes on.
			type rest struct {
				from int
				text string
			}
			before := ids(live.String())
			rests := make(chan rest, len(before))
			for i, e := range before {
				go func() {
					status, _, text := c.do("GET", "/mcp/up", "", mcp.HeaderLastEvent, e[0])
					if status != 200 {
						t.Errorf("resume: %d %s", status, text)
					}
					rests <- rest{i, text}
				}()
			}
			until(t, "readers", func() bool { return r.seenStarted() >= len(before)+1 })
			close(end)
			tail, err := io.ReadAll(body)
			if err != nil {
				t.Fatal(err)
			}
			live.Write(tail)
			whole := ids(live.String())
			check := func(what string, from int, text string) {
				t.Helper()
				var got, want []string
				for _, e := range ids(text) {
					if e[1] != "" { // not the event without data that it begins with
						got = append(got, e[1])
					}
				}
				for _, e := range whole[from+1:] {
					want = append(want, e[1])
				}
				if !slices.Equal(got, want) {
					t.Errorf("%s, from %d: got %q, want %q", what, from, got, want)
				}
			}
			for range before {
				got := <-rests
				check("live", got.from, got.text)
			}
			for i, e := range whole {
				_, text := r.resumeAt(session, e[0])
				check("ended", i, text)
			}
			r.stop()
			r = lasting(t, log, store, 2)
			if _, _, err := r.eng.Recover(t.Context()); err != nil {
				t.Fatal(err)
			}
			for i, e := range whole {
				status, text := r.resumeAt(session, e[0])
				if status != 200 {
					t.Fatalf("after the restart: %d %s", status, text)
				}
				check("restarted", i, text)
			}
		})
	}
}

// seenStarted is how many requests are or were served.
func (r *rig) seenStarted() int {
	r.seen.mu.Lock()
	defer r.seen.mu.Unlock()
	return r.seen.start
}

// cutShort is a connection that takes so many bytes, and then no more; with
// buffered, it says so only when it is flushed, as net/http's does.
type cutShort struct {
	header   http.Header
	limit    int
	buffered bool
	pending  []byte
	got      []byte
	err      error
}

func (w *cutShort) Header() http.Header { return w.header }
func (w *cutShort) WriteHeader(int)     {}

func (w *cutShort) Write(b []byte) (int, error) {
	w.pending = append(w.pending, b...)
	if w.buffered {
		return len(b), nil
	}
	had := len(w.got)
	err := w.FlushError()
	return len(w.got) - had, err
}

func (w *cutShort) FlushError() error {
	n := min(len(w.pending), w.limit-len(w.got))
	w.got = append(w.got, w.pending[:n]...)
	if n < len(w.pending) {
		w.err = io.ErrClosedPipe
	}
	w.pending = nil
	return w.err
}

// A result is delivered exactly if the whole terminal frame was written: the
// connection breaks at every byte of the answer.
func TestDeliveredIfTheFrameWasWritten(t *testing.T) {
	for _, kind := range []string{"legacy", "modern", "JSON", "modern JSON"} {
		for _, buffered := range []bool{false, true} {
			t.Run(fmt.Sprint(kind, buffered), func(t *testing.T) {
				r := newRig(t)
				r.tools["work"] = func(_ context.Context, x *call.Exec) call.Answer {
					_ = progress(x, `"progress":1`)
					return reply(x, okResult)
				}
				r.decide = func(string, string, string, bool) Decision { return Decision{Attach: call.AttachNever} }
				session := r.begin(mcp.V20251125)
				serve := func(limit int) (*cutShort, call.How) {
					w := &cutShort{header: http.Header{}, limit: limit, buffered: buffered}
					accept := "application/json, text/event-stream"
					if strings.HasSuffix(kind, "JSON") {
						accept = "application/json"
					}
					if strings.HasPrefix(kind, "modern") {
						r.h.ServeHTTP(w, request(context.Background(), "POST", modernCall("1", "work", `,"progressToken":1`), append(modern("tools/call", "work"), "Accept", accept)...))
					} else {
						r.serveTo(context.Background(), w, "POST", session, legacyCall("1", "work", "1"), "Accept", accept)
					}
					hows := r.log.hows()
					return w, hows[len(hows)-1]
				}
				w, how := serve(1 << 20)
				whole := len(w.got)
				if how != call.Delivered || whole == 0 {
					t.Fatalf("%q is %s", w.got, how)
				}
				for limit := range whole + 3 {
					w, how := serve(limit)
					want := call.AbortedDownstream
					if limit >= whole {
						want = call.Delivered
					}
					if how != want || (w.err == nil) != (want == call.Delivered) {
						t.Fatalf("at %d of %d bytes: %s, want %s; written: %q", limit, whole, how, want, w.got)
					}
				}
			})
		}
	}
}

// The result and the end of the connection in the same moment, 1000 times: the
// record says delivered exactly if the whole frame was written.
func TestResultAndDisconnectAtOnce(t *testing.T) {
	r := newRig(t)
	end := make(chan chan struct{}, 1)
	r.tools["work"] = func(ctx context.Context, x *call.Exec) call.Answer {
		_ = x.Dispatched()
		<-<-end
		return reply(x, okResult)
	}
	r.decide = func(string, string, string, bool) Decision { return Decision{Attach: call.AttachNever} }
	session := r.begin(mcp.V20251125)
	var delivered, aborted int
	for i := range 1000 {
		ctx, hangUp := context.WithCancel(t.Context())
		w := &cutShort{header: http.Header{}, limit: 1 << 20}
		now := make(chan struct{})
		end <- now
		var both sync.WaitGroup
		both.Go(func() {
			if i%2 == 0 {
				r.h.ServeHTTP(w, request(ctx, "POST", modernCall("1", "work", ""), modern("tools/call", "work")...))
			} else {
				r.serveTo(ctx, w, "POST", session, legacyCall("1", "work", ""), "Accept", "text/event-stream")
			}
		})
		both.Go(func() { close(now) })
		both.Go(func() {
			for range i % 50 * 10 { // from well before the result to well after it
				runtime.Gosched()
			}
			hangUp()
		})
		both.Wait()
		hows := r.log.hows()
		how := hows[len(hows)-1]
		written := strings.HasSuffix(string(w.got), "\n\n") && strings.Contains(string(w.got), `"text":"done"`)
		switch {
		case written && how == call.Delivered:
			delivered++
		case !written && how == call.AbortedDownstream:
			aborted++
		default:
			t.Fatalf("round %d: %s, and written is %q", i, how, w.got)
		}
		until(t, "end", func() bool { return r.eng.InFlight() == 0 })
	}
	t.Logf("%d delivered, %d aborted", delivered, aborted)
}

// A stream that handed its call off is over, whatever the call does.
func TestHandedOffStreamIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.h.opt.Profile = func(_, _, _ string) Profile { return Profile{Budget: time.Minute, BudgetToken: time.Minute} }
		r.decide = func(string, string, string, bool) Decision { return Decision{HandOff: true} }
		end := make(chan struct{})
		r.tools["work"] = progressTool(2, end)
		session := r.begin(mcp.V20251125)
		w := httptest.NewRecorder()
		r.serveTo(t.Context(), w, "POST", session, legacyCall("1", "work", "1"))
		all := ids(w.Body.String())
		last := all[len(all)-1]
		if !strings.HasSuffix(last[0], ".h") || !strings.Contains(last[1], "Still running") {
			t.Fatalf("handed off with %q", last)
		}
		for range 2 {
			if status, text := r.resumeAt(session, last[0]); status != 200 || len(data(text)) != 0 || len(ids(text)) != 0 {
				t.Errorf("its stream goes on: %d %q", status, text)
			}
			select {
			case <-end:
			default:
				close(end)
				synctest.Wait()
			}
		}
		r.stop()
	})
}

// Streams of 2025-11-25 end when they are as old as they may be, with a hint when
// to come back, and each later one does. Older revisions know no such end.
func TestPlannedDisconnect(t *testing.T) {
	for _, version := range []string{mcp.V20250618, mcp.V20251125} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			r.settings.StreamAge = 30 * time.Second
			end := make(chan struct{})
			r.tools["work"] = progressTool(1, end)
			session := r.begin(version)
			time.AfterFunc(70*time.Second, func() { close(end) })
			start := time.Now()
			w := httptest.NewRecorder()
			r.serveTo(t.Context(), w, "POST", session, legacyCall("1", "work", "1"))
			if version == mcp.V20250618 {
				if d := time.Since(start); d != 70*time.Second || !strings.Contains(w.Body.String(), "done") {
					t.Errorf("an older stream ended after %v", d)
				}
				r.stop()
				return
			}
			text := w.Body.String()
			for i := range 3 {
				if d := time.Since(start); i < 2 && (d < time.Duration(i+1)*30*time.Second || d > time.Duration(i+1)*30*time.Second+200*time.Millisecond) {
					t.Errorf("stream %d ended at %v", i, d)
				}
				if i == 2 {
					break
				}
				if !strings.HasSuffix(text, "retry: 1000\n\n") || strings.Contains(text, "done") {
					t.Errorf("stream %d ended with %q", i, text)
				}
				all := ids(text)
				_, text = r.resumeAt(session, all[len(all)-1][0])
			}
			if m := data(text); len(m) == 0 || !strings.Contains(m[len(m)-1], "done") {
				t.Errorf("the last stream brought %q", text)
			}
			if d := time.Since(start); d != 70*time.Second {
				t.Errorf("the answer came at %v", d)
			}
			r.stop()
		})
	}
}

// A session comes back after a restart, for its own principal and endpoint; one
// that was ended does not.
func TestSessionsOverRestart(t *testing.T) {
	log, store := calltest.NewMemory(), &kept{m: map[string]StoredSession{}}
	r := lasting(t, log, store, 1)
	stays, ends := r.begin(mcp.V20251125), r.begin(mcp.V20250618)
	w := httptest.NewRecorder()
	r.serveTo(t.Context(), w, "DELETE", ends, "")
	if w.Code != 204 {
		t.Fatalf("delete: %d", w.Code)
	}
	r.stop()
	for _, s := range store.m {
		if strings.Contains(fmt.Sprint(s), stays) {
			t.Error("the session's id itself is stored")
		}
	}
	r = lasting(t, log, store, 2)
	list := `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
	status := func(session, path, who string) (int, string) {
		w := httptest.NewRecorder()
		req := request(t.Context(), "POST", list, mcp.HeaderSession, session, "Authorization", "Bearer "+who)
		req.URL.Path = path
		r.h.ServeHTTP(w, req)
		return w.Code, w.Body.String()
	}
	unknown, words := status("s_"+strings.Repeat("a", 26), "/mcp/up", "ann")
	if unknown != 404 {
		t.Errorf("an unknown session: %d", unknown)
	}
	for name, of := range map[string][3]string{
		"ended": {ends, "/mcp/up", "ann"}, "another principal's": {stays, "/mcp/up", "bob"}, "another endpoint's": {stays, "/mcp", "ann"},
	} {
		if code, text := status(of[0], of[1], of[2]); code != unknown || text != words {
			t.Errorf("%s: %d %s, an unknown one gives %d %s", name, code, text, unknown, words)
		}
	}
	if code, text := status(stays, "/mcp/up", "ann"); code != 200 || !strings.Contains(text, `"work"`) {
		t.Errorf("the session is lost: %d %s", code, text)
	}
	w = httptest.NewRecorder()
	r.serveTo(t.Context(), w, "DELETE", stays, "")
	r.stop()
	r = lasting(t, log, store, 3)
	if code, text := status(stays, "/mcp/up", "ann"); code != unknown || text != words {
		t.Errorf("after DELETE and restart: %d %s", code, text)
	}
}

// A call that stays for the next process: each kind of attachment gets what leads
// its agent back, and none of it looks like a result of the tool.
func TestLeftForTheNextProcess(t *testing.T) {
	all := "application/json, text/event-stream"
	for _, tt := range []struct {
		name, version, accept, want string
		meta                        string
		off                         bool
		how                         call.How
	}{
		{"legacy stream", mcp.V20251125, all, "retry: 1000\n\n", "", false, call.ShutDown},
		{"older stream", mcp.V20250326, all, "retry: 1000\n\n", "", false, call.ShutDown},
		{"legacy stream, no hand-off", mcp.V20251125, all, "retry: 1000\n\n", "", true, call.ShutDown},
		{"legacy JSON", mcp.V20251125, "application/json", "await_call", "", false, call.HandedOff},
		{"legacy JSON, no hand-off", mcp.V20251125, "application/json", "make the same call again", "", true, call.ShutDown},
		{"modern with tasks", mcp.V20260728, all, `"resultType":"task"`, tasksMeta, false, call.HandedOff},
		{"modern with tasks, JSON", mcp.V20260728, "application/json", `"resultType":"task"`, tasksMeta, false, call.HandedOff},
		{"modern", mcp.V20260728, all, "await_call", modernMeta, false, call.HandedOff},
		{"modern, no hand-off", mcp.V20260728, all, "make the same call again", modernMeta, true, call.ShutDown},
		{"modern with tasks, no hand-off", mcp.V20260728, all, "make the same call again", tasksMeta, true, call.ShutDown},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := calltest.NewMemory()
				r := lasting(t, log, &kept{m: map[string]StoredSession{}}, 1)
				r.h.opt.Profile = func(_, _, _ string) Profile { return Profile{Tasks: true} }
				r.decide = func(string, string, string, bool) Decision { return Decision{HandOff: !tt.off} }
				r.tools["work"] = progressTool(1, nil)
				w := httptest.NewRecorder()
				done := make(chan struct{})
				session := ""
				if tt.meta == "" {
					session = r.begin(tt.version)
				}
				go func() {
					defer close(done)
					if tt.meta == "" {
						r.serveTo(t.Context(), w, "POST", session, legacyCall("1", "work", "1"), "Accept", tt.accept)
						return
					}
					body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"work","_meta":{"progressToken":1,` + tt.meta + `}}}`
					r.h.ServeHTTP(w, request(t.Context(), "POST", body, append(modern("tools/call", "work"), "Accept", tt.accept)...))
				}()
				synctest.Wait()
				r.stop()
				<-done
				text := w.Body.String()
				if !strings.Contains(text, tt.want) || strings.Contains(text, `"text":"done"`) {
					t.Errorf("got %q", text)
				}
				if tt.want == "retry: 1000\n\n" && (!strings.HasSuffix(text, tt.want) || strings.Contains(text, `"result"`)) {
					t.Errorf("the stream ends with %q", text)
				}
				recs, err := log.Owned(context.Background(), "ann", "", 10)
				if err != nil || len(recs) != 1 || recs[0].End.Outcome != call.Running {
					t.Fatalf("records %+v, %v", recs, err)
				}
				d, _ := log.Deliveries(context.Background(), recs[0].ID)
				if len(d) != 1 || d[0].How != tt.how {
					t.Errorf("deliveries %+v, want %s", d, tt.how)
				}
			})
		})
	}
}
