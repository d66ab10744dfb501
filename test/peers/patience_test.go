//go:build unix

package peers_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/longcall/longcall/test/peers"
	"github.com/longcall/longcall/test/wire"
)

// What the slow calls of TestPatience take, how long their clients wait, and
// when longcall hands off.
const (
	patienceWork = 9 * time.Second
	patience     = 5 * time.Second // hurry.cjs has it, too
	handOffAfter = 2 * time.Second
	cutAfter     = time.Second // of the stream, for a client that has no limit
)

const patienceAnswer = "the slow tool has finished"

// seen is what the user of a client saw of a call.
type seen struct {
	text   string
	failed bool // text is an error's, not a tool's
}

var (
	handedOff  = regexp.MustCompile(`(?i)still running.*\b(c_[a-z2-7]{26})\b`)
	whatVaries = regexp.MustCompile(`c_[a-z2-7]{26}|\d+(\.\d+)?`)
)

// cell is what was seen, as the table says it.
func (s seen) cell() string {
	switch {
	case s.failed:
		msg, _, _ := strings.Cut(s.text, "\n")
		msg, _, _ = strings.Cut(msg, ". ")
		return "error: " + whatVaries.ReplaceAllString(strings.TrimSpace(msg), "N")
	case strings.Contains(s.text, patienceAnswer):
		return "the result"
	case handedOff.MatchString(s.text):
		return "the hand-off"
	}
	return "a result: " + s.text
}

// patient is a client in one era that gives up after a while.
type patient struct {
	name, era string
	cut       bool // it has no limit of its own: its stream is cut instead
	// hasty says that its process ends when it gives up, and its cancel is there
	// in time or not.
	hasty bool
	call  func(t *testing.T, url, tool, args string) seen
}

// row is what TestPatience observes of a client. Every cell is in docs/clients.md.
type row struct {
	client, era, gives string
	on, then           string // with hand-off
	off, became, again string // without
	ranOn, ranOff      int    // how often the tool ran
}

func (r row) String() string {
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %d | %s | %s | %s | %d |",
		r.client, r.era, r.gives, r.on, r.then, r.ranOn, r.off, r.became, r.again, r.ranOff)
}

// TestPatience lets clients that nobody here wrote make a call that takes longer
// than they wait, with hand-off and without, and compares what each sees with
// the table of docs/clients.md.
func TestPatience(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join(peers.Source(), "..", "..", "docs", "clients.md"))
	if err != nil {
		t.Fatal(err)
	}
	all := patients(t)
	var config strings.Builder
	config.WriteString("mcpServers:\n")
	ups := map[string]*wire.Upstream{}
	for i, c := range all {
		for _, mode := range []string{"auto", "off"} {
			up := wire.NewUpstream(t, wire.Options{
				Version: wire.Modern, Both: true,
				Tools: `[{"name":"slow","description":"Takes its time.","inputSchema":{"type":"object","properties":{}}}]`,
				On:    map[string]wire.Handler{"tools/call": silent},
			})
			name := fmt.Sprintf("c%d-%s", i, mode)
			ups[name] = up
			fmt.Fprintf(&config, "  %s: {url: %q, hand_off: %s} # %s %s\n", name, up.URL, mode, c.name, c.era)
		}
	}
	fmt.Fprintf(&config, "clients: {all: {match: {client: \"*\"}, budget: %v, budget_token: %[1]v, task_budget: %[1]v, await: %[1]v, await_token: %[1]v}}\n", handOffAfter)
	gw := peers.StartLongcall(t, config.String())
	for i, c := range all {
		t.Run(c.name+"-"+c.era, func(t *testing.T) {
			t.Parallel()
			r := row{client: c.name, era: c.era, gives: "its own " + patience.String()}
			if c.cut {
				r.gives = "cut after " + cutAfter.String()
			}
			t.Run("calls", func(t *testing.T) { // until both have ended
				t.Run("auto", func(t *testing.T) {
					t.Parallel()
					c.withHandOff(t, gw, ups, fmt.Sprintf("c%d-auto", i), &r)
				})
				t.Run("off", func(t *testing.T) {
					t.Parallel()
					c.withoutHandOff(t, gw, ups, fmt.Sprintf("c%d-off", i), &r)
				})
			})
			if !bytes.Contains(doc, []byte(r.String()+"\n")) {
				t.Errorf("docs/clients.md has no such row:\n%s", r)
			}
		})
	}
}

// silent is the slow tool: headers, and nothing until its result.
func silent(c *wire.Conn, r *wire.Request) {
	c.SSE()
	if c.Pause(patienceWork) {
		c.Event(r.Text(patienceAnswer))
		c.End()
	}
}

// withHandOff makes the call, and then does what the hand-off says.
func (c patient) withHandOff(t *testing.T, gw *peers.Longcall, ups map[string]*wire.Upstream, server string, r *row) {
	s := c.through(t, gw, server, "slow", "{}")
	r.on = s.cell()
	var steps []string
	for range 8 {
		step := ""
		if m := handedOff.FindStringSubmatch(s.text); m != nil && !s.failed {
			s = c.call(t, gw.URL(server), "await_call", fmt.Sprintf(`{"ids":[%q]}`, m[1]))
			step = "await_call: " + s.cell()
		} else if s.failed && steps == nil {
			s = c.call(t, gw.URL(server), "slow", "{}")
			step = "asked again: " + s.cell()
		} else {
			break
		}
		if step != "await_call: the hand-off" { // how often it waits is a matter of the machine
			steps = append(steps, step)
		}
	}
	r.then = "–"
	if len(steps) > 0 {
		r.then = strings.Join(steps, "; ")
	}
	r.ranOn = ups[server].Count("tools/call")
	if rec := ended(t, gw, server, false); rec.Outcome != "completed" {
		t.Errorf("with hand-off, the journal says of the call: %+v", rec)
	}
}

