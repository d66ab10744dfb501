package downstream

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/longcall/longcall/internal/mcp"
)

// guard refuses what must not be served at all: a browser page of somewhere
// else, a rebound name, an unknown caller, an endpoint that is not there
// (R-58, SPEC §1.6). It answers CORS preflights.
func (x *exchange) guard() bool {
	if !x.hostAllowed() {
		x.refuse(http.StatusForbidden, mcp.CodeInvalidRequest, "This Host is not allowed here. Use the address that longcall listens on, or add the name to allowed_hosts.")
		return false
	}
	origin, cors, ok := x.originAllowed()
	if !ok {
		x.refuse(http.StatusForbidden, mcp.CodeInvalidRequest, "This Origin is not allowed here. Add it to allowed_origins if the page may call tools.")
		return false
	}
	if cors {
		h := x.out.w.Header()
		h.Set("Access-Control-Allow-Origin", origin)
		h.Set("Access-Control-Expose-Headers", exposedHeaders)
		h.Add("Vary", "Origin")
	}
	if x.r.Method == http.MethodOptions {
		x.preflight(cors)
		return false
	}
	principal, err := x.h.opt.Auth.Check(x.r.Header.Get("Authorization"))
	if err != nil {
		challenge := `Bearer realm="longcall"`
		if x.r.Header.Get("Authorization") != "" {
			challenge += `, error="invalid_token"`
		}
		x.out.w.Header().Set("Www-Authenticate", challenge)
		x.refuse(http.StatusUnauthorized, mcp.CodeInvalidRequest, "Not authorized: "+err.Error())
		return false
	}
	x.q.Principal = principal
	if x.at, x.server, ok = x.h.endpoint(x.r.URL.Path); !ok {
		x.refuse(http.StatusNotFound, mcp.CodeInvalidRequest, "There is no such endpoint. /mcp serves all tool servers, /mcp/NAME the one of that name in the config; so do /sse and /sse/NAME for clients of 2024-11-05.")
		return false
	}
	x.q.Server = x.server
	return true
}

const (
	exposedHeaders = "Mcp-Session-Id, Mcp-Protocol-Version, WWW-Authenticate, " + HeaderCall
	allowedMethods = "POST, GET, DELETE, OPTIONS"
	allowedHeaders = "Authorization, Content-Type, Accept, Mcp-Session-Id, Mcp-Protocol-Version, Mcp-Method, Mcp-Name, Last-Event-ID, Traceparent, Tracestate, " + headerIdempotency
)

func (x *exchange) preflight(cors bool) {
	h := x.out.w.Header()
	h.Set("Allow", allowedMethods)
	if cors && x.r.Header.Get("Access-Control-Request-Method") != "" {
		allowed := []string{allowedHeaders}
		for name := range strings.SplitSeq(x.r.Header.Get("Access-Control-Request-Headers"), ",") {
			if name = strings.TrimSpace(name); isToken(name) && len(name) > len(mcp.HeaderParamPrefix) && strings.EqualFold(name[:len(mcp.HeaderParamPrefix)], mcp.HeaderParamPrefix) {
				allowed = append(allowed, name)
			}
		}
		h.Set("Access-Control-Allow-Methods", allowedMethods)
		h.Set("Access-Control-Allow-Headers", strings.Join(allowed, ", "))
		h.Set("Access-Control-Max-Age", "600")
	}
	x.out.head(http.StatusNoContent)
}

// isToken says whether s may be a header's name (RFC 9110 §5.6.2).
func isToken(s string) bool {
	for _, c := range []byte(s) {
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`"(),/:;<=>?@[\]{}`, c) >= 0 {
			return false
		}
	}
	return s != ""
}

// hostAllowed keeps a name that was rebound to a loopback address out, and on
// any connection holds the host to the list that the config gives, if it does.
func (x *exchange) hostAllowed() bool {
	host, list := x.r.Host, x.set.AllowedHosts
	if x.loopback() {
		return host == "" || loopbackName(host) || matchHost(list, host)
	}
	return len(list) == 0 || matchHost(list, host)
}

func matchHost(list []string, host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	return slices.ContainsFunc(list, func(s string) bool {
		return s == "*" || strings.EqualFold(s, host) || strings.EqualFold(s, name)
	})
}

// originAllowed: cors says that the origin is one that the config names.
func (x *exchange) originAllowed() (origin string, cors, ok bool) {
	values := x.r.Header["Origin"]
	if len(values) == 0 {
		// Not a browser, or one that says so in another way (SPEC §8.1 A15).
		return "", false, x.r.Header.Get("Sec-Fetch-Site") != "cross-site"
	}
	origin = values[0]
	if len(values) > 1 || origin == "" || origin == "null" {
		return "", false, false
	}
	for _, o := range x.set.AllowedOrigins {
		if o == "*" || strings.EqualFold(strings.TrimSuffix(o, "/"), origin) {
			return origin, true, true
		}
	}
	u, err := url.Parse(origin)
	return origin, false, err == nil && x.loopback() && (u.Scheme == "http" || u.Scheme == "https") && u.Path == "" && loopbackName(u.Host)
}

// loopback says whether the connection came in on a loopback address.
func (x *exchange) loopback() bool {
	a, ok := x.r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && a.IP.IsLoopback()
}

// headerRelay marks the requests of longcall's own relay, which speaks for a host
// on a pipe: it knows no tool's schema, so it mirrors no argument into a header,
// and its host cancels by message only.
const headerRelay = "Longcall-Relay"

// relayed says whether a request is the relay's: it comes from this machine, with
// the token of the state folder.
func (x *exchange) relayed() bool {
	_, ok := x.r.Header[headerRelay]
	return ok && x.q.Principal == localPrincipal && x.loopback()
}

// localPrincipal is whoever has the token of the state folder.
const localPrincipal = "local"

// loopbackName accepts localhost and loopback addresses, with any port.
func loopbackName(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	} else {
		host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap().IsLoopback()
}
