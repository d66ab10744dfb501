package argument_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/longcall/longcall/internal/argument"
)

// A20: every mistake is told in one sentence that names the parameter, what it was
// and what is allowed, and shows no text of the caller.
func TestWrong(t *testing.T) {
	for _, k := range []struct {
		raw, want string
		read      func(s *argument.Set)
	}{
		{`[1]`, `The arguments of t are not a valid JSON object.`, nil},
		{`{"a":1,"a":2}`, `The arguments of t are not a valid JSON object.`, nil},
		{`{"secret\u202etxt":1}`, `t has no parameter "secrettxt". It has n, s, list, m.`, nil},
		{`{"n":12001}`, `n of t is 12001; it must be an integer from 0 to 12000 ms.`, func(s *argument.Set) { s.Int("n", 0, 12000, 1, " ms") }},
		{`{"n":1.5}`, `n of t is 1.5; it must be an integer from 0 to 9.`, func(s *argument.Set) { s.Int("n", 0, 9, 1, "") }},
		{`{"n":"5"}`, `n of t is a string; it must be an integer from 0 to 9.`, func(s *argument.Set) { s.Int("n", 0, 9, 1, "") }},
		{`{"n":1}`, `n of t is 1; it must be true or false.`, func(s *argument.Set) { s.Bool("n") }},
		{`{"s":"x"}`, `s of t is a string; it must be one of "a", "b".`, func(s *argument.Set) { s.Choice("s", "a", "b") }},
		{`{}`, `s of t is missing; it must be a text.`, func(s *argument.Set) { s.Text("s", true, 5, "a text") }},
		{`{"s":""}`, `s of t is an empty string; it must be a text.`, func(s *argument.Set) { s.Text("s", true, 5, "a text") }},
		{`{"s":"toolong"}`, `s of t is a string of 7 bytes; it must be a text.`, func(s *argument.Set) { s.Text("s", false, 5, "a text") }},
		{`{"list":[]}`, `list of t is an array of 0; it must be 1 to 2 things.`, func(s *argument.Set) { s.List("list", 1, 2, "1 to 2 things") }},
		{`{"list":{}}`, `list of t is an object; it must be 1 to 2 things.`, func(s *argument.Set) { s.List("list", 1, 2, "1 to 2 things") }},
		{`{"list":["a",true]}`, `a member of list of t is a boolean; it must be a string.`, func(s *argument.Set) { s.Texts("list", 2, "names") }},
		{`{"list":["a"]}`, `item 1 of t is a string; it must be an object with x, y.`, func(s *argument.Set) {
			s.Object("item 1", s.List("list", 0, 2, "")[0], "x", "y")
		}},
		{`{"list":[{"z":1}]}`, `item 1 of t has no parameter "z". It has x, y.`, func(s *argument.Set) {
			s.Object("item 1", s.List("list", 0, 2, "")[0], "x", "y")
		}},
		{`{"m":[]}`, `m of t is an array of 0; it must be an object of strings, such as {"NAME":"value"}.`, func(s *argument.Set) { s.Map("m", 5) }},
		{`{"m":{"A":1}}`, `A in m of t is 1; it must be a string of at most 5 bytes.`, func(s *argument.Set) { s.Map("m", 5) }},
		{`{"n":"x","s":1}`, `n of t is a string; it must be an integer from 0 to 1.`, func(s *argument.Set) { s.Int("n", 0, 1, 0, ""); s.Text("s", true, 1, "") }},
	} {
		s := argument.Read("t", []byte(k.raw), "n", "s", "list", "m")
		if k.read != nil {
			k.read(s)
		}
		if s.Wrong() != k.want {
			t.Errorf("%s:\ngot  %s\nwant %s", k.raw, s.Wrong(), k.want)
		}
	}
}

// What is right, and null for what is left out.
func TestRight(t *testing.T) {
	s := argument.Read("t", []byte(`{"n":1.2e1,"b":true,"s":null,"c":"b","list":["a","b"],"items":[{"x":"1"}],"m":{"A":"1"}}`), "n", "b", "s", "c", "list", "items", "m")
	items := s.List("items", 1, 2, "")
	if s.Int("n", 0, 12, 3, "") != 12 || !s.Bool("b") || s.Text("s", false, 1, "") != "" || s.Choice("c", "a", "b") != "b" || s.Choice("none", "a") != "a" ||
		strings.Join(s.Texts("list", 2, ""), "") != "ab" || s.Object("item 1", items[0], "x").Text("x", true, 9, "") != "1" || s.Map("m", 1)["A"] != "1" || s.Int("none", 0, 9, 7, "") != 7 {
		t.Error("something is not as it was written")
	}
	if s.Wrong() != "" {
		t.Error(s.Wrong())
	}
	if argument.Read("t", nil).Wrong() != "" {
		t.Error("no arguments are wrong")
	}
}

func FuzzPlain(f *testing.F) {
	f.Add("a\x1b[31mb\u202ec\u2066d\x00\xff", 10)
	f.Add(strings.Repeat("é", 50), 9)
	f.Fuzz(func(t *testing.T, s string, most int) {
		most = max(most&0xff, 1)
		got := argument.Plain(s, most)
		if len(got) > most || !utf8.ValidString(got) || strings.ContainsFunc(got, func(r rune) bool {
			return r < ' ' || r == 0x7f || strings.ContainsRune("\u200b\u200e\u202a\u202e\u2066\u2069\ufeff", r)
		}) {
			t.Errorf("%q of %q", got, s)
		}
	})
}
