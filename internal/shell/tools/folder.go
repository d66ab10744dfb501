package tools

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/longcall/longcall/internal/argument"
)

// folder resolves the folder that a command is to run in: absolute, without
// symbolic links, and inside of one of the roots (SHELL §6). An empty one is the
// first root, and a relative one starts there. wrong is one sentence for the model.
func (s *Settings) folder(cwd string) (dir, wrong string) {
	if len(s.Roots) == 0 {
		return "", "Nothing was started: no folder is allowed for commands. Ask the operator to set shell.roots."
	}
	path := cwd
	switch home, err := os.UserHomeDir(); {
	case path == "":
		path = s.Roots[0]
	case err == nil && (path == "~" || strings.HasPrefix(path, "~/")):
		path = filepath.Join(home, path[1:])
	case !filepath.IsAbs(path):
		path = filepath.Join(s.Roots[0], path)
	}
	path = filepath.Clean(path)
	shown := strconv.Quote(argument.Plain(cwd, 256))
	if cwd == "" {
		shown = strconv.Quote(argument.Plain(path, 256))
	}
	hint := " Nothing was started. Use a folder inside of " + s.rootNames() + "."
	inside := func(dir string) bool {
		for _, root := range s.Roots {
			if resolved, err := filepath.EvalSymlinks(root); err == nil && within(resolved, dir) || within(root, dir) && dir == path {
				return true
			}
		}
		return false
	}
	if !inside(path) { // whether it exists is nobody's business
		return "", "cwd " + shown + " is outside of the folders that commands may run in." + hint
	}
	dir, err := filepath.EvalSymlinks(path)
	if err == nil {
		dir, err = filepath.Abs(dir)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", "cwd " + shown + " does not exist." + hint
	case errors.Is(err, fs.ErrPermission):
		return "", "cwd " + shown + " cannot be opened: permission denied." + hint
	case err != nil:
		return "", "cwd " + shown + " cannot be resolved." + hint
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return "", "cwd " + shown + " is no folder." + hint
	}
	for _, root := range s.Roots {
		if resolved, err := filepath.EvalSymlinks(root); err == nil && within(resolved, dir) {
			return dir, ""
		}
	}
	return "", "cwd " + shown + " leads outside of the folders that commands may run in, by a symbolic link." + hint
}

// within says whether dir is root or below it; both are absolute and clean.
func within(root, dir string) bool {
	rel, err := filepath.Rel(root, dir)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator))
}

// rootNames are the roots as a sentence names them.
func (s *Settings) rootNames() string {
	names := make([]string, len(s.Roots))
	for i, r := range s.Roots {
		names[i] = argument.Plain(r, 256)
	}
	return strings.Join(names, " or ")
}
