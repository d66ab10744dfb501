//go:build unix

package upstream

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

const clockCaps = `{"elicitation":{"form":{},"url":{}},"roots":{},"sampling":{}}`

// asksIn runs a call in fake time whose server is a function, and gives the call.
func asksIn(t *testing.T, spec call.Spec, run func(ctx context.Context, x *call.Exec) call.Answer) *call.Call {
	t.Helper()
	e := call.NewEngine(unkept{}, runner(func(ctx context.Context, x *call.Exec) call.Answer {
		_ = x.Dispatched()
		return run(ctx, x)
	}), call.Options{Epoch: 1})
	c, err := e.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		e.Stop(ctx)
	})
	synctest.Wait()
	return c
}

// told is what a server heard, and when.
type told []string

func (l *told) note(began time.Time, message []byte) {
	*l = append(*l, fmt.Sprintf("%s %s", time.Since(began), message))
}

// asksOf is a server with sessions that makes requests and hears what becomes of them.
// Only one goroutine says something at a time.
func asksOf(heard *told, notes *[]string, requests ...string) func(ctx context.Context, x *call.Exec) call.Answer {
	return func(ctx context.Context, x *call.Exec) call.Answer {
		began := time.Now()
		a := &asks{
			x: x, caps: []byte(clockCaps),
			say:  func(_ context.Context, b []byte) error { heard.note(began, b); return nil },
			note: func(format string, args ...any) { *notes = append(*notes, fmt.Sprintf(format, args...)) },
		}
		for _, r := range requests {
			m, err := mcp.Parse([]byte(r))
			if err != nil {
				panic(err)
			}
			if refused, why := a.request(&m); refused != nil {
				panic(why)
			}
		}
		<-ctx.Done()
		a.close(false, func(b []byte) { heard.note(began, b) })
		return call.Answer{}
	}
}

const (
	askedForm = `{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{"message":"?"}}`
	askedMind = `{"jsonrpc":"2.0","id":2,"method":"sampling/createMessage","params":{}}`
	askedList = `{"jsonrpc":"2.0","id":3,"method":"roots/list"}`
	askedPage = `{"jsonrpc":"2.0","id":4,"method":"elicitation/create","params":{"mode":"url","url":"https://x.example/"}}`
)

// TestX8AsksWait: a question waits as long as limits.answer while nobody is there,
// twice that while an agent is (600 s), three times where a page is to be visited
// (SPEC §4.2). Then an elicitation counts as cancelled, and others fail.
func TestX8AsksWait(t *testing.T) {
	const cancelled = `,"result":{"action":"cancel"}}`
	failed := func(waited string) string {
		return `,"error":{"code":-32603,"message":"Nobody answered within ` + waited + `."}}`
	}
	for _, c := range []struct {
		name     string
		requests []string
		attend   func(c *call.Call)
		want     []string
	}{
		{"nobody is there", []string{askedForm, askedMind, askedList}, func(*call.Call) {}, []string{
			`5m0s {"jsonrpc":"2.0","id":1` + cancelled, `5m0s {"jsonrpc":"2.0","id":2` + failed("5m0s"), `5m0s {"jsonrpc":"2.0","id":3` + failed("5m0s"),
		}},
		{"an agent is there", []string{askedForm, askedMind}, func(c *call.Call) { c.Enter() }, []string{
			`10m0s {"jsonrpc":"2.0","id":1` + cancelled, `10m0s {"jsonrpc":"2.0","id":2` + failed("10m0s"),
		}},
		{"one comes late", []string{askedForm}, func(c *call.Call) { time.Sleep(299 * time.Second); c.Enter() }, []string{
			`10m0s {"jsonrpc":"2.0","id":1` + cancelled,
		}},
		{"one leaves", []string{askedForm}, func(c *call.Call) {
			c.Enter()
			time.Sleep(time.Minute)
			c.Leave(call.Delivery{How: call.Asked}, -1)
		}, []string{`5m0s {"jsonrpc":"2.0","id":1` + cancelled}},
		{"a page", []string{askedPage, askedForm}, func(*call.Call) {}, []string{
			`5m0s {"jsonrpc":"2.0","id":1` + cancelled, `15m0s {"jsonrpc":"2.0","id":4` + cancelled,
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var heard told
				var notes []string
				x := asksIn(t, call.Spec{Limits: call.Limits{Answer: 5 * time.Minute, Total: time.Minute}}, asksOf(&heard, &notes, c.requests...))
				c.attend(x)
				time.Sleep(16 * time.Minute)
				synctest.Wait()
				if !slices.Equal(heard, c.want) {
					t.Errorf("the server heard\n%s\nwant\n%s", strings.Join(heard, "\n"), strings.Join(c.want, "\n"))
				}
				if len(notes) != len(c.want) || !strings.Contains(notes[0], "limits.answer") {
					t.Errorf("notes %q", notes)
				}
				// limits.total stood all the while, and went on after the last of them.
				waited, err := time.ParseDuration(strings.Fields(c.want[len(c.want)-1])[0])
				if err != nil {
					t.Fatal(err)
				}
				r := x.Record()
				if took := r.Ended.Sub(r.Started); r.End.Limit != "total" || took != waited+time.Minute {
					t.Errorf("ended after %s as %+v", took, r.End)
				}
			})
		})
	}
}

