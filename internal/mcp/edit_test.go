package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

func TestWithHole(t *testing.T) {
	raw := "{\"jsonrpc\":\"2.0\",\r\n\"method\":\"notifications/progress\",\"params\":{\"progressToken\":\"up\\n7\",\n\"progress\":9007199254740993}}"
	m, err := Parse([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	body, hole := m.WithHole(m.ProgressToken)
	want := `{"jsonrpc":"2.0",  "method":"notifications/progress","params":{"progressToken":0, "progress":9007199254740993}}`
	if string(body) != want || body[hole] != '0' {
		t.Errorf("got %s (hole %d)", body, hole)
	}
	for _, token := range []string{"0", `"0"`, "9007199254740993"} {
		got := AppendFilled([]byte("x"), body, hole, []byte(token))
		if want := "x" + strings.Replace(want, `"progressToken":0`, `"progressToken":`+token, 1); string(got) != want {
			t.Errorf("O4 token %s: got %s", token, got)
		}
	}
	if string(m.Raw) != raw {
		t.Error("the message was changed")
	}

	body, hole = m.WithHole(m.ID)
	if hole != -1 || len(body) != len(raw) || bytes.ContainsAny(body, "\r\n") {
		t.Errorf("no id: got %q, hole %d", body, hole)
	}
	if got := AppendFilled(nil, body, hole, []byte("1")); !bytes.Equal(got, body) {
		t.Errorf("no hole: got %q", got)
	}
}

func TestAppendEdited(t *testing.T) {
	raw := []byte("0123456789")
	got := AppendEdited([]byte(">"), raw, Edit{Span{0, 1}, []byte("ab")}, Edit{Span{1, 3}, nil}, Edit{Span{5, 5}, []byte("+")}, Edit{Span{9, 10}, []byte("z")})
	if string(got) != ">ab34+5678z" {
		t.Errorf("got %s", got)
	}
	if got := AppendEdited(nil, raw); string(got) != string(raw) {
		t.Errorf("no edits: got %s", got)
	}
}

func TestEditObject(t *testing.T) {
	drop := func(names ...string) func(string) bool {
		return func(n string) bool { return slices.Contains(names, n) }
	}
	set := func(pairs ...string) (out []Member) {
		for i := 0; i < len(pairs); i += 2 {
			out = append(out, Member{pairs[i], []byte(pairs[i+1])})
		}
		return out
	}
	for _, c := range []struct {
		name, obj string
		drop      func(string) bool
		set       []Member
		want      string
	}{
		{"nothing", `{"b":1,"a":2}`, nil, nil, `{"b":1,"a":2}`},
		{"nil counts as empty", ``, nil, set("a", "1"), `{"a":1}`},
		{"blank counts as empty", ` `, nil, nil, `{}`},
		{"null counts as empty", ` null `, nil, set("a", "1"), `{"a":1}`},
		{"replace in place", `{"a":1,"b":{"c":[2]},"d":3}`, nil, set("b", `"x"`), `{"a":1,"b":"x","d":3}`},
		{"add at the end, in order", `{"a":1}`, nil, set("c", "3", "b", "2"), `{"a":1,"c":3,"b":2}`},
		{"drop first", `{"a":1,"b":2}`, drop("a"), nil, `{"b":2}`},
		{"drop last", `{"a":1,"b":2}`, drop("b"), nil, `{"a":1}`},
		{"drop all", `{"a":1,"b":2}`, drop("a", "b"), nil, `{}`},
		{"drop and add again", `{"a":1,"b":2}`, drop("a"), set("a", "9"), `{"b":2,"a":9}`},
		{"P10 others stay byte for byte", `{"a" : 1.50e+1, "\u0062":9007199254740993 , "x":"\u00e9"}`, drop("x"), nil, `{"a" : 1.50e+1,"\u0062":9007199254740993}`},
		{"names are compared decoded", `{"\u0061":1}`, nil, set("a", "2"), `{"\u0061":2}`},
		{"names are quoted", `{}`, nil, set("a\"b\n", "1"), `{"a\"b\n":1}`},
		{"last of two", `{"a":1}`, nil, set("a", "2", "b", "4", "a", "3"), `{"a":3,"b":4}`},
		{"lone surrogates pass", `{"a":"\ud83d"}`, nil, nil, `{"a":"\ud83d"}`},
		{"nil value", `{"a":1}`, nil, []Member{{"a", nil}}, `{"a":null}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := EditObject([]byte(c.obj), c.drop, c.set...)
			if err != nil || string(got) != c.want {
				t.Errorf("got %s, %v; want %s", got, err, c.want)
			}
		})
	}
	for _, bad := range []string{`[]`, `1`, `{"a":1,"a":2}`, `{"a":1}x`, `{"a"`, "{\"a\":\"\n\"}"} {
		var pe *ParseError
		if got, err := EditObject([]byte(bad), nil); !errors.As(err, &pe) {
			t.Errorf("%s: got %s, %v", bad, got, err)
		}
		if got, err := Members([]byte(bad)); !errors.As(err, &pe) {
			t.Errorf("%s: got %v, %v", bad, got, err)
		}
	}
}

func TestMembers(t *testing.T) {
	got, err := Members([]byte(` { "a" : [1, 2], "\u00e9":"x" } `))
	if err != nil || len(got) != 2 || got[0].Name != "a" || string(got[0].Value) != "[1, 2]" || got[1].Name != "é" || string(got[1].Value) != `"x"` {
		t.Errorf("got %v, %v", got, err)
	}
	if got, err := Members(nil); err != nil || len(got) != 0 {
		t.Errorf("nil: got %v, %v", got, err)
	}
}

func TestString(t *testing.T) {
	for raw, want := range map[string]string{
		`""`: "", `"abc"`: "abc", `"é€🙂"`: "é€🙂", `"\u00e9\n\"\\\/"`: "é\n\"\\/", `"\ud83d\ude42"`: "🙂", `"cut\ud83d"`: "cut\uFFFD",
	} {
		if got, ok := String([]byte(raw)); !ok || got != want {
			t.Errorf("%s: got %q, %v", raw, got, ok)
		}
	}
	for _, raw := range []string{``, `"`, `1`, `null`, `{}`, `"a"b"`, `"a" `, `"\x"`, "\"a\nb\"", `"\"`, "\"\xff\"", "\"\xff\\ud83d\"", `a"b"`} {
		if got, ok := String([]byte(raw)); ok {
			t.Errorf("%q: got %q", raw, got)
		}
	}
}

func TestQuote(t *testing.T) {
	for _, s := range []string{"", "abc", "a\"b\\c\n\x00\u2028é🙂</script>", "bad\xff"} {
		got := Quote(s)
		var back string
		if err := json.Unmarshal(got, &back); err != nil || back != strings.ToValidUTF8(s, "\uFFFD") {
			t.Errorf("%q: got %s, %v", s, got, err)
		}
		if bytes.ContainsAny(got, "\r\n\x00") {
			t.Errorf("%q: got %q", s, got)
		}
	}
}

func TestOneLine(t *testing.T) {
	raw := []byte("\r\n{\r\"a\":\n\"x\\n\"\n}\r")
	if got := OneLine(raw); string(got) != "  { \"a\": \"x\\n\" } " || &got[0] != &raw[0] {
		t.Errorf("got %q", got)
	}
}

func TestCanonical(t *testing.T) {
	for raw, want := range map[string]string{
		`{"b":[1 , 2.50, 1e2, -0],"a":"\u0041\/"}`:   `{"a":"A/","b":[1,2.5,100,0]}`,
		`[9007199254740993]`:                         `[9007199254740993]`,
		`[9007199254740992]`:                         `[9007199254740992]`,
		`{"\u20ac":1,"\r":2,"1":3,"\ud83d\ude00":4}`: `{"\r":2,"1":3,"€":1,"😀":4}`,
		` null`:           `null`,
		`["\ud83d"]`:      `["\ud83d"]`,
		`["\ud83e" ]`:     `["\ud83e"]`,
		`{"z":{},"y":[]}`: `{"y":[],"z":{}}`,
	} {
		got, err := Canonical([]byte(raw))
		if err != nil || string(got) != want {
			t.Errorf("%s: got %s, %v; want %s", raw, got, err, want)
		}
		again, err := Canonical(got)
		if err != nil || !bytes.Equal(again, got) {
			t.Errorf("%s: again %s, %v", raw, again, err)
		}
	}
	for _, bad := range []string{``, `{`, `{"a":1,"a":2}`, `1 2`, "\"\xff\""} {
		var pe *ParseError
		if got, err := Canonical([]byte(bad)); !errors.As(err, &pe) || got != nil {
			t.Errorf("%q: got %s, %v", bad, got, err)
		}
	}
}

func FuzzEditObject(f *testing.F) {
	f.Add([]byte(`{"a":1,"b":{"c":[2]},"d":"x"}`), "b", "d", []byte(`[true]`))
	f.Add([]byte(` { "a" : 1.50e+1 , "\u0062":9007199254740993 } `), "b", "", []byte(`null`))
	f.Add([]byte(`{"":0,"\ud83d":"\ud83d"}`), "new\n", "", []byte(` {"x":1} `))
	f.Add([]byte(``), "a", "b", []byte(`1`))
	f.Fuzz(func(t *testing.T, obj []byte, set, drop string, value []byte) {
		before := bytes.Clone(obj)
		if v := jsontext.Value(value); !v.IsValid() || len(bytes.TrimSpace(value)) != len(value) {
			return
		}
		set = strings.ToValidUTF8(set, "?")
		got, err := EditObject(obj, func(n string) bool { return n == drop }, Member{set, value})
		if !bytes.Equal(obj, before) {
			t.Fatal("EditObject changed its input")
		}
		old, oldErr := Members(obj)
		if (err == nil) != (oldErr == nil) {
			t.Fatalf("EditObject %v, Members %v", err, oldErr)
		}
		if err != nil {
			return
		}
		var want []Member
		seen := false
		for _, m := range old {
			switch m.Name {
			case drop:
				continue
			case set:
				m.Value, seen = value, true
			}
			want = append(want, m)
		}
		if !seen {
			want = append(want, Member{set, value})
		}
		now, err := Members(got)
		if err != nil || !slices.EqualFunc(now, want, func(a, b Member) bool { return a.Name == b.Name && bytes.Equal(a.Value, b.Value) }) {
			t.Fatalf("%q: %v\ngot  %q\nwant %q", got, err, now, want)
		}
	})
}

func TestTakeHoleIsWithHole(t *testing.T) {
	for _, raw := range []string{
		`{"jsonrpc":"2.0","id":"abc","result":{"a":1}}`,
		"{\"result\":{\n\"a\":1},\"id\":7,\"jsonrpc\":\"2.0\"}",
		`{"id":1,"jsonrpc":"2.0","result":{}}`,
	} {
		a, err := Parse([]byte(raw))
		if err != nil {
			t.Fatal(err)
		}
		b, _ := Parse([]byte(raw))
		want, wantHole := a.WithHole(a.ID)
		got, hole := b.TakeHole(b.ID)
		if string(got) != string(want) || hole != wantHole {
			t.Errorf("%s: %s at %d, not %s at %d", raw, got, hole, want, wantHole)
		}
	}
}
