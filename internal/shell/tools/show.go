package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/longcall/longcall/internal/argument"
	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/command"
	"github.com/longcall/longcall/internal/shell"
	"github.com/longcall/longcall/internal/shell/spool"
)

// refusal is what is shown if something could not be done.
func refusal(sentence string) command.Shown {
	return command.Shown{Text: []string{sentence}, IsError: true}
}

// result is a command as results show it, field by field as SHELL §4 has them.
type result struct {
	Index      int    `json:"index,omitempty"` // of a batch's command
	Label      string `json:"label,omitempty"`
	CallID     string `json:"call_id,omitempty"`
	State      string `json:"state"`
	Outcome    string `json:"outcome,omitempty"`
	ExitCode   *int   `json:"exit_code,omitempty"`
	Signal     string `json:"signal,omitempty"`
	StartedAt  string `json:"started_at,omitempty"`
	EndedAt    string `json:"ended_at,omitempty"`
	WallMS     *int64 `json:"wall_ms,omitempty"`
	Output     string `json:"output,omitempty"`
	From       *int64 `json:"from_cursor,omitempty"`
	NextCursor *int64 `json:"next_cursor,omitempty"`
	Total      *int64 `json:"total_bytes,omitempty"`
	Omitted    int64  `json:"omitted_bytes,omitempty"`
	Evicted    int64  `json:"evicted_bytes,omitempty"`
	Joined     bool   `json:"joined,omitempty"`
	Replayed   bool   `json:"replayed,omitempty"`

	Descendants int    `json:"descendants,omitempty"`
	Waiting     bool   `json:"waiting_for_input,omitempty"`
	Next        string `json:"next,omitempty"`
}

// sight is a command at one moment: its call, as far as its end may be shown, and
// its process.
type sight struct {
	rec     *call.Record
	p       *shell.Process // nil if there is none, or not any more
	has     bool           // st is of its process
	st      shell.Status
	now     time.Time
	running bool // the call has no end to show (I4)
	waiting bool
}

// see looks at a command.
func (t *Tools) see(ctx context.Context, rec *call.Record) *sight {
	v := &sight{rec: rec, p: t.manager.Find(string(rec.ID)), running: rec.End.Outcome == call.Running, now: time.Now()}
	if v.p != nil {
		v.st, v.has = v.p.Status(), true
		if v.running && v.st.State == shell.Running {
			v.waiting = v.p.Waiting(ctx)
		}
	}
	return v
}

// state is the command's state in results. A process that has just ended runs
// until its call has: no reader learns of an end that is not on record.
func (v *sight) state() string {
	switch {
	case v.running && v.has && v.st.State == shell.Starting:
		return string(shell.Starting)
	case v.running:
		return string(shell.Running)
	case v.has && v.st.State.Final() && v.rec.End.Outcome != call.Interrupted:
		return string(v.st.State)
	}
	switch v.rec.End.Outcome {
	case call.Completed:
		if _, ok := exitOf(&v.rec.End); ok {
			return string(shell.Exited)
		}
		return string(shell.Signaled)
	case call.Cancelled:
		return string(shell.Stopped)
	case call.TimedOut:
		return string(shell.TimedOut)
	case call.Interrupted:
		return string(shell.Lost)
	}
	return string(shell.StartFailed)
}

// exitPrefix begins the text of an end with an exit code. It is read again when
// the process is not kept any more.
const exitPrefix = "exit "

func exitOf(end *call.End) (code int, ok bool) {
	text, ok := strings.CutPrefix(end.Text, exitPrefix)
	if !ok || end.Outcome != call.Completed {
		return 0, false
	}
	code, err := strconv.Atoi(text)
	return code, err == nil
}

// exit is its exit code, if it has one.
func (v *sight) exit() (code int, ok bool) {
	switch {
	case v.running:
		return 0, false
	case v.has && v.st.State == shell.Exited:
		return v.st.ExitCode, true
	}
	return exitOf(&v.rec.End)
}

// times are when the command began and ended, or was last seen.
func (v *sight) times() (started, ended time.Time, wall time.Duration) {
	started, ended = v.rec.Started, v.rec.Ended
	if v.has && !v.st.Started.IsZero() {
		started = v.st.Started
	}
	if v.running {
		return started, time.Time{}, v.now.Sub(started)
	}
	if v.has && !v.st.Ended.IsZero() && v.st.State.Final() {
		ended = v.st.Ended
	}
	return started, ended, ended.Sub(started)
}

// left is how many processes of an ended command still run.
func (v *sight) left() int {
	if v.running || !v.has || !v.st.TreeEnded.IsZero() {
		return 0
	}
	return v.st.Descendants
}

