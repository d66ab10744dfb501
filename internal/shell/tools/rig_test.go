//go:build linux || darwin

package tools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/command"
	"github.com/longcall/longcall/internal/journal/sqlite"
	"github.com/longcall/longcall/internal/mcp"
	"github.com/longcall/longcall/internal/shell"
)

const patience = 20 * time.Second

// rig is a shell with a real engine, journal and manager, in folders of its own.
type rig struct {
	*testing.T
	state string // what outlives a restart
	root  string // where commands run
	set   Settings
	opts  shell.Options

	log     *sqlite.Journal
	manager *shell.Manager
	tools   *Tools
	engine  *call.Engine
	seen    *observer
	logger  *slog.Logger // of all; nil for none
}

func newRig(t *testing.T, change ...func(*rig)) *rig {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{T: t, state: t.TempDir(), root: root, seen: &observer{}}
	r.set = Settings{Roots: []string{root}}
	r.opts = shell.Options{Dir: filepath.Join(r.state, "shell"), Exe: []string{os.Args[0], shell.ShimCommand}}
	for _, f := range change {
		f(r)
	}
	r.open()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		r.manager.StopAll(ctx, "the test")
		r.close()
	})
	return r
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) open() {
	r.Helper()
	var err error
	r.log, err = sqlite.Open(r.Context(), filepath.Join(r.state, "journal.db"), sqlite.Options{})
	r.must(err)
	r.opts.Log = r.logger
	r.manager, err = shell.Open(r.Context(), r.opts)
	r.must(err)
	own := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + r.root, "SECRET=shh", "ALLOWED=yes"}
	r.tools, err = New(r.manager, filepath.Join(r.state, "batches"), time.Hour, own, r.set, r.logger)
	r.must(err)
	r.engine = call.NewEngine(r.log, r.tools, call.Options{Epoch: r.log.Epoch(), Observer: r.seen})
	r.tools.Bind(r.engine)
	_, _, err = r.engine.Recover(r.Context())
	r.must(err)
}

// close ends this process's part: what runs is left to the next one.
func (r *rig) close() {
	r.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	r.engine.Stop(ctx)
	if err := r.manager.Close(); err != nil {
		r.Error(err)
	}
	if err := r.log.Close(); err != nil {
		r.Error(err)
	}
}

// restart is a new longcall over what the old one left.
func (r *rig) restart() {
	r.Helper()
	r.close()
	r.open()
}

// reply is what an agent read.
type reply struct {
	call    *call.Call
	join    call.Join
	shown   command.Shown
	ready   bool
	yielded bool
	result
	Commands []result `json:"commands"`
	Mode     string   `json:"mode"`
}

func (p *reply) text() string { return strings.Join(p.shown.Text, "\n") }

// args puts a JSON object together; values are encoded, keys given in pairs.
func args(pairs ...any) string {
	m := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i].(string)] = pairs[i+1]
	}
	return string(encode(m))
}

func (r *rig) spec(principal, tool, arguments string) (call.Spec, *command.Plan) {
	r.Helper()
	plan, wrong := r.tools.Plan(r.Context(), &command.Ask{Principal: principal, Tool: tool, Arguments: []byte(arguments), Names: OwnNames})
	if wrong != "" {
		r.Fatalf("%s %s: %s", tool, arguments, wrong)
	}
	return call.Spec{
		Principal: principal, Server: Server, Tool: tool, PublicTool: "shell__" + tool, RequestID: "r1", Era: mcp.V20260728,
		Digest: plan.Digest, Attach: plan.Attach, Idempotency: plan.Key,
		Request: fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, tool, arguments),
	}, plan
}

// wrong is what Plan says of bad arguments.
func (r *rig) wrong(tool, arguments string) string {
	r.Helper()
	_, wrong := r.tools.Plan(r.Context(), &command.Ask{Principal: "ann", Tool: tool, Arguments: []byte(arguments), Names: OwnNames})
	return wrong
}

