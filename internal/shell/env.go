package shell

import (
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// quiet are the settings that keep commands from waiting for a person or
// drawing for one (SHELL §6).
var quiet = []string{
	"PAGER=cat", "GIT_PAGER=cat", "GH_PAGER=cat", "GIT_TERMINAL_PROMPT=0",
	"DEBIAN_FRONTEND=noninteractive", "NO_COLOR=1", "CI=1", "LANG=C.UTF-8",
}

// environment is what the command gets: its own variables, and those of quiet
// that it does not name. PWD is the folder that it runs in.
func (c *Command) environment() []string {
	term := "TERM=dumb"
	if c.TTY {
		term = "TERM=xterm-256color"
	}
	env := slices.DeleteFunc(slices.Clone(c.Env), func(kv string) bool { return strings.HasPrefix(kv, "PWD=") })
	for _, kv := range append([]string{term}, quiet...) {
		name, _, _ := strings.Cut(kv, "=")
		if !slices.ContainsFunc(env, func(e string) bool { return strings.HasPrefix(e, name+"=") }) {
			env = append(env, kv)
		}
	}
	return append(env, "PWD="+c.Dir)
}

// program finds what Argv[0] names: a bare name on the PATH of the command's
// own environment, never in a relative folder.
func (c *Command) program() (string, error) {
	name := c.Argv[0]
	if filepath.IsAbs(name) {
		return name, nil
	}
	if strings.ContainsRune(name, '/') {
		return filepath.Join(c.Dir, name), nil
	}
	for _, kv := range c.Env {
		list, ok := strings.CutPrefix(kv, "PATH=")
		if !ok {
			continue
		}
		for _, dir := range filepath.SplitList(list) {
			if !filepath.IsAbs(dir) {
				continue
			}
			if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
				return path, nil
			}
		}
	}
	return "", errors.New("it is not on the PATH that commands get")
}
