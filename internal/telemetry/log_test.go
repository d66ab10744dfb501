package telemetry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longcall/longcall/internal/call"
)

const canary = "C4N4RY-hunter2"

// leaky gives its secret away wherever it is asked.
type leaky struct{ Secret string }

func (l leaky) String() string { return "authorization: Bearer " + l.Secret }
func (l leaky) Error() string {
	return "get https://user:" + l.Secret + "@tools.example/mcp?api_key=" + l.Secret + ": refused"
}
func (l leaky) LogValue() slog.Value { return slog.GroupValue(slog.String("token", l.Secret)) }

// plainError cannot stand to be nil.
type plainError struct{ text string }

func (e *plainError) Error() string { return e.text }

type plainStruct struct{ Field string }

// I10: whatever somebody logs by mistake, under any name that tells or in any
// value that could hold it, is kept out.
func TestLoggerHidesSecrets(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		var buf bytes.Buffer
		log := Logger(&buf, slog.LevelDebug, format)
		for _, key := range []string{
			"authorization", "Authorization", "token", "access_token", "api-key", "API_KEY", "apiKey", "x.api.key", "secret",
			"client_secret", "password", "cookie", "Set-Cookie", "credential", "arguments", "args", "argv", "params",
			"command", "command_line", "cmd", "body", "request_body", "responseBody", "output", "stdout", "stderr", "stdin",
			"headers", "env", "environment", "session", "session_id", "Mcp-Session-Id", "payload", "content", "input", "result",
		} {
			log.Info("m", key, canary)
			log.Info("m", key, []byte(canary))
			log.Info("m", key, map[string]string{"x": canary})
			log.Info("m", key, errors.New(canary))
			log.Info("m", slog.Group(key, "x", canary))
			log.Info("m", slog.Group("fine", slog.Group("also", key, canary)))
			log.With(key, canary).Info("m")
			log.WithGroup(key).Info("m", "x", canary)
			log.WithGroup(key).With("x", canary).Info("m")
			log.WithGroup(key).WithGroup("inner").Info("m", "x", canary)
		}
		for _, v := range []any{
			http.Header{"X": {canary}},
			map[string]any{"a": canary},
			[]byte(canary),
			plainStruct{canary},
			&plainStruct{canary},
			call.Event{Body: []byte(canary)},
			call.Spec{Request: []byte(canary), Arguments: []byte(canary)},
			[]any{canary},
			"Bearer " + canary, "bearer=" + canary, "Basic " + canary, "https://u:" + canary + "@h/p", "https://h/?token=" + canary,
			"https://h/?a=b&x_secret_y=" + canary, "lc_" + strings.Repeat("x", 20) + canary, "eyJhbGciOi.eyJzdWIi." + canary,
			struct{ leaky }{leaky{canary}},
			&leaky{canary}, fmt.Errorf("wrapped: %w", leaky{canary}),
			[]string{"Bearer " + canary},
			func() string { return canary }, strings.Repeat("long ", 1000) + "Bearer " + canary,
		} {
			log.Info("m", "value", v)
			log.With("value", v).Info("m")
			log.Info("m", slog.Group("g", "value", v))
		}
		log.Info("sent Bearer " + canary + " to https://a:" + canary + "@host")
		if i := strings.Index(buf.String(), canary); i >= 0 {
			t.Errorf("%s: shown: …%s", format, buf.String()[max(0, i-100):i+20])
		}
	}
}

func TestLoggerKeepsTheRest(t *testing.T) {
	var buf bytes.Buffer
	log := Logger(&buf, slog.LevelInfo, "text")
	var nothing *plainError
	log.Info("a fine message", "request", "r_1", "progress_tokens", 3, "body_bytes", int64(7), "took", 3*time.Second,
		"outcome", call.Completed, "error", fmt.Errorf("open log: %w", errors.New("disk full")), "addr", netip.MustParseAddr("127.0.0.1"),
		"servers", []string{"a", "b"}, "ok", true, "kind", call.KindEnd, "url", "https://h/p?q=1", "none", nil, "nilptr", nothing)
	got := buf.String()
	for _, want := range []string{
		`msg="a fine message"`, "request=r_1", "progress_tokens=3", "body_bytes=7", "took=3s", "outcome=completed",
		`error="open log: disk full"`, "addr=127.0.0.1", `servers="a, b"`, "ok=true", `url="https://h/p?q=1"`, "none=<nil>", "nilptr=<nil>",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is missing in %s", want, got)
		}
	}
	buf.Reset()
	log.Debug("not shown")
	log.Info("m", "name", strings.Repeat("é", 5000), "evil", "a\nlevel=ERROR msg=forged")
	if n := buf.Len(); n > longest+300 || strings.Count(buf.String(), "\n") != 1 {
		t.Errorf("%d bytes, %d lines", n, strings.Count(buf.String(), "\n"))
	}
}

// stuck is a writer that waits until it is let go.
type stuck struct {
	let chan struct{}
	bytes.Buffer
}

func (s *stuck) Write(p []byte) (int, error) {
	<-s.let
	return s.Buffer.Write(p)
}

func TestSinkNeverWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &stuck{let: make(chan struct{})}
		s := NewSink(w, 1000)
		go s.Run()
		log := Logger(s, slog.LevelInfo, "text")
		log.Info("first")
		time.Sleep(gather)
		synctest.Wait() // Run holds it
		for range 100 {
			log.Info("a line that nobody reads")
		}
		if s.Dropped() == 0 || s.Dropped() >= 100 {
			t.Errorf("dropped %d", s.Dropped())
		}
		dropped := s.Dropped()
		close(w.let)
		time.Sleep(2 * gather)
		synctest.Wait()
		log.Info("last")
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
		log.Info("after the end")
		out := w.String()
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if uint64(len(lines)) != 1+100-dropped+1+1 {
			t.Errorf("%d lines, %d dropped", len(lines), dropped)
		}
		if !strings.Contains(out, fmt.Sprintf("lines=%d", dropped)) || !strings.Contains(lines[len(lines)-1], "msg=last") {
			t.Errorf("the loss is not told, or the last line is: %s", lines[len(lines)-2:])
		}
		for _, l := range lines {
			if !strings.HasPrefix(l, "time=") {
				t.Errorf("half a line: %q", l)
			}
		}
	})
}

func TestSinkCloseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &stuck{let: make(chan struct{})}
		s := NewSink(w, 0)
		go s.Run()
		io.WriteString(s, "x\n")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("close: %v", err)
		}
		close(w.let)
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
