package resource_test

import (
	"encoding/json"
	"testing"

	"mesh/agent/resource"
	"mesh/shared/declaration"
	"mesh/shared/manifest"
	"mesh/shared/subject"
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

// TestAModuleThatIsTheSameIsNotExpandedAgain: whatever comes or goes beside it; on a
// machine that became another it is.
func TestAModuleThatIsTheSameIsNotExpandedAgain(t *testing.T) {
	module := func(name, content string) declaration.Module {
		b, err := json.Marshal(manifest.Manifest{Module: subject.Module(name), Run: manifest.Run{Files: []manifest.File{{Path: "/etc/" + name, Content: content}}}})
		if err != nil {
			t.Fatal(err)
		}
		return declaration.Module{Name: subject.Module(name), Build: "b", Manifest: b}
	}
	known := resource.Expanded{}
	expand := func(machine resource.Machine, modules ...declaration.Module) map[string]*resource.File {
		t.Helper()
		in := input(t, modules...)
		in.Expanded, in.Machine = known, machine
		all, failed := resource.Expand(in)
		if len(failed) > 0 {
			t.Fatal(failed)
		}
		out := map[string]*resource.File{}
		for _, r := range all {
			if r.File != nil {
				out[r.File.Path] = r.File
			}
		}
		return out
	}
	here := resource.Machine{OS: "debian"}
	a, b := module("a", "one"), module("b", "one")
	first := expand(here, a, b)
	b = module("b", "two")
	second := expand(here, a, b)
	if second["/etc/a"] != first["/etc/a"] {
		t.Error("a was expanded again")
	}
	if second["/etc/b"] == first["/etc/b"] || string(second["/etc/b"].Content) != "two" {
		t.Error("b is the old one")
	}
	if third := expand(here, a); third["/etc/a"] != first["/etc/a"] || len(known) != 1 {
		t.Errorf("without b, a is another, or %d are remembered", len(known))
	}
	if other := expand(resource.Machine{OS: "alpine"}, a); other["/etc/a"] == first["/etc/a"] {
		t.Error("on another machine a was not expanded again")
	}
	if expand(here, module("c", "x")); len(known) != 1 {
		t.Errorf("%d are remembered", len(known))
	}
}
