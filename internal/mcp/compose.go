package mcp

import (
	"encoding/base64"
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
