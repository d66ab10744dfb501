package peers_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/longcall/longcall/test/peers"
	"github.com/longcall/longcall/test/wire"
)

// site is a tool server of the matrix: a server in one era, or on stdio.
type site struct {
	peers.Server
	era string // stdio, too
	// own says that each client has the server for itself: a connection, or with Once a
	// process. The others have one for all, with calls of one client at a time, so that
	// none takes what another did for its own.
	own bool
}

func (s site) name() string { return s.Name + " " + s.era }

// sites are the rows of the matrix.
func sites() (all []site) {
	for _, s := range peers.Servers {
		for _, era := range s.Eras {
			all = append(all, site{s, era, !s.Ours})
		}
		if s.HasStdio() {
			all = append(all, site{s, "stdio", !s.Ours})
		}
	}
	return all
}

// caller is a client of the matrix in one era.
type caller struct {
	peers.Client
	era string
}

func (c caller) name() string { return c.Name + " " + c.era }

func callers() (all []caller) {
	for _, c := range peers.Clients {
		for _, era := range c.Eras {
			all = append(all, caller{c, era})
		}
	}
	return all
}

// cell is what came of a feature between a client and a server.
type cell struct {
	err    error  // nil if all that the feature asserts arrived
	cannot string // why the client cannot
	direct error  // what is wrong without longcall, if the pair can do without
	paired bool   // direct was tried
}

// matrix is the test's whole state.
type matrix struct {
	gw      *peers.Longcall
	entries map[string]string // endpoint in longcall, by client and server
	direct  map[string]string // URL of a server, by its name
	mu      sync.Mutex
	cells   map[string]map[peers.Feature]cell // by client and server
	said    map[string][2]string              // what a server says of itself, and its tools, by its name
	apart   map[string]cell                   // what came of a server's trial apart, by its name
}

func pair(c caller, s site) string {
	if !s.own {
		return s.name()
	}
	return c.name() + " at " + s.name()
}

