package policy

import (
	"bytes"
	"encoding/base64"
	"regexp"
	"strings"
	"unicode"
)

// secretWords are parts of names whose values are secrets. A "-" may be any
// separator or none.
var secretWords = []string{
	"password", "passwd", "passphrase", "passcode", "pwd", "secret", "token",
	"api-key", "authorization", "cookie", "credential", "private-key",
	"access-key", "account-key", "signing-key", "encryption-key", "session-id", "session-key",
	"connection-string", "bearer", "ssh-key", "auth-key",
}

// secretNames are whole names; as parts of others they mean too much else.
var secretNames = map[string]bool{
	"auth": true, "otp": true, "totp": true, "jwt": true, "pass": true, "pw": true, "sid": true,
	"cvv": true, "cvc": true, "dsn": true,
}

// word is what a name says about its value.
type word uint8

const (
	noWord     word = iota
	secretWord      // a secret
	countWord       // a secret, unless it is a number: "max_tokens"
)

// wordSet finds words in names.
type wordSet struct {
	by    [256][]string // bare words by their first byte
	wide  bool          // some word is not ASCII
	pairs pairSet
}

func newWordSet(words []string) (s wordSet) {
	for _, w := range words {
		b := bare(nil, []byte(strings.ToLower(w)))
		if len(b) < 2 {
			continue
		}
		s.by[b[0]] = append(s.by[b[0]], string(b))
		s.pairs.add(b[0], b[1])
		s.wide = s.wide || !isASCII(b)
	}
	return s
}

func isASCII(b []byte) bool {
	return !bytes.ContainsFunc(b, func(r rune) bool { return r > unicode.MaxASCII })
}

// bare appends a name in lower case and without separators, so that apiKey,
// api_key and API-Key are one.
func bare(dst, name []byte) []byte {
	for _, c := range name {
		if l := lower[c]; l >= 'a' && l <= 'z' || l >= '0' && l <= '9' || l >= 0x80 {
			dst = append(dst, l)
		}
	}
	return dst
}

var lower = func() (t [256]byte) {
	for i := range t {
		if t[i] = byte(i); i >= 'A' && i <= 'Z' {
			t[i] += 'a' - 'A'
		}
	}
	return t
}()

func (s *wordSet) find(name []byte) word {
	if s.wide && !isASCII(name) {
		name = bytes.ToLower(name)
	}
	var room [64]byte
	b := bare(room[:0], name)
	if len(b) <= 4 && secretNames[string(b)] {
		return secretWord
	}
	if len(b) > 4 && len(name) > 5 && bytes.HasSuffix(b, []byte("pass")) && bytes.HasSuffix(name[:len(name)-4], []byte("_")) { // DB_PASS, but not bypass
		return secretWord
	}
	for i := 0; i+1 < len(b); i++ {
		if !s.pairs.has(b[i], b[i+1]) {
			continue
		}
		for _, w := range s.by[b[i]] {
			rest, ok := bytes.CutPrefix(b[i:], []byte(w))
			switch {
			case !ok:
			case w == "token" && bytes.HasPrefix(rest, []byte("iz")): // tokenizer
			case w == "token" && bytes.HasPrefix(rest, []byte("s")):
				return countWord
			default:
				return secretWord
			}
		}
	}
	return noWord
}

// pairSet knows two bytes that something begins with: one look at each byte of
// a text rules out nearly everything.
type pairSet [1 << 16 / 64]uint64

func (p *pairSet) add(a, b byte)      { i := uint(a)<<8 | uint(b); p[i/64] |= 1 << (i % 64) }
func (p *pairSet) has(a, b byte) bool { i := uint(a)<<8 | uint(b); return p[i/64]&(1<<(i%64)) != 0 }

// group of patterns. A text is tried only with those that its marks call for.
type group uint16

const (
	groupWords group = 1 << iota // a word of ours, and something that could give it a value
	groupScheme
	groupURL
	groupPEM
	groupJWT
	groupShape
	groupQuery
	groupLogin
	groupAll group = 1<<iota - 1
)

// mark begins what a group of patterns finds, in lower case. Those that are
// everywhere also need another byte.
type mark struct {
	text  string
	group group
	needs byte
}

