package downstream

import (
	"encoding/json"
	"fmt"
	"testing"
)

func replayedView(modern bool) view {
	v := viewOf(modern)
	v.replayed, v.stamps = true, newStamps(v.info)
	return v
}

// A kept result is marked, once, and stays valid JSON, whatever the eras make of
// it.
func TestMarkReplayed(t *testing.T) {
	results := []string{
		`{}`, `{ }`, `{"resultType":"complete"}`, `{ "resultType" : "complete" }`, `{"_meta":{}}`, `{"_meta":{"a":1},"content":[]}`, `{"content":[],"_meta":{ }}`,
		`{"resultType":"complete","content":[]}`, `{"content":[],"resultType":"complete"}`, `{"resultType":"complete","_meta":{}}`, `{"_meta":{},"resultType":"complete"}`,
		`{"_meta":{"x":{}},"resultType":"complete","isError":true,"content":[]}`, `{"content":[{"type":"text","text":"\"_meta\":{}"}]}`, `{"structuredContent":{"_meta":{"a":1}}}`, `{"_meta":null,"content":[]}`,
	}
	for _, result := range results {
		for _, modern := range []bool{false, true} {
			for _, form := range []string{`{"jsonrpc":"2.0","id":0,"result":%s}`, `{"result":%s,"id":0,"jsonrpc":"2.0"}`} {
				body := fmt.Appendf(nil, form, result)
				out := splice(nil, body, convert(body, replayedView(modern), nil))
				var m struct {
					Result map[string]json.RawMessage
				}
				var was struct {
					Result map[string]json.RawMessage
				}
				if err := json.Unmarshal(out, &m); err != nil {
					t.Errorf("modern %v: %s became %s: %v", modern, body, out, err)
					continue
				}
				if err := json.Unmarshal(body, &was); err != nil {
					t.Fatal(err)
				}
				var meta map[string]any
				if err := json.Unmarshal(m.Result["_meta"], &meta); err != nil || meta[metaKeyReplayed] != true {
					if result == `{"_meta":null,"content":[]}` && err == nil {
						continue // no object: nothing can be put into it
					}
					t.Errorf("modern %v: %s became %s", modern, body, out)
				}
				if _, there := m.Result["resultType"]; there != modern {
					t.Errorf("modern %v: resultType in %s", modern, out)
				}
				delete(m.Result, "_meta")
				delete(m.Result, "resultType")
				delete(was.Result, "_meta")
				delete(was.Result, "resultType")
				if fmt.Sprint(m.Result) != fmt.Sprint(was.Result) {
					t.Errorf("modern %v: %s became %s", modern, body, out)
				}
			}
		}
	}
	for _, body := range []string{`{"jsonrpc":"2.0","id":0,"error":{"code":-1,"message":"x"}}`, `{"id":0,"result":[]}`, `{"id":0,"result":null}`} {
		if out := splice(nil, []byte(body), convert([]byte(body), replayedView(true), nil)); string(out) != body {
			t.Errorf("%s became %s", body, out)
		}
	}
}

// FuzzMarkReplayed: valid stays valid, in both eras, also as a task's result.
func FuzzMarkReplayed(f *testing.F) {
	for _, s := range []string{`{}`, `{"resultType":"complete"}`, `{"_meta":{"a":1},"resultType":"x"}`, ` {"_meta" : { } }`, `{"a":1 , "resultType":"complete"}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, result string) {
		if !json.Valid([]byte(result)) {
			return
		}
		body := []byte(`{"jsonrpc":"2.0","id":0,"result":` + result + `}`)
		for _, modern := range []bool{false, true} {
			cuts := convert(body, replayedView(modern), nil)
			if out := splice(nil, body, cuts); !json.Valid(out) {
				t.Fatalf("%q became %q", body, out)
			}
			if r := find(body, 0, "result"); r.ok() && body[r.val] == '{' {
				if out := splice(nil, body, intoMeta(body, r.val, `"io.modelcontextprotocol/related-task":{"taskId":"c"}`, convert(body, replayedView(modern), nil))); !json.Valid(out) {
					t.Fatalf("a task's %q became %q", body, out)
				}
			}
		}
	})
}
