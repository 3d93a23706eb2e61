package mesh_test

import (
	"go/ast"
	"go/token"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	said := map[string]bool{}
	for _, s := range tree(t) {
		if s.test {
			continue
		}
		said[s.folder] = said[s.folder] || opensWith(s.syntax.Doc.Text(), packageOpening(s))
	}
	for folder, ok := range said {
		if !ok {
			t.Errorf("%s has no package doc: write one above its package clause, in some ten lines: what it is for, what it promises, what it leaves to others (\"// Package %s …\", for a command \"// Command %[2]s …\")",
				folder, path.Base(folder))
		}
	}
}

func packageOpening(s source) []string {
	name := s.syntax.Name.Name
	if s.main() {
		base := path.Base(s.folder)
		return []string{"Command " + base, base, "Package main", strings.ToUpper(base[:1]) + base[1:]}
	}
	return []string{"Package " + name}
}

// TestEveryExportedNameIsExplained asks for a sentence that starts with the name. The constants and
// variables of a group may share the group's.
func TestEveryExportedNameIsExplained(t *testing.T) {
	for _, s := range tree(t) {
		if s.test || s.made {
			continue
		}
		for _, d := range s.syntax.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && exportedReceiver(d) {
					explained(t, s, d, d.Name.Name, d.Doc)
				}
			case *ast.GenDecl:
				genExplained(t, s, d)
			}
		}
	}
}

func genExplained(t *testing.T, s source, d *ast.GenDecl) {
	for _, spec := range d.Specs {
		switch spec := spec.(type) {
		case *ast.TypeSpec:
			if spec.Name.IsExported() {
				doc := spec.Doc
				if doc == nil {
					doc = d.Doc
				}
				explained(t, s, spec, spec.Name.Name, doc)
			}
		case *ast.ValueSpec:
			if !slices.ContainsFunc(spec.Names, (*ast.Ident).IsExported) {
				continue
			}
			switch {
			case d.Lparen == token.NoPos:
				explained(t, s, spec, spec.Names[0].Name, d.Doc)
			case d.Doc.Text() == "" && spec.Doc.Text() == "" && spec.Comment.Text() == "":
				t.Errorf("%s: %s has no comment and neither has its group; say what it is for", s.at(spec), spec.Names[0].Name)
			}
		}
	}
}

func explained(t *testing.T, s source, n ast.Node, name string, doc *ast.CommentGroup) {
	t.Helper()
	if !opensWith(doc.Text(), []string{name, "A " + name, "An " + name, "The " + name, "Deprecated:"}) {
		t.Errorf("%s: %s is exported; put a sentence above it that starts with its name, or make it unexported", s.at(n), name)
	}
}

// opensWith says whether text starts with one of openings as whole words.
func opensWith(text string, openings []string) bool {
	return slices.ContainsFunc(openings, func(o string) bool {
		rest, ok := strings.CutPrefix(text, o)
		return ok && rest != "" && strings.ContainsAny(rest[:1], " \n\t,.:;'’()")
	})
}

func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return true
	}
	exported := false
	ast.Inspect(d.Recv.List[0].Type, func(n ast.Node) bool {
		id, ok := n.(*ast.Ident)
		if ok {
			exported = id.IsExported()
		}
		return !ok
	})
	return exported
}

// papers are the documents for people: at the root, in docs, and the README.md and DESIGN.md of packages.
func papers(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	err := walk(func(p string) error {
		folder, name := path.Split(p)
		if path.Ext(p) != ".md" || folder != "" && !within(p, "docs") && name != "README.md" && name != "DESIGN.md" {
			return nil
		}
		text, err := os.ReadFile(p)
		texts[p] = string(text)
		return err
	})
	if err != nil {
		t.Fatalf("a document cannot be read: %v", err)
	}
	return texts
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

func TestLinksInDocumentsLeadSomewhere(t *testing.T) {
	for p, text := range papers(t) {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			file := path.Join(path.Dir(p), target)
			if target == "" {
				file = p
			}
			got, err := os.ReadFile(file)
			if info, statErr := os.Stat(file); statErr == nil && info.IsDir() {
				continue
			}
			if err != nil {
				t.Errorf("%s links to %s, which is not there: mend the link or write the page", p, m[1])
				continue
			}
			if anchor != "" && !hasHeading(string(got), anchor) {
				t.Errorf("%s links to %s, but %s has no such heading: mend the part after the #", p, m[1], file)
			}
		}
	}
}

var notInAnchor = regexp.MustCompile(`[^\p{L}\p{N} _-]`)

func hasHeading(text, anchor string) bool {
	for line := range strings.Lines(text) {
		title := strings.TrimLeft(line, "#")
		if title == line || !strings.HasPrefix(title, " ") {
			continue
		}
		title = notInAnchor.ReplaceAllString(strings.ToLower(strings.TrimSpace(title)), "")
		if strings.ReplaceAll(title, " ", "-") == anchor {
			return true
		}
	}
	return false
}

// TestThePapersAreThere holds what a newcomer looks for first.
func TestThePapersAreThere(t *testing.T) {
	for _, p := range []string{
		"README.md", "LICENSE", "CONTRIBUTING.md", "CHANGELOG.md", "docs/quick-start.md", "docs/architecture.md",
		"docs/security.md", "docs/operating.md", "docs/glossary.md",
	} {
		if info, err := os.Stat(p); err != nil || info.Size() == 0 {
			t.Errorf("%s is missing or empty: write it", p)
		}
	}
}

func TestOneLicense(t *testing.T) {
	text, err := os.ReadFile("LICENSE")
	if err != nil {
		t.Fatalf("read the license: %v", err)
	}
	for _, part := range []string{"Apache License", "Version 2.0, January 2004", "TERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION", "9. Accepting Warranty or Additional Liability.", "END OF TERMS AND CONDITIONS"} {
		if !strings.Contains(string(text), part) {
			t.Errorf("LICENSE lacks %q: it has to be the whole text of the Apache License 2.0", part)
		}
	}
	err = walk(func(p string) error {
		name := strings.ToUpper(path.Base(p))
		if p != "LICENSE" && (strings.HasPrefix(name, "LICENSE") || strings.HasPrefix(name, "COPYING")) {
			t.Errorf("%s: one license holds for the whole tree; remove this file", p)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