var fixedMarks = func() []mark {
	ms := []mark{
		{"bearer", groupScheme, 0},
		{"basic", groupScheme, 0},
		{"negotiate", groupScheme, 0},
		{"_pass", groupWords, 0},
		{"://", groupURL, '@'},
		{`:\/`, groupURL, '@'},
		{"-----begin", groupPEM, 0},
		{"eyj", groupJWT, '.'},
		{"sig=", groupQuery, 0},
		{"signature=", groupQuery, 0},
		{"hooks.slack.com", groupQuery, 0},
		{"sshpass", groupLogin, 0},
		{"-u", groupLogin, ':'},
		{"--user", groupLogin, ':'},
		{"--proxy-user", groupLogin, ':'},
	}
	for _, shape := range []string{
		"akia", "asia", "abia", "acca", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "xox", "xapp-",
		"sk-", "sk_", "rk_", "aiza", "ya29.", "npm_", "hf_", "pypi-", "sg.", "lc_",
	} {
		ms = append(ms, mark{shape, groupShape, 0})
	}
	return ms
}()

// markSet tells texts that may have a secret from all others, fast.
type markSet struct {
	always bool // some word is not ASCII: its cases are left to the patterns
	pairs  pairSet
	fixed  [256][]mark
	words  [256][]string // bare; separators in the text do not count
}

func newMarkSet(words []string) (m markSet) {
	for _, f := range fixedMarks {
		m.fixed[f.text[0]] = append(m.fixed[f.text[0]], f)
		m.pairs.add(f.text[0], f.text[1])
	}
	for _, w := range words {
		w = strings.ToLower(w)
		b := bare(nil, []byte(w))
		if len(b) < 2 {
			continue
		}
		m.always = m.always || !isASCII(b)
		m.words[b[0]] = append(m.words[b[0]], string(b))
		m.pairs.add(b[0], b[1])
		if i := strings.IndexByte(w, b[0]); i+1 < len(w) && w[i+1] != b[1] { // "x-key"
			for _, sep := range "_.- " {
				m.pairs.add(b[0], byte(sep))
			}
		}
	}
	return m
}

// suspect says which patterns may find something in the text.
func (m *markSet) suspect(text []byte) group {
	if m.always {
		return groupAll
	}
	var found group
	bare := false // nothing in the text could give a word a value
	for i := 0; i+1 < len(text); i++ {
		c := lower[text[i]]
		if !m.pairs.has(c, lower[text[i+1]]) {
			continue
		}
		for _, f := range m.fixed[c] {
			if found&f.group == 0 && hasPrefixFold(text[i:], f.text) && (f.needs == 0 || bytes.IndexByte(text, f.needs) >= 0) {
				found |= f.group
			}
		}
		if found&groupWords != 0 || bare {
			continue
		}
		for _, w := range m.words[c] {
			if hasBarePrefix(text[i:], w) {
				if bare = !assigns(text); !bare {
					found |= groupWords
				}
				break
			}
		}
	}
	return found
}

func assigns(text []byte) bool {
	return bytes.IndexByte(text, '=') >= 0 || bytes.IndexByte(text, ':') >= 0 || bytes.Contains(text, []byte("--"))
}

func hasPrefixFold(text []byte, low string) bool {
	if len(text) < len(low) {
		return false
	}
	for i := range len(low) {
		if lower[text[i]] != low[i] {
			return false
		}
	}
	return true
}

// hasBarePrefix skips separators in the text.
func hasBarePrefix(text []byte, low string) bool {
	j := 0
	for i := range text {
		switch c := lower[text[i]]; {
		case c == low[j]:
			if j++; j == len(low) {
				return true
			}
		case j > 0 && (c == '_' || c == '-' || c == '.' || c == ' '):
		default:
			return false
		}
	}
	return false
}

// pattern finds secrets in a text. with gets the submatches and returns what
// stands there instead.
type pattern struct {
	group group
	re    *regexp.Regexp
	with  func(m []string) string
}

// keepFirst replaces all but the first group.
func keepFirst(m []string) string { return m[1] + redacted }

