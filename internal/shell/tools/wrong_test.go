//go:build linux || darwin

package tools

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/command"
)

var update = flag.Bool("update", false, "accept what the goldens differ in")

// golden compares with a file in testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (run with -update to accept):\n%s", path, got)
	}
}

// Bad input gets one clear sentence that tells the model what to do (A20), and
// nothing is started.
func TestWrongArguments(t *testing.T) {
	r := newRig(t, func(r *rig) { r.set.Env, r.set.MaxRuntime = []string{"RUST_LOG"}, time.Hour })
	outside := t.TempDir()
	r.must(os.MkdirAll(r.path("sub"), 0o700))
	r.must(os.Symlink(outside, r.path("out")))
	r.must(writeFile(r.path("file")))
	var b strings.Builder
	hide := strings.NewReplacer(r.root, "ROOT", outside, "OUTSIDE")
	for _, k := range []struct{ tool, args string }{
		{Exec, `{}`},
		{Exec, `{"command":""}`},
		{Exec, `{"command":"  \n"}`},
		{Exec, `{"command":7}`},
		{Exec, args("command", strings.Repeat("x", 40<<10))},
		{Exec, `{"command":"a\u0000b"}`},
		{Exec, `{"command":"true","cwd":"nowhere"}`},
		{Exec, args("command", "true", "cwd", outside)},
		{Exec, `{"command":"true","cwd":".."}`},
		{Exec, `{"command":"true","cwd":"sub/../../x"}`},
		{Exec, `{"command":"true","cwd":"out"}`},
		{Exec, `{"command":"true","cwd":"file"}`},
		{Exec, `{"command":"true","cwd":"file/x"}`},
		{Exec, `{"command":"true","cwd":"/etc\u202e\u001b[31m"}`},
		{Exec, `{"command":"true","yield_ms":12001}`},
		{Exec, `{"command":"true","yield_ms":-1}`},
		{Exec, `{"command":"true","yield_ms":"3000"}`},
		{Exec, `{"command":"true","kind":"daemon"}`},
		{Exec, `{"command":"true","ready_pattern":"(?=x)"}`},
		{Exec, args("command", "true", "ready_pattern", strings.Repeat("x", 1025))},
		{Exec, `{"command":"true","tty":"yes"}`},
		{Exec, `{"command":"true","stdin":"file"}`},
		{Exec, `{"command":"true","cols":0}`},
		{Exec, `{"command":"true","timeout_s":3601}`},
		{Exec, `{"command":"true","env":{"GH_TOKEN":"x"}}`},
		{Exec, `{"command":"true","env":["RUST_LOG"]}`},
		{Exec, `{"command":"true","env":{"RUST_LOG":1}}`},
		{Exec, `{"command":"true","if_running":"kill"}`},
		{Exec, `{"command":"true","max_output_bytes":0}`},
		{Exec, args("command", "true", "label", strings.Repeat("x", 81))},
		{Exec, `{"command":"true","timeout":5}`},
		{Exec, `["true"]`},
		{Parallel, `{}`},
		{Parallel, `{"commands":[]}`},
		{Parallel, `{"commands":["true"]}`},
		{Parallel, `{"commands":[{"command":"true"},{"cmd":"true"}]}`},
		{Parallel, `{"commands":[{"command":"true"},{"command":"true","cwd":"nowhere"}]}`},
		{Parallel, `{"commands":[{},{},{},{},{},{},{},{},{}]}`},
		{Parallel, `{"commands":[{"command":"true"}],"yield_ms":12001}`},
		{Parallel, `{"commands":[{"command":"true"}],"mode":"race"}`},
	} {
		wrong := r.wrong(k.tool, k.args)
		if wrong == "" {
			t.Errorf("%s is taken", k.args)
		}
		if len(k.args) > 100 {
			k.args = k.args[:40] + "…"
		}
		b.WriteString(hide.Replace(k.tool + " " + k.args + "\n  " + wrong + "\n"))
	}
	golden(t, "wrong.txt", []byte(b.String()))
	if list, err := r.engine.List(t.Context(), "ann", "", 10); err != nil || len(list) != 0 {
		t.Errorf("%d calls, %v", len(list), err)
	}
}

