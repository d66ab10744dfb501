// Package wire plays the two ends of MCP in tests, byte by byte: a scripted tool server, over HTTP or as a child, whose chunk borders, delays and closes are exact, and an agent that notes when every byte came.
//
// In CASES.md the scripted server is called up (Upstream, Child) and the agent
// dn (Client). The package uses nothing of the product, so that a fault in the
// product's framing cannot hide itself.
package wire

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The protocol revisions that the harness speaks.
const (
	Legacy = "2025-11-25"
	Modern = "2026-07-28"
)

// Accept values of an agent.
const (
	AcceptBoth = "application/json, text/event-stream"
	AcceptJSON = "application/json"
)

// modern says whether a revision is stateless.
func modern(version string) bool { return version >= Modern }

// Raw is JSON as it stood on the wire. Nil means that the member was absent.
type Raw = json.RawMessage

// Msg is one JSON-RPC message with the members that tests look at.
type Msg struct {
	JSON   string // the message as it stood on the wire
	Method string `json:"method"`
	ID     Raw    `json:"id"`
	Params Raw    `json:"params"`
	Result Raw    `json:"result"`
	Error  Raw    `json:"error"`
}

// ParseMsg reads one message; ok is false if text is not a JSON object.
func ParseMsg(text string) (m Msg, ok bool) {
	if json.Unmarshal([]byte(text), &m) != nil {
		return Msg{}, false
	}
	m.JSON = text
	return m, true
}

// Response says whether the message answers a request.
func (m Msg) Response() bool { return m.Method == "" && (m.Result != nil || m.Error != nil) }

// At is the raw JSON at a path of object members and array indexes in text,
// such as "params.progressToken" or "result.content.0.text". Nil means that
// there is none. A member whose name has a dot is written with "/" for it.
func At(text string, path string) Raw {
	raw := Raw(text)
	for key := range strings.SplitSeq(path, ".") {
		if i, err := strconv.Atoi(key); err == nil && bytes.HasPrefix(bytes.TrimSpace(raw), []byte("[")) {
			var a []Raw
			if json.Unmarshal(raw, &a) != nil || i >= len(a) {
				return nil
			}
			raw = a[i]
			continue
		}
		var o map[string]Raw
		if json.Unmarshal(raw, &o) != nil {
			return nil
		}
		raw = nil
		for name, v := range o {
			if name == key || strings.ReplaceAll(name, ".", "/") == key {
				raw = v
			}
		}
		if raw == nil {
			return nil
		}
	}
	return raw
}

// At is the raw JSON at a path in the message.
func (m Msg) At(path string) Raw { return At(m.JSON, path) }

// Str is the JSON string at a path in the message, unquoted; "" if there is none.
func (m Msg) Str(path string) string {
	var s string
	_ = json.Unmarshal(m.At(path), &s) // what is no string counts as none
	return s
}

// ToolText is the text of the first content item of a tool's result.
func (m Msg) ToolText() string { return m.Str("result.content.0.text") }

// Outcome is what longcall says about the call, from the result's _meta.
func (m Msg) Outcome() Raw { return m.At("result._meta.dev/longcall/outcome") }

// Quote makes a JSON string.
func Quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // strings always marshal
	}
	return string(b)
}

// Progress makes a notifications/progress. Token and value are raw JSON; total
// and text may be empty.
func Progress(token, value, total, text string) string {
	b := `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":` + token + `,"progress":` + value
	if total != "" {
		b += `,"total":` + total
	}
	if text != "" {
		b += `,"message":` + Quote(text)
	}
	return b + `}}`
}

// Log makes a notifications/message.
func Log(level, text string) string {
	return `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"` + level + `","data":` + Quote(text) + `}}`
}

// ServerRequest makes a request of the server to the agent.
func ServerRequest(id, method, params string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `","params":` + params + `}`
}

// Event is a server-sent event of type message, with LF line ends. An empty id
// is left out.
func Event(id, data string) string {
	if id != "" {
		id = "id: " + id + "\n"
	}
	return id + "event: message\ndata: " + data + "\n\n"
}

// Bytewise cuts b into single bytes, to be sent as one segment each.
func Bytewise(b string) []string {
	out := make([]string, len(b))
	for i := range len(b) {
		out[i] = b[i : i+1]
	}
	return out
}

// waitFor polls done, woken by each receive of the channel that changed gives,
// until it is true or the time is over, and says which. It is for things that
// real sockets and processes do.
func waitFor(limit time.Duration, changed func() <-chan struct{}, done func() bool) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		wake := changed()
		if done() {
			return true
		}
		select {
		case <-wake:
		case <-timer.C:
			return done()
		}
	}
}

// Timeout is how long helpers without a limit of their own wait before they
// fail the test.
const Timeout = 30 * time.Second

func fatalIf(t testing.TB, bad bool, format string, args ...any) {
	if bad {
		t.Helper()
		t.Fatalf(format, args...)
	}
}
