package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

type kind uint8

const (
	kindNull kind = iota
	kindBool
	kindNumber
	kindString
	kindList
	kindMap
)

var kindNames = [...]string{"nothing", "true or false", "a number", "a string", "a list", "a mapping"}

// node is a value of the file, from YAML or JSON, with its position.
type node struct {
	kind
	position
	text    string // of a scalar, as written; of a string, its value
	items   []*node
	members []member
}

type member struct {
	key string
	position
	value *node
}

// get is the member's value, or nil.
func (n *node) get(key string) *node {
	for i := range n.members {
		if n.members[i].key == key {
			return n.members[i].value
		}
	}
	return nil
}

// maxDepth is far deeper than any config and far less than any stack.
const maxDepth = 64

// parseTree reads the file. host says that it is JSON, and so may be a host's
// own file with keys that are none of ours.
func parseTree(data []byte, filename string) (root *node, host bool, e *Error) {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if !utf8.Valid(data) {
		i := bytes.IndexRune(data, utf8.RuneError)
		p := positionAt(data, max(i, 0))
		return nil, false, &Error{File: filename, Line: p.line, Col: p.col, Text: "this is not UTF-8", Hint: "save the file as UTF-8"}
	}
	ext := strings.ToLower(filepath.Ext(filename))
	plain := stripJSONC(data)
	// Flow-style YAML begins like JSON: only what is JSON as a whole is taken for it.
	if ext == ".json" || ext == ".jsonc" || bytes.HasPrefix(bytes.TrimSpace(plain), []byte("{")) && jsontext.Value(plain).IsValid(jsontext.AllowDuplicateNames(true)) {
		if len(bytes.TrimSpace(plain)) == 0 {
			return &node{}, true, nil
		}
		root, e = jsonTree(plain, filename)
		return root, true, e
	}
	root, e = yamlTree(data, filename)
	return root, false, e
}

// stripJSONC overwrites comments and trailing commas, which some hosts allow in
// their files, with blanks, so that offsets stay.
func stripJSONC(data []byte) []byte {
	out := bytes.Clone(data)
	comma := -1 // of the last comma with nothing but blanks after it
	for i := 0; i < len(out); i++ {
		switch c := out[i]; {
		case c == '"':
			comma = -1
			for i++; i < len(out) && out[i] != '"'; i++ {
				if out[i] == '\\' {
					i++
				}
			}
		case c == '/' && i+1 < len(out) && out[i+1] == '/':
			for ; i < len(out) && out[i] != '\n'; i++ {
				out[i] = ' '
			}
		case c == '/' && i+1 < len(out) && out[i+1] == '*':
			end := bytes.Index(out[i+2:], []byte("*/"))
			if end < 0 {
				return out
			}
			for end += i + 4; i < end; i++ {
				if out[i] != '\n' {
					out[i] = ' '
				}
			}
			i--
		case c == ',':
			comma = i
		case (c == '}' || c == ']') && comma >= 0:
			out[comma], comma = ' ', -1
		case c != ' ' && c != '\t' && c != '\r' && c != '\n':
			comma = -1
		}
	}
	return out
}

func positionAt(data []byte, off int) position {
	off = min(off, len(data))
	before := data[:off]
	start := bytes.LastIndexByte(before, '\n') + 1
	return position{bytes.Count(before, []byte("\n")) + 1, utf8.RuneCount(before[start:]) + 1}
}

// jsonReader builds nodes; positions are found while it goes, in one pass.
type jsonReader struct {
	data []byte
	dec  *jsontext.Decoder
	at   position
	off  int
	end  int // of the last scalar or bracket
}

func jsonTree(data []byte, filename string) (*node, *Error) {
	r := &jsonReader{data: data, dec: jsontext.NewDecoder(bytes.NewReader(data)), at: position{1, 1}}
	n, err := r.value(0)
	if err == nil {
		if _, err := r.dec.ReadToken(); err == io.EOF {
			return n, nil
		}
		p := positionAt(data, r.end+leading(data[r.end:]))
		return nil, &Error{File: filename, Line: p.line, Col: p.col, Text: "something follows the end of the JSON object", Hint: "remove it"}
	}
	off, text, hint := int(r.dec.InputOffset()), err.Error(), "mend the JSON here, or just before"
	var se *jsontext.SyntacticError
	if errors.As(err, &se) {
		off = int(se.ByteOffset)
		text = strings.TrimPrefix(se.Err.Error(), "jsontext: ")
		if errors.Is(err, jsontext.ErrDuplicateName) {
			text, hint = "the same key is there twice", "keep one of them"
		}
	}
	p := positionAt(data, off)
	return nil, &Error{File: filename, Line: p.line, Col: p.col, Text: text, Hint: hint}
}