// withoutHandOff makes the call, and once that has ended the same again.
func (c patient) withoutHandOff(t *testing.T, gw *peers.Longcall, ups map[string]*wire.Upstream, server string, r *row) {
	r.off = c.through(t, gw, server, "slow", "{}").cell()
	rec := ended(t, gw, server, r.off == "the result")
	r.became = rec.Outcome
	if n := len(rec.Deliveries); n > 0 {
		r.became += ", " + rec.Deliveries[n-1].How
	}
	r.again = c.through(t, gw, server, "slow", "{}").cell()
	r.ranOff = ups[server].Count("tools/call")
	if c.hasty && r.became != "cancelled" {
		if r.became != "completed, aborted_downstream" || r.again != "the result" || r.ranOff != 1 {
			t.Errorf("a call that was not cancelled: %+v", r)
		}
		r.became, r.again, r.ranOff = "cancelled", r.off, 2 // as it is when the cancel comes
	}
}

// ended waits for the end of the newest call of a server, and until that it was
// delivered is noted, if it was.
func ended(t *testing.T, gw *peers.Longcall, server string, delivered bool) (rec peers.Record) {
	t.Helper()
	gw.Until(t, "has ended the call of "+server, func(context.Context) bool {
		for _, r := range gw.Calls(t) {
			if r.Server == server {
				rec = r
				n := len(r.Deliveries)
				return r.Outcome != "running" && (!delivered || n > 0 && r.Deliveries[n-1].How == "delivered")
			}
		}
		return false
	})
	return rec
}

func (c patient) through(t *testing.T, gw *peers.Longcall, server, tool, args string) seen {
	endpoint := gw.URL(server)
	if c.cut && tool == "slow" {
		endpoint = newCutter(t, endpoint)
	}
	return c.call(t, endpoint, tool, args)
}

// patients are the clients of the table.
func patients(t *testing.T) (all []patient) {
	t.Helper()
	for _, c := range peers.Clients {
		for _, era := range c.Eras {
			if era == peers.Old { // the table is of hosts, which speak it no more
				continue
			}
			p := patient{name: c.Name, era: era, cut: c.Name == "go-sdk"}
			p.call = func(t *testing.T, url, tool, args string) seen {
				r := peers.Request{URL: url, Era: era, Tool: tool, Args: args}
				if !p.cut {
					r.Patience = patience
				}
				got := c.Call(t, r)
				if e := got.First("error"); e.Ev != "" {
					return seen{e.Msg, true}
				}
				return seen{got.First("result").Text, false}
			}
			all = append(all, p)
		}
	}
	dir := installInspector(t)
	for _, era := range []string{peers.Legacy, peers.Modern} {
		all = append(all, patient{name: "inspector-cli", era: era, hasty: era == peers.Legacy, call: func(t *testing.T, url, tool, args string) seen {
			return inspect(t, dir, era, url, tool, args)
		}})
	}
	return all
}

func installInspector(t *testing.T) string {
	t.Helper()
	peers.NeedNode(t)
	src := filepath.Join(peers.Source(), "inspector")
	files := []string{filepath.Join(src, "package.json"), filepath.Join(src, "package-lock.json")}
	return peers.Install(t, "inspector", files, func(ctx context.Context, dir string) error { return peers.NPM(ctx, dir, src) })
}

// inspect makes a call with the Inspector's command line.
func inspect(t *testing.T, dir, era, url, tool, args string) seen {
	t.Helper()
	out, errs, code := peers.Output(t, time.Minute, peers.Command{
		Path: filepath.Join(dir, "node_modules", ".bin", "mcp-inspector"),
		Args: []string{
			"--cli", url, "--transport", "http", "--protocol-era", era, "--method", "tools/call", "--tool-name", tool,
			"--tool-args-json", args, "--format", "json", "--quiet",
		},
		Env: []string{`NODE_OPTIONS=--require "` + filepath.Join(peers.Source(), "inspector", "hurry.cjs") + `"`},
	})
	if code == 0 {
		return seen{out, false}
	}
	var e struct{ Error struct{ Message string } }
	if json.Unmarshal([]byte(errs), &e) == nil && e.Error.Message != "" {
		errs = e.Error.Message
	}
	return seen{errs, true}
}

// newCutter puts a proxy before an endpoint that cuts the first answer to a
// tools/call after a while, as a network does. It ends with the test.
func newCutter(t *testing.T, endpoint string) string {
	t.Helper()
	target, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		FlushInterval: -1,
		Rewrite:       func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = "http", target.Host },
		ErrorHandler:  func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	var cut atomic.Bool
	srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		var m struct{ Method string }
		if json.Unmarshal(body, &m) == nil && m.Method == "tools/call" && !cut.Swap(true) {
			ctx, cancel := context.WithTimeout(r.Context(), cutAfter)
			defer cancel()
			r = r.WithContext(ctx)
		}
		proxy.ServeHTTP(w, r)
	})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(ln) // ends with Close
	}()
	t.Cleanup(func() { srv.Close(); <-done })
	return "http://" + ln.Addr().String() + target.Path
}
