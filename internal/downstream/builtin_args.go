package downstream

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/longcall/longcall/internal/mcp"
)

// Arguments of our tools are checked by hand: what is wrong is said with the
// parameter's name, what it was and what is allowed, so that a model mends it at
// once (SPEC §8.1 A20).

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

// arguments are the members of a tools/call's arguments.
type arguments struct {
	tool    string
	members []mcp.Member
	wrong   string // what is wrong, of what was read so far
}

// readArguments takes the arguments of a tool apart; known are its parameters.
func readArguments(tool string, raw []byte, known ...string) *arguments {
	a := &arguments{tool: tool}
	members, err := mcp.Members(raw)
	if err != nil {
		a.wrong = "The arguments of " + tool + " are not a valid JSON object."
		return a
	}
	for _, m := range members {
		if !slices.Contains(known, m.Name) {
			a.wrong = tool + " has no parameter " + strconv.Quote(oneLine(m.Name, 64)) + ". It has " + strings.Join(known, ", ") + "."
			return a
		}
	}
	a.members = members
	return a
}

// value is a parameter's raw value; nil if it is absent. null counts as absent:
// hosts that make every parameter a required one write it.
func (a *arguments) value(name string) []byte {
	for _, m := range a.members {
		if m.Name == name && string(m.Value) != "null" {
			return m.Value
		}
	}
	return nil
}

// must notes what is wrong with a parameter, unless something is already.
func (a *arguments) must(name string, raw []byte, be string) {
	if a.wrong != "" {
		return
	}
	was := "is missing"
	if raw != nil {
		was = "is " + kindOf(raw)
	}
	a.wrong = name + " of " + a.tool + " " + was + "; it must be " + be + "."
}

// kindOf names the kind of a raw value, and a number itself; never a text, which
// may hold anything.
func kindOf(raw []byte) string {
	switch raw[0] {
	case '"':
		if string(raw) == `""` {
			return "an empty string"
		}
		return "a string"
	case '{':
		return "an object"
	case '[':
		if parts, ok := elements(raw); ok {
			return "an array of " + strconv.Itoa(len(parts))
		}
		return "an array"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return oneLine(string(raw), 32)
}

// integer reads an optional integer between low and high.
func (a *arguments) integer(name string, low, high, otherwise int64, unit string) int64 {
	raw := a.value(name)
	if raw == nil {
		return otherwise
	}
	v, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || v != math.Trunc(v) || v < float64(low) || v > float64(high) {
		a.must(name, raw, "an integer from "+strconv.FormatInt(low, 10)+" to "+strconv.FormatInt(high, 10)+unit)
		return otherwise
	}
	return int64(v)
}

// choice reads an optional string that is one of some; the first is the default.
func (a *arguments) choice(name string, of ...string) string {
	raw := a.value(name)
	if raw == nil {
		return of[0]
	}
	v, ok := mcp.String(raw)
	if !ok || !slices.Contains(of, v) {
		a.must(name, raw, `one of "`+strings.Join(of, `", "`)+`"`)
		return of[0]
	}
	return v
}

// text reads a string of at most most bytes.
func (a *arguments) text(name string, required bool, most int, be string) string {
	raw := a.value(name)
	if raw == nil {
		if required {
			a.must(name, raw, be)
		}
		return ""
	}
	v, ok := mcp.String(raw)
	if !ok || len(v) > most || required && v == "" {
		a.must(name, raw, be)
		return ""
	}
	return v
}

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
	a := readArguments(names.await, raw, known...)
	beIDs := `an array of 1 to 16 call ids, such as ["c_…"]; ` + names.list + " shows them"
	ids := a.value("ids")
	if ids == nil || ids[0] != '[' {
		a.must("ids", ids, beIDs)
	} else {
		parts, _ := elements(ids)
		if len(parts) < 1 || len(parts) > maxAwaited {
			a.must("ids", ids, beIDs)
			parts = nil
		}
		for _, p := range parts {
			id, ok := mcp.String(p)
			if !ok {
				a.must("a member of ids", p, "a string, the id of a call; "+names.list+" shows them")
				break
			}
			if !slices.Contains(v.ids, id) {
				v.ids = append(v.ids, id)
			}
		}
	}
	v.until = a.choice("until", untilExit, untilOutput, untilPattern)
	v.cursor = a.integer("cursor", 0, maxCursor, -1, " (bytes of output; next_cursor of an earlier result)")
	v.pattern = a.text("pattern", false, maxPattern, "a regular expression (RE2) of at most "+strconv.Itoa(maxPattern)+" bytes")
	switch {
	case a.wrong != "":
	case v.pattern != "" && a.value("until") == nil:
		v.until = untilPattern
	case v.pattern != "" && v.until != untilPattern:
		a.wrong = `pattern of ` + names.await + ` is for until: "pattern". Leave one of them out.`
	case v.pattern == "" && v.until == untilPattern:
		a.wrong = `until: "pattern" of ` + names.await + ` needs pattern, a regular expression (RE2).`
	}
	if a.wrong == "" && v.cursor >= 0 && len(v.ids) > 1 {
		a.wrong = "cursor of " + names.await + " is a place in the output of one command: name one id with it, or leave it out."
	}
	v.all = a.choice("mode", "any", "all") == "all"
	most, unit := maxWait, " (milliseconds)"
	if !token {
		most, unit = maxWaitSilent, " (milliseconds; up to 600000 only for a request with a progress token)"
	}
	v.wait = time.Duration(a.integer("wait_ms", 0, most.Milliseconds(), otherwise.Milliseconds(), unit)) * time.Millisecond
	v.attempt = a.integer("attempt", 1, 10_000, 0, "")
	return v, a.wrong
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
	a := readArguments(names.cancel, raw, known...)
	v.id = a.text("id", true, 256, `one call id, such as "c_…"; `+names.list+" shows them")
	v.reason = a.text("reason", false, maxReason, "a string of at most "+strconv.Itoa(maxReason)+" bytes")
	v.signal = a.text("signal", false, maxSignal, "the name of a signal, such as TERM, INT or KILL")
	v.grace = time.Duration(a.integer("grace_ms", 0, maxGrace.Milliseconds(), -1, " (milliseconds)")) * time.Millisecond
	return v, a.wrong
}

// listArgs are list_calls' arguments.
type listArgs struct {
	state string
	limit int
}

func parseList(raw []byte, names ownToolNames) (v listArgs, wrong string) {
	a := readArguments(names.list, raw, "state", "limit")
	v.state = a.choice("state", "all", "running", "ended", "unread")
	v.limit = int(a.integer("limit", 1, maxListed, defaultListed, ""))
	return v, a.wrong
}
