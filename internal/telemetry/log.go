package telemetry

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	hidden = "[hidden]"
	// longest is how many bytes of one text get into a line: names that agents
	// and tool servers choose are not bounded otherwise.
	longest = 2 << 10
)

// Logger makes the logger of the whole process. Format is "json", or anything
// else for text; level may be a *slog.LevelVar that a reload changes.
//
// Callers never log credentials, arguments, commands or output (I10). As a
// second line of defence the logger blanks texts under keys with such names,
// values that are more than a text, number or error, and what looks like a
// credential inside of a text; and it cuts long ones.
func Logger(w io.Writer, level slog.Leveler, format string) *slog.Logger {
	opt := &slog.HandlerOptions{Level: level}
	var h slog.Handler = slog.NewTextHandler(w, opt)
	if format == "json" {
		h = slog.NewJSONHandler(w, opt)
	}
	log := slog.New(guard{next: h})
	if s, ok := w.(*Sink); ok {
		s.setNote(func(n uint64) {
			log.Warn("log lines were dropped: nobody reads them fast enough", "lines", n)
		})
	}
	return log
}

// guard is the second line of defence.
type guard struct {
	next slog.Handler
	hide bool // a group around us has a name that says secret
}

func (g guard) Enabled(ctx context.Context, l slog.Level) bool { return g.next.Enabled(ctx, l) }

func (g guard) Handle(ctx context.Context, r slog.Record) error {
	clean := cleanText(r.Message)
	r.Attrs(func(a slog.Attr) bool {
		clean = clean && !g.hide && cleanAttr(a)
		return clean
	})
	if clean {
		return g.next.Handle(ctx, r)
	}
	out := slog.NewRecord(r.Time, r.Level, scrub(r.Message), r.PC)
	r.Attrs(func(a slog.Attr) bool {
		out.AddAttrs(g.blank(a))
		return true
	})
	return g.next.Handle(ctx, out)
}

func (g guard) WithAttrs(attrs []slog.Attr) slog.Handler {
	out := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		out[i] = g.blank(a)
	}
	return guard{next: g.next.WithAttrs(out), hide: g.hide}
}

func (g guard) WithGroup(name string) slog.Handler {
	return guard{next: g.next.WithGroup(name), hide: g.hide || secretKey(name)}
}

// cleanAttr says whether blank would change nothing, cheaply: it may say no
// for an attribute that is fine.
func cleanAttr(a slog.Attr) bool {
	switch a.Value.Kind() {
	case slog.KindString:
		return !secretKey(a.Key) && cleanText(a.Value.String())
	case slog.KindBool, slog.KindInt64, slog.KindUint64, slog.KindFloat64, slog.KindDuration, slog.KindTime:
		return true
	}
	return false
}

// blank is a, with what may be secret taken out. Numbers and times under any
// key are fine: "token_bytes" says nothing.
func (g guard) blank(a slog.Attr) slog.Attr {
	v := a.Value.Resolve()
	secret := g.hide || secretKey(a.Key)
	switch v.Kind() {
	case slog.KindBool, slog.KindInt64, slog.KindUint64, slog.KindFloat64, slog.KindDuration, slog.KindTime:
		return slog.Attr{Key: a.Key, Value: v}
	case slog.KindGroup:
		inner := guard{hide: secret}
		attrs := make([]slog.Attr, 0, len(v.Group()))
		for _, m := range v.Group() {
			attrs = append(attrs, inner.blank(m))
		}
		return slog.Attr{Key: a.Key, Value: slog.GroupValue(attrs...)}
	}
	if secret {
		return slog.String(a.Key, hidden)
	}
	if v.Kind() == slog.KindString {
		return slog.String(a.Key, scrub(v.String()))
	}
	return slog.Attr{Key: a.Key, Value: plain(v.Any())}
}

