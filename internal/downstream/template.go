package downstream

import (
	"regexp"
	"strings"
)

// inTemplate says whether a URI is likely to be one of a URI template (RFC 6570). It
// only decides which tool server is asked first: that one knows.
func inTemplate(template, uri string) bool {
	literal, _, isTemplate := strings.Cut(template, "{")
	if !isTemplate {
		return template == uri
	}
	if !strings.HasPrefix(uri, literal) || len(template) > maxTemplate || strings.Count(template, "{") > maxExpressions {
		return false
	}
	var b strings.Builder
	b.WriteString(`(?s)\A`)
	for rest := template; rest != ""; {
		literal, after, found := strings.Cut(rest, "{")
		b.WriteString(regexp.QuoteMeta(literal))
		if !found {
			break
		}
		expression, after, found := strings.Cut(after, "}")
		if !found {
			return false
		}
		if expression != "" && strings.IndexByte("+#/.;?&", expression[0]) >= 0 || strings.HasSuffix(expression, "*") {
			b.WriteString(`.*`)
		} else {
			b.WriteString(`[^/?#]*`)
		}
		rest = after
	}
	b.WriteString(`\z`)
	re, err := regexp.Compile(b.String())
	return err == nil && re.MatchString(uri)
}

// Bounds of a template that is understood.
const (
	maxTemplate    = 2 << 10 // bytes
	maxExpressions = 32
)
