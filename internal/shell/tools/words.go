package tools

import (
	"strconv"
	"strings"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/command"
)

// keyNames are the keys of write_stdin, for people and models.
const keyNames = "enter, tab, shift-tab, space, escape, backspace, delete, insert, up, down, left, right, home, end, page-up, page-down, f1 to f12, ctrl-a to ctrl-z"

// took is a time for people: "41.2 s", "2 min 5 s", "3 h 0 min".
func took(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Minute-50*time.Millisecond:
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + " s"
	case d < time.Hour-500*time.Millisecond:
		s := int(d.Round(time.Second) / time.Second)
		return strconv.Itoa(s/60) + " min " + strconv.Itoa(s%60) + " s"
	}
	m := int(d.Round(time.Minute) / time.Minute)
	return strconv.Itoa(m/60) + " h " + strconv.Itoa(m%60) + " min"
}

// clock is a moment of the last day for people.
func clock(t time.Time) string { return t.UTC().Format("15:04:05") + " UTC" }

// stamp is a moment as the protocol writes it: RFC 3339, UTC, milliseconds.
func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}

// thousands is a number with commas: "1,234,567".
func thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// some is a number of things: "1 process", "2 processes".
func some(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

// awaitArguments are those of an await_call.
func awaitArguments(id call.ID) string { return `{"ids":["` + string(id) + `"]}` }

func idArguments(id call.ID) string { return `{"id":"` + string(id) + `"}` }

// join puts sentences side by side, but for empty ones.
func join(parts ...string) string {
	var kept []string
	for _, p := range parts {
		if p != "" {
			kept = append(kept, p)
		}
	}
	return strings.Join(kept, " ")
}

// The sentences that a model gets again and again (SHELL §4). They say what not to
// do and what to do next; what happened is in the line before.
func goOn(id call.ID, n *command.Names) string {
	return "Not finished: do not run it again, sleep or poll. Continue with other work; call " + n.Await + " with " + awaitArguments(id) + " when you need the result."
}

func joinedLine(started time.Time) string {
	return "Already running since " + clock(started) + " (same command, same directory). Joined it; nothing was started."
}

func replayedLine(started time.Time) string {
	return "Nothing was started now: this is the result of the same command, started at " + clock(started) + ", which nobody had got yet. Call again to run it anew."
}

func lostLine(at time.Time) string {
	return "Outcome unknown: supervision ended at " + clock(at) + "."
}

const (
	textNotStarted = "Not started: longcall stopped before it had begun. Nothing ran, so nothing took effect. You may call again."
	textOutputGone = "its output is not kept any more"
	textCheck      = "Check for side effects before starting it again."
	textOver       = "It has ended: there is nothing to wait for."
)
