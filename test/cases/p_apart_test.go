package cases_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/test/peers"
	"github.com/longcall/longcall/test/wire"
)

func init() {
	// steps: n progress messages over ms milliseconds, then "TAG done".
	addTool("steps", func(w *worker, r *wire.Request) {
		n, tag := number(r.Msg, "n"), arg(r.Msg, "tag")
		pause := time.Duration(number(r.Msg, "ms")) * time.Millisecond / time.Duration(n+1)
		for i, text := range steps(tag, n) {
			if !w.pause(pause) {
				return
			}
			w.send(r.Progress(fmt.Sprint(i+1), fmt.Sprint(n), text))
		}
		if w.pause(pause) {
			w.send(r.Text(tag + " done"))
		}
	})

	// together: waits until n calls are there, sends a message of nobody, and
	// answers all when one with "go" comes.
	var mu sync.Mutex
	here, release := 0, make(chan struct{})
	addTool("together", func(w *worker, r *wire.Request) {
		if arg(r.Msg, "tag") == "go" {
			close(release)
			w.send(r.Text("go"))
			return
		}
		mu.Lock()
		here++
		if here == number(r.Msg, "n") {
			w.send(wire.Log("error", "whose is this?"))
		}
		mu.Unlock()
		<-release
		w.send(r.Text("worked"))
	})
}

func stepArgs(tag string, n int, d time.Duration) string {
	return fmt.Sprintf(`{"tag":%q,"n":%d,"ms":%d}`, tag, n, d.Milliseconds())
}

// TestP1 lets two agents call one server at once.
func TestP1(t *testing.T) {
	t.Parallel()
	const short, long = time.Second, 3 * time.Second
	for _, who := range []string{"one principal", "two principals"} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			for _, first := range []time.Duration{short, long} {
				t.Run(first.String()+" first", func(t *testing.T) {
					t.Parallel()
					each(t, "steps", func(t *testing.T, s *server) {
						if who == "two principals" && s.name == "http GET" {
							t.Skip("the scripted server has one standalone stream for all")
						}
						var a, b *wire.Client
						if who == "one principal" {
							g := s.start(t)
							a, b = g.client(wire.Legacy, "up"), g.client(wire.Modern, "up")
						} else {
							g := s.startWith(t, tokens)
							a, b = g.agent(wire.Modern, "up", "ann"), g.agent(wire.Legacy, "up", "bob")
						}
						second := long
						if first == long {
							second = short
						}
						x := a.Start(wire.Call{ID: "1", Token: "1", Args: stepArgs("x", 4, first)})
						s.wait(t, "tools/call", 1)
						y := b.Start(wire.Call{ID: "1", Token: "1", Args: stepArgs("y", 4, second)})
						shows(t, x, "1", "x done", steps("x", 4)...)
						shows(t, y, "1", "y done", steps("y", 4)...)
						slow, quick := x, y
						if first == short {
							slow, quick = y, x
						}
						if q, s := quick.TimedResponse(0).Came, slow.TimedResponse(0).Came; q > s-500*time.Millisecond {
							t.Errorf("the call of 1 s took %v, that of 3 s %v", q, s)
						}
						calls := s.got("tools/call")
						if len(calls) != 2 {
							t.Fatalf("%d calls reached the server", len(calls))
						}
						for _, path := range []string{"id", "params._meta.progressToken"} {
							if p, q := string(calls[0].At(path)), string(calls[1].At(path)); p == q || p == "" || p == "1" || q == "1" {
								t.Errorf("%s of the two calls at the server: %s and %s", path, p, q)
							}
						}
					})
				})
			}
		})
	}
}

