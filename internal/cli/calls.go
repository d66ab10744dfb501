package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/journal/sqlite"
)

type callsCmd struct {
	List   callsListCmd   `cmd:"" default:"withargs" help:"List calls, newest first."`
	Show   callsShowCmd   `cmd:"" help:"Show the whole timeline of a call."`
	Follow callsFollowCmd `cmd:"" help:"Show what a running call does, live, until its end."`
	Cancel callsCancelCmd `cmd:"" help:"Cancel a running call."`
}

// Help has the details and examples.
func (callsCmd) Help() string {
	return `Examples:
  longcall calls                                   the newest ones
  longcall calls --running
  longcall calls --server files --since 1h --json
  longcall calls show c_4f7x                       the start of an id is enough
  longcall calls follow c_4f7x
  longcall calls cancel c_4f7x --reason "wrong branch"`
}

type callsListCmd struct {
	stateFlags
	Running bool   `help:"Only calls that have not ended."`
	Server  string `placeholder:"NAME" help:"Only calls of this tool server."`
	Tool    string `placeholder:"NAME" help:"Only calls of this tool; * stands for anything."`
	Outcome string `placeholder:"OUTCOME" enum:",running,completed,failed,cancelled,timed_out,denied,interrupted" default:"" help:"Only calls that ended so: completed, failed, cancelled, timed_out, denied, interrupted; or running."`
	Since   string `placeholder:"WHEN" help:"Only calls that started since then: 10m, 2h, 7d, or a time such as 2026-11-30T08:00."`
	Limit   int    `short:"n" default:"30" placeholder:"N" help:"At most so many; 0 for all."`
	JSON    bool   `name:"json" help:"Print them as JSON, one call a line."`
}

// Help has the details and examples.
func (callsListCmd) Help() string {
	return `Examples:
  longcall calls
  longcall calls --running
  longcall calls --outcome timed_out --since 7d
  longcall calls --tool 'deploy*' --json | jq .id`
}

// callJSON is a call as scripts see it.
type callJSON struct {
	ID         call.ID         `json:"id"`
	Parent     call.ID         `json:"parent,omitempty"` // the call that started this one
	Child      int             `json:"child,omitempty"`  // its place there, from 1
	Server     string          `json:"server"`
	Tool       string          `json:"tool"`
	PublicTool string          `json:"public_tool,omitempty"`
	Outcome    string          `json:"outcome"` // running while it has not ended
	ToolError  bool            `json:"tool_error,omitempty"`
	ExitCode   *int            `json:"exit_code,omitempty"` // of a command of the shell that has one
	Code       int             `json:"code,omitempty"`
	By         string          `json:"by,omitempty"`
	Limit      string          `json:"limit,omitempty"`
	Text       string          `json:"text,omitempty"`
	Started    time.Time       `json:"started"`
	Dispatched *time.Time      `json:"dispatched,omitempty"`
	FirstByte  *time.Time      `json:"first_byte,omitempty"`
	Ended      *time.Time      `json:"ended,omitempty"`
	Seconds    float64         `json:"seconds"` // until the end, or until now
	Principal  string          `json:"principal"`
	Client     string          `json:"client,omitempty"`
	Era        string          `json:"era"`
	RequestID  string          `json:"request_id,omitempty"`
	Events     uint64          `json:"events"`
	Missing    uint64          `json:"missing,omitempty"`
	Bytes      uint64          `json:"bytes"`
	Arguments  json.RawMessage `json:"arguments,omitempty"` // as kept
	Digest     string          `json:"digest,omitempty"`
	Waits      bool            `json:"waits_for_input,omitempty"` // for an answer to what the tool asks
	HandedOff  bool            `json:"handed_off,omitempty"`      // an agent was told to ask later
	Owed       bool            `json:"owed,omitempty"`            // it has ended and nobody got the end
	Deliveries []deliveryJSON  `json:"deliveries"`
	Timeline   []eventJSON     `json:"timeline,omitempty"`
}

