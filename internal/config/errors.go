package config

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// position in a file, from 1; the zero position means none.
type position struct{ line, col int }

// Error is one thing wrong in a config, or worth a warning.
type Error struct {
	File string
	Line int // from 1; 0 if it concerns no line
	Col  int // in characters, from 1
	Key  string
	Text string // what is wrong; never quotes a credential
	Hint string // what to do
}

// Error is one line: file:line:col: key: what is wrong; what to do.
func (e Error) Error() string {
	var b strings.Builder
	if e.File == "" {
		b.WriteString("config")
	} else {
		b.WriteString(printable(e.File))
	}
	if e.Line > 0 {
		b.WriteString(":" + strconv.Itoa(e.Line) + ":" + strconv.Itoa(e.Col))
	}
	b.WriteString(": ")
	if e.Key != "" {
		b.WriteString(printable(e.Key) + ": ")
	}
	b.WriteString(printable(e.Text))
	if e.Hint != "" {
		b.WriteString("; " + printable(e.Hint))
	}
	return b.String()
}

// printable keeps a message on one line of a terminal, whatever is quoted in it.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// Errors is everything that is wrong, in the order of the file.
type Errors []Error

// Error has one line for each.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i := range e {
		lines[i] = e[i].Error()
	}
	return strings.Join(lines, "\n")
}

func sortErrors(e []Error) {
	slices.SortStableFunc(e, func(a, b Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col), cmp.Compare(a.Key, b.Key))
	})
}

// nearest is the known key that a misspelt one is most likely to mean, or empty.
func nearest(key string, known []string) string {
	best, dist := "", 1<<30
	for _, k := range known {
		a, b := bare(key), bare(k)
		allowed := 1
		switch n := max(len(a), len(b)); {
		case n > 9:
			allowed = 3
		case n > 5:
			allowed = 2
		}
		// A short word is one letter from many others: "ear" is not "era".
		if len(a) < 3 && a != b || len(a) == 3 && len(b) == 3 && a[0] != b[0] {
			continue
		}
		if d := distance(a, b); d <= allowed && d < dist {
			best, dist = k, d
		}
	}
	return best
}

// bare makes firstByte, first-byte and first_byte the same.
func bare(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '_' || r == '-' || r == '.' || r == ' ' {
			return -1
		}
		return r
	}, strings.ToLower(s))
}

// distance counts inserted, lost, changed and swapped letters.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 1 << 20
	}
	var before, prev, cur [65]int
	for j := range len(b) + 1 {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], before[j-2]+1)
			}
		}
		before, prev = prev, cur
	}
	return prev[len(b)]
}
