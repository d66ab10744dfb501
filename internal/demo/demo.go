// Package demo shows what a layer that cuts silent connections does to a long call, and what longcall does about it.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/longcall/longcall/internal/cli/client"
)

// Options of a Demo. Zero durations mean the defaults.
type Options struct {
	Tool time.Duration // how long the tool works; 0 means 12 s
	Cut  time.Duration // silence after which the proxy cuts; 0 means 3 s

	Out      io.Writer
	Terminal bool // Out is one: draw in place
	Color    bool
	Width    int // columns of the terminal
	Version  string
}

// Beat is how often longcall must show life so that the proxy sees enough of it.
func (o *Options) Beat() time.Duration { return o.cut() / 3 }

func (o *Options) cut() time.Duration {
	if o.Cut == 0 {
		return 3 * time.Second
	}
	return o.Cut
}

func (o *Options) tool() time.Duration {
	if o.Tool == 0 {
		return 12 * time.Second
	}
	return o.Tool
}

// Report is what happened.
type Report struct {
	Direct   Side // agent, proxy, tool
	Longcall Side // agent, proxy, longcall, tool
}

// Side is one of the two calls.
type Side struct {
	Result  string        // what the agent got; empty if it got nothing
	Err     error         // what the agent got instead
	After   time.Duration // when it got that
	Worked  time.Duration // when the tool had finished; 0 if it has not
	Silence time.Duration // longest, between two bytes on the agent's connection
	Beats   int           // signs of life that the agent got before the result
	Cut     bool          // the proxy cut the connection
}

// Proved says whether the demo showed what it is there to show: the direct call
// lost its result to the proxy while the tool worked on, and the same call
// through longcall came through.
func (r *Report) Proved() bool {
	return r.Direct.Err != nil && r.Direct.Cut && r.Direct.Worked > r.Direct.After &&
		r.Longcall.Err == nil && r.Longcall.Result != "" && !r.Longcall.Cut
}

const (
	// headerSide tells the tool server which of the two calls it works for.
	headerSide   = "Demo-Side"
	sideDirect   = "direct"
	sideLongcall = "longcall"
)

// Demo has its own tool server and proxies, on loopback.
type Demo struct {
	opt    Options
	screen *screen
	tools  *toolServer
	proxy  *proxy // of the direct side

	mu     sync.Mutex
	report Report
	start  time.Time
	done   map[string]chan struct{} // closed when the tool has finished for a side
}

// New starts the tool server. ctx bounds the start only; Close must follow.
func New(ctx context.Context, o Options) (*Demo, error) {
	d := &Demo{opt: o, done: map[string]chan struct{}{sideDirect: make(chan struct{}), sideLongcall: make(chan struct{})}}
	d.screen = newScreen(&o)
	var err error
	if d.tools, err = newToolServer(ctx, o.tool(), d.heard); err != nil {
		return nil, err
	}
	if d.proxy, err = newProxy(ctx, d.tools.addr(), o.cut(), func() { d.cut(sideDirect) }); err != nil {
		d.tools.close()
		return nil, err
	}
	return d, nil
}

// ToolURL is the tool server's endpoint, for longcall's config.
func (d *Demo) ToolURL() string { return "http://" + d.tools.addr() + "/mcp" }

// Close ends what New started.
func (d *Demo) Close() {
	d.proxy.close()
	d.tools.close()
}

func (d *Demo) side(name string) (*Side, int) {
	if name == sideDirect {
		return &d.report.Direct, left
	}
	return &d.report.Longcall, right
}

// heard is told by the tool server.
func (d *Demo) heard(name, what string) {
	d.mu.Lock()
	s, column := d.side(name)
	at := time.Since(d.start)
	gone := s.Err != nil
	finished := strings.HasPrefix(what, "finished")
	if finished && s.Worked == 0 {
		s.Worked = at
		close(d.done[name])
	}
	d.mu.Unlock()
	switch {
	case finished && gone:
		d.screen.add(column, plainMark, "tool: finished; nobody is there for the result")
	case finished:
		d.screen.add(column, plainMark, "tool: finished")
	case gone:
		d.screen.add(column, plainMark, "tool: works on, "+what)
	}
}

// cut is told by the proxies.
func (d *Demo) cut(name string) {
	d.mu.Lock()
	s, column := d.side(name)
	s.Cut = true
	d.mu.Unlock()
	d.screen.add(column, badMark, fmt.Sprintf("proxy: no byte for %s, connection cut", short(d.opt.cut())))
}

