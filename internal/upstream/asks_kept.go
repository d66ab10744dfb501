package upstream

import (
	"encoding/json"
	"time"
)

// openAsk is a request of a server that waits for its answer, as a process after ours
// needs it.
type openAsk struct {
	Key     string          `json:"key"`
	ID      json.RawMessage `json:"id"`
	Method  string          `json:"method"`
	Page    bool            `json:"page,omitempty"`
	Token   json.RawMessage `json:"token,omitempty"`
	Line    float64         `json:"line,omitempty"` // of progress for the token
	Request json.RawMessage `json:"request"`
}

// maxKeptAsks bounds what is kept of the open requests of a call, in bytes. What is
// more is lost with our process.
const maxKeptAsks = 256 << 10

// kept is what is open now, or answered without the server having the answer.
func (a *asks) kept() (list []openAsk) {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for _, some := range [...][]*ask{a.leaves, a.open} {
		for _, q := range some {
			if n += len(q.request); n > maxKeptAsks {
				return list
			}
			list = append(list, openAsk{Key: q.key, ID: q.id, Method: q.method, Page: q.url, Token: q.token, Line: q.line, Request: q.request})
		}
	}
	return list
}

// takeUp asks again what an earlier process had asked, under the same keys. A server
// that brings such a request once more is not asked about twice: it has the same id.
func (a *asks) takeUp(list []openAsk) {
	if a == nil || len(list) == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return
	}
	now := time.Now()
	for _, k := range list {
		q := &ask{
			key: k.Key, id: k.ID, request: k.Request, method: k.Method, url: k.Page, token: k.Token, line: k.Line,
			since: now, told: now,
		}
		a.open = append(a.open, q)
		a.bytes += len(q.request)
		a.count(k.Method, k.ID)
	}
	a.show()
}
