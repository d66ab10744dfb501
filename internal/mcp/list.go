package mcp

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// ListKind is one of the lists that a server may have.
type ListKind uint8

// The kinds of lists.
const (
	ListTools ListKind = iota
	ListPrompts
	ListResources
	ListTemplates
	listKinds
)

// ListKinds are all kinds, in order.
var ListKinds = [listKinds]ListKind{ListTools, ListPrompts, ListResources, ListTemplates}

// listFacts are how the protocol speaks of a kind.
type listFacts struct{ method, member, key, capability, changed string }

var listTable = [listKinds]listFacts{
	ListTools:     {MethodToolsList, "tools", "name", "tools", MethodToolsChanged},
	ListPrompts:   {MethodPromptsList, "prompts", "name", "prompts", MethodPromptsChanged},
	ListResources: {MethodResourcesList, "resources", "uri", "resources", MethodResourcesChanged},
	ListTemplates: {MethodTemplatesList, "resourceTemplates", "uriTemplate", "resources", MethodResourcesChanged},
}

// Method asks for the list.
func (k ListKind) Method() string { return listTable[k].method }

// Member of the result holds the entries.
func (k ListKind) Member() string { return listTable[k].member }

// Key is the member of an entry that names it.
func (k ListKind) Key() string { return listTable[k].key }

// Capability is the member of a server's capabilities that says that it has the list.
func (k ListKind) Capability() string { return listTable[k].capability }

// ChangedMethod tells that the list changed. Resources and their templates share one.
func (k ListKind) ChangedMethod() string { return listTable[k].changed }

// ListsChanged are the kinds that a notification says have changed; none if it
// is another method.
func ListsChanged(method string) []ListKind {
	switch method {
	case MethodToolsChanged:
		return ListKinds[ListTools:ListPrompts]
	case MethodPromptsChanged:
		return ListKinds[ListPrompts:ListResources]
	case MethodResourcesChanged:
		return ListKinds[ListResources:]
	}
	return nil
}

func (k ListKind) String() string { return listTable[k].member }

// Entry is one entry of a list result.
type Entry struct {
	Name string // the server's own: a name, a uri, or a uriTemplate
	Raw  []byte // the entry as it came
}

// Listing is a server's list as it is known.
type Listing struct {
	Entries []Entry
	// Fresh is false if the server itself has not been read yet, or not since it
	// said that the list changed for so long that it may be out of date.
	Fresh bool
	// TTL is what is left of the time that the server says its list holds; less
	// than 0 if it says nothing of it (SPEC §5.5).
	TTL time.Duration
	// Public says that the server would show anybody the same.
	Public bool
}

// Change is something that a server told, or that was noticed about it: a list,
// or, if URI is not empty, a resource; or, if Message is not empty, a notification
// that longcall knows nothing to do with but to pass it on. Principal and Session say whose connection
// it came on: empty is everybody's.
type Change struct {
	List               ListKind
	URI                string
	Message            string // raw, in one line
	Principal, Session string
}

// Page is one page of a list result.
type Page struct {
	Entries []Entry // Raw points into the result
	Next    string  // cursor; empty on the last page
	TTL     time.Duration
	Public  bool
}

// maxTTL bounds what a server may say of how long its list holds.
const maxTTL = 24 * time.Hour

// ReadPage splits a list result. Entries without a name are an error. TTL is less
// than 0 if the server says none; what is no number of milliseconds, or is below
// 0, counts as 0 (SPEC §5.5).
func ReadPage(kind ListKind, result []byte) (p Page, err error) {
	fail := func(err error) (Page, error) {
		return Page{}, fmt.Errorf("read %s result: %w", kind.Method(), err)
	}
	members, err := Members(result)
	if err != nil {
		return fail(err)
	}
	p.TTL = -1
	var list []byte
	for _, m := range members {
		switch m.Name {
		case kind.Member():
			list = m.Value
		case "nextCursor":
			if s, ok := String(m.Value); ok {
				p.Next = s
			} else if string(m.Value) != "null" {
				return fail(errors.New("nextCursor is no string"))
			}
		case "ttlMs":
			p.TTL = readTTL(m.Value)
		case "cacheScope":
			p.Public = string(m.Value) == `"public"`
		}
	}
	if len(list) == 0 || list[0] != '[' {
		return fail(fmt.Errorf("it has no array of %s", kind.Member()))
	}
	entries, err := elements(list)
	if err != nil {
		return fail(err)
	}
	p.Entries = make([]Entry, 0, len(entries))
	for i, raw := range entries {
		name, err := entryName(kind, raw)
		if err != nil {
			return fail(fmt.Errorf("entry %d: %w", i, err))
		}
		p.Entries = append(p.Entries, Entry{name, raw})
	}
	return p, nil
}

func readTTL(raw []byte) time.Duration {
	ms, err := strconv.ParseFloat(string(raw), 64)
	switch {
	case err != nil && !errors.Is(err, strconv.ErrRange), !(ms > 0):
		return 0
	case ms >= float64(maxTTL/time.Millisecond):
		return maxTTL
	}
	return time.Duration(ms * float64(time.Millisecond))
}

func entryName(kind ListKind, raw []byte) (string, error) {
	members, err := Members(raw)
	if err != nil {
		return "", err
	}
	for _, m := range members {
		if m.Name == kind.Key() {
			if s, ok := String(m.Value); ok && s != "" {
				return s, nil
			}
		}
	}
	return "", fmt.Errorf("it has no %s", kind.Key())
}

// SameEntries says whether two lists are the same byte for byte.
func SameEntries(a, b []Entry) bool {
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

// Elements splits a raw JSON array without copying. The error is a *ParseError if
// list is none.
func Elements(list []byte) ([][]byte, error) {
	if len(list) == 0 || list[0] != '[' {
		return nil, invalid("not a JSON array")
	}
	return elements(list)
}

// elements splits a raw JSON array.
func elements(list []byte) ([][]byte, error) {
	p := newParser(list, jsontext.AllowInvalidUTF8(true))
	defer p.free()
	if _, err := p.dec.ReadToken(); err != nil {
		return nil, parseError(list, err)
	}
	var out [][]byte
	for p.dec.PeekKind() != ']' {
		s, err := p.value()
		if err != nil {
			return nil, parseError(list, err)
		}
		out = append(out, s.Of(list))
	}
	return out, nil
}
