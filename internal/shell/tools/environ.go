package tools

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/longcall/longcall/internal/argument"
)

// inherited are the variables of longcall's own environment that every command
// gets, besides those of the operator's allow-list (SHELL §6). None of longcall's
// secrets is among them.
var inherited = []string{"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ"}

// environ is the environment of a command, of own, longcall's: what is inherited
// or allowed by name, what the operator set, and what the caller set. Later ones
// win. The shell adds what keeps programs from asking and paging, where none of
// these names it.
func (s *Settings) environ(own []string, asked map[string]string) []string {
	all := map[string]string{}
	for _, v := range own {
		if name, value, ok := strings.Cut(v, "="); ok && (slices.Contains(inherited, name) || slices.Contains(s.Env, name)) {
			all[name] = value
		}
	}
	maps.Copy(all, s.Set)
	maps.Copy(all, asked)
	list := make([]string, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		list = append(list, name+"="+all[name])
	}
	return list
}

// checkEnv says what is wrong with the variables that a caller sets.
func (s *Settings) checkEnv(asked map[string]string) (wrong string) {
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		if !slices.Contains(s.Env, name) {
			allowed := "The operator allows none (shell.env)."
			if len(s.Env) > 0 {
				allowed = "The operator allows " + strings.Join(s.Env, ", ") + " (shell.env)."
			}
			return "env has " + strconv.Quote(argument.Plain(name, 64)) + ", which is not allowed. " + allowed + " Nothing was started. Set others inside of the command, such as NAME=value make test."
		}
		if strings.ContainsRune(asked[name], 0) {
			return name + " in env has a NUL byte, which no variable can have. Nothing was started. Leave it out."
		}
	}
	return ""
}
