package config

import (
	"fmt"
	"maps"
	"net/url"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
)

// config decodes the whole file.
func (d *decoder) config(root *node, c *Config) {
	if root.kind == kindNull {
		return
	}
	if root.kind != kindMap {
		d.fail(root.position, "", "begin with a key, such as mcpServers:", "a config is a mapping, this is %s", kindNames[root.kind])
		return
	}
	known := append(keysOf(fieldsOf(reflect.TypeFor[Config]())), "servers", "inputs")
	kept := &node{kind: kindMap, position: root.position}
	var foreign []string
	var first position
	for _, m := range root.members {
		switch {
		case m.key == "servers": // VS Code's name for mcpServers
			if root.get("mcpServers") != nil {
				d.fail(m.position, m.key, "put all servers under mcpServers", "servers and mcpServers are both there")
				continue
			}
			m.key = "mcpServers"
			kept.members = append(kept.members, m)
		case m.key == "inputs":
			d.readInputs(m.value)
		case slices.Contains(known, m.key):
			kept.members = append(kept.members, m)
		case d.host && nearest(m.key, known) == "":
			if foreign = append(foreign, m.key); len(foreign) == 1 {
				first = m.position
			}
		default:
			d.unknown(m, "", known)
		}
	}
	if n := len(foreign); n > 0 {
		more := ""
		if n > 5 {
			foreign, more = foreign[:5], fmt.Sprintf(" and %d more", n-5)
		}
		d.warn(first, "", "they stay without effect", "these are keys of a host, not of longcall: %s%s", strings.Join(foreign, ", "), more)
	}
	d.structOf(kept, reflect.ValueOf(c).Elem(), "")
	d.tokens(c)
}

// readInputs takes the defaults of VS Code's inputs.
func (d *decoder) readInputs(n *node) {
	d.inputs = map[string]string{}
	for _, in := range n.items {
		id, def := in.get("id"), in.get("default")
		if id != nil && def != nil && def.kind == kindString {
			d.inputs[id.text] = def.text
		}
	}
}

// headerName is a token of RFC 9110.
var headerName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")

