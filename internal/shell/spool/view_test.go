package spool

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// feed writes data in chunks of the sizes that a seed gives, and closes the spool.
func feed(t testing.TB, caps Caps, data []byte, seed uint64) *Reader {
	t.Helper()
	w, r := spooled(t, caps)
	for rest := data; len(rest) > 0; {
		seed = seed*6364136223846793005 + 1442695040888963407
		n := min(1+int(seed>>33)%97, len(rest))
		if _, err := w.Write(Stdout, rest[:n]); err != nil {
			t.Fatal(err)
		}
		rest = rest[n:]
	}
	if w.Total() != int64(len(data)) {
		t.Fatalf("total is %d of %d", w.Total(), len(data))
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return r
}

// slack is what parts too small to be used outside of tests may have too much.
const slack = 17 * utf8.UTFMax

// evicted checks that an extent is within the caps, and gives the range that it lacks.
func evicted(t testing.TB, r *Reader, caps Caps, total int) Range {
	t.Helper()
	e, err := r.Extent()
	if err != nil || e.Total != int64(total) || len(e.Evicted) > 1 {
		t.Fatal(e, err)
	}
	caps = caps.orDefault()
	if len(e.Evicted) == 0 {
		if e.Total > caps.Total+slack {
			t.Errorf("%d bytes kept, at most %d", e.Total, caps.Total)
		}
		return Range{From: e.Total, To: e.Total}
	}
	g := e.Evicted[0]
	if g.From < caps.Head-utf8.UTFMax || g.From > caps.Head+utf8.UTFMax || e.Total-(g.To-g.From) > caps.Total+slack || e.Total-g.To < (caps.Total-caps.Head)*15/16-caps.part()-slack {
		t.Errorf("of %d bytes %v are evicted, with %+v", total, g, caps)
	}
	return g
}

var (
	omittedMark = regexp.MustCompile(`^\[… ([0-9,]+) bytes omitted — read_output cursor=([0-9]+)\]$`)
	goneMark    = regexp.MustCompile(`^\[… ([0-9,]+) bytes no longer kept\]$`)
	timesMark   = regexp.MustCompile(`^\[… the line above ([0-9,]+) more times\]$`)
)

func count(t testing.TB, s string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(strings.ReplaceAll(s, ",", ""), 10, 64)
	if err != nil || comma(n) != s {
		t.Fatalf("%q is no number", s)
	}
	return n
}

// checkText asserts that a view's text, line by line, is the clean form of the bytes it stands for, that its markers name exactly what
// they leave out, and that they add up.
func checkText(t testing.TB, data []byte, gap Range, cursor int64, v View) {
	t.Helper()
	var omitted, gone int64
	pos := min(cursor, v.From)
	var seg []string
	flush := func(to int64, last bool) {
		t.Helper()
		if pos > to || to > int64(len(data)) {
			t.Fatalf("text goes from %d to %d in\n%s", pos, to, v.Text)
		}
		want := string(Clean(data[pos:to]))
		got := strings.Join(seg, "\n")
		if !last {
			want = strings.TrimSuffix(want, "\n") // a marker begins a line of its own
		}
		if got != want {
			t.Fatalf("bytes %d to %d are shown as\n%q, want\n%q, in %+v", pos, to, got, want, v)
		}
		seg = seg[:0]
	}
	for l := range strings.SplitSeq(v.Text, "\n") {
		if m := timesMark.FindStringSubmatch(l); m != nil {
			n := count(t, m[1])
			if n < 2 || len(seg) == 0 {
				t.Fatalf("%d times nothing in\n%s", n, v.Text)
			}
			for range n {
				seg = append(seg, seg[len(seg)-1])
			}
		} else if m := omittedMark.FindStringSubmatch(l); m != nil {
			n := count(t, m[1])
			at, err := strconv.ParseInt(m[2], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			if len(seg) > 0 || pos < at {
				flush(at, false)
			}
			for _, border := range []int64{at, at + n} {
				if !v.Cut && !lineBorder(data, gap, border) {
					t.Errorf("a marker has a border at %d, amid a line, in %+v", border, v)
				}
			}
			pos, omitted = at+n, omitted+n
		} else if m := goneMark.FindStringSubmatch(l); m != nil {
			n := count(t, m[1])
			if len(seg) > 0 || pos < gap.From {
				flush(gap.From, false)
				pos = gap.From
			}
			pos, gone = pos+n, gone+n
		} else {
			seg = append(seg, l)
		}
	}
	flush(v.Next, true)
	if omitted != v.Omitted || gone != v.Evicted {
		t.Errorf("markers say %d omitted and %d gone, the view %d and %d", omitted, gone, v.Omitted, v.Evicted)
	}
}

// lineBorder says whether a view may end at an offset without cutting a line.
func lineBorder(data []byte, gap Range, at int64) bool {
	return at == 0 || at == int64(len(data)) || at == gap.From || at >= gap.To && at < gap.To+utf8.UTFMax || data[at-1] == '\n'
}

// checkRaw is checkText for raw views.
func checkRaw(t testing.TB, data []byte, v View) {
	t.Helper()
	if v.Omitted == 0 && v.Evicted == 0 {
		if v.Text != string(data[v.From:v.Next]) {
			t.Errorf("%d to %d is %q", v.From, v.Next, v.Text)
		}
		return
	}
	head, rest, _ := strings.Cut(v.Text, "[… ")
	tail := rest[strings.LastIndex(rest, "]\n")+2:]
	if !bytes.HasPrefix(data[v.From:], []byte(head)) && !bytes.HasPrefix(data[v.From:], []byte(strings.TrimSuffix(head, "\n"))) {
		t.Errorf("begins with %q", head)
	}
	if !bytes.HasSuffix(data[:v.Next], []byte(tail)) {
		t.Errorf("ends with %q", tail)
	}
	shown := int64(len(head) + len(tail))
	if n := v.Next - v.From - v.Omitted - v.Evicted; n != shown && n != shown-1 {
		t.Errorf("%d bytes of %d are shown, %d omitted, %d evicted", shown, v.Next-v.From, v.Omitted, v.Evicted)
	}
}

// check pages and sums up data in every way.
func check(t testing.TB, data []byte, seed uint64, size int, caps Caps) {
	t.Helper()
	r := feed(t, caps, data, seed)
	r.chunk = 1 // a view reads little more than it may show
	gap := evicted(t, r, caps, len(data))
	total := int64(len(data))
	kept := append(bytes.Clone(data[:gap.From]), data[gap.To:]...)
	valid := utf8.Valid(data)

	for _, raw := range []bool{true, false} {
		look := Look{Max: size, Raw: raw}
		var all bytes.Buffer
		var lost int64
		for c := int64(0); c < total; {
			v, err := r.Page(t.Context(), c, look)
			if err != nil {
				t.Fatal(err)
			}
			if v.From != c+v.Evicted || v.Next <= c || v.Next > v.Total || v.Total != total || v.Omitted != 0 {
				t.Fatalf("page at %d: %+v", c, v)
			}
			if v.Evicted > 0 && (c != gap.From || v.Evicted < gap.To-gap.From || v.Evicted > gap.To-gap.From+utf8.UTFMax) {
				t.Errorf("page at %d: %+v, evicted is %v", c, v, gap)
			}
			if !v.Cut && !lineBorder(data, gap, v.Next) {
				t.Errorf("page at %d ends amid a line: %+v", c, v)
			}
			if valid && !utf8.ValidString(v.Text) {
				t.Errorf("page at %d breaks a character: %q", c, v.Text)
			}
			if len(v.Text) > size+maxUnit+100 {
				t.Errorf("page at %d has %d bytes, asked for %d", c, len(v.Text), size)
			}
			if !raw {
				checkText(t, data, gap, c, v)
			}
			all.WriteString(v.Text)
			c, lost = v.Next, lost+v.Evicted
		}
		if raw {
			skipped := lost - (gap.To - gap.From) // half a character behind the gap
			want := append(bytes.Clone(data[:gap.From]), data[min(gap.To+max(skipped, 0), total):]...)
			if !bytes.Equal(all.Bytes(), want) {
				t.Errorf("raw pages are %q\nwant %q", all.Bytes(), kept)
			}
		}
		for _, c := range []int64{-1, -int64(size), -total - 1, total / 2, total/3 + 1, total, total + 9} {
			v, err := r.Page(t.Context(), c, look)
			at := c
			if c < 0 {
				at = max(total+c, 0)
			}
			if err != nil || at < total && v.Next <= at || v.Next > total || v.From > v.Next || v.Evicted == 0 && c > 0 && v.From > c {
				t.Errorf("page at %d of %d: %+v, %v", c, total, v, err)
			}
			sum, err := r.Summary(t.Context(), c, look)
			if err != nil || sum.Next != total || sum.Total != total || sum.From != v.From {
				t.Errorf("summary at %d of %d: %+v, %v", c, total, sum, err)
			}
		}
		v, err := r.Summary(t.Context(), 0, look)
		if err != nil {
			t.Fatal(err)
		}
		if len(v.Text) > size+2*maxUnit+300 {
			t.Errorf("the summary has %d bytes, asked for %d", len(v.Text), size)
		}
		if raw {
			checkRaw(t, data, v)
		} else {
			checkText(t, data, gap, 0, v)
		}
	}
}

func FuzzViews(f *testing.F) {
	for _, b := range real(f) {
		f.Add(b, uint64(1), uint16(100), uint16(0), uint16(0))
		f.Add(b, uint64(2), uint16(7), uint16(64), uint16(512))
	}
	f.Add([]byte(strings.Repeat("😀", 40)), uint64(3), uint16(3), uint16(9), uint16(90))
	f.Add([]byte(strings.Repeat("y\n", 100)+"x\nx\nx"), uint64(4), uint16(60), uint16(40), uint16(80))
	// the border of what is read lies in a line whose part looks like the equal ones beside it
	f.Add([]byte("ab\n"+strings.Repeat("y\n", 254)+"yes\n"+strings.Repeat("no\n", 100)), uint64(5), uint16(60), uint16(2000), uint16(4000))
	f.Add([]byte(strings.Repeat("no\n", 100)+"xy\n"+strings.Repeat("y\n", 255)), uint64(6), uint16(60), uint16(2000), uint16(4000))
	f.Fuzz(func(t *testing.T, data []byte, seed uint64, size, head, total uint16) {
		size = 1 + size%2000
		if len(data) > 100*int(size) || len(data) > 4<<10 || bytes.Contains(data, []byte("[…")) {
			return
		}
		check(t, data, seed, int(size), Caps{Head: int64(head % 2048), Total: int64(total%4096 | 512)}) // smaller parts are tested by TestRunesAtEverySplit, and slow
	})
}

// SHELL §7: 4-byte runes at every split.
func TestRunesAtEverySplit(t *testing.T) {
	text := "ab😀c日ü\x1b[31m😀\x1b[0m\n😀😀"
	for size := 1; size < len(text)+2; size++ {
		for head := 1; head < len(text); head += 7 {
			check(t, []byte(text), uint64(size), size, Caps{Head: int64(head), Total: 2 * int64(head)})
		}
		check(t, []byte(text), uint64(size), size, Caps{})
	}
}

// A reader that comes between two halves of a character, or of an escape sequence, is not shown the first one.
func TestHalfIsHeldBack(t *testing.T) {
	for _, u := range []string{"😀", "日", "ü", "\x1b[38;5;196m", "\x1b]0;title\x07"} {
		for cut := 1; cut < len(u); cut++ {
			w, r := spooled(t, Caps{}, "before "+u[:cut])
			v, err := r.Page(t.Context(), 0, Look{})
			sum, _ := r.Summary(t.Context(), 0, Look{})
			if err != nil || v.Text != "before " || v.Next != 7 || sum.Text != v.Text || sum.Next != v.Next {
				t.Errorf("%q cut at %d: %+v, %+v, %v", u, cut, v, sum, err)
			}
			if _, err := w.Write(Stdout, []byte(u[cut:]+"x")); err != nil {
				t.Fatal(err)
			}
			if v, err = r.Page(t.Context(), v.Next, Look{}); err != nil || v.Text != string(Clean([]byte(u)))+"x" {
				t.Errorf("%q cut at %d: %+v, %v", u, cut, v, err)
			}
		}
	}
	w, r := spooled(t, Caps{}, "end \xf0\x9f")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if v, err := r.Page(t.Context(), 4, Look{}); err != nil || v.Text != "\ufffd" || v.Next != 6 {
		t.Errorf("half a character at the end: %+v, %v", v, err)
	}
}

func TestEqualLinesAreOne(t *testing.T) {
	_, r := spooled(t, Caps{}, "a\nb\nb\nc\nc\nc\n"+strings.Repeat("d\x1b[0m\nd\n", 1000)+"e\ne\ne")
	want := "a\nb\nb\nc\n[… the line above 2 more times]\nd\n[… the line above 1,999 more times]\ne\n[… the line above 2 more times]"
	if v, err := r.Page(t.Context(), 0, Look{}); err != nil || v.Text != want || v.Omitted != 0 {
		t.Errorf("%+v, %v", v, err)
	}
	if v, err := r.Summary(t.Context(), 0, Look{}); err != nil || v.Text != want {
		t.Errorf("%+v, %v", v, err)
	}
}

// Lines over 64 KiB are cut in views, with a marker that leads to the rest.
func TestLongLines(t *testing.T) {
	long := strings.Repeat("0123456789", 20_000)
	_, r := spooled(t, Caps{}, "before\n"+long+"\nafter\n")
	want := fmt.Sprintf("before\n%s [… %s bytes of this line omitted — shell__read_output cursor=%d]\nafter\n",
		long[:maxLine], comma(int64(len(long)-maxLine)), len("before\n")+maxLine)
	for _, view := range []func() (View, error){
		func() (View, error) { return r.Page(t.Context(), 0, Look{Max: 1 << 20, Tool: "shell__read_output"}) },
		func() (View, error) { return r.Summary(t.Context(), 0, Look{Max: 1 << 20, Tool: "shell__read_output"}) },
	} {
		if v, err := view(); err != nil || v.Text != want || v.Omitted != int64(len(long)-maxLine) || !v.Cut {
			t.Errorf("%v, %d bytes", err, len(v.Text))
		}
	}
	v, err := r.Page(t.Context(), 0, Look{Max: 1000})
	if err != nil || !strings.HasPrefix(v.Text, "before\n0123") || len(v.Text) != 1000 || !v.Cut || v.Next != 1000 {
		t.Errorf("%+v, %v", v, err)
	}
	// a progress bar of more than a view reads at once
	_, r = spooled(t, Caps{}, "start\n"+strings.Repeat("\rloading…", 300_000)+"\rloaded!!!\nend\n")
	v, err = r.Summary(t.Context(), 0, Look{})
	if err != nil || !strings.HasPrefix(v.Text, "start\nloading…\n[… ") || !strings.HasSuffix(v.Text, "loaded!!!\nend\n") || len(v.Text) > 200 {
		t.Errorf("%.300q, %v", v.Text, err)
	}
}
