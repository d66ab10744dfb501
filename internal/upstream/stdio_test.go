//go:build unix

package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// P13: ten calls, one process, whose state is kept; after a crash a new one,
// the call under way interrupted and never sent again.
func TestStdioKeepsOneProcess_P13(t *testing.T) {
	r := newRig(t, childServer("legacy"))
	pid := r.do(`{"do":"pid"}`)
	for i := 2; i <= 10; i++ {
		if got := r.do(`{"do":"count"}`); got != strconv.Itoa(i) {
			t.Fatalf("call %d counted as %s", i, got)
		}
	}
	held := r.start(`{"do":"hold","key":"k"}`, call.Limits{})
	r.until(held, call.KindDispatched)
	crash := r.call(`{"do":"crash","text":"` + strings.Repeat("s", 10) + `"}`)
	for _, s := range []story{crash, r.follow(held)} {
		if s.end.Outcome != call.Interrupted {
			t.Errorf("outcome %q, want interrupted", s.end.Outcome)
		}
		r.wants("text", s.end.Text, "Outcome unknown", "exit status 3", "not sent again", "about to fail: ssssssssss")
	}
	if got := r.do(`{"do":"count"}`); got != "1" {
		t.Errorf("after the crash the first call counted as %s: the old one was sent again", got)
	}
	if r.do(`{"do":"pid"}`) == pid {
		t.Error("same process after the crash")
	}
	if n := r.again.Load(); n != 1 {
		t.Errorf("Restarted was called %d times, want 1", n)
	}
	if strings.Contains(r.logs.String(), "about to fail") {
		t.Error("the log has output of the tool server (I10)")
	}
}

// P1, I12: calls at once on one process each get their own progress and result.
func TestStdioKeepsCallsApart_P1(t *testing.T) {
	for _, era := range []string{"legacy", "modern"} {
		t.Run(era, func(t *testing.T) {
			r := newRig(t, childServer(era))
			const n = 20
			var calls []*call.Call
			for i := range n {
				calls = append(calls, r.start(fmt.Sprintf(`{"do":"progress","n":10,"key":"k%d"}`, i), call.Limits{}))
			}
			for _, c := range calls {
				r.until(c, call.KindProgress)
			}
			for i := n - 1; i >= 0; i-- { // the last one ends first
				r.do(`{"do":"release","key":"k%d"}`, i)
				s := r.follow(calls[i])
				if s.text != fmt.Sprintf("done k%d", i) {
					t.Fatalf("call %d got %q", i, s.text)
				}
				progress := s.of(call.KindProgress)
				if len(progress) != 10 {
					t.Fatalf("call %d got %d progress messages, want 10", i, len(progress))
				}
				for j, p := range progress {
					r.wants("progress", p, `"progressToken":0`, fmt.Sprintf(`"progress":%d,`, j+1), fmt.Sprintf(`"k%d"`, i), "9007199254740993")
				}
			}
			if r.conn.modern() != (era == "modern") {
				t.Errorf("modern is %v", r.conn.modern())
			}
		})
	}
}

// P10, I12: what passes keeps its digits; the agent's id and token stay here.
func TestStdioKeepsBytes_P10(t *testing.T) {
	r := newRig(t, childServer("legacy"))
	s := r.call(`{"do":"echo","n":1,"big":9007199254740993,"half":1.50}`)
	r.wants("request", s.text, `"big":9007199254740993,"half":1.50`, `"name":"work"`, `"kept":true`)
	for _, foreign := range []string{`"id":9007199254740993`, `"progressToken":1.5`, "child__work"} {
		if strings.Contains(s.text, foreign) {
			t.Errorf("the server saw the agent's %s", foreign)
		}
	}
	r.wants("result", s.body, `"big":9007199254740993`)
}

func TestStdioRunsAWholeTextInSingleBytes_O15(t *testing.T) {
	r := newRig(t, childServer("legacy"))
	want := strings.Repeat("é€🙂", 100)
	if got := r.do(`{"do":"bytes","text":%q}`, want); got != want {
		t.Errorf("got %q", got)
	}
}

