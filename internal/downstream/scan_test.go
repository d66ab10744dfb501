package downstream

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

func TestFind(t *testing.T) {
	big := `[` + strings.Repeat(`"\\\"}]",`, 2000) + `1]`
	tests := []struct{ in, name, want string }{
		{`{"a":1,"b":"x"}`, "b", `"x"`},
		{` { "a" : [ {"b":2} , "\"}" ] , "b" : -1e3 } `, "b", `-1e3`},
		{`{"a":{"b":1}}`, "b", ``},
		{`{"\"b":1,"b":2}`, "b", `2`},
		{`{"a":"\\","b":true}`, "b", `true`},
		{`{"a":` + big + `,"b":null}`, "b", `null`},
		{`{}`, "b", ``},
		{``, "b", ``},
		{`[1]`, "b", ``},
		{`{"b"`, "b", ``},
		{`{"b":`, "b", ``},
		{`{"b"}`, "b", ``},
	}
	for _, tt := range tests {
		f := find([]byte(tt.in), 0, tt.name)
		got := ""
		if f.ok() {
			got = tt.in[f.val:f.end]
		}
		if got != tt.want {
			t.Errorf("%.60s: %q, want %q", tt.in, got, tt.want)
		}
	}
}

func FuzzScan(f *testing.F) {
	for _, s := range []string{`{"a":1}`, `{"result":{"resultType":"complete"}}`, `[1,{"a":"\\\""},[]]`, `{"a":"`, `[`, `[[[`, `"\`, `{"result":{"resultType":1,"a":2}}`, `{"error":{"code":-32002}}`} {
		f.Add([]byte(s), "a")
	}
	f.Fuzz(func(t *testing.T, b []byte, name string) {
		parts, ok := elements(b)
		var want []json.RawMessage
		if json.Unmarshal(b, &want) == nil && bytes.HasPrefix(bytes.TrimSpace(b), []byte("[")) {
			if !ok || len(parts) != len(want) {
				t.Fatalf("%q has %d elements, not %d", b, len(want), len(parts))
			}
		}
		got := find(b, 0, name)
		var obj map[string]json.RawMessage
		if json.Unmarshal(b, &obj) == nil && obj != nil && !strings.ContainsAny(name, `"\`) && len(b) < lazy {
			if v, there := obj[name]; !there && got.ok() || got.ok() && len(bytes.TrimSpace(v)) == 0 {
				t.Fatalf("found %q in %q", name, b)
			}
		}
		for _, modern := range []bool{false, true} {
			out := splice(nil, b, convert(b, viewOf(modern), nil))
			if json.Valid(b) && !json.Valid(out) {
				t.Fatalf("%q became %q", b, out)
			}
		}
	})
}

func TestConvert(t *testing.T) {
	tests := []struct {
		modern   bool
		in, want string
	}{
		{true, `{"id":0,"result":{}}`, `{"id":0,"result":{"resultType":"complete"}}`},
		{true, `{"id":0,"result":{ "a":1}}`, `{"id":0,"result":{"resultType":"complete", "a":1}}`},
		{true, `{"result":{"structuredContent":{"resultType":"x"}}}`, `{"result":{"resultType":"complete","structuredContent":{"resultType":"x"}}}`},
		{true, `{"result":{"a":1,"resultType":"input_required"}}`, `{"result":{"a":1,"resultType":"input_required"}}`},
		{true, `{"error":{"message":"-32002","code":-32002}}`, `{"error":{"message":"-32002","code":-32602}}`},
		{true, `{"error":{"message":"-32002","code":-32603}}`, `{"error":{"message":"-32002","code":-32603}}`},
		{false, `{"result":{"resultType":"complete","a":1}}`, `{"result":{"a":1}}`},
		{false, `{"result":{"a":1 , "resultType":"complete"}}`, `{"result":{"a":1 }}`},
		{false, `{"result":{"resultType":"complete"}}`, `{"result":{}}`},
		{false, `{"result":{"content":[{"text":"\"resultType\""}]}}`, `{"result":{"content":[{"text":"\"resultType\""}]}}`},
		{false, `{"error":{"code":-32002}}`, `{"error":{"code":-32002}}`},
	}
	for _, tt := range tests {
		b := []byte(tt.in)
		if got := string(splice(nil, b, convert(b, viewOf(tt.modern), nil))); got != tt.want {
			t.Errorf("modern %v: %s\ngot  %s\nwant %s", tt.modern, tt.in, got, tt.want)
		}
	}
}
