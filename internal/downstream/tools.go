package downstream

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"slices"
	"strings"
	"sync"

	"github.com/longcall/longcall/internal/mcp"
)

const (
	pageSize  = 200 // tools of one page
	maxName   = 128 // bytes of a tool's name at /mcp (SPEC §1.3)
	separator = "__"
)

// target is the tool that a call means.
type target struct{ server, tool, public string }

// resolve finds the tool that a tools/call names. Whether the server has it is
// the server's to say: a list can be old.
func (x *exchange) resolve(m *mcp.Message) (t target, ok bool) {
	t.public, _ = mcp.String(m.Name.Of(m.Raw))
	if x.server != "" {
		t.server, t.tool = x.server, t.public
		return t, true
	}
	if tool := x.shellTool(t.public); tool != "" {
		return target{serverShell, tool, t.public}, true
	}
	t.server, t.tool, ok = splitName(t.public, x.h.opt.Catalog.Servers())
	if !ok {
		return t, false
	}
	if !hashed(t.public) {
		return t, true
	}
	// The name may be a tool's own, or one that was made for it.
	tools, _, _ := x.h.opt.Catalog.Tools(x.r.Context(), x.caller(), t.server)
	names := publicNames(t.server, tools, x.h.opt.Catalog.Servers())
	if i := slices.Index(names, t.public); i >= 0 {
		t.tool = tools[i].Name
	}
	return t, true
}

// splitName takes a name at /mcp apart, by the longest server's name that fits.
func splitName(public string, servers []string) (server, tool string, ok bool) {
	for _, s := range servers {
		if rest, cut := strings.CutPrefix(public, s+separator); cut && rest != "" && (!ok || len(s) > len(server)) {
			server, tool, ok = s, rest, true
		}
	}
	return server, tool, ok
}

// publicNames are the names of a server's tools at /mcp, "" for one that is
// listed twice. server__tool is used as it is where it is safe in headers, short
// enough, and read back as the same server and tool; else the tool's part is
// made safe and ends in a hash of what it was, so that it is the same after
// every restart and in every order.
func publicNames(server string, tools []mcp.Entry, servers []string) []string {
	names := make([]string, len(tools))
	seen := make(map[string]bool, len(tools))
	taken := make(map[string]bool, len(tools))
	plain := func(tool string) (string, bool) {
		name := server + separator + tool
		s, t, ok := splitName(name, servers)
		return name, ok && s == server && t == tool && len(name) <= maxName && safe(name)
	}
	for i, t := range tools {
		if name, ok := plain(t.Name); ok && !seen[t.Name] {
			seen[t.Name], taken[name], names[i] = true, true, name
		}
	}
	for i, t := range tools {
		if seen[t.Name] {
			continue
		}
		seen[t.Name] = true
		for salt := byte(0); names[i] == "" || taken[names[i]]; salt++ {
			names[i] = hashedName(server, t.Name, salt)
		}
		taken[names[i]] = true
	}
	return names
}

const hashDigits = 10

// hashedName is server__tool made safe, with a hash.
func hashedName(server, tool string, salt byte) string {
	sum := sha256.Sum256(append([]byte(tool), 0, salt))
	b := []byte(server + separator)
	room := max(maxName-len(b)-1-hashDigits, 0)
	for i := 0; i < len(tool) && i < room; i++ {
		c := tool[i]
		if !safeByte(c) || c == '_' && i > 0 && tool[i-1] == '_' {
			c = '-' // also keeps the separator from appearing a second time
		}
		b = append(b, c)
	}
	b = append(b, '_')
	return string(append(b, hex.EncodeToString(sum[:])[:hashDigits]...))
}

// hashed says whether a name could be one of hashedName's.
func hashed(name string) bool {
	i := len(name) - hashDigits - 1
	if i < 0 || name[i] != '_' {
		return false
	}
	return strings.Trim(name[i+1:], "0123456789abcdef") == ""
}

func safe(s string) bool {
	for i := range len(s) {
		if !safeByte(s[i]) {
			return false
		}
	}
	return true
}

func safeByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '.'
}

// listed is a tool and its place in the order: by server, then by name.
type listed struct {
	name string // as the agent sees it
	sort string // server, NUL, name
	raw  []byte
}