func leading(b []byte) int { return len(b) - len(bytes.TrimLeft(b, " \t\r\n")) }

// move is the position of an offset, which must not decrease.
func (r *jsonReader) move(off int) position {
	part := r.data[r.off:off]
	if i := bytes.LastIndexByte(part, '\n'); i >= 0 {
		r.at.line += bytes.Count(part, []byte("\n"))
		r.at.col, part = 1, part[i+1:]
	}
	r.at.col += utf8.RuneCount(part)
	r.off = off
	return r.at
}

func (r *jsonReader) value(depth int) (*node, error) {
	if depth > maxDepth {
		return nil, errors.New("it is nested too deeply")
	}
	switch k := r.dec.PeekKind(); k {
	case '{', '[':
		if _, err := r.dec.ReadToken(); err != nil {
			return nil, err
		}
		n := &node{kind: kindMap, position: r.move(int(r.dec.InputOffset()) - 1)}
		if k == '[' {
			n.kind = kindList
		}
		for p := r.dec.PeekKind(); p != '}' && p != ']'; p = r.dec.PeekKind() {
			m := member{}
			if k == '{' {
				key, err := r.scalar()
				if err != nil {
					return nil, err
				}
				m.key, m.position = key.text, key.position
			}
			v, err := r.value(depth + 1)
			if err != nil {
				return nil, err
			}
			if m.value = v; k == '{' {
				n.members = append(n.members, m)
			} else {
				n.items = append(n.items, v)
			}
		}
		_, err := r.dec.ReadToken()
		r.end = int(r.dec.InputOffset())
		return n, err
	}
	return r.scalar()
}

func (r *jsonReader) scalar() (*node, error) {
	v, err := r.dec.ReadValue()
	if err != nil {
		return nil, err
	}
	r.end = int(r.dec.InputOffset())
	n := &node{position: r.move(r.end - len(v)), text: string(v)}
	switch v.Kind() {
	case '"':
		b, err := jsontext.AppendUnquote(nil, v)
		if err != nil {
			return nil, err
		}
		n.kind, n.text = kindString, string(b)
	case '0':
		n.kind = kindNumber
	case 't', 'f':
		n.kind = kindBool
	}
	return n, nil
}

// yamlReader turns the parser's tree into ours. An alias shares its anchor's
// node, and can only mean one before it, so nothing is copied or circular.
type yamlReader struct {
	file    string
	anchors map[string]*node
}

func yamlTree(data []byte, filename string) (root *node, e *Error) {
	// The parser is not ours; a defect of it must not end a running gateway
	// that merely reloads.
	defer func() {
		if p := recover(); p != nil {
			root, e = nil, &Error{File: filename, Line: 1, Col: 1, Text: "this cannot be read as YAML", Hint: "look for an unclosed quote or bracket"}
		}
	}()
	f, err := parser.ParseBytes(data, 0)
	if err != nil {
		e := &Error{File: filename, Line: 1, Col: 1, Text: "this is not YAML", Hint: "look for wrong indentation, a tab, or an unclosed quote or bracket"}
		var ye yaml.Error
		if errors.As(err, &ye) {
			e.Text = strings.ReplaceAll(ye.GetMessage(), "\n", " ")
			if t := ye.GetToken(); t != nil && t.Position != nil {
				e.Line, e.Col = t.Position.Line, t.Position.Column
			}
		}
		switch {
		case strings.Contains(e.Text, "already defined"):
			e.Text, e.Hint = "the same key is there twice", "keep one of them"
		case strings.Contains(e.Text, "'\t'"):
			e.Text, e.Hint = "a tab stands where YAML allows none", "indent with blanks"
		}
		return nil, e
	}
	r := &yamlReader{file: filename, anchors: map[string]*node{}}
	for _, doc := range f.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.CommentType {
			continue
		}
		if root != nil {
			p := at(doc.Body)
			if doc.Start != nil {
				p = position{doc.Start.Position.Line, doc.Start.Position.Column}
			}
			return nil, &Error{File: filename, Line: p.line, Col: p.col, Text: "a second document begins here", Hint: "a config is one document: remove the line ---"}
		}
		if root, e = r.node(doc.Body, 0); e != nil {
			return nil, e
		}
	}
	if root == nil {
		root = &node{position: position{1, 1}}
	}
	return root, nil
}

