// Package auth finds out who is calling: bearer tokens and the principals they stand for.
package auth

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"
	"sync/atomic"
)

// Local is the principal of the generated token, and of everybody where there
// is no authentication.
const Local = "local"

// Principal is who calls. Every id that comes back from an agent is checked
// against it (I6).
type Principal struct{ Name string }

// Authenticator knows the valid tokens. It is safe for concurrent use, and its
// tokens can be replaced while it is used.
type Authenticator struct {
	known atomic.Pointer[[]entry] // nil: no authentication
}

// entry has the token's hash: comparing hashes of equal length tells an
// attacker nothing about a token, not even how long it is.
type entry struct {
	sum [sha256.Size]byte
	who Principal
}

// New knows the given tokens by principal. Empty tokens are never valid.
func New(tokens map[string]string) *Authenticator {
	a := &Authenticator{}
	a.Set(tokens)
	return a
}

// None takes everybody for Local, whatever they send. Only for loopback.
func None() *Authenticator { return &Authenticator{} }

// Set replaces the tokens. Requests that are checked already go on.
func (a *Authenticator) Set(tokens map[string]string) {
	known := make([]entry, 0, len(tokens))
	for name, t := range tokens {
		if t != "" {
			known = append(known, entry{sha256.Sum256([]byte(t)), Principal{name}})
		}
	}
	a.known.Store(&known)
}

// Open says that nobody is asked who they are.
func (a *Authenticator) Open() bool { return a.known.Load() == nil }

// Error is why a request has no principal.
type Error struct {
	Status int    // 401, or 400 for a header that cannot be read
	Text   string // for the agent's operator: what is wrong and what to do
	Code   string // RFC 6750 error code; empty if no credential was sent
}

func (e *Error) Error() string { return e.Text }

// Challenge is the value of WWW-Authenticate for this error.
func (e *Error) Challenge() string {
	if e.Code == "" {
		return `Bearer realm="longcall"`
	}
	return `Bearer realm="longcall", error="` + e.Code + `"`
}

const howTo = `Send the header "Authorization: Bearer TOKEN". The token is in the file "token" in longcall's state folder, or comes from whoever runs longcall.`

var (
	errNone      = &Error{http.StatusUnauthorized, "No token was sent. " + howTo, ""}
	errScheme    = &Error{http.StatusUnauthorized, "Only bearer tokens are taken. " + howTo, ""}
	errInvalid   = &Error{http.StatusUnauthorized, "The token is not valid here; it may have been replaced. " + howTo, "invalid_token"}
	errMalformed = &Error{http.StatusBadRequest, "The Authorization header cannot be read: it must be one bearer token, without blanks or commas. " + howTo, "invalid_request"}
	errSeveral   = &Error{http.StatusBadRequest, "There is more than one Authorization header. " + howTo, "invalid_request"}
)

// maxHeader is longer than any token of ours; what is longer is not hashed.
const maxHeader = 16 << 10

// Check finds the principal for the value of an Authorization header, which is
// empty if there was none. Errors are *Error. It takes the same time for every
// wrong token.
func (a *Authenticator) Check(header string) (Principal, error) {
	known := a.known.Load()
	if known == nil {
		return Principal{Local}, nil
	}
	header = strings.Trim(header, " \t")
	if header == "" {
		return Principal{}, errNone
	}
	scheme, token, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return Principal{}, errScheme
	}
	token = strings.TrimLeft(token, " ")
	if token == "" || len(token) > maxHeader || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' || r == ',' }) {
		return Principal{}, errMalformed
	}
	sum := sha256.Sum256([]byte(token))
	var who *Principal
	for i := range *known {
		if e := &(*known)[i]; subtle.ConstantTimeCompare(e.sum[:], sum[:]) == 1 {
			who = &e.who
		}
	}
	if who == nil {
		return Principal{}, errInvalid
	}
	return *who, nil
}

// CheckHeader is Check for a request's header, and refuses what two parsers
// could read differently: more than one Authorization.
func (a *Authenticator) CheckHeader(h http.Header) (Principal, error) {
	values := h["Authorization"]
	if len(values) > 1 && !a.Open() {
		return Principal{}, errSeveral
	}
	return a.Check(h.Get("Authorization"))
}
