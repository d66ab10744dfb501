package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// clean makes text of a tool, an agent or a file safe to show on one line of a
// terminal: control characters, which could move the cursor or rewrite what
// was said before, and characters that change the direction of reading are
// left out; line ends and tabs become spaces.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n', r == '\t', r == '\u2028', r == '\u2029':
			return ' '
		case hidden(r):
			return -1
		}
		return r
	}, s)
}

// cleanText is clean for text of several lines, which it keeps.
func cleanText(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n', r == '\t':
			return r
		case r == '\u2028', r == '\u2029':
			return '\n'
		case hidden(r):
			return -1
		}
		return r
	}, s)
}

// hidden says whether a character does something other than being seen. The
// joiners of scripts and emoji may stay.
func hidden(r rune) bool {
	if r == '\u200c' || r == '\u200d' {
		return false
	}
	return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || unicode.Is(unicode.Co, r)
}

// cleanJSON writes raw JSON so that a terminal shows it as text: what JSON lets
// stand unescaped and a terminal would obey is escaped.
func cleanJSON(raw []byte) string {
	if !bytes.ContainsFunc(raw, func(r rune) bool { return r != '\n' && r != '\t' && hidden(r) }) {
		return string(raw)
	}
	var b strings.Builder
	for _, r := range string(raw) {
		if r == '\n' || r == '\t' || !hidden(r) {
			b.WriteRune(r)
			continue
		}
		if r > 0xffff {
			r -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
			continue
		}
		fmt.Fprintf(&b, `\u%04x`, r)
	}
	return b.String()
}

// printJSON writes v indented, one value.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// cut shortens s to n columns; what was cut shows as an ellipsis.
func cut(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	if n < 1 {
		return ""
	}
	r := []rune(s)
	return string(r[:n-1]) + "…"
}

// duration is for people: 12ms, 0.3s, 12.4s, 3m05s, 2h14m.
func duration(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + duration(-d)
	case d > 0 && d < time.Millisecond:
		return "<1ms"
	case d < 100*time.Millisecond:
		return strconv.FormatInt(d.Milliseconds(), 10) + "ms"
	case d < time.Minute:
		return strconv.FormatFloat(d.Truncate(100*time.Millisecond).Seconds(), 'f', 1, 64) + "s"
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
}

// size is for people: 512 B, 1.4 KiB, 3.0 MiB.
func size(n int64) string {
	const unit = 1024
	if n < unit {
		return strconv.FormatInt(n, 10) + " B"
	}
	v, i := float64(n)/unit, 0
	for v >= unit && i < 3 {
		v, i = v/unit, i+1
	}
	return fmt.Sprintf("%.1f %ciB", v, "KMGT"[i])
}

// number writes a progress value without a tail of digits.
func number(v float64) string {
	if v == float64(int64(v)) && v < 1e15 && v > -1e15 {
		return strconv.FormatInt(int64(v), 10)
	}
	return strings.TrimRight(strings.TrimRight(strconv.FormatFloat(v, 'f', 2, 64), "0"), ".")
}

// table prints rows in columns; the last column takes what is left of width, 0
// for as much as it needs.
func table(w io.Writer, width int, head []string, rows [][]string) {
	sizes := make([]int, len(head))
	all := append([][]string{head}, rows...)
	for _, row := range all {
		for i, s := range row {
			sizes[i] = max(sizes[i], utf8.RuneCountInString(s))
		}
	}
	for _, row := range all {
		var b strings.Builder
		used := 0
		for i, s := range row {
			if i == len(row)-1 {
				if width > 0 {
					s = cut(s, max(width-used, 8))
				}
				b.WriteString(s)
				break
			}
			b.WriteString(s)
			b.WriteString(strings.Repeat(" ", sizes[i]-utf8.RuneCountInString(s)+2))
			used += sizes[i] + 2
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
}

// style colours s if the system wants colour.
func (s *System) style(code, text string) string {
	if !s.Color || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}