// start calls a tool as the agents' side does, up to where it is attached.
func (r *rig) start(principal, tool, arguments string) (*call.Call, call.Join, *command.Plan) {
	r.Helper()
	spec, plan := r.spec(principal, tool, arguments)
	c, join, err := r.engine.Attach(r.Context(), spec)
	r.must(err)
	return c, join, plan
}

// call calls a tool and waits for its end, its yield or its readiness.
func (r *rig) call(tool, arguments string) *reply {
	r.Helper()
	c, join, plan := r.start("ann", tool, arguments)
	p := &reply{call: c, join: join}
	ctx, cancel := context.WithTimeout(r.Context(), plan.Yield)
	defer cancel()
	how := call.HandedOff
	after := uint64(0)
	if join != call.Started {
		after = c.Record().Seq - 1
	}
follow:
	for ev, err := range c.Follow(ctx, after, 0) {
		switch {
		case err != nil:
			p.yielded = true
			break follow
		case ev.Kind == call.KindReady:
			p.ready = true
			break follow
		case ev.Kind == call.KindEnd:
			how = call.Delivered
		}
	}
	o := command.ShowOptions{Names: OwnNames, MaxBytes: plan.MaxBytes, Joined: join == call.Joined, Replayed: join == call.Replay}
	switch {
	case p.ready:
		o.Why = command.ShowReady
	case p.yielded:
		o.Why = command.ShowYield
	}
	r.show(p, how == call.Delivered, &o)
	c.Leave(call.Delivery{Call: c.ID(), Kind: "sse", How: how}, -1)
	return p
}

// show looks at a call as the agents' side does: its end only if that was read.
func (r *rig) show(p *reply, ended bool, o *command.ShowOptions) {
	r.Helper()
	rec := p.call.Record()
	if !ended {
		rec.End, rec.Ended = call.End{}, time.Time{}
	}
	p.shown = r.tools.Show(r.Context(), &rec, o)
	p.read(r)
}

func (p *reply) read(r *rig) {
	r.Helper()
	if p.shown.Structured == nil {
		return
	}
	p.result, p.Commands = result{}, nil
	r.must(json.Unmarshal(p.shown.Structured, p))
	if strings.Contains(string(p.shown.Structured), ":null") {
		r.Errorf("null in %s", p.shown.Structured)
	}
	if p.Next == "" {
		r.Errorf("no next in %s", p.shown.Structured)
	}
}

// do calls read_output or write_stdin.
func (r *rig) do(principal, tool, arguments string) *reply {
	r.Helper()
	p := &reply{shown: r.tools.Do(r.Context(), &command.Ask{Principal: principal, Tool: tool, Arguments: []byte(arguments), Names: OwnNames})}
	p.read(r)
	return p
}

// end waits for a call's end, and shows it as an await_call does.
func (r *rig) end(c *call.Call) *reply {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	c.Enter()
	defer c.Leave(call.Delivery{Call: c.ID(), Kind: "await", How: call.Delivered}, -1)
	for _, err := range c.Follow(ctx, c.Record().Seq-1, 0) {
		if err != nil {
			r.Fatalf("waiting for the end of %s: %v", c.ID(), err)
		}
	}
	p := &reply{call: c}
	r.show(p, true, &command.ShowOptions{Names: OwnNames})
	return p
}

// again is a call as the engine of now knows it.
func (r *rig) again(id call.ID) *call.Call {
	r.Helper()
	c, err := r.engine.Get(r.Context(), "ann", id)
	r.must(err)
	return c
}

// until waits for a file that a command makes.
func (r *rig) until(what string, ok func() bool) {
	r.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			r.Fatalf("waited too long for %s", what)
		}
	}
}

func (r *rig) path(name string) string { return filepath.Join(r.root, name) }

func (r *rig) exists(name string) bool {
	_, err := os.Stat(r.path(name))
	return !errors.Is(err, os.ErrNotExist)
}

func (r *rig) file(name string) string {
	b, _ := os.ReadFile(r.path(name))
	return string(b)
}