// The same for the tools that are answered at once. Somebody else's id looks
// unknown (I6).
func TestWrongReads(t *testing.T) {
	r := newRig(t)
	done := r.call(Exec, args("command", "echo done"))
	theirs, _, _ := r.start("bob", Exec, args("command", "exec sleep 60"))
	plain := r.call(Exec, args("command", "exec sleep 61", "yield_ms", 0))
	r.until("the start", func() bool {
		return r.manager.Find(plain.CallID) != nil && r.manager.Find(plain.CallID).Status().PID > 0
	})
	batch := r.call(Parallel, args("commands", []any{map[string]any{"command": "true"}}))
	other := call.NewID()
	rec := &call.Record{ID: other, Spec: call.Spec{Principal: "ann", Server: "files", Tool: "work", PublicTool: "files__work"}, Epoch: r.log.Epoch(), Started: time.Now(), Seq: 1}
	end := call.Event{Seq: 2, Kind: call.KindEnd, Time: time.Now(), Hole: -1, End: &call.End{Outcome: call.Completed}}
	rec.End, rec.Ended, rec.Seq = *end.End, end.Time, 2
	r.must(r.log.Create(t.Context(), rec, call.Event{Seq: 1, Kind: call.KindAccepted, Time: time.Now(), Hole: -1}, end))
	never := string(call.NewID())
	var b strings.Builder
	hide := strings.NewReplacer(done.CallID, "c_done", string(theirs.ID()), "c_theirs", plain.CallID, "c_plain", batch.CallID, "c_batch",
		batch.Commands[0].CallID, "c_child", string(other), "c_other", never, "c_never")
	for _, k := range []struct{ tool, args string }{
		{Read, `{}`},
		{Read, `{"id":7}`},
		{Read, args("id", never)},
		{Read, args("id", string(theirs.ID()))},
		{Read, `{"id":"../../etc/passwd\u202e"}`},
		{Read, args("id", string(other))},
		{Read, args("id", batch.CallID)},
		{Read, args("id", done.CallID, "grep", "a(")},
		{Read, args("id", done.CallID, "cursor", 1.5)},
		{Read, args("id", done.CallID, "max_bytes", 1<<20)},
		{Read, args("id", done.CallID, "context", 51)},
		{Read, args("id", done.CallID, "lines", 5)},
		{Write, args("id", done.CallID)},
		{Write, args("id", never, "text", "x")},
		{Write, args("id", string(theirs.ID()), "text", "x")},
		{Write, args("id", done.CallID, "text", "x")},
		{Write, args("id", plain.CallID, "text", "x\n")},
		{Write, args("id", plain.CallID, "eof", true)},
		{Write, args("id", plain.CallID, "cols", 80, "rows", 24)},
		{Write, args("id", plain.CallID, "keys", []string{"hyper-x"})},
		{Write, args("id", plain.CallID, "keys", "enter")},
		{Write, args("id", plain.CallID, "text", strings.Repeat("x", 65<<10))},
		{Write, args("id", plain.CallID, "text", "x", "wait_ms", 12001)},
		{Write, args("id", batch.CallID, "text", "x")},
	} {
		p := r.do("ann", k.tool, k.args)
		if !p.shown.IsError || len(p.shown.Text) != 1 || p.shown.Structured != nil {
			t.Errorf("%s is taken: %q", k.args, p.shown.Text)
		}
		if len(k.args) > 200 {
			k.args = k.args[:60] + "…"
		}
		text := p.shown.Text[0]
		if i := strings.Index(text, " after 0."); i > 0 { // its time
			text = text[:i+len(" after 0.")] + "0" + text[i+len(" after 0.")+1:]
		}
		b.WriteString(hide.Replace(k.tool + " " + k.args + "\n  " + text + "\n"))
	}
	golden(t, "wrong_reads.txt", []byte(b.String()))
}

// The shell is for those who may use it only.
func TestNotAllowed(t *testing.T) {
	r := newRig(t, func(r *rig) { r.set.Allowed = func(p string) bool { return p == "ann" } })
	if len(r.tools.Tools("ann")) != 4 || r.tools.Tools("bob") != nil {
		t.Error("who sees the tools")
	}
	for _, tool := range []string{Exec, Parallel} {
		if _, wrong := r.tools.Plan(t.Context(), &command.Ask{Principal: "bob", Tool: tool, Names: OwnNames}); !strings.Contains(wrong, `no scope "shell"`) {
			t.Error(wrong)
		}
	}
	if s := r.tools.Do(t.Context(), &command.Ask{Principal: "bob", Tool: Read, Names: OwnNames}); !s.IsError || !strings.Contains(s.Text[0], `no scope "shell"`) {
		t.Error(s.Text)
	}
}
