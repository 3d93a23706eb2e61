package resource_test

import (
	"encoding/json"
	"testing"

	"mesh/agent/resource"
	"mesh/shared/declaration"
	"mesh/shared/manifest"
)

// TestPassedRemembersTexts: a manifest that keeps the rules is held against them once, one that does not
// each time, and a name says nothing about a text.
func TestPassedRemembersTexts(t *testing.T) {
	module := func(path string) declaration.Module {
		b, err := json.Marshal(manifest.Manifest{Module: "notes", Run: manifest.Run{Files: []manifest.File{{Path: path, Content: "x"}}}})
		if err != nil {
			t.Fatal(err)
		}
		return declaration.Module{Name: "notes", Build: "b", Manifest: b}
	}
	passed := resource.Passed{}
	for _, tt := range []struct {
		name, path string
		refused    bool
		kept       int
	}{
		{"one that keeps the rules", "/etc/a", false, 1},
		{"the same again", "/etc/a", false, 1},
		{"one that does not", "relative", true, 1},
		{"that one again", "relative", true, 1},
		{"another that does", "/etc/b", false, 2},
	} {
		in := input(t, module(tt.path))
		in.Passed = passed
		_, failed := resource.Expand(in)
		if (len(failed) > 0) != tt.refused || len(passed) != tt.kept {
			t.Errorf("%s: failed %v, %d remembered", tt.name, failed, len(passed))
		}
	}
}
