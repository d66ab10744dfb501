package downstream

import (
	"context"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/command"
	"github.com/longcall/longcall/internal/mcp"
)

// callResources are the calls of a principal as resources (SHELL §5): how a call
// stands, at longcall://calls/ID, and what a command has printed, at
// longcall://calls/ID/output. Who subscribes is told of the end, also if it was
// before: the update follows the acknowledgement.
type callResources struct{}

// outputSuffix ends the URI of a command's output, outputMost bounds what of it one
// read gives, in bytes.
const (
	outputSuffix = "/output"
	outputMost   = 256 << 10
)

func (callResources) owns(uri string) bool { return strings.HasPrefix(uri, callScheme) }

// find gives the call that a URI names, if it is the principal's.
func (r callResources) find(x *exchange, uri string) (c *call.Call, output, ok bool) {
	id, ok := strings.CutPrefix(uri, callScheme)
	if !ok {
		return nil, false, false
	}
	id, output = strings.CutSuffix(id, outputSuffix)
	c, err := x.findCall(id)
	if err != nil || output && !x.isShell(c.Record().Server) {
		return nil, false, false
	}
	return c, output, true
}

func (callResources) templates(*exchange) []mcp.Entry {
	entry := func(uri, name, about, kind string) mcp.Entry {
		return mcp.Entry{Name: uri, Raw: []byte(`{"uriTemplate":"` + uri + `","name":"` + name + `","description":"` + about + `","mimeType":"` + kind + `"}`)}
	}
	return []mcp.Entry{
		entry(callScheme+"{id}", "call", "How a call or command of yours stands, and its result once it has ended. Subscribe to be told of its end.", "application/json"),
		entry(callScheme+"{id}"+outputSuffix, "output", "What a command of yours has printed. Subscribe to be told when there is more.", "text/plain"),
	}
}

// read gives a call as it is now. An end that is read is delivered.
func (r callResources) read(x *exchange, uri string) (contents []byte, ok bool) {
	c, output, ok := r.find(x, uri)
	if !ok {
		return nil, false
	}
	ctx := x.r.Context()
	st, err := c.Look(ctx, math.MaxUint64)
	if err != nil {
		return nil, false
	}
	rec := c.Record()
	if st.Outcome == call.Running {
		rec = asRunning(rec)
	} else {
		x.told = append(x.told, rec.ID)
	}
	kind, text := "application/json", ""
	switch {
	case x.isShell(rec.Server) && rec.End.Outcome != call.Denied:
		o := &command.ShowOptions{Names: x.shellNames()}
		if output {
			o.MaxBytes = outputMost
		}
		sh := x.h.opt.Shell.Show(ctx, &rec, o)
		x.told = append(x.told, sh.Told...)
		text = string(sh.Structured)
		if output {
			var v struct{ Output string }
			if json.Unmarshal(sh.Structured, &v) != nil {
				return nil, false
			}
			kind, text = "text/plain", v.Output
		}
	default:
		text = callText(ctx, c, &rec)
	}
	p := &pieces{}
	p.raw(`[{"uri":`)
	p.quote(uri)
	p.raw(`,"mimeType":"` + kind + `","text":`)
	p.quote(text)
	p.raw(`}]`)
	return p.join(), true
}

// callText is a call of a tool server as await_call tells it, as JSON.
func callText(ctx context.Context, c *call.Call, rec *call.Record) string {
	var t told
	switch {
	case rec.End.Outcome == call.Running:
		t = stillRunning(c)
	default:
		if ev, err := endOf(ctx, c); err != nil {
			t = lostResult(c)
		} else {
			t = hasEnded(c, ev)
		}
	}
	p := &pieces{}
	t.append(p)
	return string(p.join())
}

// watch tells of a call's end, and of new output of a command, until stop. It costs
// a goroutine until then, or until the end was told.
func (r callResources) watch(x *exchange, uri string, changed func()) (stop func(), ok bool) {
	c, output, ok := r.find(x, uri)
	if !ok {
		return nil, false
	}
	wake := make(chan struct{}, 1)
	quiet := []func(){c.Notify(wake)}
	shell, total := x.h.opt.Shell, int64(0)
	if output {
		quiet = append(quiet, shell.Watch(c.ID(), wake))
		total = shell.Total(c.ID())
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(x.r.Context()))
	var done sync.WaitGroup
	done.Go(func() {
		look := time.NewTimer(time.Hour)
		defer look.Stop()
		for {
			st, err := c.Look(ctx, math.MaxUint64)
			if err == nil && st.Outcome != call.Running {
				changed()
				return
			}
			if output {
				if now := shell.Total(c.ID()); now != total {
					total = now
					changed()
				}
			}
			look.Reset(time.Hour)
			if st.Elsewhere || err != nil {
				look.Reset(call.LookEvery) // nobody wakes us
			}
			select {
			case <-wake:
			case <-look.C:
			case <-ctx.Done():
				return
			}
		}
	})
	return sync.OnceFunc(func() {
		cancel()
		done.Wait()
		for _, f := range quiet {
			f()
		}
	}), true
}

// ownTemplates are the templates of our resources as a list shows them, last.
func (x *exchange) ownTemplates() (all []listed) {
	if x.h.own == nil {
		return nil
	}
	for i, e := range x.h.own.templates(x) {
		all = append(all, listed{name: e.Name, sort: "\xff\x00" + strconv.Itoa(i), raw: e.Raw})
	}
	return all
}