// TestP1RealServers does it with servers that nobody here wrote.
func TestP1RealServers(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"go-sdk", "typescript-v2", "python-v2", "python-v1"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := peers.Find(name)
			g := start(t, fmt.Sprintf("shutdown: {drain: 1s}\nmcpServers: {up: {url: %q}}\n", srv.Start(t, "both")))
			warm := g.client(wire.Legacy, "up")
			soon(t, "progress of a first call", func() bool {
				// What a server sends on the standalone stream before it was
				// opened is lost; calls do not wait for it (P9).
				tool, args, _ := srv.Slow(100*time.Millisecond, 1)
				x := warm.Start(wire.Call{Tool: tool, Args: args, Token: "0"})
				x.Response(0)
				return len(x.Progress()) == 1
			})
			for _, d := range [][2]time.Duration{{time.Second, 3 * time.Second}, {3 * time.Second, time.Second}} {
				a, b := g.client(wire.Legacy, "up"), g.client(wire.Modern, "up")
				var xs [2]*wire.Exchange
				for i, c := range []*wire.Client{a, b} {
					tool, args, _ := srv.Slow(d[i], 3+i)
					xs[i] = c.Start(wire.Call{ID: "7", Tool: tool, Args: args, Token: `"same"`})
				}
				for i, x := range xs {
					_, _, want := srv.Slow(d[i], 3+i)
					if m := x.Response(0); m.ToolText() != want || string(m.ID) != "7" {
						t.Errorf("call of %v: %s", d[i], m.JSON)
					}
					for _, p := range x.Progress() {
						if string(p.At("params.progressToken")) != `"same"` || strings.TrimSuffix(string(p.At("params.total")), ".0") != fmt.Sprint(3+i) {
							t.Errorf("call of %v with %d steps got %s", d[i], 3+i, p.JSON)
						}
					}
					if n := len(x.Progress()); n != 3+i {
						t.Errorf("call of %v got %d of %d progress messages", d[i], n, 3+i)
					}
				}
				if a, b := xs[0].TimedResponse(0).Came, xs[1].TimedResponse(0).Came; (a > b) != (d[0] > d[1]) {
					t.Errorf("calls of %v took %v and %v", d, a, b)
				}
			}
		})
	}
}

// TestP5 keeps a message of nobody from everybody, but for the record.
func TestP5(t *testing.T) {
	t.Parallel()
	type setup struct {
		name, lines, more string
		agents            func(g *gateway) (a, b *wire.Client)
		text              bool // the record may have the text: all calls are of one principal
	}
	two := func(g *gateway) (a, b *wire.Client) {
		return g.client(wire.Legacy, "up"), g.client(wire.Modern, "up")
	}
	others := func(g *gateway) (a, b *wire.Client) {
		return g.agent(wire.Legacy, "up", "ann"), g.agent(wire.Modern, "up", "bob")
	}
	for _, c := range []setup{
		{"one principal", "", "era: auto", two, true},
		{"shared by principals", tokens, "share: server", others, false},
	} {
		for _, w := range []way{ways[1], ways[3], ways[4]} {
			t.Run(c.name+"/"+w.name, func(t *testing.T) {
				t.Parallel()
				var s *server
				release := make(chan struct{})
				if w.handler == nil {
					s = newServer(t, w, "together")
				} else {
					s = &server{name: w.name, up: wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{
						"tools/call": func(c *wire.Conn, r *wire.Request) {
							select {
							case <-release:
							case <-c.Gone():
							}
							c.JSON(200, r.Text("worked"))
						},
					}})}
				}
				g := s.startWith(t, c.lines, c.more)
				a, b := c.agents(g)
				x := a.Start(wire.Call{Token: "1", Args: `{"n":2}`})
				y := b.Start(wire.Call{Token: "1", Args: `{"n":2}`, Meta: `"io.modelcontextprotocol/logLevel":"debug"`})
				s.wait(t, "tools/call", 2)
				if s.up != nil {
					s.up.Stream().Event(wire.Log("error", "whose is this?"))
				}
				soon(t, "a note about the message in both records", func() bool {
					n := 0
					for _, r := range g.records() {
						if strings.Contains(g.notes(r.ID), "nattributed") {
							n++
						}
					}
					return n == 2
				})
				close(release)
				if s.cmd != nil {
					a.Start(wire.Call{Args: `{"tag":"go"}`}).Response(0)
				}
				for _, e := range []*wire.Exchange{x, y} {
					shows(t, e, "1", "worked")
					if strings.Contains(e.Body(), "whose") {
						t.Errorf("an agent got the message: %s", e.Body())
					}
				}
				for _, r := range g.records() {
					text := g.notes(r.ID)
					if strings.Contains(string(r.Arguments), "go") {
						continue
					}
					if strings.Contains(text, "whose is this?") != c.text {
						t.Errorf("the record of %s's call has the notes %q", r.Principal, text)
					}
					for _, e := range g.events(r.ID) {
						if e.Kind == call.KindMessage {
							t.Errorf("the message counts as the call's own: %s", e.Body)
						}
					}
				}
			})
		}
	}
}

