//go:build unix

package peers_test

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/test/peers"
	"github.com/longcall/longcall/test/wire"
)

func TestMain(m *testing.M) { os.Exit(peers.Main(m)) }

const (
	steps = 3
	slow  = 900 * time.Millisecond
)

// progressMethod is that of a progress message.
const progressMethod = "notifications/progress"

// TestPeersDirect calls each server by each client with nothing in between, in
// each era that both speak. It proves the peers, not the product.
func TestPeersDirect(t *testing.T) {
	for _, s := range peers.Servers {
		for _, era := range s.Eras {
			t.Run(s.Name+"/"+era, func(t *testing.T) {
				t.Parallel()
				url := s.Start(t, era)
				for i, c := range peers.Clients {
					if !c.Speaks(era) {
						continue
					}
					if s.Once && i > 0 {
						url = s.Start(t, era)
					}
					t.Run(c.Name, func(t *testing.T) {
						tool, args, want := s.Slow(slow, steps)
						r := c.Call(t, peers.Request{URL: url, Era: era, Tool: tool, Args: args})
						// Sent at once, or on two streams, the last event and the result have no order.
						check(t, r, r.Check(want, steps, !s.Ours || s.PathB), r.Live(slow/3), era)
					})
				}
			})
		}
	}
}

func check(t *testing.T, r peers.Run, result, live error, era string) {
	t.Helper()
	for _, err := range []error{result, live} {
		if err != nil {
			t.Error(err)
		}
	}
	if v := r.First("connected").Protocol; (v >= wire.Modern) != (era == peers.Modern) || v < wire.Legacy && era != peers.Old {
		t.Errorf("the revision is %q, in the %s era", v, era)
	}
	if t.Failed() {
		t.Logf("the client printed:\n%s%s", r.Stdout, r.Stderr)
	}
}

// TestPeerPaths proves on which stream each server sends its progress.
func TestPeerPaths(t *testing.T) {
	for _, s := range peers.Servers {
		if !s.Speaks(peers.Legacy) {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			dn := wire.NewClient(t, s.Start(t, peers.Legacy), wire.Legacy)
			dn.Initialize()
			get := dn.Listen("")
			get.Head(0)
			tool, args, want := s.Slow(slow, steps)
			x := dn.Start(wire.Call{Tool: tool, Args: args, Token: "77"})
			if m := x.Response(0); m.ToolText() != want {
				t.Errorf("the result is %s", m.JSON)
			}
			path, other := x, get
			if s.PathB {
				path, other = get, x
			}
			for i, m := range path.WaitMessages(progressMethod, steps, 0) {
				if string(m.At("params.progressToken")) != "77" {
					t.Errorf("progress message %d: %s", i+1, m.JSON)
				}
			}
			if n := len(other.Progress()); n != 0 {
				t.Errorf("%d progress messages came by the other stream", n)
			}
		})
	}
}

// upstream is one tool server as longcall is to reach it.
type upstream struct {
	peers.Server
	name  string // in longcall's config
	entry string // of mcpServers, as JSON
	only  string // the one client and era that uses it; empty for all
}

// upstreams starts all servers in each of their eras, and on stdio.
func upstreams(t *testing.T) (all []upstream) {
	t.Helper()
	for _, s := range peers.Servers {
		for _, era := range s.Eras {
			name := s.Name + "-" + era
			if !s.Once {
				all = append(all, upstream{s, name, s.Entry(s.Start(t, era), era), ""})
				continue
			}
			// longcall has a connection for each set of capabilities, and this server
			// answers on its newest one only: each client has one of its own, as longcall
			// finds it out, and some another one as the operator says it.
			for _, c := range peers.Clients {
				for _, of := range c.Eras {
					only := c.Name + "-" + of
					all = append(all, upstream{s, "2024-" + only, fmt.Sprintf(`{"url": %q}`, s.Start(t, era)), only})
					if of == peers.Old {
						all = append(all, upstream{s, "2024-" + only + "-said", fmt.Sprintf(`{"url": %q, "type": "sse"}`, s.Start(t, era)), only})
					}
				}
			}
		}
		if s.HasStdio() {
			c := s.Stdio(t)
			entry, err := json.Marshal(map[string]any{"command": c.Path, "args": c.Args})
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, upstream{s, s.Name + "-stdio", string(entry), ""})
		}
	}
	return all
}

// TestPeersThroughLongcall calls each server, in each of its eras and on
// stdio, by each client in each of its eras, through the product's own binary.
func TestPeersThroughLongcall(t *testing.T) {
	peers.Binary(t)
	all := upstreams(t)
	var config strings.Builder
	config.WriteString("mcpServers:\n")
	for _, u := range all {
		fmt.Fprintf(&config, "  %s: %s\n", u.name, u.entry)
	}
	gw := peers.StartLongcall(t, config.String())
	t.Run("calls", func(t *testing.T) {
		for _, u := range all {
			for _, c := range peers.Clients {
				for _, era := range c.Eras {
					if u.only != "" && u.only != c.Name+"-"+era {
						continue
					}
					t.Run(fmt.Sprintf("%s-%s/%s", c.Name, era, u.name), func(t *testing.T) {
						t.Parallel()
						tool, args, want := u.Slow(slow, steps)
						r := c.Call(t, peers.Request{URL: gw.At(u.name, era), Era: era, Tool: tool, Args: args})
						// What longcall relays comes in order, all before the result; a
						// server that sends the last event with the result cannot be helped.
						check(t, r, r.Check(want, steps, c.LastLost && !u.Ours), r.Live(slow/3), era)
						for _, p := range r.Progress() {
							if p.Token != nil && p.Token != "go-token" {
								t.Errorf("the client's token came back as %v", p.Token)
							}
						}
					})
				}
			}
		}
	})
	all = slices.DeleteFunc(all, func(u upstream) bool { return u.Once })
	t.Run("together", func(t *testing.T) { together(t, gw, all) })
	gw.Delivered(t)
}

// together calls tools at the endpoint that has those of all servers.
func together(t *testing.T, gw *peers.Longcall, all []upstream) {
	for _, c := range peers.Clients {
		for _, era := range c.Eras {
			t.Run(c.Name+"-"+era, func(t *testing.T) {
				t.Parallel()
				r := c.Call(t, peers.Request{URL: gw.At("", era), Era: era, Tool: "python-v1-legacy__echo", Args: `{"text":"é🙂"}`})
				if got := r.First("result"); got.Text != "é🙂" || r.Code != 0 {
					t.Errorf("echo: exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
				}
				names := r.First("tools").Names
				for _, u := range all {
					tool, _, _ := u.Slow(slow, steps)
					if want := u.name + "__" + tool; !slices.Contains(names, want) {
						t.Errorf("tool %q is not among %v", want, names)
					}
				}
				r = c.Call(t, peers.Request{URL: gw.At("", era), Era: era, Tool: "go-sdk-modern__fail", Args: `{"text":"broken"}`})
				if got := r.First("result"); got.Text != "broken" || r.Code != 3 {
					t.Errorf("fail: exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
				}
			})
		}
	}
}
