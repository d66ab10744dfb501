package cases_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/longcall/longcall/internal/app"
	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/config"
	"github.com/longcall/longcall/internal/journal/sqlite"
	"github.com/longcall/longcall/test/wire"
)

// scripts are the scripted stdio servers, by name; each file of cases adds its own.
var scripts = map[string]wire.Script{}

func TestMain(m *testing.M) {
	wire.Main(scripts)
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		// Cases wait far more than they work, but for what the race detector does.
		n := "40"
		if raceEnabled {
			n = "20"
		}
		if err := flag.Set("test.parallel", n); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}

// gateway is a whole longcall in this process, on real sockets and a real journal.
type gateway struct {
	t    testing.TB
	app  *app.App
	dir  string
	log  *lines
	stop func() // stops it and waits; safe to call twice

	read    *sqlite.Reader // see journal
	reading sync.Mutex
}

// lines is the log, for looking at after the fact.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// start runs longcall with a config (YAML, without listen and state). It is
// without auth unless the config names tokens.
func start(t testing.TB, yaml string) *gateway {
	t.Helper()
	return startIn(t, t.TempDir(), yaml)
}

// startIn is start with a state folder that outlives the gateway.
func startIn(t testing.TB, dir, yaml string) *gateway {
	t.Helper()
	path := filepath.Join(dir, "longcall.yaml")
	text := "listen: 127.0.0.1:0\nstate: " + filepath.Join(dir, "state") + "\n" + yaml
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(path, nil)
	if err != nil {
		t.Fatalf("config: %v\n%s", err, text)
	}
	g := &gateway{t: t, dir: dir, log: &lines{}}
	g.app, err = app.New(app.Options{
		Config: c, ConfigPath: path, NoAuth: !strings.Contains(yaml, "auth:"), Version: "test",
		Log: slog.New(slog.NewTextHandler(g.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := g.app.Run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	}()
	g.stop = func() { cancel(); <-ended }
	t.Cleanup(func() {
		g.stop()
		if t.Failed() {
			t.Logf("log:\n%s", g.log)
		}
	})
	return g
}

// before starts longcall before one HTTP server, as "up", with further config
// of that server (YAML flow members, such as "relay: buffered").
func before(t *testing.T, up *wire.Upstream, more ...string) *gateway {
	t.Helper()
	return start(t, fmt.Sprintf("shutdown: {drain: 1s}\nmcpServers: {up: {%s}}\n", strings.Join(append([]string{fmt.Sprintf("url: %q", up.URL)}, more...), ", ")))
}

// client is an agent at the endpoint of one server, initialized.
func (g *gateway) client(version, server string) *wire.Client {
	g.t.Helper()
	url := g.app.URL() + "/mcp"
	if server != "" {
		url += "/" + server
	}
	c := wire.NewClient(g.t, url, version)
	c.Initialize()
	return c
}

// journal opens the record as the command line does.
func (g *gateway) journal() *sqlite.Reader {
	g.t.Helper()
	g.reading.Lock()
	defer g.reading.Unlock()
	if g.read == nil {
		j, err := sqlite.OpenReadOnly(app.JournalPath(filepath.Join(g.dir, "state")))
		if err != nil {
			g.t.Fatal(err)
		}
		g.t.Cleanup(func() { j.Close() })
		g.read = j
	}
	return g.read
}

// audited waits until the newest call's record is as want says, and returns it.
func (g *gateway) audited(what string, want func(r *call.Record, d []call.Delivery) bool) (call.Record, []call.Delivery) {
	g.t.Helper()
	j := g.journal()
	deadline := time.Now().Add(10 * time.Second)
	for {
		records, err := j.List(context.Background(), sqlite.Filter{Limit: 1})
		if err != nil {
			g.t.Fatal(err)
		}
		var r call.Record
		var d []call.Delivery
		if len(records) > 0 {
			r = records[0]
			if d, err = j.Deliveries(context.Background(), r.ID); err != nil {
				g.t.Fatal(err)
			}
			if want(&r, d) {
				return r, d
			}
		}
		if time.Now().After(deadline) {
			g.t.Fatalf("the record never became %s: %+v, deliveries %+v", what, r, d)
		}
		<-time.After(10 * time.Millisecond) // the journal is another process's view: it has no event to wait for
	}
}

// ended waits for the newest call's end and checks its outcome.
func (g *gateway) ended(want call.Outcome) (call.Record, []call.Delivery) {
	g.t.Helper()
	r, d := g.audited("ended", func(r *call.Record, _ []call.Delivery) bool { return r.End.Outcome != call.Running })
	if r.End.Outcome != want {
		g.t.Fatalf("the record says %+v, not %s", r.End, want)
	}
	return r, d
}

// events are a call's stored events.
func (g *gateway) events(id call.ID) []call.Event {
	g.t.Helper()
	var all []call.Event
	var after uint64
	j := g.journal()
	for {
		page, err := j.Read(context.Background(), id, after, 1<<20)
		if err != nil {
			g.t.Fatal(err)
		}
		if len(page) == 0 {
			return all
		}
		all = append(all, page...)
		after = page[len(page)-1].Seq
	}
}
