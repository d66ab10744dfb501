package upstream

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

const (
	// catalogWait is how long a list waits for a server whose list nobody has
	// ever seen. Later ones are answered at once (DESIGN §4).
	catalogWait = 8 * time.Second
	// catalogAge is the age at which a list whose server says nothing of how
	// long it holds is read again in the background when an agent asks for it
	//
	catalogAge = 5 * time.Minute
	// catalogRetry is the least time between two tries after a failure, and
	// between two reads of a list that its server says is out of date at once
	// (SPEC §5.5: a ttl is no poll period). A list that was never read is tried
	// again by itself, at growing intervals.
	catalogRetry    = 5 * time.Second
	catalogRetryMax = time.Minute
	// catalogLimit bounds a server's whole list of one kind, in bytes.
	catalogLimit = 32 << 20
	// debounce gathers list_changed notifications.
	debounce = 250 * time.Millisecond
)

// catalog is a list of one kind as one connection shows it.
type catalog struct {
	p    *Pool
	l    *link
	kind mcp.ListKind

	mu      sync.Mutex
	entries []mcp.Entry
	ttl     time.Duration // as the server said; less than 0 if it said nothing
	public  bool
	read    time.Time     // when entries were last read; zero if never
	tried   time.Time     // when reading last failed
	err     error         // of the last try
	busy    chan struct{} // closed when the read under way ends; nil if none
	again   bool          // read once more after it
	pending bool          // a read is due
	stale   bool          // the server said that the list changed, since the last read began
	renews  bool          // the read under way began after it had said so
	said    bool          // it said so, and that is still to be told
	failed  int           // tries since the last success
	shown   bool          // somebody was told that nothing is known of the list
}

// List is a server's list of a kind as the caller's connection sees it. It is
// answered from the last known list at once; only the very first waits, and one that
// its server says has changed, and neither for ever. A server without the capability
// has an empty list, and is not asked, but for tools.
// The listing is not fresh when it is old or unknown, with the reason in err.
func (p *Pool) List(ctx context.Context, who call.Caller, server string, kind mcp.ListKind) (mcp.Listing, error) {
	l, err := p.take(server, who)
	if err != nil {
		return mcp.Listing{TTL: -1}, err
	}
	defer p.done(l)
	l.catalogs[kind].catchUp(ctx)
	return l.catalogs[kind].get(ctx)
}

// catchUp reads a list that its server says has changed, and waits for it: the cache
// does not hold any more, and an agent whose call has changed the list looks for
// that in it. A server that does not answer is not waited for again at once.
func (c *catalog) catchUp(ctx context.Context) {
	for range 2 { // a read under way may have begun before the server said so
		var busy chan struct{}
		c.mu.Lock()
		if c.renews || c.stale && time.Since(c.tried) >= catalogRetry {
			busy = c.readLocked()
		}
		c.mu.Unlock()
		if busy == nil {
			return
		}
		await(ctx, busy)
	}
}

