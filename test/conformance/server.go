//go:build unix

// Package conformance runs the official conformance suite's scenarios for the tasks extension against longcall, with a server behind it that has the suite's tools.
package conformance

import (
	"crypto/rand"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	revision  = "2026-07-28"
	extension = "io.modelcontextprotocol/tasks"

	metaVersion      = "io.modelcontextprotocol/protocolVersion"
	metaCapabilities = "io.modelcontextprotocol/clientCapabilities"

	codeInvalidParams     = -32602
	codeMethodNotFound    = -32601
	codeInternal          = -32603
	codeHeaderMismatch    = -32020
	codeMissingCapability = -32021
)

// TaskPrefix begins the id of every task of the server, so that a test can see
// whether one got through to where it must not.
const TaskPrefix = "fixture-task-"

type object = map[string]any

// Server is a tool server of 2026-07-28 with the tasks extension and the tools
// that the suite asks for. A tool that can be a task is one for every client
// that declared the extension on the request.
type Server struct {
	URL string

	mu    sync.Mutex
	runs  map[string]int // by tool, how often it began
	tasks map[string]*task
	work  sync.WaitGroup
	stop  chan struct{} // closed when the server ends
}

// NewServer starts a server on loopback until the test's cleanup.
func NewServer(t testing.TB) *Server {
	t.Helper()
	s := &Server{runs: map[string]int{}, tasks: map[string]*task{}, stop: make(chan struct{})}
	web := httptest.NewServer(s)
	s.URL = web.URL + "/mcp"
	t.Cleanup(func() {
		close(s.stop)
		web.Close()
		s.work.Wait()
	})
	return s
}

// Runs says how often each tool began to run.
func (s *Server) Runs() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.runs)
}

// Open counts the tasks that have not ended.
func (s *Server) Open() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tasks {
		if !t.ended() {
			n++
		}
	}
	return n
}

// request is one JSON-RPC request or notification.
type request struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		Name           string            `json:"name"`
		Arguments      object            `json:"arguments"`
		TaskID         string            `json:"taskId"`
		InputResponses map[string]object `json:"inputResponses"`
		RequestState   string            `json:"requestState"`
		Meta           object            `json:"_meta"`
	} `json:"params"`
}

// declares says whether the client declared the tasks extension on this request.
func (r *request) declares() bool {
	capabilities, _ := r.Params.Meta[metaCapabilities].(object)
	extensions, _ := capabilities["extensions"].(object)
	return extensions[extension] != nil
}

// fault is a JSON-RPC error, and the HTTP status that it comes with.
type fault struct {
	status  int
	Code    int    `json:"code"`
	Message string `json:"message"`
	Data    object `json:"data,omitempty"`
}

func invalid(text string) *fault {
	return &fault{status: http.StatusOK, Code: codeInvalidParams, Message: text}
}

func undeclared() *fault {
	return &fault{
		status: http.StatusBadRequest, Code: codeMissingCapability, Message: "this needs the extension " + extension,
		Data: object{"requiredCapabilities": object{"extensions": object{extension: object{}}}},
	}
}

