package mcp

import (
	"bytes"
	"fmt"
	"math"
	"net/textproto"
	"strconv"
	"strings"
)

// HeaderParamPrefix begins the headers that mirror arguments of a tools/call.
const HeaderParamPrefix = "Mcp-Param-"

const (
	paramKey = "x-mcp-header"
	maxDepth = 32 // of properties, and of schemas within each other
)

// HeaderParam is an argument that a client of 2026-07-28 mirrors into a header,
// because the tool's schema has x-mcp-header there (SPEC §1.3).
type HeaderParam struct {
	Header  string   // canonical, with the prefix
	Path    []string // of properties, from the arguments on
	Integer bool     // header and argument are compared as numbers
}

// HeaderParams are those of a tool's inputSchema. An error says which annotation
// is invalid and why: over HTTP such a tool must not be used.
func HeaderParams(schema []byte) ([]HeaderParam, error) {
	if !bytes.Contains(schema, []byte(paramKey)) && bytes.IndexByte(schema, '\\') < 0 { // a name can be written with escapes
		return nil, nil
	}
	w := paramWalk{seen: map[string]bool{}}
	if err := w.schema(schema, nil, true, 0); err != nil {
		return nil, err
	}
	return w.params, nil
}

// paramWalk goes through a schema in search of annotations.
type paramWalk struct {
	params []HeaderParam
	seen   map[string]bool // headers
}

// schema takes one schema. reachable says that nothing but properties led to it.
func (w *paramWalk) schema(raw []byte, path []string, reachable bool, depth int) error {
	if len(raw) == 0 || raw[0] != '{' || depth > maxDepth {
		return nil // true and false are schemas, too; nobody annotates deeper than that
	}
	members, err := Members(raw)
	if err != nil {
		return err
	}
	for _, m := range members {
		switch m.Name {
		case paramKey:
			err = w.annotation(m.Value, members, path, reachable)
		case "properties":
			err = w.each(m.Value, func(name string, sub []byte) error {
				return w.schema(sub, append(path[:len(path):len(path)], name), reachable, depth+1)
			})
		case "items", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else",
			"unevaluatedItems", "unevaluatedProperties", "contentSchema":
			err = w.schema(m.Value, path, false, depth+1)
		case "$defs", "definitions", "patternProperties", "dependentSchemas":
			err = w.each(m.Value, func(name string, sub []byte) error {
				return w.schema(sub, append(path[:len(path):len(path)], name), false, depth+1)
			})
		case "oneOf", "anyOf", "allOf", "prefixItems":
			if len(m.Value) > 0 && m.Value[0] == '[' {
				subs, bad := elements(m.Value)
				if err = bad; err == nil {
					for _, sub := range subs {
						if err = w.schema(sub, path, false, depth+1); err != nil {
							break
						}
					}
				}
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *paramWalk) each(raw []byte, f func(name string, sub []byte) error) error {
	if len(raw) == 0 || raw[0] != '{' {
		return nil
	}
	members, err := Members(raw)
	if err != nil {
		return err
	}
	for _, m := range members {
		if err := f(m.Name, m.Value); err != nil {
			return err
		}
	}
	return nil
}

// annotation takes an x-mcp-header beside its schema's other members.
func (w *paramWalk) annotation(raw []byte, schema []Member, path []string, reachable bool) error {
	at := strings.Join(path, ".")
	name, ok := String(raw)
	switch {
	case !reachable || len(path) == 0:
		return fmt.Errorf("%s at %q is not at a property that properties alone lead to", paramKey, at)
	case !ok || !isToken(name):
		return fmt.Errorf("%s at %q is no name of a header", paramKey, at)
	}
	p := HeaderParam{Header: textproto.CanonicalMIMEHeaderKey(HeaderParamPrefix + name), Path: path}
	if w.seen[p.Header] {
		return fmt.Errorf("%s at %q names a header that another one names, too", paramKey, at)
	}
	w.seen[p.Header] = true
	for _, m := range schema {
		if m.Name != "type" {
			continue
		}
		switch kind := paramType(m.Value); kind {
		case "string", "boolean":
		case "integer":
			p.Integer = true
		default:
			return fmt.Errorf("%s at %q is of type %q, which no header can carry", paramKey, at, kind)
		}
		w.params = append(w.params, p)
		return nil
	}
	return fmt.Errorf("%s at %q has no type beside it", paramKey, at)
}

// paramType reads a schema's type; null beside another one changes nothing, since
// an argument that is null has no header.
func paramType(raw []byte) string {
	if s, ok := String(raw); ok {
		return s
	}
	if len(raw) == 0 || raw[0] != '[' {
		return string(raw)
	}
	kinds, err := elements(raw)
	if err != nil {
		return string(raw)
	}
	kind := ""
	for _, k := range kinds {
		switch s, _ := String(k); {
		case s == "null":
		case kind == "":
			kind = s
		default:
			return string(raw)
		}
	}
	return kind
}

// isToken says whether s may be a header's name (RFC 9110 §5.6.2).
func isToken(s string) bool {
	for _, c := range []byte(s) {
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`"(),/:;<=>?@[\]{}`, c) >= 0 {
			return false
		}
	}
	return s != ""
}

// Value is what mirrors the argument; ok is false if there is nothing to mirror:
// no argument, null, or a value that no header can carry. args is a raw object or
// nil.
func (p *HeaderParam) Value(args []byte) (text string, ok bool) {
	raw := args
	for _, name := range p.Path {
		if len(raw) == 0 || raw[0] != '{' {
			return "", false
		}
		members, err := Members(raw)
		if err != nil {
			return "", false
		}
		raw = nil
		for _, m := range members {
			if m.Name == name {
				raw = m.Value
			}
		}
	}
	switch {
	case len(raw) == 0 || raw[0] == '{' || raw[0] == '[' || string(raw) == "null":
		return "", false
	case raw[0] == '"':
		return String(raw)
	case p.Integer:
		return integer(string(raw)), true
	}
	return string(raw), true
}

// integer writes a whole number in digits, if it is one that a float can hold.
func integer(raw string) string {
	if strings.ContainsAny(raw, ".eE") {
		if f, err := strconv.ParseFloat(raw, 64); err == nil && f == math.Trunc(f) && math.Abs(f) < 1<<53 {
			return strconv.FormatInt(int64(f), 10)
		}
	}
	return raw
}

// Matches says whether a header mirrors the argument (SPEC §1.3): it is there
// once, and equal after decoding, integers as numbers; or it is absent and there
// is nothing to mirror.
func (p *HeaderParam) Matches(h map[string][]string, args []byte) bool {
	values := h[p.Header]
	want, has := p.Value(args)
	if !has || len(values) != 1 {
		return !has && len(values) == 0
	}
	got, ok := DecodeHeader(strings.Trim(values[0], " \t"))
	if !ok || !p.Integer || got == want {
		return ok && got == want
	}
	a, errA := strconv.ParseFloat(want, 64)
	b, errB := strconv.ParseFloat(strings.TrimSpace(got), 64)
	return errA == nil && errB == nil && a == b && !math.IsInf(a, 0)
}

// Mirror sets the headers that mirror arguments.
func Mirror(h map[string][]string, params []HeaderParam, args []byte) {
	for i := range params {
		if v, ok := params[i].Value(args); ok {
			h[params[i].Header] = []string{EncodeHeader(v)}
		}
	}
}
