package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

type callsShowCmd struct {
	stateFlags
	ID   string `arg:"" help:"Id of the call, or how it begins."`
	JSON bool   `name:"json" help:"Print all that is known as JSON, bodies whole."`
	Full bool   `help:"Print the bodies of events whole."`
}

// Help has the details and examples.
func (callsShowCmd) Help() string {
	return `Times are relative to the moment when the call was accepted. Text of tools and
agents is shown as text: nothing in it can move the cursor or turn the reading
direction.

Examples:
  longcall calls show c_4f7x
  longcall calls show c_4f7x --full
  longcall calls show c_4f7x --json | jq .timeline`
}

// Run is the command.
func (c *callsShowCmd) Run(r *runner) error {
	cfg, err := c.load(r.sys)
	if err != nil {
		return err
	}
	return showCall(r, cfg.State, c.ID, c.JSON, c.Full)
}

// showCall prints a call and its whole timeline.
func showCall(r *runner, state, prefix string, asJSON, full bool) error {
	j, err := openJournal(state)
	if err != nil {
		return err
	}
	defer closeJournal(j)
	id, err := findCall(r.ctx, j, prefix)
	if err != nil {
		return err
	}
	rec, err := j.Get(r.ctx, id)
	if err != nil {
		return err
	}
	deliveries, err := j.Deliveries(r.ctx, id)
	if err != nil {
		return err
	}
	var events []call.Event
	for after := uint64(0); ; {
		part, next, err := readOn(r.ctx, j, id, after)
		if err != nil {
			return err
		}
		events = append(events, part...)
		if next == after {
			break
		}
		after = next
	}
	if asJSON {
		v := newCallJSON(rec, deliveries)
		v.Timeline = []eventJSON{}
		for i := range events {
			v.Timeline = append(v.Timeline, newEventJSON(rec, &events[i]))
		}
		return printJSON(r.sys.Out, v)
	}
	t := &timeline{sys: r.sys, rec: rec, full: full}
	t.head()
	for i := range events {
		t.event(&events[i])
	}
	t.deliveries(deliveries)
	return nil
}

// eventJSON is one event of a timeline.
type eventJSON struct {
	Seq     uint64          `json:"seq,omitempty"`
	Kind    string          `json:"kind"` // "gap" for events that are not kept
	Time    *time.Time      `json:"time,omitempty"`
	After   float64         `json:"after_seconds"`
	Message json.RawMessage `json:"message,omitempty"` // of the tool server; its id or token is 0; of ask and answer, the keys
	Text    string          `json:"text,omitempty"`    // in longcall's words
	Missing uint64          `json:"missing,omitempty"`
	Outcome string          `json:"outcome,omitempty"`
}

func newEventJSON(rec *call.Record, e *call.Event) eventJSON {
	if e.Kind == gap {
		return eventJSON{Kind: "gap", Missing: e.Seq}
	}
	v := eventJSON{Seq: e.Seq, Kind: e.Kind.String(), Time: set(e.Time), After: e.Time.Sub(rec.Started).Seconds()}
	if body := shownBody(e); json.Valid(body) {
		v.Message = body
	} else {
		v.Text = string(body)
	}
	if e.End != nil {
		v.Outcome = string(e.End.Outcome)
		if v.Text == "" {
			v.Text = e.End.Text
		}
	}
	return v
}

// timeline prints a call as people read it.
type timeline struct {
	sys  *System
	rec  *call.Record
	json bool
	full bool
}

func (t *timeline) style(code, s string) string {
	if !t.sys.OutTerminal {
		return s
	}
	return t.sys.style(code, s)
}

func (t *timeline) head() {
	if t.json {
		return
	}
	r := t.rec
	w := t.sys.Out
	line := func(label, value string) {
		if value != "" {
			fmt.Fprintf(w, "  %-10s %s\n", label, value)
		}
	}
	fmt.Fprintf(w, "%s  %s\n", t.style("1", string(r.ID)), clean(r.Server+"/"+r.Tool))
	end := recordWords(r)
	if r.End.Outcome == call.Running {
		end += " for " + duration(took(r))
	} else {
		end += " after " + duration(took(r))
	}
	line("outcome", t.style(recordColor(r), end))
	line("", clean(r.End.Text))
	if r.Parent != "" {
		line("part of", string(r.Parent)+", command "+strconv.Itoa(r.Index))
	}
	line("started", r.Started.Local().Format("2006-01-02 15:04:05.000 MST"))
	if !r.Dispatched.IsZero() && !r.FirstByte.IsZero() {
		line("first byte", duration(r.FirstByte.Sub(r.Dispatched))+" after dispatch")
	}
	line("asked by", clean(strings.Join(nonEmpty(r.Principal, r.Client, "MCP "+r.Era), ", ")))
	args := clean(string(r.Arguments))
	if !t.full {
		args = t.short(args, 13)
	}
	line("arguments", args)
	if r.Missing > 0 {
		line("not kept", strconv.FormatUint(r.Missing, 10)+" events")
	}
	fmt.Fprintln(w)
}

