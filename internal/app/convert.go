package app

import (
	"net/http"
	"slices"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/config"
	"github.com/longcall/longcall/internal/downstream"
	"github.com/longcall/longcall/internal/policy"
	"github.com/longcall/longcall/internal/upstream"
)

// This file turns what the operator wrote into the values that each package
// works with. Nothing here decides anything.

// snapshot is everything that a reload replaces, at once.
type snapshot struct {
	config   *config.Config
	rules    *policy.Rules
	profiles *policy.Profiles
	settings *downstream.Settings
}

// together is how long the first byte waits for an answer to leave with it: far
// below what anybody notices, and two writes and a wake-up less for each of the
// many calls that take no time.
const together = 2 * time.Millisecond

func newSnapshot(c *config.Config) *snapshot {
	redactor := policy.NewRedactor(policy.Keep(c.Journal.Arguments), c.Journal.Redact, int(c.Journal.MaxArguments))
	return &snapshot{
		config: c,
		rules:  rules(c),

		profiles: profiles(c),
		settings: &downstream.Settings{
			AllowedOrigins: c.CORS.Origins,
			AllowedHosts:   c.Hosts,
			BodyLimit:      int64(c.Request.Body),
			Comment:        c.Beats.Comment,
			Progress:       c.Beats.Progress,
			Together:       together,
			StreamAge:      c.StreamAge,
			Sessionless:    c.Sessionless,
			OwnTools:       handsOff(c),
			Extensions:     extensions(c),
			KeepArguments:  redactor.Kept,
			Digest:         policy.Digest,
			TellEnds:       tellEnds[c.Shell.Digest],
		},
	}
}

var tellEnds = map[config.Digest]downstream.TellEnds{
	config.DigestAll: downstream.TellWithAll, config.DigestOwn: downstream.TellWithOwn, config.DigestOff: downstream.TellNever,
}

// extensions are what the servers get of what longcall does not know.
func extensions(c *config.Config) map[string]map[string][]string {
	m := map[string]map[string][]string{}
	for name, s := range c.Servers {
		if len(s.Extensions) > 0 {
			m[name] = s.Extensions
		}
	}
	return m
}

// handsOff says whether any call can be handed off, so that agents need the tools
// that lead back to it.
func handsOff(c *config.Config) bool {
	if c.HandOff != config.HandOffOff {
		return true
	}
	for _, s := range c.Servers {
		if s.HandOff == config.HandOffAuto {
			return true
		}
		for _, t := range s.Tools {
			if t.HandOff == config.HandOffAuto {
				return true
			}
		}
	}
	return false
}

// processConnect is the connect limit of a server that is a process, if nothing
// else is said about it: npx and uvx install first (a cold npx start took 26 s).
var processConnect = 60 * time.Second

func rules(c *config.Config) *policy.Rules {
	r := &policy.Rules{
		Limits:       limits(c),
		Relay:        policy.Relay(c.Relay),
		OnDisconnect: policy.OnDisconnect(c.OnDisconnect),
		Grace:        c.DisconnectGrace,
		HandOff:      policy.HandOff(c.HandOff),
		Attach:       policy.Attach(c.Attach),
		Servers:      map[string]policy.Server{},
	}
	for name, s := range c.Servers {
		ps := policy.Server{Overrides: overrides(s.Limits.LimitOverrides, s.Relay, s.OnDisconnect, s.DisconnectGrace, s.HandOff, s.Attach), PerSession: s.Share == config.ShareSession, Tools: map[string]policy.Tool{}}
		ps.Concurrent = s.Limits.Concurrent
		if s.Command != "" && ps.Connect == nil {
			ps.Connect = &processConnect
		}
		for tool, t := range s.Tools {
			ps.Tools[tool] = policy.Tool{Overrides: overrides(t.Limits, t.Relay, t.OnDisconnect, t.DisconnectGrace, t.HandOff, t.Attach), Deny: t.Deny}
		}
		r.Servers[name] = ps
	}
	shell := policy.Server{Overrides: policy.Overrides{Relay: policy.Relay(c.Shell.Relay)}, Key: "shell", Tools: map[string]policy.Tool{}}
	for tool, t := range c.Shell.Tools {
		shell.Tools[tool] = policy.Tool{Deny: t.Deny}
	}
	if c.Shell.Tools["exec_command"].Deny { // a batch would be another way to it
		shell.Tools["run_commands_parallel"] = policy.Tool{Deny: true}
	}
	r.Servers[config.ShellServer] = shell
	return r
}

