package mesh_test

import (
	"bytes"
	"go/ast"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// clockFile is the one file that asks what time it is.
const clockFile = "shared/clock/clock.go"

// TestTimeIsAskedInOneFile lets two others look at the watch: benchmarks and cmd/e2e, which measure
// and drive whole programs from outside.
func TestTimeIsAskedInOneFile(t *testing.T) {
	for _, s := range tree(t) {
		if s.path == clockFile || s.under("cmd/e2e") {
			continue
		}
		s.calls("time", []string{"Now", "Since", "Until"}, func(n ast.Node, name string) {
			if !s.test || !inBenchmark(s, n) {
				t.Errorf("%s: time.%s asks the machine's clock; take a clock.Clock and ask it (in a test: clock.NewFake, or clock.Real().Now())", s.at(n), name)
			}
		})
	}
}

func inBenchmark(s source, n ast.Node) bool {
	return slices.ContainsFunc(s.syntax.Decls, func(d ast.Decl) bool {
		f, ok := d.(*ast.FuncDecl)
		return ok && strings.HasPrefix(f.Name.Name, "Benchmark") && f.Pos() <= n.Pos() && n.End() <= f.End()
	})
}

func TestNobodySleeps(t *testing.T) {
	for _, s := range tree(t) {
		s.calls("time", []string{"Sleep"}, func(n ast.Node, _ string) {
			if s.test || s.under("testbus") {
				t.Errorf("%s: a test waits for a state, never for a time to pass; use waitfor.True or waitfor.Value with a deadline", s.at(n))
				return
			}
			t.Errorf("%s: time.Sleep cannot be interrupted; select on ctx.Done() and the clock's After", s.at(n))
		})
	}
}

func TestContextsComeFromMain(t *testing.T) {
	for _, s := range tree(t) {
		if s.test || s.main() || s.under("testbus") || s.under("cmd/e2e") {
			continue
		}
		s.calls("context", []string{"Background", "TODO"}, func(n ast.Node, name string) {
			t.Errorf("%s: context.%s cuts the caller off; take ctx as the first parameter (what must finish after a cancel: context.WithoutCancel and a timeout)", s.at(n), name)
		})
	}
}

// mayPanic says which files panic, and for which broken invariant. Input never panics.
var mayPanic = map[string]string{
	"agent/apply/act.go":                "the planner made a step that apply does not know",
	"agent/resource/resource.go":        "a resource was made without a kind",
	"agent/state/state.go":              "the embedded folder of migrations is missing from the binary",
	"cmd/mesh-coordinator/root.go":      "a command asks a verb that the compiled-in table lacks",
	"coordinator/records/records.go":    "encoding/json refused a value of ours",
	"coordinator/verbs/verbs.go":        "a handler's types are not those of the compiled-in table",
	"shared/declaration/declaration.go": "encoding/json refused a Go string",
	"shared/manifest/yamlfile/walk.go":  "a manifest type has a field of a kind that nothing reads",
	"shared/waitfor/waitfor.go":         "Fatalf did not end the test",
}

func TestNobodyPanicsAtInput(t *testing.T) {
	for _, s := range tree(t) {
		if s.test || s.under("cmd/e2e") || s.under("testbus") || mayPanic[s.path] != "" {
			continue
		}
		ast.Inspect(s.syntax, func(n ast.Node) bool {
			c, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if id, ok := c.Fun.(*ast.Ident); ok && id.Name == "panic" {
				t.Errorf("%s: panic; return an error, or, when only a bug of ours can come here, name the invariant in the text and the file in mayPanic of habits_test.go", s.at(n))
			}
			return true
		})
	}
	for p := range mayPanic {
		if _, err := os.Stat(p); err != nil {
			t.Errorf("mayPanic names %s, which is gone: take it off the list", p)
		}
	}
}

func TestNoInit(t *testing.T) {
	for _, s := range tree(t) {
		for _, d := range s.syntax.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" && !s.made {
				t.Errorf("%s: init runs before anybody can say no; make a constructor and call it in main", s.at(f))
			}
		}
	}
}

