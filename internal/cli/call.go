package cli

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/cli/client"
)

type callCmd struct {
	whereFlags
	Words   []string      `arg:"" name:"tool" help:"[SERVER] TOOL [ARGS]: the tool, and its arguments as key=value pairs, a JSON object, @FILE, or - for stdin."`
	JSON    bool          `name:"json" help:"Print the raw result object."`
	Quiet   bool          `short:"q" help:"Show no progress."`
	Timeout time.Duration `placeholder:"TIME" help:"Give up and cancel after this time, such as 90s or 10m. Default: longcall's own limits."`
}

// Help has the details and examples.
func (callCmd) Help() string {
	return `The call goes to the longcall that serves the state folder. If none runs and
there is a config, this process serves it for the one call.

The tool is SERVER TOOL, SERVER__TOOL, or TOOL alone if only one server has it.
Values of key=value get the type that the tool's schema wants; key:=JSON is taken
as it is; a key that comes twice makes a list.

Progress goes to stderr, the result to stdout. Ctrl-C cancels the call.

Examples:
  longcall call everything trigger-long-running-operation duration=20 steps=5
  longcall call files__read_file path=README.md
  longcall call search '{"query": "long calls", "limit": 3}'
  longcall call search @query.json --json
  echo '{"a": 1, "b": 2}' | longcall call get-sum -
  longcall call --config ~/.mcp.json files list_directory path=.

Exit codes:
  0  done                          5  cancelled
  1  the tool says that it failed  6  timed out
  2  command line or config        7  interrupted: the outcome is unknown
  3  cannot reach longcall or      8  JSON-RPC error
     the tool server
  4  denied`
}

var (
	errInterrupted = errors.New("interrupted from the keyboard")
	errGaveUp      = errors.New("gave up at --timeout")
)

// Run is the command.
func (c *callCmd) Run(r *runner) error {
	n := slices.IndexFunc(c.Words, isArgument)
	if n < 0 {
		n = len(c.Words)
	}
	names, words := c.Words[:n], c.Words[n:]
	if len(names) == 0 {
		return usage("name the tool before its arguments: longcall call [SERVER] TOOL [ARGS]")
	}
	if len(names) > 2 {
		return usage("%q is neither a server, a tool, nor an argument: arguments are key=value pairs or one JSON object", cut(names[2], 40))
	}
	g, err := c.connect(r.ctx, r.sys)
	if err != nil {
		return err
	}
	defer g.stop()
	server, tool := "", names[0]
	if len(names) == 2 {
		server, tool = names[0], names[1]
	}
	target, err := findTool(r.ctx, g, server, tool)
	if err != nil {
		return err
	}
	args, err := arguments(words, target.schema, r.sys.In)
	if err != nil {
		return err
	}
	return c.do(r, g, target, args)
}

// separator stands between server and tool in the names at the endpoint for
// all servers.
const separator = "__"

// target is a tool at an endpoint.
type target struct {
	endpoint *client.Client
	name     string // at the endpoint
	label    string
	schema   json.RawMessage // nil if it is not known
}

// findTool finds what the command line names. A tool that no list has is
// called all the same if the list is empty: its server may still be starting.
func findTool(ctx context.Context, g *gateway, server, tool string) (*target, error) {
	t := &target{endpoint: g.endpoint(server), name: tool, label: tool}
	if server != "" {
		t.label = server + "/" + tool
	}
	tools, err := t.endpoint.Tools(ctx)
	if err != nil {
		var st *client.StatusError
		var rpc *client.RPCError
		if server != "" && (errors.As(err, &st) && st.Status == 404 || errors.As(err, &rpc) && rpc.Status == 404) {
			return nil, usage("there is no tool server %q%s", server, serverList(ctx, g))
		}
		return nil, wireError(err)
	}
	var matches []client.Tool
	for _, k := range tools {
		if k.Name == tool {
			matches = []client.Tool{k}
			break
		}
		if server == "" && strings.HasSuffix(k.Name, separator+tool) {
			matches = append(matches, k)
		}
	}
	switch {
	case len(matches) == 1:
		t.name, t.schema = matches[0].Name, matches[0].InputSchema
		if server == "" {
			t.label = strings.Replace(t.name, separator, "/", 1)
		}
		return t, nil
	case len(matches) > 1:
		var names []string
		for _, k := range matches {
			names = append(names, strings.Replace(k.Name, separator, " ", 1))
		}
		return nil, usage("more than one server has a tool %q: say which: %s", tool, strings.Join(names, ", "))
	case len(tools) == 0 && server != "":
		return t, nil
	case len(tools) == 0:
		return nil, exit(exitUnreachable, "no tool server has shown a tool yet; see longcall tools")
	}
	return nil, usage("there is no tool %q%s", tool, toolHint(tool, tools))
}