func (s *Server) ServeHTTP(w http.ResponseWriter, h *http.Request) {
	if h.Method != http.MethodPost {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	body, err := io.ReadAll(h.Body)
	if err != nil {
		return // the client has left
	}
	var r request
	if err := json.Unmarshal(body, &r); err != nil || r.Method == "" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if r.ID == nil {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	answer := object{"jsonrpc": "2.0", "id": r.ID}
	status := http.StatusOK
	if result, f := s.serve(h, &r); f != nil {
		answer["error"], status = f, f.status
	} else {
		if result["resultType"] == nil {
			result["resultType"] = "complete"
		}
		answer["result"] = result
	}
	b, err := json.Marshal(answer)
	if err != nil {
		panic(err) // it is made of maps, slices and strings
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(b) // a client that has left is none of the server's business
}

// target says which header and member name the target of a request.
func target(r *request) (name string, ok bool) {
	switch r.Method {
	case "tools/call":
		return r.Params.Name, true
	case "tasks/get", "tasks/update", "tasks/cancel":
		return r.Params.TaskID, true
	}
	return "", false
}

func (s *Server) serve(h *http.Request, r *request) (object, *fault) {
	version, _ := r.Params.Meta[metaVersion].(string)
	capabilities, ok := r.Params.Meta[metaCapabilities].(object)
	name, hasName := target(r)
	switch {
	case version == "" || !ok || capabilities == nil:
		return nil, &fault{status: http.StatusBadRequest, Code: codeInvalidParams, Message: "params._meta says neither version nor capabilities"}
	case h.Header.Get("Mcp-Protocol-Version") != version || version != revision:
		return nil, &fault{status: http.StatusBadRequest, Code: codeHeaderMismatch, Message: "the version header and _meta differ"}
	case h.Header.Get("Mcp-Method") != r.Method || hasName && h.Header.Get("Mcp-Name") != name:
		return nil, &fault{status: http.StatusBadRequest, Code: codeHeaderMismatch, Message: "a header and the body differ"}
	}
	switch r.Method {
	case "server/discover":
		return lasting(object{
			"supportedVersions": []string{revision},
			"capabilities":      object{"tools": object{}, "extensions": object{extension: object{}}},
			"_meta":             object{"io.modelcontextprotocol/serverInfo": object{"name": "tasks-fixture", "version": "1"}},
		}), nil
	case "tools/list":
		return lasting(object{"tools": list()}), nil
	case "tools/call":
		return s.call(r)
	case "tasks/get", "tasks/update", "tasks/cancel":
		return s.onTask(r)
	}
	return nil, &fault{status: http.StatusNotFound, Code: codeMethodNotFound, Message: "no method " + r.Method}
}

// lasting says how long a result may be kept.
func lasting(result object) object {
	result["ttlMs"], result["cacheScope"] = 60_000, "private"
	return result
}

// call runs a tool: at once, or as a task.
func (s *Server) call(r *request) (object, *fault) {
	tool, ok := tools[r.Params.Name]
	if !ok {
		return nil, invalid("no tool " + r.Params.Name)
	}
	if tool.required && !r.declares() {
		return nil, undeclared()
	}
	if tool.before != nil {
		if ask := tool.before(r); ask != nil {
			return ask, nil
		}
	}
	s.mu.Lock()
	s.runs[r.Params.Name]++
	s.mu.Unlock()
	t := newTask(TaskPrefix + rand.Text())
	if tool.sync || !r.declares() {
		tool.run(t, r, s.stop)
		return t.outcome()
	}
	s.mu.Lock()
	s.tasks[t.id] = t
	s.mu.Unlock()
	created := t.created() // before it runs: a task is born working
	s.work.Go(func() { tool.run(t, r, s.stop) })
	return created, nil
}

func (s *Server) onTask(r *request) (object, *fault) {
	if !r.declares() {
		return nil, undeclared()
	}
	s.mu.Lock()
	t := s.tasks[r.Params.TaskID]
	s.mu.Unlock()
	if t == nil {
		return nil, invalid("no such task")
	}
	switch r.Method {
	case "tasks/update":
		t.answer(r.Params.InputResponses)
	case "tasks/cancel":
		t.cancel()
	default:
		return t.get(), nil
	}
	return object{}, nil
}

// number is a numeric argument; 0 if there is none.
func number(arguments object, name string) float64 {
	n, _ := arguments[name].(float64)
	return n
}

func str(o object, name string) string {
	s, _ := o[name].(string)
	return s
}

// words is a tool result of text.
func words(isError bool, text ...string) object {
	return object{"resultType": "complete", "content": []object{{"type": "text", "text": strings.Join(text, " ")}}, "isError": isError}
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }
