package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/longcall/longcall/internal/mcp"
)

// maxArguments bounds what is read of a file or stdin, in bytes.
const maxArguments = 64 << 20

var pairWord = regexp.MustCompile(`^[^\s{=@:][^\s=]*?:?=`)

// isArgument says whether a word is (part of) the arguments of a call, and no
// name: an object, a key=value, a file, or stdin.
func isArgument(word string) bool {
	return word == "-" || strings.HasPrefix(word, "@") || strings.HasPrefix(strings.TrimSpace(word), "{") || pairWord.MatchString(word)
}

// arguments makes a call's arguments of what the command line says: one JSON
// object, as it is, or pairs typed by the tool's input schema, which may be nil.
func arguments(words []string, schema json.RawMessage, in io.Reader) ([]byte, error) {
	if len(words) == 0 {
		return []byte("{}"), nil
	}
	if pairWord.MatchString(words[0]) {
		return pairs(words, schema)
	}
	if len(words) > 1 {
		return nil, usage("there is more after the arguments %s: give one JSON object, or key=value pairs", cut(words[0], 30))
	}
	raw, from := []byte(words[0]), "the arguments"
	switch w := words[0]; {
	case w == "-":
		b, err := readAll(in)
		if err != nil {
			return nil, usage("read the arguments from stdin: %v", err)
		}
		raw, from = b, "what stdin gave"
	case w[0] == '@':
		f, err := os.Open(w[1:])
		if err != nil {
			return nil, usage("read the arguments: %v", err)
		}
		defer f.Close()
		b, err := readAll(f)
		if err != nil {
			return nil, usage("read the arguments: %v", err)
		}
		raw, from = b, w[1:]
	}
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || raw[0] != '{' {
		return nil, usage("%s: not a JSON object", from)
	}
	if err := checkJSON(raw); err != nil {
		return nil, usage("%s: %v", from, err)
	}
	return raw, nil
}

func readAll(r io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxArguments+1))
	if err == nil && len(b) > maxArguments {
		err = fmt.Errorf("more than %s", size(maxArguments))
	}
	return b, err
}

// checkJSON says where raw stops being one JSON value.
func checkJSON(raw []byte) error {
	d := jsontext.NewDecoder(bytes.NewReader(raw))
	_, err := d.ReadValue()
	if err == nil {
		if _, err = d.ReadToken(); errors.Is(err, io.EOF) {
			return nil
		}
		err = fmt.Errorf("there is more after its end, at byte %d", d.InputOffset())
	}
	return fmt.Errorf("not valid JSON: %w", err)
}

// schemaType is what a part of a JSON schema says that concerns a command line.
type schemaType struct {
	Types      []string
	Items      json.RawMessage
	Properties map[string]json.RawMessage
	Closed     bool // no other properties
	Required   []string
}

// readSchema reads one schema; root resolves its references. What it does not
// understand it leaves open.
func readSchema(raw, root json.RawMessage) schemaType { return readSchemaAt(raw, root, 0) }

func readSchemaAt(raw, root json.RawMessage, depth int) (t schemaType) {
	var s struct {
		Ref        string                     `json:"$ref"`
		Type       json.RawMessage            `json:"type"`
		Const      json.RawMessage            `json:"const"`
		Enum       []json.RawMessage          `json:"enum"`
		AnyOf      []json.RawMessage          `json:"anyOf"`
		OneOf      []json.RawMessage          `json:"oneOf"`
		Items      json.RawMessage            `json:"items"`
		Properties map[string]json.RawMessage `json:"properties"`
		Additional json.RawMessage            `json:"additionalProperties"`
		Required   []string                   `json:"required"`
	}
	if depth > 8 || json.Unmarshal(raw, &s) != nil {
		return t
	}
	if to := resolve(s.Ref, root); to != nil {
		return readSchemaAt(to, root, depth+1)
	}
	t.Items, t.Properties, t.Required = s.Items, s.Properties, s.Required
	t.Closed = string(s.Additional) == "false"
	var one string
	switch {
	case json.Unmarshal(s.Type, &one) == nil && one != "":
		t.Types = []string{one}
	case json.Unmarshal(s.Type, &t.Types) == nil && len(t.Types) > 0:
	default:
		for _, v := range append(s.Enum, s.Const) {
			if k := jsonType(v); k != "" && !slices.Contains(t.Types, k) {
				t.Types = append(t.Types, k)
			}
		}
		for _, alt := range append(s.AnyOf, s.OneOf...) {
			a := readSchemaAt(alt, root, depth+1)
			if len(a.Types) == 0 {
				t.Types = nil // anything goes
				break
			}
			t.Types = append(t.Types, a.Types...)
			if t.Items == nil {
				t.Items = a.Items
			}
		}
	}
	return t
}