type deliveryJSON struct {
	How       call.How  `json:"how"`
	Kind      string    `json:"kind"`
	Era       string    `json:"era,omitempty"`
	Attached  time.Time `json:"attached"`
	Ended     time.Time `json:"ended"`
	FirstByte float64   `json:"first_byte_seconds"`
	Bytes     int64     `json:"bytes"`
	Events    int64     `json:"events"`
	Dropped   int64     `json:"dropped,omitempty"`
}

func set(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func newCallJSON(r *call.Record, deliveries []call.Delivery) callJSON {
	c := callJSON{
		ID: r.ID, Parent: r.Parent, Child: r.Index, Server: r.Server, Tool: r.Tool, PublicTool: r.PublicTool,
		Outcome: string(r.End.Outcome), ToolError: r.End.ToolError, Code: r.End.Code, By: r.End.By, Limit: r.End.Limit, Text: r.End.Text,
		Started: r.Started, Dispatched: set(r.Dispatched), FirstByte: set(r.FirstByte), Ended: set(r.Ended),
		Seconds: took(r).Seconds(), Principal: r.Principal, Client: r.Client, Era: r.Era, RequestID: r.RequestID,
		Events: r.Seq, Missing: r.Missing, Bytes: r.Bytes, Digest: r.Digest, Deliveries: []deliveryJSON{},
		HandedOff: had(deliveries, call.HandedOff), Owed: owed(r, deliveries),
	}
	if r.End.Outcome == call.Running {
		c.Outcome = "running"
	}
	if code, ok := exitCode(r); ok {
		c.ExitCode = &code
	}
	if json.Valid(r.Arguments) {
		c.Arguments = r.Arguments
	}
	for _, d := range deliveries {
		c.Deliveries = append(c.Deliveries, deliveryJSON{d.How, d.Kind, d.Era, d.Attached, d.Ended, d.FirstByte.Seconds(), d.Bytes, d.Events, d.Dropped})
	}
	return c
}

func took(r *call.Record) time.Duration {
	if r.Ended.IsZero() {
		return time.Since(r.Started)
	}
	return r.Ended.Sub(r.Started)
}

// since reads a moment: a time, or how long ago.
func since(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, err := strconv.ParseFloat(days, 64); err == nil && n >= 0 {
			return now.Add(-time.Duration(n * 24 * float64(time.Hour))), nil
		}
	}
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02"} {
		if t, err := time.ParseInLocation(layout, s, now.Location()); err == nil {
			return t, nil
		}
	}
	return time.Time{}, usage("--since: %q is neither a time (2026-11-30T08:00) nor how long ago (10m, 2h, 7d)", clean(s))
}

// page is how many calls are read of the journal at once.
const page = 500

