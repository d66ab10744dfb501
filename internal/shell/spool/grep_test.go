package spool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
)

func TestGrep(t *testing.T) {
	_, r := spooled(t, Caps{}, "one\ntwo\n\x1b[31mthree\x1b[0m\nfour\nfive\nsix\nseven\neight\nthirty\n")
	for _, c := range []struct {
		re     string
		cursor int64
		around int
		want   string
	}{
		{"^three$", 0, 0, "8:three\n"},
		{"t", 0, 0, "4:two\n8:three\n43:eight\n49:thirty\n"},
		{"t", 20, 0, "43:eight\n49:thirty\n"},
		{"three|eight", 0, 1, "4-two\n8:three\n23-four\n--\n37-seven\n43:eight\n49-thirty\n"},
		{"two|four", 0, 1, "0-one\n4:two\n8-three\n23:four\n28-five\n"},
		{"none", 0, 3, ""},
		{"thirty", -20, 0, "49:thirty\n"},
	} {
		v, err := r.Grep(t.Context(), regexp.MustCompile(c.re), c.cursor, c.around, Look{})
		if err != nil || v.Text != c.want || v.Next != 56 || v.Total != 56 {
			t.Errorf("%s around %d from %d: %+v, %v", c.re, c.around, c.cursor, v, err)
		}
	}
	if v, err := r.Grep(t.Context(), regexp.MustCompile(`^.\[31mthree`), 0, 0, Look{Raw: true}); err != nil || v.Text != "8:\x1b[31mthree\x1b[0m\n" {
		t.Errorf("raw: %+v, %v", v, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Grep(ctx, regexp.MustCompile("x"), 0, 0, Look{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Searching on from Next finds each match once, and an offset leads to the line.
func TestGrepGoesOn(t *testing.T) {
	all := numbers(20_000)
	_, r := spooled(t, Caps{}, all)
	re, found := regexp.MustCompile(`7\d*7$`), 0
	for c := int64(0); c < int64(len(all)); {
		v, err := r.Grep(t.Context(), re, c, 0, Look{Max: 500})
		if err != nil || v.Next <= c || len(v.Text) > 500 {
			t.Fatal(v, err)
		}
		for l := range strings.Lines(v.Text) {
			var at int64
			rest := ""
			if _, err := fmt.Sscanf(l, "%d:%s", &at, &rest); err != nil {
				t.Fatal(l, err)
			}
			if _, text, _ := strings.Cut(l, ":"); !strings.HasPrefix(all[at:], text) {
				t.Errorf("%q is not at %d", text, at)
			}
			found++
		}
		c = v.Next
	}
	if want := len(regexp.MustCompile(`(?m)7\d*7$`).FindAllString(all, -1)); found != want {
		t.Errorf("%d found, want %d", found, want)
	}
}

func TestGrepLongLines(t *testing.T) {
	long := strings.Repeat("x", 100_000) + "needle" + strings.Repeat("y", 100_000)
	_, r := spooled(t, Caps{}, "a\n"+long+"\nb\n")
	v, err := r.Grep(t.Context(), regexp.MustCompile("needle"), 0, 0, Look{})
	if err != nil || strings.Count(v.Text, "needle") != 1 || len(v.Text) > maxMatch+40 || !v.Cut {
		t.Errorf("%+v, %v", v, err)
	}
}

// A line that is still being printed is searched again, and no half of it is missed.
func TestGrepUnfinished(t *testing.T) {
	w, r := spooled(t, Caps{}, "one\ntw")
	re := regexp.MustCompile("two")
	v, err := r.Grep(t.Context(), re, 0, 0, Look{})
	if err != nil || v.Text != "" || v.Next != 4 {
		t.Errorf("%+v, %v", v, err)
	}
	_, _ = w.Write(Stdout, []byte("o"))
	if v, err = r.Grep(t.Context(), re, v.Next, 0, Look{}); err != nil || v.Text != "4:two\n" || v.Next != 7 {
		t.Errorf("%+v, %v", v, err)
	}
}

func TestGrepEvicted(t *testing.T) {
	all := numbers(5000)
	_, r := spooled(t, Caps{Head: 1000, Total: 5000}, all)
	e, _ := r.Extent()
	v, err := r.Grep(t.Context(), regexp.MustCompile("line (1|4999)$"), 0, 0, Look{})
	if err != nil || v.Text != fmt.Sprintf("7:line 1\n%d:line 4999\n", len(all)-10) || v.Evicted != e.Evicted[0].To-e.Evicted[0].From || v.Next != v.Total {
		t.Errorf("%+v, %v, evicted %v", v, err, e)
	}
}

func TestScan(t *testing.T) {
	w, r := spooled(t, Caps{}, "starting\n")
	s := NewScan(regexp.MustCompile(`^ready on \d+$`), 0)
	step := func(text string, want int64) {
		t.Helper()
		if _, err := w.Write(Stdout, []byte(text)); err != nil {
			t.Fatal(err)
		}
		end, found, err := s.Next(t.Context(), r)
		if err != nil || found != (want > 0) || end != want {
			t.Errorf("after %q: %d, %v, %v", text, end, found, err)
		}
	}
	step("", 0)
	step("not ready on 1\nre", 0)
	step("\x1b[3", 0)
	step("2mady on ", 0)
	step("\x1b[0m8080", w.Total()+8)
	step("", 0)
	step("\n", 0)
	step("50%\rready on 2\r", w.Total()+15)
	step("gone\n", 0)
}

// The pattern is found wherever the writes part it, also in lines of more than a look reads.
func TestScanAcrossChunks(t *testing.T) {
	for _, before := range []int{0, maxLine - 3, maxLine, lineChunk - 3, 3*lineChunk + 1} {
		text := "x\n" + strings.Repeat("y", before) + "needle" + strings.Repeat("z", 10)
		for cut := len(text) - 16; cut < len(text)-10; cut++ {
			w, r := spooled(t, Caps{}, text[:cut])
			s := NewScan(regexp.MustCompile("needle"), 0)
			if _, found, err := s.Next(t.Context(), r); found || err != nil {
				t.Error(found, err)
			}
			_, _ = w.Write(Stdout, []byte(text[cut:]))
			if end, found, err := s.Next(t.Context(), r); !found || err != nil || end != int64(len(text)) {
				t.Errorf("%d bytes before: %d, %v, %v", before, end, found, err)
			}
		}
	}
}

// What a Scan finds does not depend on how the output arrived, but for matches that more output on the line takes back.
func FuzzScan(f *testing.F) {
	for _, b := range real(f) {
		f.Add(b, "o+", uint64(1))
	}
	f.Add([]byte("a\rab\nabc\r\nabcd"), "ab", uint64(9))
	f.Fuzz(func(t *testing.T, data []byte, pattern string, seed uint64) {
		re, err := regexp.Compile(pattern)
		if err != nil || len(data) > 2<<10 || strings.ContainsAny(pattern, "$^\\(") {
			return
		}
		want := 0
		for l := range bytes.SplitAfterSeq(data, newline) {
			for p := range bytes.SplitAfterSeq(l, []byte{'\r'}) {
				if len(p) > 0 && re.Match(Clean(bytes.TrimRight(p, "\r\n"))) {
					want++
				}
			}
		}
		w, r := spooled(t, Caps{}, string(data))
		s, got := NewScan(re, 0), 0
		for last := int64(0); ; got++ {
			end, found, err := s.Next(t.Context(), r)
			if err != nil || found && (end <= last || end > w.Total()) {
				t.Fatal(end, found, err)
			}
			if !found {
				break
			}
			last = end
		}
		if got != want {
			t.Errorf("%q in %q: found %d times, want %d", pattern, data, got, want)
		}
		if want == 0 {
			return
		}
		// the same in pieces: found, whatever the borders
		w, r = spooled(t, Caps{})
		s = NewScan(re, 0)
		for rest := data; len(rest) > 0; {
			seed = seed*6364136223846793005 + 1442695040888963407
			n := min(1+int(seed>>33)%97, len(rest))
			_, _ = w.Write(Stdout, rest[:n])
			rest = rest[n:]
			if _, found, err := s.Next(t.Context(), r); err != nil {
				t.Fatal(err)
			} else if found {
				return
			}
		}
		t.Errorf("%q in %q: not found in pieces", pattern, data)
	})
}

// Whatever is searched for, each line is told at most once, at its offset, and the search ends.
func FuzzGrep(f *testing.F) {
	for _, b := range real(f) {
		f.Add(b, "e", uint8(1), uint16(200))
	}
	f.Fuzz(func(t *testing.T, data []byte, pattern string, around uint8, size uint16) {
		re, err := regexp.Compile(pattern)
		if err != nil || len(data) > 2<<10 {
			return
		}
		r := feed(t, Caps{}, data, 1)
		seen := map[int64]bool{}
		var want int
		var in lines
		s, err := r.snap(0)
		if err != nil {
			t.Fatal(err)
		}
		defer s.close()
		for in.s = s; ; {
			_, l, err := in.next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if len(l) == 0 {
				break
			}
			if re.Match(Clean(bytes.TrimSuffix(l, newline))) {
				want++
			}
		}
		for c := int64(0); c < int64(len(data)); {
			v, err := r.Grep(t.Context(), re, c, int(around%4), Look{Max: 1 + int(size)})
			if err != nil || v.Next <= c || v.Next > v.Total {
				t.Fatalf("from %d: %+v, %v", c, v, err)
			}
			c = v.Next
			for l := range strings.Lines(v.Text) {
				var at int64
				var mark rune
				if n, _ := fmt.Sscanf(l, "%d%c", &at, &mark); n == 2 && mark == ':' && !seen[at] && at < int64(len(data)) && (at == 0 || data[at-1] == '\n') {
					seen[at] = true
				}
			}
		}
		if len(seen) < want {
			t.Errorf("%q in %q: %d lines told, %d match", pattern, data, len(seen), want)
		}
	})
}
