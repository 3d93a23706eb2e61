// Package yamlfile reads module.yaml. The YAML library gives nodes with their places; what they mean
// is decided here, by the types of mesh/shared/manifest and nothing else, because readers that guess
// types change people's text (facts/practice.md §11). Text stays text as written, whatever it looks
// like; a boolean is true or false; a number has no leading zero. Anything not understood is a
// problem, and every problem of a file is found in one run, each with its line and column (MAN-1,
// MAN-2). The agent does not link this package.
package yamlfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"mesh/shared/manifest"
)

// The budget of one file.
const (
	MaxBytes = 256 << 10
	MaxDepth = 16
	MaxNodes = 20_000
)

// Parse reads b, the content of file, whose name is used in messages only. The error is
// manifest.Problems with everything that is wrong.
func Parse(file string, b []byte) (*manifest.Manifest, error) {
	m, problems := parse(b)
	for i := range problems {
		problems[i].File = file
	}
	if err := problems.Err(); err != nil {
		return nil, err
	}
	return m, nil
}

func parse(b []byte) (*manifest.Manifest, manifest.Problems) {
	if len(b) > MaxBytes {
		return nil, manifest.Problems{{Line: 1, Col: 1, Want: fmt.Sprintf("the file has %d bytes; at most %d are read", len(b), MaxBytes)}}
	}
	root, problems := document(b)
	if len(problems) > 0 {
		return nil, problems
	}
	w := walker{at: map[string]place{"": {root.Line, root.Column}}, bad: map[string]bool{}, unread: map[string]bool{}, guessed: map[string]bool{}}
	m := new(manifest.Manifest)
	w.value(reflect.ValueOf(m).Elem(), root, "")
	var found manifest.Problems
	if err := m.Check(); !errors.As(err, &found) || w.spent {
		return m, w.found
	}
	return m, append(w.found, w.placed(found)...)
}

// document returns the one document of b.
func document(b []byte) (root *yaml.Node, problems manifest.Problems) {
	defer func() {
		// The library has panicked on hostile input before (CVE-2022-28948).
		if r := recover(); r != nil {
			problems = manifest.Problems{{Line: 1, Col: 1, Want: fmt.Sprintf("the YAML reader gave up: %v", r)}}
		}
	}()
	dec := yaml.NewDecoder(bytes.NewReader(b))
	var doc, more yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, manifest.Problems{{Line: 1, Col: 1, Want: `the file is empty; expected a mapping that begins with "module: <name>"`}}
	case err != nil:
		return nil, manifest.Problems{syntax(b, err)}
	}
	switch err := dec.Decode(&more); {
	case err == nil:
		return nil, manifest.Problems{{Line: more.Line, Col: more.Column, Want: "a second document begins here; expected one module in one file"}}
	case !errors.Is(err, io.EOF):
		return nil, manifest.Problems{syntax(b, err)}
	}
	return doc.Content[0], nil
}

var lineOf = regexp.MustCompile(`line (\d+): `)

// syntax is the library's error as a problem. The library names a line at best; the column is that of
// its first letter.
func syntax(b []byte, err error) manifest.Problem {
	p := manifest.Problem{Line: 1, Col: 1}
	msg := strings.TrimPrefix(err.Error(), "yaml: ")
	lines := strings.Split(string(b), "\n")
	if strings.Contains(msg, "cannot start any token") {
		for i, line := range lines {
			if blank := len(line) - len(strings.TrimLeft(line, " \t")); strings.Contains(line[:blank], "\t") {
				return manifest.Problem{Line: i + 1, Col: strings.IndexByte(line, '\t') + 1, Want: "a tab; expected spaces to indent with"}
			}
		}
	}
	if found := lineOf.FindStringSubmatch(msg); found != nil {
		msg = lineOf.ReplaceAllString(msg, "")
		if n, err := strconv.Atoi(found[1]); err == nil && n >= 1 && n <= len(lines) {
			p.Line, p.Col = n, 1+len(lines[n-1])-len(strings.TrimLeft(lines[n-1], " "))
		}
	}
	p.Want = "is not YAML: " + msg
	return p
}

type place struct{ line, col int }

// placed gives Check's problems their lines, and leaves out those that only repeat what the walk
// found at the same place, or follow from a value around it that could not be read.
func (w *walker) placed(found manifest.Problems) (kept manifest.Problems) {
	for _, p := range found {
		if w.known(p.Path) {
			continue
		}
		at := w.nearest(p.Path)
		p.Line, p.Col = at.line, at.col
		kept = append(kept, p)
	}
	return kept
}

func (w *walker) known(path string) bool {
	if _, there := w.at[path]; w.bad[path] || w.guessed[path] && !there {
		return true
	}
	for ; path != ""; path = parent(path) {
		if w.unread[path] {
			return true
		}
	}
	return w.unread[""]
}

// nearest is the place of path, or of what should have held it.
func (w *walker) nearest(path string) place {
	for ; path != ""; path = parent(path) {
		if at, ok := w.at[path]; ok {
			return at
		}
	}
	return w.at[""]
}

// parent is the path that path is directly below.
func parent(path string) string {
	if strings.HasSuffix(path, `"]`) { // a quoted key: its opening may hold anything but a bare quote
		if i := strings.LastIndex(path, `["`); i >= 0 {
			return path[:i]
		}
	}
	return path[:max(0, strings.LastIndexAny(path, ".["))]
}