func whole([]string) string { return redacted }

// A value is one word of a shell or of an assignment, quotes and all; where
// quotes are not closed it goes to the end. A quote inside of a word belongs to
// it only if there are no blanks up to the next one: else it is more likely to
// close what began before. What was redacted before is left as it is.
const (
	quotedValue = `(?:\\"(?:\\{4}|\\{3}"|\\{1,2}[^"\\]|[^"\\])*(?:\\"|$)|"(?:\\.|[^"\\])*(?:"|$)|'(?:\\.|[^'\\])*(?:'|$))`
	inWord      = `(?:"[^"\s]*"|'[^'\s]*'|[^\s"'])*`
	afterQuote  = `(?:\\'|"[^"\s]*"|'[^'\s]*'|[\w$!@#%^*+=.~-])*`
	value       = `(?:\[redacted\]|` + quotedValue + afterQuote + `|[^\s"']` + inWord + `)`
	noFlag      = `(?:\[redacted\]|` + quotedValue + afterQuote + `|[^\s"'-]` + inWord + `)`
)

func newPatterns(words []string) []pattern {
	exprs := make([]string, 0, len(words))
	for _, w := range words {
		if len(bare(nil, []byte(w))) < 2 {
			continue
		}
		parts := strings.FieldsFunc(w, func(r rune) bool { return strings.ContainsRune("-_. ", r) })
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		exprs = append(exprs, strings.Join(parts, `[-_. ]?`))
	}
	names := `(?:` + strings.Join(exprs, "|") + `)`
	return []pattern{
		{groupPEM, regexp.MustCompile(`(?s)-----BEGIN [^-]*-----.*?(?:-----END [^-]*-----|$)`), whole},
		// A header, up to the quote that it stands in or to the end of the line.
		{groupWords, regexp.MustCompile(`(?i)('[\w-]*(?:authorization|cookie|api-key)\s*[:=]\s*)[^'\r\n]+`), keepFirst},
		{groupWords, regexp.MustCompile(`(?i)("[\w-]*(?:authorization|cookie|api-key)\s*[:=]\s*)[^"\r\n]+`), keepFirst},
		{groupWords, regexp.MustCompile(`(?im)((?:^|[^\w'"-])[\w-]*(?:authorization|cookie)\s*[:=]\s*)[^\s"'\\][^\r\n]*`), keepFirst},
		{groupScheme, regexp.MustCompile(`(?i)(\b(?:bearer|negotiate)\s+)[A-Za-z0-9._~+/=-]{6,}`), keepFirst},
		{groupScheme, regexp.MustCompile(`(?i)(\bbasic\s+)([A-Za-z0-9+/=_-]{4,})`), basic},
		{groupURL, regexp.MustCompile(`(:\\?/\\?/)[^\s/?#"'<>\\]*@`), func(m []string) string { return m[1] + redacted + "@" }},
		{groupURL, regexp.MustCompile(`(:\\?/\\?/)[^\s/?#@:"'<>\\]*:([^\s"'<>]*)@`), userinfo},
		{groupJWT, regexp.MustCompile(`eyJ[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]*)*`), whole},
		{groupShape, regexp.MustCompile(`(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{12,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{16,}` +
			`|glpat-[A-Za-z0-9_.-]{16,}|xox[a-z]-[A-Za-z0-9-]{8,}|xapp-[A-Za-z0-9-]{8,}|AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{16,}` +
			`|pypi-[A-Za-z0-9_-]{16,}|\b(?:sk-(?:ant|proj|or|svcacct)-[A-Za-z0-9_-]{8,}|sk-[A-Za-z0-9_-]{16,}|[sr]k_(?:live|test|prod)_[A-Za-z0-9]{8,}|npm_[A-Za-z0-9]{20,}|hf_[A-Za-z0-9]{20,}|lc_[A-Za-z0-9_-]{32,}` +
			`|SG\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,})`), whole},
		{groupQuery, regexp.MustCompile(`(?i)(hooks\.slack\.com/services/)[A-Za-z0-9/_-]+`), keepFirst},
		{groupQuery, regexp.MustCompile(`(?i)(\b(?:x-amz-)?(?:sig|signature)=)[A-Za-z0-9%+/=_-]{16,}`), keepFirst},
		{groupLogin, regexp.MustCompile(`(?i)(\bsshpass\s+-p\s*)` + value), keepFirst},
		{groupLogin, regexp.MustCompile(`((?:^|\s)(?:-u|--user|--proxy-user)[\s=]*["']?[^\s:"'/]*:)[^\s"']+`), keepFirst},
		{groupWords, regexp.MustCompile(`(?i)([\w.-]*` + names + `[\w-]*\\*["']?\s*(?:=>|[=:])\s*)(` + value + `)`), assigned},
		{groupWords, regexp.MustCompile(`(?i)(\w_pass\s*[=:]\s*)(` + value + `)`), assigned},
		{groupWords, regexp.MustCompile(`(?i)((?:^|\s)--?[\w-]*` + names + `[\w-]*\s+)(` + noFlag + `)`), assigned},
	}
}

