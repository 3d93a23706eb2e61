package reference

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/jsonschema-go/jsonschema"

	"mesh/shared/manifest/yamlfile"
)

var update = flag.Bool("update", false, "write docs/manifest.md and docs/module.schema.json")

const root = "../../../../"

func source(t *testing.T) []byte {
	t.Helper()
	var all []byte
	for _, name := range []string{"manifest.go", "container.go", "tool.go"} {
		b, err := os.ReadFile("../../" + name)
		if err != nil {
			t.Fatal(err)
		}
		if len(all) > 0 { // one file has one package clause
			_, rest, _ := strings.Cut(string(b), "package manifest\n")
			b = []byte(rest)
		}
		all = append(all, b...)
	}
	return all
}

// MAN-3: the reference and the schema are those of the types.
func TestDocsAreFresh(t *testing.T) {
	for name, write := range map[string]func([]byte) ([]byte, error){"docs/manifest.md": Markdown, "docs/module.schema.json": Schema} {
		got, err := write(source(t))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if *update {
			if err := os.WriteFile(root+name, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		have, err := os.ReadFile(root + name)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(have), string(got)); diff != "" {
			t.Errorf("%s is stale; write it with: go test ./shared/manifest/internal/reference -update\n%s", name, diff)
		}
	}
}

// The example of the reference passes the check it describes.
func TestExampleOfTheReference(t *testing.T) {
	_, rest, _ := strings.Cut(intro, "```yaml\n")
	example, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("no example")
	}
	if _, err := yamlfile.Parse("the example", []byte(example)); err != nil {
		t.Error(err)
	}
}

// The schema takes what mesh takes, and refuses an unknown key.
func TestSchema(t *testing.T) {
	b, err := Schema(source(t))
	if err != nil {
		t.Fatal(err)
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	rules, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	var right map[string]any
	b, err = os.ReadFile(filepath.Join("../../yamlfile/testdata/right.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &right); err != nil {
		t.Fatal(err)
	}
	if err := rules.Validate(right); err != nil {
		t.Errorf("what mesh takes is refused: %v", err)
	}
	for _, key := range []string{"requires", "modul", "Module"} {
		wrong := map[string]any{"module": "x", key: "y"}
		if rules.Validate(wrong) == nil {
			t.Errorf("the key %s is taken", key)
		}
	}
}
