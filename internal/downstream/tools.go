package downstream

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/longcall/longcall/internal/mcp"
)

const (
	maxName   = 128 // bytes of a tool's or prompt's name at /mcp (SPEC §1.3)
	separator = "__"
)

// target is what a request means: a tool, prompt or resource of a server. tool is
// its own name there, or its URI.
type target struct{ server, tool, public string }

// resolve finds the tool or prompt, as kind says, that an agent calls public.
// Whether the server has it is the server's to say: a list can be old.
func (x *exchange) resolve(kind mcp.ListKind, public string) (t target, ok bool) {
	t.public = public
	if x.server != "" {
		t.server, t.tool = x.server, t.public
		return t, true
	}
	if tool := x.shellTool(t.public); tool != "" {
		return target{ServerShell, tool, t.public}, true
	}
	t.server, t.tool, ok = splitName(t.public, x.h.opt.Catalog.Servers())
	if !ok {
		return t, false
	}
	if !hashed(t.public) {
		return t, true
	}
	// The name may be the server's own, or one that was made for it.
	list, _ := x.h.opt.Catalog.List(x.r.Context(), x.caller(), t.server, kind)
	names := publicNames(t.server, list.Entries, x.h.opt.Catalog.Servers())
	if i := slices.Index(names, t.public); i >= 0 {
		t.tool = list.Entries[i].Name
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

// publicNames are the names of a server's tools or prompts at /mcp, "" for one
// that is listed twice. server__tool is used as it is where it is safe in headers,
// short enough, and read back as the same server and tool; else the tool's part is
// made safe and ends in a hash of what it was, so that it is the same after
// every restart and in every order.
func publicNames(server string, list []mcp.Entry, servers []string) []string {
	names := make([]string, len(list))
	seen := make(map[string]bool, len(list))
	taken := make(map[string]bool, len(list))
	plain := func(tool string) (string, bool) {
		name := server + separator + tool
		s, t, ok := splitName(name, servers)
		return name, ok && s == server && t == tool && len(name) <= maxName && safe(name)
	}
	for i, t := range list {
		if name, ok := plain(t.Name); ok && !seen[t.Name] {
			seen[t.Name], taken[name], names[i] = true, true, name
		}
	}
	for i, t := range list {
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

// cursorKey seals cursors: they name the last entry of a page, and hold for one
// list of one principal at one endpoint until the process ends.
type cursorKey [32]byte

func newCursorKey() (k cursorKey) {
	rand.Read(k[:])
	return k
}

const macSize = 16

func (k *cursorKey) mac(last, list, principal, server string) []byte {
	h := hmac.New(sha256.New, k[:])
	for _, s := range []string{list, principal, server, last} {
		h.Write([]byte{byte(len(s) >> 16), byte(len(s) >> 8), byte(len(s))})
		h.Write([]byte(s))
	}
	return h.Sum(nil)[:macSize]
}

func (k *cursorKey) seal(last, list, principal, server string) string {
	return base64.RawURLEncoding.EncodeToString(append(k.mac(last, list, principal, server), last...))
}

func (k *cursorKey) open(cursor, list, principal, server string) (last string, ok bool) {
	b, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil || len(b) <= macSize {
		return "", false
	}
	last = string(b[macSize:])
	return last, hmac.Equal(b[:macSize], k.mac(last, list, principal, server))
}
