package version

import (
	"runtime/debug"
	"testing"
)

func TestNothingIsEverEmpty(t *testing.T) {
	if Release() == "" || Commit() == "" || String() == " ()" {
		t.Errorf("Release() = %q, Commit() = %q, String() = %q: none may be empty", Release(), Commit(), String())
	}
}

func TestFromBuild(t *testing.T) {
	for _, tt := range []struct {
		name     string
		settings []debug.BuildSetting
		want     string
	}{
		{"no version control", nil, "unknown"},
		{"clean", []debug.BuildSetting{{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.modified", Value: "false"}}, "0123456789ab"},
		{"dirty", []debug.BuildSetting{{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.modified", Value: "true"}}, "0123456789ab-dirty"},
		{"short", []debug.BuildSetting{{Key: "vcs.revision", Value: "0123"}}, "0123"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := fromBuild(tt.settings); got != tt.want {
				t.Errorf("fromBuild(%v) = %q, want %q", tt.settings, got, tt.want)
			}
		})
	}
}
