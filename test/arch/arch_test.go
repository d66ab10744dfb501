package arch

import (
	"maps"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

func load(t *testing.T) []*File {
	t.Helper()
	_, here, _, _ := runtime.Caller(0)
	files, err := Load(filepath.Join(filepath.Dir(here), "..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatal("no files")
	}
	return files
}

// under says whether a package is dir or below it.
func under(pkg, dir string) bool { return pkg == dir || strings.HasPrefix(pkg, dir+"/") }

// toCalls are the packages below internal/shell that make calls of its processes:
// they know what a call is, and what an agent gets to read.
var toCalls = map[string][]string{"internal/shell/tools": {"internal/mcp", "internal/call"}}

// never lists imports that would break the design, each with its reason
// (DESIGN §5). They bind the packages, not their tests.
var never = []struct{ from, to, why string }{
	{"internal/mcp", "internal", "the wire knows nothing of ours"},
	{"internal/downstream", "internal/upstream", "the two sides meet in the engine only"},
	{"internal/downstream", "internal/journal", "an agent's view comes from the engine, not from the database"},
	{"internal/downstream", "internal/shell", "the shell is a tool server like any other"},
	{"internal/upstream", "internal/downstream", "the two sides meet in the engine only"},
	{"internal/upstream", "internal/journal", "the engine writes events, runners emit them"},
	{"internal/upstream", "internal/policy", "a call that reaches a runner is decided"},
	{"internal/journal", "internal/mcp", "bodies are bytes to the journal"},
	{"internal/journal", "internal/upstream", "the journal serves the engine only"},
	{"internal/journal", "internal/downstream", "the journal serves the engine only"},
	{"internal/shell", "internal/mcp", "processes know no protocol"},
	{"internal/shell", "internal/call", "processes know no calls"},
	{"internal/shell", "internal/journal", "processes know no database"},
	{"internal/shell", "internal/downstream", "the agents' side looks at the shell through an interface of its own"},
	{"internal/command", "internal/downstream", "values that two sides share know neither"},
	{"internal/command", "internal/shell", "values that two sides share know neither"},
	{"internal/policy", "internal/journal", "rules and limits are pure values"},
	{"internal/policy", "internal/upstream", "rules and limits are pure values"},
	{"internal/policy", "internal/downstream", "rules and limits are pure values"},
	{"internal", "test", "the product does not need its tests"},
	{"cmd", "test", "the product does not need its tests"},
	{"test/wire", "internal", "a fault of the product's framing must not hide itself"},
	{"test/peers", "internal", "peers know the product's binary only"},
	{"test/hosts", "internal", "hosts know the product's binary only"},
	{"test/bench", "internal", "the benchmark measures the product's binary"},
}

func TestImports(t *testing.T) {
	for _, f := range load(t) {
		for _, imp := range f.Imports() {
			std := !strings.Contains(strings.Split(imp, "/")[0], ".")
			to, ours := strings.CutPrefix(imp, module+"/")
			if !f.Test && f.Dir == "internal/call" && !std {
				t.Errorf("%s imports %s: the domain compiles with the standard library alone", f.Path, imp)
			}
			if !f.Test && under(f.Dir, "test/wire") && !std {
				t.Errorf("%s imports %s: the harness uses the standard library alone", f.Path, imp)
			}
			if !ours || to == f.Dir {
				continue
			}
			if to == "internal/app" && !under(f.Dir, "internal/cli") && !under(f.Dir, "test") {
				t.Errorf("%s imports %s: only cli starts the app", f.Path, imp)
			}
			if under(f.Dir, "cmd") && to != "internal/cli" {
				t.Errorf("%s imports %s: main hands its arguments to cli, and does nothing else", f.Path, imp)
			}
			for _, r := range never {
				if slices.Contains(toCalls[f.Dir], to) {
					continue
				}
				if under(f.Dir, r.from) && under(to, r.to) && (!f.Test || r.to == "test" && under(f.Dir, "cmd")) && !under(to, f.Dir) {
					t.Errorf("%s imports %s: %s", f.Path, imp, r.why)
				}
			}
		}
	}
}

// TestPackageComments asks of every package that its comment starts with one
// sentence, "Package x ...": one noun, one package, one sentence.
func TestPackageComments(t *testing.T) {
	docs := map[string][]string{}
	names := map[string]string{}
	for _, f := range load(t) {
		if f.Test {
			continue
		}
		names[f.Dir] = f.Ast.Name.Name
		if f.Ast.Doc != nil {
			docs[f.Dir] = append(docs[f.Dir], f.Ast.Doc.Text())
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(names)) {
		name, start := names[dir], "Package "+names[dir]+" "
		if name == "main" {
			start = "Command " + path.Base(dir) + " "
		}
		if len(docs[dir]) != 1 {
			t.Errorf("%s: %d files have a package comment, one must", dir, len(docs[dir]))
			continue
		}
		first, _, _ := strings.Cut(docs[dir][0], "\n\n")
		first = strings.Join(strings.Fields(first), " ")
		if !strings.HasPrefix(first, start) || !strings.HasSuffix(first, ".") || strings.Contains(first, ". ") {
			t.Errorf("%s: the package comment must begin with one sentence %q and have the rest below a blank line; it begins: %q", dir, start+"...", first)
		}
	}
}

func TestFilesAreShort(t *testing.T) {
	const most, many = 600, 500
	for _, f := range load(t) {
		switch {
		case f.Lines > most:
			t.Errorf("%s has %d lines, at most %d: split it by what it is about", f.Path, f.Lines, most)
		case f.Lines > many:
			t.Logf("%s has %d lines, soon too many", f.Path, f.Lines)
		}
	}
}

func TestTestsDoNotSleep(t *testing.T) {
	for _, f := range load(t) {
		// In a synctest bubble sleeping is how fake time passes.
		if !f.Test || slices.Contains(f.Imports(), "testing/synctest") {
			continue
		}
		for _, c := range f.Calls("time", func(name string) bool { return name == "Sleep" }) {
			t.Errorf("%s:%d calls time.Sleep in real time: wait for what you mean", f.Path, f.Line(c))
		}
	}
}

// rootContexts are the files that may make a context of their own, each with
// the thing that owns it and ends it.
var rootContexts = map[string]string{
	"internal/app/app.go":              "stopping must go on when the context of Run is done; each has a time limit",
	"internal/call/engine.go":          "calls outlive their requests; Engine.Stop ends them",
	"internal/cli/serve.go":            "the last log lines are written when all else has stopped; it has a time limit",
	"internal/downstream/handler.go":   "it is over from the beginning: for looking without waiting",
	"internal/demo/server.go":          "the demo's slow calls; Close ends them",
	"internal/telemetry/request.go":    "slog asks for one, and our handlers do not look at it",
	"internal/telemetry/telemetry.go":  "slog asks for one, and our handlers do not look at it",
	"internal/telemetry/trace.go":      "spans are sent after their calls have ended; Close ends the sending",
	"internal/upstream/asks.go":        "what is asked within a call waits as long as the call runs; asks.close ends it",
	"internal/upstream/http.go":        "connections outlive the call that opened them; Close ends them",
	"internal/upstream/pool.go":        "connections outlive the call that opened them; Pool.Close ends them",
	"internal/upstream/stdio.go":       "children outlive the call that started them; Close ends them",
	"internal/upstream/stdio_start.go": "a child that failed to start is ended also if nobody waits any more; each has a time limit",
}

func TestContextsHaveOwners(t *testing.T) {
	used := map[string]bool{}
	for _, f := range load(t) {
		if f.Test || under(f.Dir, "test") || f.Ast.Name.Name == "main" {
			continue
		}
		for _, c := range f.Calls("context", func(name string) bool { return name == "Background" || name == "TODO" }) {
			if used[f.Path] = true; rootContexts[f.Path] == "" {
				t.Errorf("%s:%d makes a context of its own: take one from the caller, or name its owner in rootContexts", f.Path, f.Line(c))
			}
		}
	}
	for f := range rootContexts {
		if !used[f] {
			t.Errorf("rootContexts names %s, which makes no context", f)
		}
	}
}

func TestNothingPrints(t *testing.T) {
	for _, f := range load(t) {
		if f.Test || !under(f.Dir, "internal") {
			continue
		}
		for _, c := range f.Calls("log", func(name string) bool {
			return strings.HasPrefix(name, "Print") || strings.HasPrefix(name, "Fatal") || strings.HasPrefix(name, "Panic")
		}) {
			t.Errorf("%s:%d calls log.%s: log with log/slog", f.Path, f.Line(c), c.Sel.Name)
		}
		if under(f.Dir, "internal/cli") {
			continue
		}
		for _, c := range f.Calls("fmt", func(name string) bool { return strings.HasPrefix(name, "Print") }) {
			t.Errorf("%s:%d calls fmt.%s: only cli prints", f.Path, f.Line(c), c.Sel.Name)
		}
	}
}

// TestNothingIsLeftOpen asks that unfinished work is an issue, not a comment.
func TestNothingIsLeftOpen(t *testing.T) {
	for _, f := range load(t) {
		if under(f.Dir, "test/arch") {
			continue
		}
		for _, g := range f.Ast.Comments {
			for _, c := range g.List {
				for _, word := range []string{"TODO", "FIXME", "XXX"} {
					if strings.Contains(c.Text, word) {
						t.Errorf("%s:%d: %s", f.Path, f.Line(c), c.Text)
					}
				}
			}
		}
	}
}

func TestRulesCatch(t *testing.T) {
	for _, c := range []struct {
		from, to string
		want     bool
	}{
		{"internal/journal/sqlite", "internal/mcp", true},
		{"internal/journal/sqlite", "internal/call", false},
		{"internal/mcp", "internal/call", true},
		{"internal/downstream", "internal/upstream", true},
	} {
		got := false
		for _, r := range never {
			got = got || under(c.from, r.from) && under(c.to, r.to)
		}
		if got != c.want {
			t.Errorf("%s to %s: forbidden %v, want %v", c.from, c.to, got, c.want)
		}
	}
}
