package policy

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// Keep says what the journal keeps of a call's arguments.
type Keep string

// What can be kept.
const (
	KeepFull     Keep = "full"
	KeepRedacted Keep = "redacted"
	KeepHash     Keep = "hash"
)

// DefaultMaxKept is how many bytes of one call's arguments are kept if nobody
// says otherwise.
const DefaultMaxKept = 16 << 10

// redacted is what stands for a secret; it needs no escapes in JSON.
const redacted = "[redacted]"

// Redactor makes what is kept of arguments. It is safe for concurrent use, and
// never changes.
type Redactor struct {
	keep  Keep
	max   int
	names wordSet   // parts of names whose values are secrets
	marks markSet   // what a text must have before the patterns are worth trying
	texts []pattern // what secrets look like inside of a text
}

// NewRedactor compiles what to keep. extra are further words: an argument whose
// name has one, whatever the case and with or without _ and -, is a secret. max
// bounds what is kept, in bytes; 0 means DefaultMaxKept, and what is below 256
// counts as 256. An empty or unknown keep means KeepRedacted.
func NewRedactor(keep Keep, extra []string, max int) *Redactor {
	if max == 0 {
		max = DefaultMaxKept
	}
	if max < 256 {
		max = 256
	}
	words := slices.Concat(secretWords, extra)
	return &Redactor{
		keep: keep, max: max,
		names: newWordSet(append(words, "session")),
		marks: newMarkSet(words),
		texts: newPatterns(words),
	}
}

// Redact is NewRedactor and its Kept in one, for callers that do it once.
func Redact(args []byte, keep Keep, extra []string) []byte {
	return NewRedactor(keep, extra, 0).Kept(args)
}

// Kept is what may be stored of args: valid JSON, never longer than the
// redactor's bound, and args itself, not a copy, if nothing has to go. What is
// redacted is "[redacted]", and all else stays byte for byte; what is too long
// becomes {"cut":true,"bytes":…,"sha256":…,"head":"…"}; what is no JSON is kept
// as a hash only. Nil stays nil.
func (r *Redactor) Kept(args []byte) []byte {
	if len(args) == 0 {
		return nil
	}
	switch r.keep {
	case KeepHash:
		return hashed(args)
	case KeepFull:
		switch {
		case len(args) > r.max:
			return r.cut(args, args)
		case !jsontext.Value(args).IsValid(jsontext.AllowDuplicateNames(true)):
			return hashed(args)
		}
		return args
	}
	out, whole, ok := r.redact(args, r.max, 0)
	switch {
	case !ok:
		return hashed(args)
	case !whole || len(out) > r.max:
		return r.cut(args, out)
	}
	return out
}

// hashed keeps what tells whether two calls had the same bytes of arguments.
func hashed(args []byte) []byte {
	b := append([]byte(`{"sha256":"`), hexSum(args)...)
	return append(strconv.AppendInt(append(b, `","bytes":`...), int64(len(args)), 10), '}')
}

func hexSum(b []byte) []byte {
	sum := sha256.Sum256(b)
	return hex.AppendEncode(nil, sum[:])
}

// cut keeps the beginning of head, as a string, and what identifies args.
func (r *Redactor) cut(args, head []byte) []byte {
	b := strconv.AppendInt([]byte(`{"cut":true,"bytes":`), int64(len(args)), 10)
	b = append(append(b, `,"sha256":"`...), hexSum(args)...)
	b = append(b, `","head":`...)
	b, _ = jsontext.AppendQuote(b, fit(head, r.max-len(b)-len(`""}`))) // fit left nothing that is not UTF-8
	return append(b, '}')
}

// fit is as much of the beginning as takes up room bytes once it is quoted.
func fit(b []byte, room int) []byte {
	i := 0
	for i < len(b) {
		size, cost := 1, 1
		switch c := b[i]; {
		case c == '"' || c == '\\' || c == '\n' || c == '\r' || c == '\t':
			cost = 2
		case c < ' ':
			cost = 6
		case c >= utf8.RuneSelf:
			var x rune
			if x, size = utf8.DecodeRune(b[i:]); x == utf8.RuneError && size == 1 {
				return b[:i]
			}
			cost = size
		}
		if room -= cost; room < 0 {
			break
		}
		i += size
	}
	return b[:i]
}

// Digest is the SHA-256 of the arguments' canonical form, in hex: the same for
// another order of members or other blanks. Unlike RFC 8785 it keeps the digits
// of numbers: two integers above 2^53 that round to the same are two different
// calls, and must not be taken for one. No arguments are the same as {}. What
// is no JSON is hashed as it is.
func Digest(args []byte) string {
	if len(bytes.TrimSpace(args)) == 0 {
		args = []byte("{}")
	}
	v := jsontext.Value(args).Clone()
	if v.Canonicalize(jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false)) != nil {
		v = args
	}
	return string(hexSum(v))
}
