package yamlfile

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"mesh/shared/manifest"
	"mesh/shared/strict"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; -update rewrites it):\n%s", name, diff)
	}
}

func read(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// MAN-1, MAN-2: every problem of a file in one run, with its place and what was expected.
func TestEveryProblemAtOnce(t *testing.T) {
	_, err := Parse("module.yaml", read(t, "wrong.yaml"))
	if err == nil {
		t.Fatal("all wrong, and taken")
	}
	golden(t, "wrong.golden", err.Error()+"\n")
}

// What is right is understood as written: text stays text, and the JSON form is the same manifest.
func TestRight(t *testing.T) {
	m, err := Parse("module.yaml", read(t, "right.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "right.json", string(b)+"\n")
	roundTrip(t, m)
}

// The sample module of the demo passes its own check.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob("../../../docs/examples/*/module.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v %v", files, err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Parse(f, b); err != nil {
			t.Errorf("%v", err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	deep := "module: x\nrun: " + strings.Repeat("[", 40) + strings.Repeat("]", 40) + "\n"
	for _, tt := range []struct{ name, yaml, want string }{
		{"nothing", "", `1:1: the file is empty; expected a mapping that begins with "module: <name>"`},
		{"a comment only", "# hi\n", `1:1: the file is empty; expected a mapping that begins with "module: <name>"`},
		{"a text", "hello", `1:1: "hello"; expected the keys module, description, upgrade, build, run, seats, tools, events, invokes, instances, firewall, needs, settings, secrets`},
		{"a list", "[]", `1:1: a list; expected the keys module, `},
		{"no name", "description: x", "1:1: module: is missing: it has to be there and not empty"},
		{"an empty name", `module: ""`, `1:9: module: "": a name is a token of bus subjects; name the module with`},
		{"a null name", "module:\ndescription: x", `1:8: module: has no value; expected text, or "" for the empty one`},
		{"a second document", "module: x\n---\nmodule: y\n", "2:1: a second document begins here; expected one module in one file"},
		{"an empty second document", "module: x\n---\n", "2:1: a second document begins here"},
		{"no YAML", "module: x\n  upgrade: roll\n", "2:3: is not YAML: mapping values are not allowed in this context"},
		{"a tab", "module: x\nrun:\n\tfiles: []\n", "3:1: a tab; expected spaces to indent with"},
		{"an open bracket", "module: [x\n", "is not YAML: did not find expected ',' or ']'"},
		{"no UTF-8", "module: \xff\xfe\n", "is not YAML: "},
		{"a key twice", "module: x\nmodule: y\n", "2:1: module: stands here twice, first in line 1; expected one"},
		{"a merge", "module: x\nrun: {<<: {files: []}}\n", "2:7: run[\"<<\"]: merges another place of the file"},
		{"an anchor", "module: &a x\n", "1:9: module: &a names this place for repeating"},
		{"an alias that holds itself", "module: x\nrun: &a {users: *a}\n", "2:17: run.users: *a repeats another place"},
		{"an alias of nothing", "module: *b\n", "is not YAML: unknown anchor 'b' referenced"},
		{"a tag", "module: !!binary eA==\n", "1:9: module: !!binary is a tag; expected the value alone, its type is known"},
		{"a mapping as a key", "module: x\n{a: b}: c\n", "a key that is no plain name"},
		{"deep", deep, `2:6: run: a list; expected the keys processes, `},
		{"a mapping for text", "module: {a: b}\n", "1:9: module: a mapping; expected text"},
		{"a quoted boolean", "module: x\nneeds: {engine: \"true\"}\n", `2:17: needs.engine: the text "true"; expected true or false`},
		{"an old boolean", "module: x\nneeds: {engine: on}\n", `2:17: needs.engine: "on"; expected true or false`},
		{"a null boolean", "module: x\nneeds: {engine: }\n", `needs.engine: has no value; expected true or false`},
		{"too large", "module: x\n#" + strings.Repeat("x", MaxBytes), "1:1: the file has 262155 bytes; at most 262144 are read"},
		{"too many values", "module: x\nneeds: {os: [" + strings.Repeat("a,", MaxNodes) + "]}\n", "the file has too many values; at most 20000 are read"},
		{"a list of one word", "module: x\nneeds: {os: debian}\n", `2:13: needs.os: "debian"; expected a list, such as [a, b]`},
		{"a circle", "module: x\nrun: {processes: {a: {exec: [/a], after: [b]}, b: {exec: [/b], after: [a]}}}\n",
			"run.processes.b.after: these wait for each other: a after b after a"},
		{"a relative program without a bundle", "module: x\nrun: {processes: {a: {exec: [bin/a]}}}\n",
			`2:30: run.processes.a.exec[0]: "bin/a" is a path in the bundle, and the module has none; expected an absolute path, or build.bundle`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse("module.yaml", []byte(tt.yaml))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Parse:\n%v\nwant a line with:\n%s", err, tt.want)
			}
			var ps manifest.Problems
			if !errors.As(err, &ps) || len(ps) == 0 || ps[0].File != "module.yaml" || ps[0].Line == 0 || ps[0].Col == 0 {
				t.Errorf("the error is no list of places: %#v", err)
			}
		})
	}
}

// Numbers do not stand in a manifest yet; the rule for them is here before the first one.
func TestNumbers(t *testing.T) {
	for text, want := range map[string]int{"0": 0, "17": 17, "017": -1, "0o17": -1, "1_0": -1, "0x1": -1, "1.0": -1, "-1": -1, "\"1\"": -1, "9999999999": -1} {
		var doc yaml.Node
		if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
			t.Fatal(err)
		}
		w := walker{bad: map[string]bool{}, unread: map[string]bool{}}
		got := -1
		n := 0
		if w.value(reflect.ValueOf(&n).Elem(), doc.Content[0], "n"); len(w.found) == 0 {
			got = n
		}
		if got != want {
			t.Errorf("number %s = %d, want %d (%v)", text, got, want, w.found)
		}
	}
}

