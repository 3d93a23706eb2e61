package verbs

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"mesh/shared/engine"
	"mesh/shared/subject"
)

var update = flag.Bool("update", false, "rewrite shared/engine/schemas.json")

// The agent answers discovery with schemas that it cannot make itself.
func TestSchemasOfNodeSeats(t *testing.T) {
	all := map[subject.Seat]map[subject.Verb]engine.Schema{}
	tools, err := nodeTools()
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range tools {
		if all[tool.Seat] == nil {
			all[tool.Seat] = map[subject.Verb]engine.Schema{}
		}
		all[tool.Seat][tool.Verb] = engine.Schema{Ask: tool.Schema, Answer: tool.Answer}
	}
	want, err := json.MarshalIndent(all, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	want = append(want, '\n')
	path := filepath.Join("..", "..", "shared", "engine", "schemas.json")
	if *update {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, want) {
		t.Errorf("%s is not made from the types of today; run this test with -update", path)
	}
}
