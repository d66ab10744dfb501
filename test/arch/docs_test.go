package arch

import (
	"fmt"
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

// part is a test's name in a document, a package before one, or what ends its list.
var part = regexp.MustCompile("\\b([a-z0-9]+): |`((?:Test|Fuzz)[A-Za-z0-9_]*)(…?)`| · ")

// doc is a document's text.
func doc(t *testing.T, name string) string {
	t.Helper()
	_, here, _, _ := runtime.Caller(0)
	b, err := os.ReadFile(filepath.Join(filepath.Dir(here), "..", "..", "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestDocsNameTests holds the documents that say which test guards what to the
// tests that there are: each name must be one of a test, in the package before it,
// if there is one. A name that ends in … stands for all that begin like it.
func TestDocsNameTests(t *testing.T) {
	tests := map[string][]string{} // by the last part of their package's path
	for _, f := range load(t) {
		for _, d := range f.Ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && f.Test && fn.Recv == nil {
				tests[path.Base(f.Dir)] = append(tests[path.Base(f.Dir)], fn.Name.Name)
			}
		}
	}
	has := func(pkg, name string, more bool) bool {
		for p, names := range tests {
			for _, n := range names {
				if (pkg == "" || p == pkg) && (n == name || more && strings.HasPrefix(n, name)) {
					return true
				}
			}
		}
		return false
	}
	for _, name := range []string{"invariants.md", "cases.md", "protocol.md"} {
		named := 0
		for i, line := range strings.Split(doc(t, name), "\n") {
			if cells := strings.Split(strings.TrimSuffix(line, "|"), "|"); strings.HasPrefix(line, "|") {
				line = cells[len(cells)-1]
			}
			pkg := ""
			for _, m := range part.FindAllStringSubmatch(line, -1) {
				switch {
				case m[2] != "":
					if named++; !has(pkg, m[2], m[3] != "") {
						t.Errorf("docs/%s:%d names the test %s, which is not there (package %q)", name, i+1, m[2], pkg)
					}
				case m[1] != "" && tests[m[1]] != nil:
					pkg = m[1]
				default:
					pkg = ""
				}
			}
		}
		if named == 0 {
			t.Errorf("docs/%s names no test", name)
		}
	}
}

// TestDocsHaveEveryRow: each case and each rule of the protocol has its row, and a
// test in it.
func TestDocsHaveEveryRow(t *testing.T) {
	for _, all := range []struct {
		doc, id  string
		from, to int
	}{
		{"cases.md", "O%d", 1, 28},
		{"cases.md", "P%d", 1, 22},
		{"cases.md", "A%d", 1, 9},
		{"protocol.md", "R-%02d", 1, 16},
		{"protocol.md", "R-%02d", 20, 31},
		{"protocol.md", "R-%02d", 40, 44},
		{"protocol.md", "R-%02d", 50, 64},
		{"protocol.md", "R-%02d", 70, 82},
	} {
		text := doc(t, all.doc)
		if _, table, ok := strings.Cut(text, "\n## Rules and tests\n"); ok {
			text = table
		}
		for n := all.from; n <= all.to; n++ {
			id := fmt.Sprintf(all.id, n)
			row := regexp.MustCompile(`(?m)^\| ` + id + ` .*$`).FindString(text)
			if row == "" || !strings.Contains(row, "`Test") {
				t.Errorf("docs/%s has no row with a test for %s: %q", all.doc, id, row)
			}
		}
	}
}