func nonEmpty(list ...string) []string {
	var out []string
	for _, s := range list {
		if s != "" {
			out = append(out, s)
		}
	}
	return out
}

// short cuts text to what is left of the line after used columns.
func (t *timeline) short(s string, used int) string {
	width := 200
	if t.sys.OutTerminal {
		width = max(t.sys.width(), 40)
	}
	return cut(s, width-used)
}

func (t *timeline) event(e *call.Event) {
	w := t.sys.Out
	if t.json {
		b, err := json.Marshal(newEventJSON(t.rec, e))
		if err == nil {
			fmt.Fprintln(w, string(b))
		}
		return
	}
	if e.Kind == gap {
		fmt.Fprintf(w, "%s  %s\n", strings.Repeat(" ", 10), t.style("33", strconv.FormatUint(e.Seq, 10)+" events are not kept here"))
		return
	}
	at := pad("+"+seconds(e.Time.Sub(t.rec.Started)), 10)
	kind := e.Kind.String()
	body := eventText(e)
	if raw := shownBody(e); t.full && len(raw) > 0 {
		body = clean(string(raw))
	} else {
		body = t.short(body, 10+2+16+2)
	}
	shown := fmt.Sprintf("%-16s", kind)
	if e.End != nil {
		shown = t.style(outcomeColor(*e.End), shown)
	}
	fmt.Fprintln(w, strings.TrimRight(t.style("2", at)+"  "+shown+"  "+body, " "))
}

// seconds is a time in a timeline, to the millisecond.
func seconds(d time.Duration) string {
	if d >= time.Hour {
		return fmt.Sprintf("%d:%02d:%06.3f", int(d.Hours()), int(d.Minutes())%60, (d % time.Minute).Seconds())
	}
	if d >= time.Minute {
		return fmt.Sprintf("%d:%06.3f", int(d.Minutes()), (d % time.Minute).Seconds())
	}
	return strconv.FormatFloat(d.Seconds(), 'f', 3, 64)
}

// eventText is an event in one line.
func eventText(e *call.Event) string {
	switch e.Kind {
	case call.KindProgress:
		value, total, text := progressOf(e)
		s := number(value)
		if total > 0 {
			s += "/" + number(total)
		}
		return strings.TrimSpace(s + "  " + clean(text))
	case call.KindEnd:
		s := outcomeWords(*e.End)
		if e.End.Text != "" {
			return s + ": " + clean(e.End.Text)
		}
		if text := resultText(e.Body); text != "" {
			return s + ": " + text
		}
		return s
	case call.KindMessage, call.KindLateResult:
		return clean(string(bytes.TrimSpace(e.Body)))
	case call.KindAddress:
		if len(e.Body) == 0 {
			return "from here on it cannot be found again at the tool server"
		}
		return "it can be found again at the tool server"
	case call.KindAsk, call.KindAnswer:
		return keysText(e)
	}
	return clean(string(e.Body))
}

// progressOf reads a progress event.
func progressOf(e *call.Event) (value, total float64, text string) {
	m, err := mcp.Parse(e.Body)
	if err != nil {
		return 0, 0, ""
	}
	_ = json.Unmarshal(m.Progress.Of(m.Raw), &value)
	if m.Total.Ok() {
		_ = json.Unmarshal(m.Total.Of(m.Raw), &total)
	}
	text, _ = mcp.String(m.Text.Of(m.Raw))
	return value, total, text
}

// resultText is the first text of a response, or its error.
func resultText(body []byte) string {
	var v struct {
		Result *struct {
			Content []struct {
				Type string `json:"type"`
				Text string `json:"text"`
			} `json:"content"`
		} `json:"result"`
		Error *struct {
			Code    int    `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(body, &v) != nil {
		return ""
	}
	if v.Error != nil {
		return clean(v.Error.Message)
	}
	if v.Result != nil {
		for _, c := range v.Result.Content {
			if c.Type == "text" {
				return clean(c.Text)
			}
		}
	}
	return ""
}
