// Package argument reads the arguments of longcall's own tools, and says what is wrong with them so that a model mends it at once.
package argument

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/longcall/longcall/internal/mcp"
)

// Set is the arguments of one call, or one object among them. The first thing that
// is wrong is kept, in one sentence with the parameter's name, what it was and
// what is allowed (SPEC §8.1 A20); never a text of the caller, which may hold
// anything.
type Set struct {
	of      string // what they are arguments of
	members []mcp.Member
	wrong   *string // shared with the Sets of its members
}

// Read takes a JSON object of arguments apart; known are the tool's parameters.
func Read(tool string, raw []byte, known ...string) *Set {
	return read(tool, raw, new(string), known)
}

func read(of string, raw []byte, wrong *string, known []string) *Set {
	s := &Set{of: of, wrong: wrong}
	members, err := mcp.Members(raw)
	if err != nil {
		s.Fail("The arguments of " + of + " are not a valid JSON object.")
		return s
	}
	for _, m := range members {
		if !slices.Contains(known, m.Name) {
			s.Fail(of + " has no parameter " + strconv.Quote(Plain(m.Name, 64)) + ". It has " + strings.Join(known, ", ") + ".")
			return s
		}
	}
	s.members = members
	return s
}

// Wrong is what is wrong, of what was read so far; empty if nothing is.
func (s *Set) Wrong() string { return *s.wrong }

// Fail notes what is wrong, unless something is already.
func (s *Set) Fail(sentence string) {
	if *s.wrong == "" {
		*s.wrong = sentence
	}
}

// Value is a parameter's raw value; nil if it is absent. null counts as absent:
// hosts that make every parameter a required one write it.
func (s *Set) Value(name string) []byte {
	for _, m := range s.members {
		if m.Name == name && string(m.Value) != "null" {
			return m.Value
		}
	}
	return nil
}

// Must notes that a parameter has to be something else than raw.
func (s *Set) Must(name string, raw []byte, be string) {
	was := "is missing"
	if raw != nil {
		was = "is " + kind(raw)
	}
	s.Fail(name + " of " + s.of + " " + was + "; it must be " + be + ".")
}

// kind names the kind of a raw value, and a number itself.
func kind(raw []byte) string {
	switch raw[0] {
	case '"':
		if string(raw) == `""` {
			return "an empty string"
		}
		return "a string"
	case '{':
		return "an object"
	case '[':
		var parts []json.RawMessage
		if json.Unmarshal(raw, &parts) == nil {
			return "an array of " + strconv.Itoa(len(parts))
		}
		return "an array"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return Plain(string(raw), 32)
}

// Int reads an optional integer between low and high; unit follows the bounds in
// what is said.
func (s *Set) Int(name string, low, high, otherwise int64, unit string) int64 {
	raw := s.Value(name)
	if raw == nil {
		return otherwise
	}
	v, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || v != math.Trunc(v) || v < float64(low) || v > float64(high) {
		s.Must(name, raw, "an integer from "+strconv.FormatInt(low, 10)+" to "+strconv.FormatInt(high, 10)+unit)
		return otherwise
	}
	return int64(v)
}

// Bool reads an optional boolean.
func (s *Set) Bool(name string) bool {
	raw := s.Value(name)
	if raw != nil && string(raw) != "true" && string(raw) != "false" {
		s.Must(name, raw, "true or false")
	}
	return string(raw) == "true"
}

// Choice reads an optional string that is one of some; the first is the default.
func (s *Set) Choice(name string, of ...string) string {
	raw := s.Value(name)
	if raw == nil {
		return of[0]
	}
	v, ok := mcp.String(raw)
	if !ok || !slices.Contains(of, v) {
		s.Must(name, raw, `one of "`+strings.Join(of, `", "`)+`"`)
		return of[0]
	}
	return v
}

// Text reads a string of at most most bytes; a required one is not empty.
func (s *Set) Text(name string, required bool, most int, be string) string {
	raw := s.Value(name)
	if raw == nil {
		if required {
			s.Must(name, raw, be)
		}
		return ""
	}
	v, ok := mcp.String(raw)
	switch {
	case !ok || required && v == "":
		s.Must(name, raw, be)
		return ""
	case len(v) > most:
		s.Fail(name + " of " + s.of + " is a string of " + strconv.Itoa(len(v)) + " bytes; it must be " + be + ".")
		return ""
	}
	return v
}

// List reads an optional array of low to high elements; nil if it is absent or
// wrong.
func (s *Set) List(name string, low, high int, be string) []json.RawMessage {
	raw := s.Value(name)
	if raw == nil {
		if low > 0 {
			s.Must(name, raw, be)
		}
		return nil
	}
	var parts []json.RawMessage
	if raw[0] != '[' || json.Unmarshal(raw, &parts) != nil || len(parts) < low || len(parts) > high {
		s.Must(name, raw, be)
		return nil
	}
	return parts
}

// Texts reads an optional array of at most high strings.
func (s *Set) Texts(name string, high int, be string) []string {
	var list []string
	for _, raw := range s.List(name, 0, high, be) {
		v, ok := mcp.String(raw)
		if !ok {
			s.Must("a member of "+name, raw, "a string")
			return nil
		}
		list = append(list, v)
	}
	return list
}

// Object reads an element of a List that is an object; of names it.
func (s *Set) Object(of string, raw []byte, known ...string) *Set {
	if raw[0] != '{' {
		s.Must(of, raw, "an object with "+strings.Join(known, ", "))
		raw = nil
	}
	return read(of+" of "+s.of, raw, s.wrong, known)
}

// Map reads an optional object whose values are strings of at most most bytes.
func (s *Set) Map(name string, most int) map[string]string {
	raw := s.Value(name)
	if raw == nil {
		return nil
	}
	members, err := mcp.Members(raw)
	if err != nil || raw[0] != '{' {
		s.Must(name, raw, `an object of strings, such as {"NAME":"value"}`)
		return nil
	}
	all := make(map[string]string, len(members))
	for _, m := range members {
		v, ok := mcp.String(m.Value)
		if !ok || len(v) > most {
			s.Must(Plain(m.Name, 64)+" in "+name, m.Value, "a string of at most "+strconv.Itoa(most)+" bytes")
			return nil
		}
		all[m.Name] = v
	}
	return all
}

// Plain makes a text fit for a line about status: of at most most bytes, without
// control characters, and with nothing that turns the reading direction or
// hides.
func Plain(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r < ' ', r >= 0x7f && r < 0xa0, r == '\u2028', r == '\u2029':
			return ' '
		case r >= '\u200b' && r <= '\u200f', r >= '\u202a' && r <= '\u202e', r >= '\u2060' && r <= '\u206f', r == '\u061c', r == '\ufeff':
			return -1
		}
		return r
	}, s[:min(len(s), 4*most)])
	if len(s) > most {
		s = s[:most]
	}
	return strings.TrimSpace(strings.ToValidUTF8(s, ""))
}
