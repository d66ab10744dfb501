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
	"time"
)

// pieces gives one piece per read, then io.EOF.
type pieces struct {
	list  []string
	reads int
}

func (p *pieces) Read(b []byte) (int, error) {
	p.reads++
	if len(p.list) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.list[0])
	if p.list[0] = p.list[0][n:]; p.list[0] == "" {
		p.list = p.list[1:]
	}
	return n, nil
}

// events reads all that r gives, in words.
func events(r *SSEReader) []string {
	var out []string
	for {
		e, err := r.Next()
		switch {
		case errors.Is(err, ErrTooLarge):
			out = append(out, "too large last="+r.LastID())
		case err != nil:
			return append(out, fmt.Sprintf("%v last=%s", err, r.LastID()))
		case e.Comment:
			out = append(out, "comment")
		default:
			s := fmt.Sprintf("%q", e.Data)
			if e.Name != "" {
				s += " name=" + e.Name
			}
			if e.ID != "" || e.HasID {
				s += " id=" + e.ID
			}
			if e.HasID {
				s += "!"
			}
			if e.Retry != 0 {
				s += " retry=" + e.Retry.String()
			}
			out = append(out, s)
		}
	}
}

func TestSSEReader(t *testing.T) {
	long := strings.Repeat("x", 6000)
	for _, c := range []struct {
		name, in string
		limit    int
		want     []string
	}{
		{"empty stream", "", 0, []string{"EOF last="}},
		{"plain", "data: a\n\ndata: b\n\n", 0, []string{`"a"`, `"b"`, "EOF last="}},
		{"O11 CRLF", "id: 1\r\nevent: message\r\ndata: a\r\n\r\ndata: b\r\n\r\n", 0, []string{`"a" name=message id=1!`, `"b" id=1`, "EOF last=1"}},
		{"CR alone", "id: 1\rdata: a\r\rdata: b\r\r", 0, []string{`"a" id=1!`, `"b" id=1`, "EOF last=1"}},
		{"mixed line ends", "data: a\r\ndata: b\rdata: c\n\r\ndata: d\n\r", 0, []string{`"a\nb\nc"`, `"d"`, "EOF last="}},
		{"O13 pretty JSON over lines", "data: {\ndata:  \"a\": 1\ndata:}\n\n", 0, []string{`"{\n \"a\": 1\n}"`, "EOF last="}},
		{"only one blank goes", "data:  a \n\ndata:\ta\n\n", 0, []string{`" a "`, `"\ta"`, "EOF last="}},
		{"O14 priming", "id: a_0\nretry: 50\ndata:\n\n", 0, []string{`"" id=a_0! retry=50ms`, "EOF last=a_0"}},
		{"id alone", "id: 7\n\ndata: a\n\n", 0, []string{`"" id=7!`, `"a" id=7`, "EOF last=7"}},
		{"retry alone", "retry: 1500\n\n", 0, []string{`"" retry=1.5s`, "EOF last="}},
		{"name alone is nothing", "event: ping\n\ndata: a\n\n", 0, []string{`"a"`, "EOF last="}},
		{"no fields is nothing", "\n\r\n\r\r\n", 0, []string{"EOF last="}},
		{"name is per event", "event: endpoint\ndata: /m\n\ndata: a\n\n", 0, []string{`"/m" name=endpoint`, `"a"`, "EOF last="}},
		{"data without colon", "data\n\ndata\ndata\n\n", 0, []string{`""`, `"\n"`, "EOF last="}},
		{"comments", ": hi\n:\n\ndata: a\n: mid\ndata: b\n\n", 0, []string{"comment", "comment", "comment", `"a\nb"`, "EOF last="}},
		{"unknown fields", "foo: x\ndata: a\nbar\n data: no\nDATA: no\n\n", 0, []string{`"a"`, "EOF last="}},
		{"BOM", "\xEF\xBB\xBFdata: a\n\n\xEF\xBB\xBFdata: b\n\ndata: c\n\n", 0, []string{`"a"`, `"c"`, "EOF last="}},
		{"BOM before a comment", "\xEF\xBB\xBF: a\n", 0, []string{"comment", "EOF last="}},
		{"id with NUL is ignored", "id: 1\ndata: a\n\nid: 2\x00\ndata: b\n\n", 0, []string{`"a" id=1!`, `"b" id=1`, "EOF last=1"}},
		{"empty id resets", "id: 1\ndata: a\n\nid\ndata: b\n\n", 0, []string{`"a" id=1!`, `"b" id=!`, "EOF last="}},
		{"last id of an event counts", "id: 1\nid: 2\ndata: a\n\n", 0, []string{`"a" id=2!`, "EOF last=2"}},
		{"retry is digits only", "retry: 1a\ndata: a\n\nretry: -1\ndata: b\n\nretry:\ndata: c\n\nretry: 1.5\ndata: d\n\n", 0, []string{`"a"`, `"b"`, `"c"`, `"d"`, "EOF last="}},
		{"retry is bounded", "retry: 99999999999999999999999999\n\n", 0, []string{`"" retry=24h0m0s`, "EOF last="}},
		{"P3 half event", "id: 1\ndata: a\n\nid: 2\ndata: half", 0, []string{`"a" id=1!`, "unexpected EOF last=1"}},
		{"P3 half event, blank line missing", "id: 1\ndata: a\n\nid: 2\ndata: half\n", 0, []string{`"a" id=1!`, "unexpected EOF last=1"}},
		{"half comment is no half event", "data: a\n\n: keepal", 0, []string{`"a"`, "EOF last="}},
		{"half field name", "da", 0, []string{"unexpected EOF last="}},
		{"O25 at the limit", "data: 12345\n\ndata: 123456\n\ndata: a\n\n", 5, []string{`"12345"`, "too large last=", `"a"`, "EOF last="}},
		{"O25 sum of lines", "data: 123\ndata: 4\n\ndata: 123\ndata: 45\ndata: 6\n\ndata: a\n\n", 5, []string{`"123\n4"`, "too large last=", `"a"`, "EOF last="}},
		{"O25 id of a skipped event", "id: 1\ndata: 123456\nid: 2\n\n", 5, []string{"too large last=2", "EOF last=2"}},
		{"O25 half of a skipped event", "id: 1\ndata: a\n\nid: 2\ndata: " + long, 5, []string{`"a" id=1!`, "unexpected EOF last=1"}},
		{"long data line", "data: " + long + "\nid: 2\n\ndata: a\n\n", 5, []string{"too large last=2", `"a" id=2`, "EOF last=2"}},
		{"long comment", ":" + long + "\ndata: a\n\n", 5, []string{"comment", `"a"`, "EOF last="}},
		{"long unknown field", "foo: " + long + "\ndata: a\n\n", 5, []string{`"a"`, "EOF last="}},
		{"long id is none", "id: " + long + "\ndata: a\n\n", 5, []string{`"a"`, "EOF last="}},
		{"long field name", long + "\ndata: a\n\n", 5, []string{`"a"`, "EOF last="}},
		{"long line with BOM", "\xEF\xBB\xBF:" + strings.Repeat("x", minLineLimit+15) + "\n", 5, []string{"comment", "EOF last="}},
		{"long first line with BOM", "\xEF\xBB\xBFid:" + strings.Repeat("x", minLineLimit+13) + "\n\n", 5, []string{`"" id=` + strings.Repeat("x", minLineLimit+13) + "!", "EOF last=" + strings.Repeat("x", minLineLimit+13)}},
		{"large event", "data: " + long + "\ndata: " + long + "\n\ndata: b\n\n", 0, []string{fmt.Sprintf("%q", long+"\n"+long), `"b"`, "EOF last="}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for name, r := range splits(c.in) {
				if got := events(NewSSEReader(r, c.limit)); !slices.Equal(got, c.want) {
					t.Errorf("%s:\ngot  %.300q\nwant %.300q", name, got, c.want)
				}
			}
		})
	}
}

