//go:build linux

package tools

import (
	"bytes"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/command"
)

// hidden takes out of texts what differs from run to run.
type hidden struct{ ids []string }

var (
	idPattern   = regexp.MustCompile(`c_[a-z2-7]{26}`)
	timePattern = regexp.MustCompile(`\d+\.\d s\b`)
	waitPattern = regexp.MustCompile(` It seems to wait for input: .*}\.`) // whether it is seen depends on the moment
	dayPattern  = regexp.MustCompile(`\d\d:\d\d:\d\d UTC`)
	pidPattern  = regexp.MustCompile(`pid \d+`)
)

func (h *hidden) clean(s string) string {
	s = idPattern.ReplaceAllStringFunc(s, func(id string) string {
		for i, known := range h.ids {
			if known == id {
				return fmt.Sprint("c_", i+1)
			}
		}
		h.ids = append(h.ids, id)
		return fmt.Sprint("c_", len(h.ids))
	})
	s = timePattern.ReplaceAllString(s, "N s")
	s = dayPattern.ReplaceAllString(s, "HH:MM:SS UTC")
	s = waitPattern.ReplaceAllString(s, "")
	return pidPattern.ReplaceAllString(s, "pid N")
}

// The texts of batches, reads and writes, as a model gets them (O9).
func TestToldStrings(t *testing.T) {
	r := newRig(t)
	var b strings.Builder
	var h hidden
	tell := func(name string, p *reply) {
		fmt.Fprintf(&b, "== %s (error %v, link %v)\n%s\n", name, p.shown.IsError, p.shown.Link, h.clean(strings.Join(p.shown.Text, "\n--\n")))
	}
	wait := "while [ ! -e go ]; do sleep 0.02; done"
	tell("succeeded", r.call(Parallel, args("yield_ms", 12000, "commands", commands("echo one", "echo two"))))
	tell("partial, sequence", r.call(Parallel, args("yield_ms", 12000, "mode", "sequence", "commands", []any{
		map[string]any{"command": "echo build", "label": "build"}, map[string]any{"command": "exit 2", "label": "test"}, map[string]any{"command": "echo never"},
	})))
	tell("failed", r.call(Parallel, args("yield_ms", 12000, "commands", commands("exit 1"))))
	first := r.call(Exec, args("command", wait, "yield_ms", 200))
	r.until("its start", func() bool { p := r.manager.Find(first.CallID); return p != nil && p.Status().PID > 0 })
	p := r.call(Parallel, args("yield_ms", 500, "mode", "sequence", "commands", commands(wait, "echo after")))
	tell("running, one joined, one to come", p)
	tell("the same batch again", r.call(Parallel, args("yield_ms", 0, "mode", "sequence", "commands", commands(wait, "echo after"))))
	rec := p.call.Record()
	tell("restarting", &reply{shown: r.tools.Show(t.Context(), &rec, &command.ShowOptions{Names: OwnNames, Why: command.ShowLeft})})
	r.must(p.call.Cancel(call.End{By: "agent (cancel_call)", Text: "enough"}))
	tell("cancelled", r.end(p.call))
	r.must(writeFile(r.path("go")))
	r.end(first.call)
	lost := r.call(Parallel, args("yield_ms", 300, "commands", commands("exec sleep 60")))
	r.begun(lost)
	r.killShim(r.manager.Find(lost.Commands[0].CallID).Status().PID)
	tell("unknown", r.end(lost.call))

	cat := r.call(Exec, args("command", "cat", "stdin", "pipe", "yield_ms", 200))
	tell("typed", r.do("ann", Write, args("id", cat.CallID, "text", "hello\n", "wait_ms", 2000, "idempotency_key", "k")))
	tell("typed again", r.do("ann", Write, args("id", cat.CallID, "text", "hello\n", "wait_ms", 0, "idempotency_key", "k")))
	tell("the key for another text", r.do("ann", Write, args("id", cat.CallID, "text", "hullo\n", "idempotency_key", "k")))
	tell("read while it runs", r.do("ann", Read, args("id", cat.CallID)))
	tell("end of input", r.do("ann", Write, args("id", cat.CallID, "eof", true, "wait_ms", 12000)))
	tell("typed after the end", r.do("ann", Write, args("id", cat.CallID, "text", "x")))
	lines := r.call(Exec, args("command", "i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo $i; done", "yield_ms", 12000))
	tell("a page", r.do("ann", Read, args("id", lines.CallID, "cursor", 10, "max_bytes", 12)))
	tell("matches", r.do("ann", Read, args("id", lines.CallID, "grep", "^29[89]$")))
	tell("no match", r.do("ann", Read, args("id", lines.CallID, "grep", "x")))
	golden(t, "told.txt", []byte(b.String()))
}

// I10: no command, argument, environment or output is in any line of a log.
func TestNothingSecretIsLogged(t *testing.T) {
	log := &logged{}
	r := newRig(t, func(r *rig) {
		r.logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		r.opts.MaxPerOwner, r.set.Env = 2, []string{"X"}
	})
	const secret = "s3cr3t"
	a := r.call(Exec, args("command", "echo "+secret+"; cat", "stdin", "pipe", "env", map[string]string{"X": secret}, "yield_ms", 200, "label", secret, "idempotency_key", secret))
	r.do("ann", Write, args("id", a.CallID, "text", secret+"\n", "idempotency_key", secret))
	b := r.call(Exec, args("command", "echo "+secret+"; exec sleep 60", "yield_ms", 200))
	if c := r.call(Parallel, args("yield_ms", 12000, "commands", commands("false "+secret, "false "+secret+secret))); c.State != "failed" {
		t.Errorf("%q", c.shown.Text) // both are over the limit
	}
	r.restart()
	r.until("its pid", func() bool { return r.manager.Find(b.CallID).Status().PID > 0 })
	r.killShim(r.manager.Find(b.CallID).Status().PID)
	r.end(r.again(b.call.ID()))
	r.must(r.again(a.call.ID()).Cancel(call.End{By: "agent", Text: secret}))
	r.end(r.again(a.call.ID()))
	if text := log.String(); strings.Contains(text, secret) {
		t.Errorf("in the log:\n%s", text)
	}
}

type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
