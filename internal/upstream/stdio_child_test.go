//go:build unix

package upstream

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// The test binary runs itself as the scripted tool server: childFlags in its
// environment say how it behaves, and each call's arguments what it does.
const childFlags = "TEST_CHILD"

func init() {
	flags, ok := os.LookupEnv(childFlags)
	if !ok {
		return
	}
	c := &child{flags: map[string]string{}, asked: map[string]chan json.RawMessage{}, held: map[string]chan struct{}{}, cancelled: map[string]chan struct{}{}}
	for f := range strings.FieldsSeq(flags) {
		name, value, _ := strings.Cut(f, "=")
		c.flags[name] = value
	}
	c.run()
	os.Exit(0)
}

type child struct {
	flags map[string]string

	out sync.Mutex

	mu        sync.Mutex
	methods   []string
	cancels   []string
	calls     int
	asked     map[string]chan json.RawMessage
	held      map[string]chan struct{}
	cancelled map[string]chan struct{}
	initd     bool
}

func (c *child) has(flag string) bool { _, ok := c.flags[flag]; return ok }

func (c *child) number(flag string) int {
	n, _ := strconv.Atoi(c.flags[flag])
	return n
}

type childMessage struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
		RequestID string          `json:"requestId"`
		Meta      struct {
			ProgressToken json.RawMessage `json:"progressToken"`
			Version       string          `json:"io.modelcontextprotocol/protocolVersion"`
		} `json:"_meta"`
	} `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
	raw    []byte
}

type childArguments struct {
	Do   string `json:"do"`
	N    int    `json:"n"`
	Key  string `json:"key"`
	Text string `json:"text"`
}

func (c *child) run() {
	if ms := c.number("sleeper"); ms > 0 { // a grandchild
		signal.Ignore(syscall.SIGTERM)
		<-time.After(time.Duration(ms) * time.Millisecond)
		return
	}
	if c.has("parent") { // a longcall that will be killed
		p, err := startProcess(childServer("legacy lingers"))
		if err != nil {
			panic(err)
		}
		fmt.Println(p.pid)
		select {}
	}
	if c.has("deaf") {
		signal.Ignore(syscall.SIGTERM)
	}
	if text := c.flags["dies"]; text != "" {
		fmt.Fprintf(os.Stderr, "cannot start:\n%s\x1b[31m and more\a\n", text)
		os.Exit(7)
	}
	if f := c.flags["once"]; f != "" { // dies at all starts but the first
		if _, err := os.Stat(f); err == nil {
			os.Exit(8)
		}
		os.WriteFile(f, nil, 0o600)
	}
	<-time.After(time.Duration(c.number("start")) * time.Millisecond)
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			break
		}
		m := childMessage{raw: line}
		if err := json.Unmarshal(line, &m); err != nil {
			fmt.Fprintln(os.Stderr, "bad line from longcall:", err)
			os.Exit(9)
		}
		c.take(m)
	}
	if c.has("lingers") || c.has("deaf") {
		select {}
	}
}

func (c *child) take(m childMessage) {
	c.mu.Lock()
	if m.Method != "" {
		c.methods = append(c.methods, m.Method)
	}
	c.mu.Unlock()
	switch m.Method {
	case "":
		c.mu.Lock()
		ch := c.asked[string(m.ID)]
		c.mu.Unlock()
		if ch != nil {
			if ch <- m.Error; m.Result != nil {
				ch <- m.Result
			} else {
				close(ch)
			}
		}
	case "server/discover":
		switch {
		case c.has("rmcp"):
			os.Exit(2)
		case c.has("modern"):
			c.result(m.ID, `{"supportedVersions":["`+"2026-07-28"+`"],"capabilities":{"tools":{"listChanged":true}},"resultType":"complete","ttlMs":0,"cacheScope":"private"}`)
		case c.has("future"):
			c.write(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"error":{"code":-32022,"message":"unsupported","data":{"supported":["2031-01-01"]}}}`)
		default:
			c.fail(m.ID, -32602, "invalid request before initialization")
		}
	case "initialize":
		if c.has("modern") {
			c.fail(m.ID, -32601, "no such method")
			return
		}
		version := "2025-06-18"
		if v := c.flags["version"]; v != "" {
			version = v
		}
		c.result(m.ID, `{"protocolVersion":"`+version+`","capabilities":{},"serverInfo":{"name":"child","version":"1"}}`)
	case "notifications/initialized":
		c.initd = true
	case "ping":
		c.result(m.ID, `{}`)
	case "notifications/cancelled":
		c.mu.Lock()
		c.cancels = append(c.cancels, m.Params.RequestID)
		if ch := c.cancelled[m.Params.RequestID]; ch != nil {
			close(ch)
			delete(c.cancelled, m.Params.RequestID)
		}
		c.mu.Unlock()
	case "tools/list":
		if c.has("nolist") {
			c.fail(m.ID, -32050, "no tools today")
			return
		}
		c.result(m.ID, `{"tools":[{"name":"work","inputSchema":{"type":"object"},"big":9007199254740993}]}`)
	case "tools/call":
		c.mu.Lock()
		c.calls++
		n := c.calls
		ch := make(chan struct{})
		c.cancelled[unquote(m.ID)] = ch
		c.mu.Unlock()
		if c.has("modern") != (m.Params.Meta.Version == "2026-07-28") {
			c.fail(m.ID, -32020, "wrong era: "+m.Params.Meta.Version)
			return
		}
		if !c.has("modern") && !c.initd {
			c.fail(m.ID, -32600, "not initialized")
			return
		}
		var a childArguments
		json.Unmarshal(m.Params.Arguments, &a)
		switch a.Do { // these stop the reader, too
		case "crash":
			fmt.Fprintln(os.Stderr, "about to fail:", a.Text)
			os.Exit(3)
		case "unread":
			c.text(m.ID, "no more reading")
			<-time.After(time.Hour)
		}
		go c.work(m, a, n, ch)
	}
}

