// Package version says which mesh a program is. `make` writes the release and the commit into the
// binary; a program built with a plain `go build` says what the Go tool noted of the work tree, and
// never nothing, because a node that reports an empty version looks like one that did not report
// (NOD-6). It does no I/O.
package version

import (
	"runtime/debug"
	"strings"
)

// release and commit are written by the linker only (-X in the Makefile).
var release, commit string

// unreleased is the release of a program that `make` did not build.
const unreleased = "0.0.0-dev"

// Release is the version in semver's form without the leading v, such as "0.1.0" or, between releases,
// "0.1.0-12-g1f2e3d4".
func Release() string {
	if release == "" {
		return unreleased
	}
	return strings.TrimPrefix(release, "v")
}

// Commit is the commit the program was built from, with "-dirty" after it when the work tree had
// changes; "unknown" when neither the Makefile nor the Go tool could say.
func Commit() string {
	if commit != "" {
		return commit
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return fromBuild(info.Settings)
}

// String is both, as `--version` prints them: "0.1.0 (1f2e3d4c5b6a)".
func String() string { return Release() + " (" + Commit() + ")" }

// commitLength is how much of a commit's name is kept: enough to be found, short enough to be read.
const commitLength = 12

func fromBuild(settings []debug.BuildSetting) string {
	var revision string
	var dirty bool
	for _, s := range settings {
		switch s.Key {
		case "vcs.revision":
			revision = s.Value
		case "vcs.modified":
			dirty = s.Value == "true"
		}
	}
	if revision == "" {
		return "unknown"
	}
	revision = revision[:min(commitLength, len(revision))]
	if dirty {
		revision += "-dirty"
	}
	return revision
}