// line says in a few words how the command stands: what a model reads first.
func (v *sight) line() string {
	_, ended, wall := v.times()
	after := " after " + took(wall)
	code, exited := v.exit()
	switch state := v.state(); state {
	case string(shell.Starting), string(shell.Running):
		return state + " " + took(wall)
	case string(shell.Exited):
		if exited {
			return exitPrefix + strconv.Itoa(code) + after
		}
		return "exited" + after
	case string(shell.Signaled):
		if v.st.Signal == "" {
			return "ended by a signal" + after
		}
		return "ended by " + v.st.Signal + after
	case string(shell.TimedOut):
		return "timed out: stopped" + after + ", its time limit"
	case string(shell.Stopped):
		by := v.st.StoppedBy
		if v.rec.End.By != "" {
			by = v.rec.End.By
		}
		if by == "" {
			return "stopped" + after
		}
		return "stopped" + after + ", by " + argument.Plain(by, 64)
	case string(shell.Lost):
		return lostLine(ended)
	}
	if v.rec.End.Text != "" {
		return v.rec.End.Text
	}
	return "not started"
}

// warnings are what a reader must know besides, in sentences.
func (v *sight) warnings(n *command.Names) string {
	var parts []string
	if k := v.left(); k > 0 {
		parts = append(parts, some(k, "process that it started still runs", "processes that it started still run")+": do not start them again; "+n.Cancel+" with "+idArguments(v.rec.ID)+" stops them.")
	}
	if k := len(v.st.Survivors); k > 0 && !v.running {
		pids := make([]string, k)
		for i, pid := range v.st.Survivors {
			pids[i] = strconv.Itoa(pid)
		}
		if v.st.State == shell.Lost {
			parts = append(parts, some(k, "process", "processes")+" of it still ran when that was noticed: pid "+strings.Join(pids, ", ")+"; "+n.Cancel+" with "+idArguments(v.rec.ID)+" stops what still does.")
		} else {
			parts = append(parts, some(k, "process", "processes")+" of it could not be ended: pid "+strings.Join(pids, ", ")+".")
		}
	}
	if v.running && v.st.Unsupervised {
		parts = append(parts, "Its supervisor is gone: its further output and its exit code are lost. "+n.Cancel+" can stop it.")
	}
	if shell.Caveat != "" && v.has && !v.running && (v.left() > 0 || v.st.State == shell.Stopped || v.st.State == shell.TimedOut) {
		parts = append(parts, shell.Caveat)
	}
	if v.st.Error != "" && v.st.State == shell.Exited {
		parts = append(parts, argument.Plain(v.st.Error, 300))
	}
	if v.waiting {
		parts = append(parts, "It seems to wait for input: answer with "+n.Write+` and {"id":"`+string(v.rec.ID)+`","text":"…\n"}.`)
	}
	return strings.Join(parts, " ")
}

// bad says whether the end is a tool error: a command that could not be run, was
// stopped, or whose outcome is unknown. An exit code is none, unless the operator
// wants it to be.
func (v *sight) bad(s *Settings) bool {
	if v.running {
		return false
	}
	if code, ok := v.exit(); ok && v.rec.End.Outcome == call.Completed {
		return code != 0 && s.NonzeroIsError
	}
	return true
}

// window is the output of a command that is shown.
type window struct {
	spool.View
	ok bool // there is some to be shown
}

// look reads the output that a result shows.
func (v *sight) look(ctx context.Context, o *command.ShowOptions) window {
	if v.p == nil {
		return window{}
	}
	r, err := v.p.Output()
	if err != nil {
		return window{}
	}
	from := o.From
	if from < 0 {
		total, err := r.Total()
		if err != nil {
			return window{}
		}
		from = max(total+from, 0)
	}
	view, err := r.Summary(ctx, from, spool.Look{Max: o.MaxBytes, Tool: o.Names.Read})
	return window{view, err == nil}
}

// fill makes the structured result of a command.
func (v *sight) fill(w *window) result {
	started, ended, wall := v.times()
	r := result{
		CallID: string(v.rec.ID), State: v.state(), Outcome: string(v.rec.End.Outcome), StartedAt: stamp(started), EndedAt: stamp(ended),
		WallMS: new(max(wall.Milliseconds(), 0)), Descendants: v.left(), Waiting: v.waiting,
	}
	if code, ok := v.exit(); ok {
		r.ExitCode = &code
	}
	if !v.running {
		r.Signal = v.st.Signal
	}
	if w.ok {
		r.Output, r.From, r.NextCursor, r.Total = w.Text, &w.View.From, &w.Next, &w.View.Total
		r.Omitted, r.Evicted = w.View.Omitted, w.View.Evicted
	}
	return r
}

