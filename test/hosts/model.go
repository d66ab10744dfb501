//go:build unix

package hosts

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// ToolName is the tool that the scripted model calls, and awaitName the one
// that it is told to call when that takes long.
const (
	ToolName  = "slow"
	awaitName = "await_call"
	listName  = "list_calls"
)

// lookEvery is after how many results the scripted model looks at its calls
// instead of awaiting one: Gemini CLI stops a model that makes the same call five
// times in a row, and opencode asks its user at the third.
const lookEvery = 3

// maxTurns bounds how often the scripted model asks for a tool.
const maxTurns = 60

// Model is a scripted model on loopback: it asks for one call of Tool with Args. As
// long as a result says that the call still runs, it awaits that call, as
// the result tells it to, with a look at its calls now and then; then it says
// what the tool gave. It speaks the model APIs of the four hosts:
// Anthropic's messages, OpenAI's responses and chat completions, and Gemini's
// generateContent.
type Model struct {
	URL  string
	Tool string // ToolName unless a test says another before the host runs
	Args map[string]any

	mu      sync.Mutex
	results []string // what came back from tools, as the host gave it to the model
	said    []string // what could not be understood
}

// NewModel starts a scripted model until the test's cleanup.
func NewModel(t testing.TB) *Model {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := &Model{URL: "http://" + ln.Addr().String(), Tool: ToolName, Args: object{}}
	srv := &http.Server{Handler: m, ReadHeaderTimeout: time.Minute}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(ln) // ends with Close
	}()
	t.Cleanup(func() { srv.Close(); <-done })
	return m
}

// Looked says whether the result at an index is that of a look at the calls.
func Looked(i int) bool { return i > 0 && i%lookEvery == 0 }

// Results lists what the host gave the model as results of its tool call.
func (m *Model) Results() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]string(nil), m.results...)
}

// Unknown lists requests that the scripted model had no answer for.
func (m *Model) Unknown() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]string(nil), m.said...)
}

type object = map[string]any

func (m *Model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	var body object
	if err != nil || len(b) > 0 && json.Unmarshal(b, &body) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	path := strings.ToLower(r.URL.Path)
	switch {
	case strings.HasSuffix(path, "/count_tokens"):
		reply(w, object{"input_tokens": 10})
	case strings.HasSuffix(path, ":counttokens"):
		reply(w, object{"totalTokens": 10})
	case strings.HasSuffix(path, "/messages"):
		m.anthropic(w, body)
	case strings.HasSuffix(path, "/responses"):
		m.responses(w, body)
	case strings.HasSuffix(path, "/chat/completions"):
		m.chat(w, body)
	case strings.HasSuffix(path, "generatecontent"):
		m.gemini(w, body, strings.Contains(path, ":stream"))
	default:
		m.mu.Lock()
		m.said = append(m.said, r.Method+" "+r.URL.Path)
		m.mu.Unlock()
		w.WriteHeader(http.StatusNotFound)
		reply(w, object{"error": object{"type": "not_found_error", "message": "a scripted model has no " + r.URL.Path}})
	}
}

// turn is what the model does next: it calls a tool, or says something.
type turn struct {
	tool object // as the host listed it; nil for words
	args object
	say  string
}

var callID = regexp.MustCompile(`\bc_[a-z2-7]{26}\b`)

// running is the id of the call that a tool result says is still running; empty
// if it says no such thing.
func running(result string) string {
	if low := strings.ToLower(result); !strings.Contains(low, "still running") && !strings.Contains(low, "not finished") {
		return ""
	}
	return callID.FindString(result)
}

// next notes the tool results of a request, and says what the model does now.
// The tools are those that the host offers.
func (m *Model) next(tools []object, name func(object) string, results []string) turn {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(results) > len(m.results) {
		m.results = results
	}
	wanted, args := m.Tool, m.Args
	if n := len(results); n > 0 {
		id := running(results[n-1])
		if n > 1 && n%lookEvery == 1 { // it has just looked
			id = running(results[n-2])
		}
		if id == "" || n > maxTurns {
			return turn{say: "The tool said: " + results[n-1]}
		}
		wanted, args = awaitName, object{"ids": []string{id}}
		if n%lookEvery == 0 {
			wanted, args = listName, object{}
		}
	}
	for own := range 2 { // Codex has an exec_command of its own: those of servers come first
		for _, t := range tools {
			if strings.HasSuffix(name(t), wanted) && (own == 1 || name(t) != wanted || t["namespace"] != nil) {
				return turn{tool: t, args: args}
			}
		}
	}
	return turn{say: "There is no tool " + wanted + "."}
}

func id(prefix string) string { return prefix + rand.Text() }

func reply(w http.ResponseWriter, v any) {
	if w.Header().Get("Content-Type") == "" {
		w.Header().Set("Content-Type", "application/json")
	}
	_, _ = io.WriteString(w, encode(v)) // a host that has left is noticed by its test
}

func encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // it is made of maps, slices and strings
	}
	return string(b)
}

// sse starts an event stream and returns its writer.
func sse(w http.ResponseWriter) func(event string, data any) {
	w.Header().Set("Content-Type", "text/event-stream")
	return func(event string, data any) {
		if event != "" {
			fmt.Fprintf(w, "event: %s\n", event)
		}
		fmt.Fprint(w, "data: ")
		if s, ok := data.(string); ok {
			fmt.Fprint(w, s)
		} else {
			reply(w, data)
		}
		fmt.Fprint(w, "\n\n")
	}
}

// list is a member of an object that holds objects.
func list(o object, key string) (out []object) {
	a, _ := o[key].([]any)
	for _, x := range a {
		if m, ok := x.(object); ok {
			out = append(out, m)
		}
	}
	return out
}

func str(o object, key string) string {
	s, _ := o[key].(string)
	return s
}

// text is a value as a model would read it.
func text(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	return encode(v)
}