// plain turns a value that slog has no kind for into one that is safe to show:
// errors, texts and what knows its own text. Of anything else, which may hold
// a request or its headers, only the type is shown.
func plain(v any) (out slog.Value) {
	defer func() {
		if recover() != nil { // an Error or String method that cannot stand a nil
			out = slog.StringValue("<nil>")
		}
	}()
	switch v := v.(type) {
	case nil:
		return slog.StringValue("<nil>")
	case error:
		return slog.StringValue(scrub(v.Error()))
	case fmt.Stringer:
		return slog.StringValue(scrub(v.String()))
	}
	switch r := reflect.ValueOf(v); {
	case r.Kind() == reflect.String:
		return slog.StringValue(scrub(r.String()))
	case r.CanInt():
		return slog.Int64Value(r.Int())
	case r.CanUint():
		return slog.Uint64Value(r.Uint())
	case r.CanFloat():
		return slog.Float64Value(r.Float())
	case r.Kind() == reflect.Bool:
		return slog.BoolValue(r.Bool())
	case r.Kind() == reflect.Slice && r.Type().Elem().Kind() == reflect.String:
		texts := make([]string, r.Len())
		for i := range texts {
			texts[i] = r.Index(i).String()
		}
		return slog.StringValue(scrub(strings.Join(texts, ", ")))
	}
	return slog.StringValue(fmt.Sprintf("[hidden %T]", v))
}

// Keys of our own lines, which need no closer look.
var plainKeys = map[string]bool{
	"event": true, "request": true, "call": true, "method": true, "kind": true, "server": true, "tool": true,
	"principal": true, "era": true, "outcome": true, "delivery": true, "limit": true, "by": true, "error": true,
	"url": true, "what": true, "file": true, "folder": true, "key": true, "client": true,
}

// Parts of keys, and whole keys, that name something secret. They are compared
// in lower case without separators.
var (
	secretParts = []string{
		"authorization", "token", "secret", "password", "passwd", "passphrase", "apikey", "credential", "cookie",
		"bearer", "argument", "command", "cmdline", "output", "stdout", "stderr", "stdin", "payload", "header",
		"privatekey", "sessionid", "environ", "traceparent",
	}
	secretKeys = []string{
		"args", "arg", "argv", "params", "env", "cmd", "body", "input", "content", "contents", "session", "pwd",
		"auth", "data", "raw", "digest", "text", "result",
	}
	separators = strings.NewReplacer("_", "", "-", "", ".", "", " ", "")
)

func secretKey(key string) bool {
	if plainKeys[key] {
		return false
	}
	key = separators.Replace(strings.ToLower(key))
	return slices.Contains(secretKeys, key) || strings.HasSuffix(key, "body") ||
		slices.ContainsFunc(secretParts, func(p string) bool { return strings.Contains(key, p) })
}

var (
	credentials = regexp.MustCompile(`(?i)(\b(?:bearer|basic|negotiate)[\s:=]+)[A-Za-z0-9._~+/=-]{4,}` +
		`|\blc_[A-Za-z0-9_-]{16,}` +
		`|\beyJ[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]*)?` +
		`|([?&][^=&\s"]*(?:token|key|secret|sig|signature|password|code)[^=&\s"]*=)[^&\s"]+`)
	userinfo = regexp.MustCompile(`://[^/?#\s"@]+@`)
)

// cleanText says whether scrub would change nothing, in one pass: it may say no
// for a text that is fine.
func cleanText(s string) bool {
	if len(s) > longest {
		return false
	}
	for i := range len(s) {
		switch s[i] {
		case '?', '&':
			return false
		case '/':
			if i > 0 && s[i-1] == '/' {
				return false
			}
		case 'y', 'Y':
			if i > 0 && i+1 < len(s) && s[i-1]|0x20 == 'e' && s[i+1]|0x20 == 'j' {
				return false
			}
		case '_':
			if endsIn(s[:i], "lc") {
				return false
			}
		case ' ', '\t', '\n', '\v', '\f', '\r', ':', '=':
			if i > 0 && (s[i-1]|0x20 == 'r' && endsIn(s[:i], "bearer") || s[i-1]|0x20 == 'c' && endsIn(s[:i], "basic") || s[i-1]|0x20 == 'e' && endsIn(s[:i], "negotiate")) {
				return false
			}
		}
	}
	return true
}

func endsIn(s, lower string) bool {
	return len(s) >= len(lower) && strings.EqualFold(s[len(s)-len(lower):], lower)
}

// scrub takes out what looks like a credential, and cuts a long text.
func scrub(s string) string {
	if cleanText(s) {
		return s
	}
	cut := len(s) > longest
	if cut {
		// What a cut takes the end off must not escape the patterns.
		s = s[:min(len(s), 2*longest)]
	}
	s = credentials.ReplaceAllString(s, "${1}${2}"+hidden)
	s = userinfo.ReplaceAllString(s, "://"+hidden+"@")
	if len(s) > longest {
		s = strings.ToValidUTF8(s[:longest], "")
	} else if cut && !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "")
	}
	if cut {
		s += "…"
	}
	return s
}
