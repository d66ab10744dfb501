package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/longcall/longcall/internal/journal/sqlite"
)

// The scripts ask "longcall __complete WORDS…", the last word being the one
// under the cursor, and get one candidate a line, with its description after a
// tab; ":files" and ":dirs" leave it to the shell.

const bashCompletion = `# bash completion of longcall; to load it: source <(longcall completion bash)
_longcall() {
    local cur="${COMP_WORDS[COMP_CWORD]}" line value
    COMPREPLY=()
    while IFS= read -r line; do
        case "$line" in
        :files)
            compopt -o filenames 2>/dev/null
            while IFS= read -r value; do COMPREPLY+=("$value"); done < <(compgen -f -- "$cur")
            ;;
        :dirs)
            compopt -o filenames 2>/dev/null
            while IFS= read -r value; do COMPREPLY+=("$value"); done < <(compgen -d -- "$cur")
            ;;
        *)
            value="${line%%$'\t'*}"
            [[ "$cur" == "=" || "$value" == "$cur"* ]] && COMPREPLY+=("$value")
            [[ "$value" == *= ]] && compopt -o nospace 2>/dev/null
            ;;
        esac
    done < <("${COMP_WORDS[0]}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _longcall longcall
`

const zshCompletion = `#compdef longcall
# zsh completion of longcall; to load it: source <(longcall completion zsh)
_longcall() {
    local line value
    local -a values
    for line in "${(@f)$("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
        case "$line" in
        :files) _files ;;
        :dirs) _files -/ ;;
        ?*)
            value="${line%%$'\t'*}"
            if [[ "$line" == *$'\t'* ]]; then
                values+=("${value//:/\\:}:${line#*$'\t'}")
            else
                values+=("${value//:/\\:}")
            fi
            ;;
        esac
    done
    (( ${#values} )) && _describe -V longcall values
}
if [[ "${funcstack[1]}" == "_longcall" ]]; then
    _longcall "$@"
else
    compdef _longcall longcall
fi
`

const fishCompletion = `# fish completion of longcall; to load it: longcall completion fish | source
function __longcall_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    test (count $current) -eq 0; and set current ""
    for line in ($words[1] __complete $words[2..-1] $current 2>/dev/null)
        switch $line
            case ":files"
                __fish_complete_path $current
            case ":dirs"
                __fish_complete_directories $current
            case "*"
                echo $line
        end
    end
end
complete -c longcall -f -a "(__longcall_complete)"
`

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Help has the details and examples.
func (completionCmd) Help() string {
	return `It completes commands, flags, call ids, servers and tools.

Examples:
  source <(longcall completion bash)                         this shell only
  longcall completion bash > /etc/bash_completion.d/longcall
  longcall completion zsh > "${fpath[1]}/_longcall"
  longcall completion fish > ~/.config/fish/completions/longcall.fish`
}

// Run is the command.
func (c *completionCmd) Run(r *runner) error {
	script := map[string]string{"bash": bashCompletion, "zsh": zshCompletion, "fish": fishCompletion}[c.Shell]
	_, err := fmt.Fprint(r.sys.Out, script)
	return err
}

// completer finds candidates for the last of some words.
type completer struct {
	ctx   context.Context
	sys   *System
	flags map[string]string // given before the cursor
}

// complete prints the candidates. It never fails: a shell would show nothing.
func complete(ctx context.Context, sys *System, words []string) {
	var g grammar
	k, err := newParser(sys, &g)
	if err != nil || len(words) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second) // somebody waits at a prompt
	defer cancel()
	c := &completer{ctx: ctx, sys: sys, flags: map[string]string{}}
	for _, s := range c.candidates(k.Model.Node, joinFlags(words)) {
		fmt.Fprintln(sys.Out, s)
	}
}

// joinFlags undoes bash, which takes --flag=value for three words.
func joinFlags(words []string) []string {
	var out []string
	for i, w := range words {
		if w == "=" && i > 0 && strings.HasPrefix(words[i-1], "--") {
			if i == len(words)-1 {
				out = append(out, "")
			}
			continue
		}
		out = append(out, w)
	}
	return out
}

func (c *completer) candidates(node *kong.Node, words []string) []string {
	current := words[len(words)-1]
	var positional []string
	var wants *kong.Flag // whose value comes next
	for _, w := range words[:len(words)-1] {
		if wants != nil {
			c.flags[wants.Name] = w
			wants = nil
			continue
		}
		if strings.HasPrefix(w, "-") && len(w) > 1 {
			name, value, has := strings.Cut(w, "=")
			f := findFlag(node, name)
			switch {
			case f == nil:
			case has:
				c.flags[f.Name] = value
			case !f.IsBool():
				wants = f
			}
			continue
		}
		if next := child(node, w); next != nil && len(positional) == 0 {
			node = next
			continue
		}
		positional = append(positional, w)
	}
	if wants != nil {
		return keep(c.flagValues(wants), current)
	}
	if name, value, has := strings.Cut(current, "="); has && strings.HasPrefix(name, "--") {
		f := findFlag(node, name)
		if f == nil {
			return nil
		}
		out := keep(c.flagValues(f), value)
		for i, s := range out {
			if !strings.HasPrefix(s, ":") {
				out[i] = name + "=" + s
			}
		}
		return out
	}
	if strings.HasPrefix(current, "-") {
		return keep(flagNames(node), current)
	}
	var out []string
	if len(positional) == 0 {
		for _, k := range node.Children {
			if !k.Hidden {
				out = append(out, k.Name+"\t"+k.Help)
			}
		}
	}
	return keep(append(out, c.positionals(node, positional)...), current)
}

