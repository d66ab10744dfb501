package config

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
)

// ShellServer is the name of the built-in tool server that runs commands; no
// entry of mcpServers can have it.
const ShellServer = "shell"

// Shell says who may run which commands, and how (SHELL §6). Nothing of it is in
// force unless Enabled.
type Shell struct {
	Enabled bool `yaml:"enabled"`
	// Roots are the folders that commands may run in, and below; the first is
	// where one runs that names none. Absolute after Parse.
	Roots []string `yaml:"roots,expand,path"`
	// Env names variables of longcall's own environment that commands get, and
	// that callers may set, besides a few that every program needs.
	Env []string `yaml:"env"`
	// Set are variables of every command.
	Set map[string]Secret `yaml:"set,expand"`
	// Interpreter is what runs a command's text, which is appended; empty is
	// /bin/bash -c, or /bin/sh -c where there is no bash. Sandbox is put before.
	Interpreter []string      `yaml:"interpreter,expand"`
	Sandbox     []string      `yaml:"sandbox,expand"`
	Lifetime    Lifetime      `yaml:"lifetime"`
	MaxRuntime  time.Duration `yaml:"max_runtime"` // of every command; 0: no bound
	PerOwner    int           `yaml:"per_owner"`   // commands of one principal that run at once
	Total       int           `yaml:"total"`       // commands that run at once
	Spool       Spool         `yaml:"spool"`
	// NonzeroIsError makes a non-zero exit code a tool error.
	NonzeroIsError bool                 `yaml:"nonzero_is_error"`
	Digest         Digest               `yaml:"digest"`
	Relay          Relay                `yaml:"relay"` // empty: the level above decides
	Tools          map[string]ShellTool `yaml:"tools"` // by own name, such as write_stdin
}

// Spool bounds what is kept of commands' output.
type Spool struct {
	Process Size          `yaml:"process"` // of one command: its beginning and its newest
	Head    Size          `yaml:"head"`    // of one command's beginning
	Total   Size          `yaml:"total"`   // of all that have ended
	Keep    time.Duration `yaml:"keep"`    // after a command's end
}

// ShellTool is what is said about one of the shell's tools.
type ShellTool struct {
	Deny bool `yaml:"deny"`
}

// Lifetime says what becomes of running commands when longcall stops: keep lets
// them go on, for the next start to pick up; serve stops them.
type Lifetime string

// The lifetimes.
const (
	LifetimeKeep  Lifetime = "keep"
	LifetimeServe Lifetime = "serve"
)

func (Lifetime) values() []string { return []string{"keep", "serve"} }

// Digest says on which results an agent is told of commands that have ended
// meanwhile: those of all its tools, those of longcall's own, or none.
type Digest string

// The digests.
const (
	DigestAll Digest = "all"
	DigestOwn Digest = "own"
	DigestOff Digest = "off"
)

func (Digest) values() []string { return []string{"all", "own", "off"} }

// Scope is something that a token may be used for beyond calls of tool servers.
type Scope string

// ScopeShell is to run commands where longcall listens on more than loopback.
const ScopeShell Scope = "shell"

func (Scope) values() []string { return []string{"shell"} }

// Token is one entry of auth.tokens: the token alone, or with its scopes.
type Token struct {
	Token  Secret  `yaml:"token,expand"`
	Scopes []Scope `yaml:"scopes"`
}

// MayRun says whether a principal may use the shell: everybody who is known where
// only this machine reaches the address, and elsewhere who has the scope (SHELL §6).
func (c *Config) MayRun(principal, listen string) bool {
	return IsLoopback(listen) || slices.Contains(c.Auth.Tokens[principal].Scopes, ScopeShell)
}

func defaultShell() Shell {
	return Shell{
		Lifetime: LifetimeKeep,
		// Long enough for any build; a service that nobody remembers ends.
		MaxRuntime: 24 * time.Hour,
		PerOwner:   16, Total: 64,
		Spool:  Spool{Process: 256 << 20, Head: 16 << 20, Total: 2 << 30, Keep: 7 * 24 * time.Hour},
		Digest: DigestAll,
	}
}

// shellTools are the tools that shell.tools can name.
var shellTools = []string{"exec_command", "read_output", "run_commands_parallel", "write_stdin"}

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// maxYield is the longest yield of a command (SHELL §1 D6).
const maxYield = 12 * time.Second