// userinfo is for passwords that should have been escaped; host:port/@x is none.
func userinfo(m []string) string {
	if port.MatchString(m[2]) {
		return m[0]
	}
	return m[1] + redacted + "@"
}

// basic tells a credential from the word after "basic".
func basic(m []string) string {
	for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.RawStdEncoding, base64.URLEncoding} {
		if b, err := enc.DecodeString(m[2]); err == nil && bytes.IndexByte(b, ':') >= 0 {
			return m[1] + redacted
		}
	}
	return m[0]
}

var (
	reference = regexp.MustCompile(`^["']?\$(?:\w+|\{\w+\})["']?$`)
	port      = regexp.MustCompile(`^\d{1,5}(?:/|$)`)
	fileFlag  = regexp.MustCompile(`(?i)[_-](?:file|path|dir)[\s=]+$`)
	count     = regexp.MustCompile(`(?i)tokens[\w-]*\\*["']?\s*(?:=>|[=:]|\s)\s*\d+$`)
)

// assigned keeps what is no secret: the name of a variable or file, and counts.
func assigned(m []string) string {
	if fileFlag.MatchString(m[1]) || reference.MatchString(m[2]) || count.MatchString(m[0]) {
		return m[0]
	}
	return m[1] + redacted
}

// text is a string's text without its secrets. JSON inside of it is walked as
// such, so that quotes in quotes cannot hide anything. whole is false if clean
// is a beginning only, which then counts as changed.
func (r *Redactor) text(text []byte, window, nested int) (clean string, changed, whole bool) {
	i := 0
	for i < len(text) && (text[i] == ' ' || text[i] == '\n' || text[i] == '\t' || text[i] == '\r') {
		i++
	}
	if i+1 < len(text) && (text[i] == '{' || text[i] == '[') {
		if nested >= maxNested {
			return redacted, true, true
		}
		if out, whole, ok := r.redact(text, window, nested+1); ok {
			if whole && len(out) == len(text) && &out[0] == &text[0] {
				return "", false, true
			}
			return string(out), true, whole
		}
	}
	whole = true
	if most := window + overlap; len(text) > most {
		text, whole = text[:most], false
	}
	found := r.marks.suspect(text)
	if found == 0 {
		if whole {
			return "", false, true
		}
		return string(text), true, false
	}
	clean, changed = r.clean(text, found)
	return clean, changed || !whole, whole
}

func (r *Redactor) clean(text []byte, found group) (string, bool) {
	s := string(text)
	for _, p := range r.texts {
		if p.group&found != 0 {
			s = p.replace(s)
		}
	}
	return s, s != string(text)
}

func (p pattern) replace(s string) string {
	found := p.re.FindAllStringSubmatchIndex(s, -1)
	if found == nil {
		return s
	}
	var b strings.Builder
	from := 0
	for _, at := range found {
		m := make([]string, len(at)/2)
		for i := range m {
			if at[2*i] >= 0 {
				m[i] = s[at[2*i]:at[2*i+1]]
			}
		}
		b.WriteString(s[from:at[0]])
		b.WriteString(p.with(m))
		from = at[1]
	}
	b.WriteString(s[from:])
	return b.String()
}