// TestMatrix has every client use every server through one longcall, with each of six
// features, and asserts what arrives on both sides. What cannot work is tried without
// longcall, and must not work there either. The tables of docs/matrix.md are what it saw.
func TestMatrix(t *testing.T) {
	dir := installInspector(t)
	m := &matrix{entries: map[string]string{}, direct: map[string]string{}, cells: map[string]map[peers.Feature]cell{}, said: map[string][2]string{}, apart: map[string]cell{}}
	var config strings.Builder
	// A stream that is closed is a cancel, and the test does not want to wait for who might come back.
	config.WriteString("disconnect_grace: 100ms\nmcpServers:\n")
	var waits []func()
	for _, s := range sites() {
		url := ""
		add := func(key string) {
			if s.Once || url == "" && s.era != "stdio" {
				at, ready := s.Launch(t, s.era)
				if url, waits = at, append(waits, ready); s.Once {
					ready()
					keep(t, url)
				}
			}
			entry := fmt.Sprintf(`{"url": %q}`, url)
			if s.era == "stdio" {
				c := s.Stdio(t)
				b, err := json.Marshal(map[string]any{"command": c.Path, "args": c.Args})
				if err != nil {
					t.Fatal(err)
				}
				entry = string(b)
			}
			m.entries[key] = fmt.Sprintf("s%d", len(m.entries)) // names are short there
			m.direct[s.name()] = url
			fmt.Fprintf(&config, "  %s: %s # %s\n", m.entries[key], entry, key)
		}
		for _, c := range slices.Concat(callers(), inspectors(), aparts(s)) {
			if key := pair(c, s); m.entries[key] == "" {
				add(key)
			}
		}
	}
	for _, ready := range waits {
		ready()
	}
	m.gw = peers.StartLongcall(t, config.String())
	t.Run("pairs", func(t *testing.T) {
		for _, s := range sites() {
			t.Run(strings.ReplaceAll(s.name(), " ", "-"), func(t *testing.T) {
				t.Parallel()
				for _, c := range callers() {
					t.Run(strings.ReplaceAll(c.name(), " ", "-"), func(t *testing.T) {
						if s.own {
							t.Parallel()
						}
						m.pair(t, c, s)
					})
				}
				for _, c := range aparts(s) {
					t.Run(c.Name+"-"+c.era, func(t *testing.T) {
						t.Parallel()
						m.alone(t, c, s)
					})
				}
				for _, c := range inspectors() {
					t.Run("inspector-cli-"+c.era, func(t *testing.T) {
						if s.own {
							t.Parallel()
						}
						m.inspected(t, c, s, dir)
					})
				}
			})
		}
	})
	t.Run("inspector", func(t *testing.T) { inspectorCannot(t, m.direct["go-sdk legacy"], dir) })
	if len(m.cells) != len(sites())*len(callers()) {
		t.Skip("not all pairs were run: docs/matrix.md is not compared") // by -run
	}
	page := filepath.Join(peers.Source(), "..", "..", "docs", "matrix.md")
	is := m.doc(t)
	if *update && !t.Failed() {
		if err := os.WriteFile(page, []byte(is), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if b, err := os.ReadFile(page); err != nil || string(b) != is {
		t.Errorf("docs/matrix.md is not what was seen (%v); rewrite it with -update, if this is right:\n%s", err, is)
	}
}

// tries are how often a pair is tried that should work: on a busy machine real
// programs now and then give up on each other. Each try that failed is in the log.
const tries = 2

var update = flag.Bool("update", false, "rewrite docs/matrix.md")

// inspectors are the Inspector's command line in its eras.
func inspectors() []caller {
	i := peers.Client{Name: "inspector-cli"}
	return []caller{{i, peers.Legacy}, {i, peers.Modern}}
}

// inspected has the Inspector's command line call the tool with progress.
func (m *matrix) inspected(t *testing.T, c caller, s site, dir string) {
	t.Helper()
	step := s.Trials("")[0].Step
	_, _, want := s.Slow(time.Second, 3)
	for try := 1; ; try++ {
		got := inspect(t, dir, c.era, m.gw.URL(m.entries[pair(c, s)]), step.Tool, string(step.Args))
		if !got.failed && strings.Contains(got.text, want) {
			return
		}
		said := fmt.Sprintf("it shows %+v, and longcall's record says %+v", got, records(m.gw.Calls(t), m.entries[pair(c, s)]))
		if try == tries {
			t.Fatal(said)
		}
		t.Log("tried again: " + said)
	}
}

// inspectorCannot proves what the Inspector's command line cannot do, without longcall.
func inspectorCannot(t *testing.T, legacy, dir string) {
	for _, tool := range []string{"elicit", "sample"} {
		if got := inspect(t, dir, peers.Legacy, legacy, tool, `{"text":"?"}`); !got.failed {
			t.Errorf("%s: it shows %q", tool, got.text)
		}
	}
	_, errs, code := peers.Output(t, time.Minute, peers.Command{
		Path: filepath.Join(dir, "node_modules", ".bin", "mcp-inspector"),
		Args: []string{"--cli", legacy, "--transport", "http", "--method", "resources/subscribe", "--format", "json", "--quiet"},
	})
	_, methods, ok := strings.Cut(errs, "Supported --cli methods: ")
	if code == 0 || !ok || strings.Contains(methods, "subscri") || strings.Contains(methods, "cancel") {
		t.Errorf("it knows more methods than it did: %s", errs)
	}
}

// lacks asks a server without longcall whether it does not have a feature; the error
// says that it has.
func (m *matrix) lacks(t *testing.T, s site, f peers.Feature) error {
	t.Helper()
	known, ok := m.said[s.name()]
	if !ok {
		if s.era == peers.Old {
			c := wire.NewOldClient(t, s.Start(t, s.era), "{}")
			c.Post(c.Message(`"tools"`, "tools/list", "", ""))
			known = [2]string{c.Answer(`"hello"`).JSON, c.Answer(`"tools"`).JSON}
		} else {
			c := wire.NewClient(t, m.direct[s.name()], wire.Legacy)
			c.Caps = `{"elicitation":{},"sampling":{}}`
			known = [2]string{c.Initialize().JSON, c.Request("tools/list", "").JSON}
		}
		m.said[s.name()] = known
	}
	if f == peers.Elicitation && strings.Contains(strings.ToLower(known[1]), "elicit") || f == peers.ListChange && strings.Contains(known[0], `"listChanged"`) {
		return fmt.Errorf("it says %s %s", known[0], known[1])
	}
	return nil
}

// keep connects to a server that ends itself after a while without any client.
func keep(t *testing.T, url string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
}

// aparts are the clients that do a server's trial apart, under names of their own.
func aparts(s site) (all []caller) {
	if _, ok := s.Apart(); ok {
		for _, c := range callers() {
			if c.Name == "go-sdk" {
				c.Name = "apart-" + c.Name
				all = append(all, c)
			}
		}
	}
	return all
}

// alone has a client do a server's trial apart, and without longcall, too, if both
// speak the same.
func (m *matrix) alone(t *testing.T, c caller, s site) {
	t.Helper()
	trial, _ := s.Apart()
	do := func(url string) error {
		return trial.Want(c.Call(t, peers.Request{URL: url, Era: c.era, Plan: []peers.Step{trial.Step}}).First("did").Did)
	}
	err := do(m.gw.At(m.entries[pair(c, s)], c.era))
	var direct error
	if c.era == s.era {
		direct = do(s.Start(t, s.era))
	}
	t.Logf("%s: %v; directly: %v", trial.Feature, err, direct)
	m.mu.Lock()
	defer m.mu.Unlock()
	x, before := m.apart[s.name()]
	if before && (x.err == nil) != (err == nil) {
		t.Errorf("not all clients see the same: %v, %v", x.err, err)
	}
	if x.err = err; c.era == s.era {
		x.paired, x.direct = true, direct
	}
	m.apart[s.name()] = x
}

// pair has a client use a server.
func (m *matrix) pair(t *testing.T, c caller, s site) {
	key := strings.ReplaceAll(c.name()+" "+s.name(), " ", "-")
	server := m.entries[pair(c, s)]
	cells, r := m.plan(t, c, s, m.gw.At(server, c.era), key)
	for f, x := range cells {
		if x.err == nil {
			continue
		}
		t.Logf("tried again: %s: %v; the client printed:\n%s%s", f, x.err, r.Stdout, r.Stderr)
		var again map[peers.Feature]cell
		if again, r = m.plan(t, c, s, m.gw.At(server, c.era), key+"-again"); again[f].err == nil {
			cells = again
		}
		break
	}
	failed := false
	for f, x := range cells {
		if f == peers.Cancel && x.err == nil && x.cannot == "" {
			x.err = m.recorded(t, server, s)
			cells[f] = x
		}
		failed = failed || x.err != nil
	}
	if failed && s.era != "stdio" && s.era == c.era {
		url := m.direct[s.name()]
		if s.Once {
			url = s.Start(t, s.era)
		}
		direct, _ := m.plan(t, c, s, url, key+"-direct")
		for f, x := range cells {
			if x.err != nil {
				x.paired, x.direct = true, direct[f].err
				cells[f] = x
			}
		}
	}
	for _, f := range peers.Features {
		x, ok := cells[f]
		if !ok {
			t.Logf("%-22s the server has no such thing", f)
		} else if x.cannot != "" {
			t.Logf("%-22s cannot: %s", f, x.cannot)
		} else if x.err != nil {
			t.Logf("%-22s %v; directly: %v, %v; the client printed:\n%s%s", f, x.err, x.paired, x.direct, r.Stdout, r.Stderr)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cells[c.name()+" at "+s.name()] = cells
}

// plan has a client do at an endpoint what the server can.
func (m *matrix) plan(t *testing.T, c caller, s site, url, key string) (map[peers.Feature]cell, peers.Run) {
	t.Helper()
	trials := s.Trials(key)
	// The first call opens the server's session, with the stream on which some tell of
	// progress: what they say before it is open they drop.
	steps := []peers.Step{s.Waited(key)}
	if s.PathB {
		steps[0] = trials[0].Step
	}
	for _, trial := range trials {
		steps = append(steps, trial.Step)
	}
	steps = append(steps, s.Waited(key))
	r := c.Call(t, peers.Request{URL: url, Era: c.era, Plan: steps})
	var all []peers.Did
	for _, e := range r.Events {
		if e.Ev == "did" {
			all = append(all, e.Did)
		}
	}
	all = all[min(1, len(all)):]
	cells := map[peers.Feature]cell{}
	for i, trial := range trials {
		var x cell
		if i >= len(all) {
			x.err = fmt.Errorf("the client did not come to it: %s", r.First("error").Msg)
		} else if x.cannot = all[i].Cannot; x.cannot == "" {
			d := all[i]
			if x.err = trial.Want(d); x.err != nil && trial.Feature == peers.ToolProgress && c.LastLost && !s.Ours {
				// A server that sends the last event with the result cannot be helped.
				d.Progress = append(d.Progress, float64(len(d.Progress)+1))
				if trial.Want(d) == nil {
					x.err = nil
				}
			}
		}
		cells[trial.Feature] = x
	}
	if x := cells[peers.Cancel]; s.Ours && x.err == nil && x.cannot == "" {
		x.err = m.seenBy(t, c, s, url, key, all[len(all)-1])
		cells[peers.Cancel] = x
	}
	return cells, r
}

// seenBy says what is wrong with what one of our servers saw of a cancel. Its answer
// at the end of a plan may have come before the cancel did.
func (m *matrix) seenBy(t *testing.T, c caller, s site, url, key string, d peers.Did) error {
	t.Helper()
	for range 5 {
		if d.Text != "waiting" {
			break
		}
		d = c.Call(t, peers.Request{URL: url, Era: c.era, Plan: []peers.Step{s.Waited(key)}}).First("did").Did
	}
	if d.Text != "cancelled" {
		return fmt.Errorf("the server says of the call that was cancelled: %q%s", d.Text, d.Error)
	}
	return nil
}

// records are those of the calls of a server.
func records(all []peers.Record, server string) (of []peers.Record) {
	for _, r := range all {
		if r.Server == server {
			of = append(of, r)
		}
	}
	return of
}

// recorded says what is wrong with what longcall says of a cancelled call.
func (m *matrix) recorded(t *testing.T, server string, s site) error {
	t.Helper()
	tool := ""
	for _, trial := range s.Trials("") {
		if trial.Feature == peers.Cancel {
			tool = trial.Step.Tool
		}
	}
	var call peers.Record
	m.gw.Until(t, "has ended the call that was cancelled", func(context.Context) bool {
		all := m.gw.Calls(t) // the newest first
		i := slices.IndexFunc(all, func(r peers.Record) bool { return r.Server == server && r.Tool == tool })
		if i < 0 {
			return true
		}
		call = all[i]
		return call.Outcome != "running"
	})
	if call.Outcome != "cancelled" {
		return fmt.Errorf("longcall says of the call that was cancelled: %+v", call)
	}
	return nil
}