// O25: over the limit the call fails and says so; others, and the session, go on.
func TestStdioLongLines_O25(t *testing.T) {
	t.Parallel()
	s := childServer("legacy")
	s.Limits.Message = 2 << 20
	r := newRig(t, s)
	if got := r.do(`{"do":"big","n":%d}`, 1<<20); len(got) != 1<<20 {
		t.Errorf("got %d bytes", len(got))
	}
	other := r.start(`{"do":"hold","key":"k"}`, call.Limits{})
	r.until(other, call.KindDispatched)
	for _, do := range []string{"big", "idlast"} {
		long := r.call(fmt.Sprintf(`{"do":%q,"n":%d}`, do, 2<<20+1))
		if long.end.Outcome != call.Failed || long.end.Limit != "message_bytes" {
			t.Errorf("%s: ended as %+v", do, long.end)
		}
		r.wants("text", long.end.Text, "limits.message", strconv.Itoa(2<<20))
	}
	skipped := r.call(fmt.Sprintf(`{"do":"bigprogress","n":%d}`, 2<<20+1))
	if skipped.text != "after it" || len(skipped.of(call.KindProgress)) != 0 {
		t.Errorf("a long progress message ended the call: %+v", skipped.end)
	}
	r.wants("notes", strings.Join(skipped.of(call.KindNote), "\n"), "limits.message", "goes on")
	r.do(`{"do":"release","key":"k"}`)
	if got := r.follow(other).text; got != "held k" {
		t.Errorf("the other call got %q", got)
	}
	limited := r.follow(r.start(`{"do":"big","n":5000}`, call.Limits{Message: 4000}))
	if limited.end.Limit != "message_bytes" {
		t.Errorf("the call's own limit did not hold: %+v", limited.end)
	}
	limited = r.follow(r.start(`{"do":"big","n":5000}`, call.Limits{Call: 4000}))
	if limited.end.Limit != "call_bytes" {
		t.Errorf("the limit of all bytes did not hold: %+v", limited.end)
	}
	limited = r.follow(r.start(`{"do":"progress","n":100}`, call.Limits{Call: 4000}))
	if limited.end.Limit != "call_bytes" || len(limited.of(call.KindProgress)) < 10 {
		t.Errorf("the limit of all bytes did not hold: %+v after %d messages", limited.end, len(limited.events))
	}
}

func TestStdioDrainsStderr_O26(t *testing.T) {
	r := newRig(t, childServer("legacy"))
	r.do(`{"do":"count"}`)
	start := time.Now()
	r.do(`{"do":"stderr","n":%d}`, 256<<10)
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("took %s", d)
	}
	ring := &r.conn.life.process.stderr
	eventually(t, "all of stderr is read", func() bool { return ring.written() == 256<<10 })
	if n := len(ring.text()); n != ringSize {
		t.Errorf("kept %d bytes of stderr", n)
	}
}

// O21, P7: the server, and only this server, hears of the cancel at once, with
// its own id.
func TestStdioPassesCancelOn_O21_P7(t *testing.T) {
	t.Parallel()
	for _, era := range []string{"legacy", "modern"} {
		t.Run(era, func(t *testing.T) {
			r := newRig(t, childServer(era))
			bystander := newRig(t, childServer(era))
			bystander.do(`{"do":"count"}`)
			c := r.start(`{"do":"hang"}`, call.Limits{})
			r.until(c, call.KindProgress)
			start := time.Now()
			c.Cancel(call.End{By: "agent"})
			eventually(t, "the server hears of the cancel", func() bool { return len(r.trace().Cancels) == 1 })
			if d := time.Since(start); d > 500*time.Millisecond {
				t.Errorf("took %s", d)
			}
			s := r.follow(c)
			if s.end.Outcome != call.Cancelled || s.end.By != "agent" {
				t.Errorf("ended as %+v", s.end)
			}
			id := r.trace().Cancels[0]
			if !strings.HasPrefix(id, "lc") {
				t.Errorf("cancelled id %q is not ours", id)
			}
			if n := len(bystander.trace().Cancels); n != 0 {
				t.Errorf("another server heard of %d cancels", n)
			}
		})
	}
}