// splits gives the ways in which one stream may arrive.
func splits(s string) map[string]io.Reader {
	cut := &pieces{}
	for rest := s; rest != ""; {
		n := strings.IndexByte(rest, '\r') + 1 // each piece ends in CR (O12)
		if n == 0 {
			n = len(rest)
		}
		cut.list, rest = append(cut.list, rest[:n]), rest[n:]
	}
	return map[string]io.Reader{
		"at once":         strings.NewReader(s),
		"byte by byte":    iotest.OneByteReader(strings.NewReader(s)),
		"half reads":      iotest.HalfReader(strings.NewReader(s)),
		"data with error": iotest.DataErrReader(strings.NewReader(s)),
		"cut after CR":    cut,
	}
}

// O12: an event is given as soon as its blank line is there, and not later; the
// LF that follows a CR is no further line.
func TestSSEReaderNeedsNoByteMore(t *testing.T) {
	for _, c := range []struct {
		name  string
		list  []string
		reads []int // how many reads each event took, in all
	}{
		{"LF", []string{"data: a\n\n", "data: b\n\n"}, []int{1, 2}},
		{"CRLF", []string{"data: a\r\n\r\n", "data: b\r\n\r\n"}, []int{1, 2}},
		{"cut in the blank line's CRLF", []string{"data: a\r\n\r", "\ndata: b\r\n\r", "\n"}, []int{1, 2}},
		{"cut in the data line's CRLF", []string{"data: a\r", "\n\r\n", "data: b\r", "\n\r\n"}, []int{2, 4}},
		{"CR", []string{"data: a\r\r", "data: b\r\r"}, []int{1, 2}},
		{"comment", []string{": a\r", "\n: b\r"}, []int{1, 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := &pieces{list: c.list}
			r := NewSSEReader(p, 0)
			for _, want := range c.reads {
				if _, err := r.Next(); err != nil || p.reads != want {
					t.Fatalf("after %d reads: %v; want %d", p.reads, err, want)
				}
			}
			if _, err := r.Next(); err != io.EOF {
				t.Errorf("got %v", err)
			}
		})
	}
}