var serverName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,32}$`)

// foreignKeys are what hosts keep in their entries. They change nothing here.
var foreignKeys = map[string]string{
	"timeout":       "write limits: {total: …}, in a unit of your choice",
	"alwaysAllow":   "",
	"autoApprove":   "",
	"allowedTools":  "",
	"includeTools":  "write tools: {NAME: {deny: true}} for what must not run",
	"excludeTools":  "write tools: {NAME: {deny: true}} for what must not run",
	"disabledTools": "write tools: {NAME: {deny: true}} for what must not run",
	"enabledTools":  "write tools: {NAME: {deny: true}} for what must not run",
	"envFile":       "its variables are not read: set them, or write them into env",
	"headersHelper": "it is not run: write headers with ${VAR}",
	"oauth":         "longcall does not log in for you: write headers with a token",
	"auth":          "longcall does not log in for you: write headers with a token",
	"oauthScopes":   "", "authProviderType": "", "targetAudience": "", "targetServiceAccount": "",
	"trust": "", "description": "", "gallery": "", "version": "", "dev": "", "name": "", "title": "",
	"icon": "", "metadata": "", "source": "", "registry": "", "watchPaths": "", "instructions": "",
	"networkTimeout": "", "startupTimeout": "", "initTimeout": "", "serverInstructions": "", "chatMenu": "",
	"isActive": "", "provider": "", "providerUrl": "", "logoUrl": "", "tags": "", "notes": "",
	"alwaysLoad": "", "sandbox": "", "sandboxEnabled": "", "bearerTokenEnvVar": "write headers: {Authorization: \"Bearer ${VAR}\"}",
}

// aliases are other names that hosts use for keys of ours.
var aliases = map[string]string{
	"httpUrl": "url", "serverUrl": "url", "transport": "type", "transportType": "type", "environment": "env",
}

// server decodes one entry of mcpServers.
func (d *decoder) server(m member, path string) Server {
	s := DefaultServer()
	n, name := m.value, m.key
	if !serverName.MatchString(name) || strings.Contains(name, "__") {
		d.fail(m.position, "mcpServers", "rename it, for instance to "+validName(name),
			"%s cannot be a server's name: it becomes part of tool names, so 1 to 32 letters, digits, _ and - are allowed, and no __", quote(name))
	}
	if name == ShellServer {
		d.fail(m.position, path, "rename it, for instance to my-shell", "this name is that of longcall's own shell")
	}
	if n.kind == kindNull {
		d.mismatch(n, path, "a mapping", "write url: or command: under it")
		return s
	}
	if !d.isMap(n, path) {
		return s
	}
	kept := d.hostEntry(n, path)
	if off := kept.get("disabled"); off != nil && off.text == "true" {
		d.lax = true
		defer func() { d.lax = false }()
	}
	known := keysOf(fieldsOf(reflect.TypeFor[Server]()))
	kept.members = slices.DeleteFunc(kept.members, func(m member) bool {
		if slices.Contains(known, m.key) || nearest(m.key, known) != "" || len(elsewhere(m.key)) > 0 {
			return false
		}
		d.warn(m.position, join(path, m.key), foreignKeys[m.key], "this key of a host has no effect here")
		return true
	})
	d.structOf(kept, reflect.ValueOf(&s).Elem(), path)
	d.entry(m.position, &s, path)
	return s
}

func validName(s string) string {
	out := strings.Map(func(r rune) rune {
		if serverName.MatchString(string(r)) {
			return r
		}
		return '-'
	}, s)
	for strings.Contains(out, "__") {
		out = strings.ReplaceAll(out, "__", "_")
	}
	if out = strings.Trim(out[:min(len(out), 32)], "-"); out == "" {
		return "server"
	}
	return out
}

// hostEntry is the entry in our own words.
func (d *decoder) hostEntry(n *node, path string) *node {
	kept := &node{kind: kindMap, position: n.position}
	for _, m := range n.members {
		key := join(path, m.key)
		_, foreign := foreignKeys[m.key]
		ours, aliased := aliases[m.key]
		switch {
		case m.key == "tools" && m.value.kind == kindList:
			d.warn(m.position, key, "write tools: {NAME: {deny: true}} for what must not run", "a host's list of tools has no effect here")
			continue
		case m.key == "enabled" && m.value.kind == kindBool:
			if n.get("disabled") == nil {
				v := *m.value
				v.text = map[string]string{"true": "false", "false": "true"}[v.text]
				kept.members = append(kept.members, member{"disabled", m.position, &v})
			}
			continue
		case foreign:
			d.warn(m.position, key, foreignKeys[m.key], "this key of a host has no effect here")
			continue
		case aliased:
			if n.get(ours) != nil {
				d.fail(m.position, key, "keep one of them", "it means the same as %s, which is there too", ours)
				continue
			}
			m.key = ours
		}
		if m.key == "type" {
			word := *m.value
			if t, ok := transports[strings.ToLower(word.text)]; ok && word.kind == kindString {
				word.text = string(t)
			}
			m.value = &word
		}
		kept.members = append(kept.members, m)
	}
	return kept
}

// ownHeaders are written by longcall for each request; a fixed value would break
// the protocol.
var ownHeaders = []string{
	"accept", "content-type", "content-length", "connection", "transfer-encoding", "te", "upgrade", "trailer",
	"mcp-session-id", "mcp-protocol-version", "last-event-id", "mcp-method", "mcp-name",
	"accept-encoding", "traceparent", "tracestate",
}

// entry checks what the keys of a server say together.
func (d *decoder) entry(at position, s *Server, path string) {
	here := func(key string) position {
		if p, ok := d.pos[join(path, key)]; ok {
			return p
		}
		return at
	}
	kept := func(key string) bool { _, ok := d.pos[join(path, key)]; return ok }
	switch hasURL, hasCommand := kept("url"), kept("command"); {
	case hasURL && hasCommand:
		d.fail(here("command"), path, "keep one of them", "url and command are both there")
	case hasURL:
		d.url(s.URL, here("url"), join(path, "url"))
		if s.Type == TransportStdio {
			d.fail(here("type"), join(path, "type"), "write type: http, or remove it", "a server with a url is not stdio")
		}
		for _, key := range []string{"args", "env", "cwd"} {
			if kept(key) {
				d.warn(here(key), join(path, key), "remove it", "it has no meaning for a server with a url")
			}
		}
	case hasCommand:
		if s.Command == "" && !d.lax && !d.failed(join(path, "command")) {
			d.fail(here("command"), join(path, "command"), "write the program to start", "the command is empty")
		}
		if s.Type != "" && s.Type != TransportStdio {
			d.fail(here("type"), join(path, "type"), "write type: stdio, or remove it", "a server with a command is stdio")
		}
		if kept("headers") {
			d.warn(here("headers"), join(path, "headers"), "remove it", "it has no meaning for a server with a command")
		}
	default:
		d.fail(at, path, "write url: for a server on the network, or command: for one to start", "it has neither url nor command")
	}
	if s.Type == "" {
		s.Type = TransportHTTP
		if s.Command != "" {
			s.Type = TransportStdio
		}
	}
	if s.Type == TransportSSE && !kept("era") {
		s.Era = EraSSE
	}
	if s.Era == EraSSE && s.Command != "" {
		d.fail(here("era"), join(path, "era"), "write era: auto, or remove it", "sse is for a server with a url")
	}
	for name := range s.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(s.Env[name].Reveal(), 0) {
			d.fail(here("env."+name), join(path, "env"), "use letters, digits and _", "this cannot be a variable of a process")
		}
	}
	d.headers(s.Headers, join(path, "headers"))
	if s.Ping < 100*time.Millisecond {
		d.fail(here("ping"), join(path, "ping"), "write 1s or more; 30s is the default", "%s would be a flood of pings", s.Ping)
	}
	if s.Restart.Min <= 0 || s.Restart.Max < s.Restart.Min {
		d.fail(here("restart"), join(path, "restart"), "write min above 0, and max not below min", "min is %s and max is %s", s.Restart.Min, s.Restart.Max)
	}
}

// failed says whether a key's value is known to be wrong, as when a variable is
// missing; no more need be said about it.
func (d *decoder) failed(key string) bool {
	return slices.ContainsFunc(d.errs, func(e Error) bool { return e.Key == key })
}

func (d *decoder) url(s string, p position, path string) {
	if d.lax || d.failed(path) {
		return
	}
	// The text may hold a credential, so no message quotes it.
	u, err := url.Parse(s)
	switch {
	case err != nil:
		d.fail(p, path, "write one such as https://host.example/mcp", "this is not a URL")
	case u.Scheme != "http" && u.Scheme != "https":
		d.fail(p, path, "begin it with https:// or http://", "only http and https are spoken")
	case u.Hostname() == "":
		d.fail(p, path, "write one such as https://host.example/mcp", "the URL has no host")
	case u.Fragment != "":
		d.fail(p, path, "remove # and what follows", "a fragment is never sent to a server")
	}
}

func (d *decoder) headers(h map[string]Secret, path string) {
	for _, name := range slices.Sorted(maps.Keys(h)) {
		v := h[name]
		p, key := d.pos[join(path, name)], join(path, name)
		switch {
		case !headerName.MatchString(name):
			d.fail(p, key, "use letters, digits and -", "this cannot be a header's name")
		case strings.ContainsFunc(v.Reveal(), func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }):
			d.fail(p, key, "check the variable for a line break at its end", "the value has a line break or another character that no header may have")
		case slices.Contains(ownHeaders, strings.ToLower(name)):
			d.warn(p, key, "remove it", "longcall writes this header itself, so the value has no effect")
			delete(h, name)
		}
	}
}

var principalName = regexp.MustCompile(`^[A-Za-z0-9._@-]{1,64}$`)

// minToken is the least length of a token, in bytes: 16 bytes of base64.
const minToken = 22

// tokens reads token files, and checks names and tokens.
func (d *decoder) tokens(c *Config) {
	owner := map[Secret]string{}
	for _, name := range slices.Sorted(maps.Keys(c.Auth.Tokens)) {
		t := c.Auth.Tokens[name]
		key := join("auth.tokens", name)
		p := d.pos[key]
		if !principalName.MatchString(name) {
			d.fail(p, "auth.tokens", "use 1 to 64 letters, digits and . _ - @", "%s cannot be a principal's name", quote(name))
			continue
		}
		if name == "local" {
			if t.Token != "" || len(t.Scopes) == 0 {
				d.fail(p, key, "choose another name, or write scopes alone", "local is whoever has the token of the state folder")
			}
			continue
		}
		if file, ok := strings.CutPrefix(t.Token.Reveal(), "file:"); ok {
			data, err := os.ReadFile(d.absolute(file))
			if err != nil {
				d.fail(p, key, "write file: and the path of a file that holds the token alone", "cannot read the token's file: %s", reason(err))
				continue
			}
			t.Token = Secret(strings.TrimSpace(string(data)))
			c.Auth.Tokens[name] = t
		}
		switch {
		case t.Token == "":
			if !d.failed(key) {
				d.fail(p, key, "write a long random one, by ${VAR} or file:", "the token is empty")
			}
		case len(t.Token) < minToken:
			d.fail(p, key, "take a random one, such as from: openssl rand -hex 32", "the token has fewer than %d characters, so it can be guessed", minToken)
		case strings.ContainsFunc(t.Token.Reveal(), func(r rune) bool { return r <= ' ' || r > '~' }):
			d.fail(p, key, "take one of letters, digits and . _ ~ + / = -", "the token has blanks or characters that a header cannot carry")
		case owner[t.Token] != "":
			d.fail(p, key, "give each its own", "%s and %s have the same token", min(owner[t.Token], name), max(owner[t.Token], name))
		default:
			owner[t.Token] = name
		}
	}
}