// O22: an answer after the cancel is kept for the record and shown to nobody.
func TestStdioKeepsLateAnswer_O22(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"", "error"} {
		r := newRig(t, childServer("legacy"))
		c := r.start(fmt.Sprintf(`{"do":"late","n":500,"text":%q}`, kind), call.Limits{})
		r.until(c, call.KindProgress)
		c.Cancel(call.End{By: "agent"})
		s := r.follow(c)
		if s.end.Outcome != call.Cancelled || s.body != "" {
			t.Errorf("ended as %+v with %q", s.end, s.body)
		}
		if late := s.of(call.KindLateResult); len(late) != 1 {
			t.Errorf("%d late results in the record", len(late))
		}
	}
	// What the total limit ends is not turned into a failure by the server's
	// "I was cancelled"; but a real answer in time counts.
	r := newRig(t, childServer("legacy"))
	r.do(`{"do":"count"}`)
	s := r.follow(r.start(`{"do":"late","n":10,"text":"error"}`, call.Limits{Total: 200 * time.Millisecond}))
	if s.end.Outcome != call.TimedOut || s.end.Limit != "total" {
		t.Errorf("ended as %+v", s.end)
	}
	s = r.follow(r.start(`{"do":"late","n":10}`, call.Limits{Total: 200 * time.Millisecond}))
	if s.end.Outcome != call.Completed || s.text != "late" {
		t.Errorf("ended as %+v", s.end)
	}
}

// O8: progress after the result goes nowhere, and harms nothing.
func TestStdioIgnoresLateProgress_O8(t *testing.T) {
	r := newRig(t, childServer("legacy"))
	for range 5 {
		s := r.call(`{"do":"late progress"}`)
		if n := len(s.of(call.KindProgress)); n != 1 || s.events[len(s.events)-1].Kind != call.KindEnd {
			t.Errorf("%d progress messages", n)
		}
	}
}

// P6: requests of the server are answered at once, and the call goes on.
func TestStdioAnswersServerRequests_P6(t *testing.T) {
	r := newRig(t, childServer("legacy"))
	s := r.call(`{"do":"ask"}`)
	if want := "ping {}; elicitation/create -32601; sampling/createMessage -32601; roots/list -32601"; s.text != want {
		t.Errorf("the server got %q, want %q", s.text, want)
	}
	notes := s.of(call.KindNote)
	if len(notes) != 3 {
		t.Errorf("%d notes, want 3: %q", len(notes), notes)
	}
}

// P5: a log message belongs to a call only if nobody else's it can be.
func TestStdioAttributesLogs_P5(t *testing.T) {
	r := newRig(t, childServer("legacy"))
	if got := r.call(`{"do":"log","text":"mine"}`).of(call.KindMessage); len(got) != 1 || !strings.Contains(got[0], "mine") {
		t.Errorf("the only call got %q", got)
	}
	other := r.start(`{"do":"hold","key":"k"}`, call.Limits{})
	r.until(other, call.KindDispatched)
	if got := r.call(`{"do":"log","text":"whose"}`).of(call.KindMessage); len(got) != 0 {
		t.Errorf("one of two calls got %q", got)
	}
	if n := r.conn.life.wire.loose.Load(); n != 1 {
		t.Errorf("%d unattributed messages counted, want 1", n)
	}
	r.do(`{"do":"release","key":"k"}`)
	s := r.follow(other)
	if got := s.of(call.KindMessage); len(got) != 0 {
		t.Errorf("the other call got %q", got)
	}
	if got := s.of(call.KindNote); len(got) != 1 || !strings.Contains(got[0], "unattributed") || !strings.Contains(got[0], "whose") {
		t.Errorf("the record has the notes %q", got)
	}

	shared := childServer("legacy")
	shared.Share = "server"
	r = newRig(t, shared)
	if got := r.call(`{"do":"log","text":"anybody's"}`).of(call.KindMessage); len(got) != 0 {
		t.Errorf("on a shared process, a call got %q", got)
	}
	if s := r.call(`{"do":"crash","text":"anybody's"}`); strings.Contains(s.end.Text, "anybody's") {
		t.Errorf("a shared process's stderr is in %q", s.end.Text)
	}
}