// O15: text is never cut inside a character.
func TestSSEReaderUTF8ByteByByte(t *testing.T) {
	text := strings.Repeat("é€🙂", 100)
	e, err := NewSSEReader(iotest.OneByteReader(strings.NewReader("data: "+text+"\n\n")), 0).Next()
	if err != nil || string(e.Data) != text {
		t.Errorf("got %q, %v", e.Data, err)
	}
}

func TestSSEReaderKeepsErrors(t *testing.T) {
	broken := errors.New("broken")
	r := NewSSEReader(io.MultiReader(strings.NewReader("id: 1\ndata: a\n\nid: 2\ndata: half"), iotest.ErrReader(broken)), 0)
	if e, err := r.Next(); err != nil || string(e.Data) != "a" {
		t.Fatal(e, err)
	}
	for range 3 {
		if _, err := r.Next(); !errors.Is(err, broken) {
			t.Errorf("got %v", err)
		}
	}
	if r.LastID() != "1" {
		t.Errorf("last id %q", r.LastID())
	}
	if _, err := NewSSEReader(zeros{}, 0).Next(); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("reader without bytes: got %v", err)
	}
}

type zeros struct{}

func (zeros) Read([]byte) (int, error) { return 0, nil }

// A parked stream holds a small buffer, also after a large event, whose data
// stays whole.
func TestSSEReaderBuffer(t *testing.T) {
	large := strings.Repeat("x", 3<<20)
	r := NewSSEReader(strings.NewReader("data: a\n\ndata: "+large+"\n\ndata: b\n\n"), 4<<20)
	if _, err := r.Next(); err != nil || len(r.in.buf) != smallBuffer {
		t.Errorf("small event: buffer of %d, %v", len(r.in.buf), err)
	}
	e, err := r.Next()
	if err != nil || len(r.in.buf) != smallBuffer {
		t.Errorf("large event: buffer of %d, %v", len(r.in.buf), err)
	}
	if cap(e.Data) != len(e.Data) {
		t.Error("appending to Data would write into the buffer")
	}
	if b, err := r.Next(); err != nil || string(b.Data) != "b" {
		t.Errorf("got %q, %v", b.Data, err)
	}
	if string(e.Data) != large {
		t.Error("the large event's data changed")
	}

	endless := &loop{data: []byte("data: 12345678\n"), max: 64 << 10}
	r = NewSSEReader(io.LimitReader(endless, 8<<20), 1<<20)
	if _, err := r.Next(); !errors.Is(err, io.ErrUnexpectedEOF) || len(r.in.buf) > 4<<20 {
		t.Errorf("endless event: buffer of %d, %v", len(r.in.buf), err)
	}
}