// keep drops what does not begin with what was typed.
func keep(list []string, current string) []string {
	var out []string
	for _, s := range list {
		if strings.HasPrefix(s, ":") || strings.HasPrefix(s, current) {
			out = append(out, s)
		}
	}
	return out
}

func child(node *kong.Node, name string) *kong.Node {
	for _, k := range node.Children {
		if k.Name == name {
			return k
		}
	}
	return nil
}

// scopes are the nodes whose flags can be given: the node, those above it, and
// the one that stands in for a command that was left out.
func scopes(node *kong.Node) []*kong.Node {
	var out []*kong.Node
	if node.DefaultCmd != nil && node.DefaultCmd.Tag.Default == "withargs" {
		out = append(out, node.DefaultCmd)
	}
	for n := node; n != nil; n = n.Parent {
		out = append(out, n)
	}
	return out
}

func findFlag(node *kong.Node, name string) *kong.Flag {
	for _, n := range scopes(node) {
		for _, f := range n.Flags {
			if "--"+f.Name == name || f.Short != 0 && "-"+string(f.Short) == name {
				return f
			}
		}
	}
	return nil
}

func flagNames(node *kong.Node) []string {
	var out []string
	for _, n := range scopes(node) {
		for _, f := range n.Flags {
			if !f.Hidden {
				out = append(out, "--"+f.Name+"\t"+f.Help)
			}
		}
	}
	return out
}

func (c *completer) flagValues(f *kong.Flag) []string {
	switch f.Name {
	case "config":
		return []string{":files"}
	case "state":
		return []string{":dirs"}
	case "server":
		return c.servers()
	case "since":
		return []string{"10m", "1h", "1d", "7d"}
	}
	var out []string
	for _, v := range f.EnumSlice() {
		if v != "" {
			out = append(out, v)
		}
	}
	return out
}

// positionals are the values of the next argument of a command.
func (c *completer) positionals(node *kong.Node, given []string) []string {
	n := len(given)
	switch node.Path() {
	case "calls show", "calls follow", "calls cancel":
		if n == 0 {
			return c.calls(node.Name == "cancel")
		}
	case "tools":
		if n == 0 {
			return c.servers()
		}
	case "call":
		return c.callWords(given)
	case "config check":
		if n == 0 {
			return []string{":files"}
		}
	case "clients":
		if n == 0 {
			var out []string
			for _, k := range clients {
				out = append(out, k.Name+"\t"+k.Title)
			}
			return out
		}
	case "completion":
		if n == 0 {
			return []string{"bash", "zsh", "fish"}
		}
	}
	return nil
}

func (c *completer) where() whereFlags {
	get := func(flag, env string) string {
		if v := c.flags[flag]; v != "" {
			return v
		}
		v, _ := c.sys.LookupEnv(env)
		return v
	}
	var w whereFlags
	w.Config, w.State = get("config", "LONGCALL_CONFIG"), get("state", "LONGCALL_STATE")
	w.URL, w.Token = get("url", "LONGCALL_URL"), get("token", "LONGCALL_TOKEN")
	return w
}

// calls are the ids of the newest calls.
func (c *completer) calls(running bool) []string {
	w := c.where()
	j, err := w.journal(c.sys)
	if err != nil {
		return nil
	}
	defer closeJournal(j)
	recs, err := j.List(c.ctx, sqlite.Filter{RunningOnly: running, Limit: 50})
	if err != nil {
		return nil
	}
	var out []string
	for _, r := range recs {
		out = append(out, string(r.ID)+"\t"+toolWords(&r)+", "+recordWords(&r)+", "+when(r.Started, time.Now()))
	}
	return out
}

// servers are the names in the config, and those that a running longcall has.
func (c *completer) servers() []string {
	var out []string
	w := c.where()
	if cfg, err := w.load(c.sys); err == nil {
		for _, name := range cfg.Enabled() {
			out = append(out, name+"\t"+clean(cfg.Servers[name].Where()))
		}
	}
	if len(out) > 0 {
		return out
	}
	seen := map[string]bool{}
	for _, t := range c.tools("") {
		if s, _, ok := strings.Cut(t, separator); ok && !seen[s] {
			seen[s] = true
			out = append(out, s)
		}
	}
	return out
}

// tools are the names at an endpoint of the longcall that runs; none is started.
func (c *completer) tools(server string) []string {
	w := c.where()
	g, err := w.running(c.ctx, c.sys)
	if err != nil || g == nil {
		return nil
	}
	tools, err := g.endpoint(server).Tools(c.ctx)
	if err != nil {
		return nil
	}
	var out []string
	for _, t := range tools {
		out = append(out, clean(t.Name)+"\t"+clean(firstSentence(t.Description)))
	}
	return out
}

// callWords completes [SERVER] TOOL [ARGS].
func (c *completer) callWords(given []string) []string {
	switch {
	case len(given) == 0:
		return append(c.servers(), c.tools("")...)
	case len(given) == 1 && !strings.Contains(given[0], separator):
		return c.tools(given[0])
	}
	server, tool := "", given[0]
	if !strings.Contains(tool, separator) {
		server, tool = given[0], given[1]
	}
	w := c.where()
	g, err := w.running(c.ctx, c.sys)
	if err != nil || g == nil {
		return nil
	}
	t, err := findTool(c.ctx, g, server, tool)
	if err != nil {
		return nil
	}
	var out []string
	for name := range readSchema(t.schema, t.schema).Properties {
		out = append(out, clean(name)+"=")
	}
	return out
}

var newestCall = sqlite.Filter{Limit: 1}
