package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// expand puts variables into a string: ${VAR}, ${VAR:-default}, and what hosts
// write: ${env:VAR}, ${input:id}, ${workspaceFolder}, ${userHome}. $${ stands
// for a plain ${. It works on values, after parsing, so a variable can never
// change the shape of a config.
func (d *decoder) expand(s string, p position, path string) string {
	var b strings.Builder
	for {
		i := strings.Index(s, "${")
		if i < 0 {
			return b.String() + s
		}
		if i > 0 && s[i-1] == '$' {
			b.WriteString(s[:i-1] + "${")
			s = s[i+2:]
			continue
		}
		b.WriteString(s[:i])
		end := closing(s[i+2:])
		if end < 0 {
			d.fail(p, path, "close it with }, or write $${ for a plain ${", "${ is not closed")
			return ""
		}
		b.WriteString(d.variable(s[i+2:i+2+end], p, path))
		s = s[i+2+end+1:]
	}
}

// closing is where the } for an open ${ is; defaults may have variables too.
func closing(s string) int {
	depth := 0
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '$' && i+1 < len(s) && s[i+1] == '{':
			depth++
			i++
		case s[i] == '}' && depth == 0:
			return i
		case s[i] == '}':
			depth--
		}
	}
	return -1
}

func (d *decoder) variable(expr string, p position, path string) string {
	if d.visits++; d.visits > maxVisits {
		return "" // a chain of nested defaults; value() reports it
	}
	name, def, hasDef := strings.Cut(expr, ":-")
	scheme, id, hasScheme := strings.Cut(name, ":")
	switch {
	case name == "userHome":
		return d.absolute("~")
	case name == "workspaceFolder":
		return d.workspace()
	case name == "workspaceFolderBasename":
		return filepath.Base(d.workspace())
	case name == "pathSeparator" || name == "/":
		return string(os.PathSeparator)
	case hasScheme && scheme == "input":
		return d.input(id, p, path)
	case hasScheme && scheme == "env":
		name = id
	}
	if !isVariable(name) {
		d.fail(p, path, "write ${NAME} with letters, digits and _, or $${ for a plain ${", "${ is not followed by the name of a variable")
		return ""
	}
	// As in a shell, :- also stands in for a variable that is set to nothing.
	v, ok := d.getenv(name)
	if !strings.HasPrefix(path, "shell.") {
		d.secrets[name] = path // as far as we know
	}
	switch {
	case ok && (v != "" || !hasDef):
		return v
	case hasDef:
		return d.expand(def, p, path)
	}
	d.missing(p, path, fmt.Sprintf("set it, or write ${%s:-} if it may be empty", name), "variable %s is not set", name)
	return ""
}

func (d *decoder) missing(p position, path, hint, format string, args ...any) {
	if d.lax {
		d.warn(p, path, hint, format, args...)
		return
	}
	d.fail(p, path, hint, format, args...)
}

// input is a value that a host would ask its user for. Nobody is there to ask,
// so it comes from the environment, or from the input's default.
func (d *decoder) input(id string, p position, path string) string {
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' {
			return r - 'a' + 'A'
		}
		if r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, id)
	if v, ok := d.getenv(name); ok {
		return v
	}
	if def, ok := d.inputs[id]; ok {
		return def
	}
	d.missing(p, path, fmt.Sprintf("set the variable %s", name), "longcall cannot ask for the input %s", quote(id))
	return ""
}

// workspace is the folder that a file belongs to: its own, or the one that has a
// host's folder with the file in it.
func (d *decoder) workspace() string {
	file, err := filepath.Abs(d.file)
	if err != nil {
		file = d.file
	}
	dir := filepath.Dir(file)
	switch filepath.Base(dir) {
	case ".vscode", ".cursor", ".gemini", ".claude":
		return filepath.Dir(dir)
	}
	return dir
}

func isVariable(s string) bool {
	for i, r := range s {
		if r != '_' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return s != ""
}
