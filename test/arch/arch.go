// Package arch holds the rules of the source that tests enforce: who imports whom, how packages are described, and what code may not call.
package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

const module = "github.com/longcall/longcall"

// File is one Go file of the repository.
type File struct {
	Path  string // from the repository's root, with slashes
	Dir   string // of the package
	Test  bool   // a _test.go file
	Lines int
	Fset  *token.FileSet
	Ast   *ast.File
}

// Line is the line of a node.
func (f *File) Line(n ast.Node) int { return f.Fset.Position(n.Pos()).Line }

// Imports lists the paths that the file imports.
func (f *File) Imports() (out []string) {
	for _, i := range f.Ast.Imports {
		p, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			panic(err) // the parser has accepted it
		}
		out = append(out, p)
	}
	return out
}

// Calls lists the calls in the file of functions of an imported package, such
// as "time.Sleep" for package path "time".
func (f *File) Calls(pkg string, does func(name string) bool) (out []*ast.SelectorExpr) {
	name := path.Base(pkg)
	found := false
	for _, i := range f.Ast.Imports {
		if p, err := strconv.Unquote(i.Path.Value); err == nil && p == pkg {
			found = true
			if i.Name != nil {
				name = i.Name.Name
			}
		}
	}
	if !found {
		return nil
	}
	ast.Inspect(f.Ast, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && x.Name == name && x.Obj == nil && does(s.Sel.Name) {
				out = append(out, s)
			}
		}
		return true
	})
	return out
}

// Load parses all Go files below root, but for those of nested modules.
func Load(root string) (files []*File, err error) {
	fset := token.NewFileSet()
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			name := d.Name()
			_, nested := os.Stat(filepath.Join(p, "go.mod"))
			if p != root && (nested == nil || strings.HasPrefix(name, ".") || name == "testdata" || name == "node_modules" || name == "bin") {
				return fs.SkipDir
			}
			return nil
		}
		if filepath.Ext(p) != ".go" {
			return nil
		}
		src, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		tree, err := parser.ParseFile(fset, p, src, parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		files = append(files, &File{
			Path: rel, Dir: path.Dir(rel), Test: strings.HasSuffix(rel, "_test.go"),
			Lines: strings.Count(string(src), "\n"), Fset: fset, Ast: tree,
		})
		return nil
	})
	return files, err
}