// size says how much output there is.
func (v *sight) size(w *window) string {
	switch {
	case !w.ok && v.running:
		return ""
	case !w.ok:
		return textOutputGone
	case v.running && w.Total == 0:
		return "no output so far"
	case v.running:
		return thousands(w.Total) + " B so far"
	case w.Total == 0:
		return "no output"
	}
	return thousands(w.Total) + " B of output"
}

// Show renders a call of the shell as it is now: what a yield, an await, a task, a
// replay and the end itself say. It says that the call has ended only if rec does
// (I4), and is never a success before.
func (t *Tools) Show(ctx context.Context, rec *call.Record, o *command.ShowOptions) command.Shown {
	if rec.Tool == Parallel {
		return t.showBatch(ctx, rec, o)
	}
	v := t.see(ctx, rec)
	w := v.look(ctx, o)
	return v.render(&w, o, t.set.Load())
}

// render shows a command and its output.
func (v *sight) render(w *window, o *command.ShowOptions, s *Settings) command.Shown {
	r := v.fill(w)
	r.Joined, r.Replayed = o.Joined, o.Replayed
	next := v.next(w, o)
	if r.Next = next; next == "" {
		r.Next = v.closing()
	}
	shown := command.Shown{Text: []string{join(v.headline(w, o), next)}, IsError: v.bad(s), Link: v.running, Structured: encode(&r)}
	if w.ok && w.Text != "" {
		shown.Text = append(shown.Text, w.Text)
	}
	return shown
}

// headline says what happened.
func (v *sight) headline(w *window, o *command.ShowOptions) string {
	var before string
	started, _, _ := v.times()
	switch {
	case o.Joined && v.running:
		before = joinedLine(started) + "\n"
	case o.Joined:
		before = "The same command ran already, since " + clock(started) + "; nothing was started.\n"
	case o.Replayed:
		before = replayedLine(started) + "\n"
	}
	line := v.line()
	switch o.Why {
	case command.ShowReady:
		line = "ready: the output matched ready_pattern; " + line
	case command.ShowOutput:
		line = "new output; " + line
	case command.ShowMatch:
		line = "the output matched, up to cursor " + strconv.FormatInt(o.Match, 10) + "; " + line
	case command.ShowLeft:
		line = "longcall is restarting, and the command goes on; " + line
	}
	if !v.running && (v.rec.End.Outcome == call.Interrupted || v.state() == string(shell.StartFailed)) {
		return before + line // a sentence
	}
	for _, part := range []string{string(v.rec.ID), v.size(w)} {
		if part != "" {
			line += " · " + part
		}
	}
	return before + strings.TrimSuffix(line, ".") + "."
}

// next says what not to do, and what to do now.
func (v *sight) next(w *window, o *command.ShowOptions) string {
	n := &o.Names
	id := v.rec.ID
	warn := v.warnings(n)
	switch {
	case v.running && (o.Why == command.ShowReady || v.st.Service):
		end := ""
		if !v.st.Service {
			end = n.Await + " with " + awaitArguments(id) + " waits for its end, "
		}
		return join("It runs on: do not run it again. "+end+n.Read+" with "+idArguments(id)+" shows what it prints, "+n.Cancel+" stops it.", warn)
	case v.running:
		return join(goOn(id, n), warn)
	}
	switch v.state() {
	case string(shell.Lost):
		if v.has {
			warn = join(n.Read+" with "+idArguments(id)+" shows what it had printed.", warn)
		}
		return join(textCheck, warn)
	case string(shell.StartFailed):
		return warn
	case string(shell.TimedOut):
		warn = join("What it had done by then stays done. Find out what took so long, or set a longer timeout_s, before you run it again.", warn)
	case string(shell.Stopped):
		warn = join("What it had done by then stays done.", warn)
	}
	if w.ok && w.View.Omitted > 0 {
		return join(thousands(w.View.Omitted)+" B are not shown: "+n.Read+" with "+idArguments(id)+" and a cursor or grep shows them; do not run it again for that.", warn)
	}
	return warn
}

// closing is what to do after an end if there is nothing to say about it in text.
func (v *sight) closing() string {
	if v.state() == string(shell.StartFailed) {
		return "Nothing ran: do what the text says, then call again."
	}
	return textOver
}

// encode is the structured content of a result.
func encode(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil { // structs of texts and numbers always encode
		panic(err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// Brief is what lists and digests say of a call: never output.
func (t *Tools) Brief(rec *call.Record) command.Brief {
	if rec.Tool == Parallel {
		return t.briefBatch(rec)
	}
	v := &sight{rec: rec, p: t.manager.Find(string(rec.ID)), running: rec.End.Outcome == call.Running, now: time.Now()}
	if v.p != nil {
		v.st, v.has = v.p.Status(), true
	}
	b := command.Brief{State: v.state(), Label: argument.Plain(v.st.Label, maxLabel), Line: v.line()}
	b.ExitCode, b.Exited = v.exit()
	return b
}