// shell checks what the keys of shell say together.
func (k *checker) shell() {
	s := &k.c.Shell
	k.shellLimits(s)
	for i, name := range s.Env {
		key := fmt.Sprintf("shell.env[%d]", i)
		used := k.c.secrets[name]
		switch {
		case !variableName.MatchString(name):
			k.fail(key, "write the name of a variable alone; set takes names with values", "%s is not the name of a variable", quote(name))
		case strings.HasPrefix(name, "LONGCALL_"):
			k.fail(key, "remove it", "variables that begin with LONGCALL_ are longcall's own, and no command gets them")
		case used != "":
			k.fail(key, fmt.Sprintf("remove it or, if commands are to have it, write set: {%s: \"${%[1]s}\"}", name), "commands would see a variable that this config uses for %s", used)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Set)) {
		if !variableName.MatchString(name) || strings.ContainsRune(s.Set[name].Reveal(), 0) {
			k.fail("shell.set."+name, "use letters, digits and _", "this cannot be a variable of a command")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Tools)) {
		if !slices.Contains(shellTools, name) {
			hint := "the tools are " + strings.Join(shellTools, ", ")
			if near := nearest(name, shellTools); near != "" {
				hint = fmt.Sprintf("did you mean %q?", near)
			}
			k.fail("shell.tools."+name, hint, "the shell has no such tool")
		}
	}
	if s.Enabled {
		k.shellOn(s)
	}
}

// shellOn checks what an enabled shell needs.
func (k *checker) shellOn(s *Shell) {
	if len(s.Roots) == 0 && !k.known("shell.roots") {
		k.fail("shell.enabled", "write roots: and a list of folders, such as [~/code]", "it is not said in which folders commands may run")
	}
	for i, root := range s.Roots {
		key := fmt.Sprintf("shell.roots[%d]", i)
		if root == "" {
			k.fail(key, "write a folder, such as ~/code", "the folder is empty")
		} else if info, err := os.Stat(root); err != nil || !info.IsDir() {
			k.warn(key, "make it, or mend the path", "there is no such folder now, so no command can run there")
		}
	}
	for key, argv := range map[string][]string{"interpreter": s.Interpreter, "sandbox": s.Sandbox} {
		if len(argv) > 0 && argv[0] == "" {
			k.fail("shell."+key, "write the program first, or remove it", "the program is empty")
		}
	}
	if !IsLoopback(k.c.Listen) && !slices.ContainsFunc(slices.Collect(maps.Values(k.c.Auth.Tokens)), func(t Token) bool { return slices.Contains(t.Scopes, ScopeShell) }) {
		k.warn("shell.enabled", "write scopes: [shell] under auth.tokens.NAME; for the token of the state folder, NAME is local",
			"longcall listens on more than loopback, and no token has the scope shell, so nobody may run commands")
	}
}

func (k *checker) shellLimits(s *Shell) {
	for _, least := range []struct {
		key    string
		is, at int64
	}{
		{"per_owner", int64(s.PerOwner), 1},
		{"total", int64(s.Total), 1},
		{"spool.process", int64(s.Spool.Process), 1 << 20},
		{"spool.head", int64(s.Spool.Head), 64 << 10},
		{"spool.total", int64(s.Spool.Total), 1 << 20},
	} {
		if least.is < least.at {
			k.fail("shell."+least.key, fmt.Sprintf("write %d or more", least.at), "%d is too little to work with", least.is)
		}
	}
	if s.Spool.Head > s.Spool.Process/2 {
		key := "shell.spool.head"
		if !k.known(key) {
			key = "shell.spool.process"
		}
		k.fail(key, "write at most half of spool.process for spool.head", "the beginning would leave too little for the newest output")
	}
	if s.Spool.Keep < 24*time.Hour {
		k.fail("shell.spool.keep", "write 1d or more", "agents rely on output for a day after a command's end")
	}
	if s.MaxRuntime > 0 && s.MaxRuntime < time.Second {
		k.fail("shell.max_runtime", "write 1s or more, or 0 for no bound", "%s is too little for any command", s.MaxRuntime)
	}
}

// known says whether the file has a key.
func (k *checker) known(key string) bool { _, ok := k.c.pos[key]; return ok }
