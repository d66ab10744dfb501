//go:build unix

package upstream

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
	"github.com/longcall/longcall/internal/seal"
)

// FuzzQuestion: whatever a tool server answers as a question, it is read or refused,
// and what is read is asked under names of its own.
func FuzzQuestion(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"inputRequests":{"a":{"method":"roots/list"}},"requestState":"s"}`, `{"inputRequests":[],"requestState":7}`, `{"inputRequests":{"a":null,"a":{}}}`,
		`{"code":-32042,"message":"m","data":{"elicitations":[{"mode":"url","url":"u"},{"mode":"form"},7]}}`, `{"data":{"elicitations":{}}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if !json.Valid(b) {
			return // it is no message
		}
		if q, err := readQuestion(b); err == nil {
			r := &rounds{}
			seen := map[string]bool{}
			for _, m := range append(q.requests, q.requests...) {
				key := r.key(m.Name)
				if seen[key] {
					t.Errorf("two questions are called %q", key)
				}
				seen[key] = true
			}
			if more, err := mcp.EditObject(nil, nil, q.answered(q.requests)...); err != nil || !json.Valid(more) {
				t.Errorf("goes on with %s: %v", more, err)
			}
		}
		if q := urlQuestion(b); q != nil {
			for _, m := range q.requests {
				if !mcp.Askable([]byte(clockCaps), mcp.MethodElicit, mcp.Value(m.Value, "params")) {
					t.Errorf("a page is asked for with %s", m.Value)
				}
			}
		}
	})
}

// FuzzKeptQuestion: what was kept of a question is read by the process after ours for
// the same call only, and nothing else is read at all.
func FuzzKeptQuestion(f *testing.F) {
	f.Add([]byte(`{}`), 0)
	f.Add([]byte(`{"kind":"question","sealed":"AAAA"}`), 5)
	h := &Hooks{Key: [32]byte{1}}
	id, other := call.NewID(), call.NewID()
	f.Fuzz(func(t *testing.T, b []byte, place int) {
		if _, _, err := h.openQuestion(id, b); err == nil {
			t.Fatalf("%q is read", b)
		}
		kept, err := json.Marshal(&keptQuestion{Request: b, Asked: []byte(`{}`), Round: place})
		if err != nil {
			t.Fatal(err)
		}
		a := questionAddress{Sealed: seal.Seal(h.Key, purposeQuestion, kept, []byte(id))}
		body, err := json.Marshal(&a)
		if err != nil {
			t.Fatal(err)
		}
		if _, k, err := h.openQuestion(id, body); err != nil || !bytes.Equal(k.Request, b) || k.Round != place {
			t.Errorf("read as %+v, %v", k, err)
		}
		if _, _, err := h.openQuestion(other, body); err == nil {
			t.Error("another call reads it")
		}
		if _, _, err := (&Hooks{}).openQuestion(id, body); err == nil {
			t.Error("it is read with another key")
		}
		a.Sealed[int(uint(place)%uint(len(a.Sealed)))] ^= 1
		if body, err = json.Marshal(&a); err != nil {
			t.Fatal(err)
		}
		if _, _, err := h.openQuestion(id, body); err == nil {
			t.Error("it is read although it was changed")
		}
	})
}
