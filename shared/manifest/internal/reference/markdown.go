package reference

import (
	_ "embed"
	"fmt"
	"reflect"
	"strings"

	"mesh/shared/manifest"
)

// intro is what no type says: the file as a whole, placeholders, an example.
//
//go:embed intro.md
var intro string

// Markdown is the manifest reference.
func Markdown(source []byte) ([]byte, error) {
	said, err := docs(source)
	if err != nil {
		return nil, err
	}
	p := &page{said: said}
	p.out.WriteString(intro)
	p.section("", reflect.TypeFor[manifest.Manifest]())
	return []byte(p.out.String()), p.err
}

type page struct {
	out  strings.Builder
	said map[string]string
	err  error
}

// section writes the table of t's keys, then the sections of what it holds.
func (p *page) section(path string, t reflect.Type) {
	all, err := fields(t, p.said)
	if err != nil {
		p.err = err
		return
	}
	title := "The whole file"
	if path != "" {
		title = "`" + path + "`"
	}
	fmt.Fprintf(&p.out, "\n## %s\n\n%s\n\n| key | value | left out | |\n|---|---|---|---|\n", title, p.said[t.Name()])
	for _, f := range all {
		fmt.Fprintf(&p.out, "| `%s` | %s | %s | %s |\n", f.key, p.value(f.typ), leftOut(f), f.doc)
	}
	for _, f := range all {
		if held, below := holds(f.typ, join(path, f.key)); held != nil {
			p.section(below, held)
		}
	}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// holds gives the struct inside t and its path.
func holds(t reflect.Type, path string) (reflect.Type, string) {
	switch t.Kind() {
	case reflect.Pointer:
		return holds(t.Elem(), path)
	case reflect.Slice:
		return holds(t.Elem(), path+"[]")
	case reflect.Map:
		return holds(t.Elem(), path+".<name>")
	case reflect.Struct:
		if _, is := leaf(t); !is {
			return t, path
		}
	}
	return nil, ""
}

// value says in words how t is written.
func (p *page) value(t reflect.Type) string {
	words, is := leaf(t)
	switch {
	case t == reflect.TypeFor[manifest.Schema]():
		return "a JSON Schema"
	case words != nil:
		return "`" + strings.Join(words, "`, `") + "`"
	case is && t.Kind() == reflect.Bool:
		return "`true`, `false`"
	case is:
		return "text"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return p.value(t.Elem())
	case reflect.Slice:
		return "list of " + strings.Replace(p.value(t.Elem()), "text", "texts", 1)
	case reflect.Map:
		return "by name: " + p.value(t.Elem())
	}
	return "keys, below"
}

func leftOut(f field) string {
	switch {
	case f.required:
		return "**required**"
	case f.fallback != "":
		return "`" + f.fallback + "`"
	}
	return ""
}
