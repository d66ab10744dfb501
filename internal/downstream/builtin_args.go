package downstream

import (
	"slices"
	"strconv"
	"time"

	"github.com/longcall/longcall/internal/argument"
	"github.com/longcall/longcall/internal/mcp"
)

const (
	maxAwaited = 16 // calls of one await_call
	// maxWait is the longest await, maxWaitSilent for a request without a
	// progress token.
	maxWait       = 600 * time.Second
	maxWaitSilent = 45 * time.Second
	maxReason     = 200 // bytes
	maxPattern    = 1 << 10
	maxSignal     = 16
	maxCursor     = 1 << 53
	maxGrace      = 60 * time.Second
	maxListed     = 100
	defaultListed = 20
)

// awaitArgs are await_call's arguments.
type awaitArgs struct {
	ids  []string // each once
	all  bool     // wait for all of them, not for any
	wait time.Duration
	// What of a command is waited for, besides its end: output after cursor,
	// which is -1 if none is named, or a match of the pattern.
	until   string
	cursor  int64
	pattern string
	// attempt counts the model's waits, from 1; 0 if it does not say. It only
	// makes the next call another one: Gemini CLI stops a model at the fifth
	// identical call, opencode asks its user at the third.
	attempt int64
}

// parseAwait reads them; token says whether the request has a progress token, and
// otherwise is the wait if none is named. With a shell there is more to wait for.
func parseAwait(raw []byte, token, shell bool, otherwise time.Duration, names ownToolNames) (v awaitArgs, wrong string) {
	known := []string{"ids", "mode", "wait_ms", "attempt"}
	if shell {
		known = append(known, "until", "cursor", "pattern")
	}
	a := argument.Read(names.await, raw, known...)
	beIDs := `an array of 1 to 16 call ids, such as ["c_…"]; ` + names.list + " shows them"
	for _, p := range a.List("ids", 1, maxAwaited, beIDs) {
		id, ok := mcp.String(p)
		if !ok {
			a.Must("a member of ids", p, "a string, the id of a call; "+names.list+" shows them")
			break
		}
		if !slices.Contains(v.ids, id) {
			v.ids = append(v.ids, id)
		}
	}
	v.until = a.Choice("until", untilExit, untilOutput, untilPattern)
	v.cursor = a.Int("cursor", 0, maxCursor, -1, " (bytes of output; next_cursor of an earlier result)")
	v.pattern = a.Text("pattern", false, maxPattern, "a regular expression (RE2) of at most "+strconv.Itoa(maxPattern)+" bytes")
	switch {
	case a.Wrong() != "":
	case v.pattern != "" && a.Value("until") == nil:
		v.until = untilPattern
	case v.pattern != "" && v.until != untilPattern:
		a.Fail(`pattern of ` + names.await + ` is for until: "pattern". Leave one of them out.`)
	case v.pattern == "" && v.until == untilPattern:
		a.Fail(`until: "pattern" of ` + names.await + ` needs pattern, a regular expression (RE2).`)
	}
	if v.cursor >= 0 && len(v.ids) > 1 {
		a.Fail("cursor of " + names.await + " is a place in the output of one command: name one id with it, or leave it out.")
	}
	v.all = a.Choice("mode", "any", "all") == "all"
	most, unit := maxWait, " (milliseconds)"
	if !token {
		most, unit = maxWaitSilent, " (milliseconds; up to 600000 only for a request with a progress token)"
	}
	v.wait = time.Duration(a.Int("wait_ms", 0, most.Milliseconds(), otherwise.Milliseconds(), unit)) * time.Millisecond
	v.attempt = a.Int("attempt", 1, 10_000, 0, "")
	return v, a.Wrong()
}

// What an await_call waits for.
const (
	untilExit    = "exit"
	untilOutput  = "output"
	untilPattern = "pattern"
)

// cancelArgs are cancel_call's arguments. The last two are for commands only.
type cancelArgs struct {
	id, reason string
	signal     string
	grace      time.Duration // less than 0 if none is named
}

func parseCancel(raw []byte, shell bool, names ownToolNames) (v cancelArgs, wrong string) {
	known := []string{"id", "reason"}
	if shell {
		known = append(known, "signal", "grace_ms")
	}
	a := argument.Read(names.cancel, raw, known...)
	v.id = a.Text("id", true, 256, `one call id, such as "c_…"; `+names.list+" shows them")
	v.reason = a.Text("reason", false, maxReason, "a string of at most "+strconv.Itoa(maxReason)+" bytes")
	v.signal = a.Text("signal", false, maxSignal, "the name of a signal, such as TERM, INT or KILL")
	v.grace = time.Duration(a.Int("grace_ms", 0, maxGrace.Milliseconds(), -1, " (milliseconds)")) * time.Millisecond
	return v, a.Wrong()
}

// listArgs are list_calls' arguments.
type listArgs struct {
	state string
	limit int
}

func parseList(raw []byte, names ownToolNames) (v listArgs, wrong string) {
	a := argument.Read(names.list, raw, "state", "limit")
	v.state = a.Choice("state", "all", "running", "ended", "unread")
	v.limit = int(a.Int("limit", 1, maxListed, defaultListed, ""))
	return v, a.Wrong()
}