func limits(c *config.Config) call.Limits {
	return call.Limits{
		Connect: c.Limits.Connect, FirstByte: c.Limits.FirstByte, Idle: c.Limits.Idle, Total: c.Limits.Total, Answer: c.Limits.Answer,
		Message: int64(c.Limits.Message), Call: int64(c.Limits.Call),
		PerServer: c.Limits.Concurrent, PerPrincipal: c.Limits.PerPrincipal,
	}
}

func overrides(l config.LimitOverrides, relay config.Relay, gone config.OnDisconnect, grace *time.Duration, handOff config.HandOff, attach config.Attach) policy.Overrides {
	return policy.Overrides{
		Connect: l.Connect, FirstByte: l.FirstByte, Idle: l.Idle, Total: l.Total, Answer: l.Answer,
		Message: (*int64)(l.Message), Call: (*int64)(l.Call),
		Relay: policy.Relay(relay), OnDisconnect: policy.OnDisconnect(gone), Grace: grace,
		HandOff: policy.HandOff(handOff), Attach: policy.Attach(attach),
	}
}

// profiles are the table of hosts and what the operator says about clients.
func profiles(c *config.Config) *policy.Profiles {
	var list []policy.ProfileOverride
	for name, cl := range c.Clients {
		o := policy.ProfileOverride{
			Name: name, Client: cl.Match.Client, Principal: cl.Match.Principal, Server: cl.Match.Server,
			Budget: cl.Budget, BudgetToken: cl.BudgetToken, TaskBudget: cl.TaskBudget, Await: cl.Await, AwaitToken: cl.AwaitToken, Yield: cl.Yield,
		}
		if cl.Match == (config.Match{}) {
			o.Client = name
		}
		if cl.Tasks != "" {
			on := cl.Tasks == config.On
			o.Tasks = &on
		}
		list = append(list, o)
	}
	return policy.NewProfiles(list)
}

func servers(c *config.Config, r *policy.Rules) map[string]upstream.Server {
	out := map[string]upstream.Server{}
	for _, name := range c.Enabled() {
		s := c.Servers[name]
		u := upstream.Server{
			Name: name, URL: s.URL, Headers: http.Header{},
			Command: s.Command, Args: s.Args, Env: map[string]string{}, Cwd: s.Cwd,
			Era: string(s.Era), Share: string(s.Share),
			Limits:    r.Admit("", name, "", false).Limits,
			PingEvery: s.Ping, RestartMin: s.Restart.Min, RestartMax: s.Restart.Max,
		}
		u.Limits.Message = largestMessage(r, name, s)
		u.Unasked = unasked(s.Asks)
		u.Extensions = s.Extensions
		for k, v := range s.Headers {
			u.Headers.Set(k, v.Reveal())
		}
		for k, v := range s.Env {
			u.Env[k] = v.Reveal()
		}
		out[name] = u
	}
	return out
}

// unasked are the client capabilities that a server is not to hear of.
func unasked(a config.Asks) (names []string) {
	for name, on := range map[string]bool{"elicitation": a.Elicitation, "sampling": a.Sampling, "roots": a.Roots} {
		if !on {
			names = append(names, name)
		}
	}
	slices.Sort(names) // servers are compared
	return names
}

// largestMessage is the largest limits.message of a server's tools, -1 if one
// of them has none: all of them come over one connection.
func largestMessage(r *policy.Rules, name string, s config.Server) int64 {
	largest := r.Admit("", name, "", false).Limits.Message
	for tool := range s.Tools {
		if d := r.Admit("", name, tool, false); d.Denied == nil && largest > 0 && (d.Limits.Message == 0 || d.Limits.Message > largest) {
			largest = d.Limits.Message
		}
	}
	if largest == 0 {
		return -1
	}
	return largest
}
