package upstream

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

const (
	// catalogWait is how long a tools/list waits for a server whose tools
	// nobody has ever seen. Later lists are answered at once (DESIGN §4).
	catalogWait = 8 * time.Second
	// catalogAge is the age at which a list is read again in the background
	// when an agent asks for it.
	catalogAge = 5 * time.Minute
	// catalogRetry is the least time between two tries after a failure. A list
	// that was never read is tried again by itself, at growing intervals.
	catalogRetry    = 5 * time.Second
	catalogRetryMax = time.Minute
	// catalogLimit bounds a server's whole list, in bytes.
	catalogLimit = 32 << 20
	// debounce gathers list_changed notifications.
	debounce = 250 * time.Millisecond
)

// catalog is the tool list of one connection.
type catalog struct {
	p *Pool
	l *link

	mu      sync.Mutex
	tools   []mcp.Tool
	read    time.Time     // when tools were last read; zero if never
	tried   time.Time     // when reading last failed
	err     error         // of the last try
	busy    chan struct{} // closed when the read under way ends; nil if none
	again   bool          // read once more after it
	pending bool          // a read is due
	failed  int           // tries since the last success
}

func newCatalog(p *Pool, l *link) *catalog { return &catalog{p: p, l: l} }

// Tools is a server's list as the caller's connection sees it. It is
// answered from the last known list at once; only the very first waits, and
// not for ever. fresh is false when the list is old or unknown, with the
// reason in err.
func (p *Pool) Tools(ctx context.Context, who call.Caller, server string) (tools []mcp.Tool, fresh bool, err error) {
	l, err := p.take(server, who)
	if err != nil {
		return nil, false, err
	}
	defer p.done(l)
	return l.catalog.get(ctx)
}

// get is the list as it is known; see Pool.Tools.
func (c *catalog) get(ctx context.Context) (tools []mcp.Tool, fresh bool, err error) {
	p := c.p
	c.mu.Lock()
	known, age := !c.read.IsZero(), time.Since(c.read)
	tools, err = c.tools, c.err
	if known && age < catalogAge {
		c.mu.Unlock()
		return tools, true, nil
	}
	var busy chan struct{}
	if c.busy != nil || time.Since(c.tried) >= catalogRetry {
		busy = c.readLocked()
	}
	c.mu.Unlock()
	if known {
		return tools, true, nil
	}
	p.mu.Lock()
	last, ok := p.known[c.l.server.Name]
	p.mu.Unlock()
	if ok {
		return last, false, err
	}
	if busy != nil {
		select {
		case <-busy:
		case <-time.After(catalogWait):
		case <-ctx.Done():
		}
		c.mu.Lock()
		tools, err, known = c.tools, c.err, !c.read.IsZero()
		c.mu.Unlock()
	}
	if !known && err == nil {
		err = errors.New("the tool server is still starting")
	}
	return tools, known, err
}

// taskSupport is what the list says of a tool's execution as a task; see Hooks.
func (c *catalog) taskSupport(ctx context.Context, tool string) string {
	tools, _, _ := c.get(ctx) // what is not known is not asked for
	for _, t := range tools {
		if t.Name == tool {
			s, _ := mcp.String(member(member(t.Raw, "execution"), "taskSupport"))
			return s
		}
	}
	return ""
}

// refresh reads the list in the background.
func (c *catalog) refresh() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readLocked()
}

// invalidate is called when the server says that its list changed.
func (c *catalog) invalidate() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pending {
		return
	}
	c.later(debounce)
}

// later reads the list after d. c.mu is held.
func (c *catalog) later(d time.Duration) {
	c.pending = c.p.spawn(func() {
		select {
		case <-c.p.ctx.Done():
			return
		case <-time.After(d):
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.pending = false
		if c.busy != nil {
			c.again = true
			return
		}
		c.readLocked()
	})
}

// readLocked starts a read unless one is under way, and returns what is closed
// at its end. c.mu is held.
func (c *catalog) readLocked() chan struct{} {
	if c.busy != nil {
		return c.busy
	}
	done := make(chan struct{})
	started := c.p.spawn(func() {
		tools, err := c.list(c.p.ctx)
		c.mu.Lock()
		changed := err == nil && (c.read.IsZero() || !sameTools(c.tools, tools))
		if c.err = err; err == nil {
			c.tools, c.read, c.failed = tools, time.Now(), 0
		} else {
			c.tried = time.Now()
			if c.failed++; c.read.IsZero() && !c.pending && !c.l.isRetired() {
				c.later(min(catalogRetry<<min(c.failed-1, 8), catalogRetryMax))
			}
		}
		again := c.again
		c.busy, c.again = nil, false
		close(done)
		if again {
			c.readLocked()
		}
		c.mu.Unlock()
		if err != nil {
			if c.p.ctx.Err() == nil {
				c.p.opt.Log.Warn("tool list not read; the last known one is shown", "server", c.l.server.Name, "error", err)
			}
			return
		}
		if changed && c.p.remember(c.l.server.Name, tools) {
			c.p.changed(c.l.server.Name)
		}
	})
	if started {
		c.busy = done
	}
	return c.busy
}

// list reads all pages.
func (c *catalog) list(ctx context.Context) ([]mcp.Tool, error) {
	var all []mcp.Tool
	var params []byte
	size := 0
	for {
		result, err := c.l.conn.request(ctx, mcp.MethodToolsList, params)
		if err != nil {
			return nil, err
		}
		if size += len(result); size > catalogLimit {
			return nil, errors.New("the tool list is larger than 32 MiB")
		}
		tools, next, err := mcp.Tools(result)
		if err != nil {
			return nil, err
		}
		all = append(all, tools...)
		if next == "" {
			return all, nil
		}
		cursor := append([]byte(`{"cursor":`), mcp.Quote(next)...)
		cursor = append(cursor, '}')
		if bytes.Equal(cursor, params) {
			return nil, errors.New("the tool list's pages never end: the server repeats a cursor")
		}
		params = cursor
	}
}

func sameTools(a, b []mcp.Tool) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !bytes.Equal(a[i].Raw, b[i].Raw) {
			return false
		}
	}
	return true
}

// remember keeps a server's list for connections and processes to come, and
// says whether it is news.
func (p *Pool) remember(server string, tools []mcp.Tool) bool {
	p.mu.Lock()
	last, ok := p.known[server]
	p.known[server] = tools
	p.mu.Unlock()
	if ok && sameTools(last, tools) {
		return false
	}
	if err := p.save(server, tools); err != nil {
		p.opt.Log.Warn("tool list not kept for the next start", "server", server, "error", err)
	}
	return true
}

func (p *Pool) path(server string) string {
	return filepath.Join(p.opt.Dir, "catalog-"+server+".json")
}

// save writes the list as a tools/list result.
func (p *Pool) save(server string, tools []mcp.Tool) error {
	if p.opt.Dir == "" {
		return nil
	}
	b := []byte(`{"tools":[`)
	for i, t := range tools {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, t.Raw...)
	}
	b = append(b, "]}"...)
	tmp, err := os.CreateTemp(p.opt.Dir, ".catalog-*") // 0600
	if err != nil {
		return err
	}
	_, err = tmp.Write(b)
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), p.path(server))
	}
	if err != nil {
		os.Remove(tmp.Name())
	}
	return err
}

func (p *Pool) load(server string) ([]mcp.Tool, error) {
	if p.opt.Dir == "" {
		return nil, os.ErrNotExist
	}
	b, err := os.ReadFile(p.path(server))
	if err != nil {
		return nil, err
	}
	tools, _, err := mcp.Tools(b)
	return tools, err
}
