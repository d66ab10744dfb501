package config

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// decoder fills a Config from nodes and collects all that is wrong.
type decoder struct {
	file     string
	host     bool // a host's own JSON file
	lax      bool // inside a disabled server: a missing variable does not matter
	getenv   func(string) (string, bool)
	inputs   map[string]string // VS Code: id to default
	errs     Errors
	warnings []Error
	pos      map[string]position
	secrets  map[string]string // see Config.secrets
	visits   int
}

// maxVisits bounds what aliases can multiply.
const maxVisits = 200_000

func (d *decoder) fail(p position, key, hint, format string, args ...any) {
	d.errs = append(d.errs, Error{File: d.file, Line: p.line, Col: p.col, Key: key, Text: fmt.Sprintf(format, args...), Hint: hint})
}

func (d *decoder) warn(p position, key, hint, format string, args ...any) {
	d.warnings = append(d.warnings, Error{File: d.file, Line: p.line, Col: p.col, Key: key, Text: fmt.Sprintf(format, args...), Hint: hint})
}

// field is one key of a struct.
type field struct {
	key          string
	index        []int
	expand, path bool
}

// fieldsOf lists the keys of a struct, those of inlined structs among them.
func fieldsOf(t reflect.Type) []field {
	var fs []field
	for i := range t.NumField() {
		f := t.Field(i)
		name, opts, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case opts == "inline":
			for _, in := range fieldsOf(f.Type) {
				in.index = append([]int{i}, in.index...)
				fs = append(fs, in)
			}
		case name != "" && name != "-":
			has := strings.Split(opts, ",")
			fs = append(fs, field{name, []int{i}, slices.Contains(has, "expand"), slices.Contains(has, "path")})
		}
	}
	return fs
}

func keysOf(fs []field) []string {
	keys := make([]string, len(fs))
	for i, f := range fs {
		keys[i] = f.key
	}
	return keys
}