func unquote(raw json.RawMessage) (s string) {
	json.Unmarshal(raw, &s)
	return s
}

func (c *child) work(m childMessage, a childArguments, n int, cancelled chan struct{}) {
	id := m.ID
	switch a.Do {
	case "count":
		c.text(id, strconv.Itoa(n))
	case "pid":
		c.text(id, strconv.Itoa(os.Getpid()))
	case "echo":
		c.text(id, string(m.raw))
	case "progress":
		for i := range a.N {
			c.progress(m, i+1, a.Key)
			if a.Key != "" && i == 0 {
				c.hold(a.Key)
			}
		}
		c.text(id, "done "+a.Key)
	case "hold":
		c.hold(a.Key)
		c.text(id, "held "+a.Key)
	case "release":
		c.release(a.Key)
		c.text(id, "released")
	case "hang":
		c.progress(m, 1, "hanging")
	case "late":
		c.progress(m, 1, "waiting")
		<-cancelled
		<-time.After(time.Duration(a.N) * time.Millisecond)
		if a.Text == "error" {
			c.fail(id, 0, "Request cancelled")
			return
		}
		c.text(id, "late")
	case "big":
		c.text(id, strings.Repeat("x", a.N))
	case "bigprogress":
		c.progress(m, 1, strings.Repeat("y", a.N))
		c.text(id, "after it")
	case "idlast":
		c.write(`{"jsonrpc":"2.0","result":{"content":[{"type":"text","text":"` + strings.Repeat("z", a.N) + `"}]},"id":` + string(id) + `}`)
	case "stderr":
		os.Stderr.Write(bytes.Repeat([]byte("e"), a.N))
		c.text(id, "written")
	case "bytes":
		b := []byte(`{"jsonrpc":"2.0","id":` + string(id) + `,"result":{"content":[{"type":"text","text":"` + a.Text + `"}]}}` + "\n")
		c.out.Lock()
		for i := range b {
			os.Stdout.Write(b[i : i+1])
		}
		c.out.Unlock()
	case "junk":
		c.write("Listening on stdio…")
		c.write("{not json")
		c.write("")
		c.write(`["a","batch"]`)
		c.text(id, "after junk")
	case "twice":
		c.write(`{"jsonrpc":"2.0","id":` + string(id) + `,"result":{},"result":{"content":[]}}`)
	case "ask":
		var got []string
		for _, method := range []string{"ping", "elicitation/create", "sampling/createMessage", "roots/list"} {
			got = append(got, method+" "+c.ask(method))
		}
		c.text(id, strings.Join(got, "; "))
	case "log":
		c.write(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"` + a.Text + `"}}`)
		c.text(id, "logged")
	case "changed":
		c.write(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		c.text(id, "told")
	case "late progress":
		c.progress(m, 1, "in time")
		c.text(id, "done")
		c.progress(m, 2, "too late")
	case "trace":
		c.mu.Lock()
		b, _ := json.Marshal(map[string]any{"methods": c.methods, "cancels": c.cancels})
		c.mu.Unlock()
		c.text(id, string(b))
	case "env":
		b, _ := json.Marshal(os.Environ())
		c.text(id, string(b))
	case "mute":
		os.Stdout.Close()
	case "child":
		cmd := exec.Command(os.Args[0])
		cmd.Env = []string{childFlags + "=sleeper=" + strconv.Itoa(a.N)}
		cmd.Stdout = os.Stdout
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: a.Text == "escaped"}
		if err := cmd.Start(); err != nil {
			panic(err)
		}
		c.text(id, strconv.Itoa(cmd.Process.Pid))
	case "error":
		c.fail(id, -32050, "out of paper")
	case "tool error":
		c.result(id, `{"content":[{"type":"text","text":"it went wrong"}],"isError":true}`)
	}
}

func (c *child) hold(key string) {
	c.mu.Lock()
	ch := c.held[key]
	if ch == nil {
		ch = make(chan struct{})
		c.held[key] = ch
	}
	c.mu.Unlock()
	<-ch
}

func (c *child) release(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held[key] == nil {
		c.held[key] = make(chan struct{})
	}
	close(c.held[key])
}

func (c *child) ask(method string) string {
	c.mu.Lock()
	id := strconv.Itoa(len(c.asked) + 1)
	ch := make(chan json.RawMessage, 2)
	c.asked[id] = ch
	c.mu.Unlock()
	c.write(`{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `"}`)
	if e := <-ch; e != nil {
		var body struct{ Code int }
		json.Unmarshal(e, &body)
		return strconv.Itoa(body.Code)
	}
	return string(<-ch)
}

func (c *child) write(line string) {
	c.out.Lock()
	defer c.out.Unlock()
	io.WriteString(os.Stdout, line+"\n")
}

func (c *child) result(id json.RawMessage, result string) {
	c.write(`{"jsonrpc":"2.0","id":` + string(id) + `,"result":` + result + `}`)
}

func (c *child) text(id json.RawMessage, text string) {
	b, _ := json.Marshal(text)
	c.result(id, `{"content":[{"type":"text","text":`+string(b)+`}],"big":9007199254740993}`)
}

func (c *child) fail(id json.RawMessage, code int, text string) {
	c.write(`{"jsonrpc":"2.0","id":` + string(id) + `,"error":{"code":` + strconv.Itoa(code) + `,"message":"` + text + `"}}`)
}

func (c *child) progress(m childMessage, n int, text string) {
	c.write(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":` + string(m.Params.Meta.ProgressToken) +
		`,"progress":` + strconv.Itoa(n) + `,"total":9007199254740993,"message":"` + text + `"}}`)
}
