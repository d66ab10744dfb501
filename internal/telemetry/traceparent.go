package telemetry

import (
	"strings"

	"go.opentelemetry.io/otel/trace"
)

// parentForm is the shape of a W3C traceparent: version, trace id, parent id
// and flags, in lower-case hex.
const parentForm = "xx-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-xxxxxxxxxxxxxxxx-xx"

// longestTrace bounds what is passed on of a caller's trace context, in bytes.
const longestTrace = 4 << 10

// ValidTraceparent says whether s is a W3C traceparent. One of a later version
// may have more fields at its end.
func ValidTraceparent(s string) bool {
	if len(s) < len(parentForm) || len(s) > longestTrace || s[:2] == "ff" {
		return false
	}
	if rest := s[len(parentForm):]; rest != "" && (s[:2] == "00" || rest[0] != '-' || !printable(rest)) {
		return false
	}
	for i := range len(parentForm) {
		c := s[i]
		hex := c >= '0' && c <= '9' || c >= 'a' && c <= 'f'
		if dash := parentForm[i] == '-'; dash != (c == '-') || !dash && !hex {
			return false
		}
	}
	return strings.Trim(s[3:35], "0") != "" && strings.Trim(s[36:52], "0") != ""
}

// Incoming picks a caller's trace context: the one of _meta if it is valid,
// else the headers' if that is, else none. A tracestate means nothing without
// its traceparent. What is not valid is ignored, never an error.
func Incoming(metaParent, metaState, headerParent, headerState string) (traceparent, tracestate string) {
	switch {
	case ValidTraceparent(metaParent):
		return metaParent, validState(metaState)
	case ValidTraceparent(headerParent):
		return headerParent, validState(headerState)
	}
	return "", ""
}

// validState is s if it can be passed on as it is, else empty.
func validState(s string) string {
	if len(s) > longestTrace || !printable(s) {
		return ""
	}
	return s
}

// printable says that s has no control characters, which could start another
// header or event where it is written.
func printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// remote is the span that a valid traceparent names.
func remote(traceparent, tracestate string) trace.SpanContext {
	var c trace.SpanContextConfig
	var err error
	if c.TraceID, err = trace.TraceIDFromHex(traceparent[3:35]); err != nil {
		return trace.SpanContext{}
	}
	if c.SpanID, err = trace.SpanIDFromHex(traceparent[36:52]); err != nil {
		return trace.SpanContext{}
	}
	c.TraceFlags = trace.TraceFlags(unhex(traceparent[53])<<4|unhex(traceparent[54])) & trace.FlagsSampled
	c.TraceState, _ = trace.ParseTraceState(tracestate) // what it cannot read is left out
	c.Remote = true
	return trace.NewSpanContext(c)
}

func unhex(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c - 'a' + 10
}

// formatParent is the traceparent of a span of ours.
func formatParent(c trace.SpanContext) string {
	const digits = "0123456789abcdef"
	b := make([]byte, 0, len(parentForm))
	id, span, flags := c.TraceID(), c.SpanID(), byte(c.TraceFlags())
	hex := func(in ...byte) {
		for _, v := range in {
			b = append(b, digits[v>>4], digits[v&15])
		}
	}
	hex(0)
	b = append(b, '-')
	hex(id[:]...)
	b = append(b, '-')
	hex(span[:]...)
	b = append(b, '-')
	hex(flags)
	return string(b)
}