// homes says which structs have a key, to point at the right place.
var homes = func() map[string][]string {
	m := map[string][]string{}
	var walk func(t reflect.Type, path string)
	walk = func(t reflect.Type, path string) {
		for t.Kind() == reflect.Map || t.Kind() == reflect.Pointer {
			if t.Kind() == reflect.Map {
				path = join(path, "NAME")
			}
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct {
			return
		}
		for _, f := range fieldsOf(t) {
			p := join(path, f.key)
			m[f.key] = append(m[f.key], p)
			walk(t.FieldByIndex(f.index).Type, p)
		}
	}
	walk(reflect.TypeFor[Config](), "")
	return m
}()

// elsewhere is where a key of ours would have a meaning.
func elsewhere(key string) []string {
	if where := homes[key]; where != nil {
		return where
	}
	for _, k := range slices.Sorted(maps.Keys(homes)) {
		if bare(k) == bare(key) {
			return homes[k]
		}
	}
	return nil
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// unknown reports a key that is none of ours.
func (d *decoder) unknown(m member, path string, known []string) {
	key := join(path, m.key)
	if near := nearest(m.key, known); near != "" {
		d.fail(m.position, key, fmt.Sprintf("did you mean %q?", near), "unknown key")
		return
	}
	if where := elsewhere(m.key); len(where) > 0 {
		d.fail(m.position, key, "it belongs to "+strings.Join(where, " or "), "this key has no meaning here")
		return
	}
	d.fail(m.position, key, "the keys here are "+strings.Join(known, ", "), "unknown key")
}

// value decodes n into v. expand and path come from the tag of the field that
// v is part of.
func (d *decoder) value(n *node, v reflect.Value, path string, f field) {
	if d.visits++; d.visits > maxVisits {
		if d.visits == maxVisits+1 {
			d.fail(n.position, path, "use fewer aliases", "the config is too large")
		}
		return
	}
	d.pos[path] = n.position
	if v.Kind() == reflect.Pointer {
		p := reflect.New(v.Type().Elem())
		d.value(n, p.Elem(), path, f)
		v.Set(p)
		return
	}
	if e, ok := v.Interface().(enum); ok {
		d.enum(n, v, path, e.values())
		return
	}
	switch p := v.Addr().Interface().(type) {
	case *time.Duration:
		if s, ok := d.scalar(n, path, "a duration", "write one such as 10s, 5m, 1h30m or 2d"); ok {
			d.duration(n, path, s, p)
		}
		return
	case *Size:
		if s, ok := d.scalar(n, path, "a size", "write one such as 64KiB, 16MiB or 1048576"); ok {
			d.size(n, path, s, p)
		}
		return
	case *Token: // the token alone, or a mapping
		if n.kind != kindMap {
			d.value(n, reflect.ValueOf(&p.Token).Elem(), path, f)
			return
		}
	}
	switch v.Kind() {
	case reflect.String:
		if s, ok := d.scalar(n, path, "a string", `write a value, "" for an empty one, or remove the key`); ok {
			v.SetString(d.text(s, n, path, f))
		}
	case reflect.Bool:
		if n.kind != kindBool {
			d.mismatch(n, path, "true or false", "write true or false, without quotes")
			return
		}
		v.SetBool(n.text == "true")
	case reflect.Int:
		i, err := strconv.Atoi(n.text)
		if n.kind != kindNumber || err != nil || i < 0 {
			d.mismatch(n, path, "a whole number, 0 or more", "write one such as 100")
			return
		}
		v.SetInt(int64(i))
	case reflect.Float64:
		x, err := strconv.ParseFloat(n.text, 64)
		if n.kind != kindNumber || err != nil || math.IsInf(x, 0) || math.IsNaN(x) {
			d.mismatch(n, path, "a number", "write one such as 0.1")
			return
		}
		v.SetFloat(x)
	case reflect.Slice:
		d.list(n, v, path, f)
	case reflect.Map:
		d.mapOf(n, v, path, f)
	case reflect.Struct:
		if d.isMap(n, path) {
			d.structOf(n, v, path)
		}
	default:
		panic("config: no decoder for " + v.Type().String())
	}
}

// isMap is false for nothing at all, as in "limits:" with all lines under it
// commented out, and for what is wrong.
func (d *decoder) isMap(n *node, path string) bool {
	if n.kind != kindMap && n.kind != kindNull {
		d.mismatch(n, path, "a mapping", "write key: value lines under it")
	}
	return n.kind == kindMap
}

func (d *decoder) mismatch(n *node, path, want, hint string) {
	got := kindNames[n.kind]
	if n.kind == kindNumber {
		got = n.text // a number is no secret, and the key's own text helps
	}
	d.fail(n.position, path, hint, "needs %s, got %s", want, got)
}

// scalar takes numbers and booleans as they are written: hosts have "PORT: 80".
func (d *decoder) scalar(n *node, path, want, hint string) (string, bool) {
	if n.kind == kindNull || n.kind == kindList || n.kind == kindMap {
		d.mismatch(n, path, want, hint)
		return "", false
	}
	return n.text, true
}

func (d *decoder) structOf(n *node, v reflect.Value, path string) {
	fs := fieldsOf(v.Type())
	for _, m := range n.members {
		i := slices.IndexFunc(fs, func(f field) bool { return f.key == m.key })
		if i < 0 {
			d.unknown(m, path, keysOf(fs))
			continue
		}
		d.value(m.value, v.FieldByIndex(fs[i].index), join(path, m.key), fs[i])
	}
}

func (d *decoder) list(n *node, v reflect.Value, path string, f field) {
	if n.kind == kindNull || n.kind == kindList && len(n.items) == 0 {
		return // what is empty changes nothing: no list has a default
	}
	if n.kind != kindList {
		d.mismatch(n, path, "a list", "write [a, b], or one - line for each")
		return
	}
	s := reflect.MakeSlice(v.Type(), len(n.items), len(n.items))
	for i, item := range n.items {
		d.value(item, s.Index(i), path+"["+strconv.Itoa(i)+"]", f)
	}
	v.Set(s)
}

func (d *decoder) mapOf(n *node, v reflect.Value, path string, f field) {
	if !d.isMap(n, path) || len(n.members) == 0 {
		return
	}
	out := reflect.MakeMapWithSize(v.Type(), min(len(n.members), 1000))
	for _, m := range n.members {
		e := reflect.New(v.Type().Elem()).Elem()
		if s, ok := e.Addr().Interface().(*Server); ok {
			*s = d.server(m, join(path, m.key))
		} else {
			d.value(m.value, e, join(path, m.key), f)
		}
		d.pos[join(path, m.key)] = m.position
		out.SetMapIndex(reflect.ValueOf(m.key), e)
	}
	v.Set(out)
}

func (d *decoder) enum(n *node, v reflect.Value, path string, values []string) {
	if n.kind == kindString && slices.Contains(values, n.text) {
		v.SetString(n.text)
		return
	}
	hint := "write " + values[len(values)-1]
	if len(values) > 1 {
		hint = "write " + strings.Join(values[:len(values)-1], ", ") + " or " + values[len(values)-1]
	}
	if n.kind != kindString {
		d.mismatch(n, path, "a word", hint)
		return
	}
	if near := nearest(n.text, values); near != "" {
		hint = fmt.Sprintf("did you mean %q?", near)
	}
	d.fail(n.position, path, hint, "%s is not one of its values", quote(n.text))
}

func (d *decoder) duration(n *node, path, s string, p *time.Duration) {
	v, err := parseDuration(s)
	switch {
	case err == nil:
		*p = v
	case errors.Is(err, errRange):
		d.fail(n.position, path, "write a shorter one", "%s is too long", quote(s))
	case n.kind == kindNumber && !strings.HasPrefix(s, "-"):
		d.fail(n.position, path, fmt.Sprintf("write a unit, such as %ss or %sms", s, s), "the duration has no unit")
	default:
		d.fail(n.position, path, "write one such as 10s, 5m, 1h30m or 2d", "%s is not a duration", quote(s))
	}
}

func (d *decoder) size(n *node, path, s string, p *Size) {
	v, err := parseSize(s)
	switch {
	case err == nil:
		*p = v
	case errors.Is(err, errRange):
		d.fail(n.position, path, "write a smaller one", "%s is too large", quote(s))
	default:
		d.fail(n.position, path, "write one such as 64KiB, 16MiB or 1048576", "%s is not a size", quote(s))
	}
}

// quote shows a value of the file, short and on one line. It is never used
// where a credential may stand.
func quote(s string) string {
	if r := []rune(s); len(r) > 40 {
		s = string(r[:40]) + "…"
	}
	return strconv.Quote(s)
}

// text expands variables and makes paths absolute, as the field's tag says.
func (d *decoder) text(s string, n *node, path string, f field) string {
	if f.expand {
		s = d.expand(s, n.position, path)
	}
	// A command without a slash is looked up in PATH.
	if f.path && s != "" && (f.key != "command" || strings.ContainsRune(s, '/')) {
		s = d.absolute(s)
	}
	return s
}

// absolute is a path as the operator means it: ~ is the home, and a relative
// path starts at the config's folder, wherever longcall was started.
func (d *decoder) absolute(s string) string {
	if rest, ok := strings.CutPrefix(s, "~"); ok && (rest == "" || rest[0] == '/') {
		if home, _ := d.getenv("HOME"); home != "" {
			return filepath.Join(home, rest)
		}
	}
	if filepath.IsAbs(s) || d.file == "" {
		return s
	}
	return filepath.Join(d.workspace(), s)
}