func TestAppendSSE(t *testing.T) {
	parts := func(list ...string) (out [][]byte) {
		for _, s := range list {
			out = append(out, []byte(s))
		}
		return out
	}
	for _, c := range []struct {
		name, id, event string
		data            [][]byte
		want            string
	}{
		{"plain", "", "", parts("{}"), "data: {}\n\n"},
		{"all", "a_1", "message", parts("{}"), "id: a_1\nevent: message\ndata: {}\n\n"},
		{"parts are joined", "", "", parts(`{"t":`, "7", `}`), "data: {\"t\":7}\n\n"},
		{"priming", "a_0", "", nil, "id: a_0\ndata: \n\n"},
		{"lines", "", "", parts("a\nb\r\nc\rd"), "data: a\ndata: b\ndata: c\ndata: d\n\n"},
		{"line end at the end", "", "", parts("a\n"), "data: a\ndata: \n\n"},
		{"CRLF over parts", "", "", parts("a\r", "", "\nb"), "data: a\ndata: b\n\n"},
		{"CR LF CR", "", "", parts("\r", "\n\r", "\n"), "data: \ndata: \ndata: \n\n"},
		{"no way out of the event", "1\nevent: x", "x\rdata: y", parts("a\n\nevent: evil\ndata: b\n\n"), "data: a\ndata: \ndata: event: evil\ndata: data: b\ndata: \ndata: \n\n"},
		{"NUL in id and name", "1\x00", "x\x00", parts("a"), "data: a\n\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := AppendSSE([]byte("+"), c.id, c.event, c.data...); string(got) != "+"+c.want {
				t.Errorf("got  %q\nwant %q", got[1:], c.want)
			}
		})
	}
}

// An event over the limit tells how it began and ended, however it came, and its id counts.
func TestLongEvent(t *testing.T) {
	body := `{"jsonrpc":"2.0","id":1,"result":` + strings.Repeat("x", 9000) + "}"
	for name, stream := range map[string]string{
		"one line":    "id: 7\ndata: " + body + "\n\n",
		"no blank":    "data:" + body + "\nid: 7\n\n",
		"two lines":   "id: 7\ndata: " + body[:100] + "\ndata: " + body[100:] + "\n\n",
		"many lines":  "id: 7\ndata: " + strings.ReplaceAll(body, "xxxxxxxxxx", "xxxxxxxxx\ndata: ") + "\n\n",
		"then others": "id: 7\ndata: " + body + "\ndata: y\ndata\n\n",
	} {
		for _, limit := range []int{64, 8000} {
			for _, r := range []io.Reader{strings.NewReader(stream), iotest.OneByteReader(strings.NewReader(stream))} {
				s := NewSSEReader(r, limit)
				_, err := s.Next()
				var long *LongEvent
				if !errors.As(err, &long) || !errors.Is(err, ErrTooLarge) || s.LastID() != "7" || len(long.Head) == 0 || len(long.Head) > 256 ||
					!strings.HasPrefix(string(long.Head), `{"jsonrpc":"2.0","id":1,"result":`) {
					t.Errorf("%s, limit %d: %v, id %q, %+v", name, limit, err, s.LastID(), long)
				}
				if end := "xx}"; len(long.Tail) > 4<<10 || name != "then others" && !strings.HasSuffix(string(long.Tail), end) || long.Size < 8000 {
					t.Errorf("%s, limit %d: it ends with %q, size %d", name, limit, long.Tail[max(0, len(long.Tail)-20):], long.Size)
				}
				if _, err := s.Next(); err != io.EOF {
					t.Errorf("%s, limit %d: then %v", name, limit, err)
				}
			}
		}
	}
}