// TestPackageVariablesDoNotChange finds assignments to package variables. It does not see writes through
// a pointer or into a map; reviews do.
func TestPackageVariablesDoNotChange(t *testing.T) {
	vars := map[string]map[string]bool{} // folder and package, variable
	key := func(s source) string { return s.folder + " " + s.syntax.Name.Name }
	for _, s := range tree(t) {
		if vars[key(s)] == nil {
			vars[key(s)] = map[string]bool{}
		}
		for _, d := range s.syntax.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.VAR {
				continue
			}
			for _, spec := range g.Specs {
				for _, n := range spec.(*ast.ValueSpec).Names {
					vars[key(s)][n.Name] = true
				}
			}
		}
	}
	for _, s := range tree(t) {
		if s.test {
			continue // a test may move a variable of its own package, such as a bound
		}
		ast.Inspect(s.syntax, func(n ast.Node) bool {
			var written []ast.Expr
			switch n := n.(type) {
			case *ast.AssignStmt:
				if n.Tok != token.DEFINE {
					written = n.Lhs
				}
			case *ast.IncDecStmt:
				written = []ast.Expr{n.X}
			}
			for _, e := range written {
				if id, ok := e.(*ast.Ident); ok && vars[key(s)][id.Name] && packageLevel(s, id) {
					t.Errorf("%s: the package variable %s changes; make it a field of what New returns", s.at(id), id.Name)
				}
			}
			return true
		})
	}
}

// packageLevel says whether id, known to be the name of a package variable, means that variable here
// and not a local one of the same name.
func packageLevel(s source, id *ast.Ident) bool {
	o := id.Obj
	if o == nil {
		return true // declared in another file of the package
	}
	return slices.ContainsFunc(s.syntax.Decls, func(d ast.Decl) bool {
		g, ok := d.(*ast.GenDecl)
		return ok && g.Pos() <= o.Pos() && o.Pos() < g.End()
	})
}

// longest is how many lines a Go file may have; past some 500 it is usually two.
const longest = 700

// mayBeLong says which files are longer, and why.
var mayBeLong = map[string]string{}

func TestFilesAreShortEnoughToRead(t *testing.T) {
	for _, s := range tree(t) {
		if s.lines > longest && !s.made && mayBeLong[s.path] == "" {
			t.Errorf("%s has %d lines, and %d are the most: it holds two things; give each its file", s.path, s.lines, longest)
		}
	}
}

func TestFoldersHaveNames(t *testing.T) {
	for _, s := range tree(t) {
		for part := range strings.SplitSeq(s.folder, "/") {
			if slices.Contains([]string{"util", "utils", "common", "types", "manager", "helpers", "misc", "lib", "pkg"}, part) {
				t.Errorf("%s: the folder name %q does not say what is inside; name it after the one thing it holds", s.path, part)
			}
		}
	}
}

// private are places that exist on one machine only, or that belong to somebody's set-up: a clone
// elsewhere must not need them. They are written in two parts so that this file passes.
var private = []struct {
	pattern *regexp.Regexp
	why     string
}{
	{regexp.MustCompile(`/wor` + `k/(main|shared)\b`), "a path of one machine; write it from the root of the repository"},
	{regexp.MustCompile(`/tmp/(cla` + `ude|bash_|mesh-(brief|arch))`), "a path of one machine; use t.TempDir() or os.MkdirTemp"},
	{regexp.MustCompile(`/home/[a-z]+/(src|go|work|code)\b`), "a path of one machine; write it from the root of the repository"},
	{regexp.MustCompile(`(proxy|sum)\.gol` + `ang\.org|gopr` + `oxy\.(io|cn)|registry\.npm` + `js\.org|(files\.python|py` + `pi)\.(hosted\.)?org`), "a registry's host; the user's own settings say which one is asked"},
	{regexp.MustCompile(`(deb|ftp|snapshot)\.deb` + `ian\.org|archive\.ubu` + `ntu\.com`), "a package mirror; the machine's own apt settings say which one is asked"},
}

func TestNothingNamesOneMachine(t *testing.T) {
	err := walk(func(p string) error {
		text, err := os.ReadFile(p)
		if err != nil || bytes.IndexByte(text, 0) >= 0 || !utf8.Valid(text) {
			return err // a binary file
		}
		for _, rule := range private {
			if at := rule.pattern.FindIndex(text); at != nil {
				t.Errorf("%s:%d names %q: %s", p, 1+bytes.Count(text[:at[0]], []byte("\n")), text[at[0]:at[1]], rule.why)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