// get is the list as it is known; see Pool.List.
func (c *catalog) get(ctx context.Context) (mcp.Listing, error) {
	last, ok := c.p.lastList(c.l.server.Name, c.kind) // before a read of ours makes one
	c.mu.Lock()
	known := !c.read.IsZero()
	if known && time.Since(c.read) < c.holds() {
		defer c.mu.Unlock()
		return c.listing(), nil
	}
	var busy chan struct{}
	if c.busy != nil || time.Since(c.tried) >= catalogRetry {
		busy = c.readLocked()
	}
	listing, err := c.listing(), c.err
	c.mu.Unlock()
	if known {
		return listing, nil
	}
	if ok {
		return mcp.Listing{Entries: last, TTL: -1}, err
	}
	if busy != nil {
		await(ctx, busy)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	listing, err = c.listing(), c.err
	if c.read.IsZero() {
		c.shown = true
		if err == nil {
			err = errors.New("the tool server is still starting")
		}
	}
	return listing, err
}

// holds is how old the list may get before it is read again. c.mu is held.
func (c *catalog) holds() time.Duration {
	if c.ttl < 0 {
		return catalogAge
	}
	return max(c.ttl, catalogRetry)
}

// listing is the list as it was read. c.mu is held.
func (c *catalog) listing() mcp.Listing {
	l := mcp.Listing{Entries: c.entries, Fresh: !c.read.IsZero(), TTL: c.ttl, Public: c.public}
	if c.ttl > 0 {
		l.TTL = max(0, c.ttl-time.Since(c.read))
	}
	return l
}

// taskSupport is what the list says of a tool's execution as a task; see Hooks.
func (c *catalog) taskSupport(ctx context.Context, tool string) string {
	tools, _ := c.get(ctx) // what is not known is not asked for
	for _, t := range tools.Entries {
		if t.Name == tool {
			s, _ := mcp.String(mcp.Value(mcp.Value(t.Raw, "execution"), "taskSupport"))
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

// invalidate is called when the server says that its list changed. That is told,
// also if the list turns out to be the same: it may have changed and changed back,
// and who looks for what a server says would wait for it.
func (c *catalog) invalidate() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stale, c.said = true, true
	if c.pending {
		return
	}
	c.later(debounce)
}

// outdated is called when the list may have changed unheard: it is read again if
// anybody has read it.
func (c *catalog) outdated() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.read.IsZero() && !c.pending {
		c.later(debounce)
	}
}

// later reads the list after d. c.mu is held.
func (c *catalog) later(d time.Duration) {
	c.pending = c.p.spawn(func() {
		wait := time.NewTimer(d)
		defer wait.Stop()
		select {
		case <-c.l.ctx.Done():
			return
		case <-wait.C:
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
	tell := c.said && !c.pending // else the read that is due tells of the whole burst
	if c.p.spawn(func() { c.readNow(done, tell) }) {
		c.busy, c.renews, c.stale, c.said = done, c.stale, false, c.said && !tell
	}
	return c.busy
}

// readNow reads the list and tells who watches if it is another one and no later read
// will, or if it has to tell what the server said. done is closed as soon as the list
// can be used.
func (c *catalog) readNow(done chan struct{}, tell bool) {
	page, err := c.list(c.l.ctx)
	server := c.l.server.Name
	before, known := c.p.lastList(server, c.kind)
	if err == nil {
		page.Entries = c.p.remember(server, c.kind, page.Entries)
	}
	c.mu.Lock()
	if !c.read.IsZero() {
		before, known = c.entries, true
	}
	changed := err == nil && (tell || !c.said && (known || c.shown) && !mcp.SameEntries(before, page.Entries))
	if c.err = err; err == nil {
		c.entries, c.ttl, c.public, c.read, c.failed = page.Entries, page.TTL, page.Public, time.Now(), 0
	} else {
		c.tried = time.Now()
		c.stale, c.said = c.stale || c.renews, c.said || tell
		if c.failed++; c.read.IsZero() && !c.pending && !c.l.isRetired() {
			c.later(min(catalogRetry<<min(c.failed-1, 8), catalogRetryMax))
		}
	}
	again := c.again
	c.busy, c.renews, c.again = nil, false, false
	close(done)
	if again {
		c.readLocked()
	}
	c.mu.Unlock()
	switch {
	case err == nil && changed:
		c.p.changed(server, c.l.change(mcp.Change{List: c.kind}))
	case err != nil && c.l.ctx.Err() == nil:
		c.p.opt.Log.Warn("list not read; the last known one is shown", "server", server, "list", c.kind.Member(), "error", err)
	}
}

// list reads all pages. Its TTL is the shortest of theirs, and it is public if
// all are (SPEC §5.5).
func (c *catalog) list(ctx context.Context) (all mcp.Page, err error) {
	all = mcp.Page{TTL: -1, Public: true}
	said, err := c.l.conn.meet(ctx)
	if err != nil {
		return all, err
	}
	// Tools are asked for in any case: some servers have them and do not say so.
	if c.kind != mcp.ListTools && !said.offers(c.kind.Capability()) {
		return all, nil
	}
	var params []byte
	size := 0
	for {
		result, err := c.l.conn.request(ctx, c.kind.Method(), params)
		var rpc *mcp.RPCError
		if errors.As(err, &rpc) && rpc.Code == mcp.CodeMethodNotFound {
			return mcp.Page{TTL: -1}, nil // whatever it declared, it has no such list
		}
		if err != nil {
			return all, err
		}
		if size += len(result); size > catalogLimit {
			return all, errors.New("the list is larger than 32 MiB")
		}
		page, err := mcp.ReadPage(c.kind, result)
		if err != nil {
			return all, err
		}
		all.Entries = append(all.Entries, page.Entries...)
		all.Public = all.Public && page.Public
		if all.TTL < 0 || page.TTL >= 0 && page.TTL < all.TTL {
			all.TTL = page.TTL
		}
		if page.Next == "" {
			if c.kind == mcp.ListTools && c.l.conn.mirrors() {
				all.Entries = c.mirrored(all.Entries)
			}
			return all, nil
		}
		cursor := append([]byte(`{"cursor":`), mcp.Quote(page.Next)...)
		cursor = append(cursor, '}')
		if bytes.Equal(cursor, params) {
			return all, errors.New("the list's pages never end: the server repeats a cursor")
		}
		params = cursor
	}
}

// await waits for a read under way, for as long as an agent may wait for a list.
func await(ctx context.Context, busy <-chan struct{}) {
	wait := time.NewTimer(catalogWait)
	defer wait.Stop()
	select {
	case <-busy:
	case <-wait.C:
	case <-ctx.Done():
	}
}
