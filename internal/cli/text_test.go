package cli

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"
)

func TestCleanKeepsTextAsText(t *testing.T) {
	for in, want := range map[string]string{
		"plain":                 "plain",
		"\x1b[2Jgone\x07":       "[2Jgone",
		"\u009b31mred":          "31mred",
		"abc\u202edlrow\u202c":  "abcdlrow",
		"\u2066x\u2069\u200f":   "x",
		"two\nlines\tand a tab": "two lines and a tab",
		"over\rwrite":           "overwrite",
		"line\u2028sep":         "line sep",
		"ünï 日本 👩\u200d💻":       "ünï 日本 👩\u200d💻",
		"tag\U000e0041":         "tag",
	} {
		if got := clean(in); got != want {
			t.Errorf("clean(%q) = %q, want %q", in, got, want)
		}
	}
	if got := cleanText("a\n\tb\x1b[1A\u202ec"); got != "a\n\tb[1Ac" {
		t.Errorf("cleanText: %q", got)
	}
}

func FuzzCleanJSON(f *testing.F) {
	f.Add("a\u202eb\u009b\U000e0041")
	f.Fuzz(func(t *testing.T, s string) {
		if !utf8.ValidString(s) {
			t.Skip()
		}
		raw, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		got := cleanJSON(raw)
		var back string
		if err := json.Unmarshal([]byte(got), &back); err != nil || back != s {
			t.Errorf("%q became %q (%v)", s, back, err)
		}
		for _, r := range got {
			if hidden(r) || unicode.IsControl(r) {
				t.Errorf("%q still has %U", got, r)
			}
		}
	})
}

func TestWordsForNumbers(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0ms", 42 * time.Millisecond: "42ms", 340 * time.Millisecond: "0.3s", 12400 * time.Millisecond: "12.4s",
		185 * time.Second: "3m05s", 134 * time.Minute: "2h14m", 59999 * time.Millisecond: "59.9s",
	} {
		if got := duration(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 3 << 20: "3.0 MiB"} {
		if got := size(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
	for v, want := range map[float64]string{0: "0", 3: "3", 2.5: "2.5", 1.0 / 3: "0.33", 1e6: "1000000"} {
		if got := number(v); got != want {
			t.Errorf("%v: %s, want %s", v, got, want)
		}
	}
	for d, want := range map[time.Duration]string{1500 * time.Millisecond: "1.500", 65 * time.Second: "1:05.000", time.Hour + time.Minute: "1:01:00.000"} {
		if got := seconds(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

func TestTableCutsTheLastColumn(t *testing.T) {
	var b bytes.Buffer
	table(&b, 24, []string{"A", "LONG"}, [][]string{{"one", "a text that does not fit"}, {"é", "ok"}})
	want := "A    LONG\none  a text that does n…\né    ok\n"
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

func TestSince(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for s, want := range map[string]time.Time{
		"":                     {},
		"10m":                  now.Add(-10 * time.Minute),
		"7d":                   now.AddDate(0, 0, -7),
		"1.5d":                 now.Add(-36 * time.Hour),
		"2026-11-30T08:00":     time.Date(2026, 11, 30, 8, 0, 0, 0, time.UTC),
		"2026-11-29":           time.Date(2026, 11, 29, 0, 0, 0, 0, time.UTC),
		"2026-11-30T08:00:00Z": time.Date(2026, 11, 30, 8, 0, 0, 0, time.UTC),
	} {
		if got, err := since(s, now); err != nil || !got.Equal(want) {
			t.Errorf("%q: %v, %v; want %v", s, got, err, want)
		}
	}
	for _, s := range []string{"yesterday", "-5m", "d", "5x"} {
		if _, err := since(s, now); err == nil {
			t.Errorf("%q is no error", s)
		}
	}
}
