package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"time"

	"github.com/longcall/longcall/test/wire"
)

// answer is what an agent was told in the end.
type answer struct {
	kind    string // "result", "outcome", "task", "handle" or "error"
	outcome string // of longcall's own words
	ref     string // id of a task or handle
	text    string
	json    string
}

func (a *answer) String() string {
	if a == nil {
		return "nothing"
	}
	s := a.kind
	for _, v := range []string{a.outcome, a.ref} {
		if v != "" {
			s += " " + v
		}
	}
	if a.kind != "result" {
		s += ": " + clip(a.json, 300)
	}
	return s
}

func clip(s string, n int) string {
	if len(s) > n {
		return s[:n] + "…"
	}
	return s
}

// read classifies the result or error of a response. want is the text of the
// tool's own result.
func readAnswer(m wire.Msg, want string) (*answer, error) {
	a := &answer{json: m.JSON, text: m.ToolText()}
	switch {
	case m.Error != nil:
		a.kind = "error"
		return a, nil
	case m.Str("result.resultType") == "task":
		a.kind, a.ref = "task", m.Str("result.taskId")
	case m.Str("result.task.taskId") != "":
		a.kind, a.ref = "task", m.Str("result.task.taskId")
	case m.At("result._meta.dev/longcall/handoff") != nil:
		a.kind, a.ref = "handle", m.Str("result._meta.dev/longcall/handoff.call")
	case a.text == want:
		a.kind = "result"
		if m.At("result._meta.dev/longcall/outcome") != nil {
			return a, fmt.Errorf("the tool's own result is marked as longcall's words: %s", clip(m.JSON, 400))
		}
	case m.At("result._meta.dev/longcall/outcome") != nil:
		a.kind, a.outcome = "outcome", m.Str("result._meta.dev/longcall/outcome")
		if a.outcome == "" {
			a.outcome = m.Str("result._meta.dev/longcall/outcome.outcome")
		}
		if string(m.At("result.isError")) != "true" || strings.Contains(a.text, mark) {
			return a, fmt.Errorf("longcall's own words look like a success: %s", clip(m.JSON, 400))
		}
	default:
		return a, fmt.Errorf("an answer that is none for this call: %s", clip(m.JSON, 400))
	}
	return a, nil
}

// attempt is one request of an agent and what came back.
type attempt struct {
	what      string // "call", "resume", "tasks/get", ...
	id        string // of the request whose response is awaited, raw
	start     time.Duration
	end       time.Duration
	port      string // our end of the connection
	status    int
	bytes     int
	events    int
	first     string // event id that it resumed from
	err       error
	abandoned bool    // we hung up
	answer    *answer // with its whole frame
	answered  time.Time
}

func (t *attempt) String() string {
	s := fmt.Sprintf("%5dms-%5dms %s id=%s", t.start.Milliseconds(), t.end.Milliseconds(), t.what, t.id)
	if t.first != "" {
		s += " after ." + t.first[strings.LastIndexByte(t.first, '.')+1:]
	}
	s += fmt.Sprintf(" HTTP %d, %d bytes, %d events", t.status, t.bytes, t.events)
	if t.abandoned {
		s += ", hung up"
	}
	if t.err != nil {
		s += fmt.Sprintf(", %v", t.err)
	}
	if t.answer != nil {
		s += ", got " + t.answer.String()
	}
	return s
}

// silence is how long an agent waits for the next byte of a stream before it
// takes the connection for dead. longcall shows life every 200 ms.
const silence = 2500 * time.Millisecond

var errSilent = errors.New("silent for too long")

// request is an HTTP request of an agent.
type request struct {
	what, verb, path, id, body string
	header                     map[string]string
	// message takes each whole message of the answer; it returns true when no
	// more is wanted.
	message func(m wire.Msg) bool
	eventID func(id string)
}

