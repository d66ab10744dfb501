package policy

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

// overlap is how much is looked at past the part that is kept, so that a secret
// at its end is seen whole.
const overlap = 4 << 10

// maxNested is how many times JSON may stand in a string of JSON. What is
// deeper is taken for a secret.
const maxNested = 6

// walker goes through one JSON value and notes what has to go.
type walker struct {
	r       *Redactor
	in      []byte
	dec     *jsontext.Decoder
	buf     bytes.Buffer
	window  int // strings that begin past it are not looked at, and so not shown
	nested  int
	end     int // nothing past it may be shown; 0: all of it may
	names   int // names that were changed
	frames  []frame
	splices []splice
}

// frame is an open object or array.
type frame struct {
	object bool
	isName bool // the next string is a name

	// Of an object: what the last name says about its value.
	secret word
	role   role

	// {"name": "Authorization", "value": …}, in either order: the value goes.
	pair                 word
	valueStart, valueEnd int

	// Of an array: ["--password", …]: the next one goes.
	flag bool
}

// role of a member in a pair of name and value.
type role uint8

const (
	roleNone role = iota
	roleName
	roleValue
)

// splice replaces a part of the input.
type splice struct {
	start, end int
	with       []byte
}

var quotedRedacted = []byte(`"` + redacted + `"`)

var walkers = sync.Pool{New: func() any { return &walker{dec: jsontext.NewDecoder(&bytes.Buffer{})} }}

var errTrailing = errors.New("more than one value")

// redact is in without its secrets, and in itself if it has none. whole is
// false if in is much longer than window and out is a beginning of it only; ok
// is false if in is no JSON.
func (r *Redactor) redact(in []byte, window, nested int) (out []byte, whole, ok bool) {
	w := walkers.Get().(*walker)
	w.r, w.in, w.window, w.nested, w.end, w.names = r, in, window, nested, 0, 0
	defer w.release()
	w.buf = *bytes.NewBuffer(in) // the decoder reads it in place
	w.dec.Reset(&w.buf, jsontext.AllowDuplicateNames(true))
	if w.walk() != nil {
		return nil, false, false
	}
	switch {
	case w.end > 0:
		return w.spliced(w.end), false, true
	case len(w.splices) == 0:
		return in, true, true
	}
	return w.spliced(len(in)), true, true
}

// release gives the walker back, without anything of the arguments in it.
func (w *walker) release() {
	w.buf = bytes.Buffer{}
	w.dec.Reset(&w.buf)
	w.r, w.in = nil, nil
	clear(w.splices)
	w.frames, w.splices = w.frames[:0], w.splices[:0]
	walkers.Put(w)
}

// spliced is the input up to end with all splices made.
func (w *walker) spliced(end int) []byte {
	slices.SortFunc(w.splices, func(a, b splice) int { return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(b.end, a.end)) })
	out, from := make([]byte, 0, min(end, w.window+2*overlap)+32), 0
	for _, s := range w.splices {
		if s.start < from || s.start >= end {
			continue // inside of one that is gone already, or never shown
		}
		out = append(append(out, w.in[from:s.start]...), s.with...)
		from = s.end
	}
	return append(out, w.in[min(from, end):end]...)
}

func (w *walker) drop(start, end int) {
	w.splices = append(w.splices, splice{start, end, quotedRedacted})
}

func (w *walker) walk() error {
	done := false
	for {
		k := w.dec.PeekKind()
		if k == 0 {
			_, err := w.dec.ReadToken()
			if done && err == io.EOF {
				return nil
			}
			return cmp.Or(err, io.ErrUnexpectedEOF)
		}
		if done {
			return errTrailing
		}
		var top *frame
		if n := len(w.frames); n > 0 {
			top = &w.frames[n-1]
		}
		switch {
		case k == '}' || k == ']':
			if _, err := w.dec.ReadToken(); err != nil {
				return err
			}
			if top.pair != noWord && top.valueEnd > 0 {
				w.drop(top.valueStart, top.valueEnd)
			}
			w.frames = w.frames[:len(w.frames)-1]
			w.ended()
		case (k == '{' || k == '[') && (top == nil || top.secret == noWord):
			if _, err := w.dec.ReadToken(); err != nil {
				return err
			}
			w.began(top, int(w.dec.InputOffset())-1)
			w.frames = append(w.frames, frame{object: k == '{', isName: k == '{'})
		default:
			v, err := w.dec.ReadValue()
			if err != nil {
				return err
			}
			end := int(w.dec.InputOffset())
			if top != nil && top.isName {
				w.name(top, v, end)
				continue
			}
			w.began(top, end-len(v))
			w.scalar(top, v, end)
			w.ended()
		}
		done = len(w.frames) == 0
	}
}

