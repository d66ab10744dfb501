package config

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Check says what is wrong with values that are well formed each; warnings go
// to Warnings. Parse and Load call it. The error is an Errors.
func (c *Config) Check() error {
	k := &checker{c: c}
	k.listen()
	k.names()
	k.numbers()
	k.clients()
	k.shell()
	for _, name := range slices.Sorted(maps.Keys(c.Servers)) {
		k.server(name, c.Servers[name])
	}
	if len(k.errs) == 0 {
		return nil
	}
	sortErrors(k.errs)
	return k.errs
}

type checker struct {
	c    *Config
	errs Errors
}

func (k *checker) at(key string) Error {
	p := k.c.pos[key]
	return Error{File: k.c.File, Line: p.line, Col: p.col, Key: key}
}

func (k *checker) fail(key, hint, format string, args ...any) {
	e := k.at(key)
	e.Text, e.Hint = fmt.Sprintf(format, args...), hint
	k.errs = append(k.errs, e)
}

func (k *checker) warn(key, hint, format string, args ...any) {
	e := k.at(key)
	e.Text, e.Hint = fmt.Sprintf(format, args...), hint
	if !slices.Contains(k.c.Warnings, e) {
		k.c.Warnings = append(k.c.Warnings, e)
	}
}

func (k *checker) listen() {
	c := k.c
	host, port, err := net.SplitHostPort(c.Listen)
	if err != nil {
		k.fail("listen", "write one such as 127.0.0.1:8722", "%s is not host:port", quote(c.Listen))
		return
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil {
		k.fail("listen", "write a number from 0 to 65535; 0 takes a free one", "%s is not a port", quote(port))
	} else if n == 0 && c.File != "" {
		k.warn("listen", "write a fixed port, so that agents find it again", "port 0 is another one at each start")
	}
	if strings.ContainsAny(host, "/ ") {
		k.fail("listen", "write one such as 127.0.0.1:8722", "%s is not a host", quote(host))
	}
	if !IsLoopback(c.Listen) && len(c.Hosts) == 0 {
		k.warn("listen", "list those names under hosts", "agents that come by a name other than the listen address are refused")
	}
	if c.State == "" {
		k.fail("state", "set HOME, or write state: and a folder", "there is no home folder to keep the state in")
	}
}

// IsLoopback says whether only this machine can reach the address host:port.
// A name other than localhost is not looked up, and counts as reachable.
func IsLoopback(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return false
	}
	if strings.EqualFold(strings.TrimSuffix(host, "."), "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

func (k *checker) names() {
	c := k.c
	for i, o := range c.CORS.Origins {
		u, err := url.Parse(o)
		key := fmt.Sprintf("cors.origins[%d]", i)
		switch {
		case o == "*":
			k.fail(key, "name each origin, such as https://app.example", "any web page could call tools")
		case err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "":
			k.fail(key, "write scheme and host alone, such as https://app.example", "%s is not an origin", quote(o))
		}
	}
	for i, h := range c.Hosts {
		key := fmt.Sprintf("hosts[%d]", i)
		name, port, err := net.SplitHostPort(h)
		if err != nil {
			name, port = strings.Trim(h, "[]"), "0"
		}
		_, perr := strconv.ParseUint(port, 10, 16)
		_, aerr := netip.ParseAddr(name)
		if perr != nil || name == "" || strings.ContainsAny(name, "/*@ ") || strings.Contains(name, ":") && aerr != nil {
			k.fail(key, "write a name as agents use it, such as tools.example or tools.example:8722", "%s is not a value of a Host header", quote(h))
		}
	}
	for i, w := range c.Journal.Redact {
		if strings.ContainsFunc(w, unicode.IsControl) || len(bare(w)) < 2 {
			k.fail(fmt.Sprintf("journal.redact[%d]", i), "write a part of argument names, such as iban", "%s is too short a word", quote(w))
		}
	}
	if e := c.OTel.Endpoint; e != "" {
		if u, err := url.Parse(e); err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
			k.fail("otel.endpoint", "write one such as http://127.0.0.1:4318", "this is not the URL of an OTLP/HTTP collector")
		}
	}
}

func (k *checker) numbers() {
	c := k.c
	if c.OTel.Sample < 0 || c.OTel.Sample > 1 {
		k.fail("otel.sample", "write a share from 0 to 1", "%v is out of range", c.OTel.Sample)
	}
	for _, least := range []struct {
		key    string
		is, at Size
	}{
		{"request.body", c.Request.Body, 1 << 10},
		{"request.headers", c.Request.Headers, 4 << 10},
		{"journal.max_arguments", c.Journal.MaxArguments, 256},
		{"journal.events.bytes", c.Journal.Events.Bytes, 64 << 10},
		{"journal.events.count", Size(c.Journal.Events.Count), 16},
	} {
		if least.is < least.at {
			k.fail(least.key, fmt.Sprintf("write %d or more", least.at), "%d is too little to work with", least.is)
		}
	}
	if s := c.Journal.Retention.Size; s != 0 && s < 1<<20 {
		k.fail("journal.retention.size", "write 1MiB or more, or 0 for no bound", "%d bytes are too few to work with", s)
	}
	for key, d := range map[string]time.Duration{"beats.comment": c.Beats.Comment, "beats.progress": c.Beats.Progress} {
		if d > 0 && d < 100*time.Millisecond {
			k.fail(key, "write 100ms or more, or 0 to turn it off", "%s would flood the agent", d)
		}
	}
	if d := c.Beats.Comment; d == 0 || d >= 10*time.Second {
		k.warn("beats.comment", "5s is below every known limit", "proxies cut connections that are silent for 10s")
	}
	if c.Limits.Message > c.Limits.Call && c.Limits.Call != 0 {
		key := "limits.call"
		if _, ok := c.pos[key]; !ok {
			key = "limits.message"
		}
		k.warn(key, "raise call, or lower message", "limits.call is below limits.message, so no message can be that large")
	}
}

// clients are checked when servers and principals are known.
func (k *checker) clients() {
	c := k.c
	if d := c.StreamAge; d > 0 && d < 10*time.Second {
		k.fail("stream_age", "write 10s or more, or 0 for never", "%s would keep agents busy with connecting again", d)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Clients)) {
		key := join("clients", name)
		cl := c.Clients[name]
		if cl.Match == (Match{}) && name == "" {
			k.fail(key, `write the beginning of the client's name, or match: {client: "*"}`, "an entry without a name is for nobody")
		}
		if s := cl.Match.Server; s != "" {
			if _, ok := c.Servers[s]; !ok && s != ShellServer {
				hint := "write the name of a server under mcpServers"
				if near := nearest(s, slices.Sorted(maps.Keys(c.Servers))); near != "" {
					hint = fmt.Sprintf("did you mean %q?", near)
				}
				k.fail(key+".match.server", hint, "there is no server %s", quote(s))
			}
		}
		if p := cl.Match.Principal; p != "" && p != "local" {
			if _, ok := c.Auth.Tokens[p]; !ok {
				k.warn(key+".match.principal", "write local, or a name under auth.tokens", "no token belongs to %s, so this is for nobody", quote(p))
			}
		}
		figures := []struct {
			key       string
			is, bound *time.Duration
			of        string
		}{
			{"budget", cl.Budget, nil, ""},
			{"budget_token", cl.BudgetToken, nil, ""},
			{"task_budget", cl.TaskBudget, cl.Budget, "budget"},
			{"await", cl.Await, cl.Budget, "budget"},
			{"await_token", cl.AwaitToken, cl.BudgetToken, "budget_token"},
		}
		switch y := cl.Yield; {
		case y != nil && *y > maxYield:
			k.fail(key+".yield", "write 12s or less", "%s is longer than a command may keep an agent waiting", *y)
		case y != nil && *y < 100*time.Millisecond:
			k.fail(key+".yield", "write 100ms or more", "%s would put every command in the background at once, which an agent says itself", *y)
		}
		said := cl.Tasks != "" || cl.Yield != nil
		for _, f := range figures {
			if f.is == nil {
				continue
			}
			said = true
			switch d := *f.is; {
			case d > 0 && d < 100*time.Millisecond:
				k.fail(key+"."+f.key, "write 1s or more, or 0 for no bound", "%s is too little for any answer", d)
			case d > 0 && f.bound != nil && *f.bound > 0 && d > *f.bound:
				k.warn(key+"."+f.key, "lower it, or raise "+f.of, "it is above %s, and ends there", f.of)
			}
		}
		if !said {
			k.warn(key, "write one, such as budget: 50s, or remove the entry", "it says nothing about these clients")
		}
	}
}

func (k *checker) server(name string, s Server) {
	if s.Disabled {
		return
	}
	idle := k.c.Limits.Idle
	if s.Limits.Idle != nil {
		idle = *s.Limits.Idle
	}
	if idle > 0 && s.Ping >= idle {
		key := "mcpServers." + name
		if _, ok := k.c.pos[key+".ping"]; ok {
			key += ".ping"
		}
		k.warn(key, "write a ping well below it", "a silent server is given up after %s (limits.idle) before the ping at %s could show that it lives", idle, s.Ping)
	}
}
