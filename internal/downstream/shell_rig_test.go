package downstream

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/command"
	"github.com/longcall/longcall/internal/mcp"
)

// scripted is a Shell whose commands are scripts of steps, divided by "; ":
// say TEXT, sleep DURATION, ready, exit CODE, lost. It keeps what they print.
type scripted struct {
	mu      sync.Mutex
	procs   map[call.ID]*process
	started map[string]int // runs by command
	shown   []command.ShowOptions
	stops   []command.Stop
	denied  bool // nobody may use it
}

type process struct {
	args  shellArgs
	out   string
	wakes []chan struct{}
	code  int
	ended bool
	left  bool // something of its tree lives on
}

type shellArgs struct {
	Command, Kind, Label, Text, ID string
	Yield                          *int   `json:"yield_ms"`
	TTY                            bool   `json:"tty"`
	IfRunning                      string `json:"if_running"`
	Key                            string `json:"idempotency_key"`
	Ready                          string `json:"ready_pattern"`
	Cursor                         int64  `json:"cursor"`
}

// sentence is an error for a model.
type sentence string

func (s sentence) Error() string { return string(s) }

// withShell gives the rig a shell.
func withShell(r *rig) *scripted {
	s := &scripted{procs: map[call.ID]*process{}, started: map[string]int{}}
	r.h.opt.Shell, r.h.own = s, callResources{}
	r.h.opt.Catalog = shellCatalog{r.h.opt.Catalog, s}
	r.tools[toolExec] = s.run
	return s
}

func (s *scripted) Tools(string) []mcp.Entry {
	if s.denied {
		return nil
	}
	var all []mcp.Entry
	for _, n := range []string{toolExec, toolRead, toolParallel, toolWrite} {
		all = append(all, mcp.Entry{Name: n, Raw: []byte(`{"name":"` + n + `","description":"See also read_output.","inputSchema":{"type":"object"},"outputSchema":{"type":"object"}}`)})
	}
	return all
}

func (s *scripted) Plan(_ context.Context, ask *command.Ask) (*command.Plan, string) {
	var a shellArgs
	if err := json.Unmarshal(ask.Arguments, &a); err != nil || a.Command == "" {
		return nil, "command of " + ask.Names.Exec + " is missing."
	}
	p := &command.Plan{Digest: a.Command, Attach: call.AttachAlways, Key: a.Key, Yield: 3 * time.Second, Job: a.Kind != "service" && !a.TTY, MaxBytes: 77}
	if a.Yield != nil {
		p.Yield = time.Duration(*a.Yield) * time.Millisecond
	}
	if p.Yield > 12*time.Second {
		return nil, "yield_ms is above 12000."
	}
	switch a.IfRunning {
	case "new":
		p.Attach = call.AttachFresh
	case "error":
		p.ErrorIfRunning = true
	}
	return p, ""
}

// run is the runner of exec_command.
func (s *scripted) run(ctx context.Context, x *call.Exec) call.Answer {
	var m struct{ Params struct{ Arguments shellArgs } }
	if err := json.Unmarshal(x.Spec.Request, &m); err != nil {
		return call.Answer{End: call.End{Outcome: call.Failed, Text: err.Error()}}
	}
	if err := x.Dispatched(); err != nil {
		return call.Answer{}
	}
	p := &process{args: m.Params.Arguments}
	s.mu.Lock()
	s.procs[x.ID] = p
	s.started[p.args.Command]++
	s.mu.Unlock()
	for step := range strings.SplitSeq(p.args.Command, "; ") {
		verb, rest, _ := strings.Cut(step, " ")
		switch verb {
		case "say":
			s.change(p, func() { p.out += rest + "\n" })
		case "sleep":
			d, _ := time.ParseDuration(rest)
			select {
			case <-time.After(d):
			case <-ctx.Done():
				s.change(p, func() { p.ended, p.code = true, -1 })
				return call.Answer{}
			}
		case "ready":
			_ = x.Emit(call.Event{Kind: call.KindReady, Hole: -1})
		case "leave":
			s.change(p, func() { p.left = true })
		case "exit":
			code, _ := strconv.Atoi(rest)
			s.change(p, func() { p.ended, p.code = true, code })
			return call.Answer{End: call.End{Outcome: call.Completed}}
		case "lost":
			return call.Answer{End: call.End{Outcome: call.Interrupted, Text: "Outcome unknown: supervision ended."}}
		}
	}
	s.change(p, func() { p.ended = true })
	return call.Answer{End: call.End{Outcome: call.Completed}}
}

func (s *scripted) change(p *process, f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	for _, w := range p.wakes {
		select {
		case w <- struct{}{}:
		default:
		}
	}
}

func (s *scripted) proc(id call.ID) *process {
	if p := s.procs[id]; p != nil {
		return p
	}
	return &process{}
}

func (s *scripted) Do(_ context.Context, ask *command.Ask) command.Shown {
	var a shellArgs
	_ = json.Unmarshal(ask.Arguments, &a)
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.procs[call.ID(a.ID)]
	if p == nil {
		return command.Shown{Text: []string{"No such command of yours; " + ask.Names.List + " shows yours."}, IsError: true}
	}
	sh := command.Shown{Text: []string{p.out[min(int(a.Cursor), len(p.out)):]}, Structured: []byte(`{"total_bytes":` + strconv.Itoa(len(p.out)) + `}`)}
	if p.ended {
		sh.Told = []call.ID{call.ID(a.ID)}
	}
	return sh
}