// began notes where a value in an object starts.
func (w *walker) began(top *frame, start int) {
	if top != nil && top.object {
		if top.role == roleValue {
			top.valueStart = start
		}
		top.isName = true
	}
}

// ended notes where a value in an object ends.
func (w *walker) ended() {
	if n := len(w.frames); n > 0 {
		top := &w.frames[n-1]
		if top.role == roleValue {
			top.valueEnd = int(w.dec.InputOffset())
		}
		top.role, top.secret = roleNone, noWord
	}
}

func (w *walker) name(top *frame, raw jsontext.Value, end int) {
	name := unquoted(raw)
	if found := w.r.marks.suspect(name); found != 0 && w.end == 0 {
		// Such as an address with a password, as the name of its settings.
		if clean, changed := w.r.clean(name, found); changed {
			if w.names++; w.names > 1 { // two names must not become one
				clean += " #" + strconv.Itoa(w.names)
			}
			w.splices = append(w.splices, splice{end - len(raw), end, quoted(clean)})
		}
	}
	top.isName = false
	top.secret = w.r.names.find(name)
	switch string(name) {
	case "name", "key", "header", "field", "variable", "Name", "Key":
		top.role = roleName
	case "value", "val", "Value":
		top.role = roleValue
	}
}

// scalar decides about a value that is not looked into, which may also be a
// whole object under a secret's name.
func (w *walker) scalar(top *frame, raw jsontext.Value, end int) {
	start, k := end-len(raw), raw.Kind()
	if top != nil && top.secret != noWord {
		switch {
		case k == 'n' || k == 't' || k == 'f', string(raw) == `""`:
			return // says that something is there or not, and no more
		case k == '0' && top.secret == countWord:
			return // max_tokens: 100
		}
		w.drop(start, end)
		return
	}
	flagged := false
	if top != nil && !top.object {
		flagged, top.flag = top.flag, false
	}
	if k != '"' {
		if flagged && k == '0' {
			w.drop(start, end)
		}
		return
	}
	raw, whole := w.visible(raw, start)
	text := unquoted(raw)
	if top != nil && top.role == roleName {
		top.pair = w.r.names.find(text)
	}
	if flagged && !bytes.HasPrefix(text, []byte("--")) {
		w.drop(start, end)
		return
	}
	if top != nil && !top.object && len(text) > 2 && text[0] == '-' && !bytes.ContainsAny(text, "= \n") {
		top.flag = w.r.names.find(text) == secretWord
	}
	if w.end > 0 {
		return // never shown
	}
	if start > w.window {
		w.end = start
		return
	}
	clean, changed, all := w.r.text(text, w.window-start, w.nested)
	whole = whole && all
	if changed || !whole {
		if !changed {
			clean = string(text)
		}
		w.splices = append(w.splices, splice{start, end, quoted(clean)})
	}
	if !whole {
		w.end = end
	}
}

// visible is as much of a long string as is worth looking at: a file of a
// megabyte is not decoded for the few kilobytes that are kept. JSON needs its end.
func (w *walker) visible(raw jsontext.Value, start int) (jsontext.Value, bool) {
	most := max(w.window-start, 0) + overlap
	if len(raw) <= most || raw[1] == '{' || raw[1] == '[' || raw[1] == ' ' || raw[1] == '\\' {
		return raw, true
	}
	i := 1
	for i < most {
		if raw[i] == '\\' {
			i++
			if raw[i] == 'u' {
				i += 4
			}
		}
		i++
	}
	return append(raw[:i:i], '"'), false
}

// quoted is a text that may have been cut in the middle of a character.
func quoted(s string) []byte {
	q, err := jsontext.AppendQuote(nil, strings.ToValidUTF8(s, ""))
	if err != nil {
		return quotedRedacted
	}
	return q
}

// unquoted is the text of a raw JSON string, without a copy if it has no escapes.
func unquoted(raw jsontext.Value) []byte {
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw[1 : len(raw)-1]
	}
	b, _ := jsontext.AppendUnquote(nil, raw) // it has been read as valid
	return b
}