func TestStdioSkipsJunk(t *testing.T) {
	r := newRig(t, childServer("legacy"))
	for range 2 {
		if got := r.do(`{"do":"junk"}`); got != "after junk" {
			t.Errorf("got %q", got)
		}
	}
	if n := r.conn.life.wire.junk.Load(); n != 6 {
		t.Errorf("%d junk lines counted, want 6", n)
	}
	if n := strings.Count(r.logs.String(), "no messages"); n != 1 || strings.Contains(r.logs.String(), "Listening") {
		t.Errorf("log:\n%s", r.logs.String())
	}
	s := r.call(`{"do":"twice"}`)
	if s.end.Outcome != call.Failed {
		t.Errorf("an ambiguous answer gave %+v", s.end)
	}
}

func TestStdioToolAndProtocolErrors(t *testing.T) {
	r := newRig(t, childServer("legacy"))
	if s := r.call(`{"do":"error"}`); s.end.Outcome != call.Failed || s.end.Code != -32050 || !strings.Contains(s.body, "out of paper") {
		t.Errorf("ended as %+v", s.end)
	}
	if s := r.call(`{"do":"tool error"}`); s.end.Outcome != call.Completed || !s.end.ToolError {
		t.Errorf("ended as %+v", s.end)
	}
}

func TestStdioEras(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		flags, era string
		modern     bool
		methods    []string // that the process got before the first call
	}{
		{"legacy", "auto", false, []string{"server/discover", "initialize", "notifications/initialized"}},
		{"legacy version=2024-11-05", "legacy", false, []string{"initialize", "notifications/initialized"}},
		{"modern", "auto", true, []string{"server/discover"}},
		{"modern", "modern", true, []string{"server/discover"}},
		{"rmcp", "auto", false, []string{"initialize", "notifications/initialized"}},
	} {
		t.Run(tt.flags+" as "+tt.era, func(t *testing.T) {
			s := childServer(tt.flags)
			s.Era = tt.era
			r := newRig(t, s)
			got := r.trace().Methods
			if want := append(tt.methods, "tools/call"); !slices.Equal(got, want) {
				t.Errorf("the process got %q, want %q", got, want)
			}
			if r.conn.modern() != tt.modern {
				t.Errorf("modern is %v", r.conn.modern())
			}
			r.call(`{"do":"crash"}`) // what was learnt holds for the next process
			got = r.trace().Methods
			want := append(tt.methods, "tools/call")
			if !tt.modern {
				want = []string{"initialize", "notifications/initialized", "tools/call"}
			}
			if !slices.Equal(got, want) {
				t.Errorf("the next process got %q, want %q", got, want)
			}
		})
	}
	for _, tt := range []struct{ flags, era, want string }{
		{"legacy", "modern", `set "era" to auto`},
		{"modern", "legacy", "refused initialize"},
		{"legacy version=2031-01-01", "auto", "2031-01-01"},
		{"future", "auto", "2031-01-01"},
	} {
		t.Run(tt.flags+" not as "+tt.era, func(t *testing.T) {
			s := childServer(tt.flags)
			s.Era = tt.era
			r := newRig(t, s)
			got := r.call(`{"do":"count"}`)
			if got.end.Outcome != call.Failed {
				t.Errorf("ended as %+v", got.end)
			}
			r.wants("text", got.end.Text, "Not started", "Nothing was sent", tt.want)
		})
	}
}

