package mcp

import (
	"strings"
	"testing"
)

func TestErrorResponse(t *testing.T) {
	for _, c := range []struct {
		name     string
		id, data []byte
		want     string
	}{
		{"O23 no id", nil, nil, `{"jsonrpc":"2.0","error":{"code":-32600,"message":"say \"one\""}}`},
		{"P10 id as it came", []byte("9007199254740993"), nil, `{"jsonrpc":"2.0","id":9007199254740993,"error":{"code":-32600,"message":"say \"one\""}}`},
		{"data", []byte(`"a"`), []byte(`{"x":1}`), `{"jsonrpc":"2.0","id":"a","error":{"code":-32600,"message":"say \"one\"","data":{"x":1}}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := ErrorResponse(c.id, CodeInvalidRequest, `say "one"`, c.data)
			if string(got) != c.want {
				t.Errorf("got %s", got)
			}
			m, err := Parse(got)
			if err != nil || m.Code != CodeInvalidRequest || m.ErrText != `say "one"` || string(m.ID.Of(m.Raw)) != string(c.id) {
				t.Errorf("parsed %+v, %v", m, err)
			}
		})
	}
}

func TestResultResponse(t *testing.T) {
	got := ResultResponse([]byte("1.5"), []byte(`{"a":1}`))
	if string(got) != `{"jsonrpc":"2.0","id":1.5,"result":{"a":1}}` {
		t.Errorf("got %s", got)
	}
}

func TestHeaderSentinel(t *testing.T) {
	for _, c := range []struct{ plain, wire string }{
		{"", ""},
		{"files__read-1.2", "files__read-1.2"},
		{"a b\tc", "a b\tc"},
		{"é", "=?base64?w6k=?="},
		{" a", "=?base64?IGE=?="},
		{"a\t", "=?base64?YQk=?="},
		{"a\r\nX: y", "=?base64?YQ0KWDogeQ==?="},
		{"\x00\x7f", "=?base64?AH8=?="},
		{"=?base64?YQ==?=", "=?base64?PT9iYXNlNjQ/WVE9PT89?="},
		{"=?BASE64?YQ==?=", "=?BASE64?YQ==?="},
		{"=?base64?YQ==", "=?base64?YQ=="},
		{"=?base64?=", "=?base64?PT9iYXNlNjQ/PQ==?="},
	} {
		if got := EncodeHeader(c.plain); got != c.wire {
			t.Errorf("encode %q: got %q, want %q", c.plain, got, c.wire)
		}
		if got, ok := DecodeHeader(c.wire); !ok || got != c.plain {
			t.Errorf("decode %q: got %q, %v", c.wire, got, ok)
		}
	}
	for _, bad := range []string{"=?base64?*?=", "=?base64?YQ?=", "=?base64?YR==?=", "=?base64?YQ==\n?=", "=?base64?/w==?=", "=?base64?w6k=w6k=?="} {
		if got, ok := DecodeHeader(bad); ok {
			t.Errorf("decode %q: got %q", bad, got)
		}
	}
	if got, ok := DecodeHeader("=?base64??="); !ok || got != "" {
		t.Errorf("empty sentinel: got %q, %v", got, ok)
	}
}

func FuzzHeader(f *testing.F) {
	for _, s := range []string{"", "a", " é", "=?base64?YQ==?=", "a\nb"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		DecodeHeader(s)
		s = strings.ToValidUTF8(s, "?")
		wire := EncodeHeader(s)
		if strings.ContainsAny(wire, "\r\n\x00") || strings.Trim(wire, " \t") != wire {
			t.Fatalf("%q: wire %q", s, wire)
		}
		if got, ok := DecodeHeader(wire); !ok || got != s {
			t.Fatalf("%q: got %q, %v", s, got, ok)
		}
	})
}