// TestX8AsksWaitForEver: what is open when the call ends is told so at once, and limits.answer 0
// waits for ever.
func TestX8AsksWaitForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var heard told
		var notes []string
		x := asksIn(t, call.Spec{}, asksOf(&heard, &notes, askedForm, askedMind))
		time.Sleep(100 * time.Hour)
		if err := x.Cancel(call.End{By: "agent"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		want := []string{
			`100h0m0s {"jsonrpc":"2.0","id":1,"result":{"action":"cancel"}}`,
			`100h0m0s {"jsonrpc":"2.0","id":2,"error":{"code":-32603,"message":"The call that this belongs to has ended."}}`,
		}
		if !slices.Equal(heard, want) {
			t.Errorf("the server heard %q", heard)
		}
	})
}

// TestR21Thinking: a server that gave a token hears every 10 s that somebody is at
// work, later after the agent's own word, and always of more than before.
func TestR21Thinking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const form = `{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{"message":"?","_meta":{"progressToken":"tok"}}}`
		word := func(v string) []byte {
			return []byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"agent's","progress":` + v + `}}`)
		}
		var heard told
		var notes []string
		x := asksIn(t, call.Spec{Limits: call.Limits{Answer: time.Minute}}, asksOf(&heard, &notes, form))
		time.Sleep(12 * time.Second)
		x.Pulse(call.Pulse{Key: "elicitation-1", Progress: word("30")})
		time.Sleep(time.Second)
		x.Pulse(call.Pulse{Key: "elicitation-1", Progress: word("29")}) // less: not passed on
		time.Sleep(10 * time.Second)
		if err := x.Answer([]byte(`{"elicitation-1":{"action":"accept"}}`), []byte(`["elicitation-1"]`)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		const progress = `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"tok","progress":`
		want := []string{
			"10s " + progress + `10,"message":"Waiting for the answer."}}`,
			"12s " + progress + `30}}`,
			"22s " + progress + `30.000001,"message":"Waiting for the answer."}}`,
			`23s {"jsonrpc":"2.0","id":1,"result":{"action":"accept"}}`,
		}
		if !slices.Equal(heard, want) {
			t.Errorf("the server heard\n%s", strings.Join(heard, "\n"))
		}
	})
}

// TestX8RoundsWait: the question of a stateless server waits as long. An agent of a
// session that does not answer has cancelled it; without that word for it, and for an
// agent of the stateless era, the call ends.
func TestX8RoundsWait(t *testing.T) {
	const form, mind = `{"method":"elicitation/create","params":{"message":"?"}}`, `{"method":"sampling/createMessage","params":{}}`
	const page = `{"method":"elicitation/create","params":{"mode":"url","url":"https://x.example/"}}`
	for _, c := range []struct {
		name, era string
		requests  []string
		attended  bool
		waits     time.Duration
		goesOn    bool
	}{
		{"session", mcp.V20251125, []string{form}, false, 5 * time.Minute, true},
		{"session, attended", mcp.V20251125, []string{form, form}, true, 10 * time.Minute, true},
		{"session, no word for it", mcp.V20251125, []string{form, mind}, false, 5 * time.Minute, false},
		{"session, page", mcp.V20251125, []string{page}, true, 15 * time.Minute, true},
		{"stateless", mcp.V20260728, []string{form}, false, 5 * time.Minute, false},
		{"stateless, attended", mcp.V20260728, []string{form}, true, 10 * time.Minute, false},
		{"stateless, page", mcp.V20260728, []string{page}, false, 15 * time.Minute, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				var more []mcp.Member
				var end *call.Answer
				var waited time.Duration
				x := asksIn(t, call.Spec{Era: c.era, Limits: call.Limits{Answer: 5 * time.Minute}}, func(ctx context.Context, x *call.Exec) call.Answer {
					q := &question{}
					for i, r := range c.requests {
						q.requests = append(q.requests, mcp.Member{Name: fmt.Sprint("k", i), Value: []byte(r)})
					}
					more, end = (&rounds{x: x, caps: clockCaps, spec: x.Spec}).next(ctx, q)
					waited = time.Since(began)
					return failed("done")
				})
				if c.attended {
					x.Enter()
				}
				time.Sleep(time.Hour)
				synctest.Wait()
				switch {
				case waited != c.waits:
					t.Errorf("waited %s, want %s", waited, c.waits)
				case c.goesOn && (end != nil || len(more) != 1 || !strings.Contains(string(more[0].Value), `"k0":{"action":"cancel"}`)):
					t.Errorf("goes on with %s, %+v", more, end)
				case !c.goesOn && (end == nil || end.Outcome != call.TimedOut || end.Limit != "answer" || !strings.Contains(end.Text, c.waits.String())):
					t.Errorf("ends as %+v", end)
				}
			})
		})
	}
}

// TestAsksStopTheIdleClock: while a question of a server on a pipe waits, its silence
// is not the server's; from the answer on it is (SPEC §2.4). Over HTTP it is
// TestAsksExpire that says so.
func TestAsksStopTheIdleClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{epoch: time.Now()}
		p := &waiter{asks: &asks{open: []*ask{{}}}}
		c := &clock{w: w, p: p, limits: call.Limits{FirstByte: time.Minute, Idle: time.Minute}, sent: w.since()}
		for range 60 {
			time.Sleep(max(c.next(), time.Millisecond))
			if limit := c.hit(); limit != "" {
				t.Fatalf("limits.%s was reached while a person thinks", limit)
			}
		}
		p.asks.open = nil
		began := time.Now()
		for c.hit() == "" {
			time.Sleep(max(c.next(), time.Millisecond))
		}
		if took := time.Since(began); took != time.Minute {
			t.Errorf("after the answer the silence counted for %s", took)
		}
	})
}