// resolve follows a reference inside the same schema, such as #/$defs/Color.
func resolve(ref string, root json.RawMessage) json.RawMessage {
	path, ok := strings.CutPrefix(ref, "#/")
	if !ok {
		return nil
	}
	at := root
	for key := range strings.SplitSeq(path, "/") {
		key = strings.ReplaceAll(strings.ReplaceAll(key, "~1", "/"), "~0", "~")
		var m map[string]json.RawMessage
		if json.Unmarshal(at, &m) != nil || m[key] == nil {
			return nil
		}
		at = m[key]
	}
	return at
}

// jsonType names the type of a JSON value as schemas do; empty for none.
func jsonType(v []byte) string {
	if len(v) == 0 {
		return ""
	}
	switch v[0] {
	case '"':
		return "string"
	case '{':
		return "object"
	case '[':
		return "array"
	case 't', 'f':
		return "boolean"
	case 'n':
		return "null"
	}
	if bytes.ContainsAny(v, ".eE") {
		return "number"
	}
	return "integer"
}

// pairs makes an object of key=value and key:=json words, in their order. A
// key that comes more than once is a list, if the schema lets it be one.
func pairs(words []string, schema json.RawMessage) ([]byte, error) {
	root := readSchema(schema, schema)
	type argument struct {
		key    string
		t      schemaType
		values [][]byte
		list   bool
	}
	var args []*argument
	for _, w := range words {
		if !pairWord.MatchString(w) {
			return nil, usage("%q is no key=value. Quote values with blanks: 'text=two words'", cut(w, 40))
		}
		key, value, _ := strings.Cut(w, "=")
		key, isJSON := strings.CutSuffix(key, ":")
		i := slices.IndexFunc(args, func(a *argument) bool { return a.key == key })
		if i < 0 {
			raw, known := root.Properties[key]
			if !known && root.Closed {
				return nil, usage("the tool has no argument %q; it has %s", key, propertyNames(root))
			}
			i = len(args)
			args = append(args, &argument{key: key, t: readSchema(raw, schema)})
		}
		a := args[i]
		if len(a.values) > 0 && !a.list {
			return nil, usage("argument %q is given twice", key)
		}
		if isJSON {
			if err := checkJSON([]byte(value)); err != nil {
				return nil, usage("argument %q: %v", key, err)
			}
			a.values = append(a.values, []byte(value))
			continue
		}
		v, ok := typed(value, a.t.Types)
		if !ok && slices.Contains(a.t.Types, "array") {
			item := readSchema(a.t.Items, schema)
			if v, ok = typed(value, item.Types); ok {
				a.list = true
			} else {
				a.t.Types = item.Types // for the message
			}
		}
		if !ok {
			return nil, usage("argument %q: %q is no %s", key, cut(value, 40), strings.Join(a.t.Types, " or "))
		}
		a.values = append(a.values, v)
	}
	members := []byte{'{'}
	for i, a := range args {
		if i > 0 {
			members = append(members, ',')
		}
		members = append(append(members, mcp.Quote(a.key)...), ':')
		if a.list {
			members = append(members, '[')
			members = append(members, bytes.Join(a.values, []byte(","))...)
			members = append(members, ']')
			continue
		}
		members = append(members, a.values[0]...)
	}
	return append(members, '}'), nil
}

func propertyNames(t schemaType) string {
	if len(t.Properties) == 0 {
		return "none"
	}
	names := make([]string, 0, len(t.Properties))
	for name := range t.Properties {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// typed writes a word of the command line as JSON of one of the types; none
// means that its looks decide. A number that is too big for a float stays
// digit for digit.
func typed(value string, types []string) ([]byte, bool) {
	raw := []byte(value)
	looks := ""
	if checkJSON(raw) == nil {
		raw = bytes.TrimSpace(raw)
		looks = jsonType(raw)
	}
	if len(types) == 0 {
		if looks == "" || looks == "string" {
			return mcp.Quote(value), true
		}
		return raw, true
	}
	if looks != "" && looks != "string" {
		if slices.Contains(types, looks) || looks == "integer" && slices.Contains(types, "number") {
			return raw, true
		}
	}
	if slices.Contains(types, "string") {
		return mcp.Quote(value), true
	}
	return nil, false
}