// TestP14 lets one agent vanish while another goes on and a third begins.
func TestP14(t *testing.T) {
	t.Parallel()
	for name, vanish := range map[string]func(*wire.Exchange){"close": (*wire.Exchange).Close, "reset": (*wire.Exchange).Reset} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bothEras(t, func(t *testing.T, version string) {
				each(t, "steps", func(t *testing.T, s *server) {
					g := s.startWith(t, "disconnect_grace: 100ms")
					a, b, c := g.client(version, "up"), g.client(wire.Legacy, "up"), g.client(wire.Modern, "up")
					x := a.Start(wire.Call{Token: "1", Args: stepArgs("x", 20, 2*time.Second)})
					y := b.Start(wire.Call{Token: "1", Args: stepArgs("y", 8, 2*time.Second)})
					x.WaitMessages(progressMethod, 1, 0)
					vanish(x)
					z := c.Start(wire.Call{Token: "1", Args: stepArgs("z", 8, time.Second)})
					shows(t, y, "1", "y done", steps("y", 8)...)
					shows(t, z, "1", "z done", steps("z", 8)...)
					for _, r := range g.allEnded(3) {
						want := call.Completed
						if version == wire.Modern && strings.Contains(string(r.Arguments), `"x"`) {
							want = call.Cancelled // by policy, after the grace
						}
						if r.End.Outcome != want {
							t.Errorf("the call with %s ended as %s", r.Arguments, r.End.Outcome)
						}
						how := call.Delivered
						if strings.Contains(string(r.Arguments), `"x"`) {
							how = call.AbortedDownstream
						}
						if d := g.delivery(r.ID); d.How != how {
							t.Errorf("the call with %s was %s", r.Arguments, d.How)
						}
					}
				})
			})
		})
	}
}

// TestP22 makes 20 calls at once in one session.
func TestP22(t *testing.T) {
	t.Parallel()
	bothEras(t, func(t *testing.T, version string) {
		each(t, "steps", func(t *testing.T, s *server) { s.twenty(t, 1, version, time.Second) })
	})
}

// TestP22HundredSessions makes 20 calls at once in each of 100 sessions. It runs
// alone, because it is a lot of work.
func TestP22HundredSessions(t *testing.T) {
	sessions := 100
	if raceEnabled {
		sessions = 20
	}
	for _, w := range ways[:4] {
		t.Run(w.name, func(t *testing.T) { newServer(t, w, "steps").twenty(t, sessions, w.version, 3*time.Second) })
	}
}

// twenty makes 20 calls at once in each of some sessions, with 10 steps each.
func (s *server) twenty(t *testing.T, sessions int, version string, over time.Duration) {
	t.Helper()
	const calls, n = 20, 10
	g := s.startWith(t, "limits: {concurrent: 0, per_principal: 0, connect: 1m}")
	type one struct {
		x          *wire.Exchange
		tag, token string
	}
	var all []one
	clients := make([]*wire.Client, sessions)
	for i := range clients {
		clients[i] = g.client(version, "up")
	}
	for i := range calls {
		for j, c := range clients {
			tag := fmt.Sprintf("s%dc%d", j, i)
			token := fmt.Sprint(i) // the same in every session
			if i%2 == 1 {
				token = fmt.Sprintf(`"%d"`, i-1)
			}
			all = append(all, one{c.Start(wire.Call{ID: fmt.Sprint(i), Token: token, Args: stepArgs(tag, n, over)}), tag, token})
		}
	}
	for _, o := range all {
		shows(t, o.x, o.token, o.tag+" done", steps(o.tag, n)...)
	}
	if got := len(s.got("tools/call")); got != len(all) {
		t.Errorf("%d calls reached the server, %d were made", got, len(all))
	}
	if r := g.allEnded(len(all)); len(r) != len(all) {
		t.Errorf("%d records", len(r))
	}
}
