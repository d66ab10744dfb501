package downstream

import "bytes"

// The functions here find members in JSON that package mcp has accepted before,
// without reading it whole again: a result may have a megabyte, and what is
// wanted of it mostly stands in front. On bytes that are not JSON they find
// nothing; they never read out of bounds.

// field is where a member stands: b[key:end] is all of it, b[val:end] its value.
type field struct{ key, val, end int }

func (f field) ok() bool { return f.end > f.val }

// find looks a member up in the object that starts at b[obj].
func find(b []byte, obj int, name string) field {
	i := space(b, obj)
	if i >= len(b) || b[i] != '{' {
		return field{}
	}
	i = space(b, i+1)
	for i < len(b) && b[i] == '"' {
		f := field{key: i}
		i = skipString(b, i)
		match := i-f.key == len(name)+2 && string(b[f.key+1:i-1]) == name
		if i = space(b, i); i >= len(b) || b[i] != ':' {
			return field{}
		}
		f.val = space(b, i+1)
		if match && f.val < len(b) && (b[f.val] == '{' || b[f.val] == '[') && len(b)-f.val > lazy {
			f.end = len(b) // where a large value ends, nobody asks
			return f
		}
		f.end = skipValue(b, f.val)
		if match {
			return f
		}
		if i = space(b, f.end); i >= len(b) || b[i] != ',' {
			return field{}
		}
		i = space(b, i+1)
	}
	return field{}
}

// members calls f for each member of the object that starts at b[obj], in order.
func members(b []byte, obj int, f func(name []byte, m field)) {
	i := space(b, obj)
	if i >= len(b) || b[i] != '{' {
		return
	}
	i = space(b, i+1)
	for i < len(b) && b[i] == '"' {
		m := field{key: i}
		i = skipString(b, i)
		name := b[m.key+1 : i-1]
		if i = space(b, i); i >= len(b) || b[i] != ':' {
			return
		}
		m.val = space(b, i+1)
		m.end = skipValue(b, m.val)
		f(name, m)
		if i = space(b, m.end); i >= len(b) || b[i] != ',' {
			return
		}
		i = space(b, i+1)
	}
}

// lazy is the size of a container beyond which find does not look for its end.
const lazy = 4 << 10

// elements splits the array that b is into its members; ok is false if b is none.
func elements(b []byte) (parts [][]byte, ok bool) {
	i := space(b, 0)
	if i >= len(b) || b[i] != '[' {
		return nil, false
	}
	i = space(b, i+1)
	if i < len(b) && b[i] == ']' {
		return nil, space(b, i+1) == len(b)
	}
	for i < len(b) {
		end := skipValue(b, i)
		if end <= i {
			return nil, false
		}
		parts = append(parts, b[i:end])
		if i = space(b, end); i >= len(b) {
			return nil, false
		}
		switch b[i] {
		case ']':
			return parts, space(b, i+1) == len(b)
		case ',':
			i = space(b, i+1)
		default:
			return nil, false
		}
	}
	return nil, false
}

func space(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\n' || b[i] == '\r') {
		i++
	}
	return i
}

// skipString returns the offset after the string that starts at b[i].
func skipString(b []byte, i int) int {
	for i++; i < len(b); {
		n := bytes.IndexByte(b[i:], '"')
		if n < 0 {
			return len(b)
		}
		i += n + 1
		back := 0
		for k := i - 2; b[k] == '\\'; k-- { // ends at the opening quote at the latest
			back++
		}
		if back%2 == 0 {
			return i
		}
	}
	return len(b)
}

// skipValue returns the offset after the value that starts at b[i].
func skipValue(b []byte, i int) int {
	if i >= len(b) {
		return len(b)
	}
	switch b[i] {
	case '"':
		return skipString(b, i)
	case '{', '[':
		for depth := 0; i < len(b); {
			switch b[i] {
			case '"':
				i = skipString(b, i)
				continue
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1
				}
			}
			i++
		}
		return len(b)
	}
	for i < len(b) {
		switch b[i] {
		case ',', '}', ']', ' ', '\t', '\n', '\r':
			return i
		}
		i++
	}
	return i
}

// without widens a member to what has to go with it: one comma, if there is one.
func without(b []byte, f field) (from, to int) {
	if i := space(b, f.end); i < len(b) && b[i] == ',' {
		return f.key, space(b, i+1)
	}
	i := f.key
	for i > 0 && (b[i-1] == ' ' || b[i-1] == '\t' || b[i-1] == '\n' || b[i-1] == '\r') {
		i--
	}
	if i > 0 && b[i-1] == ',' {
		return i - 1, f.end
	}
	return f.key, f.end
}

// cut replaces b[from:to].
type cut struct {
	from, to int
	with     []byte
}

// splice appends b to dst with cuts made, which it sorts; they must not overlap.
func splice(dst, b []byte, cuts []cut) []byte {
	dst, rest := spliceHead(dst, b, cuts)
	return append(dst, rest...)
}

// spliceHead is splice up to the last cut; what follows is returned as it is,
// so that a large body needs no copy.
func spliceHead(dst, b []byte, cuts []cut) (head, rest []byte) {
	for i := 1; i < len(cuts); i++ {
		// What is put in at a place goes before what is taken out there.
		for k := i; k > 0 && (cuts[k].from < cuts[k-1].from || cuts[k].from == cuts[k-1].from && cuts[k].to < cuts[k-1].to); k-- {
			cuts[k], cuts[k-1] = cuts[k-1], cuts[k]
		}
	}
	at := 0
	for _, c := range cuts {
		if c.from < at || c.to > len(b) {
			continue
		}
		dst = append(dst, b[at:c.from]...)
		dst = append(dst, c.with...)
		at = c.to
	}
	return dst, b[at:]
}
