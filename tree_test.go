// Package mesh_test holds the rules of the whole tree, as tests: which way imports go, what every
// package and exported name says of itself, where time is asked, what the documents promise, and how
// big the agent is. It leaves each package's behaviour to the package's own tests. Every failure is a
// sentence that says what to do.
package mesh_test

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
	"sync"
	"testing"
)

// modulePath is the module's path in go.mod; imports below it are ours.
const modulePath = "mesh"

// source is one Go file, parsed.
type source struct {
	path   string // from the root, with slashes
	folder string // path's folder; "." at the root
	test   bool
	made   bool // generated
	lines  int
	syntax *ast.File
	fset   *token.FileSet
}

// at says where n is, for a person or an editor.
func (s source) at(n ast.Node) string {
	return s.path + ":" + strconv.Itoa(s.fset.Position(n.Pos()).Line)
}

// main says whether s belongs to a command.
func (s source) main() bool { return s.syntax.Name.Name == "main" }

// under says whether s is in folder or below it.
func (s source) under(folder string) bool { return within(s.folder, folder) }

// imports are the paths s imports.
func (s source) imports() []string {
	list := make([]string, 0, len(s.syntax.Imports))
	for _, i := range s.syntax.Imports {
		p, err := strconv.Unquote(i.Path.Value)
		if err == nil {
			list = append(list, p)
		}
	}
	return list
}

// local is the local name that s gives the import of p, "" when s does not import it.
func (s source) local(p string) string {
	for _, i := range s.syntax.Imports {
		if got, err := strconv.Unquote(i.Path.Value); err != nil || got != p {
			continue
		}
		if i.Name != nil {
			return i.Name.Name
		}
		return path.Base(p)
	}
	return ""
}

// calls runs f on each use of one of names of the package p in s, such as time.Now.
func (s source) calls(p string, names []string, f func(n ast.Node, name string)) {
	local := s.local(p)
	if local == "" {
		return
	}
	ast.Inspect(s.syntax, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := sel.X.(*ast.Ident); !ok || x.Name != local {
			return true
		}
		for _, name := range names {
			if sel.Sel.Name == name {
				f(sel, name)
			}
		}
		return true
	})
}

func within(folder, parent string) bool {
	return folder == parent || strings.HasPrefix(folder, parent+"/")
}

// readTree parses every Go file of the module once.
var readTree = sync.OnceValues(func() ([]source, error) {
	var list []source
	fset := token.NewFileSet()
	err := walk(func(p string) error {
		if path.Ext(p) != ".go" || strings.Contains("/"+p, "/testdata/") {
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(fset, p, text, parser.ParseComments)
		if err != nil {
			return err
		}
		list = append(list, source{
			path: p, folder: path.Dir(p), test: strings.HasSuffix(p, "_test.go"), made: ast.IsGenerated(f),
			lines: strings.Count(string(text), "\n"), syntax: f, fset: fset,
		})
		return nil
	})
	return list, err
})

// tree is every Go file of the module.
func tree(t *testing.T) []source {
	t.Helper()
	list, err := readTree()
	if err != nil {
		t.Fatalf("a Go file of the tree cannot be read: %v", err)
	}
	if len(list) == 0 {
		t.Fatal("no Go file was found: run the tests of the root package in the root folder")
	}
	return list
}

// walk runs f on each file of the work tree that could be committed: nothing of git, of the build, or
// of hidden folders except .ci.
func walk(f func(p string) error) error {
	return filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		p = filepath.ToSlash(p)
		switch {
		case err != nil && os.IsNotExist(err):
			return nil // another test's temporary file
		case err != nil:
			return err
		case d.IsDir() && (p == "bin" || path.Base(p) == "dist" || hidden(p)):
			return fs.SkipDir
		case d.IsDir(), !d.Type().IsRegular():
			return nil
		}
		return f(p)
	})
}

func hidden(folder string) bool {
	return folder != "." && folder != ".ci" && strings.HasPrefix(path.Base(folder), ".")
}

// ours turns an import path into the folder it names, from the root.
func ours(importPath string) (folder string, ok bool) {
	return strings.CutPrefix(importPath, modulePath+"/")
}

// top is the first part of a folder: "shared" of "shared/bus".
func top(folder string) string {
	first, _, _ := strings.Cut(folder, "/")
	return first
}