// send sends one request on a connection of its own, and reads the answer to its
// end, or to the message that is the last.
func (a *agent) send(ctx context.Context, r request) *attempt {
	t := &attempt{what: r.what, id: r.id, start: a.r.since(), first: r.header["Last-Event-Id"]}
	a.note(t)
	defer func() { t.end = a.r.since() }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	quiet := time.AfterFunc(silence, func() { cancel(errSilent) })
	defer quiet.Stop()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
		t.port = i.Conn.LocalAddr().String()
	}})
	req, err := http.NewRequestWithContext(ctx, r.verb, "http://"+a.r.front.addr+r.path, strings.NewReader(r.body))
	if err != nil {
		t.err = err
		return t
	}
	for k, v := range r.header {
		req.Header.Set(k, v)
	}
	req.Header.Set("Authorization", "Bearer "+a.token)
	req.Header.Set("Accept", "application/json, text/event-stream")
	if r.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	tr := &http.Transport{DisableKeepAlives: true, DisableCompression: true}
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.fail(ctx, err)
		return t
	}
	defer resp.Body.Close()
	t.status = resp.StatusCode
	a.session(resp)
	sse := strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream")
	var split wire.Splitter
	var whole []byte
	buf := make([]byte, 16<<10)
	for {
		n, err := resp.Body.Read(buf)
		quiet.Reset(silence)
		t.bytes += n
		if !sse {
			whole = append(whole, buf[:n]...)
		} else {
			for _, i := range split.Feed(buf[:n], 0) {
				if i.HasID && r.eventID != nil {
					r.eventID(i.ID)
				}
				if m, ok := i.Msg(); ok {
					t.events++
					if r.message(m) {
						return t
					}
				} else if !i.Comment && i.Data != "" {
					a.wrong("an event that is no message: %q", clip(i.Data, 200))
				}
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			t.fail(ctx, err)
			return t
		}
	}
	if !sse && len(whole) > 0 {
		m, ok := wire.ParseMsg(string(whole))
		if !ok {
			a.wrong("HTTP %d with a body that is no message: %q", t.status, clip(string(whole), 200))
			return t
		}
		t.events++
		r.message(m)
	}
	return t
}

func (t *attempt) fail(ctx context.Context, err error) {
	t.err = err
	if cause := context.Cause(ctx); cause != nil {
		t.abandoned, t.err = true, cause
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		t.err = errors.New("refused")
	}
}

// legacyHeader are the headers of a request in a session.
func (a *agent) legacyHeader() map[string]string {
	h := map[string]string{"Mcp-Protocol-Version": wire.Legacy}
	if a.sessionID != "" {
		h["Mcp-Session-Id"] = a.sessionID
	}
	return h
}

// modernHeader are the headers of a stateless request.
func modernHeader(method, name string) map[string]string {
	h := map[string]string{"Mcp-Protocol-Version": wire.Modern, "Mcp-Method": method}
	if name != "" {
		h["Mcp-Name"] = name
	}
	return h
}

// modernMeta are the members of a stateless request's _meta.
func (a *agent) modernMeta() string {
	caps := `{}`
	if a.tasks {
		caps = `{"extensions":{"io.modelcontextprotocol/tasks":{}}}`
	}
	return `"io.modelcontextprotocol/protocolVersion":"` + wire.Modern + `","io.modelcontextprotocol/clientCapabilities":` + caps +
		`,"io.modelcontextprotocol/clientInfo":{"name":` + wire.Quote(a.name) + `,"version":"1"}`
}

// body makes a request. Params and meta are members without braces.
func body(id, method, params, meta string) string {
	s := `{"jsonrpc":"2.0"`
	if id != "" {
		s += `,"id":` + id
	}
	s += `,"method":` + strconv.Quote(method)
	if params != "" || meta != "" {
		s += `,"params":{` + params
		if meta != "" {
			if params != "" {
				s += ","
			}
			s += `"_meta":{` + meta + `}`
		}
		s += `}`
	}
	return s + `}`
}
