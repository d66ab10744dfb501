package demo

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	left = iota
	right
)

// mark says how a line is meant.
type mark int

const (
	plainMark mark = iota
	goodMark
	badMark
)

var colors = [...]string{plainMark: "", goodMark: "32", badMark: "31"}

const (
	frame    = 100 * time.Millisecond
	minWidth = 76 // columns below which two do not fit side by side
	maxWidth = 120
)

// screen draws both calls: side by side in place on a terminal, as lines in
// their order elsewhere.
type screen struct {
	w        io.Writer
	terminal bool
	color    bool
	column   int // width of one

	mu    sync.Mutex
	start time.Time
	lines [2][]line // wrapped
	beats [2]int
	ended [2]bool
	drawn int // lines that the last frame has
}

type line struct {
	text string
	mark mark
}

var titles = [2][2]string{
	{"DIRECT", "agent - proxy - tool"},
	{"THROUGH LONGCALL", "agent - proxy - longcall - tool"},
}

func newScreen(o *Options) *screen {
	return &screen{
		w: o.Out, terminal: o.Terminal && o.Width >= minWidth, color: o.Color && o.Terminal,
		column: (min(o.Width, maxWidth) - 3) / 2,
	}
}

// begin says what is about to be seen.
func (s *screen) begin(cut, tool time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.start = time.Now()
	fmt.Fprintf(s.w, "A tool works for %s and seldom says a word. Before it stands a proxy that cuts a connection\n", short(tool))
	fmt.Fprintf(s.w, "without bytes for %s: the 60 s of real ones, scaled down. The same call, twice:\n\n", short(cut))
}

// add puts a line at the end of a column.
func (s *screen) add(column int, m mark, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text = visible(text)
	at := time.Since(s.start).Seconds()
	if m != plainMark {
		s.ended[column] = true
	}
	if !s.terminal {
		fmt.Fprintf(s.w, "%5.1fs  %-16s  %s\n", at, strings.ToLower(titles[column][0]), text)
		return
	}
	for i, part := range wrap(text, s.column-8) {
		prefix := strings.Repeat(" ", 8)
		if i == 0 {
			prefix = fmt.Sprintf("%5.1fs  ", at)
		}
		s.lines[column] = append(s.lines[column], line{prefix + part, m})
	}
}

// beat counts a sign of life of a column.
func (s *screen) beat(column, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.beats[column] = n
	if !s.terminal && n%3 == 0 {
		fmt.Fprintf(s.w, "%5.1fs  %-16s  agent: %d beats so far: alive\n", time.Since(s.start).Seconds(), strings.ToLower(titles[column][0]), n)
	}
}

// run redraws until ctx is done.
func (s *screen) run(ctx context.Context, proxies ...*proxy) {
	if !s.terminal {
		return
	}
	t := time.NewTicker(frame)
	defer t.Stop()
	for {
		s.mu.Lock()
		s.draw(proxies)
		s.mu.Unlock()
		select {
		case <-t.C:
		case <-ctx.Done():
			s.mu.Lock()
			s.draw(nil)
			s.mu.Unlock()
			return
		}
	}
}

// draw puts the frame over the last one. Without proxies it is the final one.
func (s *screen) draw(proxies []*proxy) {
	var columns [2][]line
	for c := range columns {
		columns[c] = append(columns[c], line{titles[c][0], plainMark}, line{titles[c][1], plainMark})
		columns[c] = append(columns[c], s.lines[c]...)
		if c < len(proxies) && !s.ended[c] {
			columns[c] = append(columns[c], line{s.status(c, proxies[c]), plainMark})
		}
	}
	var b strings.Builder
	if s.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", s.drawn)
	}
	n := max(len(columns[left]), len(columns[right]), s.drawn)
	for i := range n {
		b.WriteString("\r\x1b[2K")
		b.WriteString(s.cell(columns[left], i, i == 0, true))
		b.WriteString(" │ ")
		b.WriteString(s.cell(columns[right], i, i == 0, false))
		b.WriteString("\n")
	}
	s.drawn = n
	fmt.Fprint(s.w, b.String())
}

// status is the line below a column whose call is not over.
func (s *screen) status(column int, p *proxy) string {
	quiet := min(p.quiet(), p.cut)
	const width = 8
	full := int(quiet * width / p.cut)
	text := fmt.Sprintf("%5.1fs  [%s%s] %.1f/%s", time.Since(s.start).Seconds(), strings.Repeat("#", full), strings.Repeat(".", width-full), quiet.Seconds(), short(p.cut))
	if n := s.beats[column]; n > 0 {
		text += fmt.Sprintf(", %d beats", n)
	} else {
		text += " silent"
	}
	return clip(text, s.column)
}

func (s *screen) cell(lines []line, i int, title, padded bool) string {
	if i >= len(lines) {
		if padded {
			return strings.Repeat(" ", s.column)
		}
		return ""
	}
	text := clip(lines[i].text, s.column)
	blank := ""
	if padded {
		blank = strings.Repeat(" ", s.column-utf8.RuneCountInString(text))
	}
	code := colors[lines[i].mark]
	if title {
		code = "1"
	}
	if s.color && code != "" {
		text = "\x1b[" + code + "m" + text + "\x1b[0m"
	}
	return text + blank
}

// end prints the last words.
func (s *screen) end(summary []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintln(s.w)
	for _, l := range summary {
		fmt.Fprintln(s.w, l)
	}
}

func clip(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:max(n-1, 0)]) + "…"
}

// visible keeps what can be seen.
func visible(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, s)
}

// wrap breaks text into lines of at most n columns, at blanks if it can.
func wrap(text string, n int) []string {
	var out []string
	for utf8.RuneCountInString(text) > n {
		r := []rune(text)
		at := n
		for i := n; i >= n/2; i-- {
			if r[i] == ' ' {
				at = i
				break
			}
		}
		out = append(out, string(r[:at]))
		text = strings.TrimLeft(string(r[at:]), " ")
	}
	return append(out, text)
}