// Run makes both calls at once, the right one through the longcall at gateway
// (without path), draws them side by side, and returns when both are over. An
// error is one of the demo itself.
func (d *Demo) Run(ctx context.Context, gateway, token string) (*Report, error) {
	host := strings.TrimPrefix(gateway, "http://")
	through, err := newProxy(ctx, host, d.opt.cut(), func() { d.cut(sideLongcall) })
	if err != nil {
		return nil, err
	}
	defer through.close()
	d.mu.Lock()
	d.start = time.Now()
	d.mu.Unlock()
	d.screen.begin(d.opt.cut(), d.opt.tool())
	draw, stop := context.WithCancel(ctx)
	var drawing, calls sync.WaitGroup
	drawing.Go(func() { d.screen.run(draw, d.proxy, through) })
	calls.Go(func() {
		h := http.Header{}
		h.Set(headerSide, sideDirect)
		d.call(ctx, sideDirect, &client.Client{URL: d.proxy.url() + "/mcp", HTTP: withHeader(h)})
		// What the tool does when the agent is long gone is half of the story.
		select {
		case <-d.done[sideDirect]:
		case <-time.After(d.opt.tool() + d.opt.cut()):
		case <-ctx.Done():
		}
	})
	calls.Go(func() {
		d.call(ctx, sideLongcall, &client.Client{URL: through.url() + "/mcp/" + ServerName, Token: token})
	})
	calls.Wait()
	stop()
	drawing.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.report.Direct.Silence, d.report.Longcall.Silence = d.proxy.longest(), through.longest()
	r := d.report
	if err := context.Cause(ctx); err != nil {
		d.screen.end(nil)
		return nil, err
	}
	d.screen.end(d.summary(&r))
	return &r, nil
}

// withHeader is an HTTP client that adds a header to each request.
func withHeader(h http.Header) *http.Client {
	c := client.NewHTTP()
	c.Transport = headerTransport{h, c.Transport}
	return c
}

type headerTransport struct {
	h    http.Header
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t headerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	maps.Copy(r.Header, t.h)
	return t.next.RoundTrip(r)
}

// call is one agent: it asks, listens, and says what it got.
func (d *Demo) call(ctx context.Context, name string, c *client.Client) {
	c.Name, c.Version = "longcall-demo", d.opt.Version
	s, column := d.side(name)
	d.screen.add(column, plainMark, "agent: calls "+ToolName)
	beat := func() {
		d.mu.Lock()
		s.Beats++
		n := s.Beats
		d.mu.Unlock()
		d.screen.beat(column, n)
	}
	res, err := c.Do(ctx, client.Call{
		Tool: ToolName, Arguments: []byte(`{"path":"."}`),
		Beat: beat,
		Progress: func(p client.Progress) {
			if !strings.HasSuffix(p.Text, "files") { // longcall's own, to show life
				beat()
				return
			}
			d.screen.add(column, plainMark, fmt.Sprintf("agent: %.0f%%, %s", 100*p.Value/max(p.Total, 1), p.Text))
		},
	})
	d.mu.Lock()
	s.After = time.Since(d.start)
	if err == nil && (res.IsError || len(res.Content) == 0) {
		err = errors.New("an error result")
		if len(res.Content) > 0 {
			err = errors.New(res.Content[0].Text)
		}
	}
	if s.Err = err; err == nil {
		s.Result = res.Content[0].Text
	}
	d.mu.Unlock()
	if err != nil {
		if ctx.Err() == nil {
			d.screen.add(column, badMark, "agent: "+err.Error())
		}
		return
	}
	d.screen.add(column, goodMark, "agent: has the result: "+s.Result)
}

// summary is what happened, in three lines.
func (d *Demo) summary(r *Report) []string {
	if !r.Proved() {
		return []string{fmt.Sprintf("This did not go as it should. Directly: %s. Through longcall: %s.", outcome(&r.Direct), outcome(&r.Longcall))}
	}
	return []string{
		fmt.Sprintf("Directly, the agent lost the call after %s of silence, and the tool worked on for %s for nobody.", short(d.opt.cut()), short(r.Direct.Worked-r.Direct.After)),
		fmt.Sprintf("Through longcall, no silence was longer than %s, so the same proxy had nothing to cut: the result came after %s.", short(r.Longcall.Silence), short(r.Longcall.After)),
		"Next: longcall serve --config FILE puts it in front of your own tool servers; longcall clients connects your agent.",
	}
}

func outcome(s *Side) string {
	if s.Err != nil {
		return s.Err.Error()
	}
	return "the result came after " + short(s.After)
}

// short is a time with one decimal.
func short(d time.Duration) string {
	if d%time.Second == 0 {
		return fmt.Sprintf("%d s", d/time.Second)
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}