// Run is the command.
func (c *callsListCmd) Run(r *runner) error {
	j, err := c.journal(r.sys)
	if err != nil {
		return err
	}
	defer closeJournal(j)
	from, err := since(c.Since, time.Now())
	if err != nil {
		return err
	}
	f := sqlite.Filter{Server: c.Server, Since: from, RunningOnly: c.Running}
	if !strings.ContainsAny(c.Tool, `*?[\`) {
		f.Tool = c.Tool
	}
	switch {
	case c.Outcome == "running":
		f.RunningOnly = true
	case c.Outcome != "" && c.Running:
		return usage("--running and --outcome %s exclude each other", c.Outcome)
	case c.Outcome != "":
		f.Outcome = call.Outcome(c.Outcome)
	}
	return c.print(r, j, f)
}

func match(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return err == nil && ok || pattern == name
}

func (c *callsListCmd) print(r *runner, j *sqlite.Reader, f sqlite.Filter) error {
	sys := r.sys
	enc := json.NewEncoder(sys.Out)
	enc.SetEscapeHTML(false)
	var rows [][]string
	n := 0
	err := eachCall(r.ctx, j, f, func(rec *call.Record) (bool, error) {
		if c.Tool != "" && !match(c.Tool, rec.Tool) && !match(c.Tool, rec.PublicTool) {
			return true, nil
		}
		d, err := j.Deliveries(r.ctx, rec.ID)
		if err != nil {
			return false, err
		}
		waits := false
		if rec.End.Outcome == call.Running {
			if waits, err = j.Asks(r.ctx, rec.ID); err != nil {
				return false, err
			}
		}
		if n++; c.JSON {
			v := newCallJSON(rec, d)
			v.Waits = waits
			err = enc.Encode(v)
		} else {
			row := c.row(sys, rec, d)
			if waits {
				row[4] += ", waits for input"
			}
			rows = append(rows, row)
		}
		return n != c.Limit, err
	})
	if err != nil || c.JSON {
		return err
	}
	if len(rows) == 0 {
		fmt.Fprintln(sys.Err, "no calls")
		return nil
	}
	width := 0
	if sys.OutTerminal {
		width = sys.width()
	}
	table(sys.Out, width, []string{"ID", "STARTED", "TOOK", "TOOL", "OUTCOME", "DELIVERY"}, rows)
	return nil
}

func (c *callsListCmd) row(sys *System, rec *call.Record, d []call.Delivery) []string {
	id := string(rec.ID)
	if sys.OutTerminal {
		id = shortID(rec.ID)
	}
	return []string{id, when(rec.Started, time.Now()), duration(took(rec)), toolWords(rec), recordWords(rec), deliveryWords(rec, d)}
}

// when is a time for people: of the clock today, with the day before.
func when(t, now time.Time) string {
	t = t.Local()
	if y, m, d := t.Date(); now.Year() == y && now.Month() == m && now.Day() == d {
		return t.Format("15:04:05")
	}
	return t.Format("2006-01-02 15:04")
}

type callsCancelCmd struct {
	whereFlags
	ID     string `arg:"" help:"Id of the call, or how it begins."`
	Reason string `placeholder:"TEXT" help:"Why; it is kept in the call's record, and the agent reads it."`
}

// Help has the details and examples.
func (callsCancelCmd) Help() string {
	return `It asks the longcall that runs the call, which tells the tool server and says so
to the agent. It returns when that was accepted; the call's end may come later.

Examples:
  longcall calls cancel c_4f7x
  longcall calls cancel c_4f7x --reason "wrong branch"`
}

// Run is the command.
func (c *callsCancelCmd) Run(r *runner) error {
	g, err := c.running(r.ctx, r.sys)
	if err != nil {
		return err
	}
	if g == nil {
		cfg, err := c.load(r.sys)
		if err != nil {
			return err
		}
		return noneRunning(cfg.State)
	}
	id := call.ID(c.ID)
	if g.state != "" {
		j, err := openJournal(g.state)
		if err != nil {
			return err
		}
		defer closeJournal(j)
		if id, err = findCall(r.ctx, j, c.ID); err != nil {
			return err
		}
	}
	if err := g.cancel(r.ctx, id, c.Reason); err != nil {
		return err
	}
	fmt.Fprintf(r.sys.Out, "cancel of %s was asked for; longcall calls follow %s shows the end\n", shortID(id), shortID(id))
	return nil
}

type callsFollowCmd struct {
	stateFlags
	ID   string `arg:"" help:"Id of the call, or how it begins."`
	JSON bool   `name:"json" help:"Print each event as JSON, one a line."`
}

// Help has the details and examples.
func (callsFollowCmd) Help() string {
	return `What has happened so far comes first, then what happens, until the end. Ctrl-C
stops the watching, not the call. The exit code is that of "longcall call":
0 completed, 1 tool error, 3 failed, 4 denied, 5 cancelled, 6 timed out,
7 interrupted, 8 JSON-RPC error.

Examples:
  longcall calls follow c_4f7x
  longcall calls follow c_4f7x --json`
}

// followEvery is how often the journal is looked at; longcall stores events a
// few milliseconds after they came.
const followEvery = 80 * time.Millisecond

// Run is the command.
func (c *callsFollowCmd) Run(r *runner) error {
	j, err := c.journal(r.sys)
	if err != nil {
		return err
	}
	defer closeJournal(j)
	id, err := findCall(r.ctx, j, c.ID)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(r.ctx)
	defer cancel(nil)
	sigs := make(chan os.Signal, 1)
	defer r.sys.Notify(sigs, os.Interrupt, syscall.SIGTERM)()
	go func() {
		select {
		case <-sigs:
			cancel(errInterrupted)
		case <-ctx.Done():
		}
	}()
	end, err := c.follow(ctx, r.sys, j, id)
	if errors.Is(err, errInterrupted) {
		fmt.Fprintf(r.sys.Err, "longcall: stopped watching; the call goes on (longcall calls cancel %s ends it)\n", shortID(id))
		return &exitError{code: 128 + int(syscall.SIGINT)}
	}
	if err != nil {
		return err
	}
	if code := outcomeCode(*end); code != exitOK {
		return &exitError{code: code}
	}
	return nil
}

func (c *callsFollowCmd) follow(ctx context.Context, sys *System, j *sqlite.Reader, id call.ID) (*call.End, error) {
	rec, err := j.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	t := &timeline{sys: sys, rec: rec, json: c.JSON}
	t.head()
	var m *meter
	if !c.JSON && sys.ErrTerminal {
		m = newMeter(sys, clean(rec.Server+"/"+rec.Tool))
		m.start = rec.Started
		defer m.close()
	}
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	after := uint64(0)
	for {
		events, next, err := readOn(ctx, j, id, after)
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			return nil, err
		}
		for i := range events {
			e := &events[i]
			if m != nil && e.Kind == call.KindProgress {
				m.progress(progressOf(e))
			}
			if m != nil {
				m.above(func() { t.event(e) })
			} else {
				t.event(e)
			}
			if e.Kind == call.KindEnd {
				return e.End, nil
			}
		}
		if next > after {
			after = next
			continue // there may be more
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// gap stands for events that are not kept.
const gap = call.Kind(0)

// readOn reads events after a position. Where some are not kept, an event of
// kind gap says how many, in its Seq, and reading goes on behind.
func readOn(ctx context.Context, j *sqlite.Reader, id call.ID, after uint64) (events []call.Event, next uint64, err error) {
	events, err = j.Read(ctx, id, after, 256<<10)
	if errors.Is(err, call.ErrGap) {
		if next, err = behindGap(ctx, j, id, after); err != nil {
			return nil, after, err
		}
		return []call.Event{{Kind: gap, Seq: next - after, Hole: -1}}, next, nil
	}
	if n := len(events); n > 0 {
		after = events[n-1].Seq
	}
	return events, after, err
}

// behindGap finds the first position after which an event is kept again.
func behindGap(ctx context.Context, j *sqlite.Reader, id call.ID, after uint64) (uint64, error) {
	rec, err := j.Get(ctx, id)
	if err != nil {
		return 0, err
	}
	missing := func(at uint64) (bool, error) {
		_, err := j.Read(ctx, id, at, 1)
		if errors.Is(err, call.ErrGap) {
			return true, nil
		}
		return false, err
	}
	// Few are missing where the queue was full; many where the cap was reached,
	// and then in one piece.
	low, high := after, max(rec.Seq, after+1)
	for range 64 {
		if low++; low >= high {
			return low, nil
		}
		if gone, err := missing(low); err != nil || !gone {
			return low, err
		}
	}
	for low+1 < high {
		mid := low + (high-low)/2
		gone, err := missing(mid)
		if err != nil {
			return 0, err
		}
		if gone {
			low = mid
		} else {
			high = mid
		}
	}
	return high, nil
}
