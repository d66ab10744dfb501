package mcp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// lines reads all that r gives, in words.
func lines(r *LineReader) []string {
	var out []string
	for {
		b, err := r.Next()
		var long *LongLine
		switch {
		case errors.As(err, &long):
			out = append(out, fmt.Sprintf("long %d %q %q", long.Size, long.Head, long.Tail))
		case err != nil:
			return append(out, err.Error())
		default:
			out = append(out, fmt.Sprintf("%q", b))
		}
	}
}

func TestLineReader(t *testing.T) {
	for _, c := range []struct {
		name, in string
		limit    int
		want     []string
	}{
		{"empty", "", 0, []string{"EOF"}},
		{"LF and CRLF", "a\nb\r\nc\n", 0, []string{`"a"`, `"b"`, `"c"`, "EOF"}},
		{"blank lines", "\n\r\n \t\n\na\n \n", 0, []string{`"a"`, "EOF"}},
		{"last line without line end", "a\nb", 0, []string{`"a"`, `"b"`, "EOF"}},
		{"blank last line", "a\n  ", 0, []string{`"a"`, "EOF"}},
		{"CR inside stays", "a\rb\n", 0, []string{`"a\rb"`, "EOF"}},
		{"blanks stay", " a \n", 0, []string{`" a "`, "EOF"}},
		{"O25 at the limit", "12345\n123456\n12345\r\n123456\r\na\n", 5, []string{`"12345"`, `long 6 "123456" "123456"`, `"12345"`, `long 6 "123456" "123456"`, `"a"`, "EOF"}},
		{"O25 long last line", "a\n123456", 5, []string{`"a"`, `long 6 "123456" "123456"`, "EOF"}},
		{"O25 long last line ends in CR", "1234567\r", 5, []string{`long 7 "1234567" "1234567"`, "EOF"}},
		{"last line ends in CR", "12345\r", 5, []string{`"12345"`, "EOF"}},
		{"long blank line", "        \na\n", 5, []string{`long 8 "        " "        "`, `"a"`, "EOF"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for name, r := range splits(c.in) {
				if got := lines(NewLineReader(r, c.limit)); !slices.Equal(got, c.want) {
					t.Errorf("%s:\ngot  %q\nwant %q", name, got, c.want)
				}
			}
		})
	}
}

// O25: a line of 1 MiB passes; one over the limit is skipped, with enough of
// both ends to see whose it was, in bounded memory; the next one passes.
func TestLineReaderLongLine(t *testing.T) {
	passes := `{"id":1,"result":"` + strings.Repeat("x", 1<<20) + `"}`
	tooLong := `{"id":2,"result":"` + strings.Repeat("y", 3<<19) + `","end":2}`
	for _, nl := range []string{"\n", "\r\n"} {
		for name, in := range splits(passes + nl + tooLong + nl + `{"id":3}` + nl) {
			if name == "byte by byte" {
				continue // slow, and FuzzLineReader does it with small ones
			}
			r := NewLineReader(in, 5<<18)
			if b, err := r.Next(); err != nil || string(b) != passes {
				t.Fatalf("%s: got %d bytes, %v", name, len(b), err)
			}
			_, err := r.Next()
			var long *LongLine
			if !errors.As(err, &long) || !errors.Is(err, ErrTooLarge) {
				t.Fatalf("%s: got %v", name, err)
			}
			if long.Size != int64(len(tooLong)) || string(long.Head) != tooLong[:longHead] || string(long.Tail) != tooLong[len(tooLong)-longTail:] {
				t.Errorf("%s: size %d, head %d, tail %d", name, long.Size, len(long.Head), len(long.Tail))
			}
			if len(r.in.buf) > 3<<20 {
				t.Errorf("%s: buffer of %d", name, len(r.in.buf))
			}
			if b, err := r.Next(); err != nil || string(b) != `{"id":3}` {
				t.Fatalf("%s: got %q, %v", name, b, err)
			}
			if len(r.in.buf) > largeBuffer {
				t.Errorf("%s: buffer of %d after", name, len(r.in.buf))
			}
		}
	}
}

// O15: text is never cut inside a character.
func TestLineReaderUTF8ByteByByte(t *testing.T) {
	text := strings.Repeat("é€🙂", 100)
	b, err := NewLineReader(iotest.OneByteReader(strings.NewReader(text+"\n")), 0).Next()
	if err != nil || string(b) != text {
		t.Errorf("got %q, %v", b, err)
	}
}

func TestLineReaderKeepsErrors(t *testing.T) {
	broken := errors.New("broken")
	r := NewLineReader(io.MultiReader(strings.NewReader("a\nb"), iotest.ErrReader(broken)), 0)
	for _, want := range []string{"a", "b"} {
		if b, err := r.Next(); err != nil || string(b) != want {
			t.Fatalf("got %q, %v", b, err)
		}
	}
	for range 3 {
		if _, err := r.Next(); !errors.Is(err, broken) {
			t.Errorf("got %v", err)
		}
	}
}

func FuzzLineReader(f *testing.F) {
	f.Add([]byte("a\r\n\n  \nbb\nccccccc\r\ndd"), []byte{1, 5}, uint16(4))
	f.Add([]byte(strings.Repeat("x", 300)+"\n"+strings.Repeat("y", 100)+"\r\n"), []byte{250}, uint16(99))
	f.Add([]byte("12345\r\n123456\r"), []byte{5, 0}, uint16(4))
	f.Fuzz(func(t *testing.T, stream, cuts []byte, limit uint16) {
		max := int(limit) + 1
		var want []string
		all := bytes.Split(stream, []byte("\n"))
		for _, line := range all {
			line = bytes.TrimSuffix(line, []byte("\r"))
			switch {
			case len(line) > max:
				want = append(want, fmt.Sprintf("long %d %q %q", len(line), line[:min(len(line), longHead)], line[len(line)-min(len(line), longTail):]))
			case len(bytes.Trim(line, blanks)) == 0:
			default:
				want = append(want, fmt.Sprintf("%q", line))
			}
		}
		want = append(want, "EOF")
		readers := splits(string(stream))
		if len(cuts) > 0 {
			cut := &pieces{}
			for i, rest := 0, string(stream); rest != ""; i++ {
				n := min(int(cuts[i%len(cuts)])+1, len(rest))
				cut.list, rest = append(cut.list, rest[:n]), rest[n:]
			}
			readers["cut as told"] = cut
		}
		for how, r := range readers {
			if got := lines(NewLineReader(r, max)); !slices.Equal(got, want) {
				t.Fatalf("%s:\ngot  %q\nwant %q", how, got, want)
			}
		}
	})
}