// Each key of later is unknown to its type: one that became known must leave the list.
func TestLaterIsNotNow(t *testing.T) {
	for typ := range later {
		for _, f := range reflect.VisibleFields(typ) {
			if isLater(typ, manifest.Key(f)) {
				t.Errorf("%s.%s is both here and later", typ, manifest.Key(f))
			}
		}
	}
}

// roundTrip holds the promise to the agents: the JSON form decodes strictly, is the same manifest,
// keeps the rules and marshals to the same bytes.
func roundTrip(t *testing.T, m *manifest.Manifest) {
	t.Helper()
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var back manifest.Manifest
	if err := strict.Decode(b, &back); err != nil {
		t.Fatalf("the JSON form is refused: %v\n%s", err, b)
	}
	if !reflect.DeepEqual(m, &back) {
		t.Fatalf("the JSON form is another manifest: %+v, was %+v", &back, m)
	}
	if err := back.Check(); err != nil {
		t.Fatalf("the decoded form is refused: %v", err)
	}
	if again, err := json.Marshal(&back); err != nil || string(again) != string(b) {
		t.Fatalf("marshalled again: %s, was %s (%v)", again, b, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(read(f, "right.yaml"))
	f.Add(read(f, "wrong.yaml"))
	f.Add([]byte("module: x\nrun: {files: [{path: /a, content: \"\\0\"}]}"))
	f.Add([]byte("a: &a [*a]\n---\n? {x}\n"))
	f.Add([]byte("%YAML 1.1\n--- !!map {module: x}\n...\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Parse("module.yaml", b)
		if err != nil {
			var ps manifest.Problems
			if !errors.As(err, &ps) || len(ps) == 0 {
				t.Fatalf("no problems in %v", err)
			}
			return
		}
		roundTrip(t, m)
	})
}
