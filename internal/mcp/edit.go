package mcp

import (
	"bytes"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// WithHole copies the message with the value at s replaced by the one-byte
// placeholder 0, and without raw line breaks (which JSON allows between tokens,
// and an event's data line does not). It stays valid JSON. If s is absent,
// nothing is replaced and hole is -1.
func (m *Message) WithHole(s Span) (body []byte, hole int) {
	if !s.Ok() {
		return OneLine(bytes.Clone(m.Raw)), -1
	}
	body = make([]byte, 0, len(m.Raw)-(s.End-s.Start)+1)
	body = append(body, m.Raw[:s.Start]...)
	body = append(body, '0')
	body = append(body, m.Raw[s.End:]...)
	return OneLine(body), s.Start
}

// TakeHole is WithHole without the copy: it takes over the message's own bytes,
// which must not be used any more by anybody else. For large messages.
func (m *Message) TakeHole(s Span) (body []byte, hole int) {
	raw := m.Raw
	m.Raw = nil
	if !s.Ok() {
		return OneLine(raw), -1
	}
	shift := s.End - s.Start - 1
	copy(raw[shift:], raw[:s.Start]) // what stands before an id is short, as a rule
	raw[shift+s.Start] = '0'
	return OneLine(raw[shift:]), s.Start
}

// AppendFilled appends body to dst with the placeholder at hole replaced by
// with; a negative hole appends body as it is.
func AppendFilled(dst, body []byte, hole int, with []byte) []byte {
	if hole < 0 {
		return append(dst, body...)
	}
	dst = append(dst, body[:hole]...)
	dst = append(dst, with...)
	return append(dst, body[hole+1:]...)
}

// Edit replaces the bytes of a span.
type Edit struct {
	At   Span
	With []byte
}

// AppendEdited appends raw with edits made, which must be in order and not overlap.
func AppendEdited(dst, raw []byte, edits ...Edit) []byte {
	at := 0
	for _, e := range edits {
		dst = append(dst, raw[at:e.At.Start]...)
		dst = append(dst, e.With...)
		at = e.At.End
	}
	return append(dst, raw[at:]...)
}

// Member is one member of an object; Value is raw JSON.
type Member struct {
	Name  string
	Value []byte
}

// EditObject returns the JSON object obj without the members for which drop
// says true (drop may be nil), with the values of set replaced where a member
// of that name is, and the rest of set added at the end, in order. All other
// members stay byte for byte, in order; blanks between members do not. A nil or
// empty obj, and null, count as {}; a nil Value counts as null. If set has a
// name twice, the last one counts. Errors are *ParseError.
func EditObject(obj []byte, drop func(name string) bool, set ...Member) ([]byte, error) {
	size := len(obj) + 2
	for _, s := range set {
		size += len(s.Name) + len(s.Value) + 8
	}
	out := append(make([]byte, 0, size), '{')
	sep := func() {
		if len(out) > 1 {
			out = append(out, ',')
		}
	}
	done := make([]bool, len(set))
	for i, s := range set {
		for j := range i {
			done[j] = done[j] || set[j].Name == s.Name
		}
	}
	err := walk(obj, func(name string, member, value Span) {
		if drop != nil && drop(name) {
			return
		}
		sep()
		for i, s := range set {
			if !done[i] && s.Name == name {
				done[i] = true
				out = append(out, obj[member.Start:value.Start]...)
				out = appendValue(out, s.Value)
				return
			}
		}
		out = append(out, obj[member.Start:member.End]...)
	})
	if err != nil {
		return nil, err
	}
	for i, s := range set {
		if !done[i] {
			sep()
			out = append(append(out, Quote(s.Name)...), ':')
			out = appendValue(out, s.Value)
		}
	}
	return append(out, '}'), nil
}

func appendValue(dst, value []byte) []byte {
	if value == nil {
		return append(dst, "null"...)
	}
	return append(dst, value...)
}

// Members iterates over an object's members without copying values. A nil or
// empty obj, and null, count as {}. The error is *ParseError if obj is no object.
func Members(obj []byte) ([]Member, error) {
	var out []Member
	err := walk(obj, func(name string, _, value Span) {
		out = append(out, Member{name, value.Of(obj)})
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// walk calls f for each member of obj, in order, with where it and its value stand.
func walk(obj []byte, f func(name string, member, value Span)) error {
	if s := bytes.Trim(obj, blanks); len(s) == 0 || string(s) == "null" {
		return nil
	}
	// Lone surrogates have passed Parse or were refused there.
	p := newParser(obj, jsontext.AllowInvalidUTF8(true))
	defer p.free()
	fail := func(err error) error {
		pe := parseError(obj, err)
		pe.ID = nil // what is called id in here is none
		return pe
	}
	_, inside, err := p.open()
	if err != nil {
		return fail(err)
	}
	if !inside {
		return invalid("not a JSON object")
	}
	for {
		name, err := p.name()
		if err != nil {
			return fail(err)
		}
		if name == nil {
			break
		}
		start := p.at
		value, err := p.value()
		if err != nil {
			return fail(err)
		}
		f(string(name), Span{start, value.End}, value)
	}
	if len(bytes.TrimLeft(obj[p.offset():], blanks)) > 0 {
		return &ParseError{Code: CodeParse, Text: "bytes after the end of the object"}
	}
	return nil
}

// String decodes a raw JSON string; ok is false if raw is none.
func String(raw []byte) (s string, ok bool) {
	if len(raw) < 2 || raw[0] != '"' || raw[len(raw)-1] != '"' {
		return "", false
	}
	plain := true
	for _, c := range raw[1 : len(raw)-1] {
		if c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			plain = false
			break
		}
	}
	if plain {
		return string(raw[1 : len(raw)-1]), true
	}
	b, err := jsontext.AppendUnquote(nil, raw)
	if err != nil && !(utf8.Valid(raw) && jsontext.Value(raw).IsValid(jsontext.AllowInvalidUTF8(true))) {
		return "", false
	}
	return string(b), true // a lone surrogate has become U+FFFD
}

// Quote encodes s as a JSON string. Invalid UTF-8 becomes U+FFFD.
func Quote(s string) []byte {
	b, _ := jsontext.AppendQuote(make([]byte, 0, len(s)+2), s)
	return b
}

// OneLine replaces CR and LF between tokens by blanks, in place, and returns
// raw, which must be valid JSON.
func OneLine(raw []byte) []byte {
	for _, c := range []byte("\r\n") {
		for i := 0; ; {
			n := bytes.IndexByte(raw[i:], c)
			if n < 0 {
				break
			}
			i += n
			raw[i] = ' '
		}
	}
	return raw
}

// Canonical returns the canonical form (RFC 8785) of a JSON value, for digests,
// with one difference: integers keep all their digits where the RFC would round
// them to a double, so that two calls which differ there never count as one.
func Canonical(raw []byte) ([]byte, error) {
	opts := []jsontext.Options{
		jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(true), jsontext.ReorderRawObjects(true),
	}
	out, err := jsontext.AppendFormat(nil, raw, opts...)
	if err != nil && cutEmoji(raw, err) {
		// Strings stay as they are written, lest lone surrogates become equal.
		out, err = jsontext.AppendFormat(nil, raw, append(opts, jsontext.AllowInvalidUTF8(true), jsontext.PreserveRawStrings(true))...)
	}
	if err != nil {
		pe := parseError(raw, err)
		pe.ID = nil
		return nil, pe
	}
	return out, nil
}
