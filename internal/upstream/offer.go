package upstream

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// intro is how a server introduced itself, in its answer to initialize or
// server/discover.
type intro struct {
	caps         []byte // its capabilities, a raw JSON object; nil if it has not said
	instructions []byte // raw JSON string; nil if it has none
}

// maxIntro bounds each part that is kept of an introduction, in bytes. What is
// larger counts as not said.
const maxIntro = 64 << 10

func readIntro(result []byte) (s intro) {
	members, err := mcp.Members(result)
	if err != nil {
		return s
	}
	for _, m := range members {
		switch {
		case len(m.Value) > maxIntro:
		case m.Name == "capabilities" && m.Value[0] == '{':
			s.caps = mcp.OneLine(append([]byte(nil), m.Value...))
		case m.Name == "instructions" && m.Value[0] == '"':
			s.instructions = append([]byte(nil), m.Value...)
		}
	}
	return s
}

// offers says whether the server may have a capability: it does not if it said
// what it has, and this is not there.
func (s *intro) offers(capability string) bool {
	if s.caps == nil {
		return true
	}
	v := mcp.Value(s.caps, capability)
	return v != nil && string(v) != "null" && string(v) != "false"
}

// says whether a capability has a setting, such as resources.subscribe.
func (s *intro) says(capability, setting string) bool {
	return string(mcp.Value(mcp.Value(s.caps, capability), setting)) == "true"
}

// offer is what is known of a server, from any connection or the disk. The lists
// of all connections to it come from the same credentials.
type offer struct {
	intro
	lists [len(mcp.ListKinds)][]mcp.Entry
	known [len(mcp.ListKinds)]bool
}

// lastList is the last list of a kind that any connection to the server had.
func (p *Pool) lastList(server string, kind mcp.ListKind) ([]mcp.Entry, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.known[server]
	if o == nil || !o.known[kind] {
		return nil, false
	}
	return o.lists[kind], true
}

// Capabilities is the server's capabilities object as it said last, to the
// caller's connection or to any; known is false if it never has. It never waits.
func (p *Pool) Capabilities(who call.Caller, server string) (caps []byte, known bool) {
	s := p.saidTo(who, server)
	return s.caps, s.caps != nil
}

// Instructions are the server's, a raw JSON string, or nil if it has none that are
// known. It never waits.
func (p *Pool) Instructions(who call.Caller, server string) []byte {
	return p.saidTo(who, server).instructions
}

func (p *Pool) saidTo(who call.Caller, server string) intro {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.links[p.key(server, who)]; l != nil && l.said.caps != nil {
		return l.said
	}
	if o := p.known[server]; o != nil {
		return o.intro
	}
	return intro{}
}

// introduced takes how the server introduced itself on a connection.
func (p *Pool) introduced(l *link, s intro) {
	p.mu.Lock()
	l.said = s
	o := p.known[l.server.Name]
	news := o != nil && s.caps != nil && (string(o.caps) != string(s.caps) || string(o.instructions) != string(s.instructions))
	if news {
		o.intro = s
	}
	p.mu.Unlock()
	if news {
		p.keep(l.server.Name)
	}
}

// remember keeps a server's list for connections and processes to come. It
// returns the one that is kept, so that equal ones are in memory once.
func (p *Pool) remember(server string, kind mcp.ListKind, entries []mcp.Entry) []mcp.Entry {
	p.mu.Lock()
	o := p.known[server]
	if o == nil { // not configured any more
		p.mu.Unlock()
		return entries
	}
	if o.known[kind] && mcp.SameEntries(o.lists[kind], entries) {
		entries = o.lists[kind]
		p.mu.Unlock()
		return entries
	}
	o.lists[kind], o.known[kind] = entries, true
	p.mu.Unlock()
	p.keep(server)
	return entries
}

func (p *Pool) keep(server string) {
	if err := p.save(server); err != nil {
		p.opt.Log.Warn("lists not kept for the next start", "server", server, "error", err)
	}
}

func (p *Pool) path(server string) string {
	return filepath.Join(p.opt.Dir, "catalog-"+server+".json")
}

// save writes what is known of a server, as one object with the members of the
// results that it came from.
func (p *Pool) save(server string) error {
	if p.opt.Dir == "" {
		return nil
	}
	p.saving.Lock() // the last one written is the last one known
	defer p.saving.Unlock()
	p.mu.Lock()
	o := p.known[server]
	if o == nil {
		p.mu.Unlock()
		return nil
	}
	last := *o
	p.mu.Unlock()
	tmp, err := os.CreateTemp(p.opt.Dir, ".catalog-*") // 0600
	if err != nil {
		return err
	}
	_, err = tmp.Write(last.marshal())
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), p.path(server))
	}
	if err != nil {
		os.Remove(tmp.Name())
	}
	return err
}

func (o *offer) marshal() []byte {
	b := []byte{'{'}
	set := func(name string, value []byte) {
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = append(append(append(b, mcp.Quote(name)...), ':'), value...)
	}
	if o.caps != nil {
		set("capabilities", o.caps)
	}
	if o.instructions != nil {
		set("instructions", o.instructions)
	}
	for _, kind := range mcp.ListKinds {
		if !o.known[kind] {
			continue
		}
		set(kind.Member(), []byte{'['})
		for i, e := range o.lists[kind] {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(b, e.Raw...)
		}
		b = append(b, ']')
	}
	return append(b, '}')
}

// load reads what an earlier process knew of a server. What it cannot read it
// does not know.
func (p *Pool) load(server string) *offer {
	o := new(offer)
	if p.opt.Dir == "" {
		return o
	}
	b, err := os.ReadFile(p.path(server))
	if err != nil {
		return o
	}
	o.intro = readIntro(b)
	for _, kind := range mcp.ListKinds {
		if page, err := mcp.ReadPage(kind, b); err == nil {
			o.lists[kind], o.known[kind] = page.Entries, true
		}
	}
	return o
}
