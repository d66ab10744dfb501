//go:build unix

package conformance_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	neturl "net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/test/conformance"
	"github.com/longcall/longcall/test/peers"
)

// The environment of TestBehind.
const (
	behind  = "LONGCALL_SUITE_CLIENT"   // the client to be run; without it TestBehind is none
	refuses = "LONGCALL_SUITE_SESSIONS" // if set, the client is made to use a session
)

// TestBehind is no test: the suite runs it as its client, with the URL of the
// suite's tool server as argument. It starts longcall before that server, and the
// client that the environment names behind longcall.
func TestBehind(t *testing.T) {
	client := os.Getenv(behind)
	if client == "" {
		t.Skip("the suite runs it, in TestClient")
	}
	url := peers.StartLongcall(t, fmt.Sprintf("mcpServers: {suite: {url: %q}}\n", flag.Arg(0))).URL("suite")
	if os.Getenv(refuses) != "" {
		url = sessionsOnly(t, url)
	}
	var env []string
	for _, v := range os.Environ() {
		if strings.HasPrefix(v, "MCP_CONFORMANCE_") {
			env = append(env, v)
		}
	}
	stdout, stderr, code := peers.Output(t, time.Minute, peers.Command{Path: client, Args: []string{url}, Env: env})
	if code != 0 {
		t.Errorf("the client's exit code is %d\n%s%s", code, stdout, stderr)
	}
}

// sessionsOnly is longcall without server/discover, so that a client which takes the
// newest revision that it is offered opens a session.
func sessionsOnly(t *testing.T, url string) string {
	to, err := neturl.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL = to }}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body) // all of it first: net/http drops what is unread when an answer begins
		if err != nil {
			return // the client has left
		}
		var m struct {
			ID     json.RawMessage
			Method string
		}
		if json.Unmarshal(body, &m) == nil && m.Method == "server/discover" {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no such method"}}`, m.ID)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(web.Close)
	return web.URL
}

// TestClient runs the suite's scenarios for clients with longcall as the client:
// the suite's tool server, longcall, and behind it the Go SDK's client in each era.
func TestClient(t *testing.T) {
	dir := conformance.Install(t)
	client := filepath.Join(conformance.InstallEverything(t), "everything-client")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	env := []string{behind + "=" + client, "LONGCALL_BIN=" + peers.Binary(t)}
	for era, more := range map[string][]string{conformance.Legacy: {refuses + "=1"}, conformance.Modern: nil} {
		for revision, scenarios := range conformance.Client {
			t.Run(era+"-to-"+revision, func(t *testing.T) {
				for _, name := range scenarios {
					t.Run(name, func(t *testing.T) {
						t.Parallel()
						command, env := []string{self, "-test.run=^TestBehind$"}, slices.Concat(env, more)
						through := conformance.ClientScenario(t, dir, name, revision, command, env)
						if !through.Passed() {
							// The server of sse-retry gives the answer to whichever stream is opened
							// next, also to that of longcall's other session if a busy machine is late.
							t.Logf("it is run again, because of %v\n%s", through.Failures(), through.Said)
							through = conformance.ClientScenario(t, dir, name, revision, command, env)
						}
						if through.Passed() {
							return
						}
						for _, f := range through.Failures() {
							t.Errorf("through longcall: %s", f)
						}
						t.Log(through.Said)
						if o := conformance.ClientScenario(t, dir, name, revision, []string{client}, nil); !o.Passed() {
							t.Errorf("it does not pass directly either: %v", o.Failures())
						}
					})
				}
			})
		}
	}
}

// TestAll: every scenario of the suite is run, or left out with a reason. Those for
// servers that are of a revision run as the suite has them (TestCore).
func TestAll(t *testing.T) {
	offers := conformance.Offers(t, conformance.Install(t))
	if len(offers) < 100 {
		t.Fatalf("the suite lists only %v", offers)
	}
	left := map[string]int{}
	for _, o := range offers {
		run := o.Side == "Server" && (o.Of != "extension" || slices.Contains(conformance.Scenarios, o.Name))
		if o.Side == "Client" {
			for _, revision := range []string{conformance.Legacy, conformance.Modern} {
				listed := slices.Contains(conformance.Client[revision], o.Name)
				run = run || listed
				if listed != strings.Contains(o.Of, revision) && (run || listed) {
					t.Errorf("%s is for %s, and for %s it is run: %v", o.Name, o.Of, revision, listed)
				}
			}
		}
		out := false
		for begin := range conformance.LeftOut {
			if strings.HasPrefix(o.Name, begin) {
				out = true
				left[begin]++
			}
		}
		if run == out {
			t.Errorf("%s: is run: %v, is left out: %v", o.Name, run, out)
		}
	}
	if len(left) != len(conformance.LeftOut) {
		t.Errorf("of %v the suite has %v only", conformance.LeftOut, left)
	}
}
