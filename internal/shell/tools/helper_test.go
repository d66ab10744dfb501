//go:build linux || darwin

package tools

import (
	"os"
	"sync"

	"github.com/longcall/longcall/internal/call"
)

func writeFile(path string) error { return os.WriteFile(path, nil, 0o600) }

// observer notes what log lines would say of calls.
type observer struct {
	mu    sync.Mutex
	lines []line
}

type line struct {
	what   string
	id     call.ID
	parent call.ID
	index  int
	end    call.End
}

func (o *observer) add(what string, r *call.Record) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lines = append(o.lines, line{what, r.ID, r.Parent, r.Index, r.End})
}

func (o *observer) CallStarted(r *call.Record)       { o.add("start", r) }
func (o *observer) CallResumed(r *call.Record)       { o.add("resume", r) }
func (o *observer) CallAnswered(r *call.Record)      { o.add("first byte", r) }
func (o *observer) CallEnded(r *call.Record, _ bool) { o.add("end", r) }
func (o *observer) EventLost(call.ID)                {}

// of are the lines of one call.
func (o *observer) of(id call.ID) (list []line) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, l := range o.lines {
		if l.id == id {
			list = append(list, l)
		}
	}
	return list
}