// listTools answers tools/list with one page. Servers whose list is unknown or
// failing are left out, and the answer says that it must not be kept (A22).
func (x *exchange) listTools(m *mcp.Message) []byte {
	id := m.ID.Of(m.Raw)
	after := ""
	if m.Cursor.Ok() {
		c, ok := mcp.String(m.Cursor.Of(m.Raw))
		if ok {
			after, ok = x.h.cursors.open(c, x.q.Principal, x.server)
		}
		if !ok {
			return mcp.ErrorResponse(id, mcp.CodeInvalidParams, "This cursor is not known. Read the list from its start.", nil)
		}
	}
	all, fresh := x.gather()
	start := 0
	if after != "" {
		start, _ = slices.BinarySearchFunc(all, after, func(l listed, s string) int { return strings.Compare(l.sort, s) })
		if start < len(all) && all[start].sort == after {
			start++
		}
	}
	page, next := all[start:], ""
	if len(page) > pageSize {
		page = page[:pageSize]
		next = x.h.cursors.seal(page[pageSize-1].sort, x.q.Principal, x.server)
	}
	b := []byte(`{`)
	if x.modern {
		b = append(b, completeC...)
	}
	b = append(b, `"tools":[`...)
	for i, t := range page {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, t.raw...)
	}
	b = append(b, ']')
	if next != "" {
		b = append(b, `,"nextCursor":`...)
		b = append(b, mcp.Quote(next)...)
	}
	if x.modern {
		ttl := listTTL
		if !fresh {
			ttl = "0"
		}
		b = append(b, `,"ttlMs":`+ttl+`,"cacheScope":"private",`...)
		b = append(b, x.h.metaInfo()...)
	}
	return mcp.ResultResponse(id, append(b, '}'))
}

// gather collects the tools of the endpoint's servers, in order. Servers are
// asked at the same time: one that was never seen may take a while.
func (x *exchange) gather() (all []listed, fresh bool) {
	servers := []string{x.server}
	if x.server == "" {
		servers = slices.Sorted(slices.Values(x.h.opt.Catalog.Servers()))
	}
	type part struct {
		tools []listed
		fresh bool
	}
	parts := make([]part, len(servers))
	read := func(i int) { parts[i].tools, parts[i].fresh = x.serverTools(x.r.Context(), servers[i]) }
	if len(servers) == 1 {
		read(0)
	} else {
		var wg sync.WaitGroup
		for i := range servers {
			wg.Go(func() { read(i) })
		}
		wg.Wait()
	}
	fresh = true
	for _, p := range parts {
		all = append(all, p.tools...)
		fresh = fresh && p.fresh
	}
	return append(all, x.ownEntries()...), fresh
}

// serverTools is one server's part of the list. An entry stays byte for byte
// but for its name at /mcp, and for execution, which says what tasks longcall
// serves, not what the tool server does.
func (x *exchange) serverTools(ctx context.Context, server string) (all []listed, fresh bool) {
	tools, fresh, err := x.h.opt.Catalog.Tools(ctx, x.caller(), server)
	if err != nil {
		fresh = false
		x.h.log.Warn("tool list is incomplete", "server", server, "request", x.q.ID, "error", err)
	}
	var names []string
	if x.server == "" {
		names = publicNames(server, tools, x.h.opt.Catalog.Servers())
	}
	all = make([]listed, 0, len(tools))
	for i, t := range tools {
		l := listed{name: t.Name, raw: t.Raw}
		var set []mcp.Member
		if names != nil {
			if l.name = names[i]; l.name == "" {
				continue
			}
			set = []mcp.Member{{Name: "name", Value: mcp.Quote(l.name)}}
		}
		if support := x.taskSupport(server, t.Name); support != nil {
			set = append(set, mcp.Member{Name: "execution", Value: support})
		}
		if set != nil || bytes.Contains(t.Raw, []byte(`"execution"`)) {
			raw, err := mcp.EditObject(t.Raw, func(n string) bool { return n == "execution" }, set...)
			if err != nil {
				x.h.log.Warn("tool left out of the list: its entry is not an object", "server", server, "request", x.q.ID)
				fresh = false
				continue
			}
			l.raw = mcp.OneLine(raw)
		} else if bytes.IndexByte(l.raw, '\n') >= 0 || bytes.IndexByte(l.raw, '\r') >= 0 {
			l.raw = mcp.OneLine(bytes.Clone(l.raw))
		}
		l.sort = server + "\x00" + l.name
		all = append(all, l)
	}
	slices.SortStableFunc(all, func(a, b listed) int { return strings.Compare(a.sort, b.sort) })
	return slices.CompactFunc(all, func(a, b listed) bool { return a.sort == b.sort }), fresh
}

// cursorKey seals cursors: they name the last tool of a page, and hold for one
// principal at one endpoint until the process ends.
type cursorKey [32]byte

func newCursorKey() (k cursorKey) {
	rand.Read(k[:])
	return k
}

const macSize = 16

func (k *cursorKey) mac(last, principal, server string) []byte {
	h := hmac.New(sha256.New, k[:])
	for _, s := range []string{principal, server, last} {
		h.Write([]byte{byte(len(s) >> 16), byte(len(s) >> 8), byte(len(s))})
		h.Write([]byte(s))
	}
	return h.Sum(nil)[:macSize]
}

func (k *cursorKey) seal(last, principal, server string) string {
	return base64.RawURLEncoding.EncodeToString(append(k.mac(last, principal, server), last...))
}

func (k *cursorKey) open(cursor, principal, server string) (last string, ok bool) {
	b, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil || len(b) <= macSize {
		return "", false
	}
	last = string(b[macSize:])
	return last, hmac.Equal(b[:macSize], k.mac(last, principal, server))
}
