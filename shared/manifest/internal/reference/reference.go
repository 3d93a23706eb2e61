// Package reference writes what people and editors know of module.yaml: docs/manifest.md and
// docs/module.schema.json. Both come from the types of mesh/shared/manifest, their doc comments and
// their tags, so they cannot say anything else than the program does (MAN-3). Only its own test runs
// it: with -update it writes the two files, without it fails when they are stale.
package reference

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"strings"

	"mesh/shared/manifest"
	"mesh/shared/rule"
)

// field is one key as the types have it.
type field struct {
	key, doc, fallback string
	required           bool
	typ                reflect.Type
}

// docs are the comments of types ("Process") and fields ("Process.Exec"), read from Go source.
func docs(source []byte) (map[string]string, error) {
	file, err := parser.ParseFile(token.NewFileSet(), "manifest.go", source, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for _, d := range file.Decls {
		gen, ok := d.(*ast.GenDecl)
		if !ok || gen.Tok != token.TYPE {
			continue
		}
		for _, s := range gen.Specs {
			spec := s.(*ast.TypeSpec)                          // what a TYPE declaration holds
			first, _, _ := strings.Cut(gen.Doc.Text(), "\n\n") // the rest is for those who read the code
			found[spec.Name.Name] = oneLine(first)
			body, ok := spec.Type.(*ast.StructType)
			if !ok {
				continue
			}
			for _, f := range body.Fields.List {
				for _, name := range f.Names {
					found[spec.Name.Name+"."+name.Name] = oneLine(f.Doc.Text())
				}
			}
		}
	}
	return found, nil
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// fields lists the keys of t in the order of the type.
func fields(t reflect.Type, docs map[string]string) ([]field, error) {
	var all []field
	for _, f := range reflect.VisibleFields(t) {
		doc := docs[t.Name()+"."+f.Name]
		if doc == "" {
			return nil, fmt.Errorf("%s.%s has no doc comment, and the reference is made of them", t.Name(), f.Name)
		}
		all = append(all, field{
			key: manifest.Key(f), doc: doc, fallback: f.Tag.Get("default"), required: f.Tag.Get("mesh") == "required", typ: f.Type,
		})
	}
	return all, nil
}

// leaf says whether t is written as one text, and in which words if it has a list of them.
func leaf(t reflect.Type) (words []string, is bool) {
	if t == reflect.TypeFor[rule.Protocol]() || t == reflect.TypeFor[manifest.Schema]() {
		return nil, true
	}
	switch t.Kind() {
	case reflect.Struct:
		return nil, t == reflect.TypeFor[rule.Port]() || t == reflect.TypeFor[rule.From]()
	case reflect.String:
		if w, ok := reflect.Zero(t).Interface().(interface{ Words() []string }); ok {
			return w.Words(), true
		}
		return nil, true
	}
	return nil, t.Kind() == reflect.Bool
}

// patterns are the forms of texts that have one, for editors; the program's own check is stricter.
var patterns = map[string]string{
	"Manifest.module": `^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`,
	"File.path":       `^/.+`,
	"File.mode":       `^0[0-7]{3}$`,
	"Directory.path":  `^/.+`,
	"Directory.mode":  `^[0-3][0-7]{3}$`,
	"Allow.port":      `^[1-9][0-9]*(-[1-9][0-9]*)?/(tcp|udp)$`,
	"User.home":       `^/`,
	"User.shell":      `^/`,
}