func TestStdioThatCannotStart(t *testing.T) {
	s := childServer("")
	s.Command = "no-such-command-of-longcall"
	r := newRig(t, s)
	r.wants("text", r.call(`{}`).end.Text, "no-such-command-of-longcall", "PATH", "Nothing was sent")

	s = childServer("dies=reason-to-die-hunter2hunter2")
	s.Env["SECRET"] = "hunter2hunter2"
	s.RestartMin, s.RestartMax = time.Hour, time.Hour
	r = newRig(t, s)
	first := r.call(`{}`)
	if first.end.Outcome != call.Failed {
		t.Errorf("ended as %+v", first.end)
	}
	r.wants("text", first.end.Text, "exit status 7", "cannot start:\nreason-to-die-*** and more")
	if strings.ContainsAny(first.end.Text, "\x1b\a") || strings.Contains(first.end.Text, "hunter2") {
		t.Errorf("text is %q", first.end.Text)
	}
	start := time.Now()
	next := r.call(`{}`)
	r.wants("text during the back-off", next.end.Text, "1 times in a row", "next try in", "exit status 7", "reason-to-die")
	if d := time.Since(start); d > time.Second {
		t.Errorf("a call waited %s for a long back-off", d)
	}
	if _, err := r.conn.request(t.Context(), "tools/list", nil); err == nil || strings.Contains(err.Error(), "reason-to-die") {
		t.Errorf("the error of a list is %v: it is logged, so it may not have stderr", err)
	}
	r.wants("log", r.logs.String(), "did not start", "exit status 7")
	if strings.Contains(r.logs.String(), "reason-to-die") {
		t.Errorf("log has stderr:\n%s", r.logs.String())
	}
}

func TestStdioBacksOff(t *testing.T) {
	t.Parallel()
	s := childServer("legacy once=" + filepath.Join(t.TempDir(), "f"))
	s.RestartMin, s.RestartMax = 100*time.Millisecond, 150*time.Millisecond
	r := newRig(t, s)
	r.do(`{"do":"count"}`)
	r.call(`{"do":"crash"}`)
	for i, want := range []time.Duration{100, 150, 150} {
		r.conn.mu.Lock()
		due := r.conn.notUntil
		r.conn.mu.Unlock()
		before := time.Now()
		if s := r.call(`{}`); s.end.Outcome != call.Failed || !strings.Contains(s.end.Text, "exit status 8") {
			t.Fatalf("ended as %+v", s.end)
		}
		if time.Now().Before(due) {
			t.Error("started before the back-off was over")
		}
		r.conn.mu.Lock()
		pause := r.conn.notUntil.Sub(before)
		r.conn.mu.Unlock()
		if pause < want*time.Millisecond {
			t.Errorf("pause %d is %s, want at least %dms", i, pause, want)
		}
	}
	if n := r.again.Load(); n != 0 {
		t.Errorf("Restarted was called %d times though nothing could be started", n)
	}
}

func TestStdioConnectLimit(t *testing.T) {
	t.Parallel()
	r := newRig(t, childServer("legacy start=1500"))
	s := r.follow(r.start(`{"do":"count"}`, call.Limits{Connect: 300 * time.Millisecond}))
	if s.end.Outcome != call.TimedOut || s.end.Limit != "connect" {
		t.Errorf("ended as %+v", s.end)
	}
	r.wants("text", s.end.Text, "limits.connect", "nothing was sent", "has not answered server/discover yet", "try again")
	if len(s.of(call.KindDispatched)) != 0 {
		t.Error("the call was dispatched")
	}
	if got := r.do(`{"do":"count"}`); got != "1" { // the start went on
		t.Errorf("counted %s", got)
	}
}

func TestStdioCancelWhileStarting(t *testing.T) {
	t.Parallel()
	r := newRig(t, childServer("legacy start=1000"))
	c := r.start(`{"do":"count"}`, call.Limits{})
	c.Cancel(call.End{By: "agent"})
	if s := r.follow(c); s.end.Outcome != call.Cancelled || len(s.of(call.KindDispatched)) != 0 {
		t.Errorf("ended as %+v", s.end)
	}
	if got := r.do(`{"do":"count"}`); got != "1" {
		t.Errorf("counted %s: the cancelled call was sent", got)
	}
}

