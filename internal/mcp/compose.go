package mcp

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// ErrorResponse is a JSON-RPC error response. id and data are raw JSON; a nil
// id is left out (2026-07-28: string or number, never null).
func ErrorResponse(id []byte, code int, text string, data []byte) []byte {
	b := make([]byte, 0, 80+len(id)+len(text)+len(data))
	b = append(b, `{"jsonrpc":"2.0",`...)
	if id != nil {
		b = append(append(append(b, `"id":`...), id...), ',')
	}
	b = strconv.AppendInt(append(b, `"error":{"code":`...), int64(code), 10)
	b, _ = jsontext.AppendQuote(append(b, `,"message":`...), text)
	if data != nil {
		b = append(append(b, `,"data":`...), data...)
	}
	return append(b, "}}"...)
}

// ResultResponse is a JSON-RPC response with a raw JSON result.
func ResultResponse(id, result []byte) []byte {
	b := make([]byte, 0, 40+len(id)+len(result))
	b = append(append(b, `{"jsonrpc":"2.0","id":`...), id...)
	b = append(append(b, `,"result":`...), result...)
	return append(b, '}')
}

// The base64 sentinel of SPEC §1.3 around a header value.
const (
	sentinelHead = "=?base64?"
	sentinelTail = "?="
)

// EncodeHeader makes a value safe for an HTTP header, with the base64 sentinel
// of SPEC §1.3 where it needs one.
func EncodeHeader(s string) string {
	if headerSafe(s) {
		return s
	}
	return sentinelHead + base64.StdEncoding.EncodeToString([]byte(s)) + sentinelTail
}

func headerSafe(s string) bool {
	if s == "" {
		return true
	}
	for i := range len(s) {
		if c := s[i]; c != '\t' && (c < ' ' || c > '~') {
			return false
		}
	}
	blank := func(c byte) bool { return c == ' ' || c == '\t' }
	return !blank(s[0]) && !blank(s[len(s)-1]) &&
		!(strings.HasPrefix(s, sentinelHead) && strings.HasSuffix(s, sentinelTail))
}

// DecodeHeader undoes EncodeHeader: a value without the sentinel is itself; ok is
// false if what the sentinel holds is not base64 of valid UTF-8.
func DecodeHeader(v string) (s string, ok bool) {
	in, found := strings.CutPrefix(v, sentinelHead)
	if !found {
		return v, true
	}
	if in, found = strings.CutSuffix(in, sentinelTail); !found {
		return v, true
	}
	if strings.ContainsAny(in, "\r\n") { // the decoder would pass over them
		return "", false
	}
	b, err := base64.StdEncoding.Strict().DecodeString(in)
	if err != nil || !utf8.Valid(b) {
		return "", false
	}
	return string(b), true
}

// Tool is one entry of a tools/list result.
type Tool struct {
	Name string // the tool server's own
	Raw  []byte // the entry as it came
}

// Tools splits a tools/list result. Entries without a name are an error. Raw of
// the tools points into result.
func Tools(result []byte) (tools []Tool, nextCursor string, err error) {
	members, err := Members(result)
	if err != nil {
		return nil, "", fmt.Errorf("read tools/list result: %w", err)
	}
	var list []byte
	for _, m := range members {
		switch m.Name {
		case "tools":
			list = m.Value
		case "nextCursor":
			if s, ok := String(m.Value); ok {
				nextCursor = s
			} else if string(m.Value) != "null" {
				return nil, "", errors.New("read tools/list result: nextCursor is no string")
			}
		}
	}
	if len(list) == 0 || list[0] != '[' {
		return nil, "", errors.New("read tools/list result: it has no array of tools")
	}
	entries, err := elements(list)
	if err != nil {
		return nil, "", fmt.Errorf("read tools/list result: %w", err)
	}
	tools = make([]Tool, 0, len(entries))
	for i, raw := range entries {
		name, err := toolName(raw)
		if err != nil {
			return nil, "", fmt.Errorf("read tools/list result: tool %d: %w", i, err)
		}
		tools = append(tools, Tool{name, raw})
	}
	return tools, nextCursor, nil
}

func toolName(raw []byte) (string, error) {
	members, err := Members(raw)
	if err != nil {
		return "", err
	}
	for _, m := range members {
		if m.Name == "name" {
			if s, ok := String(m.Value); ok && s != "" {
				return s, nil
			}
		}
	}
	return "", errors.New("it has no name")
}

// elements splits a raw JSON array.
func elements(list []byte) ([][]byte, error) {
	p := newParser(list, jsontext.AllowInvalidUTF8(true))
	defer p.free()
	if _, err := p.dec.ReadToken(); err != nil {
		return nil, parseError(list, err)
	}
	var out [][]byte
	for p.dec.PeekKind() != ']' {
		s, err := p.value()
		if err != nil {
			return nil, parseError(list, err)
		}
		out = append(out, s.Of(list))
	}
	return out, nil
}
