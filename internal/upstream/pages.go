package upstream

import (
	"slices"
	"sync"

	"github.com/longcall/longcall/internal/mcp"
)

// pageBoard is where questions wait for word that the page which they send a person to
// is done. An agent with a session hears it itself, and answers. A stateless one
// has its question and is gone, until it comes back: for it, that the page is done
// counts as the answer, so that the call goes on meanwhile.
type pageBoard struct {
	mu sync.Mutex
	m  map[string][]chan<- string // by elicitationId
}

// wait has ch told, which has to have room, when the page of an elicitation is done.
func (b *pageBoard) wait(id string, ch chan<- string) {
	if b == nil || id == "" {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.m == nil {
		b.m = map[string][]chan<- string{}
	}
	b.m[id] = append(b.m[id], ch)
}

// leave ends one wait.
func (b *pageBoard) leave(id string, ch chan<- string) {
	if b == nil || id == "" {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(b.m[id], ch); i >= 0 {
		b.m[id] = slices.Delete(b.m[id], i, i+1)
	}
	if len(b.m[id]) == 0 {
		delete(b.m, id)
	}
}

// done takes a notification that a page is done. It does not block.
func (b *pageBoard) done(m *mcp.Message) {
	id, ok := mcp.String(mcp.Value(m.Params.Of(m.Raw), "elicitationId"))
	if b == nil || !ok {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, ch := range b.m[id] {
		select {
		case ch <- id:
		default:
		}
	}
}

// pageOf is the elicitationId of a question that sends a person to a page; empty if it is
// another, or has none.
func pageOf(method string, params []byte) string {
	if method != mcp.MethodElicit || mcp.ElicitMode(params) != "url" {
		return ""
	}
	id, _ := mcp.String(mcp.Value(params, "elicitationId"))
	return id
}

// visited is the answer of a person who has been to the page.
var visited = []byte(`{"action":"accept"}`)