func serverList(ctx context.Context, g *gateway) string {
	tools, err := g.endpoint("").Tools(ctx)
	if err != nil {
		return ""
	}
	var names []string
	for _, t := range tools {
		if s, _, ok := strings.Cut(t.Name, separator); ok && !slices.Contains(names, s) {
			names = append(names, s)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "; those with tools are " + strings.Join(names, ", ")
}

// toolHint names the tools, or those that look like what was typed.
func toolHint(typed string, tools []client.Tool) string {
	names := make([]string, 0, len(tools))
	var like []string
	for _, t := range tools {
		name := clean(t.Name)
		names = append(names, name)
		bare := func(s string) string { return strings.NewReplacer("_", "", "-", "").Replace(strings.ToLower(s)) }
		if strings.Contains(bare(name), bare(typed)) {
			like = append(like, name)
		}
	}
	if len(like) > 0 {
		names = like
	}
	if len(names) > 8 {
		names = append(names[:8], "…")
	}
	return "; there is " + strings.Join(names, ", ") + " (see longcall tools)"
}

// wireError gives an error of the client its exit code.
func wireError(err error) error {
	var un *client.UnreachableError
	var lost *client.LostError
	var rpc *client.RPCError
	var st *client.StatusError
	switch {
	case errors.As(err, &un):
		return &exitError{exitUnreachable, err}
	case errors.As(err, &lost):
		return &exitError{exitInterrupted, err}
	case errors.As(err, &rpc) && rpc.Status != 401 && rpc.Status != 403:
		return &exitError{exitRPC, err}
	case errors.As(err, &rpc):
		return exit(exitDenied, "longcall refused: %s. Its token is in the state folder; name another with --token or $LONGCALL_TOKEN", rpc.Text)
	case errors.As(err, &st):
		return &exitError{exitUnreachable, err}
	}
	return err
}

func (c *callCmd) do(r *runner, g *gateway, t *target, args []byte) error {
	sys := r.sys
	ctx, cancel := context.WithCancelCause(r.ctx)
	defer cancel(nil)
	if c.Timeout > 0 {
		timer := time.AfterFunc(c.Timeout, func() { cancel(errGaveUp) })
		defer timer.Stop()
	}
	trace := newTraceparent()
	k := client.Call{Tool: t.name, Arguments: args, Schema: t.schema, Traceparent: trace}
	started := time.Now()
	var m *meter
	if !c.Quiet {
		m = newMeter(sys, t.label)
		k.Progress = func(p client.Progress) { m.progress(p.Value, p.Total, p.Text) }
		k.Message = func(level, text string) {
			m.say("%s  [%s] %s", pad(duration(m.elapsed()), 6), clean(level), clean(text))
		}
	}
	sigs := make(chan os.Signal, 2)
	stopSignals := sys.Notify(sigs, os.Interrupt, syscall.SIGTERM)
	finished := make(chan struct{})
	told := make(chan bool, 1)
	go func() {
		told <- c.onSignal(ctx, cancel, sigs, finished, g, trace, m)
	}()
	res, err := t.endpoint.Do(ctx, k)
	close(finished)
	stopSignals()
	cancelled := <-told
	if m != nil {
		m.close()
	}
	took := duration(time.Since(started))
	id := callID(r.ctx, g, trace, started)
	switch {
	case errors.Is(err, errInterrupted) && cancelled:
		return exit(exitCancelled, "cancelled after %s; the tool was told to stop%s", took, seeCall(id))
	case errors.Is(err, errInterrupted):
		return exit(exitCancelled, "cancelled after %s: the connection is closed, and longcall tells the tool to stop when its disconnect_grace is over, unless on_disconnect says to go on%s", took, seeCall(id))
	case errors.Is(err, errGaveUp):
		return exit(exitTimedOut, "gave up after %s (--timeout): the connection is closed, and longcall tells the tool to stop when its disconnect_grace is over, unless on_disconnect says to go on%s", took, seeCall(id))
	case err != nil:
		return wireError(err)
	}
	if c.JSON {
		if err := printRaw(sys, res.Raw); err != nil {
			return err
		}
	}
	if res.Outcome != "" { // longcall's own words: no result of the tool
		end := call.End{Outcome: call.Outcome(res.Outcome), Limit: res.Limit, By: res.By}
		return exit(outcomeCode(end), "%s after %s: %s%s", outcomeWords(end), took, clean(contentText(res)), seeCall(call.ID(res.CallID)))
	}
	if !c.JSON {
		printResult(sys, res)
	}
	if res.IsError {
		return exit(exitToolError, "the tool says that it failed, after %s%s", took, seeCall(id))
	}
	if sys.ErrTerminal && !c.Quiet {
		fmt.Fprintf(sys.Err, "%s in %s%s\n", sys.style("32", "completed"), took, seeCall(id))
	}
	return nil
}

// onSignal cancels the call when a signal comes: first by telling longcall,
// which knows at once that somebody asked; then by closing the stream. It says
// whether longcall was told.
func (c *callCmd) onSignal(ctx context.Context, cancel context.CancelCauseFunc, sigs <-chan os.Signal, finished <-chan struct{}, g *gateway, trace string, m *meter) bool {
	select {
	case <-finished:
		return false
	case <-sigs:
	}
	if m != nil {
		m.rename("cancelling")
	}
	bound, stop := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer stop()
	told := false
	if id := callID(bound, g, trace, time.Time{}); id != "" {
		told = g.cancel(bound, id, "Ctrl-C on the command line") == nil
	}
	if told {
		select { // the answer says what the tool had done by then
		case <-finished:
			return true
		case <-sigs:
		case <-bound.Done():
		}
	}
	cancel(errInterrupted)
	return told
}

func newTraceparent() string {
	var b [24]byte
	rand.Read(b[:])
	return "00-" + hex.EncodeToString(b[:16]) + "-" + hex.EncodeToString(b[16:]) + "-01"
}

// traceID is the part of a traceparent that all of a trace have in common.
func traceID(traceparent string) string {
	parts := strings.Split(traceparent, "-")
	if len(parts) < 4 {
		return ""
	}
	return parts[1]
}

func seeCall(id call.ID) string {
	if id == "" {
		return ""
	}
	return " (longcall calls show " + shortID(id) + ")"
}

// contentText is the text of a result.
func contentText(res *client.Result) string {
	var parts []string
	for _, b := range res.Content {
		if b.Type == "text" {
			parts = append(parts, b.Text)
		}
	}
	return strings.Join(parts, "\n")
}

// printResult prints what a result says: text as it is, and what is no text by
// its kind and size. On a terminal nothing of it can move the cursor.
func printResult(sys *System, res *client.Result) {
	show := func(s string) string {
		if sys.OutTerminal {
			return cleanText(s)
		}
		return s
	}
	for _, b := range res.Content {
		switch {
		case b.Type == "text":
			fmt.Fprintln(sys.Out, strings.TrimSuffix(show(b.Text), "\n"))
		case b.Type == "resource" && b.Resource != nil && b.Resource.Text != "":
			fmt.Fprintln(sys.Out, strings.TrimSuffix(show(b.Resource.Text), "\n"))
		case b.Type == "resource" && b.Resource != nil:
			fmt.Fprintf(sys.Out, "[resource %s %s, %s; --json has it]\n", clean(b.Resource.URI), clean(b.Resource.MimeType), size(int64(len(b.Resource.Blob))*3/4))
		case b.Type == "resource_link":
			fmt.Fprintf(sys.Out, "[link %s]\n", clean(b.URI))
		default:
			fmt.Fprintf(sys.Out, "[%s %s, %s; --json has it]\n", clean(b.Type), clean(b.MimeType), size(int64(len(b.Data))*3/4))
		}
	}
	if len(res.Content) == 0 && res.Structured != nil {
		_ = printRaw(sys, res.Structured)
	}
}

// printRaw prints JSON as it came; on a terminal indented, and nothing of it
// can move the cursor.
func printRaw(sys *System, raw []byte) error {
	if !sys.OutTerminal {
		_, err := fmt.Fprintln(sys.Out, string(raw))
		return err
	}
	var b bytes.Buffer
	if json.Indent(&b, raw, "", "  ") != nil {
		b.Reset()
		b.Write(raw)
	}
	_, err := fmt.Fprintln(sys.Out, cleanJSON(b.Bytes()))
	return err
}
