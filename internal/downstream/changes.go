package downstream

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/longcall/longcall/internal/mcp"
)

const (
	// changePause is how long further changes of lists are waited for.
	changePause = 250 * time.Millisecond
	// updatePause is the shortest time between two tellings of resources.
	updatePause = 100 * time.Millisecond
	// maxUpdates is how many resources inside others may wait to be told.
	maxUpdates = 1000
	// maxMore bounds other notifications that wait to be told, in bytes.
	maxMore = 256 << 10
)

// listNotices are the notifications about lists, in the order in which they are told.
var listNotices = [...]string{mcp.MethodToolsChanged, mcp.MethodPromptsChanged, mcp.MethodResourcesChanged}

// listSet holds kinds of lists as their notifications tell them apart: resources
// and their templates are one.
type listSet uint8

// allLists are all kinds.
const allLists listSet = 1<<len(listNotices) - 1

func listsOf(kind mcp.ListKind) listSet {
	return 1 << slices.Index(listNotices[:], kind.ChangedMethod())
}

// changes are what a stream has still to tell: at most one message per list, and
// one per resource that was subscribed to, whatever the tool servers send.
type changes struct {
	wake chan struct{} // holds one: there is something to tell

	mu    sync.Mutex
	lists listSet
	since time.Time // of the first of them
	uris  []string  // in order, each once
	more  [][]byte  // other notifications, raw
	size  int       // bytes of them
	last  time.Time // when resources were told last
}

func newChanges() changes { return changes{wake: make(chan struct{}, 1)} }

// list notes that a list has changed.
func (c *changes) list(set listSet) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lists == 0 {
		c.since = time.Now()
	}
	c.lists |= set
	c.notify()
}

// resource notes that a resource has changed, which the one subscribed to covers.
// When too much waits to be told, that one stands for all in it.
func (c *changes) resource(uri, subscribed string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.uris) >= maxUpdates {
		uri = subscribed
	}
	if !slices.Contains(c.uris, uri) {
		c.uris = append(c.uris, uri)
	}
	c.notify()
}

// notify wakes the stream; c.mu is held.
func (c *changes) notify() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// message notes another notification. When too much waits to be told, the oldest ones
// are dropped.
func (c *changes) message(raw []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(raw) > maxMore {
		return
	}
	c.more, c.size = append(c.more, raw), c.size+len(raw)
	for c.size > maxMore || len(c.more) > maxUpdates {
		c.size -= len(c.more[0])
		c.more = c.more[1:]
	}
	c.notify()
}

// read says that the client reads a list now: changes before do not concern it any
// more.
func (c *changes) read(set listSet) {
	c.mu.Lock()
	c.lists &^= set
	c.mu.Unlock()
}

// wait is how long until there is something to tell; ok is false if there is
// nothing.
func (c *changes) wait() (d time.Duration, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lists != 0 {
		d, ok = time.Until(c.since.Add(changePause)), true
	}
	if len(c.uris) > 0 {
		if u := time.Until(c.last.Add(updatePause)); !ok || u < d {
			d, ok = u, true
		}
	}
	if len(c.more) > 0 {
		d, ok = 0, true
	}
	return max(d, 0), ok
}

// arm sets a timer to when there is something to tell.
func (c *changes) arm(t *time.Timer) {
	if d, ok := c.wait(); ok {
		t.Reset(d)
	}
}

// take gives what is to be told now.
func (c *changes) take() (t telling) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.lists != 0 && now.Sub(c.since) >= changePause {
		t.lists, c.lists = c.lists, 0
	}
	if len(c.uris) > 0 && now.Sub(c.last) >= updatePause {
		t.uris, c.uris, c.last = c.uris, nil, now
	}
	t.more, c.more, c.size = c.more, nil, 0
	return t
}

// giveBack takes what could not be told, for the next stream.
func (c *changes) giveBack(t telling) {
	if t.lists != 0 {
		c.list(t.lists)
	}
	for _, uri := range t.uris {
		c.resource(uri, uri)
	}
	for _, raw := range t.more {
		c.message(raw)
	}
}

// telling is what is told at one time.
type telling struct {
	lists listSet
	uris  []string
	more  [][]byte
}

// each calls f with the method of each notification and the members of its params.
func (t telling) each(f func(method string, members []byte)) {
	for i, method := range listNotices {
		if t.lists&(1<<i) != 0 {
			f(method, nil)
		}
	}
	for _, uri := range t.uris {
		f(mcp.MethodUpdated, append([]byte(`"uri":`), mcp.Quote(uri)...))
	}
}

// covers says whether somebody who subscribed to a resource hears of another: of
// itself, and of what is inside it (SPEC §5.1: an update may be of a part).
func covers(subscribed, uri string) bool {
	rest, ok := strings.CutPrefix(uri, subscribed)
	return ok && (rest == "" || rest[0] == '/' || rest[0] == '#' || rest[0] == '?' || strings.HasSuffix(subscribed, "/"))
}