func FuzzAppendSSE(f *testing.F) {
	f.Add("1", "message", []byte("a\r\nb"), 2)
	f.Add("", "", []byte("\r\n\r\n"), 1)
	f.Add("a\n", "\x00", []byte(":x\ndata: y\n\n"), 5)
	f.Fuzz(func(t *testing.T, id, name string, data []byte, cut int) {
		cut = min(max(cut, 0), len(data))
		wire := AppendSSE(nil, id, name, data[:cut], data[cut:])
		r := NewSSEReader(bytes.NewReader(wire), 0)
		e, err := r.Next()
		if err != nil {
			t.Fatalf("%q: %v", wire, err)
		}
		want := bytes.ReplaceAll(bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n")), []byte("\r"), []byte("\n"))
		if !bytes.Equal(e.Data, want) || e.Comment || e.Retry != 0 {
			t.Fatalf("%q: got %+v", wire, e)
		}
		if safe := id != "" && !strings.ContainsAny(id, "\r\n\x00"); e.HasID != safe || safe && e.ID != id {
			t.Fatalf("id %q: got %q", id, e.ID)
		}
		if safe := !strings.ContainsAny(name, "\r\n\x00"); safe && e.Name != name || !safe && e.Name != "" {
			t.Fatalf("name %q: got %q", name, e.Name)
		}
		if e, err := r.Next(); err != io.EOF {
			t.Fatalf("%q: more: %+v, %v", wire, e, err)
		}
	})
}

// plainEvents is what the stream s means, found the slow and simple way.
func plainEvents(s string, limit int) []string {
	s = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(strings.TrimPrefix(s, "\xEF\xBB\xBF"))
	lines := strings.Split(s, "\n")
	rest := lines[len(lines)-1]
	var out, data []string
	var id, last, name string
	var hasID, hasRetry, tooLarge bool
	var retry time.Duration
	for _, line := range lines[:len(lines)-1] {
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "":
			if hasID {
				last = id
			}
			text := strings.Join(data, "\n")
			if tooLarge {
				out = append(out, "too large last="+last)
			} else if data != nil || hasID || hasRetry {
				e := fmt.Sprintf("%q", text)
				if name != "" {
					e += " name=" + name
				}
				if last != "" || hasID {
					e += " id=" + last
				}
				if hasID {
					e += "!"
				}
				if retry != 0 {
					e += " retry=" + retry.String()
				}
				out = append(out, e)
			}
			data, name, hasID, hasRetry, tooLarge, retry = nil, "", false, false, false, 0
		case line[0] == ':':
			out = append(out, "comment")
		case field == "data":
			data = append(data, value)
			tooLarge = tooLarge || len(strings.Join(data, "\n")) > limit
		case len(line) > max(limit, minLineLimit)+16:
		case field == "id" && !strings.Contains(value, "\x00"):
			id, hasID = value, true
		case field == "event":
			name = value
		case field == "retry":
			if d, ok := retryTime([]byte(value)); ok {
				retry, hasRetry = d, true
			}
		}
	}
	if data != nil || hasID || hasRetry || tooLarge || name != "" || rest != "" && rest[0] != ':' {
		return append(out, "unexpected EOF last="+last)
	}
	return append(out, "EOF last="+last)
}

func FuzzSSEReader(f *testing.F) {
	f.Add([]byte("\xEF\xBB\xBFid: 1\r\nretry: 50\r\ndata:\r\n\r\n: hi\rdata:a\rdata: b\n\nid: 9\ndata: half"), []byte{1, 2, 3}, uint16(3))
	f.Add([]byte("event: message\ndata: {\ndata: }\n\n\n\r\r\n"), []byte{9, 1}, uint16(100))
	f.Add([]byte("data: "+strings.Repeat("x", 100)+"\ndata: y\n\nid\x00: 2\nid: 3\x00\n\n"), []byte{200}, uint16(2000))
	f.Fuzz(func(t *testing.T, stream, cuts []byte, limit uint16) {
		max := int(limit) + 1
		want := plainEvents(string(stream), max)
		check := func(how string, r io.Reader) {
			if got := events(NewSSEReader(r, max)); !slices.Equal(got, want) {
				t.Fatalf("%s:\ngot  %q\nwant %q", how, got, want)
			}
		}
		for how, r := range splits(string(stream)) {
			check(how, r)
		}
		if len(cuts) == 0 {
			return
		}
		cut := &pieces{}
		for i, rest := 0, string(stream); rest != ""; i++ {
			n := min(int(cuts[i%len(cuts)])+1, len(rest))
			cut.list, rest = append(cut.list, rest[:n]), rest[n:]
		}
		check("cut as told", cut)
	})
}
