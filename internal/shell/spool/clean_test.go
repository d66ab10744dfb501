package spool

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

var update = flag.Bool("update", false, "write the goldens")

// real is what real tools printed: a Go test run, npm, git, curl's and pip's progress bars, compilers with colours, pagers, an editor,
// top and a shell with line editing, each on a pseudo-terminal but for top.
func real(t testing.TB) map[string][]byte {
	t.Helper()
	names, err := filepath.Glob("testdata/real/*.out")
	if err != nil || len(names) < 10 {
		t.Fatal(names, err)
	}
	out := map[string][]byte{}
	for _, name := range names {
		if out[strings.TrimSuffix(filepath.Base(name), ".out")], err = os.ReadFile(name); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func TestCleanReal(t *testing.T) {
	for name, b := range real(t) {
		golden := filepath.Join("testdata", "real", name+".txt")
		got := Clean(b)
		checkClean(t, got)
		if *update {
			if err := os.WriteFile(golden, got, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is now\n%s", name, got)
		}
	}
}

// SHELL §7: ANSI and carriage-return fixtures.
func TestClean(t *testing.T) {
	for _, c := range [][2]string{
		{"plain\n\ttext\n", "plain\n\ttext\n"},
		{"\x1b[1;31mred\x1b[0m", "red"},
		{"a\r\nb\r\n", "a\nb\n"},
		{" 10%\r 20%\r100% done\n", "100% done\n"},
		{"long line\rshort", "short" + "line"},
		{"long line\r\x1b[Kshort", "short"},
		{"long line\x1b[2K\rshort", "short"},
		{"long line\r\x1b[Jshort", "short"},
		{"abc\x1b[1Gx", "xbc"},
		{"abc\x1b[2Dx", "axc"},
		{"a\x1b[3Cb", "a   b"},
		{"abcd\x1b[3D\x1b[2P", "ad"},
		{"ad\x1b[1D\x1b[2@bc", "abcd"},
		{"abcd\x1b[3D\x1b[2X", "a  d"},
		{"abcd\x1b[2D\x1b[1K", "   d"},
		{"\x1b7one\x1b8two", "two"},
		{"\x1b[sone\x1b[utwo", "two"},
		{"ab\b\bc", "cb"},
		{"\b\b\bx", "x"},
		{"\x1b]0;title\x07text", "text"},
		{"\x1b]8;;http://x/\x1b\\link\x1b]8;;\x1b\\", "link"},
		{"\x1bP1$r\x1b\\x", "x"},
		{"\x1b(B\x1b=\x1b>\x1bMx", "x"},
		{"\x1b]unfinished\nnext", "\nnext"},
		{"\x1b]unfinished\x1b[31mred", "red"},
		{"\x1b[31\nnext", "\nnext"},
		{"\x1b[3ünext", "ünext"},
		{"\x1b[1;1Hone\x1b[2;1Htwo\x1b[3;1H", "one\ntwo\n"},
		{"one\x1b[2Jtwo", "one\ntwo"},
		{"one\ftwo\vthree", "one\ntwo\nthree"},
		{"bell\x07nul\x00del\x7f", "bellnuldel"},
		{"c1\u0085\u009bx", "c1x"},
		{"bad\xff\xfe\x80!", "bad\ufffd\ufffd!"},
		{"cut \xf0\x9f\x98", "cut \ufffd"},
		{"😀日本語ü", "😀日本語ü"},
		{"ad\u202emin\u202c", "ad\ufffdmin\ufffd"},
		{"zero\u200bwidth\u2066\ufeff", "zero\ufffdwidth\ufffd\ufffd"},
		{"tag\U000e0041", "tag\ufffd"},
		{"👩\u200d💻", "👩\u200d💻"},
		{"\x1b[999999999Cx", strings.Repeat(" ", maxBlank) + "x"},
		{"\x1b", ""},
		{"\x1b[", ""},
		{"a\x1b]" + strings.Repeat("b", maxString), "a" + strings.Repeat("b", maxString)},
	} {
		if got := string(Clean([]byte(c[0]))); got != c[1] {
			t.Errorf("%q is %q, want %q", c[0], got, c[1])
		}
	}
}

// checkClean asserts what Clean promises of any text.
func checkClean(t testing.TB, got []byte) {
	t.Helper()
	if !utf8.Valid(got) {
		t.Errorf("not UTF-8: %q", got)
	}
	for _, r := range string(got) {
		if unicode.IsControl(r) && r != '\n' && r != '\t' || deceptive(r) || unicode.Is(unicode.Bidi_Control, r) {
			t.Errorf("%U is left in %q", r, got)
		}
	}
	if again := Clean(got); !bytes.Equal(again, got) {
		t.Errorf("cleaning %q again makes it %q", got, again)
	}
}

func FuzzClean(f *testing.F) {
	for _, b := range real(f) {
		f.Add(b, len(b)/2)
	}
	f.Add([]byte("\x1b]0;a\nb\x07\x1b[1G\x1b[5@\x1b[2J😀\r\b"), 3)
	f.Fuzz(func(t *testing.T, b []byte, cut int) {
		got := Clean(b)
		checkClean(t, got)
		if most := (maxBlank + 8) * (len(b) + 1); len(got) > most {
			t.Errorf("%d bytes became %d", len(b), len(got))
		}
		if cut > 0 && cut < len(b) {
			two := append(append(Clean(b[:cut]), '\n'), Clean(b[cut:])...)
			if whole := Clean(append(append(bytes.Clone(b[:cut]), '\n'), b[cut:]...)); !bytes.Equal(whole, two) {
				t.Errorf("%q cleaned is %q, and line by line %q", b, whole, two)
			}
		}
	})
}

func FuzzUnits(f *testing.F) {
	for _, b := range real(f) {
		f.Add(b, len(b)/2)
	}
	f.Add([]byte("a😀\x1b[31mb\x1b]8;;u\x1b\\"), 2)
	f.Fuzz(func(t *testing.T, b []byte, i int) {
		if i < 0 || i > len(b) {
			return
		}
		at := unitStart(b, i)
		if at < 0 || at > i || i-at > maxUnit {
			t.Fatalf("a cut of %q at %d goes to %d", b, i, at)
		}
		for off := 0; off < len(b) && off <= at; {
			r, n := utf8.DecodeRune(b[off:])
			if off < at && at < off+n && r != utf8.RuneError {
				t.Errorf("a cut of %q at %d goes into the character at %d", b, at, off)
			}
			off += n
		}
		if k := tail(b); k < 0 || k > len(b) || k > maxUnit {
			t.Errorf("%q has a tail of %d", b, k)
		}
		if len(b) > 0 {
			if n, _ := unit(b); n < 1 || n > len(b) || n > maxUnit {
				t.Errorf("%q has a unit of %d", b, n)
			}
		}
	})
}