func at(n ast.Node) position {
	if t := n.GetToken(); t != nil && t.Position != nil {
		return position{t.Position.Line, t.Position.Column}
	}
	return position{1, 1}
}

func (r *yamlReader) fail(p position, hint, format string, args ...any) *Error {
	return &Error{File: r.file, Line: p.line, Col: p.col, Text: fmt.Sprintf(format, args...), Hint: hint}
}

func (r *yamlReader) node(a ast.Node, depth int) (*node, *Error) {
	n := &node{position: at(a)}
	if depth > maxDepth {
		return nil, r.fail(n.position, "no config is that deep", "it is nested too deeply")
	}
	switch a := a.(type) {
	case *ast.NullNode:
	case *ast.BoolNode:
		n.kind, n.text = kindBool, strings.ToLower(a.Token.Value)
	case *ast.IntegerNode:
		n.kind, n.text = kindNumber, a.Token.Value
	case *ast.FloatNode:
		n.kind, n.text = kindNumber, a.Token.Value
	case *ast.InfinityNode:
		n.kind, n.text = kindString, a.Token.Value
	case *ast.NanNode:
		n.kind, n.text = kindString, a.Token.Value
	case *ast.StringNode:
		n.kind, n.text = kindString, a.Value
	case *ast.LiteralNode:
		n.kind, n.text = kindString, a.Value.Value
	case *ast.SequenceNode:
		n.kind = kindList
		for _, v := range a.Values {
			item, e := r.node(v, depth+1)
			if e != nil {
				return nil, e
			}
			n.items = append(n.items, item)
		}
	case *ast.MappingNode:
		return r.mapping(n, a.Values, depth)
	case *ast.MappingValueNode:
		return r.mapping(n, []*ast.MappingValueNode{a}, depth)
	case *ast.AnchorNode:
		v, e := r.node(a.Value, depth+1)
		if e == nil {
			r.anchors[a.Name.GetToken().Value] = v
		}
		return v, e
	case *ast.AliasNode:
		name := a.Value.GetToken().Value
		v := r.anchors[name]
		if v == nil {
			return nil, r.fail(n.position, "write &"+name+" before its first use", "there is no anchor %q before this line", name)
		}
		return v, nil
	case *ast.TagNode:
		v, e := r.node(a.Value, depth+1)
		if e == nil && a.Start.Value == string(token.StringTag) {
			c := *v
			c.kind, v = kindString, &c
		} else if e == nil && !strings.HasPrefix(a.Start.Value, "!!") {
			return nil, r.fail(n.position, "remove it", "tags such as %q have no meaning here", a.Start.Value)
		}
		return v, e
	default:
		return nil, r.fail(n.position, "write a plain value", "this kind of YAML has no meaning here")
	}
	return n, nil
}

func (r *yamlReader) mapping(n *node, values []*ast.MappingValueNode, depth int) (*node, *Error) {
	n.kind = kindMap
	var merged []member
	for _, v := range values {
		p := at(v.Key)
		if n.line == 0 || len(n.members) == 0 && len(merged) == 0 {
			n.position = p
		}
		val, e := r.node(v.Value, depth+1)
		if e != nil {
			return nil, e
		}
		switch k := v.Key.(type) {
		case *ast.MergeKeyNode:
			from := []*node{val}
			if val.kind == kindList {
				from = val.items
			}
			for _, f := range from {
				if f.kind != kindMap {
					return nil, r.fail(p, "write <<: *name, where &name marks a mapping", "<< needs a mapping")
				}
				merged = append(merged, f.members...)
			}
		case *ast.MappingKeyNode:
			return nil, r.fail(p, "write key: value", "keys that begin with ? have no meaning here")
		default:
			key, e := r.node(v.Key, depth+1)
			if e != nil {
				return nil, e
			}
			if key.kind == kindList || key.kind == kindMap {
				return nil, r.fail(p, "write a plain name", "a key must be a name")
			}
			text := key.text
			if key.kind == kindNull {
				text = k.GetToken().Value
			}
			if n.get(text) != nil {
				return nil, r.fail(p, "keep one of them", "the same key is there twice")
			}
			n.members = append(n.members, member{text, p, val})
		}
	}
	for _, m := range merged {
		if n.get(m.key) == nil {
			n.members = append(n.members, m)
		}
	}
	if len(n.members) > 10000 {
		return nil, r.fail(n.position, "no config is that large", "it has too many keys")
	}
	return n, nil
}