func (s *scripted) Show(_ context.Context, rec *call.Record, o *command.ShowOptions) command.Shown {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shown = append(s.shown, *o)
	p := s.proc(rec.ID)
	out := p.out
	if from := int(o.From); from > 0 {
		out = out[min(from, len(out)):]
	}
	b := s.brief(rec)
	m := map[string]any{"call_id": rec.ID, "state": b.State, "output": out, "total_bytes": len(p.out)}
	line := b.Line + " · " + string(rec.ID)
	if b.Exited {
		m["exit_code"] = b.ExitCode
	}
	if o.Joined {
		line, m["joined"] = "Joined it; nothing was started. "+line, true
	}
	if o.Replayed {
		m["replayed"] = true
	}
	structured, _ := json.Marshal(m)
	return command.Shown{Text: []string{line, out}, Structured: structured, Link: rec.End.Outcome == call.Running, IsError: rec.End.Outcome == call.Interrupted}
}

func (s *scripted) Brief(rec *call.Record) command.Brief {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.brief(rec)
}

func (s *scripted) brief(rec *call.Record) command.Brief {
	p := s.proc(rec.ID)
	b := command.Brief{State: "running", Label: p.args.Label, Line: "running"}
	switch rec.End.Outcome {
	case call.Running:
	case call.Completed:
		b.State, b.Exited, b.ExitCode, b.Line = "exited", true, p.code, fmt.Sprintf("exit %d", p.code)
	case call.Interrupted:
		b.State, b.Line = "lost", "outcome unknown"
	default:
		b.State, b.Line = "stopped", "stopped"
	}
	return b
}

func (s *scripted) Watch(id call.ID, wake chan struct{}) func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.procs[id]
	if p == nil {
		return func() {}
	}
	p.wakes = append(p.wakes, wake)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for i, w := range p.wakes {
			if w == wake {
				p.wakes = append(p.wakes[:i], p.wakes[i+1:]...)
				return
			}
		}
	}
}

func (s *scripted) Total(id call.ID) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(len(s.proc(id).out))
}

func (s *scripted) Scan(id call.ID, from int64, pattern string) (command.Scan, error) {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, sentence("pattern is no regular expression.")
	}
	return &scriptedScan{s, id, from, re}, nil
}

type scriptedScan struct {
	s    *scripted
	id   call.ID
	from int64
	re   *regexp.Regexp
}

func (n *scriptedScan) Next(context.Context) (int64, bool, error) {
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	out := n.s.proc(n.id).out
	if at := n.re.FindStringIndex(out[min(int(n.from), len(out)):]); at != nil {
		return n.from + int64(at[1]), true, nil
	}
	return 0, false, nil
}

func (s *scripted) Stop(_ context.Context, rec *call.Record, how command.Stop) (bool, error) {
	if how.Signal == "NONE" {
		return false, sentence("There is no signal NONE. Nothing was done.")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stops = append(s.stops, how)
	p := s.proc(rec.ID)
	left := p.left
	p.left = false
	return left, nil
}

// commandResult is the answer to an exec_command.
type commandResult struct {
	ID     json.RawMessage
	Error  *struct{ Code int }
	Result struct {
		ResultType string
		TaskID     string `json:"taskId"`
		Task       struct{ TaskID string }
		IsError    bool
		Content    []struct{ Type, Text, URI string }
		Structured struct {
			CallID   string `json:"call_id"`
			State    string
			Output   string
			ExitCode *int `json:"exit_code"`
			Joined   bool
			Replayed bool
		} `json:"structuredContent"`
		Meta map[string]json.RawMessage `json:"_meta"`
	}
}

func (r *commandResult) text() string {
	var b strings.Builder
	for _, c := range r.Result.Content {
		b.WriteString(c.Text + "\n")
	}
	return b.String()
}

// exec calls a tool of the shell, and gives what was written and the answer.
func (o asker) exec(ctx context.Context, id, args string) (*tape, commandResult) {
	o.t.Helper()
	w := o.request(ctx, id, toolExec, args)
	return w, readCommand(o.t, w.body())
}

func readCommand(t testing.TB, answer string) (c commandResult) {
	t.Helper()
	i := strings.LastIndex(answer, `{"jsonrpc":"2.0","id":`)
	if i < 0 {
		return c
	}
	raw, _, _ := strings.Cut(answer[i:], "\n")
	if err := json.Unmarshal([]byte(raw), &c); err != nil {
		t.Fatalf("%v in %s", err, answer)
	}
	return c
}

// toAll is a request to /mcp.
func toAll(ctx context.Context, method, body string, header ...string) *http.Request {
	req := request(ctx, method, body, header...)
	req.URL.Path = "/mcp"
	return req
}

// sessionAtAll opens one of ann at /mcp.
func (r *rig) sessionAtAll(version string) string {
	r.t.Helper()
	w := httptest.NewRecorder()
	r.h.ServeHTTP(w, toAll(context.Background(), "POST", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"`+version+`","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`))
	s := w.Header().Get(mcp.HeaderSession)
	if s == "" {
		r.t.Fatalf("initialize: %s", w.Body)
	}
	return s
}

// lastAt is when the last piece was written, in seconds.
func (w *tape) lastAt() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.entries) == 0 {
		return ""
	}
	at, _, _ := strings.Cut(w.entries[len(w.entries)-1], " ")
	return at
}