func TestStdioRequests(t *testing.T) {
	t.Parallel()
	r := newRig(t, childServer("legacy"))
	result, err := r.conn.request(t.Context(), "tools/list", nil)
	if err != nil || !strings.Contains(string(result), `"big":9007199254740993`) || result[0] != '{' {
		t.Errorf("%s, %v", result, err)
	}
	r.call(`{"do":"crash"}`)
	if _, err := r.conn.request(t.Context(), "tools/list", nil); err != nil {
		t.Error(err)
	}
	r = newRig(t, childServer("legacy nolist"))
	var rpc *mcp.RPCError
	if _, err := r.conn.request(t.Context(), "tools/list", nil); !errors.As(err, &rpc) || rpc.Code != -32050 {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := r.conn.request(ctx, "no/answer", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	eventually(t, "the server hears of the cancel", func() bool { return len(r.trace().Cancels) == 1 })
	r.conn.close(t.Context())
	if _, err := r.conn.request(t.Context(), "tools/list", nil); !errors.Is(err, errClosed) {
		t.Errorf("got %v", err)
	}
}

func TestStdioListChanged(t *testing.T) {
	r := newRig(t, childServer("legacy"))
	r.do(`{"do":"changed"}`)
	if n := r.changed.Load(); n != 1 {
		t.Errorf("ListChanged was called %d times", n)
	}
}

// A process that stops reading holds up nobody for ever, and what never left
// is known to have had no effect.
func TestStdioThatDoesNotRead(t *testing.T) {
	t.Parallel()
	r := newRig(t, childServer("legacy"))
	r.do(`{"do":"unread"}`)
	filler := `{"do":"count","text":"` + strings.Repeat("f", 3<<20) + `"}`
	stuck := r.start(filler, call.Limits{FirstByte: 500 * time.Millisecond})
	r.until(stuck, call.KindDispatched)
	queued := r.start(`{"do":"count"}`, call.Limits{FirstByte: 500 * time.Millisecond})
	r.until(queued, call.KindDispatched)
	full := r.call(filler)
	if full.end.Outcome != call.Failed || len(full.of(call.KindDispatched)) != 0 {
		t.Errorf("ended as %+v", full.end)
	}
	r.wants("text", full.end.Text, "does not read its input", "Nothing was sent")
	gone := r.start(`{"do":"count"}`, call.Limits{})
	r.until(gone, call.KindDispatched)
	gone.Cancel(call.End{By: "agent"})
	r.wants("notes", strings.Join(r.follow(gone).of(call.KindNote), "\n"), "taken back")
	s := r.follow(queued)
	if s.end.Outcome != call.TimedOut || s.end.Limit != "first_byte" {
		t.Errorf("ended as %+v", s.end)
	}
	r.wants("text", s.end.Text, "never left")
	s = r.follow(stuck)
	if s.end.Limit != "first_byte" {
		t.Errorf("ended as %+v", s.end)
	}
	r.wants("text", s.end.Text, "may have taken effect")
}

func TestStdioThatClosesItsOutput(t *testing.T) {
	t.Parallel()
	r := newRig(t, childServer("legacy"))
	s := r.call(`{"do":"mute"}`)
	if s.end.Outcome != call.Interrupted {
		t.Errorf("ended as %+v", s.end)
	}
	r.wants("text", s.end.Text, "closed its input or output")
	if got := r.do(`{"do":"count"}`); got != "1" {
		t.Errorf("counted %s", got)
	}
}

// a child gets no variable of ours but the harmless ones.
func TestStdioEnvironment(t *testing.T) {
	t.Setenv("LONGCALL_TOKEN", "canary")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "canary")
	t.Setenv("HTTPS_PROXY", "http://user:canary@proxy.example:8080")
	t.Setenv("http_proxy", "http://proxy.example:8080")
	t.Setenv("LC_TIME", "C.UTF-8")
	s := childServer("legacy")
	s.Env["OWN"] = "value"
	s.Env["HOME"] = "/elsewhere"
	s.Cwd = t.TempDir()
	r := newRig(t, s)
	var env []string
	if err := json.Unmarshal([]byte(r.do(`{"do":"env"}`)), &env); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"OWN=value", "HOME=/elsewhere", "LC_TIME=C.UTF-8", "PATH=" + os.Getenv("PATH"), "http_proxy=http://proxy.example:8080"} {
		if !slices.Contains(env, want) {
			t.Errorf("%s is missing", want)
		}
	}
	if strings.Contains(strings.Join(env, "\n"), "canary") {
		t.Errorf("a secret got through: %q", env)
	}
}
